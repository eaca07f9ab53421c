"""A logical clock: how many requests had to end, one after the other, before a program got here.

No time is measured, so that counts are the same on every machine. Each thread and each task of an
event loop has a clock. It begins at the time of the one that started it, and a thread that waits
for its result continues no earlier than it ended: through thread pools and their futures, threads,
and `run`, `gather`, `to_thread` and `run_coroutine_threadsafe` of asyncio. A thread that finds
something in a cache depends on the request that brought it there.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest import mock

from icefloe.objects.cache import ByteCache
from icefloe.storage import concurrency

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

_clock: ContextVar[tuple[int, int]] = ContextVar("icefloe-rounds", default=(0, 0))
"""The number of the block that it counts for, and the rounds."""
_block = 0
_following = threading.Lock()
_jobs: list[Future[Any]] = []
_kept: dict[tuple[int, object], int] = {}
"""By cache and key: what the clock showed when something was kept."""


class _End:
    """What the clock of some work showed when it ended."""

    rounds = 0


_ends: weakref.WeakKeyDictionary[Future[Any], _End] = weakref.WeakKeyDictionary()


def rounds_so_far() -> int:
    """How many requests, one after the other, led to where this thread or task is now."""
    block, rounds = _clock.get()
    return rounds if block == _block else 0


def note_rounds(rounds: int) -> None:
    """Let this thread or task depend on the last of so many requests, one after the other."""
    _set(max(rounds, rounds_so_far()))


def _set(rounds: int) -> None:
    _clock.set((_block, rounds))


@contextmanager
def following_causes() -> Iterator[None]:
    """Follow causes until the block ends; clocks begin at 0.

    Only one block of a process can do that at a time; others wait.
    """
    global _block  # noqa: PLW0603
    with _following:
        _block += 1
        _jobs.clear()
        _kept.clear()
        with (
            mock.patch.object(ThreadPoolExecutor, "submit", _submit(ThreadPoolExecutor.submit)),
            mock.patch.object(Future, "result", _awaiting(Future.result)),
            mock.patch.object(Future, "set_result", _ending(Future.set_result)),
            mock.patch.object(Future, "set_exception", _ending(Future.set_exception)),
            mock.patch.object(ByteCache, "put", _keeping(ByteCache.put)),
            mock.patch.object(ByteCache, "get", _finding(ByteCache.get)),
            mock.patch.object(concurrency, "copy_context", _Context),
            mock.patch.object(threading.Thread, "start", _start(threading.Thread.start)),
            mock.patch.object(asyncio, "run", _run(asyncio.run)),
            mock.patch.object(asyncio, "gather", _gather(asyncio.gather)),
            mock.patch.object(asyncio, "to_thread", _to_thread(asyncio.to_thread)),
            mock.patch.object(
                asyncio, "run_coroutine_threadsafe", _hand_over(asyncio.run_coroutine_threadsafe)
            ),
        ):
            yield


class _Context:
    """A copy of the caller's context variables, of which the clock is handed back."""

    def __init__(self) -> None:
        self._copy = copy_context()

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        end = _End()
        try:
            return self._copy.run(_from_here(work, end), *args)
        finally:
            note_rounds(end.rounds)


def wait_for_jobs() -> None:
    """Wait for all jobs that the block gave to pools, without depending on them."""
    wait([*_jobs])


def _from_here(work: Callable[..., Any], end: _End) -> Callable[..., Any]:
    """A function for another thread, whose clock begins at the time of this one."""
    rounds = rounds_so_far()

    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        _set(rounds)
        try:
            return work(*args, **kwargs)
        finally:
            end.rounds = rounds_so_far()

    return run


async def _until(work: Awaitable[Any], end: _End) -> Any:
    try:
        return await work
    finally:
        end.rounds = rounds_so_far()


def _submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    def patched(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        end = _End()
        job = submit(pool, _from_here(work, end), *args, **kwargs)
        _ends[job] = end
        _jobs.append(job)
        return job

    return patched


def _awaiting(take: Callable[..., Any]) -> Callable[..., Any]:
    def patched(future: Future[Any], timeout: float | None = None) -> Any:
        try:
            return take(future, timeout)
        finally:
            end = _ends.get(future)
            note_rounds(0 if end is None else end.rounds)

    return patched


def _ending(finish: Callable[..., Any]) -> Callable[..., Any]:
    def patched(future: Future[Any], outcome: Any) -> None:
        if future not in _ends:
            _ends[future] = end = _End()
            end.rounds = rounds_so_far()
        finish(future, outcome)

    return patched


def _keeping(put: Callable[..., Any]) -> Callable[..., Any]:
    def patched(cache: ByteCache[Any, Any], key: Any, *what: Any) -> Any:
        _kept[id(cache), key] = rounds_so_far()
        return put(cache, key, *what)

    return patched


def _finding(get: Callable[..., Any]) -> Callable[..., Any]:
    def patched(cache: ByteCache[Any, Any], key: Any) -> Any:
        value = get(cache, key)
        if value is not None:
            note_rounds(_kept.get((id(cache), key), 0))
        return value

    return patched


def _start(start: Callable[..., Any]) -> Callable[..., Any]:
    def patched(thread: threading.Thread) -> None:
        thread.run = _from_here(thread.run, _End())  # type: ignore[method-assign]
        start(thread)

    return patched


def _run(run: Callable[..., Any]) -> Callable[..., Any]:
    def patched(work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        end = _End()
        try:
            return run(_until(work, end), **options)
        finally:
            note_rounds(end.rounds)

    return patched


def _gather(gather: Callable[..., Any]) -> Callable[..., Any]:
    async def patched(*work: Awaitable[Any], **options: Any) -> Any:
        ends = [_End() for _ in work]
        try:
            return await gather(*map(_until, work, ends), **options)
        finally:
            note_rounds(max((end.rounds for end in ends), default=0))

    return patched


def _to_thread(to_thread: Callable[..., Any]) -> Callable[..., Any]:
    async def patched(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        end = _End()
        try:
            return await to_thread(_from_here(work, end), *args, **kwargs)
        finally:
            note_rounds(end.rounds)

    return patched


def _hand_over(hand_over: Callable[..., Any]) -> Callable[..., Any]:
    def patched(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
        rounds, end = rounds_so_far(), _End()

        async def run() -> Any:
            _set(rounds)
            return await _until(work, end)

        future = hand_over(run(), loop)
        _ends[future] = end
        return future

    return patched
