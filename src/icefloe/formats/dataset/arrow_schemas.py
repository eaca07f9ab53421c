"""The Arrow schemas of spec 000, field metadata included, and how wide their integers must be.

The spec gives most integers 16 bits. Where a value needs more, the one type that holds it is made
wider, and the file says so under the key `icefloe.schema` (H-02, H-03).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from icefloe.model.record import Record

SCHEMA_KEY = b"icefloe.schema"
WIDE = b"wide"


class StructureWidths(Record, frozen=True):
    """Bits of the integers of a structure file; as the spec has them by default."""

    id: int = 16
    shape: int = 16
    chunk_shape: int = 16
    attrs_row: int = 16
    extent: int = 16

    @property
    def is_strict(self) -> bool:
        """Whether the schema is exactly that of the spec."""
        return self == StructureWidths()


def bits_for(values: Any) -> int:
    """The narrowest of 16, 32 and 64 bits that hold all of some numbers."""
    highest = max(values, default=0)
    return 16 if highest < 2**16 else 32 if highest < 2**32 else 64


_UNSIGNED = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def _described(name: str, kind: pa.DataType, text: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"description": text})


def structure_schema(widths: StructureWidths | None = None) -> pa.Schema:
    """The schema of structure files (R0-47)."""
    bits = widths or StructureWidths()

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    array_metadata = pa.struct(
        [
            required("shape", pa.list_(_UNSIGNED[bits.shape])),
            required("data_type", pa.string()),
            pa.field("fill_value", pa.binary()),
            pa.field("dimension_names", pa.list_(pa.string())),
            pa.field(
                "chunk_grid",
                pa.struct(
                    [
                        required("name", pa.string()),
                        required(
                            "configuration",
                            pa.struct(
                                [required("chunk_shape", pa.list_(_UNSIGNED[bits.chunk_shape]))]
                            ),
                        ),
                    ]
                ),
            ),
            pa.field(
                "chunk_key_encoding",
                pa.struct(
                    [
                        required("name", pa.string()),
                        required("configuration", pa.struct([required("separator", pa.string())])),
                    ]
                ),
            ),
            pa.field(
                "codecs",
                pa.list_(
                    pa.struct(
                        [required("name", pa.string()), pa.field("configuration", pa.binary())]
                    )
                ),
            ),
        ]
    )
    attrs_reference = pa.struct(
        [
            required("attrs_file", pa.string()),
            required("row", _UNSIGNED[bits.attrs_row]),
            pa.field("flags", pa.uint16()),
        ]
    )
    inventory = pa.struct(
        [
            required("inventory_file", pa.string()),
            required("row", pa.uint16()),
            required("extent", pa.list_(pa.list_(_UNSIGNED[bits.extent], 2))),
            pa.field("flags", pa.uint16()),
        ]
    )
    return pa.schema(
        [
            _described("id", _UNSIGNED[bits.id], "unique identifier for the node", nullable=False),
            _described("type", pa.string(), "array or group", nullable=False),
            _described("path", pa.string(), "path to the node within the store", nullable=False),
            _described("array_metadata", array_metadata, "All the Zarr array metadata"),
            _described(
                "inline_attrs",
                pa.binary(),
                "user-defined attributes, stored inline with this entry",
            ),
            _described(
                "attrs_reference",
                attrs_reference,
                "user-defined attributes, stored in a separate attributes file",
            ),
            pa.field("inventories", pa.list_(inventory)),
        ]
    )


def manifest_schema(length_bits: int = 32) -> pa.Schema:
    """The schema of chunk manifests (R0-55)."""
    return pa.schema(
        [
            pa.field("id", pa.uint32(), nullable=False),
            pa.field("array_id", pa.uint32(), nullable=False),
            pa.field("coord", pa.binary(), nullable=False),
            pa.field("inline_data", pa.binary()),
            pa.field("chunk_file", pa.string()),
            pa.field("offset", pa.uint64()),
            pa.field("length", _UNSIGNED[length_bits], nullable=False),
        ]
    )


def attributes_schema() -> pa.Schema:
    """The schema of attribute files (H-07): `attrs` is JSON, verbatim."""
    return pa.schema(
        [
            pa.field("row", pa.uint32(), nullable=False),
            pa.field("attrs", pa.binary(), nullable=False),
        ]
    )
