"""List the public names and parameters of a package as JSON, for tests/architecture/.

    .venv-bench/bin/python scripts/list_api.py icechunk > tests/architecture/official_api.json
    .venv/bin/python scripts/list_api.py icefloe > tests/architecture/public_api.json

The first is what a drop-in must offer; the second is what we promise, so that a change of the
public interface is always a visible change of a file.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from typing import Any

SUBMODULES = ("xarray", "dask", "distributed")


def parameters(function: Any) -> list[str] | None:
    """Names of the parameters, `*` before the keyword-only ones, `=` after the optional ones."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    listed = []
    keyword_only = False
    for name, parameter in signature.parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            listed.append(f"*{name}")
            keyword_only = True
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            listed.append(f"**{name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            listed.append("*")
            keyword_only = True
        listed.append(name if parameter.default is parameter.empty else f"{name}=")
    return listed


def is_documented_member(owner: type, name: str) -> bool:
    """Public, and defined in the package itself rather than inherited from elsewhere."""
    package = owner.__module__.split(".")[0]
    for base in owner.__mro__:
        if name in vars(base):
            return not name.startswith("_") and base.__module__.split(".")[0] == package
    return False


def list_members(prefix: str, owner: Any, names: list[str], listing: dict[str, Any]) -> None:
    for name in names:
        value = getattr(owner, name)
        listing[f"{prefix}{name}"] = parameters(value) if callable(value) else None
        variant = inspect.isclass(owner) and inspect.isclass(value) and issubclass(value, owner)
        if inspect.isclass(value) and not variant:
            members = sorted(n for n in dir(value) if is_documented_member(value, n))
            list_members(f"{prefix}{name}.", value, members, listing)


def list_package(package: str) -> dict[str, Any]:
    module = importlib.import_module(package)
    listing: dict[str, Any] = {}
    list_members("", module, sorted(module.__all__), listing)
    for submodule_name in SUBMODULES:
        try:
            submodule = importlib.import_module(f"{package}.{submodule_name}")
        except ImportError:
            continue
        names = getattr(submodule, "__all__", None) or [
            name
            for name, value in vars(submodule).items()
            if inspect.isfunction(value)
            and value.__module__ == submodule.__name__
            and not name.startswith("_")
        ]
        list_members(f"{submodule_name}.", submodule, sorted(names), listing)
    return listing


if __name__ == "__main__":
    # One line per name keeps the differences between two versions readable.
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in list_package(sys.argv[1]).items()]
    print("{\n" + ",\n".join(lines) + "\n}")
