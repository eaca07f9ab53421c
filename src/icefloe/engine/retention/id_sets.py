"""Large sets of ids as sorted numpy columns: twelve bytes per id and no Python objects.

Ids of other implementations have sixteen bytes, or are names of any length; a column with one of
them is as wide. Columns of different widths compare correctly, because trailing zeros count for
nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.ids import NAME_MARK, Identifier

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

# Byte strings of equal length compare like their bytes; trailing zeros are padding.
ID_TYPE = np.dtype(f"S{Identifier.SIZE}")
WIDE_ID_TYPE = np.dtype(f"S{Identifier.WIDE_SIZE}")
_MAX_PENDING = 1 << 20


def as_ids(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    """The rows of a table (n, bytes) as a column of ids."""
    return np.frombuffer(np.ascontiguousarray(rows).tobytes(), dtype=f"S{rows.shape[1]}")


def id_column(ids: Collection[bytes]) -> npt.NDArray[np.bytes_]:
    """Ids given as Python values as a column."""
    joined = b"".join(ids)
    if len(joined) == Identifier.SIZE * len(ids):
        return np.frombuffer(joined, dtype=ID_TYPE)
    width = max(map(len, ids))
    wide = b"".join([each.ljust(width, b"\0") for each in ids])
    return np.frombuffer(wide, dtype=f"S{width}")


def id_set(ids: Collection[bytes]) -> npt.NDArray[np.bytes_]:
    """Ids given as Python values as a sorted column without duplicates."""
    return np.unique(id_column(ids))


def id_bytes(value: bytes) -> bytes:
    """The whole id for one element of a column, from which numpy drops trailing zeros."""
    size = Identifier.SIZE if len(value) <= Identifier.SIZE else Identifier.WIDE_SIZE
    return value.ljust(size, b"\0")


def are_names(ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Which ids are names chosen by another implementation."""
    if ids.dtype.itemsize <= len(NAME_MARK):
        return np.zeros(len(ids), dtype=np.bool_)
    is_name: npt.NDArray[np.bool_] = np.char.startswith(ids, NAME_MARK)
    return is_name


def without_names(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Ids (n, bytes) with names replaced by digests, so that they have at most WIDE_SIZE bytes."""
    if rows.shape[1] <= Identifier.WIDE_SIZE:
        return rows
    short = np.ascontiguousarray(rows[:, : Identifier.WIDE_SIZE])
    for place in np.flatnonzero(are_names(as_ids(rows))).tolist():
        digest = hashlib.blake2b(rows[place].tobytes().rstrip(b"\0"), digest_size=15).digest()
        short[place] = np.frombuffer(digest + b"\1", dtype=np.uint8)
    return short


def are_in(values: npt.NDArray[np.bytes_], ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Which values are among the sorted ids."""
    if len(ids) == 0 or len(values) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    places = np.searchsorted(ids, values)
    places[places == len(ids)] = 0
    is_in: npt.NDArray[np.bool_] = ids[places] == values
    return is_in


class IdSet:
    """A growing set of ids; memory is proportional to the number of distinct ones."""

    def __init__(self, dtype: np.dtype[np.bytes_] = ID_TYPE) -> None:
        """Start empty; `dtype` is wider for keys that are more than an id."""
        self._sorted = np.empty(0, dtype=dtype)
        self._pending: list[npt.NDArray[np.bytes_]] = []
        self._count = 0

    def add(self, ids: npt.NDArray[np.bytes_]) -> None:
        """Add many ids, in any order."""
        if len(ids):
            self._pending.append(ids)
            self._count += len(ids)
            if self._count > max(_MAX_PENDING, len(self._sorted)):
                self.sorted()

    def add_each(self, ids: Collection[bytes]) -> None:
        """Add ids given as Python values."""
        self.add(id_column(ids))

    def sorted(self) -> npt.NDArray[np.bytes_]:
        """All ids, ascending."""
        if self._pending:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._pending]))
            self._pending, self._count = [], 0
        return self._sorted

    def __len__(self) -> int:
        return len(self.sorted())
