"""The nodes of a snapshot with the changes of a user on top."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from icefloe.changes.change_set import ChangeSet
from icefloe.engine.async_twin import async_twin
from icefloe.errors import NodeNotFoundError, ReadOnlyError
from icefloe.model import paths
from icefloe.model.nodes import expect_array
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.config.settings import Settings
    from icefloe.engine.context import Context
    from icefloe.model.nodes import ArrayNode, Node
    from icefloe.model.snapshot import Snapshot


class View(NamedTuple):
    """A snapshot with changes laid over it; they only make sense together."""

    snapshot: Snapshot
    chunks: SnapshotChunks
    changes: ChangeSet

    def array(self, path: str) -> ArrayNode:
        """The array at a path; raises NodeNotFoundError."""
        return expect_array(self.changes.get(path), path)


class NodeTree:
    """Reads and edits nodes. Threads and event loops may share it.

    Edits are made under a lock. Readers take none: they look at one view, which a commit or a
    rebase replaces as a whole, and find each edit in it made or not made, never half.
    """

    def __init__(self, context: Context, snapshot: Snapshot) -> None:
        """Start from a snapshot, without changes."""
        self._context = context
        self._lock = threading.RLock()
        self._show(snapshot)

    def _show(self, snapshot: Snapshot, changes: ChangeSet | None = None) -> None:
        """Show a snapshot and the changes that are laid over it, if any."""
        chunks = SnapshotChunks(self._context.files, snapshot)
        self._view = View(snapshot, chunks, changes or ChangeSet(snapshot.nodes))

    @property
    def _snapshot(self) -> Snapshot:
        return self._view.snapshot

    @property
    def _changes(self) -> ChangeSet:
        return self._view.changes

    @property
    def settings(self) -> Settings:
        """What holds under the configuration."""
        return self._context.settings

    @property
    def read_only(self) -> bool:
        """Whether nothing can be edited."""
        return True

    def get_node(self, path: str) -> Node | None:
        """The node at a canonical path, as the session sees it."""
        return self._changes.get(path)

    def get_node_id(self, path: str) -> str:
        """The id of a node, which it keeps for life, also when it is moved."""
        return str(self._node(paths.canonical(path)).id)

    def document(self, path: str) -> bytes | None:
        """The zarr.json at a path, byte for byte as it was written."""
        node = self._changes.get(path)
        return None if node is None else self._context.files.document(node, self._snapshot)

    def set_document(self, path: str, document: bytes) -> None:
        """Create a node or change its metadata."""
        with self._lock:
            self._check_writable()
            if self.document(path) != document:
                self._changes.set_document(path, document)

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it, if it exists."""
        with self._lock:
            self._check_writable()
            self._changes.delete(path)

    def delete_chunks(self, path: str) -> None:
        """Delete all chunks of an array, if it exists."""
        with self._lock:
            self._check_writable()
            node = self._changes.get(path)
            if node is not None and node.is_array:
                self._changes.clear_chunks(node)

    def node_paths(self, below: str) -> Sequence[str]:
        """Sorted paths of all nodes below a path."""
        with self._lock:
            return self._changes.paths_below(below)

    def array_paths(self) -> list[str]:
        """Sorted paths of all arrays."""
        nodes = ((path, self.get_node(path)) for path in ("/", *self.node_paths("/")))
        return [path for path, node in nodes if node is not None and node.is_array]

    def move(self, from_path: str, to_path: str) -> None:
        """Give an array or group another path; touches no manifest and no chunk (R3-09)."""
        with self._lock:
            self._check_writable()
            self._changes.move(paths.canonical(from_path), paths.canonical(to_path))

    move_async = async_twin(move)
    get_node_id_async = async_twin(get_node_id)

    def _node(self, path: str) -> Node:
        node = self._changes.get(path)
        if node is None:
            raise NodeNotFoundError(f"node not found: {path} in {self!r}", path)
        return node

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(
                "Read only sessions cannot modify the repository: this is a read-only store; "
                "open a writable_session on a branch"
            )
