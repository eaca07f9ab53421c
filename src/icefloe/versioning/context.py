"""What a repository and its sessions share: storage, format, settings, files and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config.settings import Settings
from icefloe.files.chunks import ChunkFiles
from icefloe.files.metadata import CacheBudget, MetadataFiles
from icefloe.files.virtual import VirtualChunkResolver
from icefloe.formats.registry import format_for
from icefloe.versioning.history import History

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.config.repository import RepositoryConfig
    from icefloe.formats.registry import Format
    from icefloe.storage.port import Storage

_BYTES_PER_NODE = 600
_BYTES_PER_REF = 33


class Context:
    """The parts of an open repository; sessions of one repository share its caches."""

    def __init__(
        self,
        storage: Storage,
        fmt: Format,
        config: RepositoryConfig,
        authorizations: Mapping[str, Any],
    ) -> None:
        """Put the layers together."""
        self.storage = storage
        self.format = fmt
        self.config = config
        self.settings = Settings.from_config(config)
        self.authorizations = dict(authorizations)
        self.refs = fmt.make_refs(storage)
        self.virtual = VirtualChunkResolver(
            self.settings.virtual_chunk_containers, self.authorizations
        )
        self.files = MetadataFiles(storage, fmt, self._budget())
        self.chunk_files = ChunkFiles(
            storage, fmt.layout, self.virtual, self.settings.inline_chunk_threshold_bytes
        )
        self.history = History(self.files, self.refs)

    def _budget(self) -> CacheBudget:
        return CacheBudget(
            snapshots=self.settings.cached_snapshot_nodes * _BYTES_PER_NODE,
            manifests=self.settings.cached_chunk_refs * _BYTES_PER_REF,
            attributes=max(self.settings.cached_attribute_bytes, 16 * 1024 * 1024),
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        name, version = self.format.name, self.format.spec_version
        return _restore, (self.storage, name, version, self.config, self.authorizations)


def _restore(
    storage: Storage, name: str, version: int, config: RepositoryConfig, grants: dict[str, Any]
) -> Context:
    return Context(storage, format_for(name, version), config, grants)
