"""Plans as values: what becomes of each variable, and where each file goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InconsistentFilesError
from icefloe.ingest.axes import Axis
from icefloe.ingest.differences import Difference, report
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


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

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(self.document["dimension_names"])

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Number of elements of a chunk."""
        return tuple(self.document["chunk_grid"]["configuration"]["chunk_shape"])


class Region(Record, frozen=True, eq=False):
    """Values that are stored in the repository itself, and where."""

    start: tuple[int, ...]
    values: npt.NDArray[Any]


class IngestPlan(Record, frozen=True, eq=False):
    """How files become a group."""

    axes: dict[str, Axis]
    """By dimension that files are put together along."""
    variables: dict[str, VariablePlan]
    attributes: dict[str, Any]
    values: dict[str, list[Region]]
    """What is stored of variables that are not virtual."""
    differences: tuple[Difference, ...]

    @property
    def errors(self) -> list[Difference]:
        """Why the files cannot be combined."""
        return [each for each in self.differences if each.is_error]

    def check(self) -> None:
        """Raise InconsistentFilesError with the whole report if something does not fit."""
        errors = self.errors
        if errors:
            msg = f"the files do not fit together, and nothing was written:\n{report(errors)}"
            raise InconsistentFilesError(msg, errors)

    def start(self, url: str, dims: Sequence[str]) -> tuple[int, ...]:
        """Where the part of a file begins in an array of these dimensions."""
        return tuple(self.axes[dim].places[url][0] if dim in self.axes else 0 for dim in dims)
