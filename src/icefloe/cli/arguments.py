"""Arguments and options that several commands have, and how shells complete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.repository import Repository


def complete_place(incomplete: str) -> list[str]:
    """Aliases of the configuration file; the shell itself completes paths."""
    from icefloe.cli.places import read_config_file

    try:
        names = read_config_file().places
    except IcefloeError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_version(ctx: typer.Context, incomplete: str) -> list[str]:
    """Branches and tags of the repository that the command line names."""
    return _names(ctx, incomplete, lambda repo: repo.list_branches() | repo.list_tags())


def complete_branch(ctx: typer.Context, incomplete: str) -> list[str]:
    """Branches of the repository that the command line names."""
    return _names(ctx, incomplete, lambda repo: repo.list_branches())


def complete_generation(incomplete: str) -> list[str]:
    """Families of formats."""
    from icefloe.formats.registry import GENERATIONS

    return [name for name in GENERATIONS if name.startswith(incomplete)]


def _names(
    ctx: typer.Context, incomplete: str, names_of: Callable[[Repository], set[str]]
) -> list[str]:
    from icefloe.cli.places import open_place

    place = ctx.params.get("place")
    try:
        names = names_of(open_place(place)) if place else set()
    except (IcefloeError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="Where the repository is: a URL, a path, or an alias of the configuration file.",
        autocompletion=complete_place,
        show_default=False,
    ),
]
_VERSION_HELP = (
    "A branch, a tag or a snapshot id (its first 4 characters are enough), optionally with steps "
    "as in git: main~3, main@{2026-01-31}."
)
Version = Annotated[
    str, typer.Argument(metavar="VERSION", help=_VERSION_HELP, autocompletion=complete_version)
]
RequiredVersion = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help=_VERSION_HELP,
        autocompletion=complete_version,
        show_default=False,
    ),
]
VersionOption = Annotated[
    str, typer.Option("--version", "-V", help=_VERSION_HELP, autocompletion=complete_version)
]
Branch = Annotated[
    str,
    typer.Argument(
        metavar="BRANCH",
        help="The branch that changes.",
        autocompletion=complete_branch,
        show_default=False,
    ),
]
BranchOption = Annotated[
    str, typer.Option("--branch", "-b", help="The branch.", autocompletion=complete_branch)
]
NodePath = Annotated[str, typer.Argument(metavar="PATH", help="A group or array.")]
Message = Annotated[
    str | None, typer.Option("--message", "-m", help="Message of the commit.", show_default=False)
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-p",
        metavar="KEY=VALUE",
        help="A property of the commit; may be repeated. A value that is not JSON is text.",
        show_default=False,
    ),
]
Arrays = Annotated[
    list[str] | None,
    typer.Option(
        "--array",
        "-a",
        help="Only these arrays or groups: a path, or a pattern such as '/era5/t*'.",
        show_default=False,
    ),
]
Authorize = Annotated[
    list[str] | None,
    typer.Option(
        "--authorize",
        metavar="PREFIX",
        help="A virtual chunk container that may be read, by its URL prefix; may be repeated.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only show what would be done.")]
