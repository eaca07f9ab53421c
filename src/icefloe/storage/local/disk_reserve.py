"""Disk space that is reserved for garbage collection.

A garbage collection writes a little before it deletes anything: what it is about to delete, and one
more entry of each branch. On a full disk, that would be impossible. So there is a file of some size
beside the temporary files, which is deleted when a collection finds the disk full.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RESERVE_FILE = "reserve"
RESERVE_BYTES = 1024 * 1024
"""Enough for some hundred blocks: one for each branch, and a few notes."""
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """The reserve below one root, and whether this process may use it now."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()

    @staticmethod
    def below(root: str) -> Reserve:
        """Return the one of this process for a root."""
        return _by_root.setdefault(root, Reserve())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let writes of this process take the reserve if they need it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def keep(self, folder: int) -> None:
        """Make the reserve in a folder if it is missing and not in use; no matter if that fails."""
        if self._users:
            return
        with suppress(OSError):
            if os.stat(RESERVE_FILE, dir_fd=folder, follow_symlinks=False).st_size:
                return
        with suppress(OSError):
            _make(folder)

    def release(self, folder: int) -> bool:
        """Delete the reserve if this process may use it; return whether there was any."""
        if not self._users:
            return False
        try:
            os.unlink(RESERVE_FILE, dir_fd=folder)
        except OSError:
            return False
        return True


def _make(folder: int) -> None:
    file = os.open(RESERVE_FILE, _OPEN, 0o666, dir_fd=folder)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, RESERVE_BYTES)
        else:
            os.write(file, bytes(RESERVE_BYTES))
    except OSError:
        os.unlink(RESERVE_FILE, dir_fd=folder)  # what there is of it is of use to others
        raise
    finally:
        os.close(file)


_by_root: dict[str, Reserve] = {}


def _reset_after_fork() -> None:
    for reserve in _by_root.values():
        reserve.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_reset_after_fork)
