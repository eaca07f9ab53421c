"""Fills blocks of arrays by rows that come in any order, within a bounded memory.

A block is open from its first row until all of its cells are there. Where more blocks are open than
memory allows, rows of further blocks are left for another pass over the parts that have them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.tables.assembling import block_numbers, is_allowed
from icefloe.tables.encoding import encode
from icefloe.tables.write_plan import positions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from icefloe.tables.assembling import Assembler
    from icefloe.tables.write_plan import WritePlan

    Numbers = npt.NDArray[np.int64]

MAX_OPEN_BYTES = 192 * 1024 * 1024
"""What open blocks may take; one is open in any case."""
_STRING_BYTES = 64
"""What a string is taken to need."""


class Filler:
    """Fills the blocks of a plan."""

    def __init__(self, assembler: Assembler, plan: WritePlan) -> None:
        """Take what writes blocks, and counts what is refused."""
        self._assembler = assembler
        self._plan = plan
        self._open: dict[int, _Block] = {}
        self._left: set[int] = set()
        """Blocks that this pass has no room for."""
        self._full: set[int] = set()
        """Blocks that this pass has written: what comes for them now, comes twice."""
        self._done: set[int] = set()
        """Blocks of earlier passes, whose rows were all used."""
        self._passes = 0
        self._most_open = max(1, MAX_OPEN_BYTES // _block_bytes(plan))

    def fill(self, parts: Sequence[Callable[[], pa.Table]]) -> int:
        """Use all rows of all parts, which are read one at a time; returns how often all were."""
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
        """Use rows of a part; says whether some are left for later."""
        plan = self._plan
        places = np.stack([positions(plan, d, _one(table.column(d))) for d in plan.dims], axis=1)
        good = is_allowed(plan, places)
        if self._passes == 0 and not good.all():
            for batch in table.filter(pa.array(~good)).combine_chunks().to_batches():
                self._assembler.refuse_outside(batch)
        numbers = block_numbers(plan, np.maximum(places, 0))
        found = np.unique(numbers[good]).tolist()
        wanted = [number for number in found if number not in self._done]
        usable = [number for number in wanted if self._is_opened(number)]
        if len(usable) < len(found):
            good &= np.isin(numbers, np.array(usable, dtype=np.int64))
        self._place(table, np.flatnonzero(good), numbers, places)
        return len(usable) < len(wanted)

    def _is_opened(self, number: int) -> bool:
        """Open a block, if it is not; says whether there was room."""
        if number in self._open or number in self._full:
            return True
        # One that was left out has missed rows in this pass, so it waits for the next.
        if number in self._left or len(self._open) >= self._most_open:
            self._left.add(number)
            return False
        self._open[number] = _Block(self._plan, number)
        return True

    def _place(self, table: pa.Table, rows: Numbers, numbers: Numbers, places: Numbers) -> None:
        """Put rows into their blocks; those that are full are written."""
        size = prod(self._plan.block)
        cells = np.zeros(len(rows), dtype=np.int64)
        for axis, length in enumerate(self._plan.block):
            cells = cells * length + places[rows, axis] % length
        keys = numbers[rows] * size + cells
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        again = np.zeros(len(keys), dtype=bool)
        again[1:] = keys[1:] == keys[:-1]
        values = {} if self._assembler.refused else self._encoded(table, rows[order])
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
        twice = again | block.given[cells]
        if twice.any():
            self._refuse_twice(number, cells[twice])
        block.given[cells] = True
        block.count += int(len(cells) - twice.sum())
        for name, column in values.items():
            block.values[name][cells] = column
        if block.count == block.size:
            self._close(number)

    def _refuse_twice(self, number: int, cells: Numbers) -> None:
        plan = self._plan
        start = np.array([one.start for one in plan.region_of(number)], dtype=np.int64)
        local = np.stack(np.unravel_index(cells, plan.block), axis=1)
        self._assembler.refuse_duplicates(start + local)

    def _close(self, number: int) -> None:
        """Write a block, and forget it."""
        block = self._open.pop(number)
        self._full.add(number)
        if self._assembler.refused:
            return  # nothing will be committed: only count what else is wrong
        shape = self._plan.block
        inside = tuple(slice(0, extent) for extent in block.extent)
        values = {name: column.reshape(shape)[inside] for name, column in block.values.items()}
        self._assembler.write_block(number, values, block.given.reshape(shape)[inside])


class _Block:
    """Cells of one block that rows were found for; as large at the edges as elsewhere."""

    def __init__(self, plan: WritePlan, number: int) -> None:
        self.extent = tuple(one.stop - one.start for one in plan.region_of(number))
        self.size = prod(self.extent)
        self.count = 0
        cells = prod(plan.block)
        self.given = np.zeros(cells, dtype=bool)
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
