"""A repository that needs maintenance, and twins of it to compare jobs with one machine."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

import icefloe
from tests.builders import new_repository

if TYPE_CHECKING:
    from pathlib import Path

HOUR = timedelta(hours=1)
CHUNKS = 12
EXPIRED: dict[str, str] = {}
"""A snapshot of each repository that has expired, by location."""


def separate_chunks() -> icefloe.RepositoryConfig:
    """A configuration with which every chunk is a file of its own."""
    packing = icefloe.ChunkPackingConfig(max_chunk_bytes=0)
    return icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_packing=packing)


def write_values(repo: icefloe.Repository, value: int, branch: str = "main") -> str:
    with repo.transaction(branch, message=f"values {value}") as store:
        root = zarr.open_group(store, mode="a")
        if "a" not in root:
            root.create_array("a", shape=(CHUNKS,), chunks=(1,), dtype="i4", compressors=None)
        root["a"][:] = np.arange(CHUNKS) + value
    return repo.lookup_branch(branch)


def repository_with_garbage(place: Path, **options: Any) -> icefloe.Repository:
    """A day old: history that expired, a branch and a tag, and a session that never ended."""
    repo = new_repository(place, separate_chunks(), **options)
    commits = [write_values(repo, value) for value in range(0, 60, 10)]
    repo.create_tag("v1", commits[1])
    repo.create_branch("dev", commits[2])
    write_values(repo, 5, "dev")
    assert commits[3] in repo.expire_snapshots(keep_last=1)
    EXPIRED[repo.storage.location] = commits[3]
    if repo.spec_version == 0:  # names are free there, and those of others stay (G6)
        repo.storage.put("c/of-another-program", b"123")
    lost = repo.writable_session("main")
    zarr.open_array(lost.store, path="a", mode="r+")[:] = -1
    for path in place.rglob("*"):
        day_ago = path.stat().st_mtime - 86_400
        os.utime(path, (day_ago, day_ago))
    return repo


def keys(repo: icefloe.Repository) -> set[str]:
    """All objects but references, which collections repeat, and the traces of maintenance."""
    changing = ("maintenance/", "refs/", "r/")
    return {info.key for info in repo.storage.list("") if not info.key.startswith(changing)}


def copied(repo: icefloe.Repository, place: Path) -> icefloe.Repository:
    """The same repository in another folder, with the times of its objects."""
    shutil.copytree(repo.storage.location.removeprefix("file://"), place)
    return icefloe.Repository.open(str(place))


def plain(summary: Any) -> dict[str, Any]:
    names = type(summary).__struct_fields__
    return {name: getattr(summary, name) for name in names if name != "cutoff"}


def row(frame: Any) -> dict[str, Any]:
    (only,) = frame.collect()
    return {name: value for name, value in only.asDict().items() if name != "cutoff"}
