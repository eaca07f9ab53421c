"""Rows of whole chunks (layout `chunks`) as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.tables.table_plan import CHUNK, SHAPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


class Block:
    """One chunk of a table: its position, its coordinates and its values."""

    def __init__(self, batch: pa.RecordBatch, row: int) -> None:
        """Take a row of a batch of chunks."""
        self._batch = batch
        self._row = row
        self.start: tuple[int, ...] = tuple(batch.column(CHUNK)[row].as_py())
        """Position of the first cell in the array."""
        self.shape: tuple[int, ...] = tuple(batch.column(SHAPE)[row].as_py())

    @property
    def names(self) -> list[str]:
        """Names of coordinates and variables."""
        return [name for name in self._batch.schema.names if name not in (CHUNK, SHAPE)]

    def coordinate(self, dim: str) -> npt.NDArray[Any]:
        """Coordinate values of the block along one dimension."""
        return _numpy(self._batch.column(dim)[self._row].values)

    def values(self, name: str) -> npt.NDArray[Any]:
        """Values of a variable; missing ones are NaN, NaT or, of other types, masked."""
        return _numpy(self._batch.column(name)[self._row].values).reshape(self.shape)


def blocks(rows: pa.Table | pa.RecordBatch) -> Iterator[Block]:
    """The chunks in Arrow data, as it comes from `toArrow` or to a function of `mapInArrow`."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    for batch in batches:
        for row in range(batch.num_rows):
            yield Block(batch, row)


def _numpy(values: pa.Array) -> npt.NDArray[Any]:
    if not values.null_count or pa.types.is_floating(values.type):
        plain: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return plain
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        mask = values.is_null().to_numpy(zero_copy_only=False)
        return np.ma.masked_array(values.fill_null(0).to_numpy(zero_copy_only=False), mask)
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found
