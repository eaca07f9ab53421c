"""Manifests of spec version 2: small where they can be, read in parts, no object per reference."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.container import HEADER_SIZE
from icefloe.formats.port import NeedsMore
from icefloe.formats.registry import format_for
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.chunk_refs import (
    ChunkRefs,
    InlineRef,
    Locations,
    NativeRef,
    StringColumn,
    VirtualRef,
)
from icefloe.model.ids import ChunkFileId, NodeId
from icefloe.model.manifest import (
    MAX_BLOCK_INLINE_BYTES,
    MAX_BLOCK_ROWS,
    ArrayChunks,
    Manifest,
    ManifestBlock,
    ManifestIndex,
)

if TYPE_CHECKING:
    import numpy.typing as npt

CODEC = format_for().codec
NODE = NodeId(b"a node..")
MILLION = 1_000_000


def open_index(data: bytes) -> ManifestIndex:
    index = CODEC.decode_manifest_index(data, len(data), "key")
    assert not isinstance(index, NeedsMore)
    return index


def decode_all(data: bytes) -> tuple[ManifestIndex, list[ManifestBlock]]:
    index = open_index(data)
    spans = index.block_spans.tolist()
    return index, [
        CODEC.decode_block(index, number, data[start : start + length], "key")
        for number, (start, length) in enumerate(spans)
    ]


def encode(chunks: ArrayChunks) -> bytes:
    return CODEC.encode_manifest([(NODE, chunks)]).data


def virtual_million(num_files: int, lengths: npt.NDArray[np.uint64]) -> ArrayChunks:
    per_file = MILLION // num_files
    starts = np.cumsum(lengths) - lengths
    offsets = starts - np.repeat(starts[::per_file], per_file) + np.uint64(4096)
    urls = StringColumn.of(
        f"s3://some-bucket/reanalysis/temperature/{1950 + number // 365}/data_{number:07d}.nc"
        for number in range(num_files)
    )
    none = StringColumn(b"", np.zeros(num_files, dtype=np.uint64))
    refs = ChunkRefs(
        np.full(MILLION, 2, dtype=np.uint8),
        np.repeat(np.arange(num_files, dtype=np.uint32), per_file),
        offsets,
        lengths,
        np.zeros(MILLION, dtype=np.uint32),
        np.empty((0, 12), dtype=np.uint8),
        Locations(urls, none, np.zeros(num_files, dtype=np.int64)),
        b"",
    )
    return ArrayChunks(ChunkIndex(Box((0, 0, 0), (1000, 100, 10)), None), refs)


@pytest.fixture(scope="module")
def million() -> ArrayChunks:
    rng = np.random.default_rng(0)
    return virtual_million(10_000, rng.integers(50_000, 54_000, MILLION).astype(np.uint64))


@pytest.fixture(scope="module")
def million_file(million: ArrayChunks) -> bytes:
    return encode(million)


def test_a_million_references_come_back(million: ArrayChunks, million_file: bytes) -> None:
    index, blocks = decode_all(million_file)
    assert len(blocks) == -(-MILLION // MAX_BLOCK_ROWS)
    found = Manifest(index, blocks.__getitem__).array(NODE)
    assert found is not None
    assert found.index == million.index
    assert np.array_equal(found.refs.offsets, million.refs.offsets)
    assert np.array_equal(found.refs.lengths, million.refs.lengths)
    for row in (0, 1, 65_535, 65_536, 123_456, MILLION - 1):
        assert found.refs.get(row) == million.refs.get(row)


def test_a_million_references_are_small(million_file: bytes) -> None:
    # Twelve random bits of each length are 1.5 MB; all the rest is next to nothing.
    assert len(million_file) < 1_550_000


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_no_python_object_per_reference(
    million: ArrayChunks, million_file: bytes, direction: str
) -> None:
    # Warm up what is made once.
    decode_all(encode(ArrayChunks.of([(0,)], [VirtualRef("s3://b/x", 0, 1)], 1)))
    gc.collect()
    before, highest = sys.getallocatedblocks(), 0

    def sample(*_: object) -> None:
        nonlocal highest
        highest = max(highest, sys.getallocatedblocks())

    sys.setprofile(sample)
    try:
        kept = encode(million) if direction == "encode" else decode_all(million_file)
    finally:
        sys.setprofile(None)
    sample()
    assert kept
    # Looking for duplicates makes an object for each of a block's few hundred locations.
    assert highest - before < 10_000


def test_one_reference_per_file() -> None:
    rng = np.random.default_rng(1)
    chunks = virtual_million(MILLION, rng.integers(50_000, 54_000, MILLION).astype(np.uint64))
    data = encode(chunks)
    assert len(data) < 1_600_000
    index, blocks = decode_all(data)
    found = Manifest(index, blocks.__getitem__).find(NODE, (999, 99, 9))
    assert found == chunks.refs.get(MILLION - 1)


def test_packs_cost_their_lengths_only() -> None:
    count = 100_000
    files = np.random.default_rng(2).integers(0, 256, (count // 500, 12)).astype(np.uint8)
    lengths = np.full(count, 1024, dtype=np.uint64)
    offsets = np.arange(count, dtype=np.uint64) % 500 * 1024
    refs = ChunkRefs(
        np.full(count, 1, dtype=np.uint8),
        (np.arange(count) // 500).astype(np.uint32),
        offsets,
        lengths,
        np.zeros(count, dtype=np.uint32),
        files,
        Locations.none(),
        b"",
    )
    data = encode(ArrayChunks(ChunkIndex(Box((0,), (count,)), None), refs))
    assert len(data) < 2 * files.nbytes


def test_one_lookup_reads_the_index_and_one_block(
    million: ArrayChunks, million_file: bytes
) -> None:
    size = len(million_file)
    needed = CODEC.decode_manifest_index(million_file[:HEADER_SIZE], size, "key")
    assert isinstance(needed, NeedsMore)
    needed = CODEC.decode_manifest_index(million_file[: needed.length], size, "key")
    assert isinstance(needed, NeedsMore)
    assert needed.length < 1000
    index = CODEC.decode_manifest_index(million_file[: needed.length], size, "key")
    assert not isinstance(index, NeedsMore)
    loaded: list[int] = []

    def load(number: int) -> ManifestBlock:
        loaded.append(number)
        start, length = index.block_spans[number].tolist()
        return CODEC.decode_block(index, number, million_file[start : start + length], "key")

    assert Manifest(index, load).find(NODE, (500, 7, 3)) == million.refs.get(500_073)
    assert loaded == [500_073 // MAX_BLOCK_ROWS]


def test_a_block_must_have_the_length_that_the_index_says(million_file: bytes) -> None:
    index = open_index(million_file)
    start, length = index.block_spans[0].tolist()
    for wrong in (length - 1, length + 1):
        with pytest.raises(FormatError, match="block 0"):
            CODEC.decode_block(index, 0, million_file[start : start + wrong], "key")


def test_a_block_in_the_place_of_another_is_found() -> None:
    count = 2 * MAX_BLOCK_ROWS
    rng = np.random.default_rng(3)
    positions = np.sort(rng.choice(10 * count, count, replace=False)).astype(np.uint64)
    refs = ChunkRefs(
        np.full(count, 1, dtype=np.uint8),
        np.zeros(count, dtype=np.uint32),
        np.arange(count, dtype=np.uint64),
        np.ones(count, dtype=np.uint64),
        np.zeros(count, dtype=np.uint32),
        np.zeros((1, 12), dtype=np.uint8),
        Locations.none(),
        b"",
    )
    data = encode(ArrayChunks(ChunkIndex(Box((0,), (10 * count,)), positions), refs))
    index, _ = decode_all(data)
    start, length = index.block_spans[1].tolist()
    index.block_spans[0] = index.block_spans[1]
    with pytest.raises(FormatError, match="positions in block 0"):
        CODEC.decode_block(index, 0, data[start : start + length], "key")


def test_a_manifest_of_one_chunk_is_tiny() -> None:
    chunks = ArrayChunks.of([(3, 4)], [NativeRef(ChunkFileId(b"x" * 12), 0, 100, 7)], 2)
    data = encode(chunks)
    assert len(data) < 200
    index, blocks = decode_all(data)
    assert Manifest(index, blocks.__getitem__).find(NODE, (3, 4)) == chunks.refs.get(0)
    assert Manifest(index, blocks.__getitem__).find(NODE, (3, 5)) is None


def test_thousands_of_small_arrays_cost_little() -> None:
    count = 5760
    parts = []
    for number in range(count):
        ref = NativeRef(ChunkFileId(number.to_bytes(12, "big")), 0, 4096)
        node_id = NodeId(np.uint64(number * 0x9E3779B97F4A7C15 % 2**64).tobytes())
        parts.append((node_id, ArrayChunks.of([(0, 0, number % 7)], [ref], 3)))
    data = CODEC.encode_manifest(parts).data
    assert len(data) < count * 24
    index = open_index(data)
    gc.collect()
    before = sys.getallocatedblocks()
    again = open_index(data)
    assert sys.getallocatedblocks() - before < 200
    assert len(again.arrays) == count
    for node_id, chunks in parts[::500]:
        assert again.arrays[node_id].extents == chunks.index.box
    assert list(index.arrays) == sorted(node_id for node_id, _ in parts)


def test_blocks_do_not_hold_too_many_inline_bytes() -> None:
    data = bytes(1000)
    count = 3 * (MAX_BLOCK_INLINE_BYTES // len(data))
    chunks = ArrayChunks.of(
        [(number,) for number in range(count)],
        [InlineRef(number.to_bytes(4, "big") + data[4:]) for number in range(count)],
        1,
    )
    index, blocks = decode_all(encode(chunks))
    assert len(blocks) == 3
    assert max(len(block.refs.inline) for block in blocks) <= MAX_BLOCK_INLINE_BYTES
    assert Manifest(index, blocks.__getitem__).find(NODE, (count - 1,)) == chunks.refs.get(
        count - 1
    )


def test_what_is_repeated_in_dictionaries_is_written_once() -> None:
    part = [VirtualRef(f"s3://b/{number % 2}", 0, 1, etag="e") for number in range(50)]
    native = [NativeRef(ChunkFileId(b"f" * 12), 0, 1) for _ in range(50)]
    refs = ChunkRefs.concat([ChunkRefs.of(each) for each in (part, native, part, native)])
    assert len(refs.locations) == 4
    assert len(refs.files) == 2
    data = encode(ArrayChunks(ChunkIndex(Box((0,), (200,)), None), refs))
    _, (block,) = decode_all(data)
    assert len(block.refs.locations) == 2
    assert len(block.refs.files) == 1
    assert block.refs.tolist() == refs.tolist()


def test_entries_that_are_not_used_are_not_written() -> None:
    refs = ChunkRefs.of([VirtualRef(f"s3://b/{number}", 0, 1) for number in range(9)])
    few = refs.take(np.array([2, 7]))
    _, (block,) = decode_all(encode(ArrayChunks(ChunkIndex(Box((0,), (2,)), None), few)))
    assert block.refs.locations.urls.tolist() == ["s3://b/2", "s3://b/7"]
    assert block.refs.tolist() == few.tolist()


def test_empty_manifests_are_not_written() -> None:
    for version in (1, 2):
        with pytest.raises(InvalidInputError, match="at least one"):
            format_for(spec_version=version).codec.encode_manifest([])


def test_uninitialised_references_are_not_written() -> None:
    refs = ChunkRefs.of([NativeRef(ChunkFileId(b"f" * 12), 0, 1)])
    refs.kinds[0] = 0
    chunks = ArrayChunks(ChunkIndex(Box((0,), (1,)), None), refs)
    for version in (1, 2):
        with pytest.raises(InvalidInputError, match="native, virtual and inline"):
            format_for(spec_version=version).codec.encode_manifest([(NODE, chunks)])
