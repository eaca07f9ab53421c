"""How an array's chunks are laid out and encoded, found out once for each document."""

from __future__ import annotations

import json
import math
import warnings
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.nodes import expect_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from zarr.core.codec_pipeline import BatchedCodecPipeline

    from icefloe.arrays.batch_codecs import BatchCodec
    from icefloe.arrays.shards import ShardLayout
    from icefloe.engine.port import Nodes

_BATCH_KINDS = frozenset("biufcmMUS")
"""Kinds of data types whose values are their bytes, up to the order of those."""
_NUMCODECS = ("zarr.codecs.numcodecs.", "numcodecs.zarr3")
"""Where the codecs of numcodecs for Zarr 3 are, now and before."""


class ArrayLayout:
    """How the elements of an array are spread over chunks, and how chunks are encoded.

    One for each document (see `layout_of`). Only the pipeline makes its own, of the metadata with
    which Zarr opened the array: the array may have been resized since.
    """

    def __init__(self, metadata: Any) -> None:
        """Take the document as Zarr understands it (`ArrayV3Metadata`)."""
        self.metadata = metadata
        self.shape: tuple[int, ...] = tuple(self.metadata.shape)
        self.dtype: np.dtype[Any] = self.metadata.data_type.to_native_dtype()
        self.fill_value: Any = self.metadata.fill_value
        self.edges: tuple[int | npt.NDArray[np.int64], ...] = _edges(self.metadata)
        self.codecs: tuple[Any, ...] = tuple(self.metadata.codecs)
        self.is_regular = all(isinstance(edge, int) for edge in self.edges)
        """Whether all chunks have one shape."""
        self.chunk_shape = tuple(edge for edge in self.edges if isinstance(edge, int))
        self.chunk_bytes = max(1, self.dtype.itemsize) * math.prod(self.chunk_shape)
        """Number of bytes of a decoded chunk of a regular grid; a guess for objects."""
        chain = _chain(self.codecs, self.dtype) if self.is_regular else None
        self.is_batched = chain is not None
        """Whether the batch codecs can decode it; else Zarr's own do, chunk by chunk."""
        endian, order, steps = chain or (None, None, ())
        self.steps: Sequence[BatchCodec] = steps
        self.stored_dtype: np.dtype[Any] = _in_order(self.dtype, endian)
        self.order: tuple[int, ...] = tuple(range(len(self.shape))) if order is None else order
        """Which axis of a chunk each axis of its stored form is."""
        self.is_transposed = self.order != tuple(range(len(self.shape)))
        self.inverse_order: tuple[int, ...] = tuple(np.argsort(self.order).tolist())
        self.stored_shape = self.chunk_shape
        if self.is_transposed and self.is_regular:
            self.stored_shape = tuple(self.chunk_shape[axis] for axis in self.order)

    @cached_property
    def shards(self) -> ShardLayout | None:
        """How its shards are laid out; None if it has none, or Zarr has to decode them."""
        if len(self.codecs) != 1:
            return None  # most arrays: they do without the module
        from icefloe.arrays.shards import shard_layout

        return shard_layout(self)

    @cached_property
    def zarr_pipeline(self) -> BatchedCodecPipeline:
        """Zarr's own codecs, one after the other."""
        from zarr.core.codec_pipeline import BatchedCodecPipeline

        with warnings.catch_warnings():
            # Zarr warned about the codecs when the array was opened.
            warnings.simplefilter("ignore")
            return BatchedCodecPipeline.from_codecs(self.codecs)

    def logical(self, stored: npt.NDArray[Any], grid: tuple[int, ...]) -> npt.NDArray[Any]:
        """Chunks as they are stored, (n, …), as a view with the axes of the grid and the array."""
        chunks = stored.reshape((*grid, *stored.shape[1:]))
        if not self.is_transposed:
            return chunks
        before = len(grid)
        return chunks.transpose(*range(before), *(before + axis for axis in self.inverse_order))


def layout_of(tree: Nodes, path: str) -> ArrayLayout:
    """The layout of the array at a path; raises NodeNotFoundError."""
    return _layout(
        expect_array(tree.get_node(path), path, lambda: tree.node_paths(paths.ROOT)).outline, path
    )


@lru_cache(maxsize=512)
def _layout(document: bytes, path: str) -> ArrayLayout:
    from zarr.core.metadata.v3 import ArrayV3Metadata

    try:
        metadata = ArrayV3Metadata.from_dict(json.loads(document))
    except Exception as error:
        raise InvalidInputError(f"Zarr cannot read the metadata of {path}: {error}") from error
    return ArrayLayout(metadata)


def _in_order(dtype: np.dtype[Any], endian: str | None) -> np.dtype[Any]:
    """A data type as it is stored."""
    if endian is None:
        return dtype
    return dtype.newbyteorder("<" if endian == "little" else ">")


def _edges(metadata: Any) -> tuple[int | npt.NDArray[np.int64], ...]:
    """Sizes of chunks along each axis, or where they begin and end if they differ."""
    grid = metadata.chunk_grid
    regular = getattr(grid, "chunk_shape", None)
    if regular is not None:
        # An empty dimension may have chunks of size 0.
        return tuple(max(1, int(size)) for size in regular)
    edges: list[int | npt.NDArray[np.int64]] = []
    for sizes, extent in zip(grid.chunk_shapes, metadata.shape, strict=True):
        if isinstance(sizes, int):
            sizes = (sizes,) * -(-extent // sizes)  # noqa: PLW2901
        edges.append(np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))]))
    return tuple(edges)


def _chain(
    codecs: tuple[Any, ...], dtype: np.dtype[Any]
) -> tuple[str | None, tuple[int, ...] | None, tuple[BatchCodec, ...]] | None:
    """Byte order, order of axes and batch codecs of a chain; None if one of it is not known."""
    from zarr.codecs import BytesCodec, TransposeCodec

    if dtype.kind not in _BATCH_KINDS or dtype.itemsize == 0:
        return None
    order: tuple[int, ...] | None = None
    rest = list(codecs)
    while rest and type(rest[0]) is TransposeCodec:
        given = tuple(int(axis) for axis in rest.pop(0).order)
        order = given if order is None else tuple(order[axis] for axis in given)
    if not rest or type(rest[0]) is not BytesCodec:
        return None
    endian = rest.pop(0).endian
    # An enumeration in Zarr 3.1, plain text in newer ones.
    name = None if endian is None else str(getattr(endian, "value", endian))
    steps = [_batch_codec(codec) for codec in rest]
    known = tuple(step for step in steps if step is not None)
    return (name, order, known) if len(known) == len(steps) else None


def _batch_codec(codec: Any) -> BatchCodec | None:
    """The batch codec for one of Zarr's own codecs; None for others, even for subclasses."""
    from zarr.abc.codec import BytesBytesCodec
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

    from icefloe.arrays.batch_codecs import (
        BloscBatch,
        Crc32cBatch,
        GzipBatch,
        NumcodecsBatch,
        ZstdBatch,
    )

    kind = type(codec)
    if kind is ZstdCodec:
        return ZstdBatch(codec.level, codec.checksum)
    if kind is Crc32cCodec:
        return Crc32cBatch()
    if kind is GzipCodec:
        return GzipBatch(codec.level)
    if kind is BloscCodec:
        return BloscBatch()
    if kind.__module__.startswith(_NUMCODECS) and isinstance(codec, BytesBytesCodec):
        return NumcodecsBatch(getattr(codec, "_codec"))  # noqa: B009 (of classes made at run time)
    return None
