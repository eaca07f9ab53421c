"""An open repository: storage, format, settings, objects and history, shared by its sessions."""

from __future__ import annotations

import logging
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.config.settings import Settings
from icefloe.engine.history.walk import History
from icefloe.formats.port import LiveTip
from icefloe.formats.registry import format_for
from icefloe.model.record import Record
from icefloe.objects.bulk_reads import ReadLimits
from icefloe.objects.chunks import ChunkFiles, ChunkSettings, WriteLimits
from icefloe.objects.metadata import MetadataFiles
from icefloe.objects.shared_caches import CacheBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.config.repository import RepositoryConfig
    from icefloe.formats.port import Generation
    from icefloe.formats.registry import Discovery
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.storage.port import Storage

_logger = logging.getLogger(__name__)

_BYTES_PER_NODE = 600
_BYTES_PER_REF = 33
_CHUNKS_AT_A_TIME = 16


class VirtualAccess(Record, frozen=True):
    """The external locations that a repository may read, with credentials."""

    authorizations: dict[str, Any]
    """Credentials, or None, by URL prefix of a virtual chunk container."""
    confirmed_prefixes: frozenset[str] = frozenset()
    """Containers in the opener's configuration. Those stored with the repository may not choose the
    server that the opener's credentials are sent to."""

    @classmethod
    def from_arguments(
        cls, authorizations: Mapping[str, Any] | None, config: RepositoryConfig | None
    ) -> VirtualAccess:
        """The access that the arguments of `Repository.open` allow."""
        containers = None if config is None else config.virtual_chunk_containers
        allowed = {
            prefix: None if _needs_no_secret(credential) else credential
            for prefix, credential in (authorizations or {}).items()
        }
        return cls(allowed, frozenset(containers or ()))


def _needs_no_secret(credential: object) -> bool:
    if credential is None:
        return True
    from icefloe.storage.access.credentials import HttpAccess, LocalFileSystemAccess

    return isinstance(credential, HttpAccess | LocalFileSystemAccess)


class Context:
    """The parts of an open repository; its caches are shared by the process."""

    def __init__(
        self,
        storage: Storage,
        fmt: Generation,
        config: RepositoryConfig,
        access: VirtualAccess,
        discovered: Discovery | None = None,
    ) -> None:
        """Put the layers together; `discovered` is what was read of the repository already."""
        self.config = config.copy()  # callers may alter theirs later
        self.settings = _settings_for(config, fmt)
        self.format = fmt = fmt.at(level=self.settings.compression_level)
        use = self.settings.storage
        self.storage = storage = storage if use is None else storage.with_settings(use)
        self.access = access
        if discovered is not None and use is None:
            self.refs = discovered.refs
        else:
            self.refs = fmt.make_refs(storage, None if discovered is None else discovered.tip)
        if access.authorizations or self.settings.virtual_chunk_containers:
            _ = self.virtual  # refuses a wrong container or credential when the repository opens
        at_once = (
            self.settings.manifest_fetches_during_commit,
            self.settings.max_concurrent_requests,
        )
        self.files = MetadataFiles(
            storage,
            fmt,
            self._budget(),
            min(at_once),
            verify=self.settings.verify_chunks,
            listed=self.refs.snapshot_files,
            complete=self.refs.complete,
        )
        self.refs.remember(self.files.known_file, self.files.last_written)
        self.refs.inform(fmt.codec)
        if discovered is not None and isinstance(discovered.tip, LiveTip):
            self.files.give_snapshot_file(discovered.tip.snapshot_id, discovered.snapshot_file)
        self.chunk_files = ChunkFiles(
            storage,
            fmt.layout,
            lambda: self.virtual,
            ChunkSettings(
                self.settings.inline_chunk_threshold_bytes,
                self.settings.packed_chunk_threshold_bytes,
                self.settings.pack_bytes,
            ),
            WriteLimits(min(self.settings.max_concurrent_requests, _CHUNKS_AT_A_TIME)),
            self.files.chunk_cache(),
        )
        self.read_limits = ReadLimits(
            gap_bytes=self.settings.read_gap_bytes,
            request_bytes=self.settings.read_request_bytes,
            concurrency=self.settings.read_concurrency,
            buffered_bytes=self.settings.read_buffered_bytes,
        )
        self.history = History(self.files, self.refs)

    @cached_property
    def virtual(self) -> VirtualChunkResolver:
        """What may be read outside of the repository; most repositories refer to nothing there."""
        from icefloe.objects.foreign import VirtualChunkResolver

        return VirtualChunkResolver(
            self.settings.virtual_chunk_containers,
            self.access.authorizations,
            confirmed_prefixes=self.access.confirmed_prefixes,
        )

    def _budget(self) -> CacheBudget:
        return CacheBudget(
            snapshots=self.settings.cached_snapshot_nodes * _BYTES_PER_NODE,
            manifests=self.settings.cached_chunk_refs * _BYTES_PER_REF,
            attributes=max(self.settings.cached_attribute_bytes, 16 * 1024 * 1024),
            log_changes=self.settings.cached_transaction_changes,
            chunks=self.settings.cached_chunk_bytes,
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        name, version = self.format.name, self.format.spec_version
        return _restore, (self.storage, name, version, self.config, self.access)


def _restore(
    storage: Storage, name: str, version: int, config: RepositoryConfig, access: VirtualAccess
) -> Context:
    return Context(storage, format_for(name, version), config, access)


def _settings_for(config: RepositoryConfig, fmt: Generation) -> Settings:
    """The settings of a configuration; logs a warning for each that the format cannot keep."""
    settings = Settings.from_config(config)
    changes: dict[str, Any] = {}
    if not fmt.keeps_attribute_files:
        changes["inline_attributes_threshold_bytes"] = sys.maxsize
        if config.inline_attributes_threshold_bytes is not None:
            _warn(fmt, "inline_attributes_threshold_bytes", "attributes stay in their documents")
    if not fmt.keeps_manifest_sets:
        changes["chunk_manifests"] = settings.chunk_manifests.alone()
        manifest = config.manifest
        if manifest is not None and (manifest.sets is not None or manifest.rules is not None):
            _warn(
                fmt,
                "manifest.sets and manifest.rules",
                "each array has manifests of its own; of a set, only its split_size counts",
            )
    return msgspec.structs.replace(settings, **changes)


def _warn(fmt: Generation, setting: str, instead: str) -> None:
    _logger.warning(
        "%s has no effect in a repository of the generation %r: %s", setting, fmt.name, instead
    )
