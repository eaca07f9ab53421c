"""A client of Spark Connect: flows, tables, failures that name what failed, and progress.

Run by `test_clusters.py` with an empty folder; prints a line of JSON for each part.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

import icefloe
from icefloe.errors import TaskFailedError
from icefloe.spark import NewArray, local_session, rechunk, reduce, write
from icefloe.spark.engine import runner
from tests.spark.ingest_flow import ingest_by_connect
from tests.spark.program_values import SHAPE, Fails, numbers
from tests.spark.programs import tell
from tests.spark.table_flow import use_tables, write_by_format


def broken(region: Any) -> Any:
    if region[1].start >= 4:
        raise ValueError("no data there")
    return 0


def use_core(spark: Any, repo: Any, folder: Any) -> Any:
    """Jobs of several kinds, with tasks that fail at first, and one that fails for good."""
    new = NewArray(SHAPE, "i4", (2, 3), dims=("y", "x"))
    screen = sys.stderr = io.StringIO()
    report = write(
        spark, repo, {"t": Fails(folder, 2)}, create={"t": new}, task_bytes=1, progress=True
    )
    sys.stderr = sys.__stderr__
    reduce(spark, repo, "t", "max", "top/t", dims="x")
    rechunk(spark, repo, "t", (8, 1))
    told = ""
    try:
        write(spark, repo, {"t": broken}, task_bytes=1)
    except TaskFailedError as error:
        told = str(error)
    session = repo.readonly_session("main")
    expected = numbers((slice(0, 8), slice(0, 6)))
    return {
        "connect": runner.is_connect(spark),
        "values": np.array_equal(session.read_region("/t"), expected),
        "top": np.array_equal(session.read_region("/top/t"), expected.max(axis=1)),
        "chunks": report.chunks,
        "told": told,
        "shown": "8/8 " in screen.getvalue(),
        "commits": len(list(repo.ancestry(branch="main"))) - 1,
    }


def main() -> None:
    folder = sys.argv[1]
    quick = {"spark.sql.shuffle.partitions": "2"}
    spark = local_session(2, memory="1g", max_failures=3, connect=True, config=quick)
    repo = icefloe.Repository.create(f"{folder}/repo")
    tell("core", use_core(spark, repo, folder))
    tables = f"{folder}/tables"
    read, doubled = use_tables(spark, tables)
    tell("tables", {**read, **write_by_format(doubled, tables)})
    tell("ingest", ingest_by_connect(spark, f"{folder}/ingest"))
    spark.stop()


if __name__ == "__main__":
    main()
