"""Commands for branches and tags: `branch list|create|reset|delete`, `tag list|create|delete`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli import wording
from icefloe.cli.arguments import Branch, DryRun, Place, RequiredVersion, VersionOption, Yes
from icefloe.cli.command import BRANCHES, command, group
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Column, Done, Facts, Records, View, commit_columns, commit_row
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from icefloe.engine.info import SnapshotInfo
    from icefloe.repository import Repository

NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="The new branch or tag.", show_default=False)
]
TagName = Annotated[str, typer.Argument(metavar="TAG", help="The tag.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    branch = group(
        "List, create, reset and delete branches.",
        "icefloe branch list ./weather",
        "icefloe branch create ./weather test",
    )
    command(branch, branches, BRANCHES, "icefloe branch list ./weather", name="list")
    command(
        branch,
        create_branch,
        BRANCHES,
        "icefloe branch create ./weather test",
        "icefloe branch create era5 fix --version v1",
        name="create",
    )
    command(
        branch,
        reset_branch,
        BRANCHES,
        "icefloe branch reset ./weather main main~1 --dry-run",
        name="reset",
    )
    command(
        branch, delete_branch, BRANCHES, "icefloe branch delete ./weather test --yes", name="delete"
    )
    app.add_typer(branch, name="branch", rich_help_panel=BRANCHES)

    tag = group(
        "List, create and delete tags.",
        "icefloe tag list ./weather",
        "icefloe tag create ./weather v1",
    )
    command(tag, tags, BRANCHES, "icefloe tag list ./weather", name="list")
    command(
        tag,
        create_tag,
        BRANCHES,
        "icefloe tag create ./weather v1",
        "icefloe tag create era5 v0 --version main~3",
        name="create",
    )
    command(tag, delete_tag, BRANCHES, "icefloe tag delete ./weather v1 --dry-run", name="delete")
    app.add_typer(tag, name="tag", rich_help_panel=BRANCHES)


def branches(
    out: Output,
    place: Place,
) -> View:
    """List branches and what they point to."""
    repository = open_place(place)
    return _listed(repository, "branch", repository.list_branches(), repository.lookup_branch)


def tags(
    out: Output,
    place: Place,
) -> View:
    """List tags and what they name."""
    repository = open_place(place)
    return _listed(repository, "tag", repository.list_tags(), repository.lookup_tag)


def _listed(
    repository: Repository, what: str, names: Iterable[str], snapshot_of: Callable[[str], str]
) -> Records:
    rows = [
        {"name": name, **commit_row(repository.lookup_snapshot(snapshot_of(name)))}
        for name in sorted(names)
    ]
    columns = (Column("name", what, style="green"), *commit_columns())
    return Records(rows, columns, "no tags" if what == "tag" else "no branches")


def create_branch(
    out: Output,
    place: Place,
    name: NewName,
    version: VersionOption = MAIN,
) -> View:
    """Create a branch at a version."""
    repository = open_place(place)
    return _created(repository, "branch", name, version, repository.create_branch)


def create_tag(
    out: Output,
    place: Place,
    name: NewName,
    version: VersionOption = MAIN,
) -> View:
    """Create a tag for a version; it cannot be moved, and only the official format deletes tags."""
    repository = open_place(place)
    return _created(repository, "tag", name, version, repository.create_tag)


def _created(
    repository: Repository,
    what: str,
    name: str,
    version: str,
    create: Callable[[str, str], None],
) -> Done:
    snapshot_id = repository.lookup_snapshot(version).id
    create(name, snapshot_id)
    sentence = f"Created the {what} {wording.printable(name)} at {wording.short_id(snapshot_id)}"
    return Done(sentence, {what: name, "snapshot_id": snapshot_id})


def reset_branch(
    out: Output,
    place: Place,
    branch: Branch,
    version: RequiredVersion,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Point a branch to another version. Commits that no branch or tag reaches become garbage."""
    repository = open_place(place)
    before = repository.lookup_snapshot(repository.lookup_branch(branch))
    after = repository.lookup_snapshot(version)
    data = {"branch": branch, "from_snapshot_id": before.id, "to_snapshot_id": after.id}
    plan = Facts(
        data
        | {
            "from_message": before.message,
            "to_message": after.message,
            "dry_run": dry_run,
        },
        dict.fromkeys(("from_message", "to_message"), wording.first_line),
    )
    if dry_run:
        return plan
    out.confirm(plan, f"Reset {wording.printable(branch)}?", yes=yes)
    repository.reset_branch(branch, after.id, from_snapshot_id=before.id)
    return Done(
        f"Reset {wording.printable(branch)} from {wording.short_id(before.id)} "
        f"to {wording.short_id(after.id)}",
        data,
    )


def delete_branch(
    out: Output,
    place: Place,
    branch: Branch,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Delete a branch. Its commits stay until garbage is collected."""
    repository = open_place(place)
    tip = repository.lookup_snapshot(repository.lookup_branch(branch))
    if branch == MAIN:
        raise InvalidInputError("the branch main cannot be deleted: every repository has one")
    # A commit that somebody makes while the question is open is not lost.
    delete = partial(repository.delete_branch, branch, from_snapshot_id=tip.id)
    return _deleted(out, "branch", branch, tip, delete, yes=yes, dry_run=dry_run)


def delete_tag(
    out: Output,
    place: Place,
    tag: TagName,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Delete a tag of a repository in the official format; its name cannot be used again."""
    from icefloe.formats.registry import format_for

    repository = open_place(place)
    tagged = repository.lookup_snapshot(repository.lookup_tag(tag))
    delete = partial(repository.delete_tag, tag)
    if not format_for(repository.generation).is_official:
        delete()  # raises the error before anybody is asked
    return _deleted(out, "tag", tag, tagged, delete, yes=yes, dry_run=dry_run)


def _deleted(
    out: Output,
    what: str,
    name: str,
    tip: SnapshotInfo,
    delete: Callable[[], None],
    *,
    yes: bool,
    dry_run: bool,
) -> View:
    """Delete a reference after asking, or show what would be deleted."""
    data = {what: name, "snapshot_id": tip.id}
    plan = Facts(
        {**data, "message": tip.message, "dry_run": dry_run}, {"message": wording.first_line}
    )
    if dry_run:
        return plan
    out.confirm(plan, f"Delete the {what} {wording.printable(name)}?", yes=yes)
    delete()
    return Done(
        f"Deleted the {what} {wording.printable(name)}, which was at {wording.short_id(tip.id)}",
        data,
    )
