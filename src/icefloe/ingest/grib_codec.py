"""The Zarr codec `icefloe.grib`: one GRIB message of any edition is one chunk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.codec import ArrayBytesCodec

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsers.grib_fields import values_of

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

CODEC_NAME = "icefloe.grib"
_MOST_FIELDS = 1 << 16


@dataclass(frozen=True)
class GribCodec(ArrayBytesCodec):
    """Decodes a field of a message; there is no encoder."""

    field: int = 0
    """Which of the fields of the message."""

    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the codec from a zarr.json; only messages of several fields need settings."""
        field = (data.get("configuration") or {}).get("field", 0)
        if not isinstance(field, int) or not 0 <= field < _MOST_FIELDS:
            raise InvalidInputError(f"expected the number of a field of GRIB, found {field!r}")
        return cls(field)

    def to_dict(self) -> dict[str, Any]:
        """How it is named in a zarr.json."""
        named: dict[str, Any] = {"name": CODEC_NAME}
        return named | ({"configuration": {"field": self.field}} if self.field else {})

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        values = values_of(chunk_bytes.to_bytes(), self.field)
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
