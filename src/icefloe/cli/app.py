"""The command line as a whole: its families of commands and options of its own."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from icefloe.cli.command import UsageError, report_unwritable, report_usage
from icefloe.cli.commands import (
    configuration,
    exchange,
    history,
    merging,
    nodes,
    pipelines,
    query,
    references,
    retention,
    starting,
    upkeep,
    viewing,
)
from icefloe.cli.exit_codes import ExitCode
from icefloe.cli.help import ReadableGroup
from icefloe.version import __version__

_HELP = """Transactional, versioned Zarr arrays: inspect, change and maintain repositories.

A PLACE is a URL (s3://bucket/prefix, gs://…, az://…, file:///…), a path, or an alias of
~/.config/icefloe/config.toml. A VERSION is a branch, a tag or a snapshot id, optionally with steps
as in git: main~3, main@{2026-01-31}. Credentials come from the environment."""


def make_app() -> typer.Typer:
    """Create the app with all commands."""
    app = typer.Typer(
        name="icefloe",
        cls=ReadableGroup,
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for family in (
        starting,
        configuration,
        history,
        nodes,
        viewing,
        references,
        merging,
        retention,
        upkeep,
        exchange,
        query,
        pipelines,
    ):
        family.add_to(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"icefloe {__version__}\n")
        raise typer.Exit


def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line of this process."""
    try:
        code = make_app()(prog_name="icefloe", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        sys.stderr.write("icefloe: interrupted\n")
        code = ExitCode.INTERRUPTED
    except OSError as error:
        code = report_unwritable(error)
    except SystemExit as ending:  # typer ends with 1 if the reader of the help has seen enough
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        code = report_unwritable(ending.__context__)
    except UsageError as error:
        code = report_usage(error, as_json="--json" in sys.argv)
    sys.exit(code)
