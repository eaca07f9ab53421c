"""The codec pipeline of our stores: takes a batch of chunks as a whole where it can."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from zarr.abc.codec import CodecPipeline
from zarr.registry import get_pipeline_class

from icefloe.arrays.chunk_arrays import ChunkArrays
from icefloe.arrays.layout import ArrayLayout
from icefloe.arrays.transfer import BoxTransfer
from icefloe.errors import IcefloeError
from icefloe.zarr_store.batches import batch_of, box_of, finer_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    from zarr.abc.codec import Codec
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    from icefloe.arrays.scattered import Parts
    from icefloe.arrays.shards import ShardLayout
    from icefloe.zarr_store.batches import Batch

    Flags = npt.NDArray[np.bool_]

_INLINE_BYTES = 1 << 20
"""Requests of at most this number of decoded bytes are not worth another thread."""
_PRESENT = {"status": "present"}
_MISSING = {"status": "missing"}


@dataclass(frozen=True)
class StorePipeline(CodecPipeline):
    """Reads and writes whole batches of chunks.

    The rest is left to the pipeline that zarr is configured to use, so that any codec works.
    """

    inner: CodecPipeline
    metadata: Any = field(compare=False, repr=False)

    @cached_property
    def _layout(self) -> ArrayLayout | None:
        """How the chunks are encoded; None if batches are not for us."""
        layout = ArrayLayout(self.metadata)
        return layout if layout.is_batched or layout.shards is not None else None

    # --- reading

    async def read(
        self,
        batch_info: Iterable[Any],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Read the chunks of a batch into an array."""
        requests = list(batch_info)
        layout = self._layout
        target = _plain_array(out, layout)
        if layout is None or target is None or not requests:
            return await self._hand_on(requests, out, drop_axes)
        batch = batch_of(requests, layout)
        if batch is None:
            return await self._hand_on(requests, out, drop_axes)
        if layout.shards is not None:
            sharded = _sharded(batch, layout, layout.shards, target, drop_axes)
            if sharded is None:
                return await self._hand_on(requests, out, drop_axes)
            touched = target.nbytes + len(requests) * layout.shards.inner.chunk_bytes
            return _statuses(await _run(batch, touched, sharded))
        if len(requests) == 1 and layout.chunk_bytes <= _INLINE_BYTES:
            return await _read_one(batch, layout, target, drop_axes)
        work = _reading(batch, layout, target, drop_axes)
        return _statuses(await _run(batch, len(requests) * layout.chunk_bytes, work))

    async def _hand_on(
        self, requests: Sequence[Any], out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Any:
        """Let the inner pipeline read; if it fails, find out at which chunk, and say so."""
        try:
            return await self.inner.read(requests, out, drop_axes)
        except IcefloeError:
            raise
        except Exception:
            await asyncio.to_thread(_decode_singly, requests, ArrayLayout(self.metadata))
            raise

    # --- writing

    async def write(
        self,
        batch_info: Iterable[Any],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write the chunks of a batch out of an array."""
        requests = list(batch_info)
        layout = self._layout
        values = _plain_array(value, layout)
        batch = None
        if layout is not None and layout.is_batched and values is not None and requests:
            batch = batch_of(requests, layout)
        if batch is None or layout is None or values is None:
            await self.inner.write(requests, value, drop_axes)
            return
        batch.store.check_writable()
        work = _writing(batch, layout, values, drop_axes)
        await _run(batch, len(requests) * layout.chunk_bytes, work)

    # --- what the inner pipeline is

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[Codec]:
        return iter(self.inner)  # type: ignore[call-overload, no-any-return]

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """The same for another kind of chunks."""
        return replace(self, inner=self.inner.evolve_from_array_spec(array_spec))

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Self:
        """Codecs without an array: there, the configured pipeline is all there is."""
        return get_pipeline_class().from_codecs(codecs)  # type: ignore[return-value]

    @property
    def supports_partial_decode(self) -> bool:
        """Whether parts of chunks can be read."""
        return self.inner.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether parts of chunks can be written."""
        return self.inner.supports_partial_encode

    def validate(self, **given: Any) -> None:
        """Check that the codecs fit an array."""
        self.inner.validate(**given)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        """Number of bytes of an encoded chunk, where that is known."""
        return self.inner.compute_encoded_size(byte_length, array_spec)

    async def decode(
        self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        """Decode chunks that are in memory."""
        return await self.inner.decode(chunk_bytes_and_specs)

    async def encode(
        self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]
    ) -> Iterable[Buffer | None]:
        """Encode chunks that are in memory."""
        return await self.inner.encode(chunk_arrays_and_specs)


def _decode_singly(requests: Sequence[Any], layout: ArrayLayout) -> None:
    """Raise FormatError for the first chunk that cannot be decoded, if there is one."""
    batch = batch_of(requests, layout) if requests and layout.is_regular else None
    if batch is None:
        return
    chunks = ChunkArrays(batch.store.tree, batch.path, layout)
    for place in batch.coords.tolist():
        chunks.load_one(tuple(place), layout.chunk_shape)


def _statuses(present: Flags) -> Any:
    if present.all():
        return (_PRESENT,) * present.size
    return tuple(_PRESENT if found else _MISSING for found in present.reshape(-1).tolist())


def _plain_array(buffer: NDBuffer, layout: ArrayLayout | None) -> npt.NDArray[Any] | None:
    """The array of a buffer, if it is one of numpy and has the values of the array as they are."""
    if layout is None:
        return None
    array: Any = buffer.as_ndarray_like()
    if not isinstance(array, np.ndarray) or array.dtype.kind != layout.dtype.kind:
        return None
    # Without a mask, if it has one: what counts are the values, as for Zarr.
    return np.asarray(array) if array.dtype.itemsize == layout.dtype.itemsize else None


async def _run(batch: Batch, nbytes: int, work: Callable[[], Flags]) -> Flags:
    """Do the work here if it is quick, else in a thread: the event loop is not only ours."""
    if nbytes <= _INLINE_BYTES and batch.store.tree.reads_are_immediate:
        return work()
    return await asyncio.to_thread(work)


async def _read_one(
    batch: Batch, layout: ArrayLayout, target: npt.NDArray[Any], drop_axes: tuple[int, ...]
) -> Any:
    """Read one small chunk, the quick way."""
    tree, (place,) = batch.store.tree, batch.coords.tolist()
    coords = tuple(place)
    if tree.reads_are_immediate:
        data = tree.get_chunk(batch.path, coords)
    else:
        data = await tree.get_chunk_async(batch.path, coords)
    _, _, in_chunk, in_values, _ = batch.requests[0]
    if data is None:
        target[in_values] = layout.fill_value
        return (_MISSING,)
    chunk = ChunkArrays(tree, batch.path, layout).decode_one(data, coords, layout.chunk_shape)
    part = chunk[in_chunk]
    target[in_values] = part.squeeze(axis=drop_axes) if drop_axes else part
    return (_PRESENT,)


def _sharded(
    batch: Batch,
    layout: ArrayLayout,
    shards: ShardLayout,
    target: npt.NDArray[Any],
    drop_axes: tuple[int, ...],
) -> Callable[[], Flags] | None:
    """Reading chunks inside of shards; None for what is no box of them."""
    box = None if drop_axes else box_of(batch, layout)
    if box is None or box.shape != target.shape:
        return None
    spans = finer_spans(box.spans, layout, shards.inner)
    if spans is None:
        return None

    def read() -> Flags:
        chunks = BoxTransfer(batch.store.tree, batch.path, shards.inner, spans, shards=shards)
        whole = target[box.axes]
        if not chunks.read_from_one(whole):
            chunks.read(whole)
        found = chunks.shards_found
        return np.array([tuple(place) in found for place in batch.coords.tolist()], dtype=np.bool_)

    return read


def _reading(
    batch: Batch, layout: ArrayLayout, target: npt.NDArray[Any], drop_axes: tuple[int, ...]
) -> Callable[[], Flags]:
    tree = batch.store.tree
    box = None if drop_axes else box_of(batch, layout)
    if box is not None and box.shape == target.shape:
        whole = target[box.axes]
        return lambda: BoxTransfer(tree, batch.path, layout, box.spans).read(whole)
    from icefloe.arrays.scattered import ScatteredChunks

    return lambda: ScatteredChunks(tree, batch.path, layout).read(_parts(batch, drop_axes), target)


def _writing(
    batch: Batch, layout: ArrayLayout, values: npt.NDArray[Any], drop_axes: tuple[int, ...]
) -> Callable[[], Flags]:
    from icefloe.arrays.scattered import ScatteredChunks

    tree = batch.store.tree
    keep = bool(batch.spec.config.write_empty_chunks)
    box = None if drop_axes else box_of(batch, layout)

    def write() -> Flags:
        if box is not None and values.shape in {(), box.shape}:
            cells = np.broadcast_to(values, box.shape)[box.axes]
            covered = batch.whole()
            boxed = BoxTransfer(
                tree, batch.path, layout, box.spans, write_empty_chunks=keep, covered=covered
            )
            boxed.write(cells)
        else:
            scattered = ScatteredChunks(tree, batch.path, layout, write_empty_chunks=keep)
            scattered.write(_parts(batch, drop_axes), values)
        return np.ones(1, dtype=np.bool_)

    return write


def _parts(batch: Batch, drop_axes: tuple[int, ...]) -> Parts:
    from icefloe.arrays.scattered import Parts

    return Parts(
        coords=batch.coords,
        in_chunk=[request[2] for request in batch.requests],
        in_values=[request[3] for request in batch.requests],
        whole=batch.whole(),
        drop_axes=drop_axes,
    )
