"""Configuration values: what can be set, what is refused, what holds in the end."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from icefloe.config import (
    CachingConfig,
    ChunkManifests,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    PreloadRule,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    VirtualChunkContainer,
)
from icefloe.errors import InvalidInputError
from icefloe.storage.access.stores import ObjectStoreConfig, S3Options
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
)

S3 = ObjectStoreConfig.S3(S3Options(region="eu-west-1"))


def container(prefix: str) -> VirtualChunkContainer:
    return VirtualChunkContainer(prefix, S3)


class TestRepositoryConfig:
    def test_nothing_is_given_by_default(self) -> None:
        assert RepositoryConfig() == RepositoryConfig.default()
        assert all(getattr(RepositoryConfig(), name) is None for name in _FIELDS)

    def test_positional_arguments_come_in_the_known_order(self) -> None:
        config = RepositoryConfig(7, 8, CompressionConfig(level=2), 9, CachingConfig())

        assert config.inline_chunk_threshold_bytes == 7
        assert config.get_partial_values_concurrency == 8
        assert config.compression == CompressionConfig(level=2)
        assert config.max_concurrent_requests == 9
        assert config.caching == CachingConfig()

    def test_fields_of_sections_are_settable_in_place(self) -> None:
        config = RepositoryConfig(caching=CachingConfig(), compression=CompressionConfig())

        config.inline_chunk_threshold_bytes = 5
        config.caching.num_chunk_refs = 8
        config.compression.level = 2
        config.manifest = ManifestConfig()
        config.manifest.preload = ManifestPreloadConfig(max_total_refs=42)
        config.storage = StorageSettings(retries=StorageRetriesSettings())
        config.storage.retries.max_tries = 3

        assert config == RepositoryConfig(
            inline_chunk_threshold_bytes=5,
            caching=CachingConfig(num_chunk_refs=8),
            compression=CompressionConfig(level=2),
            manifest=ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=42)),
            storage=StorageSettings(retries=StorageRetriesSettings(max_tries=3)),
        )

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("inline_chunk_threshold_bytes", -1),
            ("inline_chunk_threshold_bytes", "512"),
            ("inline_chunk_threshold_bytes", True),
            ("get_partial_values_concurrency", 0),
            ("max_concurrent_requests", 100_000),
            ("caching", 3),
            ("virtual_chunk_containers", ["s3://bucket/"]),
            ("manifest", CachingConfig()),
        ],
    )
    def test_a_wrong_value_is_refused_where_it_is_given(self, field: str, value: Any) -> None:
        with pytest.raises(InvalidInputError, match=f"RepositoryConfig.{field} cannot be"):
            RepositoryConfig(**{field: value})
        config = RepositoryConfig()
        with pytest.raises(ValueError, match=field):
            setattr(config, field, value)
        assert config == RepositoryConfig()

    def test_a_misspelled_field_is_refused(self) -> None:
        with pytest.raises(AttributeError):
            RepositoryConfig().inline_chunk_threshold = 5

    def test_configurations_pickle_and_copy(self) -> None:
        config = RepositoryConfig(
            caching=CachingConfig(num_chunk_refs=1),
            manifest=ManifestConfig(
                preload=ManifestPreloadConfig(preload_if=ManifestPreloadCondition.true())
            ),
            virtual_chunk_containers={"s3://bucket/": container("s3://bucket/")},
        )

        assert pickle.loads(pickle.dumps(config)) == config
        copied = config.copy()
        copied.caching.num_chunk_refs = 2
        copied.clear_virtual_chunk_containers()
        assert config.caching.num_chunk_refs == 1
        assert "s3://bucket/" in config.virtual_chunk_containers


class TestMerge:
    """api-facts 9: per field and deep; what is given wins, None inherits."""

    def test_goes_into_sections(self) -> None:
        ours = RepositoryConfig(
            inline_chunk_threshold_bytes=1,
            caching=CachingConfig(num_chunk_refs=3, num_bytes_chunks=4),
            storage=StorageSettings(
                storage_class="COLD",
                concurrency=StorageConcurrencySettings(ideal_concurrent_request_size=1),
            ),
        )
        theirs = RepositoryConfig(
            get_partial_values_concurrency=2,
            caching=CachingConfig(num_bytes_chunks=9),
            storage=StorageSettings(
                concurrency=StorageConcurrencySettings(max_concurrent_requests_for_object=7)
            ),
        )

        assert ours.merge(theirs) == RepositoryConfig(
            inline_chunk_threshold_bytes=1,
            get_partial_values_concurrency=2,
            caching=CachingConfig(num_chunk_refs=3, num_bytes_chunks=9),
            storage=StorageSettings(
                storage_class="COLD",
                concurrency=StorageConcurrencySettings(
                    ideal_concurrent_request_size=1, max_concurrent_requests_for_object=7
                ),
            ),
        )

    def test_goes_into_the_sections_of_sections(self) -> None:
        splitting = ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 3}}
        )
        ours = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
        theirs = RepositoryConfig(
            manifest=ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=3))
        )

        assert ours.merge(theirs).manifest == ManifestConfig(
            preload=ManifestPreloadConfig(max_total_refs=3), splitting=splitting
        )

    def test_given_containers_replace_the_others(self) -> None:
        ours = RepositoryConfig(virtual_chunk_containers={"s3://a/": container("s3://a/")})
        theirs = RepositoryConfig(virtual_chunk_containers={"s3://b/": container("s3://b/")})

        assert ours.merge(RepositoryConfig()).virtual_chunk_containers.keys() == {"s3://a/"}
        assert ours.merge(theirs).virtual_chunk_containers.keys() == {"s3://b/"}

    def test_cleared_containers_clear_the_others(self) -> None:
        ours = RepositoryConfig(virtual_chunk_containers={"s3://a/": container("s3://a/")})
        cleared = RepositoryConfig()
        cleared.clear_virtual_chunk_containers()

        assert cleared.virtual_chunk_containers == {}
        assert cleared != RepositoryConfig()
        assert ours.merge(cleared).virtual_chunk_containers == {}

    def test_the_result_shares_nothing_with_its_sources(self) -> None:
        ours = RepositoryConfig(caching=CachingConfig(num_chunk_refs=1))
        theirs = RepositoryConfig(storage=StorageSettings(retries=StorageRetriesSettings(1)))

        merged = ours.merge(theirs)
        merged.caching.num_chunk_refs = 5
        merged.storage.retries.max_tries = 5

        assert ours.caching.num_chunk_refs == 1
        assert theirs.storage.retries.max_tries == 1


class TestEffective:
    def test_defaults(self) -> None:
        settings = RepositoryConfig().effective()

        assert settings.inline_chunk_threshold_bytes == 512  # R2-36
        assert settings.inline_attributes_threshold_bytes == 65_536  # H-07
        assert settings.get_partial_values_concurrency == 10
        assert settings.compression_level == 3
        assert settings.cached_snapshot_nodes == 500_000
        assert settings.cached_chunk_refs == 15_000_000
        assert settings.cached_chunk_bytes == 0
        assert settings.chunk_manifests == ChunkManifests()
        assert settings.preload == PreloadRule()
        assert settings.splitting.sizes_for("/a", ["x", None]) == [None, None]
        assert settings.storage is None
        assert settings.virtual_chunk_containers == {}

    def test_what_is_given_holds_even_if_it_is_zero_or_empty(self) -> None:
        config = RepositoryConfig(
            inline_chunk_threshold_bytes=0,
            inline_attributes_threshold_bytes=1,
            compression=CompressionConfig(algorithm=CompressionAlgorithm.Zstd, level=0),
            caching=CachingConfig(num_chunk_refs=0, num_snapshot_nodes=1),
            manifest=ManifestConfig(
                preload=ManifestPreloadConfig(max_total_refs=0, max_arrays_to_scan=0)
            ),
            repo_update_retries=RepoUpdateRetryConfig(default=StorageRetriesSettings(max_tries=2)),
        )

        settings = config.effective()

        assert settings.inline_chunk_threshold_bytes == 0
        assert settings.inline_attributes_threshold_bytes == 1
        assert settings.compression_level == 0
        assert (settings.cached_chunk_refs, settings.cached_snapshot_nodes) == (0, 1)
        assert settings.preload.max_total_refs == settings.preload.max_arrays_to_scan == 0
        assert settings.publish_max_tries == 2
        assert settings.publish_initial_backoff_ms == 2

    def test_settings_do_not_follow_later_changes(self) -> None:
        config = RepositoryConfig(storage=StorageSettings(storage_class="COLD"))

        settings = config.effective()
        config.storage.storage_class = "HOT"

        assert settings.storage.storage_class == "COLD"
        assert pickle.loads(pickle.dumps(settings)) == settings

    def test_a_container_that_makes_no_sense_is_refused(self) -> None:
        config = RepositoryConfig(virtual_chunk_containers={"s3://b": container("s3://b")})

        with pytest.raises(ValueError, match="must end in a /"):
            config.effective()


_FIELDS = RepositoryConfig.__struct_fields__
