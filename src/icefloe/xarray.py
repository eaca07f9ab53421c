"""Writes xarray objects to a session; those with dask data in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from icefloe.dask import store_dask
from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.extras import require

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, MutableMapping

    import xarray as xr
    from xarray.backends import ZarrStore

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
    dataset = _as_dataset(obj)
    _check_names(dataset)
    root = _session_of(session)
    concrete_mode = _mode(mode, append_dim, region)
    lazy = any(v.chunks is not None and v.size > 0 for v in dataset.variables.values())
    target = root
    if lazy:
        target = root.fork()
    writer = _XarrayDatasetWriter(
        dataset, store=target.store, safe_chunks=safe_chunks, align_chunks=align_chunks
    )
    writer.open_group(group, concrete_mode, append_dim, region)
    writer.write_metadata(encoding)
    written = writer.write_lazy(chunkmanager_store_kwargs, split_every)
    if target is not root:
        root.merge(target if written is None else written)  # type: ignore[arg-type]


to_icechunk = to_icefloe


class _XarrayDatasetWriter:
    """The steps of writing a Dataset, for callers that do something in between."""

    def __init__(
        self,
        dataset: xr.Dataset,
        *,
        store: IcefloeStore,
        safe_chunks: bool = True,
        align_chunks: bool = False,
    ) -> None:
        """Prepare to write a dataset to a store."""
        from xarray.backends.common import ArrayWriter

        self._dataset = dataset
        self._store = store
        self._safe_chunks = safe_chunks
        self._align_chunks = align_chunks
        # It writes arrays that are in memory at once, and collects the others.
        self._arrays: Any = ArrayWriter()  # type: ignore[no-untyped-call]
        self._backend: ZarrStore | None = None

    def open_group(
        self, group: str | None, mode: WriteMode, append_dim: Hashable | None, region: Any
    ) -> None:
        """Open or create the group, and resolve an automatic region."""
        from xarray.backends import ZarrStore

        backend = ZarrStore.open_group(
            store=self._store,
            group=group,
            mode=mode,
            zarr_format=3,
            append_dim=append_dim,
            write_region=region,
            safe_chunks=self._safe_chunks,
            align_chunks=self._align_chunks,
            consolidated=False,
            consolidate_on_close=False,
        )
        self._dataset = backend._validate_and_autodetect_region(self._dataset)  # noqa: SLF001
        self._backend = backend

    def write_metadata(self, encoding: Mapping[Any, Any] | None = None) -> None:
        """Create and resize arrays, write attributes and all variables that are in memory."""
        if self._backend is None:
            raise InvalidInputError("call open_group() before write_metadata()")
        encoding = dict(encoding or {})
        self._backend._validate_encoding(encoding)  # noqa: SLF001
        for variable in self._dataset.variables.values():
            if variable.size == 0:
                # No block, no task: it would not be written.
                variable.load()
        self._dataset.dump_to_store(self._backend, writer=self._arrays, encoding=encoding)

    def write_lazy(
        self,
        store_kwargs: Mapping[Any, Any] | None = None,
        split_every: int | None = None,
    ) -> ForkSession | None:
        """Compute and write the dask arrays; returns the merged fork, None if there are none."""
        if not self._arrays.sources:
            return None
        return store_dask(
            sources=self._arrays.sources,
            targets=self._arrays.targets,
            regions=self._arrays.regions,
            split_every=split_every,
            **(store_kwargs or {}),
        )


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
