"""The engine `icefloe` of xarray: `xr.open_dataset("s3://bucket/repo", engine="icefloe")`.

xarray loads this module when it looks for engines, so it imports nothing of icefloe until a dataset
is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xarray.backends import BackendEntrypoint, ZarrBackendEntrypoint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    import xarray as xr

_VERSION = ("branch", "tag", "snapshot_id", "as_of", "authorize_virtual_chunk_access")
"""Arguments that choose what is opened; xarray's own say how."""
_CLOUDS = ("s3://", "gs://", "gcs://", "az://", "azure://", "abfs://", "abfss://")


class IcefloeBackendEntrypoint(BackendEntrypoint):
    """Opens one version of a repository: by URL or path, or of a repository, session or store.

    >>> import icefloe, xarray
    >>> from icefloe.xarray import to_icefloe
    >>> repo = icefloe.Repository.create("memory://rain-gauges")
    >>> session = repo.writable_session("main")
    >>> to_icefloe(xarray.Dataset({"rain": ("time", [0.0, 2.5])}), session)
    >>> first = session.commit("two days")
    >>> xarray.open_dataset("memory://rain-gauges", engine="icefloe", branch="main").rain.values
    array([0. , 2.5])
    """

    description = "Open icefloe and Icechunk repositories, at any version"
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether there is a repository: looks into folders and buckets, never at websites."""
        if not isinstance(filename_or_obj, str | os.PathLike):
            return _is_ours(filename_or_obj)
        place = os.fspath(filename_or_obj)
        if not isinstance(place, str):
            return False
        if not place.startswith(("memory://", "file://", *_CLOUDS)) and not Path(place).is_dir():
            return False
        return _holds_repository(place)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
    ) -> xr.Dataset:
        """Open a group of a repository as a dataset.

        Args:
            filename_or_obj: URL or path of a repository, or a storage, repository, session or
                store. Sessions and stores have a version already.
            mask_and_scale: As everywhere in xarray, like the other `decode_*` arguments.
            decode_times: See xarray.
            concat_characters: See xarray.
            decode_coords: See xarray.
            drop_variables: Names of variables to leave out.
            use_cftime: See xarray.
            decode_timedelta: See xarray.
            group: Path of the group; the root by default.
            branch: A branch, `main` by default; may end in steps, as `main~3`.
            tag: A tag, instead of a branch.
            snapshot_id: The id of a snapshot, instead of a branch.
            as_of: Together with a branch: its newest snapshot written up to this moment.
            authorize_virtual_chunk_access: Credentials, or None, by URL prefix of the virtual
                chunk containers that may be read.
        """
        store = _store_of(
            filename_or_obj,
            group,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot_id,
            as_of=as_of,
            authorize_virtual_chunk_access=authorize_virtual_chunk_access,
        )
        return ZarrBackendEntrypoint().open_dataset(
            store,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            drop_variables=drop_variables,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
            group=group,
            consolidated=False,
            zarr_format=3,
        )

    def open_groups_as_dict(
        self, filename_or_obj: Any, *, group: str | None = None, **options: Any
    ) -> dict[str, xr.Dataset]:
        """Open a group and all groups below it as datasets by path; see `open_dataset`."""
        version = {name: options.pop(name) for name in _VERSION if name in options}
        store = _store_of(filename_or_obj, group, **version)
        return ZarrBackendEntrypoint().open_groups_as_dict(
            store, group=group, consolidated=False, zarr_format=3, **options
        )

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open a group and all groups below it as a tree; takes what `open_dataset` takes."""
        import xarray as xr

        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _store_of(
    place: Any,
    group: str | None,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    authorize_virtual_chunk_access: dict[str, Any] | None = None,
) -> Any:  # xarray's types do not include stores, but it accepts them
    """An IcefloeStore that has the group."""
    from icefloe.errors import InvalidInputError
    from icefloe.model import MAIN
    from icefloe.repository import Repository
    from icefloe.session import TreeSession
    from icefloe.zarr_store.store import IcefloeStore

    version = (branch, tag, snapshot_id)
    if isinstance(place, IcefloeStore | TreeSession):
        if any(argument is not None for argument in (*version, as_of)):
            raise InvalidInputError(
                f"a {type(place).__name__} shows one version already; pass the repository or its "
                "URL to choose one by branch, tag, snapshot_id or as_of"
            )
        store = place if isinstance(place, IcefloeStore) else place.store
    else:
        repository = (
            place
            if isinstance(place, Repository)
            else Repository.open(
                place, authorize_virtual_chunk_access=authorize_virtual_chunk_access
            )
        )
        if version == (None, None, None):
            branch = MAIN
        session = repository.readonly_session(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
        store = session.store
    _check_group(store, group)
    return store


def _check_group(store: Any, group: str | None) -> None:
    """Raise NodeNotFoundError unless there is such a group, with names like it."""
    from icefloe.errors import NodeNotFoundError
    from icefloe.model import paths
    from icefloe.model.spelling import suggestion

    tree, path = store.session.tree, paths.canonical(group or paths.ROOT)
    node = tree.get_node(path)
    if node is not None and not node.is_array:
        return
    if node is not None:
        parent = path.rpartition("/")[0] or paths.ROOT
        hint = f"is an array, not a group: open group={parent!r} and choose the variable"
    elif path == paths.ROOT:
        hint = "does not exist: nothing was written to this version yet"
    else:
        arrays = set(tree.array_paths())
        groups = (each for each in tree.node_paths(paths.ROOT) if each not in arrays)
        hint = f"does not exist{suggestion(path, groups)}"
    raise NodeNotFoundError(f"group {path} {hint}", path)


def _is_ours(candidate: object) -> bool:
    """Whether an object is icefloe's, without importing modules that cannot have made it."""
    return type(candidate).__module__.partition(".")[0] == "icefloe"


def _holds_repository(place: str) -> bool:
    from icefloe.errors import FormatError, IcefloeError
    from icefloe.repository import Repository

    try:
        return Repository.exists(place)
    except FormatError:
        return True  # a damaged one: opening it says what is wrong
    except IcefloeError:
        return False  # no access, no credentials: not for us to guess
