"""Threads that fetch and store bytes, shared by all sessions of a process; work is bounded."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.storage.port import Storage

_R = TypeVar("_R")

MAX_THREADS = 64


class ThreadJob(NamedTuple, Generic[_R]):
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


def do_later(storage: Storage, tidy: Callable[[], None]) -> Future[None] | None:
    """Do what nobody waits for: in a thread, unless the storage answers immediately.

    Returns how it ends if it has not ended yet. A program that ends waits for it.
    """
    if storage.capabilities.reads_are_immediate:
        tidy()
        return None
    return pool().submit(tidy)


def _forget_after_fork() -> None:
    # Threads do not survive a fork, and a lock may have been held by one.
    global _pool, _lock  # noqa: PLW0603
    _pool = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)


def in_any_order(jobs: Iterable[ThreadJob[_R]], *, at_a_time: int, max_bytes: int) -> Iterator[_R]:
    """Results of jobs as they are done.

    No job is started while `at_a_time` others run, or while those that run and results that
    were not taken hold `max_bytes`; one job may always run. After an error, or when the caller
    stops, jobs that run are waited for and no others are started.
    """
    if at_a_time <= 1:
        for job in jobs:
            yield job.run()
        return
    done: SimpleQueue[Future[_R]] = SimpleQueue()
    running: dict[Future[_R], int] = {}
    held = 0

    def finished() -> tuple[Future[_R], int]:
        future = done.get()
        return future, running.pop(future)

    try:
        for job in jobs:
            while running and (len(running) >= at_a_time or held + job.nbytes > max_bytes):
                future, nbytes = finished()
                yield future.result()
                held -= nbytes
            future = pool().submit(job.run)
            running[future] = job.nbytes
            held += job.nbytes
            future.add_done_callback(done.put)
        while running:
            yield finished()[0].result()
    finally:
        while running:
            finished()
