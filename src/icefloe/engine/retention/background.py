"""One background thread per process that calls methods periodically, to renew leases."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 30.0
_MANY = 1024


class _Timer:
    """Calls bound methods when they are due, and forgets those whose objects are gone."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, float, weakref.WeakMethod[Callable[[], bool]]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._started = False
        self._purge_at = _MANY

    def add(self, method: Callable[[], bool], pause: float) -> None:
        with self._changed:
            self._push(weakref.WeakMethod(method), pause, pause)
            if len(self._due) > self._purge_at:
                self._purge()
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="icefloe-leases", daemon=True).start()
            self._changed.notify()

    def _push(
        self, method: weakref.WeakMethod[Callable[[], bool]], pause: float, delay: float
    ) -> None:
        entry = (time.monotonic() + delay, next(self._numbers), pause, method)
        heapq.heappush(self._due, entry)

    def _purge(self) -> None:
        """Drop dead references: a program may open thousands of sessions in a minute."""
        self._due = [entry for entry in self._due if entry[3]() is not None]
        heapq.heapify(self._due)
        self._purge_at = max(_MANY, 2 * len(self._due))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    wait = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(wait)
                _, _, pause, reference = heapq.heappop(self._due)
            delay = self._call(reference, pause)
            if delay is not None:
                with self._changed:
                    self._push(reference, pause, delay)

    def _call(
        self, reference: weakref.WeakMethod[Callable[[], bool]], pause: float
    ) -> float | None:
        """Call a method once; returns the delay until the next call, None for never."""
        method = reference()
        if method is None:
            return None
        try:
            return pause if method() else None
        except IcefloeError as error:
            logger.warning("a lease could not be renewed; trying again: %s", error)
            return min(pause, _RETRY_SECONDS)
        except Exception:
            logger.exception("a lease is no longer renewed")
            return None


_timer = _Timer()


def _restart_after_fork() -> None:
    global _timer  # noqa: PLW0603 (the thread is not there in a forked child)
    _timer = _Timer()


os.register_at_fork(after_in_child=_restart_after_fork)


def keep_calling(method: Callable[[], bool], pause: float) -> None:
    """Call a bound method every `pause` seconds while its object lives and it returns True."""
    _timer.add(method, pause)
