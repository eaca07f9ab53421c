"""The only place that knows which generations of the format there are: one is chosen at open.

Each has its name in its own folder. Other code asks what a generation can do, never which it is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.formats.config_files import ConfigFiles
from icefloe.formats.container import WIDE_HEADER_SIZE
from icefloe.formats.dataset.generation import DatasetGeneration
from icefloe.formats.port import BranchTip, Codec, ConfigHistory, Layout, LiveTip, Refs
from icefloe.formats.repository.generation import RepositoryGeneration
from icefloe.formats.sequence_refs import MAIN
from icefloe.formats.store.generation import StoreGeneration
from icefloe.model.record import Record
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.formats.port import Generation
    from icefloe.storage.port import Storage

GENERATIONS: Mapping[str, Generation] = {
    generation.name: generation
    for generation in (
        RepositoryGeneration(),
        StoreGeneration(),
        DatasetGeneration(),
    )
}
"""By name, in the order in which a storage is searched for them."""
DEFAULT_GENERATION = next(iter(GENERATIONS))
SPEC_VERSIONS = GENERATIONS[DEFAULT_GENERATION].spec_versions
"""Versions of the default generation that can be written."""


class Format(Record, frozen=True):
    """A generation at a spec version: all that the engine must know of it."""

    name: str
    spec_version: int
    """Version of the files that are written."""
    layout: Layout
    codec: Codec

    @property
    def generation(self) -> Generation:
        """What holds for the format whatever its version."""
        return GENERATIONS[self.name]

    def at_level(self, level: int) -> Format:
        """The same format, compressing what it writes at a level of zstd."""
        codec = self.generation.make_codec(self.spec_version, level)
        return Format(self.name, self.spec_version, self.layout, codec)

    def make_refs(self, storage: Storage, seen: BranchTip | None = None) -> Refs:
        """Branches and tags of a repository; `seen` says where to look for a branch first."""
        return self.generation.make_refs(storage, seen)

    def make_config_files(self, storage: Storage) -> ConfigHistory:
        """Configuration of a repository."""
        return ConfigFiles(storage)


def format_for(generation: str = DEFAULT_GENERATION, spec_version: int | None = None) -> Format:
    """The format of a new repository; without a version, the newest of its generation."""
    found = GENERATIONS.get(generation)
    if found is None:
        known = ", ".join(map(repr, GENERATIONS))
        raise InvalidInputError(f"generations are {known}, found {generation!r}")
    version = max(found.spec_versions) if spec_version is None else spec_version
    if version not in found.spec_versions:
        versions = " and ".join(map(str, found.spec_versions))
        raise InvalidInputError(
            f"the spec versions of the {generation} generation are {versions}, found {version}"
        )
    return Format(generation, version, found.layout, found.make_codec(version))


class Discovery(Record, frozen=True):
    """What was read to find out the format of a repository; sessions need it again."""

    format: Format
    tip: BranchTip
    """Where `main` stands."""
    snapshot_file: bytes
    """The snapshot that it points to."""
    refs: Refs
    """What found it, and remembers what it read."""


def detect(storage: Storage) -> Format | None:
    """The format of the repository in a storage; None if there is none.

    A repository is written in the spec version of the snapshot that `main` points to.
    Raises FormatError for a repository that icefloe cannot open.
    """
    found = _main_tip(storage)
    return None if found is None else _format_of(storage, *found[:2], _first_bytes)[0]


def discover(storage: Storage) -> Discovery | None:
    """Like `detect`, for who goes on to open the repository: reads the whole snapshot file."""
    found = _main_tip(storage)
    if found is None:
        return None
    generation, tip, refs = found
    fmt, data = _format_of(storage, generation, tip, lambda storage, key: storage.get(key))
    return Discovery(fmt, tip, data, refs)


def detect_damaged(storage: Storage) -> Format | None:
    """Like `detect`, where `main` or its newest snapshot cannot be read.

    Asks earlier states of the branch for the format, and for nothing else. Raises FormatError if
    none of them leads to a snapshot.
    """
    for generation in GENERATIONS.values():
        has_states = False
        for state in generation.make_refs(storage).states(MAIN):
            has_states = True
            if state.tip is not None:
                with contextlib.suppress(FormatError):
                    return _format_of(storage, generation, state.tip, _first_bytes)[0]
        if has_states:
            raise FormatError(
                f"no entry of branch {MAIN!r} leads to a snapshot in {storage.location}: restore "
                "one of them and its snapshot from a copy"
            )
    _refuse_newer_official(storage)
    return None


def _main_tip(storage: Storage) -> tuple[Generation, BranchTip, Refs] | None:
    for generation in GENERATIONS.values():
        refs = generation.make_refs(storage)
        tip = refs.tip(MAIN)
        if tip is not None:
            return generation, tip, refs
    _refuse_newer_official(storage)
    return None


def _format_of(
    storage: Storage,
    generation: Generation,
    tip: BranchTip,
    read: Callable[[Storage, str], bytes],
) -> tuple[Format, bytes]:
    """The format of the snapshot that a branch points to, and what was read of its file."""
    if not isinstance(tip, LiveTip):
        raise FormatError("branch 'main' is marked as deleted, which no repository allows")
    key = generation.layout.snapshot(tip.snapshot_id)
    try:
        data = read(storage, key)
    except ObjectNotFoundError:
        raise FormatError(
            f"{key} is missing from {storage.location}, although branch 'main' points to it", key
        ) from None
    version = generation.make_codec().spec_version_of(data[:WIDE_HEADER_SIZE], key)
    return format_for(generation.name, version or min(generation.spec_versions)), data


def _first_bytes(storage: Storage, key: str) -> bytes:
    """Enough of a file for its header; all of a shorter one."""
    try:
        return storage.get(key, 0, WIDE_HEADER_SIZE)
    except StorageError:
        return storage.get(key)


def _refuse_newer_official(storage: Storage) -> None:
    for key in (f"refs/branch.{MAIN}/ref.json", "repo"):
        if is_there(storage, key):
            raise FormatError(
                f"{storage.location} holds a repository of a newer official Icechunk release (it "
                f"has {key}), which icefloe cannot open yet; copy its data with the icechunk "
                "package",
                key,
            )
