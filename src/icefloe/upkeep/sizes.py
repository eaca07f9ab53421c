"""How many bytes chunks take: by array, branch, snapshot and chunk file.

Memory is bounded: if there are too many references, manifests are read several times, each time for
a part of the chunk files.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.engine.retention.id_sets import are_in, id_bytes, id_column
from icefloe.engine.retention.marking import (
    DEFAULT_LIMITS,
    Marks,
    MemoryLimits,
    first_snapshots,
    read_references,
)
from icefloe.engine.retention.stored_objects import list_objects
from icefloe.engine.tree.chunk_batches import ArrayReader
from icefloe.formats.port import ObjectKind
from icefloe.html_tables import Report
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import ChunkFileId
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.progress import track
from icefloe.upkeep.ranges import Ranges, RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.engine.context import Context
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot

REFS_AT_ONCE = 4_000_000
"""How many references are held at a time, at about 30 bytes each."""


class ChunkStorageStats(Report, frozen=True):
    """Bytes of chunks by kind: native, virtual or inlined. Shared chunks count once."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0

    @property
    def non_virtual_bytes(self) -> int:
        """Bytes that are stored in the repository."""
        return self.native_bytes + self.inlined_bytes

    @property
    def total_bytes(self) -> int:
        """All bytes."""
        return self.non_virtual_bytes + self.virtual_bytes

    def __add__(self, other: ChunkStorageStats) -> ChunkStorageStats:
        return ChunkStorageStats(
            self.native_bytes + other.native_bytes,
            self.virtual_bytes + other.virtual_bytes,
            self.inlined_bytes + other.inlined_bytes,
        )


class SnapshotSize(Report, frozen=True):
    """What one snapshot holds, and what it added to its parent."""

    id: str
    written_at: datetime
    message: str
    chunks: int
    total: ChunkStorageStats
    added: ChunkStorageStats


class ChunkFileUsage(msgspec.Struct, frozen=True, eq=False):
    """All chunk files that branches and tags reach, as columns, and how much of each is used."""

    file_ids: npt.NDArray[np.bytes_]
    sizes: npt.NDArray[np.int64]
    """Bytes of each file; -1 if it is missing."""
    live_bytes: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    """Number of chunks in each file that are reached."""

    def __len__(self) -> int:
        return len(self.file_ids)

    def __repr__(self) -> str:
        return (
            f"<{len(self)} chunk files, {self.total_bytes} bytes, "
            f"{self.dead_share:.1%} of them dead>"
        )

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from icefloe.html_tables import html_table, readable_size

        dead = f"{readable_size(int(self.dead_bytes.sum()))} ({self.dead_share:.1%})"
        rows = [
            ("files", len(self)),
            ("missing files", int((self.sizes < 0).sum())),
            ("bytes", readable_size(self.total_bytes)),
            ("dead bytes", dead),
            ("chunks", int(self.chunks.sum())),
        ]
        return html_table("Chunk files", rows)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files that are there."""
        return int(self.sizes[self.sizes >= 0].sum())

    @property
    def dead_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each file that nothing refers to any more."""
        dead: npt.NDArray[np.int64] = np.maximum(self.sizes - self.live_bytes, 0)
        return dead

    @property
    def dead_share(self) -> float:
        """Share of the bytes of all files that nothing refers to."""
        total = self.total_bytes
        return float(self.dead_bytes.sum() / total) if total else 0.0

    def names(self) -> list[str]:
        """Ids of the files as text."""
        return [str(ChunkFileId(id_bytes(value))) for value in self.file_ids.tolist()]


def repository_stats(context: Context, limits: MemoryLimits) -> ChunkStorageStats:
    """Bytes of the chunks of all snapshots that branches and tags reach."""
    return _stats_of(_reached(context, limits))


def branch_stats(context: Context) -> dict[str, ChunkStorageStats]:
    """Bytes of the chunks of the whole history of each branch."""
    stats = {}
    for name, target in sorted(read_references(context).branches.items()):
        marks = Marks(context)
        marks.add_history(target)
        stats[name] = _stats_of(marks)
    return stats


def array_stats(context: Context, snapshot: Snapshot) -> dict[str, ChunkStorageStats]:
    """Bytes of the chunks of each array of one snapshot."""
    chunks = SnapshotChunks(context.files, snapshot)
    stats = {}
    for node in track(snapshot.nodes, "arrays", len(snapshot.nodes)):
        if node.is_array:
            reader = ArrayReader(snapshot, chunks, node, None)
            stats[node.path] = _sums(partial(_refs_in, reader))
    return stats


def _refs_in(reader: ArrayReader) -> Iterator[ChunkRefs]:
    """References of one array, a table at a time."""
    return (table.refs for table in reader.tables())


def snapshot_sizes(context: Context, snapshot_id: SnapshotId) -> Iterator[SnapshotSize]:
    """What each snapshot of a history holds and added, newest first."""
    history = context.history.ancestry(snapshot_id)
    snapshot = next(history, None)
    while snapshot is not None:
        parent = next(history, None)
        here, before = _manifest_ids(snapshot), _manifest_ids(parent)
        marks = Marks(context)
        marks.add_snapshot(snapshot)
        if parent is not None:
            marks.add_snapshot(parent)
        yield SnapshotSize(
            id=str(snapshot.id),
            written_at=snapshot.written_at,
            message=snapshot.message,
            chunks=sum(info.num_chunk_refs for info in snapshot.manifests),
            total=_stats_of(marks, here),
            added=_added(marks, here, before),
        )
        snapshot = parent


def chunk_file_usage(context: Context) -> ChunkFileUsage:
    """All chunk files that branches and tags reach, and how much of each is used."""
    marks = _reached(context, DEFAULT_LIMITS)
    parts = []
    for ranges in _native_parts(marks):
        sources, _, sums = ranges.by_source()
        parts.append((sources, sums.used_bytes.astype(np.int64), sums.counts))
    # Listed after the references were read, so that no file of a new commit seems to be missing.
    listed = list_objects(context.storage, context.format.layout, ObjectKind.CHUNK_FILE)
    ids = np.concatenate([part[0] for part in parts])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    used, counts = (np.concatenate([p[i] for p in parts])[order] for i in (1, 2))
    return ChunkFileUsage(file_ids=ids, sizes=listed.sizes_of(ids), live_bytes=used, chunks=counts)


# --- sums


def _refs_of(marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None) -> Iterator[ChunkRefs]:
    """The references in marked manifests, all or those with some ids."""
    for manifest in marks.manifests(manifests):
        for block in manifest.blocks():
            yield block.refs


def _reached(context: Context, limits: MemoryLimits) -> Marks:
    marks = Marks(context, limits)
    for target in sorted(read_references(context).all()):
        marks.add_history(target)
    for root in first_snapshots(marks):
        marks.add_history(root, is_whole=False)
    return marks


def _passes(marks: Marks) -> int:
    return max(1, -(-marks.num_refs // REFS_AT_ONCE))


def _stats_of(marks: Marks, ids: npt.NDArray[np.bytes_] | None = None) -> ChunkStorageStats:
    return _sums(lambda: _refs_of(marks, ids), _passes(marks))


def _sums(read: Callable[[], Iterable[ChunkRefs]], passes: int = 1) -> ChunkStorageStats:
    """Sum up references, which are read once in each pass."""
    native = virtual = inlined = 0
    for part in range(passes):
        files, locations = RangeSet(part, passes), RangeSet(part, passes)
        for refs in read():
            files.add_native(refs)
            locations.add_virtual(refs)
            if part == 0:
                inlined += int(refs.lengths[refs.kinds == ChunkKind.INLINE].sum())
        native += files.ranges().total_bytes
        virtual += locations.ranges().total_bytes
    return ChunkStorageStats(native, virtual, inlined)


def _native_parts(marks: Marks) -> Iterator[Ranges]:
    passes = _passes(marks)
    for part in range(passes):
        files = RangeSet(part, passes)
        for refs in _refs_of(marks):
            files.add_native(refs)
        yield files.ranges()


def _manifest_ids(snapshot: Snapshot | None) -> npt.NDArray[np.bytes_]:
    infos = () if snapshot is None else snapshot.manifests
    return np.unique(id_column([info.id for info in infos]))


def _added(
    marks: Marks, here: npt.NDArray[np.bytes_], before: npt.NDArray[np.bytes_]
) -> ChunkStorageStats:
    """Bytes in manifests that the parent lacks, but not in those that they replaced."""
    new, replaced = here[~are_in(here, before)], before[~are_in(before, here)]
    both = _stats_of(marks, np.concatenate([new, replaced]))
    old = _stats_of(marks, replaced)
    # Inlined bytes are part of a manifest, so a rewritten manifest stores them again.
    inlined = _stats_of(marks, new).inlined_bytes
    return ChunkStorageStats(
        both.native_bytes - old.native_bytes, both.virtual_bytes - old.virtual_bytes, inlined
    )
