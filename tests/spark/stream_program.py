"""A stream from one repository to another, which is killed after some seconds, or catches up.

Run by `test_table_stream.py` again and again, with the folder of both repositories and the seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from icefloe.spark.engine.local import local_session
from tests.spark.conftest import QUICK_START
from tests.spark.programs import tell


def die() -> None:
    """End this process and the JVM; workers of Python notice later, as on a real cluster."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    spark = local_session(2, memory="1g", config=QUICK_START)
    query = (
        spark.readStream.format("icefloe")
        .option("max-commits-per-trigger", 1)
        .load(str(folder / "source"))
        .writeStream.format("icefloe")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("dims", "time,x")
        .option("operation", "append")
        .trigger(availableNow=True)
        .start(str(folder / "target"))
    )
    if seconds:
        threading.Timer(seconds, die).start()
    query.awaitTermination()
    tell("batches", len(query.recentProgress))


if __name__ == "__main__":
    main()
