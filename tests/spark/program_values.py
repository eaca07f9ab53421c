"""Values that programs let tasks compute; light, because every Python worker imports it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = (8, 6)


def numbers(region: Any) -> Any:
    rows = np.arange(region[0].start, region[0].stop)[:, None]
    return rows * 10 + np.arange(region[1].start, region[1].stop)


class Fails:
    """Values whose first calls for one region fail, each in its own way."""

    def __init__(self, folder: str, times: int, *, kill: bool = False) -> None:
        self.folder = folder
        self.times = times
        self.kill = kill

    def __call__(self, region: Any) -> Any:
        if region[0].start == 4 and region[1].start == 0:
            for number in range(self.times):
                mark = Path(self.folder) / f"attempt-{self.kill}-{number}"
                if not mark.exists():
                    mark.touch()
                    if self.kill:
                        os.kill(executor_of(os.getpid()), signal.SIGKILL)
                    raise ConnectionResetError("the network is flaky today")
        return numbers(region)


class HangsAtFirst:
    """Values of which one region hangs in the first attempt, and tells of all its attempts."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, region: Any) -> Any:
        from pyspark import TaskContext

        if region[0].start == 6 and region[1].start == 3:
            context = TaskContext.get()
            assert context is not None
            attempt = context.attemptNumber()
            (self.folder / f"attempt-{attempt}").write_text(str(context.partitionId()))
            while attempt == 0 and not (self.folder / "go-on").exists():
                time.sleep(0.05)
        else:
            time.sleep(0.2)
        return numbers(region)


class Slow:
    """Values that take for ever, and tell that they are being computed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, region: Any) -> Any:
        for _ in range(1200):
            (Path(self.folder) / "beat").write_text(str(time.monotonic()))
            time.sleep(0.05)
        return 0


def executor_of(process: Any) -> Any:
    """The JVM that a Python worker belongs to."""
    import psutil

    for parent in psutil.Process(process).parents():
        if parent.name().startswith("java"):
            return parent.pid
    raise AssertionError("a worker has an executor above it")
