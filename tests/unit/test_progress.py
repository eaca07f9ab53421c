"""Progress bars are shown where somebody looks at them."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.errors import InvalidInputError
from icefloe.progress import ProgressStage, long_call, report_progress, start_progress, track
from icefloe.storage.concurrency import in_threads
from tests.builders import new_repository

if TYPE_CHECKING:
    from collections.abc import Callable


class Terminal(io.StringIO):
    def isatty(self) -> Any:
        return True


@pytest.mark.parametrize(
    ("stream", "show", "is_shown"),
    [
        (io.StringIO, None, False),
        (io.StringIO, False, False),
        (io.StringIO, True, True),
        (Terminal, None, True),
        (Terminal, False, False),
        (Terminal, True, True),
    ],
)
def test_terminals_get_a_bar_and_pipes_nothing_unless_told_otherwise(
    stream: Any, show: Any, is_shown: Any
) -> None:
    screen = stream()
    with start_progress("job", 4, show=show, stream=screen) as progress:
        assert progress.is_shown == is_shown
        progress.update(4)
    assert bool(screen.getvalue()) == is_shown


def test_a_terminal_gets_one_line_that_is_full_at_the_end() -> None:
    screen = Terminal()
    with start_progress("job", 4, unit="file", stream=screen) as progress:
        progress.update(1)
        progress.update(4)
    text = screen.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    lines = text.strip().split("\r")
    assert "0/4" in lines[0]
    assert lines[-1].startswith("job: 100%|")
    assert "4/4" in lines[-1]
    assert "file" in lines[-1]


def test_the_total_may_change_and_redraws_are_limited() -> None:
    screen = Terminal()
    with start_progress("job", stream=screen) as progress:
        for done in range(10_000):
            progress.update(done, 20_000)
        progress.update(20_000)
    text = screen.getvalue()
    assert "20000/20000" in text
    assert text.count("\r") < 1_000


@pytest.mark.parametrize(
    ("error", "word"), [(ValueError(), "failed"), (KeyboardInterrupt(), "cancelled")]
)
def test_the_end_says_whether_it_was_a_good_one(error: Any, word: Any) -> None:
    screen = Terminal()

    def stop() -> None:
        with start_progress("job", 4, stream=screen) as progress:
            progress.update(1)
            raise error

    with pytest.raises(type(error)):
        stop()
    last = screen.getvalue().rstrip("\n").split("\r")[-1]
    assert "1/4" in last
    assert word in last


def test_a_bar_starts_no_thread() -> None:
    before = threading.active_count()
    with start_progress("job", 4, show=True, stream=Terminal()):
        assert threading.active_count() == before


def test_without_tqdm_there_is_no_bar_unless_one_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with start_progress("job", 4, stream=Terminal()) as progress:
        assert not progress.is_shown
    with pytest.raises(InvalidInputError, match="need tqdm"):
        start_progress("job", 4, show=True)


def test_tqdm_is_imported_when_a_bar_is_shown() -> None:
    code = (
        "import sys, icefloe.progress as p\n"
        "with p.start_progress('job', 1, show=False) as shown: shown.update(1)\n"
        "assert 'tqdm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- long calls


@pytest.fixture
def repository() -> Repository:
    repository = new_repository()
    for number in range(3):
        with repository.transaction("main", message=f"part {number}") as store:
            zarr.create_array(store, name=f"a{number}", data=np.arange(1000))
    return repository


CALLS: dict[str, tuple[Callable[[Repository], Any], set[str]]] = {
    "garbage_collect": (
        lambda r: r.garbage_collect(timedelta(0)),
        {"objects listed", "snapshots", "manifests"},
    ),
    "expire": (lambda r: r.expire_snapshots(keep_last=1), {"snapshots"}),
    "verify": (
        lambda r: r.verify(deep=True),
        {"objects listed", "snapshots verified", "manifests"},
    ),
    "repair": (lambda r: r.repair(), {"snapshots"}),
    "compact": (lambda r: r.compact(branch="main"), {"arrays", "packs"}),
    "rewrite_manifests": (lambda r: r.rewrite_manifests("again", branch="main"), {"arrays"}),
    "materialize": (lambda r: r.materialize("main"), {"chunks"}),
    "check_virtual_sources": (lambda r: r.check_virtual_sources(), {"files"}),
    "migrate": (
        lambda r: r.migrate(icefloe.in_memory_storage(), generation="dataset"),
        {"survey", "chunk files", "snapshots", "compare"},
    ),
    "chunk_storage_stats": (lambda r: r.chunk_storage_stats(), {"snapshots", "manifests"}),
    "branch_storage_stats": (lambda r: r.branch_storage_stats(), {"snapshots", "manifests"}),
    "array_storage_stats": (lambda r: r.array_storage_stats("main"), {"arrays"}),
    "chunk_file_stats": (lambda r: r.chunk_file_stats(), {"manifests", "objects listed"}),
    "diff_values": (
        lambda r: r.diff_values(from_branch="main~1", to_branch="main"),
        {"arrays"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_may_take_long_report_their_stages(name: str, repository: Repository) -> None:
    call, stages = CALLS[name]
    reported: dict[str, tuple[int, int | None]] = {}

    def listen(stage: str, done: int, total: int | None) -> None:
        assert total is None or 0 <= done <= total
        reported[stage] = done, total

    with report_progress(listen):
        call(repository)
    assert stages <= set(reported)
    assert any(done for done, _ in reported.values()) or name in NOTHING_TO_DO
    for done, total in reported.values():
        assert total is None or done == total  # the last report is that all is done


NOTHING_TO_DO = {"materialize", "check_virtual_sources"}


def test_a_long_call_gets_a_bar_on_terminals_only(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.progress._DELAY_SECONDS", 0)
    for screen, is_shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        repository.verify()
        assert ("verify: snapshots" in screen.getvalue()) == is_shown
    # The bar is gone at the end: the report says the rest.
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    repository.verify()
    assert screen.getvalue().endswith("\r")
    assert "\n" not in screen.getvalue()


def test_quick_calls_show_nothing(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.progress._DELAY_SECONDS", 3600)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    repository.verify()
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("value", "is_shown"), [("0", False), ("off", False), ("1", True)])
def test_the_environment_decides(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, value: str, is_shown: bool
) -> None:
    monkeypatch.setattr("icefloe.progress._DELAY_SECONDS", 0)
    monkeypatch.setenv("ICEFLOE_PROGRESS", value)
    screen = io.StringIO() if is_shown else Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    repository.verify()
    assert bool(screen.getvalue()) == is_shown


def test_a_call_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icefloe.progress._DELAY_SECONDS", 0)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)

    def fail() -> None:
        with long_call("sweep"):
            for number in track(range(3), "rooms", 3):
                if number == 2:
                    raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert "failed" in screen.getvalue().splitlines()[-1]


def test_threads_count_for_the_call_that_started_them(repository: Repository) -> None:
    counted: list[int] = []

    def work(_: int) -> None:
        ProgressStage("steps", 8).advance()

    with report_progress(lambda _, done, __: counted.append(done)), long_call("work"):
        in_threads(work, range(8))
    assert counted.count(1) == 8
    in_threads(work, range(8))  # outside of a call nobody is told
    assert counted.count(1) == 8
