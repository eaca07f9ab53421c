"""Creates repositories: a clean location, the first configuration and the first snapshot."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from icefloe.errors import AlreadyExistsError, FormatError, IcefloeError, UnsafeStorageError
from icefloe.formats.registry import detect, format_for
from icefloe.model import MAIN
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import FIRST_MESSAGE, INTERNAL_PREFIX, Snapshot
from icefloe.storage.concurrency import each_at_once, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.config.repository import RepositoryConfig
    from icefloe.engine.context import Context
    from icefloe.formats.port import Generation, Layout, Refs
    from icefloe.storage.port import Storage
    from icefloe.storage.probe import Cleanup

_Found = TypeVar("_Found")
REPOSITORY_FORMAT = format_for()

ABANDONED_AFTER = timedelta(seconds=30)
"""A first snapshot without a branch that is older than this was left by a client that died."""


def is_being_created(storage: Storage, layout: Layout) -> bool:
    """Whether a client has begun to create a repository and not published it yet."""
    from icefloe.storage.presence import is_there

    return is_there(storage, layout.snapshot(FIRST_SNAPSHOT_ID))


def waits_for_creator() -> Iterator[float]:
    """Growing pauses in seconds while another client creates a repository."""
    pause = 0.005
    deadline = time.monotonic() + 2 * ABANDONED_AFTER.total_seconds()
    while time.monotonic() < deadline:
        yield random.uniform(0, pause)
        pause = min(2 * pause, 1.0)


def write_first_snapshot(context: Context) -> SnapshotId:
    """Write the first snapshot; of several clients that create a repository, one succeeds.

    The snapshot has a well-known id and holds random bytes, so creating its file decides which
    client it is. Their branch files would be equal and could not.
    """
    now = datetime.now(UTC)
    snapshot = Snapshot(
        id=FIRST_SNAPSHOT_ID,
        parent_id=None,
        written_at=now,
        started_at=now,
        message=FIRST_MESSAGE,
        metadata={"__root": True, f"{INTERNAL_PREFIX}nonce": os.urandom(12).hex()},
        total_parents=0,
        history=(),
        manifests=(),
        attribute_files=(),
        nodes=NodeTable.of([]),
    )
    try:
        context.files.create_snapshot(snapshot)
    except AlreadyExistsError:
        key = context.format.layout.snapshot(snapshot.id)
        age = datetime.now(UTC) - context.storage.head(key).last_modified
        if age < ABANDONED_AFTER:
            raise AlreadyExistsError(
                f"another client is creating a repository at {context.storage.location}; "
                "open it, or try again in a minute"
            ) from None
    return FIRST_SNAPSHOT_ID


class Begun(NamedTuple):
    """A repository that is written but for its reference, so that nobody sees it yet."""

    first: SnapshotId
    has_config: bool
    """Whether a client that died while it created a repository may have left a configuration."""
    clean_up: Cleanup
    """Deletes what was written to probe the storage."""


def begin_repository(context: Context, *, check_clean_root: bool) -> Begun:
    """Write the first snapshot to a clean location, and probe the storage at the same time.

    Raises:
        AlreadyExistsError: If the location has a repository or other objects.
        UnsafeStorageError: If the storage cannot do what the generation needs; nothing is left.
    """
    storage, fmt = context.storage, context.format
    cleanups: list[Cleanup] = []

    def clean_up() -> None:
        each_at_once(storage, lambda each: each(), cleanups)

    def write() -> tuple[SnapshotId, bool]:
        has_config = check_absent(storage, fmt, check_clean_root=check_clean_root)
        return write_first_snapshot(context), has_config

    try:
        _, (first, has_config) = together(
            storage, lambda: _probe_place(storage, fmt, cleanups), write
        )
    except UnsafeStorageError:
        written = context.files.last_written()
        if written is not None:
            storage.delete_many([fmt.layout.snapshot(written.id)])
        clean_up()
        raise
    except IcefloeError:
        clean_up()
        raise
    return Begun(first, has_config, clean_up)


def _probe_place(storage: Storage, fmt: Generation, cleanups: list[Cleanup]) -> None:
    """Raise UnsafeStorageError if a storage cannot do what a generation needs of it.

    Adds what deletes the objects that were written for that.
    """
    from icefloe.storage.probe import probe_conditional_replace, probe_conditional_writes

    probes = [probe_conditional_writes]
    if fmt.swaps_references:
        probes.append(probe_conditional_replace)
    each_at_once(storage, lambda probe: cleanups.append(probe(storage)), probes)


def check_absent(storage: Storage, fmt: Generation, *, check_clean_root: bool) -> bool:
    """Raise AlreadyExistsError if there is a repository, or anything but a started one.

    Returns whether a client that died while it created a repository may have left a configuration.
    """
    if check_clean_root:
        obstacle, has_config = _look_around(storage, fmt)
        if obstacle is None:
            return has_config  # where nothing else is, no repository is
    if detect(storage) is not None:
        raise AlreadyExistsError(
            f"a repository exists already at {storage.location}: repositories can only be created "
            "in clean prefixes; open it with Repository.open"
        )
    if check_clean_root:
        raise AlreadyExistsError(
            f"repositories can only be created in clean prefixes: {storage.location} has "
            f"{obstacle!r}; choose an empty place"
        )
    return fmt.make_config(storage).read() is not None


def _look_around(storage: Storage, fmt: Generation) -> tuple[str | None, bool]:
    """A key that prevents a new repository, if any, and whether there are settings.

    What a client left that died while it created a repository is no obstacle.
    """
    from icefloe.storage.probe import PROBE_FOLDER

    started = fmt.layout.snapshot(FIRST_SNAPSHOT_ID)
    has_config = False
    configs = fmt.make_config(storage)
    for info in storage.list():
        if configs.owns(info.key):
            has_config = True
        elif info.key != started and not info.key.startswith(f"{PROBE_FOLDER}/"):
            return info.key, has_config
    return None, has_config


def publish_first(
    context: Context, first: SnapshotId, config: RepositoryConfig | None, *, has_config: bool
) -> None:
    """Make a new repository visible, with its configuration.

    `has_config` says that a client that died may have left one.
    """
    fmt, storage = context.format, context.storage
    if fmt.make_config(storage).is_with_refs:
        from icefloe.config.serialization import to_json

        snapshot = context.files.last_written()
        if snapshot is None or snapshot.id != first:  # a client left it that died
            snapshot = context.files.read_snapshot(first)
        data = None if config is None else to_json(config)
        context.refs.create_all({MAIN: first}, {}, [snapshot], data, is_new=True)
        return
    if has_config or config is not None:
        write_first_config(fmt, storage, context.config, has_others=has_config)
    context.refs.create_main(first)


def write_config(fmt: Generation, storage: Storage, config: RepositoryConfig) -> None:
    """Write the configuration of a repository, unless it is there already."""
    from icefloe.config.serialization import to_json

    files = fmt.make_config(storage)
    existing, data = files.read(), to_json(config)
    if existing is None or existing[1] != data:
        files.write(None if existing is None else existing[0], data)


def write_first_config(
    fmt: Generation, storage: Storage, config: RepositoryConfig, *, has_others: bool
) -> None:
    """Write the configuration of a new repository, also over one that a client left that died."""
    from icefloe.config.serialization import to_json

    if has_others:
        write_config(fmt, storage, config)
    else:
        fmt.make_config(storage).write(None, to_json(config))


def with_config(
    storage: Storage,
    find: Callable[[], _Found],
    format_of: Callable[[_Found], Generation | None],
    refs_of: Callable[[_Found], Refs | None] = lambda _: None,
) -> tuple[_Found, RepositoryConfig | None]:
    """Find a repository and read its configuration, at the same time where most have it.

    `refs_of` gives the references that found it, which may have read the configuration as well.
    """

    def guess() -> RepositoryConfig | FormatError | None:
        try:
            return read_config(REPOSITORY_FORMAT, storage)
        except FormatError as error:
            return error

    repository, config = together(storage, find, guess)
    fmt = format_of(repository)
    if fmt is None:
        return repository, None
    if fmt.is_official:
        return repository, read_config(fmt, storage, refs_of(repository))
    if isinstance(config, FormatError):
        raise config
    return repository, config


def read_config(
    fmt: Generation, storage: Storage, refs: Refs | None = None
) -> RepositoryConfig | None:
    """Read the configuration stored with a repository; None if there is none.

    Where references have it, it is what `refs` read last.
    """
    files = fmt.make_config(storage)
    newest = files.read() if refs is None else files.read_with(refs)
    if newest is not None:
        from icefloe.config.serialization import from_json

        sequence, data = newest
        return from_json(data, key=files.key(sequence))
    legacy = files.read_legacy()
    if legacy is None:
        return None
    from icefloe.config.serialization import from_yaml

    return from_yaml(legacy, key="config.yaml")
