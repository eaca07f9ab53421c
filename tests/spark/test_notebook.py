"""The progress bar in a notebook: a real kernel runs jobs, and we look at what it sends."""

from __future__ import annotations

import re
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
quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
spark = local_session(1, memory="512m", config=quick)
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

    def bars(self) -> Any:
        """Kind, identity, HTML and text of all that was displayed, in order."""
        found = []
        for message in self.messages:
            if message["msg_type"] in ("display_data", "update_display_data"):
                content = message["content"]
                data = content["data"]
                name = content["transient"]["display_id"]
                found.append((message["msg_type"], name, data["text/html"], data["text/plain"]))
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
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    """One session, three jobs: a good one, one whose task fails, one that shall show nothing."""
    # Names of sockets must be short.
    with kernel(tmp_path_factory.mktemp("k")) as client:
        started = Cell(client, START)
        assert started.status == "ok", started.messages
        good = Cell(client, "bad = None\nreport = fill('good')")
        failing = Cell(client, "bad = 4\nfill('failing')")
        quiet = Cell(client, "bad = None\nprint(fill('quiet', progress=False).chunks)")
        Cell(client, "spark.stop()")
        yield good, failing, quiet


def shares(bars: list[Any]) -> list[float]:
    return [float(re.search(r"width:([\d.]+)%", html)[1]) for _, _, html, _ in bars]


def test_a_bar_begins_moves_and_ends(cells: tuple[Any, ...]) -> None:
    good = cells[0]
    assert good.status == "ok"
    bars = good.bars()
    assert bars[0][0] == "display_data"
    assert {kind for kind, _, _, _ in bars[1:]} == {"update_display_data"}
    assert len({name for _, name, _, _ in bars}) == 1
    moved = shares(bars)
    assert moved[0] == 0
    assert moved[-1] == 100
    assert moved == sorted(moved)
    assert any(0 < share < 100 for share in moved)
    assert "starting" in bars[0][2]
    assert "6 of 6 tasks, done after" in bars[-1][2]
    assert 'aria-valuenow="100"' in bars[-1][2]
    assert bars[-1][3].startswith("write ██████████████████████████████ 6/6 tasks")
    assert "█" not in good.printed()


def test_a_failure_is_seen(cells: tuple[Any, ...]) -> None:
    failing = cells[1]
    assert (failing.status, failing.error) == ("error", "TaskFailedError")
    bars = failing.bars()
    assert "5 of 6 tasks, failed after" in bars[-1][2]
    assert bars[-1][3].endswith("failed")
    colour = re.compile(r"background:(#\w+)")
    assert colour.search(bars[-1][2])[1] != colour.search(cells[0].bars()[-1][2])[1]


def test_no_bar_if_none_is_wanted(cells: tuple[Any, ...]) -> None:
    quiet = cells[2]
    assert quiet.status == "ok"
    assert quiet.bars() == []
    assert quiet.printed().strip() == "6"


def test_nothing_where_no_one_looks(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    capfd.readouterr()
    new = NewArray((6,), "i4", (1,))
    write(spark, repo, {"a": lambda _: 1}, create={"a": new}, task_bytes=1)
    assert np.array_equal(repo.readonly_session("main").read_region("/a"), np.ones(6))
    assert capfd.readouterr() == ("", "")
