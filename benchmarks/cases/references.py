"""Metadata operations on repositories of few and of many branches and tags."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.case import Case, Setting
from benchmarks.cases.small_operations import write_array
from benchmarks.peers import GENERATIONS, VERSIONED, import_everything

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = (*VERSIONED, *GENERATIONS)
SIZES = (50, 1600)
"""Tags, and as many branches."""
COMMITS = 20


def write_references(setting: Setting) -> None:
    """A short history, with tags and branches all along."""
    write_array(Setting(setting.peer, setting.folder, {"operations": 1}))
    repository = setting.peer.open(setting.folder)
    for _ in range(COMMITS):
        setting.peer.commit_nothing(repository)
    snapshots = [info.id for info in repository.ancestry(branch="main")]
    for number in range(setting["references"]):
        target = snapshots[number % len(snapshots)]
        repository.create_tag(f"tag-{number}", target)
        repository.create_branch(f"branch-{number}", target)


class Opened(NamedTuple):
    """A repository, and the snapshot that new references point to."""

    repository: Any
    tip: str


def opened(setting: Setting) -> Opened:
    import_everything(setting.peer)
    repository = setting.peer.open(setting.folder)
    return Opened(repository, repository.lookup_branch("main"))


def create_tag(state: Opened, number: int) -> None:
    state.repository.create_tag(f"new-{number}", state.tip)


def create_branch(state: Opened, number: int) -> None:
    state.repository.create_branch(f"new-{number}", state.tip)


def list_references(state: Opened, _: int, *, references: int) -> None:
    found = len(state.repository.list_tags()) + len(state.repository.list_branches())
    if found != 2 * references + 1:
        raise AssertionError(f"listed {found} references")


def collect(state: Opened, _: int) -> None:
    state.repository.garbage_collect(datetime.now(UTC))


OPERATIONS: dict[str, tuple[str, Callable[..., None], int]] = {
    "tag": ("create a tag", create_tag, 20),
    "branch": ("create a branch", create_branch, 20),
    "list": ("list branches and tags", list_references, 5),
    "collect": ("collect garbage", collect, 3),
}


def _case(name: str, size: int) -> Case:
    title, run, operations = OPERATIONS[name]
    return Case(
        name=f"references-{name}-{size}",
        title=f"{title}, among {{references:,}} tags and as many branches",
        peers=PEERS,
        run=partial(run, references=size) if run is list_references else run,
        start=opened,
        prepare=write_references,
        parameters={"references": size, "operations": operations},
        quick={"operations": 2},
    )


CASES = [_case(name, size) for name in OPERATIONS for size in SIZES]
