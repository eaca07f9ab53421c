"""Snapshots of both spec versions."""

from __future__ import annotations

import gc
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats import nodes as node_rules
from icefloe.formats.container import HEADER_SIZE, compress, decompress
from icefloe.formats.nodes import check_paths
from icefloe.formats.registry import format_for
from icefloe.formats.repository import rows
from icefloe.model.chunk_index import Box
from icefloe.model.ids import FIRST_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.nodes import ManifestRef, NodeTable, make_node
from icefloe.model.snapshot import FIRST_MESSAGE, Snapshot, SnapshotStub
from scripts import make_golden

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CODECS = {version: format_for(spec_version=version).codec for version in (1, 2)}
versions = pytest.mark.parametrize("version", [1, 2])


def first_snapshot(**changes: Any) -> Snapshot:
    snapshot = Snapshot(
        id=FIRST_SNAPSHOT_ID,
        parent_id=None,
        written_at=NOW,
        started_at=NOW,
        message=FIRST_MESSAGE,
        metadata={},
        total_parents=0,
        history=(),
        manifests=(),
        attribute_files=(),
        nodes=NodeTable.of([]),
    )
    return msgspec.structs.replace(snapshot, **changes)


@versions
def test_the_first_snapshot(version: int) -> None:
    data = CODECS[version].encode_snapshot(first_snapshot()).data
    assert len(data) < 200
    found = CODECS[version].decode_snapshot(data, FIRST_SNAPSHOT_ID, "key")
    assert found.message == "Repository initialized"  # R2-34
    assert (found.parent_id, found.total_parents, found.history) == (None, 0, ())
    assert len(found.nodes) == 0


@versions
def test_object_metadata(version: int) -> None:
    file = CODECS[version].encode_snapshot(first_snapshot())
    assert file.attributes["ic_spec_ver"] == str(version)  # R2-14
    assert file.attributes["ic_file_type"] == "snapshot"
    assert file.data[24:HEADER_SIZE] == bytes((version, 1, 1))


@versions
def test_a_file_under_another_name_is_refused(version: int) -> None:
    data = CODECS[version].encode_snapshot(first_snapshot()).data
    other = SnapshotId(b"x" * 12)
    with pytest.raises(FormatError, match=f"expected snapshot {other}"):
        CODECS[version].decode_snapshot(data, other, "key")


@versions
def test_history_is_limited(version: int) -> None:
    stubs = tuple(
        SnapshotStub(SnapshotId(number.to_bytes(12, "big")), NOW, f"commit {number}")
        for number in range(1500)
    )
    snapshot = first_snapshot(history=stubs, parent_id=stubs[0].id, total_parents=1500)
    data = CODECS[version].encode_snapshot(snapshot).data
    found = CODECS[version].decode_snapshot(data, snapshot.id, "key")
    limit = rows.MAX_HISTORY if version == 1 else node_rules.MAX_HISTORY
    assert found.history == stubs[:limit]  # H-15
    assert found.parent_id == stubs[0].id
    assert found.total_parents == 1500


@versions
def test_microseconds_are_kept(version: int) -> None:
    times = [NOW + timedelta(microseconds=number) for number in (0, 1, 999_999)]
    for time in times:
        snapshot = first_snapshot(written_at=time, started_at=time - timedelta(microseconds=1))
        data = CODECS[version].encode_snapshot(snapshot).data
        found = CODECS[version].decode_snapshot(data, snapshot.id, "key")
        assert (found.written_at, found.started_at) == (snapshot.written_at, snapshot.started_at)


@versions
def test_metadata_that_cannot_be_stored_is_refused(version: int) -> None:
    with pytest.raises(InvalidInputError, match="64 bits"):
        CODECS[version].encode_snapshot(first_snapshot(metadata={"n": 2**70}))


def test_manifests_must_be_listed() -> None:
    node = make_node(NodeId(b"n" * 8), "/a", json.dumps(make_golden.array_document()).encode())
    ref = ManifestRef(ManifestId(b"m" * 12), Box((0, 0), (1, 1)), 1)
    snapshot = first_snapshot(nodes=NodeTable.of([node.evolve(manifests=(ref,))]))
    with pytest.raises(InvalidInputError, match="does not list"):  # R1-29
        CODECS[2].encode_snapshot(snapshot)


def many_nodes(count: int) -> Snapshot:
    document = json.dumps(make_golden.array_document()).encode()
    info = ManifestFileInfo(ManifestId(b"m" * 12), 1000, count)
    ref = ManifestRef(info.id, Box((0, 0), (2, 2)), 1)
    group = b'{"zarr_format":3,"node_type":"group"}'
    nodes = [make_node(NodeId(b"root...."), "/", group)]
    array = make_node(NodeId(b"array..."), "/x", document)
    nodes += [
        array.evolve(
            id=NodeId(number.to_bytes(8, "big")), path=f"/arrays/{number:06d}", manifests=(ref,)
        )
        for number in range(count)
    ]
    return first_snapshot(nodes=NodeTable.of(nodes), manifests=(info,))


def test_no_node_is_decoded_before_it_is_asked_for() -> None:
    count = 5760
    snapshot = many_nodes(count)
    data = CODECS[2].encode_snapshot(snapshot).data
    CODECS[2].decode_snapshot(data, snapshot.id, "key")
    gc.collect()
    before = sys.getallocatedblocks()
    found = CODECS[2].decode_snapshot(data, snapshot.id, "key")
    # The paths are strings in a list; nothing else is made per node.
    assert sys.getallocatedblocks() - before < count + 200
    node = found.nodes.get("/arrays/000123")
    assert node is not None
    assert node == snapshot.nodes.get("/arrays/000123")
    assert found.nodes.by_id(node.id) == node
    assert len(data) < count * 16


def body_of(version: int) -> object:
    data = make_golden.golden_files()[f"v{version}/snapshot"]
    return msgspec.msgpack.decode(decompress(data[HEADER_SIZE:], "key"))


def file_of(version: int, body: object) -> bytes:
    header = make_golden.golden_files()[f"v{version}/snapshot"][:HEADER_SIZE]
    return header + compress(msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    "changes",
    [
        {"parent": make_golden.SNAPSHOT_ID},
        {"parent": b"short"},
        {"history": [(b"x" * 12, 0, "not the parent")]},
        {"history": [(b"x" * 11, 0, "")]},
        {"written": -1},
        {"written": 2**62},
        {"manifests": b"x" * 13},
        {"manifests": b""},
        {"paths": ["/data", "/"]},
        {"paths": ["/"]},
        {"paths": ["/", "/a", "/a", "/b"]},
        {"nodes": b"x" * 24},
        {"document_sizes": 1},
        {"document_sizes": 2**62},
        {"documents": b""},
        {"refs": [0, 2, 1, 1]},
        {"refs": [0, 2, 2, 0]},
        {"ref_manifests": 2},
        {"ref_ranks": 3},
        {"ref_ranks": 1000},
        {"ref_shapes": 0},
        {"outside_count": 5},
        {"outside": 4},
        {"outside_files": 1},
        {"outside_positions": 10**9},
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    body = body_of(2)
    assert isinstance(body, dict)
    changes = {
        name: bytes(value) if isinstance(value, bytes) else value for name, value in changes.items()
    }
    data = file_of(2, body | changes)
    with pytest.raises(FormatError):
        list(CODECS[2].decode_snapshot(data, make_golden.SNAPSHOT_ID, "key").nodes)


def test_columns_of_the_future_are_passed_over() -> None:
    body = body_of(2)
    assert isinstance(body, dict)
    data = file_of(2, body | {"statistics": [1, 2, 3]})
    found = CODECS[2].decode_snapshot(data, make_golden.SNAPSHOT_ID, "key")
    assert list(found.nodes) == list(make_golden.snapshot().nodes)


@pytest.mark.parametrize(
    "paths",
    [
        ["a"],
        [""],
        ["/a/"],
        ["//a"],
        ["/a//b"],
        ["/."],
        ["/.."],
        ["/a/."],
        ["/a/../b"],
        ["/./a"],
        ["/a\0/b"],
        ["/a", "b"],
        ["/b", "/a"],
        ["/a", "/a"],
        ["/", "/"],
    ],
)
def test_paths_must_be_canonical_and_in_order(paths: list[str]) -> None:
    with pytest.raises(FormatError):
        check_paths(paths, "key")


@pytest.mark.parametrize("paths", [[], ["/"], ["/a"], ["/", "/...", "/.a", "/a", "/a/b.", "/a.b"]])
def test_canonical_paths_are_taken(paths: list[str]) -> None:
    check_paths(sorted(paths), "key")
