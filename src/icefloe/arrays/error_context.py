"""Notes on an error which array, region and file the code was working on when it was raised."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATTRIBUTE = "icefloe_doing"


@contextmanager
def doing(*, array: str = "", region: object = None, source: str = "") -> Iterator[None]:
    """Attach what is being worked on to errors that are raised inside.

    May be nested; the innermost value of each argument counts.
    """
    try:
        yield
    except Exception as error:
        named = {"array": array, "region": _region_text(region), "source": source}
        outer = {name: value for name, value in named.items() if value}
        vars(error)[_ATTRIBUTE] = {**outer, **error_context(error)}
        raise


def error_context(error: Exception) -> dict[str, str]:
    """What `doing` has noted on an error: `array`, `region` and `source`, as far as known."""
    noted: dict[str, str] = vars(error).get(_ATTRIBUTE, {})
    return noted


def _region_text(region: object) -> str:
    if region is None:
        return ""
    if isinstance(region, tuple) and all(isinstance(part, slice) for part in region):
        return "[" + ", ".join(f"{part.start}:{part.stop}" for part in region) + "]"
    return str(region)
