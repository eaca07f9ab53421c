"""Public names of a package that are imported when they are first used.

A package lists its names once, by module. Type checkers and editors read the same list from the
stub file beside it, which `make api` generates.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def public_names(modules: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Iterate over (public name, module, name in the module) of a package's list.

    Args:
        modules: The names of each module, separated by whitespace. `Alias=Name` offers a name
            under another one.
    """
    for module, names in modules.items():
        for entry in names.split():
            public, _, original = entry.partition("=")
            yield public, module, original or public


_OURS = {"lazy_names", "PUBLIC_NAMES", "SUBMODULES"}
"""What a package has for this module, and editors need not offer."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Load modules without Python's garbage collector, which is left as it was found.

    A hundred modules are thousands of new objects, none of them garbage. The collector would look
    at them twenty times, and once at everything that zarr has loaded: a third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def lazy_names(
    package: str, modules: Mapping[str, str], submodules: str = ""
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__all__`, `__getattr__` and `__dir__` of a package out of its list of names.

    Its `submodules` are imported by name as well, so that editors can complete what is in them.
    They are not in `__all__`: importing all names must not need all extras.
    """
    parts = frozenset(submodules.split())
    homes = {public: (module, name) for public, module, name in public_names(modules)}

    def get(name: str) -> Any:
        if name in parts:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        try:
            with collector_paused():
                value = getattr(import_module(module), original)
        except ModuleNotFoundError as error:
            from icefloe.extras import EXTRAS, missing

            if error.name not in EXTRAS:
                raise
            raise missing(error.name, f"{package}.{name}") from error
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *parts} - _OURS)

    return list(homes), get, list_names
