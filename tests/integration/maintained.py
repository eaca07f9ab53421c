"""Repositories whose storage has a clock that tests can set; imported by tests of maintenance."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.testing.clock import ClockedStorage
from tests.builders import read_array
from tests.formats import folder_in, how

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NATIVE = RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=0)
)
"""Every chunk has a file of its own."""
PACKED = RepositoryConfig(inline_chunk_threshold_bytes=0)
"""The chunks of a commit share a file."""


def make(config: RepositoryConfig = NATIVE, storage: Storage | None = None) -> Repository:
    """A repository with an array `a` of four chunks."""
    storage = storage or ClockedStorage(icefloe.in_memory_storage())
    repo = Repository.create(storage, config, **how())
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        root.create_array("a", shape=(4,), chunks=(1,), dtype="u1", compressors=None)
    return repo


def fill(repo: Repository, value: int, branch: str = "main", chunks: slice = slice(None)) -> str:
    """A commit that sets chunks of `a`."""
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path="a")[chunks] = value
    return session.commit(str(value))


def values(repo: Repository, **version: Any) -> list[int]:
    return read_array(repo, **version).tolist()


def messages(repo: Repository, **version: Any) -> list[str]:
    return [info.message for info in repo.ancestry(**version)][:-2]


def names(repo: Repository, folder: str) -> set[str]:
    """Keys of all objects of a folder, by its name in the generation `repository`."""
    return {info.key for info in repo.storage.list(folder_in(repo.storage, folder))}


def clock(repo: Repository) -> ClockedStorage:
    """The storage of a repository, whose time tests can set."""
    storage = repo.storage
    assert isinstance(storage, ClockedStorage)
    return storage


def wait(repo: Repository, duration: timedelta) -> None:
    """Let time pass for the storage of a repository."""
    clock(repo).wait(duration)
