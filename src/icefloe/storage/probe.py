"""Does a store honour conditional writes? Some accept the condition, ignore it and overwrite."""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    IcefloeError,
    StorageUnreachableError,
    UnsafeStorageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import Storage

_logger = logging.getLogger(__name__)

PROBE_FOLDER = "probe"
"""Where probes write. What is left there after a crash is garbage, and no part of a repository."""

_RACERS = 8

_safe_locations: set[str] = set()
_swapping_locations: set[str] = set()
_lock = threading.Lock()


def ensure_conditional_writes(storage: Storage) -> None:
    """Raise UnsafeStorageError if two writers could both create one key in this storage.

    A storage that passed is not probed again by this process. Memory and local files need no probe:
    there, icefloe itself sees to it.
    """
    if not storage.capabilities.needs_probe or storage.location in _safe_locations:
        return
    with _lock:
        if storage.location in _safe_locations:
            return
        _probe(storage)
        _safe_locations.add(storage.location)


def _probe(storage: Storage) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with _probe_key(storage) as twice, _probe_key(storage) as raced:
        storage.create(twice, secrets.token_bytes(16))
        if _creates(storage, twice, secrets.token_bytes(16)):
            _refuse(storage, "it overwrote an object that existed already")
        bodies = [secrets.token_bytes(16) for _ in range(_RACERS)]
        with ThreadPoolExecutor(_RACERS) as racers:
            won = list(racers.map(lambda body: _creates(storage, raced, body), bodies))
        if won.count(True) != 1:
            _refuse(storage, f"{won.count(True)} of {_RACERS} writers created the same object")
        if storage.get(raced) != bodies[won.index(True)]:
            _refuse(storage, "an object held the bytes of a writer that was refused")


@contextmanager
def _probe_key(storage: Storage) -> Iterator[str]:
    """A key to try things with, deleted afterwards."""
    key = f"{PROBE_FOLDER}/{secrets.token_hex(12)}"
    try:
        yield key
    except StorageUnreachableError:
        raise  # nothing was written there
    except BaseException:
        _delete_probe(storage, key)
        raise
    _delete_probe(storage, key)


def _delete_probe(storage: Storage, key: str) -> None:
    try:
        storage.delete_many([key])
    except IcefloeError as error:
        _logger.warning("the probe %s was left behind in %s: %s", key, storage.location, error)


def ensure_conditional_replace(storage: Storage) -> None:
    """Raise UnsafeStorageError if a swap could overwrite what somebody else swapped in (H-13)."""
    if not storage.capabilities.needs_probe or storage.location in _swapping_locations:
        return
    with _lock:
        if storage.location not in _swapping_locations:
            _probe_replace(storage)
            _swapping_locations.add(storage.location)


def _probe_replace(storage: Storage) -> None:
    with _probe_key(storage) as key:
        first = storage.replace(key, secrets.token_bytes(16), None)
        newest = secrets.token_bytes(16)
        storage.replace(key, newest, first)
        try:
            storage.replace(key, secrets.token_bytes(16), first)
        except ConflictError:
            pass
        else:
            _refuse(storage, "it replaced an object that had changed; a dataset needs If-Match")
        if storage.get(key) != newest:
            _refuse(storage, "an object held the bytes of a writer that was refused")


def _creates(storage: Storage, key: str, data: bytes) -> bool:
    try:
        storage.create(key, data)
    except AlreadyExistsError:
        return False
    return True


def _refuse(storage: Storage, finding: str) -> None:
    raise UnsafeStorageError(
        f"{storage.location} ignores conditional writes ({finding}), so one commit could silently "
        "destroy another; use a store that supports them (If-None-Match on S3)"
    )
