"""Writes many small chunks as few chunk files, neighbours of an array side by side (R0-62)."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.model.chunk_index import bounding_box
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.objects.checksums import new_checksums
from icefloe.packing.chunk_packs import cut_packs
from icefloe.storage.workers import ThreadJob, in_any_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.changes.chunk_edits import Waiting
    from icefloe.changes.pending import PendingChunks
    from icefloe.objects.chunks import ChunkFiles
    from icefloe.objects.uploads import Uploads

_NO_LOCATIONS = Locations.none()


class _Written(NamedTuple):
    """One pack, on the storage or on its way there."""

    pack: int
    file_id: ChunkFileId
    checksums: npt.NDArray[np.uint32]


class _Plan(NamedTuple):
    """All chunks that wait, in the order in which they are written, as columns."""

    tables: npt.NDArray[np.intp]
    rows: npt.NDArray[np.intp]
    lengths: npt.NDArray[np.int64]
    packs: npt.NDArray[np.int64]


def write_packs(
    chunk_files: ChunkFiles,
    arrays: Sequence[Sequence[Waiting]],
    *,
    only_full: bool = False,
    uploads: Uploads | None = None,
) -> list[list[list[ArrayChunks | PendingChunks]]]:
    """Write chunks of some arrays as packs.

    The bytes of a chunk are kept as they are (R2-01). Chunks of an array are written in row-major
    order, whichever table they are in.

    Args:
        chunk_files: Where to, and how large.
        arrays: For each array, the tables of chunks that wait.
        only_full: Leave what does not fill a pack waiting.
        uploads: Where packs are still being written afterwards; they are written here if not given.

    Returns:
        For each table, its chunks that were written, and those that are still pending.
    """
    waiting = [each for tables in arrays for each in tables]
    plan = _plan(arrays, chunk_files.settings.pack_bytes)
    count = int(plan.packs[-1]) + 1 if len(plan.packs) else 0
    bounds = np.searchsorted(plan.packs, np.arange(count + 1)).tolist()
    if only_full and count:
        last = int(plan.lengths[bounds[-2] :].sum())
        count -= last < chunk_files.settings.pack_bytes
    limits = chunk_files.write_limits
    packs = (_pack(waiting, plan, pack, bounds[pack : pack + 2]) for pack in range(count))
    if uploads is None:
        jobs = (_job(chunk_files, *pack) for pack in packs)
        at_a_time = min(count, limits.at_a_time)
        written = in_any_order(jobs, at_a_time=at_a_time, max_bytes=limits.in_flight_bytes)
        done = sorted(written, key=attrgetter("pack"))
    else:
        done = []
        for pack, data in packs:
            uploads.put(chunk_files.layout.chunk_file(pack.file_id), data)
            done.append(pack)
    return _outcomes(arrays, plan, _refs(plan, done, bounds[count] if count else 0))


def _plan(arrays: Sequence[Sequence[Waiting]], pack_bytes: int) -> _Plan:
    tables: list[npt.NDArray[np.intp]] = []
    rows: list[npt.NDArray[np.intp]] = []
    lengths: list[npt.NDArray[np.int64]] = []
    number = 0
    for waiting in arrays:
        mine = np.repeat(
            np.arange(number, number + len(waiting)), [len(each.rows) for each in waiting]
        )
        number += len(waiting)
        order = _row_major(waiting)
        tables.append(mine[order])
        rows.append(np.concatenate([each.rows for each in waiting])[order])
        sizes = np.concatenate([each.table.lengths[each.rows] for each in waiting])
        lengths.append(sizes[order])
    if not arrays:
        nothing = np.empty(0, dtype=np.int64)
        return _Plan(tables=nothing, rows=nothing, lengths=nothing, packs=nothing)
    all_lengths = np.concatenate(lengths)
    packs = cut_packs(all_lengths, pack_bytes) if len(all_lengths) else all_lengths
    return _Plan(
        tables=np.concatenate(tables), rows=np.concatenate(rows), lengths=all_lengths, packs=packs
    )


def _row_major(waiting: Sequence[Waiting]) -> npt.NDArray[np.intp] | slice:
    """The order of an array's chunks in its packs: that of the grid, last dimension first.

    Slabs along the first dimension, which are what most programs write and read, are then one
    range of a file, and a batch that arrives in this order is written without a copy.
    """
    if len(waiting) == 1:
        return slice(None)
    coords = np.concatenate([each.table.index.coords()[each.rows] for each in waiting])
    if len(coords) == 0:
        return slice(None)
    return np.argsort(bounding_box(coords).linearize(coords), kind="stable")


def _pack(
    waiting: Sequence[Waiting], plan: _Plan, pack: int, bounds: Sequence[int]
) -> tuple[_Written, bytes | memoryview]:
    """A pack and its bytes; its checksums are computed here, while other threads write others.

    They need the interpreter, for which threads would only fight.
    """
    chosen = slice(*bounds)
    tables, rows, lengths = plan.tables[chosen], plan.rows[chosen], plan.lengths[chosen]
    data: bytes | memoryview
    if (tables == tables[0]).all():
        data = waiting[int(tables[0])].table.joined(rows)
    else:
        data = b"".join(_pieces(waiting, tables, rows))
    ends = np.cumsum(lengths)
    checksums = new_checksums(data, ends - lengths, lengths)
    return _Written(pack, ChunkFileId.random(), checksums), data


def _job(chunk_files: ChunkFiles, pack: _Written, data: bytes | memoryview) -> ThreadJob[_Written]:
    """How to write a pack."""

    def write() -> _Written:
        chunk_files.storage.put(chunk_files.layout.chunk_file(pack.file_id), data)
        return pack

    return ThreadJob(len(data), write)


def _pieces(
    waiting: Sequence[Waiting], tables: npt.NDArray[np.intp], rows: npt.NDArray[np.intp]
) -> list[memoryview | bytes]:
    """The bytes of chunks of several tables, in the given order."""
    pieces: list[memoryview | bytes] = [b""] * len(rows)
    for table in np.unique(tables).tolist():
        places = np.flatnonzero(tables == table)
        mine = waiting[table].table.pieces(rows[places])
        for place, piece in zip(places.tolist(), mine, strict=True):
            pieces[place] = piece
    return pieces


def _refs(plan: _Plan, done: Sequence[_Written], count: int) -> ChunkRefs | None:
    """References of all chunks that were written, in the order in which they were."""
    if not done:
        return None
    lengths, packs = plan.lengths[:count], plan.packs[:count]
    starts = np.cumsum(lengths) - lengths
    firsts = np.searchsorted(packs, np.arange(len(done)))
    return native_refs(
        packs.astype(np.uint32),
        (starts - starts[firsts][packs]).astype(np.uint64),
        lengths.astype(np.uint64),
        np.concatenate([each.checksums for each in done]),
        [each.file_id for each in done],
    )


def _outcomes(
    arrays: Sequence[Sequence[Waiting]], plan: _Plan, refs: ChunkRefs | None
) -> list[list[list[ArrayChunks | PendingChunks]]]:
    """The chunks of each table once the packs are written."""
    results = []
    start = number = 0
    for waiting in arrays:
        stop = start + sum(len(each.rows) for each in waiting)
        mine: list[list[ArrayChunks | PendingChunks]] = []
        for each in waiting:
            places = np.arange(start, stop)
            if len(waiting) > 1:
                places = places[plan.tables[start:stop] == number]
            mine.append(_outcome(each, places, plan, refs))
            number += 1
        results.append(mine)
        start = stop
    return results


def _outcome(
    waiting: Waiting, places: npt.NDArray[np.intp], plan: _Plan, refs: ChunkRefs | None
) -> list[ArrayChunks | PendingChunks]:
    """The chunks of a table that are at some places of the plan."""
    written = 0 if refs is None else int(np.searchsorted(places, len(refs)))
    result: list[ArrayChunks | PendingChunks] = []
    if refs is not None and written:
        chosen = refs.take(places[:written])
        if written == len(waiting.table):
            result.append(ArrayChunks(waiting.table.index, chosen))
        else:
            coords = waiting.table.index.coords()[plan.rows[places[:written]]]
            result.append(ArrayChunks.from_sorted(coords, chosen))
    if written < len(places):
        result.append(waiting.table.take(plan.rows[places[written:]]))
    return result


def native_refs(
    sources: npt.NDArray[np.uint32],
    offsets: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64],
    checksums: npt.NDArray[np.uint32],
    files: Sequence[ChunkFileId],
) -> ChunkRefs:
    """References into chunk files, as columns."""
    return ChunkRefs(
        kinds=np.full(len(sources), ChunkKind.NATIVE, dtype=np.uint8),
        sources=sources,
        offsets=offsets,
        lengths=lengths,
        checksums=checksums,
        files=ChunkRefs.file_column(files),
        locations=_NO_LOCATIONS,
        inline=b"",
    )
