"""Writers that are killed in the middle of commits, for real, on local files."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import Repository
from icefloe.storage.keys import RESERVED_SEGMENT
from tests import counting
from tests.concurrency.writers import (
    commit_for_ever,
    create_pair,
    processes,
    put_for_ever,
    read_pair,
    write_pair,
)
from tests.formats import GENERATIONS

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.local import LocalStorage

KILLS = 30
_WITHIN_SECONDS = 60


@pytest.mark.parametrize("generation", GENERATIONS)
def test_killed_writers_leave_a_repository_that_goes_on(tmp_path: Path, generation: str) -> None:
    # R0-06
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    create_pair(storage, generation=generation)
    journal = tmp_path / "journal"
    journal.touch()
    chance = random.Random(20240917)
    kills = KILLS if generation == "repository" else KILLS // 10
    for writer in range(1, kills + 1):
        process = processes().Process(target=commit_for_ever, args=(storage, str(journal), writer))
        process.start()
        # From its first commit on, so that the kill hits commits and not the start.
        wait_for(journal, f"try {writer}")
        time.sleep(chance.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        counting.count(counting.KILLED)
        check(storage, journal)
    repo = Repository.open(storage)
    before = repo.lookup_branch("main")
    with repo.transaction("main", message="by a client that lives") as store:
        write_pair(store.session, 1)
    assert [info.id for info in repo.ancestry(branch="main")][1] == before


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_collection_removes_what_killed_writers_left(tmp_path: Path, generation: str) -> None:
    root = tmp_path / "repository"
    storage = icefloe.local_filesystem_storage(str(root))
    repo = create_pair(storage, generation=generation)
    lasting = set(temporary_files(root))
    chance = random.Random(20240918)
    deadline = time.monotonic() + _WITHIN_SECONDS
    while len(temporary_files(root)) < len(lasting) + 2:
        assert time.monotonic() < deadline, "no writer was killed in the middle of a file"
        process = processes().Process(target=put_for_ever, args=(storage,))
        process.start()
        while not list(storage.list("chunks/by-a-dead-writer")) and process.is_alive():
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    left = temporary_files(root)
    # They are young: for all that a collection knows, their writers live.
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert repo.garbage_collect(soon).temporary_files_deleted == 0
    assert temporary_files(root) == left
    two_hours_ago = time.time() - 7200
    for name in left:
        os.utime(root / RESERVED_SEGMENT / name, (two_hours_ago, two_hours_ago))
    planned = repo.garbage_collect(soon, dry_run=True)
    assert planned.temporary_files_deleted == len(left) - len(lasting)
    assert temporary_files(root) == left
    summary = repo.garbage_collect(soon)
    assert summary.temporary_files_deleted == planned.temporary_files_deleted
    assert summary.bytes_deleted >= sum(size for name, size in left.items() if name not in lasting)
    assert f"{summary.temporary_files_deleted} temporary files" in str(summary)
    assert set(temporary_files(root)) == lasting
    assert repo.verify(deep=True).is_clean


def temporary_files(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (root / RESERVED_SEGMENT).iterdir()}


def wait_for(journal: Path, line: str) -> None:
    deadline = time.monotonic() + _WITHIN_SECONDS
    while line not in journal.read_text():
        assert time.monotonic() < deadline, f"no {line!r} in the journal"
        time.sleep(0.002)


def check(storage: LocalStorage, journal: Path) -> None:
    """Assert that the history is a line of whole commits, with all that were acknowledged."""
    repo = Repository.open(storage)
    history = list(repo.ancestry(branch="main"))[:-2]
    for info in history[:20]:
        session = repo.readonly_session(snapshot_id=info.id)
        assert read_pair(session) == (int(info.message),) * 2
    lines = [line.split() for line in journal.read_text().splitlines()]
    tried = {int(line[1]) for line in lines if line[0] == "try"}
    acknowledged = {int(line[1]): line[2] for line in lines if line[0] == "done"}
    committed = {int(info.message): info.id for info in history}
    assert len(committed) == len(history)
    assert acknowledged.items() <= committed.items(), "an acknowledged commit is lost"
    assert committed.keys() <= tried
    # Each writer may have landed the one commit in whose answer it died.
    assert len(committed) - len(acknowledged) <= KILLS
    for info, parent in itertools.pairwise(history):
        assert info.parent_id == parent.id
