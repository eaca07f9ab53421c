"""Creates repositories: a clean location, the first configuration and the first snapshot."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from icefloe.config.repository import RepositoryConfig
from icefloe.config.serialization import from_json, from_yaml, to_json
from icefloe.errors import AlreadyExistsError
from icefloe.formats.registry import detect
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import FIRST_MESSAGE, INTERNAL_PREFIX, Snapshot
from icefloe.storage.presence import is_there
from icefloe.storage.probe import PROBE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.engine.context import Context
    from icefloe.formats.port import Generation, Layout
    from icefloe.storage.port import Storage

ABANDONED_AFTER = timedelta(seconds=30)
"""A first snapshot without a branch that is older than this was left by a client that died."""


def is_being_created(storage: Storage, layout: Layout) -> bool:
    """Whether a client has begun to create a repository and not published it yet."""
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


def check_absent(storage: Storage, fmt: Generation, *, check_clean_root: bool) -> None:
    """Raise AlreadyExistsError if there is a repository, or anything but a started one."""
    if detect(storage) is not None:
        raise AlreadyExistsError(
            f"a repository exists already at {storage.location}: repositories can only be created "
            "in clean prefixes; open it with Repository.open"
        )
    if not check_clean_root:
        return
    started = fmt.layout.snapshot(FIRST_SNAPSHOT_ID)
    configs = fmt.make_config(storage)
    for info in storage.list():
        # What a client left that died while it created a repository is no obstacle.
        is_started = info.key == started or configs.owns(info.key)
        if not is_started and not info.key.startswith(f"{PROBE_FOLDER}/"):
            raise AlreadyExistsError(
                f"repositories can only be created in clean prefixes: {storage.location} has "
                f"{info.key!r}; choose an empty place"
            )


def write_first_config(fmt: Generation, storage: Storage, config: RepositoryConfig | None) -> None:
    """Write the configuration, if any, also over one that a client left that died."""
    if config is None and fmt.make_config(storage).read() is None:
        return
    write_config(fmt, storage, config or RepositoryConfig.default())


def write_config(fmt: Generation, storage: Storage, config: RepositoryConfig) -> None:
    """Write the configuration of a repository, unless it is there already."""
    files = fmt.make_config(storage)
    existing, data = files.read(), to_json(config)
    if existing is None or existing[1] != data:
        files.write(None if existing is None else existing[0], data)


def read_config(fmt: Generation, storage: Storage) -> RepositoryConfig | None:
    """Read the configuration stored with a repository; None if there is none."""
    files = fmt.make_config(storage)
    newest = files.read()
    if newest is not None:
        sequence, data = newest
        return from_json(data, key=files.key(sequence))
    legacy = files.read_legacy()
    return None if legacy is None else from_yaml(legacy, key="config.yaml")
