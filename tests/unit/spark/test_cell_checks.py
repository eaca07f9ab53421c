"""Checks of cells: any division into blocks, and statistics, say what numpy says of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.arrays.grid import ChunkGrid, blocks, whole
from icefloe.errors import InvalidInputError
from icefloe.spark.engine.job import grid_of
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.inputs import InputArray
from icefloe.spark.publishing.cell_checks import (
    MAX_EXAMPLES,
    CellUnit,
    MissingCheck,
    RangeCheck,
    merged,
)
from icefloe.spark.publishing.coordinate_checks import (
    GapCheck,
    MonotonicCheck,
    duplicated,
    parse_step,
)
from icefloe.spark.publishing.statistics_shortcut import settle_by_statistics
from icefloe.tables.summarize import Summaries, WrittenStatistics, boxes_of

FILL = -9


@st.composite
def problems(draw: Any) -> Any:
    """Stored values with a fill value, chunks, steps of blocks, limits, and an attribute."""
    rank = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(1, 5)] * rank))
    chunks = draw(st.tuples(*[st.integers(1, extent) for extent in shape]))
    steps = draw(st.tuples(*[st.integers(1, 3)] * rank))
    count = int(np.prod(shape))
    cells = draw(st.lists(st.sampled_from([FILL, 0, 1, 2, 50]), min_size=count, max_size=count))
    scale = draw(st.sampled_from([None, 0.5, -2.0]))
    limits = draw(st.tuples(st.sampled_from([None, -3.0, 0.5]), st.sampled_from([1.0, 99.0])))
    return np.array(cells, "i4").reshape(shape), chunks, steps, scale, limits


class Problem:
    """A committed array with its statistics, and what numpy says of it."""

    def __init__(self, folder: str, problem: Any) -> None:
        stored, chunks, self.steps, scale, (low, high) = problem
        repo = icefloe.Repository.create(icefloe.local_filesystem_storage(folder))
        session = repo.writable_session("main")
        attributes = {"_FillValue": FILL} | ({} if scale is None else {"scale_factor": scale})
        array = zarr.open_group(session.store, mode="a").create_array(
            "a", shape=stored.shape, chunks=chunks, dtype="i4", attributes=attributes
        )
        array[...] = stored
        statistics = WrittenStatistics(session)
        summaries = Summaries(session, ["/a"])
        # Of some chunks only: those whose first coordinate is even.
        coords = session.tree.chunk_coords("/a")
        summaries.add_chunks("/a", coords[coords[:, 0] % 2 == 0])
        statistics.add_own(summaries)
        statistics.write()
        session.commit("values")
        self.session = repo.readonly_session("main")
        self.grid: ChunkGrid = grid_of(self.session, "/a")
        self.checks = {0: RangeCheck(low, high), 1: MissingCheck()}
        self.missing = stored == FILL
        values = stored * (1.0 if scale is None else scale)
        self.outside = ~self.missing & (values > high)
        if low is not None:
            self.outside |= ~self.missing & (values < low)

    def unit(self) -> CellUnit:
        array = InputArray.of(self.session, "/a", SessionSpec.of(self.session))
        return CellUnit(array, self.grid, whole(self.grid.shape), self.checks)


@given(problems())
def test_any_blocks_find_what_numpy_finds(
    tmp_path_factory: pytest.TempPathFactory, problem: Any
) -> None:
    case = Problem(str(tmp_path_factory.mktemp("repo")), problem)
    unit = case.unit()
    parts: dict[int, list[Any]] = {0: [], 1: []}
    for box in blocks(case.grid.box, case.steps):
        for number, findings in unit.findings(box, 2 * case.grid.chunk_bytes):
            parts[number].append(findings)
    for number, expected in ((0, case.outside), (1, case.missing)):
        found = merged(parts[number])
        assert (found.cells, found.failing) == (expected.size, int(expected.sum()))
        first = [tuple(place) for place in np.argwhere(expected)[:MAX_EXAMPLES].tolist()]
        assert [each.index for each in found.examples] == first
        if expected.ndim >= 2:
            plane = np.zeros(expected.shape[-2:], int)
            for row, column, count in found.plane:
                plane[row, column] = count
            summed = expected.sum(axis=tuple(range(expected.ndim - 2)))
            np.testing.assert_array_equal(plane, summed)


@given(problems(), st.sampled_from([0.0, 0.2, 1.0]))
def test_statistics_and_the_remaining_chunks_find_what_numpy_finds(
    tmp_path_factory: pytest.TempPathFactory, problem: Any, share: float
) -> None:
    case = Problem(str(tmp_path_factory.mktemp("repo")), problem)
    shares = {0: 0.0, 1: share}
    settled = settle_by_statistics(case.session, case.grid, case.checks, shares)
    if settled is None:
        return
    parts = {number: [part] for number, part in settled.findings.items()}
    unit = case.unit()
    for box in boxes_of(settled.remaining):
        for number, findings in unit.findings(box, 1):
            parts[number].append(findings)
    for number, expected in ((0, case.outside), (1, case.missing)):
        found = merged(parts[number])
        assert (found.cells, found.failing) == (expected.size, int(expected.sum()))
        if found.failing > shares[number] * found.cells:
            assert found.examples  # what fails can be shown


@given(st.lists(st.integers(0, 5), max_size=8), st.booleans())
def test_order_and_duplicates_are_those_of_numpy(numbers: list[int], strict: bool) -> None:
    values = np.array(numbers, "f8")
    steps = np.diff(values)
    right = steps > 0 if strict else steps >= 0
    rising = MonotonicCheck("increasing", strict)(values)
    assert rising.tolist() == [False] * bool(numbers) + (~right).tolist()
    falling = MonotonicCheck("decreasing", strict)(-values)
    assert falling.tolist() == rising.tolist()
    seen: set[int] = set()
    again = [number in seen or bool(seen.add(number)) for number in numbers]
    assert duplicated(values).tolist() == again


def test_duplicates_of_several_coordinates_are_combinations() -> None:
    station = np.array(["a", "b", "a", "a"])
    assert duplicated(np.array([1, 1, 2, 1]), station).tolist() == [False, False, False, True]


def test_steps_of_times_are_spans_or_months() -> None:
    days = np.array(["2020-01-31", "2020-02-29", "2020-03-31", "2020-05-31"], "M8[ns]")
    assert GapCheck("1M", 0).__call__(days).tolist() == [False, False, False, True]
    hours = np.array(["2020-01-01T00", "2020-01-01T06", "2020-01-01T18"], "M8[ns]")
    assert GapCheck("6h", 1e-6)(hours).tolist() == [False, False, True]
    assert GapCheck("360m", 1e-6)(hours).tolist() == [False, False, True]
    assert GapCheck(None, 1e-6)(np.array([0.0, 0.1, 0.2, 0.4, 0.5])).tolist() == (
        [False, False, False, True, False]
    )
    assert GapCheck(-10, 0)(np.array([30.0, 20.0, 10.0])).tolist() == [False] * 3
    with pytest.raises(InvalidInputError, match="give a number"):
        GapCheck("6h", 0)(np.array([0, 1]))
    with pytest.raises(InvalidInputError, match="steps of times are text"):
        GapCheck(6, 0)(hours)
    with pytest.raises(InvalidInputError, match="as in '6h'"):
        parse_step("0h")
