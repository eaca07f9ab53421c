"""Spark sessions of other kinds, each in a process of its own; and processes that die.

Each kind of session runs one program, whose results several tests look at.
"""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe.spark import ingest
from tests.spark.ingest_flow import is_right
from tests.spark.programs import run_program
from tests.spark.table_flow import VALUES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.programs import Done

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """What a program on a cluster of two executors did, and the folder that it had."""
    folder = tmp_path_factory.mktemp("cluster")
    return run_program("cluster_program.py", str(folder)), folder


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """What a client of Spark Connect did."""
    return run_program("connect_program.py", str(tmp_path_factory.mktemp("connect")))


def test_a_cluster_with_flaky_tasks_and_an_executor_that_is_killed(
    cluster: tuple[Any, ...],
) -> None:
    done, _ = cluster
    assert done["core"] == {
        "flaky": True,
        "killed": True,
        "mapped": True,
        "total": True,
        "statistics": {"/flaky": True, "/killed": True},
        "chunks": [8, 8],
        "attempts": 3,
        "commits": 5,
    }


def test_tables_on_a_cluster(cluster: tuple[Any, ...]) -> None:
    done, _ = cluster
    assert done["tables"] == {
        "sum": True,
        "doubled": True,
        "little": True,
        "sql": [[3, -1.0], True],
    }


def test_maintenance_on_a_cluster(cluster: tuple[Any, ...]) -> None:
    done, _ = cluster
    assert done["maintenance"] == {"packed": True, "removed": True, "problems": 0, "moved": []}


def test_control_c_cancels_the_job_on_the_cluster(cluster: tuple[Any, ...]) -> None:
    done, _ = cluster
    assert done["cancelled"] is True


def test_a_driver_that_dies_before_the_commit_leaves_the_branch(cluster: tuple[Any, ...]) -> None:
    done, folder = cluster
    assert done["all_written"]
    assert done.code == -signal.SIGKILL
    # Nothing of the job that was interrupted is there either.
    repo = icefloe.Repository.open(str(folder / "stopped"))
    assert len(list(repo.ancestry(branch="main"))) == 1
    assert repo.readonly_session("main").get_node("/t") is None


def test_an_ingest_whose_driver_died_goes_on_where_it_was(
    cluster: tuple[Any, ...], spark: SparkSession
) -> None:
    done, folder = cluster
    assert done["all_written"]
    data = folder / "files" / "data"
    repo = icefloe.Repository.open(
        str(folder / "files" / "repo"), authorize_virtual_chunk_access={f"{data.as_uri()}/": None}
    )
    assert len(list(repo.ancestry(branch="main"))) == 1
    (staging,) = repo.list_branches() - {"main"}
    assert len(list(repo.ancestry(branch=staging))) == 2  # one round
    files = sorted(map(str, data.iterdir()))
    done = ingest(spark, repo, files, checkpoint_files=1)
    assert [len(done.new), len(done.unchanged)] == [1, 1]
    assert repo.list_branches() == {"main"}
    assert len(list(repo.ancestry(branch="main"))) == 2
    assert is_right(repo, "/", files)


def test_ingest_on_a_cluster(cluster: tuple[Any, ...]) -> None:
    done, _ = cluster
    # The parser is called three times for the header; for copies, twice for what is written.
    right = {"new": 2, "right": True, "commits": 2}
    assert done["ingest"] == {
        "virtual": {**right, "calls": 3},
        "copy": {**right, "calls": 5},
        "policies": {
            "fail": ["broken.nc", True],
            "skip": [["broken.nc", "skipped"]],
            "quarantine": [["broken.nc", "quarantined"]],
            "states": ["ingested", "ingested", "quarantined"],
            "right": True,
        },
        "disjoint": {"new": [1, 1], "commits": 2, "rows": 2, "right": True},
        "same": {"new": [0, 2], "commits": 1, "rows": 2, "right": True},
    }


def test_spark_connect_with_retries(connect: Done) -> None:
    found = connect["core"]
    told = found.pop("told")
    assert found == {
        "connect": True,
        "values": True,
        "top": True,
        "chunks": 8,
        "shown": True,
        "commits": 3,
    }
    assert "no data there" in told
    assert "array /t, region [" in told


def test_ingest_by_spark_connect(connect: Done) -> None:
    # A task fails twice and succeeds, for the header and then for copies that are written.
    right = {"new": 2, "right": True, "commits": 2}
    assert connect["ingest"] == {
        "virtual": {**right, "calls": 3},
        "copy": {**right, "calls": 6},
        "disjoint": {"new": [1, 1], "commits": 2, "rows": 2, "right": True},
        "same": {"new": [0, 2], "commits": 1, "rows": 2, "right": True},
    }


def test_tables_on_spark_connect(connect: Done) -> None:
    assert connect["tables"] == {
        "sum": True,
        "doubled": True,
        "sql": [[3, -1.0], True],
        "little": True,
        "summary": ["df.write", VALUES[10:].size, True, True, True, True],
        "told": "by the writer",
        "again": True,
        "provided": True,
    }
    assert connect.code == 0


def test_a_speculative_attempt_on_another_host_wins(tmp_path: Path) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            pytest.skip("this machine has one loopback address, and speculation needs two hosts")
    done = run_program("speculation_program.py", str(tmp_path))
    assert done["speculation"] == {
        "values": True,
        "chunks": 8,
        "references": 8,
        "commits": 1,
        "is_tip": True,
        "attempts": ["attempt-0", "attempt-1"],
        "successes": [[1, True]],
    }
    assert done.code == 0
