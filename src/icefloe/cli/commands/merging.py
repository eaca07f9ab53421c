"""Commands that bring changes together: merge, cherry-pick, revert, squash, publish."""

from __future__ import annotations

import json
from enum import StrEnum
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
from icefloe.cli.views import Column, Done, Records, View, id_column
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.changes.conflicts import ConflictSolver


class Side(StrEnum):
    """Whose chunks win where both sides wrote one."""

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
        help="Whose chunks win where both sides wrote one; without it, that is a conflict.",
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
        panel=BRANCHES,
        examples=["icefloe merge ./weather test main", "icefloe merge era5 fix --prefer source"],
    )(merge)
    command(
        app,
        "cherry-pick",
        panel=BRANCHES,
        examples=["icefloe cherry-pick ./weather test~1 --branch main"],
    )(cherry_pick)
    command(app, panel=BRANCHES, examples=["icefloe revert ./weather main~1 -m 'bad calibration'"])(
        revert
    )
    command(
        app, panel=BRANCHES, examples=["icefloe squash ./weather test main -m 'all of 2025' --yes"]
    )(squash)
    command(app, panel=BRANCHES, examples=["icefloe publish ./weather staging main"])(publish)


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
    before = repository.lookup_branch(branch)
    with out.working("merging"):
        snapshot_id = repository.merge(
            source,
            branch,
            message=message,
            metadata=parse_properties(properties),
            solver=_solver(prefer, append),
            fast_forward=fast_forward,
        )
    return _moved(f"Merged {source} into {branch}", branch, snapshot_id, before)


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
    before = repository.lookup_branch(branch)
    with out.working("picking"):
        snapshot_id = repository.cherry_pick(
            version,
            branch=branch,
            message=message,
            metadata=parse_properties(properties),
            solver=_solver(prefer, append),
        )
    return _moved(f"Picked {version} to {branch}", branch, snapshot_id, before)


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
    before = repository.lookup_branch(branch)
    with out.working("reverting"):
        snapshot_id = repository.revert(
            version,
            branch=branch,
            message=message,
            metadata=parse_properties(properties),
            solver=_solver(prefer, None),
        )
    return _moved(f"Reverted {version} on {branch}", branch, snapshot_id, before)


def squash(
    out: Output,
    place: Place,
    branch: Branch,
    since: Annotated[
        str,
        typer.Argument(
            metavar="SINCE", help="The last version that stays as it is.", show_default=False
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
        [
            {"id": each.id, "written_at": each.written_at, "message": each.message}
            for each in replaced
        ],
        (
            id_column(),
            Column("written_at", "written"),
            Column("message", "message to be replaced", wording.first_line),
        ),
        "no commits to replace",
    )
    if dry_run:
        return plan
    out.confirm(plan, f"Replace {wording.counted(len(replaced), 'commit')} by one?", yes=yes)
    snapshot_id = repository.squash(
        branch, last.id, message=message, metadata=parse_properties(properties)
    )
    count = wording.counted(len(replaced), "commit")
    return _moved(f"Replaced {count} of {branch} by one", branch, snapshot_id)


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
    before = repository.lookup_branch(branch)
    snapshot_id = repository.publish(source, branch)
    return _moved(f"Published {source} as {branch}", branch, snapshot_id, before)


def _moved(sentence: str, branch: str, snapshot_id: str, before: str | None = None) -> Done:
    if snapshot_id == before:
        sentence = f"Nothing to do, {branch} has it already"
    text = f"{wording.printable(sentence)}: {wording.short_id(snapshot_id)}"
    return Done(text, {"branch": branch, "snapshot_id": snapshot_id})


def _solver(prefer: Side | None, append: str | None) -> ConflictSolver | None:
    """What decides conflicts; None leaves it to the library."""
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
    """Properties of a commit from `KEY=VALUE`; values are JSON, or else text.

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
    """JSON, or else text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
