"""A storage that fails on purpose and remembers what was asked of it."""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from icefloe.errors import CommitStateUnknownError, StorageError
from icefloe.storage.forwarding import ForwardingStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from icefloe.storage.port import Storage

_Result = TypeVar("_Result")

WRITING = frozenset({"put", "create", "replace", "delete_many"})


class Fault(Enum):
    """What goes wrong."""

    ERROR = "error"
    """The operation is not done, and raises StorageError."""
    LOST_ANSWER = "lost answer"
    """The operation is done, but raises: a conditional one CommitStateUnknownError."""
    CRASH_BEFORE = "crash before"
    """The process dies before the operation."""
    CRASH_AFTER = "crash after"
    """The process dies right after the operation."""


class CrashError(BaseException):
    """The process is dead. No `except Exception` of the code under test may catch this."""


class _PlannedFault:
    def __init__(self, fault: Fault, verb: str | None, key: str, nth: int, times: int) -> None:
        self.fault = fault
        self._verb = verb
        self._key = key
        self._first = nth
        self._last = nth + times - 1
        self._seen = 0

    def strikes(self, verb: str, key: str) -> bool:
        if self._key not in key:
            return False
        if self._verb is not None and self._verb != verb:
            return False
        self._seen += 1
        return self._first <= self._seen <= self._last


class FaultyStorage(ForwardingStorage):
    """Forwards to another storage, records every operation in `trace`, and injects faults.

    After a crash every operation raises CrashError, until `revive`.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.trace: list[tuple[str, str]] = []
        """(operation, key) in the order in which they started."""
        self._plans: list[_PlannedFault] = []
        self._crashed = False
        self._lock = threading.Lock()

    def inject(
        self,
        fault: Fault,
        *,
        verb: str | None = None,
        key: str = "",
        nth: int = 1,
        times: int = 1,
    ) -> None:
        """Let the `nth` operation from now on (and `times` - 1 after it) fail.

        Args:
            fault: How.
            verb: Count only operations of this name.
            key: Count only operations whose key contains this.
            nth: Which of them, from 1.
            times: How many in a row.
        """
        with self._lock:
            self._plans.append(_PlannedFault(fault, verb, key, nth, times))

    def revive(self) -> None:
        """Be a new process: forget the crash and all plans, keep the trace."""
        with self._lock:
            self._crashed = False
            self._plans.clear()

    def writes(self) -> list[tuple[str, str]]:
        """Return the part of the trace that changed something."""
        return [entry for entry in self.trace if entry[0] in WRITING]

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        fault = self._begin(verb, key)
        try:
            return act()
        finally:
            self._end(fault, verb, key)

    async def _run_async(
        self, verb: str, key: str, act: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        fault = self._begin(verb, key)
        try:
            return await act()
        finally:
            self._end(fault, verb, key)

    def _begin(self, verb: str, key: str) -> Fault | None:
        with self._lock:
            if self._crashed:
                raise CrashError(f"{verb} {key!r} by a dead process")
            self.trace.append((verb, key))
            struck = [plan.fault for plan in self._plans if plan.strikes(verb, key)]
            fault = struck[0] if struck else None
            if fault is Fault.CRASH_BEFORE:
                self._crashed = True
                raise CrashError(f"before {verb} {key!r}")
        if fault is Fault.ERROR:
            raise StorageError(f"injected: {verb} {key!r} was not done")
        return fault

    def _end(self, fault: Fault | None, verb: str, key: str) -> None:
        """Strike after an operation, also after one that found or refused something."""
        if fault is Fault.CRASH_AFTER:
            with self._lock:
                self._crashed = True
            raise CrashError(f"after {verb} {key!r}")
        if fault is Fault.LOST_ANSWER:
            if verb in ("create", "replace"):
                raise CommitStateUnknownError(
                    f"injected: the answer to {verb} {key!r} is lost", key
                )
            raise StorageError(f"injected: the answer to {verb} {key!r} is lost")
