"""Spec version 1, struct by struct: a plain reader of spec 001 finds what it expects."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest

from icefloe.errors import FormatError
from icefloe.formats.container import HEADER_SIZE, compress, decompress
from icefloe.formats.registry import format_for
from icefloe.formats.repository.zarr_structs import array_struct, rebuild_array
from icefloe.model.ids import SnapshotId
from icefloe.model.zarr_document import parse_document
from scripts import make_golden

CODEC = format_for(spec_version=1).codec


def body(data: bytes) -> Any:
    assert data[24] == 1
    return msgspec.msgpack.decode(decompress(data[HEADER_SIZE:], "key"))


def test_snapshot_has_the_eleven_fields_of_spec_001() -> None:
    # R1-27, R2-12, R2-13, R2-21, R2-22, R2-32
    snapshot = make_golden.snapshot()
    fields = body(CODEC.encode_snapshot(snapshot).data)
    (
        version,
        flags,
        manifests,
        files,
        total_parents,
        short_term_parents,
        short_term_history,
        metadata,
        started_at,
        properties,
        nodes,
    ) = fields  # R1-28
    assert version == 0  # R2-33
    assert list(flags) == ["icefloe"]
    assert manifests == [[str(info.id), 0] for info in snapshot.manifests]  # R2-23
    assert files == [[str(info.id), 0] for info in snapshot.attribute_files]  # R2-24
    assert (total_parents, short_term_parents) == (1, 1)
    first = snapshot.history[0]
    assert short_term_history == [[str(first.id), "2026-01-30T12:30:45.123456Z", first.message]]
    assert metadata == [str(snapshot.id), "2026-01-31T12:30:47.123456Z", snapshot.message]
    assert started_at == "2026-01-31T12:30:45.123456Z"
    assert properties == snapshot.metadata
    assert list(nodes) == list(snapshot.nodes.paths)  # R1-31


def test_nodes_are_the_structs_of_spec_001() -> None:  # R1-32
    snapshot = make_golden.snapshot()
    nodes = body(CODEC.encode_snapshot(snapshot).data)[10]
    root, data, scalar, large = (nodes[path] for path in snapshot.nodes.paths)
    assert root == [
        str(make_golden.node_id(1)),
        "/",
        {"Inline": {"z": 1, "a": [True, None, 1000.0]}},
        "Group",
    ]  # R2-25
    one, two = map(str, make_golden.MANIFESTS)
    assert data[2] == {"Inline": {"units": "K", "größe": 1.5}}
    metadata, refs = data[3]["Array"]  # R2-26
    assert refs == [[one, [[0, 0], [2, 2]]], [two, [[0, 2], [2, 3]]]]  # R2-28, H-18
    fill_value = metadata.pop(4)
    assert metadata == [
        [20, 30],
        "float32",
        [10, 10],
        "Slash",
        [["bytes", {"endian": "little"}]],
        [],
        ["y", None],
    ]  # R2-27
    assert list(fill_value) == ["Float32"]
    assert scalar[3]["Array"][0][1] == "int64"
    assert scalar[3]["Array"][1] == [[one, [[], []]]]
    assert large[2] == {"Ref": [str(make_golden.ATTRIBUTES_ID), 1]}


def test_floats_of_four_bytes_are_written_as_such() -> None:
    raw = decompress(CODEC.encode_snapshot(make_golden.snapshot()).data[HEADER_SIZE:], "key")
    # wire formats 4.3: {"Float32": NaN}
    assert bytes.fromhex("81 a7 46 6c 6f 61 74 33 32 ca 7f c0 00 00") in raw


def test_manifest_is_a_sorted_map_with_arrays_as_keys() -> None:  # R1-35, R1-37, R2-29, R2-32
    parts = make_golden.manifest_parts()
    version, flags, chunks = body(CODEC.encode_manifest(parts[::-1]).data)  # R1-36
    assert version == 0
    keys = list(chunks)
    assert keys == sorted(keys)
    node = str(make_golden.node_id(2))
    assert chunks[node, (0, 1)] == {"Ref": [str(make_golden.FILES[0]), 100, 50]}  # R2-30
    assert chunks[node, (0, 2)] == {"Virtual": [{"Absolute": "s3://bucket/a.nc"}, 4096, 1000]}
    assert chunks[node, (3, 4)] == {"Inline": b"inline bytes"}
    assert chunks[str(make_golden.node_id(3)), ()] == {"Inline": b"\x01"}
    extension = flags["icefloe"]
    assert extension["sources"] == [[2, '"abc"', None], [3, None, 1_700_000_000]]
    assert struct.unpack_from("<6I", extension["checksums"]) == (0xDEADBEEF, 7, 0, 0, 0, 0)


def test_a_manifest_without_extras_has_no_flags() -> None:
    (line,) = [part for part in make_golden.manifest_parts() if part[0] == make_golden.node_id(6)]
    _, flags, chunks = body(CODEC.encode_manifest([line]).data)
    assert flags == {}
    assert len(chunks) == 20


def test_transaction_log_has_eight_fields_and_moves() -> None:
    log = make_golden.transaction_log()
    fields = body(CODEC.encode_transaction_log(log).data)  # H-32
    ids = {number: str(make_golden.node_id(number)) for number in range(20)}
    assert fields == [
        0,
        [ids[1]],
        [ids[2], ids[3]],
        [ids[10]],
        [ids[11], ids[12]],
        [ids[1], ids[2], ids[3], ids[13], ids[14]],
        [ids[14]],
        {
            ids[2]: [[0, 0], [0, 1], [1, 0], [1, 1]],
            ids[3]: [[]],
            ids[14]: [[5], [9], [100]],
        },
        {"icefloe": {"moves": [[ids[13], "/old/name", "/new"]]}},
    ]
    without = msgspec.structs.replace(log, moves=())
    assert len(body(CODEC.encode_transaction_log(without).data)) == 8


def test_attribute_rows_are_maps_at_their_location() -> None:
    rows = make_golden.attribute_rows()
    maps = body(CODEC.encode_attributes(rows).data)  # R1-33, H-07
    assert maps[0] == {"b": 1, "a": 2.5}
    assert maps[1] == json.loads(rows[1])
    assert maps[2] == rows


def test_attribute_files_of_maps_alone_are_read() -> None:
    header = CODEC.encode_attributes([]).data[:HEADER_SIZE]
    data = header + compress(msgspec.msgpack.encode([{"a": 1}, {}]))
    assert CODEC.decode_attributes(data, "key") == [b'{"a":1}', b"{}"]


def test_snapshots_of_plain_writers_are_read() -> None:
    """Without our extension, documents are rebuilt and sizes are unknown."""
    encoded = CODEC.encode_snapshot(make_golden.snapshot()).data
    fields = body(encoded)
    fields[1] = {}
    data = encoded[:HEADER_SIZE] + compress(msgspec.msgpack.encode(fields))
    found = CODEC.decode_snapshot(data, SnapshotId(make_golden.SNAPSHOT_ID), "key")
    root, array, _, large = found.nodes
    assert root.document == (
        b'{"zarr_format":3,"node_type":"group","attributes":{"z":1,"a":[true,null,1000.0]}}'
    )
    assert array.is_array
    assert array.array.shape == (20, 30)
    assert [ref.num_refs for ref in array.manifests] == [4, 2]
    assert large.attributes is not None
    at = large.attributes.position
    whole = large.document[:at] + b'{"x":1}' + large.document[at:]
    assert whole == b'{"zarr_format":3,"node_type":"group","attributes":{"x":1}}'


def fields_of(**changes: Any) -> list[Any]:
    document = make_golden.array_document(**changes)
    array = parse_document(json.dumps(document).encode())
    assert array is not None
    return msgspec.msgpack.decode(msgspec.msgpack.encode(array_struct(document, array)))


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("bool", True, {"Bool": True}),
        ("int8", -5, {"Int8": -5}),
        ("int16", 300, {"Int16": 300}),
        ("int32", -70_000, {"Int32": -70_000}),
        ("int64", 2**40, {"Int64": 2**40}),
        ("uint8", 255, {"UInt8": 255}),
        ("uint16", 65_535, {"UInt16": 65_535}),
        ("uint32", 2**32 - 1, {"UInt32": 2**32 - 1}),
        ("uint64", 2**64 - 1, {"UInt64": 2**64 - 1}),
        ("float16", 1.5, {"Float16": 1.5}),
        ("float32", "Infinity", {"Float32": float("inf")}),
        ("float64", "-Infinity", {"Float64": float("-inf")}),
        ("float32", "0x3f800000", {"Float32": 1.0}),
        ("float64", 3, {"Float64": 3.0}),
        ("complex64", [1.5, "Infinity"], {"Complex64": [1.5, float("inf")]}),
        ("complex128", [0.1, -2.0], {"Complex128": [0.1, -2.0]}),
        ("string", "text", {"String": "text"}),
        ("bytes", [0, 255], {"Bytes": [0, 255]}),
        ("bytes", "AP8=", {"Bytes": [0, 255]}),
        # what spec 001 cannot say is the nearest thing that it can
        ("int8", 1000, {"Int8": 127}),
        ("float32", 1e300, {"Float32": float("inf")}),
        ("float32", None, {"Float32": 0.0}),
        ("r16", [1, 2], {"Bytes": [1, 2]}),
        ("numpy.datetime64", "NaT", {"Int64": 0}),
        ("numpy.timedelta64", 7, {"Int64": 7}),
        ("fixed_length_utf32", "é", {"String": "é"}),
        ("struct", "??", {"Bytes": []}),
    ],
)
def test_fill_values(data_type: str, value: Any, expected: dict[str, Any]) -> None:
    assert fields_of(data_type=data_type, fill_value=value)[4] == expected  # R3-64, H-16


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ({"name": "default", "configuration": {"separator": "/"}}, "Slash"),
        ({"name": "default", "configuration": {"separator": "."}}, "Dot"),
        ({"name": "default"}, "Default"),
        ({"name": "v2"}, "Dot"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "Slash"),
    ],
)
def test_key_encodings(encoding: dict[str, Any], expected: str) -> None:
    assert fields_of(chunk_key_encoding=encoding)[3] == expected  # H-17


def test_grids_without_a_chunk_shape_get_the_nearest() -> None:
    grid = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[8, 12], 7]},
    }
    assert fields_of(chunk_grid=grid)[2] == [20, 30]  # H-45


@pytest.mark.parametrize("data_type", ["int8", "float64", "complex64", "string", "bytes", "bool"])
def test_structs_give_the_document_back(data_type: str) -> None:
    values = {
        "int8": -3,
        "float64": "NaN",
        "complex64": ["NaN", 1.0],
        "string": "x",
        "bytes": [1],
        "bool": False,
    }
    document = make_golden.array_document(data_type=data_type, fill_value=values[data_type])
    attributes = json.dumps(document["attributes"]).encode()
    fields = fields_of(data_type=data_type, fill_value=values[data_type])
    rebuilt, position = rebuild_array(fields, attributes)
    assert json.loads(rebuilt) == document
    assert rebuilt[position:].startswith(attributes)


def test_a_snapshot_is_not_its_own_ancestor() -> None:
    encoded = CODEC.encode_snapshot(make_golden.snapshot()).data
    fields = body(encoded)
    fields[6][0][0] = str(make_golden.SNAPSHOT_ID)
    data = encoded[:HEADER_SIZE] + compress(msgspec.msgpack.encode(fields))
    with pytest.raises(FormatError, match="own ancestors"):
        CODEC.decode_snapshot(data, make_golden.SNAPSHOT_ID, "key")
