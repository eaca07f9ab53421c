"""Writes xarray objects to a session; those with dask data in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from icefloe.dask import store_dask
from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.extras import require

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, MutableMapping

    import xarray as xr

    from icefloe.session import ForkSession, Session
    from icefloe.zarr_store.store import IcefloeStore

__all__ = ["to_icechunk", "to_icefloe"]

WriteMode = Literal["w", "w-", "a", "a-", "r+"]

# Where xarray itself puts an array without a usable name (see DataArray.to_zarr).
_UNNAMED_VARIABLE = "__xarray_dataarray_variable__"
_NAME_ATTRIBUTE = "__xarray_dataarray_name__"


def to_icefloe(
    obj: xr.DataArray | xr.Dataset,
    session: Session | ForkSession | IcefloeStore,
    *,
    group: str | None = None,
    mode: WriteMode | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None = None,
    encoding: Mapping[Any, Any] | None = None,
    chunkmanager_store_kwargs: MutableMapping[Any, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write a Dataset or DataArray to a group of a session; nothing is committed.

    Data in memory is written directly. Dask data is written by tasks, possibly in other processes:
    each writes to a fork of the session, and the forks are merged into the session at the end.

    Args:
        obj: The object to write.
        session: A writable session or fork, or its store.
        group: Path of the group; the root by default.
        mode: `w` creates or replaces the group, `w-` creates it and fails if it exists, `a`
            creates or overwrites variables, `a-` only changes variables that have `append_dim`,
            `r+` only changes values of existing arrays. The default is `a` with `append_dim`,
            `r+` with `region`, else `w-`.
        safe_chunks: Raise an error if two dask chunks would write to the same chunk.
        align_chunks: Rechunk dask arrays to whole chunks instead.
        append_dim: The dimension along which to append.
        region: The part of existing arrays to fill, as slices by dimension; `"auto"` finds it by
            comparing coordinates.
        encoding: How to store variables, by name, as for `Dataset.to_zarr`.
        chunkmanager_store_kwargs: Arguments of `store_dask`, such as `scheduler`.
        split_every: How many forks one task merges.

    >>> import icefloe, xarray
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> to_icefloe(xarray.Dataset({"t": ("x", [1.5, 2.5])}), session)
    >>> _ = session.commit("first data")
    >>> store = repo.readonly_session("main").store
    >>> xarray.open_zarr(store, consolidated=False).t.values
    array([1.5, 2.5])
    """
    require("to_icefloe", "xarray")
    from xarray.backends import ZarrStore
    from xarray.backends.common import ArrayWriter

    dataset = _as_dataset(obj)
    _check_names(dataset)
    root = _session_of(session)
    is_lazy = any(v.chunks is not None and v.size > 0 for v in dataset.variables.values())
    concrete_mode = _mode(mode, append_dim, region)
    target = root.fork() if is_lazy else root
    backend = ZarrStore.open_group(
        store=target.store,
        group=group,
        mode=concrete_mode,
        zarr_format=3,
        append_dim=append_dim,
        write_region=region,
        safe_chunks=safe_chunks,
        align_chunks=align_chunks,
        consolidated=False,
        consolidate_on_close=False,
    )
    dataset = backend._validate_and_autodetect_region(dataset)  # noqa: SLF001
    encoding = dict(encoding or {})
    backend._validate_encoding(encoding)  # noqa: SLF001
    for variable in dataset.variables.values():
        if variable.size == 0:
            variable.load()  # no block, no task: it would not be written
    arrays: Any = ArrayWriter()  # type: ignore[no-untyped-call]
    # Writes metadata and variables in memory at once, and collects the others.
    dataset.dump_to_store(backend, writer=arrays, encoding=encoding)
    if arrays.sources:
        target = store_dask(
            sources=arrays.sources,
            targets=arrays.targets,
            regions=arrays.regions,
            split_every=split_every,
            **(chunkmanager_store_kwargs or {}),
        )
    if target is not root:
        root.merge(target)  # type: ignore[arg-type]


to_icechunk = to_icefloe


def _session_of(target: Session | ForkSession | IcefloeStore) -> Session | ForkSession:
    from icefloe.session import ForkSession, Session
    from icefloe.zarr_store.store import IcefloeStore

    session = target.session if isinstance(target, IcefloeStore) else target
    if not isinstance(session, Session | ForkSession):
        raise InvalidTypeError(
            f"expected a writable session or its store, found a {type(session).__name__}; "
            "repo.writable_session(branch) makes one"
        )
    session.tree.check_writable()
    return session


def _as_dataset(obj: xr.DataArray | xr.Dataset) -> xr.Dataset:
    """Return a dataset that xarray opens again as the original object."""
    import xarray as xr

    if isinstance(obj, xr.Dataset):
        return obj
    if not isinstance(obj, xr.DataArray):
        raise InvalidTypeError(f"expected a DataArray or Dataset, found {type(obj).__name__}")
    if obj.name is None:
        return obj.to_dataset(name=_UNNAMED_VARIABLE)
    if obj.name in obj.coords or obj.name in obj.dims:
        # A variable of that name exists already: the name moves to an attribute.
        dataset = obj.to_dataset(name=_UNNAMED_VARIABLE)
        dataset.attrs[_NAME_ATTRIBUTE] = obj.name
        return dataset
    return obj.to_dataset()


def _check_names(dataset: xr.Dataset) -> None:
    for name in (*dataset.variables, *dataset.dims):
        if not isinstance(name, str) or not name:
            raise InvalidInputError(
                f"names of variables and dimensions are non-empty strings, found {name!r}"
            )


def _mode(mode: str | None, append_dim: Hashable | None, region: Any) -> Any:
    if mode is None:
        if append_dim is not None:
            return "a"
        return "w-" if region is None else "r+"
    if mode not in {"w", "w-", "a", "a-", "r+"}:
        raise InvalidInputError(f"mode is 'w', 'w-', 'a', 'a-' or 'r+', found {mode!r}")
    if append_dim is not None and mode not in {"a", "a-"}:
        raise InvalidInputError(f"append_dim needs mode 'a' or 'a-', found mode {mode!r}")
    if region is not None and mode not in {"a", "a-", "r+"}:
        raise InvalidInputError(f"region needs mode 'a', 'a-' or 'r+', found mode {mode!r}")
    return mode
