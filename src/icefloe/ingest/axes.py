"""Axes: the positions of files along a dimension, by their coordinates, or in order without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.cf.calendars import parse_units
from icefloe.cf.times import in_units
from icefloe.errors import InvalidInputError
from icefloe.ingest.plan import ConcatAxis, Difference, OrderedPlace
from icefloe.ingest.policies import ROUNDING_HINT, order_hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.ingest.policies import Policies


_Merged = tuple[
    npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]
]
"""Coordinates in order; first and last position of each file; positions of the first file."""


class Segment(NamedTuple):
    """The coordinates of one file along a dimension."""

    name: str
    values: npt.NDArray[Any]
    attributes: dict[str, Any]


def is_time(attributes: dict[str, Any]) -> bool:
    """Whether values are numbers of something since a moment, as CF writes times."""
    return " since " in str(attributes.get("units", ""))


def in_units_of(
    values: npt.NDArray[Any], own: dict[str, Any], target: dict[str, Any]
) -> npt.NDArray[Any]:
    """Times of one file in the units of another; other values as they are."""
    if not is_time(own) or not is_time(target):
        return values
    calendars = [str(each.get("calendar", "standard")) for each in (own, target)]
    if own["units"] == target["units"] and calendars[0] == calendars[1]:
        return values
    parsed = [parse_units(each["units"], each.get("calendar")) for each in (own, target)]
    if parsed[0] is None or parsed[1] is None:
        units = own["units"] if parsed[0] is None else target["units"]
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
    dim: str, segments: Sequence[Segment], existing: Segment | None, policies: Policies
) -> tuple[ConcatAxis | None, list[Difference]]:
    """Put the coordinates of files in order.

    Args:
        dim: The dimension.
        segments: The coordinates of each file, in the same units.
        existing: Those that the repository has.
        policies: Which coordinates count as equal, and what is advised.
    """
    everything = ([existing] if existing is not None else []) + list(segments)
    columns = _Columns(everything)
    differences = _disordered(dim, columns, policies)
    if differences:
        return None, differences
    if policies.tolerance:
        columns.snap(dim, policies.tolerance)
    falls = "falling" in columns.orders()
    apart = columns.apart(falls=falls)
    union, first, last, old = columns.merged(falls=falls) if apart is None else apart
    begin = 0 if existing is None else 1
    filled = np.flatnonzero(columns.lengths[begin:]) + begin
    torn = last[filled] - first[filled] + 1 != columns.lengths[filled]
    if torn.any():
        names = [columns.names[row] for row in filled[torn].tolist()]
        return None, [_interleaved(dim, names, segments, existing, policies)]
    bounds = zip(first[filled].tolist(), (last[filled] + 1).tolist(), strict=True)
    places = dict(zip([columns.names[row] for row in filled.tolist()], bounds, strict=True))
    return ConcatAxis(union, places, None if existing is None else old), []


class _Columns:
    """The coordinates of all files behind each other, and where those of each file begin."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.names = [each.name for each in segments]
        parts = [each.values for each in segments]
        if any(part.dtype.kind in "TO" for part in parts):
            parts = [_comparable(part) for part in parts]
        self.kinds = ["numbers" if part.dtype.kind in "iufb" else "text" for part in parts]
        self.lengths = np.array([len(part) for part in parts], dtype=np.int64)
        self.starts = np.append(0, np.cumsum(self.lengths))
        mixed = len(set(self.kinds)) > 1
        self.values = np.concatenate([part.astype(str) for part in parts] if mixed else parts)

    def orders(self) -> dict[str, list[str]]:
        """How the coordinates of files run, and the files of each kind."""
        rises, falls = self._all_steps(np.greater), self._all_steps(np.less)
        missing = np.zeros(len(self.names), dtype=bool)
        if self.values.dtype.kind == "f":
            missing[self._filled] = self._any_of(np.isnan(self.values))
        several = self.lengths > 1
        files: dict[str, list[str]] = {}
        for kind, rows in (
            ("missing values", missing),
            ("rising", several & rises & ~missing),
            ("falling", several & falls & ~missing),
            ("no order", several & ~rises & ~falls & ~missing),
        ):
            if rows.any():
                files[kind] = [self.names[row] for row in np.flatnonzero(rows).tolist()]
        return files

    @property
    def _filled(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.lengths)

    def _any_of(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """For each file with coordinates, whether any of them has a flag."""
        starts = self.starts[self._filled]
        return np.logical_or.reduceat(flags, starts) if len(starts) else np.zeros(0, bool)

    def _all_steps(self, compare: Any) -> npt.NDArray[np.bool_]:
        """For each file, whether all of its coordinates follow the one before like that."""
        good = np.ones(len(self.names), dtype=bool)
        if len(self.values):
            wrong = np.zeros(len(self.values), dtype=bool)
            wrong[1:] = ~compare(self.values[1:], self.values[:-1])
            wrong[self.starts[self._filled]] = False  # the first one of a file follows none
            good[self._filled] = ~self._any_of(wrong)
        return good

    def apart(self, *, falls: bool) -> _Merged | None:
        """All coordinates in order, if no file has any between or like those of another.

        Then nothing needs to be sorted but the files, whatever the number of coordinates.
        """
        rows = self._filled
        begins, ends = self.values[self.starts[rows]], self.values[self.starts[rows + 1] - 1]
        order = np.argsort(begins, kind="stable")[:: -1 if falls else 1]
        before, after = ends[order[:-1]], begins[order[1:]]
        if not (before > after if falls else before < after).all():
            return None
        lengths = self.lengths[rows[order]]
        starts = np.append(0, np.cumsum(lengths))[:-1]
        first = np.zeros(len(self.names), dtype=np.int64)
        first[rows[order]] = starts
        last = first + self.lengths - 1
        union = self.values
        if (order[1:] < order[:-1]).any():
            parts = [self.values[self.starts[row] : self.starts[row + 1]] for row in rows[order]]
            union = np.concatenate(parts)
        return union, first, last, np.arange(self.lengths[0]) + first[0]

    def merged(self, *, falls: bool) -> _Merged:
        """All distinct coordinates in order, where files share some."""
        union, positions = np.unique(self.values, return_inverse=True)
        positions = positions.reshape(-1).astype(np.int64)
        if falls:
            union, positions = union[::-1], len(union) - 1 - positions
        first = np.zeros(len(self.names), dtype=np.int64)
        last = first - 1
        rows = self._filled
        first[rows] = positions[self.starts[rows]]
        last[rows] = positions[self.starts[rows + 1] - 1]
        return union, first, last, positions[: self.starts[1]]

    def _owners(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self.names)), self.lengths)

    def snap(self, dim: str, tolerance: float) -> None:
        """Make coordinates that differ by no more than a tolerance the same number.

        Of each group of such values the first one is taken: that of the repository, or else of
        the first file.
        """
        if self.values.dtype.kind not in "iuf":
            return
        order = np.argsort(self.values, kind="stable")
        group = np.empty(len(self.values), dtype=np.int64)
        group[order] = np.cumsum(np.append(False, np.diff(self.values[order]) > tolerance))
        pairs = np.stack([self._owners(), group], axis=1)
        if len(np.unique(pairs, axis=0)) < len(pairs):
            raise InvalidInputError(
                f"tolerance={tolerance} is too large: a file has several coordinates along "
                f"{dim!r} that differ by no more than that"
            )
        _, first = np.unique(group, return_index=True)
        self.values = self.values[first][group]


def ordered_axis(
    dim: str,
    keys: Mapping[str, tuple[str, int]],
    length: int | None,
    placed: Mapping[str, OrderedPlace],
) -> tuple[ConcatAxis | None, list[Difference]]:
    """Put files one after the other, behind what the repository has.

    Args:
        dim: A dimension without coordinates that order the files.
        keys: Key and length of each file, in order; files with the same key have the same position.
        length: How long it is in the repository; None if the repository does not have it.
        placed: The positions of files of earlier ingests, which stay.
    """
    at_keys = {place.key: place for place in placed.values()}
    places: dict[str, tuple[int, int]] = {}
    other: list[tuple[str, tuple[str, ...]]] = []
    end = length or 0
    for url, (key, size) in keys.items():
        place = placed.get(url) or at_keys.get(key)
        if place is None:
            place = at_keys[key] = OrderedPlace(end, end + size, key)
            end += size
        if place.stop - place.start != size:
            other.append((f"{size} instead of {place.stop - place.start}", (url,)))
        places[url] = (place.start, place.stop)
    if other:
        hint = "files at one place, and files that come again, have one length"
        return None, [Difference(dim, "length of files", tuple(other), hint=hint)]
    old = None if length is None else np.arange(length)
    names = {url: key for url, (key, _) in keys.items()}
    return ConcatAxis(np.arange(end), places, old, keys=names), []


def runs_down(values: npt.NDArray[Any] | None) -> bool | None:
    """Whether coordinates fall; None if they do neither, or there are none to tell."""
    if values is None or len(values) < 2 or values.dtype.kind not in "iuf":
        return None
    if (values[1:] > values[:-1]).all():
        return False
    return True if (values[1:] < values[:-1]).all() else None


def _comparable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values of a kind that can be sorted."""
    # Older numpy cannot sort StringDType, nor cast it to a length that it determines itself.
    return np.array(values.tolist(), dtype=np.str_) if values.dtype.kind in "TO" else values


def _disordered(dim: str, columns: _Columns, policies: Policies) -> list[Difference]:
    """Files whose own coordinates are in no order, or in another one than those of others."""
    kinds = columns.orders()
    if "no order" in kinds or "missing values" in kinds or len(kinds) > 1:
        groups = tuple((kind, tuple(names)) for kind, names in kinds.items())
        hint = "coordinates must rise or fall strictly, in the same way in all files"
        if kinds.keys() == {"rising", "falling"}:
            hint += f"; {policies.advice_to_reverse}"
        if kinds.keys() & {"no order", "missing values"}:
            hint += f"; {order_hint(dim)}"
        return [Difference(dim, "order of coordinates", groups, hint=hint)]
    types: dict[str, list[str]] = {}
    for name, kind in zip(columns.names, columns.kinds, strict=True):
        types.setdefault(kind, []).append(name)
    if len(types) > 1:
        groups = tuple((kind, tuple(names)) for kind, names in types.items())
        return [Difference(dim, "kind of coordinates", groups)]
    return []


def _interleaved(
    dim: str,
    names: list[str],
    segments: Sequence[Segment],
    existing: Segment | None,
    policies: Policies,
) -> Difference:
    """Files whose coordinates have those of others in between."""
    groups = tuple(
        (f"from {each.values[0]} to {each.values[-1]}", (each.name,))
        for each in segments
        if each.name in names
    )
    others = " or of the repository" if existing is not None else ""
    what = f"coordinates of other files{others} lie between those of one file"
    hint = "ingest such files into groups of their own"
    if not is_time(segments[0].attributes):
        hint += f"; {order_hint(dim)}"
    if not policies.tolerance:
        hint += f"; {ROUNDING_HINT}"
    return Difference(dim, what, groups, hint=hint)
