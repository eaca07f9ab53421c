"""Tells whether a metadata file is the one that is referred to, by its size and CRC-32C."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import google_crc32c

from icefloe.errors import FormatError
from icefloe.formats.file_sums import IS_QUICK
from icefloe.model.snapshot import FileSum
from icefloe.objects.checksums import checksum

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

_PIECE_BYTES = 16 * 1024 * 1024


class Referrer(NamedTuple):
    """Who refers to a file."""

    snapshot_id: SnapshotId | None = None
    path: str = ""
    """The node that needs it, where a single one is known."""


NOBODY = Referrer()


def sum_of_stored(storage: Storage, key: str, size: int) -> FileSum:
    """Size and checksum of a stored file of about `size` bytes; a large one is read in pieces."""
    if size <= _PIECE_BYTES:
        data = storage.get(key)
        return FileSum(len(data), checksum(data))
    real = storage.head(key).size
    value = 0
    for start in range(0, real, _PIECE_BYTES):
        piece = storage.get(key, start, min(_PIECE_BYTES, real - start))
        value = google_crc32c.extend(value, piece)
    return FileSum(real, value)


def differs(actual: FileSum | None, expected: FileSum | None) -> bool:
    """Whether two files certainly differ; unknown sizes and checksums are ignored."""
    if actual is None or expected is None:
        return False
    return any(
        ours and theirs and ours != theirs
        for ours, theirs in (
            (actual.size_bytes, expected.size_bytes),
            (actual.checksum, expected.checksum),
        )
    )


def check_file(data: bytes, expected: FileSum, what: str, key: str, referrer: Referrer) -> None:
    """Raise FormatError unless some bytes are the file that a snapshot refers to.

    `what` says what kind of file it should be. Where checksums are slow to compute, sizes are
    compared; `verify` compares all.
    """
    is_other = expected.size_bytes not in (0, len(data))
    if not is_other and expected.checksum and IS_QUICK:
        is_other = checksum(data) != expected.checksum
    if is_other:
        raise not_expected(FileSum(len(data), checksum(data)), expected, what, key, referrer)


def not_expected(
    actual: FileSum, expected: FileSum, what: str, key: str, referrer: Referrer
) -> FormatError:
    """The error for a file that is another one than a snapshot refers to."""
    snapshot_id, path = referrer
    whose = "its snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"
    where = f" for {path}" if path else ""
    return FormatError(
        f"{what} {key} is not the file that {whose} refers to{where}: expected "
        f"{_text(expected)}, found {_text(actual)}; it was damaged, cut off or exchanged: "
        "restore it from a copy",
        key,
    )


def _text(file: FileSum) -> str:
    size = f"{file.size_bytes} bytes" if file.size_bytes else "any size"
    return f"{size} with the checksum {file.checksum:08x}" if file.checksum else size
