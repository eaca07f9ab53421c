"""Checks the cells of blocks, on executors.

What a check finds in a part of an array is bounded in size, however many cells fail: counts, a few
examples, and where the failing cells are as a coarse picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from icefloe.arrays.cell_differences import differing
from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import ChunkGrid, Region, num_elements, split, whole
from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.jobs.inputs import InputArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.model.chunk_index import Box

    Values = npt.NDArray[Any]
    Mask = npt.NDArray[np.bool_]

MAX_EXAMPLES = 5
MAP_ROWS = 32
MAP_COLUMNS = 64
"""Bins of the picture of failing cells; arrays that are smaller have fewer."""


class FailingCell(Record, frozen=True):
    """One cell that is not as expected."""

    index: tuple[int, ...]
    value: float | str | None
    """None if it is missing."""


class Findings(Record, frozen=True):
    """What a check found in a part of an array, or in all of it."""

    cells: int = 0
    failing: int = 0
    low: float | None = None
    """The smallest failing value; None if they are missing or no numbers."""
    high: float | None = None
    examples: tuple[FailingCell, ...] = ()
    """The first failing cells in the order of their indexes."""
    plane: tuple[tuple[int, int, int], ...] = ()
    """Row, column and failing cells of bins over the last two dimensions."""
    profile: tuple[tuple[int, int], ...] = ()
    """Number and failing cells of bins along the first dimension."""


def merged(parts: Iterable[Findings]) -> Findings:
    """What several parts of one array have together.

    >>> merged([Findings(4, 1, low=2.0, high=2.0), Findings(4, 2, low=-1.0, high=0.0)]).low
    -1.0
    """
    parts = list(parts)
    plane: dict[tuple[int, int], int] = {}
    profile: dict[int, int] = {}
    for part in parts:
        for row, column, count in part.plane:
            plane[row, column] = plane.get((row, column), 0) + count
        for number, count in part.profile:
            profile[number] = profile.get(number, 0) + count
    lows = [part.low for part in parts if part.low is not None]
    highs = [part.high for part in parts if part.high is not None]
    examples = sorted((each for part in parts for each in part.examples), key=lambda e: e.index)
    return Findings(
        cells=sum(part.cells for part in parts),
        failing=sum(part.failing for part in parts),
        low=min(lows, default=None),
        high=max(highs, default=None),
        examples=tuple(examples[:MAX_EXAMPLES]),
        plane=tuple((*place, count) for place, count in sorted(plane.items())),
        profile=tuple(sorted(profile.items())),
    )


# --- blocks


class BlockValues:
    """A block of an array: its values as CF attributes have them, and which are missing."""

    def __init__(self, array: InputArray, region: Region) -> None:
        """Read a region of an array."""
        self.region = region
        self._array = array
        self._stored = array.read(region)
        self.values: Values = array.coding.decode_numbers(self._stored)
        mask = array.coding.missing_mask(self._stored)
        if self.values.dtype.kind in "fcmM":
            nowhere: Mask = np.isnan(self.values)
            mask = nowhere if mask is None else mask | nowhere
        self.missing: Mask = np.zeros(self.values.shape, np.bool_) if mask is None else mask

    def moments(self) -> Values:
        """The values as times; raises InvalidInputError if they are none."""
        decoded = self._array.coding.decode(self._stored)
        if decoded.dtype.kind != "M":
            raise InvalidInputError(
                f"{self._array.path} has no times of the usual calendar, so that limits of it are "
                "numbers"
            )
        return decoded


class CellCheck(Protocol):
    """Which cells of a block are not as expected."""

    def failing(self, block: BlockValues) -> Mask:
        """The failing cells."""


class RangeCheck(Record, frozen=True):
    """Values are within limits."""

    low: float | str | None
    high: float | str | None

    def failing(self, block: BlockValues) -> Mask:
        """Values outside of the limits; missing ones are no values."""
        values: Values = block.values
        low: Any = self.low
        high: Any = self.high
        if isinstance(low, str) or isinstance(high, str):
            values = block.moments()
            low, high = (None if each is None else np.datetime64(each) for each in (low, high))
        outside = np.zeros(values.shape, np.bool_)
        if low is not None:
            outside |= values < low
        if high is not None:
            outside |= values > high
        return outside & ~block.missing


class MissingCheck(Record, frozen=True):
    """Values are there."""

    def failing(self, block: BlockValues) -> Mask:
        """Missing values."""
        return block.missing


class EqualCheck(Record, frozen=True):
    """Values are those of another version."""

    other: InputArray
    absolute: float
    relative: float

    def failing(self, block: BlockValues) -> Mask:
        """Values that differ by more than the tolerance, or are missing in one version only."""
        theirs = BlockValues(self.other, block.region)
        if block.values.dtype.kind not in "iufb" or theirs.values.dtype.kind not in "iufb":
            return differing(block.values, theirs.values)
        differs = differing(block.values, theirs.values)
        if self.absolute or self.relative:
            own, their = (each.values.astype(np.float64) for each in (block, theirs))
            with np.errstate(invalid="ignore"):
                near = np.abs(own - their) <= self.absolute + self.relative * np.abs(their)
            differs &= ~near
        # Fill values may differ between versions, and mean the same.
        either = block.missing | theirs.missing
        return np.where(either, block.missing != theirs.missing, differs)


class FunctionCheck(Record, frozen=True, eq=False):
    """Values that a function accepts."""

    function: Any
    others: tuple[InputArray, ...] = ()

    def failing(self, block: BlockValues) -> Mask:
        """Cells that the function does not accept; all of them if it says False."""
        more = [BlockValues(each, block.region).values for each in self.others]
        answer = np.asarray(self.function(block.values, *more))
        shape = block.values.shape
        if answer.dtype != np.bool_ or answer.shape not in ((), shape):
            raise InvalidInputError(
                f"a function of a block returns True or False, or an array of them of the shape "
                f"{shape}; found {answer.dtype} of the shape {answer.shape}"
            )
        return ~np.broadcast_to(answer, shape)


class FindingsTally:
    """Adds up what one check finds in the blocks of one array."""

    def __init__(self, shape: Sequence[int]) -> None:
        """Begin with nothing, for an array of a shape."""
        self._shape = tuple(shape)
        rows, columns = (1, 1, *self._shape)[-2:]
        self._plane = np.zeros((min(rows, MAP_ROWS), min(columns, MAP_COLUMNS)), np.int64)
        self._profile = np.zeros(min(self._shape[0], MAP_COLUMNS) if shape else 1, np.int64)
        self._findings: list[Findings] = []

    def add(self, region: Region, failing: Mask, values: Values, missing: Mask) -> None:
        """Add a block."""
        count = int(np.count_nonzero(failing))
        if not count:
            self._findings.append(Findings(failing.size))
            return
        self._locate(region, failing)
        origin = [part.start for part in region]
        first = np.flatnonzero(failing)[:MAX_EXAMPLES]
        places: Any = np.stack(np.unravel_index(first, failing.shape), axis=-1) if region else [[]]
        examples = tuple(
            FailingCell(
                tuple(start + int(at) for start, at in zip(origin, place, strict=True)),
                None if missing.flat[cell] else _plain(values.flat[cell]),
            )
            for cell, place in zip(first, places, strict=True)
        )
        low = high = None
        known = values[failing & ~missing]
        if known.dtype.kind in "iufb" and known.size:
            low, high = float(known.min()), float(known.max())
        self._findings.append(
            Findings(cells=failing.size, failing=count, low=low, high=high, examples=examples)
        )

    def _locate(self, region: Region, failing: Mask) -> None:
        if not region:
            return
        first, *_ = bins = [
            np.arange(part.start, part.stop) * min(extent, most) // max(1, extent)
            for part, extent, most in zip(region, self._shape, self._limits(), strict=True)
        ]
        others = tuple(range(1, failing.ndim))
        if failing.ndim != 2:  # a picture of two dimensions tells it all
            np.add.at(self._profile, first, failing.sum(axis=others) if others else failing)
        if failing.ndim >= 2:
            counts = failing.sum(axis=tuple(range(failing.ndim - 2)))
            np.add.at(self._plane, np.ix_(bins[-2], bins[-1]), counts)

    def _limits(self) -> list[int]:
        """How many bins each dimension has at most."""
        limits = [MAP_COLUMNS] * len(self._shape)
        if len(limits) >= 2:
            limits[-2] = MAP_ROWS
        return limits

    def findings(self) -> Findings:
        """All of it."""
        total = merged(self._findings)
        plane = tuple((int(r), int(c), int(self._plane[r, c])) for r, c in np.argwhere(self._plane))
        profile = tuple((int(n), int(self._profile[n])) for (n,) in np.argwhere(self._profile))
        return msgspec.structs.replace(total, plane=plane, profile=profile)


def _plain(value: Any) -> float | str:
    if isinstance(value, np.bool_ | np.number) and not isinstance(value, np.complexfloating):
        return float(value)
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    return str(value)


# --- the work of tasks


class CellUnit(Record, frozen=True, eq=False):
    """Checks of the cells of one array."""

    array: InputArray
    grid: ChunkGrid
    within: Region
    checks: dict[int, Any]
    """By number: a `CellCheck` each."""

    def findings(self, box: Box, block_bytes: int) -> Iterator[tuple[int, Findings]]:
        """Check a box of chunks, block by block; each block is read once for all checks."""
        tallies = {number: FindingsTally(self.array.shape) for number in self.checks}
        for part in split(box, max(1, block_bytes // self.grid.chunk_bytes)):
            region = self.grid.region(part, self.within)
            if region and not num_elements(region):
                continue
            with doing(array=self.array.path, region=region):
                block = BlockValues(self.array, region)
                for number, check in self.checks.items():
                    mask = np.asarray(check.failing(block))
                    tallies[number].add(region, mask, block.values, block.missing)
        for number, tally in tallies.items():
            yield number, tally.findings()


class CoordinateUnit(Record, frozen=True, eq=False):
    """Checks of whole coordinates, which one task reads at once."""

    arrays: tuple[InputArray, ...]
    checks: dict[int, Any]
    """By number: functions of the values of all arrays that return which of them fail."""

    def findings(self, _box: Box | None, _block_bytes: int) -> Iterator[tuple[int, Findings]]:
        """Check the coordinates."""
        with doing(array=self.arrays[0].path):
            columns = [_ordered(each, each.read(whole(each.shape))) for each in self.arrays]
            for number, check in self.checks.items():
                tally = FindingsTally(self.arrays[0].shape)
                failing = check(*columns)
                nowhere = np.zeros(failing.shape, np.bool_)
                tally.add(whole(failing.shape), failing, columns[0], nowhere)
                yield number, tally.findings()


def _ordered(array: InputArray, stored: Values) -> Values:
    """The values of a coordinate, in a form that has an order: times as times where possible."""
    decoded = array.coding.decode(stored)
    return array.coding.decode_numbers(stored) if decoded.dtype == object else decoded


AnyUnit = CellUnit | CoordinateUnit


def shape_text(array: InputArray) -> str:
    """Dimensions and extents, for messages."""
    pairs = zip(array.dims, array.shape, strict=True)
    return f"({', '.join(f'{name}: {extent}' for name, extent in pairs)})"
