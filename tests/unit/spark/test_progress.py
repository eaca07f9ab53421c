"""Progress is shown where somebody looks at it."""

from __future__ import annotations

import io
from typing import Any

from icefloe.spark.engine.progress import Picture, Shown, Silent, TerminalBar, bar, choose


class Terminal(io.StringIO):
    def isatty(self) -> Any:
        return True


def test_files_and_pipes_get_nothing() -> None:
    assert isinstance(choose("job", wanted=None, stream=io.StringIO()), Silent)
    assert isinstance(choose("job", wanted=False, stream=Terminal()), Silent)


def test_terminals_get_one_line() -> None:
    screen = Terminal()
    with Shown(choose("job", wanted=None, stream=screen)) as shown:
        assert isinstance(shown, TerminalBar)
        shown.update(1, 4)
        shown.update(4, 4)
    text = screen.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert "1/4 tasks" in text
    assert "4/4 tasks" in text


def test_a_bar_is_full_at_the_end() -> None:
    assert bar("job", 0, 2, 0).count("█") == 0
    assert bar("job", 2, 2, 1.2).startswith("job █")
    assert "·" not in bar("job", 2, 2, 1.2)
    assert "2/2 tasks, 1 s" in bar("job", 2, 2, 1.2)


def test_the_end_says_whether_it_was_a_good_one() -> None:
    for error, word in ((ValueError(), "failed"), (KeyboardInterrupt(), "cancelled")):
        screen = Terminal()
        line = TerminalBar("job", screen)
        line.update(1, 4)
        line.close(error)
        assert screen.getvalue().endswith(f", {word}\n")


def test_names_are_no_html() -> None:
    shown = Picture("<b>&", 1, 4, 7200.0, "")._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;&amp;" in shown
    assert "width:25.0%" in shown
    assert "1 of 4 tasks, 2:00:00" in shown
    assert str(Picture("job", 1, 4, 150.0, "failed")).endswith("1/4 tasks, 2:30 min, failed")
