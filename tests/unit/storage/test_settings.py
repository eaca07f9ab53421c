from __future__ import annotations

import pickle

from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
    fill_in,
)


def test_merging_is_deep_and_none_inherits() -> None:
    base = StorageSettings(
        concurrency=StorageConcurrencySettings(5, 100),
        retries=StorageRetriesSettings(max_tries=3),
        storage_class="STANDARD",
    )
    top = StorageSettings(
        concurrency=StorageConcurrencySettings(ideal_concurrent_request_size=7),
        timeouts=StorageTimeoutSettings(connect_timeout_ms=1),
        unsafe_use_metadata=False,
    )
    merged = base.merge(top)
    assert merged == StorageSettings(
        concurrency=StorageConcurrencySettings(5, 7),
        retries=StorageRetriesSettings(max_tries=3),
        storage_class="STANDARD",
        timeouts=StorageTimeoutSettings(connect_timeout_ms=1),
        unsafe_use_metadata=False,
    )
    assert base.concurrency == StorageConcurrencySettings(5, 100)


def test_fields_can_be_set() -> None:
    settings = StorageSettings()
    settings.retries = StorageRetriesSettings()
    settings.retries.max_tries = 2
    assert fill_in(settings).max_tries == 2
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_defaults_are_filled_in() -> None:
    filled = fill_in(None)
    assert filled == fill_in(StorageSettings())
    assert filled.uses_conditional_create
    assert filled.uses_attributes
    assert filled.connect_timeout_seconds == 5
    given = fill_in(
        StorageSettings(
            unsafe_use_conditional_create=False,
            retries=StorageRetriesSettings(1, 250, 1000),
            timeouts=StorageTimeoutSettings(1500, 2500, 3500, 4500),
        )
    )
    assert not given.uses_conditional_create
    assert (given.max_tries, given.initial_backoff_seconds, given.max_backoff_seconds) == (
        1,
        0.25,
        1,
    )
    assert (
        given.connect_timeout_seconds,
        given.read_timeout_seconds,
        given.operation_timeout_seconds,
        given.attempt_timeout_seconds,
    ) == (1.5, 2.5, 3.5, 4.5)
