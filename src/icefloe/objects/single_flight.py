"""One request for an object that several threads want at the same time."""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_Result = TypeVar("_Result")


_living: weakref.WeakSet[SingleFlight]


class SingleFlight:
    """Lets threads that want what another one is reading wait for its result.

    A forked process starts without any: the threads that work are not in it.
    """

    def __init__(self) -> None:
        """Nothing is in progress."""
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._running: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def do(self, key: Hashable, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, called by the first of several threads with this key.

        It must not ask for the same key again, and should put its result into a cache.
        """
        with self._lock:
            running = self._running.get(key)
            if running is None:
                mine = self._running[key] = Future()
        if running is not None:
            result: _Result = running.result()
            return result
        try:
            result = work()
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(result)
            return result
        finally:
            with self._lock:
                del self._running[key]


_living = weakref.WeakSet()


def _after_fork() -> None:
    for flights in list(_living):
        flights._start()  # noqa: SLF001 (of this module)


os.register_at_fork(after_in_child=_after_fork)
