"""The port of the engine: what the packages above it need of a working tree.

`arrays` reads and writes chunks, `zarr_store` shows a complete tree, and packages above them take a
session's `tree`. None of them imports a session, and each can be tested with a tree of a few lines.
Paths are canonical. What sessions add to a tree is in `zarr_store/session_port.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.model.byte_range import WHOLE, ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from icefloe.config.settings import Settings
    from icefloe.engine.context import Context
    from icefloe.engine.tree.rearranging import Places
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.chunk_refs import ChunkRef, VirtualRef
    from icefloe.model.located import Located
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node
    from icefloe.model.segments import FoundChunks, Segments
    from icefloe.objects.foreign.resolver import VirtualChunkResolver
    from icefloe.storage.port import BytesLike

    Coords = npt.NDArray[np.integer]
    Buffers = Sequence[memoryview | None]


class Nodes(Protocol):
    """Arrays and groups by path."""

    def get_node(self, path: str) -> Node | None:
        """The node at a path."""

    def document(self, path: str) -> bytes | None:
        """The zarr.json at a path, byte for byte as it was written."""

    def node_paths(self, below: str) -> Sequence[str]:
        """Sorted paths of all nodes below a path."""


def parsed_document(nodes: Nodes, path: str) -> dict[str, Any]:
    """The zarr.json at a path as a dict; empty if there is no node."""
    document: dict[str, Any] = json.loads(nodes.document(path) or b"{}")
    return document


class ChunkSource(Nodes, Protocol):
    """Chunks that can be read."""

    verify_chunks: bool
    """Whether chunks are compared with their checksums when they are read."""

    @property
    def settings(self) -> Settings:
        """The settings that are in force."""

    @property
    def reads_are_immediate(self) -> bool:
        """Whether reads do not wait for a network."""

    @property
    def gap_bytes(self) -> int:
        """The largest gap between two ranges of an object that are still fetched as one."""

    def locate(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of a chunk; None if it is not initialised or outside of the grid."""

    def locate_chunks(self, path: str, coords: Coords) -> list[Located]:
        """The references of many chunks; those in no group are not initialised."""

    def get_chunk(
        self, path: str, coords: tuple[int, ...], byte_range: ByteRange = WHOLE
    ) -> bytes | None:
        """The bytes of a chunk, or a part of them; None if it is not initialised."""

    async def get_chunk_async(
        self, path: str, coords: tuple[int, ...], byte_range: ByteRange = WHOLE
    ) -> bytes | None:
        """Like `get_chunk`, without blocking the event loop."""

    def read_chunks(
        self, path: str, coords: Coords, buffers: Buffers | None = None
    ) -> Iterator[FoundChunks]:
        """The bytes of many chunks, none twice, in any order; missing ones are in no group.

        Those that fit into the buffers that are given for them may be read there: then the buffer
        is the data of their segment.
        """

    def read_ref(
        self, path: str, coords: tuple[int, ...], ref: ChunkRef, byte_range: ByteRange = WHOLE
    ) -> bytes:
        """The bytes of a chunk that was located, or a part of them."""

    def read_located(
        self,
        path: str,
        coords: Coords,
        located: Sequence[Located],
        buffers: Buffers | None = None,
    ) -> Iterator[FoundChunks]:
        """The bytes that references name; `coords` are the chunks that their rows are about.

        Buffers are as those of `read_chunks`.
        """


class ChunkSink(Protocol):
    """Chunks that can be written."""

    def check_writable(self) -> None:
        """Raise ReadOnlyError if nothing can be written."""

    def write_chunks(self, path: str, coords: Coords, segments: Segments) -> None:
        """Write many chunks of an array; segment `i` is the chunk at `coords[i]`, none twice."""

    def delete_chunks(self, path: str, coords: Coords) -> None:
        """Delete many chunks of an array within its grid, none twice."""


class ChunkStore(ChunkSource, ChunkSink, Protocol):
    """Chunks that can be read and written: what `arrays` needs."""


class Tree(ChunkStore, Protocol):
    """A whole tree, nodes and single chunks included: what `zarr_store` shows."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written."""

    @property
    def why_read_only(self) -> str:
        """Why that is so, and what to do; for messages."""

    def array_paths(self) -> list[str]:
        """Sorted paths of all arrays."""

    def set_document(self, path: str, document: bytes) -> None:
        """Create a node or change its metadata."""

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it, if it exists."""

    async def locate_async(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """Like `locate`, without blocking the event loop."""

    def chunk_size(self, path: str, coords: tuple[int, ...]) -> int | None:
        """Number of bytes of an initialised chunk."""

    def chunk_coords(self, path: str) -> npt.NDArray[np.uint64]:
        """Coordinates (n, rank) of all initialised chunks of an array, in row-major order."""

    def chunk_table(self, path: str) -> ArrayChunks | None:
        """All references of an array as columns; None if it has none."""

    def set_chunk(self, path: str, coords: tuple[int, ...], data: BytesLike) -> None:
        """Write a chunk."""

    async def set_chunk_async(self, path: str, coords: tuple[int, ...], data: BytesLike) -> None:
        """Like `set_chunk`, without blocking the event loop."""

    def delete_chunk(self, path: str, coords: tuple[int, ...]) -> None:
        """Delete a chunk, initialised or not."""

    def clear_chunks(self, path: str) -> None:
        """Delete all chunks of an array, if it exists."""

    def set_virtual_ref(
        self,
        path: str,
        coords: tuple[int, ...],
        ref: VirtualRef,
        *,
        validate_container: bool = True,
    ) -> None:
        """Make a chunk a range of an object outside of the repository."""


class ReferenceTree(Tree, Protocol):
    """A tree whose references are read and written as columns: what ingest and jobs need."""

    @property
    def context(self) -> Context:
        """The repository that the tree is of."""

    @property
    def virtual_sources(self) -> VirtualChunkResolver:
        """What the opener of the repository allows to be read outside of it."""

    def chunk_tables(self, path: str) -> Iterator[ArrayChunks]:
        """All references of an array as columns, some manifests at a time, none twice."""

    def set_chunk_refs(
        self, path: str, chunks: ArrayChunks | None, deleted: ChunkIndex | None = None
    ) -> None:
        """Set and delete many chunks at once, by references to bytes that are written already."""

    def rearrange_chunks(self, path: str, places: Places) -> None:
        """Give all chunks of an array other coordinates at once; those outside are dropped."""

    def settle_pending(self) -> None:
        """Write small chunks that wait to be packed now, which frees their memory."""

    def written_chunks(self) -> dict[str, tuple[ArrayChunks | None, ChunkIndex | None]]:
        """References of the chunks that were written, and which ones were deleted, by array."""
