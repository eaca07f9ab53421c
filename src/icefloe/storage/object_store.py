"""Storage on an object store (S3, GCS, Azure, or a web server to read from), through obstore."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import contextmanager, nullcontext
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec.structs import replace

from icefloe.errors import (
    AlreadyExistsError,
    ForkedProcessError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
    StorageUnreachableError,
)
from icefloe.storage.client_errors import Request
from icefloe.storage.copying import CopyMethod
from icefloe.storage.keys import check_folder, check_key, check_prefix, check_range
from icefloe.storage.port import BytesLike, Capabilities, ObjectInfo, ObjectVersion, Swept
from icefloe.storage.ranges import coalesce, divide, pick
from icefloe.storage.retrying import Attempts, note_reached
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    fill_in,
)
from icefloe.storage.settling import attempts, settle_create, settle_replace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from obstore import ObjectMeta
    from obstore.store import ObjectStore

    from icefloe.storage.access.addresses import StoreAddress

# First all at once; then one by one, up to twice, those whose deletion is uncertain.
_DELETE_BATCHES = (1000, 1, 1)
_LIST_PAGE = 1000
_REFUSED_FOR_SECONDS = 5

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# The process in which obstore was first used: its threads do not survive a fork, and a call in the
# child would never stop waiting for them, even through a new client.
_runtime_owner: int | None = None
_forked_after_use = False


def _note_fork() -> None:
    global _forked_after_use  # noqa: PLW0603 (a fact about this process)
    _forked_after_use = _runtime_owner is not None


os.register_at_fork(after_in_child=_note_fork)


def _claim_runtime(location: str) -> None:
    """Raise ForkedProcessError in a forked child of a process that has used obstore."""
    global _runtime_owner  # noqa: PLW0603 (a fact about this process)
    if _runtime_owner is None:
        _runtime_owner = os.getpid()
    # Comparing process ids also detects forks made outside of Python.
    if _forked_after_use or _runtime_owner != os.getpid():
        raise ForkedProcessError(
            f"{location} is used in a forked process, but its parent used an object store before "
            "the fork, and the threads of the client did not survive it; start workers with the "
            "'spawn' or 'forkserver' method of multiprocessing"
        )


class _Clients(NamedTuple):
    one_shot: ObjectStore
    """Makes one attempt and reports on that one: whether to send it again is decided here."""
    retrying: ObjectStore
    """For uploads in parts, so that a part which fails does not cost all the others."""
    changing: ObjectStore
    """For other requests that write; the first one, unless their headers differ."""


class _Refusal(NamedTuple):
    """Why there is no login, and until when that is believed without asking again."""

    error: IcefloeError
    until: float


class ObjectStorage:
    """Objects below a prefix of a bucket.

    Made by the functions of `icefloe.storage.access.factories`. Pickles contain
    static credentials, so that other machines can sign in: use refreshable credentials if pickles
    are stored anywhere.
    """

    def __init__(self, place: StoreAddress, settings: StorageSettings | None = None) -> None:
        self.__setstate__((place, settings))

    def __getstate__(self) -> tuple[StoreAddress, StorageSettings | None]:
        return (self._place, self._given_settings)

    def __setstate__(self, state: tuple[StoreAddress, StorageSettings | None]) -> None:
        self._place, self._given_settings = state
        self._settings = fill_in(self._given_settings)
        self._root = f"{self._place.prefix}/" if self._place.prefix else ""
        self._clients: _Clients | None = None
        self._refusal: _Refusal | None = None
        self._lock = threading.Lock()
        is_http = self._place.kind == "http"
        self._capabilities = Capabilities(
            can_write=self._place.can_write,
            lists_in_pages=self._place.lists_in_order and not is_http,
            can_list=not is_http,
            keeps_attributes=not is_http and self._settings.uses_attributes,
            needs_probe=self._place.can_write and self._settings.uses_conditional_create,
        )

    def with_settings(self, settings: StorageSettings) -> ObjectStorage:
        """Return a storage at the same location with these settings merged over its own."""
        own = self._given_settings or StorageSettings()
        return ObjectStorage(self._place, own.merge(settings))

    def as_read_only(self) -> ObjectStorage:
        """Return a storage at the same location that cannot be written to."""
        return ObjectStorage(replace(self._place, can_write=False), self._given_settings)

    def with_user_agent(self, text: str) -> ObjectStorage:
        """Return a storage at the same location whose requests say who sends them."""
        client = {**self._place.client, "user_agent": text}
        return ObjectStorage(replace(self._place, client=client), self._given_settings)

    def default_settings(self) -> StorageSettings:
        """Return the settings that apply unless others are set."""
        filled = self._settings
        return StorageSettings(
            concurrency=StorageConcurrencySettings(
                filled.max_requests_for_object, filled.request_bytes
            ),
            retries=StorageRetriesSettings(
                filled.max_tries,
                round(filled.initial_backoff_seconds * 1000),
                round(filled.max_backoff_seconds * 1000),
                filled.max_connect_tries,
            ),
        ).merge(self._given_settings or StorageSettings())

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do."""
        return self._capabilities

    @property
    def location(self) -> str:
        """URL of the root, without credentials."""
        return self._place.location

    def sharing_key(self) -> tuple[str, bytes] | None:
        """A digest of location, options and credentials; None if these cannot be compared."""
        identity = self._place.identity()
        return None if identity is None else (self.location, identity)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.location!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStorage) and self.location == other.location

    def __hash__(self) -> int:
        return hash(self.location)

    # Reading

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or `length` bytes of it from `start`."""
        path = self._path(key)
        check_range(key, start, length)
        if length == 0 or (length is None and start):
            return self._get_rest(key, start, length)
        if length is None:
            return self._send(key, lambda store: store.get(path).bytes().to_bytes())

        def fetch(part: tuple[int, int]) -> bytes:
            first, size = part
            return self._send(
                key, lambda store: store.get_range(path, start=first, length=size).to_bytes()
            )

        parts = divide(start, length, self._settings.request_bytes)
        return self._complete(key, b"".join(self._at_once(fetch, parts)), start, length)

    async def get_async(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `get`, without blocking the event loop."""
        import asyncio

        path = self._path(key)
        check_range(key, start, length)
        if length == 0 or (length is None and start):
            return await asyncio.to_thread(self._get_rest, key, start, length)
        if length is None:

            async def fetch_all(store: ObjectStore) -> bytes:
                result = await store.get_async(path)
                return (await result.bytes_async()).to_bytes()

            return await self._send_async(key, fetch_all)
        limit = asyncio.Semaphore(self._settings.max_requests_for_object)

        async def fetch(first: int, size: int) -> bytes:
            async with limit:
                part = await self._send_async(
                    key, lambda store: store.get_range_async(path, start=first, length=size)
                )
                return part.to_bytes()

        parts = [fetch(*part) for part in divide(start, length, self._settings.request_bytes)]
        data = await parts[0] if len(parts) == 1 else b"".join(await asyncio.gather(*parts))
        return self._complete(key, data, start, length)

    def get_suffix(self, key: str, length: int) -> bytes:
        """Read the last `length` bytes (all of a shorter object)."""
        path = self._path(key)
        check_range(key, 0, length)
        if self._place.kind != "azure" and length:  # Azure has no such ranges
            options: Any = {"range": {"suffix": length}}
            try:
                return self._send(
                    key, lambda store: store.get(path, options=options).bytes().to_bytes()
                )
            except StorageUnreachableError:
                raise
            except StorageError:
                if self.head(key).size:
                    raise
                return b""  # some stores reject a suffix range of an empty object
        size = self.head(key).size
        return self.get(key, max(0, size - length), min(size, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many `(start, length)` ranges of one object; near ranges share a request."""
        for start, length in ranges:
            check_range(key, start, length)
        # Not obstore's get_ranges, which panics when a range starts behind the end of the object.
        spans = coalesce(ranges, max_bytes=self._settings.request_bytes)
        bodies = self._at_once(lambda span: self.get(key, span.start, span.length), spans)
        parts = [b""] * len(ranges)
        for span, body in zip(spans, bodies, strict=True):
            for index, part in pick(body, span, ranges):
                parts[index] = part
        return parts

    def get_with_version(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Read an object and the version token that `replace` expects."""
        return self._get_with_version(key)

    def _get_with_version(
        self, key: str, deadline: float | None = None
    ) -> tuple[bytes, ObjectVersion]:
        path = self._path(key)

        def fetch(store: ObjectStore) -> tuple[bytes, ObjectVersion]:
            result = store.get(path)
            return result.bytes().to_bytes(), _version_of(result.meta)

        return self._send(key, fetch, deadline=deadline)

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return the attributes that the object was written with."""
        path = self._path(key)
        options: Any = {"head": True}
        attributes = self._send(key, lambda store: store.get(path, options=options).attributes)
        return {name: value for name, value in attributes.items() if name != "Content-Type"}

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        path = self._path(key)
        return self._info(self._send(key, lambda store: store.head(path)))

    # Writing

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Write an object under a fresh name.

        An attribute `Storage-Class` sets the class of this object.
        """
        path = self._path(key, write=True)
        options = self._put_options(data, attributes)
        self._send(
            key,
            lambda store: store.put(path, data, **options),
            writing=True,
            in_parts=options["use_multipart"],
        )

    async def put_async(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Like `put`, without blocking the event loop."""
        path = self._path(key, write=True)
        options = self._put_options(data, attributes)
        await self._send_async(
            key,
            lambda store: store.put_async(path, data, **options),
            writing=True,
            in_parts=options["use_multipart"],
        )

    def copy_from(self, source: object, source_key: str, key: str) -> CopyMethod | None:
        """Copy an object on the server, within one bucket; None if the buckets differ."""
        if not isinstance(source, ObjectStorage):
            return None
        ours, theirs = self._place, source._place  # noqa: SLF001
        if (ours.kind, ours.bucket, ours.config) != (theirs.kind, theirs.bucket, theirs.config):
            return None
        path, source_path = self._path(key, write=True), source._path(source_key)  # noqa: SLF001
        self._send(source_key, lambda store: store.copy(source_path, path), changing=True)
        return CopyMethod.SERVER_SIDE

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create an object; also succeeds if it already exists with exactly these bytes."""
        path = self._path(key, write=True)
        options: dict[str, Any] = {"use_multipart": False}
        if attributes:
            options["attributes"] = self._put_options(data, attributes)["attributes"]
        deadline = time.monotonic() + self._settings.operation_timeout_seconds

        def put(store: ObjectStore) -> None:
            store.put(path, data, mode=self._create_mode(path), **options)

        settle_create(
            key,
            data,
            put=lambda: self._send(key, put, writing=True, conditional=True, deadline=deadline),
            read=lambda: self._read_if_as_long(key, len(data), deadline),
            tries=self._attempts(),
        )

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if its version is still `expected` (None: if it does not exist)."""
        path = self._path(key, write=True)
        deadline = time.monotonic() + self._settings.operation_timeout_seconds
        is_new = expected is None

        def put(store: ObjectStore) -> ObjectVersion:
            mode = self._create_mode(path) if expected is None else self._update_mode(expected)
            return _version_of(store.put(path, data, mode=mode, use_multipart=False))

        return settle_replace(
            key,
            data,
            expected,
            put=lambda: self._send(key, put, writing=is_new, conditional=True, deadline=deadline),
            read=lambda: self._get_with_version(key, deadline),
            tries=self._attempts(),
        )

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        left = list(dict.fromkeys(keys))
        for key in left:
            self._path(key, write=True)
        problem: StorageError | None = None
        for batch_size in _DELETE_BATCHES:
            batches = [
                left[first : first + batch_size] for first in range(0, len(left), batch_size)
            ]
            errors = self._at_once(self._try_delete, batches)
            failed = [
                key
                for batch, error in zip(batches, errors, strict=True)
                if error is not None
                for key in batch
            ]
            left = [
                key
                for key, is_alive in zip(failed, self._at_once(self._survives, failed), strict=True)
                if is_alive
            ]
            if not left:
                return
            problem = next((e for e in errors if isinstance(e, StorageError)), problem)
        raise StorageError(
            f"{len(left)} objects in {self.location} could not be deleted, among them {left[:5]}"
            + (f": {problem}" if problem is not None else "")
        ) from problem

    def sync(self) -> None:
        """Do nothing: every write that an object store acknowledges is durable."""

    # Parts of requests

    def _path(self, key: str, *, write: bool = False) -> str:
        if write and not self._place.can_write:
            raise ReadOnlyError(f"{self.location} can only be read from")
        return self._root + check_key(key)

    def _require_listing(self) -> None:
        if not self._capabilities.can_list:
            raise StorageError(f"{self.location} is a web server, which cannot list its objects")

    def _attempts(self) -> Iterator[int]:
        settings = self._settings
        return attempts(
            settings.max_tries,
            settings.initial_backoff_seconds,
            settings.max_backoff_seconds,
            settings.operation_timeout_seconds,
        )

    def _complete(self, key: str, data: bytes, start: int, length: int) -> bytes:
        if len(data) != length:
            raise StorageError(
                f"{key!r} in {self.location} ends too soon: expected {length} bytes from byte "
                f"{start}, found {len(data)}"
            )
        return data

    def _get_rest(self, key: str, start: int, length: int | None) -> bytes:
        """Look up the size of an object, and read from `start` to its end."""
        size = self.head(key).size
        if start > size:
            raise StorageError(
                f"{key!r} in {self.location} has {size} bytes: cannot read from byte {start}"
            )
        return b"" if length == 0 or start == size else self.get(key, start, size - start)

    def _read_if_as_long(self, key: str, length: int, deadline: float) -> bytes:
        """Read an object of at most `length` bytes; for a larger one, `length` + 1 zeros."""
        path = self._path(key)

        def fetch(store: ObjectStore) -> bytes:
            result = store.get(path)
            if result.meta["size"] > length:
                return b"\0" * (length + 1)
            return result.bytes().to_bytes()

        return self._send(key, fetch, deadline=deadline)

    def _put_options(self, data: BytesLike, attributes: Mapping[str, str] | None) -> dict[str, Any]:
        settings = self._settings
        headers: dict[str, str] = {}
        if settings.storage_class is not None:
            headers["Storage-Class"] = settings.storage_class
        if attributes and settings.uses_attributes:
            headers |= attributes
        return {
            "attributes": headers or None,
            "use_multipart": len(data) >= settings.multipart_from_bytes,
            "chunk_size": max(settings.request_bytes, 5 * 1024 * 1024),
            "max_concurrency": settings.max_requests_for_object,
        }

    def _create_mode(self, path: str) -> Any:
        if self._settings.uses_conditional_create:
            return "create"
        try:
            self._send(path, lambda store: store.head(path))
        except ObjectNotFoundError:
            return "overwrite"
        raise AlreadyExistsError(f"{path!r} exists already in {self.location}")

    def _update_mode(self, expected: ObjectVersion) -> Any:
        if not self._settings.uses_conditional_update:
            return "overwrite"
        try:
            e_tag, version = json.loads(expected.token)
        except ValueError as error:
            raise InvalidInputError("this is no version of an object on an object store") from error
        return {
            name: value
            for name, value in (("e_tag", e_tag), ("version", version))
            if value is not None
        }

    def _try_delete(self, keys: Sequence[str]) -> IcefloeError | None:
        paths = [self._root + key for key in keys]
        try:
            self._send(keys[0], lambda store: store.delete(paths), changing=True)
        except StorageUnreachableError:
            raise
        except (ObjectNotFoundError, StorageError) as error:
            # One was absent or failed; which of the others were deleted is not known.
            return error
        return None

    def _survives(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFoundError:
            return False
        except StorageError:
            return True  # unknown: retried, and reported if that fails too
        return True

    def _at_once(self, act: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Run a function for all items, with at most as many parallel requests as allowed."""
        if len(items) <= 1:
            return [act(item) for item in items]
        from concurrent.futures import ThreadPoolExecutor

        workers = min(len(items), self._settings.max_requests_for_object)
        with ThreadPoolExecutor(workers) as threads:
            return [*threads.map(act, items)]

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        key = meta["path"] if self._place.kind == "http" else meta["path"][len(self._root) :]
        return ObjectInfo(key, meta["size"], meta["last_modified"])

    # The client and its errors

    def _connect(self) -> _Clients:
        _claim_runtime(self.location)
        clients = self._clients
        if clients is None:
            with self._lock:
                clients = self._clients
                if clients is None:
                    clients = self._clients = self._log_in()
        return clients

    def _log_in(self) -> _Clients:
        """Make the clients; called by one thread at a time.

        A login that failed is not tried again at once: it may have waited for seconds, and other
        threads that want the clients wait in line.
        """
        if self._refusal is not None and time.monotonic() < self._refusal.until:
            raise copy(self._refusal.error)
        place, settings = self._place, self._settings
        try:
            login = place.login()
        except IcefloeError as error:
            self._refusal = _Refusal(error, time.monotonic() + _REFUSED_FOR_SECONDS)
            raise
        one_shot = changing = place.connect(settings, login, retries=False)
        if place.tells_writes_apart:
            changing = place.connect(settings, login, retries=False, writes=True)
        retrying = place.connect(settings, login, retries=True, writes=True)
        return _Clients(one_shot, retrying, changing)

    def _send(
        self,
        key: str,
        act: Callable[[ObjectStore], _Result],
        *,
        writing: bool = False,
        conditional: bool = False,
        in_parts: bool = False,
        changing: bool = False,
        deadline: float | None = None,
    ) -> _Result:
        """Call the client, with retries as the settings allow.

        A conditional request is retried only if it was never sent.
        """
        request = Request(
            key=key, location=self.location, is_writing=writing, is_conditional=conditional
        )
        again = StorageUnreachableError if conditional else StorageError
        attempts = Attempts(self._settings, self.location, deadline)
        while True:
            try:
                with self._translated(request, in_parts=in_parts, changing=changing) as store:
                    return act(store)
            except again as error:
                time.sleep(attempts.pause_after(error))

    async def _send_async(
        self,
        key: str,
        act: Callable[[ObjectStore], Awaitable[_Result]],
        *,
        writing: bool = False,
        in_parts: bool = False,
    ) -> _Result:
        """Like `_send`, without blocking the event loop."""
        import asyncio

        request = Request(key, self.location, writing)
        attempts = Attempts(self._settings, self.location)
        while True:
            try:
                with self._translated(request, in_parts=in_parts) as store:
                    return await act(store)
            except StorageError as error:
                await asyncio.sleep(attempts.pause_after(error))

    @contextmanager
    def _translated(
        self, request: Request, *, in_parts: bool = False, changing: bool = False
    ) -> Iterator[ObjectStore]:
        """Provide the client, and translate its exceptions into ours."""
        try:
            clients = self._connect()
            if in_parts:
                yield clients.retrying
            elif changing or request.is_writing or request.is_conditional:
                yield clients.changing
            else:
                yield clients.one_shot
        except BaseException as error:
            translated = request.failed(error)
            if translated is None or translated is error:
                raise
            if not isinstance(translated, StorageUnreachableError):
                note_reached(self.location)
            raise translated from error
        note_reached(self.location)

    # Listing

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:  # noqa: ARG002
        """Do nothing: an object appears whole or not at all.

        Use a lifecycle rule of the bucket to remove the parts of unfinished multipart uploads.
        """
        return Swept()

    def using_reserve(self) -> AbstractContextManager[None]:
        """Do nothing: no space is reserved here."""
        return nullcontext()

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children of the folder `prefix`."""
        self._require_listing()
        folder = self._root + check_folder(prefix)
        found = self._send(
            prefix, lambda store: store.list_with_delimiter(folder.rstrip("/") or None)
        )
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in ascending order of the key's UTF-8 bytes."""
        self._require_listing()
        check_prefix(prefix)
        return islice(self._list(prefix, start_after), limit)

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        infos = self._list_unchecked(prefix, after)
        if not self._place.lists_in_order:
            yield from sorted(infos, key=lambda info: info.key)
            return
        last = ""
        for info in infos:
            if info.key <= last:
                raise StorageError(
                    f"{self.location} does not list in order: {info.key!r} came after {last!r}"
                )
            last = info.key
            yield info

    def _list_unchecked(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        # The client lists whole folders; the rest of the prefix is compared here.
        folder, _, rest = (self._root + prefix).rpartition("/")
        if after and after >= prefix:
            offset = self._root + after
        else:
            offset = _before(self._root + prefix, rest)
        for page in self._pages(prefix, folder or None, offset or None):
            for meta in page:
                info = self._info(meta)
                if info.key.startswith(prefix):
                    if info.key > after:
                        yield info
                elif info.key > prefix and self._place.lists_in_order:
                    return

    def _pages(
        self, key: str, folder: str | None, offset: str | None = None
    ) -> Iterator[Sequence[ObjectMeta]]:
        """The pages of a listing; if a listing fails, it is resumed after its last page."""
        if not self._place.lists_in_order:  # without an order a listing cannot be resumed
            yield from self._send(
                key, lambda store: [*store.list(folder, offset=offset, chunk_size=_LIST_PAGE)]
            )
            return
        stream: Iterator[Sequence[ObjectMeta]] | None = None

        def next_page(store: ObjectStore) -> Sequence[ObjectMeta] | None:
            nonlocal stream
            pages = stream or store.list(folder, offset=offset, chunk_size=_LIST_PAGE)
            stream = None  # a stream cannot be used after an error
            page = next(pages, None)
            stream = pages
            return page

        while (page := self._send(key, next_page)) is not None:
            yield page
            offset = page[-1]["path"] if page else offset


def _version_of(meta: Mapping[str, Any]) -> ObjectVersion:
    return ObjectVersion(json.dumps([meta.get("e_tag"), meta.get("version")]))


def _before(prefix: str, last_segment: str) -> str:
    """Return a valid key that sorts before all keys with `prefix`, or an empty one."""
    if not last_segment:
        return ""
    code = ord(prefix[-1]) - 1
    is_legal = code > ord("/") and code not in (0x7F, 0xDFFF)
    return prefix[:-1] + chr(code) if is_legal else ""
