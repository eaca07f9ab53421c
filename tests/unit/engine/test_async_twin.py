"""Async forms of methods."""

from __future__ import annotations

import inspect
import threading

from icefloe.engine.async_twin import async_function_twin, async_twin


class Parent:
    def name(self, suffix: str = "") -> str:
        """Say who this is."""
        return f"parent{suffix}"

    name_async = async_twin(name)

    @classmethod
    def thread(cls) -> int:
        return threading.get_ident()

    thread_async = classmethod(async_function_twin(thread.__func__))  # type: ignore[attr-defined]


class Child(Parent):
    def name(self, suffix: str = "") -> str:
        return f"child{suffix}"


async def test_the_async_form_of_an_overridden_method_is_overridden_too() -> None:
    assert await Parent().name_async("!") == "parent!"
    assert await Child().name_async(suffix="!") == "child!"


async def test_the_event_loop_is_not_blocked() -> None:
    assert await Parent.thread_async() != threading.get_ident()


def test_it_looks_like_the_method() -> None:
    twin = Parent.name_async
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(Parent.name)
    assert twin.__name__ == "name_async"
    assert twin.__doc__ == "Like `name`, without blocking the event loop."
