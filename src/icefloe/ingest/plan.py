"""The plan of an ingest as values: where each file goes, what is stored, and what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InconsistentFilesError
from icefloe.ingest.parsed import chunk_shape_of
from icefloe.model import paths
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

Region = tuple[tuple[int, int], ...]
"""First element and the one after the last, along each dimension."""
EXISTING = "(in the repository)"
"""Means the repository where files are named."""
_SHOWN_FILES = 3


class Difference(Record, frozen=True):
    """A property that is not the same in all files: an error, or a remark.

    Example:
        >>> from icefloe.virtual import Difference
        >>> print(Difference("t2m", "data type", (("float32", ("a.nc",)), ("float64", ("b.nc",)))))
        t2m: data type
            float32: a.nc
            float64: b.nc
    """

    variable: str
    """The variable or dimension; empty for the file as a whole."""
    what: str
    """Which property: `data type`, `chunks`, `codecs`, `attribute units`, …"""
    found: tuple[tuple[str, tuple[str, ...]], ...]
    """Each value of the property, and the files that have it."""
    is_error: bool = True
    """Whether the files cannot be combined because of it. Otherwise it is a remark."""
    hint: str = ""
    """What can be done about it."""

    def __str__(self) -> str:
        lines = [f"{self.variable or 'files'}: {self.what}"]
        lines += [f"    {value}: {_files(files)}" for value, files in self.found]
        if self.hint:
            lines.append(f"    → {self.hint}")
        return "\n".join(lines)


def _files(files: Sequence[str]) -> str:
    shown = ", ".join(files[:_SHOWN_FILES])
    if len(files) > _SHOWN_FILES:
        shown += f" and {len(files) - _SHOWN_FILES} more"
    return shown


def report(differences: Sequence[Difference]) -> str:
    """All differences as text, what must be solved first."""
    ordered = sorted(differences, key=lambda each: not each.is_error)
    return "\n".join(str(each) for each in ordered)


class OrderedPlace(NamedTuple):
    """The position of a file along a dimension that files are concatenated along."""

    start: int
    stop: int
    key: str
    """What the file was sorted by."""


class ConcatAxis(Record, frozen=True, eq=False):
    """All coordinates along a dimension, and the position of each file among them."""

    values: npt.NDArray[Any]
    """Positions, if files follow each other by `keys`."""
    places: dict[str, tuple[int, int]]
    """First position of each file, and the one after its last."""
    old_positions: npt.NDArray[np.int64] | None = None
    """Where the coordinates that the repository had already are now."""
    keys: dict[str, str] | None = None
    """What files were sorted by, if coordinates do not determine their positions."""

    def __len__(self) -> int:
        return len(self.values)


class VariablePlan(Record, frozen=True, eq=False):
    """What becomes of a variable."""

    name: str
    document: dict[str, Any]
    """Its zarr.json with the shape that it will have."""
    is_virtual: bool
    """Whether its chunks stay in the files. Otherwise its values are stored."""
    files: tuple[str, ...]
    """The files that it is taken from."""
    moved: dict[int, npt.NDArray[np.int64]] = msgspec.field(default_factory=dict)
    """By axis, where chunks that the repository has already go, if others come between them."""
    exists: bool = False
    is_copied: bool = False
    """Whether values are copied from files by tasks; neither virtual nor small enough to be in
    `IngestPlan.values`."""
    is_rewritten: bool = False
    """Whether what the repository has must be copied too, because files come in between."""
    hidden: dict[str, tuple[Region, ...]] = msgspec.field(default_factory=dict)
    """By file, regions that are taken from other files."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(self.document["dimension_names"])

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Number of elements of a chunk."""
        return chunk_shape_of(self.document)


class StoredValues(Record, frozen=True, eq=False):
    """Values that are stored in the repository itself, and where."""

    start: tuple[int, ...]
    values: npt.NDArray[Any]


class IngestPlan(Record, frozen=True, eq=False):
    """How files become a group: axes, arrays, and the position of each file; see `plan_files`.

    Nothing is written while it has errors.
    """

    axes: dict[str, ConcatAxis]
    """By dimension that files are concatenated along."""
    variables: dict[str, VariablePlan]
    attributes: dict[str, Any]
    values: dict[str, list[StoredValues]]
    """What is stored of variables that are not virtual."""
    differences: tuple[Difference, ...]
    flipped: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By file, the dimensions whose coordinates run the other way and are reversed."""
    uncompared: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By variable that is taken once, the files whose values must be the same and were not read."""
    unread: tuple[str, ...] = ()
    """Stored variables of the repository whose values move or are compared, and were not read."""

    @property
    def errors(self) -> list[Difference]:
        """Why the files cannot be combined."""
        return [each for each in self.differences if each.is_error]

    def check(self) -> None:
        """Raise InconsistentFilesError with the complete report if the files do not fit."""
        errors = self.errors
        if errors:
            msg = f"the files do not fit together, and nothing was written:\n{report(errors)}"
            raise InconsistentFilesError(msg, errors)

    def start(self, url: str, dims: Sequence[str]) -> tuple[int, ...]:
        """Where the part of a file begins in an array of these dimensions."""
        return tuple(self.axes[dim].places[url][0] if dim in self.axes else 0 for dim in dims)

    def replaced_box(self, variable: VariablePlan, url: str) -> tuple[list[int], list[int]] | None:
        """The box of chunks that a file replaces; None if the repository had nothing there."""
        shape, chunks = variable.document["shape"], variable.chunk_shape
        start = [0] * len(shape)
        stop = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
        for number, dim in enumerate(variable.dims):
            axis = self.axes.get(dim)
            if axis is not None:
                first, last = axis.places[url]
                old = axis.old_positions
                if old is None or not ((old >= first) & (old < last)).any():
                    return None
                start[number], stop[number] = first // chunks[number], -(-last // chunks[number])
        return start, stop


def array_path(group: str, name: str) -> str:
    """Path of the array of a variable."""
    return paths.child_prefix(group) + name
