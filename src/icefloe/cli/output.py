"""Shows views as text or JSON, asks questions, and says what takes long.

Results go to standard output; questions, progress and errors to standard error. There are colours
on terminals only, and none if NO_COLOR is set.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import tempfile
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.cli.streams import write_json
from icefloe.progress import report_progress, start_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from icefloe.cli.exit_codes import ExitCode
    from icefloe.cli.views import View
    from icefloe.progress import Progress

_SHOWN_LOG = 8_192
_WIDE = 100_000
"""Lines that no terminal breaks are not broken by us either."""


class NotConfirmedError(Exception):
    """Nobody agreed to a dangerous command, so nothing was done."""


class Output:
    """Where a command shows what it did."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        """Choose who reads: people, or programs."""
        self.as_json = as_json
        self.quiet = quiet

    @cached_property
    def console(self) -> Console:
        """Standard output, for people."""
        return _console(sys.stdout)

    @cached_property
    def messages(self) -> Console:
        """Standard error, for questions and progress."""
        return _console(sys.stderr)

    def show(self, view: View) -> ExitCode:
        """Show a result; returns what the process ends with."""
        if self.as_json:
            write_json(to_json(view.data))
        elif not self.quiet:
            self._print(view)
        return view.exit_code

    def _print(self, view: View) -> None:
        if self.console.is_terminal:
            self.console.print(view.render())
            return
        # Tables are padded to equal lengths, which is of no use to whoever reads a pipe.
        with self.console.capture() as captured:
            self.console.print(view.render())
        lines = captured.get().splitlines()
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))

    def confirm(self, plan: View, question: str, *, yes: bool) -> None:
        """Show what would be done and ask; raises NotConfirmedError unless the answer is yes."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotConfirmedError(
                f"there is no terminal to ask at: {question} "
                "Add --yes to do it, or --dry-run to see what would be done."
            )
        self.messages.print(plan.render())
        self.messages.print(f"{question} [y/N] ", end="", markup=False, highlight=False)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotConfirmedError("nothing was done")

    @contextlib.contextmanager
    def working(self, label: str) -> Iterator[None]:
        """Show that something takes a while, and how far it is, on terminals."""
        if self.quiet or not sys.stderr.isatty():
            with report_progress(lambda *_: None):
                yield
            return
        with self.messages.status(label) as status:

            def show(stage: str, done: int, total: int | None) -> None:
                of = "" if total is None else f" of {total:,}"
                status.update(f"{label}: {stage} {done:,}{of}")

            with report_progress(show):
                yield

    @contextlib.contextmanager
    def hushed(self) -> Iterator[None]:
        """Keep what child processes write to standard error off the terminal, unless this fails.

        Java warns of things that nobody can change, into the middle of the line that is shown.
        """
        if not sys.stderr.isatty():
            yield
            return
        with tempfile.TemporaryFile() as log:
            terminal = os.dup(2)
            self.messages.file = os.fdopen(os.dup(terminal), "w")
            os.dup2(log.fileno(), 2)
            try:
                yield
            except BaseException:
                log.seek(0)
                os.write(terminal, log.read()[-_SHOWN_LOG:])
                raise
            finally:
                os.dup2(terminal, 2)
                os.close(terminal)

    def progress(self, label: str, total: int | None = None, *, unit: str = "step") -> Progress:
        """Start a progress bar on standard error, on terminals."""
        return start_progress(label, total, unit=unit, show=False if self.quiet else None)


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(
        file=stream,
        width=None if stream.isatty() else _WIDE,
        highlight=False,
        emoji=False,
        soft_wrap=not stream.isatty(),
    )


def to_json(data: Any) -> str:
    """Plain values, times, records and numpy's numbers as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(data, enc_hook=_plain), indent=2).decode()


def _plain(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)
