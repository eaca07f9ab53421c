"""The only place that names a generation of the format: the choice is made once, at open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.formats.container import COLUMNS_VERSION, ROWS_VERSION, WIDE_HEADER_SIZE
from icefloe.formats.port import BranchTip, Codec, ConfigHistory, Layout, Refs
from icefloe.formats.repository.codec import RepositoryCodec
from icefloe.formats.repository.config_files import ConfigFiles
from icefloe.formats.repository.layout import RepositoryLayout
from icefloe.formats.repository.refs import MAIN, SequenceRefs
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

REPOSITORY = "repository"
DEFAULT_GENERATION = REPOSITORY
DEFAULT_SPEC_VERSION = COLUMNS_VERSION
SPEC_VERSIONS = (ROWS_VERSION, COLUMNS_VERSION)
"""Versions that can be written."""


class Format(Record, frozen=True):
    """A generation at a spec version: all that the engine must know of it."""

    name: str
    spec_version: int
    """Version of the files that are written."""
    layout: Layout
    codec: Codec

    def at_level(self, level: int) -> Format:
        """The same format, compressing what it writes at a level of zstd."""
        codec = RepositoryCodec(self.spec_version, level)
        return Format(self.name, self.spec_version, self.layout, codec)

    def make_refs(self, storage: Storage, seen: BranchTip | None = None) -> Refs:
        """Branches and tags of a repository; `seen` says where to look for a branch first."""
        return SequenceRefs(storage, seen)

    def make_config_files(self, storage: Storage) -> ConfigHistory:
        """Configuration of a repository."""
        return ConfigFiles(storage)


def format_for(
    generation: str = DEFAULT_GENERATION, spec_version: int = DEFAULT_SPEC_VERSION
) -> Format:
    """The format of a new repository."""
    if generation != REPOSITORY:
        raise InvalidInputError(f"generations are {REPOSITORY!r}, found {generation!r}")
    return Format(generation, spec_version, RepositoryLayout(), RepositoryCodec(spec_version))


class Discovery(Record, frozen=True):
    """What was read to find out the format of a repository; sessions need it again."""

    format: Format
    tip: BranchTip
    """Where `main` stands."""
    snapshot_file: bytes
    """The snapshot that it points to."""


def detect(storage: Storage) -> Format | None:
    """The format of the repository in a storage; None if there is none.

    A repository is written in the spec version of the snapshot that `main` points to.
    Raises FormatError for a repository that icefloe cannot open.
    """
    tip = _main_tip(storage)
    return None if tip is None else _format_of(storage, tip, _first_bytes)[0]


def discover(storage: Storage) -> Discovery | None:
    """Like `detect`, for who goes on to open the repository: reads the whole snapshot file."""
    tip = _main_tip(storage)
    if tip is None:
        return None
    found, data = _format_of(storage, tip, lambda storage, key: storage.get(key))
    return Discovery(found, tip, data)


def _main_tip(storage: Storage) -> BranchTip | None:
    tip = SequenceRefs(storage).tip(MAIN)
    if tip is None:
        _refuse_newer_official(storage)
    return tip


def _format_of(
    storage: Storage, tip: BranchTip, read: Callable[[Storage, str], bytes]
) -> tuple[Format, bytes]:
    """The format of the snapshot that a branch points to, and what was read of its file."""
    found = format_for()
    if tip.snapshot_id is None:
        raise FormatError("branch 'main' is marked as deleted, which no repository allows")
    key = found.layout.snapshot(tip.snapshot_id)
    try:
        data = read(storage, key)
    except ObjectNotFoundError:
        raise FormatError(
            f"{key} is missing from {storage.location}, although branch 'main' points to it", key
        ) from None
    version = found.codec.spec_version_of(data[:WIDE_HEADER_SIZE], key)
    return format_for(spec_version=version or ROWS_VERSION), data


def _first_bytes(storage: Storage, key: str) -> bytes:
    """Enough of a file for its header; all of a shorter one."""
    try:
        return storage.get(key, 0, WIDE_HEADER_SIZE)
    except StorageError:
        return storage.get(key)


def _refuse_newer_official(storage: Storage) -> None:
    for key in (f"refs/branch.{MAIN}/ref.json", "repo"):
        try:
            storage.head(key)
        except ObjectNotFoundError:
            continue
        raise FormatError(
            f"{storage.location} holds a repository of a newer official Icechunk release (it has "
            f"{key}), which icefloe cannot open yet; copy its data with the icechunk package",
            key,
        )
