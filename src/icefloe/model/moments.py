"""Moments and ages as users write them: `2026-01-31`, `2026-01-31T12:00Z`, `30d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened

_AGE = re.compile(r"(\d{1,9})\s*(m|min|h|d|w)", re.ASCII)
_AGE_UNITS = {
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_MOMENTS = "2026-01-31 or 2026-01-31T12:00Z"


def zone_advice(moment: object) -> str:
    """The end of a message about a datetime without a zone; nothing for other values."""
    if not isinstance(moment, datetime):
        return ""
    return "; give it one: .replace(tzinfo=datetime.timezone.utc), or .astimezone() for local time"


def parse_moment(text: str) -> datetime:
    """Parse a moment in ISO 8601; UTC by default, and a date alone means the end of that day.

    >>> parse_moment("2026-01-31").isoformat()
    '2026-01-31T23:59:59.999999+00:00'
    """
    moment = _parse(text, f"a date or time in ISO 8601, such as {_MOMENTS}")
    if len(text.strip()) == len("2026-01-31"):
        moment = moment.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return moment


def parse_age(text: str) -> datetime | timedelta:
    """An age such as `30d`, `12h` or `2w`, or a moment in ISO 8601; a date means its beginning.

    >>> parse_age("2w")
    datetime.timedelta(days=14)
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        return _parse(text, f"an age such as 30d, 12h or 2w, or a moment such as {_MOMENTS}")
    try:
        return int(match[1]) * _AGE_UNITS[match[2]]
    except OverflowError:
        raise InvalidInputError(
            f"expected an age that a calendar can hold, found {text!r}"
        ) from None


def _parse(text: str, expected: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(f"expected {expected}, found {shortened(text)!r}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
