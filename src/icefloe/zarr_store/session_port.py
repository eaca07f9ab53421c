"""The port of sessions: what ingest, tables and tasks on a cluster need of a session or a fork.

They read and write arrays; they do not commit, rebase or merge. So they take this instead of
`icefloe.session`, and work the same on a session, a fork, and whatever else has a tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.engine.info import Diff
    from icefloe.engine.port import ReferenceTree
    from icefloe.engine.tree.chunk_batches import ChunkBatch, ChunkBytes
    from icefloe.model.chunk_refs import ChunkKind
    from icefloe.model.nodes import Node
    from icefloe.zarr_store.tree_store import TreeStore


class SessionPort(Protocol):
    """Nodes and arrays of a session or a fork. Paths need not be canonical."""

    @property
    def tree(self) -> ReferenceTree:
        """The engine's port: nodes, chunks and references."""

    @property
    def store(self) -> TreeStore:
        """A Zarr store on the same tree."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written."""

    @property
    def snapshot_id(self) -> str:
        """The snapshot that is shown, or that changes are based on."""

    def get_node(self, path: str) -> Node | None:
        """The array or group at a path; None if there is none."""

    def read_region(
        self, path: str, selection: Any = ..., out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Read a box of an array."""

    def write_region(
        self,
        path: str,
        selection: Any,
        values: npt.ArrayLike,
        *,
        write_empty_chunks: bool | None = None,
    ) -> None:
        """Write a box of an array."""

    def chunk_count(self, array_path: str, kind: ChunkKind | None = None) -> int:
        """Number of initialised chunks of an array, of one kind or of all."""

    def chunk_bytes(self, array_path: str) -> ChunkBytes:
        """Number of bytes of all chunks of an array, by where they are kept."""

    def chunk_batches(self, array_path: str, batch_size: int = ...) -> Iterator[ChunkBatch]:
        """All chunk references of an array as columns, batch by batch."""

    def status(self) -> Diff:
        """The uncommitted changes."""

    def discard_changes(self, path: str | None = None) -> None:
        """Forget all uncommitted changes, or those of a node and of all below it."""
