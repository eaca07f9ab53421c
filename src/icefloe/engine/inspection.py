"""Describes the files of a repository as JSON, for people and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.config.plain_tree import to_plain
from icefloe.errors import NotFoundError
from icefloe.model.chunk_refs import ChunkKind
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from icefloe.engine.context import Context
    from icefloe.engine.info import Diff
    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import Manifest
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog

_SHOWN_CHUNKS = 100


def to_json(value: object, *, pretty: bool) -> str:
    """A description as JSON text."""
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=2) if pretty else text).decode()


def describe_repository(context: Context) -> dict[str, Any]:
    """The format, branches, tags, expired histories and configuration of a repository."""
    refs = context.refs.view()
    tips = {name: refs.tip(name) for name in sorted(refs.branches())}
    return {
        "location": context.storage.location,
        "generation": context.format.name,
        "spec_version": context.format.spec_version,
        "branches": {
            name: {"snapshot_id": str(tip.snapshot_id), "sequence": tip.sequence}
            for name, tip in tips.items()
            if tip is not None
        },
        "tags": {name: str(refs.tag(name)) for name in sorted(refs.tags())},
        "expired_behind": sorted(map(str, context.history.cuts.all())),
        "config": to_plain(context.config),
    }


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot without the documents of its nodes."""
    return {
        "id": str(snapshot.id),
        "parent_id": None if snapshot.parent_id is None else str(snapshot.parent_id),
        "flushed_at": snapshot.written_at.isoformat().replace("+00:00", "Z"),
        "commit_message": snapshot.message,
        "metadata": snapshot.public_metadata(),
        "manifests": [
            {"id": str(m.id), "size_bytes": m.size_bytes, "num_chunk_refs": m.num_chunk_refs}
            for m in snapshot.manifests
        ],
        "nodes": [_describe_node(node) for node in snapshot.nodes],
    }


def _describe_node(node: Node) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": str(node.id),
        "path": node.path,
        "node_type": "array" if node.is_array else "group",
    }
    if node.is_array:
        described["manifest_refs"] = [
            {
                "id": str(ref.manifest_id),
                "extents": list(map(list, zip(ref.extents.lower, ref.extents.upper, strict=True))),
            }
            for ref in node.manifests
        ]
    return described


def describe_manifest(context: Context, manifest_id: ManifestId) -> dict[str, Any]:
    """The content of a manifest by array, without the references.

    Raises:
        NotFoundError: If there is no such manifest.
    """
    if not is_there(context.storage, context.format.layout.manifest(manifest_id)):
        raise NotFoundError(
            f"there is no manifest {manifest_id} in {context.storage.location}; "
            "list_manifest_files tells those of a snapshot"
        )
    manifest = context.files.manifest(manifest_id, 0)
    arrays = [_describe_part(manifest, node_id) for node_id in manifest.index.arrays]
    return {
        "id": str(manifest_id),
        "num_chunk_refs": manifest.num_refs,
        "blocks": len(manifest.index.block_rows) - 1,
        "arrays": arrays,
    }


def _describe_part(manifest: Manifest, node_id: NodeId) -> dict[str, Any]:
    part = manifest.index.arrays[node_id]
    table = manifest.array(node_id)
    kinds = np.zeros(0, np.uint8) if table is None else table.refs.kinds
    lengths = np.zeros(0, np.uint64) if table is None else table.refs.lengths
    shown = (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE)
    return {
        "node_id": str(node_id),
        "extents": list(map(list, zip(part.extents.lower, part.extents.upper, strict=True))),
        "num_chunk_refs": part.count,
        "is_dense": part.is_dense,
        "chunks": {kind.name.lower(): int((kinds == kind).sum()) for kind in shown},
        "bytes": {kind.name.lower(): int(lengths[kinds == kind].sum()) for kind in shown},
    }


def describe_log(snapshot_id: SnapshotId, log: TransactionLog | None) -> dict[str, Any]:
    """What a commit changed, by node id, with the first chunks of each; None if unknown."""
    if log is None:
        return {
            "snapshot_id": str(snapshot_id),
            "is_known": False,
            "reason": "the parent, with which it would be compared, was collected as garbage",
        }
    nodes = {
        name: sorted(map(str, getattr(log, name)))
        for name in (
            "new_groups",
            "new_arrays",
            "deleted_groups",
            "deleted_arrays",
            "updated_groups",
            "updated_arrays",
        )
    }
    chunks = {
        str(node_id): {
            "count": len(index),
            "first": index.coords()[:_SHOWN_CHUNKS].tolist(),
        }
        for node_id, index in sorted(log.updated_chunks.items())
    }
    moves = [
        {"node_id": str(move.node_id), "from": move.source, "to": move.target} for move in log.moves
    ]
    return {
        "snapshot_id": str(snapshot_id),
        "is_known": True,
        **nodes,
        "updated_chunks": chunks,
        "moved": moves,
    }


def describe_node(node: Node) -> dict[str, Any]:
    """An array or group of a tree: its shape, data type and number of chunks; reads nothing."""
    described: dict[str, Any] = {
        "path": node.path,
        "name": node.path.rpartition("/")[2],
        "kind": "array" if node.is_array else "group",
    }
    if node.is_array:
        array = node.array
        described |= {
            "data_type": array.data_type,
            "shape": array.shape,
            "dimensions": array.dimension_names,
            "chunk_shape": array.chunk_shape,
            "chunks": node.num_refs,
            "chunks_in_grid": array.num_chunks,
        }
    return described


def describe_changes(diff: Diff) -> list[dict[str, Any]]:
    """What differs between two snapshots: one row for each node, with its number of chunks."""
    chunks = {path: len(index) for path, index in diff.chunk_indexes().items()}
    rows: list[dict[str, Any]] = [
        {"change": change, "kind": kind, "path": path, "chunks": chunks.pop(path, None)}
        for change, kind, paths in (
            ("created", "group", diff.new_groups),
            ("created", "array", diff.new_arrays),
            ("updated", "group", diff.updated_groups),
            ("updated", "array", diff.updated_arrays),
            ("deleted", "group", diff.deleted_groups),
            ("deleted", "array", diff.deleted_arrays),
        )
        for path in sorted(paths)
    ]
    rows += [
        {"change": "moved", "kind": "node", "path": source, "chunks": None, "moved_to": target}
        for source, target in diff.moved_nodes
    ]
    rows += [
        {"change": "written", "kind": "array", "path": path, "chunks": count}
        for path, count in chunks.items()
    ]
    return rows
