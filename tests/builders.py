"""Repositories, sessions, commits and values for tests: what most tests start from, in one line.

Documents of nodes are in `tests.documents`; which generation a test runs on is in `tests.formats`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from tests.documents import array, group
from tests.formats import how

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from icefloe.session import Session, TreeSession
    from icefloe.storage.port import Storage
    from icefloe.zarr_store.store import IcefloeStore

    Edit = Callable[[Session], object]


# --- repositories


def new_repository(
    place: Storage | Path | None = None, config: RepositoryConfig | None = None, **options: Any
) -> Repository:
    """Create a repository: in memory, or on a storage or in a folder.

    Its generation is the one that the test runs on, unless `options` (arguments of
    `Repository.create`) say otherwise.
    """
    storage = icefloe.in_memory_storage() if place is None else place
    return Repository.create(storage, config, **(how() | options))


def repository_with(
    arrays: Mapping[str, Sequence[int]],
    place: Storage | Path | None = None,
    config: RepositoryConfig | None = None,
    **options: Any,
) -> Repository:
    """Create a repository and commit empty arrays of bytes, given by path and shape."""
    repository = new_repository(place, config, **options)
    commit_documents(repository, {path: array(shape) for path, shape in arrays.items()})
    return repository


def repository_of_two_kinds(storage: Storage, config: RepositoryConfig) -> Repository:
    """Create a repository with the arrays `inline` and `native`, a branch `dev` and a tag `v1`.

    Chunks have 2 and 8 bytes, for a configuration whose threshold is in between.
    """
    repo = new_repository(storage, config)
    with repo.transaction("main", message="one") as store:
        arrays_of_two_kinds(store)
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.create_tag("v1", repo.lookup_branch("main"))
    return repo


def arrays_of_two_kinds(store: IcefloeStore, chunks: int = 4) -> zarr.Group:
    """Create the arrays `inline` and `native`, of ones, in a new root group."""
    root = zarr.create_group(store)
    for name, size in (("inline", 2), ("native", 8)):
        root.create_array(
            name, shape=(chunks * size,), chunks=(size,), dtype="u1", compressors=None
        )[:] = 1
    return root


def repository_beside(data: Path, place: Path | Storage, **options: Any) -> Repository:
    """Create a repository whose virtual chunks may be read from the folder `data`."""
    config = options.pop("config", None) or RepositoryConfig.default()
    prefix = f"{data.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(data)))
    )
    allowed = {prefix: None}
    return new_repository(place, config, authorize_virtual_chunk_access=allowed, **options)


def repository_beside_s3(endpoint: Any, prefix: str, place: Path | Storage) -> Repository:
    """Create a repository whose virtual chunks may be read below a prefix of an S3 endpoint."""
    config = RepositoryConfig.default()
    store = icefloe.s3_store(
        region="us-east-1",
        endpoint_url=endpoint.endpoint_url,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    credentials = icefloe.s3_static_credentials(
        access_key_id=endpoint.access_key_id, secret_access_key=endpoint.secret_access_key
    )
    return new_repository(place, config, authorize_virtual_chunk_access={prefix: credentials})


# --- commits


def commit_edit(
    repository: Repository, edit: Edit, branch: str = "main", message: str = "edit"
) -> str:
    """Commit what a function does with a session."""
    session = repository.writable_session(branch)
    edit(session)
    return session.commit(message)


def commit_documents(
    repository: Repository, documents: Mapping[str, bytes], branch: str = "main"
) -> str:
    """Commit nodes, given by path and document, and the root group if there is none."""

    def edit(session: Session) -> None:
        if session.get_node("/") is None:
            session.tree.set_document("/", group())
        for path, document in documents.items():
            session.tree.set_document(path, document)

    return commit_edit(repository, edit, branch, f"nodes {', '.join(documents) or '/'}")


def in_turn(*edits: Edit) -> Edit:
    """One edit that makes several."""
    return lambda session: [edit(session) for edit in edits]


def committed_store(session: Session, repository: Repository) -> IcefloeStore:
    """Commit a session; a read-only store on what it has written."""
    session.commit("written")
    return repository.readonly_session("main").store


# --- values


def read_array(source: Repository | TreeSession, path: str = "a", **version: Any) -> np.ndarray:
    """All values of an array, as zarr reads them."""
    session = source.readonly_session(**version) if isinstance(source, Repository) else source
    return np.asarray(zarr.open_array(session.store, path=path, mode="r")[...])


def read_dataset(
    source: Repository | TreeSession, group: str | None = None, **options: Any
) -> xr.Dataset:
    """A group as xarray opens it, of a session or of the branch main."""
    session = source.readonly_session("main") if isinstance(source, Repository) else source
    return xr.open_zarr(session.store, group=group, consolidated=False, **options)
