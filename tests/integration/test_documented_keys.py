"""Every key that any feature writes is in the table of its format's page, and has that form."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, VirtualChunkContainer
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.tables.staging import stage
from icefloe.tables.summarize import Summaries, WrittenStatistics
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.faults import WRITING
from icefloe.virtual import reference_files
from tests.formats import ALL_GENERATIONS, EVERY_FORMAT
from tests.virtual.files import month_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Capabilities

PAGES = Path(__file__).parents[2] / "docs" / "reference"
PAGE_OF = {
    "store": "format-store.md",
    "dataset": "format-dataset.md",
    "icechunk": "format-icechunk.md",
}
BASE32 = "[0-9A-HJKMNP-TV-Z]"
FORMS = {
    "name": r"[^/]+",
    "sequence": f"{BASE32}{{8}}",
    "id": f"{BASE32}{{26}}",
    "random id": f"{BASE32}{{20}}",
    "snapshot id": f"{BASE32}{{20}}",
    "manifest id": f"{BASE32}{{20}}",
    "attributes id": f"{BASE32}{{20}}",
    "chunk file id": f"{BASE32}{{20}}",
    "lease id": f"{BASE32}{{20}}",
    "number": r"[0-9]{8}",
    "moment": r"[0-9]{14}",
    "random": r"[0-9a-f]{12,24}",
}
Result = TypeVar("Result")


def documented(generation: str, version: int | None = None) -> dict[str, str]:
    """The keys of a page as regular expressions, by what they are the keys of.

    Rows such as "tag, version 1" are about that version only.
    """
    text = (PAGES / PAGE_OF.get(generation, "format.md")).read_text()
    table = re.search(r"\| object \| key \| written \|\n(?:\|.*\n)+", text)
    assert table is not None
    rows = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| [^|]+ \|$", table[0], re.MULTILINE)
    others = {f", version {other}" for other in (1, 2) if version is not None and other != version}
    return {what: expression(pattern) for what, pattern in rows if not what.endswith(tuple(others))}


def expression(pattern: str) -> str:
    parts = re.split(r"<([^>]+)>", pattern)
    return "".join(
        FORMS[part] if place % 2 else re.escape(part) for place, part in enumerate(parts)
    )


class RecordedStorage(ClockedStorage):
    """Remembers each key that was ever written, and has itself probed as a server is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(icefloe.local_filesystem_storage(folder, durability="none"))
        self.written: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(self._inner.capabilities, needs_probe=True)

    def _run(self, verb: str, key: str, act: Callable[[], Result]) -> Result:
        if verb in WRITING and verb != "delete_many" and key:
            self.written.add(key)
        return super()._run(verb, key, act)


def use_every_feature(storage: RecordedStorage, how: dict[str, Any], folder: Path) -> Repository:
    config = RepositoryConfig(inline_chunk_threshold_bytes=8, inline_attributes_threshold_bytes=50)
    config.set_virtual_chunk_container(
        VirtualChunkContainer(f"{folder.as_uri()}/", icefloe.local_filesystem_store(str(folder)))
    )
    repo = Repository.create(
        storage, config, authorize_virtual_chunk_access={f"{folder.as_uri()}/": None}, **how
    )
    write_arrays(repo)
    use_branches(repo)
    if repo.generation == "icechunk":
        repo.create_tag("gone", repo.lookup_branch("main"))
        repo.delete_tag("gone")
    write_special_data(repo, folder)
    repo.config.inline_chunk_threshold_bytes = 16
    repo.save_config()
    maintain(repo, storage)
    return repo


def write_arrays(repo: Repository) -> None:
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"long": "x" * 200})
    for name, size in (("inline", 2), ("packed", 64), ("alone", 200_000)):
        array = root.create_array(
            name, shape=(4 * size,), chunks=(size,), dtype="u1", fill_value=0, compressors=None
        )
        array[:] = np.random.default_rng(0).integers(1, 255, 4 * size, dtype="u1")
    session.commit("arrays of several sizes")
    session = repo.writable_session("main")
    session.tree.set_chunk("/packed", (0,), bytes(range(64)))
    if (repo.generation, repo.spec_version) != ("icechunk", 1):  # which cannot record it
        session.move("/inline", "/moved")
    session.commit("changes", metadata={"who": "me"})


def use_branches(repo: Repository) -> None:
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("dev", repo.lookup_branch("main"))
    session = repo.writable_session("dev")
    session.tree.set_chunk("/packed", (1,), bytes(64))
    session.commit("on dev")
    repo.merge("dev", "main")
    repo.reset_branch("dev", repo.lookup_branch("main"))
    repo.delete_branch("dev")
    session = repo.writable_session("main")
    part = session.fork()
    part.tree.set_chunk("/packed", (2,), bytes(64))
    session.merge(part)
    session.commit("of a fork")


def write_special_data(repo: Repository, folder: Path) -> None:
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="weather")
    reference_files(session, month_file(folder / "a.nc", 1), group="/weather")
    session.commit("virtual chunks")
    session = repo.writable_session("main")
    summaries = Summaries(session, ["/packed"])
    summaries.add_chunks("/packed", session.tree.chunk_coords("/packed"))
    statistics = WrittenStatistics(session)
    statistics.add_own(summaries)
    statistics.write()
    session.commit("statistics")


def maintain(repo: Repository, storage: RecordedStorage) -> None:
    with repo.lease(snapshot_ids=repo.lookup_tag("v1")):
        storage.wait(timedelta(days=10))
        session = repo.writable_session("main")
        session.tree.set_chunk("/alone", (0,), bytes(100_000))
        session.commit("later")
    repo.rewrite_manifests("rewritten", branch="main")
    repo.materialize(branch="main")
    repo.compact(branch="main")
    storage.wait(timedelta(days=10))
    repo.expire_snapshots(timedelta(days=5))
    repo.garbage_collect(timedelta(days=1))
    assert repo.verify(deep=True).is_clean
    repo.repair()


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_every_key_is_documented(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    storage = RecordedStorage(tmp_path / "repo")
    how = EVERY_FORMAT[name]
    repo = use_every_feature(storage, how, tmp_path / "data")
    copy = RecordedStorage(tmp_path / "copy")
    repo.migrate(copy, **({"generation": "repository"} | how))
    forms = documented(how.get("generation", "repository"), how.get("spec_version"))
    kinds = {
        key: [what for what, form in forms.items() if re.fullmatch(form, key)]
        for key in storage.written | copy.written
    }
    assert sorted(key for key, found in kinds.items() if not found) == []
    assert {key: found for key, found in kinds.items() if len(found) > 1} == {}
    # And no row of the table is about what nobody writes.
    assert set(forms) == {what for found in kinds.values() for what in found}


@pytest.mark.parametrize("generation", ALL_GENERATIONS)
def test_every_key_of_a_copy_and_of_rows_that_are_staged_is_documented(
    generation: str, tmp_path: Path
) -> None:
    import pyarrow as pa

    source = Repository.create(tmp_path / "source")
    write_arrays(source)
    source.create_tag("v1", source.lookup_branch("main"))
    storage = RecordedStorage(tmp_path / "repo")
    source.migrate(storage, generation=generation)
    copy = Repository.open(tmp_path / "repo")
    before = {info.key for info in copy.storage.list()}
    context = SessionSpec.of(copy.readonly_session("main")).context
    rows = pa.RecordBatch.from_pydict({"x": np.random.default_rng(0).random(1_000_000)})
    stage(context, ["x"], [rows])
    staged = {info.key for info in copy.storage.list()} - before
    assert len(staged) == 1
    forms = documented(generation).values()
    keys = storage.written | staged
    assert [key for key in sorted(keys) if not any(re.fullmatch(f, key) for f in forms)] == []
