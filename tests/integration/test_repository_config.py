"""The configuration that is kept with a repository, and how others are laid over it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import (
    CachingConfig,
    CompressionConfig,
    ConflictError,
    ManifestConfig,
    ManifestPreloadConfig,
    Repository,
    RepositoryConfig,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
)
from icefloe.testing.faults import FaultyStorage
from tests.documents import array, commit_attribute, group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.storage.port import BytesLike, Storage


def config_files(storage: Storage) -> list[str]:
    return [info.key for info in storage.list("config/")][::-1]


def test_nothing_is_kept_until_it_is_given() -> None:  # api-facts 8
    storage = icefloe.in_memory_storage()
    repository = Repository.create(storage)
    assert Repository.fetch_config(storage) is None
    assert repository.config == RepositoryConfig.default()
    opened = Repository.open(storage, RepositoryConfig(inline_chunk_threshold_bytes=5))
    assert opened.config.inline_chunk_threshold_bytes == 5
    assert Repository.fetch_config(storage) is None, "opening keeps nothing"
    opened.save_config()
    assert Repository.fetch_config(storage) == opened.config
    assert Repository.open(storage).config == opened.config


def test_what_create_gets_is_kept() -> None:  # R2-02
    storage = icefloe.in_memory_storage()
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=5, caching=CachingConfig(num_chunk_refs=7)
    )
    Repository.create(storage, config)
    assert Repository.fetch_config(storage) == config
    assert config_files(storage) == ["config/ZZZZZZZZ.json"]
    assert json.loads(storage.get("config/ZZZZZZZZ.json")) == {
        "inline_chunk_threshold_bytes": 5,
        "caching": {"num_chunk_refs": 7},
    }


def test_saving_adds_a_file_and_alters_none() -> None:  # H-33
    storage = icefloe.in_memory_storage()
    repository = Repository.create(storage, RepositoryConfig(inline_chunk_threshold_bytes=1))
    first = storage.get("config/ZZZZZZZZ.json")
    repository.save_config()
    assert len(config_files(storage)) == 1, "nothing new to keep"
    for size in (2, 3):
        repository = repository.reopen(RepositoryConfig(inline_chunk_threshold_bytes=size))
        repository.save_config()
    assert len(config_files(storage)) == 3
    assert storage.get("config/ZZZZZZZZ.json") == first
    kept = Repository.fetch_config(storage)
    assert kept is not None
    assert kept.inline_chunk_threshold_bytes == 3


def test_of_two_that_save_at_once_one_is_told() -> None:
    class Rival(FaultyStorage):
        """Another client saves its configuration between our reading and our writing."""

        def create(
            self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
        ) -> None:
            if key.startswith("config/"):
                self.inner.create(key, b'{"inline_chunk_threshold_bytes":99}')
            super().create(key, data, attributes)

    storage = Rival(icefloe.in_memory_storage())
    repository = Repository.create(storage).reopen(RepositoryConfig(inline_chunk_threshold_bytes=1))
    with pytest.raises(ConflictError, match="configuration was changed"):
        repository.save_config()
    kept = Repository.fetch_config(storage)
    assert kept is not None
    assert kept.inline_chunk_threshold_bytes == 99


def test_layers_are_merged_field_by_field_and_deeply() -> None:  # api-facts 9, R4-19
    storage = icefloe.in_memory_storage()
    kept = RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        get_partial_values_concurrency=4,
        compression=CompressionConfig(level=9),
        caching=CachingConfig(num_chunk_refs=10, num_snapshot_nodes=20),
        storage=StorageSettings(
            retries=StorageRetriesSettings(max_tries=3, max_backoff_ms=30),
            storage_class="COLD",
        ),
        manifest=ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=50)),
    )
    Repository.create(storage, kept)
    over = RepositoryConfig(
        inline_chunk_threshold_bytes=2,
        caching=CachingConfig(num_chunk_refs=11),
        storage=StorageSettings(
            retries=StorageRetriesSettings(max_tries=4),
            concurrency=StorageConcurrencySettings(max_concurrent_requests_for_object=5),
        ),
    )
    opened = Repository.open(storage, over)
    assert opened.config == RepositoryConfig(
        inline_chunk_threshold_bytes=2,
        get_partial_values_concurrency=4,
        compression=CompressionConfig(level=9),
        caching=CachingConfig(num_chunk_refs=11, num_snapshot_nodes=20),
        storage=StorageSettings(
            retries=StorageRetriesSettings(max_tries=4, max_backoff_ms=30),
            concurrency=StorageConcurrencySettings(max_concurrent_requests_for_object=5),
            storage_class="COLD",
        ),
        manifest=ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=50)),
    )
    reopened = opened.reopen(RepositoryConfig(caching=CachingConfig(num_snapshot_nodes=21)))
    assert reopened.config.caching == CachingConfig(num_chunk_refs=11, num_snapshot_nodes=21)
    assert reopened.config.inline_chunk_threshold_bytes == 2
    assert opened.config.caching == CachingConfig(num_chunk_refs=11, num_snapshot_nodes=20)


def test_containers_are_really_cleared() -> None:  # api-facts 9
    storage = icefloe.in_memory_storage()
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://b/", icefloe.s3_store()))
    repository = Repository.create(storage, config)
    cleared = repository.config
    cleared.clear_virtual_chunk_containers()
    reopened = repository.reopen(cleared)
    assert reopened.config.virtual_chunk_containers == {}
    assert Repository.open(storage).config.virtual_chunk_containers is not None
    reopened.save_config()
    assert not Repository.open(storage).config.virtual_chunk_containers
    assert repository.config.get_virtual_chunk_container("s3://b/") is not None


def test_the_configuration_that_is_shown_is_a_copy() -> None:
    repository = Repository.create(icefloe.in_memory_storage(), RepositoryConfig())
    shown = repository.config
    shown.inline_chunk_threshold_bytes = 1
    shown.caching = CachingConfig(num_chunk_refs=1)
    assert repository.config == RepositoryConfig()
    session = repository.writable_session("main")
    session.config.inline_chunk_threshold_bytes = 1
    assert session.config == RepositoryConfig()


def test_the_configuration_that_was_given_may_change_later() -> None:
    given = RepositoryConfig(inline_chunk_threshold_bytes=3)
    repository = Repository.create(icefloe.in_memory_storage(), given)
    given.inline_chunk_threshold_bytes = 100
    assert repository.config.inline_chunk_threshold_bytes == 3
    session = repository.writable_session("main")
    session.tree.set_document("/a", array(chunk=10))
    session.tree.set_chunk("/a", (0,), b"x" * 10)
    assert session.chunk_type("/a", [0]) == icefloe.ChunkType.NATIVE


def test_reopening_keeps_the_place_and_what_commits_say() -> None:
    repository = Repository.create(
        icefloe.in_memory_storage(), authorize_virtual_chunk_access={"s3://a/": None}
    )
    repository.set_default_commit_metadata({"author": "me"})
    again = repository.reopen()
    assert again is not repository
    assert again.storage == repository.storage
    assert again.default_commit_metadata() == {"author": "me"}
    assert again.authorized_virtual_container_prefixes == {"s3://a/"}
    other = repository.reopen(authorize_virtual_chunk_access={"s3://b/": None})
    assert other.authorized_virtual_container_prefixes == {"s3://b/"}
    assert repository.lookup_branch("main") != (tip := commit_attribute(again, 1))
    assert repository.lookup_branch("main") == tip


def test_storage_settings_reach_the_storage() -> None:
    seen: list[StorageSettings] = []

    class Listener(FaultyStorage):
        def with_settings(self, settings: StorageSettings) -> Listener:
            seen.append(settings)
            return self

    storage = Listener(icefloe.in_memory_storage())
    wanted = StorageSettings(retries=StorageRetriesSettings(max_tries=3))
    Repository.create(storage, RepositoryConfig(storage=wanted))
    Repository.open(storage)
    assert seen == [wanted] * 3  # before the first request, and as kept with the repository


def test_the_yaml_of_the_reference_implementation_is_read() -> None:
    storage = icefloe.in_memory_storage()
    Repository.create(storage)
    storage.put("config.yaml", b"inline_chunk_threshold_bytes: 77\n")
    assert Repository.open(storage).config.inline_chunk_threshold_bytes == 77
    Repository.open(storage, RepositoryConfig(inline_chunk_threshold_bytes=8)).save_config()
    assert Repository.open(storage).config.inline_chunk_threshold_bytes == 8


def test_the_level_of_compression_is_used() -> None:
    """A level that zstd gives no ratio at makes larger files than its best one."""
    sizes = {}
    for level in (1, 19):
        compression = icefloe.CompressionConfig(level=level)
        storage = icefloe.in_memory_storage()
        repository = icefloe.Repository.create(
            storage, icefloe.RepositoryConfig(compression=compression)
        )
        session = repository.writable_session("main")
        attributes = {f"key {n}": f"value {n * n} of {n % 7}" for n in range(500)}
        session.tree.set_document("/", group(**attributes))
        snapshot = session.commit("compressible")
        sizes[level] = storage.head(f"snapshots/{snapshot}").size
    assert sizes[19] < sizes[1]
