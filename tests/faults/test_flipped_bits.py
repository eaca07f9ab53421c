"""Every flipped bit of a metadata file: the same values are read, or an error names the file.

The default profile flips one bit of each byte, the deep one all eight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.errors import FormatError, IcefloeError
from icefloe.formats.port import NeedsMore, ObjectKind
from icefloe.formats.registry import format_for
from icefloe.objects.shared_caches import forget_shared
from tests.faults.pictures import copy_objects, picture
from tests.formats import FORMATS
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.formats.port import Generation, ObjectName
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage


def flipped(data: bytes, stride: int = 1) -> Iterator[tuple[int, bytes]]:
    """Copies of a file with one other bit, and where; of every byte, or of some."""
    is_all = IS_DEEP and stride == 1
    for place in range(0, len(data), stride):
        for bit in range(8) if is_all else [(place // stride) % 8]:
            changed = data[place] ^ (1 << bit)
            yield place, data[:place] + bytes([changed]) + data[place + 1 :]


def prepare(name: str) -> Storage:
    """A small repository with every kind of file in it."""
    storage = icefloe.in_memory_storage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)
    repo = Repository.create(storage, config, **FORMATS[name])
    with repo.transaction("main", message="one") as store:
        root = zarr.create_group(store)
        for path, chunk in (("inline", 2), ("native", 8)):
            root.create_array(
                path, shape=(2 * chunk,), chunks=(chunk,), dtype="u1", compressors=None
            )[:] = 1
    first = repo.lookup_branch("main")
    repo.create_tag("v1", first)
    with repo.transaction("main", message="two") as store:
        root = zarr.open_group(store, mode="r+")
        root["native"][:8] = 2
        root.attrs["long"] = "x" * 300
    repo.create_branch("dev", first)
    with repo.transaction("dev", message="three") as store:
        zarr.open_group(store, mode="r+")["native"][8:] = 3
    return storage


@pytest.fixture(scope="module", params=FORMATS)
def made(request: pytest.FixtureRequest) -> tuple[Generation, Storage]:
    how = {"generation": "repository", **FORMATS[request.param]}
    return format_for(**how), prepare(request.param)


# --- file by file


def read_snapshot(fmt: Generation, data: bytes, snapshot_id: SnapshotId, key: str) -> Any:
    snapshot = fmt.codec.decode_snapshot(data, snapshot_id, key)
    fields = [*("id", "parent_id", "written_at", "started_at", "message", "metadata")]
    fields += ["total_parents", "history", "manifests", "attribute_files"]
    nodes = [(node.id, node) for node in snapshot.nodes]
    return [getattr(snapshot, field) for field in fields], nodes


def read_manifest(fmt: Generation, data: bytes, key: str) -> Any:
    index = fmt.codec.decode_manifest_index(data, len(data), key)
    if isinstance(index, NeedsMore):
        raise FormatError(f"{key}: a whole file cannot need more", key)
    blocks = []
    for number, (start, length) in enumerate(index.block_spans.tolist()):
        block = fmt.codec.decode_block(index, number, data[start : start + length], key)
        positions = None if block.positions is None else block.positions.tolist()
        blocks.append((positions, block.refs.tolist()))
    resident = [block.refs.tolist() for block in index.resident or ()]
    return [(node, index.arrays[node]) for node in index.arrays], blocks, resident


def reader(fmt: Generation, name: ObjectName, key: str) -> Callable[[bytes], Any]:
    snapshot_id: Any = name.id
    return {
        ObjectKind.SNAPSHOT: lambda data: read_snapshot(fmt, data, snapshot_id, key),
        ObjectKind.MANIFEST: lambda data: read_manifest(fmt, data, key),
        ObjectKind.ATTRIBUTES: lambda data: fmt.codec.decode_attributes(data, key),
        ObjectKind.TRANSACTION_LOG: lambda data: fmt.codec.decode_transaction_log(data, key),
    }[name.kind]


def try_to_read(read: Callable[[bytes], Any], data: bytes, key: str) -> Any:
    """What a file holds; None if it is refused with an error that names it."""
    try:
        return read(data)
    except FormatError as error:
        refusal = str(error)
    assert key in refusal
    return None


def test_each_file_alone_tells_its_damage(made: tuple[Generation, Storage]) -> None:  # invariant 10
    """Also without the checksums that stand where a file is referred to."""
    fmt, storage = made
    kinds = set()
    for info in storage.list():
        name = fmt.layout.parse(info.key)
        if name is None or name.kind is ObjectKind.CHUNK_FILE:
            continue
        read = reader(fmt, name, info.key)
        whole = storage.get(info.key)
        expected = read(whole)
        for place, data in flipped(whole):
            found = try_to_read(read, data, info.key)
            assert found is None or found == expected, (info.key, place)
        kinds.add(name.kind)
    expected = {ObjectKind.SNAPSHOT, ObjectKind.MANIFEST}
    if fmt.keeps_logs:
        expected.add(ObjectKind.TRANSACTION_LOG)
    if fmt.keeps_attribute_files:
        expected.add(ObjectKind.ATTRIBUTES)
    assert kinds == expected


# --- references, which have no codec


def read_references(fmt: Generation, storage: Storage) -> Any:
    refs = fmt.make_refs(storage)
    tips = {
        branch: tip and tip.snapshot_id for branch in refs.branches() if (tip := refs.tip(branch))
    }
    return tips, {tag: refs.tag(tag) for tag in refs.tags()}


def test_each_reference_tells_its_damage(made: tuple[Generation, Storage]) -> None:
    """They lead where they led, to a snapshot that nobody wrote, or nowhere at all."""
    fmt, prepared = made
    storage = icefloe.in_memory_storage()
    copy_objects(prepared, storage)
    expected = read_references(fmt, storage)
    written = {name.id for info in storage.list() if (name := fmt.layout.parse(info.key))}
    keys = [
        i.key for i in storage.list() if i.key.startswith(("refs/", "r/", "state.json", "repo"))
    ]
    assert keys
    silent = []
    for key in keys:
        whole = storage.get(key)
        for place, data in flipped(whole):
            storage.put(key, data)
            try:
                found = read_references(fmt, storage)
            except IcefloeError:
                continue
            if found != expected and written >= {*found[0].values(), *found[1].values()}:
                silent.append((key, data[max(0, place - 20) : place + 20]))
        storage.put(key, whole)
    assert not silent


# --- all of it, as a reader sees it


def test_a_reader_of_a_damaged_repository(made: tuple[Generation, Storage]) -> None:
    """A few bits of each file; the configuration is for people to edit and has no checksum."""
    _, prepared = made
    storage = icefloe.in_memory_storage()
    copy_objects(prepared, storage)
    expected = picture(storage)
    silent = []
    for info in list(storage.list()):
        if info.key.startswith(("config", "chunks/", "c/", "overwritten/")):
            continue  # chunks are compared on request: tests/faults/test_damaged_chunks.py
        whole = storage.get(info.key)
        for place, data in flipped(whole, max(1, len(whole) // 8)):
            storage.put(info.key, data)
            forget_shared()
            try:
                if picture(storage) != expected:
                    silent.append((info.key, place))
            except IcefloeError:
                continue
        storage.put(info.key, whole)
    assert not silent
