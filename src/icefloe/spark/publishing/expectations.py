"""What can be expected of arrays before they are published: plain values, checked elsewhere.

The types are those of `expectations` in `pipeline.yaml`, too: `expect` names the kind there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

Arrays: TypeAlias = str | Sequence[str]
"""Paths of arrays or groups, or patterns such as `/era5/t*`: one or several."""
Severity: TypeAlias = Literal["error", "warning"]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Tolerance: TypeAlias = Annotated[float, Meta(ge=0)]


class Expectation(
    Record, frozen=True, tag_field="expect", forbid_unknown_fields=True, kw_only=True
):
    """The common fields of expectations: a name for reports, and the severity of a failure."""

    name: str = ""
    """The name in reports; its kind by default."""
    severity: Severity = "error"
    """`error` prevents data from being published; `warning` is only reported."""

    @property
    def kind(self) -> str:
        """The kind of expectation, as written in files."""
        return str(self.__struct_config__.tag)

    @property
    def title(self) -> str:
        """The name in reports."""
        return self.name or self.kind.replace("_", " ")

    @property
    def tolerated_share(self) -> float:
        """Which share of the cells may fail."""
        return 0.0


class InRange(Expectation, frozen=True, tag="in_range"):
    """All values that are not missing are between two limits (inclusive).

    Values are decoded by CF attributes first. Limits of times are text such as `2020-01-31`.

    >>> InRange("t2m", low=180, high=330).title
    'in range'
    """

    arrays: Arrays
    low: float | str | None = None
    high: float | str | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise InvalidInputError("in_range takes low, high or both; found neither")


class MissingAtMost(Expectation, frozen=True, tag="missing_at_most"):
    """No more than a share of all values is missing: NaN, NaT, or a fill value by CF attributes.

    Chunks that were never written count as their fill value.
    """

    arrays: Arrays
    share: Share = 0.0

    @property
    def tolerated_share(self) -> float:
        """Which share of the cells may fail."""
        return self.share


class Monotonic(Expectation, frozen=True, tag="monotonic"):
    """The values of a coordinate increase or decrease monotonically."""

    arrays: Arrays
    direction: Literal["increasing", "decreasing", "either"] = "either"
    strict: bool = True
    """Whether neighbours must differ."""


class GapFree(Expectation, frozen=True, tag="gap_free"):
    """Neighbouring values of a coordinate are one step apart, without gaps.

    Steps of times are text: `6h`, `1D`; or `1M` and `1Y` for calendar months and years.
    """

    arrays: Arrays
    step: float | str | None = None
    """Distance of neighbours; by default the median distance."""
    tolerance: Tolerance = 1e-6
    """The share of a step by which distances may differ from it."""


class NoDuplicates(Expectation, frozen=True, tag="no_duplicates"):
    """No value of a coordinate occurs twice; of several coordinates, no combination of values.

    Several coordinates, such as the time and the station of records, are over the same dimension.
    """

    coordinates: Arrays


class HasUnits(Expectation, frozen=True, tag="has_units"):
    """Arrays have an attribute `units`."""

    arrays: Arrays
    units: str | None = None
    """The required value; any text by default."""


class HasAttributes(Expectation, frozen=True, tag="has_attributes"):
    """Arrays or groups have attributes."""

    nodes: Arrays
    """Paths of arrays and groups; or patterns, which match arrays."""
    attributes: Sequence[str] | dict[str, Any]
    """Names of attributes, or a mapping to their required values."""


class EqualTo(Expectation, frozen=True, tag="equal_to"):
    """Arrays are equal to another version of themselves, where both have the cells.

    Only chunks that were written between the two versions are read. Missing values are equal to
    each other, and so are numbers that differ by no more than `absolute + relative * |theirs|`.
    """

    arrays: Arrays
    version: str
    """A branch, a tag or a snapshot id, optionally with steps: `main~3`."""
    absolute: Tolerance = 0.0
    relative: Tolerance = 0.0


class BlockCheck(Expectation, frozen=True, tag="block_check"):
    """A function decides whether the values of a block are correct.

    The function gets a numpy array for each of the arrays: the same part of each, decoded by CF
    attributes, with NaN for missing values. It returns True or False, or an array of them for the
    cells of the block. Functions are referred to by name: a file never names code.
    """

    arrays: Arrays
    """The arrays that the function gets together; all of one shape."""
    function: str
    """A name among `functions` of the call that validates."""


AnyExpectation: TypeAlias = (
    InRange
    | MissingAtMost
    | Monotonic
    | GapFree
    | NoDuplicates
    | HasUnits
    | HasAttributes
    | EqualTo
    | BlockCheck
)
