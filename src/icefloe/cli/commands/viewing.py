"""The command `ui`: the web viewer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icefloe.cli.arguments import Authorize, Place
from icefloe.cli.command import HISTORY, command
from icefloe.cli.output import Output, to_json
from icefloe.cli.places import open_place
from icefloe.cli.streams import write_json
from icefloe.cli.views import View
from icefloe.extras import require


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    command(app, ui, HISTORY, "icefloe ui ./weather", "icefloe ui era5 --no-browser")


def ui(
    out: Output,
    place: Place,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="A port of this machine; 0: any.")
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    authorize: Authorize = None,
) -> View | None:
    """Look at a repository in a browser: history, arrays as pictures, chunks, differences.

    The page is served to this machine only, and requires the token in its address.
    It cannot change anything. Ctrl-C stops it.
    """
    require("icefloe ui", "starlette", "uvicorn")
    from icefloe.viewer.server import Viewer

    viewer = Viewer(open_place(place, authorize or ()), port)
    if out.as_json:
        write_json(to_json({"url": viewer.url, "port": viewer.port}))
    else:
        out.console.print(f"Open {viewer.url}", markup=False)
    sys.stdout.flush()
    if browser:
        import webbrowser

        webbrowser.open(viewer.url)
    viewer.run()
    return None
