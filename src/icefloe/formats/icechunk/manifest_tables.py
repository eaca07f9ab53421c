"""Reading manifests: chunk references as columns, whatever the layout of the writer's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.icechunk.location_frames import decompress_locations
from icefloe.formats.icechunk.tables import (
    Body,
    Slices,
    Vectors,
    as_words,
)
from icefloe.formats.nodes import MAX_RANK
from icefloe.model.chunk_index import bounding_box
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, StringColumn
from icefloe.model.ids import ChunkFileId, NodeId
from icefloe.model.manifest import LazyBlock, ManifestArrays, ManifestBlock, ManifestIndex

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.formats.icechunk.tables import Tables
    from icefloe.model.chunk_index import Box

_NATIVE, _VIRTUAL, _INLINE = map(int, (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE))
_EAGER_ROWS = 4096
_COMPARED_ROWS = 8192
_LONG_TEXT = 1024
"""Longer strings are compared one by one: all others would be gathered as often as they need."""
_MAX_END = np.uint64(2**63 - 1)
_NO_COMPRESSION = 0
_NO_FILES = np.empty((0, ChunkFileId.SIZE), dtype=np.uint8)


def decode_manifest(data: bytes, key: str) -> ManifestIndex:
    """Read the body of a manifest file, whole: it cannot be read in parts."""
    body = Body(data, key)
    root = body.root()
    arrays = root.vectors(1, 4, "the list of arrays").tables()
    ids = arrays.ids(0, NodeId.SIZE, "the id of an array")
    vectors = arrays.vectors(1, 4, "the list of references")
    numbers = np.flatnonzero(vectors.counts)
    if len(numbers) < len(ids):
        # An array without references says nothing.
        ids = ids[numbers]
        vectors = Vectors(body, vectors.starts[numbers], vectors.counts[numbers])
    rows = vectors.tables()
    placed = _place(rows, vectors.counts, ids, body)
    count = len(rows)
    block: ManifestBlock
    if count > _EAGER_ROWS:
        # Much of the work is with strings, which whoever reads one chunk does not need.
        block = LazyBlock(
            placed.positions,
            count,
            lambda few: _References(body, root, rows if few is None else rows.take(few)).decode(),
            len(body) + rows.positions.nbytes,
        )
    else:
        block = ManifestBlock(placed.positions, _References(body, root, rows).decode())
    return ManifestIndex(
        arrays=placed.arrays,
        block_rows=np.array([0, count] if count else [0], dtype=np.int64),
        block_positions=np.zeros(1 if count else 0, dtype=np.uint64)
        if placed.positions is None
        else placed.positions[:1],
        block_spans=np.zeros((1 if count else 0, 2), dtype=np.int64),
        resident=(block,) if count else (),
    )


class _Placed(NamedTuple):
    """Where the references of all arrays are in their grids."""

    arrays: ManifestArrays
    positions: npt.NDArray[np.uint64] | None


def _place(
    rows: Tables, counts: npt.NDArray[np.int64], ids: npt.NDArray[np.uint8], body: Body
) -> _Placed:
    """Read the coordinates of all references, array by array."""
    coords = rows.vectors(0, 4, "the index of a reference")
    ends = np.cumsum(counts)
    ranks = coords.counts[ends - counts] if len(counts) else counts
    if len(ranks) and int(ranks.max()) > MAX_RANK:
        raise body.bad(f"a reference has {int(ranks.max())} coordinates, more than {MAX_RANK}")
    if not (coords.counts == (ranks[0] if len(ranks) == 1 else np.repeat(ranks, counts))).all():
        raise body.bad("references of one array have different numbers of coordinates")
    boxes: list[Box] = []
    columns: list[npt.NDArray[np.uint64] | None] = []
    for start, stop, rank in zip(
        (ends - counts).tolist(), ends.tolist(), ranks.tolist(), strict=True
    ):
        table = body.gather_rows(coords.starts[start:stop], 4 * rank)
        box, linear = positions_of(table.view("<u4").reshape(stop - start, rank), body)
        boxes.append(box)
        columns.append(None if len(linear) == box.size else linear)
    arrays = ManifestArrays(
        ids.tobytes(),
        ranks,
        counts,
        [low for box in boxes for low in box.lower],
        [extent for box in boxes for extent in box.shape],
    )
    if not arrays.is_ascending:
        raise body.bad("the arrays are not in order of their ids")
    if all(column is None for column in columns):
        return _Placed(arrays, None)
    filled = [
        np.zeros(count, dtype=np.uint64) if column is None else column
        for column, count in zip(columns, counts.tolist(), strict=True)
    ]
    return _Placed(arrays, filled[0] if len(filled) == 1 else np.concatenate(filled))


def positions_of(coords: npt.NDArray[np.uint32], body: Body) -> tuple[Box, npt.NDArray[np.uint64]]:
    """The box around coordinates, and where each is in it; they must ascend."""
    try:
        box = bounding_box(coords)
    except InvalidInputError as error:
        raise body.bad(str(error)) from None
    linear = box.linearize(coords)
    if not (linear[1:] > linear[:-1]).all():
        raise body.bad("the references of an array are not in order of their coordinates")
    return box, linear


class _References:
    """What the references of a manifest point to."""

    def __init__(self, body: Body, root: Tables, rows: Tables) -> None:
        self._body = body
        self._root = root
        self._rows = rows

    def decode(self) -> ChunkRefs:
        """All references as columns, in the order of the rows."""
        kinds = self._kinds()
        present = [
            kind
            for kind in (_NATIVE, _VIRTUAL, _INLINE)
            if len(kinds) and (kinds[0] == kind or (kinds == kind).any())
        ]
        if not present:
            return ChunkRefs.empty()
        if len(present) == 1:
            return self._of_kind(present[0], self._rows)
        members = {kind: np.flatnonzero(kinds == kind) for kind in present}
        parts = [self._of_kind(kind, self._rows.take(rows)) for kind, rows in members.items()]
        order = np.empty(len(kinds), dtype=np.intp)
        order[np.concatenate(list(members.values()))] = np.arange(len(kinds))
        return ChunkRefs.concat(parts).take(order)

    def _kinds(self) -> npt.NDArray[np.uint8]:
        rows = self._rows
        kinds = np.zeros(len(rows), dtype=np.uint8)
        # From the weakest sign to the strongest, as official readers look for them.
        for slot, kind in ((1, _INLINE), (5, _VIRTUAL), (8, _VIRTUAL), (4, _NATIVE)):
            kinds[rows.has(slot)] = kind
        if not kinds.all():
            raise self._body.bad("a reference is neither inline, native nor virtual")
        return kinds

    def _of_kind(self, kind: int, rows: Tables) -> ChunkRefs:
        count = len(rows)
        if kind == _INLINE:
            return self._inline(rows)
        offsets = rows.numbers(2, "<u8")
        lengths = rows.numbers(3, "<u8")
        if (
            int(offsets.max()) + int(lengths.max()) > _MAX_END
            and ((offsets > _MAX_END) | (lengths > _MAX_END) | (offsets + lengths > _MAX_END)).any()
        ):
            raise self._body.bad("a reference reaches beyond byte 2**63")
        files, locations = _NO_FILES, Locations.none()
        if kind == _NATIVE:
            files, sources = _with_runs(rows.ids(4, ChunkFileId.SIZE, "the id of a chunk file"))
        else:
            locations, sources = self._locations(rows)
        return ChunkRefs(
            np.full(count, kind, dtype=np.uint8),
            sources,
            offsets,
            lengths,
            np.zeros(count, dtype=np.uint32),
            files,
            locations,
            b"",
        )

    def _inline(self, rows: Tables) -> ChunkRefs:
        slices = rows.slices(1)
        data, ends = slices.joined()
        zeros = np.zeros(len(rows), dtype=np.uint32)
        lengths = slices.lengths.astype(np.uint64)
        return ChunkRefs(
            np.full(len(rows), _INLINE, dtype=np.uint8),
            zeros,
            ends.astype(np.uint64) - lengths,
            lengths,
            zeros,
            _NO_FILES,
            Locations.none(),
            data,
        )

    def _locations(self, rows: Tables) -> tuple[Locations, npt.NDArray[np.uint32]]:
        """The dictionary of locations, and the number of each row's entry in it.

        Neighbours mostly have one location, whose string is read once.
        """
        compressed = rows.slices(8)
        plain = rows.slices(5)
        # A compressed location wins where there are both.
        packed = compressed.is_there
        text = compressed if packed.all() else plain
        if text is plain and packed.any():
            text = Slices(
                self._body,
                np.where(packed, compressed.starts, plain.starts),
                np.where(packed, compressed.lengths, plain.lengths),
            )
        etags = rows.slices(6)
        modified = rows.numbers(7, "<u4").astype(np.int64)
        first = np.flatnonzero(
            _changes(text) | _changes(etags) | _differ(modified) | _differ(packed)
        )
        sources = np.zeros(len(rows), dtype=np.uint32)
        sources[first[1:]] = 1
        np.cumsum(sources, out=sources)
        urls = self._urls(text.take(first), packed[first])
        return Locations(urls, etags.take(first).column(), modified[first]), sources

    def _urls(self, text: Slices, packed: npt.NDArray[np.bool_]) -> StringColumn:
        if not packed.any():
            return text.column()
        algorithm = int(self._root.numbers(3, "u1", default=1)[0])
        if algorithm == _NO_COMPRESSION:
            raise self._body.bad("a location is compressed, but the manifest says that none is")
        if algorithm != 1:
            raise self._body.bad(f"the compression {algorithm} of locations is unknown")
        dictionary = self._root.slices(2).at(0) or b""
        if packed.all():
            return decompress_locations(text, dictionary)
        parts = [
            text.take(np.flatnonzero(~packed)).column(),
            decompress_locations(text.take(np.flatnonzero(packed)), dictionary),
        ]
        order = np.empty(len(packed), dtype=np.intp)
        order[np.concatenate([np.flatnonzero(~packed), np.flatnonzero(packed)])] = np.arange(
            len(packed)
        )
        return StringColumn.concat(parts).take(order)


def _with_runs(
    files: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """The ids of chunk files with those of neighbours once, and the number of each row's file."""
    is_first = _differ(as_words(files))
    first = np.flatnonzero(is_first)
    if len(first) == len(files):
        return files, np.arange(len(files), dtype=np.uint32)
    sources = np.cumsum(is_first, dtype=np.uint32) - np.uint32(1)
    return files[first], sources


def _differ(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which values, or rows of values, differ from the one before; the first one does."""
    changed = np.ones(len(values), dtype=np.bool_)
    if values.ndim == 1:
        np.not_equal(values[1:], values[:-1], out=changed[1:])
        return changed
    changed[1:] = False
    for column in values.T:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def _changes(slices: Slices) -> npt.NDArray[np.bool_]:
    """Which strings differ from the one before; the first one does."""
    changed = _differ(slices.starts)
    changed[0] = True
    # Of those that lie elsewhere, look at the ones that have the same length.
    unsure = np.zeros(len(changed), dtype=np.bool_)
    np.equal(slices.lengths[1:], slices.lengths[:-1], out=unsure[1:])
    unsure &= changed
    if not unsure.any():
        return changed
    is_there = slices.is_there
    if not is_there.all():
        unsure[1:] &= is_there[1:] == is_there[:-1]
    slices.check_total(unsure)
    # So many at a time that what they look at stays in the processor's cache.
    for first in range(1, len(changed), _COMPARED_ROWS):
        some = slice(first, first + _COMPARED_ROWS)
        rows = np.flatnonzero(unsure[some]) + first
        if len(rows) == 0:
            continue
        differs = _neighbours_differ(slices, some) if 2 * len(rows) > _COMPARED_ROWS else None
        if differs is not None:
            changed[some] &= differs | ~unsure[some]
            continue
        is_long = slices.lengths[rows] > _LONG_TEXT
        for row in rows[is_long].tolist():
            changed[row] = slices.at(row) != slices.at(row - 1)
        short = rows[~is_long]
        if len(short):
            changed[short] = _texts_differ(slices, short)
    return changed


def _neighbours_differ(slices: Slices, rows: slice) -> npt.NDArray[np.bool_] | None:
    """Which strings of a run of rows differ from the one before, where those of one length do.

    The bytes of each row are copied once: all but the last few from the front, the others from the
    back, so that lengths may differ a little. None if they differ more, or are long.
    """
    starts = slices.starts[rows.start - 1 : rows.stop]
    lengths = slices.lengths[rows.start - 1 : rows.stop]
    shortest, longest = int(lengths.min()), int(lengths.max())
    head = shortest // 8 * 8
    tail = -(head - longest) + (head - longest) % 8
    if longest > _LONG_TEXT or tail > shortest:
        return None
    differs = np.zeros(len(starts) - 1, dtype=np.bool_)
    for places, width in ((starts, head), (starts + lengths - tail, tail)):
        if width:
            words = slices.body.gather_rows(places, width).view("<u8")
            for column in words.T:
                differs |= column[1:] != column[:-1]
    return differs


def _texts_differ(slices: Slices, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which strings differ from the one before, that is as long: compared word by word."""
    lengths = slices.lengths[rows]
    here, before = slices.starts[rows], slices.starts[rows - 1]
    differs = np.zeros(len(rows), dtype=np.bool_)
    longest = int(lengths.max())
    for dtype in ("<u8", "u1"):
        width = np.dtype(dtype).itemsize
        fits = lengths >= width
        if width == 1:
            fits &= lengths < 8
        if not fits.any():
            continue
        members = slice(None) if fits.all() else np.flatnonzero(fits)
        ends = lengths[members] - width
        mine, theirs = here[members], before[members]
        different = np.zeros(len(mine), dtype=np.bool_)
        for at in range(0, longest if width == 8 else 7, width):
            # Behind the end of a shorter one, its last word is compared again.
            word = np.minimum(at, ends)
            different |= slices.body.gather(mine + word, dtype) != slices.body.gather(
                theirs + word, dtype
            )
        differs[members] = different
    return differs
