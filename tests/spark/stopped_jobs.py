"""Jobs that are stopped: by Control-C in the middle, by SIGKILL after the tasks."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefloe.session import Session
from icefloe.spark import NewArray, ingest, write
from tests.spark.ingest_flow import months
from tests.spark.program_values import SHAPE, Slow, numbers
from tests.spark.programs import tell

if TYPE_CHECKING:
    import icefloe


def is_cancelled_by_control_c(spark: Any, repo: icefloe.Repository, folder: str) -> bool:
    """Interrupt a job from the keyboard; says whether nothing of it goes on."""
    threading.Thread(target=_press_control_c, args=(folder,), daemon=True).start()
    new = NewArray(SHAPE, "i4", (2, 3))
    try:
        write(spark, repo, {"t": Slow(folder)}, create={"t": new})
    except KeyboardInterrupt:
        return not _still_running(spark, folder)
    return False


def _press_control_c(folder: str) -> None:
    while not (Path(folder) / "beat").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def _still_running(spark: Any, folder: str) -> bool:
    """Whether the job or its tasks go on; Spark tells of their end a little later."""
    beat = Path(folder) / "beat"
    for _ in range(100):
        before = beat.read_text()
        time.sleep(0.4)
        active = spark.sparkContext.statusTracker().getActiveJobsIds()
        if not active and beat.read_text() == before:
            return False
    return True


def die_before_the_commits(
    spark: Any, repo: icefloe.Repository, other: icefloe.Repository, data: Path
) -> None:
    """Let tasks of two jobs write everything, and kill this process when both would commit.

    The ingest is one in rounds, the first of which was committed.
    """
    waiting = threading.Barrier(2, timeout=300)
    commit = Session.commit
    rounds: list[str] = []

    def die(session: Session, message: str, *arguments: Any, **options: Any) -> Any:
        if message.startswith("ingest") and not rounds:
            rounds.append(message)
            return commit(session, message, *arguments, **options)
        if waiting.wait() == 0:
            tell("all_written", True)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
        raise AssertionError("killed before")

    Session.commit = die  # type: ignore[method-assign, assignment]
    files = months(data, 1, 2)
    in_rounds = {"checkpoint_files": 1}
    ingesting = threading.Thread(
        target=ingest, args=(spark, other, files), kwargs=in_rounds, daemon=True
    )
    ingesting.start()
    new = NewArray(SHAPE, "i4", (2, 3))
    write(spark, repo, {"t": numbers}, create={"t": new}, task_bytes=1)
