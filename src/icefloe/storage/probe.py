"""Does a store honour conditional writes? Some accept the condition, ignore it and overwrite."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    IcefloeError,
    StorageUnreachableError,
    UnsafeStorageError,
)
from icefloe.storage.concurrency import in_threads, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import ObjectVersion, Storage

_logger = logging.getLogger(__name__)

PROBE_FOLDER = "probe"
"""Where probes write. What is left there after a crash is garbage, and no part of a repository."""

_RACERS = 8

Cleanup = Callable[[], None]


class _Passed:
    """The storages that passed a probe, by location: this process does not probe them again."""

    def __init__(self) -> None:
        self.locations: set[str] = set()
        self._lock = threading.Lock()

    def probe_once(self, storage: Storage, probe: Callable[[Storage], Cleanup]) -> Cleanup:
        if not storage.capabilities.needs_probe or storage.location in self.locations:
            return nothing_to_clean_up
        with self._lock:
            if storage.location in self.locations:
                return nothing_to_clean_up
            cleanup = probe(storage)
            self.locations.add(storage.location)
            return cleanup


_passed_create = _Passed()
_passed_replace = _Passed()


def ensure_conditional_writes(storage: Storage) -> None:
    """Raise UnsafeStorageError if two writers could both create one key in this storage.

    A storage that passed is not probed again by this process. Memory and local files need no probe:
    there, icefloe itself sees to it.
    """
    probe_conditional_writes(storage)()


def probe_conditional_writes(storage: Storage) -> Cleanup:
    """Like `ensure_conditional_writes`, but leaves cleaning up to a caller that has other work.

    What it returns deletes the objects of the probe, if it was necessary.
    """
    return _passed_create.probe_once(storage, _probe_create)


def nothing_to_clean_up() -> None:
    """There is nothing to clean up."""


def _probe_create(storage: Storage) -> Cleanup:
    """Let writers race for one key: exactly one may win.

    Who is refused reads the key back (`settling.py`), and has won if it finds its own bytes: so
    this also detects a store that refuses a writer and writes its bytes all the same.
    """
    with _probe_key(storage) as key:
        bodies = [secrets.token_bytes(16) for _ in range(_RACERS)]
        won = in_threads(lambda body: _creates(storage, key, body), bodies)
        if won.count(True) != 1:
            _refuse(storage, f"{won.count(True)} of {_RACERS} writers created the same object")
    return lambda: _delete_probe(storage, key)


@contextmanager
def _probe_key(storage: Storage) -> Iterator[str]:
    """A key to try things with, deleted if that fails."""
    key = f"{PROBE_FOLDER}/{secrets.token_hex(12)}"
    try:
        yield key
    except StorageUnreachableError:
        raise  # nothing was written there
    except BaseException:
        _delete_probe(storage, key)
        raise


def _delete_probe(storage: Storage, *keys: str) -> None:
    try:
        storage.delete_many(keys)
    except IcefloeError as error:
        names = ", ".join(keys)
        _logger.warning("the probe %s was left behind in %s: %s", names, storage.location, error)


def ensure_conditional_replace(storage: Storage) -> None:
    """Raise UnsafeStorageError if a swap could overwrite what somebody else swapped in (H-13)."""
    probe_conditional_replace(storage)()


def probe_conditional_replace(storage: Storage) -> Cleanup:
    """Like `ensure_conditional_replace`, but leaves cleaning up to the caller."""
    return _passed_replace.probe_once(storage, _probe_replace)


def _probe_replace(storage: Storage) -> Cleanup:
    """Replace one object at its own version, and another one at a version that it never had.

    No two requests are for the same object: some stores answer one of them that it must wait, and
    then the outcome of a replacement is in doubt.
    """
    with _probe_key(storage) as key, _probe_key(storage) as other:
        version, _ = together(
            storage,
            lambda: storage.replace(key, secrets.token_bytes(16), None),
            lambda: storage.replace(other, secrets.token_bytes(16), None),
        )

        def is_careless() -> bool:
            # Twice: versions that are times may be equal by chance, but not once it is replaced.
            return all(
                _replaces(storage, other, secrets.token_bytes(16), version) for _ in range(2)
            )

        _, is_replaced = together(
            storage, lambda: storage.replace(key, secrets.token_bytes(16), version), is_careless
        )
        if is_replaced:
            _refuse(storage, "it replaced an object that had changed, which needs If-Match")
    return lambda: _delete_probe(storage, key, other)


def _replaces(storage: Storage, key: str, data: bytes, expected: ObjectVersion) -> bool:
    try:
        storage.replace(key, data, expected)
    except ConflictError:
        return False
    return True


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
