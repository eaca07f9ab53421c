"""What to do with files that do not quite fit together, and what an error advises about it."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.file_rules import FileAttribute, FileOrder
from icefloe.model.record import Record

if TYPE_CHECKING:
    import numpy.typing as npt

DuplicatePolicy = Literal["fail", "first", "newest"]
FlippedPolicy = Literal["fail", "reverse"]
_DUPLICATE_POLICIES = ("fail", "first", "newest")
ROUNDING_HINT = "if coordinates differ by rounding only, a tolerance makes them equal"
_FLIPPED_POLICIES = ("fail", "reverse")


class Policies(Record, frozen=True, eq=False):
    """What to do, instead of raising an error, with files that do not quite fit together.

    Example:
        >>> from icefloe.virtual import Policies
        >>> Policies(duplicates="newest", tolerance=1e-5).duplicates
        'newest'
    """

    duplicates: DuplicatePolicy = "fail"
    """Of several files with the same part: refuse them, or take the first one by name, or the one
    that was changed last."""
    tolerance: float = 0.0
    """Coordinates, bounds and other stored variables that differ by no more than this are equal."""
    flipped: FlippedPolicy = "fail"
    """Of files whose coordinates run the other way: refuse them, or copy them reversed."""
    file_order: dict[str, FileOrder] = msgspec.field(default_factory=dict)
    """By dimension, the order of files along it, where coordinates do not tell it."""
    copies: bool = False
    """Whether values are copied, so that chunks and codecs may differ."""
    decode: bool = False
    """Whether copied values are decoded, so that packing and the types of numbers may differ."""

    def check(self) -> None:
        """Raise InvalidInputError for values that make no sense, alone or together."""
        if self.duplicates not in _DUPLICATE_POLICIES:
            raise InvalidInputError(
                f"duplicates is one of {_DUPLICATE_POLICIES}, found {self.duplicates!r}"
            )
        if self.flipped not in _FLIPPED_POLICIES:
            raise InvalidInputError(
                f"flipped is one of {_FLIPPED_POLICIES}, found {self.flipped!r}"
            )
        if not isfinite(self.tolerance) or self.tolerance < 0:
            raise InvalidInputError(
                f"tolerance is a difference of coordinates, 0 or more, found {self.tolerance!r}"
            )
        if self.flipped == "reverse" and not self.copies:
            raise InvalidInputError(
                "flipped='reverse' needs mode='copy': a reference cannot reverse the values of a "
                "chunk"
            )

    @property
    def used_attributes(self) -> set[str]:
        """Attributes of files that their order follows."""
        return {rule.name for rule in self.file_order.values() if isinstance(rule, FileAttribute)}

    def are_equal(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
        """Whether two arrays have the same values, within the tolerance; NaN is like NaN."""
        if a.shape != b.shape:
            return False
        both_float = a.dtype.kind == "f" and b.dtype.kind == "f"
        if self.tolerance and a.dtype.kind in "iuf" and b.dtype.kind in "iuf":
            return bool(np.allclose(a, b, rtol=0, atol=self.tolerance, equal_nan=both_float))
        return bool(np.array_equal(a, b, equal_nan=both_float))

    # --- what errors advise; never what is done already

    @property
    def advice_to_copy(self) -> str:
        """How files whose chunks or codecs differ can go together."""
        return (
            "references need the same chunks and codecs in all files: copy the values instead, "
            "with icefloe.spark.ingest(…, mode='copy')"
        )

    def advice_to_decode(self, *, is_stored: bool) -> str:
        """How files that are packed in other ways can go together."""
        if is_stored or self.decode:
            return "values of this variable are not decoded: write the files alike, or drop it"
        if self.copies:
            return "decode=True stores values as they are meant, whatever their packing"
        return (
            "copies can be decoded, whatever their packing: "
            "icefloe.spark.ingest(…, mode='copy', decode=True)"
        )

    @property
    def advice_to_reverse(self) -> str:
        """How files whose coordinates run the other way can go together."""
        if self.copies:
            return "flipped='reverse' copies the files that run the other way in reverse"
        return (
            "references cannot reverse chunks: copy the values instead, with "
            "icefloe.spark.ingest(…, mode='copy', flipped='reverse')"
        )


def order_hint(dim: str) -> str:
    """What puts files one after the other along a dimension without coordinates."""
    return (
        f"file_order={{{dim!r}: 'name'}} puts the files one after the other by their names; it "
        "also takes a pattern, a function, a mapping or a FileAttribute to sort by"
    )
