"""Turns the changes of a session into a new snapshot that nobody sees until it is published.

Invariants, cited by tests:

C1  Chunk files, manifests, attribute files and the log are written before the snapshot, and the
    snapshot before the reference that publishes it. A writer that dies leaves only garbage.
C2  A manifest that no changed array uses is linked, never rewritten (R0-26, R4-63).
C3  `written_at` grows along every history; a clock that went back is corrected by a microsecond.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from icefloe.changes.logs import combine
from icefloe.files.attributes import split_document
from icefloe.files.snapshot_chunks import SnapshotChunks
from icefloe.model.ids import SnapshotId
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.record import Record
from icefloe.model.snapshot import AttributesFileInfo, Snapshot
from icefloe.versioning.manifest_writer import ManifestWriter, touched_together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.changes.change_set import ChangeSet
    from icefloe.config.settings import Settings
    from icefloe.files.metadata import MetadataFiles
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ManifestFileInfo
    from icefloe.model.transaction_log import TransactionLog

logger = logging.getLogger(__name__)


MAX_HISTORY = 1000
"""Ancestors that a snapshot in memory remembers; files keep as many as their layout allows."""


class CommitMessage(Record, frozen=True):
    """What the committer says about a commit."""

    message: str
    metadata: dict[str, Any]
    started_at: datetime


def write_commit(
    files: MetadataFiles,
    base: Snapshot,
    changes: ChangeSet,
    said: CommitMessage,
    settings: Settings,
    *,
    parent: Snapshot | None = None,
    replaced: TransactionLog | None = None,
) -> Snapshot:
    """Write everything of a commit but its publication; returns the new snapshot.

    An amended commit has the parent of `base`, and takes along the log of what it replaces.
    """
    parent = parent or base
    chunks = SnapshotChunks(files, base)
    written = ManifestWriter(files, base, chunks, changes, settings).write()
    nodes, attribute_files = _with_attributes(
        files,
        base,
        _new_nodes(changes, written.refs),
        settings.inline_attributes_threshold_bytes,
    )
    snapshot = Snapshot(
        id=SnapshotId.random(),
        parent_id=parent.id,
        written_at=_after(base.written_at),
        started_at=said.started_at,
        message=said.message,
        metadata=said.metadata,
        total_parents=parent.total_parents + 1,
        history=(parent.stub(), *parent.history[: MAX_HISTORY - 1]),
        manifests=_listed_manifests(base, nodes, written.infos),
        attribute_files=attribute_files,
        nodes=nodes,
    )
    log = changes.log(written.touched)
    files.write_transaction_log(snapshot.id, log if replaced is None else combine([replaced, log]))
    files.write_snapshot(snapshot)
    return snapshot


def touched_chunks(changes: ChangeSet, chunks: SnapshotChunks) -> dict[NodeId, ChunkIndex]:
    """Which chunks were set or deleted in each array."""
    touched = {}
    for node_id in changes.chunks.keys() | changes.linked.keys():
        edits = changes.chunks.get(node_id)
        node = changes.base.by_id(node_id) if edits is not None and edits.cleared else None
        old = None if node is None else chunks.table(node)
        index = touched_together(edits, changes.linked.get(node_id, ()), old)
        if index is not None:
            touched[node_id] = index
    return touched


def _new_nodes(changes: ChangeSet, refs: Mapping[NodeId, tuple[ManifestRef, ...]]) -> list[Node]:
    """All nodes of the new snapshot, with the manifests that were just written."""
    nodes = changes.all_nodes()
    if not refs:
        return nodes
    return [node.evolve(manifests=refs[node.id]) if node.id in refs else node for node in nodes]


def _with_attributes(
    files: MetadataFiles, base: Snapshot, nodes: list[Node], threshold: int
) -> tuple[NodeTable, tuple[AttributesFileInfo, ...]]:
    """Move attributes that are too large for the snapshot to an attribute file (R1-06, H-07)."""
    kept: list[Node] = []
    rows: list[bytes] = []
    spilled: list[tuple[Node, bytes, int]] = []
    for node in nodes:
        parts = None if node.attributes else split_document(node.document, threshold)
        if parts is None:
            kept.append(node)
        else:
            rest, attributes, position = parts
            spilled.append((node, rest, position))
            rows.append(attributes)
    infos = {info.id: info for info in base.attribute_files}
    if rows:
        file_id, size = files.write_attributes(rows)
        infos[file_id] = AttributesFileInfo(file_id, size)
        kept += [
            node.evolve(document=rest, attributes=AttributesRef(file_id, row, position))
            for row, (node, rest, position) in enumerate(spilled)
        ]
    used = {node.attributes.file for node in kept if node.attributes is not None}
    listed = tuple(info for file_id, info in infos.items() if file_id in used)
    return NodeTable.of(kept), listed


def _listed_manifests(
    base: Snapshot, nodes: NodeTable, written: list[ManifestFileInfo]
) -> tuple[ManifestFileInfo, ...]:
    """Every manifest that some node points to (R1-29), sorted by id."""
    used = {ref.manifest_id for node in nodes for ref in node.manifests}
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
