"""Latencies of the small operations: create, commit, open, and a long history of commits."""

from __future__ import annotations

from typing import Any

from benchmarks.case import Case, Setting
from benchmarks.peers import ALL, VERSIONED, import_everything

CHUNK_LENGTH = 2048
"""float32 values: 8 KiB, too large to be stored inline."""


def write_array(setting: Setting) -> None:
    """A committed array with room for one chunk per operation; only its first chunk is written."""
    import zarr

    store, commit = setting.peer.begin(setting.peer.create(setting.folder))
    array = zarr.create_array(
        store,
        name="array",
        shape=((setting["operations"] + 1) * CHUNK_LENGTH,),
        chunks=(CHUNK_LENGTH,),
        dtype="float32",
        compressors=None,
        fill_value=-1.0,
    )
    array[:CHUNK_LENGTH] = 0.0
    commit()


def only_imports(setting: Setting) -> Setting:
    import_everything(setting.peer)
    return setting


def opened(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    return setting, setting.peer.open(setting.folder)


def create_repository(setting: Setting, number: int) -> None:
    setting.peer.create(setting.folder / str(number))


def commit_nothing(state: tuple[Setting, Any], _: int) -> None:
    setting, repository = state
    setting.peer.commit_nothing(repository)


def commit_one_chunk(state: tuple[Setting, Any], number: int) -> None:
    """New session, open the array, write one chunk, commit."""
    import numpy as np
    import zarr

    setting, repository = state
    store, commit = setting.peer.begin(repository)
    array = zarr.open_array(store, path="array")
    start = (number + 1) * CHUNK_LENGTH
    array[start : start + CHUNK_LENGTH] = np.float32(number)
    commit()


def open_and_read(setting: Setting, _: int) -> None:
    import numpy as np
    import zarr

    store = setting.peer.store_for_reading(setting.peer.open(setting.folder))
    values = zarr.open_array(store, path="array", mode="r")[:CHUNK_LENGTH]
    if np.any(values):
        raise AssertionError("read wrong values")


CASES = [
    Case(
        name="create",
        title="create a repository",
        peers=VERSIONED,
        run=create_repository,
        start=only_imports,
        parameters={"operations": 20},
        quick={"operations": 5},
    ),
    Case(
        name="empty-commit",
        title="empty commit",
        peers=VERSIONED,
        run=commit_nothing,
        start=opened,
        prepare=write_array,
        parameters={"operations": 50},
        quick={"operations": 5},
    ),
    Case(
        name="one-chunk-commit",
        title="write and commit one chunk",
        peers=VERSIONED,
        run=commit_one_chunk,
        start=opened,
        prepare=write_array,
        parameters={"operations": 50},
        quick={"operations": 5},
    ),
    Case(
        name="cold-open",
        title="open in a new process, read one chunk",
        peers=ALL,
        run=open_and_read,
        start=only_imports,
        prepare=write_array,
        parameters={"operations": 1},
    ),
    Case(
        name="many-commits",
        title="{operations:,} one-chunk commits in a row",
        peers=VERSIONED,
        run=commit_one_chunk,
        start=opened,
        prepare=write_array,
        parameters={"operations": 1000},
        quick={"operations": 20},
        report_total=True,
    ),
]
