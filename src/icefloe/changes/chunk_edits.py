"""Edits of one array's chunk references, and how they change a table of references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from icefloe.changes.pending import PendingChunks
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkRefs, PendingRef
from icefloe.model.located import Located
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.chunk_refs import ChunkRef


_UNDECIDED: Any = object()
_FEW_EDITS = 64

Table: TypeAlias = "ArrayChunks | ChunkIndex | PendingChunks"
"""Edits as columns. An index without references means deleted chunks."""


class Waiting(NamedTuple):
    """Chunks of one table that are not packed yet, without those overwritten since."""

    table: PendingChunks
    rows: npt.NDArray[np.intp]

    @property
    def nbytes(self) -> int:
        """Number of bytes to write."""
        return int(self.table.lengths[self.rows].sum())


class ChunkEdits:
    """Chunks that a session set or deleted in one array, in the order in which it did.

    Single edits are a dictionary; bulk edits are columns. A bulk edit takes along the single ones
    before it, so that later edits always win. Chunks that wait for a pack are edits like others:
    once they are written, a table of their locations replaces the one that waited.
    """

    __slots__ = ("_as_tables", "_single", "_tables", "cleared", "rank")

    def __init__(self, rank: int) -> None:
        """No edits yet, of an array of `rank` dimensions."""
        self.rank = rank
        self.cleared = False
        """Whether all chunks of the base were deleted before these edits."""
        self._single: dict[tuple[int, ...], ChunkRef | None] = {}
        # Later tables win.
        self._tables: list[Table] = []
        # Single edits as tables, from when they were last asked for; a commit asks twice.
        self._as_tables: list[Table] | None = None

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

    def set_many(self, chunks: ArrayChunks | PendingChunks) -> None:
        """Set many chunks at once."""
        self._add_tables([chunks])

    def delete_many(self, gone: ChunkIndex) -> None:
        """Delete many chunks at once."""
        self._add_tables([gone])

    def shifted(self, axis: int, start: int, by: int) -> ChunkEdits:
        """The same edits, those from `start` on moved along a dimension; none may be pending."""
        assert not self.cleared
        twin = ChunkEdits(self.rank)
        for table in self._tables_with_single():
            coords = _index_of(table).coords()
            # Moved chunks are after the others along the dimension, but not in row-major order.
            coords[coords[:, axis] >= start, axis] += np.uint64(by)
            moved, order = ChunkIndex.from_coords(coords)
            if isinstance(table, ChunkIndex):
                twin._tables.append(moved)
            else:
                assert isinstance(table, ArrayChunks)
                twin._tables.append(ArrayChunks(moved, table.refs.take(order)))
        return twin

    def written(self) -> Iterator[ChunkRefs]:
        """References of chunks that do not wait for a pack, and of some that they replaced."""
        yield from (table.refs for table in self._tables if isinstance(table, ArrayChunks))
        waiting_or_gone = (PendingRef, type(None))
        single = [ref for ref in self._single.values() if not isinstance(ref, waiting_or_gone)]
        if single:
            yield ChunkRefs.of(single)

    # --- chunks that wait for their pack

    def pending_bytes(self) -> int:
        """Number of bytes that wait for a pack."""
        single = self._single.values()
        alone = sum(len(ref.data) for ref in single if isinstance(ref, PendingRef))
        return alone + sum(waiting.nbytes for waiting in self._waiting())

    def take_pending(self) -> list[Waiting]:
        """The chunks that wait for a pack, to be written; they can be read and changed meanwhile.

        Includes chunks that another caller took and has not settled: only one of them settles them.
        """
        self._seal()
        taken = self._waiting()
        for waiting in taken:
            waiting.table.is_taken = True
        return taken

    def settle(self, table: PendingChunks, written: Sequence[ArrayChunks | PendingChunks]) -> None:
        """Record where the chunks of a table are now, unless the table was dropped meanwhile."""
        tables: list[Table] = []
        for each in self._tables:
            if each is table:
                for part in written:
                    _add_joined(tables, part)
            else:
                tables.append(each)
        # One assignment: readers take no lock.
        self._tables = tables

    def compact_pending(self) -> None:
        """Let go of the bytes of chunks that were overwritten while they waited."""
        for waiting in self._waiting():
            if len(waiting.rows) == 0:
                self.settle(waiting.table, ())
            elif not waiting.table.is_taken:
                self.settle(waiting.table, (waiting.table.take(waiting.rows).compact(),))

    def _waiting(self) -> list[Waiting]:
        """Tables that wait, oldest first, with the rows that no later edit replaced."""
        if not any(isinstance(table, PendingChunks) for table in self._tables):
            return []
        waiting: list[Waiting] = []
        later: list[ChunkIndex] = []
        if self._single:
            later.append(ChunkIndex.from_tuples(list(self._single), self.rank))
        for table in reversed(self._tables):
            if isinstance(table, PendingChunks):
                waiting.append(Waiting(table, _left_over(table, later)))
            later.append(_index_of(table))
        return waiting[::-1]

    def _seal(self) -> None:
        """Make a table of single chunks that wait."""
        waiting = [(c, ref) for c, ref in self._single.items() if isinstance(ref, PendingRef)]
        if waiting:
            coords, refs = zip(*waiting, strict=True)
            # First found in both places and then in one: readers take no lock.
            self._tables = [*self._tables, PendingChunks.of(coords, refs, self.rank)]
            self._single = {
                c: ref for c, ref in self._single.items() if not isinstance(ref, PendingRef)
            }
            self._as_tables = None

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

        Readers take no lock: each step reads one value, which writers replace as a whole.
        """
        ref = self._single.get(coords, _UNDECIDED)
        if ref is not _UNDECIDED:
            return True, ref
        for table in reversed(tuple(self._tables)):
            if isinstance(table, ChunkIndex):
                if table.find(coords) >= 0:
                    return True, None
            elif (row := table.index.find(coords)) >= 0:
                return True, table.get(row)
        return self.cleared, None

    def find_many(
        self, coords: npt.NDArray[np.uint64]
    ) -> tuple[list[Located], npt.NDArray[np.intp]]:
        """References of many chunks (n, rank), and the rows that the edits do not decide about.

        Like `get`, it takes no lock.
        """
        located: list[Located] = []
        left = np.arange(len(coords))
        single = self._single
        if single:
            left = self._find_single(list(single.items()), coords, located)
        for table in reversed(tuple(self._tables)):
            if len(left) == 0:
                break
            at = _index_of(table).find_many(coords if len(left) == len(coords) else coords[left])
            hits = np.flatnonzero(at >= 0)
            if isinstance(table, PendingChunks) and len(hits):
                located += table.located(left[hits], at[hits])
            elif isinstance(table, ArrayChunks) and len(hits):
                located.append(Located(left[hits], table.refs.take(at[hits])))
            left = left[at < 0]
        return located, left[:0] if self.cleared else left

    def _find_single(
        self,
        single: Sequence[tuple[tuple[int, ...], ChunkRef | None]],
        coords: npt.NDArray[np.uint64],
        located: list[Located],
    ) -> npt.NDArray[np.intp]:
        """Find what single edits decide about; returns the other rows."""
        index, order = ChunkIndex.from_coords(
            np.array([place for place, _ in single], dtype=np.uint64).reshape(len(single), -1)
        )
        at = index.find_many(coords)
        hits = np.flatnonzero(at >= 0)
        refs = [single[number][1] for number in order[at[hits]].tolist()]
        present = [number for number, ref in enumerate(refs) if ref is not None]
        if present:
            columns = ChunkRefs.of([ref for ref in refs if ref is not None])
            located.append(Located(hits[present], columns))
        return np.flatnonzero(at < 0)

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
        parts = [] if self.cleared or old is None else [old]
        for table in self._tables_with_single():
            if isinstance(table, ArrayChunks):
                parts.append(table)
            elif isinstance(table, PendingChunks):
                parts.append(table.as_inline())
            elif parts:
                left = ArrayChunks.merge(parts).without(table)
                parts = [] if left is None else [left]
        return ArrayChunks.merge(parts) if parts else None

    def touched(self, old: ArrayChunks | None) -> ChunkIndex | None:
        """Coordinates of all chunks that were set or deleted; None if there are none."""
        indexes = [_index_of(table) for table in self._tables_with_single()]
        if self.cleared and old is not None:
            indexes.append(old.index)
        return indexes[0].union(*indexes[1:]) if indexes else None

    def touched_by_both(self, other: ChunkEdits) -> ChunkIndex | None:
        """Coordinates of chunks that others edited, too; None if there are none.

        Table by table: forks that are merged one by one mostly share nothing, and one of the two
        sides has the edits of all forks before.
        """
        theirs = [_index_of(table) for table in other._tables_with_single()]
        touched = [
            ChunkIndex.from_coords(common)[0]
            for mine in map(_index_of, self._tables_with_single())
            for index in theirs
            if len(common := mine.intersection(index))
        ]
        return touched[0].union(*touched[1:]) if touched else None

    def meet(self, index: ChunkIndex) -> bool:
        """Whether one of some chunks was edited."""
        mine = map(_index_of, self._tables_with_single())
        return any(len(each.intersection(index)) for each in mine)

    def within(self, index: ChunkIndex) -> ChunkEdits:
        """The edits of some chunks only, without what happened to all chunks before."""
        twin = ChunkEdits(self.rank)
        coords = index.coords()
        for table in self._tables_with_single():
            rows = _index_of(table).find_many(coords)
            rows = np.sort(rows[rows >= 0])
            if len(rows):
                twin._tables.append(_rows_of(table, rows))
        return twin

    def few_written(self) -> list[tuple[int, ...]]:
        """The coordinates of single edits in order, if they are few and delete nothing."""
        if not 0 < len(self._single) <= _FEW_EDITS or self._as_tables is not None:
            return []
        values = self._single.values()
        if None in values or any(isinstance(ref, PendingRef) for ref in values):
            return []
        return sorted(self._single)

    def chosen(self, coords: Sequence[tuple[int, ...]]) -> Iterator[ChunkRef]:
        """The references of `few_written`."""
        return (ref for each in coords if (ref := self._single[each]) is not None)

    def give_table(self, table: ArrayChunks) -> None:
        """Take the table that was made of all single edits."""
        self._as_tables = [table]

    def own(self) -> tuple[ArrayChunks | None, ChunkIndex | None]:
        """The chunks that these edits set, and those that they delete, whatever the base has."""
        chunks = self.apply(None)
        touched = self.touched(None)
        if touched is None or chunks is None or len(chunks) == len(touched):
            return chunks, touched if chunks is None else None
        coords = touched.coords()
        return chunks, ChunkIndex.from_coords(coords[chunks.index.find_many(coords) < 0])[0]

    def _add_tables(self, later: Sequence[Table]) -> None:
        """Put tables on top of all edits so far."""
        tables = self._tables_with_single()
        for table in later:
            _add_joined(tables, table)
        self._tables = tables
        self._single.clear()

    def _tables_with_single(self) -> list[Table]:
        """All edits as tables, oldest first, without changing anything."""
        if not self._single:
            return list(self._tables)
        if self._as_tables is None:
            self._as_tables = self._single_tables()
        return [*self._tables, *self._as_tables]

    def _single_tables(self) -> list[Table]:
        written: list[tuple[tuple[int, ...], ChunkRef]] = []
        waiting: list[tuple[tuple[int, ...], PendingRef]] = []
        deleted: list[tuple[int, ...]] = []
        for place, ref in self._single.items():
            if ref is None:
                deleted.append(place)
            elif isinstance(ref, PendingRef):
                waiting.append((place, ref))
            else:
                written.append((place, ref))
        tables: list[Table] = []
        if written:
            coords, refs = zip(*written, strict=True)
            tables.append(ArrayChunks.of(coords, refs, self.rank))
        if waiting:
            places, chunks = zip(*waiting, strict=True)
            tables.append(PendingChunks.of(places, chunks, self.rank))
        if deleted:
            tables.append(ChunkIndex.from_tuples(deleted, self.rank))
        return tables


def prepare_tables(all_edits: Iterable[ChunkEdits]) -> None:
    """Precompute the tables of the single edits of many arrays in one pass.

    A commit may have thousands of small arrays, and arrays of columns are costly to make.
    """
    todo = [(edits, coords) for edits in all_edits if (coords := edits.few_written())]
    columns = ChunkRefs.of([ref for edits, coords in todo for ref in edits.chosen(coords)])
    end = 0
    for edits, coords in todo:
        start, end = end, end + len(coords)
        index = ChunkIndex.of_sorted(coords, edits.rank)
        edits.give_table(ArrayChunks(index, columns.slice(start, end)))


def _left_over(table: PendingChunks, later: Sequence[ChunkIndex]) -> npt.NDArray[np.intp]:
    """Rows of a table that no later edit replaced."""
    near = [index for index in later if index.box.intersects(table.index.box)]
    if not near:
        return np.arange(len(table))
    coords = table.index.coords()
    kept = np.ones(len(table), dtype=np.bool_)
    for index in near:
        kept &= index.find_many(coords) < 0
    return np.flatnonzero(kept)


def _index_of(table: Table) -> ChunkIndex:
    return table if isinstance(table, ChunkIndex) else table.index


def _add_joined(tables: list[Table], table: Table) -> None:
    """Put a table on top of others.

    Neighbours of similar size are joined, so that there are never many tables to look into.
    """
    tables.append(table)
    while len(tables) > 1:
        older, newer = tables[-2:]
        if len(older) > 2 * len(newer):
            return
        if isinstance(older, ArrayChunks) and isinstance(newer, ArrayChunks):
            joined: Table = ArrayChunks.merge([older, newer])
        elif isinstance(older, ChunkIndex) and isinstance(newer, ChunkIndex):
            joined = older.union(newer)
        elif isinstance(older, PendingChunks) and isinstance(newer, PendingChunks):
            if older.is_taken or newer.is_taken:
                return
            joined = PendingChunks.merge(older, newer)
        else:
            return
        tables[-2:] = [joined]


def _rows_of(table: Table, rows: npt.NDArray[np.intp]) -> Table:
    """At least one row of a table, in ascending order."""
    if isinstance(table, PendingChunks):
        return table.take(rows)
    index = _index_of(table)
    coords = index.box.delinearize(index.positions()[rows])
    if isinstance(table, ChunkIndex):
        return ChunkIndex.from_coords(coords)[0]
    return ArrayChunks.from_sorted(coords, table.refs.take(rows))


def _without(table: Table, gone: ChunkIndex) -> Table | None:
    if not isinstance(table, ChunkIndex):
        return table.without(gone)
    coords = table.coords()
    kept = coords[gone.find_many(coords) < 0]
    return ChunkIndex.from_coords(kept)[0] if len(kept) else None
