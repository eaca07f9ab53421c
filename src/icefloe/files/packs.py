"""Writes many small chunks as one chunk file, neighbours of an array side by side (R0-62)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icefloe.formats.port import Layout
    from icefloe.model.ids import NodeId
    from icefloe.storage.port import Storage

    ChunkBytes = Mapping[tuple[int, ...], bytes]


def write_pack(
    storage: Storage, layout: Layout, arrays: Mapping[NodeId, ChunkBytes]
) -> dict[NodeId, ArrayChunks]:
    """Write chunks of some arrays as one file; returns where each array's chunks are.

    The bytes of a chunk are kept as they are (R2-01).
    """
    file_id = ChunkFileId.random()
    pieces: list[bytes] = []
    tables: dict[NodeId, ArrayChunks] = {}
    start = 0
    for node_id, chunks in sorted(arrays.items()):
        ordered = sorted(chunks)
        mine = [chunks[coords] for coords in ordered]
        lengths = np.fromiter(map(len, mine), dtype=np.uint64, count=len(mine))
        ends = np.cumsum(lengths)
        offsets = ends - lengths + np.uint64(start)
        coords = np.array(ordered, dtype=np.uint64).reshape(len(mine), -1)
        tables[node_id] = ArrayChunks.from_sorted(coords, _refs(file_id, offsets, lengths))
        pieces += mine
        start += int(ends[-1])
    storage.put(layout.chunk_file(file_id), b"".join(pieces))
    return tables


def _refs(
    file_id: ChunkFileId, offsets: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]
) -> ChunkRefs:
    count = len(offsets)
    return ChunkRefs(
        kinds=np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        sources=np.zeros(count, dtype=np.uint32),
        offsets=offsets,
        lengths=lengths,
        checksums=np.zeros(count, dtype=np.uint32),
        files=np.frombuffer(file_id, dtype=np.uint8).reshape(1, ChunkFileId.SIZE),
        locations=Locations.none(),
        inline=b"",
    )
