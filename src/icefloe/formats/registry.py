"""The only place that names a generation of the format: the choice is made once, at open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.formats.container import COLUMNS_VERSION, ROWS_VERSION, WIDE_HEADER_SIZE
from icefloe.formats.port import Codec, ConfigHistory, Layout, Refs
from icefloe.formats.repository.codec import RepositoryCodec
from icefloe.formats.repository.config_files import ConfigFiles
from icefloe.formats.repository.layout import RepositoryLayout
from icefloe.formats.repository.refs import MAIN, SequenceRefs
from icefloe.model.record import Record

if TYPE_CHECKING:
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

    def make_refs(self, storage: Storage) -> Refs:
        """Branches and tags of a repository."""
        return SequenceRefs(storage)

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


def detect(storage: Storage) -> Format | None:
    """The format of the repository in a storage; None if there is none.

    A repository is written in the spec version of the snapshot that `main` points to.
    Raises FormatError for a repository that icefloe cannot open.
    """
    tip = SequenceRefs(storage).tip(MAIN)
    if tip is None:
        _refuse_newer_official(storage)
        return None
    found = format_for()
    if tip.snapshot_id is None:
        raise FormatError("branch 'main' is marked as deleted, which no repository allows")
    key = found.layout.snapshot(tip.snapshot_id)
    try:
        version = found.codec.spec_version_of(_first_bytes(storage, key), key)
    except ObjectNotFoundError:
        raise FormatError(
            f"{key} is missing from {storage.location}, although branch 'main' points to it", key
        ) from None
    return format_for(spec_version=version or ROWS_VERSION)


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
