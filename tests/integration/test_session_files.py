"""Which objects a session reads and writes, in which order, and what they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe import (
    CommitStateUnknownError,
    ConflictError,
    FormatError,
    Repository,
    RepositoryConfig,
    StorageError,
)
from icefloe.config import ManifestConfig, ManifestSet
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.settling import settle_create
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from tests.documents import (
    array,
    chunks_of,
    commit_attribute,
    group,
    make_tree,
    node_paths,
    set_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from icefloe.storage.port import BytesLike

LARGE = b"x" * 600
"""More than what is kept inline."""


ONE_MANIFEST_PER_ARRAY = RepositoryConfig(
    manifest=ManifestConfig(
        sets=[ManifestSet(name="default", max_manifest_size=None, arrays_per_manifest=1)], rules=[]
    )
)


@pytest.fixture(params=[1, 2], ids=["rows", "columns"])
def storage(request: pytest.FixtureRequest) -> FaultyStorage:
    made = FaultyStorage(icefloe.in_memory_storage())
    make_tree(Repository.create(made, ONE_MANIFEST_PER_ARRAY, spec_version=request.param))
    made.trace.clear()
    return made


def folders(trace: list[tuple[str, str]]) -> list[str]:
    """Folders of a trace, each run of equal ones once."""
    runs: list[str] = []
    for _, key in trace:
        folder = key.split("/")[0]
        if not runs or runs[-1] != folder:
            runs.append(folder)
    return runs


def objects(storage: FaultyStorage, folder: str) -> set[str]:
    return {info.key for info in storage.inner.list(f"{folder}/")}


# --- the order of a commit


def test_a_commit_writes_the_reference_last(storage: FaultyStorage) -> None:  # R3-25, C1
    # R1-07, R1-16, R2-18, R2-19
    config = RepositoryConfig(inline_attributes_threshold_bytes=10)
    session = Repository.open(storage, config).writable_session("main")
    storage.trace.clear()
    set_chunks(session, "/b", [5], LARGE)
    session.tree.set_document("/b", array(text="long enough to go to a file of its own"))
    assert storage.writes() == [], "a small chunk waits for its pack"
    session.commit("all kinds of files")
    assert folders(storage.writes()) == [
        "chunks",
        "manifests",
        "attributes",
        "transactions",
        "snapshots",
        "refs",
    ]
    assert storage.writes()[-1][0] == "create"
    assert {verb for verb, _ in storage.writes()[:-1]} == {"put"}


def test_nothing_is_overwritten_or_deleted(storage: FaultyStorage) -> None:  # R0-14, R3-18
    repository = Repository.open(storage)
    for value in range(3):
        session = repository.writable_session("main")
        set_chunks(session, "/b", range(4), LARGE + b"%d" % value)
        session.tree.set_document("/g", group(value=value))
        session.commit("x")
    keys = [key for _, key in storage.writes()]
    assert len(keys) == len(set(keys))
    assert {verb for verb, _ in storage.writes()} == {"put", "create"}


def test_readers_write_nothing(storage: FaultyStorage) -> None:  # R0-07, R3-06
    repository = Repository.open(storage)
    session = repository.readonly_session("main")
    chunks_of(session, "/b")
    list(repository.ancestry(branch="main"))
    repository.diff(from_branch="main~1", to_branch="main")
    repository.list_branches()
    repository.list_tags()
    repository.ancestry_graph()
    Repository.exists(storage)
    Repository.fetch_config(storage)
    idle = repository.writable_session("main")
    idle.status()
    chunks_of(idle, "/g/a")
    assert storage.writes() == []
    assert {verb for verb, _ in storage.trace} <= {"get", "list", "list_dir", "head"}


def test_an_array_is_read_without_the_manifests_of_others(storage: FaultyStorage) -> None:  # R0-24
    # R1-07, R1-26, R4-02, R4-04
    repository = Repository.open(storage)
    session = repository.readonly_session("main")
    storage.trace.clear()
    assert session.tree.document("/b") == array()
    node_paths(session)
    assert storage.trace == [], "the snapshot has it all"
    assert session.get_chunk("/b", (9,)) is None, "outside of the extents"
    assert storage.trace == []
    assert session.get_chunk("/b", (0,)) == b"\x01"
    node = session.get_node("/b")
    assert node is not None
    assert [key for _, key in storage.trace] == [f"manifests/{node.manifests[0].manifest_id}"]
    storage.trace.clear()
    assert session.get_chunk("/b", (1,)) == b"\x01"
    assert storage.trace == []


def test_opening_reads_little(storage: FaultyStorage) -> None:
    storage.trace.clear()
    repository = Repository.open(storage)
    repository.readonly_session("main")
    assert [verb for verb, key in storage.trace if key.startswith("snapshots/")] == ["get"]
    storage.trace.clear()
    repository.readonly_session("main")
    assert [verb for verb, _ in storage.trace] == ["list"], "the rest is known"


class CountsBytes(ForwardingStorage):
    """Notes how many bytes of manifests each request read."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.read: list[int] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, start, length)
        if key.startswith("manifests/"):
            self.read.append(len(data))
        return data


def test_one_chunk_of_a_large_manifest_is_found_by_ranges() -> None:
    storage = CountsBytes(icefloe.in_memory_storage())
    repository = Repository.create(storage)
    session = repository.writable_session("main")
    session.tree.set_document("/a", array((20_000,)))
    numbers = np.random.default_rng(0)
    for place in range(20_000):
        session.tree.set_chunk("/a", (place,), numbers.bytes(200))
    expected = session.get_chunk("/a", (12_345,))
    tip = session.commit("four megabytes inline")
    size = sum(manifest.size_bytes for manifest in repository.lookup_snapshot(tip).manifests)
    assert size > 4_000_000
    reader = Repository.open(storage).readonly_session("main")
    assert reader.get_chunk("/a", (12_345,)) == expected
    assert len(storage.read) <= 3
    assert sum(storage.read) < size / 2
    storage.read.clear()
    assert reader.get_chunk("/a", (12_346,)) is not None
    assert storage.read == [], "the block is cached"


# --- sharing of manifests


def manifest_of(repository: Repository, path: str) -> set[str]:
    node = repository.readonly_session("main").get_node(path)
    assert node is not None
    return {f"manifests/{ref.manifest_id}" for ref in node.manifests}


def test_unchanged_arrays_keep_their_manifest(storage: FaultyStorage) -> None:  # R0-26, R4-63, C2
    # R4-80
    repository = Repository.open(storage)
    kept = manifest_of(repository, "/g/a")
    replaced = manifest_of(repository, "/b")
    session = repository.writable_session("main")
    storage.trace.clear()
    set_chunks(session, "/b", [5])
    tip = session.commit("b")
    assert manifest_of(repository, "/g/a") == kept
    assert manifest_of(repository, "/b") != replaced
    read = {key for verb, key in storage.trace if verb == "get" and key.startswith("manifests/")}
    assert not read & kept, "not even read"
    listed = {f"manifests/{m.id}" for m in repository.lookup_snapshot(tip).manifests}
    assert listed == kept | manifest_of(repository, "/b")  # R1-29
    assert objects(storage, "manifests") == listed | replaced


def test_a_change_of_documents_writes_no_manifest(storage: FaultyStorage) -> None:
    repository = Repository.open(storage)
    before = objects(storage, "manifests")
    session = repository.writable_session("main")
    session.tree.set_document("/b", array(x=1))
    session.tree.set_document("/n", array())
    session.commit("documents")
    assert objects(storage, "manifests") == before
    assert manifest_of(repository, "/n") == set()


def test_an_array_without_chunks_has_no_manifest(storage: FaultyStorage) -> None:  # H-43
    repository = Repository.open(storage)
    session = repository.writable_session("main")
    session.tree.clear_chunks("/b")
    tip = session.commit("no chunks")
    assert manifest_of(repository, "/b") == set()
    assert [m.num_chunk_refs for m in repository.lookup_snapshot(tip).manifests] == [10]
    session = repository.writable_session("main")
    session.tree.delete_node("/g")
    tip = session.commit("no arrays with chunks")
    assert repository.lookup_snapshot(tip).manifests == []


def test_a_rename_touches_no_manifest_and_no_chunk(storage: FaultyStorage) -> None:  # R3-09
    # R0-08, R1-03
    repository = Repository.open(storage, RepositoryConfig(inline_attributes_threshold_bytes=10))
    session = repository.writable_session("main")
    session.tree.set_document("/g/a", array(text="in an attribute file of its own"))
    set_chunks(session, "/g/a", range(10), LARGE)
    session.commit("large chunks")
    repository = Repository.open(storage)
    session = repository.writable_session("main")
    storage.trace.clear()
    session.move("/g", "/renamed")
    session.move("/renamed/a", "/renamed/b")
    session.commit("renamed")
    touched = {key.split("/")[0] for _, key in storage.trace}
    assert touched == {"transactions", "snapshots", "refs"}
    reader = Repository.open(storage).readonly_session("main")
    assert chunks_of(reader, "/renamed/b") == dict.fromkeys(range(10), LARGE)
    assert reader.tree.document("/renamed/b") == array(text="in an attribute file of its own")


# --- attribute files


def attributes_of_size(size: int) -> bytes:
    """A group's document, oddly spaced, whose attributes have exactly so many bytes."""
    attributes = b'{ "k":"' + b"v" * (size - len(b'{ "k":""}')) + b'"}'
    assert len(attributes) == size
    return b'{"zarr_format":3 , "attributes" : ' + attributes + b',\n"node_type":"group"}'


@pytest.mark.parametrize("threshold", [None, 100])
def test_attributes_above_the_threshold_go_to_a_file(
    storage: FaultyStorage, threshold: int | None
) -> None:  # H-07, R1-06
    limit = threshold or 65_536
    config = RepositoryConfig(inline_attributes_threshold_bytes=threshold)
    repository = Repository.open(storage, config)
    documents = {f"/n{size}": attributes_of_size(size) for size in (limit, limit + 1, limit + 2)}
    session = repository.writable_session("main")
    for path, document in documents.items():
        session.tree.set_document(path, document)
    session.commit("attributes")
    (file,) = objects(storage, "attributes")
    for reader in (
        session,
        repository.readonly_session("main"),
        Repository.open(storage).readonly_session("main"),
    ):
        assert {path: reader.tree.document(path) for path in documents} == documents
        outside = [p for p in documents if (n := reader.get_node(p)) and n.attributes is not None]
        assert outside == [f"/n{limit + 1}", f"/n{limit + 2}"]
    storage.trace.clear()
    reader = Repository.open(storage).readonly_session("main")
    reader.tree.document(f"/n{limit}")
    assert not any(key == file for _, key in storage.trace)
    reader.tree.document(f"/n{limit + 1}")
    reader.tree.document(f"/n{limit + 2}")
    assert [key for _, key in storage.trace].count(file) == 1, "read once"


def test_unchanged_attribute_files_are_linked(storage: FaultyStorage) -> None:  # R0-26, R1-30
    config = RepositoryConfig(inline_attributes_threshold_bytes=10)
    repository = Repository.open(storage, config)
    session = repository.writable_session("main")
    session.tree.set_document("/n", group(text="long enough for a file"))
    session.tree.set_document("/m", array(text="also long enough for a file"))
    session.commit("one")
    (file,) = objects(storage, "attributes")
    session = Repository.open(storage, config).writable_session("main")
    set_chunks(session, "/m", [1])
    session.tree.set_document("/other", group())
    session.move("/n", "/moved")
    session.commit("nothing about attributes")
    assert objects(storage, "attributes") == {file}
    session = Repository.open(storage, config).writable_session("main")
    session.tree.set_document("/m", array(text="other words, also long enough"))
    session.commit("one of two")
    assert len(objects(storage, "attributes")) == 2
    snapshot = session.tree.snapshot
    assert {f"attributes/{info.id}" for info in snapshot.attribute_files} == objects(
        storage, "attributes"
    )
    session = Repository.open(storage, config).writable_session("main")
    assert session.tree.document("/moved") == group(text="long enough for a file")
    session.tree.delete_node("/moved")
    session.commit("without the first")
    listed = {f"attributes/{info.id}" for info in session.tree.snapshot.attribute_files}
    assert listed == objects(storage, "attributes") - {file}


def test_setting_the_same_large_document_again_is_no_change(storage: FaultyStorage) -> None:
    repository = Repository.open(storage, RepositoryConfig(inline_attributes_threshold_bytes=10))
    document = group(text="long enough for a file")
    session = repository.writable_session("main")
    session.tree.set_document("/n", document)
    session.commit("one")
    session = repository.writable_session("main")
    session.tree.set_document("/n", document)
    assert not session.has_uncommitted_changes


def test_large_attributes_can_become_small_again(storage: FaultyStorage) -> None:
    repository = Repository.open(storage, RepositoryConfig(inline_attributes_threshold_bytes=10))
    for document in (group(text="long enough for a file"), group()):
        session = repository.writable_session("main")
        session.tree.set_document("/n", document)
        session.commit("x")
        assert Repository.open(storage).readonly_session("main").tree.document("/n") == document
    assert session.tree.snapshot.attribute_files == ()


@pytest.mark.parametrize(
    "document",
    [
        b'{"node_type":"group","attributes":{"attributes":{"attributes":"xxxxxxxxxxxxxxxx"}}}',
        b'{"attributes":{"a":"{\\"a\\":1}xxxxxxxxxxxxx","b":[1,2]},"node_type":"group","x":"\xc3\xbc"}',
        b'{"x":{"k":"0123456789"},"attributes":{"k":"0123456789"},"node_type":"group"}',
    ],
)
def test_documents_come_back_byte_for_byte(storage: FaultyStorage, document: bytes) -> None:
    assert json.loads(document)
    repository = Repository.open(storage, RepositoryConfig(inline_attributes_threshold_bytes=5))
    session = repository.writable_session("main")
    session.tree.set_document("/n", document)
    session.commit("x")
    assert len(objects(storage, "attributes")) == 1
    assert Repository.open(storage).readonly_session("main").tree.document("/n") == document


# --- damage


@pytest.mark.parametrize("folder", ["manifests", "chunks", "attributes"])
def test_a_missing_object_is_named(storage: FaultyStorage, folder: str) -> None:
    repository = Repository.open(storage, RepositoryConfig(inline_attributes_threshold_bytes=5))
    session = repository.writable_session("main")
    session.tree.set_document("/b", array(text="long enough"))
    set_chunks(session, "/b", range(3), LARGE)
    session.commit("x")
    gone = objects(storage, folder)
    storage.inner.delete_many(gone)
    reader = Repository.open(storage).readonly_session("main")
    with pytest.raises(FormatError, match="is missing") as caught:
        reader.tree.document("/b") if folder == "attributes" else reader.get_chunk("/b", (0,))
    assert caught.value.key in gone


# --- answers that get lost


class LosesAnswers(ForwardingStorage):
    """Does every conditional create, and then says that it failed; settles as adapters must."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.lost = 0

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        def put() -> None:
            self.inner.create(key, data, attributes)
            self.lost += 1
            raise StorageError("the answer was lost")

        settle_create(key, data, put=put, read=lambda: self.inner.get(key), tries=range(3))


def test_a_lost_answer_is_settled_as_success() -> None:  # H-49
    storage = LosesAnswers(icefloe.in_memory_storage())
    repository = Repository.create(storage)
    made = [commit_attribute(repository, value) for value in range(3)]
    repository.create_tag("t", "main")
    repository.create_branch("dev", "main~1")
    repository.reset_branch("dev", "main")
    repository.delete_branch("dev")
    assert storage.lost > 6
    history = [info.id for info in Repository.open(storage.inner).ancestry(branch="main")]
    assert history[:3] == made[::-1]
    assert len(history) == 4, "each commit once"


def test_a_lost_answer_is_no_success_of_another() -> None:
    storage = LosesAnswers(icefloe.in_memory_storage())
    repository = Repository.create(storage)
    stale = repository.writable_session("main")
    stale.tree.set_document("/", group(stale=True))
    commit_attribute(repository, 1)
    with pytest.raises(ConflictError):
        stale.commit("late")


def test_an_unknown_outcome_leaves_everything(storage: FaultyStorage) -> None:
    repository = Repository.open(storage)
    session = repository.writable_session("main")
    base = session.snapshot_id
    set_chunks(session, "/b", [5], LARGE)
    storage.inject(Fault.LOST_ANSWER, verb="create", key="refs/branch.main")
    storage.trace.clear()
    with pytest.raises(CommitStateUnknownError) as caught:
        session.commit("perhaps")
    assert caught.value.key.startswith("refs/branch.main/")
    assert "delete_many" not in {verb for verb, _ in storage.trace}
    assert session.has_uncommitted_changes
    assert not session.read_only
    tip = repository.lookup_branch("main")
    assert tip != base, "here it did land"
    assert caught.value.snapshot_id == tip
    assert chunks_of(repository.readonly_session("main"), "/b")[5] == LARGE
    with pytest.raises(ConflictError) as again:
        session.commit("again")
    assert again.value.actual_parent == tip
    assert len(list(repository.ancestry(branch="main"))) == 3, "and it landed once"


def test_a_failed_write_leaves_the_session_as_it_was(storage: FaultyStorage) -> None:
    repository = Repository.open(storage)
    session = repository.writable_session("main")
    set_chunks(session, "/b", [5], LARGE)
    for folder in ("manifests", "transactions", "snapshots", "refs"):
        verb = "create" if folder == "refs" else "put"
        storage.inject(Fault.ERROR, verb=verb, key=f"{folder}/")
        tip = repository.lookup_branch("main")
        with pytest.raises(StorageError, match="injected"):
            session.commit("fails")
        assert repository.lookup_branch("main") == tip
        assert session.status().updated_chunks == {"/b": [[5]]}
    session.commit("works at last")
    assert chunks_of(repository.readonly_session("main"), "/b")[5] == LARGE


def test_a_chunk_that_could_not_be_written_is_not_recorded(storage: FaultyStorage) -> None:
    session = Repository.open(storage).writable_session("main")
    storage.inject(Fault.ERROR, verb="put", key="chunks/")
    with pytest.raises(StorageError, match="injected"):
        session.tree.set_chunk("/b", (0,), b"x" * 2_000_000)
    assert not session.has_uncommitted_changes
    assert session.get_chunk("/b", (0,)) == b"\x01"


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_writer_that_dies_anywhere_leaves_the_old_or_the_new_state(
    storage: FaultyStorage, fault: Fault
) -> None:  # C1, T-CRASH
    old = Repository.open(storage).lookup_branch("main")
    states = set()
    for nth in range(1, 20):
        repository = Repository.open(storage)
        session = repository.writable_session("main")
        storage.inject(fault, nth=nth)
        try:
            set_chunks(session, "/b", [5], LARGE)
            session.commit("dies")
            died = False
        except CrashError:
            died = True
        storage.revive()
        survivor = Repository.open(storage)
        found = chunks_of(survivor.readonly_session("main"), "/b")
        landed = survivor.lookup_branch("main") != old
        assert found.get(5) == (LARGE if landed else None)
        states.add((died, landed))
        if landed:
            survivor.reset_branch("main", old)
        if not died:
            break
    assert (False, True) in states
    assert (True, False) in states
    assert ((True, True) in states) == (fault is Fault.CRASH_AFTER)


def test_a_read_only_place_can_be_read(tmp_path: Path) -> None:  # R0-07
    place = tmp_path / "repository"
    make_tree(Repository.create(place))
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(place.rglob("*"))
    reader = Repository.open(place).readonly_session("main")
    assert len(chunks_of(reader, "/g/a")) == 10
    assert sorted(place.rglob("*")) == before
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
