"""Rows into blocks of arrays: each cell once, in the right place, or counted as refused."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.tables.chunk_summaries import Summaries
from icefloe.tables.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.session import TreeSession
    from icefloe.tables.write_plan import Target, WritePlan

    Numbers = npt.NDArray[np.int64]

MAX_EXAMPLES = 5


class Refused(Record, frozen=True):
    """Rows that cannot be written, with examples."""

    outside: int = 0
    duplicate: int = 0
    outside_examples: tuple[str, ...] = ()
    duplicate_examples: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.outside or self.duplicate)

    def plus(self, other: Refused) -> Refused:
        """Both together."""
        return Refused(
            self.outside + other.outside,
            self.duplicate + other.duplicate,
            (self.outside_examples + other.outside_examples)[:MAX_EXAMPLES],
            (self.duplicate_examples + other.duplicate_examples)[:MAX_EXAMPLES],
        )

    def error(self, plan: WritePlan) -> InvalidInputError:
        """What to tell the user."""
        parts = []
        if self.outside:
            where = "outside of the grid or the region"
            if plan.is_append:
                where = (
                    "outside of the grid, or not behind its end, where append writes (upsert sets "
                    "cells that exist)"
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


class Assembler:
    """Writes the blocks of a plan through a session, and counts what it refuses."""

    def __init__(self, session: TreeSession, plan: WritePlan) -> None:
        """Take a writable session, or a part of one."""
        self._session = session
        self._plan = plan
        self.refused = Refused()
        self.cells = 0
        self.summaries = Summaries(session, plan.statistics)

    def refuse_outside(self, rows: pa.RecordBatch) -> None:
        """Count rows that are not in the grid."""
        if rows.num_rows:
            some = tuple(_told(self._plan, row) for row in rows.slice(0, MAX_EXAMPLES).to_pylist())
            self.refused = self.refused.plus(Refused(outside=rows.num_rows, outside_examples=some))

    def write(self, rows: Rows) -> None:
        """Write one block, all of whose rows are given."""
        plan = self._plan
        region = plan.region_of(rows.block)
        extent = tuple(one.stop - one.start for one in region)
        inside = np.array([one.start for one in region], dtype=np.int64)
        local = np.ravel_multi_index(tuple((rows.places - inside).T), extent) if extent else None
        cells = np.zeros(1, dtype=np.int64) if local is None else local
        given = np.zeros(prod(extent), dtype=bool)
        given[cells] = True
        if np.count_nonzero(given) < len(cells):
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
        self.write_block(rows.block, values, given.reshape(extent))

    def write_block(
        self, number: int, values: dict[str, npt.NDArray[Any]], given: npt.NDArray[np.bool_]
    ) -> None:
        """Write one block, by name of the variable; what is not given stays, or is missing."""
        region = self._plan.region_of(number)
        is_whole = bool(given.all())
        self.cells += int(np.count_nonzero(given))
        for target in self._plan.targets:
            block = values[target.name]
            if not is_whole:
                base = self._base(target, region, given)
                base[given] = block[given]
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
        self, target: Target, region: tuple[slice, ...], given: npt.NDArray[np.bool_]
    ) -> npt.NDArray[Any]:
        """What is in a block before rows are laid over it, in the order of the table."""
        order = [target.dims.index(d) for d in self._plan.dims]
        own = tuple(region[self._plan.dims.index(d)] for d in target.dims)
        block = self._session.read_region(target.path, own).transpose(order).copy()
        if self._plan.clear:
            empty = self._empty_cells(region, given)
            if target.fill is None and empty.any():
                raise InvalidInputError(
                    f"the rows leave cells of the region of {target.path} empty, but the array "
                    "has no _FillValue that could stand for them"
                )
            if target.fill is not None:
                block[empty] = target.fill
        elif self._plan.is_new and target.fill is not None:
            block[...] = target.fill
        return block

    def _empty_cells(
        self, region: tuple[slice, ...], given: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Cells of a block that are in the region that is overwritten and have no row."""
        inside = np.zeros(given.shape, dtype=bool)
        places = [
            _within(self._plan.allowed[d], one)
            for d, one in zip(self._plan.dims, region, strict=True)
        ]
        inside[np.ix_(*places)] = True
        empty: npt.NDArray[np.bool_] = inside & ~given
        return empty

    def _put(self, target: Target, region: tuple[slice, ...], block: npt.NDArray[Any]) -> None:
        back = [self._plan.dims.index(d) for d in target.dims]
        own = tuple(region[at] for at in back)
        values = block.transpose(back)
        self._session.write_region(target.path, own, values)
        self.summaries.add(target.path, own, values)

    def refuse_duplicates(self, places: Numbers) -> None:
        """Count rows for cells that had a row before, by their positions (n, dimensions)."""
        told = tuple(_named(self._plan, place) for place in places[:MAX_EXAMPLES])
        self.refused = self.refused.plus(Refused(duplicate=len(places), duplicate_examples=told))


def _within(positions: Numbers, region: slice) -> Numbers:
    chosen = positions[(positions >= region.start) & (positions < region.stop)]
    moved: Numbers = chosen - region.start
    return moved


def _told(plan: WritePlan, row: dict[str, Any]) -> str:
    return "(" + ", ".join(f"{d}={row[d]}" for d in plan.dims) + ")"


def _named(plan: WritePlan, place: Numbers) -> str:
    values = {d: plan.coordinates[d][int(p)].as_py() for d, p in zip(plan.dims, place, strict=True)}
    return _told(plan, values)


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
