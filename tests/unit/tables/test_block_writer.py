"""Rows in any order into blocks, with room for few of them at a time."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark.tables import staging
from icefloe.tables import block_writer
from icefloe.tables.block_writer import BlockFiller, BlockWriter
from icefloe.tables.target_arrays import RowSummary, WritePlan, WriteRequest, prepare

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("y", pa.int64()), ("x", pa.int64()), ("v", pa.float64())])


class Run:
    """A table of `shape` that is filled in parts."""

    def __init__(self, shape: tuple[int, int], chunks: tuple[int, int]) -> None:
        repo = icefloe.Repository.create(icefloe.in_memory_storage())
        self.session = repo.writable_session("main")
        grid = {"y": list(range(shape[0])), "x": list(range(shape[1]))}
        request = WriteRequest(
            dims=("y", "x"), chunks={"y": chunks[0], "x": chunks[1]}, coordinates=grid
        )
        self.plan: WritePlan = prepare(self.session, request, RowSummary(SCHEMA, {}, 0, {}))
        self.writer = BlockWriter(self.session, self.plan)
        self.read: list[int] = []
        """The parts that were read, in order."""

    def fill(self, parts: list[np.ndarray[Any, Any]], width: int) -> int:
        """Rows are numbers of cells; returns the number of passes."""

        def reader(at: int) -> Any:
            def read() -> pa.Table:
                self.read.append(at)
                cells = parts[at]
                columns = [cells // width, cells % width, cells.astype("f8")]
                return pa.table([pa.array(column) for column in columns], schema=SCHEMA)

            return read

        return BlockFiller(self.writer, self.plan).fill([reader(at) for at in range(len(parts))])

    def values(self) -> np.ndarray[Any, Any]:
        return self.session.read_region("/v")


def test_rows_in_order_are_read_once_whatever_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_writer, "MAX_OPEN_BYTES", 40 * 9 * 2)  # room for a row of blocks
    run = Run((40, 20), (2, 10))
    assert run.fill(np.split(np.arange(800), 20), 20) == 1
    np.testing.assert_array_equal(run.values().ravel(), np.arange(800))


def test_without_room_rows_wait_for_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_writer, "MAX_OPEN_BYTES", 1)
    run = Run((4, 4), (2, 2))
    cells = np.random.default_rng(3).permutation(16)
    assert run.fill(np.split(cells, 4), 4) == 4
    np.testing.assert_array_equal(run.values().ravel(), np.arange(16))
    # Parts whose rows were all used are not read again.
    run = Run((4, 4), (4, 2))
    assert run.fill([np.array([0, 1]), np.array([2, 3]), np.array([4, 5])], 4) == 2
    assert run.read == [0, 1, 2, 1]


@given(st.data())
def test_any_rows_and_any_room(data: Any) -> None:
    shape = (data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7)))
    chunks = tuple(data.draw(st.integers(1, size)) for size in shape)
    cells = np.array(
        data.draw(st.lists(st.integers(0, shape[0] * shape[1] - 1), min_size=1, max_size=60))
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(cells)), max_size=4)))
    room = data.draw(st.sampled_from([1, 100, 1000]))
    run = Run(shape, (chunks[0], chunks[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_writer, "MAX_OPEN_BYTES", room)
        run.fill(np.split(cells, cuts), shape[1])
    assert run.writer.refused.duplicate == len(cells) - len(np.unique(cells))
    if not run.writer.refused:
        expected = np.full(shape, np.nan)
        expected.ravel()[cells] = cells
        np.testing.assert_array_equal(run.values(), expected)
        assert run.writer.cells == len(cells)


def test_rows_outside_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_writer, "MAX_OPEN_BYTES", 1)
    run = Run((4, 4), (2, 2))
    run.fill([np.array([0, 3, 16, 17]), np.array([15, 18])], 4)
    assert run.writer.refused.outside == 3


def test_a_write_that_is_too_large_for_one_process_names_the_other_way(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(str(tmp_path / "r"))
    rows = pa.table([pa.array([0, 1]), pa.array([0, 1]), pa.array([1.0, 2.0])], schema=SCHEMA)
    context = pickle.dumps(repo._context)
    with pytest.raises(InvalidInputError, match="write_table"):
        staging.stage(context, ("y", "x"), rows.to_batches(), 47)
    staged = staging.stage(context, ("y", "x"), rows.to_batches(), 48)
    request = WriteRequest(dims=("y", "x"))
    how = staging.StagedCommit("main", "rows", {}, max_bytes=95)
    with pytest.raises(InvalidInputError, match="max-staged-bytes"):
        staging.commit_staged(repo, request, SCHEMA, ("y", "x"), [staged, staged], how)
    assert staging.commit_staged(repo, request, SCHEMA, ("y", "x"), [staged], how)
