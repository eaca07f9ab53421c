"""The container of the files of this generation: a header of 39 bytes, then one zstd frame."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from icefloe.formats.container import MAGIC, bad_file, compress, decompress
from icefloe.formats.port import EncodedFile
from icefloe.model.record import Record
from icefloe.version import __version__

if TYPE_CHECKING:
    from typing import NoReturn

HEADER_SIZE: Final = 39
IDENTIFIER = b"Ichk"
"""At bytes 4 to 7 of every body that is written; readers do not ask for it."""
MAX_LARGE_BODY_BYTES = 2**31 - 1
"""FlatBuffers have no larger bodies."""
_CLIENT = f"icefloe-{__version__}"
_CLIENT_SIZE = 24
_ZSTD = 1
SPEC_VERSIONS: Final = (1, 2)


class FlatFileType(IntEnum):
    """Header byte 37. The numbers are part of the format."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO = 6

    @property
    def label(self) -> str:
        """Name in object metadata and messages."""
        return "repo-info" if self == FlatFileType.REPO else self.name.lower().replace("_", "-")


class OpenedFile(Record, frozen=True):
    """A file out of its container."""

    spec_version: int
    """Of this file: a repository that was migrated has files of both."""
    body: bytes


def make_file(spec_version: int, file_type: FlatFileType, body: bytes, level: int) -> EncodedFile:
    """A header, and the body behind it as one zstd frame that states its size."""
    client = _CLIENT.encode()[:_CLIENT_SIZE].ljust(_CLIENT_SIZE)
    header = MAGIC + client + bytes((spec_version, file_type, _ZSTD))
    attributes = {
        "ic_spec_ver": str(spec_version),
        "ic_client": _CLIENT[:_CLIENT_SIZE],
        "ic_file_type": file_type.label,
        "ic_comp_alg": "zstd",
    }
    frame = compress(body, level, largest=MAX_LARGE_BODY_BYTES)
    return EncodedFile(header + frame, attributes)


def client_of(data: bytes) -> str:
    """Who wrote a file, by its header."""
    return data[len(MAGIC) : len(MAGIC) + _CLIENT_SIZE].decode("utf-8", errors="replace").rstrip()


def is_ours(data: bytes) -> bool:
    """Whether this package wrote a file, in any version."""
    return client_of(data).startswith(_CLIENT.partition("-")[0])


def read_version(data: bytes, file_type: FlatFileType, key: str) -> int:
    """The spec version that the header of a file states; checks the rest of the header."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise bad_file(key, "the file does not start with the magic bytes")
    if len(data) < HEADER_SIZE:
        _truncated(key, len(data))
    version, found_type, compression = data[36:HEADER_SIZE]
    if version not in SPEC_VERSIONS:
        raise bad_file(
            key,
            f"spec version {version} is unknown (header byte 36): expected 1 or 2; the file is "
            "damaged or needs a newer icefloe",
        )
    if found_type != file_type:
        known = {member.value: member.label for member in FlatFileType}
        raise bad_file(
            key,
            f"expected a {file_type.label} file (type {int(file_type)}), found type {found_type} "
            f"({known.get(found_type, 'unknown')})",
        )
    if compression != _ZSTD:
        raise bad_file(key, f"compression {compression} is unknown: expected 1 (zstd)")
    return version


def _truncated(key: str, length: int) -> NoReturn:
    raise bad_file(key, f"truncated: {length} bytes are less than a header")


def open_file(data: bytes, file_type: FlatFileType, key: str) -> OpenedFile:
    """Check the header of a file and decompress its body."""
    version = read_version(data, file_type, key)
    frame = memoryview(data)[HEADER_SIZE:]
    return OpenedFile(version, decompress(frame, key, largest=MAX_LARGE_BODY_BYTES))
