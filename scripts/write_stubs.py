"""Write the stub files that tell type checkers and editors the lazily imported public names.

    .venv/bin/python scripts/write_stubs.py

The names are listed once, in `PUBLIC_NAMES` of each package; `make api` runs this.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from icefloe.lazy_names import public_names

PACKAGES = (
    "icefloe",
    "icefloe.config",
    "icefloe.spark",
    "icefloe.storage",
    "icefloe.tables",
    "icefloe.virtual",
)
SOURCE = Path(__file__).parents[1] / "src"


def stub_path(package: str) -> Path:
    """Where the stub of a package is."""
    return SOURCE / package.replace(".", "/") / "__init__.pyi"


def stub_text(package: str) -> str:
    """The stub of a package: one re-export for each public name."""
    module = importlib.import_module(package)
    lines = ["# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there."]
    names = sorted((home, public, name) for public, home, name in public_names(module.PUBLIC_NAMES))
    lines += [f"from {home} import {name} as {public}" for home, public, name in names]
    if "__version__" in module.__all__:
        lines.append("__version__: str")
    # Needed for what is exported under another name than its own.
    lines += ["__all__ = [", *(f'    "{name}",' for name in sorted(module.__all__)), "]"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for each in PACKAGES:
        stub_path(each).write_text(stub_text(each))
