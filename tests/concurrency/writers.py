"""What the processes of the concurrency tests do; imported by them, so it has no tests."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe import (
    AppendSolver,
    ConflictDetector,
    ConflictError,
    Repository,
    RepositoryConfig,
)
from icefloe.errors import AlreadyExistsError
from tests import counting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.synchronize import Barrier

    from icefloe.storage.port import Storage

_WITHIN_SECONDS = 200


@dataclass
class Outcome:
    """What one writer was told."""

    committed: dict[str, str] = field(default_factory=dict)
    """Snapshot ids by message."""
    refused: list[str] = field(default_factory=list)


def processes() -> Any:
    """Processes that start quickly and share nothing: forks of one that has used nothing yet."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def run_together(work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call `work(*arguments[i], barrier)` in a process each, at the same time."""
    counting.count(counting.RACES, len(arguments))
    context = processes()
    barrier = context.Barrier(len(arguments))
    started = []
    for given in arguments:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_report, args=(sender, work, given, barrier))
        process.start()
        sender.close()
        started.append((process, receiver))
    try:
        return [_result(receiver) for _, receiver in started]
    finally:
        for process, _ in started:
            process.join(10)
            if process.exitcode is None:
                process.kill()
                process.join()


def _report(sender: Any, work: Callable[..., Any], given: tuple[Any, ...], barrier: Any) -> None:
    try:
        sender.send(work(*given, barrier))
    except BaseException as error:
        barrier.abort()
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))
        raise


def _result(receiver: Any) -> Any:
    if not receiver.poll(_WITHIN_SECONDS):
        raise TimeoutError(f"a process gave no result within {_WITHIN_SECONDS} s")
    result = receiver.recv()
    if isinstance(result, Exception):
        raise result
    return result


def create_pair(
    storage: Storage, rows: int = 1, columns: int = 1, generation: str = "repository"
) -> Repository:
    """A repository with the arrays `a` and `b`, which every commit gives one value, and a grid."""
    repo = Repository.create(storage, generation=generation)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    for name in ("a", "b"):
        root.create_array(name, shape=(), dtype="i8", fill_value=-1)[...] = 0
    root.create_array("grid", shape=(rows, columns), chunks=(1, 1), dtype="i8", fill_value=-1)
    session.commit("beginning")
    return repo


def write_pairs(storage: Storage, writer: int, commits: int, barrier: Barrier) -> Outcome:
    """Commit one new value to both arrays, many times; a refused commit is not repeated."""
    repo = Repository.open(storage)
    outcome = Outcome()
    barrier.wait(_WITHIN_SECONDS)
    for number in range(commits):
        session = repo.writable_session("main")
        value = writer * 100_000 + number + 1
        write_pair(session, value)
        message = str(value)
        try:
            outcome.committed[message] = session.commit(message)
        except ConflictError:
            outcome.refused.append(message)
    return outcome


def write_pair(session: Any, value: int) -> None:
    root = zarr.open_group(session.store, mode="r+")
    for name in ("a", "b"):
        array = root[name]
        assert isinstance(array, zarr.Array)
        array[...] = value


def read_pair(session: Any) -> tuple[int, int]:
    root = zarr.open_group(session.store, mode="r")
    first, second = (int(np.asarray(root[name])) for name in ("a", "b"))
    return first, second


def write_cells(storage: Storage, row: int, columns: int, barrier: Barrier) -> Outcome:
    """Fill one row of the grid, a commit for each cell, rebasing whenever others were quicker."""
    repo = Repository.open(storage)
    outcome = Outcome()
    barrier.wait(_WITHIN_SECONDS)
    for column in range(columns):
        session = repo.writable_session("main")
        grid = zarr.open_array(session.store, path="grid", mode="r+")
        grid[row, column] = row * columns + column
        message = f"{row}/{column}"
        outcome.committed[message] = session.commit(message, rebase_with=ConflictDetector())
    return outcome


def create_repository(storage: Storage, number: int, barrier: Barrier) -> bool:
    """Create a repository, with a configuration that tells whose it is; False if it exists."""
    barrier.wait(_WITHIN_SECONDS)
    try:
        Repository.create(storage, RepositoryConfig(inline_chunk_threshold_bytes=number))
    except AlreadyExistsError:
        return False
    return True


def create_tags(storage: Storage, snapshot_id: str, names: list[str], barrier: Barrier) -> set[str]:
    """Create tags, each at the same time as others do; returns those that were ours."""
    repo = Repository.open(storage)
    ours = set()
    for name in names:
        barrier.wait(_WITHIN_SECONDS)
        try:
            repo.create_tag(name, snapshot_id)
        except AlreadyExistsError:
            continue
        ours.add(name)
    return ours


def commit_for_ever(storage: Storage, journal: str, writer: int) -> None:
    """Commit until killed, noting in a file what was about to be and what was committed."""
    repo = Repository.open(storage)
    notes = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(10**6):
        value = writer * 1_000_000 + number + 1
        session = repo.writable_session("main")
        write_pair(session, value)
        os.write(notes, f"try {value}\n".encode())
        snapshot_id = session.commit(str(value))
        os.write(notes, f"done {value} {snapshot_id}\n".encode())
        time.sleep(random.random() * 0.001)


def create_series(storage: Storage) -> None:
    """A repository with values and their coordinate along `time`, both empty yet."""
    session = Repository.create(storage).writable_session("main")
    root = zarr.create_group(session.store)
    for name, shape, chunks, names in (
        ("values", (0, 3), (2, 3), ("time", "x")),
        ("time", (0,), (2,), ("time",)),
    ):
        root.create_array(name, shape=shape, chunks=chunks, dtype="i4", dimension_names=names)
    session.commit("empty series")


def append_to_series(storage: Storage, writer: int, times: int, barrier: Barrier) -> Outcome:
    """Append two steps at a time, each marked by who wrote it; others do the same."""
    repo = Repository.open(storage)
    outcome = Outcome()
    barrier.wait(60)
    for turn in range(times):
        session = repo.writable_session("main")
        root = zarr.open_group(session.store)
        mark = 1000 * writer + turn
        values, time_ = root["values"], root["time"]
        values.append(np.full((2, 3), mark, dtype="i4"))
        time_.append(np.array([mark, mark], dtype="i4"))
        message = f"{writer}.{turn}"
        outcome.committed[message] = session.commit(message, rebase_with=AppendSolver("time"))
    return outcome


def put_for_ever(storage: Storage) -> None:
    """Write big objects until somebody kills this process."""
    data = bytes(8_000_000)
    number = 0
    while True:
        storage.put(f"chunks/by-a-dead-writer-{number % 4}", data)
        number += 1
