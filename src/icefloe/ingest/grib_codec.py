"""The Zarr codec `icefloe.grib`: one GRIB message of any edition is one chunk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.codec import ArrayBytesCodec

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsers.grib1 import values_of

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

CODEC_NAME = "icefloe.grib"


@dataclass(frozen=True)
class GribCodec(ArrayBytesCodec):
    """Decodes a message; there is no encoder."""

    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:  # noqa: ARG003
        """Make the codec; it has no settings."""
        return cls()

    def to_dict(self) -> dict[str, Any]:
        """How it is named in a zarr.json."""
        return {"name": CODEC_NAME}

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        values = values_of(chunk_bytes.to_bytes())
        expected = chunk_spec.shape
        count = 1
        for size in expected:
            count *= size
        if values.size != count:
            raise InvalidInputError(
                f"a GRIB message has {values.size} values, but its chunk has the shape {expected}: "
                "the file has changed since it was referenced"
            )
        dtype = chunk_spec.dtype.to_native_dtype()
        make: Any = chunk_spec.prototype.nd_buffer.from_ndarray_like
        made: NDBuffer = make(values.reshape(expected).astype(dtype, copy=False))
        return made

    async def _encode_single(
        self,
        chunk_array: NDBuffer,  # noqa: ARG002
        chunk_spec: ArraySpec,  # noqa: ARG002
    ) -> Buffer | None:
        raise InvalidInputError(
            "an array of references to GRIB messages cannot be written to: copy it to a new array"
        )

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Not known before."""
        raise NotImplementedError
