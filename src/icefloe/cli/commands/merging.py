"""Commands that bring changes together: merge, cherry-pick, revert, squash, publish."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli import wording
from icefloe.cli.arguments import (
    Branch,
    BranchOption,
    DryRun,
    Message,
    Place,
    Properties,
    RequiredVersion,
    Yes,
    complete_branch,
)
from icefloe.cli.command import BRANCHES, command
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Done, Records, View, commit_columns, commit_row
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.repository import Repository


class Side(StrEnum):
    """Whose chunk wins if both sides wrote it."""

    SOURCE = "source"
    TARGET = "target"


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The branch with the new commits.",
        autocompletion=complete_branch,
        show_default=False,
    ),
]
Prefer = Annotated[
    Side | None,
    typer.Option(
        "--prefer",
        help="Whose chunk wins if both sides wrote it; a conflict by default.",
        show_default=False,
    ),
]
Append = Annotated[
    str | None,
    typer.Option(
        "--append",
        metavar="DIMENSION",
        help="Place the source's appended data along this dimension after the target's.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        merge,
        BRANCHES,
        "icefloe merge ./weather test main",
        "icefloe merge era5 fix --prefer source",
    )
    command(app, cherry_pick, BRANCHES, "icefloe cherry-pick ./weather test~1 --branch main")
    command(app, revert, BRANCHES, "icefloe revert ./weather main~1 -m 'bad calibration'")
    command(app, squash, BRANCHES, "icefloe squash ./weather test main -m 'all of 2025' --yes")
    command(app, publish, BRANCHES, "icefloe publish ./weather staging main")


def merge(
    out: Output,
    place: Place,
    source: Source,
    branch: Annotated[
        str,
        typer.Argument(
            metavar="INTO", help="The branch that moves.", autocompletion=complete_branch
        ),
    ] = MAIN,
    message: Message = None,
    properties: Properties = None,
    prefer: Prefer = None,
    append: Append = None,
    fast_forward: Annotated[
        bool, typer.Option(help="Move the branch without a commit where that is enough.")
    ] = True,
) -> View:
    """Merge a branch into another: a three-way merge, as one commit."""
    repository = open_place(place)
    commit = partial(
        repository.merge,
        source,
        branch,
        message=message,
        metadata=parse_properties(properties),
        solver=_solver(prefer, append),
        fast_forward=fast_forward,
    )
    with out.working("merging"):
        return _moved(repository, branch, commit, f"Merged {source} into {branch}")


def cherry_pick(
    out: Output,
    place: Place,
    version: RequiredVersion,
    branch: BranchOption = MAIN,
    message: Message = None,
    properties: Properties = None,
    prefer: Prefer = None,
    append: Append = None,
) -> View:
    """Apply the changes of a commit to another branch."""
    repository = open_place(place)
    commit = partial(
        repository.cherry_pick,
        version,
        branch=branch,
        message=message,
        metadata=parse_properties(properties),
        solver=_solver(prefer, append),
    )
    with out.working("picking"):
        return _moved(repository, branch, commit, f"Picked {version} to {branch}")


def revert(
    out: Output,
    place: Place,
    version: RequiredVersion,
    branch: BranchOption = MAIN,
    message: Message = None,
    properties: Properties = None,
    prefer: Prefer = None,
) -> View:
    """Undo the changes of a commit by a new commit; later changes stay."""
    repository = open_place(place)
    commit = partial(
        repository.revert,
        version,
        branch=branch,
        message=message,
        metadata=parse_properties(properties),
        solver=_solver(prefer, None),
    )
    with out.working("reverting"):
        return _moved(repository, branch, commit, f"Reverted {version} on {branch}")


def squash(
    out: Output,
    place: Place,
    branch: Branch,
    since: Annotated[
        str,
        typer.Argument(
            metavar="SINCE", help="The last version to keep unchanged.", show_default=False
        ),
    ],
    message: Annotated[
        str, typer.Option("--message", "-m", help="Message of the commit.", show_default=False)
    ],
    properties: Properties = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Replace all commits of a branch after a version by one."""
    repository = open_place(place)
    last = repository.lookup_snapshot(since)
    replaced = list(
        takewhile(lambda commit: commit.id != last.id, repository.ancestry(branch=branch))
    )
    plan = Records(
        [commit_row(each) for each in replaced],
        commit_columns(message_title="message to be replaced"),
        "no commits to replace",
    )
    if dry_run:
        return plan
    out.confirm(plan, f"Replace {wording.counted(len(replaced), 'commit')} by one?", yes=yes)
    snapshot_id = repository.squash(
        branch, last.id, message=message, metadata=parse_properties(properties)
    )
    count = wording.counted(len(replaced), "commit")
    return _done(f"Replaced {count} of {branch} by one", branch, snapshot_id)


def publish(
    out: Output,
    place: Place,
    source: Source,
    branch: Annotated[
        str,
        typer.Argument(metavar="TO", help="The branch that moves.", autocompletion=complete_branch),
    ] = MAIN,
) -> View:
    """Move a branch forward to another that descends from it: write, audit, publish."""
    repository = open_place(place)
    publication = partial(repository.publish, source, branch)
    return _moved(repository, branch, publication, f"Published {source} as {branch}")


def _moved(repository: Repository, branch: str, move: Callable[[], str], sentence: str) -> Done:
    """Move a branch, and say so unless it stayed."""
    before = repository.lookup_branch(branch)
    snapshot_id = move()
    if snapshot_id == before:
        sentence = f"Nothing to do: {branch} already has it"
    return _done(sentence, branch, snapshot_id)


def _done(sentence: str, branch: str, snapshot_id: str) -> Done:
    text = f"{wording.printable(sentence)}: {wording.short_id(snapshot_id)}"
    return Done(text, {"branch": branch, "snapshot_id": snapshot_id})


def _solver(prefer: Side | None, append: str | None) -> ConflictSolver | None:
    """The solver of conflicts; None is the default of the library."""
    from icefloe.changes.conflicts import VersionSelection
    from icefloe.changes.solvers import AppendSolver, MergeSolver

    chunks = {
        None: VersionSelection.Fail,
        Side.SOURCE: VersionSelection.UseOurs,
        Side.TARGET: VersionSelection.UseTheirs,
    }
    solver = None if prefer is None else MergeSolver(on_chunk_conflict=chunks[prefer])
    if append is None:
        return solver
    return AppendSolver(append, solver or MergeSolver())


def parse_properties(properties: Sequence[str] | None) -> dict[str, Any] | None:
    """Properties of a commit from `KEY=VALUE`; a value that is not JSON is text.

    >>> parse_properties(["run=7", "by=Ada"])
    {'run': 7, 'by': 'Ada'}
    """
    if not properties:
        return None
    parsed: dict[str, Any] = {}
    for each in properties:
        key, separator, text = each.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"expected a property as KEY=VALUE, found {each!r}")
        parsed[key] = parse_value(text)
    return parsed


def parse_value(text: str) -> Any:
    """A value in JSON; any other text unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text
