"""Moves the chunks of small and sparsely used chunk files into well-ordered packs, as one commit.

Bytes stay as they are, so the commit says that nothing changed: other writers need not rebase over
it, and it need not win over them. Where they changed a chunk meanwhile, theirs stays. Memory is
bounded by one pack and by the references that move.
"""

from __future__ import annotations

import logging
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    SessionStateError,
)
from icefloe.files.snapshot_chunks import SnapshotChunks
from icefloe.formats.port import ObjectKind
from icefloe.maintenance.candidates import list_objects
from icefloe.maintenance.id_sets import ID_TYPE, are_in, as_ids, id_bytes
from icefloe.maintenance.ranges import RangeSet
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import MOVED_CHUNKS
from icefloe.versioning.chunk_batches import ArrayReader
from icefloe.versioning.commit import CommitMessage, write_commit
from icefloe.versioning.doomed import pinned
from icefloe.versioning.leases import Lease
from icefloe.versioning.manifest_writer import ManifestWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.formats.port import BranchTip
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.versioning.context import Context

logger = logging.getLogger(__name__)

_HEADS = 1000


class CompactionOptions(NamedTuple):
    """What is worth being moved, and where to."""

    pack_bytes: int
    """Size of the new chunk files."""
    small_file_bytes: int
    """Chunk files of at most so many bytes are joined."""
    max_chunk_bytes: int
    """Files with chunks of more bytes than this are small only if they are sparse."""
    min_live_share: float
    """Chunk files of which less than this share is used are written anew."""

    def check(self) -> None:
        """Raise InvalidInputError unless the numbers make sense."""
        if self.pack_bytes < 1:
            raise InvalidInputError(f"pack_bytes is 1 or more, found {self.pack_bytes}")
        if not 0 <= self.min_live_share <= 1:
            raise InvalidInputError(f"min_live_share is 0 to 1, found {self.min_live_share}")


class CompactionSummary(msgspec.Struct, frozen=True):
    """What a compaction did, or would do."""

    snapshot_id: str | None
    """The new commit; None if nothing was worth it, or for a dry run."""
    old_files: int
    """Chunk files that the branch does not need any more."""
    new_files: int
    chunks: int
    bytes_copied: int
    bytes_freed: int
    """Bytes of the old files: they are free when older snapshots have expired and garbage is
    collected."""


class _Chosen(NamedTuple):
    files: npt.NDArray[np.bytes_]
    """Sorted ids of the files to be emptied."""
    file_bytes: int
    chunks: int
    live_bytes: int


class _Move(NamedTuple):
    """Chunks of one array that move: where they are, and where they were."""

    coords: npt.NDArray[np.uint64]
    old: ChunkRefs
    new: ChunkRefs


def compact_branch(
    context: Context,
    tip: BranchTip,
    options: CompactionOptions,
    said: CommitMessage,
    *,
    paths: list[str] | None,
    to_branch: str | None,
    dry_run: bool,
) -> CompactionSummary:
    """Compact the chunk files of a branch, or only those that some arrays use.

    The commit goes to the branch, or starts another one.
    """
    options.check()
    assert tip.snapshot_id is not None
    base = context.files.read_snapshot(tip.snapshot_id)
    nodes = [node for node in base.nodes if _is_wanted(node, paths)]
    chosen = _choose(context, base, nodes, options)
    packs = -(-chosen.live_bytes // options.pack_bytes)
    if dry_run or len(chosen.files) == 0:
        return CompactionSummary(
            None,
            len(chosen.files),
            packs,
            chosen.chunks,
            chosen.live_bytes,
            chosen.file_bytes,
        )
    with Lease(context.storage, holder="compaction") as lease:
        mover = _Mover(context, options)
        for node in nodes:
            mover.add(node, base, chosen.files)
        moves = mover.finish()
        if to_branch is None:
            snapshot_id = _publish(context, tip, moves, said, lease)
        else:
            snapshot_id = _start_branch(context, to_branch, base, moves, said)
    return CompactionSummary(
        snapshot_id,
        len(chosen.files),
        mover.packs,
        chosen.chunks,
        chosen.live_bytes,
        chosen.file_bytes,
    )


def _is_wanted(node: Node, paths: list[str] | None) -> bool:
    return node.is_array and bool(node.manifests) and (paths is None or node.path in paths)


# --- which files


def _choose(
    context: Context, base: Snapshot, nodes: list[Node], options: CompactionOptions
) -> _Chosen:
    ranges = RangeSet()
    for refs in _tables(context, base, nodes):
        ranges.add_native(refs.refs)
    found = ranges.ranges()
    ids, first, sums = found.by_source()
    if len(ids) == 0:
        return _Chosen(ids, 0, 0, 0)
    sizes = _sizes(context, ids, sums.ends.astype(np.int64))
    live = sums.used_bytes.astype(np.int64)
    largest = np.maximum.reduceat(found.lengths, first)
    is_sparse = live < options.min_live_share * sizes
    is_small = (sizes <= options.small_file_bytes) & (largest <= options.max_chunk_bytes)
    if int((is_small | is_sparse).sum()) == 1 and not is_sparse.any():
        is_small[:] = False  # nothing to join it with
    rows = np.flatnonzero(is_small | is_sparse)
    chosen = ids[rows]
    return _Chosen(
        chosen, int(sizes[rows].sum()), int(sums.counts[rows].sum()), int(live[rows].sum())
    )


def _sizes(
    context: Context, ids: npt.NDArray[np.bytes_], at_least: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Sizes of chunk files; of those that are missing, what is used of them."""
    sizes = at_least.copy()
    layout = context.format.layout
    if len(ids) <= _HEADS or not context.storage.capabilities.can_list:
        keys = [layout.chunk_file(ChunkFileId(id_bytes(value))) for value in ids.tolist()]
        heads = context.files.in_parallel(lambda key: _size(context, key), keys)
        for row, size in enumerate(heads):
            sizes[row] = at_least[row] if size is None else size
        return sizes
    listed = list_objects(context.storage, layout, ObjectKind.CHUNK_FILE)
    order = np.argsort(listed.ids)
    known = listed.ids[order]
    there = are_in(ids, known)
    sizes[there] = listed.sizes[order][np.searchsorted(known, ids[there])]
    return sizes


def _size(context: Context, key: str) -> int | None:
    try:
        return context.storage.head(key).size
    except ObjectNotFoundError:
        return None


def _tables(context: Context, base: Snapshot, nodes: list[Node]) -> Iterator[ArrayChunks]:
    chunks = SnapshotChunks(context.files, base)
    for node in nodes:
        yield from ArrayReader(base, chunks, node, None).tables()


# --- moving bytes


class _Waiting(NamedTuple):
    node_id: NodeId
    coords: npt.NDArray[np.uint64]
    refs: ChunkRefs


class _Mover:
    """Copies chunks into new packs, as many at a time as fit into one."""

    def __init__(self, context: Context, options: CompactionOptions) -> None:
        self._context = context
        self._options = options
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._moves: dict[NodeId, list[_Move]] = {}
        self.packs = 0

    def add(self, node: Node, base: Snapshot, chosen: npt.NDArray[np.bytes_]) -> None:
        """Move the chunks of an array that are in chosen files, in the order of the grid."""
        for table in _tables(self._context, base, [node]):
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
            room = max(self._options.pack_bytes - self._bytes, 0)
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
            if start < len(refs) or self._bytes >= self._options.pack_bytes:
                self._write()

    def finish(self) -> dict[NodeId, list[_Move]]:
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
            self._moves.setdefault(waiting.node_id, []).append(_Move(waiting.coords, old, new))
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


# --- committing


def _publish(
    context: Context,
    tip: BranchTip,
    moves: dict[NodeId, list[_Move]],
    said: CommitMessage,
    lease: Lease,
) -> str | None:
    """Commit the moves on the branch, wherever it is by now, if the lease has held."""
    current: BranchTip | None = tip
    for attempt in range(context.settings.publish_max_tries):
        if current is None or current.snapshot_id is None:
            raise ConflictError(f"branch {tip.branch!r} was deleted meanwhile")
        base = context.files.read_snapshot(current.snapshot_id)
        rewritten = _rewrite(context, base, moves)
        if rewritten is None:
            return None  # others have changed all of it
        snapshot = write_commit(
            context.files, rewritten, ChangeSet(rewritten.nodes), said, context.settings
        )
        try:
            context.refs.advance(current, snapshot.id)
        except ConflictError:
            longest = context.settings.publish_initial_backoff_ms * 2 ** min(attempt, 30)
            pause = min(longest, context.settings.publish_max_backoff_ms)
            time.sleep(random.uniform(0, pause) / 1000)
            current = context.refs.tip(tip.branch)
            # After that: a collection that comes later moves the branch again.
            if not lease.renew():
                raise SessionStateError(
                    "the compaction was suspended for longer than its lease held, and what it "
                    "wrote may have been collected; run it again"
                ) from None
        else:
            return str(snapshot.id)
    raise ConflictError(
        f"branch {tip.branch!r} moved {context.settings.publish_max_tries} times while the "
        "compaction was to be published; try again when fewer writers are at work"
    )


def _start_branch(
    context: Context,
    branch: str,
    base: Snapshot,
    moves: dict[NodeId, list[_Move]],
    said: CommitMessage,
) -> str:
    """Commit the moves as the beginning of a new branch; the other one may move meanwhile."""
    rewritten = _rewrite(context, base, moves)
    assert rewritten is not None
    snapshot = write_commit(
        context.files, rewritten, ChangeSet(rewritten.nodes), said, context.settings
    )
    with pinned(context.storage, context.format.layout, base.id):
        context.refs.create_branch(branch, snapshot.id)
    return str(snapshot.id)


def _rewrite(context: Context, base: Snapshot, moves: dict[NodeId, list[_Move]]) -> Snapshot | None:
    """A snapshot as if its chunks had always been where they moved to; only manifests are written.

    Only chunks move that are still where they were.
    """
    changes = ChangeSet(base.nodes)
    chunks = SnapshotChunks(context.files, base)
    for node_id, parts in moves.items():
        node = base.nodes.by_id(node_id)
        if node is None or node.array is None or not node.manifests:
            continue
        coords = np.concatenate([part.coords for part in parts])
        old = ChunkRefs.concat([part.old for part in parts])
        new = ChunkRefs.concat([part.new for part in parts])
        table = chunks.table(node)
        kept = _still_there(table, coords, old)
        if table is not None and len(kept):
            changes.edits(node).set_many(ArrayChunks.from_columns(coords[kept], new.take(kept)))
    if changes.is_empty:
        return None
    written = ManifestWriter(context.files, base, chunks, changes, context.settings).write()
    nodes = [
        node.evolve(manifests=written.refs[node.id]) if node.id in written.refs else node
        for node in base.nodes
    ]
    used = {ref.manifest_id for node in nodes for ref in node.manifests}
    listed = [info for info in (*base.manifests, *written.infos) if info.id in used]
    return msgspec.structs.replace(
        base,
        nodes=NodeTable.of(nodes),
        manifests=tuple(sorted(listed, key=lambda info: info.id)),
    )


def _still_there(
    table: ArrayChunks | None, coords: npt.NDArray[np.uint64], old: ChunkRefs
) -> npt.NDArray[np.intp]:
    """Rows of moves whose chunks are where they were when they were copied."""
    if table is None or table.index.rank != coords.shape[1]:
        return np.empty(0, dtype=np.intp)
    rows = table.index.find_many(coords)
    present = np.flatnonzero(rows >= 0)
    now = table.refs.take(rows[present])
    was = old.take(present)
    same = now.kinds == ChunkKind.NATIVE
    same &= (now.offsets == was.offsets) & (now.lengths == was.lengths)
    same[same] = _files_of(now, same) == _files_of(was, same)
    kept: npt.NDArray[np.intp] = present[same]
    return kept


def _files_of(refs: ChunkRefs, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bytes_]:
    files = as_ids(refs.files) if len(refs.files) else np.empty(1, dtype=ID_TYPE)
    chosen: npt.NDArray[np.bytes_] = files[refs.sources[rows]]
    return chosen


def message_of(message: str, metadata: dict[str, Any]) -> CommitMessage:
    """What a compaction says about itself."""
    return CommitMessage(message, {**metadata, MOVED_CHUNKS: True}, datetime.now(UTC))
