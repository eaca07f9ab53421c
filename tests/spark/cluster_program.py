"""A driver on a cluster of two executors: flows, retries, and processes that die, itself at last.

Run by `test_clusters.py` with an empty folder; prints a line of JSON for each part. One program
does it all because a cluster takes long to start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import icefloe
from icefloe.spark import (
    NewArray,
    map_blocks,
    migrate,
    rechunk,
    reduce,
    remove_orphan_files,
    rewrite_data_files,
    verify,
    write,
)
from icefloe.spark.engine.local import prepare_environment
from icefloe.tables.schema import variable_of
from icefloe.tables.statistics import read_entries
from icefloe.tables.summarize import Summaries
from tests.class_archive import quick_options
from tests.spark.ingest_flow import ingest_on_a_cluster, repository_of
from tests.spark.maintained import HOUR, copied, plain, repository_with_garbage, row
from tests.spark.program_values import SHAPE, Fails, numbers
from tests.spark.programs import tell
from tests.spark.stopped_jobs import die_before_the_commits, is_cancelled_by_control_c
from tests.spark.table_flow import use_tables


def cluster_session() -> Any:
    from pyspark.sql import SparkSession

    prepare_environment()
    # Workers of a local cluster ask for the name of this machine otherwise, and listen there.
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("icefloe tests")
    settings = {
        "spark.executor.memory": "1g",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.extraJavaOptions": quick_options(),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "2",
        # How long a Python worker may go on after its task was cancelled; 2 s if not given.
        "spark.python.task.killTimeout": "200ms",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def use_core(spark: Any, repo: Any, folder: Any) -> Any:
    """Jobs of several kinds, with tasks that fail and an executor that dies."""
    new = NewArray(SHAPE, "i4", (2, 3), dims=("y", "x"))
    told: dict[str, Any] = {"task_bytes": 1, "statistics": True}
    flaky = write(spark, repo, {"flaky": Fails(folder, 2)}, create={"flaky": new}, **told)
    map_blocks(spark, repo, np.negative, "flaky", "mapped")
    reduce(spark, repo, "flaky", "sum", "total/flaky", dims="y")
    dies = {"killed": Fails(folder, 1, kill=True)}
    killed = write(spark, repo, dies, create={"killed": new}, **told)
    known = {path: all_known(repo, path) for path in ("/flaky", "/killed")}
    rechunk(spark, repo, "killed", (8, 1))
    session = repo.readonly_session("main")
    expected = numbers((slice(0, 8), slice(0, 6)))
    return {
        "flaky": np.array_equal(session.read_region("/flaky"), expected),
        "killed": np.array_equal(session.read_region("/killed"), expected),
        "mapped": np.array_equal(session.read_region("/mapped"), -expected),
        "total": np.array_equal(session.read_region("/total/flaky"), expected.sum(axis=0)),
        "statistics": known,
        "chunks": [flaky.chunks, killed.chunks],
        "attempts": len(list(Path(folder).glob("attempt-*"))),
        "commits": len(list(repo.ancestry(branch="main"))) - 1,
    }


def all_known(repo: Any, path: Any) -> Any:
    """Whether there are statistics of all chunks as they are, equal to those of reading them."""
    session = repo.readonly_session("main")
    found = read_entries(session, variable_of(session, path))
    summaries = Summaries(session, [path])
    summaries.add_chunks(path, session.tree.chunk_coords(path))
    expected = summaries.entries(path, session.tree.chunk_table(path)).numbers
    return bool(found[1].all() and np.array_equal(found[0].reshape(-1, 3), expected))


def maintain(spark: Any, place: Path) -> Any:
    """Maintenance jobs of each kind: what deletes, what reads, and what copies."""
    repo = repository_with_garbage(place / "one")
    other = copied(repo, place / "other")
    packed = row(rewrite_data_files(spark, repo))
    removed = row(remove_orphan_files(spark, repo, HOUR))
    moved = row(migrate(spark, repo, str(place / "moved"), generation="dataset"))
    expected = plain(other.compact(branch="main"))
    return {
        "packed": packed == expected | {"snapshot_id": repo.lookup_branch("main")},
        "removed": removed == plain(other.garbage_collect(HOUR)),
        "problems": verify(spark, repo, deep=True).count(),
        "moved": moved["problems"],
    }


def main() -> None:
    folder = sys.argv[1]
    spark = cluster_session()
    repo = icefloe.Repository.create(f"{folder}/repo")
    tell("core", use_core(spark, repo, folder))
    tell("tables", use_tables(spark, f"{folder}/tables")[0])
    tell("ingest", ingest_on_a_cluster(spark, f"{folder}/ingest"))
    tell("maintenance", maintain(spark, Path(folder) / "maintained"))
    stopped = icefloe.Repository.create(f"{folder}/stopped")
    tell("cancelled", is_cancelled_by_control_c(spark, stopped, folder))
    die_before_the_commits(spark, stopped, *repository_of(Path(folder) / "files"))


if __name__ == "__main__":
    main()
