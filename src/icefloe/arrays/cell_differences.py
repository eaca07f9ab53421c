"""Which cells of two arrays differ, and by how much: exactly for integers and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Difference = int | float | np.timedelta64

_INTEGERS = "biu"
_NUMBERS = "biufc"
_TIMES = "mM"
_HAVE_MISSING = "fcmM"
_TEXTS = "UTO"
_LONGEST = 2**63 - 1
_COARSER = {"as": "fs", "fs": "ps", "ps": "ns", "ns": "us", "us": "ms", "ms": "s"}


class Tally:
    """Counts cells that differ, and remembers the worst."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.changed = 0
        self.largest: Difference | None = None
        self._worst: int | float | None = None
        """The same as a number; of times, in their unit."""
        self.where: tuple[int, ...] | None = None

    def add(
        self,
        corner: tuple[int, ...],
        old: npt.NDArray[Any],
        new: npt.NDArray[Any],
        cells_alike: int = 1,
    ) -> None:
        """Compare a box of cells; each counts as `cells_alike` equal cells."""
        differs = differing(old, new)
        cells = np.flatnonzero(differs)
        if len(cells) == 0:
            return
        self.changed += len(cells) * cells_alike
        first, worst = 0, None
        old, new = old[differs], new[differs]
        distances = _distances(old, new)
        if distances is not None:
            # From or to a missing value there is no distance, but it differs.
            known = np.flatnonzero(~(_is_missing(old) | _is_missing(new) | _is_missing(distances)))
            if len(known):
                first = int(known[np.argmax(distances[known])])
                worst = _plain(distances[first])
        if self.where is None or (worst is not None and self._is_more(worst)):
            place = np.unravel_index(int(cells[first]), differs.shape)
            self.where = tuple(start + int(step) for start, step in zip(corner, place, strict=True))
            if worst is not None:
                self._worst = worst
                self.largest = _as_time(int(worst), old, new) if old.dtype.kind in _TIMES else worst

    def _is_more(self, worst: float) -> bool:
        return self._worst is None or worst > self._worst


def incomparable(old: np.dtype[Any], new: np.dtype[Any]) -> str | None:
    """Why values of two types cannot be compared; None if they can."""
    kinds = old.kind, new.kind
    for group in (_NUMBERS, "m", "M", _TEXTS):
        if all(kind in group for kind in kinds):
            return None
    if old == new or (kinds == ("S", "S")):
        return None
    return f"data type {old} -> {new}"


def differing(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which cells differ; missing values are equal to each other, in fields of records too."""
    old, new = np.asarray(old), np.asarray(new)
    if old.dtype.names:
        differs = np.zeros(old.shape, dtype=np.bool_)
        for name in old.dtype.names:
            field = differing(old[name], new[name])
            more = tuple(range(old.ndim, field.ndim))  # the axes of the field itself
            differs |= field.any(axis=more) if more else field
        return differs
    differs = np.asarray(old != new)
    if old.dtype.kind in _HAVE_MISSING and new.dtype.kind in _HAVE_MISSING:
        differs = differs & ~(_is_missing(old) & _is_missing(new))
    return differs


def _is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype.kind not in _HAVE_MISSING:
        return np.zeros(values.shape, dtype=np.bool_)
    missing: npt.NDArray[np.bool_] = np.isnan(values)
    return missing


def _distances(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """How far apart values are; None if they are no numbers."""
    kinds = old.dtype.kind, new.dtype.kind
    if all(kind in _INTEGERS for kind in kinds):
        return _integer_distances(old, new)
    if all(kind in _NUMBERS for kind in kinds):
        wide = np.complex128 if "c" in kinds else np.float64
        with np.errstate(all="ignore"):
            apart: npt.NDArray[Any] = np.abs(new.astype(wide) - old.astype(wide))
        return apart
    if kinds[0] == kinds[1] and kinds[0] in _TIMES:
        both = np.result_type(old, new)
        return _integer_distances(old.astype(both).view("i8"), new.astype(both).view("i8"))
    return None


def _as_time(count: int, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> np.timedelta64:
    """So many units of two columns of times; in a coarser one if there are too many."""
    unit: Any
    unit, step = np.datetime_data(np.result_type(old, new))
    while count * step > _LONGEST and unit in _COARSER:
        count, unit = count // 1000, _COARSER[unit]
    return np.timedelta64(min(count * step, _LONGEST), unit)


def _integer_distances(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    low, high = np.minimum, np.maximum
    if all(values.dtype.kind in "bu" for values in (old, new)):
        wide: Any = np.uint64
    elif all(np.can_cast(values.dtype, np.int64) for values in (old, new)):
        wide = np.int64
    else:
        # Signed and unsigned 64 bits: no type of numpy has all of them.
        wide = object
    old, new = old.astype(wide), new.astype(wide)
    less, more = low(old, new), high(old, new)
    if wide is object:
        return more - less  # type: ignore[no-any-return]
    # Modulo 2**64, the difference of two numbers of 64 bits is exact.
    return more.astype(np.uint64) - less.astype(np.uint64)  # type: ignore[no-any-return]


def _plain(distance: Any) -> int | float:
    if isinstance(distance, int | np.integer):
        return int(distance)
    return float(distance)
