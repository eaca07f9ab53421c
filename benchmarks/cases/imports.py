"""Import time: how long until a program can start."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.case import Case, Setting
from benchmarks.peers import ALL, VERSIONED


def import_modules(setting: Setting, _: int) -> None:
    for module in setting.peer.modules:
        importlib.import_module(module)


def import_and_make_a_store(setting: Setting, _: int) -> None:
    setting.peer.begin(setting.peer.create(setting.folder))


def create_repository(setting: Setting) -> None:
    setting.peer.create(setting.folder)


def import_and_read_history(setting: Setting, _: int) -> None:
    """What a program pays that looks at a repository without touching arrays."""
    repository = setting.peer.open(setting.folder)
    messages = [snapshot.message for snapshot in repository.ancestry(branch="main")]
    if len(messages) != 1:
        raise AssertionError(f"read a wrong history: {messages}")


def write_small_array(setting: Setting) -> None:
    """An array of 100 values, committed."""
    import numpy as np
    import zarr

    store, commit = setting.peer.begin(setting.peer.create(setting.folder))
    array = zarr.create_array(store, name="small", shape=(100,), chunks=(25,), dtype="float32")
    array[:] = np.arange(100)
    commit()


def import_open_and_read(setting: Setting, _: int) -> None:
    """All that the user of a short script waits for, after Python itself has started."""
    for module in setting.peer.modules:
        importlib.import_module(module)
    import zarr

    store = setting.peer.store_for_reading(setting.peer.open(setting.folder))
    values: Any = zarr.open_array(store, path="small", mode="r")[:]
    if values.sum() != 4950:
        raise AssertionError("read something else")


CASES = [
    Case(name="import", title="import", peers=ALL, run=import_modules),
    Case(
        name="import-and-history",
        title="import, open, read the history",
        peers=VERSIONED,
        run=import_and_read_history,
        prepare=create_repository,
    ),
    Case(
        name="import-and-read",
        title="a new process: import, open, read one small array",
        peers=ALL,
        run=import_open_and_read,
        prepare=write_small_array,
    ),
    Case(
        name="import-and-store",
        title="import, create, get a zarr store",
        peers=ALL,
        run=import_and_make_a_store,
    ),
]
