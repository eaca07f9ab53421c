"""Progress bars of long calls, by tqdm: in terminals and notebooks, silent elsewhere.

Importing this module is cheap: tqdm is imported when a bar is shown.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from types import TracebackType

_REDRAW_SECONDS = 0.1


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
        self._bar.refresh()
        self._bar.close()


def start_progress(
    label: str,
    total: int | None = None,
    *,
    unit: str = "task",
    show: bool | None = None,
    stream: TextIO | None = None,
) -> Progress:
    """Start a progress bar, to be used as a context manager.

    Args:
        label: The text in front of the bar.
        total: The number of steps, if it is known.
        unit: What a step is called.
        show: True shows a bar anywhere, False nowhere. By default a bar is shown in terminals
            and notebooks, if tqdm is installed.
        stream: Where a text bar goes; standard error by default.

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
    return Progress(bar(desc=label, total=total, unit=unit, file=stream, dynamic_ncols=True))


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # Hosted notebooks have shells of their own, derived from this one.
    return any(each.__name__ == "ZMQInteractiveShell" for each in type(shell).__mro__)
