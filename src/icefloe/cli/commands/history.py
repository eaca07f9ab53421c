"""Commands that show history: log, show, status, diff, blame."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from icefloe.cli import wording
from icefloe.cli.arguments import (
    Arrays,
    Place,
    Version,
    VersionOption,
    complete_version,
)
from icefloe.cli.command import HISTORY, command
from icefloe.cli.exit_codes import ExitCode
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Column, Facts, Records, Sections, View, commit_columns, commit_row
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.engine.history.walk import History
    from icefloe.engine.info import Diff
    from icefloe.repository import Repository

_COMPARED_COMMITS = 1000
"""How far back `status` looks for the commit where a branch left main."""


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        log,
        HISTORY,
        "icefloe log ./weather",
        "icefloe log era5 --all -n 50",
        "icefloe log era5 v1",
    )
    command(app, show, HISTORY, "icefloe show ./weather", "icefloe show era5 main~2 --json")
    command(app, status, HISTORY, "icefloe status ./weather")
    command(
        app,
        diff,
        HISTORY,
        "icefloe diff ./weather main~1 main",
        "icefloe diff era5 v1 main --values --array '/era5/t*'",
    )
    command(app, blame, HISTORY, "icefloe blame ./weather /temperature")


def log(
    out: Output,
    place: Place,
    version: Version = MAIN,
    count: Annotated[int, typer.Option("-n", "--max-count", min=1, help="How many commits.")] = 20,
    all_: Annotated[bool, typer.Option("--all", help="All branches and tags.")] = False,
) -> View:
    """Show commits, newest first, as a graph with branches, tags and merges."""
    from icefloe.cli.commit_graph import read_log

    return read_log(open_place(place), None if all_ else version, count)


def show(
    out: Output,
    place: Place,
    version: Version = MAIN,
) -> View:
    """Show a commit: its message, time, properties, and what it changed."""
    repository = open_place(place)
    info = repository.lookup_snapshot(version)
    facts = {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at,
        "message": info.message,
        "properties": info.metadata,
        "manifests": [manifest.id for manifest in info.manifests],
        "manifest_bytes": sum(manifest.size_bytes for manifest in info.manifests),
        "chunk_references": sum(manifest.num_chunk_refs for manifest in info.manifests),
    }
    forms: dict[str, Callable[[Any], str]] = {
        "message": lambda text: "\n".join(map(wording.printable, text.splitlines())),
        "properties": lambda items: "\n".join(
            f"{wording.printable(key)} = {wording.printable(value)}" for key, value in items.items()
        ),
        "manifests": lambda ids: str(len(ids)),
        "manifest_bytes": wording.size,
        "chunk_references": wording.number,
    }
    parts: dict[str, View] = {"commit": Facts(facts, forms)}
    if info.parent_id is not None:
        changes = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
        parts["changes"] = _changes(changes, "nothing changed")
    return Sections(parts)


def diff(
    out: Output,
    place: Place,
    older: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="The version to compare with.",
            autocompletion=complete_version,
            show_default=False,
        ),
    ],
    newer: Annotated[
        str,
        typer.Argument(metavar="TO", help="The other version.", autocompletion=complete_version),
    ] = MAIN,
    values: Annotated[
        bool, typer.Option("--values", help="Also compare the values of cells.")
    ] = False,
    arrays: Arrays = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with status 1 if anything differs.")
    ] = False,
) -> View:
    """Show which arrays, groups and chunks differ between two versions, and by how much."""
    repository = open_place(place)
    ends = {"from_snapshot_id": older, "to_snapshot_id": newer}
    code = ExitCode.OK
    if values:
        with out.working("comparing values"):
            found = repository.diff_values(**ends, arrays=arrays)
        if exit_code and any(each.changed_cells or each.not_comparable for each in found):
            code = ExitCode.PROBLEMS
        rows = [msgspec.structs.asdict(each) for each in found]
        return Records(rows, _VALUE_COLUMNS, "no array was written", exit_code=code)
    changes = repository.diff(**ends)
    if exit_code and not changes.is_empty():
        code = ExitCode.PROBLEMS
    return _changes(changes, "no differences", code)


_VALUE_COLUMNS = (
    Column("path", "array", style="cyan"),
    Column("changed_cells", "cells changed", wording.number, right=True),
    Column("largest_difference", "largest difference", right=True),
    Column("where", "at"),
    Column("compared_chunks", "chunks compared", wording.number, right=True),
    Column("not_comparable", ""),
)
_CHANGE_COLUMNS = (
    Column("change", "change", style="green"),
    Column("kind", "kind"),
    Column("path", "path", style="cyan"),
    Column("chunks", "chunks", wording.number, right=True),
    Column("moved_to", "to", style="cyan"),
)


def _changes(diff: Diff, empty: str, exit_code: ExitCode = ExitCode.OK) -> Records:
    from icefloe.engine.inspection import describe_changes

    columns = _CHANGE_COLUMNS if diff.moved_nodes else _CHANGE_COLUMNS[:-1]
    return Records(describe_changes(diff), columns, empty, exit_code=exit_code)


def blame(
    out: Output,
    place: Place,
    path: Annotated[str, typer.Argument(metavar="ARRAY", help="Path of an array.")],
    version: VersionOption = MAIN,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="One row for each chunk instead of each commit.")
    ] = False,
) -> View:
    """Show which commits last wrote the chunks of an array."""
    with out.working("reading the history"):
        last_writes = open_place(place).blame(path, snapshot_id=version)
    commits = [commit_row(stub) for stub in last_writes.snapshots]
    unknown = {"id": None, "written_at": None, "message": "written before the history begins"}
    columns = commit_columns()
    if chunks:
        rows = [
            {"chunk": coords, **(unknown if writer < 0 else commits[writer])}
            for coords, writer in zip(
                last_writes.coords.tolist(), last_writes.writers.tolist(), strict=True
            )
        ]
        return Records(rows, (Column("chunk", "chunk", right=True), *columns), "no chunks")
    counts: dict[int, int] = {}
    for writer in last_writes.writers.tolist():
        counts[writer] = counts.get(writer, 0) + 1
    rows = [
        {"chunks": counted, **(unknown if writer < 0 else commits[writer])}
        for writer, counted in sorted(counts.items(), key=lambda item: item[0] % (len(commits) + 1))
    ]
    return Records(
        rows, (Column("chunks", "chunks", wording.number, right=True), *columns), "no chunks"
    )


def status(
    out: Output,
    place: Place,
) -> View:
    """Show other branches than main, tags, active leases and the last operations."""
    from icefloe.engine.retention.leases import LeaseFiles
    from icefloe.storage.clock import storage_now

    repository = open_place(place)
    history = repository.context.history
    storage = repository.storage
    parts: dict[str, View] = {
        "summary": Facts(
            {
                "location": storage.location,
                "generation": repository.generation,
                "spec_version": repository.spec_version,
                "tags": len(repository.list_tags()),
            }
        ),
        "branches": _branches_beside_main(repository, history),
    }
    if storage.capabilities.can_list:
        leases = LeaseFiles(storage).find()
        if leases and storage.capabilities.can_write:
            now = storage_now(storage)
            leases = [lease for lease in leases if lease.ends >= now]
        parts["leases"] = Records(
            [{"holder": lease.holder, "ends": lease.ends, "id": lease.id} for lease in leases],
            (Column("holder", "holder"), Column("ends", "ends")),
            "no active leases",
        )
        parts["newest_operations"] = Records(
            [
                {"at": each.at, "kind": each.kind, "job": each.job, "details": each.details}
                for each in islice(repository.operations(), 5)
            ],
            (
                Column("at", "at"),
                Column("kind", "operation"),
                Column("details", "what", _what),
                Column("job", "by"),
            ),
        )
    return Sections(parts)


def _what(details: dict[str, Any]) -> str:
    """An operation in a few words: the message of a commit, or its details."""
    if "message" in details:
        return wording.first_line(str(details["message"]))
    return ", ".join(f"{key} {wording.plain(value)}" for key, value in details.items())[:80]


def _branches_beside_main(repository: Repository, history: History) -> Records:
    from icefloe.engine.history.walk import Revision

    def line(branch: str) -> list[str]:
        stubs = history.stubs(history.resolve(Revision(branch=branch)))
        return [str(stub.id) for stub in islice(stubs, _COMPARED_COMMITS)]

    main = {snapshot_id: place for place, snapshot_id in enumerate(line(MAIN))}
    rows = []
    for branch in sorted(repository.list_branches(), key=lambda name: (name != MAIN, name)):
        own = line(branch)
        ahead = next((n for n, each in enumerate(own) if each in main), None)
        behind = None if ahead is None else main[own[ahead]]
        info = repository.lookup_snapshot(own[0])
        rows.append({"branch": branch, "ahead": ahead, "behind": behind, **commit_row(info)})
    id_column, *others = commit_columns()
    columns = (
        Column("branch", "branch", style="green"),
        id_column,
        Column("ahead", "ahead", wording.number, right=True),
        Column("behind", "behind", wording.number, right=True),
        *others,
    )
    return Records(rows, columns)
