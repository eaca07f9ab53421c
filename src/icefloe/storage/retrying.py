"""How often a request is sent again, and how long to wait before."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from icefloe.errors import StorageUnreachableError
from icefloe.storage.client_errors import may_pass

if TYPE_CHECKING:
    from icefloe.errors import StorageError
    from icefloe.storage.settings import EffectiveSettings

_logger = logging.getLogger(__name__)

_LONG_PAUSE_SECONDS = 1.0

# Places that answered this process at least once: what cannot be reached now may be back soon.
# Any other is more likely misspelt.
_reached_locations: set[str] = set()


def note_reached(location: str) -> None:
    """Remember that a server has answered, even with an error."""
    _reached_locations.add(location)


class Attempts:
    """The attempts of one operation: exponential backoff with full jitter, and a deadline."""

    def __init__(
        self, settings: EffectiveSettings, location: str, deadline: float | None = None
    ) -> None:
        """Take the settings and, if the operation is part of another one, when that must end."""
        self._settings = settings
        self._location = location
        own = time.monotonic() + settings.operation_timeout_seconds
        self._deadline = own if deadline is None else min(own, deadline)
        self._made = 0

    def pause_after(self, error: StorageError) -> float:
        """Seconds to wait before the next attempt; raises the error if there is to be none."""
        self._made += 1
        allowed = self._allowed(error)
        settings = self._settings
        longest = settings.initial_backoff_seconds * 2 ** (self._made - 1)
        pause = random.uniform(0, min(settings.max_backoff_seconds, longest))
        if self._made >= allowed or time.monotonic() + pause > self._deadline:
            raise error
        is_worrying = isinstance(error, StorageUnreachableError) or pause > _LONG_PAUSE_SECONDS
        _logger.log(
            logging.WARNING if is_worrying else logging.INFO,
            "attempt %d of %d failed, the next one follows in %.1f seconds: %s",
            self._made,
            allowed,
            pause,
            error,
        )
        return pause

    def _allowed(self, error: StorageError) -> int:
        settings = self._settings
        if isinstance(error, StorageUnreachableError):
            if self._location in _reached_locations:
                return settings.max_tries
            return min(settings.max_connect_tries, settings.max_tries)
        return settings.max_tries if may_pass(error) else 1
