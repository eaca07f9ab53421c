"""Several writers make the first groups and arrays of a repository at the same time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictError,
    ConflictSolver,
    MergeSolver,
    RebaseFailedError,
    Repository,
)
from icefloe.changes.conflicts import MergedDocument
from tests.documents import array, group, node_paths
from tests.formats import GENERATIONS

if TYPE_CHECKING:
    from icefloe.changes.conflicts import Conflict, Resolution, Sides
    from icefloe.session import Session

SPILLED = "x" * 40_000
"""An attribute that is too long to be kept in a snapshot."""


@pytest.fixture(params=GENERATIONS)
def empty(request: pytest.FixtureRequest) -> Repository:
    return Repository.create(icefloe.in_memory_storage(), generation=request.param)


def attributes(repository: Repository, path: str) -> dict[str, object]:
    document = json.loads(repository.readonly_session("main").tree.document(path))
    return dict(document.get("attributes", {}))


def two(repository: Repository) -> tuple[Session, Session]:
    return repository.writable_session("main"), repository.writable_session("main")


@pytest.mark.parametrize("solver", [ConflictDetector(), BasicConflictSolver(), MergeSolver()])
def test_two_jobs_fill_an_empty_repository(empty: Repository, solver: ConflictSolver) -> None:
    ours, theirs = two(empty)
    for name, session in (("temperature", ours), ("rain", theirs)):
        made = zarr.create_array(
            session.store, name=f"weather/{name}", shape=(6,), chunks=(2,), dtype="i4"
        )
        made[:] = np.arange(6) + len(name)
    first = theirs.commit("rain")
    with pytest.raises(ConflictError):
        ours.commit("without a solver, a branch that moved is a conflict")
    last = ours.commit("temperature", rebase_with=solver)

    again = Repository.open(empty.storage)
    assert [info.id for info in again.ancestry(branch="main")][:2] == [last, first]
    reader = again.readonly_session("main")
    assert node_paths(reader) == ["/", "/weather", "/weather/rain", "/weather/temperature"]
    for name in ("temperature", "rain"):
        found = zarr.open_array(reader.store, path=f"weather/{name}", mode="r")
        np.testing.assert_array_equal(found[:], np.arange(6) + len(name))
    # Who came second created no group, and its log says so.
    created = again.diff(from_snapshot_id=first, to_branch="main")
    assert (created.new_groups, created.new_arrays) == (set(), {"/weather/temperature"})
    assert again.verify(deep=True).is_clean


@pytest.mark.parametrize("length", [SPILLED, "short"])
def test_no_attribute_is_lost_where_one_side_has_some(empty: Repository, length: str) -> None:
    for path, (mine, other) in {"/a": ({}, {"x": length}), "/b": ({"x": length}, {})}.items():
        ours, theirs = two(empty)
        ours.tree.set_document(path, group(**mine))
        ours.tree.set_document(f"{path}/ours", array())
        theirs.tree.set_document(path, group(**other))
        theirs.commit("theirs")
        ours.commit("ours", rebase_with=ConflictDetector())
        assert attributes(empty, path) == {"x": length}
    assert empty.verify(deep=True).is_clean


def test_equal_long_attributes_are_equal(empty: Repository) -> None:
    ours, theirs = two(empty)
    for session in (ours, theirs):
        session.tree.set_document("/", group(x=SPILLED))
    ours.tree.set_document("/a", array())
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=ConflictDetector())
    assert attributes(empty, "/") == {"x": SPILLED}
    assert empty.verify(deep=True).is_clean


def test_different_attributes_are_a_conflict_with_advice_and_can_be_merged(
    empty: Repository,
) -> None:
    ours, theirs = two(empty)
    ours.tree.set_document("/", group(title="weather", ours=1))
    ours.tree.set_document("/a", array())
    theirs.tree.set_document("/", group(title="weather", theirs=2))
    tip = theirs.commit("theirs")
    for solver in (ConflictDetector(), BasicConflictSolver()):
        with pytest.raises(RebaseFailedError, match=r"MergeSolver\(\) to keep those of both"):
            ours.commit("ours", rebase_with=solver)
    assert empty.lookup_branch("main") == tip
    ours.commit("ours", rebase_with=MergeSolver())
    assert attributes(empty, "/") == {"title": "weather", "ours": 1, "theirs": 2}
    assert empty.diff(from_snapshot_id=tip, to_branch="main").updated_groups == {"/"}
    assert empty.verify(deep=True).is_clean


def test_attributes_that_contradict_are_named(empty: Repository) -> None:
    ours, theirs = two(empty)
    ours.tree.set_document("/", group(title="mine"))
    theirs.tree.set_document("/", group(title="yours"))
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError, match='title: ours "mine", theirs "yours"'):
        ours.commit("ours", rebase_with=MergeSolver())
    assert attributes(empty, "/") == {"title": "yours"}


class OursAlways(ConflictSolver):
    """A rule of a user's own that looks at both documents."""

    def resolve(self, conflict: Conflict, sides: Sides) -> Resolution:
        documents = sides.documents(conflict)
        assert documents.base is None
        assert documents.theirs is not None
        assert documents.ours is not None
        return MergedDocument(documents.ours)


def test_a_solver_may_choose_a_document_for_a_group_but_not_for_an_array(
    empty: Repository,
) -> None:
    ours, theirs = two(empty)
    ours.tree.set_document("/", group(title="mine"))
    theirs.tree.set_document("/", group(title="yours"))
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=OursAlways())
    assert attributes(empty, "/") == {"title": "mine"}

    ours, theirs = two(empty)
    for session in (ours, theirs):
        session.tree.set_document("/n", array())
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError, match="NewNodeConflictsWithExistingNode"):
        ours.commit("ours", rebase_with=OursAlways())


def test_branches_that_both_began_are_merged(empty: Repository) -> None:
    empty.create_branch("work", empty.lookup_branch("main"))
    for branch, name in (("main", "a"), ("work", "b"), ("main", "c"), ("work", "d")):
        session = empty.writable_session(branch)
        zarr.create_array(session.store, name=f"g/{name}", shape=(2,), dtype="u1")[:] = 7
        session.commit(name)
    empty.merge("work", "main")
    assert node_paths(empty.readonly_session("main")) == ["/", "/g", "/g/a", "/g/b", "/g/c", "/g/d"]
    if empty.generation != "dataset":  # where numbers of nodes are used twice, by both branches
        session = empty.writable_session("work")
        zarr.open_array(session.store, path="g/d")[:] = 9
        session.commit("again")
        empty.merge("work", "main")
        assert zarr.open_array(empty.readonly_session("main").store, path="g/d", mode="r")[0] == 9
    assert empty.verify(deep=True).is_clean


def test_who_deletes_the_group_that_another_made_again_shares_it(empty: Repository) -> None:
    session = empty.writable_session("main")
    session.tree.set_document("/g", group(old=1))
    session.tree.set_document("/g/a", array())
    session.commit("start")
    ours, theirs = two(empty)
    for name, session in (("ours", ours), ("theirs", theirs)):
        session.tree.delete_node("/g")
        session.tree.set_document("/g", group(new=1))
        session.tree.set_document(f"/g/{name}", array())
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=ConflictDetector())
    assert node_paths(empty.readonly_session("main")) == ["/g", "/g/ours", "/g/theirs"]
    assert attributes(empty, "/g") == {"new": 1}
    assert empty.verify(deep=True).is_clean
