"""Commands of retention: expire, gc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from icefloe.cli import wording
from icefloe.cli.arguments import DryRun, Place, Yes
from icefloe.cli.command import UPKEEP, command
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Done, Facts, Records, View, commit_columns, commit_row
from icefloe.errors import InvalidInputError
from icefloe.model.moments import parse_age

if TYPE_CHECKING:
    from icefloe.engine.retention.collection import GCSummary
    from icefloe.repository import Repository

_SHOWN = 20
_AGE = "an age such as 30d, 12h or 2w, or a time such as 2026-01-31T12:00Z."


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        expire,
        UPKEEP,
        "icefloe expire ./weather --older-than 30d --keep-last 10 --dry-run",
        "icefloe expire era5 --older-than 2026-01-31 --yes",
    )
    command(
        app, gc, UPKEEP, "icefloe gc ./weather --dry-run", "icefloe gc era5 --older-than 7d --yes"
    )


def expire(
    out: Output,
    place: Place,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help=f"Expire commits older than {_AGE}", show_default=False),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            min=1,
            help="How many of the newest commits of each history to retain, however old.",
            show_default=False,
        ),
    ] = None,
    delete_branches: Annotated[
        bool, typer.Option("--delete-branches", help="Delete branches whose tip expires.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Remove old commits from the history. `icefloe gc` then deletes what only they use."""
    if older_than is None and keep_last is None:
        raise InvalidInputError("say what expires: pass --older-than, --keep-last or both")
    repository = open_place(place)
    options: dict[str, Any] = {
        "older_than": None if older_than is None else parse_age(older_than),
        "keep_last": keep_last,
        "delete_expired_branches": delete_branches,
    }
    with out.working("looking for old commits"):
        plan = _expiring(repository, repository.expire_snapshots(**options, dry_run=True))
    count = len(plan.rows)
    if dry_run or not count:
        return plan
    out.confirm(plan, f"Expire {wording.counted(count, 'snapshot')}?", yes=yes)
    with out.working("expiring"):
        expired = sorted(repository.expire_snapshots(**options))
    return Done(f"Expired {wording.counted(len(expired), 'snapshot')}", {"snapshot_ids": expired})


def _expiring(repository: Repository, expired: set[str]) -> Records:
    """What would expire; only some of it has its message read, the newest of which is first."""
    infos = [repository.lookup_snapshot(each) for each in sorted(expired)[:_SHOWN]]
    infos.sort(key=lambda info: info.written_at, reverse=True)
    rows = [commit_row(info) for info in infos]
    rows += [{"id": each} for each in sorted(expired)[_SHOWN:]]
    return Records(
        rows,
        commit_columns(id_title="expires"),
        "nothing expires",
        note="Tips of branches and tags stay readable, even if they are listed." if rows else "",
    )


def gc(
    out: Output,
    place: Place,
    older_than: Annotated[
        str, typer.Option("--older-than", help=f"Only delete objects older than {_AGE}")
    ] = "1d",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Delete objects that no branch, tag or lease reaches."""
    repository = open_place(place)
    age = parse_age(older_than)
    if dry_run or not yes:
        with out.working("looking for garbage"):
            plan = _summary(repository.garbage_collect(age, dry_run=True), dry_run=True)
        if dry_run:
            return plan
        out.confirm(plan, "Delete this?", yes=yes)
    with out.working("collecting garbage"):
        summary = repository.garbage_collect(age)
    return _summary(summary, dry_run=False)


def _summary(summary: GCSummary, *, dry_run: bool) -> Facts:
    data = msgspec.structs.asdict(summary) | {"dry_run": dry_run}
    forms = {name: wording.number for name in data if name.endswith("_deleted")}
    return Facts(data, {**forms, "bytes_deleted": wording.size})
