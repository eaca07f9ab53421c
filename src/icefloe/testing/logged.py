"""A storage that logs each operation of another one at level DEBUG."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.port import Sharable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class LoggedStorage(ForwardingStorage):
    """Logs the operation, the key, the bytes read, the time taken and the kind of error, if any."""

    def sharing_key(self) -> Hashable | None:
        """The same as without the log."""
        return self._inner.sharing_key() if isinstance(self._inner, Sharable) else None

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        started = time.perf_counter()
        try:
            result = act()
        except Exception as error:
            _log_failure(verb, key, started, error)
            raise
        _log_success(verb, key, started, result)
        return result

    async def _run_async(
        self, verb: str, key: str, act: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        started = time.perf_counter()
        try:
            result = await act()
        except Exception as error:
            _log_failure(verb, key, started, error)
            raise
        _log_success(verb, key, started, result)
        return result


def _log_success(verb: str, key: str, started: float, result: object) -> None:
    milliseconds = (time.perf_counter() - started) * 1000
    if isinstance(result, bytes):
        _logger.debug("%s %s: %d bytes in %.1f ms", verb, key, len(result), milliseconds)
    else:
        _logger.debug("%s %s: %.1f ms", verb, key, milliseconds)


def _log_failure(verb: str, key: str, started: float, error: Exception) -> None:
    milliseconds = (time.perf_counter() - started) * 1000
    _logger.debug("%s %s: %s after %.1f ms", verb, key, type(error).__name__, milliseconds)
