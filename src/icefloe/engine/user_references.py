"""Adapts virtual references as users pass them: a list of specs, columns, or an Arrow table.

Each form becomes `VirtualColumns`, validated once. Python code runs per distinct location, etag
or time, and never per reference.
"""

from __future__ import annotations

import importlib
import operator
import struct
from datetime import datetime
from itertools import chain, compress, count, islice
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import MAX_BOX_POSITIONS, Box
from icefloe.model.chunk_refs import StringColumn
from icefloe.model.virtual_columns import LARGEST_POSITION, VirtualColumns
from icefloe.model.virtual_spec import VirtualChunkSpec, check_etags, virtual_ref

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode
    from icefloe.objects.foreign import VirtualChunkResolver

COLUMNS = (
    *("coords", "start", "shape", "locations", "location_codes"),
    *("offsets", "lengths", "etags", "last_modified"),
)
"""Names of the columns, as arguments and in an Arrow table."""
_BATCH_ROWS = 65_536
"""How many strings at a time are Python objects."""
_BATCH_SPECS = 16_384
"""How many specs are read at a time: few enough to stay in the processor's cache."""


def user_references(
    chunks: Sequence[VirtualChunkSpec] | Any | None,
    columns: Mapping[str, Any],
    node: ArrayNode,
    resolver: VirtualChunkResolver,
    *,
    validate_containers: bool = True,
) -> tuple[ArrayChunks | None, list[tuple[int, ...]]]:
    """Read and validate the references that a user passes to `set_virtual_refs`.

    Args:
        chunks: A list of specs, an Arrow table, or None.
        columns: By the names of `COLUMNS`; None where not passed.
        node: The array that they are for.
        resolver: Knows the virtual chunk containers.
        validate_containers: Whether to leave out locations that no container has.

    Returns:
        The references as a table (None if there are none), and the coordinates of those left out.

    Raises:
        InvalidInputError: Anything is wrong with any of them.
    """
    refs = read_references(chunks, columns, node.path)
    _check_positions(refs, node)
    refs.check_ends()
    locations, accepted = resolver.check_locations(
        refs.locations, validate_containers=validate_containers
    )
    refused: list[tuple[int, ...]] = []
    if not accepted.all():
        refused = list(map(tuple, refs.coords[~accepted[refs.codes]].tolist()))
        refs, locations = refs.at(accepted), locations.take(np.flatnonzero(accepted))
    return refs.to_chunks(locations) if len(refs) else None, refused


def read_references(chunks: Any, columns: Mapping[str, Any], path: str) -> VirtualColumns:
    """References in any of the three forms, not yet checked against array and containers."""
    if chunks is None:
        return _from_columns(columns, path)
    if _is_arrow(chunks):
        table = _arrow_table(chunks)
        twice = [name for name in table if columns.get(name) is not None]
        if twice:
            raise InvalidInputError(f"given twice, in the table and as an argument: {twice}")
        return _from_columns({**columns, **table}, path)
    if any(column is not None for column in columns.values()):
        raise InvalidInputError("expected a list of VirtualChunkSpec, or columns; found both")
    return _from_specs(list(chunks), path)


def _check_positions(refs: VirtualColumns, node: ArrayNode) -> None:
    rank, grid, positions = node.array.rank, node.array.grid_shape, refs.positions
    if isinstance(positions, Box):
        if positions.rank != rank:
            raise _outside(node, positions.lower)
        upper, lower = positions.upper, positions.lower
    else:
        if len(refs) == 0:
            return
        if positions.shape[1] != rank:
            raise _outside(node, tuple(positions[0].tolist()))
        # Axis by axis: numpy is slow along the first axis of a table with few columns.
        upper = tuple(int(axis.max()) + 1 for axis in positions.T)
        lower = tuple(int(axis.min()) for axis in positions.T)
    if min((*lower, 0)) < 0:
        raise _outside(node, lower)
    if len(refs) and grid is not None and any(u > g for u, g in zip(upper, grid, strict=True)):
        coords = refs.coords
        bad = (coords >= np.array(grid, dtype=np.uint64)).any(axis=1)
        raise _outside(node, tuple(coords[int(np.argmax(bad))].tolist()))


def _outside(node: ArrayNode, coords: tuple[int, ...]) -> InvalidInputError:
    return InvalidInputError(
        f"invalid chunk index: {list(coords)} in {node.path}, whose chunk grid is "
        f"{list(node.array.grid_shape or ())}"
    )


# --- the list form of the official package


def _from_specs(specs: list[VirtualChunkSpec], path: str) -> VirtualColumns:
    if not specs:
        return VirtualColumns.none(1)
    batches = [
        _spec_batch(specs[start : start + _BATCH_SPECS], start, path)
        for start in range(0, len(specs), _BATCH_SPECS)
    ]
    if len({batch.coords.shape[1] for batch in batches}) > 1:
        raise _invalid_coordinates(path)
    etags = _coded(_joined([batch.etags for batch in batches]))
    check_etags(etags.values)
    times = _coded(_joined([batch.times for batch in batches]))
    # As everywhere in the list form, an etag makes the time unnecessary.
    has_etag = np.array([bool(etag) for etag in etags.values], dtype=bool)
    modified = np.where(has_etag[etags.codes], 0, _seconds(times, len(specs)))
    return _with_distinct_objects(
        np.concatenate([batch.coords for batch in batches]),
        _coded(list(chain.from_iterable(batch.locations for batch in batches))),
        etags,
        modified,
        offsets=np.concatenate([batch.offsets for batch in batches]),
        lengths=np.concatenate([batch.lengths for batch in batches]),
    )


class _SpecBatch(NamedTuple):
    coords: npt.NDArray[np.integer]
    locations: list[str]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]
    etags: list[str | None]
    times: list[datetime | None]


def _spec_batch(specs: list[VirtualChunkSpec], first: int, path: str) -> _SpecBatch:
    # A comprehension for each field: faster than `attrgetter`, and than tuples of all fields.
    offsets = _whole_numbers([spec.offset for spec in specs])
    lengths = _whole_numbers([spec.length for spec in specs])
    return _SpecBatch(
        coords=_spec_coordinates([spec.index for spec in specs], path),
        locations=[spec.location for spec in specs],
        offsets=_integers(offsets, len(specs), "offset", first_row=first),
        lengths=_integers(lengths, len(specs), "length", first_row=first),
        etags=[spec.etag_checksum for spec in specs],
        times=[spec.last_updated_at_checksum for spec in specs],
    )


def _spec_coordinates(indexes: list[list[int]], path: str) -> npt.NDArray[np.integer]:
    """Coordinates (n, rank) of lists that all have the same length."""
    try:
        (rank,) = set(map(len, indexes))
        # Axis by axis is faster than one long list, and leaves the garbage collector nothing to do.
        axes = [
            np.asarray(_whole_numbers([index[axis] for index in indexes])) for axis in range(rank)
        ]
        table = np.stack(axes, axis=1) if axes else np.empty((len(indexes), 0), dtype=np.int64)
    except (LookupError, TypeError, ValueError, OverflowError):
        raise _invalid_coordinates(path) from None
    return _coordinates(table, path)


def _whole_numbers(values: Sequence[Any]) -> npt.NDArray[np.int64] | Sequence[Any]:
    """Python's integers as a column in half of numpy's time; the values, if they are no such."""
    if isinstance(values[0], bool):
        return values
    try:
        packed = struct.pack(f"{len(values)}q", *values)
    except struct.error:
        return values
    return np.frombuffer(packed, dtype=np.int64)


def _joined(parts: list[list[Any]]) -> Coded | list[Any]:
    """One column of the batches of all specs; mostly nothing but None."""
    if all(part.count(None) == len(part) for part in parts):
        return Coded([None], np.zeros(sum(map(len, parts)), dtype=np.int64))
    return list(chain.from_iterable(parts))


# --- columns


def _from_columns(columns: Mapping[str, Any], path: str) -> VirtualColumns:
    for name in ("locations", "offsets", "lengths"):
        if columns.get(name) is None:
            raise InvalidInputError(f"virtual references need the column {name!r}")
    positions = _positions(columns, path)
    rows = positions.size if isinstance(positions, Box) else len(positions)
    offsets = _integers(columns["offsets"], rows, "offset")
    if columns.get("location_codes") is not None:
        refs = _with_dictionary(columns, positions, offsets, rows)
    else:
        refs = _with_distinct_objects(
            positions,
            _strings(columns["locations"], rows, "locations"),
            _strings(columns.get("etags"), rows, "etags"),
            _seconds(columns.get("last_modified"), rows),
            offsets=offsets,
            lengths=_integers(columns["lengths"], rows, "length"),
        )
    if isinstance(positions, Box) and not all(refs.locations):
        # In a box, an empty location means a chunk that does not exist.
        refs = refs.at(np.array(list(map(bool, refs.locations)), dtype=bool))
    if len(refs) and not refs.lengths.all():
        coords = refs.coords[int(np.argmin(refs.lengths))].tolist()
        raise InvalidInputError(f"a virtual chunk has at least 1 byte, {coords} of {path} has none")
    return refs


def _with_dictionary(
    columns: Mapping[str, Any],
    positions: npt.NDArray[np.integer] | Box,
    offsets: npt.NDArray[np.uint64],
    rows: int,
) -> VirtualColumns:
    """References whose caller numbered the locations; etags and times are those of locations."""
    locations = _listed(columns["locations"])
    codes = _integers(columns["location_codes"], rows, "location code").astype(np.int64)
    if rows and int(codes.max()) >= len(locations):
        raise InvalidInputError(
            f"location codes number the {len(locations)} locations from 0; found {int(codes.max())}"
        )
    etags = _strings(columns.get("etags"), len(locations), "etags")
    return VirtualColumns(
        positions=positions,
        locations=locations,
        codes=codes,
        offsets=offsets,
        lengths=_integers(columns["lengths"], rows, "length"),
        etags=None if etags.is_none else _chosen(etags.values, etags.codes),
        modified=_seconds(columns.get("last_modified"), len(locations)),
    ).used()


def _with_distinct_objects(
    positions: npt.NDArray[np.integer] | Box,
    locations: Coded,
    etags: Coded,
    modified: npt.NDArray[np.int64],
    *,
    offsets: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64],
) -> VirtualColumns:
    """Number the distinct combinations of location, etag and time of the rows."""
    times = _distinct(modified)
    codes, chosen = locations.codes, [np.arange(len(locations.values))]
    for other in (etags, times):
        if len(other.values) == 1:
            chosen.append(np.zeros(len(chosen[0]), dtype=np.int64))
            continue
        base = max(1, len(other.values))
        pairs, inverse = np.unique(codes * base + other.codes, return_inverse=True)
        codes = inverse.astype(np.int64)
        chosen = [*(each[pairs // base] for each in chosen), pairs % base]
    of_location, of_etag, of_time = chosen
    is_plain = len(etags.values) == len(times.values) == 1
    return VirtualColumns(
        positions=positions,
        locations=locations.values if is_plain else _chosen(locations.values, of_location),
        codes=codes,
        offsets=offsets,
        lengths=lengths,
        etags=None if etags.is_none else _chosen(etags.values, of_etag),
        modified=np.asarray(times.values, dtype=np.int64)[of_time],
    )


def _positions(columns: Mapping[str, Any], path: str) -> npt.NDArray[np.integer] | Box:
    coords, shape, start = columns.get("coords"), columns.get("shape"), columns.get("start")
    if (coords is None) == (shape is None):
        raise InvalidInputError(
            "virtual references need either `coords`, one row for each, or the `shape` (and "
            "`start`) of a box of chunks that they fill"
        )
    if shape is None:
        return _coordinates(coords, path)
    extents = tuple(map(int, shape))
    lower = tuple(map(int, start)) if start is not None else (0,) * len(extents)
    if len(lower) != len(extents) or min((*lower, *extents, 0)) < 0:
        raise InvalidInputError(
            f"invalid chunk index: a box of chunks has a start and a shape of 0 or more along each "
            f"dimension, found {lower} and {extents}"
        )
    if prod(extents) > MAX_BOX_POSITIONS:
        raise InvalidInputError(f"invalid chunk index: nothing has {extents} chunks")
    return Box(lower, tuple(low + extent for low, extent in zip(lower, extents, strict=True)))


def _coordinates(coords: Any, path: str) -> npt.NDArray[np.integer]:
    """Coordinates (n, rank); those of an array of one dimension may be a plain column."""
    try:
        table = np.asarray(coords)
    except (ValueError, OverflowError):
        raise _invalid_coordinates(path) from None
    if table.size == 0 and table.dtype.kind == "f":
        table = table.astype(np.int64)
    if table.ndim == 1:
        table = table.reshape(-1, 1)
    if table.dtype.kind not in "iu" or table.ndim != 2:
        raise _invalid_coordinates(path)
    return table


def _invalid_coordinates(path: str) -> InvalidInputError:
    return InvalidInputError(
        f"invalid chunk index: the coordinates of chunks of {path} are whole numbers, one row "
        "of as many as the array has dimensions for each chunk"
    )


def _integers(values: Any, rows: int, what: str, *, first_row: int = 0) -> npt.NDArray[np.uint64]:
    """A column of whole numbers from 0 to 2**63 - 1; one number applies to all rows."""
    if _is_arrow(values):
        values = _arrow_numbers(values)
    try:
        column = np.asarray(values)
    except OverflowError:
        column = np.empty(0, dtype=object)
    if column.dtype.kind not in "iu" and not (column.size == 0 and column.dtype.kind == "f"):
        raise InvalidInputError(
            f"the {what} of a virtual chunk is a whole number of at least 0, below 2**63"
        )
    if column.ndim == 0:
        column = np.broadcast_to(column, (rows,))
    if column.shape != (rows,):
        raise _wrong_length(f"{what}s", rows, column.shape)
    if rows and (int(column.min()) < 0 or int(column.max()) > LARGEST_POSITION):
        bad = int(np.flatnonzero((column < 0) | (column > LARGEST_POSITION))[0])
        raise InvalidInputError(
            f"the {what} of a virtual chunk is at least 0 and below 2**63, found "
            f"{int(column[bad])} in row {first_row + bad}"
        )
    return column.astype(np.uint64)


class Coded(NamedTuple):
    """A dictionary-encoded column: its distinct values, and the index of each row's value."""

    values: list[Any]
    codes: npt.NDArray[np.int64]

    @property
    def is_none(self) -> bool:
        """Whether no row has a value."""
        return self.values == [None]


def _strings(values: Any, rows: int, what: str) -> Coded:
    """A column of strings; one string, or None, applies to all rows."""
    if values is None or isinstance(values, str):
        return Coded([values], np.zeros(rows, dtype=np.int64))
    coded = _coded(values)
    if len(coded.codes) != rows:
        raise _wrong_length(what, rows, (len(coded.codes),))
    return coded


def _coded(values: Any) -> Coded:
    """Dictionary-encode a column."""
    if isinstance(values, Coded):
        return values
    if _is_arrow(values):
        return _arrow_strings(values)
    if isinstance(values, list) and len(values) > 1:
        # Neighbours are mostly equal, or all values differ: both are seen without hashing all.
        if _is_ascending(values):
            return Coded(values, np.arange(len(values)))
        for differ in (
            operator.is_not,
            operator.ne,
        ):  # mostly the same object, not only an equal one
            differs = np.fromiter(map(differ, values, islice(values, 1, None)), dtype=bool)
            if not differs.all():
                runs = _coded(list(compress(values, chain((True,), differs.tolist()))))
                return Coded(runs.values, runs.codes[np.concatenate([[0], np.cumsum(differs)])])
        if _are_distinct(values):
            return Coded(values, np.arange(len(values)))
    numbers: dict[Any, int] = {}
    try:
        # Each value gets the row of the first equal one.
        firsts = np.fromiter(
            map(numbers.setdefault, chain.from_iterable(_batches(values)), count()),
            dtype=np.int64,
            count=len(values),
        )
    except TypeError:
        raise InvalidInputError(
            "a column of locations, etags or times has values of another kind"
        ) from None
    dense = np.empty(len(values), dtype=np.int64)
    dense[np.fromiter(numbers.values(), dtype=np.int64)] = np.arange(len(numbers))
    return Coded(list(numbers), dense[firsts])


def _is_ascending(values: list[Any]) -> bool:
    """Whether all values differ because they are in order, as names of files often are."""
    try:
        return all(map(operator.lt, values, islice(values, 1, None)))
    except TypeError:
        return False


def _are_distinct(values: list[Any]) -> bool:
    """Whether no two values are equal, which takes half as long as numbering them."""
    try:
        return len(dict.fromkeys(values)) == len(values)
    except TypeError:
        return False


def _batches(values: Any) -> Iterator[list[Any]]:
    """The values of a column as Python objects, some at a time."""
    for start in range(0, len(values), _BATCH_ROWS):
        stop = min(len(values), start + _BATCH_ROWS)
        if isinstance(values, StringColumn):
            yield values.slice(start, stop).tolist()
        else:
            batch = values[start:stop]
            yield batch if isinstance(batch, list) else np.asarray(batch, dtype=object).tolist()


def _listed(values: Any) -> list[Any]:
    """A column as Python objects."""
    if isinstance(values, StringColumn):
        return values.tolist()
    if _is_arrow(values):
        coded = _arrow_strings(values)
        return _chosen(coded.values, coded.codes)
    if isinstance(values, list) and set(map(type, values)) <= {str}:
        return values
    return list(np.asarray(values, dtype=object).tolist())


def _chosen(values: list[Any], rows: npt.NDArray[np.integer]) -> list[Any]:
    return list(map(values.__getitem__, rows.tolist()))


def _distinct(values: npt.NDArray[np.int64]) -> Coded:
    if len(values) and (values == values[0]).all():
        return Coded([int(values[0])], np.zeros(len(values), dtype=np.int64))
    distinct, codes = np.unique(values, return_inverse=True)
    return Coded(distinct.tolist(), codes.astype(np.int64))


def _seconds(values: Any, rows: int) -> npt.NDArray[np.int64]:
    """Times of the last change, in seconds since 1970; 0 where there is none."""
    if values is None:
        return np.zeros(rows, dtype=np.int64)
    if isinstance(values, datetime):
        return np.full(rows, _second(values), dtype=np.int64)
    if _is_arrow(values):
        values = _arrow_times(values)
    column = values if isinstance(values, Coded) else np.asarray(values)
    if not isinstance(column, Coded) and column.dtype.kind == "O":
        column = _coded(column)
    if isinstance(column, Coded):
        distinct = np.array([_second(value) for value in column.values], dtype=np.int64)
        column = distinct[column.codes] if len(distinct) else np.zeros(0, dtype=np.int64)
    elif column.dtype.kind == "M":
        present = ~np.isnat(column)
        column = np.where(present, column.astype("datetime64[s]").astype(np.int64), 0)
    if column.dtype.kind not in "iu":
        raise InvalidInputError(
            "times of last changes are datetimes with a timezone, datetime64 in UTC, or seconds "
            "since 1970"
        )
    if column.shape != (rows,):
        raise _wrong_length("times", rows, column.shape)
    return column.astype(np.int64)


def _second(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return virtual_ref("", 0, 0, value).last_modified or 0
    raise InvalidInputError(f"the time of a last change is a datetime, found {value!r}")


def _wrong_length(what: str, rows: int, shape: tuple[int, ...]) -> InvalidInputError:
    return InvalidInputError(f"expected {rows} {what}, one for each chunk, found {shape}")


# --- Arrow


def _is_arrow(value: object) -> bool:
    """Whether something can be read through the Arrow PyCapsule interface."""
    kind = type(value)
    return hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")


def _arrow() -> Any:
    # By name: an optional package, which the core must do without (see the import contracts).
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise InvalidInputError(
            "reading Arrow data needs the package pyarrow; install it, or give numpy columns"
        ) from None


def _arrow_table(table: Any) -> dict[str, Any]:
    """The columns of a table by name: coordinates (n, rank), others as they are."""
    arrow = _arrow()
    read = table if isinstance(table, arrow.Table) else arrow.table(table)
    unknown = sorted(set(read.column_names) - set(COLUMNS))
    if unknown:
        raise InvalidInputError(
            f"a table of virtual references has columns {sorted(COLUMNS)}, found {unknown}"
        )
    columns = {name: read.column(name) for name in read.column_names}
    if "coords" in columns:
        columns["coords"] = _arrow_coordinates(columns["coords"])
    return columns


def _chunked(column: Any) -> Any:
    arrow = _arrow()
    if isinstance(column, arrow.ChunkedArray):
        return column
    if hasattr(type(column), "__arrow_c_stream__"):
        return arrow.chunked_array(column)
    return arrow.chunked_array([arrow.array(column)])


def _arrow_numbers(column: Any) -> npt.NDArray[np.generic]:
    values = _chunked(column)
    _refuse_nulls(values, "numbers")
    numbers: npt.NDArray[np.generic] = values.to_numpy()
    return numbers


def _arrow_strings(column: Any) -> Coded:
    """A column of strings; where there is none, None."""
    arrow = _arrow()
    values = _chunked(column)
    if not arrow.types.is_dictionary(values.type):
        # Not every version of Arrow can dictionary-encode string views.
        values = values.cast(arrow.large_string()).dictionary_encode()
    joined = values.unify_dictionaries().combine_chunks()
    if isinstance(joined, arrow.ChunkedArray):
        joined = arrow.concat_arrays(joined.chunks) if joined.num_chunks else None
    if joined is None or len(joined) == 0:
        return Coded([], np.zeros(0, dtype=np.int64))
    distinct: list[str | None] = joined.dictionary.cast(arrow.large_string()).to_pylist()
    codes = joined.indices.cast(arrow.int64()).fill_null(len(distinct)).to_numpy()
    return Coded([*distinct, None] if joined.null_count else distinct, codes)


def _arrow_times(column: Any) -> npt.NDArray[np.int64]:
    """A column of timestamps or seconds, as seconds since 1970; 0 where there is none."""
    arrow = _arrow()
    values = _chunked(column)
    if arrow.types.is_timestamp(values.type):
        # To whole seconds, rounded down: that is how all times of last changes are stored.
        values = values.cast(arrow.timestamp("s", values.type.tz), safe=False)
    elif not arrow.types.is_integer(values.type):
        raise InvalidInputError(
            f"times of last changes are timestamps or seconds since 1970, found {values.type}"
        )
    seconds: npt.NDArray[np.int64] = values.cast(arrow.int64()).fill_null(0).to_numpy()
    return seconds


def _arrow_coordinates(column: Any) -> npt.NDArray[Any]:
    """Coordinates (n, rank) from lists of equal lengths, or from a column of numbers."""
    arrow = _arrow()
    if not arrow.types.is_nested(column.type):
        return _arrow_numbers(column).reshape(-1, 1)
    _refuse_nulls(column, "coordinates")
    tables = []
    for part in column.chunks:
        if not len(part):
            continue
        inner = part.flatten()
        _refuse_nulls(inner, "coordinates")
        if not arrow.types.is_fixed_size_list(column.type):
            lengths = np.diff(part.offsets.to_numpy())
            if (lengths != lengths[0]).any():
                raise _uneven()
        tables.append(inner.to_numpy(zero_copy_only=False).reshape(len(part), -1))
    if len({table.shape[1] for table in tables}) > 1:
        raise _uneven()
    return np.concatenate(tables) if tables else np.empty((0, 0), dtype=np.int64)


def _uneven() -> InvalidInputError:
    return InvalidInputError("invalid chunk index: coordinates are lists of one length")


def _refuse_nulls(column: Any, what: str) -> None:
    if column.null_count:
        raise InvalidInputError(
            f"a column of {what} of virtual references has {column.null_count} nulls"
        )
