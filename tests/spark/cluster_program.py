"""A driver on a cluster of two executors: core flows, retries, and an executor that dies.

Run by `test_clusters.py` with the folder of a new repository; prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import icefloe
from icefloe.spark import NewArray, map_blocks, rechunk, reduce, write
from icefloe.spark.session import prepare_environment

SHAPE = (8, 6)


def numbers(region):
    rows = np.arange(region[0].start, region[0].stop)[:, None]
    return rows * 10 + np.arange(region[1].start, region[1].stop)


class Fails:
    """Values whose first calls for one region fail, each in its own way."""

    def __init__(self, folder: str, times: int, *, kill: bool = False) -> None:
        self.folder = folder
        self.times = times
        self.kill = kill

    def __call__(self, region):
        if region[0].start == 4 and region[1].start == 0:
            for number in range(self.times):
                mark = Path(self.folder) / f"attempt-{self.kill}-{number}"
                if not mark.exists():
                    mark.touch()
                    if self.kill:
                        os.kill(executor_of(os.getpid()), signal.SIGKILL)
                    raise ConnectionResetError("the network is flaky today")
        return numbers(region)


def executor_of(process):
    """The JVM that a Python worker belongs to."""
    import psutil

    for parent in psutil.Process(process).parents():
        if parent.name().startswith("java"):
            return parent.pid
    raise AssertionError("a worker has an executor above it")


def main() -> None:
    from pyspark.sql import SparkSession

    folder = sys.argv[1]
    prepare_environment()
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("icefloe tests")
    settings = {
        "spark.executor.memory": "1g",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(f"{folder}/repo"))
    new = NewArray(SHAPE, "i4", (2, 3), dims=("y", "x"))
    flaky = write(spark, repo, {"flaky": Fails(folder, 2)}, create={"flaky": new}, task_bytes=1)
    killed = write(
        spark, repo, {"killed": Fails(folder, 1, kill=True)}, create={"killed": new}, task_bytes=1
    )
    map_blocks(spark, repo, np.negative, "flaky", "mapped")
    reduce(spark, repo, "flaky", "sum", "total/flaky", dims="y")
    rechunk(spark, repo, "killed", (8, 1))
    session = repo.readonly_session("main")
    expected = numbers((slice(0, 8), slice(0, 6)))
    found = {
        "flaky": np.array_equal(session.read_region("/flaky"), expected),
        "killed": np.array_equal(session.read_region("/killed"), expected),
        "mapped": np.array_equal(session.read_region("/mapped"), -expected),
        "total": np.array_equal(session.read_region("/total/flaky"), expected.sum(axis=0)),
        "chunks": [flaky.chunks, killed.chunks],
        "attempts": len(list(Path(folder).glob("attempt-*"))),
        "commits": len(list(repo.ancestry(branch="main"))) - 1,
    }
    print("RESULT", json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
