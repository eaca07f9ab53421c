"""Merges edits into the manifests of one array, and decides which of them are written again.

Only manifests that edits reach into are read, and those that belong together with them: a box of
the grid that has few references keeps one manifest, so an array that shrinks, or that grows by a
few chunks here and there, does not end up with many small ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from icefloe.changes.linked import LinkedTile, corners, meeting
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import ManifestRef
from icefloe.model.record import Record
from icefloe.objects.snapshot_chunks import linked_chunks
from icefloe.packing.splits import Split, split_of
from icefloe.packing.tiles import Tiling

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.config.settings import Settings
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.nodes import ArrayNode
    from icefloe.objects.metadata import MetadataFiles
    from icefloe.objects.snapshot_chunks import SnapshotChunks


class MergedArray(Record, frozen=True, eq=False):
    """What a commit does with the manifests of one array."""

    pieces: list[ArrayChunks]
    """New references, each piece for one manifest."""
    split: Split | None
    """None if there is at most one piece, to be packed with other arrays."""
    old: ArrayChunks | None
    """The references of the base in manifests that are written again."""
    dropped: set[ManifestId]
    """Manifests of the base that the array has no references in any more."""
    linked: list[LinkedTile]
    """Manifests that are written already and stay."""


class ArrayMerger:
    """Merges edits into arrays of one snapshot."""

    def __init__(self, files: MetadataFiles, chunks: SnapshotChunks, settings: Settings) -> None:
        """Take the chunks of the base, and how to split arrays."""
        self._files = files
        self._chunks = chunks
        self._settings = settings

    def merge(
        self,
        node: ArrayNode,
        edits: ChunkEdits,
        refs: Sequence[ManifestRef],
        linked: Sequence[LinkedTile],
    ) -> MergedArray:
        """Apply edits to an array with its manifests in the base, and linked ones over those."""
        replaced = {each for tile in linked for each in tile.replaced}
        left: list[ArrayPart] = [ref for ref in refs if ref.manifest_id not in replaced]
        left += linked
        taken: list[ArrayPart] = []
        touched = edits.touched(None)
        more = left if edits.cleared else self._reached(node, touched, left)
        while True:
            taken += more
            gone = set(map(id, more))
            left = [part for part in left if id(part) not in gone]
            old = self._chunks.merged(node, [p for p in taken if isinstance(p, ManifestRef)])
            new = edits.apply(self._with_linked(node, old, taken))
            total = (0 if new is None else len(new)) + sum(map(_count, left))
            split = split_of(node, self._settings, total)
            if split is None:
                pieces, more = ([] if new is None else [new]), left
            else:
                pieces, more = _cut(split.tiling, new, _touched(split.tiling, touched, taken), left)
            if not more:
                break
        return MergedArray(
            pieces=pieces,
            split=split,
            old=old,
            dropped=replaced
            | {part.manifest_id for part in taken if isinstance(part, ManifestRef)},
            linked=[part for part in left if isinstance(part, LinkedTile)],
        )

    def _reached(
        self, node: ArrayNode, touched: ChunkIndex | None, parts: list[ArrayPart]
    ) -> list[ArrayPart]:
        """The parts that are read in any case: those that edits reach into."""
        if touched is None:
            return []
        # How many references there are in the end, and how they are split, is not known yet.
        held = sum(map(_count, parts))
        counts = (held, held + len(touched))
        splits = (split_of(node, self._settings, count) for count in counts)
        split = next((each for each in splits if each is not None), None)
        if split is None and len(parts) == 1:
            return parts
        tiling = Tiling((1,) * touched.rank) if split is None else split.tiling
        return reached_by(tiling, touched, parts)

    def _with_linked(
        self, node: ArrayNode, old: ArrayChunks | None, taken: Sequence[ArrayPart]
    ) -> ArrayChunks | None:
        """References of the base with those of linked manifests, which replaced some of them."""
        tables = [] if old is None else [old]
        tables += [linked_chunks(self._files, node, p) for p in taken if isinstance(p, LinkedTile)]
        return ArrayChunks.merge(tables) if tables else None


ArrayPart: TypeAlias = ManifestRef | LinkedTile
"""References of an array that are in one manifest: of the base, or linked."""

P = TypeVar("P", ManifestRef, LinkedTile, ArrayPart)


def reached_by(tiling: Tiling, touched: ChunkIndex, parts: Sequence[P]) -> list[P]:
    """The parts of an array that reach into the tiles of some chunks."""
    if not parts:
        return []
    lower, upper = corners([part.extents for part in parts])
    hit = tiling.touched(lower, upper, tiling.counted(touched)[0])
    return [parts[row] for row in np.flatnonzero(hit).tolist()]


def in_the_way(pieces: Sequence[ArrayChunks], parts: Sequence[P]) -> list[P]:
    """Parts whose extents would overlap new ones, as happens where an older cut was another."""
    _, hit = meeting([piece.index.box for piece in pieces], [part.extents for part in parts])
    return [parts[row] for row in np.flatnonzero(hit).tolist()]


def _count(part: ArrayPart) -> int:
    return part.num_refs if isinstance(part, ManifestRef) else part.info.num_chunk_refs


def _touched(
    tiling: Tiling, touched: ChunkIndex | None, taken: Sequence[ArrayPart]
) -> npt.NDArray[np.int64]:
    """Tiles (n, rank) in which something changes, or a part began that is written again."""
    tables = [np.empty((0, len(tiling.shape)), dtype=np.int64)]
    if touched is not None:
        tables.append(tiling.counted(touched)[0])
    if taken:
        tables.append(tiling.tiles_of(corners([part.extents for part in taken])[0]))
    return np.concatenate(tables)


def _cut(
    tiling: Tiling,
    new: ArrayChunks | None,
    touched: npt.NDArray[np.int64],
    left: list[ArrayPart],
) -> tuple[list[ArrayChunks], list[ArrayPart]]:
    """Cut new references, or tell which of the parts that are left must be taken, too.

    A part that is left counts where it begins. Where something changes, what belongs into one
    part is brought together, so that no box with few references has several.
    """
    if not left:
        return ([] if new is None else tiling.cut(new)), []
    rank = len(tiling.shape)
    tiles, counts = np.empty((0, rank), dtype=np.int64), np.empty(0, dtype=np.int64)
    if new is not None:
        tiles, counts = tiling.counted(new.index)
    starts = tiling.tiles_of(corners([part.extents for part in left])[0])
    numbers = tiling.parts_of(
        np.concatenate([tiles, touched, starts]),
        np.concatenate([counts, np.zeros(len(touched), np.int64), [_count(p) for p in left]]),
    )
    of_new, of_touched, of_left = np.split(numbers, np.cumsum([len(tiles), len(touched)]))
    size = int(numbers.max()) + 1
    has_new = np.bincount(of_new, minlength=size) > 0
    is_linked = np.array([isinstance(part, LinkedTile) for part in left])
    changes = has_new | (np.bincount(of_touched, minlength=size) > 0)
    changes |= np.bincount(of_left[is_linked], minlength=size) > 0
    apart = has_new | (np.bincount(of_left, minlength=size) > 1)
    more = [left[row] for row in np.flatnonzero((changes & apart)[of_left]).tolist()]
    if more:
        return [], more
    pieces = [] if new is None else tiling.cut(new, of_new)
    return pieces, in_the_way(pieces, left)
