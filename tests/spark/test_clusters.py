"""Spark sessions of other kinds, each in a process of its own; and processes that die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import icefloe
from tests.spark.programs import environment

HERE = Path(__file__).parent


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment(),
        check=False,
    )


def result_of(done):
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert lines, done.stdout + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("RESULT "))


def test_a_cluster_with_flaky_tasks_and_an_executor_that_is_killed(tmp_path):
    found = result_of(run("cluster_program.py", str(tmp_path)))
    assert found == {
        "flaky": True,
        "killed": True,
        "mapped": True,
        "total": True,
        "chunks": [8, 8],
        "attempts": 3,
        "commits": 5,
    }


def test_spark_connect_with_retries(tmp_path):
    found = result_of(run("connect_program.py", str(tmp_path)))
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


@pytest.fixture
def repo(tmp_path):
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))


def test_a_driver_that_dies_before_the_commit_leaves_the_branch(repo, tmp_path):
    before = repo.lookup_branch("main")
    done = run("driver_program.py", str(tmp_path), "kill")
    assert done.returncode == -signal.SIGKILL
    assert "ALL WRITTEN" in done.stdout
    again = icefloe.Repository.open(repo.storage)
    assert again.lookup_branch("main") == before
    assert again.readonly_session("main").get_node("/t") is None


def test_control_c_cancels_the_job_on_the_cluster(repo, tmp_path):
    before = repo.lookup_branch("main")
    assert result_of(run("driver_program.py", str(tmp_path), "interrupt")) is False
    assert icefloe.Repository.open(repo.storage).lookup_branch("main") == before
