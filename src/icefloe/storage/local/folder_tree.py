"""Files and folders below one root: no link is followed, and errors are ours.

Every folder below the root is opened with O_NOFOLLOW, relative to its parent, and so is every file.
Only the path of the root itself may have links.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from icefloe.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
)
from icefloe.storage.keys import RESERVED_SEGMENT, check_key
from icefloe.storage.port import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that somebody planted must not hang.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""How a file is opened for reading."""
_DEEPEST_FOLDER = 64


class FolderTree:
    """The files below a root, by path from there. The code that opens a folder closes it."""

    def __init__(
        self, root: str, location: str, made_folder: Callable[[str, list[str]], None]
    ) -> None:
        """Take the root, its URL for messages, and whom to tell of folders that are made."""
        self._root = root
        self._location = location
        self._made_folder = made_folder

    def open(self, key: str) -> tuple[int, int]:
        """Open an object for reading, and say how big it is; the caller closes it."""
        parent, _, name = check_key(key).rpartition("/")
        try:
            folder = self.descend(parent)
            try:
                file = os.open(name, READ, dir_fd=folder)
            finally:
                os.close(folder)
            status = os.fstat(file)
        except FileNotFoundError:
            raise self._absent(key) from None
        except OSError as error:
            self._refuse_links(key)
            if isinstance(error, NotADirectoryError):
                raise self._absent(key) from error
            self.fail(key, error)
        if not stat.S_ISREG(status.st_mode):
            os.close(file)
            raise self._absent(key)
        return file, status.st_size

    @contextmanager
    def opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Open an object for reading, say how big it is, and close it afterwards."""
        file, size = self.open(key)
        try:
            yield file, size
        except OSError as error:
            self.fail(key, error)
        finally:
            os.close(file)

    def info(self, key: str) -> ObjectInfo:
        """Size and last-modified time of an object."""
        with self.translated(key), self.parent(key) as (folder, name):
            return _info(key, stat_object(name, folder))

    def names(self, folder: str) -> list[str]:
        """Names of what is in a folder, whatever it is: nothing is looked at."""
        found: list[str] = []
        with self.translated(folder, absent_is_fine=True), self.folder(folder) as descriptor:
            found = os.listdir(descriptor)  # noqa: PTH208 (a descriptor is no path)
        return [name for name in found if not name.startswith(RESERVED_SEGMENT)]

    def children(self, folder: str) -> list[str]:
        """Sorted names of what is in a folder; folders without objects are none."""
        names: list[str] = []
        with self.translated(folder, absent_is_fine=True), self.folder(folder) as descriptor:
            names.extend(
                name.removesuffix("/")
                for name in _names(descriptor)
                if not name.endswith("/") or _has_objects(descriptor, name)
            )
        return sorted(names)

    def walk(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and comes after another, in ascending order."""
        folder = prefix.rpartition("/")[0]
        path = f"{folder}/" if folder else ""
        with self.translated(folder, absent_is_fine=True), self.folder(folder) as descriptor:
            yield from _walk(descriptor, path, prefix, after)

    @contextmanager
    def parent(
        self, key: str, *, make: bool = False, check: bool = True
    ) -> Iterator[tuple[int, str]]:
        """Open the folder that an object is in; also gives the name of the object in there."""
        folder, _, name = (check_key(key) if check else key).rpartition("/")
        with self.folder(folder, make=make) as descriptor:
            yield descriptor, name

    @contextmanager
    def folder(self, folder: str, *, make: bool = False) -> Iterator[int]:
        """Open a folder, or make it, and close it afterwards."""
        descriptor = self.descend(folder, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def descend(self, folder: str, *, make: bool = False) -> int:
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
            root_parents = _make_folders(Path(self._root))
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=outer)
        self._made_folder(folder, root_parents)
        return os.open(name, _FOLDER, dir_fd=outer)

    @contextmanager
    def translated(
        self, key: str, *, absent_is_fine: bool = False, writing: bool = False
    ) -> Iterator[None]:
        """Raise our errors for the operating system's."""
        try:
            yield
        except OSError as error:
            if writing:
                self.refuse(key, error)
            # That something is absent is never due to a link: those that are not followed are
            # found to be no folder, or one link too many.
            if not isinstance(error, FileNotFoundError):
                self._refuse_links(key)
                if not isinstance(error, NotADirectoryError):
                    self.fail(key, error)
            if not absent_is_fine:
                raise self._absent(key) from error

    def _absent(self, key: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"no object {key!r} in {self._location}", key)

    def refuse(self, key: str, error: OSError) -> NoReturn:
        """Raise our error for the operating system's when something could not be written."""
        self._refuse_links(key)
        self.fail(key, error)

    def _refuse_links(self, key: str) -> None:
        path = self._root
        for name in key.split("/"):
            path = f"{path}/{name}"
            if _is_link(path):
                raise StorageError(
                    f"{key!r} in {self._location} leads through a symbolic link, {path!r}; links "
                    "below the root are never followed, because they could lead out of it"
                )

    def fail(self, key: str, error: OSError) -> NoReturn:
        """Raise our error for the operating system's."""
        text = f"{key!r} in {self._location}: {error.strerror or error}"
        match error.errno:
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise StoragePermissionError(text) from error
            case errno.ENOSPC | errno.EDQUOT:
                raise StorageError(
                    f"{text}: the disk is full, and nothing was changed; expire old snapshots and "
                    "collect garbage, which works on a full disk, or make room elsewhere on it"
                ) from error
            case errno.ENOTDIR if Path(self._root).is_file():
                raise StorageError(f"{self._location} is a file, not a folder") from error
            case errno.ENAMETOOLONG | errno.EISDIR:
                raise InvalidInputError(f"cannot be an object: {text}") from error
        raise StorageError(text) from error


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def stat_object(name: str, folder: int) -> os.stat_result:
    """The status of a regular file in an open folder; raises OSError for anything else."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return status


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
                yield _info(key, stat_object(name, folder))


def _has_objects(folder: int, name: str) -> bool:
    inner = os.open(name.removesuffix("/"), _FOLDER, dir_fd=folder)
    try:
        return any(not child.endswith("/") or _has_objects(inner, child) for child in _names(inner))
    finally:
        os.close(inner)


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
