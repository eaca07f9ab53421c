"""One state of a working tree: a snapshot with changes over it, and where its chunks are.

Lookups only: nothing here reads the bytes of a chunk or changes anything.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.engine.tree.grid_checks import in_grid, visible, within_grid
from icefloe.model import paths
from icefloe.model.located import Located
from icefloe.model.nodes import expect_array
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.tree.chunk_batches import ArrayReader
    from icefloe.model.chunk_refs import ChunkRef
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles


class TreeView(NamedTuple):
    """A snapshot, its chunks and the changes laid over it; they only make sense together."""

    snapshot: Snapshot
    chunks: SnapshotChunks
    changes: ChangeSet

    @classmethod
    def of(
        cls, files: MetadataFiles, snapshot: Snapshot, changes: ChangeSet | None = None
    ) -> TreeView:
        """A snapshot with some changes, or none, over it."""
        chunks = SnapshotChunks(files, snapshot)
        return cls(snapshot, chunks, changes or ChangeSet(snapshot.nodes))

    def array(self, path: str) -> ArrayNode:
        """The array at a path; raises NodeNotFoundError."""
        return expect_array(
            self.changes.get(path), path, lambda: self.changes.paths_below(paths.ROOT)
        )

    def locate(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of a chunk; None if it is not initialised or outside of the grid."""
        node = self.array(path)
        if not in_grid(node, coords):
            return None
        edits = self.changes.chunks.get(node.id)
        if edits is not None:
            is_edited, ref = edits.get(coords)
            if is_edited:
                return ref
        return self.chunks.find(node, coords) if node.manifests else None

    def is_at_hand(self, path: str, coords: tuple[int, ...]) -> bool:
        """Whether `locate` needs no object that is not cached."""
        node = self.array(path)
        edits = self.changes.chunks.get(node.id)
        is_edited = edits is not None and edits.get(coords)[0]
        return is_edited or self.chunks.is_at_hand(node, coords)

    def locate_many(self, path: str, coords: npt.NDArray[np.integer]) -> list[Located]:
        """The references of many chunks; those in no group are not initialised."""
        node = self.array(path)
        inside, rows = within_grid(node, coords)
        if len(inside) == 0:
            return []
        edits = self.changes.chunks.get(node.id)
        located, rest = ([], np.arange(len(inside))) if edits is None else edits.find_many(inside)
        if len(rest) and node.manifests:
            base = self.chunks.find_many(node, inside[rest])
            located += [Located(rest[part.rows], part.refs) for part in base]
        if rows is not None:
            located = [Located(rows[part.rows], part.refs) for part in located]
        return located

    def table(self, path: str) -> ArrayChunks | None:
        """All references of an array within its grid as columns; None if it has none."""
        return visible(self.array(path), self.table_with_hidden(path))

    def table_with_hidden(self, path: str) -> ArrayChunks | None:
        """Like `table`, with those outside of the grid, which the next commit drops."""
        node = self.array(path)
        edits = self.changes.chunks.get(node.id)
        table = self.chunks.table(node) if node.manifests else None
        return table if edits is None else edits.apply(table)

    def array_reader(self, path: str) -> ArrayReader:
        """A reader of the references of an array, with a copy of the edits of this moment."""
        from icefloe.engine.tree.chunk_batches import ArrayReader

        node = self.array(path)
        edits = self.changes.chunks.get(node.id)
        copied = None if edits is None else edits.copy()
        return ArrayReader(self.snapshot, self.chunks, node, copied)


class TreeState:
    """The view that a tree shows now, and the lock under which it changes.

    Readers take no lock: they look at one view, which a commit or a rebase replaces as a whole,
    and see each edit in it either made or not made.
    """

    def __init__(self, view: TreeView) -> None:
        """Start with a view."""
        self.view = view
        self.lock = threading.RLock()
