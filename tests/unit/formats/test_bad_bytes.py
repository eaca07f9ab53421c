"""Damaged and hostile files: a FormatError that names the file, and nothing else."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.formats.container import HEADER_SIZE, compress, decompress
from icefloe.formats.port import NeedsMore
from icefloe.formats.registry import format_for
from icefloe.model.manifest import Manifest
from scripts import make_golden
from tests import counting

if TYPE_CHECKING:
    from collections.abc import Callable

CODEC = format_for().codec
GENERATIONS = ("store/", "dataset/")
"""Other generations have their own tests of this kind."""
GOLDEN = {
    name: data
    for name, data in make_golden.golden_files().items()
    if not name.startswith(GENERATIONS)
}
KEY = "some/key"
CLIENT_BYTES = range(12, 24)


def read_snapshot(data: bytes) -> Any:
    snapshot = CODEC.decode_snapshot(data, make_golden.SNAPSHOT_ID, KEY)
    return (
        snapshot.message,
        snapshot.metadata,
        snapshot.history,
        snapshot.manifests,
        snapshot.attribute_files,
        list(snapshot.nodes),
        list(snapshot.nodes.node_ids()),
    )


def read_manifest(data: bytes) -> Any:
    index = CODEC.decode_manifest_index(data, len(data), KEY)
    if isinstance(index, NeedsMore):
        raise FormatError("a whole file cannot need more", KEY)
    spans = index.block_spans.tolist()
    manifest = Manifest(
        index,
        lambda number: CODEC.decode_block(index, number, data[slice(*span(spans[number]))], KEY),
    )
    return {node: contents(manifest, node) for node in index.arrays}


def span(place: list[int]) -> tuple[int, int]:
    start, length = place
    return start, start + length


def contents(manifest: Manifest, node: Any) -> Any:
    chunks = manifest.array(node)
    assert chunks is not None
    return dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True))


def read_attributes(data: bytes) -> Any:
    return CODEC.decode_attributes(data, KEY)


def read_log(data: bytes) -> Any:
    log = CODEC.decode_transaction_log(data, KEY)
    return log, {node: index.tuples() for node, index in log.updated_chunks.items()}


READERS: dict[str, Callable[[bytes], Any]] = {
    "snapshot": read_snapshot,
    "manifest": read_manifest,
    "attributes": read_attributes,
    "transaction_log": read_log,
}
OURS = [name for name in GOLDEN if name.startswith("v")]
ALL = list(GOLDEN)


def reader(name: str) -> Callable[[bytes], Any]:
    return READERS[name.partition("/")[2]]


def try_reading(name: str, data: bytes) -> Any:
    """What a file holds; None if it is refused in the right way."""
    counting.count(counting.FILES)
    try:
        return reader(name)(data)
    except FormatError as error:
        refusal = error
    assert refusal.key == KEY
    assert KEY in str(refusal)
    return None


@pytest.mark.parametrize("name", ALL)
def test_a_file_cut_off_anywhere_is_refused(name: str) -> None:
    data = GOLDEN[name]
    for length in range(len(data)):
        counting.count(counting.FILES)
        with pytest.raises(FormatError) as caught:
            reader(name)(data[:length])
        assert caught.value.key == KEY


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rest", [b"\0", b"\xc0", b"garbage"])
def test_spare_bytes_are_refused(name: str, rest: bytes) -> None:
    with pytest.raises(FormatError):
        reader(name)(GOLDEN[name] + rest)


@pytest.mark.parametrize("name", OURS)
def test_every_flipped_bit_is_found_or_harmless(name: str) -> None:
    data = GOLDEN[name]
    expected = reader(name)(data)
    for position in set(range(len(data))) - set(CLIENT_BYTES):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            found = try_reading(name, bytes(damaged))
            assert found is None or found == expected, (position, bit)


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("old")])
def test_flipped_bits_in_old_files_crash_nothing(name: str) -> None:
    data = GOLDEN[name]
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        try_reading(name, bytes(damaged))


@given(
    st.binary(max_size=200),
    st.sampled_from(sorted(READERS)),
    st.sampled_from([b"", *GOLDEN.values()]),
)
def test_random_bytes_crash_nothing(data: bytes, kind: str, start: bytes) -> None:
    for prefix in (b"", start[:HEADER_SIZE], start[:39]):
        try_reading(f"any/{kind}", prefix + data)


def test_files_of_the_wrong_type_are_refused() -> None:
    for name in OURS:
        for kind, read in READERS.items():
            if not name.endswith(kind):
                with pytest.raises(FormatError, match="expected a"):
                    read(GOLDEN[name])


# --- well-formed files with hostile content

NASTY = st.sampled_from(
    [
        0,
        1,
        -1,
        3,
        2**31,
        2**40,
        2**63 - 1,
        2**63,
        2**64 - 1,
        -(2**63),
        b"",
        b"\0" * 7,
        b"\xff" * 8,
        b"\xff" * 12,
        b"x" * 96,
        "",
        "/",
        "text",
        "/a/../b",
        "9999-99-99T00:00:00Z",
        "VY76P925PRY57WFEK410",
        None,
        True,
        1.5,
        float("nan"),
        [],
        [0],
        [1, 2],
        [0, b""],
        [0, b"\xff" * 16],
        [2**63, 2**63, b"\xff" * 40],
        [-1, 1, b""],
        [0, 0, 0, 0, 0],
        {},
        {"Array": []},
        {"Ref": []},
        {"a": {}},
    ]
)


def replaced(draw: st.DrawFn, value: Any) -> Any:
    """The same value with something in it replaced by something nasty, dropped or repeated."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value, key=repr)))
        changed = dict(value)
        if draw(st.integers(0, 9)):
            changed[key] = replaced(draw, value[key])
        else:
            del changed[key]
        return changed
    if isinstance(value, list | tuple) and value and draw(st.integers(0, 9)):
        items = list(value)
        place = draw(st.integers(0, len(items) - 1))
        match draw(st.integers(0, 9)):
            case 0:
                del items[place]
            case 1:
                items.append(items[place])
            case _:
                items[place] = replaced(draw, items[place])
        return items
    if type(value) is int and draw(st.booleans()):
        return max(-(2**63), min(2**64 - 1, value + draw(st.integers(-2, 2))))
    return draw(NASTY)


def repacked(body: bytes, draw: st.DrawFn) -> bytes:
    value = msgspec.msgpack.decode(body)
    for _ in range(draw(st.integers(1, 2))):
        value = replaced(draw, value)
    return compress(msgspec.msgpack.encode(value))


@st.composite
def hostile(draw: st.DrawFn, name: str) -> bytes:
    data = GOLDEN[name]
    header, body = data[:HEADER_SIZE], data[HEADER_SIZE:]
    if name != "v2/manifest":
        return header + repacked(decompress(body, KEY), draw)
    length = int.from_bytes(body[:4], "little")
    index, blocks = body[4 : 4 + length], body[4 + length :]
    if draw(st.booleans()):
        index = repacked(decompress(index, KEY), draw)
    else:
        # One block: its size stands in the index, which must tell the new one.
        blocks = repacked(decompress(blocks, KEY), draw)
        changed = msgspec.msgpack.decode(decompress(index, KEY)) | {"sizes": len(blocks)}
        index = compress(msgspec.msgpack.encode(changed))
    return header + len(index).to_bytes(4, "little") + index + blocks


@pytest.mark.parametrize("name", OURS)
@given(data=st.data())
def test_hostile_values_crash_nothing(name: str, data: st.DataObject) -> None:
    for _ in range(4):
        try_reading(name, data.draw(hostile(name)))


def index_with(**changes: Any) -> bytes:
    data = GOLDEN["v2/manifest"]
    body = data[HEADER_SIZE:]
    length = int.from_bytes(body[:4], "little")
    value = msgspec.msgpack.decode(decompress(body[4 : 4 + length], KEY)) | changes
    index = compress(msgspec.msgpack.encode(value))
    return data[:HEADER_SIZE] + len(index).to_bytes(4, "little") + index + body[4 + length :]


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": b"x" * 33},
        {"nodes": b"same-id." * 4},
        {"nodes": b"b-------a-------c-------d-------"},
        {"ranks": 65},
        {"ranks": [2, 0, 2]},
        {"ranks": [0, 2, 2, 1]},
        {"counts": 0},
        {"counts": 2**62},
        {"counts": [6, 2, 40, 20]},
        {"counts": [65, 1, 40, 20]},
        {"shapes": 2**40},
        {"lower": 2**63 - 1},
        {"blocks": 0},
        {"blocks": 2},
        {"blocks": 2**40},
        {"rows": 66},
        {"rows": 68},
        {"sizes": 1},
        {"sizes": 2**62},
    ],
)
def test_an_index_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    assert read_manifest(index_with()) == read_manifest(GOLDEN["v2/manifest"])
    with pytest.raises(FormatError):
        read_manifest(index_with(**changes))


def block_with(change: Callable[[dict[str, Any]], None]) -> bytes:
    data = GOLDEN["v2/manifest"]
    body = data[HEADER_SIZE:]
    length = int.from_bytes(body[:4], "little")
    block = msgspec.msgpack.decode(decompress(body[4 + length :], KEY))
    change(block)
    packed = compress(msgspec.msgpack.encode(block))
    value = msgspec.msgpack.decode(decompress(body[4 : 4 + length], KEY)) | {"sizes": len(packed)}
    index = compress(msgspec.msgpack.encode(value))
    return data[:HEADER_SIZE] + len(index).to_bytes(4, "little") + index + packed


@pytest.mark.parametrize(
    ("group", "column", "value"),
    [
        ("native", "files", 3),
        ("native", "ids", b"x" * 13),
        ("native", "ids", b""),
        ("native", "gaps", 2**63 - 1),
        ("native", "lengths", 2**63 - 1),
        ("native", "checksums", 2**32),
        ("virtual", "locations", 100),
        ("virtual", "count", 2**40),
        ("virtual", "urls", [1, b"x"]),
        ("virtual", "etags", [1, b"x"]),
        ("virtual", "modified", -1),
        ("inline", "lengths", 2**62),
        ("inline", "lengths", 1),
        ("inline", "data", b""),
        (None, "kinds", 1),
        (None, "kinds", [0] * 3),
        (None, "inline", None),
        (None, "positions", None),
        (None, "positions", 0),
        (None, "positions", [5, 1, b""]),
    ],
)
def test_a_block_that_contradicts_itself_is_refused(
    group: str | None, column: str, value: Any
) -> None:
    def change(block: dict[str, Any]) -> None:
        (block if group is None else block[group])[column] = value

    assert read_manifest(block_with(lambda _: None)) == read_manifest(GOLDEN["v2/manifest"])
    with pytest.raises(FormatError):
        read_manifest(block_with(change))


def bombs() -> dict[str, bytes]:
    """Small files that ask for much."""
    header = {name: GOLDEN[f"v2/{name}"][:HEADER_SIZE] for name in READERS}
    snapshot = msgspec.msgpack.decode(decompress(GOLDEN["v2/snapshot"][HEADER_SIZE:], KEY))
    log = msgspec.msgpack.decode(decompress(GOLDEN["v2/transaction_log"][HEADER_SIZE:], KEY))

    def file(kind: str, value: Any) -> bytes:
        return header[kind] + compress(msgspec.msgpack.encode(value))

    return {
        "snapshot with 2**40 manifest references": file("snapshot", snapshot | {"refs": 2**40}),
        "snapshot with deep metadata": header["snapshot"]
        + compress(b"\x81\xa8metadata" + b"\x91" * 1_000_000),
        "snapshot with a list of 2**32 - 1": header["snapshot"]
        + compress(b"\x81\xa5paths\xdd\xff\xff\xff\xff"),
        "log with 2**40 chunks on a line": file(
            "transaction_log",
            log
            | {
                "chunk_nodes": b"node-001",
                "chunk_counts": 2**40,
                "chunk_ranks": 1,
                "chunk_lower": 0,
                "chunk_shapes": 2**41,
                "chunk_positions": [0, 1, b""],
            },
        ),
        "manifest of 2**50 references": index_with(
            nodes=b"node-001", counts=2**50, ranks=1, lower=0, shapes=2**50, rows=2**50
        ),
        "manifest of 2**32 blocks": index_with(blocks=2**32, rows=1, sizes=0),
        "attributes declaring 2**60 bytes": header["attributes"]
        + bytes.fromhex("28b52ffde0")
        + (2**60).to_bytes(8, "little")
        + bytes.fromhex("010000"),
        "attributes of 4 GiB of zeros": header["attributes"]
        + bytes.fromhex("28b52ffd0058")
        # Blocks of 128 KiB of one byte each: run length encoded, not the last.
        + (bytes.fromhex("020010") + b"\0") * (2**32 // 2**17),
    }


@pytest.mark.parametrize("what", list(bombs()))
def test_small_files_do_not_take_much_memory(what: str) -> None:
    data = bombs()[what]
    first_word = what.partition(" ")[0]
    kind = {"log": "transaction_log"}.get(first_word, first_word)
    assert len(data) < 2**20
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            READERS[kind](data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300 * 2**20
