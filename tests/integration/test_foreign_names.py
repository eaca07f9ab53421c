"""Datasets whose files another implementation named, as spec 000 allows (R0-36, R0-39, R0-55)."""

from __future__ import annotations

import io
import json
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.errors import FormatError, IcefloeError, SnapshotNotFoundError
from icefloe.formats.registry import format_for
from icefloe.model.ids import ChunkFileId, ManifestId, NodeId, SnapshotId
from icefloe.objects.shared_caches import forget_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

NOW = timedelta(0)
CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=4,
    inline_attributes_threshold_bytes=100,
    chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=0),
)
LAYOUT = format_for("dataset").layout


def fill(storage: Storage) -> None:
    """Two branches, a tag, large attributes, and chunks of every kind."""
    repo = Repository.create(storage, CONFIG, generation="dataset")
    with repo.transaction("main", message="one") as store:
        root = zarr.create_group(store, attributes={"long": "x" * 200})
        for name, chunk in (("inline", 2), ("native", 8)):
            made = root.create_array(
                name, shape=(4 * chunk,), chunks=(chunk,), dtype="u1", compressors=None
            )
            made[:] = np.arange(4 * chunk)
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.create_branch("dev", repo.lookup_branch("main"))
    for branch, value in (("main", 100), ("dev", 200)):
        with repo.transaction(branch, message=branch) as store:
            zarr.open_group(store, mode="r+")["native"][:8] = value


def foreign_table(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A table as another program writes it: no notes, rows with other names."""
    table = pq.read_table(io.BytesIO(data)).replace_schema_metadata(None)
    rows = table.to_pylist()
    for row in rows:
        change(row)
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), sink)
    return sink.getvalue()


class Renamed:
    """A copy of a dataset in which nothing is named by icefloe."""

    def __init__(self, source: Storage) -> None:
        self.storage = icefloe.in_memory_storage()
        self.ids: dict[str, str] = {}
        self._files: dict[str, str] = {}
        state = json.loads(source.get("state.json"))
        for number, entry in enumerate(state["snapshots"]):
            self._name_snapshot(entry, number)
        for info in source.list():
            self._name_file(info.key)
        for info in source.list():
            self._copy(info.key, source.get(info.key))
        for entry in state["snapshots"]:
            entry["parent-snapshot-id"] = self.ids.get(entry["parent-snapshot-id"])
        for ref in state["refs"].values():
            ref["snapshot-id"] = self.ids[ref["snapshot-id"]]
        del state["icefloe"]
        self.storage.put("state.json", json.dumps(state).encode())

    def _name_snapshot(self, entry: dict[str, Any], number: int) -> None:
        """UUIDs, in files that are named like them, otherwise, or without an extension."""
        old, new = entry["snapshot-id"], str(uuid.UUID(int=number + 1))
        file = [f"{new}.parquet", f"structure {number}.parquet", f"structure-{number}"][number % 3]
        self.ids[old] = entry["snapshot-id"] = new
        self._files[f"s/{entry['structure-file']}"] = f"s/{file}"
        entry["structure-file"] = file
        del entry["structure-size"], entry["structure-checksum"]

    def _name_file(self, key: str) -> None:
        folder, _, name = key.partition("/")
        stem = name.partition(".")[0].lower()
        made = {"i": f"i/inventory_{stem}.pq", "a": f"a/é {stem}.parquet", "c": f"c/t/{stem}.bin"}
        if folder in made:
            self._files[key] = made[folder]

    def _copy(self, key: str, data: bytes) -> None:
        folder = key.partition("/")[0]
        if folder in "sia":
            data = foreign_table(data, self._rename_in)
        if folder in "siac":
            self.storage.put(self._files[key], data)

    def _rename_in(self, row: dict[str, Any]) -> None:
        for item in row.get("inventories") or ():
            item["inventory_file"] = self._files[f"i/{item['inventory_file']}"][2:]
        if row.get("attrs_reference"):
            row["attrs_reference"]["attrs_file"] = self._files[
                f"a/{row['attrs_reference']['attrs_file']}"
            ][2:]
        if row.get("chunk_file"):
            row["chunk_file"] = self._files[f"c/{row['chunk_file']}"][2:]


@pytest.fixture(scope="module")
def original() -> Storage:
    storage = icefloe.in_memory_storage()
    fill(storage)
    return storage


@pytest.fixture
def renamed(original: Storage) -> Renamed:
    return Renamed(original)


def opened(storage: Storage) -> Repository:
    forget_shared()
    return Repository.open(storage, CONFIG)


def values(repo: Repository, **version: Any) -> dict[str, Any]:
    root = zarr.open_group(repo.readonly_session(**version).store, mode="r")
    return {"attributes": dict(root.attrs)} | {
        name: root[name][:].tolist() for name in sorted(root.array_keys())
    }


def history(repo: Repository, branch: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (info.message, values(repo, snapshot_id=info.id) if info.parent_id else {})
        for info in repo.ancestry(branch=branch)
    ]


def keys(storage: Storage, folders: str = "siac") -> set[str]:
    return {info.key for info in storage.list() if info.key.partition("/")[0] in set(folders)}


def test_all_is_read_as_it_was(original: Storage, renamed: Renamed) -> None:
    ours, theirs = opened(original), opened(renamed.storage)
    for branch in ("main", "dev"):
        assert history(theirs, branch) == history(ours, branch)
    assert values(theirs, tag="v1") == values(ours, tag="v1")


def test_snapshots_go_by_the_ids_of_the_state_file(original: Storage, renamed: Renamed) -> None:
    ours, theirs = opened(original), opened(renamed.storage)
    for info in list(ours.ancestry(branch="main"))[:-1]:
        name = renamed.ids[info.id]
        assert values(theirs, snapshot_id=name) == values(ours, snapshot_id=info.id)
    # What ancestry shows leads back to the same snapshots.
    shown = [info.id for info in theirs.ancestry(branch="main")]
    assert len(set(shown)) == 3
    assert theirs.lookup_branch("main") == shown[0]
    with pytest.raises(SnapshotNotFoundError):
        theirs.readonly_session(snapshot_id=str(uuid.UUID(int=77)))


def test_it_is_verified(renamed: Renamed) -> None:
    repo = opened(renamed.storage)
    report = repo.verify(deep=True)
    assert report.problems == ()
    assert sum(each.count for each in report.orphans.values()) == 0
    lost = next(key for key in keys(renamed.storage, "c"))
    renamed.storage.delete_many([lost])
    assert any(lost in problem.message or lost == problem.key for problem in repo.verify().problems)


def test_commits_go_on_top(original: Storage, renamed: Renamed) -> None:
    before = history(opened(original), "main")
    repo = opened(renamed.storage)
    with repo.transaction("main", message="ours") as store:
        root = zarr.open_group(store, mode="r+")
        root["native"][8:16] = 7
        root.attrs["ours"] = True
    again = opened(renamed.storage)
    newest, *older = history(again, "main")
    assert older == before
    assert newest[0] == "ours"
    expected = before[0][1]["native"]
    assert newest[1]["native"] == expected[:8] + [7] * 8 + expected[16:]
    assert newest[1]["inline"] == before[0][1]["inline"]
    state = json.loads(renamed.storage.get("state.json"))
    entry = state["snapshots"][-1]
    tip = [each["snapshot-id"] for each in state["snapshots"] if each["message"] == "main"]
    assert entry["parent-snapshot-id"] == tip[0] in renamed.ids.values()
    # Other programs find what it refers to under its real name.
    rows = pq.read_table(io.BytesIO(renamed.storage.get(f"s/{entry['structure-file']}")))
    named = {
        item["inventory_file"] for each in rows["inventories"].to_pylist() for item in each or ()
    }
    assert {f"i/{name}" for name in named} <= keys(renamed.storage, "i")
    assert again.verify(deep=True).problems == ()
    changed = again.diff(from_snapshot_id=tip[0], to_branch="main")
    assert set(changed.updated_chunks) == {"/native"}


def test_a_collection_loses_nothing(original: Storage, renamed: Renamed) -> None:
    expected = {branch: history(opened(original), branch) for branch in ("main", "dev")}
    before = keys(renamed.storage)
    assert opened(renamed.storage).garbage_collect(NOW).bytes_deleted == 0
    assert keys(renamed.storage) == before
    repo = opened(renamed.storage)
    assert {branch: history(repo, branch) for branch in expected} == expected


def test_what_a_deleted_snapshot_alone_refers_to_is_collected(renamed: Renamed) -> None:
    """Files that nobody ever referred to may be anybody's, and stay."""
    strays = {"s/README": b"read me", "i/x.pq": b"?", "a/.DS_Store": b"?", "c/t/stray.nc": b"CDF"}
    for key, data in strays.items():
        renamed.storage.put(key, data)
    before = keys(renamed.storage)
    repo = opened(renamed.storage)
    main = history(repo, "main")
    repo.delete_branch("dev")
    summary = repo.garbage_collect(NOW)
    assert (summary.snapshots_deleted, summary.manifests_deleted, summary.chunks_deleted) == (
        1,
        1,
        1,
    )
    gone = before - keys(renamed.storage)
    assert {key[0] for key in gone} == set("sic")
    assert not gone & set(strays)
    again = opened(renamed.storage)
    assert history(again, "main") == main
    assert again.verify(deep=True).problems == ()


def test_it_is_compacted_expired_and_copied(renamed: Renamed) -> None:
    repo = opened(renamed.storage)
    expected = values(repo, branch="main"), values(repo, branch="dev")
    summary = repo.compact(branch="main", small_file_bytes=1000, max_chunk_bytes=1000)
    assert summary.old_files == 4
    repo = opened(renamed.storage)
    assert (values(repo, branch="main"), values(repo, branch="dev")) == expected
    repo.rewrite_manifests("again", branch="main")
    repo.expire_snapshots(NOW)
    repo.garbage_collect(NOW)
    repo = opened(renamed.storage)
    assert (values(repo, branch="main"), values(repo, branch="dev")) == expected
    assert repo.verify(deep=True).problems == ()
    for generation in ("repository", "store", "dataset"):
        target = icefloe.in_memory_storage()
        repo.migrate(target, generation=generation)
        copy = opened(target)
        assert (values(copy, branch="main"), values(copy, branch="dev")) == expected


def test_chunks_are_listed_with_their_files(renamed: Renamed) -> None:
    session = opened(renamed.storage).readonly_session("main")
    table = session.tree.chunk_table("/native")
    assert table is not None
    files = {f"c/{ref.file}" for ref in table.refs.tolist()}
    assert files <= keys(renamed.storage, "c")
    (batch,) = session.chunk_batches("/native")
    assert {f"c/{name}" for name in batch.paths} == files


@pytest.mark.parametrize(
    "name",
    ["../../state.json", "a//b", "/etc/passwd", "", ".", "x/..", "a\x00b", "a\nb", "y" * 2000],
)
def test_names_that_lead_elsewhere_are_refused(original: Storage, name: str) -> None:
    storage = Renamed(original).storage
    state = json.loads(storage.get("state.json"))
    state["snapshots"][-1]["structure-file"] = name
    storage.put("state.json", json.dumps(state).encode())
    with pytest.raises(FormatError, match=r"state\.json"):
        opened(storage)
    storage = Renamed(original).storage
    for key in keys(storage, "s"):

        def change(row: dict[str, Any]) -> None:
            for item in row["inventories"] or ():
                item["inventory_file"] = name

        storage.put(key, foreign_table(storage.get(key), change))
    with pytest.raises(IcefloeError, match=r"s/structure"):
        values(opened(storage), branch="main")


def test_two_snapshots_have_two_files(original: Storage) -> None:
    storage = Renamed(original).storage
    state = json.loads(storage.get("state.json"))
    state["snapshots"][-1]["structure-file"] = state["snapshots"][0]["structure-file"]
    storage.put("state.json", json.dumps(state).encode())
    with pytest.raises(FormatError, match="two snapshots have one structure file"):
        opened(storage)


@pytest.mark.parametrize("kind", [SnapshotId, ManifestId, ChunkFileId])
@pytest.mark.parametrize(
    "name", ["x", "0" * 20, "o" * 20, "0" * 26, "Z" * 26, str(uuid.UUID(int=5)), "é/ü.bin", "/x"]
)
def test_ids_and_their_texts(kind: type[Any], name: str) -> None:
    made = kind.from_text(name)
    assert str(made) == name
    assert kind.from_text(str(made)) == made
    assert kind(bytes(made).ljust(100, b"\0")) == made
    assert kind(bytes(made)) == made


def test_keys_and_ids_are_one_to_one() -> None:
    for folder in "siac":
        for name in (
            "x",
            "x.parquet",
            "0" * 20,
            f"{'0' * 20}.parquet",
            "o" * 20,
            ".parquet",
            "a/b",
        ):
            key = f"{folder}/{name}"
            found = LAYOUT.parse(key)
            assert found is not None
            key_of = {
                "s": LAYOUT.snapshot,
                "i": LAYOUT.manifest,
                "a": LAYOUT.attributes,
                "c": LAYOUT.chunk_file,
            }[folder]
            assert key_of(found.id) == key
    with pytest.raises(IcefloeError):
        NodeId.from_text("x")
