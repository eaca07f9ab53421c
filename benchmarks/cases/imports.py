"""Import time: how long until a program can start."""

from __future__ import annotations

import importlib

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
        name="import-and-store",
        title="import, create, get a zarr store",
        peers=ALL,
        run=import_and_make_a_store,
    ),
]
