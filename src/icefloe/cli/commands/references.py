"""Commands for branches and tags: `branch list|create|reset|delete`, `tag list|create|delete`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli import wording
from icefloe.cli.arguments import Branch, DryRun, Place, RequiredVersion, VersionOption, Yes
from icefloe.cli.command import BRANCHES, command, group
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Column, Done, Facts, Records, View, id_column
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.engine.info import SnapshotInfo
    from icefloe.repository import Repository

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]
TagName = Annotated[str, typer.Argument(metavar="TAG", help="The tag.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    branch = group(
        "List, create, reset and delete branches.",
        examples=["icefloe branch list ./weather", "icefloe branch create ./weather test"],
    )
    command(branch, "list", panel=BRANCHES, examples=["icefloe branch list ./weather"])(branches)
    command(
        branch,
        "create",
        panel=BRANCHES,
        examples=[
            "icefloe branch create ./weather test",
            "icefloe branch create era5 fix --version v1",
        ],
    )(create_branch)
    command(
        branch,
        "reset",
        panel=BRANCHES,
        examples=["icefloe branch reset ./weather main main~1 --dry-run"],
    )(reset_branch)
    command(
        branch, "delete", panel=BRANCHES, examples=["icefloe branch delete ./weather test --yes"]
    )(delete_branch)
    app.add_typer(branch, name="branch", rich_help_panel=BRANCHES)

    tag = group(
        "List, create and delete tags.",
        examples=["icefloe tag list ./weather", "icefloe tag create ./weather v1"],
    )
    command(tag, "list", panel=BRANCHES, examples=["icefloe tag list ./weather"])(tags)
    command(
        tag,
        "create",
        panel=BRANCHES,
        examples=["icefloe tag create ./weather v1", "icefloe tag create era5 v0 --version main~3"],
    )(create_tag)
    command(tag, "delete", panel=BRANCHES, examples=["icefloe tag delete ./weather v1 --dry-run"])(
        delete_tag
    )
    app.add_typer(tag, name="tag", rich_help_panel=BRANCHES)


def branches(
    out: Output,
    place: Place,
) -> View:
    """List branches and what they point to."""
    repository = open_place(place)
    rows = [
        _row(repository, name, repository.lookup_branch(name))
        for name in sorted(repository.list_branches())
    ]
    return Records(rows, _columns("branch"), "no branches")


def tags(
    out: Output,
    place: Place,
) -> View:
    """List tags and what they name."""
    repository = open_place(place)
    rows = [
        _row(repository, name, repository.lookup_tag(name))
        for name in sorted(repository.list_tags())
    ]
    return Records(rows, _columns("tag"), "no tags")


def _columns(title: str) -> tuple[Column, ...]:
    return (
        Column("name", title, style="green"),
        id_column(),
        Column("written_at", "written"),
        Column("message", "message", wording.first_line),
    )


def _row(repository: Repository, name: str, snapshot_id: str) -> dict[str, Any]:
    info = repository.lookup_snapshot(snapshot_id)
    return {
        "name": name,
        "id": info.id,
        "written_at": info.written_at,
        "message": info.message,
    }


def create_branch(
    out: Output,
    place: Place,
    name: NewName,
    version: VersionOption = MAIN,
) -> View:
    """Create a branch at a version."""
    repository = open_place(place)
    snapshot_id = repository.lookup_snapshot(version).id
    repository.create_branch(name, snapshot_id)
    return _created("branch", name, snapshot_id)


def create_tag(
    out: Output,
    place: Place,
    name: NewName,
    version: VersionOption = MAIN,
) -> View:
    """Create a tag for a version; it cannot be moved, and only the official format deletes tags."""
    repository = open_place(place)
    snapshot_id = repository.lookup_snapshot(version).id
    repository.create_tag(name, snapshot_id)
    return _created("tag", name, snapshot_id)


def _created(what: str, name: str, snapshot_id: str) -> Done:
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
