"""Storage in a folder of a local filesystem: exclusive, durable, and never outside its root.

What holds, and by what means:

1. No partial object is ever seen under its key: bytes go to a temporary file first, which then
   gets its name by rename(2) (`put`, `replace`) or link(2) (`create`, which fails if the name is
   taken, on every POSIX filesystem and against every other process).
2. A reference never outlives what it names: `create` and `replace` first sync every file and folder
   that this process wrote before, then publish, then sync the folder of the new name.
3. Nothing outside the root is touched: every folder below the root is opened with O_NOFOLLOW,
   relative to its parent, and so is every file. Only the path of the root itself may have links.
4. Temporary files live in one folder whose name no key can have (`RESERVED_SEGMENT`).
5. It is pure Python over system calls, and so it works after fork.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    UnsafeStorageError,
)
from icefloe.storage.copy_method import CopyMethod
from icefloe.storage.disk_sync import Unsynced, sync_whole_filesystem
from icefloe.storage.keys import (
    RESERVED_SEGMENT,
    check_folder,
    check_key,
    check_prefix,
    check_range,
)
from icefloe.storage.port import BytesLike, Capabilities, ObjectInfo, Version
from icefloe.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

Durability = Literal["fsync", "none"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that somebody planted must not hang.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

_LOCK_FILE = "replace.lock"
_SYNC_THREADS = 8
# From so many files and folders on, one syncfs(2) is quicker than an fsync(2) for each, by
# measurement; below, it is not worth flushing what other programs wrote to the same filesystem.
_SYNC_ALL_FROM = 6
# So many bytes take no longer to read from (or write to) the page cache than a hop to a thread.
_IMMEDIATE_BYTES = 256 * 1024
_DEEPEST_FOLDER = 64

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
        self.__setstate__((os.path.realpath(os.fspath(root)), durability))

    def __getstate__(self) -> tuple[str, Durability]:
        return (self._root, self._durability)

    def __setstate__(self, state: tuple[str, Durability]) -> None:
        self._root, self._durability = state
        self._location = Path(self._root).as_uri()
        self._unsynced = Unsynced.below(self._root)

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
        file, size = self._open(key)
        try:
            return self._read(key, file, size, start, length)
        except OSError as error:
            self._raise(key, error)
        finally:
            os.close(file)

    def get_suffix(self, key: str, length: int) -> bytes:
        """Read the last `length` bytes (all of a shorter object)."""
        check_range(key, 0, length)
        with self._opened(key) as (file, size):
            return self._read(key, file, size, max(0, size - length), None)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many `(start, length)` ranges of one object."""
        for start, length in ranges:
            check_range(key, start, length)
        with self._opened(key) as (file, size):
            return [self._read(key, file, size, start, length) for start, length in ranges]

    async def get_async(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `get`; what is big is read in a thread."""
        import asyncio

        check_range(key, start, length)
        with self._opened(key) as (file, size):
            if min(size - start, size if length is None else length) <= _IMMEDIATE_BYTES:
                return self._read(key, file, size, start, length)
            return await asyncio.to_thread(self._read, key, file, size, start, length)

    def get_with_version(self, key: str) -> tuple[bytes, Version]:
        """Read a replaceable object with the token for `replace`."""
        data = self.get(key)
        return data, _version_of(data)

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return no attributes: a filesystem keeps none. Raises ObjectNotFoundError."""
        self.head(key)
        return {}

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        with self._translated(key), self._parent(key) as (folder, name):
            return _info(key, _stat_object(name, folder))

    # Writing

    def put(
        self,
        key: str,
        data: BytesLike,
        attributes: Mapping[str, str] | None = None,  # noqa: ARG002 (a filesystem keeps none)
    ) -> None:
        """Write an object under a fresh name."""
        # Without context managers, whose cost shows where thousands of chunks are written.
        parent, _, name = check_key(key).rpartition("/")
        try:
            folder = self._descend(parent, make=True)
            try:
                self._put(folder, name, data)
            finally:
                os.close(folder)
        except OSError as error:
            self._refuse(key, error)
        if self._durability == "fsync":
            self._unsynced.add_file(key)
            self._unsynced.add_folder(parent, got_entry=True)

    def copy_from(self, source: object, source_key: str, key: str) -> CopyMethod | None:
        """Link an object of another folder here; None if the two cannot share it.

        Objects are never altered, so that two names may stand for one.
        """
        if not isinstance(source, LocalStorage):
            return None
        with (
            source._translated(source_key),  # noqa: SLF001
            source._parent(source_key) as (old_folder, old_name),  # noqa: SLF001
            self._translated(key, writing=True),
            self._parent(key, make=True) as (folder, name),
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
        shelf = self._descend(RESERVED_SEGMENT, make=True)
        try:
            temporary = _Temporary(shelf)
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

    def create(self, key: str, data: BytesLike) -> None:
        """Create an object that must not exist, or hold these very bytes already."""
        with (
            self._translated(key, writing=True),
            self._parent(key, make=True) as (folder, name),
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

    def replace(self, key: str, data: BytesLike, expected: Version | None) -> Version:
        """Replace an object if it is still at `expected` (None: if it is absent)."""
        with (
            self._translated(key, writing=True),
            self._parent(key, make=True) as (folder, name),
            self._temporary(data) as temporary,
        ):
            self._sync(key, temporary)
            with _locked(temporary.folder):
                self._require_version(key, expected)
                temporary.move(folder, name)
                if self._durability == "fsync":
                    os.fsync(folder)
            return _version_of(data)

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
            with self._translated("", writing=True):
                self._unsynced.settle(self._sync_now)

    def sweep_temporary(self, older_than: timedelta) -> int:
        """Remove temporary files that dead writers left behind, and return how many.

        Age is judged by the filesystem's clock, which on a network may not be ours.
        """
        removed = 0
        with (
            self._translated(RESERVED_SEGMENT, absent_is_fine=True),
            self._folder(RESERVED_SEGMENT) as folder,
        ):
            with self._temporary(b"") as probe:
                now = os.stat(probe.name, dir_fd=folder).st_mtime
            cutoff = now - older_than.total_seconds()
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        modified = entry.stat(follow_symlinks=False).st_mtime
                        if entry.name != _LOCK_FILE and modified < cutoff:
                            os.unlink(entry.name, dir_fd=folder)
                            removed += 1
        return removed

    # Listing

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children of the folder `prefix`.

        A folder without objects is none, as on an object store.
        """
        folder = check_folder(prefix)
        names: list[str] = []
        with (
            self._translated(folder, absent_is_fine=True),
            self._folder(folder) as descriptor,
        ):
            names.extend(
                name.removesuffix("/")
                for name in _names(descriptor)
                if not name.endswith("/") or _has_objects(descriptor, name)
            )
        return sorted(names)

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in ascending order of the key's UTF-8 bytes."""
        check_prefix(prefix)
        return islice(self._list(prefix, start_after), limit)

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        path = f"{folder}/" if folder else ""
        with (
            self._translated(folder, absent_is_fine=True),
            self._folder(folder) as descriptor,
        ):
            yield from _walk(descriptor, path, prefix, after)

    # Files and folders, opened without following links

    def _open(self, key: str) -> tuple[int, int]:
        """Open an object for reading, and say how big it is; the caller closes it."""
        parent, _, name = check_key(key).rpartition("/")
        try:
            folder = self._descend(parent)
            try:
                file = os.open(name, _READ, dir_fd=folder)
            finally:
                os.close(folder)
            found = os.fstat(file)
        except FileNotFoundError:
            raise self._absent(key) from None
        except OSError as error:
            self._refuse_links(key)
            if isinstance(error, NotADirectoryError):
                raise self._absent(key) from error
            self._raise(key, error)
        if not stat.S_ISREG(found.st_mode):
            os.close(file)
            raise self._absent(key)
        return file, found.st_size

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Open an object for reading, say how big it is, and close it afterwards."""
        file, size = self._open(key)
        try:
            yield file, size
        except OSError as error:
            self._raise(key, error)
        finally:
            os.close(file)

    def _read(self, key: str, file: int, size: int, start: int, length: int | None) -> bytes:
        end = size if length is None else start + length
        if start > size or end > size:
            raise StorageError(
                f"{key!r} in {self.location} has {size} bytes: cannot read "
                f"{'the rest' if length is None else f'{length} bytes'} from byte {start}"
            )
        data = os.pread(file, end - start, start)
        if len(data) == end - start:
            return data
        # One system call reads at most 2 GiB.
        parts = [data]
        position = start + len(data)
        while position < end:
            data = os.pread(file, end - position, position)
            if not data:
                raise StorageError(
                    f"{key!r} in {self.location} shrank while it was read: expected {end} bytes, "
                    f"found {position}"
                )
            parts.append(data)
            position += len(data)
        return b"".join(parts)

    def _holds(self, key: str, data: BytesLike) -> bool:
        try:
            return self.get(key) == data
        except ObjectNotFoundError:
            return False  # a folder, or gone again

    def _require_version(self, key: str, expected: Version | None) -> None:
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
            self._translated(key, absent_is_fine=True),
            self._parent(key) as (folder, name),
        ):
            _stat_object(name, folder)
            os.unlink(name, dir_fd=folder)
            self._unsynced.forget(key)

    @contextmanager
    def _temporary(self, data: BytesLike) -> Iterator[_Temporary]:
        """Write a temporary file, and remove it afterwards unless it was moved."""
        with self._folder(RESERVED_SEGMENT, make=True) as folder:
            temporary = _Temporary(folder)
            try:
                temporary.write(data)
                yield temporary
            finally:
                temporary.remove()

    @contextmanager
    def _parent(
        self, key: str, *, make: bool = False, check: bool = True
    ) -> Iterator[tuple[int, str]]:
        folder, _, name = (check_key(key) if check else key).rpartition("/")
        with self._folder(folder, make=make) as descriptor:
            yield descriptor, name

    @contextmanager
    def _folder(self, folder: str, *, make: bool = False) -> Iterator[int]:
        descriptor = self._descend(folder, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _descend(self, folder: str, *, make: bool = False) -> int:
        """Open a folder, or make it; the caller closes it."""
        # The first segment is opened together with the root, whose own path is free of links.
        first, _, rest = folder.partition("/")
        descriptor = self._enter(f"{self._root}/{first}", None, folder, make=make)
        while rest:
            name, _, rest = rest.partition("/")
            try:
                inner = self._enter(name, descriptor, folder, make=make)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def _enter(self, name: str, outer: int | None, folder: str, *, make: bool) -> int:
        """Open one folder on the way to `folder`, or make it."""
        try:
            return os.open(name, _FOLDER, dir_fd=outer)
        except FileNotFoundError:
            if not make:
                raise
        root_parents = []
        if outer is None and not Path(self._root).is_dir():
            root_parents = _make_folders(self.root)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=outer)
        self._unsynced.made_folder(folder, root_parents)
        return os.open(name, _FOLDER, dir_fd=outer)

    # Durability

    def _sync(self, key: str, temporary: _Temporary) -> None:
        """Make durable all that is not yet, and a temporary file that is to become `key`."""
        if self._durability == "fsync":
            self._unsynced.add_file(f"{RESERVED_SEGMENT}/{temporary.name}")
            self._unsynced.add_folder(key.rpartition("/")[0], got_entry=False)
            self._unsynced.settle(self._sync_now)

    def _sync_now(self, files: set[str], folders: set[str]) -> set[str]:
        """Sync files and folders, and return what the disk failed to store."""
        if len(files) + len(folders) >= _SYNC_ALL_FROM:
            with self._folder("") as root:
                done = sync_whole_filesystem(root)
            if done is not None:
                return set() if done else files | folders
        jobs: list[tuple[Callable[[str], bool], str]] = [
            *((self._sync_file, name) for name in files),
            *((self._sync_folder, name) for name in folders),
        ]
        return _failed(jobs)

    def _sync_file(self, key: str) -> bool:
        with suppress(FileNotFoundError), self._parent(key, check=False) as (folder, name):
            file = os.open(name, _READ, dir_fd=folder)
            try:
                return _fsync(file)
            finally:
                os.close(file)
        return True  # deleted meanwhile

    def _sync_folder(self, folder: str) -> bool:
        if not folder.startswith("/"):
            with suppress(FileNotFoundError), self._folder(folder) as descriptor:
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

    # Errors

    @contextmanager
    def _translated(
        self, key: str, *, absent_is_fine: bool = False, writing: bool = False
    ) -> Iterator[None]:
        """Raise our errors for the operating system's."""
        try:
            yield
        except OSError as error:
            if writing:
                self._refuse(key, error)
            # That something is absent is never due to a link: those that are not followed are
            # found to be no folder, or one link too many.
            if not isinstance(error, FileNotFoundError):
                self._refuse_links(key)
                if not isinstance(error, NotADirectoryError):
                    self._raise(key, error)
            if not absent_is_fine:
                raise self._absent(key) from error

    def _absent(self, key: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"no object {key!r} in {self.location}", key)

    def _refuse(self, key: str, error: OSError) -> NoReturn:
        """Raise our error for the operating system's when something could not be written."""
        self._refuse_links(key)
        self._raise(key, error)

    def _refuse_links(self, key: str) -> None:
        path = self._root
        for name in key.split("/"):
            path = f"{path}/{name}"
            if _is_link(path):
                raise StorageError(
                    f"{key!r} in {self.location} leads through a symbolic link, {path!r}; links "
                    "below the root are never followed, because they could lead out of it"
                )

    def _raise(self, key: str, error: OSError) -> NoReturn:
        text = f"{key!r} in {self.location}: {error.strerror or error}"
        match error.errno:
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise StoragePermissionError(text) from error
            case errno.ENAMETOOLONG | errno.EISDIR:
                raise InvalidInputError(f"cannot be an object: {text}") from error
        raise StorageError(text) from error


class _Temporary:
    """A file that has no key yet."""

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.name = secrets.token_hex(12)
        self._exists = False

    def write(self, data: BytesLike) -> None:
        file = os.open(self.name, _WRITE_NEW, 0o666, dir_fd=self.folder)
        self._exists = True
        try:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def move(self, folder: int, name: str) -> None:
        """Give it a name, taking it from what has it now."""
        os.rename(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
        self._exists = False

    def link(self, folder: int, name: str) -> None:
        """Give it a name that nothing has now."""
        os.link(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder, follow_symlinks=False)

    def remove(self) -> None:
        if self._exists:
            with suppress(FileNotFoundError):  # swept away
                os.unlink(self.name, dir_fd=self.folder)


def _version_of(data: BytesLike) -> Version:
    # By content: inode, time and size can all recur, and then a lost update would go unseen.
    return Version(hashlib.sha256(data).hexdigest())


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _stat_object(name: str, folder: int) -> os.stat_result:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return found


def _names(folder: int) -> Iterator[str]:
    """Yield the names of the regular files in a folder, and of its folders (`name/`)."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(RESERVED_SEGMENT):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield f"{entry.name}/"
            elif entry.is_file(follow_symlinks=False):
                yield entry.name


def _walk(folder: int, path: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
    """Yield the objects below an open folder whose key is `path`."""
    if path.count("/") > _DEEPEST_FOLDER:
        raise StorageError(f"folders are nested more than {_DEEPEST_FOLDER} deep: {path!r}")
    # Folders are sorted with the slash at their end, so that "a-b" comes before "a/c": this is the
    # order of whole keys. Text compares by code point, which is the order of the UTF-8 bytes.
    for name in sorted(_names(folder)):
        key = path + name
        if not key.startswith(prefix) and not prefix.startswith(key):
            continue
        if name.endswith("/"):
            if key < after and not after.startswith(key):
                continue  # all its keys come before `after`
            with suppress(FileNotFoundError):
                inner = os.open(name[:-1], _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(inner, key, prefix, after)
                finally:
                    os.close(inner)
        elif key > after and key.startswith(prefix):
            with suppress(FileNotFoundError):
                yield _info(key, _stat_object(name, folder))


def _has_objects(folder: int, name: str) -> bool:
    inner = os.open(name.removesuffix("/"), _FOLDER, dir_fd=folder)
    try:
        return any(not child.endswith("/") or _has_objects(inner, child) for child in _names(inner))
    finally:
        os.close(inner)


@contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Hold the lock of `replace`, against threads and processes.

    The kernel lets go of it when its holder dies, however it dies. The file itself stays for ever:
    removing it would let two processes lock two files of one name.
    """
    file = os.open(_LOCK_FILE, _LOCK, 0o666, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Not left to close: a child forked meanwhile holds a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False  # absent, too long for the filesystem, or below what we may not look into


def _make_folders(path: Path) -> list[str]:
    """Make a folder and those above it; return the folders that got a new entry."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
    return [str(folder.parent) for folder in missing]


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
