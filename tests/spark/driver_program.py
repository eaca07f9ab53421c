"""A driver that is killed after its tasks have written everything and before it commits.

Run by `test_clusters.py` with the folder of an existing repository; dies by SIGKILL. With the
word `interrupt`, it is interrupted from the keyboard in the middle of the job instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import icefloe
from icefloe.spark import NewArray, local_session, write
from icefloe.versioning.session import Session
from tests.spark.cluster_program import SHAPE, numbers


class Slow:
    """Values that take long, and tell that they are being computed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, region):
        for _ in range(600):
            time.sleep(0.1)
            (Path(self.folder) / "beat").write_text(str(time.monotonic()))
        return numbers(region)


def press_control_c(folder: str) -> None:
    while not (Path(folder) / "beat").exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def still_running(spark, folder: str) -> bool:
    """Whether the job or its tasks go on; Spark tells of their end a little later."""
    beat = Path(folder) / "beat"
    for _ in range(100):
        before = beat.read_text()
        time.sleep(0.5)
        active = spark.sparkContext.statusTracker().getActiveJobsIds()
        if not active and beat.read_text() == before:
            return False
    return True


def main() -> None:
    folder, how = sys.argv[1], sys.argv[2]
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    spark = local_session(2, memory="1g", config=quick)
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(f"{folder}/repo"))
    new = NewArray(SHAPE, "i4", (2, 3))
    if how == "interrupt":
        threading.Thread(target=press_control_c, args=(folder,), daemon=True).start()
        try:
            write(spark, repo, {"t": Slow(folder)}, create={"t": new})
        except KeyboardInterrupt:
            print("RESULT", json.dumps(still_running(spark, folder)))
        spark.stop()
        return

    def die(*_, **__):
        print("ALL WRITTEN", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    Session.commit = die  # type: ignore[method-assign]
    write(spark, repo, {"t": numbers}, create={"t": new}, task_bytes=1)


if __name__ == "__main__":
    main()
