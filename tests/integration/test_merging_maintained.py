"""Branches are merged although their chunks were compacted and their common history expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import ExpirationPolicy, MergeSolver, Repository
from icefloe.errors import RebaseFailedError, SnapshotNotFoundError
from icefloe.storage.forwarding import ForwardingStorage
from tests.builders import commit_edit, new_repository
from tests.documents import array, group, set_chunks
from tests.formats import ALL_GENERATIONS
from tests.integration.maintained import DAY, HOUR, NATIVE, PACKED, fill, make, values, wait
from tests.integration.test_merging_again import contents, do, lasting_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session

pytestmark = pytest.mark.usefixtures("each_generation")


def commit(repo: Repository, branch: str, edit: Callable[[Session], object]) -> str:
    return commit_edit(repo, edit, branch)


# --- compaction


def compactable(config: icefloe.RepositoryConfig = NATIVE) -> Repository:
    repo = make(config)
    fill(repo, 1)
    fill(repo, 2, chunks=slice(0, 2))
    repo.create_branch("other", repo.lookup_branch("main"))
    return repo


@pytest.fixture(params=[True, False], ids=["checksums", "no checksums"])
def checksums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Chunks with checksums, and those of others, which have none."""
    if not request.param:
        monkeypatch.setattr("icefloe.objects.checksums.IS_QUICK", False)
    return request.param


@pytest.mark.usefixtures("checksums")
@pytest.mark.parametrize("compacted", [("main",), ("other",), ("main", "other")], ids="+".join)
@pytest.mark.parametrize("back", [False, True])
def test_chunks_that_moved_are_no_conflict(compacted: tuple[str, ...], back: bool) -> None:
    repo = compactable(PACKED if back else NATIVE)
    for turn in range(1, 4):
        # Everything is written again later, on either side, after it moved on the other.
        for number, branch in enumerate(("other", "main")):
            place = (2 * turn + number) % 4
            fill(repo, 10 * turn + number, branch, slice(place, place + 1))
        for branch in compacted:
            repo.compact(branch=branch)
        repo.merge("other", "main")
        if back:
            repo.merge("main", "other")
            assert values(repo, branch="other") == values(repo, branch="main")
    assert values(repo, branch="main") == [20, 21, 30, 31]
    assert repo.verify(deep=True).is_clean


def test_a_merge_tells_only_of_what_changed() -> None:
    repo = compactable()
    for turn in range(2):
        fill(repo, 10 + turn, "other", slice(turn, turn + 1))
        fill(repo, 20 + turn, "main", slice(3 - turn, 4 - turn))
        repo.compact(branch="main")
        repo.compact(branch="other")
        repo.merge("other", "main")
        diff = repo.diff(from_branch="main~1", to_branch="main")
        assert diff.updated_chunks == {"/a": [[turn]]}
    repo.merge("main", "other")
    diff = repo.diff(from_branch="other~1", to_branch="other")
    assert diff.updated_chunks == {"/a": [[2], [3]]}


@pytest.mark.usefixtures("checksums")
def test_chunks_that_changed_are_conflicts_wherever_they_are() -> None:
    repo = compactable()
    for turn, (mine, other) in enumerate([(5, 6), (7, 7)]):
        fill(repo, mine, "other", slice(1, 2))
        fill(repo, other, "main", slice(1, 2))
        repo.compact(branch="main")
        if mine == other:
            repo.merge("other", "main")  # both wrote the same bytes
            continue
        with pytest.raises(RebaseFailedError, match="ChunkDoubleUpdate") as caught:
            repo.merge("other", "main")
        assert [c.conflicted_chunks for c in caught.value.conflicts] == [[[1]]]
        choice = MergeSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs)
        repo.merge("other", "main", solver=choice)
        assert values(repo, branch="main") == [2, 6, 1, 1], turn
    assert values(repo, branch="main") == [2, 7, 1, 1]


@pytest.mark.usefixtures("checksums")
@pytest.mark.parametrize("deleting", ["main", "other"])
def test_an_array_that_was_deleted_here_and_compacted_there(deleting: str) -> None:
    repo = compactable()
    fill(repo, 7, "other", slice(3, 4))
    repo.merge("other", "main", fast_forward=False)  # from now on neither descends from the base
    moving = "main" if deleting == "other" else "other"
    repo.merge("main", "other", fast_forward=False)
    repo.compact(branch=moving)
    commit(repo, deleting, lambda session: session.tree.delete_node("/a"))
    commit(repo, moving, lambda session: session.tree.set_document("/b", group()))
    repo.merge("other", "main")
    assert list(repo.readonly_session("main").tree.node_paths("/")) == ["/b"]


def start(session: Session) -> None:
    session.tree.set_document("/", group())
    for path in ("/a", "/b"):
        session.tree.set_document(path, array())
        set_chunks(session, path, range(4), b"\xff")


@settings(max_examples=settings().max_examples // 3)
@given(work=st.lists(lasting_steps, min_size=4, max_size=12), data=st.data())
def test_compaction_makes_no_difference(work: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """Whatever is done on three branches, and merged from one to another.

    But for picks and reverts: they depend on what the last commit is, and a compaction is one.
    """
    branches = ("main", "work", "third")
    moved = [data.draw(st.sets(st.sampled_from(branches))) for _ in work]
    outcomes = []
    for is_compacted in (False, True):
        repo = new_repository(config=NATIVE)
        commit(repo, "main", start)
        for branch in branches[1:]:
            repo.create_branch(branch, repo.lookup_branch("main"))
        told = []
        for number, step in enumerate(work):
            told.append(do(repo, number, step))
            for branch in sorted(moved[number]) if is_compacted else ():
                repo.compact(branch=branch, small_file_bytes=100, min_live_share=1)
        outcomes.append((told, [contents(repo, branch) for branch in branches]))
    assert repo.verify(deep=True).is_clean
    assert outcomes[0] == outcomes[1]


# --- expiry


def parted() -> Repository:
    """Two branches, of which one deleted an array that both had, and an attribute."""
    repo = make()

    def create(session: Session) -> None:
        root = zarr.open_group(session.store)
        root.create_array("obsolete", data=np.arange(4))
        root.attrs.update({"title": "old", "gone": 1})

    commit(repo, "main", create)
    repo.create_branch("dev", repo.lookup_branch("main"))
    commit(repo, "main", lambda session: session.tree.delete_node("/obsolete"))
    commit(repo, "main", lambda session: session.tree.set_document("/", group(title="old")))
    fill(repo, 3, "main", slice(0, 1))
    fill(repo, 4, "dev", slice(1, 2))
    fill(repo, 5, "dev", slice(2, 3))
    return repo


def check_merged(repo: Repository) -> None:
    session = repo.readonly_session("main")
    assert list(session.tree.node_paths("/")) == ["/a"]
    assert dict(zarr.open_group(session.store, mode="r").attrs) == {"title": "old"}
    assert values(repo, branch="main") == [3, 4, 5, 0]
    assert repo.verify(deep=True).is_clean


def test_a_merge_starts_from_what_both_had_though_it_expired() -> None:
    repo = parted()
    base = repo.lookup_snapshot("dev~2").id
    repo.expire_snapshots(keep_last=1)
    assert base not in [info.id for info in repo.ancestry(branch="dev")]
    repo.merge("dev", "main")
    check_merged(repo)


def test_only_true_conflicts_are_reported_after_expiry() -> None:
    repo = parted()
    fill(repo, 6, "main", slice(1, 2))
    repo.expire_snapshots(keep_last=1)
    with pytest.raises(RebaseFailedError) as caught:
        repo.merge("dev", "main")
    assert [(c.path, c.conflicted_chunks) for c in caught.value.conflicts] == [("/a", [[1]])]
    assert "MergeSolver()" not in str(caught.value)


def test_what_was_merged_before_expiry_is_not_merged_again() -> None:
    repo = parted()
    repo.merge("dev", "main")
    fill(repo, 0, "main", slice(1, 2))
    fill(repo, 9, "dev", slice(3, 4))
    repo.expire_snapshots(keep_last=1)
    repo.merge("dev", "main")
    assert values(repo, branch="main") == [3, 0, 5, 9]


@pytest.mark.parametrize("is_kept", [False, True], ids=["gone", "kept by a tag"])
def test_a_merge_whose_start_was_collected_is_refused(is_kept: bool) -> None:
    repo = parted()
    base = repo.lookup_snapshot("dev~2").id
    if is_kept:
        repo.create_tag("parted", base)
    newest = {"main": ExpirationPolicy(keep_last=1), "dev": ExpirationPolicy(keep_last=2)}
    repo.expire_snapshots(branches=newest)
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).snapshots_deleted >= 2
    elsewhere = Repository.open(ForwardingStorage(repo.storage))  # shares no caches
    if is_kept:
        elsewhere.merge("dev", "main")
        check_merged(repo)
        return
    tips = {branch: repo.lookup_branch(branch) for branch in ("main", "dev")}
    for each in (repo, elsewhere):
        with pytest.raises(SnapshotNotFoundError, match=r"is gone, .* with cherry_pick"):
            each.merge("dev", "main")
    assert {branch: repo.lookup_branch(branch) for branch in tips} == tips
    repo.cherry_pick(tips["dev"], branch="main")
    assert values(repo, branch="main") == [3, 0, 5, 0]


@pytest.mark.parametrize("generation", ALL_GENERATIONS)
def test_what_expired_is_not_in_a_copy(generation: str) -> None:
    """There, the first snapshot looks like what both have in common."""
    repo = parted()
    repo.expire_snapshots(keep_last=1)
    storage = icefloe.in_memory_storage()
    repo.migrate(storage, generation=generation)
    copy = Repository.open(storage)
    with pytest.raises(SnapshotNotFoundError, match="expired and is gone"):
        copy.merge("dev", "main")
    fill(copy, 7, "dev", slice(3, 4))
    copy.cherry_pick(copy.lookup_branch("dev"), branch="main")
    assert values(copy, branch="main") == [3, 0, 0, 7]
    assert copy.verify(deep=True).is_clean


def test_what_other_programs_expire_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They let the oldest snapshot that stays follow the first one, and leave no mark."""
    repo = parted()
    repo.expire_snapshots(keep_last=1)
    storage = icefloe.in_memory_storage()
    monkeypatch.setattr("icefloe.engine.history.expired_parents.Cuts.add", lambda *_: None)
    repo.migrate(storage, generation="repository")
    with pytest.raises(SnapshotNotFoundError, match="expired and is gone"):
        Repository.open(storage).merge("dev", "main")


def test_branches_that_part_after_expiry_are_merged() -> None:
    repo = make()
    for value in range(1, 4):
        fill(repo, value)
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    repo.create_branch("dev", repo.lookup_branch("main"))
    fill(repo, 7, "dev", slice(0, 1))
    fill(repo, 8, "main", slice(1, 2))
    repo.merge("dev", "main")
    assert values(repo, branch="main") == [7, 8, 3, 3]
    # A merge is what they have in common from now on; what came before may go.
    fill(repo, 9, "dev", slice(2, 3))
    repo.expire_snapshots(branches={"main": ExpirationPolicy(keep_last=1), "dev": None})
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    Repository.open(ForwardingStorage(repo.storage)).merge("dev", "main")
    assert values(repo, branch="main") == [7, 8, 9, 3]


def test_branches_that_have_the_first_snapshot_in_common_only() -> None:
    repo = make()
    first = list(repo.ancestry(branch="main"))[-1].id
    repo.create_branch("dev", first)
    commit(repo, "dev", lambda session: session.tree.set_document("/n", group()))
    repo.merge("dev", "main")
    assert list(repo.readonly_session("main").tree.node_paths("/")) == ["/a", "/n"]


def test_branches_move_forward_after_expiry() -> None:
    repo = make()
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.create_branch("copy", repo.lookup_branch("main"))
    for value in range(1, 5):
        fill(repo, value, "dev")
    repo.expire_snapshots(keep_last=1)
    assert repo.merge("dev", "main") == repo.lookup_branch("dev")
    assert repo.publish("dev", "copy") == repo.lookup_branch("dev")
    assert values(repo, branch="main") == [4] * 4
