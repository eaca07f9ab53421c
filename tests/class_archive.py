"""Spark's classes in an archive that a JVM maps into memory, so that it starts in half the time.

`python -m tests.class_archive` makes it, once for each version of Spark. A JVM that finds
none, or one that does not fit, starts without it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / ".cache" / "classes"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def quick_options() -> str:
    """Java options of a Spark that does little work and starts often."""
    return f"{_QUICK} -XX:SharedArchiveFile={_archive()}"


def use_everywhere() -> None:
    """Let each driver that this process or its children start take these options."""
    with suppress(PackageNotFoundError):  # some suites run without Spark
        os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_options())


def _archive() -> Path:
    return _FOLDER / f"spark-{version('pyspark')}.jsa"


def make() -> None:
    """Run a few queries, and archive the classes that they loaded."""
    from icefloe.spark import local_session

    archive = _archive()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (_FOLDER.parent / ".gitignore").write_text("*\n")
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return
        unfinished = archive.with_suffix(".unfinished")
        options = f"{_QUICK} -XX:ArchiveClassesAtExit={unfinished}"
        spark = local_session(1, memory="1g", config={"spark.driver.extraJavaOptions": options})
        joined = "SELECT count(*), sum(a.id) FROM range(9) a JOIN range(5) b USING (id) GROUP BY id"
        spark.sql(joined).collect()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        jvm.stdin.close()  # it archives when it exits
        jvm.wait()
        unfinished.replace(archive)


if __name__ == "__main__":
    make()
