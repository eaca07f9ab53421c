"""How a storage is used: concurrency, retries, timeouts. None always means the default."""

from __future__ import annotations

from typing import Self

import msgspec


class _Settings(msgspec.Struct, repr_omit_defaults=True):
    def merge(self, other: Self) -> Self:
        """Return these settings, overridden by those that `other` sets, level by level."""
        merged = {}
        for name in self.__struct_fields__:
            ours, theirs = getattr(self, name), getattr(other, name)
            if isinstance(ours, _Settings) and isinstance(theirs, _Settings):
                merged[name] = ours.merge(theirs)
            else:
                merged[name] = ours if theirs is None else theirs
        return type(self)(**merged)


class StorageConcurrencySettings(_Settings):
    """How many requests are made at a time for one object."""

    max_concurrent_requests_for_object: int | None = None
    """The most requests for one object at a time (18)."""
    ideal_concurrent_request_size: int | None = None
    """Bytes of one request when a big read is split (12 MiB)."""


class StorageRetriesSettings(_Settings):
    """How failed requests are retried: with exponential backoff and jitter."""

    max_tries: int | None = None
    """The number of attempts, including the first one (10). 1 means no retries."""
    initial_backoff_ms: int | None = None
    """Longest wait before the second attempt (100)."""
    max_backoff_ms: int | None = None
    """Longest wait before any attempt (180,000)."""
    max_connect_tries: int | None = None
    """Attempts to connect to a server that has never answered this process (3)."""


class StorageTimeoutSettings(_Settings):
    """How long to wait, in milliseconds. Icefloe never waits forever."""

    connect_timeout_ms: int | None = None
    """For a connection (5,000)."""
    read_timeout_ms: int | None = None
    """For the next bytes of an answer (60,000)."""
    operation_timeout_ms: int | None = None
    """For one operation with all its retries (180,000)."""
    operation_attempt_timeout_ms: int | None = None
    """For one attempt of an operation (120,000)."""


class StorageSettings(_Settings):
    """How a repository uses its storage: concurrency, retries, timeouts, storage classes.

    >>> import icefloe
    >>> settings = icefloe.StorageSettings(retries=icefloe.StorageRetriesSettings(max_tries=3))
    >>> icefloe.RepositoryConfig(storage=settings).effective().storage.retries.max_tries
    3
    """

    concurrency: StorageConcurrencySettings | None = None
    retries: StorageRetriesSettings | None = None
    unsafe_use_conditional_create: bool | None = None
    """False: do without create-if-absent. Unsafe if anyone else writes to the repository."""
    unsafe_use_conditional_update: bool | None = None
    """False: do without replace-if-unchanged. Unsafe if anyone else writes to the repository."""
    unsafe_use_metadata: bool | None = None
    """False: write no object metadata, for stores that reject it."""
    storage_class: str | None = None
    metadata_storage_class: str | None = None
    """Storage class of metadata files; `storage_class` if None."""
    chunks_storage_class: str | None = None
    """Storage class of chunk files; `storage_class` if None."""
    minimum_size_for_multipart_upload: int | None = None
    """Objects of more bytes are uploaded in parts (100 MiB)."""
    timeouts: StorageTimeoutSettings | None = None


class EffectiveSettings(msgspec.Struct, frozen=True):
    """Settings with every default filled in, for adapters."""

    max_requests_for_object: int = 18
    request_bytes: int = 12 * 1024 * 1024
    max_tries: int = 10
    initial_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 180.0
    max_connect_tries: int = 3
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0
    operation_timeout_seconds: float = 180.0
    attempt_timeout_seconds: float = 120.0
    multipart_from_bytes: int = 100 * 1024 * 1024
    storage_class: str | None = None
    uses_attributes: bool = True
    uses_conditional_create: bool = True
    uses_conditional_update: bool = True


def fill_in(settings: StorageSettings | None) -> EffectiveSettings:
    """Fill in the defaults of all settings that are None."""
    settings = settings or StorageSettings()
    concurrency = settings.concurrency or StorageConcurrencySettings()
    retries = settings.retries or StorageRetriesSettings()
    timeouts = settings.timeouts or StorageTimeoutSettings()
    values: dict[str, float | int | str | bool | None] = {
        "max_requests_for_object": concurrency.max_concurrent_requests_for_object,
        "request_bytes": concurrency.ideal_concurrent_request_size,
        "max_tries": retries.max_tries,
        "initial_backoff_seconds": _seconds(retries.initial_backoff_ms),
        "max_backoff_seconds": _seconds(retries.max_backoff_ms),
        "max_connect_tries": retries.max_connect_tries,
        "connect_timeout_seconds": _seconds(timeouts.connect_timeout_ms),
        "read_timeout_seconds": _seconds(timeouts.read_timeout_ms),
        "operation_timeout_seconds": _seconds(timeouts.operation_timeout_ms),
        "attempt_timeout_seconds": _seconds(timeouts.operation_attempt_timeout_ms),
        "multipart_from_bytes": settings.minimum_size_for_multipart_upload,
        "storage_class": settings.storage_class,
        "uses_attributes": settings.unsafe_use_metadata,
        "uses_conditional_create": settings.unsafe_use_conditional_create,
        "uses_conditional_update": settings.unsafe_use_conditional_update,
    }
    return msgspec.convert(
        {name: value for name, value in values.items() if value is not None}, EffectiveSettings
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
