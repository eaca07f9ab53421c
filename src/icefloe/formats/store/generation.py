"""The generation `store`: spec 003 in JSON, readable with a text editor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.port import NodeNumbering
from icefloe.formats.store.layout import StoreLayout

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip, Codec, Layout, Refs
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.port import Storage


class StoreGeneration:
    """What the registry must know of this generation."""

    name: str = "store"
    spec_versions: tuple[int, ...] = (1,)
    keeps_logs: bool = False
    node_numbering: NodeNumbering | None = NodeNumbering.RANDOM
    index_at_end: bool = False
    layout: Layout = StoreLayout()

    def make_codec(self, spec_version: int | None = None, level: int | None = None) -> Codec:
        """A codec; JSON has one version and no compression."""
        del spec_version, level
        from icefloe.formats.store.codec import StoreCodec

        return StoreCodec()

    def make_refs(self, storage: Storage, seen: BranchTip | None = None) -> Refs:
        """Branches and tags in a storage."""
        from icefloe.formats.store.refs import store_refs

        return store_refs(storage, seen)

    def complete(self, snapshot: Snapshot, storage: Storage) -> Snapshot:
        """The snapshot as it is: its file says all."""
        del storage
        return snapshot
