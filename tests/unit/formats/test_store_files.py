"""Files of the generation `store`: what spec 003 says of them, and what fills its holes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import Repository, RepositoryConfig, VirtualChunkContainer
from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import detect, format_for
from icefloe.formats.store import zarr_json
from icefloe.formats.store.object_ids import file_name, node_id
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import ChunkFileId, ManifestId, SnapshotId
from icefloe.model.manifest import ArrayChunks, Manifest, ManifestIndex
from icefloe.model.zarr_document import parse_document
from icefloe.testing.clock import ClockedStorage
from tests.builders import read_dataset
from tests.documents import group, json_schema

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage

FORMAT = format_for("store")
CODEC = FORMAT.codec
KEY = "a key"
WIDE = bytes(range(1, 17))
NOW = "2026-01-31T12:00:00Z"


def validate_all(storage: Storage) -> dict[str, int]:
    """Check every file of a store against the schemas of the spec; returns how many of each."""
    counts = {"r": 0, "s": 0, "m": 0}
    for info in storage.list():
        folder = info.key.partition("/")[0]
        if folder not in counts:
            continue
        value = json.loads(storage.get(info.key))
        counts[folder] += 1
        name = {"r": "ref", "s": "snapshot", "m": "manifest"}[folder]
        check(value, json_schema("store", name))
    return counts


def check(value: Any, schema: dict[str, Any]) -> None:
    """Validate by a schema of the spec, which is itself not quite one: `items` of Flags is []."""
    jsonschema.Draft7Validator(schema).validate(value)


def document(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "shape": [4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "dimension_names": None,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    } | changes
    if fields["dimension_names"] is None:
        del fields["dimension_names"]
    return json.dumps(fields, indent=2).encode()


def stored(storage: Storage, folder: str) -> list[dict[str, Any]]:
    return [json.loads(storage.get(info.key)) for info in storage.list(f"{folder}/")]


def committed(*documents: bytes) -> tuple[Storage, dict[str, Any]]:
    """Commit arrays `/0`, `/1`, …; returns the storage and the nodes of the snapshot file."""
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation="store")
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    for number, each in enumerate(documents):
        session.tree.set_document(f"/{number}", each)
    session.commit("arrays")
    reader = Repository.open(storage).readonly_session("main")
    for number, each in enumerate(documents):
        assert reader.tree.document(f"/{number}") == each
    validate_all(storage)
    newest = max(stored(storage, "s"), key=lambda s: s["total_parents"])
    return storage, newest["nodes"]


# --- layout and references


def test_where_files_lie(tmp_path: Path) -> None:  # R3-04 R3-27 R3-44 R3-45 R3-47 R3-91 H-24
    # R3-23, R3-39, R3-41, R3-43
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    config = RepositoryConfig(inline_attributes_threshold_bytes=50)
    repo = Repository.create(storage, config, generation="store")
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"long": "x" * 100})
    root.create_array("a", shape=(4000,), dtype="u1", compressors=None)[:] = 1
    repo_id = session.commit("one")
    repo.create_tag("v1", repo_id)
    keys = {info.key for info in storage.list()}
    snapshot = f"s/{file_name(SnapshotId.parse(repo_id))}.json"
    assert {"r/main/ZZZZZZZZ.json", "r/main/ZZZZZZZY.json", "r/v1.json", snapshot} <= keys
    folders = {key.partition("/")[0] for key in keys} - {"maintenance"}
    assert folders == {"r", "s", "a", "m", "c", "config"}
    for key in keys:
        name = FORMAT.layout.parse(key)
        if name is not None:
            assert key.startswith(FORMAT.layout.folder(name.kind))
            assert len(key.partition("/")[2].removesuffix(".json")) == 26
    parsed = {name.kind for key in keys if (name := FORMAT.layout.parse(key))}
    assert parsed == set(ObjectKind) - {ObjectKind.TRANSACTION_LOG}
    assert validate_all(storage) == {"r": 3, "s": 2, "m": 1}  # R3-32 R3-50 R3-83
    assert detect(storage) == FORMAT


def test_a_reference_holds_sixteen_integers() -> None:  # R3-33 R3-34 R3-35
    storage, _ = committed()
    ref = json.loads(storage.get("r/main/ZZZZZZZY.json"))
    assert ref.keys() == {"properties", "snapshot", "timestamp"}
    assert len(ref["snapshot"]) == 16
    tip = Repository.open(storage).lookup_branch("main")
    assert bytes(ref["snapshot"]) == bytes(SnapshotId.parse(tip)) + bytes(4)
    assert datetime.fromisoformat(ref["timestamp"]).tzinfo is not None


@pytest.mark.parametrize("name", ["a.json", "A.JSON", "x/y", "", "..", "\n", "x" * 252])
def test_names_that_would_be_mistaken_are_refused(name: str) -> None:  # R3-42 H-23
    storage, _ = committed()
    repo = Repository.open(storage)
    tip = repo.lookup_branch("main")
    for create in (repo.create_branch, repo.create_tag):
        with pytest.raises(InvalidInputError):
            create(name, tip)


def test_the_first_listed_file_is_the_newest() -> None:  # R3-94, R3-44, R3-95
    storage, _ = committed()
    for value in range(3):
        session = Repository.open(storage).writable_session("main")
        session.tree.set_document("/", group(value=value))
        tip = session.commit(f"{value}")
    newest, *older = [info.key for info in storage.list("r/main/")]
    assert (newest, len(older)) == ("r/main/ZZZZZZZV.json", 4)
    assert bytes(json.loads(storage.get(newest))["snapshot"][:12]) == SnapshotId.parse(tip)
    assert Repository.open(storage).lookup_branch("main") == tip


def test_no_commit_goes_beyond_the_last_number() -> None:  # R3-46
    storage, _ = committed()
    newest = storage.get("r/main/ZZZZZZZY.json")
    storage.put("r/main/00000000.json", newest)
    session = Repository.open(storage).writable_session("main")
    session.tree.set_document("/", group(value=1))
    with pytest.raises(InvalidInputError, match="sequence numbers go from 0 to 1099511627775"):
        session.commit("one too many")
    assert next(storage.list("r/main/")).key == "r/main/00000000.json"
    assert storage.get("r/main/00000000.json") == newest


def test_tags_and_branches_of_one_name_live_side_by_side() -> None:  # R3-30 R3-48 R3-49
    storage, _ = committed()
    repo = Repository.open(storage)
    first = list(repo.ancestry(branch="main"))[-1].id
    repo.create_branch("x", repo.lookup_branch("main"))
    repo.create_tag("x", first)  # R3-102
    assert repo.lookup_branch("x") != repo.lookup_tag("x") == first
    assert repo.list_branches() == {"main", "x"}
    assert repo.list_tags() == {"x"}
    with pytest.raises(icefloe.AlreadyExistsError):
        repo.create_tag("x", repo.lookup_branch("main"))
    with pytest.raises(InvalidInputError, match="cannot be deleted"):
        repo.delete_tag("x")
    validate_all(storage)


def test_a_deleted_branch_leaves_a_valid_tombstone() -> None:  # H-22 R3-29
    storage, _ = committed()
    repo = Repository.open(storage)
    tip = repo.lookup_branch("main")
    repo.create_branch("dev", tip)
    repo.delete_branch("dev")
    assert repo.list_branches() == {"main"}
    repo.create_branch("dev", tip)
    assert len(list(storage.list("r/dev/"))) == 3
    assert validate_all(storage)["r"] == 5
    with pytest.raises(InvalidInputError, match="main"):
        repo.delete_branch("main")
    refs = FORMAT.make_refs(storage)
    newest = refs.tip("main")
    assert newest is not None
    with pytest.raises(InvalidInputError, match="main"):
        refs.advance(newest, None)


# --- metadata of arrays

TYPED: list[tuple[str, Any, dict[str, Any]]] = [
    ("bool", True, {"Bool": True}),
    ("int8", -128, {"Int8": -128}),
    ("int16", 2**15 - 1, {"Int16": 2**15 - 1}),
    ("int32", -1, {"Int32": -1}),
    ("int64", -(2**63), {"Int64": -(2**63)}),
    ("uint8", 255, {"UInt8": 255}),
    ("uint16", 65535, {"UInt16": 65535}),
    ("uint32", 2**32 - 1, {"UInt32": 2**32 - 1}),
    ("uint64", 2**64 - 1, {"UInt64": 2**64 - 1}),
    ("float16", 0.5, {"Float16": 0.5}),
    ("float16", "NaN", {"RawBits": [0x00, 0x7E]}),
    ("float16", "-Infinity", {"RawBits": [0x00, 0xFC]}),
    ("float32", 1e-45, {"Float32": 1e-45}),
    ("float32", "NaN", {"RawBits": [0, 0, 0xC0, 0x7F]}),
    ("float32", "Infinity", {"RawBits": [0, 0, 0x80, 0x7F]}),
    ("float32", "0x7fc00001", {"RawBits": [1, 0, 0xC0, 0x7F]}),
    ("float32", "0xff800001", {"RawBits": [1, 0, 0x80, 0xFF]}),
    ("float64", "NaN", {"RawBits": [0, 0, 0, 0, 0, 0, 0xF8, 0x7F]}),
    ("float64", 1.7976931348623157e308, {"Float64": 1.7976931348623157e308}),
    ("float64", 0, {"Float64": 0}),
    ("float64", "-Infinity", {"RawBits": [0, 0, 0, 0, 0, 0, 0xF0, 0xFF]}),
    ("complex64", [0.0, -2.25], {"Complex64": [0.0, -2.25]}),
    ("complex64", [1.5, "NaN"], {"RawBits": [0, 0, 0xC0, 0x3F, 0, 0, 0xC0, 0x7F]}),
    (
        "complex128",
        ["NaN", "NaN"],
        {"RawBits": [0, 0, 0, 0, 0, 0, 0xF8, 0x7F, 0, 0, 0, 0, 0, 0, 0xF8, 0x7F]},
    ),
    ("complex128", [0.0, -2.25], {"Complex128": [0.0, -2.25]}),
    ("r16", [1, 255], {"RawBits": [1, 255]}),
]


@pytest.mark.parametrize(("data_type", "value", "tagged"), TYPED)
def test_fill_values(data_type: str, value: Any, tagged: dict[str, Any]) -> None:
    # R3-62 R3-63 R3-64 R3-65 H-16
    _, nodes = committed(document(data_type=data_type, fill_value=value))
    struct = nodes["/0"]["node_data"]["Array"][0]
    assert struct["fill_value"] == tagged
    assert struct["data_type"] == ({"rawbits": 16} if data_type == "r16" else data_type)
    assert "zarr_metadata" not in nodes["/0"]  # it is rebuilt byte for byte


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("float16", "NaN"),
        ("float32", "-Infinity"),
        ("float32", "0x7fc00001"),
        ("float64", "NaN"),
        ("complex64", [1.5, "NaN"]),
        ("complex128", ["Infinity", "0x7ff8000000000001"]),
    ],
)
def test_strings_of_earlier_versions_are_read(data_type: str, value: Any) -> None:  # H-16
    wanted = document(data_type=data_type, fill_value=value)
    struct = zarr_json.array_struct(json.loads(wanted), parse_document(wanted))
    assert list(struct["fill_value"]) == ["RawBits"]
    old = {**struct, "fill_value": {data_type.capitalize(): value}}
    assert zarr_json.array_document(old, {}) == zarr_json.array_document(struct, {}) == wanted


@pytest.mark.parametrize(
    ("data_type", "octets"),
    [("float32", [0, 0, 192]), ("complex64", [0, 0, 192, 127]), ("float64", [256] * 8)],
)
def test_raw_bits_of_another_size_are_refused(data_type: str, octets: list[int]) -> None:
    wanted = document(data_type=data_type, fill_value=0.0 if data_type[0] == "f" else [0.0, 0.0])
    struct = zarr_json.array_struct(json.loads(wanted), parse_document(wanted))
    with pytest.raises(ValueError, match="bytes"):
        zarr_json.array_document({**struct, "fill_value": {"RawBits": octets}}, {})


@pytest.mark.parametrize("value", [None, "nan", "0x7f", "0x" + "0" * 5000, [1], 2**70, 10**400])
def test_fill_values_that_are_none_stay_valid(value: Any) -> None:
    storage, nodes = committed(document(data_type="float32", fill_value=value))
    assert nodes["/0"]["zarr_metadata"].encode() == document(data_type="float32", fill_value=value)
    assert validate_all(storage)["s"] == 2


BITS = {"float16": "u2", "float32": "u4", "float64": "u8", "complex64": "u4", "complex128": "u8"}
SPECIAL = {
    "u2": [0x7E00, 0x7C00, 0xFC00, 0x7E01, 0xFFFF, 0x7C01, 0x8000, 0x0001, 0x3C00],
    "u4": [0x7FC00000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x80000000],
    "u8": [0x7FF8 << 48, 0x7FF0 << 48, 0xFFF0 << 48, (0x7FF8 << 48) + 1, 2**64 - 1, 2**63],
}


def written_by_zarr(bits: int, kind: str) -> Any:
    """A float of some bits as zarr's own documents have it."""
    data = np.array([bits], dtype=f"<{kind}")
    number = float(data.view(f"<f{kind[1]}")[0])
    if np.isfinite(number):
        return number
    named = {int(SPECIAL[kind][place]): name for place, name in enumerate(NAMES)}
    return named.get(bits, f"0x{bits:0{2 * int(kind[1])}x}")


NAMES = ["NaN", "Infinity", "-Infinity"]


@given(data=st.data(), data_type=st.sampled_from(sorted(BITS)))
def test_every_bit_pattern_of_a_fill_value_is_kept(data: st.DataObject, data_type: str) -> None:
    """H-16: files are valid by the schema, documents come back byte for byte, and bits are own."""
    kind = BITS[data_type]
    patterns = st.sampled_from(SPECIAL[kind]) | st.integers(0, 2 ** (8 * int(kind[1])) - 1)
    parts = [data.draw(patterns) for _ in range(2 if data_type[0] == "c" else 1)]
    values = [written_by_zarr(bits, kind) for bits in parts]
    wanted = values if data_type[0] == "c" else values[0]
    _, nodes = committed(document(data_type=data_type, fill_value=wanted))
    assert "zarr_metadata" not in nodes["/0"]
    tagged = nodes["/0"]["node_data"]["Array"][0]["fill_value"]
    if all(isinstance(value, float) for value in values):
        assert tagged == {data_type.capitalize(): wanted}
    else:
        assert bytes(tagged["RawBits"]) == np.array(parts, dtype=f"<{kind}").tobytes()


def test_ordinary_datasets_of_xarray_are_valid_by_the_schema() -> None:
    """H-16: xarray gives floats the fill value NaN."""
    shape, dims = (4, 3), ("time", "x")
    rng = np.random.default_rng(0)
    variables: dict[str, Any] = {
        name: (dims, rng.random(shape).astype(name))
        for name in ("float16", "float32", "float64", "complex64", "complex128")
    }
    variables |= {
        "flag": (dims, rng.random(shape) > 0.5),
        "text": (dims, np.full(shape, "é", dtype=np.dtypes.StringDType())),
        "span": (dims, np.full(shape, 5, dtype="m8[ns]")),
        "packed": (dims, rng.random(shape)),
    } | {name: (dims, np.ones(shape, name)) for name in ("int8", "int64", "uint16", "uint64")}
    dataset = xr.Dataset(
        variables,
        coords={"time": np.arange(4).astype("M8[D]").astype("M8[ns]"), "x": [1.0, np.nan, np.inf]},
        attrs={"nothing": np.nan, "title": "é"},
    )
    encoding = {
        "packed": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1},
        "float32": {"_FillValue": np.float32(np.inf)},
    }
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation="store")
    session = repo.writable_session("main")
    dataset.to_zarr(session.store, consolidated=False, encoding=encoding)
    session.commit("a dataset")
    session = repo.writable_session("main")
    later = dataset.assign_coords(time=dataset.time + np.timedelta64(9, "D"))
    later.to_zarr(session.store, consolidated=False, append_dim="time")
    session.commit("more")
    counts = validate_all(storage)
    assert counts["s"] == 3
    assert counts["m"] >= 2
    raw = [
        node["node_data"]["Array"][0]
        for node in max(stored(storage, "s"), key=lambda s: s["total_parents"])["nodes"].values()
        if node["node_data"] != "Group"
    ]
    by_bits = {str(each["data_type"]) for each in raw if "RawBits" in each["fill_value"]} & set(
        BITS
    )
    assert by_bits >= {"float16", "float32", "float64"}
    read = read_dataset(Repository.open(storage))
    for name in ("float16", "float32", "complex64", "flag", "text", "int64", "time"):
        joined = xr.concat([dataset[name], later[name]], "time")
        xr.testing.assert_equal(read[name].load().drop_attrs(), joined.drop_attrs())


def test_all_variants_are_tried() -> None:  # R3-64
    variants = json_schema("store", "snapshot")["definitions"]["FillValue"]["oneOf"]
    names = {name for variant in variants for name in variant["properties"]}
    assert names == {name for _, _, tagged in TYPED for name in tagged}
    assert len(names) == 15


@pytest.mark.parametrize(
    ("encoding", "written", "is_rebuilt"),
    [
        ({"name": "default", "configuration": {"separator": "/"}}, "Slash", True),
        ({"name": "default", "configuration": {"separator": "."}}, "Dot", True),
        ({"name": "default"}, "Default", True),
        ("default", "Default", False),
        ({"name": "v2", "configuration": {"separator": "."}}, "Dot", False),
        ({"name": "v2", "configuration": {"separator": "/"}}, "Slash", False),
    ],
)
def test_chunk_key_encodings(encoding: Any, written: str, *, is_rebuilt: bool) -> None:
    # R3-59 H-17
    _, nodes = committed(document(chunk_key_encoding=encoding))
    assert nodes["/0"]["node_data"]["Array"][0]["chunk_key_encoding"] == written
    assert ("zarr_metadata" not in nodes["/0"]) == is_rebuilt


@pytest.mark.parametrize(
    "changes",
    [
        {"storage_transformers": [{"name": "t", "configuration": {"a": [1]}}]},
        {"dimension_names": ["x"]},
        {"dimension_names": [None]},
        {"codecs": [{"name": "bytes"}]},
        {"attributes": {"a": 1.5, "b": ["ü", None, {"c": 2**60}]}},
        {"shape": [0]},
        {"shape": [], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}}},
    ],
)
def test_what_the_structs_hold(changes: dict[str, Any]) -> None:
    # R3-61 R3-73 R3-74 R3-77 R3-78 R3-79
    _, nodes = committed(document(**changes))
    assert "zarr_metadata" not in nodes["/0"]
    if "storage_transformers" in changes:
        struct = nodes["/0"]["node_data"]["Array"][0]
        assert struct["storage_transformers"] == changes["storage_transformers"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data_type": "string", "fill_value": ""},
        {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}}},
        {"data_type": {"name": "raw_bytes", "configuration": {"length_bytes": 2}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}, "shape": [0]},
        {"attributes": {"nan": float("nan"), "big": 2**70}},
        {"unknown": 1},
        {"codecs": [{"name": "x", "configuration": {"a": float("inf")}}]},
    ],
)
def test_what_the_structs_cannot_hold_travels_beside_them(changes: dict[str, Any]) -> None:
    # H-45 R3-60: files stay valid by the schema
    _, nodes = committed(document(**changes))
    assert nodes["/0"]["zarr_metadata"].encode() == document(**changes)


def test_nodes_have_numbers_that_last() -> None:  # R3-70 H-20 R3-09
    storage, nodes = committed(document(), document())
    numbers = {path: node["id"] for path, node in nodes.items()}
    assert len(set(numbers.values())) == 3
    session = Repository.open(storage).writable_session("main")
    session.move("/0", "/moved")
    session.tree.set_chunk("/moved", (0,), b"abc")
    session.commit("moved")
    newest = max(stored(storage, "s"), key=lambda s: s["total_parents"])["nodes"]
    assert newest["/moved"]["id"] == numbers["/0"]
    (manifest,) = stored(storage, "m")
    assert manifest["chunks"] == {f"{numbers['/0']}/0": {"Inline": [97, 98, 99]}}  # H-14 R3-84


def test_a_snapshot_file_says_it_all() -> None:
    # R3-19 R3-21 R3-51 R3-52 R3-54 R3-55 R3-56 R3-57 R3-66 R3-69 R3-72 R3-75 R3-76 R3-80 H-15 H-27
    storage = icefloe.in_memory_storage()
    config = RepositoryConfig(inline_attributes_threshold_bytes=50)
    repo = Repository.create(storage, config, generation="store")
    documents = {
        "/": group(),
        "/g": group(short=1),
        "/g/a": document(),
        "/large": group(long="x" * 100),
    }
    session = repo.writable_session("main")
    for path, each in documents.items():
        session.tree.set_document(path, each)
    session.tree.set_chunk("/g/a", (0,), b"abc")
    session.commit("one")
    session = repo.writable_session("main")
    begun = datetime.now(UTC)
    session.tree.set_chunk("/g/a", (1,), b"def")
    tip = session.commit("two")
    validate_all(storage)
    assert len(stored(storage, "s")) == 3
    found = json.loads(storage.get(FORMAT.layout.snapshot(SnapshotId.parse(tip))))
    assert bytes(found["metadata"]["id"][:12]) == SnapshotId.parse(tip)
    assert found["metadata"]["message"] == "two"
    history = found["short_term_history"]
    assert [each["message"] for each in history] == ["one", "Repository initialized"]
    assert found["short_term_parents"] == found["total_parents"] == 2
    times = [each["written_at"] for each in (history[1], history[0])]
    times += [found["started_at"], begun.isoformat(), found["metadata"]["written_at"]]
    moments = [datetime.fromisoformat(each) for each in times]
    assert moments == sorted(moments)
    nodes = found["nodes"]
    assert {path: node["path"] for path, node in nodes.items()} == {p: p for p in documents}
    assert nodes["/g"]["node_data"] == "Group"
    assert nodes["/g"]["user_attributes"] == {"Inline": {"short": 1}}
    _, (ref,) = nodes["/g/a"]["node_data"]["Array"]
    assert ref["flags"] == []
    assert f"m/{file_name(bytes(ref['object_id']))}.json" in {i.key for i in storage.list("m/")}
    outside = nodes["/large"]["user_attributes"]["Ref"]
    (rows,) = (json.loads(storage.get(info.key)) for info in storage.list("a/"))
    assert rows[outside["location"]] == {"long": "x" * 100}
    assert outside["flags"] == []
    storage.delete_many([info.key for info in storage.list("m/")])
    reader = Repository.open(storage).readonly_session("main")
    assert {path: reader.tree.document(path) for path in documents} == documents


def test_properties_that_json_has_not_come_back() -> None:  # R3-53
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, generation="store")
    metadata = {"nan": float("nan"), "n": 2**64 - 1, "text": "ü", "deep": [{"a": None}]}
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.commit("one", metadata)
    found = next(iter(Repository.open(storage).ancestry(branch="main"))).metadata
    assert np.isnan(found.pop("nan"))
    assert found == {key: value for key, value in metadata.items() if key != "nan"}
    validate_all(storage)


# --- manifests


def test_payloads(tmp_path: Path) -> None:  # R3-85 R3-86 R3-87 R3-88 R3-89
    source = tmp_path / "data.bin"
    source.write_bytes(bytes(range(100)))
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig(inline_chunk_threshold_bytes=3)
    config.set_virtual_chunk_container(
        VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, config, {prefix: None}, generation="store")
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", document(shape=[8]))
    session.tree.set_chunk("/a", (0,), b"abc")
    session.tree.set_chunk("/a", (1,), b"abcdefgh")
    session.tree.set_chunk("/a", (2,), b"ijkl")
    session.store.set_virtual_ref(
        "a/c/3", f"{prefix}data.bin", offset=10, length=8, checksum=datetime.now(UTC)
    )
    session.commit("one")
    validate_all(storage)
    (manifest,) = stored(storage, "m")
    kinds = {key.partition("/")[2]: value for key, value in manifest["chunks"].items()}
    assert kinds["0"] == {"Inline": [97, 98, 99]}
    assert kinds["1"]["Ref"]["id"] == kinds["2"]["Ref"]["id"]  # R3-22
    assert kinds["2"]["Ref"]["offset"] == 8
    assert kinds["3"]["Virtual"].keys() == {"location", "offset", "length", "last_modified"}
    reader = Repository.open(storage, None, {prefix: None}).readonly_session("main")
    assert [reader.get_chunk("/a", (i,)) for i in range(4)] == [
        b"abc",
        b"abcdefgh",
        b"ijkl",
        bytes(range(10, 18)),
    ]


def foreign_store(parents: int = 1) -> Storage:
    """What another program may write: every 16 bytes are an id, and 1.0 is an integer."""
    manifest_id, chunk_id = ManifestId(WIDE), ChunkFileId(WIDE[::-1])
    manifest = {
        "chunks": {
            "7/0": {"Ref": {"id": list(chunk_id), "length": 3.0, "offset": 0, "x": 1}},
            "7/1": {"Virtual": {"length": 1, "location": "s3://b/x", "offset": 2**62}},
            "8": {"Inline": [0, 255, 7.0]},
        },
        "other": None,
    }
    struct = {
        "shape": [4.0],
        "data_type": "float64",
        "fill_value": {"Float64": 1},
        "chunk_shape": [2],
        "chunk_key_encoding": "Default",
        "codecs": [{"name": "bytes", "configuration": None}],
        "dimension_names": None,
        "storage_transformers": None,
    }
    scalar = struct | {"shape": [], "chunk_shape": []}
    ref = {"object_id": list(WIDE), "extents": [], "flags": []}
    stub = {"id": list(WIDE[:12]) + [0] * 4, "message": "", "written_at": NOW}
    outside = {"flags": [], "location": 1, "object_id": list(WIDE)}
    snapshot = {
        "metadata": {"id": list(WIDE), "message": "m", "written_at": "2026-01-31T14:00:00+02:00"},
        "nodes": {
            "/": {"id": 0, "path": "/", "node_data": "Group"},
            "/a": {"id": 7, "path": "/a", "node_data": {"Array": [struct, [ref]]}},
            "/b": {
                "id": 8,
                "path": "/b",
                "node_data": {"Array": [scalar, [ref | {"extents": [[], []]}]]},
                "user_attributes": {"Ref": outside},
            },
        },
        "properties": {"p": 1},
        "short_term_history": [stub] * parents,
        "short_term_parents": parents,
        "started_at": NOW,
        "total_parents": 5 * parents,
    }
    check(snapshot, json_schema("store", "snapshot"))
    check(manifest, json_schema("store", "manifest"))
    snapshot_id = SnapshotId(WIDE)
    storage = icefloe.in_memory_storage()
    storage.put(FORMAT.layout.snapshot(snapshot_id), json.dumps(snapshot).encode())
    storage.put(FORMAT.layout.manifest(manifest_id), json.dumps(manifest).encode())
    storage.put(FORMAT.layout.chunk_file(chunk_id), b"abc")
    storage.put(f"a/{file_name(WIDE)}.json", b'[{}, {"k": [1]}]')
    ref_data = {"properties": {"x": 1}, "snapshot": list(WIDE), "timestamp": NOW}
    check(ref_data, json_schema("store", "ref"))
    storage.put("r/main/ZZZZZZZZ.json", json.dumps(ref_data).encode())
    return storage


def test_what_others_may_write_is_read() -> None:  # R3-58 R3-67 R3-68 R3-71, R3-20, R3-82, R3-33
    storage = foreign_store()
    snapshot_id = SnapshotId(WIDE)
    repo = Repository.open(storage)
    reader = repo.readonly_session("main")
    assert reader.snapshot_id == repo.lookup_branch("main") == str(snapshot_id)
    assert reader.get_chunk("/a", (0,)) == b"abc"
    assert reader.get_chunk("/b", ()) == b"\0\xff\x07"
    assert json.loads(reader.tree.document("/b"))["attributes"] == {"k": [1]}
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (1,), b"x" * 1000)
    session.tree.set_chunk("/b", (), b"y" * 1000)
    new = session.commit("ours over theirs")
    reader = Repository.open(storage).readonly_session(snapshot_id=new)
    assert [reader.get_chunk("/a", (i,)) for i in (0, 1)] == [b"abc", b"x" * 1000]
    assert json.loads(reader.tree.document("/b"))["attributes"] == {"k": [1]}
    validate_all(storage)


def test_what_others_named_is_maintained_like_our_own() -> None:
    storage = ClockedStorage(foreign_store(parents=0))
    repo = Repository.open(storage)
    theirs, orphan = {info.key for info in storage.list()}, ChunkFileId(bytes(range(3, 19)))
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (1,), b"x" * 1000)
    session.commit("ours over theirs")
    assert repo.verify(deep=True).is_clean
    storage.put(FORMAT.layout.chunk_file(orphan), b"nobody's")
    (only,) = repo.verify().orphans["chunk-file"].keys
    assert only == FORMAT.layout.chunk_file(orphan)
    assert repo.chunk_storage_stats() == icefloe.ChunkStorageStats(1003, 1, 6)
    files = repo.chunk_file_stats()
    assert sorted(zip(map(len, files.names()), files.sizes.tolist(), strict=True)) == [
        (20, 1000),
        (26, 3),
    ]
    (batch,) = repo.readonly_session("main").chunk_batches("/a")
    assert set(batch.paths) == set(files.names())
    storage.wait(timedelta(days=2))
    kept = {info.key for info in storage.list()}
    collected = repo.garbage_collect(timedelta(days=1))
    assert (collected.chunks_deleted, collected.snapshots_deleted) == (1, 0)
    assert kept - {info.key for info in storage.list()} >= {only}
    assert theirs <= {info.key for info in storage.list()}

    compacted = repo.compact(branch="main", min_live_share=0)
    assert (compacted.old_files, compacted.new_files, compacted.chunks) == (2, 1, 2)
    reader = repo.readonly_session("main")
    assert [reader.get_chunk("/a", (i,)) for i in (0, 1)] == [b"abc", b"x" * 1000]
    repo.expire_snapshots(keep_last=1)
    storage.wait(timedelta(days=2))
    assert repo.garbage_collect(timedelta(days=1)).chunks_deleted == 1
    assert theirs <= {info.key for info in storage.list()}, "the first snapshot stays"
    opened = Repository.open(storage)
    assert opened.verify(deep=True).is_clean
    assert opened.readonly_session("main").get_chunk("/a", (0,)) == b"abc"


BAD_SNAPSHOTS: list[tuple[str, Any]] = [
    ("metadata.id", [1] * 15),
    ("metadata.written_at", "yesterday"),
    ("nodes./.path", "/other"),
    ("nodes./.id", 2**32),
    ("short_term_parents", 3),
    ("total_parents", -1),
    ("nodes./0.node_data.Array.0.fill_value", {"Float64": 0.0}),
    ("nodes./0.node_data.Array.1", [{"object_id": [300] * 16, "extents": [], "flags": []}]),
    ("nodes./0.user_attributes", {"Inline": {}, "Ref": None}),
    ("nodes./0.node_data.Array.0.fill_value", {"Int8": 0}),
    ("nodes./0.node_data.Array.0.fill_value", {"Int32": 2**31}),
]


@pytest.mark.parametrize(("place", "value"), BAD_SNAPSHOTS)
def test_bad_snapshots_are_refused(place: str, value: Any) -> None:  # R3-52 R3-55 R3-65 R3-71 R3-76
    storage, _ = committed(document())
    snapshot = max(stored(storage, "s"), key=lambda s: s["total_parents"])
    del snapshot["checksum"]
    *parents, last = place.split(".")
    target: Any = snapshot
    for name in parents:
        target = target[int(name) if isinstance(target, list) else name]
    target[int(last) if isinstance(target, list) else last] = value
    snapshot_id = SnapshotId(bytes(snapshot["metadata"]["id"][:12]).ljust(12, b"\1"))
    data = json.dumps(snapshot).encode()
    with pytest.raises(FormatError):
        list(CODEC.decode_snapshot(data, snapshot_id, KEY).nodes)


@pytest.mark.parametrize(
    "chunks",
    [
        {"x/0": {"Inline": [1]}},
        {"01/0": {"Inline": [1]}},
        {"1/-1": {"Inline": [1]}},
        {"": {"Inline": [1]}},
        {"1/0": {}},
        {"1/0": {"Inline": [1], "Ref": {"id": [0] * 16, "offset": 0, "length": 1}}},
        {"1/0": {"Inline": [256]}},
        {"1/0": {"Other": 1}},
        {"1/0": {"Ref": {"id": [0] * 15, "offset": 0, "length": 1}}},
        {"1/0": {"Ref": {"id": [0] * 16, "offset": 2**64 - 1, "length": 2}}},
    ],
)
def test_bad_manifests_are_refused(chunks: Any) -> None:  # R3-89
    data = json.dumps({"chunks": chunks}).encode()
    with pytest.raises(FormatError):
        CODEC.decode_manifest_index(data, len(data), KEY)


def test_a_flipped_bit_is_found() -> None:
    chunks = ArrayChunks.of([(0,), (1,)], [InlineRef(b"abc"), InlineRef(b"def")], 1)
    data = CODEC.encode_manifest([(node_id(7), chunks)]).data
    for at in range(len(data) - len(',\n"checksum":"crc32:00000000"}\n')):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(FormatError):
            CODEC.decode_manifest_index(damaged, len(damaged), KEY)
    rows = [b'{"a": 1}', b'{ "b":[2]}']
    file = CODEC.encode_attributes(rows).data
    assert CODEC.decode_attributes(file, KEY) == rows
    with pytest.raises(FormatError):
        CODEC.decode_attributes(file.replace(b"2", b"3", 1), KEY)


def test_manifests_round_trip_as_columns() -> None:
    refs: dict[tuple[int, ...], ChunkRef] = {
        (0, 0): NativeRef(ChunkFileId(b"f" * 12), 5, 6, 7),
        (0, 9): VirtualRef("s3://b/k", 1, 2, '"e"', None),
        (3, 0): VirtualRef("s3://b/k", 1, 2, None, 1_700_000_000),
        (2**40, 1): InlineRef(b""),
    }
    chunks = ArrayChunks.of(list(refs), list(refs.values()), 2)
    file = CODEC.encode_manifest([(node_id(9), chunks)])
    index = CODEC.decode_manifest_index(file.data, len(file.data), KEY)
    assert isinstance(index, ManifestIndex)
    assert index.resident is not None
    manifest = Manifest(index, index.resident.__getitem__)
    for coords, ref in refs.items():
        assert manifest.find(node_id(9), coords) == ref
