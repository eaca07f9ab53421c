"""Writes dask arrays in parallel: each task writes to a fork of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import InvalidTypeError
from icefloe.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import zarr
    from dask.array import Array

    from icefloe.session import ForkSession

__all__ = ["session_merge_reduction", "store_dask"]

_DECIDED_HERE = ("compute", "return_stored", "load_stored")


def store_dask(
    *,
    sources: Sequence[Array],
    targets: Sequence[zarr.Array[Any]],
    regions: Sequence[tuple[slice, ...] | None] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Write dask arrays to Zarr arrays of a forked session, at once, and merge the changes.

    Args:
        sources: The arrays to write.
        targets: The Zarr array for each source, in the store of one `Session.fork()`.
        regions: The part of its target that each source fills; all of it by default.
        split_every: How many forks one task merges.
        store_kwargs: `lock` as for `dask.array.store`, and arguments of `dask.compute` such
            as `scheduler`.

    Returns:
        A fork with all changes, to be passed to `Session.merge`.

    >>> import dask.array, icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> array = zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i8")
    >>> _ = session.commit("an empty array")
    >>> session = repo.writable_session("main")
    >>> target = zarr.open_array(session.fork().store, path="a")
    >>> source = dask.array.arange(4, chunks=2)
    >>> session.merge(store_dask(sources=[source], targets=[target], scheduler="synchronous"))
    >>> zarr.open_array(session.store, path="a")[:]
    array([0, 1, 2, 3])
    """
    require("store_dask", "dask")
    import dask.array as da

    for name in _DECIDED_HERE:
        if name in store_kwargs:
            raise InvalidTypeError(f"store_dask() does not take {name!r}: it always writes at once")
    lock = store_kwargs.pop("lock", False)
    written: list[Any] = list(targets)
    filled: Any = None if regions is None else list(regions)
    # dask returns an array for one source, and a tuple for several.
    stored = da.store(
        list(sources),
        written,
        regions=filled,
        lock=lock,
        compute=False,
        return_stored=True,
        load_stored=False,
    )
    return session_merge_reduction(stored, split_every=split_every, **store_kwargs)


def session_merge_reduction(
    arrays: Array | Sequence[Array], *, split_every: int | None = None, **compute_kwargs: Any
) -> ForkSession:
    """Compute dask arrays whose blocks are Zarr arrays, and merge their sessions in a tree.

    Such arrays are what `dask.array.store` returns for `return_stored=True, load_stored=False`.
    """
    import dask.array as da
    from dask.base import compute

    if isinstance(arrays, da.Array):
        arrays = [arrays]
    merged = [
        da.reduction(  # type: ignore[no-untyped-call]
            array,
            chunk=extract_session,
            aggregate=_merge_blocks,
            name="merge-sessions",
            split_every=split_every,
            concatenate=False,
            dtype=np.dtype(object),
            meta=np.empty((), dtype=object),
        )
        for array in arrays
    ]
    return merge_sessions(*compute(*merged, **compute_kwargs))  # type: ignore[no-untyped-call]


def _merge_blocks(blocks: Any, axis: Any = None, keepdims: Any = None) -> Any:  # noqa: ARG001
    return merge_sessions(blocks)
