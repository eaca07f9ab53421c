"""Progress of long calls, as bars by tqdm: in terminals and notebooks, silent elsewhere.

A call that may take long is a `long_call`; whatever works for it, at any depth, counts its steps in
a `stage`. A stage outside of such a call costs nothing. Importing this module is cheap: tqdm is
imported when a bar is shown, which is after half a second.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

_Item = TypeVar("_Item")
Listener = Callable[[str, int, int | None], None]
"""Called with the name of a stage, how many of its steps are done, and of how many if known."""

VARIABLE = "ICEFLOE_PROGRESS"
"""Environment variable: `0` shows no progress of long calls anywhere, `1` shows it everywhere."""
_REDRAW_SECONDS = 0.1
_DELAY_SECONDS = 0.5


class Progress:
    """How much of a long call is done, as a bar or as nothing; closed however the call ends.

    >>> with start_progress("verify", 3, show=False) as progress:
    ...     for number in range(3):
    ...         progress.update(number + 1)
    """

    def __init__(self, bar: Any = None) -> None:
        """Draw on a bar of tqdm; None shows nothing."""
        self._bar = bar
        self._drawn = 0.0

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees the updates, so that finding the numbers is worth the effort."""
        return self._bar is not None

    def update(self, done: int, total: int | None = None) -> None:
        """Show that `done` steps are done, of `total` if that has changed. Cheap to call often."""
        if self._bar is None:
            return
        self._bar.n = done
        if total is not None:
            self._bar.total = total
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now
            self._bar.refresh()

    def begin(self, label: str, total: int | None) -> None:
        """Start another bar in the place of this one."""
        if self._bar is None:
            return
        self._bar.set_description_str(label, refresh=False)
        self._bar.reset(total)
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is None:
            return
        if error is not None:
            ending = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
            self._bar.set_postfix_str(ending, refresh=False)
            self._bar.leave = True
        self._bar.refresh()
        self._bar.close()


class _LongCall:
    """A long call: shows the stage that was counted last, once it takes a while."""

    def __init__(self, label: str, listener: Listener | None) -> None:
        self._label = label
        self._listener = listener
        self._progress: Progress | None = None
        self._started = time.monotonic()
        self._stage: ProgressStage | None = None
        self._lock = threading.Lock()  # stages are counted by threads, too

    def count(self, stage: ProgressStage, steps: int, done: int | None, total: int | None) -> None:
        with self._lock:
            stage.done = stage.done + steps if done is None else done
            stage.total = stage.total if total is None else total
            if self._listener is not None:
                self._listener(stage.name, stage.done, stage.total)
            elif time.monotonic() - self._started >= _DELAY_SECONDS:
                self._draw(stage)

    def _draw(self, stage: ProgressStage) -> None:
        if self._progress is None:
            self._progress = start_progress(self._label, unit="", show=_wish(), leave=False)
        if stage is not self._stage:
            self._stage = stage
            self._progress.begin(f"{self._label}: {stage.name}", stage.total)
        self._progress.update(stage.done, stage.total)

    def end(self, error: BaseException | None) -> None:
        if self._progress is not None:
            kind = None if error is None else type(error)
            self._progress.__exit__(kind, error, None)


_CALL: ContextVar[_LongCall | None] = ContextVar("icefloe_call", default=None)
_LISTENER: ContextVar[Listener | None] = ContextVar("icefloe_listener", default=None)


@contextmanager
def long_call(label: str) -> Iterator[None]:
    """Show the progress of the stages of a long call; nested calls are part of it."""
    if _CALL.get() is not None:
        yield
        return
    call = _LongCall(label, _LISTENER.get())
    token = _CALL.set(call)
    try:
        yield
    except BaseException as error:
        call.end(error)
        raise
    else:
        call.end(None)
    finally:
        _CALL.reset(token)


@contextmanager
def report_progress(listener: Listener) -> Iterator[None]:
    """Call a function with the progress of long calls, instead of showing it.

    >>> import icefloe
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> stages = []
    >>> with report_progress(lambda stage, done, total: stages.append((stage, done))):
    ...     report = repo.verify()
    >>> ("snapshots verified", 1) in stages
    True
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class ProgressStage:
    """Steps of a kind within a long call; several threads may count them."""

    def __init__(self, name: str, total: int | None) -> None:
        """Belong to the call that this is made in, if any."""
        self.name = name
        self.total = total
        self.done = 0
        self._call = _CALL.get()
        if self._call is not None:
            self._call.count(self, 0, None, None)

    def advance(self, steps: int = 1) -> None:
        """Show that some more steps are done."""
        if self._call is not None:
            self._call.count(self, steps, None, None)

    def update(self, done: int, total: int | None = None) -> None:
        """Show how many steps are done, of how many if that has changed."""
        if self._call is not None:
            self._call.count(self, 0, done, total)


def track(items: Iterable[_Item], name: str, total: int | None = None) -> Iterator[_Item]:
    """The same items, each counted as a step when the next one is asked for."""
    stage = ProgressStage(name, total)
    for item in items:
        yield item
        stage.advance()


def stage_listener() -> Listener:
    """A listener that shows its calls as stages of the long call in progress."""
    stages: dict[str, ProgressStage] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in stages:
            stages[name] = ProgressStage(name, total)
        stages[name].update(done, total)

    return show


def _wish() -> bool | None:
    """What the environment says: True shows progress anywhere, False nowhere."""
    value = os.environ.get(VARIABLE, "").strip().lower()
    if not value:
        return None
    return value not in ("0", "false", "no", "off")


def start_progress(
    label: str,
    total: int | None = None,
    *,
    unit: str = "task",
    show: bool | None = None,
    stream: TextIO | None = None,
    leave: bool = True,
) -> Progress:
    """Start a progress bar, to be used as a context manager.

    Args:
        label: The text in front of the bar.
        total: The number of steps, if it is known.
        unit: What a step is called.
        show: True shows a bar anywhere, False nowhere. By default a bar is shown in terminals
            and notebooks, if tqdm is installed.
        stream: Where a text bar goes; standard error by default.
        leave: Whether the full bar stays to be seen.

    Raises:
        InvalidInputError: `show` is True and tqdm is not installed.
    """
    stream = sys.stderr if stream is None else stream
    in_notebook = _in_notebook()
    if show is False or (show is None and not in_notebook and not stream.isatty()):
        return Progress()
    if importlib.util.find_spec("tqdm") is None:
        if show:
            raise InvalidInputError("progress bars need tqdm: install it, or leave progress out")
        return Progress()
    # Widgets need ipywidgets; where it is missing, tqdm.auto would warn in every notebook.
    if in_notebook and importlib.util.find_spec("ipywidgets") is not None:
        import tqdm.notebook as library
    else:
        import tqdm.std as library
    # Without tqdm's thread that redraws old bars: ours are updated often, and a process that has
    # more threads than one does not fork safely.
    bar = type("Bar", (library.tqdm,), {"monitor_interval": 0})
    return Progress(
        bar(desc=label, total=total, unit=unit, file=stream, dynamic_ncols=True, leave=leave)
    )


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # Hosted notebooks have shells of their own, derived from this one.
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)
