"""A disk that is full to the last block: commits fail cleanly, and a collection makes room."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import Repository, StorageError
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.keys import RESERVED_SEGMENT
from icefloe.storage.local.disk_reserve import RESERVE_BYTES, RESERVE_FILE
from tests.formats import GENERATIONS, chosen
from tests.integration.maintained import NATIVE, fill, make, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe import Session
    from icefloe.storage.port import Storage

pytestmark = pytest.mark.parametrize("generation", GENERATIONS)

DISK_BYTES = 6 * 1024 * 1024
BLOCK = 4096
LATER = timedelta(hours=1)
"""So long from now, all that is there now is old enough to be collected."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of a few MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class SmallStorage(ForwardingStorage):
    """A storage for so many blocks, some of which only those may use who clean up."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._room = DISK_BYTES - RESERVE_BYTES

    def _run(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb in ("put", "create", "replace"):
            # What is replaced needs room for both.
            used = sum(BLOCK * (1 + info.size // BLOCK) for info in self._inner.list())
            if used + BLOCK > self._room:
                raise StorageError("the disk is full")
        return super()._run(verb, key, act)

    @contextmanager
    def using_reserve(self) -> Iterator[None]:
        self._room += RESERVE_BYTES
        try:
            yield
        finally:
            self._room -= RESERVE_BYTES


def fill_up(repo: Repository) -> None:
    """Write chunks that are never committed, until not a single block is left."""
    for size in (64 * BLOCK, BLOCK, 1):
        session = repo.writable_session("main")
        with pytest.raises(StorageError, match="the disk is full"):
            write_for_ever(session, size)


def write_for_ever(session: Session, size: int) -> None:
    for number in range(10_000):
        session.tree.set_chunk("/a", (number % 4,), os.urandom(size))


def commit_for_ever(repo: Repository) -> None:
    for number in range(10_000):
        fill(repo, number % 256)


def use_up(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast:
        for _ in range(10_000):
            ballast.write(bytes(BLOCK))


def check_full_and_collected(repo: Repository) -> None:
    tip = fill(repo, 1)
    fill_up(repo)
    with pytest.raises(StorageError, match="the disk is full"):
        fill(repo, 2)
    assert repo.lookup_branch("main") == tip
    assert values(Repository.open(repo.storage), branch="main") == [1] * 4

    planned = repo.garbage_collect(datetime.now(UTC) + LATER, dry_run=True)
    assert planned.chunks_deleted > 10
    summary = repo.garbage_collect(datetime.now(UTC) + LATER)
    assert summary.chunks_deleted == planned.chunks_deleted
    assert repo.lookup_branch("main") == tip
    assert values(repo, branch="main") == [1] * 4
    fill(repo, 3)
    again = Repository.open(repo.storage)
    assert values(again, branch="main") == [3] * 4
    assert again.verify(deep=True).is_clean


def test_a_full_disk_is_cleaned(disk: Path, generation: str) -> None:
    storage = icefloe.local_filesystem_storage(str(disk / "repository"))
    with chosen(generation):
        repo = make(NATIVE, storage)
    reserve = disk / "repository" / RESERVED_SEGMENT / RESERVE_FILE
    assert reserve.stat().st_size == RESERVE_BYTES
    check_full_and_collected(repo)
    assert reserve.stat().st_size == RESERVE_BYTES
    # What was kept once is kept for the next time.
    check_full_and_collected(repo)


def test_a_full_disk_is_cleaned_of_what_expires(disk: Path, generation: str) -> None:
    storage = icefloe.local_filesystem_storage(str(disk / "repository"))
    with chosen(generation):
        repo = make(NATIVE, storage)
    with pytest.raises(StorageError, match="the disk is full"):
        commit_for_ever(repo)
    assert repo.expire_snapshots(keep_last=1)
    assert repo.garbage_collect(datetime.now(UTC) + LATER).snapshots_deleted > 10
    fill(repo, 77)
    assert values(Repository.open(storage), branch="main") == [77] * 4


def test_without_a_reserve_the_error_says_what_to_do(disk: Path, generation: str) -> None:
    storage = icefloe.local_filesystem_storage(str(disk / "repository"))
    with chosen(generation):
        repo = make(NATIVE, storage)
    fill(repo, 1)
    fill_up(repo)
    (disk / "repository" / RESERVED_SEGMENT / RESERVE_FILE).unlink()
    with pytest.raises(OSError, match="space"):
        use_up(disk / "ballast")
    with pytest.raises(StorageError, match="make room elsewhere"):
        repo.garbage_collect(datetime.now(UTC) + LATER)
    assert values(repo, branch="main") == [1] * 4
    (disk / "ballast").unlink()
    assert repo.garbage_collect(datetime.now(UTC) + LATER).chunks_deleted > 10
    assert repo.verify(deep=True).is_clean


def test_a_storage_with_a_reserve_is_cleaned(generation: str) -> None:
    """The same where nothing can be mounted: all that a collection writes fits the reserve."""
    with chosen(generation):
        repo = make(NATIVE, SmallStorage(icefloe.in_memory_storage()))
    check_full_and_collected(repo)
