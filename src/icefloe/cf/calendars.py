"""CF units of time ("days since 1970-01-01") and calendars, in integer microseconds."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_UNIT_NANOSECONDS = {
    "nanosecond": 1,
    "microsecond": 1_000,
    "millisecond": 1_000_000,
    "second": 1_000_000_000,
    "minute": 60_000_000_000,
    "hour": 3_600_000_000_000,
    "day": 86_400_000_000_000,
}
DURATION_UNITS = {f"{unit}s": length for unit, length in _UNIT_NANOSECONDS.items()}
"""Units of time spans and their nanoseconds; as in xarray, no other spelling is decoded."""
_ABBREVIATIONS = {
    "us": "microsecond",
    "microsec": "microsecond",
    "ms": "millisecond",
    "msec": "millisecond",
    "millisec": "millisecond",
    "s": "second",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
}
_LONGEST_UNITS = 200
_DAY = _UNIT_NANOSECONDS["day"] // 1000
_UNITS = re.compile(r"\s*(?P<unit>[A-Za-z]+)\s+since\s+(?P<reference>.+?)\s*", re.IGNORECASE)
_REFERENCE = re.compile(
    r"(?P<year>[+-]?\d{1,6})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T ]\s*(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?",
    re.IGNORECASE,
)
_STANDARD = {"standard", "gregorian", "proleptic_gregorian"}
_YEAR_LENGTHS = {"noleap": 365, "365_day": 365, "all_leap": 366, "366_day": 366, "360_day": 360}
CALENDARS = frozenset({*_STANDARD, *_YEAR_LENGTHS, "julian"})
_EPOCH_JULIAN_DAY = 2_440_588
"""Julian day number of 1970-01-01 (Gregorian)."""
_WITHOUT_YEAR_ZERO = {"standard", "gregorian", "julian"}
_GREGORIAN_FROM = (1582, 10, 15)
_MONTHS_NOLEAP = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_MONTHS_LEAP = np.cumsum([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_MONTHS_360 = np.arange(13) * 30
_MAX_MICROSECONDS = 2**63 - 1


class TimeUnits(Record, frozen=True):
    """Units and calendar of a time variable."""

    units: str
    """The attribute as it is written."""
    nanoseconds: int
    """Length of one unit."""
    reference: int
    """Microseconds from the calendar's day 0 to the reference; 1970-01-01 in real calendars."""
    calendar: str
    rest: int = 0
    """Nanoseconds of the reference beyond these."""

    @property
    def is_real(self) -> bool:
        """Whether the calendar is one of the real world, so that timestamps can hold its times."""
        return self.calendar in _STANDARD

    @property
    def reference_nanoseconds(self) -> int:
        """Nanoseconds from the calendar's day 0 to the reference."""
        return self.reference * 1000 + self.rest

    @property
    def _microseconds(self) -> tuple[int, int]:
        """The length of a unit in microseconds as a fraction, for exact integer arithmetic."""
        if self.nanoseconds % 1000:
            return self.nanoseconds, 1000
        return self.nanoseconds // 1000, 1

    def decode(
        self, values: npt.NDArray[np.generic]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """Return microseconds since day 0 of the calendar, and where times are missing."""
        if values.dtype.kind in "iu":
            length, per = self._microseconds
            limit = (_MAX_MICROSECONDS - abs(self.reference)) * per // length
            if values.size and (int(values.max()) > limit or int(values.min()) < -limit):
                raise _too_far(values.max())
            return values.astype(np.int64) * length // per + self.reference, None
        floats = values.astype(np.float64)
        missing = ~np.isfinite(floats)
        if missing.any():
            floats = np.where(missing, 0.0, floats)
        length, per = self._microseconds
        furthest = float(np.abs(floats).max()) if floats.size else 0.0
        if furthest * max(1, length / per) + abs(self.reference) > 9.2e18:
            raise _too_far(floats.max())
        whole = np.floor(floats)
        # Integer and fraction apart: a float64 with a century of days is exact to seconds only.
        rest = np.rint((floats - whole) * (length / per)).astype(np.int64)
        moments = whole.astype(np.int64) * length // per + rest + self.reference
        return moments, missing if missing.any() else None

    def encode(self, moments: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Convert microseconds to units; raise InvalidInputError if some are between two units."""
        length, per = self._microseconds
        if per > 1 and moments.size:
            furthest = max(abs(int(moments.min())), abs(int(moments.max()))) + abs(self.reference)
            if furthest > _MAX_MICROSECONDS // per:
                raise _too_far(furthest * per)
        units, rest = np.divmod((moments - self.reference) * per, length)
        if rest.any():
            raise InvalidInputError(
                "some times are no whole number of the units of the stored array: "
                f"{int((rest != 0).sum())} of {moments.size}; create it with finer units"
            )
        return units

    def parse(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Parse ISO texts in the form that `texts` writes; raise InvalidInputError otherwise."""
        moments = np.zeros(len(texts), dtype=np.int64)
        for at, text in enumerate(texts):
            matched = _REFERENCE.fullmatch(text)
            if matched is not None:
                with suppress(ValueError):
                    moments[at] = _moment(matched, self.calendar)
        again = self.texts(moments)
        wrong = [text for text, own in zip(texts, again.tolist(), strict=True) if text != own]
        if wrong:
            raise InvalidInputError(
                f"times of the calendar {self.calendar} are texts such as 2000-01-31T00:00:00, of "
                f"days that it has; found {len(wrong)} others, e.g. {wrong[0]!r}"
            )
        return moments

    def texts(self, moments: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """Write ISO texts of times of a calendar that is not one of the real world."""
        days, rest = np.divmod(moments, _DAY)
        year, month, day = _dates(days, self.calendar)
        seconds, fraction = np.divmod(rest, 1_000_000)
        out = [
            f"{y:04d}-{mo:02d}-{d:02d}T{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}"
            + (f".{f:06d}" if f else "")
            for y, mo, d, s, f in zip(
                year.tolist(),
                month.tolist(),
                day.tolist(),
                seconds.tolist(),
                fraction.tolist(),
                strict=True,
            )
        ]
        texts = np.empty(len(out), dtype=object)
        texts[:] = out
        return texts


def parse_units(units: object, calendar: object = None) -> TimeUnits | None:
    """Parse units; return None if they are not units of time, or have no fixed length."""
    if not isinstance(units, str) or len(units) > _LONGEST_UNITS:
        return None
    matched = _UNITS.fullmatch(units)
    name = str(calendar or "standard").lower()
    if matched is None or name not in CALENDARS:
        return None
    length = _unit_length(matched["unit"])
    reference = _REFERENCE.fullmatch(matched["reference"])
    if length is None or reference is None:
        return None
    try:
        rest = int(_fraction(reference)[6:])
        return TimeUnits(
            units=units,
            nanoseconds=length,
            reference=_moment(reference, name),
            calendar=name,
            rest=rest,
        )
    except ValueError:
        return None  # no day of the calendar


def _unit_length(unit: str) -> int | None:
    """Return the nanoseconds of a unit."""
    unit = unit.lower()
    unit = _ABBREVIATIONS.get(unit, _ABBREVIATIONS.get(unit.removesuffix("s"), unit))
    return _UNIT_NANOSECONDS.get(unit) or _UNIT_NANOSECONDS.get(unit.removesuffix("s"))


def _moment(parts: re.Match[str], calendar: str) -> int:
    """Return microseconds since day 0 of a calendar; raise ValueError if the day is not in it."""
    date = int(parts["year"]), int(parts["month"]), int(parts["day"])
    if not _has_day(*date, calendar):
        raise ValueError(f"the calendar {calendar} has no day {date}")
    seconds = int(parts["hour"] or 0) * 3600 + int(parts["minute"] or 0) * 60
    fraction = int((parts["second"] or "0").partition(".")[0]) * 1_000_000
    fraction += int(_fraction(parts)[:6])
    zone = parts["zone"]
    if zone and zone[0] in "+-":
        hours, minutes = zone[1:3], zone[3:].lstrip(":")
        if len(zone) == 2:
            hours, minutes = zone[1:], ""
        shift = int(hours) * 3600 + int(minutes or 0) * 60
        seconds -= shift if zone[0] == "+" else -shift
    return _day_number(*date, calendar) * _DAY + seconds * 1_000_000 + fraction


def _fraction(parts: re.Match[str]) -> str:
    """Return the fraction of a second as nine digits."""
    return (parts["second"] or "0").partition(".")[2].ljust(9, "0")[:9]


def _has_day(year: int, month: int, day: int, calendar: str) -> bool:
    if not 1 <= month <= 12 or (year < 1 and calendar in _WITHOUT_YEAR_ZERO):
        return False
    if calendar in _YEAR_LENGTHS:
        months = _months(calendar)
    else:
        is_julian = calendar == "julian" or (calendar in _WITHOUT_YEAR_ZERO and year < 1582)
        is_leap = year % 4 == 0 and (is_julian or year % 100 != 0 or year % 400 == 0)
        months = _MONTHS_LEAP if is_leap else _MONTHS_NOLEAP
    return 1 <= day <= int(months[month] - months[month - 1])


def _day_number(year: int, month: int, day: int, calendar: str) -> int:
    """Return days since day 0 of a calendar, which is 1970-01-01 in real ones."""
    if calendar in _YEAR_LENGTHS:
        return year * _YEAR_LENGTHS[calendar] + int(_months(calendar)[month - 1]) + day - 1
    shift = (14 - month) // 12
    y, m = year + 4800 - shift, month + 12 * shift - 3
    days = day + (153 * m + 2) // 5 + 365 * y + y // 4
    is_julian = calendar == "julian" or (
        calendar != "proleptic_gregorian" and (year, month, day) < _GREGORIAN_FROM
    )
    days += -32083 if is_julian else -(y // 100) + y // 400 - 32045
    return days if calendar == "julian" else days - _EPOCH_JULIAN_DAY


def _months(calendar: str) -> npt.NDArray[np.int64]:
    length = _YEAR_LENGTHS[calendar]
    return {365: _MONTHS_NOLEAP, 366: _MONTHS_LEAP, 360: _MONTHS_360}[length]


def _dates(
    days: npt.NDArray[np.int64], calendar: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return year, month and day of day numbers."""
    if calendar == "julian":
        c = days + 32082
        d = (4 * c + 3) // 1461
        e = c - 1461 * d // 4
        m = (5 * e + 2) // 153
        return d - 4800 + m // 10, m + 3 - 12 * (m // 10), e - (153 * m + 2) // 5 + 1
    months = _months(calendar)
    year, day_of_year = np.divmod(days, _YEAR_LENGTHS[calendar])
    month = np.searchsorted(months, day_of_year, side="right")
    return year, month, day_of_year - months[month - 1] + 1


def _too_far(value: object) -> InvalidInputError:
    return InvalidInputError(
        f"a time of {value} units is beyond what a timestamp of microseconds holds; "
        "read the variable undecoded with option decode=false"
    )
