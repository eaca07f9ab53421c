"""Axes: where files lie along a dimension, by their coordinate values and never by their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.cf.calendars import parse_units
from icefloe.cf.times import in_units
from icefloe.errors import InvalidInputError
from icefloe.ingest.plan import ConcatAxis, Difference

if TYPE_CHECKING:
    from collections.abc import Sequence


class Segment(NamedTuple):
    """The coordinates of one file along a dimension."""

    name: str
    values: npt.NDArray[Any]
    attributes: dict[str, Any]


def is_time(attributes: dict[str, Any]) -> bool:
    """Whether values are numbers of something since a moment, as CF writes times."""
    return " since " in str(attributes.get("units", ""))


def in_units_of(
    values: npt.NDArray[Any], own: dict[str, Any], wanted: dict[str, Any]
) -> npt.NDArray[Any]:
    """Times of one file in the units of another; other values as they are."""
    if not is_time(own) or not is_time(wanted):
        return values
    calendars = [str(each.get("calendar", "standard")) for each in (own, wanted)]
    if own["units"] == wanted["units"] and calendars[0] == calendars[1]:
        return values
    parsed = [parse_units(each["units"], each.get("calendar")) for each in (own, wanted)]
    if parsed[0] is None or parsed[1] is None:
        units = own["units"] if parsed[0] is None else wanted["units"]
        raise InvalidInputError(
            f"expected units of time such as 'days since 2000-01-01', found {units!r}"
        )
    return _as_whole_numbers(in_units(values, parsed[0], parsed[1]), values.dtype)


def _as_whole_numbers(values: npt.NDArray[Any], like: np.dtype[Any]) -> npt.NDArray[Any]:
    """Numbers in the type that files have, if nothing is lost by it."""
    with np.errstate(invalid="ignore", over="ignore"):
        as_they_were = values.astype(like)
    return as_they_were if np.array_equal(as_they_were, values) else values.astype(np.float64)


def make_axis(
    dim: str, segments: Sequence[Segment], existing: Segment | None = None
) -> tuple[ConcatAxis | None, list[Difference]]:
    """Put the coordinates of files in order.

    Args:
        dim: The dimension.
        segments: The coordinates of each file, in the same units.
        existing: Those that the repository has.
    """
    segments = [each._replace(values=_comparable(each.values)) for each in segments]
    if existing is not None:
        existing = existing._replace(values=_comparable(existing.values))
    everything = ([existing] if existing is not None else []) + list(segments)
    differences = _disordered(dim, everything)
    if differences:
        return None, differences
    falls = any(len(each.values) > 1 and each.values[0] > each.values[-1] for each in everything)
    union = np.unique(np.concatenate([each.values for each in everything]))
    ordered = union[::-1] if falls else union
    places: dict[str, tuple[int, int]] = {}
    interleaved: list[str] = []
    for each in segments:
        if not len(each.values):
            continue
        positions = _positions(union, each.values, falls=falls)
        start, stop = int(positions[0]), int(positions[-1]) + 1
        if stop - start != len(each.values):
            interleaved.append(each.name)
        places[each.name] = (start, stop)
    if interleaved:
        return None, [_interleaved(dim, interleaved, segments, existing)]
    old = None if existing is None else _positions(union, existing.values, falls=falls)
    return ConcatAxis(ordered, places, old), []


def _comparable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values of a kind that can be sorted."""
    return values.astype(str) if values.dtype.kind in "TO" else values


def _positions(
    union: npt.NDArray[Any], values: npt.NDArray[Any], *, falls: bool
) -> npt.NDArray[np.int64]:
    found = np.searchsorted(union, values)
    positions = len(union) - 1 - found if falls else found
    return positions.astype(np.int64)


def _disordered(dim: str, segments: Sequence[Segment]) -> list[Difference]:
    """Files whose own coordinates are in no order, or in another one than those of others."""
    kinds: dict[str, list[str]] = {}
    for each in segments:
        kinds.setdefault(_order(each.values), []).append(each.name)
    kinds.pop("one value", None)
    if "no order" in kinds or "missing values" in kinds or len(kinds) > 1:
        found = tuple((kind, tuple(names)) for kind, names in kinds.items())
        hint = "coordinates must rise or fall strictly, in the same way in all files"
        return [Difference(dim, "order of coordinates", found, hint=hint)]
    types: dict[str, list[str]] = {}
    for each in segments:
        kind = "numbers" if each.values.dtype.kind in "iufb" else "text"
        types.setdefault(kind, []).append(each.name)
    if len(types) > 1:
        found = tuple((kind, tuple(names)) for kind, names in types.items())
        return [Difference(dim, "kind of coordinates", found)]
    return []


def _order(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind == "f" and np.isnan(values).any():
        return "missing values"
    if len(values) < 2:
        return "one value"
    if (values[1:] > values[:-1]).all():
        return "rising"
    return "falling" if (values[1:] < values[:-1]).all() else "no order"


def _interleaved(
    dim: str, names: list[str], segments: Sequence[Segment], existing: Segment | None
) -> Difference:
    """Files whose coordinates have those of others in between."""
    found = tuple(
        (f"from {each.values[0]} to {each.values[-1]}", (each.name,))
        for each in segments
        if each.name in names
    )
    others = " or of the repository" if existing is not None else ""
    what = f"coordinates of other files{others} lie between those of one file"
    return Difference(dim, what, found, hint="copy these files instead of referencing them")
