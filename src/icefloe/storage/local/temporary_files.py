"""Files that have no key yet, and the lock under which one replaces another."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import BytesLike

_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
LOCK_FILE = "replace.lock"
"""It always stays in the folder of temporary files."""


class TemporaryFile:
    """A file that has no key yet."""

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.name = os.urandom(12).hex()
        self._exists = False

    def write(self, data: BytesLike) -> None:
        """Create the file and write the data."""
        file = os.open(self.name, _WRITE_NEW, 0o666, dir_fd=self.folder)
        self._exists = True
        try:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def move(self, folder: int, name: str) -> None:
        """Rename it, replacing whatever has that name."""
        os.rename(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
        self._exists = False

    def link(self, folder: int, name: str) -> None:
        """Link it to a name that must not exist."""
        os.link(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder, follow_symlinks=False)

    def remove(self) -> None:
        """Delete it, unless it was moved."""
        if self._exists:
            with suppress(FileNotFoundError):  # swept away
                os.unlink(self.name, dir_fd=self.folder)


@contextmanager
def locked(folder: int) -> Iterator[None]:
    """Hold the lock of `replace`, against threads and processes.

    The kernel releases it when its holder dies. The file itself is never removed: then two
    processes could lock two files of one name.
    """
    file = os.open(LOCK_FILE, _LOCK, 0o666, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing does not release it: a child that was forked meanwhile has the descriptor too.
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)
