"""Which generations of the format there are, and which one a repository has.

The only place that names generations: other code asks what a generation can do, never which it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from icefloe.errors import (
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.formats.container import WIDE_HEADER_SIZE
from icefloe.formats.port import BranchTip, Generation, LiveTip, Refs
from icefloe.formats.repository.generation import REPOSITORY
from icefloe.model import MAIN
from icefloe.model.record import Record
from icefloe.storage.concurrency import in_threads
from icefloe.storage.presence import has_any_in, is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.storage.port import Storage


def _repository() -> Generation:
    return REPOSITORY


def _store() -> Generation:
    from icefloe.formats.store.generation import STORE

    return STORE


def _dataset() -> Generation:
    from icefloe.formats.dataset.generation import DATASET

    return DATASET


def _icechunk() -> Generation:
    from icefloe.formats.icechunk.generation import ICECHUNK

    return ICECHUNK


_LOADERS: dict[str, Callable[[], Generation]] = {
    "repository": _repository,
    "store": _store,
    "dataset": _dataset,
    "icechunk": _icechunk,
}


class _Generations(Mapping[str, Generation]):
    """Imports a generation when somebody asks for it: most repositories are of the first one."""

    def __getitem__(self, name: str) -> Generation:
        return _LOADERS[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(_LOADERS)

    def __len__(self) -> int:
        return len(_LOADERS)

    def __contains__(self, name: object) -> bool:
        return name in _LOADERS


GENERATIONS: Mapping[str, Generation] = _Generations()
"""By name."""


def _candidates(storage: Storage | None = None) -> list[Generation]:
    """The generations that are looked for in a storage, in this order.

    Where reads are immediate, a check for its files shows which generations to import.
    """
    looks = storage is not None and storage.capabilities.reads_are_immediate
    names = [name for name in _SIGNS if not looks or _has_sign(cast("Storage", storage), name)]
    candidates = [GENERATIONS[name] for name in names if name != "icechunk"]
    if "icechunk" in names:
        official = GENERATIONS["icechunk"]
        return [official.at(2), official.at(1), *candidates]
    return candidates


_SIGNS: Mapping[str, tuple[str, ...]] = {
    "icechunk": ("repo", f"refs/branch.{MAIN}/ref.json"),
    "repository": (),
    "store": ("r/",),
    "dataset": ("state.json",),
}
"""Objects, or folders, one of which a repository of a generation has. The default is always
searched for."""


def _has_sign(storage: Storage, generation: str) -> bool:
    signs = _SIGNS[generation]
    return not signs or any(
        has_any_in(storage, sign.removesuffix("/"))
        if sign.endswith("/")
        else is_there(storage, sign)
        for sign in signs
    )


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
    """What was read to detect the format of a repository, for sessions to reuse."""

    format: Generation
    tip: BranchTip
    """Where `main` points."""
    snapshot_file: bytes
    """The snapshot that it points to."""
    refs: Refs
    """What found it, and remembers what it read."""


def detect(storage: Storage) -> Generation | None:
    """The format of the repository in a storage; None if there is none.

    A repository is written in the spec version of the snapshot that `main` points to, or in that of
    its references, where versions differ in these.
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
    return Discovery(format=fmt, tip=tip, snapshot_file=data, refs=refs)


def detect_damaged(storage: Storage) -> Generation | None:
    """Like `detect`, where `main` or its newest snapshot cannot be read.

    Asks earlier states of the branch for the format, and for nothing else. Raises FormatError if
    none of them leads to a snapshot.
    """
    for generation in _candidates():
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
    return None


def _main_tip(storage: Storage) -> tuple[Generation, BranchTip, Refs] | None:
    """Where `main` points, in the only generation that has it; asks all at once if far away."""
    candidates = _candidates(storage)
    if storage.capabilities.reads_are_immediate:
        outcomes = [_look_for_main(storage, each) for each in candidates]
    else:
        outcomes = in_threads(lambda each: _look_for_main(storage, each), candidates)
    present: list[tuple[Generation, BranchTip, Refs]] = []
    for generation, outcome in zip(candidates, outcomes, strict=True):
        if isinstance(outcome, IcefloeError):
            if not present:
                raise outcome
        elif outcome is not None:
            present.append((generation, *outcome))
    if not present:
        return None
    # A repository that was migrated to another version may have references of both: the newer ones
    # are meant.
    names = dict.fromkeys(generation.name for generation, _, _ in present)
    if len(names) > 1:
        kinds = " and ".join(map(repr, names))
        raise FormatError(
            f"{storage.location} holds repositories of the generations {kinds}, which share "
            "folders and must not be mixed: move one of them elsewhere"
        )
    return present[0]


def _look_for_main(
    storage: Storage, generation: Generation
) -> tuple[BranchTip, Refs] | IcefloeError | None:
    """Where `main` points if there is a repository of a generation, or what is wrong with it.

    An error matters only if no generation before this one is there.
    """
    refs = generation.make_refs(storage)
    try:
        tip = refs.tip(MAIN)
    except IcefloeError as error:
        return error
    return None if tip is None else (tip, refs)


def _format_of(
    storage: Storage,
    generation: Generation,
    tip: BranchTip,
    read: Callable[[Storage, str], bytes],
) -> tuple[Generation, bytes]:
    """The format of the snapshot that a branch points to, and the bytes read of its file."""
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
    if generation.refs_tell_version:
        return generation, data
    return generation.at(version or min(generation.spec_versions)), data


def _first_bytes(storage: Storage, key: str) -> bytes:
    """Enough of a file for its header; all of a shorter one."""
    try:
        return storage.get(key, 0, WIDE_HEADER_SIZE)
    except StorageError:
        return storage.get(key)
