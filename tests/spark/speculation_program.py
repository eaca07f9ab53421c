"""A driver of a standalone cluster on two loopback hosts, with speculation on.

Run by `test_clusters.py` with the folder of a new repository; prints a line of JSON. One task hangs
in its first attempt, so that Spark starts another one on the other host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyspark

import icefloe
from icefloe.spark import NewArray, write
from icefloe.spark.session import prepare_environment
from tests.spark.program_values import SHAPE, numbers
from tests.spark.programs import tell

HOME = str(Path(pyspark.__file__).parent)


class Hangs:
    """Values that take long when they are asked for the first time in one place."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, region):
        if region[0].start == 6 and region[1].start == 3:
            attempts = len(list(Path(self.folder).glob("attempt-*")))
            (Path(self.folder) / f"attempt-{os.getpid()}").touch()
            if attempts == 0:
                while not (Path(self.folder) / "done").exists():
                    time.sleep(0.1)
        else:
            time.sleep(0.3)
        return numbers(region)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [f"{HOME}/bin/spark-class", *arguments]
    environment = {**os.environ, "SPARK_HOME": HOME, "SPARK_DAEMON_MEMORY": "256m"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main() -> None:
    from pyspark.sql import SparkSession

    folder, port = sys.argv[1], sys.argv[2]
    prepare_environment()
    deploy = "org.apache.spark.deploy"
    url = f"spark://127.0.0.1:{port}"
    master = ("--host", "127.0.0.1", "--port", port, "--webui-port", "0")
    processes = [start(f"{deploy}.master.Master", *master)]
    for number in (1, 2):
        place = ("--host", f"127.0.0.{number}", "-c", "1", "-m", "1g", "--webui-port", "0")
        work = ("-d", f"{folder}/work-{number}")
        processes.append(start(f"{deploy}.worker.Worker", *place, *work, url))
    builder = SparkSession.builder.master(url).appName("icefloe tests")
    settings = {
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "2",
        "spark.speculation.quantile": "0.5",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        repo = icefloe.Repository.create(icefloe.local_filesystem_storage(f"{folder}/repo"))
        new = NewArray(SHAPE, "i4", (2, 3))
        report = write(spark, repo, {"t": Hangs(folder)}, create={"t": new}, task_bytes=1)
        (Path(folder) / "done").touch()
        session = repo.readonly_session("main")
        expected = numbers((slice(0, 8), slice(0, 6)))
        found = {
            "values": bool(np.array_equal(session.read_region("/t"), expected)),
            "chunks": report.chunks,
            "commits": len(list(repo.ancestry(branch="main"))) - 1,
            "attempts": len(list(Path(folder).glob("attempt-*"))),
        }
        tell("speculation", found)
        spark.stop()
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
