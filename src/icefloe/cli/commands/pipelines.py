"""The command `run`: pipelines on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.arguments import DryRun
from icefloe.cli.command import DATA, command
from icefloe.cli.exit_codes import ExitCode
from icefloe.cli.output import Output
from icefloe.cli.views import Done, View
from icefloe.cli.wording import printable
from icefloe.errors import InvalidInputError
from icefloe.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    command(
        app,
        run,
        DATA,
        "icefloe run pipeline.yaml --dry-run",
        "icefloe run pipeline.yaml --remote sc://cluster:15002 --json",
    )


def run(
    out: Output,
    pipeline: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A pipeline.yaml.", show_default=False),
    ],
    dry_run: DryRun = False,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="Validate again after a failure, even if nothing has changed."
        ),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option("--master", help="The Spark cluster; all cores of this machine by default."),
    ] = None,
    remote: Annotated[
        str | None, typer.Option("--remote", help="A Spark Connect server: sc://host:port.")
    ] = None,
) -> View:
    """Run a pipeline on Spark: ingest, compute, validate, publish, maintain.

    A second run processes only what is new, and continues an interrupted run. If validation fails,
    nothing is published, and the exit code is 1. Run pipelines with functions from Python, with
    `icefloe.spark.run_pipeline`.
    """
    require("icefloe run", "pyspark")
    if master is not None and remote is not None:
        raise InvalidInputError("pass --master or --remote, not both")
    from icefloe.spark import load_pipeline, run_pipeline
    from icefloe.spark.publishing.pipeline_run import check_functions

    loaded = load_pipeline(pipeline)
    check_functions(loaded.pipeline, {})  # before a JVM is started
    with out.working(f"running {loaded.pipeline.name}"):
        with out.hushed():
            spark = _session(master, remote)
        report = run_pipeline(spark, loaded, dry_run=dry_run, retry=retry, progress=False)
    data: dict[str, Any] = report.to_data() | {"dry_run": dry_run}
    sentence = "\n".join(map(printable, str(report).splitlines()))
    failed = report.status == "failed"
    return Done(sentence, data, ExitCode.PROBLEMS if failed else ExitCode.OK)


def _session(master: str | None, remote: str | None) -> SparkSession:
    from icefloe.spark.engine.local import local_session, prepare_environment

    if master is None and remote is None:
        return local_session()
    from pyspark.sql import SparkSession as Session

    prepare_environment()
    builder = Session.builder.appName("icefloe run")
    chosen = builder.remote(remote) if remote is not None else builder.master(str(master))
    session: SparkSession = chosen.getOrCreate()
    return session
