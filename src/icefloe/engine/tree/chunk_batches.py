"""Reads the references of an array as columns, some manifests at a time, so that memory is bounded.

Python code runs per distinct location and per inline chunk, never per reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.config.locations import RELATIVE_SCHEME, parse_location
from icefloe.engine.tree.grid_checks import has_box, visible
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs
from icefloe.model.id_columns import encode_column, text_length
from icefloe.model.ids import ChunkFileId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.model.ids import ManifestId
    from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
    from icefloe.model.nodes import ArrayNode, ManifestRef
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.snapshot_chunks import SnapshotChunks

WINDOW_REFS = 131_072
"""References whose manifests are read together."""
_SMALL_GRID = 2**32


class ChunkBatch(NamedTuple):
    """Some chunk references of an array as columns; the order of rows is not guaranteed."""

    coords: npt.NDArray[np.unsignedinteger]
    """Coordinates (n, rank): uint32, or uint64 for a grid that needs it."""
    kinds: npt.NDArray[np.uint8]
    """The number of a ChunkType: 1 native, 2 virtual, 3 inline."""
    paths: list[str]
    """URL of a virtual chunk, id of a native one's chunk file; empty for inline chunks."""
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]
    inlined: dict[int, bytes]
    """Bytes of inline chunks, by row."""


class ChunkBytes(Record, frozen=True):
    """How many bytes the chunks of an array have, by where they are stored."""

    native_bytes: int
    virtual_bytes: int
    inlined_bytes: int

    @property
    def non_virtual_bytes(self) -> int:
        """Bytes that are in the repository."""
        return self.native_bytes + self.inlined_bytes

    @property
    def total_bytes(self) -> int:
        """All bytes."""
        return self.non_virtual_bytes + self.virtual_bytes


class ArrayReader:
    """The references of one array as a session saw it at one moment."""

    def __init__(
        self, snapshot: Snapshot, chunks: SnapshotChunks, node: ArrayNode, edits: ChunkEdits | None
    ) -> None:
        """Take where the references are and a private copy of the edits over them."""
        self._array = node.array
        self._infos: Mapping[ManifestId, ManifestFileInfo] = {
            info.id: info for info in snapshot.manifests
        }
        self._chunks = chunks
        self._node = node
        self._edits = None if edits is None or edits.is_empty else edits

    def tables(self, window_refs: int = WINDOW_REFS) -> Iterator[ArrayChunks]:
        """All references in the grid, none twice, in tables of about `window_refs` or one manifest.

        Each table is in row-major order. If one is enough, so is the whole.
        """
        for table in self._tables(window_refs):
            inside = visible(self._node, table)
            if inside is not None:
                yield inside

    def _tables(self, window_refs: int) -> Iterator[ArrayChunks]:
        edits = self._edits
        windows = [] if edits is not None and edits.cleared else list(self._windows(window_refs))
        if edits is not None and len(windows) <= 1:
            base = self._chunks.merged(self._node, windows[0]) if windows else None
            whole = edits.apply(base)
            if whole is not None:
                yield whole
            return
        touched = None if edits is None else edits.touched(None)
        for window in windows:
            table = self._chunks.merged(self._node, window)
            if table is not None and touched is not None:
                table = table.without(touched)
            if table is not None:
                yield table
        own = None if edits is None else edits.apply(None)
        if own is not None:
            yield own

    def _windows(self, window_refs: int) -> Iterator[list[ManifestRef]]:
        """Manifests of the array, in order, together as long as they have few references."""
        window: list[ManifestRef] = []
        held = 0
        for ref in self._node.manifests:
            if window and held + ref.num_refs > window_refs:
                yield window
                window, held = [], 0
            window.append(ref)
            held += ref.num_refs
        if window:
            yield window

    def batches(
        self, batch_size: int, containers: Mapping[str, VirtualChunkContainer]
    ) -> Iterator[ChunkBatch]:
        """All references in batches of at most `batch_size`."""
        if batch_size < 1:
            raise InvalidInputError(f"a batch has at least 1 chunk, found {batch_size}")
        return self._batches(batch_size, _Paths(containers))

    def _batches(self, batch_size: int, paths: _Paths) -> Iterator[ChunkBatch]:
        grid = self._array.grid_shape
        is_small = grid is not None and all(extent <= _SMALL_GRID for extent in grid)
        for table in self.tables(batch_size):
            coords = table.index.coords()
            if is_small:
                coords = coords.astype(np.uint32)
            for start in range(0, len(table), batch_size):
                rows = slice(start, start + batch_size)
                yield _batch(coords[rows], table.refs.slice(start, start + batch_size), paths)

    def count(self, kind: ChunkKind | None = None) -> int:
        """Number of initialised chunks, of one kind or of all.

        Of all, what the snapshot says is enough, but for manifests that uncommitted edits reach
        into.
        """
        if kind is not None:
            return sum(int((table.refs.kinds == kind).sum()) for table in self.tables())
        edits = self._edits
        if edits is None:
            return sum(map(self._exact_count, self._node.manifests))
        touched = edits.touched(None)
        total = self._visible_count(edits.apply(None))
        for ref in () if edits.cleared else self._node.manifests:
            if touched is None or not ref.extents.intersects(touched.box):
                total += self._exact_count(ref)
            else:
                table = self._chunks.merged(self._node, [ref])
                total += self._visible_count(None if table is None else table.without(touched))
        return total

    def _visible_count(self, chunks: ArrayChunks | None) -> int:
        inside = visible(self._node, chunks)
        return 0 if inside is None else len(inside)

    def _exact_count(self, ref: ManifestRef) -> int:
        if not has_box(self._node, ref.extents):
            return self._visible_count(self._chunks.merged(self._node, [ref]))
        # Old layouts do not store how many references an array has in a manifest; their readers
        # use the size of its extents instead.
        info = self._infos.get(ref.manifest_id)
        is_exact = ref.num_refs != ref.extents.size
        if is_exact or (info is not None and info.num_chunk_refs == ref.num_refs):
            return ref.num_refs
        arrays = self._chunks.manifest(ref.manifest_id).index.arrays
        array = arrays.of_rank(self._node.id, self._array.rank)
        return 0 if array is None else array.count

    def bytes(self) -> ChunkBytes:
        """Number of bytes of all chunks, by kind."""
        sums = dict.fromkeys((ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE), 0)
        for table in self.tables():
            for kind in sums:
                sums[kind] += int(table.refs.lengths[table.refs.kinds == kind].sum())
        return ChunkBytes(*sums.values())

    def virtual_locations(self) -> Iterator[list[str]]:
        """URLs of virtual chunks, one for each, table by table."""
        for table in self.tables():
            rows = np.flatnonzero(table.refs.kinds == ChunkKind.VIRTUAL)
            if len(rows):
                yield _urls(table.refs, rows, None)


def _batch(coords: npt.NDArray[np.unsignedinteger], refs: ChunkRefs, paths: _Paths) -> ChunkBatch:
    inline = np.flatnonzero(refs.kinds == ChunkKind.INLINE)
    offsets = refs.offsets
    inlined: dict[int, bytes] = {}
    if len(inline):
        starts, lengths = refs.offsets[inline], refs.lengths[inline]
        slices = map(slice, starts.tolist(), (starts + lengths).tolist())
        inlined = dict(zip(inline.tolist(), map(refs.inline.__getitem__, slices), strict=True))
        # Offsets in our own buffer mean nothing to callers.
        offsets = offsets.copy()
        offsets[inline] = 0
    return ChunkBatch(
        coords=coords,
        kinds=refs.kinds,
        paths=paths.of(refs),
        offsets=offsets,
        lengths=refs.lengths,
        inlined=inlined,
    )


class _Paths:
    """Where the bytes of chunks are, as text; relative URLs are resolved."""

    def __init__(self, containers: Mapping[str, VirtualChunkContainer]) -> None:
        self._prefixes = {
            container.name: parse_location(container.url_prefix)
            for container in containers.values()
            if container.name is not None
        }

    def of(self, refs: ChunkRefs) -> list[str]:
        """One text for each reference."""
        texts = np.full(len(refs), "", dtype=object)
        native = np.flatnonzero(refs.kinds == ChunkKind.NATIVE)
        if len(native):
            used, where = np.unique(refs.sources[native], return_inverse=True)
            texts[native] = _id_texts(refs.files[used])[where]
        virtual = np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL)
        if len(virtual):
            texts[virtual] = _urls(refs, virtual, self)
        paths: list[str] = texts.tolist()
        return paths

    def absolute(self, url: str) -> str:
        """A URL that means the same without the configuration."""
        if not url.startswith(f"{RELATIVE_SCHEME}://"):
            return url
        location = parse_location(url)
        prefix = self._prefixes.get(location.host)
        return url if prefix is None else str(prefix.joined(location.segments))


def _urls(refs: ChunkRefs, rows: npt.NDArray[np.intp], paths: _Paths | None) -> list[str]:
    """URLs of virtual references; each distinct one is decoded once."""
    used, where = np.unique(refs.sources[rows], return_inverse=True)
    column = refs.locations.urls.take(used)
    urls = column.tolist()
    if paths is not None and f"{RELATIVE_SCHEME}://".encode() in column.data:
        urls = list(map(paths.absolute, urls))
    return list(map(urls.__getitem__, where.tolist()))


def _id_texts(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.object_]:
    """The text forms of ids (n, bytes): base 32, zero bits appended on the right; or names."""
    if ids.shape[1] > ChunkFileId.WIDE_SIZE:
        names = [str(ChunkFileId(row.tobytes())) for row in ids]
        return np.array([*names, None], dtype=object)[:-1]
    letters = encode_column(ids)
    length = letters.shape[1]
    if ids.shape[1] > ChunkFileId.SIZE:
        # Beside ids that another implementation gave, ours are filled up with zeros.
        own = ~ids[:, ChunkFileId.SIZE :].any(axis=1)
        letters[own, text_length(ChunkFileId.SIZE) :] = 0
    return letters.view(f"S{length}").ravel().astype(f"U{length}").astype(object)
