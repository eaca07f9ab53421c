"""Calls that wait for a storage and not for each other, sent at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from icefloe.storage.port import Storage

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")

AT_ONCE = 64
"""How many requests for small objects are sent at the same time."""


def in_threads(
    work: Callable[[_Item], _Result], items: Iterable[_Item], limit: int = AT_ONCE
) -> list[_Result]:
    """Results of a function for each item, in their order, up to `limit` at the same time.

    The threads are new ones, so that `work` may itself call this. After an error the calls that
    were begun are waited for. Each call sees the context variables of the caller.
    """
    todo = list(items)
    if len(todo) <= 1 or limit <= 1:
        return [work(item) for item in todo]
    with ThreadPoolExecutor(min(limit, len(todo)), "icefloe-requests") as threads:
        contexts = [copy_context() for _ in todo]  # a context is entered by one thread at a time
        return list(threads.map(lambda context, item: context.run(work, item), contexts, todo))


def each_at_once(
    storage: Storage,
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    limit: int = AT_ONCE,
) -> list[_Result]:
    """Like `in_threads` for small requests; one by one where they are answered immediately."""
    return in_threads(work, items, 1 if storage.capabilities.reads_are_immediate else limit)


@overload
def together(
    storage: Storage, one: Callable[[], _A], two: Callable[[], _B], /
) -> tuple[_A, _B]: ...
@overload
def together(
    storage: Storage, one: Callable[[], _A], two: Callable[[], _B], three: Callable[[], _C], /
) -> tuple[_A, _B, _C]: ...
@overload
def together(
    storage: Storage,
    one: Callable[[], _A],
    two: Callable[[], _B],
    three: Callable[[], _C],
    four: Callable[[], _D],
    /,
) -> tuple[_A, _B, _C, _D]: ...
def together(storage: Storage, *calls: Callable[[], Any]) -> tuple[Any, ...]:
    """Results of independent calls that each wait for a storage."""
    return tuple(each_at_once(storage, lambda call: call(), calls))
