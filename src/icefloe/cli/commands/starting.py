"""Commands that make repositories or open them: init, clone, migrate, open."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli import wording
from icefloe.cli.arguments import Authorize, Place, Version, complete_generation
from icefloe.cli.command import START, command
from icefloe.cli.exit_codes import ExitCode
from icefloe.cli.output import Output
from icefloe.cli.places import open_place, storage_at
from icefloe.cli.views import Done, Facts, View
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.upkeep.migration import MigrationReport

Generation = Annotated[
    str | None,
    typer.Option(
        "--generation",
        help="The family of formats: repository, store, dataset, or icechunk (the official one).",
        autocompletion=complete_generation,
        show_default=False,
    ),
]
SpecVersion = Annotated[
    int | None,
    typer.Option("--spec-version", help="Version of that format; the newest by default."),
]
Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="An empty location: a URL, a path or an alias."),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        init,
        START,
        "icefloe init ./weather",
        "icefloe init s3://bucket/weather --generation store",
    )
    command(app, clone, START, "icefloe clone ./weather ./copy", "icefloe clone era5 ./era5")
    command(app, open_prompt, START, "icefloe open ./weather", "icefloe open era5 v1", name="open")


def init(
    out: Output,
    place: Place,
    generation: Generation = None,
    spec_version: SpecVersion = None,
) -> View:
    """Create an empty repository."""
    from icefloe.repository import Repository

    options: dict[str, Any] = {} if generation is None else {"generation": generation}
    repository = Repository.create(storage_at(place), spec_version=spec_version, **options)
    data = _described(repository)
    return Done(
        f"Created a repository at {wording.printable(data['location'])} "
        f"({data['generation']}, spec version {data['spec_version']})",
        data,
    )


def _described(repository: Repository) -> dict[str, Any]:
    return {
        "location": repository.storage.location,
        "generation": repository.generation,
        "spec_version": repository.spec_version,
    }


def clone(out: Output, place: Place, target: Target) -> View:
    """Copy a repository with all of its history, branches and tags to another location.

    If both are on one disk or in one bucket, chunk files are linked, or copied by the server. If
    it is interrupted, start it again: it continues where it stopped. At the end every snapshot is
    compared with its original.
    """
    source = open_place(place)
    report = _copy(out, source, target, source.generation, source.spec_version)
    return _copied(report, f"Cloned {place} to {target}")


def migrate(
    out: Output,
    place: Place,
    target: Target,
    generation: Annotated[
        str,
        typer.Option(
            "--generation",
            help="repository, store, dataset or icechunk.",
            autocompletion=complete_generation,
            show_default=False,
        ),
    ],
    spec_version: SpecVersion = None,
) -> View:
    """Copy a repository with all of its history to another generation of the format."""
    report = _copy(out, open_place(place), target, generation, spec_version)
    return _copied(report, f"Migrated {place} to {target} ({generation})")


def _copy(
    out: Output, source: Repository, target: str, generation: str, spec_version: int | None
) -> MigrationReport:
    with out.working("copying"):
        return source.migrate(storage_at(target), generation=generation, spec_version=spec_version)


def _copied(report: MigrationReport, sentence: str) -> View:
    import msgspec

    data = msgspec.to_builtins(report)
    counts = ", ".join(
        [
            wording.counted(report.snapshots, "snapshot"),
            wording.counted(report.branches, "branch", "branches"),
            wording.counted(report.tags, "tag"),
            wording.counted(report.chunk_files, "chunk file"),
        ]
    )
    if report.problems:
        problems = "\n".join(map(wording.printable, report.problems))
        return Done(f"{sentence}, and verification found\n{problems}", data, ExitCode.PROBLEMS)
    return Done(f"{wording.printable(sentence)}: {counts}", data)


def open_prompt(
    out: Output, place: Place, version: Version = MAIN, authorize: Authorize = None
) -> View | None:
    """Open a repository in a Python prompt, with `repo`, `session` and `store` ready.

    The session is read-only. With --json, the repository is only opened and described, which
    needs no terminal.
    """
    repository = open_place(place, authorize or ())
    session = repository.readonly_session(snapshot_id=version)
    if out.as_json:
        return Facts({**_described(repository), "snapshot_id": session.snapshot_id})
    names = {"repo": repository, "session": session, "store": session.store}
    if not sys.stdin.isatty():
        raise InvalidInputError(
            "a prompt needs a terminal: use --json to describe the repository, or open it in a "
            "program with icefloe.Repository.open"
        )
    import code

    banner = (
        f"icefloe {wording.printable(repository.storage.location)}, "
        f"version {wording.printable(version)}\nrepo, session and store are ready."
    )
    code.interact(banner=banner, local=names, exitmsg="")
    return None
