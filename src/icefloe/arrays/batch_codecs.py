"""Codecs that take the bytes of many chunks at once, for the codecs that nearly all arrays use."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, Protocol, cast

import google_crc32c
import numcodecs.blosc
import numcodecs.gzip
import numpy as np
import zstandard

from icefloe.model.record import Record
from icefloe.model.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    Piece = bytes | bytearray | memoryview


class BatchCodec(Protocol):
    """From the bytes of chunks to other bytes of the same chunks."""

    def decode(self, segments: Segments, size: int | None, threads: int) -> Segments:
        """Decode chunks; raises whatever it likes if one of them is not what it should be.

        Args:
            segments: The encoded chunks.
            size: How many bytes each of them has once it is decoded, if that is known.
            threads: How many threads may work on it.
        """

    def encode(self, segments: Segments, threads: int) -> Segments | None:
        """Encode chunks; None where Zarr's own codec has to do it."""

    def decoded_size(self, size: int | None) -> int | None:
        """Number of encoded bytes for a number of decoded ones, if it is always the same."""


class ZstdBatch(Record, frozen=True):
    """Zstandard: all frames in one call, on several threads, without the interpreter's lock."""

    level: int
    checksum: bool

    def decode(self, segments: Segments, size: int | None, threads: int) -> Segments:
        """Decompress all frames."""
        decompressor = zstandard.ZstdDecompressor()
        if len(segments) == 1:
            most = 0 if size is None else size
            data = decompressor.decompress(segments.piece(0), max_output_size=most)
            return _one(data)
        sizes = None if size is None else np.full(len(segments), size, dtype="<u8").tobytes()
        decompressed = decompressor.multi_decompress_to_buffer(
            _with_segments(segments), decompressed_sizes=sizes or b"", threads=threads
        )
        if size is None:
            return Segments.of(_pieces(decompressed))
        offsets = np.arange(len(segments), dtype=np.int64) * size
        return Segments(b"".join(_pieces(decompressed)), offsets, np.full(len(segments), size))

    def encode(self, segments: Segments, threads: int) -> Segments:
        """Compress all chunks, each to a frame of its own."""
        compressor = zstandard.ZstdCompressor(level=self.level, write_checksum=self.checksum)
        if len(segments) == 1:
            return _one(compressor.compress(segments.piece(0)))
        found = compressor.multi_compress_to_buffer(_with_segments(segments), threads=threads)
        return Segments.of(_pieces(found))

    def decoded_size(self, size: int | None) -> int | None:  # noqa: ARG002
        """Unknown: it depends on the data."""
        return None


class Crc32cBatch(Record, frozen=True):
    """Four bytes at the end of each chunk that tell whether it was altered."""

    def decode(self, segments: Segments, size: int | None, threads: int) -> Segments:  # noqa: ARG002
        """Check and cut off the checksums."""
        inner = Segments(segments.data, segments.offsets, segments.lengths - 4)
        if len(segments) and int(inner.lengths.min()) < 0:
            raise ValueError("a chunk is shorter than its checksum")
        for row in range(len(segments)):
            stored = bytes(segments.piece(row)[-4:])
            computed = google_crc32c.value(bytes(inner.piece(row))).to_bytes(4, "little")
            if stored != computed:
                raise ValueError(f"the checksum is {stored.hex()}, not {computed.hex()}")
        return inner

    def encode(self, segments: Segments, threads: int) -> Segments:  # noqa: ARG002
        """Append the checksums."""
        parts: list[Piece] = []
        for row in range(len(segments)):
            piece = bytes(segments.piece(row))
            parts += (piece, google_crc32c.value(piece).to_bytes(4, "little"))
        lengths = segments.lengths + 4
        return Segments(b"".join(parts), np.cumsum(lengths) - lengths, lengths)

    def decoded_size(self, size: int | None) -> int | None:
        """Four bytes more."""
        return None if size is None else size + 4


class GzipBatch(Record, frozen=True):
    """Gzip, chunk by chunk."""

    level: int

    def decode(self, segments: Segments, size: int | None, threads: int) -> Segments:  # noqa: ARG002
        """Decompress each chunk."""
        return Segments.of([gzip.decompress(segments.piece(i)) for i in range(len(segments))])

    def encode(self, segments: Segments, threads: int) -> Segments:  # noqa: ARG002
        """Compress each chunk."""
        codec = numcodecs.gzip.GZip(self.level)
        return Segments.of([codec.encode(segments.piece(i)) for i in range(len(segments))])

    def decoded_size(self, size: int | None) -> int | None:  # noqa: ARG002
        """Unknown: it depends on the data."""
        return None


class BloscBatch(Record, frozen=True):
    """Blosc, chunk by chunk; written by Zarr's own codec, which knows all its settings."""

    def decode(self, segments: Segments, size: int | None, threads: int) -> Segments:  # noqa: ARG002
        """Decompress each chunk."""
        pieces = [
            numcodecs.blosc.decompress(bytes(segments.piece(i))) for i in range(len(segments))
        ]
        return Segments.of(pieces)

    def encode(self, segments: Segments, threads: int) -> None:  # noqa: ARG002
        """Not here."""
        return

    def decoded_size(self, size: int | None) -> int | None:  # noqa: ARG002
        """Unknown: it depends on the data."""
        return None


class NumcodecsBatch(Record, frozen=True, eq=False):
    """A codec of numcodecs from bytes to bytes, as files of other formats need; written by Zarr."""

    codec: Any

    def decode(self, segments: Segments, size: int | None, threads: int) -> Segments:  # noqa: ARG002
        """Decode each chunk."""
        pieces = [self.codec.decode(segments.piece(row)) for row in range(len(segments))]
        return Segments.of([memoryview(piece).cast("B") for piece in pieces])

    def encode(self, segments: Segments, threads: int) -> None:  # noqa: ARG002
        """Not here."""
        return

    def decoded_size(self, size: int | None) -> int | None:  # noqa: ARG002
        """Unknown: it depends on the codec."""
        return None


def decode_all(
    codecs: Sequence[BatchCodec], segments: Segments, size: int, threads: int
) -> Segments:
    """Take the bytes of chunks back through codecs, the last of them first."""
    sizes: list[int | None] = [size]
    for codec in codecs:
        sizes.append(codec.decoded_size(sizes[-1]))
    for codec, inner in zip(reversed(codecs), reversed(sizes[:-1]), strict=True):
        segments = codec.decode(segments, inner, threads)
    return segments


def encode_all(codecs: Sequence[BatchCodec], segments: Segments, threads: int) -> Segments | None:
    """Take the bytes of chunks through codecs; None where Zarr's own codecs have to do it."""
    for codec in codecs:
        encoded = codec.encode(segments, threads)
        if encoded is None:
            return None
        segments = encoded
    return segments


def _one(data: bytes) -> Segments:
    return Segments(data, np.zeros(1, dtype=np.int64), np.array([len(data)], dtype=np.int64))


def _with_segments(segments: Segments) -> zstandard.BufferWithSegments:
    table = np.stack([segments.offsets, segments.lengths], axis=1).astype("<u8")
    return zstandard.BufferWithSegments(segments.data, table.tobytes())


def _pieces(found: zstandard.BufferWithSegmentsCollection) -> list[Piece]:
    # Views into the result, made by its own iteration; nothing is copied.
    return cast("list[Piece]", list(found))  # type: ignore[call-overload]
