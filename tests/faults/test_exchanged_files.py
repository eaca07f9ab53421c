"""Metadata files that were altered, cut off or exchanged for others: `verify` and readers notice.

The checksums are stored with the references: in the snapshot, in the child of a snapshot and in
the state file of a dataset (docs/decisions/0028-checksums-are-stored-with-references.md).
"""

from __future__ import annotations

import io
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.errors import FormatError
from icefloe.formats import file_sums
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.objects import metadata
from icefloe.objects.expected import sum_of_stored
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.upkeep.findings import ProblemKind
from tests import counting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import Storage

CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=0, inline_attributes_threshold_bytes=100)
GENERATIONS = [("repository", 2), ("repository", 1), ("store", None), ("dataset", None)]
PROBLEMS = {
    ObjectKind.SNAPSHOT: ProblemKind.SNAPSHOT,
    ObjectKind.MANIFEST: ProblemKind.MANIFEST,
    ObjectKind.ATTRIBUTES: ProblemKind.ATTRIBUTES,
    ObjectKind.TRANSACTION_LOG: ProblemKind.TRANSACTION_LOG,
}
NAMES = {
    ObjectKind.SNAPSHOT: "snapshot",
    ObjectKind.MANIFEST: "manifest",
    ObjectKind.ATTRIBUTES: "attribute file",
    ObjectKind.TRANSACTION_LOG: "transaction log",
}

each_generation = pytest.mark.parametrize(("generation", "spec_version"), GENERATIONS)


def made(generation: str, spec_version: int | None) -> Repository:
    """Commits that differ in values only, so that their files are of one size and well-formed."""
    repo = Repository.create(
        icefloe.in_memory_storage(), CONFIG, generation=generation, spec_version=spec_version
    )
    for value in range(3):
        with repo.transaction("main", message=f"commit {value}") as store:
            array = zarr.create_array(
                store,
                name="a",
                shape=(8,),
                chunks=(2,),
                dtype="u1",
                compressors=None,
                overwrite=True,
                attributes={"long": str(value) * 200},
            )
            array[:] = value
    return repo


def fresh(storage: Storage, config: RepositoryConfig | None = None) -> Repository:
    """A reader that knows nothing: a storage around the storage shares no caches."""
    return Repository.open(ForwardingStorage(storage), config)


def files_of(repo: Repository, kind: ObjectKind) -> list[str]:
    """Keys of all objects of a kind, but for the first snapshot."""
    layout = repo._context.format.layout
    first = layout.snapshot(FIRST_SNAPSHOT_ID)
    found = [info.key for info in repo.storage.list(layout.folder(kind))]
    return sorted(key for key in found if key != first)


def kinds_of(repo: Repository) -> Iterator[tuple[ObjectKind, list[str]]]:
    for kind in PROBLEMS:
        keys = files_of(repo, kind)
        if kind is ObjectKind.TRANSACTION_LOG and not repo._context.format.keeps_logs:
            assert keys == []
            continue
        assert len(keys) >= 2, kind
        yield kind, keys


def read_all(repo: Repository) -> None:
    """Whatever a user might read."""
    ids = [info.id for info in repo.ancestry(branch="main")]
    for one, other in itertools.pairwise(ids):
        session = repo.readonly_session(snapshot_id=one)
        array = zarr.open_array(session.store, path="a", mode="r")
        assert len(str(array.attrs["long"])) == 200
        assert len(set(array[:].tolist())) == 1
        repo.diff(from_snapshot_id=other, to_snapshot_id=one)


@each_generation
def test_files_that_are_exchanged_are_found(generation: str, spec_version: int | None) -> None:
    repo = made(generation, spec_version)
    storage = repo.storage
    assert repo.verify().is_clean
    for kind, keys in kinds_of(repo):
        one, other = keys[0], keys[-1]
        before = {key: storage.get(key) for key in (one, other)}
        storage.put(one, before[other])
        storage.put(other, before[one])
        problems = repo.verify().problems
        mine = [each for each in problems if each.kind is PROBLEMS[kind]]
        assert {each.snapshot_id for each in mine} <= _snapshots(repo)
        if kind is ObjectKind.SNAPSHOT:
            assert mine, problems
            assert "under its name" in " ".join(each.message for each in mine)
        else:
            assert {one, other} <= {each.key for each in mine}, (kind, problems)
            for each in mine:
                if each.key in before and "is not the file" in each.message:
                    assert f"{NAMES[kind]} {each.key}" in each.message
                    assert f"snapshot {each.snapshot_id}" in each.message
                    assert each.path == ("" if kind is ObjectKind.TRANSACTION_LOG else "/a")
        with pytest.raises(FormatError):
            read_all(fresh(storage))
        for key, data in before.items():
            storage.put(key, data)
        assert repo.verify().is_clean
    read_all(fresh(storage))


def _snapshots(repo: Repository) -> set[str]:
    layout = repo._context.format.layout
    folder = layout.folder(ObjectKind.SNAPSHOT)
    names = (layout.parse(info.key) for info in repo.storage.list(folder))
    return {str(name.id) for name in names if name is not None}


@each_generation
def test_flipped_bits_and_cut_files_are_found(generation: str, spec_version: int | None) -> None:
    repo = made(generation, spec_version)
    storage = repo.storage
    generator = np.random.default_rng(4)
    for kind, keys in kinds_of(repo):
        key = keys[1]
        whole = storage.get(key)
        # The first 27 bytes of a repository's files are magic bytes and who wrote them.
        places = generator.integers(27, len(whole), 6).tolist()
        damaged = [_flipped(whole, place) for place in places]
        damaged += [whole[:-1], whole[: len(whole) // 2], whole + b"\0", b""]
        for data in damaged:
            storage.put(key, data)
            counting.count(counting.FILES)
            report = repo.verify()
            found = [each for each in report.problems if each.kind is PROBLEMS[kind]]
            assert found, (kind, len(data), report)
            assert any(each.snapshot_id for each in found)
            assert key in " ".join(f"{each.key} {each.message}" for each in found)
        storage.put(key, whole)
    assert repo.verify().is_clean


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]


@each_generation
def test_each_byte_of_an_attribute_file_counts(generation: str, spec_version: int | None) -> None:
    """Also where the format itself has no checksum, and on every read."""
    repo = made(generation, spec_version)
    (key, *_) = files_of(repo, ObjectKind.ATTRIBUTES)
    whole = repo.storage.get(key)
    for place in range(0, len(whole), len(whole) // 20):
        repo.storage.put(key, _flipped(whole, place))
        with pytest.raises(FormatError, match=f"attribute file {key}"):
            read_all(fresh(repo.storage))


@pytest.mark.parametrize("what", ["branch", "tag"])
def test_a_reference_of_a_store_remembers_the_snapshot_file(what: str) -> None:
    """A snapshot that was replaced by a well-formed one of the same name, and has no child."""
    repo = made("store", None)
    tip = SnapshotId.parse(repo.lookup_branch("main"))
    if what == "tag":
        repo.create_tag("v1", "main")
        repo.reset_branch("main", next(repo.ancestry(branch="main")).parent_id or "")
    files = repo._context.files
    key = repo._context.format.layout.snapshot(tip)
    assert repo.verify().is_clean
    files.write_snapshot(msgspec.structs.replace(files.read_snapshot(tip), message="forged"))
    (problem,) = repo.verify().problems
    assert (problem.kind, problem.key) == (ProblemKind.SNAPSHOT, key)
    assert f"snapshot {key} is not the file" in problem.message
    with pytest.raises(FormatError, match=f"snapshot {key} is not the file"):
        fresh(repo.storage).readonly_session(**{what: "main" if what == "branch" else "v1"})  # type: ignore[arg-type]


def test_a_structure_file_is_compared_with_the_state_file() -> None:
    """One that was replaced by a well-formed one of the same name, and has no child."""
    repo = made("dataset", None)
    tip = SnapshotId.parse(repo.lookup_branch("main"))
    files = repo._context.files
    key = repo._context.format.layout.snapshot(tip)
    whole = repo.storage.get(key)
    entry = json.loads(repo.storage.get("state.json"))["snapshots"][-1]
    assert entry["structure-size"] == len(whole)
    assert entry["structure-checksum"] == file_sums.sum_of(whole).checksum
    files.write_snapshot(msgspec.structs.replace(files.read_snapshot(tip), message="forged"))
    (problem,) = repo.verify().problems
    assert (problem.kind, problem.key) == (ProblemKind.SNAPSHOT, key)
    assert f"snapshot {key} is not the file" in problem.message
    with pytest.raises(FormatError, match=f"snapshot {key} is not the file"):
        fresh(repo.storage).readonly_session("main")
    with pytest.raises(FormatError, match=f"snapshot {key} is not the file"):
        fresh(repo.storage).readonly_session(snapshot_id=str(tip))


def test_rows_of_a_structure_file_count_too() -> None:
    """Rows, which other engines read, and notes, which icefloe reads, are one truth."""
    repo = made("dataset", None)
    key = f"s/{repo.lookup_branch('main')}.parquet"
    whole = repo.storage.get(key)
    repo.storage.put(key, _flipped(whole, 20))
    (problem,) = repo.verify().problems
    assert problem.kind is ProblemKind.SNAPSHOT
    assert f"{key}: the checksum of the rows" in problem.message
    table = pq.read_table(io.BytesIO(whole)).slice(1)
    notes = pq.read_metadata(io.BytesIO(whole)).metadata
    sink = io.BytesIO()
    ours = {key: text for key, text in notes.items() if key.startswith(b"icefloe")}
    pq.write_table(table.replace_schema_metadata(ours), sink)
    for damaged in (_flipped(whole, 20), sink.getvalue()):
        repo.storage.put(key, damaged)
        state = repo.storage.get("state.json")
        repo.storage.put(
            "state.json",
            state.replace(b"structure-c", b"other-c").replace(b"structure-s", b"other-s"),
        )
        with pytest.raises(FormatError, match=f"{key}: the checksum of"):
            read_all(fresh(repo.storage))


@each_generation
def test_a_child_remembers_the_file_of_its_parent(
    generation: str, spec_version: int | None
) -> None:
    """A snapshot that was replaced by a well-formed one of the same name."""
    repo = made(generation, spec_version)
    files = repo._context.files
    parent = next(
        itertools.islice((SnapshotId.parse(i.id) for i in repo.ancestry(branch="main")), 1, None)
    )
    forged = msgspec.structs.replace(files.read_snapshot(parent), message="forged")
    files.write_snapshot(forged)
    problems = repo.verify().problems
    assert {each.snapshot_id for each in problems} == {str(parent)}
    assert {each.kind for each in problems} == {ProblemKind.SNAPSHOT}
    child = repo.lookup_branch("main")
    assert f"is not the file that snapshot {child} refers to" in " ".join(map(str, problems))


@each_generation
def test_without_checksums_all_is_as_it_was(
    generation: str, spec_version: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What older versions wrote, and machines where checksums are slow."""
    monkeypatch.setattr(file_sums, "IS_QUICK", False)
    monkeypatch.setattr(metadata, "new_checksum", lambda data: 0 * len(data))
    repo = made(generation, spec_version)
    monkeypatch.undo()
    snapshot = repo._context.files.read_snapshot(SnapshotId.parse(repo.lookup_branch("main")))
    assert not any(info.checksum for info in snapshot.manifests)
    assert not any(info.checksum for info in snapshot.attribute_files)
    assert repo.verify().is_clean
    read_all(fresh(repo.storage, RepositoryConfig(verify_chunks=True)))
    # Files that remember nothing at all, as the first versions wrote them.
    plain = Repository.create(
        icefloe.in_memory_storage(), CONFIG, generation=generation, spec_version=spec_version
    )
    codec = plain._context.format.codec
    nothing = msgspec.structs.replace(snapshot, log_file=None, parent_file=None)
    key = plain._context.format.layout.snapshot(snapshot.id)
    again = codec.decode_snapshot(codec.encode_snapshot(nothing).data, snapshot.id, key)
    assert (again.log_file, again.parent_file) == (None, None)


@pytest.mark.parametrize(("generation", "spec_version"), GENERATIONS)
def test_large_manifests_are_compared_when_asked(
    generation: str, spec_version: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these only parts are read, so that a swap would not be noticed by who reads a part."""
    repo = made(generation, spec_version)
    monkeypatch.setattr(metadata, "WHOLE_FILE_BYTES", 10)
    one, *_, other = files_of(repo, ObjectKind.MANIFEST)
    before = {key: repo.storage.get(key) for key in (one, other)}
    repo.storage.put(one, before[other])
    repo.storage.put(other, before[one])
    with pytest.raises(FormatError, match=r"manifest .* is not the file that snapshot .* for /a"):
        read_all(fresh(repo.storage, RepositoryConfig(verify_chunks=True)))
    assert {one, other} <= {problem.key for problem in repo.verify().problems}


def test_sizes_are_found_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from icefloe.objects import expected

    monkeypatch.setattr(expected, "_PIECE_BYTES", 7)
    storage = icefloe.in_memory_storage()
    data = bytes(range(100))
    storage.put("k", data)
    assert sum_of_stored(storage, "k", 100) == file_sums.sum_of(data)
    assert sum_of_stored(storage, "k", 90).size_bytes == 100
    assert sum_of_stored(storage, "k", 120) == sum_of_stored(storage, "k", 5)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repaired_log_is_taken_for_what_it_is(spec_version: int) -> None:
    repo = made("repository", spec_version)
    one, *_, other = files_of(repo, ObjectKind.TRANSACTION_LOG)
    before = repo.storage.get(one), repo.storage.get(other)
    repo.storage.put(one, before[1])
    repo.storage.put(other, before[0])
    assert repo.repair()
    assert repo.verify().is_clean
    read_all(fresh(repo.storage, RepositoryConfig(verify_chunks=True)))
    # Repaired ones that are exchanged do not pass, either.
    mended = repo.storage.get(one), repo.storage.get(other)
    repo.storage.put(one, mended[1])
    repo.storage.put(other, mended[0])
    assert {one, other} <= {problem.key for problem in repo.verify().problems}


def test_a_log_that_is_gone_is_found_and_written_again() -> None:
    repo = made("repository", 2)
    (key, *_) = files_of(repo, ObjectKind.TRANSACTION_LOG)
    repo.storage.delete_many([key])
    (problem,) = repo.verify().problems
    assert (problem.kind, problem.key) == (ProblemKind.TRANSACTION_LOG, key)
    assert problem.repairable
    assert repo.repair()
    assert repo.verify().is_clean


@each_generation
def test_a_collection_believes_no_manifest_that_was_exchanged(
    generation: str, spec_version: int | None
) -> None:
    """It would take chunks for garbage that are not."""
    repo = made(generation, spec_version)
    repo.expire_snapshots(keep_last=1)
    one, *_, other = files_of(repo, ObjectKind.MANIFEST)
    before = {key: repo.storage.get(key) for key in (one, other)}
    repo.storage.put(one, before[other])
    repo.storage.put(other, before[one])
    listed = {info.key for info in repo.storage.list()}
    with pytest.raises(FormatError, match="is not the file"):
        repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert {info.key for info in repo.storage.list()} >= listed
