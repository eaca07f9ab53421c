"""Which generations of the format there are, and which one a repository has.

The only place that names generations: other code asks what a generation can do, never which it is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.formats.container import WIDE_HEADER_SIZE
from icefloe.formats.dataset.generation import DATASET
from icefloe.formats.port import MAIN, BranchTip, Generation, LiveTip, Refs
from icefloe.formats.repository.generation import REPOSITORY
from icefloe.formats.store.generation import STORE
from icefloe.model.record import Record
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.storage.port import Storage

GENERATIONS: Mapping[str, Generation] = {
    generation.name: generation for generation in (REPOSITORY, STORE, DATASET)
}
"""By name, in the order in which a storage is searched for them."""
DEFAULT_GENERATION = REPOSITORY.name
SPEC_VERSIONS = REPOSITORY.spec_versions
"""Versions of the default generation that can be written."""


def format_for(generation: str = DEFAULT_GENERATION, spec_version: int | None = None) -> Generation:
    """The format of a new repository; without a version, the newest of its generation."""
    if generation not in GENERATIONS:
        known = ", ".join(map(repr, GENERATIONS))
        raise InvalidInputError(f"generations are {known}, found {generation!r}")
    return GENERATIONS[generation].at(spec_version)


class Discovery(Record, frozen=True):
    """What was read to find out the format of a repository; sessions need it again."""

    format: Generation
    tip: BranchTip
    """Where `main` stands."""
    snapshot_file: bytes
    """The snapshot that it points to."""
    refs: Refs
    """What found it, and remembers what it read."""


def detect(storage: Storage) -> Generation | None:
    """The format of the repository in a storage; None if there is none.

    A repository is written in the spec version of the snapshot that `main` points to.
    Raises FormatError for a repository that icefloe cannot open.
    """
    found = _main_tip(storage)
    return None if found is None else _format_of(storage, *found[:2], _first_bytes)[0]


def discover(storage: Storage) -> Discovery | None:
    """Like `detect`, for callers that open the repository next: reads the whole snapshot file."""
    found = _main_tip(storage)
    if found is None:
        return None
    generation, tip, refs = found
    fmt, data = _format_of(storage, generation, tip, lambda storage, key: storage.get(key))
    return Discovery(fmt, tip, data, refs)


def detect_damaged(storage: Storage) -> Generation | None:
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
) -> tuple[Generation, bytes]:
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
    version = generation.codec.spec_version_of(data[:WIDE_HEADER_SIZE], key)
    return generation.at(version or min(generation.spec_versions)), data


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
