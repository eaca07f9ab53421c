"""Appends of two writers that follow each other, and what is refused with advice."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

from icefloe import (
    AppendSolver,
    BasicConflictSolver,
    ConflictDetector,
    MergeSolver,
    Repository,
    RepositoryConfig,
    VersionSelection,
)
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.engine.commit.linked_tiles import link_tiles, write_tiles
from icefloe.errors import RebaseFailedError
from icefloe.session import ForkSession
from tests.builders import new_repository
from tests.formats import how

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session


pytestmark = pytest.mark.usefixtures("each_generation")


@pytest.fixture
def repository() -> Repository:
    repository = new_repository()
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    values = root.create_array(
        "values", shape=(4, 3), chunks=(2, 2), dtype="i4", dimension_names=("time", "x")
    )
    values[:] = 0
    time = root.create_array("time", shape=(4,), chunks=(2,), dtype="i4", dimension_names=("time",))
    time[:] = [0, 1, 2, 3]
    root.create_array("x", shape=(3,), chunks=(3,), dtype="i4", dimension_names=("x",))[:] = 1
    session.commit("four steps")
    return repository


def append(session: Session, value: int, steps: int = 2) -> None:
    root = zarr.open_group(session.store)
    root["values"].append(np.full((steps, 3), value, dtype="i4"))
    root["time"].append(np.full(steps, value, dtype="i4"))


def race(repository: Repository, ours: int = 2, theirs: int = 2) -> Session:
    session = repository.writable_session("main")
    append(session, 7, ours)
    other = repository.writable_session("main")
    append(other, 8, theirs)
    other.commit("theirs")
    return session


def values(repository: Repository) -> tuple[list[int], np.ndarray]:
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    return root["time"][:].tolist(), np.asarray(root["values"])


@pytest.mark.parametrize("ours", [1, 2, 5])
def test_ours_goes_behind_theirs(repository: Repository, ours: int) -> None:
    session = race(repository, ours, 6)
    session.commit("ours", rebase_with=AppendSolver("time"))
    time, data = values(repository)
    assert time == [0, 1, 2, 3] + [8] * 6 + [7] * ours
    np.testing.assert_array_equal(data[4:], np.repeat(np.array(time[4:])[:, None], 3, axis=1))


def test_three_writers_and_overwritten_steps(repository: Repository) -> None:
    sessions = [repository.writable_session("main") for _ in range(3)]
    for place, session in enumerate(sessions):
        append(session, 10 + place)
    zarr.open_array(sessions[2].store, path="values")[0:2] = 5  # and old steps anew
    for session in sessions:
        session.commit("append", rebase_with=AppendSolver("time"))
    time, data = values(repository)
    assert time == [0, 1, 2, 3, 10, 10, 11, 11, 12, 12]
    np.testing.assert_array_equal(data[:, 0], [5, 5, 0, 0, 10, 10, 11, 11, 12, 12])


def test_without_the_solver_the_report_says_what_to_do(repository: Repository) -> None:
    session = race(repository)
    with pytest.raises(RebaseFailedError, match=r"AppendSolver\('time'\)"):
        session.commit("ours", rebase_with=ConflictDetector())
    session.commit("ours", rebase_with=AppendSolver("time"))  # the session is as it was
    assert values(repository)[0] == [0, 1, 2, 3, 8, 8, 7, 7]


def test_an_array_without_names_says_so() -> None:
    repository = new_repository()
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2,), chunks=(2,), dtype="i4")[:] = 1
    session.commit("first")
    ours, theirs = (repository.writable_session("main") for _ in range(2))
    for each in (ours, theirs):
        zarr.open_array(each.store, path="a").append(np.ones(2, dtype="i4"))
    theirs.commit("theirs")
    with pytest.raises(RebaseFailedError, match="give it a dimension name"):
        ours.commit("ours", rebase_with=AppendSolver("time"))


def test_appends_within_a_chunk_are_refused(repository: Repository) -> None:
    session = race(repository, 2, 3)
    with pytest.raises(RebaseFailedError, match="other writer ends within a chunk"):
        session.commit("ours", rebase_with=AppendSolver("time"))
    assert values(repository)[0] == [0, 1, 2, 3, 8, 8, 8]


def test_a_change_of_another_dimension_is_refused(repository: Repository) -> None:
    session = repository.writable_session("main")
    append(session, 7)
    zarr.open_array(session.store, path="values").resize((6, 4))
    other = repository.writable_session("main")
    append(other, 8)
    other.commit("theirs")
    with pytest.raises(RebaseFailedError, match="other dimensions changed too"):
        session.commit("ours", rebase_with=AppendSolver("time"))


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_array_that_is_new_along_the_dimension_is_refused(
    repository: Repository, *, is_ours: bool
) -> None:
    session, other = (repository.writable_session("main") for _ in range(2))
    append(session, 7)
    append(other, 8)
    zarr.open_group((session if is_ours else other).store).create_array(
        "more", shape=(6,), chunks=(2,), dtype="i4", dimension_names=("time",)
    )
    other.commit("theirs")
    with pytest.raises(RebaseFailedError, match="/more is new"):
        session.commit("ours", rebase_with=AppendSolver("time"))


def test_an_array_that_they_did_not_extend_is_refused(repository: Repository) -> None:
    session = repository.writable_session("main")
    append(session, 7)
    other = repository.writable_session("main")
    zarr.open_array(other.store, path="values").append(np.full((2, 3), 8, dtype="i4"))
    other.commit("forgot the coordinate")
    with pytest.raises(RebaseFailedError, match="/time was made longer"):
        session.commit("ours", rebase_with=AppendSolver("time"))


def test_attributes_are_merged_and_other_conflicts_go_to_the_other_solver(
    repository: Repository,
) -> None:
    session = repository.writable_session("main")
    append(session, 7)
    zarr.open_array(session.store, path="values").attrs["ours"] = 1
    zarr.open_array(session.store, path="x").attrs["ours"] = 1
    other = repository.writable_session("main")
    append(other, 8)
    zarr.open_array(other.store, path="values").attrs["theirs"] = 2
    zarr.open_array(other.store, path="x").attrs["theirs"] = 2
    other.commit("theirs")
    with pytest.raises(RebaseFailedError, match="/x: ZarrMetadataDoubleUpdate"):
        session.commit("ours", rebase_with=AppendSolver("time"))
    session.commit("ours", rebase_with=AppendSolver("time", MergeSolver()))
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert dict(root["values"].attrs) == {"ours": 1, "theirs": 2}
    assert dict(root["x"].attrs) == {"ours": 1, "theirs": 2}
    assert values(repository)[0] == [0, 1, 2, 3, 8, 8, 7, 7]


def test_without_a_race_nothing_moves(repository: Repository) -> None:
    session = repository.writable_session("main")
    append(session, 7, 3)
    other = repository.writable_session("main")
    zarr.open_array(other.store, path="x")[:] = 9
    other.commit("theirs")
    session.commit("ours", rebase_with=AppendSolver("time"))
    assert values(repository)[0] == [0, 1, 2, 3, 7, 7, 7]


IN_FOURS = RepositoryConfig(
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(0): 4}}
        )
    )
)


@pytest.fixture
def cut(tmp_path: Path) -> Repository:
    """An array whose manifests have four chunks each."""
    made = Repository.create(tmp_path / "r", IN_FOURS, **how())
    with made.transaction("main", message="two steps") as store:
        zarr.create_group(store).create_array(
            "a", shape=(2,), chunks=(1,), dtype="u1", dimension_names=("time",)
        )[:] = 1
    return made


def link(session: Session, start: int, values: list[int]) -> None:
    """Write as the tasks of a job do, which write manifests too."""
    part = pickle.loads(pickle.dumps(ForkSession.part_of(session)))
    zarr.open_array(part.store, path="a")[start : start + len(values)] = values
    link_tiles(session.tree, "/a", write_tiles(part.tree, "/a"))


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_linked_tiles_are_moved_along(cut: Repository, count: int, *, is_mixed: bool) -> None:
    ours, theirs = (cut.writable_session("main") for _ in range(2))
    mine = list(range(100, 100 + count))
    zarr.open_array(ours.store, path="a").resize((2 + count,))
    link(ours, 2, mine)
    if is_mixed:
        mine[-1] = 99
        zarr.open_array(ours.store, path="a")[-1] = 99
    zarr.open_array(theirs.store, path="a").append([50])
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=AppendSolver("time"))
    found = zarr.open_array(cut.readonly_session("main").store, path="a", mode="r")
    assert found[:].tolist() == [1, 1, 50, *mine]
    assert cut.verify(deep=True).is_clean


def test_linked_tiles_are_left_to_the_other_solver_chunk_by_chunk(cut: Repository) -> None:
    ours, theirs = (cut.writable_session("main") for _ in range(2))
    link(ours, 0, [7, 7])
    zarr.open_array(theirs.store, path="a")[0] = 9
    theirs.commit("theirs")
    others = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    ours.commit("ours", rebase_with=AppendSolver("time", others))
    found = zarr.open_array(cut.readonly_session("main").store, path="a", mode="r")
    assert found[:].tolist() == [9, 7]


# --- branches


def parted(repository: Repository, ours: tuple[int, int], theirs: tuple[int, int]) -> str:
    """Let a branch and main append values, so many times; returns the commit of the branch."""
    repository.create_branch("work", repository.lookup_branch("main"))
    tips = {}
    for branch, (value, steps) in (("work", ours), ("main", theirs)):
        session = repository.writable_session(branch)
        append(session, value, steps)
        tips[branch] = session.commit(f"{steps} times {value}")
    return tips["work"]


def native_repository() -> Repository:
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = new_repository(config=config)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for name, shape, names in (("values", (4, 3), ("time", "x")), ("time", (4,), ("time",))):
        chunks = (2,) * len(shape)
        root.create_array(name, shape=shape, chunks=chunks, dtype="i4", dimension_names=names)[
            :
        ] = 0
    session.commit("four steps")
    return repository


@pytest.mark.parametrize("ours", [(7, 2), (7, 5), (8, 2), (8, 6), (8, 3)], ids=str)
@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("is_picked", [False, True])
def test_appends_of_branches_follow_each_other(
    repository: Repository, ours: tuple[int, int], is_native: bool, is_picked: bool
) -> None:
    """As in a rebase, also if both appended the same, or equally much."""
    repository = native_repository() if is_native else repository
    before = values(repository)[0]
    commit = parted(repository, ours, (8, 2))
    solver = AppendSolver("time")
    if is_picked:
        repository.cherry_pick(commit, branch="main", solver=solver)
    else:
        repository.merge("work", "main", solver=solver)
    times, found = values(repository)
    assert times == [*before, 8, 8, *[ours[0]] * ours[1]]
    assert found[4:, 0].tolist() == times[4:]
    assert repository.verify(deep=True).is_clean


@pytest.mark.parametrize("steps", [2, 4])
def test_a_merge_of_appends_says_how(repository: Repository, steps: int) -> None:
    parted(repository, (7, steps), (8, 2))
    with pytest.raises(RebaseFailedError, match=r"rebase with AppendSolver\('time'\)"):
        repository.merge("work", "main")


def test_other_changes_of_arrays_that_both_appended_to(repository: Repository) -> None:
    repository.create_branch("work", repository.lookup_branch("main"))
    for branch, value in (("work", 7), ("main", 8)):
        session = repository.writable_session(branch)
        append(session, value)
        time = zarr.open_array(session.store, path="time")
        time[0:2] = 5  # on both
        time[2:4] = 6 if branch == "work" else [2, 3]
        session.commit(branch)
    repository.merge("work", "main", solver=AppendSolver("time"))
    assert values(repository)[0] == [5, 5, 6, 6, 8, 8, 7, 7]


def test_what_was_appended_and_picked_is_not_appended_again() -> None:
    repository = native_repository()
    picked = parted(repository, (7, 2), (8, 2))
    solver = AppendSolver("time")
    repository.reset_branch("main", "main~1")
    tip = repository.cherry_pick(picked, branch="main", solver=solver)
    assert repository.cherry_pick(picked, branch="main", solver=solver) == tip
    session = repository.writable_session("work")
    append(session, 9)
    more = session.commit("more")
    with pytest.raises(RebaseFailedError, match="on both branches already"):
        repository.merge("work", "main", solver=solver)
    repository.cherry_pick(more, branch="main", solver=solver)
    assert values(repository)[0] == [0, 0, 0, 0, 7, 7, 9, 9]
