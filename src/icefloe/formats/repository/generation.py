"""The generation `repository`: specs 001 and 002, compact and fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.container import COLUMNS_VERSION, DEFAULT_LEVEL, ROWS_VERSION
from icefloe.formats.repository.codec import RepositoryCodec
from icefloe.formats.repository.layout import RepositoryLayout
from icefloe.formats.repository.refs import repository_refs

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Codec, Layout, NodeNumbering, Refs
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.port import Storage


class RepositoryGeneration:
    """What the registry must know of this generation."""

    name: str = "repository"
    spec_versions: tuple[int, ...] = (ROWS_VERSION, COLUMNS_VERSION)
    keeps_logs: bool = True
    node_numbering: NodeNumbering | None = None
    index_at_end: bool = False
    layout: Layout = RepositoryLayout()

    def make_codec(self, spec_version: int | None = None, level: int | None = None) -> Codec:
        """A codec that writes one spec version and reads all."""
        return RepositoryCodec(
            COLUMNS_VERSION if spec_version is None else spec_version,
            DEFAULT_LEVEL if level is None else level,
        )

    def make_refs(self, storage: Storage, seen: BranchTip | None = None) -> Refs:
        """Branches and tags in a storage."""
        return repository_refs(storage, seen)

    def complete(self, snapshot: Snapshot, storage: Storage) -> Snapshot:
        """The snapshot as it is: its file says all."""
        del storage
        return snapshot
