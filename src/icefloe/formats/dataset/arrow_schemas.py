"""The Arrow schemas of spec 000, field metadata included, and how wide their integers must be.

The spec gives most integers 16 bits. Once a value of a dataset needs more, its structure files have
one wider schema, all of them from then on, so that engines read them together; each says so under
the key `icefloe.schema` (H-02). A manifest with a chunk of 4 GiB has wider lengths (H-03).
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_KEY = b"icefloe.schema"
WIDE = b"wide"


NARROW_LIMIT = 2**16
"""What the integers of a structure file of spec 000 stay below."""
WIDE_LIMIT = 2**63
"""The same of the wide schema. Its integers are signed: Spark reads 64 unsigned bits as decimals,
and those not together with the integers of older files."""


def _described(name: str, kind: pa.DataType, text: str, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"description": text})


def structure_schema(*, is_wide: bool = False) -> pa.Schema:
    """The schema of structure files (R0-47), or the one for larger numbers (H-02)."""
    number = pa.uint32() if is_wide else pa.uint16()
    extent = pa.int64() if is_wide else pa.uint16()

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    array_metadata = pa.struct(
        [
            required("shape", pa.list_(extent)),
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
                            pa.struct([required("chunk_shape", pa.list_(extent))]),
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
            required("row", number),
            pa.field("flags", pa.uint16()),
        ]
    )
    inventory = pa.struct(
        [
            required("inventory_file", pa.string()),
            required("row", pa.uint16()),
            required("extent", pa.list_(pa.list_(extent, 2))),
            pa.field("flags", pa.uint16()),
        ]
    )
    return pa.schema(
        [
            _described("id", number, "unique identifier for the node", nullable=False),
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
            pa.field("length", pa.uint32() if length_bits == 32 else pa.uint64(), nullable=False),
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
