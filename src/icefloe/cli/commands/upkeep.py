"""Commands of upkeep: verify, repair, compact, rewrite-manifests, materialize, stats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from icefloe.cli import wording
from icefloe.cli.arguments import (
    Arrays,
    Authorize,
    BranchOption,
    DryRun,
    Message,
    Place,
    Properties,
    VersionOption,
    Yes,
)
from icefloe.cli.command import UPKEEP, command
from icefloe.cli.commands.merging import parse_properties
from icefloe.cli.commands.starting import migrate
from icefloe.cli.exit_codes import ExitCode
from icefloe.cli.output import Output
from icefloe.cli.places import open_place, storage_at
from icefloe.cli.views import Column, Done, Drawn, Facts, Records, Sections, View
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from icefloe.repository import Repository
    from icefloe.upkeep.findings import Problem, VerificationReport
    from icefloe.upkeep.sizes import ChunkStorageStats


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(app, verify, UPKEEP, "icefloe verify ./weather", "icefloe verify era5 --deep --json")
    command(
        app, repair, UPKEEP, "icefloe repair ./weather --dry-run", "icefloe repair ./weather --yes"
    )
    command(app, compact, UPKEEP, "icefloe compact ./weather --dry-run", "icefloe compact era5")
    command(
        app, rewrite_manifests, UPKEEP, "icefloe rewrite-manifests ./weather -m 'split by year'"
    )
    command(
        app,
        materialize,
        UPKEEP,
        "icefloe materialize era5 --array /t2m --authorize s3://noaa-era5-pds/ --dry-run",
    )
    command(app, migrate, UPKEEP, "icefloe migrate ./weather ./tables --generation dataset")
    command(app, stats, UPKEEP, "icefloe stats ./weather", "icefloe stats era5 --version v1 --json")


def verify(
    out: Output,
    place: Place,
    deep: Annotated[bool, typer.Option("--deep", help="Read the bytes of all chunks.")] = False,
) -> View:
    """Check everything that branches and tags reach; exits with status 1 if there are problems."""
    repository = _open_damaged(place)
    with out.working("verifying"):
        report = repository.verify(deep=deep)
    code = ExitCode.OK if report.is_clean else ExitCode.PROBLEMS
    return Drawn(report.to_dict(), lambda: _report(report), code)


def _open_damaged(place: str) -> Repository:
    from icefloe.repository import Repository

    return Repository.open_for_repair(storage_at(place))


def _report(report: VerificationReport) -> RenderableType:
    from rich.text import Text

    style = "green" if report.is_clean else "red"
    *lines, verdict = str(report).splitlines()
    text = Text("".join(f"{wording.printable(line)}\n" for line in lines))
    return text.append(wording.printable(verdict), style=f"bold {style}")


def repair(
    out: Output,
    place: Place,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Verify, and repair what needs no guess; exits with status 1 if problems remain."""
    repository = _open_damaged(place)
    with out.working("verifying"):
        report = repository.verify()
    repairable = [problem for problem in report.problems if problem.repairable]
    others = len(report.problems) - len(repairable)
    code = ExitCode.PROBLEMS if others else ExitCode.OK
    left = f"{wording.counted(others, 'problem')} cannot be repaired: see icefloe verify"
    plan = _problems(repairable, "nothing to repair", left if others else "", code)
    if dry_run or not repairable:
        return plan
    out.confirm(plan, f"Repair {wording.counted(len(repairable), 'problem')}?", yes=yes)
    repaired = repository.repair(report)
    return _problems(repaired, "nothing was repaired", left if others else "", code)


def _problems(
    problems: Iterable[Problem], empty: str, note: str, code: ExitCode = ExitCode.OK
) -> Records:
    rows = [msgspec.to_builtins(problem) for problem in problems]
    columns = (
        Column("kind", "problem", style="red"),
        Column("message", "what is wrong"),
        Column("key", "object"),
    )
    return Records(rows=rows, columns=columns, empty=empty, note=note, exit_code=code)


def compact(
    out: Output,
    place: Place,
    branch: BranchOption = MAIN,
    message: Annotated[
        str, typer.Option("--message", "-m", help="Message of the commit.")
    ] = "compact chunk files",
    arrays: Arrays = None,
    pack_size: Annotated[
        str | None,
        typer.Option("--pack-size", help="Size of the new files, such as 32MiB."),
    ] = None,
    min_live_share: Annotated[
        float,
        typer.Option(
            "--min-live-share",
            min=0,
            max=1,
            help="Rewrite files of which less than this share is used.",
        ),
    ] = 0.5,
    to_branch: Annotated[
        str | None,
        typer.Option("--to-branch", help="A new branch for the commit, to inspect it first."),
    ] = None,
    dry_run: DryRun = False,
) -> View:
    """Move chunks of small and sparsely used chunk files into well-ordered packs, in one commit."""
    repository = open_place(place)
    with out.working("compacting"):
        summary = repository.compact(
            message,
            branch=branch,
            to_branch=to_branch,
            arrays=arrays,
            pack_bytes=None if pack_size is None else wording.parse_size(pack_size),
            min_live_share=min_live_share,
            dry_run=dry_run,
        )
    data = msgspec.to_builtins(summary) | {"dry_run": dry_run}
    counts = dict.fromkeys(("old_files", "new_files", "chunks"), wording.number)
    sizes = dict.fromkeys(("bytes_copied", "bytes_freed"), wording.size)
    return Facts(data, {**counts, **sizes})


def rewrite_manifests(
    out: Output,
    place: Place,
    message: Annotated[
        str, typer.Option("--message", "-m", help="Message of the commit.")
    ] = "rewrite manifests",
    branch: BranchOption = MAIN,
    properties: Properties = None,
) -> View:
    """Pack and split all manifests again as the configuration says, in one commit."""
    with out.working("rewriting manifests"):
        snapshot_id = open_place(place).rewrite_manifests(
            message, branch=branch, metadata=parse_properties(properties)
        )
    sentence = f"Rewrote the manifests of {branch}: {wording.short_id(snapshot_id)}"
    return Done(wording.printable(sentence), {"branch": branch, "snapshot_id": snapshot_id})


def materialize(
    out: Output,
    place: Place,
    branch: BranchOption = MAIN,
    arrays: Arrays = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            metavar="DIM=START:STOP",
            help="Only chunks with these elements of a dimension; may be repeated.",
        ),
    ] = None,
    locations: Annotated[
        list[str] | None,
        typer.Option("--location", metavar="URL", help="Only chunks in this file or folder."),
    ] = None,
    message: Message = None,
    properties: Properties = None,
    authorize: Authorize = None,
    dry_run: DryRun = False,
) -> View:
    """Copy virtual chunks into the repository, byte for byte, as one commit."""
    repository = open_place(place, authorize or ())
    with out.working("copying chunks"):
        copied = repository.materialize(
            branch,
            arrays=arrays,
            region=parse_region(region),
            locations=locations,
            message=message,
            metadata=parse_properties(properties),
            dry_run=dry_run,
        )
    data = msgspec.to_builtins(copied) | {"dry_run": dry_run}
    return Done(wording.printable(copied), data)


def parse_region(parts: list[str] | None) -> dict[str, slice] | None:
    """Slices by dimension from `DIM=START:STOP`, either end of which may be left out.

    >>> parse_region(["time=0:24"])
    {'time': slice(0, 24, None)}
    """
    if not parts:
        return None
    region = {}
    for part in parts:
        dimension, _, extent = part.partition("=")
        start, colon, stop = extent.partition(":")
        ends = [each or None for each in (start, stop)]
        if not (dimension and colon) or not all(e is None or e.isdecimal() for e in ends):
            raise InvalidInputError(f"expected a region as DIM=START:STOP, found {part!r}")
        low, high = (None if each is None else int(each) for each in ends)
        region[dimension] = slice(low, high)
    return region


def stats(
    out: Output,
    place: Place,
    version: VersionOption = MAIN,
    history: Annotated[
        bool, typer.Option("--history", help="What each commit of the version added, instead.")
    ] = False,
) -> View:
    """Show how many bytes arrays, branches and chunk files take."""
    repository = open_place(place)
    with out.working("adding up sizes"):
        if history:
            return _snapshot_sizes(repository, version)
        files = repository.chunk_file_stats()
        parts: dict[str, View] = {
            "summary": Facts(
                _bytes(repository.chunk_storage_stats())
                | {
                    "chunk_files": len(files),
                    "chunk_file_bytes": files.total_bytes,
                    "dead_bytes": int(files.dead_bytes.sum()),
                },
                _SIZE_FORMS,
            ),
            "branches": _sizes(repository.branch_storage_stats(), "branch"),
            "arrays": _sizes(repository.array_storage_stats(snapshot_id=version), "array"),
        }
    return Sections(parts)


_BYTES = ("native_bytes", "virtual_bytes", "inlined_bytes", "total_bytes")
_SIZE_FORMS = dict.fromkeys((*_BYTES, "chunk_file_bytes", "dead_bytes"), wording.size)
_BYTE_COLUMNS = tuple(
    Column(name, name.removesuffix("_bytes"), wording.size, right=True) for name in _BYTES
)


def _bytes(stats: ChunkStorageStats) -> dict[str, Any]:
    return msgspec.structs.asdict(stats) | {"total_bytes": stats.total_bytes}


def _sizes(stats: dict[str, ChunkStorageStats], what: str) -> Records:
    rows = [{what: name, **_bytes(each)} for name, each in stats.items()]
    return Records(rows, (Column(what, what, style="cyan"), *_BYTE_COLUMNS), f"no {what}s")


def _snapshot_sizes(repository: Repository, version: str) -> Records:
    rows = [
        {
            "id": each.id,
            "written_at": each.written_at,
            "message": each.message,
            "chunks": each.chunks,
            "total_bytes": each.total.total_bytes,
            "added_bytes": each.added.total_bytes,
        }
        for each in repository.snapshot_storage_stats(snapshot_id=version)
    ]
    columns = (
        Column(key="id", title="id", form=wording.short_id, style="magenta"),
        Column("written_at", "written"),
        Column("chunks", "chunks", wording.number, right=True),
        Column("total_bytes", "total", wording.size, right=True),
        Column("added_bytes", "added", wording.size, right=True),
        Column("message", "message", wording.first_line),
    )
    return Records(rows, columns)
