"""The probe of conditional writes, on stores that do wrong what the probe looks for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from icefloe import Repository
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    UnsafeStorageError,
)
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.port import Capabilities, ObjectVersion
from icefloe.storage.probe import ensure_conditional_replace, ensure_conditional_writes
from icefloe.storage.settling import settle_create, settle_replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.storage.port import BytesLike


class Server(ForwardingStorage):
    """A server that settles conditional writes as `ObjectStorage` does, and does them right."""

    writes_what_it_refuses = False

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(needs_probe=True)

    def _put(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        with self._lock:
            is_met = self._version(key) == expected
            if is_met or self.writes_what_it_refuses:
                self.inner.put(key, data)
                self._numbers[key] = self._numbers.get(key, 0) + 1
            if not is_met:
                raise AlreadyExistsError(key) if expected is None else ConflictError(key)
            return self._token(key)

    def _version(self, key: str) -> ObjectVersion | None:
        return self._token(key) if key in self._numbers else None

    def _token(self, key: str) -> ObjectVersion:
        return ObjectVersion(f"{key} {self._numbers[key]}")

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        settle_create(
            key,
            data,
            put=lambda: self._put(key, data, None),
            read=lambda: self.inner.get(key),
            tries=range(3),
        )

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        return settle_replace(
            key,
            data,
            expected,
            put=lambda: self._put(key, data, expected),
            read=lambda: (self.inner.get(key), self._token(key)),
            tries=range(3),
        )


class WritesWhatItRefuses(Server):
    """Answers that the condition failed, and writes all the same."""

    writes_what_it_refuses = True


class NumbersByTheHour(Server):
    """Versions are times, so that two objects may have the same."""

    def _token(self, key: str) -> ObjectVersion:
        return ObjectVersion(str(self._numbers[key]))


def test_a_store_that_writes_what_it_refuses_is_detected() -> None:
    """Whoever is refused reads back, and finds its own bytes."""
    storage = WritesWhatItRefuses()
    with pytest.raises(UnsafeStorageError, match="created the same object"):
        ensure_conditional_writes(storage)
    with pytest.raises(UnsafeStorageError, match="If-Match"):
        ensure_conditional_replace(storage)
    assert [*storage.list()] == []


@pytest.mark.parametrize("server", [Server, NumbersByTheHour])
def test_a_store_that_does_right_passes_and_is_left_clean(server: type[Server]) -> None:
    storage = server()
    ensure_conditional_writes(storage)
    ensure_conditional_replace(storage)
    assert [*storage.list()] == []


@pytest.mark.parametrize("generation", ["repository", "store", "dataset", "icechunk"])
def test_creating_on_such_a_store_leaves_nothing_behind(generation: str) -> None:
    storage = WritesWhatItRefuses()
    with pytest.raises(UnsafeStorageError):
        Repository.create(storage, generation=generation)
    assert [*storage.list()] == []
