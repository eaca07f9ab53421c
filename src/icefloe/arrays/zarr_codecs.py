"""Chunks through Zarr's own codecs: for codecs and data types that have no batch form."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    import numpy.typing as npt

    from icefloe.arrays.layout import ArrayLayout

Result = TypeVar("Result")


class ZarrCodecs:
    """Zarr's pipeline for the chunks of an array."""

    def __init__(self, layout: ArrayLayout, *, write_empty_chunks: bool = False) -> None:
        """Put the pipeline together; `write_empty_chunks` also holds inside of shards."""
        from zarr.core.array_spec import ArrayConfig
        from zarr.core.buffer import default_buffer_prototype

        self._layout = layout
        self._config = ArrayConfig.from_dict({"write_empty_chunks": write_empty_chunks})
        self._prototype = default_buffer_prototype()
        self._pipeline = layout.zarr_pipeline

    def decode(
        self, pieces: Sequence[Any], shape: tuple[int, ...]
    ) -> list[npt.NDArray[Any] | None]:
        """Decode chunks of one shape."""
        spec = self._spec(shape)
        buffers = [self._prototype.buffer.from_bytes(bytes(piece)) for piece in pieces]
        decoded = _finish(self._pipeline.decode([(buffer, spec) for buffer in buffers]))
        return [None if array is None else array.as_numpy_array() for array in decoded]

    def encode(self, chunks: Sequence[npt.NDArray[Any]]) -> list[bytes | None]:
        """Encode chunks; None for those that are not to be kept."""
        wrap: Any = self._prototype.nd_buffer.from_ndarray_like
        given = [(wrap(np.ascontiguousarray(c).reshape(c.shape)), c.shape) for c in chunks]
        encoded = _finish(self._pipeline.encode([(array, self._spec(s)) for array, s in given]))
        return [None if buffer is None else buffer.to_bytes() for buffer in encoded]

    def is_empty(self, chunk: npt.NDArray[Any]) -> bool:
        """Whether Zarr takes a chunk to have the fill value only."""
        wrap: Any = self._prototype.nd_buffer.from_ndarray_like
        wrapped = wrap(chunk)
        return bool(wrapped.all_equal(self._layout.fill_value))

    def _spec(self, shape: tuple[int, ...]) -> Any:
        from zarr.core.array_spec import ArraySpec

        return ArraySpec(
            shape=shape,
            dtype=self._layout.metadata.data_type,
            fill_value=self._layout.fill_value,
            config=self._config,
            prototype=self._prototype,
        )


def _finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run Zarr's asynchronous code to its end, from wherever this is."""
    from zarr.core.sync import sync

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return sync(work)
    # Zarr's own loop may be the one that runs here, and must not wait for itself.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
