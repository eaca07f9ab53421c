"""How operations slow down as a repository grows: commits, branches and tags, nodes, garbage.

Each case does one operation in repositories of growing size; what grows, and not the operation, is
written before. References to chunks grow in the cases `refs-*`, up to ten million. `make bench`
draws all of them over their sizes. The largest sizes are those that a run of an hour allows; in
version 2 of the official format each commit writes a file that lists all commits, so that writing
100,000 would take hours.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from benchmarks.case import OFFICIAL, Case, Setting
from benchmarks.cases.small_operations import write_array
from benchmarks.peers import GENERATIONS, import_everything

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = ("icefloe-nosync", *OFFICIAL, *GENERATIONS)
SIZES = {
    "commits": (100, 1_000, 10_000, 100_000),
    "references": (100, 1_000, 10_000),
    "nodes": (1_000, 10_000, 100_000),
    "garbage": (1_000, 10_000, 100_000, 1_000_000),
}
ONLY_UP_TO = {
    "commits": {
        "icefloe-dataset": 1_000,
        "icefloe-store": 10_000,
        **dict.fromkeys((*OFFICIAL, "icefloe-icechunk1", "icefloe-icechunk2"), 10_000),
    },
    "references": {"icefloe-dataset": 1_000, "icefloe-store": 10_000},
    "nodes": {"icefloe-dataset": 1_000, "icefloe-store": 10_000, "icechunk": 10_000},
    "garbage": dict.fromkeys((*OFFICIAL, *GENERATIONS), 100_000),
}
"""Peers that would take many minutes to write what is larger."""
GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def opened(setting: Setting) -> Any:
    import_everything(setting.peer)
    return setting, setting.peer.open(setting.folder)


# --- a long history


def write_commits(setting: Setting) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    repository = setting.peer.create(setting.folder)
    make = default_buffer_prototype().buffer.from_bytes
    for number in range(setting["size"]):
        session = repository.writable_session("main")
        group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"n": number}})
        sync(session.store.set("zarr.json", make(group.encode())))
        session.commit(f"commit {number}")


def commit_once_more(state: tuple[Setting, Any], _: int) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    setting, repository = state
    session = repository.writable_session("main")
    document = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"n": -1 - secrets.randbits(50)},
    }
    data = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    sync(session.store.set("zarr.json", data))
    session.commit(f"one more than {setting['size']}")


def open_newest(setting: Setting, _: int) -> None:
    setting.peer.open(setting.folder).readonly_session("main")


def only_imports(setting: Setting) -> Setting:
    import_everything(setting.peer)
    return setting


# --- many branches and tags


def write_references(setting: Setting) -> None:
    write_array(Setting(setting.peer, setting.folder, {"operations": 1}))
    repository = setting.peer.open(setting.folder)
    tip = repository.lookup_branch("main")
    for number in range(setting["size"] // 2):
        repository.create_tag(f"tag-{number}", tip)
        repository.create_branch(f"branch-{number}", tip)


def create_tag(state: tuple[Setting, Any], _: int) -> None:
    repository = state[1]
    repository.create_tag(f"new-{secrets.token_hex(8)}", repository.lookup_branch("main"))


def commit_nothing(state: tuple[Setting, Any], _: int) -> None:
    setting, repository = state
    setting.peer.commit_nothing(repository)


# --- many nodes


def write_nodes(setting: Setting) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    session = setting.peer.create(setting.folder).writable_session("main")
    group = default_buffer_prototype().buffer.from_bytes(GROUP)

    async def write() -> None:
        await session.store.set("zarr.json", group)
        for number in range(setting["size"]):
            await session.store.set(f"station-{number:06}/zarr.json", group)

    sync(write())
    session.commit("nodes")


def open_and_read_node(setting: Setting, _: int) -> None:
    import zarr

    store = setting.peer.store_for_reading(setting.peer.open(setting.folder))
    zarr.open_group(store, path=f"station-{setting['size'] // 2:06}", mode="r")


# --- much garbage


def write_garbage(setting: Setting) -> None:
    """Chunk files that no commit refers to: a session that was given up."""
    import numpy as np

    write_array(Setting(setting.peer, setting.folder, {"operations": 1}))
    folder = setting.folder / ("c" if (setting.folder / "c").is_dir() else "chunks")
    folder.mkdir(exist_ok=True)
    alphabet = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", dtype=np.uint8)
    letters = alphabet[np.random.default_rng(1).integers(0, 32, (setting["size"], 20))]
    letters[:, -1] = ord("0")
    padding = "000000" if folder.name == "c" and (setting.folder / "r").is_dir() else ""
    for name in letters:
        (folder / f"{name.tobytes().decode()}{padding}").write_bytes(b"garbage")


def collect(state: tuple[Setting, Any], _: int) -> None:
    summary = state[1].garbage_collect(datetime.now(UTC))
    if summary.chunks_deleted < state[0]["size"]:
        raise AssertionError(f"deleted {summary.chunks_deleted}")


def _cases(
    name: str,
    title: str,
    run: Callable[[Any, int], object],
    start: Callable[[Setting], Any],
    prepare: Callable[[Setting], object],
    *,
    over: str,
    operations: int = 5,
    adds_little: bool = True,
) -> list[Case]:
    return [
        Case(
            name=f"growth-{name}-1e{len(str(size)) - 1}",
            title=f"{title} {{size:,}}",
            peers=tuple(peer for peer in PEERS if size <= ONLY_UP_TO[over].get(peer, size)),
            run=run,
            start=start,
            prepare=prepare,
            parameters={"size": size, "growth": f"growth-{name}", "operations": operations},
            quick={"size": size // 100, "operations": 1},
            adds_little=adds_little,
        )
        for size in SIZES[over]
    ]


CASES = [
    *_cases("commit", "commit after", commit_once_more, opened, write_commits, over="commits"),
    *_cases(
        "open",
        "open after commits:",
        open_newest,
        only_imports,
        write_commits,
        over="commits",
        operations=1,
    ),
    *_cases("tag", "create a tag among", create_tag, opened, write_references, over="references"),
    *_cases(
        "commit-among-references",
        "empty commit among branches and tags:",
        commit_nothing,
        opened,
        write_references,
        over="references",
    ),
    *_cases(
        "node",
        "open, read one node of",
        open_and_read_node,
        only_imports,
        write_nodes,
        over="nodes",
        operations=1,
    ),
    *_cases(
        "garbage",
        "collect garbage, objects:",
        collect,
        opened,
        write_garbage,
        over="garbage",
        operations=1,
        adds_little=False,
    ),
]
