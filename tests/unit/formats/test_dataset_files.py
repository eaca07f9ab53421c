"""Files of the generation `dataset`: what spec 000 says of them, and what fills its holes."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st

import icefloe
from icefloe import BasicConflictSolver, Repository, RepositoryConfig
from icefloe.errors import AlreadyExistsError, ConflictError, FormatError, InvalidInputError
from icefloe.formats.dataset import coordinates, fill_values
from icefloe.formats.dataset.arrow_schemas import manifest_schema, structure_schema
from icefloe.formats.dataset.file_names import decode_ids, encode_ids
from icefloe.formats.dataset.layout import id_of_file
from icefloe.formats.dataset.state import State
from icefloe.formats.dataset.structure_table import document_of
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import detect, format_for
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import ChunkFileId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayChunks, Manifest, ManifestIndex
from icefloe.model.nodes import ArrayNode
from icefloe.objects.metadata import MetadataFiles
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.faults import FaultyStorage
from icefloe.testing.generations import array_document, split_every, virtual_refs
from tests.documents import array, group, json_schema, make_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.storage.port import BytesLike, ObjectVersion, Storage

FORMAT = format_for("dataset")
CODEC = FORMAT.codec
KEY = "a key"

STRUCTURE_FIELDS = {
    "id: uint16 not null": "unique identifier for the node",
    "type: string not null": "array or group",
    "path: string not null": "path to the node within the store",
    "array_metadata: struct<shape: list<item: uint16> not null, data_type: string not null, "
    "fill_value: binary, dimension_names: list<item: string>, chunk_grid: struct<name: string not "
    "null, configuration: struct<chunk_shape: list<item: uint16> not null> not null>, "
    "chunk_key_encoding: struct<name: string not null, configuration: struct<separator: string not "
    "null> not null>, codecs: list<item: struct<name: string not null, configuration: "
    "binary>>>": "All the Zarr array metadata",
    "inline_attrs: binary": "user-defined attributes, stored inline with this entry",
    "attrs_reference: struct<attrs_file: string not null, row: uint16 not null, flags: "
    "uint16>": "user-defined attributes, stored in a separate attributes file",
    "inventories: list<item: struct<inventory_file: string not null, row: uint16 not null, extent: "
    "list<item: fixed_size_list<item: uint16>[2]> not null, flags: uint16>>": None,
}
"""As spec 000 prints them, but for the description that the print cuts off (R0-47m)."""
MANIFEST_FIELDS = {
    "id: uint32 not null": None,
    "array_id: uint32 not null": None,
    "coord: binary not null": None,
    "inline_data: binary": None,
    "chunk_file: string": None,
    "offset: uint64": None,
    "length: uint32 not null": None,
}


def printed(schema: pa.Schema) -> dict[str, str | None]:
    fields = {}
    for field in schema:
        text = f"{field.name}: {field.type}" + ("" if field.nullable else " not null")
        metadata = field.metadata or {}
        assert metadata.keys() <= {b"description"}
        description = metadata.get(b"description", b"").decode() or None
        fields[text] = description
    return fields


def read(storage: Storage, key: str) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(storage.get(key)))


def keys(storage: Storage, folder: str) -> list[str]:
    return [info.key for info in storage.list(f"{folder}/")]


def state_of(storage: Storage) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(storage.get("state.json"))
    jsonschema.Draft202012Validator.check_schema(json_schema("dataset", "state"))
    jsonschema.Draft202012Validator(json_schema("dataset", "state")).validate(state)
    return state


@pytest.fixture
def storage() -> Storage:
    return icefloe.in_memory_storage()


@pytest.fixture
def repo(storage: Storage) -> Repository:
    made = Repository.create(storage, generation="dataset")
    make_tree(made)
    return made


# --- coordinates

numbers = st.one_of(
    st.integers(0, 300),
    st.sampled_from(
        [v + d for v in (240, 2287, 67823, 2**24, 2**32, 2**40, 2**48, 2**56) for d in (-1, 0, 1)]
    ),
    # Of one length, and near each other: they differ in some of their bytes only.
    st.integers(2_288, 67_823),
    st.integers(2**24, 2**24 + 2**16),
    st.integers(0, 2**64 - 1),
)


@given(st.integers(0, 5).flatmap(lambda rank: st.lists(st.tuples(*[numbers] * rank), min_size=1)))
def test_coordinates_come_back(rows: list[tuple[int, ...]]) -> None:  # R0-56 H-05
    table = np.array(rows, dtype=np.uint64).reshape(len(rows), -1)
    data, bounds = coordinates.encode(table)
    assert np.array_equal(coordinates.decode(data, bounds, table.shape[1]), table)


def encode_one(coords: tuple[int, ...]) -> bytes:
    table = np.array(list(coords), dtype=np.uint64).reshape(1, len(coords))
    return coordinates.encode(table)[0].tobytes()


@given(st.integers(1, 4).flatmap(lambda rank: st.lists(st.tuples(*[numbers] * rank), min_size=2)))
def test_bytes_sort_like_coordinates(rows: list[tuple[int, ...]]) -> None:  # R0-58
    assert sorted(rows) == sorted(rows, key=encode_one)
    assert len({encode_one(row) for row in rows}) == len(set(rows))


def test_all_small_numbers_and_their_lengths() -> None:  # R0-57
    values = np.arange(200_000, dtype=np.uint64).reshape(-1, 1)
    data, bounds = coordinates.encode(values)
    encoded = [data[a:b].tobytes() for a, b in itertools.pairwise(bounds)]
    assert encoded == sorted(encoded)
    assert np.array_equal(coordinates.decode(data, bounds, 1), values)
    lengths = np.diff(bounds)
    assert (lengths[:241] == 1).all()
    assert (lengths[241:2288] == 2).all()
    assert (lengths[2288:67824] == 3).all()
    assert (lengths[67824:] == 4).all()
    assert encode_one((5, 30, 10)) == bytes([5, 30, 10])
    assert len(encode_one((8760, 10, 20))) == 5


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers), st.tuples(numbers, numbers))
@example((511, 0), (767, 0), (512, 0))
@example((70_000, 0), (100_000, 0), (80_128, 0))
def test_a_box_is_within_its_range(a: Any, b: Any, c: Any) -> None:  # R0-59
    lower, upper = zip(*map(sorted, zip(a, b, strict=True)), strict=True)
    inside = tuple(min(max(x, lo), hi) for x, lo, hi in zip(c, lower, upper, strict=True))
    first, last = encode_one(lower), encode_one(upper)
    assert first <= encode_one(inside) <= last


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x02\x03", b"\xfa\0\0\x05\x01", b"\x01\xf1"])
def test_bytes_that_are_no_coordinates(data: bytes) -> None:
    octets = np.frombuffer(data, dtype=np.uint8)
    with pytest.raises(ValueError, match="coordinate"):
        coordinates.decode(octets, np.array([0, len(data)]), 2)


# --- the state file


def test_where_files_lie(storage: Storage) -> None:  # R0-45 R0-17 R0-39 H-24, R0-20
    repo = Repository.create(
        storage, RepositoryConfig(inline_attributes_threshold_bytes=50), generation="dataset"
    )
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"long": "x" * 100})
    root.create_array("a", shape=(4000,), dtype="u1", compressors=None)[:] = 1
    session.commit("one")
    found = {info.key for info in storage.list()}
    folders = {key.partition("/")[0] for key in found} - {"maintenance"}
    assert folders == {"state.json", "s", "a", "i", "c", "config"}
    kinds = {name.kind for key in found if (name := FORMAT.layout.parse(key))}
    assert kinds == set(ObjectKind) - {ObjectKind.TRANSACTION_LOG}
    assert detect(storage) == FORMAT
    attributes = read(storage, keys(storage, "a")[0]).read().to_pylist()  # R0-22 R0-51 H-07
    assert attributes[0]["row"] == 0
    assert json.loads(attributes[0]["attrs"]) == {"long": "x" * 100}
    rows = read(storage, f"s/{repo.lookup_branch('main')}.parquet").read().to_pylist()
    assert rows[0]["attrs_reference"]["attrs_file"] == keys(storage, "a")[0].partition("/")[2]
    assert rows[0]["inline_attrs"] is None  # R0-49


def test_the_state_counts_its_generations(storage: Storage) -> None:  # R0-17, R0-33, R0-39
    # R0-27 R0-28 R0-29 R0-31 R0-32 R0-34 R0-36 R0-37 R0-38 R0-40 R0-41 R0-43 H-01 H-09
    repo = Repository.create(storage, generation="dataset")
    state = state_of(storage)
    assert state["generation"] == 0
    dataset_id = state["id"]
    tip = make_tree(repo)
    session = repo.writable_session("main")
    session.tree.set_chunk("/b", (7,), b"7")
    two = session.commit("two", {"author": "me", "list": [1, None]})
    changes = [
        lambda: repo.create_branch("dev", tip),
        lambda: repo.create_tag("v1", tip),
        lambda: repo.reset_branch("dev", two),
        lambda: repo.delete_branch("dev"),
    ]
    for number, change in enumerate(changes, start=3):
        change()
        assert state_of(storage)["generation"] == number
    state = state_of(storage)
    assert state["id"] == dataset_id
    assert "store_root" not in state
    assert [each["snapshot-id"] for each in state["snapshots"]][1:] == [tip, two]
    first, _, newest = state["snapshots"]
    assert first["parent-snapshot-id"] is None
    assert newest["parent-snapshot-id"] == tip
    assert newest["structure-file"] == f"{two}.parquet"
    assert newest["properties"] == {"author": "me", "list": [1, None]}
    info = repo.lookup_snapshot(two)
    assert newest["timestamp-ms"] == int(info.written_at.timestamp() * 1000)
    assert state["refs"] == {
        "main": {"name": "main", "snapshot-id": two, "type": "branch"},
        "v1": {"name": "v1", "snapshot-id": tip, "type": "tag"},
    }
    assert len(keys(storage, "s")) == 3  # R0-19


def test_the_state_is_swapped_last(storage: Storage) -> None:  # R0-25 R0-12 R0-16
    faulty = FaultyStorage(storage)
    repo = Repository.create(faulty, generation="dataset")
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array())
    session.tree.set_chunk("/a", (0,), b"x" * 1000)
    faulty.trace.clear()
    session.commit("one")
    written = [(verb, key.partition("/")[0]) for verb, key in faulty.writes()]
    assert written == [("put", "c"), ("put", "i"), ("put", "s"), ("replace", "state.json")]
    everything = [key for verb, key in faulty.writes() if verb != "replace"]
    assert len(set(everything)) == len(everything)


def test_a_dataset_without_references_shows_what_was_listed_last(
    repo: Repository, storage: Storage
) -> None:  # R0-35 R0-66 H-11, R0-37
    tip = repo.lookup_branch("main")
    state = state_of(storage)
    del state["refs"], state["icefloe"], state["snapshots"][0]["parent-snapshot-id"]
    state["others"] = {"kept": True}
    storage.put("state.json", json.dumps(state).encode())
    opened = Repository.open(storage)
    assert opened.lookup_branch("main") == tip
    assert opened.list_branches() == {"main"}
    assert [info.parent_id is None for info in opened.ancestry(branch="main")] == [False, True]
    session = opened.writable_session("main")
    session.tree.set_chunk("/b", (9,), b"9")
    new = session.commit("more")
    assert Repository.open(storage).lookup_branch("main") == new
    assert state_of(storage)["others"] == {"kept": True}


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"generation": -1},
        {"generation": "1"},
        {"snapshots": None},
        {"refs": {"main": {"name": "other", "snapshot-id": "x", "type": "branch"}}},
        {"refs": {"main": {"name": "main", "snapshot-id": "x", "type": "thing"}}},
        {"snapshots": [{"snapshot-id": "x", "structure-file": "x.parquet"}]},
        {"snapshots": [{"snapshot-id": "x", "timestamp-ms": 1, "structure-file": "../y"}]},
        {"snapshots": [{"snapshot-id": "x", "timestamp-ms": 1, "structure-file": "x.parquet"}] * 2},
    ],
)
def test_bad_states_are_refused(change: dict[str, Any]) -> None:  # R0-36 R0-41 H-01
    document = {"id": "x", "generation": 1, "snapshots": []} | change
    with pytest.raises(FormatError, match=r"state\.json"):
        State.parse(json.dumps(document).encode())
    for torn in (b"", b"{", b"[]", b"\xff"):
        with pytest.raises(FormatError):
            State.parse(torn)


def test_a_reference_to_what_is_not_listed_is_refused() -> None:
    refs = {"main": {"name": "main", "snapshot-id": "another one", "type": "branch"}}
    document = {"id": "x", "generation": 1, "snapshots": [], "refs": refs}
    with pytest.raises(FormatError, match=r"state\.json: snapshot 'another one' .* not listed"):
        State.parse(json.dumps(document).encode()).tip("main")


def test_branches_and_tags_share_their_names(repo: Repository) -> None:  # R0-42
    tip = repo.lookup_branch("main")
    repo.create_tag("x", tip)
    with pytest.raises(AlreadyExistsError, match="share"):
        repo.create_branch("x", tip)
    with pytest.raises(AlreadyExistsError):
        repo.create_tag("main", tip)


def test_a_stale_tip_is_a_conflict_also_after_a_reset(repo: Repository, storage: Storage) -> None:
    refs = FORMAT.make_refs(storage)
    stale = refs.tip("main")
    assert stale is not None
    tip = repo.lookup_branch("main")
    first = list(repo.ancestry(branch="main"))[-1].id
    repo.reset_branch("main", first)
    repo.reset_branch("main", tip)
    with pytest.raises(ConflictError):
        refs.advance(stale, stale.snapshot_id)
    fresh = refs.tip("main")
    assert fresh is not None
    assert fresh.snapshot_id == stale.snapshot_id
    assert fresh.sequence == stale.sequence + 2


class Doubled(ForwardingStorage):
    """A network that delivers a swap twice, and lets somebody else swap in between."""

    between: Callable[[], object] | None = None

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        replaced = super().replace(key, data, expected)
        if self.between is None:
            return replaced
        act, self.between = self.between, None
        act()
        return super().replace(key, data, expected)


def test_a_swap_that_arrives_twice_is_one(repo: Repository, storage: Storage) -> None:
    """Also if it cannot be told from the state, because others swapped it since."""
    repo.create_branch("work", "main")
    network = Doubled(storage)
    session = Repository.open(network).writable_session("main")
    zarr.create_group(session.store, path="ours")
    before = len(list(repo.ancestry(branch="main")))
    network.between = lambda: repo.delete_branch("work")
    landed = session.commit("once", rebase_with=BasicConflictSolver())
    assert repo.lookup_branch("main") == landed
    assert len(list(repo.ancestry(branch="main"))) == before + 1


def test_others_may_change_the_state_meanwhile(repo: Repository, storage: Storage) -> None:
    # H-10: the branch did not move, so the commit tries again
    session = repo.writable_session("main")
    session.tree.set_chunk("/b", (9,), b"9")
    repo.create_tag("between", repo.lookup_branch("main"))
    tip = session.commit("after all")
    assert repo.list_tags() == {"between"}
    assert repo.lookup_branch("main") == tip


def test_snapshots_can_be_forgotten(repo: Repository, storage: Storage) -> None:
    # R0-67 H-12 R0-32
    refs = FORMAT.make_refs(storage)
    state = State.parse(storage.get("state.json"))
    first, tip = state.snapshot_ids()
    refs.forget({first, tip})  # what a branch points to stays
    left = state_of(storage)
    assert [each["snapshot-id"] for each in left["snapshots"]] == [str(tip)]
    assert left["snapshots"][0]["parent-snapshot-id"] is None
    assert left["generation"] == state.generation + 1


def test_the_state_file_may_be_elsewhere(tmp_path: Path) -> None:  # R0-33 R0-44
    both = icefloe.split_storage(state=str(tmp_path / "catalog"), data=str(tmp_path / "data"))
    repo = Repository.create(both, generation="dataset")
    make_tree(repo)
    assert [p.name for p in (tmp_path / "catalog").glob("*.json")] == ["state.json"]
    assert not (tmp_path / "data" / "state.json").exists()
    state = json.loads((tmp_path / "catalog" / "state.json").read_text())
    assert state["store_root"] == icefloe.local_filesystem_storage(tmp_path / "data").location
    opened = pickle.loads(pickle.dumps(Repository.open(both)))
    assert opened.readonly_session("main").get_chunk("/b", (0,)) == b"\1"
    assert opened.lookup_branch("main") == repo.lookup_branch("main")
    with pytest.raises(InvalidInputError, match="split_storage"):
        Repository.open(str(tmp_path / "catalog"))


# --- structure files


def test_the_schemas_are_those_of_the_spec(repo: Repository, storage: Storage) -> None:
    # R0-46 R0-47 (a to o) R0-54 R0-55 (a to h)
    assert list(printed(structure_schema()).items()) == list(STRUCTURE_FIELDS.items())
    assert list(printed(manifest_schema()).items()) == list(MANIFEST_FIELDS.items())
    for key in keys(storage, "s"):
        file = read(storage, key)
        assert file.schema_arrow.equals(structure_schema(), check_metadata=True)
        assert b"icefloe.schema" not in file.metadata.metadata
    for key in keys(storage, "i"):
        assert read(storage, key).schema_arrow.equals(manifest_schema(), check_metadata=True)


def test_rows_describe_the_nodes(repo: Repository, storage: Storage) -> None:  # R0-18 R0-20 R0-50
    # R0-46, R0-47b, R0-47d
    table = read(storage, f"s/{repo.lookup_branch('main')}.parquet").read()
    rows = {row["path"]: row for row in table.to_pylist()}
    assert {path: row["type"] for path, row in rows.items()} == {
        "/": "group",
        "/b": "array",
        "/g": "group",
        "/g/a": "array",
    }
    assert sorted(row["id"] for row in rows.values()) == [0, 1, 2, 3]
    assert rows["/g"]["array_metadata"] is None
    array_row = rows["/g/a"]
    assert array_row["array_metadata"] == {
        "shape": [10],
        "data_type": "uint8",
        "fill_value": b"\0",
        "dimension_names": None,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": None}],
    }
    (inventory,) = array_row["inventories"]
    assert f"i/{inventory['inventory_file']}" in keys(storage, "i")
    assert inventory["extent"] == [[0, 10]]  # H-18


def test_the_structure_file_has_a_row_for_each_node_of_a_hierarchy(storage: Storage) -> None:
    # R0-01, R0-18: one array as the root, or groups below groups
    paths = ["/" + "/".join("abcdefghij"[:depth]) for depth in range(11)]
    repo = Repository.create(storage, generation="dataset")
    session = repo.writable_session("main")
    for path in paths:
        session.tree.set_document(path, group())
    session.tree.set_document(f"{paths[-1]}/x", array())
    tip = session.commit("deep")
    rows = read(storage, f"s/{tip}.parquet").read().to_pylist()
    assert [row["path"] for row in rows] == [*paths, f"{paths[-1]}/x"]
    assert rows[-1]["type"] == "array"


def test_attributes_are_never_in_two_places(storage: Storage) -> None:  # R0-49
    config = RepositoryConfig(inline_attributes_threshold_bytes=50)
    session = Repository.create(storage, config, generation="dataset").writable_session("main")
    session.tree.set_document("/", group(long="x" * 100))
    session.tree.set_document("/g", group(short=1))
    snapshot_id = SnapshotId.parse(session.commit("one"))
    key = FORMAT.layout.snapshot(snapshot_id)
    table = read(storage, key).read().replace_schema_metadata(None)
    kinds = ["inline_attrs", "attrs_reference"]
    used = [[name for name in kinds if row[name] is not None] for row in table.to_pylist()]
    assert used == [["attrs_reference"], ["inline_attrs"]]
    place = table.schema.get_field_index("inline_attrs")
    both = table.set_column(place, table.schema.field(place), [[b'{"a":1}'] * 2])
    sink = io.BytesIO()
    pq.write_table(both, sink)
    with pytest.raises(FormatError, match="both here and in a file"):
        list(CODEC.decode_snapshot(sink.getvalue(), snapshot_id, key).nodes)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("bool", True),
        ("int8", -3),
        ("int64", -(2**63)),
        ("uint64", 2**64 - 1),
        ("float16", 0.5),
        ("float32", "NaN"),
        ("float64", "-Infinity"),
        ("float64", 0.1),
        ("complex64", [1.5, "Infinity"]),
        ("complex128", [0.25, -0.5]),
        ("float32", 0),
        ("float32", "0x7fc00001"),
        ("float32", 0.1),
        ("string", "ü"),
        ("r16", [1, 2]),
        ("int8", None),
    ],
)
def test_rows_hold_the_documents(data_type: str, value: Any) -> None:  # R0-48 H-08
    document = json.loads(array_document((10,), (3,), data_type=data_type, fill_value=value))
    octets = fill_values.encode(data_type, value)
    assert fill_values.decode(data_type, octets) == value
    if data_type == "uint64":
        assert octets == b"\xff" * 8
    row = {
        "shape": [10],
        "data_type": data_type,
        "fill_value": octets,
        "dimension_names": None,
        "chunk_grid": document["chunk_grid"],
        "chunk_key_encoding": document["chunk_key_encoding"],
        "codecs": [{"name": "bytes", "configuration": None}],
    }
    rebuilt = json.loads(document_of(row, {}))
    # The spec has no column for storage transformers: only of an array without any is it all.
    assert {**rebuilt, "storage_transformers": []} == document


ROUND_TRIPS: list[dict[str, Any]] = [
    {},
    {"dimension_names": [None]},
    {"dimension_names": ["x"]},
    {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}]},
    {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}},
    {"data_type": "float64", "fill_value": "NaN"},
    {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s"}}},
    {"attributes": {"units": "K", "list": [1, None, {"a": "ü"}]}},
]


@pytest.mark.parametrize("changes", ROUND_TRIPS)
def test_rows_give_the_documents_and_documents_the_rows(changes: dict[str, Any]) -> None:  # R0-48
    def stored_row(document: bytes) -> dict[str, Any]:
        storage = icefloe.in_memory_storage()
        repo = Repository.create(storage, generation="dataset")
        session = repo.writable_session("main")
        session.tree.set_document("/", document)
        tip = session.commit("one array")
        (row,) = read(storage, f"s/{tip}.parquet").read().to_pylist()
        return row

    document = array_document((10,), (3,), **changes)
    row = stored_row(document)
    attributes = json.loads(row["inline_attrs"])
    rebuilt = document_of(row["array_metadata"], attributes)
    assert {**json.loads(rebuilt), "storage_transformers": []} == json.loads(document)
    assert stored_row(rebuilt) == row


def test_rows_alone_are_enough(repo: Repository, storage: Storage) -> None:
    """Files that another program wrote, without icefloe's notes, are read from their rows."""
    expected = repo.readonly_session("main")
    chunks = {place: expected.get_chunk("/g/a", (place,)) for place in range(10)}
    for key in (*keys(storage, "s"), *keys(storage, "i")):
        table = read(storage, key).read()
        sink = io.BytesIO()
        rows = pa.array(range(table.num_rows)[::-1], pa.int64())
        pq.write_table(table.replace_schema_metadata(None).take(rows), sink)
        assert b"icefloe" not in (pq.read_metadata(sink).metadata or {})
        storage.put(key, sink.getvalue())
    state = state_of(storage)
    for entry in state["snapshots"]:
        del entry["structure-size"], entry["structure-checksum"]
    state["snapshots"][1]["properties"] = {"by": "others"}
    storage.put("state.json", json.dumps(state).encode())
    opened = Repository.open(storage)
    reader = opened.readonly_session("main")
    assert {place: reader.get_chunk("/g/a", (place,)) for place in range(10)} == chunks
    assert json.loads(reader.tree.document("/b") or b"") == json.loads(array())
    infos = list(opened.ancestry(branch="main"))
    assert [info.message for info in infos] == ["tree", "Repository initialized"]
    assert infos[0].metadata == {"by": "others"}
    session = opened.writable_session("main")
    session.tree.set_chunk("/g/a", (3,), b"new")
    session.tree.set_document("/c", array())
    session.commit("ours over theirs")
    again = Repository.open(storage).readonly_session("main")
    assert again.get_chunk("/g/a", (3,)) == b"new"
    assert again.get_chunk("/g/a", (4,)) == b"\1"
    assert len({again.get_node_id(path) for path in ("/", "/b", "/c", "/g", "/g/a")}) == 5


# --- manifests


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(4, "big") + b"rest")


def test_manifest_rows() -> None:  # R0-21 R0-52 R0-55 R0-60 R0-61 R0-62 H-04 H-06
    file_id = ChunkFileId(b"f" * 12)
    first: dict[tuple[int, ...], ChunkRef] = {
        (0, 300): NativeRef(file_id, 5, 6, 77),
        (0, 2): VirtualRef("s3://b/k.nc", 2**40, 2, '"etag"', None),
        (1, 0): VirtualRef("s3://b/k.nc", 1, 2, None, 1_700_000_000),
        (2, 1): InlineRef(b"abc"),
        (2, 2): InlineRef(b""),
    }
    parts = [
        (node(9), ArrayChunks.of([()], [NativeRef(file_id, 0, 5)], 0)),
        (node(2), ArrayChunks.of(list(first), list(first.values()), 2)),
    ]
    data = CODEC.encode_manifest(parts).data
    rows = pq.read_table(io.BytesIO(data)).to_pylist()
    assert [(row["id"], row["array_id"]) for row in rows] == [*enumerate([2] * 5 + [9])]
    places = sorted(encode_one(place) for place in first)
    assert [row["coord"] for row in rows] == [*places, b""]
    files = [row["chunk_file"] for row in rows]
    assert files == ["s3://b/k.nc", str(file_id), "s3://b/k.nc", None, None, str(file_id)]
    assert [row["offset"] for row in rows] == [2**40, 5, 1, None, None, 0]
    assert [row["length"] for row in rows] == [2, 6, 2, 3, 0, 5]
    assert [row["inline_data"] for row in rows] == [None, None, None, b"abc", b"", None]
    index = CODEC.decode_manifest_index(data, len(data), KEY)
    assert isinstance(index, ManifestIndex)
    spans = index.block_spans.tolist()
    manifest = Manifest(
        index, lambda n: CODEC.decode_block(index, n, data[spans[n][0] : sum(spans[n])], KEY)
    )
    assert {place: manifest.find(node(2), place) for place in first} == first
    assert manifest.find(node(9), ()) == NativeRef(file_id, 0, 5)
    assert manifest.find(node(2), (1, 1)) is None


def test_long_chunks_widen_the_length() -> None:  # H-03 R0-55g
    chunks = ArrayChunks.of([(0,)], [VirtualRef("s3://b/k", 0, 2**33)], 1)
    data = CODEC.encode_manifest([(node(1), chunks)]).data
    schema = pq.read_schema(io.BytesIO(data))
    assert schema.field("length").type == pa.uint64()
    footer = pq.read_metadata(io.BytesIO(data))
    assert footer.metadata[b"icefloe.schema"] == b"wide"


class CountsBytes(ForwardingStorage):
    """Notes how many bytes each request read."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.read: list[int] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, start, length)
        self.read.append(len(data))
        return data


def test_a_lookup_reads_the_footer_and_one_row_group(storage: Storage) -> None:
    # R0-24 R0-59: row groups have statistics of both columns
    counting = CountsBytes(storage)
    faulty = FaultyStorage(counting)
    config = RepositoryConfig(manifest=split_every(1000))
    repo = Repository.create(faulty, config, generation="dataset")
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array_document((400, 500), (1, 1)))
    session.tree.set_chunk_refs("/a", virtual_refs(np.indices((400, 500)).reshape(2, -1).T))
    session.commit("many")
    (key,) = keys(storage, "i")
    footer = read(storage, key).metadata
    assert footer.num_row_groups == 4
    for number in range(4):
        group_ = footer.row_group(number)
        names = {group_.column(c).path_in_schema: group_.column(c) for c in range(7)}
        assert names["array_id"].statistics.min == names["array_id"].statistics.max
        low, high = names["coord"].statistics.min, names["coord"].statistics.max
        assert low == encode_one(divmod(number * 65536, 500))
        assert high == encode_one(divmod(min(number * 65536 + 65535, 199_999), 500))
        assert all(column.compression == "ZSTD" for column in names.values())
    opened = Repository.open(faulty)
    reader = opened.readonly_session("main")
    faulty.trace.clear()
    counting.read.clear()
    ref = reader.tree.locate("/a", (131, 72))
    assert ref is not None
    assert sum(counting.read) < storage.head(key).size * 2 / 3
    reads = [entry for entry in faulty.trace if entry[1] == key]
    assert reads == [("get", key)] * 2
    faulty.trace.clear()
    session = Repository.open(faulty).readonly_session("main")
    node_ = session.get_node("/a")
    snapshot = opened._context.files.read_snapshot(SnapshotId.parse(session.snapshot_id))
    chunks = SnapshotChunks(MetadataFiles(faulty, FORMAT), snapshot)
    faulty.trace.clear()
    region = np.indices((20, 500)).reshape(2, -1).T.astype(np.uint64) + np.array(
        [300, 0], np.uint64
    )
    assert isinstance(node_, ArrayNode)
    assert sum(len(found.rows) for found in chunks.find_many(node_, region)) == 10_000
    # A region reads the row groups that have it: of four, the one from place 131,072 on.
    assert [entry for entry in faulty.trace if entry[1] == key] == [("get", key)] * 2


# --- names of chunk files

file_names = st.one_of(
    st.binary(min_size=12, max_size=12).map(lambda data: str(ChunkFileId(data))),
    st.binary(min_size=16, max_size=16).map(lambda data: str(ChunkFileId(data))),
    st.from_regex(r"[0-9A-Za-z]{20}|[0-9A-Z]{26}", fullmatch=True),
    st.from_regex(r"[a-z. é/-]{1,30}", fullmatch=True),
    st.uuids().map(str),
)


def is_good(name: str) -> bool:
    return not {"", ".", ".."}.intersection(name.split("/"))


@given(st.lists(file_names.filter(is_good)))
def test_names_become_ids_and_names_again(names: list[str]) -> None:
    found = decode_ids(pa.array(names, pa.string()))
    assert [ChunkFileId(row.tobytes()) for row in found] == [
        id_of_file(ChunkFileId, name) for name in names
    ]
    assert encode_ids(found).to_pylist() == names


@given(st.lists(file_names.filter(is_good)), st.sampled_from(["", ".", "..", "a/..", "/a", "a\0b"]))
def test_names_that_lead_elsewhere_are_no_ids(names: list[str], bad: str) -> None:
    with pytest.raises(InvalidInputError, match="file name"):
        decode_ids(pa.array([*names, bad], pa.string()))
