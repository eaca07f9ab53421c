"""Virtual chunks in local files, never outside of the folder that was authorised.

Symbolic links are followed as long as they stay inside: what counts is where the opened file
really is, asked of the open file itself, so that nothing can be exchanged in between.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import sys
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from icefloe.objects.foreign.source import ListedSource, SourceStatus, VirtualRange, unlistable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.config.locations import Location

MAX_IMMEDIATE_BYTES = 256 * 1024
"""Reads up to this size are so quick that an event loop may do them itself."""

# O_NONBLOCK: opening a FIFO must not hang. O_NOCTTY: opening a terminal must change nothing.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class LocalSource:
    """Files below one folder."""

    def __init__(self, folder: Location) -> None:
        """Read files below the path of a `file:` location."""
        self._folder = "/" + folder.key

    def read(self, byte_range: VirtualRange) -> bytes:
        """The bytes of a range."""
        try:
            descriptor = os.open("/" + byte_range.location.key, _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            raise byte_range.missing() from None
        except (OSError, ValueError) as error:
            raise byte_range.unreadable(str(error)) from None
        try:
            return self._read_open(descriptor, byte_range)
        except OSError as error:
            raise byte_range.unreadable(str(error)) from None
        finally:
            os.close(descriptor)

    async def read_async(self, byte_range: VirtualRange) -> bytes:
        """Like `read`, without blocking the event loop for long."""
        if byte_range.length <= MAX_IMMEDIATE_BYTES:
            return self.read(byte_range)
        return await asyncio.to_thread(self.read, byte_range)

    def status(self, location: Location) -> SourceStatus | None:
        """The status of a file; None if it does not exist."""
        byte_range = VirtualRange(location, 0, 0)
        try:
            descriptor = os.open("/" + location.key, _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise byte_range.unreadable(str(error)) from None
        try:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return None  # as for object stores, where a folder is no object
            return _described(self._checked(descriptor, byte_range))
        except OSError as error:
            raise byte_range.unreadable(str(error)) from None
        finally:
            os.close(descriptor)

    def list(self, folder: Location) -> Iterator[ListedSource]:
        """All regular files below a folder; links are not followed."""
        root = "/" + folder.key
        depth = len(root.rstrip("/")) + 1
        if not (os.path.realpath(root) + "/").startswith(self._root.rstrip("/") + "/"):
            raise unlistable(folder, "a symbolic link leads out of the authorised folder")
        for place, _, names in os.walk(root):
            above = tuple(part for part in place[depth:].split("/") if part)
            for name in names:
                found = os.stat(f"{place}/{name}", follow_symlinks=False)  # noqa: PTH116 (bulk)
                if stat.S_ISREG(found.st_mode):
                    yield ListedSource(folder.joined((*above, name)), _described(found))

    @cached_property
    def _root(self) -> str:
        """Where the folder really is. Its own path may have links: it was authorised as it is."""
        return os.path.realpath(self._folder)

    def _checked(self, descriptor: int, byte_range: VirtualRange) -> os.stat_result:
        """The status of an open file; raises if it may not be read."""
        if not _real_path(descriptor).startswith(self._root.rstrip("/") + "/"):
            raise byte_range.unreadable("a symbolic link leads out of the folder of its container")
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise byte_range.unreadable("it is not a regular file")
        return status

    def _read_open(self, descriptor: int, byte_range: VirtualRange) -> bytes:
        status = self._checked(descriptor, byte_range)
        modified = datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, UTC)
        byte_range.verify_unchanged(_etag(status), modified)
        if status.st_size <= byte_range.start:
            raise byte_range.too_short(f"a file of {status.st_size} bytes")
        # A length comes from a file too: memory is taken for bytes that exist.
        length = min(byte_range.length, status.st_size - byte_range.start)
        return byte_range.completed(_read_fully(descriptor, byte_range.start, length))


def _real_path(descriptor: int) -> str:
    if sys.platform == "darwin":
        found = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))
        return os.fsdecode(found.split(b"\0", 1)[0])
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 (each read does this)


def _read_fully(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def _described(status: os.stat_result) -> SourceStatus:
    return SourceStatus(status.st_size, _etag(status), status.st_mtime_ns // 1_000_000_000)


def _etag(status: os.stat_result) -> str:
    """The etag that object-store libraries give to local files."""
    return f"{status.st_ino:x}-{status.st_mtime_ns // 1_000:x}-{status.st_size:x}"
