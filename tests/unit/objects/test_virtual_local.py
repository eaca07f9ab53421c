"""Virtual chunks in local files: their bytes and checksums, and nothing outside the folder."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from obstore.store import LocalStore

from icefloe.config.locations import parse_location
from icefloe.errors import VirtualChunkError
from icefloe.objects.foreign.local import MAX_IMMEDIATE_BYTES, LocalSource
from icefloe.objects.foreign.source import VirtualRange

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "x").write_bytes(b"0123456789")
    os.utime(folder / "x", ns=(1_700_000_000_900_000_000, 1_700_000_000_900_000_000))
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def source(root: Any) -> LocalSource:
    return LocalSource(parse_location(f"file://{root}/"))


def wanted(
    root: Any, name: str = "x", start: int = 0, length: int = 10, **checksum: Any
) -> VirtualRange:
    return VirtualRange(parse_location(f"file://{root}/{name}"), start, length, **checksum)


def test_a_range_is_read(root: Path) -> None:
    assert source(root).read(wanted(root, start=3, length=4)) == b"3456"


def test_small_and_large_ranges_are_read_in_an_event_loop(root: Path) -> None:
    large = os.urandom(MAX_IMMEDIATE_BYTES + 1)
    (root / "large").write_bytes(large)

    assert asyncio.run(source(root).read_async(wanted(root))) == b"0123456789"
    assert asyncio.run(source(root).read_async(wanted(root, "large", 0, len(large)))) == large


def test_names_are_decoded_once(root: Path) -> None:
    (root / "a b").write_bytes(b"space")
    (root / "a%20b").write_bytes(b"percent")

    assert source(root).read(wanted(root, "a b", 0, 5)) == b"space"
    assert source(root).read(wanted(root, "a%20b", 0, 5)) == b"space"
    assert source(root).read(wanted(root, "a%2520b", 0, 7)) == b"percent"


@pytest.mark.parametrize("name", ["nothing", "nothing/at/all", "x/below"])
def test_a_missing_file_is_named(root: Path, name: str) -> None:
    with pytest.raises(VirtualChunkError, match=f"{name} does not exist"):
        source(root).read(wanted(root, name))


class TestShortFiles:
    def test_too_few_bytes_are_an_error(self, root: Path) -> None:
        with pytest.raises(VirtualChunkError, match=r"not enough data.*expected 11 bytes"):
            source(root).read(wanted(root, length=11))

    def test_a_range_after_the_end_is_an_error(self, root: Path) -> None:
        checksums: list[dict[str, Any]] = [{}, {"last_modified": 2_000_000_000}]
        for checksum in checksums:
            with pytest.raises(VirtualChunkError, match="found a file of 10 bytes"):
                source(root).read(wanted(root, start=10, length=1, **checksum))

    def test_a_promise_of_exabytes_costs_no_memory(self, root: Path) -> None:
        with pytest.raises(VirtualChunkError, match="not enough data"):
            source(root).read(wanted(root, length=2**62))

    def test_what_there_is_suffices_if_the_checksum_proves_the_file(self, root: Path) -> None:
        # wire-formats 7.1: old repositories say 100 bytes of an object of 19
        read = source(root).read(wanted(root, length=100, last_modified=4_294_111_232))

        assert read == b"0123456789"


class TestChecksums:
    def test_a_file_that_did_not_change_later_is_read(self, root: Path) -> None:
        for moment in (1_700_000_000, 1_700_000_001):
            assert source(root).read(wanted(root, last_modified=moment)) == b"0123456789"

    def test_a_file_that_changed_later_is_refused(self, root: Path) -> None:
        with pytest.raises(VirtualChunkError, match=r"chunk has changed.*/x"):
            source(root).read(wanted(root, last_modified=1_699_999_999))

    def test_the_etag_is_the_one_that_object_store_libraries_give(self, root: Path) -> None:
        etag = obstore.head(LocalStore(root), "x")["e_tag"]
        assert etag is not None

        assert source(root).read(wanted(root, etag=etag)) == b"0123456789"
        assert source(root).read(wanted(root, etag=etag.strip('"'))) == b"0123456789"

    def test_another_etag_is_refused(self, root: Path) -> None:
        etag = obstore.head(LocalStore(root), "x")["e_tag"]
        (root / "x").write_bytes(b"9876543210")

        with pytest.raises(VirtualChunkError, match="chunk has changed"):
            source(root).read(wanted(root, etag=etag))

    def test_both_must_hold(self, root: Path) -> None:
        etag = obstore.head(LocalStore(root), "x")["e_tag"]

        with pytest.raises(VirtualChunkError, match="chunk has changed"):
            source(root).read(wanted(root, etag=etag, last_modified=1))
        with pytest.raises(VirtualChunkError, match="chunk has changed"):
            source(root).read(wanted(root, etag="other", last_modified=2_000_000_000))

    def test_a_store_that_tells_nothing_proves_nothing(self, root: Path) -> None:
        with pytest.raises(VirtualChunkError, match="found None"):
            wanted(root, etag="x").verify_unchanged(None, datetime.now(UTC))
        with pytest.raises(VirtualChunkError, match="found None"):
            wanted(root, last_modified=1).verify_unchanged("x", None)

    def test_weak_and_strong_spellings_are_one_etag(self, root: Path) -> None:
        wanted(root, etag='W/"abc"').verify_unchanged("abc", None)
        wanted(root, etag="abc").verify_unchanged('"abc"', None)


class TestNothingOutside:
    def test_links_inside_are_followed(self, root: Path) -> None:
        (root / "sub").mkdir()
        (root / "sub" / "link").symlink_to(root / "x")
        (root / "relative").symlink_to("x")
        (root / "folder").symlink_to("sub")

        for name in ("sub/link", "relative", "folder/link"):
            assert source(root).read(wanted(root, name)) == b"0123456789"

    def test_the_folder_itself_may_be_a_link(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "alias").symlink_to(root)
        alias = tmp_path / "alias"

        assert source(alias).read(wanted(alias)) == b"0123456789"

    def test_links_to_the_outside_are_refused(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "data-evil").mkdir()
        (tmp_path / "data-evil" / "x").write_bytes(b"evil")
        (root / "file").symlink_to(tmp_path / "secret")
        (root / "relative").symlink_to("../secret")
        (root / "folder").symlink_to(tmp_path)
        (root / "alike").symlink_to(tmp_path / "data-evil")
        (root / "chain").symlink_to("file")

        for name in ("file", "relative", "folder/secret", "alike/x", "chain"):
            with pytest.raises(VirtualChunkError, match="leads out of the folder"):
                source(root).read(wanted(root, name, 0, 1))

    def test_a_loop_of_links_is_refused(self, root: Path) -> None:
        (root / "loop").symlink_to("loop")

        with pytest.raises(VirtualChunkError, match="cannot read"):
            source(root).read(wanted(root, "loop"))

    def test_only_regular_files_are_read(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "folder").mkdir()
        os.mkfifo(root / "fifo")
        monkeypatch.chdir(root)  # names of sockets must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            for name in ("folder", "fifo", "socket"):
                with pytest.raises(VirtualChunkError, match=f"{name}: "):
                    source(root).read(wanted(root, name))

    def test_a_device_is_refused(self, root: Path) -> None:
        (root / "zero").symlink_to("/dev/zero")

        with pytest.raises(VirtualChunkError, match="leads out of the folder"):
            source(root).read(wanted(root, "zero"))


def test_the_status_of_a_file_is_that_of_object_stores(root: Path) -> None:
    location = parse_location(f"file://{root}/x")
    status = source(root).status(location)
    theirs = obstore.head(LocalStore(str(root)), "x")
    assert (status.size, status.etag) == (10, theirs["e_tag"].strip('"'))
    assert status.last_modified == 1_700_000_000
    assert source(root).status(parse_location(f"file://{root}/nothing")) is None
    (root / "link").symlink_to(root.parent / "secret")
    with pytest.raises(VirtualChunkError, match="leads out of the folder"):
        source(root).status(parse_location(f"file://{root}/link"))
    (root / "folder").mkdir()
    assert source(root).status(parse_location(f"file://{root}/folder")) is None


def test_files_are_listed_and_links_are_not_followed(root: Path) -> None:
    (root / "inner").mkdir()
    (root / "inner" / "a b").write_bytes(b"12")
    (root / "link").symlink_to(root.parent / "secret")
    (root / "out").symlink_to(root.parent)
    found = {
        str(listed.location): listed.status.size
        for listed in source(root).list(parse_location(f"file://{root}/"))
    }
    assert found == {f"file://{root}/x": 10, f"file://{root}/inner/a%20b": 2}
    with pytest.raises(VirtualChunkError, match="leads out"):
        list(source(root).list(parse_location(f"file://{root}/out")))
