"""Two repositories of the reference implementation's early days: every fact that is known of them.

They are not part of the project. They are read where they lie beside it, if they do.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from icefloe.errors import FormatError
from icefloe.formats.config_files import ConfigFiles
from icefloe.formats.port import NeedsMore
from icefloe.formats.registry import detect, format_for
from icefloe.model.chunk_refs import InlineRef, NativeRef, VirtualRef
from icefloe.model.manifest import Manifest
from icefloe.storage.local import LocalStorage

if TYPE_CHECKING:
    from icefloe.model.chunk_refs import ChunkRef
    from icefloe.model.ids import SnapshotId
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
REPOSITORIES = {"bare": GOLDEN / "gen3-bare-msgpack", "header39": GOLDEN / "gen3-header39"}
ZSTD_84 = bytes.fromhex("28b52ffd200109000054")

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason=f"the reference repositories are not at {GOLDEN}"
)


class Opened:
    """A reference repository, read with nothing but the format."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.storage = LocalStorage(str(REPOSITORIES[name]))
        found = detect(self.storage)
        assert found is not None
        self.format = found
        self.refs = found.make_refs(self.storage)

    def snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        key = self.format.layout.snapshot(snapshot_id)
        return self.format.codec.decode_snapshot(self.storage.get(key), snapshot_id, key)

    def branch(self, branch: str) -> Snapshot:
        tip = self.refs.tip(branch)
        assert tip is not None
        return self.snapshot(tip.snapshot_id)

    def history(self, branch: str) -> list[str]:
        snapshot = self.branch(branch)
        return [snapshot.message, *(stub.message for stub in snapshot.history)]

    def past(self, message: str) -> Snapshot:
        tip = self.branch("main")
        (found,) = [stub.id for stub in (tip.stub(), *tip.history) if stub.message == message]
        return self.snapshot(found)

    def chunks(self, node: Node) -> dict[tuple[int, ...], ChunkRef]:
        assert node.is_array
        found: dict[tuple[int, ...], ChunkRef] = {}
        for ref in node.manifests:
            key = self.format.layout.manifest(ref.manifest_id)
            data = self.storage.get(key)
            index = self.format.codec.decode_manifest_index(data, len(data), key)
            assert not isinstance(index, NeedsMore)
            assert index.resident is not None
            manifest = Manifest(index, index.resident.__getitem__)
            part = manifest.array(node.id, node.array.rank)
            if part is not None:
                found |= dict(zip(part.index.tuples(), part.refs.tolist(), strict=True))
        return found

    def file(self, ref: ChunkRef) -> bytes:
        assert isinstance(ref, NativeRef)
        data = self.storage.get(self.format.layout.chunk_file(ref.file))
        assert (ref.offset, ref.length) == (0, len(data))
        return data


@pytest.fixture(params=list(REPOSITORIES))
def repository(request: pytest.FixtureRequest) -> Opened:
    return Opened(request.param)


def node_at(snapshot: Snapshot, path: str) -> Node:
    node = snapshot.nodes.get(path)
    assert node is not None
    return node


def attributes(node: Node) -> dict[str, object]:
    return msgspec.json.decode(node.document)["attributes"]


MAIN_NODES = ["/", "/group1", "/group1/big_chunks", "/group1/small_chunks"]
INNER = "/group2/group3/group4/group5/inner"


def test_is_written_in_spec_version_1(repository: Opened) -> None:
    assert repository.format == format_for(spec_version=1)


def test_branches_and_tags(repository: Opened) -> None:
    refs = repository.refs
    assert refs.branches() == {"main", "my-branch"}
    assert refs.tags() == {"it works!", "it also works!"}
    tip = refs.tip("my-branch")
    assert tip is not None
    assert tip.sequence == 2
    assert refs.tag("it also works!") == tip.snapshot_id
    assert refs.tag("it works!") == repository.branch("my-branch").parent_id
    assert refs.tag("deleted") is None
    main = refs.tip("main")
    assert main is not None
    assert main.sequence == 3
    assert [state.snapshot_id for state in refs.reflog("my-branch")][-1] == main.snapshot_id


def test_histories(repository: Opened) -> None:
    main = ["set virtual chunk", "fill data", "empty structure", "Repository initialized"]
    assert repository.history("main") == main
    assert repository.history("my-branch") == ["some more structure", "delete a chunk", *main]
    assert repository.branch("my-branch").total_parents == 5


def test_first_snapshot_is_known_by_its_file_name(repository: Opened) -> None:
    *_, first = repository.refs.reflog("main")
    snapshot = repository.snapshot(first.snapshot_id)
    assert snapshot.id == first.snapshot_id
    assert snapshot.message == "Repository initialized"
    assert snapshot.parent_id is None
    assert len(snapshot.nodes) == 0
    remembered = repository.branch("main").history[-1].id
    # Old repositories remember it by an id that no file has.
    assert (remembered == first.snapshot_id) == (repository.name != "bare")


def test_nodes_and_attributes(repository: Opened) -> None:
    assert list(repository.branch("main").nodes.paths) == MAIN_NODES
    nodes = repository.branch("my-branch").nodes
    groups = ["/group2", "/group2/group3", "/group2/group3/group4", "/group2/group3/group4/group5"]
    assert list(nodes.paths) == [*MAIN_NODES, *groups, INNER]
    for node in nodes:
        if node.path == "/":
            assert attributes(node) == {}
        else:
            kind = "array" if node.is_array else "group"
            assert attributes(node) == {"this": f"is a nice {kind}", "icechunk": 1, "size": 42.0}


def test_array_metadata(repository: Opened) -> None:
    nodes = repository.branch("my-branch")
    for path in ("/group1/big_chunks", INNER):
        node = node_at(nodes, path)
        assert node.is_array
        array = node.array
        assert (array.shape, array.chunk_shape, array.data_type) == ((10, 10), (5, 5), "float32")
    small = node_at(nodes, "/group1/small_chunks")
    assert small.is_array
    assert (small.array.shape, small.array.chunk_shape) == ((5,), (1,))
    document = msgspec.json.decode(small.document)
    assert (document["data_type"], document["fill_value"]) == ("int8", 8)
    assert document["storage_transformers"] == []
    assert document["dimension_names"] is None
    codecs = [codec["name"] for codec in document["codecs"]]
    assert codecs == (["bytes"] if repository.name == "bare" else ["bytes", "zstd"])


def test_big_chunks(repository: Opened) -> None:
    path = "/group1/big_chunks"
    assert repository.chunks(node_at(repository.past("empty structure"), path)) == {}
    filled = repository.chunks(node_at(repository.past("fill data"), path))
    assert set(filled) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    contents = {repository.file(ref) for ref in filled.values()}
    assert len(contents) == 1
    if repository.name == "bare":
        assert struct.unpack("<25f", contents.pop()) == (42.0,) * 25
    later = repository.chunks(node_at(repository.branch("main"), path))
    virtual = later.pop((0, 0))
    assert later == {coords: ref for coords, ref in filled.items() if coords != (0, 0)}
    if repository.name == "bare":
        assert virtual == VirtualRef("s3://testbucket/path/to/python/chunk-1", 0, 100)
    else:
        assert virtual == VirtualRef(
            "s3://testbucket/can_read_old/chunk-1", 0, 100, last_modified=4294111232
        )


def test_small_chunks(repository: Opened) -> None:
    path = "/group1/small_chunks"
    assert repository.chunks(node_at(repository.past("empty structure"), path)) == {}
    inline = InlineRef(b"\x54" if repository.name == "bare" else ZSTD_84)
    on_main = repository.chunks(node_at(repository.branch("main"), path))
    assert on_main == {(number,): inline for number in range(5)}
    on_branch = repository.chunks(node_at(repository.branch("my-branch"), path))
    assert on_branch == {(number,): inline for number in range(4)}


def test_inner_has_no_chunks(repository: Opened) -> None:
    inner = node_at(repository.branch("my-branch"), INNER)
    assert repository.chunks(inner) == {}
    assert msgspec.json.decode(inner.document)["fill_value"] == "NaN"


def test_transaction_logs() -> None:
    repository = Opened("header39")
    layout, codec = repository.format.layout, repository.format.codec
    logs = {}
    for stub in (repository.branch("my-branch").stub(), *repository.branch("my-branch").history):
        key = layout.transaction_log(stub.id)
        if stub.message != "Repository initialized":
            logs[stub.message] = codec.decode_transaction_log(repository.storage.get(key), key)
    main = repository.branch("main").nodes
    big, small = main.get("/group1/big_chunks"), main.get("/group1/small_chunks")
    assert big is not None
    assert small is not None
    filled = logs["fill data"].updated_chunks
    assert {node: len(index) for node, index in filled.items()} == {big.id: 4, small.id: 5}
    assert logs["set virtual chunk"].updated_chunks[big.id].tuples() == [(0, 0)]
    assert logs["delete a chunk"].updated_chunks[small.id].tuples() == [(4,)]
    created = logs["empty structure"]
    assert created.new_arrays == {big.id, small.id}
    assert len(created.new_groups) == 2
    assert not created.updated_groups | created.updated_arrays
    assert len(logs["some more structure"].new_groups) == 4


def test_legacy_configuration_is_found() -> None:
    repository = Opened("header39")
    config = ConfigFiles(repository.storage)
    assert config.read() is None
    yaml = config.read_legacy()
    assert yaml is not None
    assert yaml.startswith(b"inline_chunk_threshold_bytes: 12")


def test_damage_in_any_byte_is_an_error_or_harmless(repository: Opened) -> None:
    """Old files have no checksums; their readers must at least never crash."""
    codec, layout = repository.format.codec, repository.format.layout
    tip = repository.branch("main")
    key = layout.snapshot(tip.id)
    data = repository.storage.get(key)
    for position in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with suppress(FormatError):
            list(codec.decode_snapshot(bytes(damaged), tip.id, key).nodes)
