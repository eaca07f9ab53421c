"""Answers checks of chunks from their statistics, where these are up to date."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.record import Record
from icefloe.spark.publishing.cell_checks import Findings, MissingCheck, RangeCheck
from icefloe.tables.schema import variable_of
from icefloe.tables.statistics import decoded_bounds, has_numbers, read_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icefloe.arrays.grid import ChunkGrid
    from icefloe.tables.schema import Variable
    from icefloe.zarr_store.session_port import SessionPort

    Mask = npt.NDArray[np.bool_]
    Counts = npt.NDArray[np.int64]


class Settled(Record, frozen=True, eq=False):
    """What statistics tell of an array."""

    remaining: Any
    """Coordinates of the chunks that must be read."""
    findings: dict[int, Findings]
    """Of the other chunks, by check."""


def settle_by_statistics(
    session: SessionPort, grid: ChunkGrid, checks: Mapping[int, Any], shares: Mapping[int, float]
) -> Settled | None:
    """Answer the checks of an array for as many chunks as possible; None if there are none.

    Args:
        session: What is validated.
        grid: The chunk grid of the array.
        checks: The checks of its cells, by number.
        shares: Which share of cells may fail, by number.
    """
    if not all(isinstance(check, RangeCheck | MissingCheck) for check in checks.values()):
        return None
    variable = variable_of(session, grid.path)
    is_plain = variable.decoding.times is None and variable.decoding.duration is None
    if not has_numbers(variable.decoding) or not is_plain or variable.units != grid.chunk_shape:
        return None
    entries = read_entries(session, variable)
    if entries is None:
        return None
    numbers, current = entries
    cells = _cells(grid)
    missing = numbers[..., 2].astype(np.int64)
    settled = current.copy()
    for number, check in checks.items():
        if isinstance(check, MissingCheck):
            settled &= _enough_there(current, missing, cells, shares[number])
        else:
            settled &= (missing == cells) | _within(check, numbers, variable)
    if not settled.any():
        return None
    there = int(cells[settled].sum())
    findings = {
        number: Findings(there, int(missing[settled].sum()))
        if isinstance(check, MissingCheck)
        else Findings(there)
        for number, check in checks.items()
    }
    return Settled(np.argwhere(~settled).astype(np.int64), findings)


def _cells(grid: ChunkGrid) -> Counts:
    """How many elements of the array each chunk has."""
    lengths = [
        np.minimum(size, extent - np.arange(0, extent, size))
        for size, extent in zip(grid.chunk_shape, grid.shape, strict=True)
    ]
    product: Counts = reduce(np.multiply.outer, lengths, np.ones((), np.int64))
    return product


def _enough_there(current: Mask, missing: Counts, cells: Counts, share: float) -> Mask:
    """Chunks without missing values; all chunks if not too many values are missing altogether.

    If too many are, chunks with missing values are read, to show where.
    """
    if current.all() and missing.sum() <= share * cells.sum():
        return current
    complete: Mask = missing == 0
    return complete


def _within(check: RangeCheck, numbers: npt.NDArray[Any], variable: Variable) -> Mask:
    """Chunks whose smallest and largest values are within limits."""
    low, high, safe = decoded_bounds(numbers, variable.decoding)
    within = safe.copy()
    if isinstance(check.low, str) or isinstance(check.high, str):
        return np.zeros_like(within)
    if check.low is not None:
        within &= low >= check.low
    if check.high is not None:
        within &= high <= check.high
    return within
