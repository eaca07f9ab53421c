"""Differences of values between two versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import Repository, in_memory_storage
from icefloe.errors import NodeNotFoundError
from tests.formats import how, keeps_logs

pytestmark = pytest.mark.usefixtures("each_generation")


def repository(values: np.ndarray[Any, Any], chunks: tuple[int, ...]) -> Repository:
    repo = Repository.create(in_memory_storage(), **how())
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("a", data=values, chunks=chunks)
    root.create_array("untouched", data=np.ones(3), chunks=(3,))
    session.commit("first")
    return repo


def change(repo: Repository, where: Any, value: Any) -> Any:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[where] = value
    session.commit("change")
    return repo.diff_values(from_branch="main~1", to_branch="main")


def test_it_counts_cells_and_finds_the_worst() -> None:
    values = np.arange(24.0).reshape(4, 6)
    found = change(
        repository(values, (2, 3)), np.s_[1:3, 2:4], values[1:3, 2:4] + [[0, 1], [5, -9]]
    )
    assert len(found) == 1
    only = found[0]
    assert (only.path, only.compared_chunks, only.changed_cells) == (
        "/a",
        4 if keeps_logs() else 3,
        3,
    )
    assert (only.largest_difference, only.where) == (9.0, (2, 3))
    assert repr(found) == "/a: 3 cells changed, by up to 9 at [2, 3]"


def test_missing_values_are_equal_to_each_other() -> None:
    values = np.array([1.0, np.nan, np.nan, 4.0])
    repo = repository(values, (4,))
    found = change(repo, slice(None), np.array([1.0, np.nan, 2.0, np.nan]))
    assert (found[0].changed_cells, found[0].largest_difference) == (2, None)
    assert found[0].where == (2,)


def test_equal_values_written_again_are_no_difference() -> None:
    values = np.arange(6, dtype="i8")
    found = change(repository(values, (2,)), slice(None), values)
    assert len(found) == keeps_logs()
    assert all((each.changed_cells, each.where) == (0, None) for each in found)


@pytest.mark.parametrize(
    ("values", "new"),
    [
        (np.array(["a", "b"], dtype=np.dtypes.StringDType()), "zz"),
        (np.array([1, 2], dtype="M8[s]"), np.datetime64(9, "s")),
        (np.array([True, False]), True),
        (np.array([250, 251], dtype="u1"), 1),
    ],
)
def test_other_types(values: np.ndarray[Any, Any], new: Any) -> None:
    found = change(repository(values, (2,)), slice(1, 2), new)
    assert (found[0].changed_cells, found[0].where) == (1, (1,))


def test_only_cells_that_both_versions_have_are_compared() -> None:
    repo = repository(np.ones((4, 2)), (2, 2))
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array.append(np.full((3, 2), 7.0))
    array[0, 0] = 3
    session.move("/a", "/b")
    session.commit("longer, and moved")
    found = repo.diff_values(from_branch="main~1", to_branch="main")
    assert [each.path for each in found] == ["/b"]
    assert found[0].changed_cells == 1
    assert (found[0].shape_before, found[0].shape_after) == ((4, 2), (7, 2))
    assert repo.diff_values(from_branch="main~1", to_branch="main", arrays="b") == found
    with pytest.raises(NodeNotFoundError, match=r"'other'.*there are /b"):
        repo.diff_values(from_branch="main~1", to_branch="main", arrays=["other"])


@given(data=st.data())
def test_it_equals_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    chunks = data.draw(st.tuples(*(st.integers(1, length) for length in shape)))
    old = np.array(data.draw(st.lists(st.integers(0, 3), min_size=49, max_size=49)))
    old = old[: shape[0] * shape[1]].reshape(shape).astype("f4")
    repo = repository(old, chunks)
    new = old.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        box = tuple(
            slice(low := data.draw(st.integers(0, n - 1)), data.draw(st.integers(low + 1, n)))
            for n in shape
        )
        new[box] = data.draw(st.integers(0, 3))
        change(repo, box, new[box])
    first = list(repo.ancestry(branch="main"))[-2].id
    found = repo.diff_values(from_snapshot_id=first, to_branch="main")
    assert len(found) == 1 or not (keeps_logs() or found)
    changed = found[0].changed_cells if found else 0
    assert changed == np.count_nonzero(old != new)
    if changed:
        distance = np.abs(new - old)
        assert found[0].largest_difference == distance.max()
        assert distance[found[0].where] == distance.max()
