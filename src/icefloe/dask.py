"""Writing dask arrays in parallel: each task writes through a fork, and the forks are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import InvalidTypeError

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
    """Write dask arrays to Zarr arrays of a forked session, now, and merge what the tasks did.

    Args:
        sources: the arrays to write.
        targets: where each of them goes; arrays in the store of one `Session.fork()`.
        regions: which part of its target each source fills; the whole by default.
        split_every: how many forks one task merges.
        store_kwargs: `lock` as for `dask.array.store`, and arguments of `dask.compute` such
            as `scheduler`.

    Returns:
        The fork with all changes, to be given to `Session.merge`.
    """
    import dask.array as da

    for name in _DECIDED_HERE:
        if name in store_kwargs:
            raise InvalidTypeError(f"store_dask() does not take {name!r}: it always writes at once")
    lock = store_kwargs.pop("lock", False)
    written: list[Any] = list(targets)
    filled: Any = None if regions is None else list(regions)
    # One array for one source, else several.
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
    """Compute dask arrays whose blocks are Zarr arrays, and merge their sessions as a tree.

    Such arrays are what `dask.array.store` returns for `return_stored=True, load_stored=False`.
    """
    import dask.array as da
    from dask.base import compute

    if isinstance(arrays, da.Array):
        arrays = [arrays]
    merged = [
        da.reduction(  # type: ignore[no-untyped-call]
            array,
            chunk=_session_of_block,
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


def _session_of_block(block: Any, axis: Any = None, keepdims: Any = None) -> Any:
    return extract_session(block, axis, keepdims)


def _merge_blocks(blocks: Any, axis: Any = None, keepdims: Any = None) -> Any:  # noqa: ARG001
    return merge_sessions(blocks)
