"""The header of spec 002 and bounded decompression."""

from __future__ import annotations

import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats import container
from icefloe.formats.container import (
    CLIENT,
    HEADER_SIZE,
    MAGIC,
    Compression,
    FileType,
    body_of,
    compress,
    decode_msgpack,
    decompress,
    encode_msgpack,
    make_header,
    object_attributes,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ANY = msgspec.msgpack.Decoder()


def test_header_is_27_bytes_as_in_spec_002() -> None:
    header = make_header(2, FileType.MANIFEST, Compression.NONE)
    assert len(header) == HEADER_SIZE == 27  # R2-16
    assert header[:12] == bytes.fromhex("49 43 45 f0 9f a7 8a 43 48 55 4e 4b")  # R2-04
    assert header[:12].decode() == "ICE\N{ICE CUBE}CHUNK"  # H-30
    assert header[12:24] == CLIENT.encode().ljust(12)  # R2-05, R2-06
    assert header[24:] == bytes((2, 2, 0))  # R2-08, R2-10, R2-11


def test_client_is_this_version_in_at_most_12_bytes() -> None:
    assert f"ifl-{version('icefloe')}" == CLIENT  # H-29
    assert len(CLIENT.encode()) <= 12


def test_object_metadata_repeats_the_header() -> None:  # H-31
    attributes = object_attributes(1, FileType.TRANSACTION_LOG, Compression.ZSTD)  # R2-14
    assert attributes == {
        "ic_spec_ver": "1",
        "ic_client": CLIENT,
        "ic_file_type": "transaction-log",
        "ic_comp_alg": "zstd",
    }


@pytest.mark.parametrize("file_type", list(FileType))
def test_headers_are_read_back(file_type: FileType) -> None:  # R2-03
    data = make_header(1, file_type, Compression.ZSTD) + b"body"
    header = read_header(data, file_type, "key")
    assert header is not None
    assert (header.size, header.spec_version, header.client) == (27, 1, CLIENT)


def wide_header(version: int = 1, kind: int = 1, compression: int = 1) -> bytes:
    return MAGIC + b"ic-0.1.0-alpha.9".ljust(24) + bytes((version, kind, compression))


def test_the_wide_header_of_the_reference_implementation_is_recognised() -> None:
    header = read_header(wide_header() + b"x", FileType.SNAPSHOT, "key")  # H-29
    assert header is not None
    assert (header.size, header.client) == (39, "ic-0.1.0-alpha.9")


def test_a_client_string_of_12_bytes_fits_either_header() -> None:
    data = MAGIC + b"ic-0.1.0-a.8" + bytes((1, 1, 1))  # R2-07
    header = read_header(data, FileType.SNAPSHOT, "key")
    assert header is not None
    assert (header.size, header.client) == (27, "ic-0.1.0-a.8")


def test_no_magic_is_no_header() -> None:
    assert read_header(b"\x9b\x00\x80", FileType.SNAPSHOT, "key") is None


def header_with(version: int = 2, kind: int = 1, compression: int = 1) -> bytes:
    return MAGIC + b"ifl-test".ljust(12) + bytes((version, kind, compression)) + b" " * 20


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (MAGIC[:5], "truncated"),
        (MAGIC, "truncated"),
        (MAGIC + b"ifl-1".ljust(12) + b"\x02\x01", "truncated"),
        (b"", "truncated"),
        (header_with(version=0), "version 0 is reserved"),  # R2-09
        (header_with(version=3), "version 3 is unknown"),
        (header_with(version=255), "version 255 is unknown"),
        (header_with(kind=2), "expected a snapshot file .type 1., found type 2 .manifest."),
        (header_with(kind=77), "found type 77 .unknown."),
        (header_with(compression=2), "compression 2 is unknown"),
        (wide_header(kind=6), "found type 6"),
    ],
)
def test_bad_headers_say_what_is_wrong(data: bytes, reason: str) -> None:  # R2-08, R2-10, R2-11
    with pytest.raises(FormatError, match=reason) as caught:  # R2-20
        read_header(data, FileType.SNAPSHOT, "snapshots/X")
    assert caught.value.key == "snapshots/X"
    assert "snapshots/X" in str(caught.value)


def test_frames_state_size_and_checksum() -> None:
    parameters = zstandard.get_frame_parameters(compress(b"a" * 100))
    assert parameters.content_size == 100
    assert parameters.has_checksum


def test_uncompressed_bodies_are_read() -> None:  # R2-11
    data = make_header(1, FileType.SNAPSHOT, Compression.NONE) + b"\x90"
    header = read_header(data, FileType.SNAPSHOT, "key")
    assert header is not None
    assert body_of(data, header, "key") == b"\x90"


def undeclared(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


@pytest.mark.parametrize("body", [b"", b"x", b"abc" * 10_000, bytes(1_000_000)])
def test_frames_without_a_size_are_read(body: bytes) -> None:
    assert decompress(undeclared(body), "key") == body
    assert decompress(compress(body), "key") == body


@pytest.mark.parametrize("make", [compress, undeclared])
def test_frames_must_be_whole_and_alone(make: Callable[..., Any]) -> None:  # R2-20
    frame = make(b"some content that is long enough" * 9)
    for length in range(len(frame)):
        with pytest.raises(FormatError):
            decompress(frame[:length], "key")
    for rest in (b"\0", b"garbage", frame):
        with pytest.raises(FormatError):
            decompress(frame + rest, "key")
    with pytest.raises(FormatError):
        decompress(b"not a frame at all", "key")


@pytest.mark.parametrize("declared", [True, False])
def test_bombs_are_refused_before_they_grow(
    monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    monkeypatch.setattr(container, "MAX_BODY_BYTES", 1024 * 1024)
    monkeypatch.setattr(container, "MAX_EXPANSION", 100)
    bomb = zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(64 * 1024 * 1024))
    with pytest.raises(FormatError, match="over the limit"):
        decompress(bomb, "key")


def test_a_declared_size_is_not_allocated_on_trust() -> None:
    # A frame header that declares 2**60 bytes, and then almost nothing.
    frame = bytes.fromhex("28b52ffd e0") + (2**60).to_bytes(8, "little") + bytes.fromhex("010000")
    with pytest.raises(FormatError, match="over the limit"):
        decompress(frame, "key")


def test_what_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(container, "MAX_EXPANSION", 2)
    with pytest.raises(InvalidInputError, match="cannot be written"):
        compress(bytes(100_000))


def test_limits_follow_the_compressed_size() -> None:
    assert container.body_limit(10) == container.MAX_BODY_BYTES
    assert container.body_limit(2**20) == container.MAX_EXPANSION * 2**20
    assert container.body_limit(2**40) == container.MAX_LARGE_BODY_BYTES


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x91" * 1_000_000 + b"\x01", "nested too deeply"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\xdb\xff\xff\xff\xffabc", "truncated"),
        (b"\x01\x01", "trailing"),
        (b"\xc1", "malformed|invalid"),
        (b"\xa2\xff\xfe", "UTF-8"),
        (b"\x81\x80\x01", "hashable"),
        (b"", "truncated"),
    ],
)
def test_bad_msgpack_says_what_is_wrong(body: bytes, reason: str) -> None:  # R2-20
    with pytest.raises(FormatError, match=reason):
        decode_msgpack(ANY, body, "key")


@pytest.mark.parametrize("value", [2**64, object(), {"a": {1, object()}}])
def test_what_msgpack_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match="64 bits"):
        encode_msgpack(value)


def test_flatbuffers_of_newer_releases_are_named() -> None:
    body = (16).to_bytes(4, "little") + b"Ichk" + bytes(20)
    data = wide_header() + compress(body)
    header = read_header(data, FileType.SNAPSHOT, "key")
    assert header is not None
    with pytest.raises(FormatError, match="newer official Icechunk"):
        body_of(data, header, "key")


def test_threads_have_their_own_contexts() -> None:
    bodies = [bytes([number]) * 50_000 for number in range(8)]
    found: dict[int, bool] = {}

    def work(number: int) -> None:
        found[number] = all(
            decompress(compress(bodies[number]), "key") == bodies[number] for _ in range(50)
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(len(bodies)), True)
