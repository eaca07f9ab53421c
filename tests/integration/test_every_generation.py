"""What the specifications promise of every generation, looked at in the files of each of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe import (
    AlreadyExistsError,
    ConflictError,
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
)
from icefloe.config import ManifestConfig, ManifestSet
from icefloe.formats.registry import format_for
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.faults import FaultyStorage
from icefloe.testing.generations import copied
from tests.builders import read_dataset
from tests.documents import array, chunks_of, group, make_tree, set_chunks
from tests.formats import PUBLISHING, folder, how

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from icefloe.storage.port import BytesLike, Storage

pytestmark = pytest.mark.usefixtures("each_generation")

LARGE = b"x" * 600
CONFIG = RepositoryConfig(
    inline_attributes_threshold_bytes=10,
    manifest=ManifestConfig(
        sets=[ManifestSet(name="default", max_manifest_size=None, arrays_per_manifest=1)], rules=[]
    ),
)


@pytest.fixture(params=["memory", "files"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyStorage:
    inner: Storage = icefloe.in_memory_storage()
    if request.param == "files":
        inner = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    made = FaultyStorage(inner)
    make_tree(Repository.create(made, CONFIG, **how()))
    made.trace.clear()
    return made


def files(storage: FaultyStorage, name: str) -> set[str]:
    return {info.key for info in storage.inner.list(folder(name))}


def test_readers_write_nothing(storage: FaultyStorage) -> None:  # R0-07, R3-06
    repository = Repository.open(storage)
    chunks_of(repository.readonly_session("main"), "/b")
    list(repository.ancestry(branch="main"))
    repository.list_branches()
    chunks_of(repository.writable_session("main"), "/g/a")
    assert storage.writes() == []
    assert {verb for verb, _ in storage.trace} <= {"get", "get_with_version", "list", "head"} | {
        "list_dir"
    }


def test_a_reader_keeps_the_snapshot_it_opened(storage: FaultyStorage) -> None:
    # R0-04, R3-06, R3-36: nobody sees what is not committed, or not yet in their snapshot
    repository = Repository.open(storage)
    reader, before = repository.readonly_session("main"), repository.writable_session("main")
    writer = repository.writable_session("main")
    set_chunks(writer, "/b", [5], LARGE)
    for session in (reader, before, Repository.open(storage).readonly_session("main")):
        assert session.get_chunk("/b", (5,)) is None
    writer.commit("five")
    for session in (reader, before):
        assert session.get_chunk("/b", (5,)) is None
    flushed = repository.writable_session("main")
    set_chunks(flushed, "/b", [6], LARGE)
    flushed.flush("written, and on no branch")
    newest = Repository.open(storage).readonly_session("main")
    assert [newest.get_chunk("/b", (number,)) for number in (5, 6)] == [LARGE, None]


def test_files_are_written_once_and_never_deleted(storage: FaultyStorage) -> None:
    # R0-12, R0-14, R0-16, R3-18
    repository = Repository.open(storage)
    for value in range(3):
        session = repository.writable_session("main")
        set_chunks(session, "/b", range(4), LARGE + b"%d" % value)
        session.tree.set_document("/g", group(value=value, text="long enough for a file"))
        session.commit("x")
        repository.create_branch(f"branch{value}", "main")
        repository.create_tag(f"tag{value}", "main")
    written = [(verb, key) for verb, key in storage.writes() if not key.startswith("maintenance/")]
    replaced = {key for verb, key in written if verb == "replace"}
    state = {"dataset": {"state.json"}, "icechunk": {"repo"}}
    assert replaced == state.get(repository.generation, set())
    others = [key for verb, key in written if verb != "replace"]
    assert len(others) == len(set(others))
    assert {verb for verb, _ in written} <= {"put", "create", "replace"}


def test_a_commit_adds_one_snapshot_file_and_publishes_it_last(storage: FaultyStorage) -> None:
    # R0-19, R0-25, R3-19, R3-25, R1-07, R1-16
    repository = Repository.open(storage, CONFIG)
    for change in ("chunks", "documents"):
        session = repository.writable_session("main")
        if change == "chunks":
            set_chunks(session, "/b", [5], LARGE)
        else:
            session.tree.set_document("/g", group(text="long enough for a file"))
        before = files(storage, "snapshots")
        storage.trace.clear()
        session.commit(change)
        assert len(files(storage, "snapshots") - before) == 1
        places = [key for _, key in storage.writes() if not key.startswith("overwritten/")]
        assert storage.writes()[-1][0] == PUBLISHING[repository.generation]
        assert places[-1].startswith(folder("refs"))
        assert places[-2].startswith(folder("snapshots"))
        assert sum(key.startswith(folder("refs")) for key in places) == 1


def test_unchanged_manifests_and_attribute_files_are_linked(storage: FaultyStorage) -> None:
    # R0-26, R4-63
    repository = Repository.open(storage, CONFIG)
    session = repository.writable_session("main")
    session.tree.set_document("/g", group(text="long enough for a file"))
    session.commit("attributes")
    manifests, attributes = files(storage, "manifests"), files(storage, "attributes")
    keeps_files = format_for(repository.generation).keeps_attribute_files
    assert (len(manifests), len(attributes)) == (2, int(keeps_files))
    session = Repository.open(storage, CONFIG).writable_session("main")
    kept = session.get_node("/g/a")
    set_chunks(session, "/b", [5])
    session.commit("one chunk of one array")
    assert len(files(storage, "manifests") - manifests) == 1
    assert files(storage, "attributes") == attributes
    reader = Repository.open(storage).readonly_session("main")
    node, large = reader.get_node("/g/a"), reader.get_node("/g")
    assert kept is not None
    assert node is not None
    assert [ref.manifest_id for ref in node.manifests] == [r.manifest_id for r in kept.manifests]
    assert large is not None
    assert (large.attributes is not None) == keeps_files
    assert reader.tree.document("/g") == group(text="long enough for a file")


def test_a_session_remembers_its_branch_and_how_often_that_moved(storage: FaultyStorage) -> None:
    # R3-99, R1-43: back at the same snapshot, the branch is still another than it was
    repository = Repository.open(storage)
    tip = repository.lookup_branch("main")
    session = repository.writable_session("main")
    assert session.branch == "main"
    set_chunks(session, "/b", [5])
    repository.reset_branch("main", "main~1")
    repository.reset_branch("main", tip)
    with pytest.raises(ConflictError):
        session.commit("late")
    assert repository.lookup_branch("main") == tip


class Meeting(ForwardingStorage):
    """Lets nobody create a first object before all have looked whether one is there."""

    def __init__(self, inner: Storage, barrier: threading.Barrier) -> None:
        super().__init__(inner)
        self._barrier = barrier
        self._has_met = threading.local()

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        if not hasattr(self._has_met, "already"):
            self._has_met.already = True
            self._barrier.wait()
        self.inner.create(key, data, attributes)


def test_one_of_many_threads_creates() -> None:  # R3-92, R1-39
    place = Meeting(icefloe.in_memory_storage(), threading.Barrier(8))

    def create(_: int) -> bool:
        try:
            Repository.create(place, **how())
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create, range(8))) == 1
    assert len(list(Repository.open(place).ancestry(branch="main"))) == 1


def test_a_read_only_place_can_be_read(tmp_path: Path) -> None:  # R0-07, R3-06
    place = tmp_path / "repository"
    make_tree(Repository.create(place, **how()))
    everything = (place, *place.rglob("*"))
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(place.rglob("*"))
    assert len(chunks_of(Repository.open(place).readonly_session("main"), "/g/a")) == 10
    assert sorted(place.rglob("*")) == before
    for path in everything:
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_arrays_with_shared_coordinates() -> None:  # R0-02, R0-01, R1-02, R3-02
    """The common case: one group with many arrays on the same coordinates."""
    rng = np.random.default_rng(0)
    coords = {"time": np.arange(5), "lat": np.linspace(-45, 45, 4), "lon": np.linspace(0, 300, 6)}
    variables = {
        name: (("time", "lat", "lon"), rng.normal(size=(5, 4, 6)), {"units": "K"})
        for name in ("t2m", "u10", "v10")
    }
    written = xr.Dataset(variables, coords=coords, attrs={"title": "shared coordinates"})
    storage = icefloe.in_memory_storage()
    session = Repository.create(storage, **how()).writable_session("main")
    written.to_zarr(session.store, consolidated=False, zarr_format=3)
    session.commit("one group")
    reader = Repository.open(copied(storage)).readonly_session("main")
    xr.testing.assert_identical(read_dataset(reader).load(), written)
    node = reader.get_node("/t2m")
    assert node is not None
    assert node.is_array
    assert node.array.dimension_names == ("time", "lat", "lon")


def test_chunks_inside_hdf5_files(tmp_path: Path) -> None:  # R0-10, R3-08
    values = np.arange(24, dtype="<i4").reshape(4, 6)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(2, 6))
        places = [dataset.id.get_chunk_info(number) for number in range(2)]
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    storage = icefloe.in_memory_storage()
    access: dict[str, Any] = {prefix: None}
    session = Repository.create(storage, config, access, **how()).writable_session("main")
    zarr.create_array(
        session.store, name="x", shape=(4, 6), chunks=(2, 6), dtype="<i4", compressors=None
    )
    for row, place in enumerate(places):
        session.store.set_virtual_ref(
            f"x/c/{row}/0", f"{prefix}data.h5", offset=place.byte_offset, length=place.size
        )
    session.commit("references")
    reader = Repository.open(storage, None, access).readonly_session("main")
    opened = zarr.open_array(reader.store, path="x", mode="r")
    assert np.array_equal(opened[...], values)


def test_several_chunks_in_one_object(storage: FaultyStorage) -> None:  # R0-09, R0-08, R3-22
    before = files(storage, "chunks")
    session = Repository.open(storage).writable_session("main")
    session.tree.set_document("/c", array((4,)))
    for place in range(4):
        session.tree.set_chunk("/c", (place,), bytes([place]) * 700)
    session.commit("four chunks")
    (pack,) = files(storage, "chunks") - before
    assert storage.inner.head(pack).size == 4 * 700
    session = Repository.open(storage).writable_session("main")
    session.move("/c", "/moved")
    session.commit("another path, the same file")
    assert files(storage, "chunks") - before == {pack}
    reader = Repository.open(storage).readonly_session("main")
    assert chunks_of(reader, "/moved") == {place: bytes([place]) * 700 for place in range(4)}
