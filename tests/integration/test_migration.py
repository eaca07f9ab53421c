"""Copying a repository to another generation of the format, with all of its history."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    SnapshotNotFoundError,
    StoragePermissionError,
)
from icefloe.formats.registry import detect, format_for
from icefloe.storage.copying import copy_object
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from icefloe.testing.generations import (
    ODD_ARRAYS,
    ODD_DOCUMENTS,
    array_document,
    make,
    picture,
    split_every,
)
from tests.builders import commit_edit
from tests.documents import chunks_of, make_tree
from tests.formats import EVERY_FORMAT, FORMATS, GENERATIONS, OFFICIAL_FORMATS

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

DIRECTIONS = list(itertools.permutations(FORMATS, 2))


def prepare(storage: Storage, how: dict[str, Any]) -> Repository:
    """A repository with branches, tags, moves, deletions, odd documents, tiles and an amend."""
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=4,
        inline_attributes_threshold_bytes=200,
        manifest=split_every(4),
    )
    repo = make(storage, how, config)
    session = repo.writable_session("main")
    session.tree.set_document("/odd", b'{"zarr_format":3,"node_type":"group"}')
    for number, document in enumerate((*ODD_DOCUMENTS, *ODD_ARRAYS)):
        session.tree.set_document(f"/odd/{number}", document)
    if how != OFFICIAL_FORMATS["icechunk1"]:  # which knows no moves
        session.move("/g", "/h")
    session.tree.set_chunk("/b", (4,), b"long enough for a pack")
    session.commit("two", {"nan": None, "n": 2**64 - 1})
    repo.create_branch("dev", "main~1")
    session = repo.writable_session("dev")
    session.tree.delete_node("/b")
    session.tree.set_document("/b", array_document((4,), (1,)))
    session.tree.set_chunk("/b", (3,), b"dev")
    session.commit("on dev")
    session = repo.writable_session("main")
    session.store.set_virtual_ref(
        "b/c/9", "s3://bucket/key.nc", offset=5, length=6, validate_container=False
    )
    session.amend("two, amended")
    repo.create_branch("gone", "main")
    repo.delete_branch("gone")
    repo.create_tag("v1", "dev")
    return repo


def shown(storage: Storage) -> dict[str, Any]:
    """All of a repository but for what its virtual chunks hold."""
    repo = Repository.open(storage)
    found: dict[str, Any] = {"config": repo.config, "tags": {}, "branches": {}}
    for name in repo.list_tags():
        found["tags"][name] = repo.lookup_tag(name)
    for name in repo.list_branches():
        commits = []
        for info in repo.ancestry(branch=name):
            nodes: dict[str, Any] = {}
            commits.append((info.id, info.message, info.metadata, info.written_at, nodes))
            try:
                session = repo.readonly_session(snapshot_id=info.id)
            except SnapshotNotFoundError:
                continue  # the first snapshot of old repositories is only remembered
            for path in ("/", *session.tree.node_paths("/")):
                node = session.get_node(path)
                if node is None:
                    continue
                nodes[path] = session.tree.document(path)
                if node.is_array:
                    for place in session.tree.chunk_coords(path).tolist():
                        ref = session.tree.locate(path, tuple(place))
                        is_virtual = type(ref).__name__ == "VirtualRef"
                        nodes[f"{path} {place}"] = (
                            ref if is_virtual else session.get_chunk(path, tuple(place))
                        )
        found["branches"][name] = commits
    return found


@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_every_direction(old: str, new: str) -> None:
    source, target = icefloe.in_memory_storage(), icefloe.in_memory_storage()
    repo = prepare(source, FORMATS[old])
    how = {"generation": "repository"} | FORMATS[new]
    stages: list[tuple[str, int, int]] = []
    report = repo.migrate(target, progress=lambda *step: stages.append(step), **how)
    assert report.problems == ()
    assert report.snapshots == 4
    assert (report.branches, report.tags) == (2, 2)
    assert set(report.copied) == {"linked"}
    assert detect(target) == format_for(how["generation"], how.get("spec_version"))
    assert shown(target) == shown(source)
    expected = {"survey", "manifests", "snapshots", "compare"}
    if not {"icechunk", "icechunk1"} & {old, new}:
        expected.add("attribute files")
    assert expected <= {stage for stage, _, _ in stages}
    assert all(done <= total for _, done, total in stages)
    diffs = [
        each.diff(from_branch="main~1", to_branch="main")
        for each in (repo, Repository.open(target))
    ]
    if new != "icechunk1":
        assert str(diffs[0]) == str(diffs[1])
    copy = Repository.open(target)
    session = copy.writable_session("main")
    session.tree.set_document("/new", array_document((4,), (1,)))
    session.tree.set_chunk("/new", (0,), b"0")
    session.commit("goes on")
    ids = [session.get_node_id(path) for path in session.tree.node_paths("/")]
    assert len(set(ids)) == len(ids)


def test_a_round_trip_gives_everything_back(tmp_path: Path) -> None:
    places = [icefloe.local_filesystem_storage(tmp_path / str(n)) for n in range(5)]
    prepare(places[0], FORMATS["columns"])
    route: list[dict[str, Any]] = [
        {"generation": "store"},
        {"generation": "dataset"},
        {"generation": "repository", "spec_version": 1},
        {"generation": "repository", "spec_version": 2},
    ]
    for (source, target), how in zip(itertools.pairwise(places), route, strict=True):
        report = Repository.open(source).migrate(target, **how)
        assert set(report.copied) == {"linked"}
        assert report.problems == ()
        assert shown(target) == shown(places[0])
    inodes = {
        path.stat().st_ino
        for number, folder in enumerate(("chunks", "c", "c", "chunks", "chunks"))
        for path in (tmp_path / str(number) / folder).iterdir()
    }
    assert len(inodes) == len(list((tmp_path / "0" / "chunks").iterdir()))


@pytest.mark.parametrize("name", ["columns", "store", "dataset"])
def test_a_migration_that_died_goes_on(name: str) -> None:
    source = icefloe.in_memory_storage()
    repo = prepare(source, FORMATS["rows"])
    how = {"generation": "repository"} | FORMATS[name]
    counted = FaultyStorage(icefloe.in_memory_storage())
    repo.migrate(counted, **how)
    writes = counted.writes()
    expected = shown(source)
    for nth in range(1, len(writes) + 1, 7):
        inner = icefloe.in_memory_storage()
        faulty = FaultyStorage(inner)
        verb, key = writes[nth - 1]
        faulty.inject(Fault.CRASH_AFTER, verb=verb, key=key)
        with pytest.raises(CrashError):
            repo.migrate(faulty, **how)
        if not Repository.exists(inner):
            again = FaultyStorage(inner)
            repo.migrate(again, **how)
            written = [key for _, key in again.writes()]
            assert not {key for _, key in faulty.writes()} & {
                key for key in written if "state" not in key
            }
        assert shown(inner) == expected


def test_what_cannot_be_done_is_told_before_anything_is_copied() -> None:
    source = icefloe.in_memory_storage()
    repo = prepare(source, FORMATS["columns"])
    with pytest.raises(InvalidInputError, match="itself"):
        repo.migrate(source, generation="store")
    taken = icefloe.in_memory_storage()
    Repository.create(taken)
    with pytest.raises(AlreadyExistsError):
        repo.migrate(taken, generation="store")
    with pytest.raises(InvalidInputError, match="generations"):
        repo.migrate(icefloe.in_memory_storage(), generation="other")
    repo.create_tag("dev", "main")
    target = icefloe.in_memory_storage()
    with pytest.raises(InvalidInputError, match="share"):
        repo.migrate(target, generation="dataset")
    repo.create_tag("x.json", "main")
    with pytest.raises(InvalidInputError, match=r"\.json"):
        repo.migrate(target, generation="store")
    assert list(target.list()) == []


def test_expired_history_stays_expired() -> None:
    source, target = icefloe.in_memory_storage(), icefloe.in_memory_storage()
    repo = make(source, {})
    for value in range(5):
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (value,), b"%d!" % value)
        session.commit(f"{value}")
    repo.expire_snapshots(keep_last=2)
    report = repo.migrate(target, generation="dataset")
    assert report.problems == ()
    messages = [info.message for info in Repository.open(target).ancestry(branch="main")]
    assert messages == [info.message for info in repo.ancestry(branch="main")]
    assert len(messages) < 6
    listed = json.loads(target.get("state.json"))["snapshots"]
    assert {each["snapshot-id"] for each in listed} == {
        info.id for branch in ("main",) for info in repo.ancestry(branch=branch)
    } | {repo.lookup_tag("first")} | {info.id for info in repo.ancestry(tag="first")}


@pytest.mark.parametrize("target", ["columns", "icechunk"])
@pytest.mark.parametrize("source", ["columns", "dataset", "icechunk", "icechunk1"])
def test_commits_after_expired_ones_differ_from_the_first_by_all_they_have(
    source: str, target: str
) -> None:
    """Their logs do not tell of what expired commits did, and the copy has no trace of those."""
    repo = Repository.create(icefloe.in_memory_storage(), **EVERY_FORMAT[source])
    for number in range(4):
        with repo.transaction("main", message=f"{number}") as store:
            group = zarr.open_group(store, mode="a")
            group.create_array(f"a{number}", shape=2, chunks=(1,), dtype="i4")[:] = 1
            group["a0"][number % 2] = number
    repo.expire_snapshots(keep_last=2)
    repo.garbage_collect(timedelta(0))
    first = repo.lookup_branch("main~2")
    for _ in range(2):  # a copy of the copy, too
        place = icefloe.in_memory_storage()
        how = {"generation": "repository"} | EVERY_FORMAT[target]
        assert repo.migrate(place, **how).problems == ()
        repo = Repository.open(place)
        assert repo.verify().is_clean
        assert repo.lookup_branch("main~2") == first
        for tip, count in (("main", 4), ("main~1", 3)):
            diff = repo.diff(from_snapshot_id=first, to_snapshot_id=repo.lookup_branch(tip))
            every = {f"/a{number}" for number in range(count)}
            assert diff.new_arrays == every
            assert diff.updated_chunks.keys() == every
            assert diff.new_groups == {"/"}
    repo.squash("main", first, message="one")
    assert repo.verify().is_clean
    assert repo.diff(from_snapshot_id=first, to_branch="main").new_arrays == every | {"/a3"}


@pytest.mark.parametrize("generation", ["store", "dataset", "repository"])
def test_nothing_is_collected_while_it_is_copied(generation: str) -> None:
    """Whatever others do between any two steps, the copy is what there was at the beginning."""
    source = ClockedStorage(icefloe.in_memory_storage())
    repo = make(source, {})
    session = repo.writable_session("main")
    session.tree.set_chunk("/b", (0,), b"this is long enough for a pack")
    session.commit("two")
    repo.create_branch("dev", "main~1")
    expected = shown(source)
    source.wait(timedelta(days=10))
    others = Repository.open(source)
    collected = []

    def interfere(stage: str, done: int, total: int) -> None:
        del stage, done, total
        others.expire_snapshots(keep_last=1)
        if "dev" in others.list_branches():
            others.delete_branch("dev")
        collected.append(others.garbage_collect(timedelta(days=1)))

    target = icefloe.in_memory_storage()
    report = repo.migrate(target, generation=generation, progress=interfere)
    assert report.problems == ()
    copy = shown(target)
    assert copy["branches"] == expected["branches"]
    assert {summary.snapshots_deleted for summary in collected} == {0}
    assert {summary.chunks_deleted for summary in collected} == {0}
    assert {summary.leases for summary in collected} == {1}
    assert list(source.list("maintenance/leases/")) == []
    assert others.garbage_collect(timedelta(days=1)).leases == 0


@pytest.mark.parametrize("place", ["memory", "local"])
@pytest.mark.parametrize("doomed", ["source", "target"])
def test_either_of_the_two_may_collect_what_the_other_needs(
    tmp_path: Path, place: str, doomed: str
) -> None:
    """Files that both have are the bytes of one name each, whoever lets go of them."""

    def new(name: str) -> ClockedStorage:
        if place == "memory":
            return ClockedStorage(icefloe.in_memory_storage())
        return ClockedStorage(icefloe.local_filesystem_storage(tmp_path / name))

    storages = {"source": new("source"), "target": new("target")}
    repo = make(storages["source"], {})
    session = repo.writable_session("main")
    session.tree.set_chunk("/b", (0,), b"this is long enough for a pack")
    session.commit("two")
    report = repo.migrate(storages["target"], generation="dataset")
    assert set(report.copied) == {"linked"}
    (kept,) = storages.keys() - {doomed}
    expected = shown(storages[kept])
    loser = Repository.open(storages[doomed])
    session = loser.writable_session("main")
    for path in ("/b", "/g"):
        session.tree.delete_node(path)
    session.commit("all is gone")
    session = loser.writable_session("main")
    session.tree.set_document("/", ODD_DOCUMENTS[0])
    session.commit("and this too")
    loser.expire_snapshots(keep_last=1, tags={"*": icefloe.ExpirationPolicy(keep_last=1)})
    storages[doomed].wait(timedelta(days=10))
    assert loser.garbage_collect(timedelta(days=1)).chunks_deleted >= 1
    assert shown(storages[kept]) == expected
    other = Repository.open(storages[kept])
    storages[kept].wait(timedelta(days=10))
    assert other.garbage_collect(timedelta(days=1)).chunks_deleted == 0
    assert other.verify(deep=True).is_clean
    assert shown(storages[kept]) == expected


class ReadOnly(ForwardingStorage):
    """A storage whose owner lets others only read."""

    def put(self, key: str, data: Any, attributes: Any = None) -> None:
        raise StoragePermissionError(f"{key} may not be written")


def test_what_may_only_be_read_is_migrated_without_a_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = icefloe.in_memory_storage()
    prepare(storage, FORMATS["columns"])
    target = icefloe.in_memory_storage()
    report = Repository.open(ReadOnly(storage)).migrate(target, generation="store")
    assert report.problems == ()
    assert "without a lease" in caplog.text
    assert shown(target) == shown(storage)


def test_ids_of_sixteen_bytes_become_ids_of_twelve() -> None:
    from tests.unit.formats.test_store_files import foreign_store

    source, target = foreign_store(parents=0), icefloe.in_memory_storage()
    report = Repository.open(source).migrate(target, generation="repository")
    assert report.problems == ()
    reader = Repository.open(target).readonly_session("main")
    assert reader.get_chunk("/a", (0,)) == b"abc"
    assert len(reader.snapshot_id) == 20


GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"


@pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"the reference repositories are not at {GOLDEN}")
@pytest.mark.parametrize("name", ["gen3-bare-msgpack", "gen3-header39"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_reference_repositories(name: str, generation: str) -> None:
    source = icefloe.local_filesystem_storage(str(GOLDEN / name))
    target = icefloe.in_memory_storage()
    report = Repository.open(source).migrate(target, generation=generation)
    assert report.problems == ()
    assert report.snapshots >= 6
    assert set(report.copied) == {"transferred"}
    old, new = shown(source), shown(target)
    assert new["branches"].keys() == old["branches"].keys()
    for branch in old["branches"]:
        assert new["branches"][branch] == old["branches"][branch]
    assert new["tags"] == old["tags"]


@pytest.mark.endpoint
def test_a_store_copies_by_itself(s3_endpoint: Any) -> None:
    source = s3_endpoint.storage()
    make(source, {})
    target = s3_endpoint.storage()
    report = Repository.open(source).migrate(target, generation="dataset")
    assert set(report.copied) == {"server-side"}
    assert picture(target)["main"] == picture(source)["main"]


def test_links_and_copies(tmp_path: Path) -> None:
    one = icefloe.local_filesystem_storage(tmp_path / "one")
    two = icefloe.local_filesystem_storage(tmp_path / "two")
    memory = icefloe.in_memory_storage()
    one.put("a/b", b"bytes")
    assert copy_object(one, "a/b", two, "c") == "linked"
    assert copy_object(one, "a/b", FaultyStorage(two), "d") == "linked"
    assert copy_object(one, "a/b", memory, "e") == "transferred"
    assert copy_object(memory, "e", memory, "f") == "linked"
    one.delete_many(["a/b"])
    assert two.get("c") == two.get("d") == memory.get("f") == b"bytes"
    with pytest.raises(icefloe.StorageError):
        copy_object(one, "a/b", two, "g")


@pytest.mark.parametrize("copy_to", [None, "store", "icechunk"])
@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_a_commit_whose_parent_expired_is_not_undone_with_all_before_it(
    name: str, copy_to: str | None
) -> None:
    repository = Repository.create(icefloe.in_memory_storage(), **EVERY_FORMAT[name])
    make_tree(repository)
    commit_edit(repository, lambda session: session.tree.set_chunk("/b", (1,), b"3"))
    oldest = commit_edit(repository, lambda session: session.tree.set_chunk("/b", (2,), b"4"))
    repository.create_branch("work", oldest)
    repository.expire_snapshots(keep_last=1)
    repository.garbage_collect(timedelta(0))
    if copy_to is not None:
        place = icefloe.in_memory_storage()
        repository.migrate(place, generation=copy_to)
        repository = Repository.open(place)
        oldest = repository.lookup_branch("main")

    def chunks() -> list[dict[int, bytes]]:
        sessions = [repository.readonly_session(branch) for branch in ("main", "work")]
        return [chunks_of(each, path) for each in sessions for path in ("/g/a", "/b")]

    before = chunks()
    for apply, branch in ((repository.revert, "main"), (repository.cherry_pick, "work")):
        with pytest.raises(SnapshotNotFoundError, match=f"what {oldest} changed is not known"):
            apply(oldest, branch=branch)
    newest = commit_edit(repository, lambda session: session.tree.set_chunk("/b", (0,), b"0"))
    repository.revert(newest, branch="main")
    assert chunks() == before
