"""Structure files: a Parquet table with one row per node, for any engine (R0-46 to R0-50).

The rows have everything for which spec 000 has a column. The footer's metadata has the snapshot
itself, in the columns of the `repository` generation; icefloe reads those, and the rows where there
are none.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.formats import snapshot_columns
from icefloe.formats.container import bad_file
from icefloe.formats.dataset import fill_values, stand_ins
from icefloe.formats.dataset.arrow_schemas import NARROW_LIMIT, WIDE_LIMIT, structure_schema
from icefloe.formats.dataset.layout import file_of, id_of_file
from icefloe.formats.dataset.parquet_files import ParquetWriter, read_table, read_whole_footer
from icefloe.formats.dataset.state import FOREIGN
from icefloe.formats.nodes import check_paths, load_node, parse_document
from icefloe.formats.port import numbered_id, other_numbers, prefix_number
from icefloe.model.chunk_index import Box
from icefloe.model.ids import AttributesId, ManifestId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.snapshot import AttributesFileInfo, Snapshot

if TYPE_CHECKING:
    from icefloe.model.zarr_document import ArrayMetadata

_JSON = fill_values.MARKER.decode()
_NOT_A_ROW = (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError)


# --- writing


class StructureRows:
    """A snapshot as the rows of a structure file."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Make a row of each node; raises InvalidInputError for one that no file could hold."""
        others = other_numbers(snapshot)
        self._snapshot = snapshot
        self._rows = [
            _row(node, others.get(node.id, prefix_number(node.id))) for node in snapshot.nodes
        ]
        largest, path = max(
            ((_largest_number(row), row["path"]) for row in self._rows), default=(0, "")
        )
        if largest >= WIDE_LIMIT:
            raise InvalidInputError(
                f"{path} has a shape or chunks of {largest}; in a dataset they are below 2**63"
            )
        self.need_wide_schema = largest >= NARROW_LIMIT
        """Whether a number is too large for the schema of spec 000 (H-02)."""

    def encode(self, level: int, *, is_wide: bool) -> bytes:
        """The bytes of the structure file."""
        schema = structure_schema(is_wide=is_wide)
        writer = ParquetWriter(schema, level, is_wide=is_wide)
        if self._rows:
            writer.write(pa.Table.from_pylist(self._rows, schema=schema))
        packed = snapshot_columns.encode_snapshot(stand_ins.put_in(self._snapshot))
        return writer.close(None, packed=packed)


def _row(node: Node, number: int) -> dict[str, Any]:
    ref = node.attributes
    document = parse_document(node.outline)
    attributes = document.get("attributes") if ref is None else None
    return {
        "id": number,
        "type": "array" if node.is_array else "group",
        "path": node.path,
        "array_metadata": _array_metadata(document, node.array) if node.is_array else None,
        "inline_attrs": None if attributes is None else _json(attributes),
        "attrs_reference": None
        if ref is None
        else {"attrs_file": file_of(ref.file), "row": ref.row, "flags": None},
        "inventories": [_inventory(item) for item in node.manifests] if node.is_array else None,
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _array_metadata(document: dict[str, Any], array: ArrayMetadata) -> dict[str, Any]:
    """The struct of an array; what has no place in it is null there (H-08)."""
    data_type = document["data_type"]
    encoding = document["chunk_key_encoding"]
    says = encoding.get("configuration") if isinstance(encoding, dict) else None
    return {
        "shape": array.shape,
        "data_type": _plain_name(data_type) or _JSON + _json(data_type).decode(),
        "fill_value": fill_values.encode(data_type, document["fill_value"]),
        "dimension_names": array.dimension_names,
        "chunk_grid": None
        if array.chunk_shape is None
        else {"name": "regular", "configuration": {"chunk_shape": array.chunk_shape}},
        "chunk_key_encoding": {
            "name": array.key_encoding,
            "configuration": {"separator": array.key_separator},
        }
        if says
        else None,
        "codecs": [_codec(codec) for codec in document["codecs"]],
    }


def _plain_name(data_type: Any) -> str | None:
    """The name of a data type that is no more than a name."""
    if isinstance(data_type, str) and not data_type.startswith(_JSON):
        return data_type
    return None


def _codec(codec: Any) -> dict[str, Any]:
    if not isinstance(codec, dict):
        return {"name": str(codec), "configuration": None}
    configuration = codec.get("configuration")
    return {
        "name": str(codec.get("name", "")),
        "configuration": None if configuration is None else _json(configuration),
    }


def _inventory(ref: ManifestRef) -> dict[str, Any]:
    """A manifest; `row` is where to begin to look, which sorted tables need not say."""
    pairs = [list(pair) for pair in zip(ref.extents.lower, ref.extents.upper, strict=True)]
    return {
        "inventory_file": file_of(ref.manifest_id),
        "row": 0,
        "extent": pairs,
        "flags": None,
    }


def _largest_number(row: dict[str, Any]) -> int:
    array, ref = row["array_metadata"], row["attrs_reference"]
    numbers: list[int] = [row["id"], 0 if ref is None else ref["row"]]
    if array is not None:
        grid = array["chunk_grid"]
        numbers += [
            *array["shape"],
            *([] if grid is None else grid["configuration"]["chunk_shape"]),
        ]
    for item in row["inventories"] or ():
        numbers += [corner for pair in item["extent"] for corner in pair]
    return max(numbers)


# --- reading


def decode_snapshot(data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
    """Read a structure file that was found under the name of `snapshot_id`."""
    footer = read_whole_footer(data, key)
    if footer.notes is not None:
        found = snapshot_columns.decode_snapshot(footer.notes, snapshot_id, key)
        return stand_ins.take_out(found, key)
    return _foreign_snapshot(data, snapshot_id, key)


def _foreign_snapshot(data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
    """A snapshot of the rows alone, as another program may have written them."""
    table = read_table(data, key)
    missing = [name for name in structure_schema().names if name not in table.schema.names]
    if missing:
        raise bad_file(key, f"a structure file has a column {missing[0]!r}")
    try:
        rows = sorted(table.to_pylist(), key=lambda row: str(row["path"]))
        check_paths([row["path"] for row in rows], key)
        nodes = [_node(row, key) for row in rows]
    except _NOT_A_ROW as error:
        raise bad_file(key, f"a row is not that of a node: {error}") from None
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    manifests = {ref.manifest_id for node in nodes for ref in node.manifests}
    files = {node.attributes.file for node in nodes if node.attributes is not None}
    return Snapshot(
        id=snapshot_id,
        parent_id=None,
        written_at=epoch,
        started_at=epoch,
        message="",
        metadata={FOREIGN: True},
        total_parents=0,
        history=(),
        manifests=tuple(ManifestFileInfo(each, 0, 0) for each in sorted(manifests)),
        attribute_files=tuple(AttributesFileInfo(each) for each in sorted(files)),
        nodes=NodeTable.of(nodes),
    )


def _node(row: dict[str, Any], key: str) -> Node:
    attributes = row["inline_attrs"]
    outside = row["attrs_reference"]
    if attributes is not None and outside is not None:  # R0-49
        raise ValueError(f"{row['path']} has attributes both here and in a file")
    given = None if attributes is None else json.loads(attributes)
    document = document_of(row["array_metadata"], {} if outside is not None else given)
    ref = None
    if outside is not None:
        mark = b'"attributes": '
        position = document.index(mark + b"{}") + len(mark)
        document = document[:position] + document[position + 2 :]
        file = id_of_file(AttributesId, outside["attrs_file"])
        ref = AttributesRef(file, outside["row"], position)
    node = load_node(numbered_id(row["id"]), row["path"], document, (), ref, key=key)
    if node.is_array != (row["type"] == "array"):
        raise ValueError(f"{row['path']} is of type {row['type']!r}, but its metadata is not")
    if not node.is_array:
        return node
    grid = node.array.grid_shape or (0,) * node.array.rank
    return node.evolve(
        manifests=tuple(_manifest_ref(item, grid) for item in row["inventories"] or ())
    )


def _manifest_ref(item: dict[str, Any], grid: tuple[int, ...]) -> ManifestRef:
    pairs = item["extent"]
    box = Box((0,) * len(grid), grid)
    if len(pairs) == len(grid) and all(low < high for low, high in pairs):
        box = Box(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))
    manifest_id = id_of_file(ManifestId, item["inventory_file"])
    return ManifestRef(manifest_id, box, max(1, box.size))


def document_of(array: dict[str, Any] | None, attributes: dict[str, Any] | None) -> bytes:
    """The zarr.json of a node, in zarr-python's style, from what its row says (R0-48)."""
    document: dict[str, Any] = {}
    if array is not None:
        text = array["data_type"]
        data_type = json.loads(text[len(_JSON) :]) if text.startswith(_JSON) else text
        encoding = array["chunk_key_encoding"]
        document = {
            "shape": array["shape"],
            "data_type": data_type,
            "chunk_grid": array["chunk_grid"],
            "chunk_key_encoding": {"name": "default"} if encoding is None else encoding,
            "fill_value": fill_values.decode(data_type, array["fill_value"]),
            "codecs": [_document_codec(codec) for codec in array["codecs"] or ()],
        }
    if attributes is not None:
        document["attributes"] = attributes
    if array is not None and array["dimension_names"] is not None:
        document["dimension_names"] = array["dimension_names"]
    document["zarr_format"] = 3
    document["node_type"] = "group" if array is None else "array"
    return json.dumps(document, indent=2).encode("ascii")


def _document_codec(codec: dict[str, Any]) -> dict[str, Any]:
    configuration = codec["configuration"]
    named = {"name": codec["name"]}
    return named if configuration is None else {**named, "configuration": json.loads(configuration)}
