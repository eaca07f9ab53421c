"""Storage in a folder of a local filesystem: exclusive, durable, and never outside its root.

What it guarantees, and how:

1. No partial object is ever seen under its key: bytes go to a temporary file first, which then
   gets its name by rename(2) (`put`, `replace`) or link(2) (`create`, which fails if the name is
   taken, on every POSIX filesystem and against every other process).
2. A reference is never durable before what it refers to: `create` and `replace` first sync every
   file and folder that this process wrote before, then publish, then sync the folder of the new
   name.
3. Nothing outside the root is touched: no symbolic link below it is followed (`folder_tree`).
4. Temporary files live in one folder whose name no key can have (`RESERVED_SEGMENT`).
5. It is pure Python over system calls, and so it works after fork.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    UnsafeStorageError,
)
from icefloe.storage.keys import (
    RESERVED_SEGMENT,
    check_folder,
    check_key,
    check_prefix,
    check_range,
)
from icefloe.storage.local.disk_reserve import DISK_FULL, RESERVE_FILE, Reserve
from icefloe.storage.local.disk_sync import Unsynced, sync_whole_filesystem
from icefloe.storage.local.folder_tree import READ, FolderTree, stat_object
from icefloe.storage.local.temporary_files import LOCK_FILE, TemporaryFile, locked
from icefloe.storage.port import BytesLike, Capabilities, ObjectInfo, ObjectVersion, Swept
from icefloe.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from icefloe.storage.copying import CopyMethod

Durability = Literal["fsync", "none"]

_SYNC_THREADS = 8
# From this number of files and folders on, one syncfs(2) is quicker than an fsync(2) for each, by
# measurement. Below, it is not worth flushing what other programs wrote to the same filesystem.
_SYNC_ALL_FROM = 6
# Reading or writing this many bytes in the page cache takes no longer than a switch to a thread.
_IMMEDIATE_BYTES = 256 * 1024
# One system call fills at most this number of buffers (IOV_MAX of Linux and macOS).
_MOST_BUFFERS = 1024

# The temporary file of a writer that was suspended may be removed more than once.
_MAX_WRITES = 3
_LASTING_FILES = frozenset({LOCK_FILE, RESERVE_FILE})
_Result = TypeVar("_Result")

_CAPABILITIES = Capabilities(lists_in_pages=False, reads_are_immediate=True)


_NOT_LINKABLE = {
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
}
"""Another disk, or a file system or user that may not link: then the bytes are copied."""


class LocalStorage:
    """Objects as files below `root`, which is created by the first write.

    Args:
        root: The folder. Symbolic links in its path are resolved once, here.
        durability: "fsync" survives power loss; "none" leaves it to the operating system, which is
            quicker and safe only against the death of processes.
    """

    def __init__(self, root: str | os.PathLike[str], durability: Durability = "fsync") -> None:
        if durability not in ("fsync", "none"):
            raise InvalidInputError(f"durability must be 'fsync' or 'none', not {durability!r}")
        self.__setstate__((_resolved(root), durability))

    def __getstate__(self) -> tuple[str, Durability]:
        return (self._root, self._durability)

    def __setstate__(self, state: tuple[str, Durability]) -> None:
        self._root, self._durability = state
        self._location = Path(self._root).as_uri()
        self._unsynced = Unsynced.below(self._root)
        self._reserve = Reserve.below(self._root)
        self._tree = FolderTree(self._root, self._location, self._unsynced.made_folder)

    @property
    def root(self) -> Path:
        """The folder, with all links resolved."""
        return Path(self._root)

    @property
    def durability(self) -> Durability:
        """Whether references wait for the disk."""
        return self._durability

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do."""
        return _CAPABILITIES

    @property
    def location(self) -> str:
        """URL of the root."""
        return self._location

    def sharing_key(self) -> tuple[str, str, int]:
        """The folder, and the user whose rights count."""
        return ("file", self._root, os.geteuid() if hasattr(os, "geteuid") else 0)

    def with_settings(self, settings: StorageSettings) -> LocalStorage:  # noqa: ARG002
        """Return this storage: the settings are about requests, and it makes none."""
        return self

    def default_settings(self) -> StorageSettings:
        """Return no settings: they are about requests, and this storage makes none."""
        return StorageSettings()

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and self._root == other._root

    def __hash__(self) -> int:
        return hash(self._root)

    # Reading

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or `length` bytes of it from `start`."""
        check_range(key, start, length)
        file, size = self._tree.open(key)
        try:
            return self._read(key, file, size, start, length)
        except OSError as error:
            self._tree.fail(key, error)
        finally:
            os.close(file)

    def get_suffix(self, key: str, length: int) -> bytes:
        """Read the last `length` bytes (all of a shorter object)."""
        check_range(key, 0, length)
        with self._tree.opened(key) as (file, size):
            return self._read(key, file, size, max(0, size - length), None)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many `(start, length)` ranges of one object."""
        for start, length in ranges:
            check_range(key, start, length)
        with self._tree.opened(key) as (file, size):
            return [self._read(key, file, size, start, length) for start, length in ranges]

    def get_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of an object from `start`, one buffer after the other."""
        length = sum(map(len, buffers))
        check_range(key, start, length)
        with self._tree.opened(key) as (file, size):
            self._check_end(key, size, start, length)
            end = start + length
            left = deque(buffers)
            while start < end:
                count = os.preadv(file, list(islice(left, _MOST_BUFFERS)), start)
                if not count:
                    raise self._shrank(key, end, start)
                start += count
                while left and count >= len(left[0]):
                    count -= len(left.popleft())
                if count:
                    left[0] = left[0][count:]

    async def get_async(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `get`; what is big is read in a thread."""
        import asyncio

        check_range(key, start, length)
        with self._tree.opened(key) as (file, size):
            if min(size - start, size if length is None else length) <= _IMMEDIATE_BYTES:
                return self._read(key, file, size, start, length)
            return await asyncio.to_thread(self._read, key, file, size, start, length)

    def get_with_version(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Read a replaceable object with the token for `replace`."""
        data = self.get(key)
        return data, _version_of(data)

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return no attributes: a filesystem keeps none. Raises ObjectNotFoundError."""
        self.head(key)
        return {}

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        return self._tree.info(key)

    # Writing

    def put(
        self,
        key: str,
        data: BytesLike,
        attributes: Mapping[str, str] | None = None,  # noqa: ARG002 (a filesystem keeps none)
    ) -> None:
        """Write an object under a fresh name."""
        self._persist(lambda: self._put_object(key, data))

    def _put_object(self, key: str, data: BytesLike) -> None:
        # Without context managers, whose cost shows where thousands of chunks are written.
        parent, _, name = check_key(key).rpartition("/")
        try:
            folder = self._tree.descend(parent, make=True)
            try:
                self._put(folder, name, data)
            finally:
                os.close(folder)
        except OSError as error:
            self._tree.refuse(key, error)
        if self._durability == "fsync":
            self._unsynced.add_file(key)
            self._unsynced.add_folder(parent, got_entry=True)

    def copy_from(self, source: object, source_key: str, key: str) -> CopyMethod | None:
        """Link an object of another folder here; None if the two cannot share it.

        Objects are immutable, so two names may share one file.
        """
        from icefloe.storage.copying import CopyMethod

        if not isinstance(source, LocalStorage):
            return None
        with (
            source._tree.translated(source_key),  # noqa: SLF001
            source._tree.parent(source_key) as (old_folder, old_name),  # noqa: SLF001
            self._tree.translated(key, writing=True),
            self._tree.parent(key, make=True) as (folder, name),
        ):
            try:
                os.link(
                    old_name, name, src_dir_fd=old_folder, dst_dir_fd=folder, follow_symlinks=False
                )
            except OSError as error:
                if error.errno in _NOT_LINKABLE:
                    return None
                raise
        if self._durability == "fsync":
            self._unsynced.add_file(key)
            self._unsynced.add_folder(key.rpartition("/")[0], got_entry=True)
        return CopyMethod.LINKED

    def _put(self, folder: int, name: str, data: BytesLike) -> None:
        shelf = self._tree.descend(RESERVED_SEGMENT, make=True)
        try:
            temporary = TemporaryFile(shelf)
            try:
                temporary.write(data)
                temporary.move(folder, name)
            finally:
                temporary.remove()
        finally:
            os.close(shelf)

    async def put_async(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Like `put`; what is big is written in a thread."""
        import asyncio

        if len(data) <= _IMMEDIATE_BYTES:
            self.put(key, data, attributes)
        else:
            await asyncio.to_thread(self.put, key, data, attributes)

    def create(
        self,
        key: str,
        data: BytesLike,
        attributes: Mapping[str, str] | None = None,  # noqa: ARG002 (a filesystem keeps none)
    ) -> None:
        """Create an object that must not exist, or hold these very bytes already."""
        self._persist(lambda: self._create(key, data))

    def _create(self, key: str, data: BytesLike) -> None:
        with (
            self._tree.translated(key, writing=True),
            self._tree.parent(key, make=True) as (folder, name),
            self._temporary(data) as temporary,
        ):
            self._sync(key, temporary)
            try:
                temporary.link(folder, name)
            except FileExistsError:
                # Ours after all, if a network filesystem lost the answer to a first attempt.
                if not self._holds(key, data):
                    raise AlreadyExistsError(f"{key!r} exists already in {self.location}") from None
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP):
                    raise UnsafeStorageError(
                        f"the filesystem of {self.location} has no hard links, without which one "
                        "commit could overwrite another; keep the repository elsewhere"
                    ) from error
                raise
            if self._durability == "fsync":
                os.fsync(folder)
            self._reserve.keep(temporary.folder)

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if it is still at `expected` (None: if it is absent)."""
        return self._persist(lambda: self._replace(key, data, expected))

    def _replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        with (
            self._tree.translated(key, writing=True),
            self._tree.parent(key, make=True) as (folder, name),
            self._temporary(data) as temporary,
        ):
            self._sync(key, temporary)
            with locked(temporary.folder):
                self._require_version(key, expected)
                temporary.move(folder, name)
                if self._durability == "fsync":
                    os.fsync(folder)
            self._reserve.keep(temporary.folder)
            return _version_of(data)

    def _persist(self, write: Callable[[], _Result]) -> _Result:
        """Write; again if our temporary file was removed, or if reserved disk space can be used."""
        for _ in range(_MAX_WRITES):
            try:
                return write()
            except StorageError as error:
                cause = error.__cause__
                is_full = isinstance(cause, OSError) and cause.errno in DISK_FULL
                if not (self._release_reserve() if is_full else _is_absent(cause)):
                    raise
        return write()

    def _release_reserve(self) -> bool:
        with suppress(OSError), self._tree.folder(RESERVED_SEGMENT) as folder:
            return self._reserve.release(folder)
        return False

    @contextmanager
    def using_reserve(self) -> Iterator[None]:
        """Let writes use the space reserved for garbage collection; reserve it again afterwards."""
        try:
            with self._reserve.in_use():
                yield
        finally:
            with suppress(OSError), self._tree.folder(RESERVED_SEGMENT) as folder:
                self._reserve.keep(folder)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; absent ones are no error."""
        left: list[str] = []
        problem: StorageError | None = None
        for key in keys:
            try:
                self._delete(key)
            except StorageError as error:
                left.append(key)
                problem = error
        if problem is not None:
            raise StorageError(
                f"{len(left)} objects in {self.location} could not be deleted, among them "
                f"{left[:5]}: {problem}"
            ) from problem

    def sync(self) -> None:
        """Make all earlier `put`s of this process below this root durable."""
        if self._durability == "fsync":
            with self._tree.translated("", writing=True):
                self._unsynced.settle(self._sync_now)

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:
        """Remove temporary files that dead writers left behind.

        A writer that lives but was suspended for long writes its file again.
        """
        sizes = []
        with (
            self._tree.translated(RESERVED_SEGMENT, absent_is_fine=True),
            self._tree.folder(RESERVED_SEGMENT) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.name in _LASTING_FILES or status.st_mtime >= before.timestamp():
                        continue
                    if not dry_run:
                        os.unlink(entry.name, dir_fd=folder)
                    sizes.append(status.st_size)
        return Swept(len(sizes), sum(sizes))

    # Listing

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children of the folder `prefix`.

        A folder without objects is none, as on an object store.
        """
        return self._tree.children(check_folder(prefix))

    def names(self, prefix: str) -> list[str]:
        """Names of the immediate children of a folder, and of empty folders, in any order."""
        return self._tree.names(check_folder(prefix))

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in ascending order of the key's UTF-8 bytes."""
        check_prefix(prefix)
        return islice(self._tree.walk(prefix, start_after), limit)

    def _read(self, key: str, file: int, size: int, start: int, length: int | None) -> bytes:
        self._check_end(key, size, start, length)
        end = size if length is None else start + length
        data = os.pread(file, end - start, start)
        if len(data) == end - start:
            return data
        # One system call reads at most 2 GiB.
        parts = [data]
        position = start + len(data)
        while position < end:
            data = os.pread(file, end - position, position)
            if not data:
                raise self._shrank(key, end, position)
            parts.append(data)
            position += len(data)
        return b"".join(parts)

    def _check_end(self, key: str, size: int, start: int, length: int | None) -> None:
        if start > size or (length is not None and start + length > size):
            raise StorageError(
                f"{key!r} in {self.location} has {size} bytes: cannot read "
                f"{'the rest' if length is None else f'{length} bytes'} from byte {start}"
            )

    def _shrank(self, key: str, expected: int, size: int) -> StorageError:
        return StorageError(
            f"{key!r} in {self.location} shrank while it was read: expected {expected} bytes, "
            f"found {size}"
        )

    def _holds(self, key: str, data: BytesLike) -> bool:
        try:
            return self.get(key) == data
        except ObjectNotFoundError:
            return False  # a folder, or gone again

    def _require_version(self, key: str, expected: ObjectVersion | None) -> None:
        try:
            actual = self.get_with_version(key)[1]
        except ObjectNotFoundError:
            actual = None
        if actual != expected:
            raise ConflictError(
                f"{key!r} in {self.location} changed since it was read: expected version "
                f"{expected and expected.token}, found {actual and actual.token}; read it again"
            )

    def _delete(self, key: str) -> None:
        with (
            self._tree.translated(key, absent_is_fine=True),
            self._tree.parent(key) as (folder, name),
        ):
            stat_object(name, folder)
            os.unlink(name, dir_fd=folder)
            self._unsynced.forget(key)

    @contextmanager
    def _temporary(self, data: BytesLike) -> Iterator[TemporaryFile]:
        """Write a temporary file, and remove it afterwards unless it was moved."""
        with self._tree.folder(RESERVED_SEGMENT, make=True) as folder:
            temporary = TemporaryFile(folder)
            try:
                temporary.write(data)
                yield temporary
            finally:
                temporary.remove()

    # Durability

    def _sync(self, key: str, temporary: TemporaryFile) -> None:
        """Make durable all that is not yet, and a temporary file that is to become `key`."""
        if self._durability == "fsync":
            self._unsynced.add_file(f"{RESERVED_SEGMENT}/{temporary.name}")
            self._unsynced.add_folder(key.rpartition("/")[0], got_entry=False)
            self._unsynced.settle(self._sync_now)

    def _sync_now(self, files: set[str], folders: set[str]) -> set[str]:
        """Sync files and folders, and return what the disk failed to store."""
        if len(files) + len(folders) >= _SYNC_ALL_FROM:
            with self._tree.folder("") as root:
                done = sync_whole_filesystem(root)
            if done is not None:
                return set() if done else files | folders
        jobs: list[tuple[Callable[[str], bool], str]] = [
            *((self._sync_file, name) for name in files),
            *((self._sync_folder, name) for name in folders),
        ]
        return _failed(jobs)

    def _sync_file(self, key: str) -> bool:
        with suppress(FileNotFoundError), self._tree.parent(key, check=False) as (folder, name):
            file = os.open(name, READ, dir_fd=folder)
            try:
                return _fsync(file)
            finally:
                os.close(file)
        return True  # deleted meanwhile

    def _sync_folder(self, folder: str) -> bool:
        if not folder.startswith("/"):
            with suppress(FileNotFoundError), self._tree.folder(folder) as descriptor:
                return _fsync(descriptor)
            return True
        # Above the root. One that we may not read is none that we made an entry in.
        with suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return _fsync(descriptor)
            finally:
                os.close(descriptor)
        return True


def _is_absent(error: BaseException | None) -> bool:
    return isinstance(error, FileNotFoundError)


def _version_of(data: BytesLike) -> ObjectVersion:
    # By content: inode, time and size can all recur, and then a lost update would go unseen.
    # BLAKE2 takes half the time of SHA-256 where the processor has no instructions for that.
    return ObjectVersion(hashlib.blake2b(data, digest_size=32).hexdigest())


def _fsync(descriptor: int) -> bool:
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error.errno == errno.EINVAL  # a filesystem that cannot sync folders
    return True


def _failed(jobs: Sequence[tuple[Callable[[str], bool], str]]) -> set[str]:
    """Sync many at once, so that the filesystem may write its journal once for several."""
    if len(jobs) <= 1:
        return {name for sync, name in jobs if not sync(name)}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_SYNC_THREADS, len(jobs))) as threads:
        done = threads.map(lambda job: job[0](job[1]), jobs)
        return {name for (_, name), stored in zip(jobs, done, strict=True) if not stored}


def _resolved(root: str | os.PathLike[str]) -> str:
    path = os.fspath(root)
    try:
        if b"\0" not in os.fsencode(path):
            return os.path.realpath(path)
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(f"no folder can have the path {path!r}: it is no text, or has a NUL")
