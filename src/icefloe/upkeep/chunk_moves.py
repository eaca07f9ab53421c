"""Copies chunks out of chunk files into new packs, in the order of the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.engine.retention.id_sets import are_in, as_ids
from icefloe.engine.tree.chunk_batches import ArrayReader
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot


class Move(NamedTuple):
    """Chunks of one array that move: where they are, and where they were."""

    coords: npt.NDArray[np.uint64]
    old: ChunkRefs
    new: ChunkRefs


def tables_of(context: Context, base: Snapshot, node: ArrayNode) -> Iterator[ArrayChunks]:
    """Where the chunks of an array are, one table after the other, in the order of the grid."""
    return ArrayReader(base, SnapshotChunks(context.files, base), node, None).tables()


class _Waiting(NamedTuple):
    node_id: NodeId
    coords: npt.NDArray[np.uint64]
    refs: ChunkRefs


class ChunkMover:
    """Copies chunks into new packs, as many at a time as fit into one."""

    def __init__(self, context: Context, base: Snapshot, pack_bytes: int) -> None:
        """Take where the chunks are, and the size of packs."""
        self._context = context
        self._base = base
        self._pack_bytes = pack_bytes
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._moves: dict[NodeId, list[Move]] = {}
        self.packs = 0
        """How many were written."""

    def add(self, node: ArrayNode, chosen: npt.NDArray[np.bytes_]) -> None:
        """Move the chunks of an array that are in chosen files, in the order of the grid."""
        for table in tables_of(self._context, self._base, node):
            native = table.refs.kinds == ChunkKind.NATIVE
            files = as_ids(table.refs.files)
            in_chosen = np.zeros(len(native), dtype=np.bool_)
            in_chosen[native] = are_in(files, chosen)[table.refs.sources[native]]
            rows = np.flatnonzero(in_chosen)
            if len(rows):
                self._add_rows(node.id, table.index.coords()[rows], table.refs.take(rows))

    def _add_rows(self, node_id: NodeId, coords: npt.NDArray[np.uint64], refs: ChunkRefs) -> None:
        start = 0
        while start < len(refs):
            filled = np.cumsum(refs.lengths[start:])
            room = max(self._pack_bytes - self._bytes, 0)
            count = int(np.searchsorted(filled, np.uint64(room), side="right"))
            if count == 0 and not self._waiting:
                count = 1  # a chunk that is larger than a pack
            if count:
                rows = slice(start, start + count)
                self._waiting.append(
                    _Waiting(node_id, coords[rows], refs.slice(start, start + count))
                )
                self._bytes += int(filled[count - 1])
                start += count
            if start < len(refs) or self._bytes >= self._pack_bytes:
                self._write()

    def finish(self) -> dict[NodeId, list[Move]]:
        """Write what waits; returns all moves."""
        self._write()
        return self._moves

    def _write(self) -> None:
        if not self._waiting:
            return
        file_id = ChunkFileId.random()
        pieces: list[bytes] = []
        start = 0
        for waiting in self._waiting:
            pieces += self._read(waiting.refs)
            ends = np.cumsum(waiting.refs.lengths)
            new = _moved(waiting.refs, file_id, ends - waiting.refs.lengths + np.uint64(start))
            start += int(ends[-1])
            old = waiting.refs.compact()
            self._moves.setdefault(waiting.node_id, []).append(Move(waiting.coords, old, new))
        key = self._context.format.layout.chunk_file(file_id)
        self._context.storage.put(key, b"".join(pieces))
        self.packs += 1
        self._waiting, self._bytes = [], 0

    def _read(self, refs: ChunkRefs) -> list[bytes]:
        """The bytes of native chunks, file by file."""
        order = np.argsort(refs.sources, kind="stable")
        used, first = np.unique(refs.sources[order], return_index=True)
        groups = np.split(order, first[1:])
        parts = self._context.files.in_parallel(
            lambda job: self._read_file(refs, job[0], job[1]),
            zip(used.tolist(), groups, strict=True),
        )
        pieces: list[bytes] = [b""] * len(refs)
        for rows, found in zip(groups, parts, strict=True):
            for row, data in zip(rows.tolist(), found, strict=True):
                pieces[row] = data
        return pieces

    def _read_file(self, refs: ChunkRefs, source: int, rows: npt.NDArray[np.intp]) -> list[bytes]:
        key = self._context.format.layout.chunk_file(ChunkFileId(refs.files[source].tobytes()))
        ranges = list(zip(refs.offsets[rows].tolist(), refs.lengths[rows].tolist(), strict=True))
        try:
            found = self._context.storage.get_ranges(key, ranges)
        except ObjectNotFoundError:
            raise FormatError(
                f"chunk file {key} is missing, although a manifest refers to it", key
            ) from None
        if any(len(data) != length for data, (_, length) in zip(found, ranges, strict=True)):
            raise FormatError(f"chunk file {key} is shorter than a manifest says", key)
        return found


def _moved(refs: ChunkRefs, file_id: ChunkFileId, offsets: npt.NDArray[np.uint64]) -> ChunkRefs:
    """The same chunks in another file."""
    return ChunkRefs(
        refs.kinds,
        np.zeros(len(refs), dtype=np.uint32),
        offsets,
        refs.lengths,
        refs.checksums,
        np.frombuffer(file_id, dtype=np.uint8).reshape(1, ChunkFileId.SIZE),
        Locations.none(),
        b"",
    )
