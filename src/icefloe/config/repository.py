"""The configuration of a repository: what users set; a field that is None is not set."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec

from icefloe.config.checked import Concurrency, Count, PositiveCount, Section
from icefloe.config.containers import VirtualChunkContainer, check_container
from icefloe.config.manifests import ManifestConfig  # noqa: TC001 (msgspec reads annotations)
from icefloe.config.settings import Settings
from icefloe.storage.settings import StorageRetriesSettings, StorageSettings  # noqa: TC001


class CompressionAlgorithm(Enum):
    """The algorithms that can compress metadata files."""

    Zstd = 0

    @staticmethod
    def default() -> CompressionAlgorithm:
        """The algorithm that is used when none is set."""
        return CompressionAlgorithm.Zstd


class CompressionConfig(Section):
    """How metadata files are compressed."""

    algorithm: CompressionAlgorithm | None = None
    level: Annotated[int, msgspec.Meta(ge=0, le=22)] | None = None

    @staticmethod
    def default() -> CompressionConfig:
        """A configuration that sets nothing, so that all defaults apply."""
        return CompressionConfig()


class CachingConfig(Section):
    """How much of each kind of object is cached in memory."""

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
        """A configuration that sets nothing, so that all defaults apply."""
        return CachingConfig()


class ChunkPackingConfig(Section):
    """How small chunks are written together, as one chunk file."""

    max_chunk_bytes: Count | None = None
    """Chunks of at most this many bytes are packed (1 MiB); 0 packs nothing."""
    pack_bytes: PositiveCount | None = None
    """A pack is written as soon as it has this many bytes (32 MiB)."""

    @staticmethod
    def default() -> ChunkPackingConfig:
        """A configuration that sets nothing, so that all defaults apply."""
        return ChunkPackingConfig()


class ChunkReadingConfig(Section):
    """How many chunks are read together: neighbours in one request, several requests at a time."""

    max_gap_bytes: Count | None = None
    """Chunks of one file with at most this many unneeded bytes between them are fetched together
    (1 MiB; 32 KiB where reading is immediate, as from local files)."""
    max_request_bytes: PositiveCount | None = None
    """The largest request that fetches several chunks (8 MiB)."""
    max_concurrent_requests: Concurrency | None = None
    """Requests at a time (16; at most 4 where reading is immediate)."""
    max_buffered_bytes: PositiveCount | None = None
    """Fetching pauses when this many bytes are waiting for the caller (128 MiB)."""

    @staticmethod
    def default() -> ChunkReadingConfig:
        """A configuration that sets nothing, so that all defaults apply."""
        return ChunkReadingConfig()


class RepoUpdateRetryConfig(Section):
    """How commits retry when other writers move the branch first."""

    default: StorageRetriesSettings | None = None


class RepositoryConfig(Section):
    """The configuration of a repository.

    A field that is `None` is not set: its value comes from the configuration stored in the
    repository, or else from the defaults. `effective()` returns the values that apply.

    >>> import icefloe
    >>> config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=128)
    >>> config.caching = icefloe.CachingConfig(num_chunk_refs=1_000_000)
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    >>> repo.config.inline_chunk_threshold_bytes
    128
    >>> repo.config.effective().compression_level
    3
    """

    inline_chunk_threshold_bytes: Count | None = None
    """Chunks of at most this many bytes are stored in the manifest (512)."""
    get_partial_values_concurrency: Concurrency | None = None
    """How many values one call of the store's `get_partial_values` reads at a time (10)."""
    compression: CompressionConfig | None = None
    max_concurrent_requests: Concurrency | None = None
    """How many files one call reads or writes at a time (256). How many calls there are at a time
    is up to the caller, such as zarr's `async.concurrency`."""
    caching: CachingConfig | None = None
    storage: StorageSettings | None = None
    virtual_chunk_containers: dict[str, VirtualChunkContainer] | None = None
    """By URL prefix. An empty dict is not None: merged over another configuration, it clears it."""
    manifest: ManifestConfig | None = None
    repo_update_retries: RepoUpdateRetryConfig | None = None
    chunk_packing: ChunkPackingConfig | None = None
    inline_attributes_threshold_bytes: Count | None = None
    """Attributes whose JSON has more bytes than this get a file of their own (65,536)."""
    chunk_reading: ChunkReadingConfig | None = None
    verify_chunks: bool | None = None
    """Whether the checksum of a chunk is verified each time it is read (no)."""
    codec_threads: Concurrency | None = None
    """How many threads decode and encode chunks (one for each processor of this process)."""

    rebase_with: Literal["detect", "ours", "theirs", "merge"] | None = None
    """How commits that name no solver are rebased when the branch has moved (they are not):
    `detect` as by `ConflictDetector()`, `merge` as by `MergeSolver()`, `ours` and `theirs` as by
    `BasicConflictSolver(on_chunk_conflict=...)`."""

    @staticmethod
    def default() -> RepositoryConfig:
        """A configuration that sets nothing, so that all defaults apply."""
        return RepositoryConfig()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """The container with a URL prefix; None if there is none."""
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
        """Remove all containers, including those of the configuration stored in the repository."""
        self.virtual_chunk_containers = {}

    def _repr_html_(self) -> str:
        """Show it in a notebook: every setting that applies, and which are set here."""
        from icefloe.config.setting_table import setting_table
        from icefloe.html_tables import html_table

        settings = setting_table(self)
        chosen = sum(each.is_set for each in settings)
        rows = [(each.name, each.value, "set" if each.is_set else "default") for each in settings]
        rows.sort(key=lambda row: row[2] != "set")
        title = f"RepositoryConfig ({f'{chosen} set' if chosen else 'all defaults'})"
        return html_table(title, rows, ("setting", "value", ""))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's)
        printer.text("…" if cycle else str(self))

    def __str__(self) -> str:
        """Every setting that applies; those that are set here have a star."""
        from icefloe.config.setting_table import setting_table

        settings = setting_table(self)
        width = max(len(each.name) for each in settings)
        return "\n".join(
            f"{'*' if each.is_set else ' '} {each.name:{width}}  {each.value}" for each in settings
        )

    def effective(self) -> Settings:
        """The values that apply, with defaults for all fields that are not set."""
        return Settings.from_config(self)
