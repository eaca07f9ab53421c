"""Writes rows into blocks of arrays: each cell once, or the row is counted as refused.

`BlockWriter` writes blocks whose rows come together, `BlockFiller` blocks whose rows come in any
order, within a bounded memory: a block is open from its first row until all of its cells have one,
and rows that do not fit are left for another pass over the parts that have them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.tables.encoding import encode
from icefloe.tables.summarize import Summaries
from icefloe.tables.target_arrays import positions
from icefloe.tables.zarr_arrays import open_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.tables.target_arrays import TargetArray, WritePlan
    from icefloe.zarr_store.session_port import SessionPort

    Numbers = npt.NDArray[np.int64]

MAX_EXAMPLES = 5
MAX_OPEN_BYTES = 192 * 1024 * 1024
"""The most memory for open blocks; at least one is open."""
_STRING_BYTES = 64
"""The estimated size of a string."""


class Refused(Record, frozen=True):
    """The number of rows that cannot be written, with examples."""

    outside: int = 0
    duplicate: int = 0
    outside_examples: tuple[str, ...] = ()
    duplicate_examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.outside or self.duplicate)

    def plus(self, other: Refused) -> Refused:
        """Both together."""
        return Refused(
            outside=self.outside + other.outside,
            duplicate=self.duplicate + other.duplicate,
            outside_examples=(self.outside_examples + other.outside_examples)[:MAX_EXAMPLES],
            duplicate_examples=(self.duplicate_examples + other.duplicate_examples)[:MAX_EXAMPLES],
        )

    def error(self, plan: WritePlan) -> InvalidInputError:
        """The error that lists them."""
        parts = []
        if self.outside:
            where = "outside of the grid or the region"
            if plan.is_append:
                where = (
                    "outside of the grid, or not behind its end, where append writes (upsert, or "
                    "MERGE INTO in SQL, sets existing cells)"
                )
            parts.append(
                f"{_rows_are(self.outside)} {where}, e.g. {'; '.join(self.outside_examples)}"
            )
        if self.duplicate:
            parts.append(
                f"{_rows_are(self.duplicate)} for cells that have a row already, e.g. "
                f"{'; '.join(self.duplicate_examples)}"
            )
        return InvalidInputError(f"nothing was written: {'. '.join(parts)}")


def _rows_are(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"


class Rows(Record, frozen=True, eq=False):
    """Rows of one block: positions (n, dimensions) and value columns."""

    block: int
    places: Any
    columns: dict[str, Any]


class BlockWriter:
    """Writes the blocks of a plan to a session, and counts the rows that it refuses."""

    def __init__(self, session: SessionPort, plan: WritePlan) -> None:
        """Take a writable session, or a fork of one."""
        self._session = session
        self._plan = plan
        self.refused = Refused()
        self.cells = 0
        self.summaries = Summaries(session, plan.statistics)

    def refuse_outside(self, rows: pa.RecordBatch) -> None:
        """Count rows that are not in the grid."""
        if rows.num_rows:
            some = tuple(
                _cell_text(self._plan, row) for row in rows.slice(0, MAX_EXAMPLES).to_pylist()
            )
            self.refused = self.refused.plus(Refused(outside=rows.num_rows, outside_examples=some))

    def write(self, rows: Rows) -> None:
        """Write one block from all of its rows."""
        plan = self._plan
        region = plan.region_of(rows.block)
        extent = tuple(one.stop - one.start for one in region)
        inside = np.array([one.start for one in region], dtype=np.int64)
        local = np.ravel_multi_index(tuple((rows.places - inside).T), extent) if extent else None
        cells = np.zeros(1, dtype=np.int64) if local is None else local
        has_row = np.zeros(prod(extent), dtype=bool)
        has_row[cells] = True
        if np.count_nonzero(has_row) < len(cells):
            order = np.argsort(cells, kind="stable")
            again = order[1:][cells[order[1:]] == cells[order[:-1]]]
            self.refuse_duplicates(rows.places[np.sort(again)])
        if self.refused:
            return  # nothing will be committed: only count what else is wrong
        values = {}
        for target in plan.targets:
            flat = np.empty(prod(extent), dtype=target.stored_dtype)
            flat[cells] = encode(target.name, rows.columns[target.name], target.decoding)
            values[target.name] = flat.reshape(extent)
        self.write_block(rows.block, values, has_row.reshape(extent))

    def write_block(
        self, number: int, values: dict[str, npt.NDArray[Any]], has_row: npt.NDArray[np.bool_]
    ) -> None:
        """Write one block of values by variable; cells that have no row stay, or become missing."""
        region = self._plan.region_of(number)
        is_whole = bool(has_row.all())
        self.cells += int(np.count_nonzero(has_row))
        for target in self._plan.targets:
            block = values[target.name]
            if not is_whole:
                base = self._base(target, region, has_row)
                base[has_row] = block[has_row]
                block = base
            self._put(target, region, block)

    def clear(self, block: int) -> None:
        """Make the cells of the region in a block missing."""
        region = self._plan.region_of(block)
        extent = tuple(one.stop - one.start for one in region)
        for target in self._plan.targets:
            none = np.zeros(extent, dtype=bool)
            self._put(target, region, self._base(target, region, none))

    def _base(
        self, target: TargetArray, region: tuple[slice, ...], has_row: npt.NDArray[np.bool_]
    ) -> npt.NDArray[Any]:
        """The values of a block before its rows are written, in the order of the table."""
        order = [target.dims.index(d) for d in self._plan.dims]
        own = tuple(region[self._plan.dims.index(d)] for d in target.dims)
        block = self._session.read_region(target.path, own).transpose(order).copy()
        vacant = self._plan.vacant
        if vacant is not None:
            empty = _empty_cells(self._plan.dims, vacant, region, has_row)
            if self._plan.clear and target.fill is None and empty.any():
                raise InvalidInputError(
                    f"the rows leave cells of the region of {target.path} empty, but the array "
                    "has no _FillValue that could represent them"
                )
            if target.fill is not None:
                block[empty] = target.fill
        elif self._plan.is_new and target.fill is not None:
            block[...] = target.fill
        return block

    def _put(self, target: TargetArray, region: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        back = [self._plan.dims.index(d) for d in target.dims]
        own = tuple(region[at] for at in back)
        values = block.transpose(back)
        self._session.write_region(target.path, own, values)
        self.summaries.add(target.path, own, values)

    def refuse_duplicates(self, places: Numbers) -> None:
        """Count rows for cells that had a row before, by their positions (n, dimensions)."""
        examples = tuple(_named(self._plan, place) for place in places[:MAX_EXAMPLES])
        self.refused = self.refused.plus(
            Refused(duplicate=len(places), duplicate_examples=examples)
        )


def _empty_cells(
    dims: Sequence[str],
    vacant: dict[str, Numbers],
    region: tuple[slice, ...],
    has_row: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Cells of a block that become missing because they have no row."""
    inside = np.zeros(has_row.shape, dtype=bool)
    places = [_within(vacant[d], one) for d, one in zip(dims, region, strict=True)]
    inside[np.ix_(*places)] = True
    empty: npt.NDArray[np.bool_] = inside & ~has_row
    return empty


def _within(positions: Numbers, region: slice) -> Numbers:
    chosen = positions[(positions >= region.start) & (positions < region.stop)]
    moved: Numbers = chosen - region.start
    return moved


def _cell_text(plan: WritePlan, row: dict[str, Any]) -> str:
    return "(" + ", ".join(f"{d}={row[d]}" for d in plan.dims) + ")"


def _named(plan: WritePlan, place: Numbers) -> str:
    values = {d: plan.coordinates[d][int(p)].as_py() for d, p in zip(plan.dims, place, strict=True)}
    return _cell_text(plan, values)


def block_numbers(plan: WritePlan, places: Numbers) -> Numbers:
    """The block of each position (n, dimensions)."""
    number = np.zeros(len(places), dtype=np.int64)
    for axis, (size, count) in enumerate(zip(plan.block, plan.grid, strict=True)):
        number = number * count + places[:, axis] // size
    return number


def is_allowed(plan: WritePlan, places: Numbers) -> npt.NDArray[np.bool_]:
    """Which positions rows may have."""
    good: npt.NDArray[np.bool_] = np.all(places >= 0, axis=1)
    for axis, dim in enumerate(plan.dims):
        allowed = plan.allowed.get(dim)
        if allowed is not None:
            good &= np.isin(places[:, axis], allowed)
    return good


def by_block(batches: Iterable[tuple[Numbers, Numbers, pa.RecordBatch]]) -> Iterator[Rows]:
    """Rows of one block after the other, of batches that are sorted by block.

    Args:
        batches: For each batch the blocks and positions of its rows, and their value columns.
    """
    waiting: list[tuple[Numbers, pa.RecordBatch]] = []
    current: int | None = None
    for blocks, places, batch in batches:
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for start, stop in zip([0, *cuts], [*cuts, len(blocks)], strict=True):
            if start == stop:
                continue
            number = int(blocks[start])
            if current is not None and number != current:
                yield _joined(current, waiting)
                waiting = []
            current = number
            waiting.append((places[start:stop], batch.slice(start, stop - start)))
    if current is not None:
        yield _joined(current, waiting)


def _joined(block: int, parts: Sequence[tuple[Numbers, pa.RecordBatch]]) -> Rows:
    table = pa.Table.from_batches([batch for _, batch in parts])
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns = {
        name: pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c
        for name, c in columns.items()
    }
    return Rows(block, np.concatenate([places for places, _ in parts]), columns)


# --- rows in any order


class BlockFiller:
    """Fills the blocks of a plan from rows in any order."""

    def __init__(self, writer: BlockWriter, plan: WritePlan) -> None:
        """Take the writer of full blocks."""
        self._writer = writer
        self._plan = plan
        self._open: dict[int, _OpenBlock] = {}
        self._left: set[int] = set()
        """Blocks that do not fit into this pass."""
        self._full: set[int] = set()
        """Blocks that this pass has written: further rows for them are duplicates."""
        self._done: set[int] = set()
        """Blocks of earlier passes, whose rows were all used."""
        self._passes = 0
        self._most_open = max(1, MAX_OPEN_BYTES // _block_bytes(plan))

    def fill(self, parts: Sequence[Callable[[], pa.Table]]) -> int:
        """Write the rows of all parts, reading one part at a time; returns the number of passes."""
        while parts:
            parts = [part for part in parts if self._use(part())]
            for number in list(self._open):
                self._close(number)
            self._done |= self._full
            self._full.clear()
            self._left.clear()
            self._passes += 1
        return self._passes

    def _use(self, table: pa.Table) -> bool:
        """Use the rows of a part; returns whether some are left for another pass."""
        plan = self._plan
        places = np.stack([positions(plan, d, _one(table.column(d))) for d in plan.dims], axis=1)
        good = is_allowed(plan, places)
        if self._passes == 0 and not good.all():
            for batch in table.filter(pa.array(~good)).combine_chunks().to_batches():
                self._writer.refuse_outside(batch)
        numbers = block_numbers(plan, np.maximum(places, 0))
        found = np.unique(numbers[good]).tolist()
        unfinished = [number for number in found if number not in self._done]
        usable = [number for number in unfinished if self._is_opened(number)]
        if len(usable) < len(found):
            good &= np.isin(numbers, np.array(usable, dtype=np.int64))
        self._place(table, np.flatnonzero(good), numbers, places)
        return len(usable) < len(unfinished)

    def _is_opened(self, number: int) -> bool:
        """Open a block, if it is not open; returns whether it fits."""
        if number in self._open or number in self._full:
            return True
        # A block that was left out has missed rows of this pass: it waits for the next.
        if number in self._left or len(self._open) >= self._most_open:
            self._left.add(number)
            return False
        self._open[number] = _OpenBlock(self._plan, number)
        return True

    def _place(self, table: pa.Table, rows: Numbers, numbers: Numbers, places: Numbers) -> None:
        """Add rows to their blocks, and write blocks that are full."""
        size = prod(self._plan.block)
        cells = np.zeros(len(rows), dtype=np.int64)
        for axis, length in enumerate(self._plan.block):
            cells = cells * length + places[rows, axis] % length
        keys = numbers[rows] * size + cells
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        again = np.zeros(len(keys), dtype=bool)
        again[1:] = keys[1:] == keys[:-1]
        values = {} if self._writer.refused else self._encoded(table, rows[order])
        blocks = keys // size
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(keys)], strict=True):
            if stop > start:
                number, part = int(blocks[start]), slice(start, stop)
                of_block = {name: column[part] for name, column in values.items()}
                self._put(number, keys[part] - number * size, again[part], of_block)

    def _encoded(self, table: pa.Table, rows: Numbers) -> dict[str, npt.NDArray[Any]]:
        chosen = table.select([target.name for target in self._plan.targets]).take(rows)
        return {
            target.name: encode(target.name, _one(chosen.column(target.name)), target.decoding)
            for target in self._plan.targets
        }

    def _put(
        self,
        number: int,
        cells: Numbers,
        again: npt.NDArray[np.bool_],
        values: dict[str, npt.NDArray[Any]],
    ) -> None:
        block = self._open.get(number)
        if block is None:
            self._refuse_twice(number, cells)
            return
        twice = again | block.has_row[cells]
        if twice.any():
            self._refuse_twice(number, cells[twice])
        block.has_row[cells] = True
        block.count += int(len(cells) - twice.sum())
        for name, column in values.items():
            block.values[name][cells] = column
        if block.count == block.size:
            self._close(number)

    def _refuse_twice(self, number: int, cells: Numbers) -> None:
        plan = self._plan
        start = np.array([one.start for one in plan.region_of(number)], dtype=np.int64)
        local = np.stack(np.unravel_index(cells, plan.block), axis=1)
        self._writer.refuse_duplicates(start + local)

    def _close(self, number: int) -> None:
        """Write a block and release its memory."""
        block = self._open.pop(number)
        self._full.add(number)
        if self._writer.refused:
            return  # nothing will be committed: only count what else is wrong
        shape = self._plan.block
        inside = tuple(slice(0, extent) for extent in block.extent)
        values = {name: column.reshape(shape)[inside] for name, column in block.values.items()}
        self._writer.write_block(number, values, block.has_row.reshape(shape)[inside])


class _OpenBlock:
    """The cells of a block that have a row so far; also at the edges of the array of full size."""

    def __init__(self, plan: WritePlan, number: int) -> None:
        self.extent = tuple(one.stop - one.start for one in plan.region_of(number))
        self.size = prod(self.extent)
        self.count = 0
        cells = prod(plan.block)
        self.has_row = np.zeros(cells, dtype=bool)
        self.values: dict[str, npt.NDArray[Any]] = {
            target.name: np.empty(cells, dtype=target.stored_dtype) for target in plan.targets
        }


def _block_bytes(plan: WritePlan) -> int:
    items = [
        _STRING_BYTES if target.decoding.dtype == "string" else target.stored_dtype.itemsize
        for target in plan.targets
    ]
    return prod(plan.block) * (1 + sum(items))


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        chunks = combined.chunks
        return pa.concat_arrays(chunks) if chunks else pa.array([], combined.type)
    return combined


# --- cells without a row


def clear_rest(session: SessionPort, plan: WritePlan) -> Summaries:
    """Make cells missing that are in blocks without a single row.

    These are the cells of the region that is overwritten, or those by which the grid has grown.
    Returns the summaries of the chunks that were written.
    """
    writer = BlockWriter(session, plan)
    vacant = plan.vacant
    if vacant is None:
        return writer.summaries
    touched = _touched_blocks(session, plan)
    per_axis = [np.unique(vacant[d] // size) for d, size in zip(plan.dims, plan.block, strict=True)]
    if not all(len(numbers) for numbers in per_axis):
        return writer.summaries
    mesh = np.meshgrid(*per_axis, indexing="ij")
    numbers = np.ravel_multi_index(tuple(m.ravel() for m in mesh), plan.grid)
    for block in numbers.tolist():
        if block not in touched:
            writer.clear(block)
    return writer.summaries


def _touched_blocks(session: SessionPort, plan: WritePlan) -> set[int]:
    """Blocks that tasks wrote: those with chunks that the session changed."""
    target = plan.targets[0]
    diff = session.status().chunk_indexes().get(target.path)
    if diff is None:
        return set()
    array = open_array(session, target.path)
    unit = np.array(array.shards or array.chunks, dtype=np.int64)
    cells = diff.coords().astype(np.int64) * unit
    order = [target.dims.index(d) for d in plan.dims]
    places = cells[:, order] // np.array(plan.block, dtype=np.int64)
    return set(np.ravel_multi_index(tuple(places.T), plan.grid).tolist())
