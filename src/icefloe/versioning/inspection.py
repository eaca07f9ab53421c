"""Describes a snapshot as plain values, for people and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Everything that a snapshot says but the nodes' documents."""
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
