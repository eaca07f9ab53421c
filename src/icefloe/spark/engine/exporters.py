"""Listeners that tell other systems of jobs: OpenTelemetry metrics, OpenLineage events."""

from __future__ import annotations

import functools
import importlib.util
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.version import __version__

if TYPE_CHECKING:
    from icefloe.spark.engine.events import JobEvent

PRODUCER = f"icefloe/{__version__}"
_COUNTERS = {
    "chunks": "{chunk}",
    "bytes_read": "By",
    "bytes_written": "By",
    "files": "{file}",
    "rows": "{row}",
    "tasks": "{task}",
}


class OpenTelemetryMetrics:
    """A listener that exports counters of jobs to OpenTelemetry: `icefloe.job.chunks` and others.

    Counters have the attributes `job`, `branch` and `location`; `icefloe.job.duration` is a
    histogram of seconds.

    >>> from icefloe.spark import OpenTelemetryMetrics, add_listener
    >>> stop = add_listener(OpenTelemetryMetrics())  # with the meter provider of the process
    >>> stop()
    """

    def __init__(self, meter: Any = None) -> None:
        """Create the instruments.

        Args:
            meter: An OpenTelemetry meter; by default one of the process's meter provider.

        Raises:
            InvalidInputError: OpenTelemetry is not installed.
        """
        if meter is None:
            _require("opentelemetry", "opentelemetry-api")
            from opentelemetry import metrics

            meter = metrics.get_meter("icefloe", __version__)
        self._commits = meter.create_counter("icefloe.job.commits", "{commit}", "Commits of jobs")
        self._counters = {
            name: meter.create_counter(f"icefloe.job.{name}", unit, f"{name} of jobs")
            for name, unit in _COUNTERS.items()
        }
        self._duration = meter.create_histogram("icefloe.job.duration", "s", "Duration of jobs")

    def __call__(self, event: JobEvent) -> None:
        """Count one job."""
        summary = event.summary
        attributes = {
            "job": summary.job,
            "branch": event.branch,
            "location": event.location,
        }
        self._commits.add(1, attributes)
        counts = summary.to_data()
        for name, counter in self._counters.items():
            if counts.get(name):
                counter.add(counts[name], attributes)
        self._duration.record(summary.seconds, attributes)


class OpenLineageEvents:
    """A listener that sends an OpenLineage event for each commit of a job.

    The output is the repository at the new snapshot, inputs are the snapshots that the job read.

    >>> from icefloe.spark import OpenLineageEvents, add_listener
    >>> stop = add_listener(OpenLineageEvents(client))  # doctest: +SKIP
    """

    def __init__(self, client: Any = None, namespace: str = "icefloe") -> None:
        """Take a client, and the namespace of jobs.

        Args:
            client: An OpenLineage client; by default one from its own configuration
                (`OPENLINEAGE_URL`, `openlineage.yml`).
            namespace: The namespace of the jobs.

        Raises:
            InvalidInputError: The client of OpenLineage is not installed.
        """
        _require("openlineage", "openlineage-python")
        if client is None:
            from openlineage.client import OpenLineageClient

            client = OpenLineageClient()
        self._client = client
        self._namespace = namespace

    def __call__(self, event: JobEvent) -> None:
        """Send that a job began, and that it is complete."""
        from openlineage.client.event_v2 import RunState

        run_id = str(uuid.uuid4())
        end = datetime.now(UTC)
        begin = end - timedelta(seconds=event.summary.seconds)
        for state, moment in ((RunState.START, begin), (RunState.COMPLETE, end)):
            self._client.emit(self._event(event, run_id, state, moment))

    def _event(self, event: JobEvent, run_id: str, state: Any, moment: datetime) -> Any:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
        from openlineage.client.facet_v2 import (
            dataset_version_dataset,
            output_statistics_output_dataset,
            processing_engine_run,
        )

        summary = event.summary
        engine = processing_engine_run.ProcessingEngineRunFacet(
            version=summary.spark_version or "unknown",
            name="Spark",
            openlineageAdapterVersion=__version__,
            producer=PRODUCER,
        )
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=summary.rows, size=summary.bytes_written, producer=PRODUCER
        )

        def version(snapshot_id: str) -> dict[str, Any]:
            facet = dataset_version_dataset.DatasetVersionDatasetFacet(
                datasetVersion=snapshot_id, producer=PRODUCER
            )
            return {"version": facet}

        snapshots = summary.input_snapshots
        locations = event.input_locations or (event.location,) * len(snapshots)
        inputs = [
            (_dataset(location), snapshot_id)
            for location, snapshot_id in zip(locations, snapshots, strict=True)
        ]
        namespace, name = _dataset(event.location)
        return RunEvent(
            eventType=state,
            eventTime=moment.isoformat(),
            run=Run(runId=run_id, facets={"processing_engine": engine}),
            job=Job(namespace=self._namespace, name=summary.job),
            inputs=[
                InputDataset(namespace=store, name=path, facets=version(snapshot_id))
                for (store, path), snapshot_id in inputs
            ],
            outputs=[
                OutputDataset(
                    namespace=namespace,
                    name=name,
                    facets=version(event.snapshot_id),
                    outputFacets={"outputStatistics": statistics},
                )
            ],
            producer=PRODUCER,
        )


@functools.cache
def configured_lineage() -> OpenLineageEvents:
    """The listener that the environment configures; made once, as its client has connections."""
    return OpenLineageEvents()


def _dataset(location: str) -> tuple[str, str]:
    """Namespace and name of a dataset, by the naming rules of OpenLineage: store, then path.

    >>> _dataset("s3://bucket/weather/era5")
    ('s3://bucket', 'weather/era5')
    >>> _dataset("file:///data/era5")
    ('file', '/data/era5')
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return "file", rest or location
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path or "/"


def _require(package: str, distribution: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InvalidInputError(f"{distribution} is not installed: pip install {distribution}")
