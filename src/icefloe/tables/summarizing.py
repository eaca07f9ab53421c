"""Smallest, largest and missing values of chunks, from values in memory: all chunks at once."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_index import Box
from icefloe.spark.engine.grid import split

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.tables.decoding import Decoding

    Values = npt.NDArray[Any]
    Numbers = npt.NDArray[np.float64]

NUMBERS = 3
"""Smallest and largest stored value and the number of missing ones."""
_STEP_BYTES = 4 * 1024 * 1024
"""What is looked at together: it is read three times and should stay in a processor's cache."""


def has_numbers(decoding: Decoding) -> bool:
    """Whether an array is of a type that has a smallest and a largest value."""
    return decoding.dtype != "string" and np.dtype(decoding.dtype).kind in "biuf"


def summarize_block(
    values: Values, chunk_shape: Sequence[int], decoding: Decoding
) -> Numbers | None:
    """Numbers of all chunks of a block that begins at the corner of one; (grid, 3).

    Smallest and largest are NaN where all values are missing. None if they are no numbers.
    """
    if not has_numbers(decoding):
        return None
    values = values.astype(decoding.dtype, copy=False)
    grid = tuple(-(-size // c) for size, c in zip(values.shape, chunk_shape, strict=True))
    found = np.empty((*grid, NUMBERS), dtype=np.float64)
    chunk_bytes = prod(chunk_shape) * values.itemsize
    for box in split(Box((0,) * len(grid), grid), _STEP_BYTES // chunk_bytes):
        rows = tuple(map(slice, box.lower, box.upper))
        elements = tuple(
            slice(part.start * c, part.stop * c) for part, c in zip(rows, chunk_shape, strict=True)
        )
        here = values[elements]
        if box.size == 1 and here.nbytes > _STEP_BYTES:
            found[rows] = _summarize_large(here, decoding)
        else:
            _summarize(here, chunk_shape, decoding, found[rows])
    return found


def _summarize_large(chunk: Values, decoding: Decoding) -> Numbers:
    """Numbers of one chunk, piece by piece, so that little memory is needed besides it."""
    whole = Box((0,) * chunk.ndim, chunk.shape)
    pieces = list(split(whole, _STEP_BYTES // chunk.itemsize))
    numbers = np.empty((len(pieces), NUMBERS), dtype=np.float64)
    for row, piece in enumerate(pieces):
        part = chunk[tuple(map(slice, piece.lower, piece.upper))]
        one = numbers[row].reshape((1,) * chunk.ndim + (NUMBERS,))
        _summarize(part, part.shape, decoding, one)
    low, high, missing = numbers.T
    return np.array([np.fmin.reduce(low), np.fmax.reduce(high), missing.sum()])


def _summarize(
    values: Values, chunk_shape: Sequence[int], decoding: Decoding, found: Numbers
) -> None:
    """Fill in the numbers of some chunks: whole ones, and those that the array's ends cut."""
    sides = []
    for size, chunk in zip(values.shape, chunk_shape, strict=True):
        count = size // chunk
        parts = [(slice(0, count * chunk), slice(0, count), chunk)] if count else []
        rest = size - count * chunk
        if rest:
            parts.append((slice(count * chunk, size), slice(count, count + 1), rest))
        sides.append(parts)
    for part in product(*sides):
        block = values[tuple(elements for elements, _, _ in part)]
        shape = [n for (_, rows, size) in part for n in (rows.stop - rows.start, size)]
        # Axes are only cut in two, which never copies.
        found[tuple(rows for _, rows, _ in part)] = _reduced(block.reshape(shape), decoding)


def _reduced(cells: Values, decoding: Decoding) -> Numbers:
    """Numbers of chunks of one shape, given as (chunks, elements, chunks, elements, …)."""
    mask = decoding.null_mask(cells)
    if decoding.unsigned is not None:
        cells = cells.view(decoding.unsigned)
    floats = cells.dtype.kind == "f"
    if floats and not decoding.reading.nan_is_null:
        nans = np.isnan(cells)
        mask = nans if mask is None else mask | nans
    if mask is None or not mask.any():
        missing: Any = 0
        low, high = _over_elements(np.minimum, cells), _over_elements(np.maximum, cells)
    else:
        missing = _over_elements(np.add, mask, np.int64)
        if floats and np.isnan(decoding.missing).all():
            low, high = _over_elements(np.fmin, cells), _over_elements(np.fmax, cells)
        else:
            top, bottom = _ends(cells.dtype)
            low = _over_elements(np.minimum, _replaced(cells, mask, top))
            high = _over_elements(np.maximum, _replaced(cells, mask, bottom))
    numbers = np.empty((*low.shape, NUMBERS), dtype=np.float64)
    numbers[..., 0], numbers[..., 1], numbers[..., 2] = low, high, missing
    numbers[numbers[..., 2] == np.prod(cells.shape[1::2], dtype=np.int64), :2] = np.nan
    return numbers


def _over_elements(function: np.ufunc, cells: Values, dtype: Any = None) -> Values:
    """Reduce each second axis, the outermost first: numpy is quickest so, whatever their sizes."""
    for axis in range(1, cells.ndim // 2 + 1):
        cells = function.reduce(cells, axis=axis, dtype=dtype)
    return cells


def _replaced(cells: Values, mask: npt.NDArray[np.bool_], value: Any) -> Values:
    """Cells with another value where a mask is set: by bits, in a third of the time of `where`."""
    bits = np.dtype(f"u{cells.itemsize}")
    ones = np.negative(mask.astype(bits))  # all of them where the mask is set
    given = np.array(value, dtype=cells.dtype).view(bits)
    replaced: Values = ((cells.view(bits) & ~ones) | (ones & given)).view(cells.dtype)
    return replaced


def _ends(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """A largest and a smallest value of a type, as such."""
    if dtype.kind == "b":
        return np.True_, np.False_
    if dtype.kind == "f":
        return dtype.type(np.inf), dtype.type(-np.inf)
    info = np.iinfo(dtype)
    return dtype.type(info.max), dtype.type(info.min)
