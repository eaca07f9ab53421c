"""How many bytes a repository takes, and for what: arrays, branches, snapshots, chunk files.

Memory is bounded: where there are too many references at once, manifests are read several times,
each time for a part of the chunk files.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.engine.retention.candidates import list_objects
from icefloe.engine.retention.id_sets import are_in, id_bytes, id_column
from icefloe.engine.retention.marking import Limits, Marks, first_snapshots, read_references
from icefloe.formats.port import ObjectKind
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import ChunkFileId
from icefloe.upkeep.ranges import Ranges, RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.engine.context import Context
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot

REFS_AT_ONCE = 4_000_000
"""References whose ranges are held at a time: about 30 bytes each."""


class ChunkStorageStats(msgspec.Struct, frozen=True):
    """Bytes of chunks by where they are kept; what several references share counts once."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0

    @property
    def non_virtual_bytes(self) -> int:
        """Bytes that are in the repository."""
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


class SnapshotSize(msgspec.Struct, frozen=True):
    """What one snapshot holds, and what it added to its parent."""

    id: str
    written_at: datetime
    message: str
    chunks: int
    total: ChunkStorageStats
    added: ChunkStorageStats


class ChunkFiles(msgspec.Struct, frozen=True, eq=False):
    """All chunk files that references reach, as columns, and how much of each is used."""

    file_ids: npt.NDArray[np.bytes_]
    sizes: npt.NDArray[np.int64]
    """Bytes of each file; -1 if it is missing."""
    live_bytes: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    """Number of chunks in each file that references reach."""

    def __len__(self) -> int:
        return len(self.file_ids)

    def __repr__(self) -> str:
        return (
            f"<{len(self)} chunk files, {self.total_bytes} bytes, "
            f"{self.dead_share:.1%} of them dead>"
        )

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


def repository_stats(context: Context, limits: Limits) -> ChunkStorageStats:
    """Bytes of the chunks of all snapshots that branches and tags reach."""
    return _stats_of(_reached(context, limits))


def branch_stats(context: Context, limits: Limits) -> dict[str, ChunkStorageStats]:
    """Bytes of the chunks of the whole history of each branch."""
    found = {}
    for name, target in sorted(read_references(context).branches.items()):
        marks = Marks(context, limits)
        marks.add_history(target)
        found[name] = _stats_of(marks)
    return found


def array_stats(context: Context, snapshot: Snapshot) -> dict[str, ChunkStorageStats]:
    """Bytes of the chunks of each array of one snapshot."""
    from icefloe.engine.tree.chunk_batches import ArrayReader
    from icefloe.objects.snapshot_chunks import SnapshotChunks

    chunks = SnapshotChunks(context.files, snapshot)
    found = {}
    for node in snapshot.nodes:
        if node.is_array:
            tables = ArrayReader(snapshot, chunks, node, None).tables()
            found[node.path] = _sums([_OneTable(table.refs for table in tables)])
    return found


def snapshot_sizes(
    context: Context, snapshot_id: SnapshotId, limits: Limits
) -> Iterator[SnapshotSize]:
    """What each snapshot of a history holds and added, newest first."""
    history = context.history.ancestry(snapshot_id)
    snapshot = next(history, None)
    while snapshot is not None:
        parent = next(history, None)
        here, before = _manifest_ids(snapshot), _manifest_ids(parent)
        marks = Marks(context, limits)
        marks.add_snapshot(snapshot)
        if parent is not None:
            marks.add_snapshot(parent)
        yield SnapshotSize(
            str(snapshot.id),
            snapshot.written_at,
            snapshot.message,
            sum(info.num_chunk_refs for info in snapshot.manifests),
            _stats_of(marks, here),
            _added(marks, here, before),
        )
        snapshot = parent


def chunk_files(context: Context, limits: Limits) -> ChunkFiles:
    """All chunk files that are reached, and how much of each is used."""
    marks = _reached(context, limits)
    parts = []
    for ranges in _native_parts(marks):
        sources, _, sums = ranges.by_source()
        parts.append((sources, sums.used_bytes.astype(np.int64), sums.counts))
    # After the references were read: what is committed meanwhile is not missing.
    listed = list_objects(context.storage, context.format.layout, ObjectKind.CHUNK_FILE)
    ids = np.concatenate([part[0] for part in parts])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    sizes = np.full(len(ids), -1, dtype=np.int64)
    known = listed.ids[(by_id := np.argsort(listed.ids))]
    there = are_in(ids, known)
    sizes[there] = listed.sizes[by_id][np.searchsorted(known, ids[there])]
    used, counts = (np.concatenate([p[i] for p in parts])[order] for i in (1, 2))
    return ChunkFiles(ids, sizes, used, counts)


# --- sums


class _OneTable(NamedTuple):
    """References of one array, which behave like a manifest here."""

    tables: Iterable[ChunkRefs]

    def each(self) -> Iterator[ChunkRefs]:
        return iter(self.tables)


class _Blocks(NamedTuple):
    """References of some manifests."""

    marks: Marks
    ids: npt.NDArray[np.bytes_] | None

    def each(self) -> Iterator[ChunkRefs]:
        for manifest in self.marks.manifests(self.ids):
            for block in manifest.blocks():
                yield block.refs


def _reached(context: Context, limits: Limits) -> Marks:
    marks = Marks(context, limits)
    for target in sorted(read_references(context).targets()):
        marks.add_history(target)
    for root in first_snapshots(marks):
        marks.add_history(root, is_whole=False)
    return marks


def _passes(marks: Marks) -> int:
    return max(1, -(-marks.num_refs // REFS_AT_ONCE))


def _stats_of(marks: Marks, ids: npt.NDArray[np.bytes_] | None = None) -> ChunkStorageStats:
    return _sums([_Blocks(marks, ids)], _passes(marks))


def _sums(sources: list[_OneTable] | list[_Blocks], passes: int = 1) -> ChunkStorageStats:
    native = virtual = inlined = 0
    for part in range(passes):
        files, locations = RangeSet(part, passes), RangeSet(part, passes)
        for source in sources:
            for refs in source.each():
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
        for refs in _Blocks(marks, None).each():
            files.add_native(refs)
        yield files.ranges()


def _manifest_ids(snapshot: Snapshot | None) -> npt.NDArray[np.bytes_]:
    infos = () if snapshot is None else snapshot.manifests
    return np.unique(id_column([info.id for info in infos]))


def _added(
    marks: Marks, here: npt.NDArray[np.bytes_], before: npt.NDArray[np.bytes_]
) -> ChunkStorageStats:
    """What is in manifests that the parent lacks, and not in those that they took the place of."""
    new, replaced = here[~are_in(here, before)], before[~are_in(before, here)]
    both = _stats_of(marks, np.concatenate([new, replaced]))
    old = _stats_of(marks, replaced)
    # Inline bytes are part of a manifest, so a manifest that was written anew has them anew.
    inlined = _stats_of(marks, new).inlined_bytes
    return ChunkStorageStats(
        both.native_bytes - old.native_bytes, both.virtual_bytes - old.virtual_bytes, inlined
    )
