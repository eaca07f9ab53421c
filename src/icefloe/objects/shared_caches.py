"""The caches of decoded metadata, and of chunks, that all repositories of a process share.

Objects of a repository are written once, under ids that are random, so what was decoded once may
serve every session of the process that reads at the same place as the same user: the scope. The
one snapshot whose id is not random, the first of each repository, is never shared.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from icefloe.model.manifest import LazyBlock
from icefloe.objects.cache import ByteCache
from icefloe.objects.single_flight import SingleFlight
from icefloe.storage.port import Sharable

if TYPE_CHECKING:
    from collections.abc import Hashable

    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
    from icefloe.model.manifest import ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import FileSum, Snapshot
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.storage.port import Storage

    Scope = Hashable

_MAX_UNUSED_POOLS = 4
"""Pools that stay although no repository uses them any more."""


class CacheBudget(NamedTuple):
    """How many bytes of decoded values to keep."""

    snapshots: int = 64 * 1024 * 1024
    manifests: int = 256 * 1024 * 1024
    attributes: int = 16 * 1024 * 1024
    snapshot_count: int | None = None
    """No more snapshots than this, however small they are."""
    log_changes: int = 0
    """Changes in transaction logs: nodes and chunks."""
    chunks: int = 0
    """Bytes of chunks."""
    is_private: bool = False
    """Whether to use caches of one's own, which show what is in the storage now."""


class Caches:
    """Decoded values by scope and id."""

    __slots__ = (
        "__weakref__",
        "attributes",
        "blocks",
        "chunks",
        "flights",
        "indexes",
        "logs",
        "snapshots",
    )

    def __init__(self, budget: CacheBudget) -> None:
        """Take the bytes of each kind of value."""
        half = budget.manifests // 2
        self.snapshots: ByteCache[tuple[Scope, SnapshotId], Snapshot] = ByteCache(
            budget.snapshots, budget.snapshot_count
        )
        self.indexes: ByteCache[tuple[Scope, ManifestId], ManifestIndex] = ByteCache(half)
        self.blocks: ByteCache[tuple[Scope, ManifestId, int], ManifestBlock] = ByteCache(half)
        self.attributes: ByteCache[tuple[Scope, AttributesId], list[bytes]] = ByteCache(
            budget.attributes
        )
        self.logs: ByteCache[tuple[Scope, SnapshotId], tuple[TransactionLog, FileSum]] = ByteCache(
            budget.log_changes
        )
        self.chunks: ByteCache[Hashable, bytes] = ByteCache(budget.chunks)
        self.flights = SingleFlight()

    def keep_index(self, key: tuple[Scope, ManifestId], index: ManifestIndex) -> None:
        """Cache the index of a manifest, with blocks whose references may be decoded later."""
        self.indexes.put(key, index, index.nbytes)
        for block in index.resident or ():
            if isinstance(block, LazyBlock):
                block.decode_through(partial(self._decode_once, key))

    def _decode_once(self, key: tuple[Scope, ManifestId], block: LazyBlock) -> ChunkRefs:
        """Decode all references of a block in one thread, whose memory the cache then counts."""

        def decode() -> ChunkRefs:
            before = block.nbytes
            refs = block.decode_all()
            self.indexes.grow(key, block.nbytes - before)
            return refs

        return self.flights.do((LazyBlock, key), decode)

    def clear(self) -> None:
        """Drop all entries."""
        for cache in (self.snapshots, self.indexes, self.blocks, self.attributes):
            cache.clear()
        self.logs.clear()
        self.chunks.clear()


_pools: weakref.WeakValueDictionary[CacheBudget, Caches] = weakref.WeakValueDictionary()
_recent: OrderedDict[CacheBudget, Caches] = OrderedDict()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 (one that was held at the fork stays held)
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def caches_for(storage: Storage, budget: CacheBudget, generation: str) -> tuple[Caches, Scope]:
    """The caches for the objects of a storage, and the scope that its values have in them.

    Repositories with the same budgets share one pool, which has these budgets for all of them
    together. Storages that cannot tell what they are (memory, and those put around others to watch
    or disturb them) get caches of their own.
    """
    key = storage.sharing_key() if isinstance(storage, Sharable) else None
    if key is None or budget.is_private:
        return Caches(budget), generation
    with _lock:
        pool = _pools.get(budget) or Caches(budget)
        _pools[budget] = _recent[budget] = pool
        _recent.move_to_end(budget)
        while len(_recent) > _MAX_UNUSED_POOLS:
            _recent.popitem(last=False)
    return pool, (generation, key)


def forget_shared() -> None:
    """Let all repositories of the process read from their storages again."""
    with _lock:
        pools = list(_pools.values())
    for pool in pools:
        pool.clear()
