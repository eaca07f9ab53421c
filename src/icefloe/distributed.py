"""Cooperating writers: gathering the forks of a session after others have written with them."""

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
    """The session that a Zarr array writes to; `axis` and `keepdims` are ignored."""
    store = zarray.store
    if not isinstance(store, IcefloeStore):
        raise InvalidTypeError(
            f"expected an array in an IcefloeStore, found one in a {type(store).__name__}"
        )
    return store.session


def merge_sessions(*sessions: ForkSession | list[Any]) -> ForkSession:
    """Merge forks, given one by one or in nested lists, into the first of them.

    Of two forks that wrote the same chunk, the later one wins.
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
