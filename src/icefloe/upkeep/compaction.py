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
from icefloe.engine.commit.manifests import ManifestWriter
from icefloe.engine.commit.write import CommitMessage, write_commit
from icefloe.engine.retention.announcements import SnapshotLease
from icefloe.engine.retention.branch_moves import take_back
from icefloe.engine.retention.candidates import list_objects
from icefloe.engine.retention.id_sets import ID_TYPE, IdSet, are_in, as_ids, id_bytes
from icefloe.errors import ConflictError, InvalidInputError, ObjectNotFoundError, SessionStateError
from icefloe.formats.port import LiveTip, ObjectKind
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import MOVED_CHUNKS
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.upkeep.chunk_moves import ChunkMover, tables_of
from icefloe.upkeep.ranges import RangeSet

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.leases import Lease
    from icefloe.formats.port import BranchTip
    from icefloe.model.array_choice import ArrayChoice
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot
    from icefloe.upkeep.chunk_moves import Move

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


def compact_branch(
    context: Context,
    tip: LiveTip,
    options: CompactionOptions,
    said: CommitMessage,
    *,
    arrays: ArrayChoice,
    to_branch: str | None,
    dry_run: bool,
) -> CompactionSummary:
    """Compact the chunk files of a branch, or only those that some arrays use.

    A file is emptied as a whole: what other arrays have in it moves along. The commit goes to the
    branch, or starts another one.
    """
    options.check()
    base = context.files.read_snapshot(tip.snapshot_id)
    nodes = [node for node in base.nodes if node.is_array and node.manifests]
    chosen = _choose(context, base, nodes, options, _wanted(base, arrays))
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
    # On what it reads, too: with a branch of its own it does not matter where the other one goes.
    with SnapshotLease(
        context.storage, context.format.layout, [base.id], holder="compaction"
    ) as lease:
        mover = ChunkMover(context, base, options.pack_bytes)
        for node in nodes:
            mover.add(node, chosen.files)
        moves = mover.finish()
        if to_branch is None:
            snapshot_id = _publish(context, tip, moves, said, lease)
        else:
            snapshot_id = _start_branch(context, to_branch, base, moves, said, lease)
    return CompactionSummary(
        snapshot_id,
        len(chosen.files),
        mover.packs,
        chosen.chunks,
        chosen.live_bytes,
        chosen.file_bytes,
    )


def _wanted(base: Snapshot, arrays: ArrayChoice) -> list[str] | None:
    if arrays is None:
        return None
    return chosen_arrays(arrays, [node.path for node in base.nodes if node.is_array])


# --- which files


def _choose(
    context: Context,
    base: Snapshot,
    nodes: list[ArrayNode],
    options: CompactionOptions,
    wanted: list[str] | None,
) -> _Chosen:
    ranges = RangeSet()
    of_wanted = IdSet()
    for node in nodes:
        is_wanted = wanted is not None and node.path in wanted
        for table in tables_of(context, base, node):
            ranges.add_native(table.refs)
            if is_wanted:
                of_wanted.add(_files_used(table.refs))
    found = ranges.ranges()
    ids, first, sums = found.by_source()
    if len(ids) == 0:
        return _Chosen(ids, 0, 0, 0)
    sizes = _sizes(context, ids, sums.ends.astype(np.int64))
    live = sums.used_bytes.astype(np.int64)
    largest = np.maximum.reduceat(found.lengths, first)
    is_sparse = live < options.min_live_share * sizes
    is_small = (sizes <= options.small_file_bytes) & (largest <= options.max_chunk_bytes)
    if wanted is not None:
        counts = are_in(ids, of_wanted.sorted())
        is_sparse &= counts
        is_small &= counts
    if int((is_small | is_sparse).sum()) == 1 and not is_sparse.any():
        is_small[:] = False  # nothing to join it with
    rows = np.flatnonzero(is_small | is_sparse)
    chosen = ids[rows]
    return _Chosen(
        chosen, int(sizes[rows].sum()), int(sums.counts[rows].sum()), int(live[rows].sum())
    )


def _files_used(refs: ChunkRefs) -> npt.NDArray[np.bytes_]:
    """Ids of the chunk files that references lead to."""
    native = np.unique(refs.sources[refs.kinds == ChunkKind.NATIVE])
    files: npt.NDArray[np.bytes_] = (
        as_ids(refs.files)[native] if len(native) else np.empty(0, dtype=ID_TYPE)
    )
    return files


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


# --- committing


def _publish(
    context: Context,
    tip: LiveTip,
    moves: dict[NodeId, list[Move]],
    said: CommitMessage,
    lease: Lease,
) -> str | None:
    """Commit the moves on the branch, wherever it is by now, if the lease has held."""
    current: BranchTip | None = tip
    for attempt in range(context.settings.publish_max_tries):
        if not isinstance(current, LiveTip):
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
            _check(lease)
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
    moves: dict[NodeId, list[Move]],
    said: CommitMessage,
    lease: Lease,
) -> str:
    """Commit the moves as the beginning of a new branch; the other one may move meanwhile."""
    rewritten = _rewrite(context, base, moves)
    assert rewritten is not None
    snapshot = write_commit(
        context.files, rewritten, ChangeSet(rewritten.nodes), said, context.settings
    )
    tip = context.refs.create_branch(branch, snapshot.id)
    try:
        # After that: a collection that comes later sees the branch.
        _check(lease)
    except SessionStateError:
        take_back(context.refs, tip)
        raise
    return str(snapshot.id)


def _check(lease: Lease) -> None:
    """Raise SessionStateError unless nothing that the lease protects can have been collected."""
    if not lease.renew():
        raise SessionStateError(
            "the compaction was suspended for longer than its lease held, and what it wrote may "
            "have been collected; run it again"
        ) from None


def _rewrite(context: Context, base: Snapshot, moves: dict[NodeId, list[Move]]) -> Snapshot | None:
    """A snapshot as if its chunks had always been where they moved to; only manifests are written.

    Only chunks move that are still where they were.
    """
    changes = ChangeSet(base.nodes)
    chunks = SnapshotChunks(context.files, base)
    for node_id, parts in moves.items():
        node = base.nodes.array_by_id(node_id)
        if node is None or not node.manifests:
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
        node.evolve(manifests=refs)
        if node.is_array and (refs := written.refs.get(node.id)) is not None
        else node
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
