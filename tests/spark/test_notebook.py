"""The progress bar in a notebook: a real kernel runs jobs, and we look at what it sends."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

import icefloe
from icefloe.spark import NewArray, write
from tests.spark.programs import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

START = """
import os, time
import numpy as np
import icefloe
from icefloe.spark import NewArray, local_session, write
spark = local_session(1, memory="512m")
repo = icefloe.Repository.create(icefloe.local_filesystem_storage("repo"))
def slow(region):
    time.sleep(0.3)
    if region[0].start == bad:
        raise ValueError("no such day")
    return region[0].start
def fill(path, **more):
    new = NewArray((6,), "i4", (1,))
    return write(spark, repo, {path: slow}, create={path: new}, task_bytes=1, **more)
"""


class Cell:
    """What came of running a cell."""

    def __init__(self, client: Any, code: Any) -> None:
        self.messages: list[Any] = []
        reply = client.execute_interactive(
            code, output_hook=self.messages.append, timeout=400, stop_on_error=False
        )
        self.status = reply["content"]["status"]
        self.error = reply["content"].get("ename")

    def widgets(self) -> Any:
        """How many widgets were displayed."""
        shown = [m["content"]["data"] for m in self.messages if m["msg_type"] == "display_data"]
        return sum("application/vnd.jupyter.widget-view+json" in data for data in shown)

    def states(self, name: Any) -> Any:
        """The values that a property of widgets took, in order."""
        found = []
        for message in self.messages:
            if message["msg_type"] in ("comm_open", "comm_msg"):
                state = message["content"]["data"].get("state", {})
                found += [state[name]] if name in state else []
        return found

    def printed(self) -> Any:
        streams = [m["content"]["text"] for m in self.messages if m["msg_type"] == "stream"]
        return "".join(streams)


class _Manager(KernelManager):
    """A kernel of this very Python, without any kernel that is installed for the user."""

    @property
    def kernel_spec(self) -> Any:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="test", language="python")


@contextmanager
def kernel(folder: Any) -> Iterator[Any]:
    manager = _Manager(transport="ipc", connection_file=str(folder / "k.json"))
    own = {name: str(folder) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    manager.start_kernel(cwd=str(folder), env={**environment(), **own})
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cell]]:
    """One session, jobs with widgets and without: good ones, failing ones, and a silent one."""
    # Names of sockets must be short.
    with kernel(tmp_path_factory.mktemp("k")) as client:
        started = Cell(client, START)
        assert started.status == "ok", started.messages
        ran = {
            "good": Cell(client, "bad = None\nreport = fill('good')"),
            "failing": Cell(client, "bad = 4\nfill('failing')"),
            "silent": Cell(client, "bad = None\nprint(fill('silent', progress=False).chunks)"),
            "hidden": Cell(client, "import sys\nsys.modules['ipywidgets'] = None"),
            "good text": Cell(client, "bad = None\nreport = fill('good_text')"),
            "failing text": Cell(client, "bad = 4\nfill('failing_text')"),
        }
        Cell(client, "spark.stop()")
        yield ran


def test_a_widget_begins_moves_and_ends(cells: dict[str, Cell]) -> None:
    good = cells["good"]
    assert (good.status, good.widgets()) == ("ok", 1)
    moved = [value for value in good.states("value") if isinstance(value, float)]
    assert moved[0] == 0
    assert moved[-1] == 6
    assert moved == sorted(moved)
    assert any(0 < value < 6 for value in moved)
    assert good.states("bar_style")[-1] == "success"
    assert any("6/6" in str(value) for value in good.states("value"))
    assert good.printed() == ""


def test_a_widget_shows_a_failure(cells: dict[str, Cell]) -> None:
    failing = cells["failing"]
    assert (failing.status, failing.error) == ("error", "TaskFailedError")
    assert failing.states("bar_style")[-1] == "danger"
    texts = [value for value in failing.states("value") if isinstance(value, str)]
    assert "5/6" in texts[-1]
    assert "failed" in texts[-1]


def test_a_bar_of_text_where_widgets_are_not_installed(cells: dict[str, Cell]) -> None:
    good = cells["good text"]
    assert (good.status, good.widgets()) == ("ok", 0)
    lines = good.printed().strip().split("\r")
    assert lines[0].startswith("write:   0%")
    assert lines[-1].startswith("write: 100%|█")
    assert any("/6" in line and "0/6" not in line and "6/6" not in line for line in lines)
    assert "Warning" not in good.printed()


def test_a_bar_of_text_shows_a_failure(cells: dict[str, Cell]) -> None:
    failing = cells["failing text"]
    assert (failing.status, failing.error) == ("error", "TaskFailedError")
    last = failing.printed().strip().split("\r")[-1]
    assert "5/6" in last
    assert "failed" in last


def test_no_bar_if_none_is_wanted(cells: dict[str, Cell]) -> None:
    silent = cells["silent"]
    assert (silent.status, silent.widgets()) == ("ok", 0)
    assert silent.printed().strip() == "6"


def test_nothing_where_no_one_looks(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    capfd.readouterr()
    new = NewArray((6,), "i4", (1,))
    write(spark, repo, {"a": lambda _: 1}, create={"a": new}, task_bytes=1)
    assert np.array_equal(repo.readonly_session("main").read_region("/a"), np.ones(6))
    assert capfd.readouterr() == ("", "")
