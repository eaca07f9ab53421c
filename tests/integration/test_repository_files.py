"""The binary files of a `repository`, where a commit left them: byte by byte as in spec 002."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard

import icefloe
from icefloe import InvalidInputError, Repository, RepositoryConfig, VirtualChunkContainer
from icefloe.errors import FormatError
from icefloe.formats.container import CLIENT
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.storage.memory import MemoryStorage
from tests.documents import array, group, make_tree, set_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icefloe.storage.port import Storage

TYPES = {"snapshots": 1, "manifests": 2, "attributes": 3, "transactions": 4}
LABELS = {1: "snapshot", 2: "manifest", 3: "attributes", 4: "transaction-log"}


@pytest.fixture(params=[1, 2], ids=["rows", "columns"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def storage(version: int) -> Storage:
    made = MemoryStorage()
    config = RepositoryConfig(inline_attributes_threshold_bytes=10)
    repository = Repository.create(made, config, spec_version=version)
    make_tree(repository)
    session = repository.writable_session("main")
    session.tree.set_document("/g", group(text="long enough for a file"))
    set_chunks(session, "/b", [5], b"x" * 600)
    session.commit("all kinds of files")
    return made


def metadata_files(storage: Storage) -> Iterator[tuple[str, int, bytes]]:
    """Key, type and bytes of every binary file."""
    for folder, kind in TYPES.items():
        found = list(storage.list(f"{folder}/"))
        assert found, folder  # R2-03, R2-18, R2-19
        for info in found:
            yield info.key, kind, storage.get(info.key)


def test_a_commit_fills_five_folders_with_long_names(storage: Storage) -> None:  # R1-08
    folders = {info.key.partition("/")[0] for info in storage.list()}
    assert folders - {"refs", "config", "maintenance"} == {*TYPES, "chunks"}


def test_every_metadata_file_has_the_header(storage: Storage, version: int) -> None:
    # R2-03, R2-04, R2-05, R2-06, R2-08, R2-10, R2-11, R2-16, R2-18, R2-19
    for key, kind, data in metadata_files(storage):
        assert data[:12].hex(" ") == "49 43 45 f0 9f a7 8a 43 48 55 4e 4b", key
        assert data[12:24] == CLIENT.encode().ljust(12, b" "), key
        assert (data[24], data[25]) == (version, kind), key
        assert data[26] in {0, 1}, key


def test_a_compressed_message_follows_the_header(storage: Storage, version: int) -> None:
    # R2-12, R2-13, R1-27, R1-35
    for key, kind, data in metadata_files(storage):
        if (version, kind) == (2, 2):
            assert data[26] == 0, "a manifest in columns is compressed in parts, for partial reads"
            continue
        assert data[26] == 1, key
        body = zstandard.ZstdDecompressor().decompress(data[27:])
        value = msgspec.msgpack.decode(body)
        assert value, key
        assert len(body) > 1
    assert not any(
        info.key.startswith("chunks/") and storage.get(info.key)[:3] == b"ICE"
        for info in storage.list()
    )


def test_object_metadata_repeats_the_header_and_is_not_needed(
    storage: Storage, version: int
) -> None:  # R2-14
    bare = MemoryStorage()
    for info in storage.list():
        bare.put(info.key, storage.get(info.key))
    for key, kind, data in metadata_files(storage):
        if not key.endswith(str(FIRST_SNAPSHOT_ID)):
            assert storage.get_attributes(key) == {
                "ic_spec_ver": str(version),
                "ic_client": CLIENT,
                "ic_file_type": LABELS[kind],
                "ic_comp_alg": "zstd" if data[26] else "none",
            }, key
        assert bare.get_attributes(key) == {}
    reader = Repository.open(bare).readonly_session("main")
    assert reader.get_chunk("/b", (5,)) == b"x" * 600
    assert reader.tree.document("/g") == group(text="long enough for a file")


DAMAGE: dict[str, Any] = {
    "cut off in the header": (lambda data: data[:20], "truncated"),
    "another magic": (lambda data: b"NIX" + data[3:], "snapshots/"),
    "version 0": (lambda data: data[:24] + b"\0" + data[25:], "version 0 is reserved"),  # R2-08
    "version 9": (lambda data: data[:24] + b"\x09" + data[25:], "version 9 is unknown"),
    "another type": (lambda data: data[:25] + b"\x02" + data[26:], "expected a snapshot"),  # R2-10
    "compression 7": (lambda data: data[:26] + b"\x07" + data[27:], "compression 7"),  # R2-11
    "cut off": (lambda data: data[:-1], "damaged or cut off"),
    "more bytes": (lambda data: data + b"\0", "snapshots/"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_damage_of_a_snapshot_has_its_error(storage: Storage, damage: str) -> None:
    # R2-20, R2-08, R2-10, R2-11
    change, reason = DAMAGE[damage]
    key = f"snapshots/{Repository.open(storage).lookup_branch('main')}"
    storage.put(key, change(storage.get(key)))
    with pytest.raises(FormatError, match=reason) as caught:
        Repository.open(storage).readonly_session("main")
    assert caught.value.key == key


def test_references_and_configuration_have_no_header(storage: Storage) -> None:  # R2-02
    plain = [info.key for info in storage.list() if info.key.startswith(("refs/", "config/"))]
    assert len(plain) == 4
    for key in plain:
        assert isinstance(msgspec.json.decode(storage.get(key)), dict)


def test_ids_and_names_of_a_new_repository() -> None:  # R1-15, R1-21, R1-13
    storage = MemoryStorage()
    repository = Repository.create(storage)
    assert str(SnapshotId(bytes.fromhex("0b1cc8d6787580f0e33a6534"))) == "1CECHNKREP0F1RSTCMT0"
    assert [info.key for info in storage.list("snapshots/")] == ["snapshots/1CECHNKREP0F1RSTCMT0"]
    for _ in range(50):
        repository.create_branch("x", "main")
        repository.delete_branch("x")
    repository.create_branch("x", "main")
    names = [info.key.rpartition("/")[2] for info in storage.list("refs/branch.x/")]
    assert (names[0], names[-1], len(names)) == ("ZZZZZZWV.json", "ZZZZZZZZ.json", 101)
    tip = Repository.open(storage).lookup_branch("x")
    assert tip == "1CECHNKREP0F1RSTCMT0"


def test_locations_are_written_in_canonical_form(tmp_path: Path) -> None:  # R2-31
    config = RepositoryConfig()
    config.set_virtual_chunk_container(
        VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="us-east-1", anonymous=True))
    )
    storage = MemoryStorage()
    session = Repository.create(storage, config, spec_version=1).writable_session("main")
    session.tree.set_document("/", array())
    session.store.set_virtual_ref("c/0", "S3://bucket//a/./b/../x y.nc", offset=0, length=1)
    session.commit("virtual")
    (info,) = storage.list("manifests/")
    body = zstandard.ZstdDecompressor().decompress(storage.get(info.key)[27:])
    _, _, chunks = msgspec.msgpack.decode(body)
    assert list(chunks.values()) == [{"Virtual": [{"Absolute": "s3://bucket/a/x%20y.nc"}, 0, 1]}]
    session = Repository.open(storage).writable_session("main")
    for wrong in ("bucket/x.nc", "s3:///x.nc"):
        session = Repository.open(storage).writable_session("main")
        with pytest.raises(InvalidInputError):
            session.store.set_virtual_ref("c/0", wrong, offset=0, length=1)


def test_chunks_of_up_to_512_bytes_are_inline(version: int) -> None:  # R2-36
    repository = Repository.create(MemoryStorage(), spec_version=version)
    session = repository.writable_session("main")
    session.tree.set_document("/", array())
    for place, size in enumerate((511, 512, 513)):
        session.tree.set_chunk("/", (place,), b"x" * size)
    session.commit("sizes")
    reader = repository.readonly_session("main")
    kinds = [reader.chunk_type("/", (place,)).name for place in range(3)]
    assert kinds == ["INLINE", "INLINE", "NATIVE"]


def test_paths_in_files_are_canonical() -> None:  # R2-35
    storage = MemoryStorage()
    repository = Repository.create(storage, spec_version=1)
    make_tree(repository)
    session = repository.writable_session("main")
    for wrong in ("/a//b", "/a/../b", "/./a", "/.."):
        with pytest.raises(InvalidInputError):
            session.tree.set_document(wrong, group())
    key = f"snapshots/{repository.lookup_branch('main')}"
    data = storage.get(key)
    fields = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(data[27:]))
    assert list(fields[10]) == ["/", "/b", "/g", "/g/a"]
    fields[10]["/g/../x"] = fields[10].pop("/g/a")
    fields[10]["/g/../x"][1] = "/g/../x"
    storage.put(
        key, data[:27] + zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(fields))
    )
    with pytest.raises(FormatError):
        Repository.open(storage).readonly_session("main").get_node("/")
