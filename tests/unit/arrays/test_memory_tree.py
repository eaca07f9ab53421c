"""Arrays on the smallest tree that satisfies the engine's port: a dictionary of chunks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarr.storage
from zarr.codecs import TransposeCodec

from icefloe.arrays.layout import layout_of
from icefloe.arrays.transfer import read_region, write_region
from icefloe.config.repository import RepositoryConfig
from icefloe.config.settings import Settings
from icefloe.errors import NodeNotFoundError, ReadOnlyError
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.chunk_refs import ChunkRefs, InlineRef
from icefloe.model.ids import NodeId
from icefloe.model.located import Located
from icefloe.model.nodes import Node, make_node
from icefloe.model.segments import FoundChunks, Segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.engine.port import Buffers, ChunkStore
    from icefloe.model.chunk_refs import ChunkRef

    Coords = np.ndarray


class MemoryTree:
    """One array whose chunks are values of a dictionary."""

    verify_chunks = False
    settings = Settings.from_config(RepositoryConfig())
    reads_are_immediate = True
    gap_bytes = 100

    def __init__(self, document: bytes) -> None:
        self.node = make_node(NodeId.random(), "/a", document)
        self.chunks: dict[tuple[int, ...], bytes] = {}
        self.read_only = False

    def get_node(self, path: str) -> Node | None:
        return self.node if path == "/a" else None

    def document(self, path: str) -> bytes | None:
        return self.node.document if path == "/a" else None

    def node_paths(self, below: str) -> Sequence[str]:
        return ["/a"] if below == "/" else []

    def locate(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        data = self.chunks.get(coords)
        return None if data is None else InlineRef(data)

    def locate_chunks(self, path: str, coords: Coords) -> list[Located]:
        rows = [row for row, place in enumerate(coords.tolist()) if tuple(place) in self.chunks]
        if not rows:
            return []
        refs = [InlineRef(self.chunks[tuple(coords[row].tolist())]) for row in rows]
        return [Located(np.array(rows), ChunkRefs.of(refs))]

    def get_chunk(
        self, path: str, coords: tuple[int, ...], byte_range: ByteRange = WHOLE
    ) -> bytes | None:
        ref = self.locate(path, coords)
        return None if ref is None else self.read_ref(path, coords, ref, byte_range)

    async def get_chunk_async(
        self, path: str, coords: tuple[int, ...], byte_range: ByteRange = WHOLE
    ) -> bytes | None:
        return self.get_chunk(path, coords, byte_range)

    def read_chunks(
        self, path: str, coords: Coords, buffers: Buffers | None = None
    ) -> Iterator[FoundChunks]:
        for row, place in enumerate(coords.tolist()):
            if tuple(place) in self.chunks:
                yield FoundChunks(np.array([row]), Segments.of([self.chunks[tuple(place)]]))

    def read_ref(
        self, path: str, coords: tuple[int, ...], ref: ChunkRef, byte_range: ByteRange = WHOLE
    ) -> bytes:
        assert isinstance(ref, InlineRef)
        start, length = byte_range.resolve(len(ref.data))
        return ref.data[start : start + length]

    def read_located(
        self,
        path: str,
        coords: Coords,
        located: Sequence[Located],
        buffers: Buffers | None = None,
    ) -> Iterator[FoundChunks]:
        for group in located:
            refs = group.refs
            starts, lengths = refs.offsets.astype(np.int64), refs.lengths.astype(np.int64)
            yield FoundChunks(group.rows, Segments(refs.inline, starts, lengths))

    def check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError("this tree is read-only")

    def write_chunks(self, path: str, coords: Coords, segments: Segments) -> None:
        for row, place in enumerate(coords.tolist()):
            self.chunks[tuple(place)] = bytes(segments.piece(row))

    def delete_chunks(self, path: str, coords: Coords) -> None:
        for place in coords.tolist():
            self.chunks.pop(tuple(place), None)


def memory_tree(**how: Any) -> MemoryTree:
    """The tree of an array that zarr would create so."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=(6, 10), dtype="i4", fill_value=-1, **how)
    return MemoryTree(json.dumps(array.metadata.to_dict()).encode())


KINDS: dict[str, Any] = {
    "plain": {"chunks": (2, 3), "compressors": None},
    "compressed": {"chunks": (2, 3)},
    "sharded": {"chunks": (1, 2), "shards": (2, 6)},
    "transposed": {"chunks": (4, 4), "filters": [TransposeCodec(order=(1, 0))]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_written_and_read_as_by_numpy(kind: str) -> None:
    tree: ChunkStore = memory_tree(**KINDS[kind])
    expected = np.full((6, 10), -1, dtype="i4")
    boxes: list[Any] = [np.s_[1:5, 2:9], np.s_[::2, 0], np.s_[5], np.s_[0:2, 0:3]]
    for number, box in enumerate(boxes):
        write_region(tree, "/a", box, number, write_empty_chunks=False)
        expected[box] = number
        np.testing.assert_array_equal(read_region(tree, "/a", ...), expected)
    np.testing.assert_array_equal(read_region(tree, "/a", np.s_[4:1:-1, 3]), expected[4:1:-1, 3])


def test_chunks_that_become_empty_are_deleted() -> None:
    tree = memory_tree(chunks=(2, 3))
    write_region(tree, "/a", ..., 7, write_empty_chunks=False)
    assert len(tree.chunks) == 12
    write_region(tree, "/a", np.s_[:2], -1, write_empty_chunks=False)
    assert len(tree.chunks) == 8
    write_region(tree, "/a", np.s_[:2], -1, write_empty_chunks=True)
    assert len(tree.chunks) == 12


def test_a_read_only_tree_is_not_written_to() -> None:
    tree = memory_tree(chunks=(2, 3))
    tree.read_only = True
    with pytest.raises(ReadOnlyError):
        write_region(tree, "/a", ..., 7, write_empty_chunks=False)
    assert tree.chunks == {}


def test_the_layout_of_an_array_is_found_out_once() -> None:
    tree = memory_tree(chunks=(2, 3))
    assert layout_of(tree, "/a") is layout_of(tree, "/a")
    with pytest.raises(NodeNotFoundError):
        layout_of(tree, "/b")
