"""Keeps remarks of libraries about what files are like away from users who cannot change it."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0
_filters: warnings.catch_warnings[None] | None = None


@contextmanager
def quietly() -> Iterator[None]:
    """No warnings that codecs or data types of existing files are not in the Zarr specification.

    Filters of warnings are those of the process: of several threads, the first one sets them, and
    the last one sets them back.
    """
    global _inside, _filters  # noqa: PLW0603
    from zarr.errors import UnstableSpecificationWarning, ZarrUserWarning

    with _lock:
        _inside += 1
        if _inside == 1:
            _filters = warnings.catch_warnings()
            _filters.__enter__()
            warnings.simplefilter("ignore", ZarrUserWarning)
            warnings.simplefilter("ignore", UnstableSpecificationWarning)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _filters is not None:
                _filters.__exit__(None, None, None)
                _filters = None
