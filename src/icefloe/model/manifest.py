"""Manifests in memory: an index of arrays over blocks of reference columns, loaded when needed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from icefloe.model.chunk_index import Box, ChunkIndex, bounding_box, box_around
from icefloe.model.chunk_refs import ChunkKind, ChunkRef, ChunkRefs
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.located import Located
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_D = TypeVar("_D")

MAX_BLOCK_ROWS = 65_536
"""References per block: one lookup decodes one block."""
_FEW_REFS = 64
_MUCH_LARGER = 8
"""A table this many times as large as another is not sorted again when the other is merged."""
_MANY_ARRAYS = 32
MAX_BLOCK_INLINE_BYTES = 1024 * 1024
"""Inline bytes per block, unless a single chunk has more."""


class ManifestFileInfo(Record, frozen=True, gc=False):
    """A manifest as a snapshot lists it."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int
    set_name: str = ""
    """The manifest set that it was packed for (H-38); empty if `ManifestSplittingConfig` cut it."""
    checksum: int = 0
    """CRC-32C of the file; 0 when none was recorded."""


class ArrayChunks(Record, frozen=True, eq=False):
    """All references of one array (in one manifest, or merged): coordinates and payloads."""

    index: ChunkIndex
    refs: ChunkRefs

    def __len__(self) -> int:
        return len(self.refs)

    @staticmethod
    def of(coords: Sequence[Sequence[int]], refs: Sequence[ChunkRef], rank: int) -> ArrayChunks:
        """Columns of a few references that are Python values; coordinates are unique."""
        if len(refs) <= _FEW_REFS:
            # Without arrays of coordinates: a commit may have thousands of small tables.
            order = sorted(range(len(refs)), key=lambda row: tuple(coords[row]))
            index = ChunkIndex.of_sorted([coords[row] for row in order], rank)
            return ArrayChunks(index, ChunkRefs.of([refs[row] for row in order]))
        table = np.array(list(coords), dtype=np.uint64).reshape(len(refs), rank)
        return ArrayChunks.from_columns(table, ChunkRefs.of(refs))

    @staticmethod
    def from_columns(coords: npt.NDArray[np.integer], refs: ChunkRefs) -> ArrayChunks:
        """Sort unique coordinates (n, rank), n ≥ 1, with their payloads."""
        index, order = ChunkIndex.from_coords(coords)
        return ArrayChunks(index, refs.take(order))

    @staticmethod
    def from_sorted(coords: npt.NDArray[np.integer], refs: ChunkRefs) -> ArrayChunks:
        """Take unique coordinates (n, rank), n ≥ 1, that are in row-major order already."""
        box = bounding_box(coords)
        return ArrayChunks(ChunkIndex.from_sorted(box, box.linearize(coords)), refs)

    @staticmethod
    def merge(parts: Sequence[ArrayChunks]) -> ArrayChunks:
        """One table of several; where coordinates repeat, the later part wins."""
        if len(parts) == 1:
            return parts[0]
        if len(parts) == 2 and len(parts[1]) * _MUCH_LARGER <= len(parts[0]):
            return parts[0].patched(parts[1])
        coords = np.concatenate([part.index.coords() for part in parts])
        refs = ChunkRefs.concat([part.refs for part in parts])
        box = bounding_box(coords)
        linear = box.linearize(coords)
        if (linear[1:] > linear[:-1]).all():
            # Parts that follow each other, as those of an array that grows.
            return ArrayChunks(ChunkIndex.from_sorted(box, linear), refs)
        # The last of equal positions is the first in the reversed order, which np.unique keeps.
        positions, from_end = np.unique(linear[::-1], return_index=True)
        rows = len(linear) - 1 - from_end
        return ArrayChunks(ChunkIndex.from_sorted(box, positions), refs.take(rows))

    def get(self, row: int) -> ChunkRef:
        """One reference as a value."""
        return self.refs.get(row)

    def patched(self, later: ArrayChunks) -> ArrayChunks:
        """This table with the rows of a small one, which win; nothing is sorted again."""
        index = self.index
        box = box_around(index.box, later.index.box)
        theirs = later.index.positions_in(box)
        if index.is_dense and box == index.box:
            rows = theirs.astype(np.intp)
            refs = self.refs.patched(later.refs, rows, np.zeros(len(rows), dtype=np.bool_))
            return ArrayChunks(index, refs)
        mine = index.positions_in(box)
        rows = np.searchsorted(mine, theirs)
        is_new = mine[np.minimum(rows, len(mine) - 1)] != theirs
        refs = self.refs.patched(later.refs, rows, is_new)
        positions = np.insert(mine, rows[is_new], theirs[is_new])
        return ArrayChunks(ChunkIndex.from_sorted(box, positions), refs)

    def without(self, gone: ChunkIndex) -> ArrayChunks | None:
        """The references whose coordinates are not in `gone`; None if none is left."""
        if len(gone) < len(self):
            rows = self.index.find_many(gone.coords())
            rows = rows[rows >= 0]
        else:
            rows = np.flatnonzero(gone.find_many(self.index.coords()) >= 0)
        if len(rows) == 0:
            return self
        if len(rows) == len(self):
            return None
        kept = np.delete(np.arange(len(self)), rows)
        positions = self.index.positions()[kept]
        # Without some rows, the box may be smaller.
        coords = self.index.box.delinearize(positions)
        return ArrayChunks.from_sorted(coords, self.refs.take(kept))


class ManifestArray(Record, frozen=True):
    """An array's part of a manifest: rows `[row, row + count)` of the manifest's columns."""

    node_id: NodeId
    extents: Box
    row: int
    count: int
    is_dense: bool
    """Whether the references fill the bounding box, so that no positions are stored."""


class _ArrayLists(NamedTuple):
    """The columns of `ManifestArrays` as lists."""

    places: dict[bytes, int]
    corners: list[int]
    lower: list[int]
    shapes: list[int]
    rows: list[int]


class ManifestArrays(Mapping[NodeId, ManifestArray]):
    """The arrays of a manifest, in order of their ids; each is made when it is first asked for.

    Columns, so that thousands of small arrays in one manifest cost little.
    """

    __slots__ = (
        "_corners",
        "_lists",
        "_made",
        "_numbers",
        "_sizes",
        "lower",
        "node_ids",
        "rows",
        "shapes",
    )

    def __init__(
        self,
        node_ids: bytes,
        ranks: Sequence[int] | npt.NDArray[np.integer],
        counts: Sequence[int] | npt.NDArray[np.integer],
        lower: Sequence[int] | npt.NDArray[np.integer],
        shapes: Sequence[int] | npt.NDArray[np.integer],
    ) -> None:
        """Take ascending ids end to end, and for each array its rank, count and box.

        `lower` and `shapes` hold the boxes of all arrays end to end; no box may have more than
        MAX_BOX_POSITIONS positions.
        """
        self.node_ids = node_ids
        """All ids end to end."""
        self.lower = np.asarray(lower, dtype=np.uint64)
        self.shapes = np.asarray(shapes, dtype=np.uint64)
        self.rows = _bounds(counts)
        """First row of each array, and the number of rows at the end."""
        self._corners = _bounds(ranks)
        self._numbers: npt.NDArray[np.uint64] | None = None
        self._sizes: npt.NDArray[np.uint64] | None = None
        self._made: dict[NodeId, ManifestArray] = {}
        self._lists: _ArrayLists | None = None

    @classmethod
    def of(cls, parts: Sequence[tuple[NodeId, ChunkIndex]]) -> ManifestArrays:
        """The arrays of a manifest that is being made, by ascending id."""
        boxes = [index.box for _, index in parts]
        return cls(
            b"".join([node_id for node_id, _ in parts]),
            [box.rank for box in boxes],
            [len(index) for _, index in parts],
            [c for box in boxes for c in box.lower],
            [c for box in boxes for c in box.shape],
        )

    @property
    def numbers(self) -> npt.NDArray[np.uint64]:
        """The ids as big-endian numbers, which sort in the same order."""
        if self._numbers is None:
            self._numbers = np.frombuffer(self.node_ids, dtype=">u8").astype(np.uint64)
        return self._numbers

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """Number of positions of each array's extents."""
        if self._sizes is None:
            self._sizes = _products(self.shapes, self._corners)
        return self._sizes

    @property
    def all_dense(self) -> bool:
        """Whether every array fills its extents, so that no positions are stored."""
        if len(self.rows) == 2:
            return bool(self.sizes[0] == self.rows[1])
        return bool((self.sizes == self.counts.view(np.uint64)).all())

    @property
    def is_ascending(self) -> bool:
        """Whether the ids are unique and in order, as lookups need."""
        return len(self) <= 1 or bool((self.numbers[1:] > self.numbers[:-1]).all())

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """Rank of each array."""
        return self._corners[1:] - self._corners[:-1]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of references of each array."""
        return self.rows[1:] - self.rows[:-1]

    @property
    def nbytes(self) -> int:
        """Memory that the columns take, for caches."""
        return 200 + 48 * len(self) + self.lower.nbytes + self.shapes.nbytes

    def __len__(self) -> int:
        return len(self.node_ids) // NodeId.SIZE

    def __iter__(self) -> Iterator[NodeId]:
        return (NodeId(number.to_bytes(8, "big")) for number in self.numbers.tolist())

    def __getitem__(self, node_id: NodeId) -> ManifestArray:
        array = self.get(node_id)
        if array is None:
            raise KeyError(node_id)
        return array

    def __contains__(self, node_id: object) -> bool:
        return isinstance(node_id, NodeId) and self.get(node_id) is not None

    @overload
    def get(self, node_id: NodeId, /) -> ManifestArray | None: ...
    @overload
    def get(self, node_id: NodeId, /, default: ManifestArray | _D) -> ManifestArray | _D: ...
    def get(self, node_id: NodeId, default: object = None) -> object:
        """The array with an id, or the default."""
        made = self._made.get(node_id)
        if made is not None:
            return made
        at = 0
        if self._lists is not None or len(self._made) > _MANY_ARRAYS:
            at = self._as_lists().places.get(node_id, -1)
            if at < 0:
                return default
        elif self.node_ids != node_id:
            number = np.uint64(int.from_bytes(node_id, "big"))
            at = int(np.searchsorted(self.numbers, number, side="right")) - 1
            if at < 0 or self.numbers[at] != number:
                return default
        made = self._made[node_id] = self._make(node_id, at)
        return made

    def of_rank(self, node_id: NodeId, rank: int) -> ManifestArray | None:
        """The array with an id and a rank.

        Old manifests hold, by an error of their time, chunks of some arrays also under the id of
        an array of another rank.
        """
        array = self.get(node_id)
        if array is None or array.extents.rank == rank:
            return array
        number = np.uint64(int.from_bytes(node_id, "big"))
        first = int(np.searchsorted(self.numbers, number))
        last = int(np.searchsorted(self.numbers, number, side="right"))
        for at in range(first, last):
            if self._corners[at + 1] - self._corners[at] == rank:
                return self._make(node_id, at)
        return None

    def _as_lists(self) -> _ArrayLists:
        """The columns as Python values, which are quicker to iterate over."""
        lists = self._lists
        if lists is None:
            ids, size = self.node_ids, NodeId.SIZE
            lists = self._lists = _ArrayLists(
                places={ids[at * size : (at + 1) * size]: at for at in range(len(self))},
                corners=self._corners.tolist(),
                lower=self.lower.tolist(),
                shapes=self.shapes.tolist(),
                rows=self.rows.tolist(),
            )
        return lists

    def _make(self, node_id: NodeId, at: int) -> ManifestArray:
        if self._lists is not None:
            _, corners, lowers, extents, rows = self._lists
            lower = lowers[corners[at] : corners[at + 1]]
            shape = extents[corners[at] : corners[at + 1]]
            row, end = rows[at], rows[at + 1]
        else:
            corner = slice(self._corners[at], self._corners[at + 1])
            lower, shape = self.lower[corner].tolist(), self.shapes[corner].tolist()
            row, end = self.rows[at : at + 2].tolist()
        return ManifestArray(
            node_id=node_id,
            extents=Box(tuple(lower), tuple(map(operator.add, lower, shape))),
            row=row,
            count=end - row,
            is_dense=end - row == prod(shape),
        )


def _bounds(lengths: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where contiguous parts of some lengths start, and where the last one ends."""
    if isinstance(lengths, np.ndarray):
        bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
        lengths.cumsum(out=bounds[1:])
        return bounds
    return np.array(list(accumulate(lengths, initial=0)), dtype=np.int64)


def _products(
    values: npt.NDArray[np.uint64], bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Product of each slice of `values`; 1 for an empty slice."""
    if len(bounds) == 2:
        return np.array([prod(values.tolist())], dtype=np.uint64)
    ranks = bounds[1:] - bounds[:-1]
    products = np.ones(len(ranks), dtype=np.uint64)
    for axis in range(int(ranks.max()) if len(ranks) else 0):
        deep = np.flatnonzero(ranks > axis)
        products[deep] *= values[bounds[deep] + axis]
    return products


class ManifestBlock:
    """Some consecutive rows of a manifest, decoded."""

    __slots__ = ("_refs", "positions")

    def __init__(self, positions: npt.NDArray[np.uint64] | None, refs: ChunkRefs | None) -> None:
        """Take the columns of the rows."""
        self.positions = positions
        """Position of each row in its array's extents; meaningless for rows of dense arrays, and
        None if the block has no others."""
        self._refs = refs

    @property
    def refs(self) -> ChunkRefs:
        """All references."""
        assert self._refs is not None
        return self._refs

    @property
    def nbytes(self) -> int:
        """Memory that the block takes, for caches."""
        return self.refs.nbytes + (0 if self.positions is None else self.positions.nbytes)

    def get(self, row: int) -> ChunkRef:
        """One reference."""
        return self.refs.get(row)

    def take(self, rows: npt.NDArray[np.integer]) -> ChunkRefs:
        """The references of chosen rows."""
        return self.refs.take(rows)


class LazyBlock(ManifestBlock):
    """Many rows of a manifest that is read whole: few of them are decoded alone, or all at once.

    Holds the bytes of the file until all rows are decoded.
    """

    __slots__ = ("_decode", "_decode_once", "_looked_up", "_source_bytes", "_windows", "count")

    _WINDOW = 1024
    _FEW = 16
    """One in so many rows is few."""

    def __init__(
        self,
        positions: npt.NDArray[np.uint64] | None,
        count: int,
        decode: Callable[[npt.NDArray[np.integer] | None], ChunkRefs],
        source_bytes: int,
    ) -> None:
        """Take what decodes chosen rows, or all if it gets None."""
        super().__init__(positions, None)
        self.count = count
        self._decode: Callable[[npt.NDArray[np.integer] | None], ChunkRefs] | None = decode
        self._source_bytes = source_bytes
        self._windows: dict[int, ChunkRefs] = {}
        self._looked_up = 0
        self._decode_once: Callable[[LazyBlock], ChunkRefs] = LazyBlock.decode_all

    def decode_through(self, decode_once: Callable[[LazyBlock], ChunkRefs]) -> None:
        """Let a cache call `decode_all`, which changes `nbytes`, for all threads that need it."""
        self._decode_once = decode_once

    @property
    def nbytes(self) -> int:
        """Memory that the block takes, for caches."""
        refs = self._source_bytes if self._refs is None else self._refs.nbytes
        return refs + (0 if self.positions is None else self.positions.nbytes)

    @property
    def refs(self) -> ChunkRefs:
        """All references."""
        refs = self._refs
        return self._decode_once(self) if refs is None else refs

    def decode_all(self) -> ChunkRefs:
        """Decode all references, unless they are."""
        decode = self._decode
        if self._refs is None and decode is not None:
            self._refs = decode(None)
            self._windows = {}
            self._decode = None
        refs = self._refs
        assert refs is not None
        return refs

    def get(self, row: int) -> ChunkRef:
        """One reference; its neighbours are decoded with it."""
        number = row // self._WINDOW
        window = self._windows.get(number)
        if window is None:
            first = number * self._WINDOW
            decode = self._few(self._WINDOW)
            if decode is None:
                return self.refs.get(row)
            window = decode(np.arange(first, min(first + self._WINDOW, self.count)))
            self._windows[number] = window
        return window.get(row - number * self._WINDOW)

    def take(self, rows: npt.NDArray[np.integer]) -> ChunkRefs:
        """The references of chosen rows."""
        decode = self._few(len(rows))
        return self.refs.take(rows) if decode is None or len(rows) == 0 else decode(rows)

    def _few(self, rows: int) -> Callable[[npt.NDArray[np.integer] | None], ChunkRefs] | None:
        """What decodes chosen rows, as long as they and those before are few."""
        self._looked_up += rows
        return self._decode if self._looked_up * self._FEW <= self.count else None


class ManifestIndex(Record, frozen=True, eq=False):
    """The index of a manifest: enough to find the one block that a lookup needs."""

    arrays: ManifestArrays
    block_rows: npt.NDArray[np.int64]
    """First row of each block, and the number of rows at the end."""
    block_positions: npt.NDArray[np.uint64]
    """Position of each block's first row in its array's extents."""
    block_spans: npt.NDArray[np.int64]
    """Start and length in bytes of each block in the file: shape (blocks, 2)."""
    resident: tuple[ManifestBlock, ...] | None = None
    """The blocks themselves, in formats that cannot be read in parts."""

    @property
    def nbytes(self) -> int:
        """Memory that the index takes, for caches."""
        blocks = sum(block.nbytes for block in self.resident or ())
        return blocks + self.arrays.nbytes + 40 * len(self.block_rows)


class Manifest:
    """References of one or more arrays; blocks are loaded when a lookup needs them."""

    __slots__ = ("_load_block", "index")

    def __init__(self, index: ManifestIndex, load_block: Callable[[int], ManifestBlock]) -> None:
        """Take an index and how to get the block of a number."""
        self.index = index
        self._load_block = load_block

    @property
    def num_refs(self) -> int:
        """Number of references of all arrays."""
        return int(self.index.block_rows[-1])

    def load_all(self) -> None:
        """Load and decode every block, so that caches have them; raises FormatError."""
        for block in self.blocks():
            _ = block.refs  # of a lazy block, nothing is decoded before

    def blocks(self) -> Iterator[ManifestBlock]:
        """All rows of all arrays, block by block."""
        return map(self._load_block, range(len(self.index.block_rows) - 1))

    def find(self, node_id: NodeId, coords: Sequence[int]) -> ChunkRef | None:
        """One reference."""
        array = self.index.arrays.of_rank(node_id, len(coords))
        if array is None or not array.extents.contains(coords):
            return None
        position = array.extents.position(coords)
        if array.is_dense:
            row = array.row + position
            number = self._block_of(row)
            return self._load_block(number).get(row - int(self.index.block_rows[number]))
        number = self._block_at(array, position)
        block = self._load_block(number)
        rows = self._rows_in_block(array, number)
        assert block.positions is not None
        positions = block.positions[rows.start : rows.stop]
        found = int(np.searchsorted(positions, np.uint64(position)))
        if found == len(positions) or positions[found] != position:
            return None
        return block.get(rows.start + found)

    def find_many(
        self,
        node_id: NodeId,
        coords: npt.NDArray[np.uint64],
        load_all: Callable[[Callable[[int], ManifestBlock], list[int]], list[ManifestBlock]]
        | None = None,
    ) -> list[Located]:
        """The references of many chunks (n, rank), by the block that they are in.

        Args:
            node_id: The array.
            coords: Unique coordinates; those that the manifest does not have are left out.
            load_all: How to load several blocks; one after the other if not given.
        """
        array = self.index.arrays.of_rank(node_id, coords.shape[1])
        if array is None:
            return []
        inside = array.extents.inside(coords)
        positions = array.extents.linearize(
            coords if len(inside) == len(coords) else coords[inside]
        )
        if array.is_dense:
            wanted = positions.astype(np.int64) + array.row
            numbers = np.searchsorted(self.index.block_rows, wanted, side="right") - 1
        else:
            first, last = self._block_of(array.row), self._block_of(array.row + array.count - 1)
            starts = self.index.block_positions[first + 1 : last + 1]
            numbers = np.searchsorted(starts, positions, side="right") + first
        parts = list(_groups(numbers))
        todo = [number for number, _ in parts]
        blocks = (
            list(map(self._load_block, todo))
            if load_all is None
            else load_all(self._load_block, todo)
        )
        located = []
        for (number, members), block in zip(parts, blocks, strict=True):
            at = self._rows_of(array, number, block, positions[members])
            hits = np.flatnonzero(at >= 0)
            if len(hits) == len(at):
                located.append(Located(inside[members], block.take(at)))
            elif len(hits):
                located.append(Located(inside[members][hits], block.take(at[hits])))
        return located

    def _rows_of(
        self,
        array: ManifestArray,
        number: int,
        block: ManifestBlock,
        positions: npt.NDArray[np.uint64],
    ) -> npt.NDArray[np.int64]:
        """Rows in a block of an array's positions, -1 where it has none."""
        if array.is_dense:
            shift = array.row - int(self.index.block_rows[number])
            return positions.astype(np.int64) + shift
        rows = self._rows_in_block(array, number)
        assert block.positions is not None
        here = block.positions[rows.start : rows.stop]
        at = np.searchsorted(here, positions)
        at[at == len(here)] = 0
        return np.where(here[at] == positions, at + rows.start, -1)

    def block_for(self, node_id: NodeId, coords: Sequence[int]) -> int | None:
        """The number of the block that `find` needs; None if it needs none."""
        array = self.index.arrays.of_rank(node_id, len(coords))
        if array is None or not array.extents.contains(coords):
            return None
        position = array.extents.position(coords)
        if array.is_dense:
            return self._block_of(array.row + position)
        return self._block_at(array, position)

    def array(self, node_id: NodeId, rank: int | None = None) -> ArrayChunks | None:
        """All references of an array, as columns.

        Give the array's rank where the manifest may be an old one: see `ManifestArrays.of_rank`.
        """
        arrays = self.index.arrays
        array = arrays.get(node_id) if rank is None else arrays.of_rank(node_id, rank)
        if array is None:
            return None
        first, last = self._block_of(array.row), self._block_of(array.row + array.count - 1)
        positions, refs = [], []
        for number in range(first, last + 1):
            block = self._load_block(number)
            rows = self._rows_in_block(array, number)
            refs.append(block.refs.slice(rows.start, rows.stop))
            if not array.is_dense:
                assert block.positions is not None
                positions.append(block.positions[rows.start : rows.stop])
        linear = None if array.is_dense else np.concatenate(positions)
        columns = refs[0] if len(refs) == 1 else ChunkRefs.concat(refs)
        return ArrayChunks(ChunkIndex(array.extents, linear), columns)

    def columns(self) -> tuple[npt.NDArray[np.uint64] | None, ChunkRefs]:
        """All rows: their positions, if any array is sparse, and their references."""
        blocks = [self._load_block(number) for number in range(len(self.index.block_rows) - 1)]
        refs = ChunkRefs.concat([block.refs for block in blocks])
        if all(block.positions is None for block in blocks):
            return None, refs
        return np.concatenate(
            [
                np.zeros(len(block.refs), dtype=np.uint64)
                if block.positions is None
                else block.positions
                for block in blocks
            ]
        ), refs

    def _block_of(self, row: int) -> int:
        if len(self.index.block_rows) == 2:
            return 0
        return int(np.searchsorted(self.index.block_rows, row, side="right")) - 1

    def _block_at(self, array: ManifestArray, position: int) -> int:
        """The block of a sparse array that holds a position, if any does."""
        first, last = self._block_of(array.row), self._block_of(array.row + array.count - 1)
        starts = self.index.block_positions[first + 1 : last + 1]
        return first + int(np.searchsorted(starts, np.uint64(position), side="right"))

    def _rows_in_block(self, array: ManifestArray, number: int) -> range:
        """The array's rows in a block, counted from the block's first row."""
        start, stop = int(self.index.block_rows[number]), int(self.index.block_rows[number + 1])
        return range(max(array.row, start) - start, min(array.row + array.count, stop) - start)


def _groups(
    numbers: npt.NDArray[np.integer],
) -> Iterator[tuple[int, slice | npt.NDArray[np.intp]]]:
    """Each distinct number, ascending, with its positions."""
    if len(numbers) == 0:
        return
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None)
        return
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for members in np.split(order, cuts):
        yield int(numbers[members[0]]), members


def lay_out(
    parts: Sequence[tuple[NodeId, ArrayChunks]],
) -> tuple[ManifestIndex, list[ManifestBlock]]:
    """Arrange arrays as a manifest: rows by (node, position), cut into blocks.

    The spans in the file are left at zero; a codec that has files fills them in.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    indexes = [chunks.index for _, chunks in ordered]
    refs = ChunkRefs.concat([chunks.refs for _, chunks in ordered]) if ordered else _NO_REFS
    arrays = ManifestArrays.of([(node_id, chunks.index) for node_id, chunks in ordered])
    return arrange(arrays, refs, _positions(indexes))


def arrange(
    arrays: ManifestArrays, refs: ChunkRefs, positions: npt.NDArray[np.uint64] | None
) -> tuple[ManifestIndex, list[ManifestBlock]]:
    """Cut the rows of a manifest into blocks."""
    if refs.has_packs:
        refs = refs.with_distinct_files()
    if refs.is_wasteful:
        # What was replaced, commit after commit, must not pile up in the dictionaries.
        refs = refs.compact()
    bounds = _block_bounds(refs)
    blocks = []
    firsts = np.zeros(len(bounds) - 1, dtype=np.uint64)
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        sliced = None if positions is None else positions[start:stop]
        if sliced is not None:
            firsts[number] = sliced[0]
        blocks.append(ManifestBlock(sliced, refs.slice(start, stop)))
    spans = np.zeros((len(blocks), 2), dtype=np.int64)
    return ManifestIndex(
        arrays=arrays, block_rows=bounds, block_positions=firsts, block_spans=spans
    ), blocks


_NO_REFS = ChunkRefs.empty()


def _block_bounds(refs: ChunkRefs) -> npt.NDArray[np.int64]:
    """First row of each block, and the number of rows at the end."""
    count = len(refs)
    if count <= 1:
        return np.array([0, count][: count + 1], dtype=np.int64)
    if not refs.inline:
        return np.append(np.arange(0, count, MAX_BLOCK_ROWS, dtype=np.int64), np.int64(count))
    inline = np.where(refs.kinds == ChunkKind.INLINE, refs.lengths, np.uint64(0))
    filled = np.cumsum(inline)
    bounds = [0]
    while bounds[-1] < count:
        start = bounds[-1]
        limit = int(filled[start] - inline[start]) + MAX_BLOCK_INLINE_BYTES
        fitting = int(np.searchsorted(filled, np.uint64(limit), side="right"))
        bounds.append(min(max(fitting, start + 1), start + MAX_BLOCK_ROWS))
    return np.array(bounds, dtype=np.int64)


def _positions(indexes: Sequence[ChunkIndex]) -> npt.NDArray[np.uint64] | None:
    """Positions of all rows, zeros for dense arrays; None if all arrays are dense."""
    if all(index.is_dense for index in indexes):
        return None
    columns = [
        np.zeros(len(index), dtype=np.uint64) if index.linear is None else index.linear
        for index in indexes
    ]
    return np.concatenate(columns)
