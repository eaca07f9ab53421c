"""Large manifests in the official format: references are decoded when they are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from icefloe.errors import FormatError
from icefloe.formats.container import compress, decompress
from icefloe.formats.icechunk.codec import IcechunkCodec
from icefloe.formats.icechunk.container import HEADER_SIZE, FlatFileType, open_file
from icefloe.formats.icechunk.tables import Body
from icefloe.formats.port import NeedsMore
from icefloe.model.chunk_refs import (
    ChunkRef,
    ChunkRefs,
    InlineRef,
    NativeRef,
    VirtualRef,
)
from icefloe.model.ids import ChunkFileId, NodeId
from icefloe.model.manifest import ArrayChunks, LazyBlock, Manifest, ManifestIndex

NODE = NodeId(b"a node..")
COUNT = 20_000
FILES = [ChunkFileId(bytes([number]) * 12) for number in range(7)]


def reference(row: int) -> ChunkRef:
    """Every kind, with locations that differ in their length, their end or their start."""
    match row % 5:
        case 0:
            return NativeRef(FILES[row % 7], row, 3)
        case 1:
            return InlineRef(str(row).encode())
        case 2:
            return VirtualRef(f"s3://bucket/{row // 100}.nc", row, 7, etag=f"e{row // 50}")
        case 3:
            return VirtualRef(f"s3://{row % 3}/b/{'x' * (row % 11)}", row, 7)
        case _:
            return VirtualRef("s3://a/b", row, 7, last_modified=1 + row // 1000)


def encoded(version: int) -> bytes:
    coords = np.arange(0, 3 * COUNT, 3)[:, None]
    chunks = ArrayChunks.from_sorted(coords, ChunkRefs.of([reference(row) for row in range(COUNT)]))
    return IcechunkCodec(version).encode_manifest([(NODE, chunks)]).data


def opened(data: bytes) -> tuple[Manifest, LazyBlock]:
    index = IcechunkCodec(2).decode_manifest_index(data, len(data), "key")
    assert isinstance(index, ManifestIndex)
    assert not isinstance(index, NeedsMore)
    assert index.resident is not None
    (block,) = index.resident
    assert isinstance(block, LazyBlock)
    return Manifest(index, index.resident.__getitem__), block


def test_locations_of_neighbours_are_one_entry_where_all_their_bytes_are_equal() -> None:
    """Runs of rows are compared at once: no byte of them is left out, whatever their lengths."""
    rng = np.random.default_rng(5)
    base = [bytearray(b"s3://bucket/" + b"y" * length) for length in (50, 51, 56, 63, 80, 1100)]
    locations = []
    for row in range(3 * COUNT):
        text = bytearray(base[0 if row < COUNT else row // (COUNT // 4) % len(base)])
        if rng.random() < 0.5:
            text[rng.integers(5, len(text))] = int(rng.integers(97, 99))
        if rng.random() < 0.1:
            text = base[int(rng.integers(0, 4))]
        locations.append(text.decode())
    refs = ChunkRefs.of([VirtualRef(location, 0, 7) for location in locations])
    # Officially each row has its own string; our writer shares them among a few rows.
    chunks = ArrayChunks.from_sorted(np.arange(len(locations))[:, None], refs)
    for version in (1, 2):
        data = IcechunkCodec(version).encode_manifest([(NODE, chunks)]).data
        manifest, _ = opened(data)
        found = manifest.array(NODE)
        assert found is not None
        assert found.refs.locations.urls.tolist() == [
            text for row, text in enumerate(locations) if row == 0 or text != locations[row - 1]
        ]
        assert [found.refs.get(row).location for row in range(len(locations))] == locations


@pytest.mark.parametrize("version", [1, 2])
def test_few_references_are_those_of_all(version: int) -> None:
    data = encoded(version)
    manifest, block = opened(data)
    whole = block.nbytes
    for row in (0, 1, 2, 3, 4, 777, 1023):
        assert manifest.find(NODE, (3 * row,)) == reference(row)
        assert manifest.find(NODE, (3 * row + 1,)) is None
    rows = np.random.default_rng(1).permutation(COUNT)[:50]
    (located,) = manifest.find_many(NODE, (3 * rows[:, None]).astype(np.uint64))
    found = [located.refs.get(at) for at in range(len(rows))]
    assert found == [reference(int(rows[number])) for number in located.rows]
    assert block.nbytes == whole, "not all were decoded"
    chunks = manifest.array(NODE)
    assert chunks is not None
    assert [chunks.refs.get(row) for row in range(COUNT)] == [
        reference(row) for row in range(COUNT)
    ]
    assert block.nbytes < whole, "the bytes of the file are given up"
    assert manifest.find(NODE, (3 * 12_345,)) == reference(12_345)


def test_many_lookups_decode_all() -> None:
    manifest, block = opened(encoded(2))
    whole = block.nbytes
    for row in range(0, COUNT, 500):
        assert manifest.find(NODE, (3 * row,)) == reference(row)
    assert block.nbytes < whole


def test_a_bad_reference_is_an_error_when_it_is_looked_up() -> None:
    data = encoded(1)
    body = bytearray(open_file(data, FlatFileType.MANIFEST, "key").body)
    at = body.index(b"s3://bucket/123.nc")
    body[at] = 0xFF  # not UTF-8
    manifest, _ = opened(data[:HEADER_SIZE] + compress(bytes(body), 3))
    assert manifest.find(NODE, (0,)) == reference(0)
    with pytest.raises(FormatError, match=r"key.*UTF-8"):
        manifest.array(NODE)


def test_a_long_location_does_not_make_short_ones_expensive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 9: work follows the size of a file, whatever is in it."""
    locations = [f"s3://bucket/{row:05}.nc" for row in range(COUNT // 2)]
    locations[100:104] = [f"s3://bucket/{'x' * 65_536}{number // 2}" for number in range(4)]
    refs = ChunkRefs.of([VirtualRef(location, 0, 7) for location in locations])
    chunks = ArrayChunks.from_sorted(np.arange(len(refs))[:, None], refs)
    data = IcechunkCodec(1).encode_manifest([(NODE, chunks)]).data
    gathered = 0
    gather = Body.gather

    def counting(body: Body, positions: Any, dtype: Any) -> Any:
        nonlocal gathered
        gathered += len(positions) * np.dtype(dtype).itemsize
        return gather(body, positions, dtype)

    monkeypatch.setattr(Body, "gather", counting)
    _, block = opened(data)
    urls = block.refs.locations.urls.tolist()
    assert urls == locations[:101] + locations[102:103] + locations[104:]
    assert [block.refs.get(row) for row in range(len(refs))] == [
        VirtualRef(location, 0, 7) for location in locations
    ]
    body = open_file(data, FlatFileType.MANIFEST, "key").body
    assert gathered < 10 * len(body)


@pytest.mark.parametrize("body", [b"", b"abc" * 1000, bytes(5_000_000), bytes(range(256)) * 999])
def test_frames_that_do_not_declare_their_size_are_decompressed(body: bytes) -> None:
    # As the official 1.x writes them; five million zeros are more than is guessed at first.
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    frame = stream.compress(body) + stream.flush()
    assert zstandard.frame_content_size(frame) == -1
    assert decompress(frame, "key") == body
    with pytest.raises(FormatError, match="more bytes follow"):
        decompress(frame + b"\x00", "key")
    with pytest.raises(FormatError):
        decompress(frame[:-1], "key")
