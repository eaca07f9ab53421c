"""All settings of a configuration by name: the values that apply, and which of them were set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config.preloading import COORDINATES_CONDITION, ManifestPreloadConfig
from icefloe.html_tables import readable_size
from icefloe.model.record import Record
from icefloe.storage.settings import fill_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.config.repository import RepositoryConfig
    from icefloe.config.settings import Settings

_LONGEST = 160
_LEAST_ATTRIBUTE_CACHE = 16 * 1024 * 1024


class Setting(Record, frozen=True):
    """One setting: the value that applies, as text."""

    name: str
    """As attributes: `caching.num_chunk_refs`."""
    value: str
    is_set: bool
    """Whether the configuration sets it; the value is the default if not."""


def setting_table(config: RepositoryConfig) -> list[Setting]:
    """Every setting, in the order of the fields of the configuration.

    >>> import icefloe
    >>> config = icefloe.RepositoryConfig(verify_chunks=True)
    >>> [(each.name, each.value) for each in setting_table(config) if each.is_set]
    [('verify_chunks', 'yes')]
    """
    settings = config.effective()
    return [
        Setting(name, _text(name, value), _is_set(config, name))
        for name, value in _values(config, settings)
    ]


def _values(config: RepositoryConfig, settings: Settings) -> Iterable[tuple[str, Any]]:
    yield "inline_chunk_threshold_bytes", settings.inline_chunk_threshold_bytes
    yield "get_partial_values_concurrency", settings.get_partial_values_concurrency
    yield "compression.algorithm", "zstd"
    yield "compression.level", settings.compression_level
    yield "max_concurrent_requests", settings.max_concurrent_requests
    yield "caching.num_snapshot_nodes", settings.cached_snapshot_nodes
    yield "caching.num_chunk_refs", settings.cached_chunk_refs
    yield "caching.num_transaction_changes", settings.cached_transaction_changes
    attributes = max(settings.cached_attribute_bytes, _LEAST_ATTRIBUTE_CACHE)
    yield "caching.num_bytes_attributes", attributes
    yield "caching.num_bytes_chunks", settings.cached_chunk_bytes
    yield from _storage_values(settings)
    yield "virtual_chunk_containers", list(settings.virtual_chunk_containers) or "none"
    yield from _preload_values(config, settings)
    yield "manifest.splitting.split_sizes", settings.splitting.split_sizes or "by the manifest sets"
    fetches = settings.manifest_fetches_during_commit
    yield "manifest.max_concurrent_manifest_fetches_during_commit", fetches
    yield "manifest.sets", [each.name for each in settings.chunk_manifests.sets]
    yield "manifest.rules", [_rule(each) for each in settings.chunk_manifests.rules] or "none"
    yield "repo_update_retries.default.max_tries", settings.publish_max_tries
    yield "repo_update_retries.default.initial_backoff_ms", settings.publish_initial_backoff_ms
    yield "repo_update_retries.default.max_backoff_ms", settings.publish_max_backoff_ms
    yield "chunk_packing.max_chunk_bytes", settings.packed_chunk_threshold_bytes
    yield "chunk_packing.pack_bytes", settings.pack_bytes
    yield "inline_attributes_threshold_bytes", settings.inline_attributes_threshold_bytes
    gap = "1.0 MiB, or 32.0 KiB for local files"
    yield (
        "chunk_reading.max_gap_bytes",
        gap if settings.read_gap_bytes is None else (settings.read_gap_bytes),
    )
    yield "chunk_reading.max_request_bytes", settings.read_request_bytes
    yield "chunk_reading.max_concurrent_requests", settings.read_concurrency
    yield "chunk_reading.max_buffered_bytes", settings.read_buffered_bytes
    yield "verify_chunks", settings.verify_chunks
    yield "codec_threads", settings.codec_threads
    yield "rebase_with", settings.rebase_with or "a commit that has to be rebased raises"


def _storage_values(settings: Settings) -> Iterable[tuple[str, Any]]:
    filled = fill_in(settings.storage)
    chosen = settings.storage
    yield "storage.concurrency.max_concurrent_requests_for_object", filled.max_requests_for_object
    yield "storage.concurrency.ideal_concurrent_request_size", readable_size(filled.request_bytes)
    yield "storage.retries.max_tries", filled.max_tries
    yield "storage.retries.initial_backoff_ms", _milliseconds(filled.initial_backoff_seconds)
    yield "storage.retries.max_backoff_ms", _milliseconds(filled.max_backoff_seconds)
    yield "storage.retries.max_connect_tries", filled.max_connect_tries
    yield "storage.unsafe_use_conditional_create", filled.uses_conditional_create
    yield "storage.unsafe_use_conditional_update", filled.uses_conditional_update
    yield "storage.unsafe_use_metadata", filled.uses_attributes
    common = filled.storage_class or "the default of the bucket"
    yield "storage.storage_class", common
    yield "storage.metadata_storage_class", (chosen and chosen.metadata_storage_class) or common
    yield "storage.chunks_storage_class", (chosen and chosen.chunks_storage_class) or common
    multipart = readable_size(filled.multipart_from_bytes)
    yield "storage.minimum_size_for_multipart_upload", multipart
    yield "storage.timeouts.connect_timeout_ms", _milliseconds(filled.connect_timeout_seconds)
    yield "storage.timeouts.read_timeout_ms", _milliseconds(filled.read_timeout_seconds)
    yield "storage.timeouts.operation_timeout_ms", _milliseconds(filled.operation_timeout_seconds)
    attempt = _milliseconds(filled.attempt_timeout_seconds)
    yield "storage.timeouts.operation_attempt_timeout_ms", attempt


def _preload_values(config: RepositoryConfig, settings: Settings) -> Iterable[tuple[str, Any]]:
    rule = settings.preload
    preload = None if config.manifest is None else config.manifest.preload
    if isinstance(preload, ManifestPreloadConfig) and not isinstance(rule.wanted, tuple):
        yield "manifest.preload.max_total_refs", rule.max_total_refs
        is_default = rule.wanted == COORDINATES_CONDITION
        yield (
            "manifest.preload.preload_if",
            "small manifests of coordinates" if is_default else rule.wanted,
        )
        yield "manifest.preload.max_arrays_to_scan", rule.max_arrays_to_scan
        return
    arrays = rule.wanted if isinstance(rule.wanted, tuple) else ()
    yield "manifest.preload.max_manifest_size", rule.max_manifest_size
    yield "manifest.preload.max_manifests", rule.max_manifests
    yield "manifest.preload.arrays", [each.path for each in arrays] or "none"


def _rule(rule: Any) -> str:
    return f"{rule.path or 'all arrays'} → {rule.target}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_size = "bytes" in name.rpartition(".")[2].split("_")
        return readable_size(value) if is_size else f"{value:,}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _is_set(config: object, name: str) -> bool:
    value = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None
