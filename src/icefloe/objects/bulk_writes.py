"""Writes many chunks that come together, each where its size says: no Python object per chunk.

Chunks that are too large for packs are the exception: each of them is a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.chunk_edits import Waiting
from icefloe.changes.pending import PendingChunks, inline_refs
from icefloe.model.chunk_index import ChunkIndex, bounding_box
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.segments import Segments
from icefloe.objects.checksums import new_checksum
from icefloe.objects.packs import native_refs, write_packs
from icefloe.storage.workers import ThreadJob, in_any_order

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.objects.chunks import ChunkFiles


def write_segments(
    chunk_files: ChunkFiles, coords: npt.NDArray[np.uint64], segments: Segments
) -> list[ArrayChunks | PendingChunks]:
    """Write chunks of one array, whose coordinates (n, rank) are unique and in row-major order.

    Returns tables that do not overlap: where chunks are now, and those that wait for a pack. The
    latter own their bytes: the caller may use the buffer of the segments again.
    """
    settings = chunk_files.settings
    lengths = segments.lengths
    is_inline = lengths <= settings.inline_up_to
    is_packed = ~is_inline & (lengths <= settings.packed_up_to)
    tables: list[ArrayChunks | PendingChunks] = []
    for is_chosen, write in (
        (~is_inline & ~is_packed, _write_alone),
        (is_packed, _write_packed),
        (is_inline, _keep_inline),
    ):
        if is_chosen.all():
            tables += write(chunk_files, coords, segments)
        elif is_chosen.any():
            tables += write(chunk_files, coords[is_chosen], segments.take(is_chosen))
    return tables


def _index(coords: npt.NDArray[np.uint64]) -> ChunkIndex:
    box = bounding_box(coords)
    return ChunkIndex.from_sorted(box, box.linearize(coords))


def _keep_inline(
    _: ChunkFiles, coords: npt.NDArray[np.uint64], segments: Segments
) -> list[ArrayChunks | PendingChunks]:
    data, offsets, lengths = _owned(segments)
    assert isinstance(data, bytes)
    return [ArrayChunks(_index(coords), inline_refs(data, offsets, lengths))]


def _write_packed(
    chunk_files: ChunkFiles, coords: npt.NDArray[np.uint64], segments: Segments
) -> list[ArrayChunks | PendingChunks]:
    """Write packs that are full; the rest waits."""
    table = PendingChunks.of_segments(_index(coords), segments)
    if table.nbytes < chunk_files.settings.pack_bytes:
        return [PendingChunks.of_segments(table.index, _owned(segments))]
    waiting = Waiting(table, np.arange(len(table)))
    (((*done, last),),) = write_packs(chunk_files, [[waiting]], only_full=True)
    if isinstance(last, PendingChunks):
        rest = Segments(segments.data, last.offsets, last.lengths)
        last = PendingChunks.of_segments(last.index, _owned(rest))
    return [*done, last]


def _owned(segments: Segments) -> Segments:
    """The same segments as bytes that are immutable, and that hold little else."""
    used = int(segments.lengths.sum())
    if isinstance(segments.data, bytes) and len(segments.data) <= 2 * used:
        return segments
    ends = np.cumsum(segments.lengths)
    return Segments(bytes(segments.joined()), ends - segments.lengths, segments.lengths)


def _write_alone(
    chunk_files: ChunkFiles, coords: npt.NDArray[np.uint64], segments: Segments
) -> list[ArrayChunks | PendingChunks]:
    """Write a file for each chunk, several at a time."""
    files = [ChunkFileId.random() for _ in range(len(segments))]
    checksums = np.zeros(len(files), dtype=np.uint32)

    def job(row: int) -> ThreadJob[None]:
        data = segments.piece(row)
        checksums[row] = new_checksum(data)
        key = chunk_files.layout.chunk_file(files[row])
        return ThreadJob(len(data), lambda: chunk_files.storage.put(key, data))

    limits = chunk_files.write_limits
    for _ in in_any_order(
        map(job, range(len(files))),
        at_a_time=min(limits.at_a_time, len(files)),
        max_bytes=limits.in_flight_bytes,
    ):
        pass
    refs = native_refs(
        np.arange(len(files), dtype=np.uint32),
        np.zeros(len(files), dtype=np.uint64),
        segments.lengths.astype(np.uint64),
        checksums,
        files,
    )
    return [ArrayChunks(_index(coords), refs)]
