"""The configuration of a repository: what users set, with "not given" kept apart from defaults."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from icefloe.config.checked import Concurrency, Count, PositiveCount, Section
from icefloe.config.containers import VirtualChunkContainer, check_container
from icefloe.config.manifests import ManifestConfig  # noqa: TC001 (msgspec reads annotations)
from icefloe.config.settings import Settings
from icefloe.storage.settings import StorageRetriesSettings, StorageSettings  # noqa: TC001


class CompressionAlgorithm(Enum):
    """How metadata files are compressed."""

    Zstd = 0

    @staticmethod
    def default() -> CompressionAlgorithm:
        """The algorithm used when none is given."""
        return CompressionAlgorithm.Zstd


class CompressionConfig(Section):
    """How metadata files are compressed."""

    algorithm: CompressionAlgorithm | None = None
    level: Annotated[int, msgspec.Meta(ge=0, le=22)] | None = None

    @staticmethod
    def default() -> CompressionConfig:
        """A configuration that gives nothing, so that every default holds."""
        return CompressionConfig()


class CachingConfig(Section):
    """How much of each kind of object is kept in memory."""

    num_snapshot_nodes: Count | None = None
    """Nodes of snapshots (500,000)."""
    num_chunk_refs: Count | None = None
    """References of manifests (15,000,000)."""
    num_transaction_changes: Count | None = None
    """Nodes and chunks that transaction logs name (0)."""
    num_bytes_attributes: Count | None = None
    """Bytes of attributes; 16 MiB at least."""
    num_bytes_chunks: Count | None = None
    """Bytes of chunks (0)."""

    @staticmethod
    def default() -> CachingConfig:
        """A configuration that gives nothing, so that every default holds."""
        return CachingConfig()


class ChunkPackingConfig(Section):
    """How small chunks are written together, as one chunk file."""

    max_chunk_bytes: Count | None = None
    """Chunks of at most this many bytes are packed (1 MiB); 0 packs nothing."""
    pack_bytes: PositiveCount | None = None
    """A pack is written when so many bytes wait for it (32 MiB)."""

    @staticmethod
    def default() -> ChunkPackingConfig:
        """A configuration that gives nothing, so that every default holds."""
        return ChunkPackingConfig()


class ChunkReadingConfig(Section):
    """How many chunks are read at once: near ones together, several requests at a time."""

    max_gap_bytes: Count | None = None
    """Chunks of one file with at most so many unwanted bytes between them are fetched together
    (1 MiB; 32 KiB where reading is immediate, as from local files)."""
    max_request_bytes: PositiveCount | None = None
    """Chunks are fetched together up to so many bytes (8 MiB)."""
    max_concurrent_requests: Concurrency | None = None
    """So many requests at a time (16; at most 4 where reading is immediate)."""
    max_buffered_bytes: PositiveCount | None = None
    """So many bytes are fetched before they are taken; then fetching waits (128 MiB)."""

    @staticmethod
    def default() -> ChunkReadingConfig:
        """A configuration that gives nothing, so that every default holds."""
        return ChunkReadingConfig()


class RepoUpdateRetryConfig(Section):
    """How often, and how patiently, publishing on a branch is tried again when others got there."""

    default: StorageRetriesSettings | None = None


class RepositoryConfig(Section):
    """The configuration of a repository.

    `None` means "not given": the value comes from the configuration kept in the repository, else
    from the defaults. `effective()` gives the values that hold in the end.
    """

    inline_chunk_threshold_bytes: Count | None = None
    """Chunks of at most this many bytes are kept in the manifest."""
    get_partial_values_concurrency: Concurrency | None = None
    """Values that one call of the store's `get_partial_values` reads at a time."""
    compression: CompressionConfig | None = None
    max_concurrent_requests: Concurrency | None = None
    """Bounds how many files one call reads or writes at a time. How many calls are made at a time
    is for the caller to say, such as zarr's `async.concurrency`."""
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: dict[str, VirtualChunkContainer] | None = None
    """By URL prefix. An empty dict is not None: laid over another configuration it clears it."""
    manifest: ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    chunk_packing: ChunkPackingConfig | None = None
    inline_attributes_threshold_bytes: Count | None = None
    """Attributes whose JSON has more bytes than this go to a file of their own."""
    chunk_reading: ChunkReadingConfig | None = None
    verify_chunks: bool | None = None
    """Whether chunks are compared with their checksums each time they are read (no)."""
    codec_threads: Concurrency | None = None
    """How many threads decode and encode chunks; as many as there are processors to use."""

    @staticmethod
    def default() -> RepositoryConfig:
        """A configuration that gives nothing, so that every default holds."""
        return RepositoryConfig()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """The container of a URL prefix."""
        return (self.virtual_chunk_containers or {}).get(name)

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, or replace the one of the same URL prefix.

        Raises InvalidInputError if the prefix does not fit the store.
        """
        check_container(cont)
        self.virtual_chunk_containers = {
            **(self.virtual_chunk_containers or {}),
            cont.url_prefix: cont,
        }

    def clear_virtual_chunk_containers(self) -> None:
        """Have no containers, whatever the repository's own configuration says."""
        self.virtual_chunk_containers = {}

    def effective(self) -> Settings:
        """All values that hold, with the defaults where nothing is given."""
        return Settings.from_config(self)
