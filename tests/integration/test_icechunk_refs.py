"""References of the generation `icechunk`, and what version 2 says of itself."""

from __future__ import annotations

import ast
import copy
import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    AlreadyExistsError,
    ConflictDetector,
    ConflictError,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepoStatus,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    UpdateType,
)
from icefloe.formats.icechunk import flexbuffers
from icefloe.formats.icechunk.repo_document import RepoDocument
from icefloe.model.ids import SnapshotId
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.faults import Fault, FaultyStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.session import Session
    from icefloe.storage.port import Storage

BOTH = pytest.mark.parametrize("version", [1, 2])


def make(version: int, storage: Storage | None = None, **settings: Any) -> Repository:
    place = icefloe.in_memory_storage() if storage is None else storage
    config = RepositoryConfig(**settings) if settings else None
    repo = Repository.create(place, config, generation="icechunk", spec_version=version)
    with repo.transaction("main", message="an array") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="u1")
    return repo


def fill(repo: Repository, value: int, branch: str = "main", place: int = 0) -> str:
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a")[place] = value
    return session.commit(str(value))


def document(repo: Repository) -> RepoDocument:
    return RepoDocument.parse(repo.storage.get("repo"))


def kinds(repo: Repository) -> list[str]:
    return [type(update.kind).__name__ for update in repo.ops_log()]


# --- version 1


def test_a_branch_of_version_1_is_one_file_that_is_replaced() -> None:
    repo = make(1)
    key = "refs/branch.main/ref.json"
    tip = fill(repo, 1)
    assert json.loads(repo.storage.get(key)) == {"snapshot": tip}
    repo.create_branch("dev", tip)
    repo.delete_branch("dev")
    assert repo.list_branches() == {"main"}
    repo.create_branch("dev", tip)  # the name of a branch can be given again
    assert [tip.snapshot_id for tip in repo._context.refs.reflog("dev")]


@pytest.mark.parametrize(
    "content",
    ['{ "other": [1], "snapshot" : "%s" }\n', '{"snapshot":"%s","icefloe_collections":7}'],
)
def test_references_of_other_writers_may_look_otherwise(content: str) -> None:
    repo = make(1)
    tip = repo.lookup_branch("main")
    repo.storage.delete_many(["refs/branch.main/ref.json"])
    repo.storage.put("refs/branch.main/ref.json", (content % tip.lower()).encode())
    assert repo.lookup_branch("main") == tip
    fill(repo, 1)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"snapshot":null}', b'{"snapshot":"1"}', b"\xff"]
)
def test_a_damaged_reference_is_named(content: bytes) -> None:
    repo = make(1)
    repo.storage.delete_many(["refs/branch.main/ref.json"])
    repo.storage.put("refs/branch.main/ref.json", content)
    with pytest.raises(FormatError, match="restored by hand") as caught:
        Repository.open(repo.storage)
    assert caught.value.key == "refs/branch.main/ref.json"


def test_names_that_some_official_storages_encode_are_read_and_not_given() -> None:
    # F8-05
    repo = make(1)
    tip = repo.lookup_branch("main")
    for folder in (
        "tag.v%231",
        "tag.caf%C3%A9",
        "tag.50%",
        "tag.x%FF",
        "branch.a~b",
        "branch.c%7Ed",
    ):
        repo.storage.put(f"refs/{folder}/ref.json", json.dumps({"snapshot": tip}).encode())
    assert repo.list_tags() == {"v#1", "café", "50%", "x%FF"}
    assert {repo.lookup_tag(tag) for tag in repo.list_tags()} == {tip}
    assert repo.list_branches() == {"main", "a~b", "c~d"}
    assert repo.lookup_branch("c~d") == tip
    for name in ("v#2", "über", "a*", "x|y", "~t"):
        with pytest.raises(InvalidInputError, match="official readers do not list"):
            repo.create_tag(name, tip)
    repo.create_tag("v1.2 (final); a+b=c, @home & 'more'!", tip)


def test_version_1_has_no_moves_and_says_nothing_of_itself() -> None:
    repo = make(1)
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="version 1 of the icechunk format"):
        session.move("/a", "/b")
    for ask in (repo.get_status, repo.get_metadata, repo.ops_log, repo.feature_flags):
        with pytest.raises(InvalidInputError, match="version 2 of 'icechunk' has"):
            ask()
    old = Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="generation 'repository'"):
        old.set_metadata({})


# --- both versions


@BOTH
def test_branches_whose_names_differ_in_case(version: int) -> None:
    """Version 1 has a folder for each, which a file system may mix up; version 2 has a list."""
    repo = make(version)
    tip = repo.lookup_branch("main")
    repo.create_branch("dev", tip)
    if version == 1:
        with pytest.raises(AlreadyExistsError, match="only in case"):
            repo.create_branch("Dev", tip)
        repo.delete_branch("dev")  # and nothing is left of it
    repo.create_branch("Dev", tip)
    assert repo.list_branches() == {"main", "Dev"} | ({"dev"} if version == 2 else set())


@BOTH
def test_a_deleted_tag_uses_up_its_name(version: int) -> None:
    repo = make(version)
    tip = repo.lookup_branch("main")
    repo.create_tag("v1", tip)
    repo.delete_tag("v1")
    assert repo.list_tags() == set()
    with pytest.raises(RefNotFoundError):
        repo.lookup_tag("v1")
    with pytest.raises(RefNotFoundError):
        repo.delete_tag("v1")
    with pytest.raises(AlreadyExistsError, match="or did once"):
        repo.create_tag("v1", tip)


@BOTH
def test_commits_that_race_are_all_there(version: int) -> None:
    repo = make(version)
    others = [Repository.open(repo.storage) for _ in range(4)]

    def commit(number: int) -> None:
        session = others[number].writable_session("main")
        zarr.open_array(session.store, path="a")[number] = number + 1
        session.commit(f"by {number}", rebase_with=ConflictDetector())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(commit, range(4)))
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[:].tolist() == [1, 2, 3, 4]
    assert len(list(repo.ancestry(branch="main"))) == 6


@BOTH
def test_a_collection_announces_itself_to_commits_under_way(version: int) -> None:
    repo = make(version, ClockedStorage(icefloe.in_memory_storage()))
    before = repo._context.refs.tip("main")
    assert before is not None
    assert repo._context.refs.repeat([before]) == set()  # type: ignore[list-item]
    after = repo._context.refs.tip("main")
    assert after is not None
    assert (after.snapshot_id, after.sequence > before.sequence) == (before.snapshot_id, True)
    assert before.snapshot_id is not None
    with pytest.raises(ConflictError):
        repo._context.refs.advance(before, before.snapshot_id)
    assert repo._context.refs.repeat([before]) == {"main"}  # type: ignore[list-item]
    fill(repo, 1)  # from the new state


@BOTH
def test_what_expires_is_released_by_the_official_rules(version: int) -> None:
    storage = ClockedStorage(icefloe.in_memory_storage())
    repo = make(version, storage)
    commits = [fill(repo, value, place=value % 4) for value in range(1, 6)]
    repo.create_tag("early", commits[0])
    repo.expire_snapshots(keep_last=2)
    shown = [info.id for info in repo.ancestry(branch="main")]
    assert shown[:2] == [commits[4], commits[3]]
    assert len(shown) == 3
    assert next(iter(repo.ancestry(tag="early"))).message == "1"
    storage.wait(timedelta(days=2))
    summary = repo.garbage_collect(timedelta(hours=1))
    assert summary.snapshots_deleted == 2
    fresh = Repository.open(storage)
    assert fresh.verify(deep=True).is_clean
    diff = fresh.diff(from_snapshot_id=shown[-1], to_branch="main")
    assert diff.new_arrays == {"/a"}
    assert sorted(map(tuple, diff.updated_chunks["/a"])) == [(0,), (1,), (2,), (3,)]
    if version == 2:
        listed = document(fresh).snapshots
        row = listed.find(SnapshotId.parse(commits[3]))
        assert row is not None
        pruned = [str(each) for each in listed.pruned_ids(row)]
        assert pruned[-3:] == commits[:3]
        logs = {info.key.partition("/")[2] for info in storage.list("transactions/")}
        assert set(pruned) <= logs  # though two of the snapshots are gone
        assert "ExpirationRan" in kinds(fresh)
        assert "GCRan" in kinds(fresh)
    fill(fresh, 9)


@BOTH
def test_a_commit_that_deleted_all_nodes_stays_clean_when_its_parents_expire(version: int) -> None:
    """Its log lists deletions, and expiry gives it the empty first snapshot as its parent."""
    repo = make(version)
    repo.revert(repo.lookup_branch("main"), branch="main")
    repo.expire_snapshots(keep_last=1)
    report = repo.verify()
    assert report.is_clean, report
    first, tip = repo.lookup_branch("main~1"), repo.lookup_branch("main")
    assert repo.diff(from_snapshot_id=first, to_snapshot_id=tip).is_empty()


@BOTH
def test_histories_that_another_process_expired_are_read_anew(version: int) -> None:
    storage = ClockedStorage(icefloe.in_memory_storage())
    repo = make(version, storage)
    for value in range(1, 5):
        fill(repo, value)
    # Shares no caches, like another process.
    other = Repository.open(ForwardingStorage(storage))
    other.readonly_session("main")  # which remembers the parent of its snapshot
    repo.expire_snapshots(keep_last=1)
    storage.wait(timedelta(days=2))
    assert repo.garbage_collect(timedelta(hours=1)).snapshots_deleted == 4
    messages = [info.message for info in other.ancestry(branch="main")]
    assert messages == ["4", "Repository initialized"]


# --- version 2


def test_every_update_backs_up_the_file_and_is_logged() -> None:
    repo = make(2)
    tip = repo.lookup_branch("main")
    before = repo.storage.get("repo")
    repo.create_branch("dev", tip)
    update = next(repo.ops_log())
    assert update.kind == UpdateType.BranchCreated("dev")
    assert update.backup_path is None
    older = list(repo.ops_log())[1]
    assert older.backup_path is not None
    assert repo.storage.get(f"overwritten/{older.backup_path}") == before
    session = repo.writable_session("main")
    session.move("/a", "/b")
    moved = session.commit("moved")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b")[0] = 1
    amended = session.amend("amended")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b")[0] = 2
    detached = session.flush("kept aside")
    repo.reset_branch("dev", amended)
    repo.delete_branch("dev")
    assert [update.kind for update in repo.ops_log()][:5] == [
        UpdateType.BranchDeleted("dev", amended),
        UpdateType.BranchReset("dev", tip),
        UpdateType.NewDetachedSnapshot(detached),
        UpdateType.CommitAmended("main", moved, amended),
        UpdateType.NewCommit("main", moved),
    ]
    assert repo.lookup_snapshot(detached).parent_id == amended
    assert repo.lookup_snapshot(amended).parent_id == tip
    times = [update.updated_at for update in repo.ops_log()]
    assert times == sorted(set(times), reverse=True)


def test_the_log_goes_on_in_backups() -> None:
    # F8-06, F8-12
    repo = make(2)
    tree = flexbuffers.encode({"num_updates_per_repo_info_file": 3})
    repo._context.refs.set_config(lambda _: tree)  # type: ignore[attr-defined]
    expected = ["NewCommit"] * 8 + ["ConfigChanged", "NewCommit", "RepoInitialized"]
    for value in range(8):
        fill(repo, value)
    assert len(document(repo).updates) == 3
    assert kinds(repo) == expected
    states = [tip.snapshot_id for tip in repo._context.refs.reflog("main")]
    history = [info.id for info in repo.ancestry(branch="main")]
    assert list(map(str, states)) == history[:-1]
    assert document(repo).config == tree  # as it was, on every update
    name = document(repo).before_updates
    repo.storage.delete_many([f"overwritten/{name}"])
    assert kinds(repo) == expected[:3]  # and no error


def test_status_flags_and_metadata_are_kept_and_obeyed() -> None:
    # F8-06
    repo = make(2)
    tip = repo.lookup_branch("main")
    repo.set_metadata({"owner": "ocean group", "n": [1, None, {"k": 0.5}]})
    assert repo.update_metadata({"n": 2}) == {"owner": "ocean group", "n": 2}
    repo.set_feature_flag("create_tag", False)
    with pytest.raises(InvalidInputError, match="'create_tag' is off"):
        repo.create_tag("v1", tip)
    repo.set_feature_flag("move_node", False)
    with pytest.raises(InvalidInputError, match="'move_node' is off"):
        repo.writable_session("main").move("/a", "/b")
    assert [flag.name for flag in repo.disabled_feature_flags()] == ["move_node", "create_tag"]
    repo.set_feature_flag("create_tag", None)
    assert [flag.name for flag in repo.enabled_feature_flags()] == ["create_tag", "delete_tag"]
    with pytest.raises(InvalidInputError, match="feature flags are"):
        repo.set_feature_flag("other", True)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 1
    repo.set_status(RepoStatus(RepoAvailability.read_only, None, "moving house"))
    for act in (
        lambda: repo.writable_session("main"),
        lambda: session.commit("too late"),
        lambda: repo.create_branch("dev", tip),
        lambda: repo.set_metadata({}),
    ):
        with pytest.raises(ReadOnlyError, match="moving house"):
            act()
    assert repo.status.limited_availability_reason == "moving house"
    assert repo.status.set_at is not None
    repo.set_status(RepoStatus())
    session.commit("in time")
    assert Repository.open(repo.storage).metadata == {"owner": "ocean group", "n": 2}


def test_an_update_whose_answer_was_lost_is_not_made_twice() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = make(2, storage)
    tip = repo.lookup_branch("main")
    other = Repository.open(storage.inner)

    inner = storage.inner
    replace = inner.replace
    calls: list[str] = []

    def lose(key: str, data: Any, expected: Any) -> Any:
        version = replace(key, data, expected)
        if key == "repo" and not calls:
            calls.append(key)
            other.create_branch("theirs", tip)
            raise ConflictError("the answer was lost, and others went on")
        return version

    inner.replace = lose  # type: ignore[method-assign]
    repo.create_tag("ours", tip)
    inner.replace = replace  # type: ignore[method-assign]
    assert repo.list_tags() == {"ours"}
    assert kinds(repo)[:2] == ["BranchCreated", "TagCreated"]


def test_a_commit_on_a_branch_that_was_reset_away_and_back_is_a_conflict() -> None:
    repo = make(2)
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 1
    repo.reset_branch("main", "main~1")
    repo.reset_branch("main", tip)
    with pytest.raises(ConflictError):
        session.commit("based on another state")


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_commit_notices_moves_that_only_backups_tell_of(is_collected: bool) -> None:
    """The log in the file may be short, and other branches have moved since."""
    repo = make(2, inline_chunk_threshold_bytes=0)
    refs: Any = repo._context.refs
    refs.set_config(lambda _: flexbuffers.encode({"num_updates_per_repo_info_file": 1}))
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 1
    session.tree.settle_pending()
    if is_collected:  # G7
        refs.repeat([refs.tip("main")])
        (chunk, *_) = repo.storage.list("chunks/")
        repo.storage.delete_many([chunk.key])
    else:
        repo.reset_branch("main", "main~1")
        repo.reset_branch("main", tip)
    repo.create_branch("other", tip)
    with pytest.raises(SessionStateError if is_collected else ConflictError):
        session.commit("based on another state")


def test_a_short_log_is_no_conflict() -> None:
    repo = make(2)
    refs: Any = repo._context.refs
    refs.set_config(lambda _: flexbuffers.encode({"num_updates_per_repo_info_file": 1}))
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 1
    for number in range(3):
        repo.create_branch(f"other{number}", "main")
    backups = [info.key for info in repo.storage.list("overwritten/")]
    session.commit("on top")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 2
    repo.create_branch("last", "main")
    repo.storage.delete_many(backups)  # somebody tidied up: what happened is not known
    session.commit("on top again")


def test_a_log_of_the_end_of_time_is_damaged() -> None:
    repo = make(2)
    found = document(repo)
    times = np.full(len(found.updates), 2**64 - 1, dtype=np.uint64)
    updates = msgspec.structs.replace(found.updates, updated_at=times)
    repo.storage.put("repo", msgspec.structs.replace(found, updates=updates).encode(1))
    repo = Repository.open(repo.storage)
    assert len(list(repo.ops_log())) == 1  # the others are as new
    with pytest.raises(FormatError, match="no time is later"):
        repo.create_branch("dev", "main")


def test_settings_of_ours_are_kept_beside_those_of_the_official_package() -> None:
    for version in (1, 2):
        repo = make(version, chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=9))
        repo = Repository.open(repo.storage, RepositoryConfig(inline_chunk_threshold_bytes=7))
        repo.save_config()
        found = Repository.open(repo.storage).config
        assert found.chunk_packing == icefloe.ChunkPackingConfig(max_chunk_bytes=9)
        assert found.inline_chunk_threshold_bytes == 7


def test_settings_that_only_the_official_package_knows_stay() -> None:
    repo = make(2)
    refs: Any = repo._context.refs
    tree = {
        "max_concurrent_decodes": 3,
        "storage": {"unsafe_use_conditional_update": False, "storage_class": "GLACIER"},
        "manifest": {"virtual_chunk_location_compression": {"min_num_chunks": 5}},
        "virtual_chunk_containers": {
            "s3://b/": {
                "name": None,
                "url_prefix": "s3://b/",
                "store": {"s3": {"region": "x", "checksum_algorithm": "Crc32"}},
            }
        },
    }
    refs.set_config(lambda _: flexbuffers.encode(tree))
    repo = Repository.open(repo.storage, RepositoryConfig(inline_chunk_threshold_bytes=7))
    assert repo.config.storage is not None
    assert repo.config.storage.storage_class == "GLACIER"
    assert repo.config.storage.unsafe_use_conditional_update is None
    repo.save_config()
    config = document(repo).config
    assert config is not None
    saved = flexbuffers.decode(config, "it")
    assert saved["max_concurrent_decodes"] == 3
    assert saved["manifest"] == tree["manifest"]
    assert saved["storage"] == tree["storage"]
    assert saved["inline_chunk_threshold_bytes"] == 7


def test_who_writes_beside_a_package_without_locks_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repo = make(2, icefloe.local_filesystem_storage(str(tmp_path)))
    with caplog.at_level(logging.WARNING):
        fill(repo, 1)
    assert caplog.records == []
    tip = repo.lookup_branch("main")
    path = tmp_path / "snapshots" / tip
    data = path.read_bytes()
    path.write_bytes(data[:12] + b"ic-2.3.0".ljust(24) + data[36:])
    for _ in range(2):
        repo.writable_session("main")
    [record] = caplog.records
    assert "ic-2.3.0, which takes no locks" in record.getMessage()


def test_a_copy_that_fails_leaves_the_file_as_it_was() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = make(2, storage)
    before = storage.inner.get("repo")
    storage.inject(Fault.ERROR, verb="put", key="overwritten/")
    with pytest.raises(StorageError):
        fill(repo, 1)
    assert storage.inner.get("repo") == before
    fill(repo, 1)


def test_commits_have_no_text_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are written by several threads, and Python 3.11 cannot parse in two at a time."""
    repo = Repository.create(icefloe.in_memory_storage(), generation="icechunk")
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(8, 8), chunks=(2, 2), dtype="i4")
    array[:] = 7

    def refuse(*_: object, **__: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=54, after=52)")

    monkeypatch.setattr(ast, "literal_eval", refuse)
    session.commit("values")
    assert (zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:] == 7).all()


# --- moves


@pytest.mark.parametrize("ending", ["squash", "amend"])
def test_a_commit_in_place_of_several_moves_says_where_nodes_came_from(ending: str) -> None:
    # Official logs have the net effect; the first of two moves was lost.
    repo = make(2)
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="g/sub")
    zarr.create_array(session.store, name="g/sub/b", shape=(2,), chunks=(1,), dtype="u1")
    base = session.commit("start")

    def move(session: Session, *moves: tuple[str, str]) -> Session:
        for source, target in moves:
            session.move(source, target)
        return session

    first = [("/a", "/once"), ("/g", "/h")]
    second = [("/once", "/twice"), ("/h/sub/b", "/b")]
    move(repo.writable_session("main"), *first).commit("first")
    session = move(repo.writable_session("main"), *second)
    if ending == "amend":
        session.amend("both")
    else:
        session.commit("second")
        repo.squash("main", base, message="both")
    moved = {("/a", "/twice"), ("/g", "/h"), ("/g/sub", "/h/sub"), ("/g/sub/b", "/b")}
    opened = Repository.open(repo.storage)
    log = opened.inspect_transaction_log(opened.lookup_branch("main"))
    told = {(each["from"], each["to"]) for each in json.loads(log)["moved"]}
    assert told == moved - {("/g/sub", "/h/sub")}
    assert set(opened.diff(from_snapshot_id=base, to_branch="main").moved_nodes) >= told
    assert opened.verify(deep=True).is_clean


# --- histories


def test_a_history_of_version_2_takes_one_request() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    make(2, storage)
    for value in range(20):
        fill(Repository.open(storage), value)
    repo = Repository.open(storage)
    storage.trace.clear()
    infos = list(repo.ancestry(branch="main"))
    assert len(infos) == 22
    assert [repr(info) for info in infos]
    assert [info._repr_html_() for info in infos]
    assert repo.ancestry(branch="main")._repr_html_().count("<tr>") > 10
    assert storage.trace == [("get", "repo")] * 2
    storage.trace.clear()
    assert infos[3].manifests == repo.list_manifest_files(infos[3].id)
    assert infos[3].manifests
    keys = {key for _, key in storage.trace}
    assert keys == {"repo", f"snapshots/{infos[3].id}"}


@BOTH
def test_commits_of_a_history_are_values(version: int) -> None:
    repo = make(version)
    tip = fill(repo, 1)
    repo.writable_session("main").amend(
        "with metadata", metadata={"a": [1, None], "b": {}}, allow_empty=True
    )
    fill(repo, 2)
    infos = list(repo.ancestry(branch="main"))
    again = list(Repository.open(repo.storage).ancestry(branch="main"))
    assert again == infos == [repo.lookup_snapshot(info.id) for info in infos]
    assert infos[0] != infos[1]
    assert infos[0] != infos[0].id
    others = list(Repository.open(repo.storage).ancestry(branch="main"))
    for other in (
        copy.copy(others[1]),
        copy.deepcopy(others[1]),
        pickle.loads(pickle.dumps(others[1])),
    ):
        assert other == infos[1]
        assert (other.metadata, other.manifests) == ({"a": [1, None], "b": {}}, infos[1].manifests)
        assert repr(other) == repr(infos[1])
    with pytest.raises(TypeError, match="unhashable"):
        hash(infos[0])
    others[1].message = "another"
    assert others[1] != infos[1]
    assert tip not in {info.id for info in infos}


def test_histories_end_where_another_process_expired_them() -> None:
    repo = make(2)
    tips = [fill(repo, value) for value in range(4)]
    list(repo.ancestry(branch="main"))
    gone = list(repo.ancestry(snapshot_id=tips[-1]))[2]
    other = Repository.open(repo.storage)
    other.expire_snapshots(keep_last=2)
    other.garbage_collect(timedelta(0))
    for revision in ({"snapshot_id": tips[-1]}, {"branch": "main"}):
        messages = [info.message for info in repo.ancestry(**revision)]
        assert messages == ["3", "2", "Repository initialized"]
    assert gone.message == "1"
    with pytest.raises(SnapshotNotFoundError):
        Repository.open(repo.storage).ancestry(snapshot_id=gone.id)


LATE_USES: dict[str, Callable[[Repository], object]] = {
    "garbage_collect": lambda repo: repo.garbage_collect(timedelta(0)).bytes_deleted,
    "chunk_storage_stats": lambda repo: repo.chunk_storage_stats(),
    "branch_storage_stats": lambda repo: repo.branch_storage_stats(),
    "verify": lambda repo: repo.verify().problems,
    "lookup_snapshot": lambda repo: repo.lookup_snapshot(repo.lookup_branch("main")).parent_id,
}


@BOTH
@pytest.mark.parametrize("use", LATE_USES)
def test_an_open_repository_finds_out_that_others_expired_and_collected(
    version: int, use: str
) -> None:
    repo = make(version)
    for number in range(3):
        with repo.transaction("main", message=str(number)) as store:
            zarr.open_array(store, path="a")[number] = 1
    list(repo.ancestry(branch="main"))
    other = Repository.open(repo.storage)
    other.expire_snapshots(other.lookup_snapshot(other.lookup_branch("main")).written_at)
    other.garbage_collect(timedelta(0))
    assert LATE_USES[use](repo) == LATE_USES[use](Repository.open(repo.storage))


def test_the_parent_of_a_snapshot_is_the_one_that_expiry_elsewhere_gave_it() -> None:
    repo = make(2)
    with repo.transaction("main", message="another") as store:
        zarr.open_array(store, path="a")[0] = 1
    tip = repo.lookup_branch("main")
    other = Repository.open(repo.storage)
    other.expire_snapshots(other.lookup_snapshot(tip).written_at)
    assert repo.lookup_snapshot(tip).parent_id == other.lookup_snapshot(tip).parent_id
