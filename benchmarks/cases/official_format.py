"""Repositories in the official format, versions 1 and 2: the same files for icefloe and official.

What is read or changed is written once, by the official package (1.1 writes version 1, the newest
version 2), and every measurement gets a copy. Only the million native references are written by
icefloe, in packs: with the official package they would be a million objects. 1.1 cannot open
version 2, so the newest is alone there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.case import Case, Setting
from benchmarks.cases import growth, manifests
from benchmarks.peers import import_everything

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = {
    1: ("icefloe-icechunk1", "icechunk", "icechunk-newest"),
    2: ("icefloe-icechunk2", "icechunk-newest"),
}
WRITERS = {1: "icechunk", 2: "icechunk-newest"}
VIRTUAL: dict[str, Any] = {"references": 10**6, "files": 10_000}
FEW_VIRTUAL: dict[str, Any] = {"references": 2_000, "files": 20}
SPLIT, SPLIT_FEW = {"split": 100}, {"split": 2}
"""Rows of an array in a manifest: a hundred manifests of 10,000 references."""


# --- all references, decoded


def session_of(setting: Setting) -> Any:
    import_everything(setting.peer)
    return setting, manifests.reopen(setting).readonly_session("main")


def list_locations(state: tuple[Setting, Any], _: int) -> None:
    setting, session = state
    if len(session.all_virtual_chunk_locations()) < min(setting["references"], setting["files"]):
        raise AssertionError("listed too few")


def native_written(setting: Setting) -> None:
    """Tiny chunks in packs: references with random ids, offsets and lengths."""
    import numpy as np

    from icefloe.model.segments import Segments

    import_everything(setting.peer)
    count = setting["references"]
    size = 600  # too many bytes to be inline
    repository = manifests.create(setting)
    session = repository.writable_session("main")
    session.tree.set_document("/big", manifests.array_document(count))
    for first in range(0, count, 100_000):
        rows = min(100_000, count - first)
        segments = Segments(
            bytes(rows * size),
            np.arange(rows, dtype=np.int64) * size,
            np.full(rows, size, dtype=np.int64),
        )
        session.write_chunks("/big", np.arange(first, first + rows)[:, None], segments)
    session.commit("native chunks")


def list_coordinates(state: tuple[Setting, Any], _: int) -> None:
    from zarr.core.sync import sync

    setting, session = state

    async def count() -> int:
        found = 0
        async for _ in session.chunk_coordinates("/big", batch_size=100_000):
            found += 1
        return found

    if sync(count()) != setting["references"]:
        raise AssertionError("listed something else")


def all_columns(state: tuple[Setting, Any], _: int) -> None:
    """Every reference, in the cheapest way that a package has."""
    setting, session = state
    if setting.peer.distribution != "icefloe":
        list_coordinates(state, 0)
    elif sum(len(batch.coords) for batch in session.chunk_batches("/big")) != setting["references"]:
        raise AssertionError("listed something else")


# --- all references, decoded and encoded


def rewrite(state: tuple[Setting, Any], _: int) -> None:
    state[1].rewrite_manifests("again", branch="main")


# --- a long history in one file


def commit_once_more(state: tuple[Setting, Any], number: int) -> None:
    growth.commit_once_more(state, number)


def _cases(version: int) -> list[Case]:
    peers, writer = PEERS[version], WRITERS[version]
    suffix = f"official format {version}"
    versioned = {"spec_version": version}

    def case(
        name: str,
        title: str,
        run: Callable[[Any, int], object],
        start: Callable[[Setting], Any],
        *,
        prepare: Callable[[Setting], object] | None = manifests.committed,
        parameters: dict[str, Any] = VIRTUAL,
        quick: dict[str, Any] = FEW_VIRTUAL,
        prepared_by: str = writer,
    ) -> Case:
        return Case(
            name=f"official-{name}-v{version}",
            title=f"{title} ({suffix})",
            peers=peers,
            run=run,
            start=start,
            prepare=prepare,
            parameters={**parameters, **versioned},
            quick=quick,
            prepared_by=prepared_by if prepare else "",
        )

    native: dict[str, Any] = {
        "prepare": native_written,
        "parameters": {"references": 10**6},
        "quick": {"references": 2_000},
        "prepared_by": f"icefloe-icechunk{version}",
    }
    return [
        case(
            "read-chunk",
            "open, read one chunk of {references:,} virtual ones",
            manifests.read_one_chunk,
            manifests.only_imports,
        ),
        case(
            "decode-virtual",
            "list the locations of {references:,} virtual references",
            list_locations,
            session_of,
        ),
        case(
            "decode-columns",
            "all of {references:,} virtual references, icefloe as columns",
            all_columns,
            session_of,
        ),
        case(
            "decode-native",
            "list the coordinates of {references:,} native chunks",
            list_coordinates,
            session_of,
            **native,
        ),
        case(
            "encode-virtual",
            "set and commit {references:,} virtual references in {files:,} files",
            manifests.commit_references,
            manifests.with_references,
            prepare=None,
        ),
        case(
            "encode-native",
            "rewrite the manifest of {references:,} native chunks",
            rewrite,
            manifests.reopened,
            **native,
        ),
        case(
            "change-chunk",
            "change and commit one chunk of {references:,}, one manifest",
            manifests.commit_one_chunk,
            manifests.reopened,
        ),
        case(
            "change-chunk-split",
            "change and commit one chunk of {references:,}, split into 100 manifests",
            manifests.commit_one_chunk,
            manifests.reopened,
            parameters={**VIRTUAL, **SPLIT},
            quick={**FEW_VIRTUAL, **SPLIT_FEW},
        ),
        case(
            "arrays-open",
            "open {arrays:,} arrays of 4 chunks, read one",
            manifests.open_and_read_small_array,
            manifests.only_imports,
            prepare=manifests.small_arrays_committed,
            parameters={"arrays": 5760},
            quick={"arrays": 50},
        ),
    ]


CASES = [
    *_cases(1),
    *_cases(2),
    Case(
        name="official-commit-v2",
        title="commit with {size:,} snapshots in `repo` (official format 2)",
        peers=PEERS[2],
        run=commit_once_more,
        start=growth.opened,
        prepare=growth.write_commits,
        parameters={"size": 10_000, "operations": 5, "spec_version": 2},
        quick={"size": 50, "operations": 1},
        prepared_by=WRITERS[2],
    ),
]
