"""Progress bars are shown where somebody looks at them."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from typing import Any

import pytest

from icefloe.errors import InvalidInputError
from icefloe.progress import start_progress


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
