"""Merging, picking, reverting, squashing and publishing branches."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import Repository
from icefloe.changes.conflicts import ConflictSolver, MergedDocument, VersionSelection
from icefloe.engine.branches import commits, merge
from icefloe.engine.commit import write
from icefloe.errors import (
    ConflictError,
    IcefloeError,
    InvalidInputError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.session import Session
from icefloe.testing.requests import FarStorage
from tests.builders import commit_edit, new_repository
from tests.documents import array, commit_attribute, group, make_tree, node_paths
from tests.formats import how

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.changes.conflicts import Conflict, Sides
    from icefloe.storage.port import Storage


pytestmark = pytest.mark.usefixtures("each_generation")


@pytest.fixture
def repository() -> Repository:
    repository = new_repository()
    make_tree(repository)
    repository.create_branch("work", repository.lookup_branch("main"))
    return repository


def commit(
    repository: Repository, branch: str, edit: Callable[[Session], Any], message: str = "edit"
) -> str:
    return commit_edit(repository, edit, branch, message)


def put(path: str, *places: int, value: bytes) -> Callable[[Session], None]:
    def edit(session: Session) -> None:
        for place in places:
            session.tree.set_chunk(path, (place,), value)

    return edit


def chunks(repository: Repository, path: str = "/g/a", branch: str = "main") -> dict[int, bytes]:
    session = repository.readonly_session(branch)
    found = {}
    for (place,) in session.tree.chunk_coords(path).tolist():
        found[place] = session.get_chunk(path, (place,))
    return found


def attributes(repository: Repository, path: str, branch: str = "main") -> dict[str, Any]:
    document = repository.readonly_session(branch).tree.document(path)
    assert document is not None
    return json.loads(document)["attributes"]


# --- merge


def test_a_branch_without_commits_of_its_own_is_moved_forward(repository: Repository) -> None:
    tip = commit(repository, "work", put("/b", 0, value=b"\x07"))
    assert repository.merge("work", "main") == tip
    assert repository.lookup_branch("main") == tip
    assert repository.merge("work", "main") == tip  # nothing is left to do
    assert repository.merge("main", "work") == tip


def test_a_merge_without_fast_forward_is_a_commit(repository: Repository) -> None:
    before = repository.lookup_branch("main")
    tip = commit(repository, "work", put("/b", 0, value=b"\x07"))
    merged = repository.merge("work", "main", fast_forward=False, metadata={"by": "me"})
    info = repository.lookup_snapshot(merged)
    assert merged != tip
    assert info.parent_id == before
    assert info.metadata == {"by": "me"}
    assert info.message == "Merge branch 'work' into 'main'"
    assert chunks(repository, "/b")[0] == b"\x07"


def test_chunks_of_both_sides_come_together(repository: Repository) -> None:
    commit(repository, "work", put("/g/a", 1, 2, value=b"\x02"))
    commit(repository, "main", put("/g/a", 3, value=b"\x03"))
    repository.merge("work", "main")
    found = chunks(repository)
    assert {place: found[place] for place in (1, 2, 3, 4)} == {
        1: b"\x02",
        2: b"\x02",
        3: b"\x03",
        4: b"\x01",
    }


def test_a_chunk_that_both_wrote_fails_and_changes_nothing(repository: Repository) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    tip = commit(repository, "main", put("/g/a", 1, value=b"\x03"))
    with pytest.raises(RebaseFailedError, match="ChunkDoubleUpdate") as caught:
        repository.merge("work", "main")
    assert [c.conflicted_chunks for c in caught.value.conflicts] == [[[1]]]
    assert repository.lookup_branch("main") == tip


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(VersionSelection.UseOurs, b"\x02"), (VersionSelection.UseTheirs, b"\x03")],
)
def test_a_side_can_be_chosen(
    repository: Repository, choice: VersionSelection, expected: bytes
) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    commit(repository, "main", put("/g/a", 1, value=b"\x03"))
    repository.merge("work", "main", solver=icefloe.MergeSolver(on_chunk_conflict=choice))
    assert chunks(repository)[1] == expected


def test_attributes_are_merged_by_key(repository: Repository) -> None:
    base: dict[str, Any] = {"units": "K", "title": "old", "gone": 1}
    for branch in ("main", "work"):
        repository.reset_branch(branch, repository.lookup_branch("main"))
    commit(repository, "main", lambda s: s.tree.set_document("/b", array(**base)))
    repository.reset_branch("work", repository.lookup_branch("main"))
    ours: dict[str, Any] = {"units": "K", "title": "new", "gone": 1, "mine": [1, 2]}
    commit(repository, "work", lambda s: s.tree.set_document("/b", array(**ours)))
    commit(repository, "main", lambda s: s.tree.set_document("/b", array(units="C", title="old")))
    repository.merge("work", "main")
    assert attributes(repository, "/b") == {"units": "C", "title": "new", "mine": [1, 2]}


def test_an_attribute_that_both_changed_fails(repository: Repository) -> None:
    commit(repository, "work", lambda s: s.tree.set_document("/b", array(units="C")))
    commit(repository, "main", lambda s: s.tree.set_document("/b", array(units="F")))
    with pytest.raises(RebaseFailedError, match="/b: ZarrMetadataDoubleUpdate"):
        repository.merge("work", "main")


def test_chunks_survive_a_change_of_attributes_but_not_of_the_grid(repository: Repository) -> None:
    commit(repository, "work", put("/b", 1, value=b"\x09"))
    commit(repository, "main", lambda s: s.tree.set_document("/b", array(units="F")))
    repository.merge("work", "main")
    assert chunks(repository, "/b")[1] == b"\x09"
    commit(repository, "work", put("/b", 2, value=b"\x09"))
    commit(repository, "main", lambda s: s.tree.set_document("/b", array(chunk=2, units="F")))
    with pytest.raises(RebaseFailedError, match="ChunksUpdatedInUpdatedArray"):
        repository.merge("work", "main")


def test_new_moved_and_deleted_nodes_are_merged(repository: Repository) -> None:
    def ours(session: Session) -> None:
        session.tree.set_document("/n", array(shape=(4,)))
        session.tree.set_chunk("/n", (2,), b"\x05")
        session.move("/g/a", "/g/renamed")
        session.tree.delete_node("/b")

    commit(repository, "work", ours)
    commit(repository, "main", put("/g/a", 9, value=b"\x08"))
    repository.merge("work", "main")
    session = repository.readonly_session("main")
    assert list(session.tree.node_paths("/")) == ["/g", "/g/renamed", "/n"]
    assert session.get_chunk("/n", (2,)) == b"\x05"
    assert session.get_chunk("/g/renamed", (9,)) == b"\x08"


def test_a_node_that_they_moved_there_and_back_can_be_moved(repository: Repository) -> None:
    for source, target in (("/g", "/h"), ("/h/a", "/h/c"), ("/h", "/g"), ("/g/c", "/g/a")):
        commit(repository, "main", partial(Session.move, from_path=source, to_path=target))
    commit(repository, "work", lambda session: session.move("/g/a", "/g/d"))
    repository.merge("work", "main")
    assert node_paths(repository.readonly_session("main")) == ["/", "/b", "/g", "/g/d"]
    commit(repository, "main", lambda session: session.move("/g/d", "/e"))
    commit(repository, "work", lambda session: session.move("/g/d", "/f"))
    with pytest.raises(RebaseFailedError, match="MoveOfChangedNode"):
        repository.merge("work", "main")


def test_the_same_node_on_both_sides_is_a_conflict(repository: Repository) -> None:
    for branch in ("work", "main"):
        commit(repository, branch, lambda s: s.tree.set_document("/n", array()))
    with pytest.raises(RebaseFailedError, match="/n: NewNodeConflictsWithExistingNode"):
        repository.merge("work", "main")


def test_a_second_merge_takes_only_what_is_new(repository: Repository) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    commit(repository, "main", put("/g/a", 3, value=b"\x03"))
    repository.merge("work", "main")
    # On main the merged chunk changes; the next merge must not bring the old one back.
    commit(repository, "main", put("/g/a", 1, value=b"\x04"))
    commit(repository, "work", put("/g/a", 5, value=b"\x05"))
    merged = repository.merge("work", "main")
    found = chunks(repository)
    assert (found[1], found[3], found[5]) == (b"\x04", b"\x03", b"\x05")
    assert repository.merge("work", "main") == merged


def test_merges_in_both_directions(repository: Repository) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    commit(repository, "main", put("/g/a", 3, value=b"\x03"))
    repository.merge("main", "work")
    commit(repository, "work", put("/g/a", 1, 3, value=b"\x06"))
    repository.merge("work", "main", fast_forward=False)
    found = chunks(repository)
    assert (found[1], found[3]) == (b"\x06", b"\x06")


def test_a_picked_commit_does_not_conflict_with_a_later_merge(repository: Repository) -> None:
    def create(session: Session) -> None:
        session.tree.set_document("/n", array(shape=(4,)))
        session.tree.set_chunk("/n", (2,), b"\x05")

    created = commit(repository, "work", create)
    commit(repository, "work", put("/n", 3, value=b"\x06"))
    commit(repository, "main", put("/g/a", 3, value=b"\x03"))
    repository.cherry_pick(created, branch="main")
    repository.merge("work", "main")
    assert chunks(repository, "/n") == {2: b"\x05", 3: b"\x06"}


def test_a_conflict_in_an_array_that_both_took_over_has_its_path(repository: Repository) -> None:
    created = commit(repository, "work", lambda s: s.tree.set_document("/n", array()))
    repository.cherry_pick(created, branch="main")
    for branch, value in (("work", b"\x05"), ("main", b"\x06")):
        commit(repository, branch, put("/n", 2, value=value))
    with pytest.raises(RebaseFailedError, match="/n: ChunkDoubleUpdate") as caught:
        repository.merge("work", "main")
    assert [c.path for c in caught.value.conflicts] == ["/n"]


def test_branches_of_different_repositories_have_nothing_in_common(repository: Repository) -> None:
    with pytest.raises(icefloe.RefNotFoundError):
        repository.merge("nowhere", "main")


# --- solvers that look


class Larger(ConflictSolver):
    """Keeps the larger value of a chunk, and joins titles."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[str], list[str]]] = []

    def resolve(self, conflict: Conflict, sides: Sides) -> VersionSelection | MergedDocument:
        changed = [list(c.updated_chunks) for c in (sides.our_changes, sides.their_changes)]
        self.seen.append((conflict.path, changed[0], changed[1]))
        if conflict.conflicted_chunks is None:
            documents = [
                json.loads(d)
                for d in (sides.documents(conflict).ours, sides.documents(conflict).theirs)
                if d is not None
            ]
            titles = [d["attributes"]["title"] for d in documents]
            documents[0]["attributes"]["title"] = " and ".join(titles)
            return MergedDocument(json.dumps(documents[0]).encode())
        ours, theirs = (
            zarr.open_array(side.store, path=conflict.path, mode="r")[:]
            for side in (sides.ours, sides.theirs)
        )
        better = ours.sum() > theirs.sum()
        return VersionSelection.UseOurs if better else VersionSelection.UseTheirs


@pytest.mark.parametrize("ours", [2, 5])
def test_a_solver_in_plain_python_reads_the_values_of_both_sides(ours: int) -> None:
    repository = new_repository()
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("x", shape=(4,), chunks=(2,), dtype="i4", attributes={"title": "none"})[:] = 1
    session.commit("first")
    mine = repository.writable_session("main")
    theirs = repository.writable_session("main")
    for each, value, title in ((mine, ours, "mine"), (theirs, 3, "theirs")):
        x = zarr.open_array(each.store, path="x")
        x[:2] = value
        x.attrs["title"] = title
    theirs.commit("theirs")
    solver = Larger()
    # The chunks that we wrote belong to an array whose metadata they changed too.
    with pytest.raises(RebaseFailedError, match="ChunksUpdatedInUpdatedArray"):
        mine.commit("mine", rebase_with=Picky(solver))
    mine.commit("mine", rebase_with=KeepChunks(solver))
    x = zarr.open_array(repository.readonly_session("main").store, path="x", mode="r")
    np.testing.assert_array_equal(x[:], [max(ours, 3), max(ours, 3), 1, 1])
    assert x.attrs["title"] == "mine and theirs"
    assert solver.seen[-1] == ("/x", ["/x"], ["/x"])


class Seen(ConflictSolver):
    """Keeps ours, and what our side looks like."""

    def __init__(self, *places: int) -> None:
        self.places = places
        self.values: list[bytes | None] = []

    def resolve(self, conflict: Conflict, sides: Sides) -> VersionSelection:
        self.values = [sides.ours.get_chunk(conflict.path, (place,)) for place in self.places]
        return VersionSelection.UseOurs


def test_a_solver_sees_all_of_our_side(repository: Repository) -> None:
    """Also what the others have already."""
    commit(repository, "work", put("/g/a", 1, 2, value=b"\x02"))
    commit(repository, "main", put("/g/a", 1, value=b"\x02"))
    commit(repository, "main", put("/g/a", 2, value=b"\x03"))
    solver = Seen(1, 2, 3)
    repository.merge("work", "main", solver=solver)
    assert solver.values == [b"\x02", b"\x02", b"\x01"]


class Picky(ConflictSolver):
    def __init__(self, inner: ConflictSolver) -> None:
        self.inner = inner

    def resolve(self, conflict: Conflict, sides: Sides) -> Any:
        if conflict.conflict_type.name == "ChunksUpdatedInUpdatedArray":
            return VersionSelection.Fail
        return self.inner.resolve(conflict, sides)


class KeepChunks(Picky):
    def resolve(self, conflict: Conflict, sides: Sides) -> Any:
        if conflict.conflict_type.name == "ChunksUpdatedInUpdatedArray":
            return VersionSelection.UseOurs
        return self.inner.resolve(conflict, sides)


# --- cherry-pick and revert


def test_a_pick_takes_one_commit_only(repository: Repository) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    picked = commit(repository, "work", put("/g/a", 2, value=b"\x03"), "the second")
    commit(repository, "main", put("/g/a", 7, value=b"\x04"))
    tip = repository.cherry_pick(picked, branch="main")
    found = chunks(repository)
    assert (found[1], found[2], found[7]) == (b"\x01", b"\x03", b"\x04")
    assert repository.lookup_snapshot(tip).message == "the second"
    assert repository.cherry_pick(picked, branch="main") == tip  # it has it already


def test_a_revert_brings_back_what_was(repository: Repository) -> None:
    def change(session: Session) -> None:
        session.tree.set_chunk("/g/a", (1,), b"\x02")
        session.tree.delete_chunk("/g/a", (2,))
        session.tree.set_document("/new", group())
        session.tree.delete_node("/b")
        session.tree.set_document("/g", group(title="changed"))

    undone = commit(repository, "main", change, "a mistake")
    commit(repository, "main", put("/g/a", 5, value=b"\x05"))
    tip = repository.revert(undone, branch="main")
    found = chunks(repository)
    assert (found[1], found[2], found[5]) == (b"\x01", b"\x01", b"\x05")
    session = repository.readonly_session("main")
    assert list(session.tree.node_paths("/")) == ["/b", "/g", "/g/a"]
    assert chunks(repository, "/b") == dict.fromkeys(range(3), b"\x01")
    assert attributes(repository, "/g") == {}
    assert repository.lookup_snapshot(tip).message == f"Revert 'a mistake' ({undone})"
    again = repository.lookup_snapshot(repository.revert(tip, branch="main"))
    assert again.message == f"Revert 'Revert 'a mistake' ({undone})' ({tip})"


def test_a_revert_of_what_was_changed_again_is_a_conflict(repository: Repository) -> None:
    undone = commit(repository, "main", put("/g/a", 1, value=b"\x02"))
    commit(repository, "main", put("/g/a", 1, value=b"\x03"))
    with pytest.raises(RebaseFailedError, match="ChunkDoubleUpdate"):
        repository.revert(undone, branch="main")


def test_a_revert_of_a_compaction_changes_nothing() -> None:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = new_repository(config=config)
    make_tree(repository)
    repository.create_branch("work", repository.lookup_branch("main"))
    written = commit(repository, "main", put("/g/a", 1, value=b"\x02"))
    moved = repository.compact(branch="main").snapshot_id
    assert moved is not None
    assert repository.revert(moved, branch="main") == moved
    assert repository.cherry_pick(moved, branch="work") == repository.lookup_branch("work")
    # What was written before comes back, and only that.
    tip = repository.revert(written, branch="main")
    diff = repository.diff(from_snapshot_id=moved, to_snapshot_id=tip)
    assert diff.updated_chunks == {"/g/a": [[1]]}
    assert chunks(repository)[1] == b"\x01"
    commit(repository, "work", put("/g/a", 2, value=b"\x04"))
    repository.merge("work", "main")
    assert chunks(repository)[2] == b"\x04"
    assert repository.verify(deep=True).is_clean


def test_what_was_deleted_and_brought_back_can_be_changed_by_both(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.tree.set_chunk("/b", (1,), b"\x09")
    commit(repository, "work", put("/b", 2, value=b"\x08"))
    deleted = commit(repository, "main", lambda s: s.tree.delete_node("/b"))
    repository.revert(deleted, branch="main")
    commit(repository, "main", put("/b", 1, value=b"\x07"))
    with pytest.raises(RebaseFailedError, match="/b: ChunkDoubleUpdate"):
        session.commit("mine", rebase_with=icefloe.ConflictDetector())
    repository.merge("work", "main")
    assert chunks(repository, "/b") == {0: b"\x01", 1: b"\x07", 2: b"\x08"}
    since = list(repository.ancestry(branch="main"))[-2].id
    repository.squash("main", since, message="all")
    assert repository.verify(deep=True).is_clean


def test_the_first_snapshot_has_no_changes(repository: Repository) -> None:
    first = list(repository.ancestry(branch="main"))[-1].id
    with pytest.raises(SessionStateError, match="first snapshot"):
        repository.revert(first, branch="main")
    with pytest.raises(SessionStateError, match="first snapshot"):
        repository.cherry_pick(first, branch="main")


# --- squash and publish


def test_squash_makes_one_commit_of_many(repository: Repository) -> None:
    since = repository.lookup_branch("main")
    for place in range(5):
        commit(repository, "main", put("/g/a", place, value=bytes([place + 10])))
    old = repository.lookup_branch("main")
    before = chunks(repository)
    tip = repository.squash("main", since, message="all of it")
    assert [info.message for info in repository.ancestry(branch="main")][:2] == [
        "all of it",
        "tree",
    ]
    assert chunks(repository) == before
    diff = repository.diff(from_snapshot_id=since, to_snapshot_id=tip)
    assert diff.updated_chunks == {"/g/a": [[0], [1], [2], [3], [4]]}
    assert repository.readonly_session(snapshot_id=old).get_chunk("/g/a", (4,)) == bytes([14])
    with pytest.raises(InvalidInputError, match="not an earlier snapshot"):
        repository.squash("main", old, message="no")
    with pytest.raises(InvalidInputError, match="not an earlier snapshot"):
        repository.squash("main", tip, message="no")


def test_publish_moves_forward_only(repository: Repository) -> None:
    tip = commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    assert repository.publish("work", "main") == tip
    assert repository.publish("work", "main") == tip
    commit(repository, "work", put("/g/a", 2, value=b"\x02"))
    own = commit(repository, "main", put("/g/a", 3, value=b"\x02"))
    with pytest.raises(ConflictError, match="cannot fast-forward 'main' to 'work'"):
        repository.publish("work", "main")
    assert repository.lookup_branch("main") == own


def test_a_squash_does_not_overwrite_a_branch_that_moved(repository: Repository) -> None:
    since = repository.lookup_branch("main")
    commit_attribute(repository, 1)
    session = repository.writable_session("main")
    session.tree.set_document("/g", group(a=1))
    repository.squash("main", since, message="one")
    with pytest.raises(ConflictError):
        session.commit("on what was squashed")


# --- diff, blame


def test_a_diff_of_branches_that_parted(repository: Repository) -> None:
    def ours(session: Session) -> None:
        session.tree.set_chunk("/g/a", (1,), b"\x02")
        session.move("/b", "/g/b")
        session.tree.set_document("/n", group())

    commit(repository, "work", ours)
    commit(repository, "main", put("/g/a", 1, 2, value=b"\x03"))
    diff = repository.diff(from_branch="main", to_branch="work")
    assert diff.updated_chunks == {"/g/a": [[1], [2]]}
    assert diff.new_groups == {"/n"}
    assert diff.moved_nodes == [("/b", "/g/b")]
    back = repository.diff(from_branch="work", to_branch="main")
    assert back.deleted_groups == {"/n"}
    assert back.moved_nodes == [("/g/b", "/b")]


def test_blame_names_who_wrote_each_chunk(repository: Repository) -> None:
    tree = repository.lookup_branch("main")
    first = commit(repository, "main", put("/g/a", 1, 2, value=b"\x02"), "first")
    second = commit(repository, "main", put("/g/a", 2, value=b"\x03"), "second")
    commit(repository, "main", lambda s: s.tree.delete_chunk("/g/a", (3,)), "third")
    found = repository.blame("/g/a", branch="main")
    assert found.snapshot_id(0) == tree
    assert found.snapshot_id(1) == first
    assert found.snapshot_id(2) == second
    assert found.snapshot_id(3) is None
    assert found.coords[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [str(stub.id) for stub in found.snapshots] == [second, first, tree]
    assert "second" in repr(found)
    assert len(repository.blame("/g/a", snapshot_id=tree)) == 10
    with pytest.raises(icefloe.NodeNotFoundError):
        repository.blame("/g", branch="main")


@pytest.mark.parametrize("coords", [(), (0, 0), (-1,), (0.0,), (None,), (2**70,), (True,)])
def test_blame_says_what_a_chunk_is(repository: Repository, coords: tuple[Any, ...]) -> None:
    found = repository.blame("/g/a", branch="main")
    with pytest.raises(InvalidInputError, match=r"/g/a has 1 coordinates, integers from 0 on"):
        found.snapshot_id(*coords)
    assert found.snapshot_id(np.int64(0)) == repository.lookup_branch("main")  # type: ignore[arg-type]
    assert found.snapshot_id(2**62) is None


class _Duck:
    def solve(self, conflict: Conflict) -> VersionSelection:
        raise AssertionError(conflict)


@pytest.mark.parametrize(
    "solver", ["ours", icefloe.MergeSolver, _Duck(), lambda *_: VersionSelection.UseOurs, 0]
)
def test_what_is_no_solver_is_refused_before_anything_is_done(
    repository: Repository, solver: Any
) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    tip = repository.lookup_branch("main")
    session = repository.writable_session("main")
    put("/g/a", 2, value=b"\x03")(session)
    attempts: list[Callable[[], object]] = [
        lambda: session.commit("x", rebase_with=solver),
        lambda: session.rebase(solver),
        lambda: repository.transaction("main", message="x", rebase_with=solver).__enter__(),
        lambda: repository.materialize("main", rebase_with=solver),
        lambda: repository.merge("work", "main", solver=solver),
        lambda: repository.cherry_pick("work", branch="main", solver=solver),
        lambda: repository.revert("main", branch="main", solver=solver),
        lambda: icefloe.AppendSolver("time", solver),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInputError, match="a solver is a ConflictSolver") as error:
            attempt()
        assert isinstance(error.value, TypeError)
    assert repository.lookup_branch("main") == tip
    assert session.has_uncommitted_changes


def test_a_class_is_no_solver_and_a_text_no_choice(repository: Repository) -> None:
    with pytest.raises(InvalidInputError, match=r"MergeSolver instead of MergeSolver\(\)"):
        repository.merge("work", "main", solver=icefloe.MergeSolver)  # type: ignore[arg-type]
    for solver in (icefloe.BasicConflictSolver, icefloe.MergeSolver):
        with pytest.raises(InvalidInputError, match=r"VersionSelection\.UseOurs.*found 'x'"):
            solver(on_chunk_conflict="x")  # type: ignore[arg-type]


def test_the_graph_is_a_picture(repository: Repository) -> None:
    commit(repository, "work", put("/g/a", 1, value=b"\x02"), "<two> & three")
    commit(repository, "main", put("/g/a", 2, value=b"\x02"))
    repository.create_tag("v1", repository.lookup_branch("work"))
    picture = ElementTree.fromstring(repository.ancestry_graph().to_svg())
    drawn = {name: picture.findall(f"{{*}}{name}") for name in ("circle", "path", "text")}
    assert {name: len(found) for name, found in drawn.items()} == {
        "circle": 4,
        "path": 3,
        "text": 4,
    }
    texts = ["".join(text.itertext()) for text in drawn["text"]]
    assert any("(work, tag: v1)" in text and "<two> & three" in text for text in texts)
    lanes = {circle.get("cx") for circle in drawn["circle"]}
    assert len(lanes) == 2
    # Without it, a page that limits the width of pictures cuts off the lower rows.
    assert picture.get("viewBox") == f"0 0 {picture.get('width')} {picture.get('height')}"


def test_the_graph_shows_merges(repository: Repository) -> None:
    merged = commit(repository, "work", put("/g/a", 1, value=b"\x02"))
    commit(repository, "main", put("/g/a", 2, value=b"\x02"))
    tip = repository.merge("work", "main")
    graph = repository.ancestry_graph()
    assert {row.id: row.merged_id for row in graph.rows if row.merged_id} == {tip: merged}
    assert f"Merge branch 'work' into 'main' [merges {merged}]" in str(graph).splitlines()[0]
    picture = ElementTree.fromstring(graph.to_svg())
    assert len(picture.findall("{*}path[@stroke-dasharray]")) == 1
    plain = repository.ancestry_graph(merges=False)
    assert "[merges" not in str(plain)
    assert "dasharray" not in plain.to_svg()


# --- what counts as a conflict


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        ([2], [3], None),
        ([2], [2], 2),
        ([1], [3], 3),
        ([2, 1], [3], 3),
        ([2], [3, 1], 2),
    ],
    ids=["both", "alike", "as it was", "ours there and back", "theirs there and back"],
)
@pytest.mark.parametrize("is_spilled", [False, True], ids=["inline", "in a file"])
def test_attributes_conflict_if_both_sides_end_up_different(
    ours: list[int], theirs: list[int], merged: int | None, is_spilled: bool
) -> None:
    config = icefloe.RepositoryConfig(inline_attributes_threshold_bytes=0 if is_spilled else 4096)
    repository = new_repository(config=config)
    commit_attribute(repository, 1)
    repository.create_branch("work", repository.lookup_branch("main"))
    for branch, values in (("work", ours), ("main", theirs)):
        for value in values:
            session = repository.writable_session(branch)
            session.tree.set_document("/", group(value=value))
            session.tree.set_document(f"/{branch}{value}", group())  # so that there is a commit
            session.commit("edit")
    if merged is None:
        with pytest.raises(RebaseFailedError) as caught:
            repository.merge("work", "main")
        assert [c.path for c in caught.value.conflicts] == ["/"]
        return
    repository.merge("work", "main")
    assert attributes(repository, "/") == {"value": merged}


def wrote(*places: int) -> Callable[[Session], None]:
    return put("/n", *places, value=b"\x07\x07")


def shaped(length: int, **changed: Any) -> Callable[[Session], None]:
    def edit(session: Session) -> None:
        document = json.loads(array((length,), 2)) | changed
        session.tree.set_document("/n", json.dumps(document).encode())

    return edit


def deleted(*places: int) -> Callable[[Session], object]:
    return lambda session: [session.tree.delete_chunk("/n", (place,)) for place in places]


def both(*edits: Callable[[Session], object]) -> Callable[[Session], object]:
    return lambda session: [edit(session) for edit in edits]


WIDER = [{"name": "bytes"}, {"name": "crc32c"}]


@pytest.mark.parametrize(
    ("ours", "theirs", "hidden"),
    [
        (shaped(4), wrote(3), [[3]]),
        (shaped(4), wrote(0, 2, 3), [[2], [3]]),
        (shaped(7), wrote(2, 3), [[3]]),
        (shaped(0), wrote(1, 2), [[1], [2]]),
        (shaped(8, data_type="int8"), wrote(1), [[1]]),
        (shaped(8, codecs=WIDER), wrote(1, 3), [[1], [3]]),
        (shaped(4), both(wrote(3), shaped(8, attributes={"x": 1})), [[3]]),
        (both(shaped(4), wrote(0)), wrote(3), [[3]]),
        (shaped(4), wrote(0, 1), None),
        (shaped(6), both(wrote(1), deleted(3)), None),
        (both(deleted(2), shaped(4)), deleted(2), None),
        (shaped(12), wrote(3), None),
        (shaped(8, attributes={"x": 1}), wrote(3), None),
        (both(shaped(8, codecs=WIDER), wrote(1)), wrote(), None),
        (shaped(4, attributes={"x": 1}), both(deleted(2), shaped(4), wrote(1)), None),
    ],
    ids=[
        "outside",
        "outside and inside",
        "cut off",
        "nothing is left",
        "data type",
        "codecs",
        "both changed metadata",
        "both wrote",
        "within what is left",
        "they deleted it",
        "both deleted it",
        "we made it longer",
        "attributes",
        "they wrote nothing",
        "both made it smaller",
    ],
)
def test_what_our_metadata_hides_of_theirs_is_a_conflict(
    repository: Repository,
    ours: Callable[[Session], Any],
    theirs: Callable[[Session], Any],
    hidden: list[list[int]] | None,
) -> None:
    """Of an array of four chunks; the last but one is there at first."""
    commit(repository, "main", both(shaped(8), put("/n", 2, value=b"\x01\x01")))
    repository.reset_branch("work", repository.lookup_branch("main"))
    commit(repository, "work", ours)
    session = repository.writable_session("main")
    theirs(session)
    before = session.commit("theirs", allow_empty=True)
    if hidden is None:
        repository.merge("work", "main")
        reader = repository.readonly_session("main")
        node = reader.get_node("/n")
        assert node is not None
        assert node.is_array
        (grid,) = node.array.grid_shape or (0,)
        assert all(place < grid for place in chunks(repository, "/n"))
        return
    with pytest.raises(RebaseFailedError) as caught:
        repository.merge("work", "main")
    found = [c for c in caught.value.conflicts if c.conflicted_chunks]
    # The chunk that was there at first is dropped where the array became smaller.
    assert {(c.conflict_type.name, c.path) for c in found} <= {
        ("ChunksUpdatedInUpdatedArray", "/n"),
        ("ChunkDoubleUpdate", "/n"),
    }
    assert sorted(place for c in found for place in c.conflicted_chunks or []) == hidden
    assert repository.lookup_branch("main") == before
    with pytest.raises(RebaseFailedError):
        repository.merge("main", "work")


def test_reverting_that_an_array_grew_spares_what_was_written_there(
    repository: Repository,
) -> None:
    commit(repository, "main", shaped(4))
    grown = commit(repository, "main", shaped(8))
    commit(repository, "main", wrote(3))
    with pytest.raises(RebaseFailedError, match=r"/n: ChunksUpdatedInUpdatedArray, chunks \[\[3"):
        repository.revert(grown, branch="main")
    commit(repository, "main", deleted(3))
    repository.revert(grown, branch="main")
    assert json.loads(repository.readonly_session("main").tree.document("/n") or b"")["shape"] == [
        4
    ]


# --- any edits

# Few values, among them that of the base: equal writes are where the rule of conflicts is told.
writes = st.dictionaries(st.integers(0, 4), st.sampled_from([None, b"\x01", b"\x02", b"\x03"]))


@given(
    ours=st.lists(writes, max_size=3),
    theirs=st.lists(writes, max_size=3),
    compacted=st.none() | st.sets(st.sampled_from(["work", "main"])),
)
def test_a_merge_equals_the_merge_of_dictionaries(
    ours: list[dict[int, bytes | None]],
    theirs: list[dict[int, bytes | None]],
    compacted: set[str] | None,
) -> None:
    """In manifests, where `compacted` is None, as in files, wherever these are."""
    threshold = 512 if compacted is None else 0
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
    repository = new_repository(config=config)
    make_tree(repository)
    repository.create_branch("work", repository.lookup_branch("main"))
    base = chunks(repository)
    sides = {}
    for branch, edits in (("work", ours), ("main", theirs)):
        state: dict[int, bytes | None] = {**base}
        for edit in edits:
            session = repository.writable_session(branch)
            for place, value in edit.items():
                state[place] = value
                if value is None:
                    session.tree.delete_chunk("/g/a", (place,))
                else:
                    session.tree.set_chunk("/g/a", (place,), value)
            session.commit("edit", allow_empty=True)
        if branch in (compacted or ()):
            repository.compact(branch=branch)
        sides[branch] = {k: v for k, v in state.items() if v != base[k]}
    mine, other = sides["work"], sides["main"]
    disputed = {k for k in mine.keys() & other.keys() if mine[k] != other[k]}
    expected = {k: v for k, v in {**base, **other, **mine}.items() if v is not None}
    if disputed:
        before = repository.lookup_branch("main")
        with pytest.raises(RebaseFailedError) as caught:
            repository.merge("work", "main")
        (conflict,) = caught.value.conflicts
        assert {place for (place,) in conflict.conflicted_chunks or []} == disputed
        assert repository.lookup_branch("main") == before
        solver = icefloe.MergeSolver(on_chunk_conflict=VersionSelection.UseOurs)
        repository.merge("work", "main", solver=solver)
    else:
        repository.merge("work", "main")
    assert chunks(repository) == expected


# --- a repository that is deleted, and created again in its place


def replaced_before_a_commit(
    storage: Storage, start: Callable[[], Repository], monkeypatch: pytest.MonkeyPatch
) -> list[Repository]:
    """Have the repository replaced when the next commit is written; the list gets the new one."""
    others: list[Repository] = []

    def write_commit(*arguments: Any, **named: Any) -> Any:
        if not others:
            storage.delete_many([info.key for info in storage.list("")])
            others.append(start())
        return original(*arguments, **named)

    original = write.write_commit
    for module in (commits, merge):
        monkeypatch.setattr(module, "write_commit", write_commit)
    return others


@pytest.mark.parametrize("what", ["merge", "cherry_pick", "revert", "squash"])
def test_another_repository_in_place_of_this_one_stays(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has as many commits, so that the next entry of the branch is free there, too."""
    storage = icefloe.in_memory_storage()

    def start(value: bytes) -> tuple[Repository, str, str]:
        made = Repository.create(storage, **how())
        make_tree(made)
        made.create_branch("work", made.lookup_branch("main"))
        picked = commit(made, "work", put("/g/a", 1, value=value), "of work")
        before = made.lookup_branch("main")
        commit(made, "main", put("/g/a", 0, value=value), "of main")
        return made, picked, before

    repository, picked, before = start(b"\x01" * 4)
    others = replaced_before_a_commit(storage, lambda: start(b"\x02" * 4)[0], monkeypatch)
    calls: dict[str, Callable[[], str]] = {
        "merge": lambda: repository.merge("work", "main"),
        "cherry_pick": lambda: repository.cherry_pick(picked, branch="main"),
        "revert": lambda: repository.revert(newest, branch="main"),
        "squash": lambda: repository.squash("main", before, message="as one"),
    }
    newest = repository.lookup_branch("main")
    with pytest.raises(IcefloeError):
        calls[what]()
    (other,) = others
    opened = Repository.open(storage)
    assert opened.lookup_branch("main") == other.lookup_branch("main")
    assert chunks(opened) == chunks(other)


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("what", ["merge", "cherry_pick", "revert"])
def test_another_repository_of_which_the_branch_has_only_the_first_snapshot_stays(
    what: str, is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every repository has this snapshot, so that it tells none from another."""
    storage = icefloe.in_memory_storage()

    def start() -> Repository:
        made = Repository.create(FarStorage(storage) if is_far else storage, **how())
        made.create_branch("work", made.lookup_branch("main"))
        commit(made, "work", lambda session: session.tree.set_document("/work", group()), "of work")
        return made

    repository = start()
    picked = repository.lookup_branch("work")
    others = replaced_before_a_commit(storage, start, monkeypatch)
    calls: dict[str, Callable[[], str]] = {
        "merge": lambda: repository.merge("work", "main", fast_forward=False),
        "cherry_pick": lambda: repository.cherry_pick(picked, branch="main"),
        "revert": lambda: repository.revert(picked, branch="work"),
    }
    with pytest.raises(IcefloeError):
        calls[what]()
    (other,) = others
    opened = Repository.open(storage)
    for branch in ("main", "work"):
        entries = [(each.id, each.message) for each in opened.ancestry(branch=branch)]
        assert entries == [(each.id, each.message) for each in other.ancestry(branch=branch)]
    assert not opened.verify().problems
