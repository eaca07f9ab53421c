"""A stream from one repository to another, which is killed, or catches up.

Run by `test_table_stream.py` again and again, with the folder of both repositories. To be killed,
it also gets the number of batches that this run completes first, and the seconds until it dies.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from icefloe.spark.engine.local import local_session
from tests.spark.conftest import QUICK_START
from tests.spark.programs import tell


def die() -> None:
    """End this process and the JVM; workers of Python notice later, as on a real cluster."""
    os.killpg(0, signal.SIGKILL)


def die_after(query: Any, batches: int, seconds: float) -> None:
    """Die some seconds after a number of batches of this run."""
    while len(query.recentProgress) < batches:
        time.sleep(0.05)
    time.sleep(seconds)
    die()


def main() -> None:
    folder, moment = Path(sys.argv[1]), sys.argv[2:]
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
    if moment:
        arguments = (query, int(moment[0]), float(moment[1]))
        threading.Thread(target=die_after, args=arguments, daemon=True).start()
    query.awaitTermination()
    tell("batches", len(query.recentProgress))


if __name__ == "__main__":
    main()
