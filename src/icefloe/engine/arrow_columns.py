"""Columns of Arrow tables as numpy columns; Arrow itself is only imported for those who use it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt


def is_arrow(value: object) -> bool:
    """Whether something can be read through the Arrow PyCapsule interface."""
    kind = type(value)
    return hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")


def read_table(table: Any, names: Collection[str]) -> dict[str, Any]:
    """The columns of a table, by name: coordinates as a table (n, rank), others as they are."""
    arrow = _arrow()
    read = table if isinstance(table, arrow.Table) else arrow.table(table)
    unknown = sorted(set(read.column_names) - set(names))
    if unknown:
        raise InvalidInputError(
            f"a table of virtual references has columns {sorted(names)}, found {unknown}"
        )
    columns = {name: read.column(name) for name in read.column_names}
    if "coords" in columns:
        columns["coords"] = _coordinates(columns["coords"])
    return columns


def numbers(column: Any) -> npt.NDArray[np.generic]:
    """A column of numbers."""
    values = _chunked(column)
    _refuse_nulls(values, "numbers")
    plain: npt.NDArray[np.generic] = values.to_numpy()
    return plain


def strings(column: Any) -> tuple[list[str | None], npt.NDArray[np.int64]]:
    """A column of strings by its distinct values; where there is none, None."""
    arrow = _arrow()
    values = _chunked(column)
    if not arrow.types.is_dictionary(values.type):
        # Views of strings cannot be encoded everywhere.
        values = values.cast(arrow.large_string()).dictionary_encode()
    joined = values.unify_dictionaries().combine_chunks()
    if isinstance(joined, arrow.ChunkedArray):
        joined = arrow.concat_arrays(joined.chunks) if joined.num_chunks else None
    if joined is None or len(joined) == 0:
        return [], np.zeros(0, dtype=np.int64)
    distinct: list[str | None] = joined.dictionary.cast(arrow.large_string()).to_pylist()
    codes = joined.indices.cast(arrow.int64()).fill_null(len(distinct)).to_numpy()
    return [*distinct, None] if joined.null_count else distinct, codes


def times(column: Any) -> npt.NDArray[np.int64]:
    """A column of times, or of seconds, as seconds since 1970; 0 where there is none."""
    arrow = _arrow()
    values = _chunked(column)
    if arrow.types.is_timestamp(values.type):
        # To whole seconds, down: that is how all times of last changes are kept.
        values = values.cast(arrow.timestamp("s", values.type.tz), safe=False)
    elif not arrow.types.is_integer(values.type):
        raise InvalidInputError(
            f"times of last changes are timestamps or seconds since 1970, found {values.type}"
        )
    seconds: npt.NDArray[np.int64] = values.cast(arrow.int64()).fill_null(0).to_numpy()
    return seconds


def _coordinates(column: Any) -> npt.NDArray[np.integer]:
    """Coordinates (n, rank) from lists of equal lengths, or from a column of numbers."""
    arrow = _arrow()
    if not arrow.types.is_nested(column.type):
        flat: npt.NDArray[np.integer] = numbers(column).reshape(-1, 1)  # type: ignore[assignment]
        return flat
    _refuse_nulls(column, "coordinates")
    parts = [part for part in column.chunks if len(part)]
    if not parts:
        return np.empty((0, 0), dtype=np.int64)
    tables = []
    for part in parts:
        inner = part.flatten()
        _refuse_nulls(inner, "coordinates")
        if len(inner) % len(part):
            raise _uneven()
        tables.append(inner.to_numpy(zero_copy_only=False).reshape(len(part), -1))
        if not arrow.types.is_fixed_size_list(column.type):
            lengths = np.diff(part.offsets.to_numpy())
            if (lengths != lengths[0]).any():
                raise _uneven()
    if len({table.shape[1] for table in tables}) > 1:
        raise _uneven()
    return np.concatenate(tables)


def _uneven() -> InvalidInputError:
    return InvalidInputError("invalid chunk index: coordinates are lists of one length")


def _refuse_nulls(column: Any, what: str) -> None:
    if column.null_count:
        raise InvalidInputError(
            f"a column of {what} of virtual references has {column.null_count} nulls"
        )


def _chunked(column: Any) -> Any:
    arrow = _arrow()
    if isinstance(column, arrow.ChunkedArray):
        return column
    if hasattr(type(column), "__arrow_c_stream__"):
        return arrow.chunked_array(column)
    return arrow.chunked_array([arrow.array(column)])


def _arrow() -> Any:
    # By name: an optional package, which the core must do without (see the import contracts).
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise InvalidInputError(
            "reading Arrow data needs the package pyarrow; install it, or give numpy columns"
        ) from None
