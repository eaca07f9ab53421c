from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import StorageError
from icefloe.storage.local.disk_sync import FolderSet, Unsynced, sync_whole_filesystem

if TYPE_CHECKING:
    from pathlib import Path


def test_a_caller_waits_for_files_that_another_is_syncing(tmp_path: Path) -> None:
    unsynced = Unsynced(str(tmp_path))
    unsynced.add_file("a")
    syncing, returned = threading.Event(), threading.Event()
    too_early = []

    def slow_sync(files: Any, folders: Any) -> Any:
        syncing.set()
        too_early.append(returned.wait(0.3))
        return set()

    first = threading.Thread(target=unsynced.settle, args=(slow_sync,))
    first.start()
    syncing.wait()
    # Nothing is left to sync for this one, and yet "a" is not on disk.
    unsynced.settle(lambda files, folders: set())
    returned.set()
    first.join()
    assert too_early == [False]


def test_one_sync_serves_all_who_wait(tmp_path: Path) -> None:
    unsynced = Unsynced(str(tmp_path))
    batches = []
    started, go_on = threading.Event(), threading.Event()

    def sync(files: Any, folders: Any) -> Any:
        batches.append(files)
        started.set()
        go_on.wait()
        return set()

    def write(name: Any) -> None:
        unsynced.add_file(name)
        unsynced.settle(sync)

    threads = [threading.Thread(target=write, args=("first",))]
    threads[0].start()
    started.wait()
    for number in range(8):
        unsynced.add_file(f"waiting {number}")
        threads.append(threading.Thread(target=unsynced.settle, args=(sync,)))
        threads[-1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert batches[0] == {"first"}
    assert len(batches) == 2
    assert len(batches[1]) == 8


def test_a_failed_file_stays_lost_until_it_is_written_again(tmp_path: Path) -> None:
    unsynced = Unsynced(str(tmp_path))
    unsynced.add_file("a")
    with pytest.raises(StorageError, match="'a'"):
        unsynced.settle(lambda files, folders: files)
    with pytest.raises(StorageError, match="'a'"):
        unsynced.settle(lambda files, folders: set())
    unsynced.add_file("a")
    unsynced.settle(lambda files, folders: set())


def test_an_interrupted_sync_is_done_again(tmp_path: Path) -> None:
    unsynced = Unsynced(str(tmp_path))
    unsynced.add_file("a")

    def interrupt(files: Any, folders: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unsynced.settle(interrupt)
    seen = []
    unsynced.settle(lambda files, folders: seen.append(files) or set())
    assert seen == [{"a"}]


def test_the_whole_filesystem(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert sync_whole_filesystem(folder) in (True, None)
    finally:
        os.close(folder)
    if sync_whole_filesystem(-1) is not None:
        assert sync_whole_filesystem(-1) is False


paths = st.lists(st.sampled_from("ab"), max_size=4).map("/".join)


def is_cut_along(folder: str, path: str) -> bool:
    if not folder:  # the root stays
        return False
    above = f"{path}/".startswith(f"{folder}/")
    return above or not path or folder.startswith(f"{path}/")


@given(st.lists(st.tuples(st.booleans(), paths), max_size=30))
def test_a_folder_that_is_cut_out_takes_along_what_is_above_and_below(
    steps: list[tuple[bool, str]],
) -> None:
    folders, model = FolderSet(), set[str]()
    for is_cut, path in steps:
        if is_cut:
            folders.cut(path)
            model = {other for other in model if not is_cut_along(other, path)}
        else:
            folders.add(path)
            model.add(path)
        assert {other for other in {path, *model, "a", "a/b", "b"} if other in folders} == model
