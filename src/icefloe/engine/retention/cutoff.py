"""Moments that users give, as moments of the storage's clock."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from icefloe.errors import InvalidInputError, InvalidTypeError

logger = logging.getLogger(__name__)

_SKEW = timedelta(minutes=1)
_TICK = timedelta(seconds=1)
"""Some storages count whole seconds."""


def as_moment(given: object, now: datetime, what: str) -> datetime:
    """A moment by the storage's clock, which shows `now`; a timedelta is a time before now.

    A datetime was probably computed from this computer's clock. If that is wrong, the earlier of
    the two possible meanings holds. A moment in the future means now.
    """
    if isinstance(given, timedelta):
        if given < timedelta(0):
            raise InvalidInputError(f"{what} is a time before now, found {given}")
        return now - given
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise InvalidTypeError(
            f"{what} is a datetime with a timezone, or a timedelta, found {given!r}"
        )
    ahead = datetime.now(UTC) - now
    moment = given.astimezone(UTC)
    if abs(ahead) > _SKEW:
        logger.warning("the clock of this computer is %s ahead of the storage's", ahead)
        moment = min(moment, moment - ahead)
    return min(moment, now + _TICK)
