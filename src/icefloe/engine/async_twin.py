"""Async forms of synchronous methods: the same call, run in a thread."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async form of a method; where a subclass overrides the method, its form follows."""
    name = method.__name__

    @functools.wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound: Callable[P, R] = getattr(self, name)
        return await asyncio.to_thread(bound, *args, **kwargs)

    return _described(twin, name)


def async_function_twin(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The async form of a function, or of what is inside a class or static method."""

    @functools.wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(function, *args, **kwargs)

    return _described(twin, function.__name__)


_Twin = TypeVar("_Twin")


def _described(twin: _Twin, name: str) -> _Twin:
    twin.__name__ = twin.__qualname__ = f"{name}_async"  # type: ignore[attr-defined]
    twin.__doc__ = f"Like `{name}`, without blocking the event loop."
    return twin
