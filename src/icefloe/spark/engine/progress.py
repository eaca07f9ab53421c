"""Shows how far a job is: a bar in terminals and notebooks, nothing elsewhere."""

from __future__ import annotations

import html
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from types import TracebackType

_WIDTH = 30
_RUNNING, _DONE, _FAILED, _CANCELLED = "", "done", "failed", "cancelled"
_COLOURS = {_RUNNING: "#2f7fbf", _DONE: "#3a9a5b", _FAILED: "#c8402f", _CANCELLED: "#b58a1b"}


class Progress(Protocol):
    """Something that is told how many tasks are done."""

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` tasks are done."""

    def close(self, error: BaseException | None = None) -> None:
        """Show the end, and whether it was a good one."""


class Silent:
    """Shows nothing."""

    def update(self, done: int, total: int) -> None:
        """Do nothing."""

    def close(self, error: BaseException | None = None) -> None:
        """Do nothing."""


class TerminalBar:
    """A line that is written over and over."""

    def __init__(self, label: str, stream: TextIO) -> None:
        """Take what the line starts with and where it goes."""
        self._label = label
        self._stream = stream
        self._started = time.monotonic()
        self._last = ""

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` tasks are done."""
        line = bar(self._label, done, total, time.monotonic() - self._started)
        if line != self._last:
            self._stream.write(f"\r{line.ljust(len(self._last))}")
            self._stream.flush()
            self._last = line

    def close(self, error: BaseException | None = None) -> None:
        """End the line."""
        if self._last:
            state = _state_after(error)
            self._stream.write("\n" if state == _DONE else f", {state}\n")
            self._stream.flush()


class NotebookBar:
    """A bar in the output of a notebook cell, which stays there as it was at the end."""

    def __init__(self, label: str) -> None:
        """Take what the bar is called, and show it."""
        from IPython import display  # type: ignore[import-not-found,unused-ignore]

        self._label = label
        self._started = time.monotonic()
        self._done, self._total = 0, 0
        self._shown = self._picture(_RUNNING)
        show: Any = display.display
        self._handle: Any = show(self._shown, display_id=True)

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` tasks are done."""
        self._done, self._total = done, total
        self._show(self._picture(_RUNNING))

    def close(self, error: BaseException | None = None) -> None:
        """Leave a bar that says how it ended."""
        self._show(self._picture(_state_after(error)))

    def _picture(self, state: str) -> Picture:
        seconds = time.monotonic() - self._started
        return Picture(self._label, self._done, self._total, seconds, state)

    def _show(self, picture: Picture) -> None:
        if self._handle is not None and str(picture) != str(self._shown):
            self._shown = picture
            self._handle.update(picture)


class Picture:
    """A bar at one moment: HTML for notebooks, and text for those that show none."""

    def __init__(self, label: str, done: int, total: int, seconds: float, state: str) -> None:
        """Take what is shown."""
        self._label, self._state = label, state
        self._done, self._total, self._seconds = done, total, seconds

    def __str__(self) -> str:
        line = bar(self._label, self._done, self._total, self._seconds)
        return f"{line}, {self._state}" if self._state else line

    __repr__ = __str__

    def _repr_html_(self) -> str:
        share = 100 * self._done / self._total if self._total else 0.0
        if self._state == _DONE:
            share = 100.0
        tasks = f"{self._done:,} of {self._total:,} tasks" if self._total else "starting"
        ended = f"{self._state} after " if self._state else ""
        # Colours that are seen on light and on dark pages; no style sheet, as many remove them.
        return (
            '<div style="display:flex;align-items:center;gap:0.8em;max-width:50em;'
            'font:13px/1.6 system-ui,sans-serif">'
            f'<span style="min-width:10em">{html.escape(self._label)}</span>'
            f'<div role="progressbar" aria-label="{html.escape(self._label)}" '
            f'aria-valuemin="0" aria-valuemax="100" aria-valuenow="{share:.0f}" '
            'style="flex:1;min-width:8em;height:0.65em;border-radius:0.33em;overflow:hidden;'
            'background:rgba(128,128,128,0.25)">'
            f'<div style="width:{share:.1f}%;height:100%;background:{_COLOURS[self._state]}"></div>'
            "</div>"
            '<span style="min-width:18em;white-space:nowrap;font-variant-numeric:tabular-nums">'
            f"{tasks}, {ended}{_readable(self._seconds)}</span></div>"
        )


def bar(label: str, done: int, total: int, seconds: float) -> str:
    """One line of progress."""
    filled = _WIDTH if total == 0 else _WIDTH * done // total
    blocks = "█" * filled + "·" * (_WIDTH - filled)
    return f"{label} {blocks} {done}/{total} tasks, {_readable(seconds)}"


def _readable(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def _state_after(error: BaseException | None) -> str:
    if error is None:
        return _DONE
    return _CANCELLED if isinstance(error, KeyboardInterrupt) else _FAILED


def choose(label: str, *, wanted: bool | None, stream: TextIO | None = None) -> Progress:
    """The right way to show progress here; `wanted` True or False overrules what is found."""
    stream = sys.stderr if stream is None else stream
    if wanted is False:
        return Silent()
    if _in_notebook():
        return NotebookBar(label)
    if wanted or stream.isatty():
        return TerminalBar(label, stream)
    return Silent()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # Hosted notebooks have shells of their own, made from this one.
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)


class Shown:
    """Progress that is closed however the job ends."""

    def __init__(self, progress: Progress) -> None:
        """Take what is shown."""
        self._progress = progress

    def __enter__(self) -> Progress:
        return self._progress

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.close(error)
