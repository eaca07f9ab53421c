"""Differences of values between two versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import NodeNotFoundError
from tests.builders import new_repository
from tests.formats import keeps_logs

if TYPE_CHECKING:
    from icefloe import Repository

pytestmark = pytest.mark.usefixtures("each_generation")


def repository(values: np.ndarray[Any, Any], chunks: tuple[int, ...]) -> Repository:
    repo = new_repository()
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


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    ("values", "new"),
    [
        (np.array(["a", "b"], dtype=np.dtypes.StringDType()), "zz"),
        (np.array([1, 2], dtype="M8[s]"), np.datetime64(9, "s")),
        (np.array([(1.0, "a"), (np.nan, "b")], dtype=[("x", "f8"), ("y", "U2")]), (np.nan, "c")),
        (np.array([1j, complex(np.nan, 2)]), 5 + 4j),
        (np.array([b"ab", b"cd"], dtype="S2"), b"x"),
        (np.array([True, False]), True),
        (np.array([250, 251], dtype="u1"), 1),
    ],
)
def test_other_types(values: np.ndarray[Any, Any], new: Any) -> None:
    found = change(repository(values, (2,)), slice(1, 2), new)
    assert (found[0].changed_cells, found[0].where) == (1, (1,))


def test_arrays_without_dimensions() -> None:
    repo = repository(np.array(2.5), ())
    found = change(repo, (), 4)
    assert (found[0].changed_cells, found[0].largest_difference, found[0].where) == (1, 1.5, ())
    assert repr(found) == "/a: 1 cells changed, by up to 1.5 at []"


@pytest.mark.parametrize(
    ("dtype", "old", "new", "largest", "where"),
    [
        ("i8", [2**60, 5], [2**60 + 1, 5], 1, 0),
        ("i8", [2**62, 7, 9], [2**62, 8, 9], 1, 1),
        ("i8", [-(2**63), 0], [2**63 - 1, 3], 2**64 - 1, 0),
        ("u8", [0, 2**64 - 1], [1, 0], 2**64 - 1, 1),
        ("u1", [250, 3], [1, 4], 249, 0),
        ("i1", [-128, 3], [127, 4], 255, 0),
        ("?", [False, True], [False, False], 1, 1),
        ("M8[ns]", [0, 5], [3, 1], np.timedelta64(4, "ns"), 1),
        ("M8[ns]", [0, -(2**62)], ["NaT", 2**62 + 4], np.timedelta64((2**63 + 4) // 1000, "us"), 1),
        ("m8[s]", [1, 5], [3, 5], np.timedelta64(2, "s"), 0),
        ("f8", [1e308, 0], [-1e308, 0], np.inf, 0),
        ("f4", [np.inf, 0], [-np.inf, 0], np.inf, 0),
    ],
)
def test_differences_are_exact(
    dtype: str, old: list[Any], new: list[Any], largest: Any, where: int
) -> None:
    found = change(repository(np.array(old, dtype=dtype), (1,)), slice(None), np.array(new, dtype))
    assert found[0].largest_difference == largest
    assert type(found[0].largest_difference) is type(largest)
    assert found[0].where == (where,)


def test_the_sums_of_chunks_remember_the_worst() -> None:
    # A difference to a missing value has no size; later ones, however small, have.
    values = np.array([1.0, 1.0, 1.0])
    found = change(repository(values, (1,)), slice(None), np.array([np.nan, 1.5, 1.25]))
    assert (found[0].changed_cells, found[0].largest_difference) == (3, 0.5)
    assert found[0].where == (1,)
    assert repr(change(repository(np.array([2**60, 1]), (1,)), 0, 2**60 + 1)).endswith(
        "by up to 1 at [0]"
    )


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_missing_values_in_records_are_equal_to_each_other() -> None:
    kind = [("x", "f8"), ("y", "i4")]
    values = np.array([(np.nan, 1), (np.nan, 2), (np.nan, 3)], dtype=kind)
    changed = values.copy()
    changed[2]["y"] = 4
    found = change(repository(values, (3,)), slice(None), changed)
    assert (found[0].changed_cells, found[0].where) == (1, (2,))
    assert found[0].largest_difference is None


def replace_a(repo: Repository, values: np.ndarray[Any, Any], **how_to: Any) -> Any:
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    del root["a"]
    root.create_array("a", data=values, **how_to)
    session.commit("replaced")
    return repo.diff_values(from_branch="main~1", to_branch="main")


@pytest.mark.parametrize("chunks", [(2, 3), (3, 2)])
def test_an_array_that_was_created_anew_is_compared(chunks: tuple[int, ...]) -> None:
    values = np.arange(24.0).reshape(4, 6)
    changed = values.copy()
    changed[3, 4] += 2
    found = replace_a(repository(values, (2, 3)), changed, chunks=chunks)
    assert [each.path for each in found] == ["/a"]
    assert (found[0].changed_cells, found[0].largest_difference) == (1, 2.0)
    assert found[0].where == (3, 4)
    longer = replace_a(repository(values, (2, 3)), np.ones((5, 6)), chunks=chunks)
    assert (longer[0].shape_after, longer[0].changed_cells) == ((5, 6), 23)


def test_blocks_cover_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.arrays.value_diff._BLOCK_CELLS", 10)
    values = np.arange(7 * 5 * 4).reshape(7, 5, 4)
    found = replace_a(repository(values, (3, 2, 4)), values + 1, chunks=(2, 3, 1))
    assert (found[0].changed_cells, found[0].largest_difference) == (values.size, 1)


def test_what_cannot_be_compared_is_said() -> None:
    found = replace_a(repository(np.ones((2, 2)), (1, 2)), np.ones(4), chunks=(2,))
    assert repr(found) == "/a: cannot be compared: shape (2, 2) -> (4,)"
    assert (found[0].changed_cells, found[0].where) == (0, None)
    text = np.array(["a", "b"], dtype=np.dtypes.StringDType())
    found = replace_a(repository(np.ones(2), (2,)), text, chunks=(2,))
    assert found[0].not_comparable is not None
    assert "float64 -> StringDType" in found[0].not_comparable
    numbers = replace_a(repository(np.ones(2), (2,)), np.array([1, 3], dtype="u1"), chunks=(2,))
    assert (numbers[0].changed_cells, numbers[0].largest_difference) == (1, 2.0)


def test_an_array_that_took_the_place_of_a_moved_one_is_new() -> None:
    repo = repository(np.ones(4), (2,))
    session = repo.writable_session("main")
    session.move("/a", "/b")
    root = zarr.open_group(session.store)
    root.create_array("a", data=np.zeros(4), chunks=(2,))
    root["b"][3] = 2
    session.commit("moved")
    found = repo.diff_values(from_branch="main~1", to_branch="main")
    assert [(each.path, each.changed_cells) for each in found] == [("/b", 1)]


def test_arrays_of_a_moved_group_are_followed() -> None:
    repo = new_repository()
    session = repo.writable_session("main")
    zarr.create_group(session.store).create_group("g").create_array("a", data=np.ones(4))
    session.commit("first")
    session = repo.writable_session("main")
    session.move("/g", "/h")
    zarr.open_array(session.store, path="h/a")[1] = 5
    session.commit("moved")
    found = repo.diff_values(from_branch="main~1", to_branch="main")
    assert [(each.path, each.changed_cells) for each in found] == [("/h/a", 1)]


def test_another_fill_value_changes_cells_that_nobody_wrote() -> None:
    repo = repository(np.ones((5, 6), dtype="i2"), (2, 3))
    session = repo.writable_session("main")
    zarr.open_group(session.store).create_array(
        "sparse", shape=(8 * 10**9, 5), chunks=(2, 3), dtype="i2"
    )[0, :] = 4
    session.commit("sparse")
    session = repo.writable_session("main")
    for path in ("/sparse", "/a"):
        document = session.tree.document(path)
        assert document is not None
        session.tree.set_document(path, document.replace(b'"fill_value": 0', b'"fill_value": 7'))
    session.commit("another fill value")
    found = {each.path: each for each in repo.diff_values(from_branch="main~1", to_branch="main")}
    # The chunks that were written are two rows high; the second row was filled when written.
    assert found["/sparse"].changed_cells == 40 * 10**9 - 10
    assert (found["/sparse"].largest_difference, found["/sparse"].where) == (7, (2, 0))
    assert found["/a"].changed_cells == 0


def test_a_version_does_not_differ_from_itself() -> None:
    repo = repository(np.ones(4), (2,))
    assert repo.diff(from_branch="main", to_branch="main").is_empty()
    assert repo.diff_values(from_branch="main", to_branch="main") == []


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
