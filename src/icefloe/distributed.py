"""Merges the forks of a session that several writers used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.session import ForkSession
from icefloe.zarr_store.store import IcefloeStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zarr

    from icefloe.session import Session

__all__ = ["extract_session", "merge_sessions"]


def extract_session(
    zarray: zarr.Array[Any],
    axis: Any = None,  # noqa: ARG001 (reductions over arrays pass it)
    keepdims: Any = None,  # noqa: ARG001
) -> Session | ForkSession:
    """Return the session that a Zarr array writes to; `axis` and `keepdims` are ignored.

    Raises:
        InvalidTypeError: The array is in another kind of store.

    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i4")
    >>> extract_session(array) is session
    True
    """
    store = zarray.store
    if not isinstance(store, IcefloeStore):
        raise InvalidTypeError(
            f"expected an array in an IcefloeStore, found one in a {type(store).__name__}"
        )
    return store.session


def merge_sessions(*sessions: ForkSession | list[Any]) -> ForkSession:
    """Merge forks, passed one by one or in nested lists, into the first of them.

    If two forks wrote the same chunk, the later one wins.

    Returns:
        The first fork, with the changes of all; pass it to `Session.merge`.

    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> array = zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i4")
    >>> _ = session.commit("an empty array")
    >>> session = repo.writable_session("main")
    >>> left, right = session.fork(), session.fork()
    >>> zarr.open_array(left.store, path="a")[:2] = 1
    >>> zarr.open_array(right.store, path="a")[2:] = 2
    >>> session.merge(merge_sessions(left, right))
    >>> zarr.open_array(session.store, path="a")[:]
    array([1, 1, 2, 2], dtype=int32)
    """
    forks: list[ForkSession] = []
    for fork in _flattened(sessions):
        if not isinstance(fork, ForkSession):
            raise InvalidTypeError(
                "merge_sessions only merges objects of type ForkSession. "
                f"Received {type(fork).__name__!r} instead. To bring forks into the session "
                "that they come from, call Session.merge(*forks)."
            )
        forks.append(fork)
    if not forks:
        raise InvalidInputError("merge_sessions needs at least one ForkSession")
    first, *others = forks
    if others:
        first.merge(*others)
    return first


def _flattened(sessions: tuple[Any, ...] | list[Any]) -> Iterator[Any]:
    for item in sessions:
        if isinstance(item, list):
            yield from _flattened(item)
        else:
            yield item
