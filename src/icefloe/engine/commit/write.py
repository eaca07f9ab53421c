"""Writes the changes of a tree as a new snapshot, which is invisible until it is published.

Invariants, cited by tests:

C1  Chunk files, manifests, attribute files and the log are written before the snapshot, in any
    order or at the same time, and the snapshot before the reference that publishes it. A writer
    that dies leaves only garbage.
C2  A manifest that no changed array uses is linked, never rewritten (R0-26, R4-63).
C3  `written_at` grows along every history; a clock that went back is corrected by a microsecond.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.changes.compare import net_moves
from icefloe.changes.logs import combine
from icefloe.engine.commit.commit_metadata import check_message, plain_metadata
from icefloe.engine.commit.manifests import ManifestWriter, edits_within_grid, touched_together
from icefloe.engine.commit.node_numbers import NodeOrigin, number_nodes
from icefloe.engine.history.walk import compared_step
from icefloe.engine.info import Diff
from icefloe.model.ids import SnapshotId
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.record import Record
from icefloe.model.snapshot import MOVED_CHUNKS, Snapshot, merged_mark
from icefloe.model.transaction_log import TransactionLog
from icefloe.objects.attributes import split_document
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.objects.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.config.settings import Settings
    from icefloe.engine.commit.manifests import WrittenManifests
    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest import ManifestFileInfo
    from icefloe.model.snapshot import AttributesFileInfo
    from icefloe.objects.metadata import MetadataFiles

logger = logging.getLogger(__name__)


MAX_HISTORY = 1000
"""Ancestors that a snapshot in memory remembers; files keep as many as their layout allows."""


class CommitMessage(Record, frozen=True):
    """The message and properties of a commit, and when work on it began."""

    message: str
    metadata: dict[str, Any]
    started_at: datetime

    @classmethod
    def of(
        cls,
        message: Any,
        metadata: Any,
        *,
        defaults: Mapping[str, Any],
        started_at: datetime | None = None,
    ) -> CommitMessage:
        """Check what a committer gives; raises InvalidTypeError for what cannot be stored.

        Args:
            message: The message.
            metadata: Properties, or None.
            defaults: Properties that hold unless `metadata` has others.
            started_at: When work began; now by default.
        """
        properties = {} if metadata is None else plain_metadata(metadata)
        return cls(
            message=check_message(message),
            metadata={**defaults, **properties},
            started_at=started_at or datetime.now(UTC),
        )


class Replaced(Record, frozen=True):
    """Commits that a new commit takes the place of."""

    parent: Snapshot
    """The commit before them."""
    log: TransactionLog
    """What all of them changed."""


def write_commit(
    files: MetadataFiles,
    base: Snapshot,
    changes: ChangeSet,
    message: CommitMessage,
    settings: Settings,
    *,
    replaced: Replaced | None = None,
    new_nodes: NodeOrigin = NodeOrigin.SESSION,
    uploads: Uploads | None = None,
    checks: Sequence[Callable[[], None]] = (),
) -> Snapshot:
    """Write everything of a commit but the reference that publishes it; returns the snapshot.

    Args:
        files: Where objects are written.
        base: The snapshot that the changes are laid over.
        changes: The changes.
        message: Message and properties.
        settings: How manifests are split, and what is kept inline.
        replaced: The commits that this one takes the place of, `base` the last of them; see
            `as_one` for more than one. By default, it follows `base`.
        new_nodes: Where the new nodes come from.
        uploads: What may write all but the snapshot at the same time, perhaps chunks already.
        checks: What has to hold, or raises an error, before the snapshot is written; they may
            need the storage, and run beside the uploads.
    """
    uploads = Uploads.where_it_helps(files.storage) if uploads is None else uploads
    parts = files if uploads is None else files.through(uploads)
    for check in checks:
        if uploads is None:
            check()
        else:
            uploads.check(check)
    parent = base if replaced is None else replaced.parent
    numbered = number_nodes(changes, base, files.format.node_numbering, new_nodes)
    changes = numbered.changes
    chunks = SnapshotChunks(parts, base)
    chunks.fetch_edited(changes)
    written = ManifestWriter(parts, base, chunks, changes, settings, numbered.others).write()
    edits, new_file = _with_attributes(
        parts, _edited_nodes(changes, written), settings.inline_attributes_threshold_bytes
    )
    nodes = base.nodes.renamed(written.replaced).spliced(edits)
    log = changes.log(written.touched)
    snapshot = Snapshot(
        id=SnapshotId.random(),
        parent_id=parent.id,
        written_at=_after(base.written_at),
        started_at=message.started_at,
        message=message.message,
        metadata={**message.metadata, **numbered.properties},
        total_parents=parent.total_parents + 1,
        history=(parent.stub(), *parent.history[: MAX_HISTORY - 1]),
        manifests=_listed_manifests(base, nodes, written.infos),
        attribute_files=_listed_attribute_files(base, nodes, new_file),
        nodes=nodes,
        parent_file=parent.own_file,
    )
    if replaced is not None:
        if uploads is not None:
            uploads.wait()  # what was just written may be read
        log = combine([replaced.log, log])
        if log.moves:  # of a node that moved twice, where it was at first
            moves = net_moves(list(parent.nodes), list(nodes))
            log = msgspec.structs.replace(log, moves=moves)
        snapshot, log = _in_place_of(files, base, parent, snapshot, log)
    log_file = parts.write_transaction_log(snapshot, log)
    if uploads is not None:
        uploads.wait()
    return files.write_snapshot(msgspec.structs.replace(snapshot, log_file=log_file))


def as_one(commits: Iterator[Snapshot]) -> Snapshot:
    """The newest of some commits, given newest first, remembering what all of them do.

    As the base of a commit that takes the place of all of them.
    """
    newest = next(commits)
    merged, line = list(newest.merged_ids()), list(newest.merged_line())
    moved = bool(newest.metadata.get(MOVED_CHUNKS))
    for commit in commits:
        merged += commit.merged_ids()
        line += commit.merged_line()
        moved |= bool(commit.metadata.get(MOVED_CHUNKS))
    marks = merged_mark(merged, line) | ({MOVED_CHUNKS: True} if moved else {})
    return msgspec.structs.replace(newest, metadata={**newest.metadata, **marks})


def _in_place_of(
    files: MetadataFiles, base: Snapshot, parent: Snapshot, snapshot: Snapshot, log: TransactionLog
) -> tuple[Snapshot, TransactionLog]:
    """A snapshot that takes the place of `base`, and its log, with what that one remembers.

    Without it, later merges would merge the same commits again.
    """
    marks = merged_mark(base.merged_ids(), base.merged_line())
    if base.metadata.get(MOVED_CHUNKS):
        if not log.updated_chunks:
            marks[MOVED_CHUNKS] = True
        elif files.format.keeps_logs:
            # The mark is about all chunks of a commit. Without it, those that moved have changed.
            chunks = compared_step(files, parent, snapshot).updated_chunks
            log = combine([log, TransactionLog(updated_chunks=chunks)])
    return msgspec.structs.replace(snapshot, metadata={**marks, **snapshot.metadata}), log


def touched_chunks(changes: ChangeSet, chunks: SnapshotChunks) -> dict[NodeId, ChunkIndex]:
    """Which chunks were set or deleted in each array."""
    touched = {}
    for node_id in changes.chunks.keys() | changes.linked.keys():
        edits = changes.chunks.get(node_id)
        node = changes.base.array_by_id(node_id) if edits is not None and edits.cleared else None
        old = None if node is None else chunks.table(node)
        index = touched_together(edits, changes.linked.get(node_id, ()), old)
        if index is not None:
            touched[node_id] = index
    return touched


def uncommitted_diff(tree: WorkingTree) -> Diff:
    """The difference between a tree and its snapshot."""
    with tree.lock:
        changes, chunks = tree.changes, tree.chunks
        touched = touched_chunks(changes, chunks)
        for node_id in changes.documents:
            node = changes.array_by_id(node_id)
            if node is not None:
                index = edits_within_grid(tree.context.files, chunks, node, changes).touched(None)
                both = [each for each in (touched.get(node_id), index) if each is not None]
                if both:
                    touched[node_id] = both[0].union(*both[1:])
        log = changes.log(touched)
        return Diff(log, tree.snapshot.nodes, NodeTable.of(tree.changes.all_nodes()))


def _edited_nodes(changes: ChangeSet, written: WrittenManifests) -> dict[str, Node | None]:
    """What is now at the paths where something changed, with the manifests just written."""
    edited = changes.edited_nodes()
    for path, node in edited.items():
        if node is not None and any(ref.manifest_id in written.replaced for ref in node.manifests):
            edited[path] = node.evolve(manifests=_renamed(node.manifests, written.replaced))
    for node_id, manifests in written.refs.items():
        array = changes.array_by_id(node_id)
        if array is not None:
            edited[array.path] = array.evolve(manifests=manifests)
    return edited


def _renamed(
    refs: tuple[ManifestRef, ...], replaced: Mapping[ManifestId, ManifestId]
) -> tuple[ManifestRef, ...]:
    return tuple(
        ManifestRef(replaced.get(ref.manifest_id, ref.manifest_id), ref.extents, ref.num_refs)
        for ref in refs
    )


def _with_attributes(
    files: MetadataFiles, edited: dict[str, Node | None], threshold: int
) -> tuple[dict[str, Node | None], AttributesFileInfo | None]:
    """Move attributes that are too large for the snapshot to an attribute file (R1-06, H-07)."""
    rows: list[bytes] = []
    spilled: list[tuple[Node, bytes, int]] = []
    for node in edited.values():
        if node is None or node.attributes is not None:
            continue
        parts = split_document(node.document, threshold)
        if parts is not None:
            rest, attributes, position = parts
            spilled.append((node, rest, position))
            rows.append(attributes)
    if not rows:
        return edited, None
    file = files.write_attributes(rows)
    moved = {
        node.path: node.evolve(document=rest, attributes=AttributesRef(file.id, row, position))
        for row, (node, rest, position) in enumerate(spilled)
    }
    return {**edited, **moved}, file


def _listed_attribute_files(
    base: Snapshot, nodes: NodeTable, new: AttributesFileInfo | None
) -> tuple[AttributesFileInfo, ...]:
    """Every attribute file that some node points to (R1-30)."""
    used = {ref.file for ref in nodes.columns().attributes.values()}
    known = base.attribute_files if new is None else (*base.attribute_files, new)
    return tuple([info for info in known if info.id in used])


def _listed_manifests(
    base: Snapshot, nodes: NodeTable, written: list[ManifestFileInfo]
) -> tuple[ManifestFileInfo, ...]:
    """Every manifest that some node points to (R1-29), sorted by id."""
    used = nodes.columns().refs.used_manifests()
    listed = [info for info in (*base.manifests, *written) if info.id in used]
    return tuple(sorted(listed, key=lambda info: info.id))


def _after(earlier: datetime) -> datetime:
    """Now, or just after the parent if the clock says that it is later than now (C3, H-28)."""
    now = datetime.now(UTC)
    if now > earlier:
        return now
    if earlier - now > timedelta(minutes=5):
        logger.warning("the clock is %s behind the time of the parent snapshot", earlier - now)
    return earlier + timedelta(microseconds=1)
