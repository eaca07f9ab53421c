"""Edits of one array's chunk references, and how they change a table of references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_index import ChunkIndex, bounding_box
from icefloe.model.chunk_refs import PendingRef
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model.chunk_refs import ChunkRef


_UNDECIDED: Any = object()


class ChunkEdits:
    """Chunks that a session set or deleted in one array, in the order in which it did.

    Single edits are a dictionary; bulk edits are columns. A bulk edit takes along the single ones
    before it, so that later edits always win.
    """

    __slots__ = ("_as_tables", "_single", "_tables", "cleared", "rank")

    def __init__(self, rank: int) -> None:
        """No edits yet, of an array of `rank` dimensions."""
        self.rank = rank
        self.cleared = False
        """Whether all chunks of the base were deleted before these edits."""
        self._single: dict[tuple[int, ...], ChunkRef | None] = {}
        # Later tables win; an index alone stands for deleted chunks.
        self._tables: list[ArrayChunks | ChunkIndex] = []
        # Single edits as tables, from when they were last asked for; a commit asks twice.
        self._as_tables: list[ArrayChunks | ChunkIndex] | None = None

    def __getstate__(self) -> tuple[object, ...]:
        return (self.rank, self.cleared, self._single, self._tables)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        (self.rank, self.cleared, self._single, self._tables) = state  # type: ignore[assignment]
        self._as_tables = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was edited."""
        return not (self._single or self._tables or self.cleared)

    def set(self, coords: tuple[int, ...], ref: ChunkRef | None) -> None:
        """Set one chunk; None deletes it."""
        self._single[coords] = ref
        self._as_tables = None

    def set_many(self, chunks: ArrayChunks) -> None:
        """Set many chunks at once."""
        self._add_tables([chunks])

    def delete_many(self, chunks: ChunkIndex) -> None:
        """Delete many chunks at once."""
        self._add_tables([chunks])

    def pending(self) -> dict[tuple[int, ...], PendingRef]:
        """The chunks that wait for their pack."""
        return {c: ref for c, ref in self._single.items() if isinstance(ref, PendingRef)}

    def settle(self, pending: Mapping[tuple[int, ...], PendingRef], written: ArrayChunks) -> None:
        """Take over where pending chunks were written, but for those that changed meanwhile."""
        same = {coords for coords, ref in pending.items() if self._single.get(coords) is ref}
        if not same:
            return
        if len(same) < len(pending):
            rows = [row for row, c in enumerate(written.index.tuples()) if c in same]
            coords = written.index.coords()[rows]
            written = ArrayChunks.from_sorted(coords, written.refs.take(np.array(rows)))
        # First found in both places and then in one: readers take no lock.
        self._tables = [*self._tables, written]
        self._single = {c: ref for c, ref in self._single.items() if c not in same}

    def clear(self) -> None:
        """Delete all chunks, of the base and of earlier edits."""
        self.cleared = True
        self._single.clear()
        self._tables.clear()

    def discard(self, gone: ChunkIndex) -> None:
        """Forget the edits of some chunks, so that they are again as in the base."""
        tables = [_without(table, gone) for table in self._tables_with_single()]
        self._single.clear()
        self._tables = [table for table in tables if table is not None]

    def make_explicit(self, old: ArrayChunks | None) -> None:
        """Let "all chunks are deleted" mean the chunks that there were, `old`, and no others.

        On another base, chunks that this session never saw must survive.
        """
        if self.cleared:
            self.cleared = False
            if old is not None:
                self._tables.insert(0, old.index)

    def get(self, coords: tuple[int, ...]) -> tuple[bool, ChunkRef | None]:
        """Whether the edits decide about a chunk, and then its reference, None if deleted.

        Readers take no lock: each step here is one look at a value that others may replace.
        """
        ref = self._single.get(coords, _UNDECIDED)
        if ref is not _UNDECIDED:
            return True, ref
        for table in reversed(tuple(self._tables)):
            if isinstance(table, ChunkIndex):
                if table.find(coords) >= 0:
                    return True, None
            elif (row := table.index.find(coords)) >= 0:
                return True, table.refs.get(row)
        return self.cleared, None

    def absorb(self, later: ChunkEdits) -> None:
        """Add the edits of another session on top of these."""
        if later.cleared:
            self.clear()
        if later._tables:
            self._add_tables(later._tables)
        self._single.update(later._single)
        self._as_tables = None

    def copy(self) -> ChunkEdits:
        """An independent copy; columns are shared, for they never change."""
        twin = ChunkEdits(self.rank)
        twin.cleared = self.cleared
        twin._single = dict(self._single)
        twin._tables = list(self._tables)
        return twin

    def apply(self, old: ArrayChunks | None) -> ArrayChunks | None:
        """The array's references after these edits; None if none is left."""
        result = None if self.cleared else old
        for table in self._tables_with_single():
            if isinstance(table, ArrayChunks):
                result = table if result is None else ArrayChunks.merge([result, table])
            elif result is not None:
                result = result.without(table)
        return result

    def touched(self, old: ArrayChunks | None) -> ChunkIndex | None:
        """Coordinates of all chunks that were set or deleted; None if there are none."""
        indexes = [
            table if isinstance(table, ChunkIndex) else table.index
            for table in self._tables_with_single()
        ]
        if self.cleared and old is not None:
            indexes.append(old.index)
        if len(indexes) <= 1:
            return indexes[0] if indexes else None
        coords = np.concatenate([index.coords() for index in indexes])
        box = bounding_box(coords)
        return ChunkIndex.from_sorted(box, np.unique(box.linearize(coords)))

    def own(self) -> tuple[ArrayChunks | None, ChunkIndex | None]:
        """The chunks that these edits set, and those that they delete, whatever the base has."""
        kept = self.apply(None)
        touched = self.touched(None)
        if touched is None or kept is None or len(kept) == len(touched):
            return kept, touched if kept is None else None
        coords = touched.coords()
        return kept, ChunkIndex.from_coords(coords[kept.index.find_many(coords) < 0])[0]

    def _add_tables(self, later: Sequence[ArrayChunks | ChunkIndex]) -> None:
        """Put tables on top of all edits so far.

        Neighbours of similar size are joined, so that there are never many tables to look into.
        """
        tables = self._tables_with_single()
        for table in later:
            tables.append(table)
            while len(tables) > 1 and _of_similar_size(tables[-2], tables[-1]):
                tables[-2:] = [_joined(tables[-2], tables[-1])]
        self._tables = tables
        self._single.clear()

    def _tables_with_single(self) -> list[ArrayChunks | ChunkIndex]:
        """All edits as tables, oldest first, without changing anything."""
        if not self._single:
            return list(self._tables)
        if self._as_tables is None:
            self._as_tables = self._single_tables()
        return [*self._tables, *self._as_tables]

    def _single_tables(self) -> list[ArrayChunks | ChunkIndex]:
        written = [(coords, ref) for coords, ref in self._single.items() if ref is not None]
        deleted = [coords for coords, ref in self._single.items() if ref is None]
        tables: list[ArrayChunks | ChunkIndex] = []
        if written:
            coords, refs = zip(*written, strict=True)
            tables.append(ArrayChunks.of(coords, refs, self.rank))
        if deleted:
            tables.append(ChunkIndex.from_tuples(deleted, self.rank))
        return tables


def _of_similar_size(older: ArrayChunks | ChunkIndex, newer: ArrayChunks | ChunkIndex) -> bool:
    return type(older) is type(newer) and len(older) <= 2 * len(newer)


def _joined(
    older: ArrayChunks | ChunkIndex, newer: ArrayChunks | ChunkIndex
) -> ArrayChunks | ChunkIndex:
    if isinstance(older, ArrayChunks) and isinstance(newer, ArrayChunks):
        return ArrayChunks.merge([older, newer])
    assert isinstance(older, ChunkIndex)
    assert isinstance(newer, ChunkIndex)
    return older.union(newer)


def _without(table: ArrayChunks | ChunkIndex, gone: ChunkIndex) -> ArrayChunks | ChunkIndex | None:
    if isinstance(table, ArrayChunks):
        return table.without(gone)
    coords = table.coords()
    kept = coords[gone.find_many(coords) < 0]
    return ChunkIndex.from_coords(kept)[0] if len(kept) else None
