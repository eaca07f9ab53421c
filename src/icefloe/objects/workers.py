"""Threads that fetch and store bytes, shared by all sessions of a process; work is bounded."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_R = TypeVar("_R")

MAX_THREADS = 64


class Job(NamedTuple, Generic[_R]):
    """Something to do in a thread, and how many bytes it holds until its result is taken."""

    nbytes: int
    run: Callable[[], _R]


_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def pool() -> ThreadPoolExecutor:
    """The threads of this process. What runs there never waits for other work that does."""
    global _pool  # noqa: PLW0603
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = ThreadPoolExecutor(MAX_THREADS, "icefloe-chunks")
    return _pool


def _forget_after_fork() -> None:
    # Threads do not survive a fork, and a lock may have been held by one.
    global _pool, _lock  # noqa: PLW0603
    _pool = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


class _Done(NamedTuple, Generic[_R]):
    nbytes: int
    result: _R | None
    error: BaseException | None


def in_any_order(jobs: Iterable[Job[_R]], *, at_a_time: int, max_bytes: int) -> Iterator[_R]:
    """Results of jobs as they are done.

    No job is started while `at_a_time` others run, or while those that run and results that
    were not taken hold `max_bytes`; one job may always run. After an error, or when the caller
    stops, jobs that run are waited for and no others are started.
    """
    if at_a_time <= 1:
        for job in jobs:
            yield job.run()
        return
    done: SimpleQueue[_Done[_R]] = SimpleQueue()
    running, held = 0, 0
    try:
        for job in jobs:
            while running and (running >= at_a_time or held + job.nbytes > max_bytes):
                finished = done.get()
                running -= 1
                yield _result(finished)
                held -= finished.nbytes
            running += 1
            held += job.nbytes
            pool().submit(_do, job, done)
        while running:
            finished = done.get()
            running -= 1
            yield _result(finished)
    finally:
        while running:
            done.get()
            running -= 1


def _do(job: Job[_R], done: SimpleQueue[_Done[_R]]) -> None:
    try:
        done.put(_Done(job.nbytes, job.run(), None))
    except BaseException as error:  # noqa: BLE001 (raised again by whoever takes the result)
        done.put(_Done(job.nbytes, None, error))


def _result(done: _Done[_R]) -> _R:
    if done.error is not None:
        raise done.error
    result: _R = done.result  # type: ignore[assignment]
    return result
