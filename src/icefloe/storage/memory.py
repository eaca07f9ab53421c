"""Storage in the memory of this process: for tests, examples and scratch work."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
import weakref
from bisect import bisect_left, bisect_right, insort
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import AlreadyExistsError, ConflictError, ObjectNotFoundError, StorageError
from icefloe.storage.copying import CopyMethod
from icefloe.storage.keys import check_folder, check_key, check_prefix, check_range
from icefloe.storage.port import BytesLike, Capabilities, ObjectInfo, ObjectVersion, Swept
from icefloe.storage.settings import StorageSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

_PAGE = 1000
_FEW = 32

_CAPABILITIES = Capabilities(keeps_attributes=True, survives_pickle=False, reads_are_immediate=True)


class _Object(NamedTuple):
    data: bytes
    modified: float
    version: int
    attributes: Mapping[str, str]

    def info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.data), datetime.fromtimestamp(self.modified, UTC))


class _Contents:
    """The objects that all copies of one memory storage share, with their keys in order."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._keys: list[str] = []  # in order, but for those in _new_keys
        self._new_keys: list[str] = []
        self._versions = 0

    def find(self, key: str) -> _Object | None:
        return self._objects.get(key)

    def store(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> _Object:
        """Store an object. The caller holds the lock."""
        if self.owner != os.getpid():
            raise StorageError(
                "an in-memory storage was written to in a forked process, where nobody else would "
                "ever see it; use local_filesystem_storage or an object store to share data"
            )
        self._versions += 1
        stored = _Object(
            data=bytes(data),
            modified=time.time(),
            version=self._versions,
            attributes=dict(attributes or {}),
        )
        if key not in self._objects:
            self._new_keys.append(key)
        self._objects[key] = stored
        return stored

    def remove(self, key: str) -> None:
        """Remove an object if it exists. The caller holds the lock."""
        if self._objects.pop(key, None) is not None:
            keys = self._ordered()
            del keys[bisect_left(keys, key)]

    def page(self, prefix: str, after: str, size: int = _PAGE) -> list[ObjectInfo]:
        """Return the first `size` objects behind `after` whose keys start with `prefix`."""
        with self.lock:
            keys = self._ordered()
            first = max(bisect_left(keys, prefix), bisect_right(keys, after) if after else 0)
            return [
                self._objects[key].info(key)
                for key in keys[first : first + size]
                if key.startswith(prefix)
            ]

    def _ordered(self) -> list[str]:
        # Keys are sorted when they are listed: most are written in bulk and never listed.
        # Python compares text by code point, which is the order of the UTF-8 bytes.
        if len(self._new_keys) <= _FEW:
            for key in self._new_keys:
                insort(self._keys, key)
        else:
            self._keys.extend(self._new_keys)
            self._keys.sort()
        self._new_keys.clear()
        return self._keys


# Lets a pickled copy find its data again in the process that pickled it.
_living: weakref.WeakValueDictionary[str, _Contents] = weakref.WeakValueDictionary()
_named: dict[str, MemoryStorage] = {}
_named_lock = threading.Lock()


def _reset_locks_after_fork() -> None:
    global _named_lock  # noqa: PLW0603 (a lock held by another thread at the fork stays held)
    _named_lock = threading.Lock()
    for contents in _living.values():
        contents.lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_locks_after_fork)


class MemoryStorage:
    """Objects in a dictionary, shared by all copies of one MemoryStorage.

    A pickled copy finds the data again in the same process. In any other process it has no data,
    and raises when it is used.
    """

    def __init__(self) -> None:
        self._contents: _Contents | None = _Contents()
        self._location = f"memory://{self._contents.name}"
        _living[self._contents.name] = self._contents

    @classmethod
    def named(cls, name: str) -> MemoryStorage:
        """Return the storage `memory://name` of this process, made at first use."""
        with _named_lock:
            if name not in _named:
                storage = cls()
                storage._location = f"memory://{name}"
                _named[name] = storage
            return _named[name]

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do."""
        return _CAPABILITIES

    @property
    def location(self) -> str:
        """URL of the root."""
        return self._location

    def with_settings(self, settings: StorageSettings) -> MemoryStorage:  # noqa: ARG002
        """Return this storage: the settings are about requests, and it makes none."""
        return self

    def default_settings(self) -> StorageSettings:
        """Return no settings: they are about requests, and this storage makes none."""
        return StorageSettings()

    def __repr__(self) -> str:
        return f"MemoryStorage({self._location!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryStorage) and self._location == other._location

    def __hash__(self) -> int:
        return hash(self._location)

    def __getstate__(self) -> tuple[str, str]:
        contents = self._contents
        return (self._location, contents.name if contents is not None else "")

    def __setstate__(self, state: tuple[str, str]) -> None:
        self._location, name = state
        self._contents = _living.get(name)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or `length` bytes of it from `start`."""
        return self._slice(key, self._find(key).data, start, length)

    def get_suffix(self, key: str, length: int) -> bytes:
        """Read the last `length` bytes (all of a shorter object)."""
        check_range(key, 0, length)
        data = self._find(key).data
        return data[max(0, len(data) - length) :]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many `(start, length)` ranges of one object."""
        data = self._find(key).data
        return [self._slice(key, data, start, length) for start, length in ranges]

    async def get_async(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `get`."""
        return self.get(key, start, length)

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Write an object under a fresh name."""
        contents = self._require()
        check_key(key)
        with contents.lock:
            contents.store(key, data, attributes)

    async def put_async(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Like `put`."""
        self.put(key, data, attributes)

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create an object that must not exist, or hold these very bytes already."""
        contents = self._require()
        check_key(key)
        with contents.lock:
            current = contents.find(key)
            if current is None:
                contents.store(key, data, attributes)
            elif current.data != data:
                raise AlreadyExistsError(f"{key!r} exists already in {self._location}")

    def copy_from(self, source: object, source_key: str, key: str) -> CopyMethod | None:
        """Let another key hold the same bytes; None if they are not in memory."""
        if not isinstance(source, MemoryStorage):
            return None
        self.put(key, source.get(source_key))
        return CopyMethod.LINKED

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if it is still at `expected` (None: if it is absent)."""
        contents = self._require()
        check_key(key)
        with contents.lock:
            current = contents.find(key)
            actual = None if current is None else ObjectVersion(str(current.version))
            if actual != expected:
                raise ConflictError(
                    f"{key!r} in {self._location} changed since it was read: expected version "
                    f"{expected and expected.token}, found {actual and actual.token}; read it again"
                )
            return ObjectVersion(str(contents.store(key, data).version))

    def get_with_version(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Read a replaceable object with the token for `replace`."""
        found = self._find(key)
        return found.data, ObjectVersion(str(found.version))

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return the attributes that the object was written with."""
        return dict(self._find(key).attributes)

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        return self._find(key).info(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; absent ones are no error."""
        contents = self._require()
        with contents.lock:
            for key in keys:
                contents.remove(check_key(key))

    def sync(self) -> None:
        """Nothing to do: memory is never durable."""

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:  # noqa: ARG002
        """Nothing: an object appears whole or not at all."""
        return Swept()

    def using_reserve(self) -> AbstractContextManager[None]:
        """Do nothing: no space is reserved here."""
        return nullcontext()

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children of the folder `prefix`."""
        folder = check_folder(prefix)
        start = f"{folder}/" if folder else ""
        names: set[str] = set()
        after = ""
        while page := self._require().page(start, after):
            last = page[-1].key
            for info in page:
                names.add(info.key[len(start) :].partition("/")[0])
            # Jump over the rest of the last folder instead of walking through it.
            name, slash, _ = last[len(start) :].partition("/")
            after = max(last, f"{start}{name}/\U0010ffff") if slash else last
        return sorted(names)

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in ascending order of the key's UTF-8 bytes."""
        contents = self._require()
        return self._pages(contents, check_prefix(prefix), start_after, limit)

    @staticmethod
    def _pages(
        contents: _Contents, prefix: str, after: str, limit: int | None
    ) -> Iterator[ObjectInfo]:
        left = sys.maxsize if limit is None else limit
        while left > 0 and (page := contents.page(prefix, after, min(left, _PAGE))):
            yield from page
            after = page[-1].key
            left -= len(page)

    def _require(self) -> _Contents:
        if self._contents is None:
            raise StorageError(
                f"{self._location} is the memory of another process: an in-memory storage cannot "
                "travel; use local_filesystem_storage or an object store to share data between "
                "processes"
            )
        return self._contents

    def _find(self, key: str) -> _Object:
        found = self._require().find(key)
        if found is None:
            raise ObjectNotFoundError(f"no object {check_key(key)!r} in {self._location}", key)
        return found

    def _slice(self, key: str, data: bytes, start: int, length: int | None) -> bytes:
        check_range(key, start, length)
        end = len(data) if length is None else start + length
        if start > len(data) or end > len(data):
            raise StorageError(
                f"{key!r} in {self._location} has {len(data)} bytes: cannot read "
                f"{'the rest' if length is None else f'{length} bytes'} from byte {start}"
            )
        return data[start:end]
