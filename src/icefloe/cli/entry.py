"""What the script `icefloe` calls."""

from __future__ import annotations

import importlib.util
import sys

MISSING = "The command line needs packages that are not installed: pip install 'icefloe[cli]'"


def main() -> None:
    """Run the command line, or say what to install for it."""
    from icefloe.cli.streams import prepare_streams

    prepare_streams()
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        sys.stderr.write(f"{MISSING}\n")
        sys.exit(2)
    try:
        from icefloe.cli.app import run

        run()
    except KeyboardInterrupt:  # before a command has begun
        sys.stderr.write("icefloe: interrupted\n")
        sys.exit(130)
