"""What logs, OpenTelemetry and OpenLineage are told of a job; the real libraries, no network."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from icefloe.errors import InvalidInputError
from icefloe.spark import JobEvent, OpenLineageEvents, OpenTelemetryMetrics, add_listener
from icefloe.spark.engine import exporters
from icefloe.spark.engine.events import announce
from icefloe.tables.job_summary import JobSummary

if TYPE_CHECKING:
    from pathlib import Path

EVENT = JobEvent(
    location="s3://bucket/weather/era5",
    branch="main",
    snapshot_id="NEW",
    parent_id="OLD",
    arrays=("/t2m",),
    summary=JobSummary(
        job="ingest", spark_version="4.0", input_snapshots=("OLD",), files=3, chunks=12,
        bytes_written=4096, tasks=6, seconds=2.5,
    ),
)  # fmt: skip


def test_a_commit_is_logged_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "icefloe"):
        announce(EVENT)
    (record,) = caplog.records
    assert record.name == "icefloe.spark.jobs"
    assert record.getMessage() == (
        "ingest committed NEW to main of s3://bucket/weather/era5: 12 chunks, 4096 bytes written, "
        "6 tasks, 2.5 s"
    )
    told = vars(record)["icefloe"]
    assert (told["files"], told["snapshot_id"], told["arrays"]) == (3, "NEW", ["/t2m"])


def test_a_listener_that_fails_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[JobEvent] = []

    def failing(event: JobEvent) -> None:
        raise RuntimeError("no network")

    stops = [add_listener(failing), add_listener(events.append)]
    announce(EVENT)
    for stop in stops:
        stop()
        stop()  # twice is not too often
    announce(EVENT)
    assert events == [EVENT]
    assert "a listener of jobs failed; the commit NEW stands" in caplog.text


def test_metrics_of_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    listener = OpenTelemetryMetrics(provider.get_meter("test"))
    listener(EVENT)
    listener(EVENT)
    scopes: Any = reader.get_metrics_data().resource_metrics[0].scope_metrics
    points = {metric.name: metric.data.data_points[0] for metric in scopes[0].metrics}
    provider.shutdown()
    values = {name: point.value for name, point in points.items() if hasattr(point, "value")}
    assert values == {
        "icefloe.job.commits": 2,
        "icefloe.job.chunks": 24,
        "icefloe.job.bytes_written": 8192,
        "icefloe.job.files": 6,
        "icefloe.job.tasks": 12,
    }
    assert points["icefloe.job.duration"].sum == 5.0
    assert dict(points["icefloe.job.chunks"].attributes) == {
        "job": "ingest", "branch": "main", "location": "s3://bucket/weather/era5",
    }  # fmt: skip


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lineage_names_the_versions_that_were_read_and_made(tmp_path: Path) -> None:
    config = FileConfig(log_file_path=str(tmp_path / "events"), append=True)
    OpenLineageEvents(OpenLineageClient(transport=FileTransport(config)))(EVENT)
    start, complete = events_in(tmp_path / "events")
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["eventTime"] < complete["eventTime"]
    assert complete["job"] == {"namespace": "icefloe", "name": "ingest", "facets": {}}
    (source,), (result,) = complete["inputs"], complete["outputs"]
    assert (result["namespace"], result["name"]) == ("s3://bucket", "weather/era5")
    assert source["facets"]["version"]["datasetVersion"] == "OLD"
    assert result["facets"]["version"]["datasetVersion"] == "NEW"
    assert result["outputFacets"]["outputStatistics"]["size"] == 4096
    engine = complete["run"]["facets"]["processing_engine"]
    assert (engine["name"], engine["version"]) == ("Spark", "4.0")


def test_lineage_is_sent_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(EVENT)  # nothing is configured: nothing happens
    config = tmp_path / "openlineage.yml"
    config.write_text(
        f"transport: {{type: file, log_file_path: {tmp_path / 'events'}, append: true}}\n"
    )
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    exporters.configured_lineage.cache_clear()
    announce(EVENT)
    exporters.configured_lineage.cache_clear()
    assert [each["eventType"] for each in events_in(tmp_path / "events")] == ["START", "COMPLETE"]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InvalidInputError, match="pip install openlineage-python"):
        OpenLineageEvents()
    with pytest.raises(InvalidInputError, match="pip install opentelemetry-api"):
        OpenTelemetryMetrics()
