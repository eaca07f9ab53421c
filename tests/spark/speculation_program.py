"""A driver of a standalone cluster on two loopback hosts, with speculation on.

Run by `test_clusters.py` with an empty folder; prints a line of JSON. One task hangs in its first
attempt, so that Spark starts another one on the other host. Speculation never happens on one host,
and so neither in local mode nor on a local cluster.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import icefloe
from icefloe.spark import NewArray, write
from icefloe.spark.engine.local import prepare_environment
from tests.class_archive import quick_options
from tests.spark.program_values import SHAPE, HangsAtFirst, numbers
from tests.spark.programs import tell
from tests.spark.standalone import standalone_cluster

HOSTS = ("127.0.0.1", "127.0.0.2")


def session_on(url: str, folder: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(url).appName("icefloe tests")
    settings = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": quick_options(),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "2",
        "spark.speculation.quantile": "0.5",
        # Both executors are there before the first task, or the second host has no turn.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": Path(folder).as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def successes_of(folder: str, partition: int) -> list[list[Any]]:
    """By Spark's own log: attempts of a task that succeeded, and whether they were speculative."""
    (log,) = Path(folder).iterdir()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [
        [end["Task Info"]["Attempt"], end["Task Info"]["Speculative"]]
        for end in events
        if end["Event"] == "SparkListenerTaskEnd"
        and end["Task Info"]["Partition ID"] == partition
        and end["Task End Reason"]["Reason"] == "Success"
    ]


def main() -> None:
    folder = sys.argv[1]
    prepare_environment()
    events = f"{folder}/events"
    Path(events).mkdir()
    with standalone_cluster(folder, HOSTS) as url:
        spark = session_on(url, events)
        repo = icefloe.Repository.create(f"{folder}/repo")
        new = NewArray(SHAPE, "i4", (2, 3))
        slow = HangsAtFirst(folder)
        report = write(spark, repo, {"t": slow}, create={"t": new}, task_bytes=1)
        tip = repo.lookup_branch("main")
        # The attempt that hung may go on now, when all is committed.
        (Path(folder) / "go-on").touch()
        time.sleep(1)
        spark.stop()
    session = repo.readonly_session("main")
    expected = numbers((slice(0, 8), slice(0, 6)))
    found = {
        "values": bool(np.array_equal(session.read_region("/t"), expected)),
        "chunks": report.chunks,
        "references": session.chunk_count("/t"),
        "commits": len(list(repo.ancestry(branch="main"))) - 1,
        "is_tip": repo.lookup_branch("main") == tip == report.snapshot_id,
        "attempts": sorted(path.name for path in Path(folder).glob("attempt-*")),
        "successes": successes_of(events, int((Path(folder) / "attempt-0").read_text())),
    }
    tell("speculation", found)


if __name__ == "__main__":
    main()
