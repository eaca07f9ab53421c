"""Shows how far a job is: a bar in terminals and notebooks, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from types import TracebackType

_WIDTH = 30


class Progress(Protocol):
    """Something that is told how many tasks are done."""

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` tasks are done."""

    def close(self) -> None:
        """Show the end."""


class Silent:
    """Shows nothing."""

    def update(self, done: int, total: int) -> None:
        """Do nothing."""

    def close(self) -> None:
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

    def close(self) -> None:
        """End the line."""
        if self._last:
            self._stream.write("\n")
            self._stream.flush()


class NotebookBar:
    """A line in the output of a notebook cell."""

    def __init__(self, label: str) -> None:
        """Take what the line starts with."""
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        self._label = label
        self._started = time.monotonic()
        show: Any = display
        self._handle: Any = show(_Text(label), display_id=True)

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` tasks are done."""
        line = bar(self._label, done, total, time.monotonic() - self._started)
        if self._handle is not None:
            self._handle.update(_Text(line))

    def close(self) -> None:
        """Leave the last line."""


class _Text:
    """A line that notebooks print as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def bar(label: str, done: int, total: int, seconds: float) -> str:
    """One line of progress."""
    filled = _WIDTH if total == 0 else _WIDTH * done // total
    blocks = "█" * filled + "·" * (_WIDTH - filled)
    return f"{label} {blocks} {done}/{total} tasks, {seconds:.0f} s"


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
    return type(shell).__name__ == "ZMQInteractiveShell"


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
        self._progress.close()
