"""Compaction: moves chunks of small and sparsely used chunk files into packs, as one commit.

No byte of a chunk changes, and the log of the commit is empty: other writers need not rebase over
it, and where they changed a chunk in the meantime, theirs stays. Memory is bounded by one pack and
by the references that move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.engine.branches.refs import live_tip
from icefloe.engine.commit.manifests import ManifestWriter
from icefloe.engine.commit.write import CommitMessage, write_commit
from icefloe.engine.history.walk import check_new_name
from icefloe.engine.retention.branch_moves import retry_on_conflict, undo_creation
from icefloe.engine.retention.id_sets import ID_TYPE, IdSet, are_in, as_ids, id_bytes
from icefloe.engine.retention.pins import SnapshotLease
from icefloe.engine.retention.stored_objects import list_objects
from icefloe.engine.tree.chunk_batches import ArrayReader
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    SessionStateError,
)
from icefloe.formats.port import LiveTip, ObjectKind
from icefloe.html_tables import Report
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import MOVED_CHUNKS
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.objects.uploads import Uploads
from icefloe.progress import ProgressStage, track
from icefloe.storage.probe import ensure_conditional_writes
from icefloe.upkeep.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.config.settings import Settings
    from icefloe.engine.context import Context
    from icefloe.engine.retention.leases import Lease
    from icefloe.model.array_choice import ArrayChoice
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles

_HEADS = 1000


class CompactionOptions(NamedTuple):
    """Which chunk files are worth rewriting, and the size of the new ones."""

    pack_bytes: int
    """Size of the new chunk files."""
    small_file_bytes: int
    """Chunk files up to this size are joined."""
    max_chunk_bytes: int
    """Files with larger chunks are rewritten only if they are sparsely used."""
    min_live_share: float
    """Chunk files of which less than this share is used are rewritten."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        pack_bytes: int | None,
        small_file_bytes: int | None,
        max_chunk_bytes: int | None,
        min_live_share: float,
    ) -> CompactionOptions:
        """The options of a caller, with defaults from the settings of a repository."""
        size = settings.pack_bytes if pack_bytes is None else pack_bytes
        # A repository that packs nothing while writing may well do it afterwards.
        largest = settings.packed_chunk_threshold_bytes or type(settings)().pack_bytes // 32
        return cls(
            pack_bytes=size,
            small_file_bytes=size // 4 if small_file_bytes is None else small_file_bytes,
            max_chunk_bytes=largest if max_chunk_bytes is None else max_chunk_bytes,
            min_live_share=min_live_share,
        )

    def check(self) -> None:
        """Raise InvalidInputError unless the numbers make sense."""
        if self.pack_bytes < 1:
            raise InvalidInputError(f"pack_bytes is 1 or more, found {self.pack_bytes}")
        if not 0 <= self.min_live_share <= 1:
            raise InvalidInputError(f"min_live_share is 0 to 1, found {self.min_live_share}")


class CompactionSummary(Report, frozen=True):
    """What a compaction did, or would do."""

    snapshot_id: str | None
    """The new commit; None if nothing was worth rewriting, or for a dry run."""
    old_files: int
    """Chunk files that the branch no longer needs."""
    new_files: int
    chunks: int
    bytes_copied: int
    bytes_freed: int
    """Bytes of the old files, which are freed once older snapshots have expired and garbage is
    collected."""


class _Chosen(NamedTuple):
    files: npt.NDArray[np.bytes_]
    """Sorted ids of the files to be emptied."""
    file_bytes: int
    chunks: int
    live_bytes: int

    def summary(self, snapshot_id: str | None, new_files: int) -> CompactionSummary:
        return CompactionSummary(
            snapshot_id=snapshot_id,
            old_files=len(self.files),
            new_files=new_files,
            chunks=self.chunks,
            bytes_copied=self.live_bytes,
            bytes_freed=self.file_bytes,
        )


def compact_branch(
    context: Context,
    branch: str,
    options: CompactionOptions,
    *,
    message: str,
    metadata: dict[str, Any] | None = None,
    arrays: ArrayChoice = None,
    to_branch: str | None = None,
    dry_run: bool = False,
    writer: PackWriter | None = None,
) -> CompactionSummary:
    """Compact the chunk files of a branch, or only those that some arrays use.

    A file is emptied as a whole: chunks of other arrays in it move, too. The commit goes to the
    branch, or starts another one. Packs are written by the `writer`; in this process by default.
    """
    checked = CommitMessage.of(message, metadata, defaults={})
    checked.metadata[MOVED_CHUNKS] = True
    tip = live_tip(context.refs, branch)
    if to_branch is not None:
        _check_absent(context, to_branch)
    ensure_conditional_writes(context.storage)
    options.check()
    base = context.files.read_snapshot(tip.snapshot_id)
    nodes = [node for node in base.nodes if node.is_array and node.manifests]
    chosen = _choose(context, base, nodes, options, _chosen_paths(base, arrays))
    packs = -(-chosen.live_bytes // options.pack_bytes)
    if dry_run or len(chosen.files) == 0:
        return chosen.summary(None, packs)
    # Also on what it reads: with a branch of its own, the other one may go anywhere.
    with SnapshotLease(
        context.storage, context.format.layout, [base.id], holder="compaction"
    ) as lease:
        written = 0
        moves: dict[NodeId, list[ChunkMoves]] = {}
        planned = _plan_packs(context, base, nodes, chosen.files, options.pack_bytes)
        stage = ProgressStage("packs", packs)
        for pack, file_id in (writer or LocalPackWriter(context)).write_all(planned):
            stage.advance()
            written += 1
            for part, move in zip(pack, _moves(pack, file_id), strict=True):
                moves.setdefault(part.node_id, []).append(move)
        if to_branch is None:
            snapshot_id = _publish(context, tip, moves, checked, lease)
        else:
            snapshot = _commit_moves(context, base, moves, checked)
            snapshot_id = _start_branch(context, to_branch, snapshot, lease)
    return chosen.summary(snapshot_id, written)


def _check_absent(context: Context, branch: str) -> None:
    check_new_name(branch, "branch")
    if isinstance(context.refs.tip(branch), LiveTip):
        raise AlreadyExistsError(f"branch {branch!r} exists already")


def _chosen_paths(base: Snapshot, arrays: ArrayChoice) -> list[str] | None:
    if arrays is None:
        return None
    return chosen_arrays(arrays, [node.path for node in base.nodes if node.is_array])


# --- which files


def _choose(
    context: Context,
    base: Snapshot,
    nodes: list[ArrayNode],
    options: CompactionOptions,
    paths: list[str] | None,
) -> _Chosen:
    ranges = RangeSet()
    of_chosen_arrays = IdSet()
    for node in track(SnapshotChunks(context.files, base).fetched(nodes), "arrays", len(nodes)):
        is_chosen = paths is not None and node.path in paths
        for table in _tables_of(context, base, node):
            ranges.add_native(table.refs)
            if is_chosen:
                of_chosen_arrays.add(_files_used(table.refs))
    used = ranges.ranges()
    ids, first, sums = used.by_source()
    if len(ids) == 0:
        return _Chosen(files=ids, file_bytes=0, chunks=0, live_bytes=0)
    sizes = _sizes(context, ids, sums.ends.astype(np.int64))
    live = sums.used_bytes.astype(np.int64)
    largest = np.maximum.reduceat(used.lengths, first)
    is_sparse = live < options.min_live_share * sizes
    is_small = (sizes <= options.small_file_bytes) & (largest <= options.max_chunk_bytes)
    if paths is not None:
        is_eligible = are_in(ids, of_chosen_arrays.sorted())
        is_sparse &= is_eligible
        is_small &= is_eligible
    if int((is_small | is_sparse).sum()) == 1 and not is_sparse.any():
        is_small[:] = False  # nothing to join it with
    rows = np.flatnonzero(is_small | is_sparse)
    chosen = ids[rows]
    return _Chosen(
        files=chosen,
        file_bytes=int(sizes[rows].sum()),
        chunks=int(sums.counts[rows].sum()),
        live_bytes=int(live[rows].sum()),
    )


def _files_used(refs: ChunkRefs) -> npt.NDArray[np.bytes_]:
    """Ids of the chunk files that references use."""
    native = np.unique(refs.sources[refs.kinds == ChunkKind.NATIVE])
    files: npt.NDArray[np.bytes_] = (
        as_ids(refs.files)[native] if len(native) else np.empty(0, dtype=ID_TYPE)
    )
    return files


def _sizes(
    context: Context, ids: npt.NDArray[np.bytes_], at_least: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Sizes of chunk files; for missing ones, how much of them is referred to."""
    sizes = at_least.copy()
    layout = context.format.layout
    if len(ids) <= _HEADS or not context.storage.capabilities.can_list:
        keys = [layout.chunk_file(ChunkFileId(id_bytes(value))) for value in ids.tolist()]
        heads = context.files.in_parallel(lambda key: _size(context, key), keys)
        for row, size in enumerate(heads):
            sizes[row] = at_least[row] if size is None else size
        return sizes
    listed = list_objects(context.storage, layout, ObjectKind.CHUNK_FILE).sizes_of(ids)
    return np.where(listed >= 0, listed, sizes)


def _size(context: Context, key: str) -> int | None:
    try:
        return context.storage.head(key).size
    except ObjectNotFoundError:
        return None


# --- committing


def _publish(
    context: Context,
    tip: LiveTip,
    moves: dict[NodeId, list[ChunkMoves]],
    message: CommitMessage,
    lease: Lease,
) -> str | None:
    """Commit the moves on the branch, wherever it is by now, as long as the lease has held."""
    current = tip

    def attempt() -> str | None:
        base = context.files.read_snapshot(current.snapshot_id)
        snapshot = _commit_moves(context, base, moves, message)
        if snapshot is None:
            return None  # others have changed all of it
        context.refs.check_same_repository(current)  # copying may have taken hours
        context.refs.publish(current, snapshot)
        return str(snapshot.id)

    def follow_branch() -> None:
        nonlocal current
        newest = context.refs.tip(tip.branch)
        if not isinstance(newest, LiveTip):
            raise ConflictError(f"branch {tip.branch!r} was deleted in the meantime")
        current = newest
        # After the tip is read: a collection that starts later re-publishes the branch.
        _check(lease)

    return retry_on_conflict(context.settings, attempt, before_retry=follow_branch)


def _start_branch(context: Context, branch: str, snapshot: Snapshot | None, lease: Lease) -> str:
    """Create a branch at the commit; the branch that it is based on may move."""
    assert snapshot is not None
    context.refs.list_detached(snapshot)
    tip = context.refs.create_branch(branch, snapshot.id)
    try:
        # After the branch exists: a collection that starts later finds it.
        _check(lease)
    except SessionStateError:
        undo_creation(context.refs, tip)
        raise
    return str(snapshot.id)


def _commit_moves(
    context: Context, base: Snapshot, moves: dict[NodeId, list[ChunkMoves]], message: CommitMessage
) -> Snapshot | None:
    """Write a commit of the moves on top of a snapshot; None if none of them applies any more."""
    uploads = Uploads.where_it_helps(context.storage)
    files = context.files if uploads is None else context.files.through(uploads)
    try:
        rewritten = _rewrite(context, files, base, moves)
        if rewritten is None:
            return None
        changes = ChangeSet(rewritten.nodes)
        return write_commit(
            context.files, rewritten, changes, message, context.settings, uploads=uploads
        )
    except BaseException:
        if uploads is not None:
            uploads.abandon()
        raise


def _check(lease: Lease) -> None:
    """Raise SessionStateError if something that the lease protects may have been collected."""
    if not lease.renew():
        raise SessionStateError(
            "the compaction was suspended for longer than its lease held, and what it wrote may "
            "have been collected; run it again"
        ) from None


def _rewrite(
    context: Context,
    files: MetadataFiles,
    base: Snapshot,
    moves: dict[NodeId, list[ChunkMoves]],
) -> Snapshot | None:
    """The snapshot with its chunks where they moved to, as far as they are where they were.

    Writes manifests only, to `files`.
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
        rows = _unmoved(table, coords, old)
        if table is not None and len(rows):
            changes.edits(node).set_many(ArrayChunks.from_columns(coords[rows], new.take(rows)))
    if changes.is_empty:
        return None
    written = ManifestWriter(
        files=files, base=base, chunks=chunks, changes=changes, settings=context.settings
    ).write()
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


def _unmoved(
    table: ArrayChunks | None, coords: npt.NDArray[np.uint64], old: ChunkRefs
) -> npt.NDArray[np.intp]:
    """Rows of moves whose chunks are still where they were copied from."""
    if table is None or table.index.rank != coords.shape[1]:
        return np.empty(0, dtype=np.intp)
    rows = table.index.find_many(coords)
    present = np.flatnonzero(rows >= 0)
    now = table.refs.take(rows[present])
    was = old.take(present)
    same = now.kinds == ChunkKind.NATIVE
    same &= (now.offsets == was.offsets) & (now.lengths == was.lengths)
    same[same] = _files_of(now, same) == _files_of(was, same)
    unmoved: npt.NDArray[np.intp] = present[same]
    return unmoved


def _files_of(refs: ChunkRefs, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bytes_]:
    files = as_ids(refs.files) if len(refs.files) else np.empty(1, dtype=ID_TYPE)
    chosen: npt.NDArray[np.bytes_] = files[refs.sources[rows]]
    return chosen


# --- copying


class ChunkMoves(NamedTuple):
    """Chunks of one array that were copied: from where, and to where."""

    coords: npt.NDArray[np.uint64]
    old: ChunkRefs
    new: ChunkRefs


def _tables_of(context: Context, base: Snapshot, node: ArrayNode) -> Iterator[ArrayChunks]:
    """The chunk references of an array, table by table, in the order of the grid."""
    return ArrayReader(base, SnapshotChunks(context.files, base), node, None).tables()


class PackPart(NamedTuple):
    """Chunks of one array that go into a pack."""

    node_id: NodeId
    coords: npt.NDArray[np.uint64]
    refs: ChunkRefs
    """Where they are now."""


class PackWriter(Protocol):
    """Copies chunks into packs: here, or on a cluster."""

    def write_all(
        self, packs: Iterator[list[PackPart]]
    ) -> Iterator[tuple[list[PackPart], ChunkFileId]]:
        """Write packs; yields each with the id of the new chunk file."""


class LocalPackWriter:
    """Writes packs in this process, one at a time."""

    def __init__(self, context: Context) -> None:
        """Take the repository."""
        self._context = context

    def write_all(
        self, packs: Iterator[list[PackPart]]
    ) -> Iterator[tuple[list[PackPart], ChunkFileId]]:
        """Write packs; yields each with the id of the new chunk file."""
        for pack in packs:
            yield pack, write_pack(self._context, [part.refs for part in pack])


def write_pack(context: Context, parts: Sequence[ChunkRefs]) -> ChunkFileId:
    """Copy chunks, one after the other, into a new chunk file."""
    file_id = ChunkFileId.random()
    # Of all arrays together, so that each file is read once and all at the same time.
    pieces = _read(context, ChunkRefs.concat(parts).with_distinct_files())
    context.storage.put(context.format.layout.chunk_file(file_id), b"".join(pieces))
    return file_id


def _moves(pack: list[PackPart], file_id: ChunkFileId) -> Iterator[ChunkMoves]:
    """Where the chunks of a pack were and are."""
    start = 0
    for part in pack:
        ends = np.cumsum(part.refs.lengths)
        new = _moved(part.refs, file_id, ends - part.refs.lengths + np.uint64(start))
        start += int(ends[-1])
        yield ChunkMoves(part.coords, part.refs.compact(), new)


def _plan_packs(
    context: Context,
    base: Snapshot,
    nodes: list[ArrayNode],
    chosen: npt.NDArray[np.bytes_],
    pack_bytes: int,
) -> Iterator[list[PackPart]]:
    """The chunks that are in chosen files, in packs by the order of the grid."""
    packer = _Packer(pack_bytes)
    for node in SnapshotChunks(context.files, base).fetched(nodes):
        for table in _tables_of(context, base, node):
            native = table.refs.kinds == ChunkKind.NATIVE
            files = as_ids(table.refs.files)
            in_chosen = np.zeros(len(native), dtype=np.bool_)
            in_chosen[native] = are_in(files, chosen)[table.refs.sources[native]]
            rows = np.flatnonzero(in_chosen)
            if len(rows):
                coords = table.index.coords()[rows]
                yield from packer.add(node.id, coords, table.refs.take(rows))
    yield from packer.finish()


class _Packer:
    """Divides chunks into packs of a size."""

    def __init__(self, pack_bytes: int) -> None:
        self._pack_bytes = pack_bytes
        self._waiting: list[PackPart] = []
        self._bytes = 0

    def add(
        self, node_id: NodeId, coords: npt.NDArray[np.uint64], refs: ChunkRefs
    ) -> Iterator[list[PackPart]]:
        """Add chunks of an array; yields the packs that are full."""
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
                    PackPart(node_id, coords[rows], refs.slice(start, start + count))
                )
                self._bytes += int(filled[count - 1])
                start += count
            if start < len(refs) or self._bytes >= self._pack_bytes:
                yield from self.finish()

    def finish(self) -> Iterator[list[PackPart]]:
        """Yield the last pack, which may be small."""
        if self._waiting:
            yield self._waiting
        self._waiting, self._bytes = [], 0


def _read(context: Context, refs: ChunkRefs) -> list[bytes]:
    """The bytes of native chunks, file by file."""
    order = np.argsort(refs.sources, kind="stable")
    used, first = np.unique(refs.sources[order], return_index=True)
    groups = np.split(order, first[1:])
    parts = context.files.in_parallel(
        lambda job: _read_file(context, refs, job[0], job[1]),
        zip(used.tolist(), groups, strict=True),
    )
    pieces: list[bytes] = [b""] * len(refs)
    for rows, chunks in zip(groups, parts, strict=True):
        for row, data in zip(rows.tolist(), chunks, strict=True):
            pieces[row] = data
    return pieces


def _read_file(
    context: Context, refs: ChunkRefs, source: int, rows: npt.NDArray[np.intp]
) -> list[bytes]:
    key = context.format.layout.chunk_file(ChunkFileId(refs.files[source].tobytes()))
    ranges = list(zip(refs.offsets[rows].tolist(), refs.lengths[rows].tolist(), strict=True))
    try:
        chunks = context.storage.get_ranges(key, ranges)
    except ObjectNotFoundError:
        raise FormatError(
            f"chunk file {key} is missing, although a manifest refers to it", key
        ) from None
    if any(len(data) != length for data, (_, length) in zip(chunks, ranges, strict=True)):
        raise FormatError(f"chunk file {key} is shorter than a manifest says", key)
    return chunks


def _moved(refs: ChunkRefs, file_id: ChunkFileId, offsets: npt.NDArray[np.uint64]) -> ChunkRefs:
    """The same chunks in another file."""
    return ChunkRefs(
        kinds=refs.kinds,
        sources=np.zeros(len(refs), dtype=np.uint32),
        offsets=offsets,
        lengths=refs.lengths,
        checksums=refs.checksums,
        files=np.frombuffer(file_id, dtype=np.uint8).reshape(1, ChunkFileId.SIZE),
        locations=Locations.none(),
        inline=b"",
    )
