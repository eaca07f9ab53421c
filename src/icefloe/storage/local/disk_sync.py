"""Tracks writes to a local filesystem that may not be on disk yet, and syncs them (fsync)."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from icefloe.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SYNCFS_REPORTS_ERRORS_SINCE = (5, 8)


class FolderSet:
    """A set of folders; removing one costs time in proportion to its parents and children."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._below: dict[str, set[str]] = {}
        """Folders with a member at or below them, by the folder that they are in."""

    def __contains__(self, folder: str) -> bool:
        return folder in self._folders

    def add(self, folder: str) -> None:
        """Add a folder."""
        self._folders.add(folder)
        for parent in _parents(folder):
            known = self._below.setdefault(parent, set())
            if folder in known:
                break
            known.add(folder)
            folder = parent

    def cut(self, folder: str) -> None:
        """Remove a folder, its parents below the root, and everything in it."""
        self._folders.difference_update({folder, *_parents(folder)} - {""})
        removed = [folder]
        while removed:
            below = self._below.pop(removed.pop(), set())
            self._folders -= below
            removed += below


class Unsynced:
    """Files and folders below one root that must be synced before the next reference is created.

    There is one per root, not one per storage object: a reference created through one object may
    refer to files written through another.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: set[str] = set()
        self._folders: set[str] = set()
        # Folders whose entries, up to the root, are known to be on disk.
        self._trusted_folders = FolderSet()
        # Files whose sync failed. The kernel may have dropped their bytes and forgotten about it,
        # so a later sync that succeeds proves nothing.
        self._lost: set[str] = set()
        self.reset_locks()

    def reset_locks(self) -> None:
        """Make new locks after a fork: locks held by other threads would never be released."""
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()

    @staticmethod
    def below(root: str) -> Unsynced:
        """Return the tracker of this process for a root."""
        with _registry_lock:
            return _by_root.setdefault(root, Unsynced(root))

    def add_file(self, key: str) -> None:
        """Note that a file was written."""
        with self._lock:
            self._files.add(key)
            self._lost.discard(key)

    def add_folder(self, folder: str, *, got_entry: bool) -> None:
        """Note that a folder may have a new entry.

        A folder that is used for the first time may have been made by another process that died
        before it synced, so its own entry and those of its parents are synced once, too.
        """
        with self._lock:
            if got_entry:
                self._folders.add(folder)
            if folder not in self._trusted_folders:
                self._trusted_folders.add(folder)
                self._folders.update(_parents(folder))
                self._folders.add(str(Path(self._root).parent))

    def forget(self, key: str) -> None:
        """Note that a file was deleted."""
        with self._lock:
            self._files.discard(key)
            self._lost.discard(key)

    def made_folder(self, folder: str, root_parents: Iterable[str]) -> None:
        """Note that a folder, perhaps with parents, was created: their entries are not on disk yet.

        Args:
            folder: The folder below the root.
            root_parents: Absolute paths of folders with new entries, if the root was created.
        """
        with self._lock:
            parents = set(root_parents)
            self._folders |= parents
            if parents:
                self._trusted_folders = FolderSet()
            else:
                self._trusted_folders.cut(folder)

    def settle(self, sync: Callable[[set[str], set[str]], set[str]]) -> None:
        """Return once everything noted before the call is on disk.

        Calls are serialized, and each sync covers all callers that are waiting for it.
        """
        with self._one_at_a_time:
            with self._lock:
                files, self._files = self._files, set()
                folders, self._folders = self._folders, set()
            if files or folders:
                try:
                    failed = sync(files, folders)
                except BaseException:
                    with self._lock:
                        self._files |= files
                        self._folders |= folders
                    raise
                self._lost |= failed
            if self._lost:
                raise StorageError(
                    f"the disk failed to store files below {self._root!r}, among them "
                    f"{sorted(self._lost)[:5]}; check the disk, then write them again in a new "
                    "process"
                )


_by_root: dict[str, Unsynced] = {}
_registry_lock = threading.Lock()


def _reset_locks_after_fork() -> None:
    global _registry_lock  # noqa: PLW0603 (a lock that another thread held stays locked)
    _registry_lock = threading.Lock()
    for unsynced in _by_root.values():
        unsynced.reset_locks()


os.register_at_fork(after_in_child=_reset_locks_after_fork)


def _parents(folder: str) -> list[str]:
    parents = []
    while folder:
        folder = folder.rpartition("/")[0]
        parents.append(folder)
    return parents


def sync_whole_filesystem(folder: int) -> bool | None:
    """Sync the whole filesystem of an open folder (syncfs); True if everything is on disk.

    None where the call does not exist, or where the kernel would not report failed writes.
    """
    syncfs = _syncfs()
    if syncfs is None:
        return None
    return syncfs(folder) == 0


@cache
def _syncfs() -> Callable[[int], int] | None:
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if sys.platform != "linux" or release is None:
        return None
    if (int(release[1]), int(release[2])) < _SYNCFS_REPORTS_ERRORS_SINCE:
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    function.restype = ctypes.c_int
    return function
