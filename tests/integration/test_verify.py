"""Verification finds every kind of damage, names it, and finds nothing where there is none."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, ProblemKind, Repository, RepositoryConfig
from icefloe.errors import (
    FormatError,
    IcefloeError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.formats.container import compress
from icefloe.formats.icechunk.container import HEADER_SIZE, FlatFileType, open_file
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.ids import FIRST_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.model.nodes import ManifestRef, NodeTable
from icefloe.model.transaction_log import TransactionLog
from icefloe.testing.requests import FarStorage
from icefloe.upkeep.checks import log_errors
from icefloe.upkeep.verification import _overlapping
from tests.builders import arrays_of_two_kinds
from tests.formats import EVERY_FORMAT, GENERATIONS, OFFICIAL_FORMATS, chosen
from tests.integration.maintained import NATIVE, PACKED, fill, make, names, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.model.snapshot import Snapshot

CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)


def repository(generation: str = "repository", spec_version: int | None = None) -> Repository:
    """All kinds of objects: inline and packed chunks, long attributes, branches, a tag, a move."""
    repo = Repository.create(
        icefloe.in_memory_storage(), CONFIG, spec_version=spec_version, generation=generation
    )
    with repo.transaction("main", message="one") as store:
        root = arrays_of_two_kinds(store)
        root.attrs["long"] = "x" * 500
    repo.create_tag("v1", "main")
    repo.create_branch("dev", "main")
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    root["native"][:8] = 2
    root.create_group("group")
    session.move("/inline", "/group/inline")
    session.commit("two")
    session = repo.writable_session("main")
    del zarr.open_group(session.store)["native"]
    session.commit("three")
    with repo.transaction("dev", message="on dev") as store:
        zarr.open_group(store)["native"][8:24] = 3
    return repo


@pytest.mark.parametrize(
    ("generation", "spec_version"),
    [("repository", 2), ("repository", 1), ("store", None), ("dataset", None)],
)
def test_a_sound_repository_has_no_problems(generation: str, spec_version: int | None) -> None:
    repo = repository(generation, spec_version)
    report = repo.verify(deep=True)
    assert report.problems == ()
    assert report.is_clean
    assert report.checked["branches"] == 2
    assert report.checked["tags"] == 1
    assert report.checked["snapshots"] == 5
    assert report.checked["references"] > 10
    assert report.checked["bytes of chunks"] > 0
    assert all(orphans.count == 0 for orphans in report.orphans.values())
    assert "no problems found" in str(report)
    assert json.dumps(report.to_dict())
    # After everything that changes history without changing data.
    repo.compact(branch="dev", small_file_bytes=1000)
    repo.rewrite_manifests("again", branch="dev")
    repo.expire_snapshots(keep_last=2)
    assert repo.verify(deep=True).problems == ()


def amended(repo: Repository, chunks: slice) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[chunks] = 5
    session.amend("after")


def renamed(repo: Repository, _: slice) -> None:
    session = repo.writable_session("main")
    session.move("/a", "/b")
    session.amend("after")
    repo.rewrite_manifests("tidy", branch="main", commit_method="amend")


def squashed(repo: Repository, chunks: slice) -> None:
    fill(repo, 5, chunks=chunks)
    repo.squash("main", "main~2", message="one")


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("replace", [amended, renamed, squashed])
def test_what_takes_the_place_of_a_compaction_is_sound(
    generation: str, replace: Callable[[Repository, slice], None]
) -> None:
    with chosen(generation):
        repo = make(NATIVE)
    fill(repo, 1)
    fill(repo, 2, chunks=slice(0, 1))
    writer = repo.writable_session("main")
    repo.compact(branch="main")
    replace(repo, slice(0, 1))
    assert repo.verify(deep=True).problems == ()
    told = json.loads(repo.inspect_transaction_log("main"))["updated_chunks"].values()
    assert [chunks["count"] for chunks in told] == ([] if replace is renamed else [4])
    if replace is renamed:
        # Nobody has to rebase over chunks that only moved.
        zarr.open_array(writer.store, path="a")[1] = 9
        writer.commit("beside it", rebase_with=ConflictDetector())
        assert repo.verify(deep=True).is_clean


def test_orphans_are_listed_and_are_no_fault() -> None:
    repo = repository()
    repo.reset_branch("dev", "v1")
    report = repo.verify()
    assert report.is_clean
    assert report.orphans["snapshot"].count == report.orphans["transaction-log"].count == 1
    assert report.orphans["chunk-file"].keys[0] in names(repo, "chunks")
    assert report.orphans["chunk-file"].bytes == 16
    assert "orphans of kind snapshot: 1 (" in str(report)


def test_every_missing_torn_or_altered_object_is_found() -> None:
    """Each object that is reached, gone, cut short and with a bit flipped."""
    repo = repository()
    storage = repo.storage
    kinds = set()
    for info in list(storage.list()):
        whole = storage.get(info.key)
        flipped = bytes([*whole[:-1], whole[-1] ^ 1])
        for damage, data in (("gone", None), ("torn", whole[: len(whole) // 2]), ("bit", flipped)):
            if data is None:
                storage.delete_many([info.key])
            else:
                storage.put(info.key, data)
            try:
                report = Repository.open(storage).verify(deep=True)
            except icefloe.IcefloeError:
                report = repo.verify(deep=True)
            if is_expected(info.key, damage):
                assert not report.is_clean, (info.key, damage)
                kinds |= {problem.kind for problem in report.problems}
                name = info.key.rpartition("/")[2].removesuffix(".json")
                assert name in str(report) or "reference" in str(report), (info.key, damage)
        storage.put(info.key, whole)
    assert repo.verify(deep=True).is_clean
    assert kinds >= {
        ProblemKind.REFERENCE,
        ProblemKind.SNAPSHOT,
        ProblemKind.MANIFEST,
        ProblemKind.ATTRIBUTES,
        ProblemKind.TRANSACTION_LOG,
        ProblemKind.CHUNK_FILE,
        ProblemKind.CHECKSUM,
    }


def is_expected(key: str, damage: str) -> bool:
    folder = key.partition("/")[0]
    if folder in ("maintenance", "config"):
        return False
    if folder == "transactions":
        # That there is no log is no fault: what changed is found by comparison then.
        return damage != "gone"
    if folder == "refs":
        # Without its newest file, a branch is where it was before, and a tag has never been.
        return damage == "torn"
    return True


def test_a_bad_reference_in_a_large_official_manifest_is_a_problem_of_the_manifest() -> None:
    storage = icefloe.in_memory_storage()
    session = Repository.create(storage, generation="icechunk").writable_session("main")
    for name in ("a", "b"):
        zarr.create_array(session.store, name=name, shape=(5000,), chunks=(1,), dtype="i1")
    session.set_virtual_refs(
        "/a",
        coords=np.arange(5000)[:, None],
        locations=[f"s3://bucket/{row // 100}.nc" for row in range(5000)],
        offsets=np.arange(5000),
        lengths=1,
        validate_containers=False,
    )
    session.commit("5000 references, which are decoded when somebody needs them")
    (manifest,) = storage.list("manifests/")
    data = storage.get(manifest.key)
    body = bytearray(open_file(data, FlatFileType.MANIFEST, manifest.key).body)
    body[body.index(b"s3://bucket/12.nc")] = 0xFF  # not UTF-8
    storage.put(manifest.key, data[:HEADER_SIZE] + compress(bytes(body), 3))
    problems = Repository.open(storage).verify().problems
    assert ProblemKind.NODE not in {problem.kind for problem in problems}
    (found,) = [problem for problem in problems if "UTF-8" in problem.message]
    assert found.kind is ProblemKind.MANIFEST
    assert found.key == manifest.key
    assert "needed by /a" in found.message


def test_a_problem_of_a_chunk_names_array_chunk_and_snapshot() -> None:
    repo = make(PACKED)
    snapshot_id = fill(repo, 7)
    (key,) = names(repo, "chunks")
    repo.storage.put(key, b"\x07\x07\x05\x07")
    report = repo.verify()
    assert report.is_clean, "only a deep look reads bytes"
    (problem,) = repo.verify(deep=True).problems
    assert problem.kind is ProblemKind.CHECKSUM
    assert (problem.path, problem.chunks) == ("/a", ((2,),))
    assert (problem.snapshot_id, problem.key) == (snapshot_id, key)
    repo.storage.put(key, b"\x07\x07")
    (problem,) = repo.verify().problems
    assert problem.kind is ProblemKind.CHUNK_FILE
    assert problem.chunks == ((2,), (3,))
    assert "too short" in str(problem)
    assert "/a, chunks [[2], [3]]" in str(problem)


@pytest.mark.parametrize("generation", ["repository", "store"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_gap_in_a_sequence_is_found_and_filled(
    tmp_path: Path, generation: str, number: int
) -> None:
    repo = Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path)), NATIVE, generation=generation
    )
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="u1")
    snapshots = [repo.lookup_branch("main~1"), repo.lookup_branch("main")]
    snapshots += [fill(repo, value) for value in range(1, 4)]
    folder = "refs/branch.main" if generation == "repository" else "r"
    keys = sorted(names(repo, folder), reverse=True)
    before = {key: repo.storage.get(key) for key in keys}
    repo.storage.delete_many([keys[number]])

    again = Repository.open(repo.storage)
    (problem,) = again.verify().problems
    assert problem.kind is ProblemKind.REFERENCE
    assert (problem.key, problem.repairable) == (keys[number], True)
    assert "the sequence of 'main' has a gap" in problem.message
    if number:
        good = (
            f"last good entry before it is number {number - 1} (snapshot {snapshots[number - 1]})"
        )
        assert good in problem.message
    assert f"the branch is at number 4 (snapshot {snapshots[4]})" in problem.message
    assert "repair repeats the entry before it" in problem.message

    if again.lookup_branch("main") != snapshots[4]:
        with pytest.raises(FormatError, match="nothing is deleted"):
            again.garbage_collect(timedelta(0))
    assert [fixed.key for fixed in again.repair()] == [keys[number]]
    assert Repository.open(repo.storage).garbage_collect(timedelta(0)).snapshots_deleted == 0
    healed = Repository.open(repo.storage)
    assert healed.verify(deep=True).is_clean
    assert healed.lookup_branch("main") == snapshots[4], "the branch is where it was"
    assert "repair" in {operation.kind for operation in healed.operations()}
    after = {key: healed.storage.get(key) for key in keys}
    assert {key for key in keys if after[key] != before[key]} <= {keys[number]}
    assert healed.repair() == []
    fill(healed, 9)


def test_a_torn_newest_entry_is_reported_with_the_last_good_one() -> None:
    repo = make()
    last = fill(repo, 1)
    fill(repo, 2)
    newest = sorted(names(repo, "refs/branch.main"))[0]
    repo.storage.put(newest, b'{"snap')
    good = rf"torn or damaged.*the last good entry before it is number 2 \(snapshot {last}\)"
    with pytest.raises(FormatError, match=good):
        Repository.open(repo.storage)
    report = repo.verify()
    (problem,) = report.problems
    assert (problem.key, problem.repairable) == (newest, False)
    assert "torn or damaged" in problem.message
    assert f"the last good entry before it is number 2 (snapshot {last})" in problem.message
    assert "repair leaves it alone" in problem.message
    assert f"delete it, and the branch is at number 2 (snapshot {last}) again" in problem.message
    assert report.checked["snapshots"] == 3, "what the last good entry reaches is looked at"
    assert repo.repair(report) == []
    # As it says:
    repo.storage.delete_many([newest])
    healed = Repository.open(repo.storage)
    assert (healed.lookup_branch("main"), healed.verify().is_clean) == (last, True)


@pytest.mark.parametrize("generation", ["repository", "store"])
def test_a_repository_with_a_torn_newest_entry_is_opened_for_repair(generation: str) -> None:
    with chosen(generation):
        repo = make()
        last = fill(repo, 1)
        repo.create_branch("dev", last)
        fill(repo, 2)
        newest = min(key for key in names(repo, "refs") if "main" in key)
    repo.storage.put(newest, b'{"snap')
    opened = Repository.open_for_repair(repo.storage)
    assert (opened.generation, opened.spec_version) == (repo.generation, repo.spec_version)
    (problem,) = opened.verify(deep=True).problems
    assert (problem.key, problem.kind) == (newest, ProblemKind.REFERENCE)
    assert opened.repair() == []
    # The last good entry is named, and never taken for where the branch is.
    for use in (
        lambda: opened.readonly_session("main"),
        lambda: opened.writable_session("main"),
        lambda: opened.lookup_branch("main"),
        lambda: opened.garbage_collect(timedelta(0)),
        lambda: Repository.open(repo.storage),
    ):
        with pytest.raises(FormatError, match=r"last good entry.*Repository\.open_for_repair"):
            use()
    assert values(opened, branch="dev") == [1] * 4
    repo.storage.delete_many([newest])  # as the problem says
    assert opened.lookup_branch("main") == last
    assert opened.verify(deep=True).is_clean


def test_a_repository_whose_newest_snapshot_is_lost_is_opened_for_repair() -> None:
    repo = make()
    fill(repo, 1)
    tip = fill(repo, 2)
    repo.storage.delete_many([repo._context.format.layout.snapshot(SnapshotId.parse(tip))])
    repo._context.files.forget()
    with pytest.raises(FormatError, match="although branch 'main' points to it"):
        Repository.open(repo.storage)
    opened = Repository.open_for_repair(repo.storage)
    (problem,) = opened.verify().problems
    assert (problem.kind, problem.snapshot_id) == (ProblemKind.SNAPSHOT, tip)
    with pytest.raises(SnapshotNotFoundError):
        opened.readonly_session("main")


def test_where_nothing_can_be_read_there_is_nothing_to_repair() -> None:
    with pytest.raises(RepositoryNotFoundError):
        Repository.open_for_repair(icefloe.in_memory_storage())
    repo = make()
    for key in names(repo, "refs/branch.main"):
        repo.storage.put(key, b"")
    with pytest.raises(FormatError, match="no entry of branch 'main' leads to a snapshot"):
        Repository.open_for_repair(repo.storage)


def test_a_torn_entry_in_the_middle_does_no_harm() -> None:
    repo = make()
    fill(repo, 1)
    tip = fill(repo, 2)
    middle = sorted(names(repo, "refs/branch.main"))[1]
    repo.storage.put(middle, b"")
    (problem,) = Repository.open(repo.storage).verify().problems
    assert (problem.key, problem.repairable) == (middle, False)
    assert f"the branch is at number 3 (snapshot {tip})" in problem.message
    assert "nobody needs it" in problem.message


def rewritten(repo: Repository, change: Callable[[Snapshot], Snapshot]) -> None:
    """Put another snapshot in the place of main's, as a faulty writer would."""
    files = repo._context.files
    snapshot = files.read_snapshot(SnapshotId.parse(repo.lookup_branch("main")))
    files.write_snapshot(change(snapshot))


def with_refs(change: Callable[[ManifestRef], ManifestRef]) -> Callable[[Snapshot], Snapshot]:
    def changed(snapshot: Snapshot) -> Snapshot:
        nodes = [
            node.evolve(manifests=tuple(map(change, node.manifests))) if node.is_array else node
            for node in snapshot.nodes
        ]
        return msgspec.structs.replace(snapshot, nodes=NodeTable.of(nodes))

    return changed


def with_info(**fields: Any) -> Callable[[Snapshot], Snapshot]:
    def changed(snapshot: Snapshot) -> Snapshot:
        infos = [msgspec.structs.replace(info, **fields) for info in snapshot.manifests]
        return msgspec.structs.replace(snapshot, manifests=tuple(infos))

    return changed


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (
            with_refs(lambda ref: msgspec.structs.replace(ref, extents=Box((0,), (5,)))),
            ProblemKind.EXTENTS,
            r"extents are (0,) to (5,), and the manifest has (0,) to (4,)",
        ),
        (
            with_refs(lambda ref: msgspec.structs.replace(ref, num_refs=3)),
            ProblemKind.EXTENTS,
            "the manifest has 4 references, and the array says 3",
        ),
        (with_info(num_chunk_refs=9), ProblemKind.MANIFEST, "it has 4 references"),
        (with_info(size_bytes=1), ProblemKind.MANIFEST, "expected 1 bytes"),
        (
            with_info(size_bytes=1, checksum=0),
            ProblemKind.MANIFEST,
            "bytes, and the snapshot says 1",
        ),
        (
            lambda snapshot: msgspec.structs.replace(
                snapshot, written_at=snapshot.history[-1].written_at
            ),
            ProblemKind.SNAPSHOT,
            "not after its parent",
        ),
    ],
)
def test_what_a_faulty_writer_wrote_is_found(
    change: Callable[[Snapshot], Snapshot], kind: ProblemKind, text: str
) -> None:
    repo = make()
    fill(repo, 1)
    rewritten(repo, change)
    (problem,) = repo.verify().problems
    assert problem.kind is kind
    assert text in problem.message


def test_extents_that_overlap_are_found() -> None:
    def ref(lower: tuple[int, ...], upper: tuple[int, ...]) -> ManifestRef:
        return ManifestRef(ManifestId.random(), Box(lower, upper), 1)

    apart = (ref((0, 0), (2, 2)), ref((0, 2), (2, 4)), ref((2, 0), (4, 4)))
    assert list(_overlapping(apart)) == []
    assert len(list(_overlapping((*apart, ref((1, 1), (3, 3)))))) == 3
    assert list(_overlapping((ref((), ()),))) == []


def test_logs_that_tell_something_else_are_found_and_repaired() -> None:
    repo = repository()
    good = {}
    for info in repo.ancestry(branch="main"):
        if info.id != str(FIRST_SNAPSHOT_ID):
            good[info.id] = repo.inspect_transaction_log(info.id)
            empty = TransactionLog()
            files = repo._context.files
            files.write_transaction_log(files.read_snapshot(SnapshotId.parse(info.id)), empty)
    tip = repo.lookup_branch("dev")
    repo.storage.put(f"transactions/{tip}", b"damaged")
    report = repo.verify()
    assert {problem.kind for problem in report.problems} == {ProblemKind.TRANSACTION_LOG}
    assert all(problem.repairable for problem in report.problems)
    assert {problem.snapshot_id for problem in report.problems} == {*good, tip}
    assert "repair can fix this" in str(report)
    messages = " ".join(problem.message for problem in report.problems)
    for told in ("new_arrays", "deleted_arrays", "changed chunks", "the move of /inline"):
        assert told in messages, told
    assert len(repo.repair(report, job="doctor")) == len(good) + 1
    assert repo.verify().is_clean
    assert {i: repo.inspect_transaction_log(i) for i in good} == good
    assert repo.repair() == []
    (entry,) = [entry for entry in repo.operations() if entry.kind == "repair"]
    assert entry.job == "doctor"


def test_problems_do_not_hide_each_other() -> None:
    repo = repository()
    storage = repo.storage
    storage.put("refs/tag.v1/ref.json", b"{")
    storage.put("config/ZZZZZZZZ.json", b"{")
    for key in names(repo, "chunks"):
        storage.delete_many([key])
    kinds = {problem.kind for problem in repo.verify().problems}
    assert kinds == {ProblemKind.REFERENCE, ProblemKind.CONFIGURATION, ProblemKind.CHUNK_FILE}


def test_a_history_that_breaks_off_is_reported_with_what_is_missing() -> None:
    repo = make()
    ids = [fill(repo, value) for value in range(1, 4)]
    repo.storage.delete_many([f"snapshots/{ids[0]}"])
    (problem,) = Repository.open(repo.storage).verify().problems
    assert problem.kind is ProblemKind.SNAPSHOT
    assert problem.snapshot_id == ids[0]


@pytest.mark.parametrize("name", ["columns", "rows", *OFFICIAL_FORMATS])
@pytest.mark.parametrize("number", [1, 2], ids=["first commit", "second commit"])
def test_a_damaged_log_of_any_commit_is_repaired(name: str, number: int) -> None:
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, **EVERY_FORMAT[name])
    for path in ("a", "b"):
        with repo.transaction("main", message=path) as store:
            zarr.create_array(store, name=path, shape=2, chunks=(1,), dtype="i4")[:] = 1
    first, *commits = [info.id for info in repo.ancestry(branch="main")][::-1]
    key = f"transactions/{commits[number - 1]}"
    data = storage.get(key)
    storage.delete_many([key])
    storage.put(key, data[:40])
    again = Repository.open(storage)
    (problem,) = again.verify().problems
    assert (problem.kind, problem.key) == (ProblemKind.TRANSACTION_LOG, key)
    assert again.repair() == [problem]
    healed = Repository.open(storage)
    assert healed.verify().is_clean
    assert healed.diff(from_snapshot_id=first, to_branch="main").new_arrays == {"/a", "/b"}


@pytest.mark.parametrize("damage", ["missing", "cut short"])
@pytest.mark.parametrize("generation", dict.fromkeys([*GENERATIONS, "icechunk"]))
def test_it_finds_the_same_where_requests_are_sent_together(generation: str, damage: str) -> None:
    """Whatever is damaged, a storage far away gives the same report."""
    original = repository(generation).storage
    damaged = 0
    for info in list(original.list()):
        if info.key.startswith(("maintenance/", "probe/", "overwritten/")):
            continue
        copy = icefloe.in_memory_storage()
        for each in original.list():
            if each.key != info.key:
                copy.put(each.key, original.get(each.key))
            elif damage == "cut short":
                copy.put(each.key, original.get(each.key)[:-3])
        try:
            reports = [Repository.open(at).verify(deep=True) for at in (copy, FarStorage(copy))]
        except IcefloeError:
            continue  # it cannot be opened at all
        one, other = (
            sorted((str(each.kind), each.message, each.key, each.path) for each in report.problems)
            for report in reports
        )
        assert one == other, info.key
        assert reports[0].checked == reports[1].checked
        assert reports[0].orphans == reports[1].orphans
        damaged += bool(one)
    assert damaged > 5


def test_a_log_with_coordinates_of_another_rank_has_none_of_the_changed_chunks() -> None:
    node_id = NodeId.random()
    actual = TransactionLog(updated_chunks={node_id: ChunkIndex.from_tuples([(0, 1)], 2)})
    log = TransactionLog(updated_chunks={node_id: ChunkIndex.from_tuples([(0,)], 1)})
    assert list(log_errors(log, actual, {})) == [
        f"1 changed chunks of node {node_id} are not in it"
    ]
