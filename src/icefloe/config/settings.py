"""The values that apply: a configuration with the defaults filled in, for the engine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.config.containers import VirtualChunkContainer, check_containers
from icefloe.config.manifest_sets import ChunkManifests
from icefloe.config.manifests import ManifestConfig, ManifestSplittingConfig
from icefloe.config.preloading import PreloadRule
from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import whole_number
from icefloe.storage.settings import StorageRetriesSettings, StorageSettings

if TYPE_CHECKING:
    from icefloe.config.repository import RepositoryConfig


def default_codec_threads() -> int:
    """The value of ICEFLOE_THREADS, or the number of processors that this process may use.

    Raises InvalidInputError if ICEFLOE_THREADS is not a positive number.
    """
    variable = os.environ.get("ICEFLOE_THREADS")
    if variable:
        threads = whole_number(variable)
        if threads is None or threads < 1:
            raise InvalidInputError(
                f"ICEFLOE_THREADS is a number of threads, 1 or more; found {variable!r}"
            )
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Settings(msgspec.Struct, frozen=True):
    """One immutable value for everything that can be configured."""

    inline_chunk_threshold_bytes: int = 512
    inline_attributes_threshold_bytes: int = 65_536
    packed_chunk_threshold_bytes: int = 1024 * 1024
    pack_bytes: int = 32 * 1024 * 1024
    read_gap_bytes: int | None = None
    """None: it depends on the storage."""
    read_request_bytes: int = 8 * 1024 * 1024
    read_concurrency: int = 16
    read_buffered_bytes: int = 128 * 1024 * 1024
    verify_chunks: bool = False
    get_partial_values_concurrency: int = 10
    max_concurrent_requests: int = 256
    compression_level: int = 3
    codec_threads: int = msgspec.field(default_factory=default_codec_threads)

    cached_snapshot_nodes: int = 500_000
    cached_chunk_refs: int = 15_000_000
    cached_transaction_changes: int = 0
    cached_attribute_bytes: int = 0
    cached_chunk_bytes: int = 0

    chunk_manifests: ChunkManifests = ChunkManifests()
    """Complete and checked."""
    preload: PreloadRule = PreloadRule()
    splitting: ManifestSplittingConfig = msgspec.field(default_factory=ManifestSplittingConfig)
    manifest_fetches_during_commit: int = 16

    rebase_with: str | None = None
    publish_max_tries: int = 1_000
    publish_initial_backoff_ms: int = 2
    publish_max_backoff_ms: int = 250

    storage: StorageSettings | None = None
    """None: the defaults of the storage."""
    virtual_chunk_containers: dict[str, VirtualChunkContainer] = msgspec.field(default_factory=dict)

    @classmethod
    def from_config(cls, config: RepositoryConfig) -> Settings:
        """Fill in the defaults of a configuration.

        Raises InvalidInputError for virtual chunk containers, manifest sets or rules that are not
        valid.
        """
        check_containers(config.virtual_chunk_containers or {})
        config = config.copy()  # later changes must not affect the settings
        values: dict[str, Any] = {
            "inline_chunk_threshold_bytes": config.inline_chunk_threshold_bytes,
            "inline_attributes_threshold_bytes": config.inline_attributes_threshold_bytes,
            "get_partial_values_concurrency": config.get_partial_values_concurrency,
            "max_concurrent_requests": config.max_concurrent_requests,
            "codec_threads": config.codec_threads,
            "compression_level": config.compression and config.compression.level,
            "verify_chunks": config.verify_chunks,
            "rebase_with": config.rebase_with,
            "storage": config.storage,
            "virtual_chunk_containers": config.virtual_chunk_containers,
            **_packing(config),
            **_reading(config),
            **_caching(config),
            **_manifest(config),
            **_publishing(config),
        }
        return cls(**{name: value for name, value in values.items() if value is not None})


def _packing(config: RepositoryConfig) -> dict[str, int | None]:
    packing = config.chunk_packing
    if packing is None:
        return {}
    return {
        "packed_chunk_threshold_bytes": packing.max_chunk_bytes,
        "pack_bytes": packing.pack_bytes,
    }


def _reading(config: RepositoryConfig) -> dict[str, int | None]:
    reading = config.chunk_reading
    if reading is None:
        return {}
    return {
        "read_gap_bytes": reading.max_gap_bytes,
        "read_request_bytes": reading.max_request_bytes,
        "read_concurrency": reading.max_concurrent_requests,
        "read_buffered_bytes": reading.max_buffered_bytes,
    }


def _caching(config: RepositoryConfig) -> dict[str, int | None]:
    caching = config.caching
    if caching is None:
        return {}
    return {
        "cached_snapshot_nodes": caching.num_snapshot_nodes,
        "cached_chunk_refs": caching.num_chunk_refs,
        "cached_transaction_changes": caching.num_transaction_changes,
        "cached_attribute_bytes": caching.num_bytes_attributes,
        "cached_chunk_bytes": caching.num_bytes_chunks,
    }


def _manifest(config: RepositoryConfig) -> dict[str, object]:
    manifest = config.manifest or ManifestConfig()
    return {
        "chunk_manifests": manifest.chunk_manifests(),
        "preload": PreloadRule.from_config(manifest.preload),
        "splitting": manifest.splitting,
        "manifest_fetches_during_commit": manifest.max_concurrent_manifest_fetches_during_commit,
    }


def _publishing(config: RepositoryConfig) -> dict[str, int | None]:
    updates = config.repo_update_retries
    retries = (updates and updates.default) or StorageRetriesSettings()
    return {
        "publish_max_tries": retries.max_tries,
        "publish_initial_backoff_ms": retries.initial_backoff_ms,
        "publish_max_backoff_ms": retries.max_backoff_ms,
    }
