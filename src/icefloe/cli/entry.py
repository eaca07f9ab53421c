"""What the script `icefloe` calls."""

from __future__ import annotations

import importlib.util
import sys

MISSING = "The command line needs packages that are not installed: pip install 'icefloe[cli]'"


def main() -> None:
    """Run the command line, or say what to install for it."""
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        sys.stderr.write(f"{MISSING}\n")
        sys.exit(2)
    from icefloe.cli.app import run

    run()
