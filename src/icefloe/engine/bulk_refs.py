"""Virtual references in bulk, as users give them: a list of specs, columns, or an Arrow table.

Python code runs per distinct location, etag or time, and never per reference.
"""

from __future__ import annotations

import operator
from datetime import datetime
from itertools import chain, compress, islice
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.engine import arrow_columns
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import MAX_BOX_POSITIONS, Box
from icefloe.model.chunk_refs import StringColumn
from icefloe.model.record import Record
from icefloe.model.virtual_spec import VirtualChunkSpec, virtual_ref

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH_ROWS = 65_536
"""How many strings at a time are Python objects."""
LARGEST_POSITION = 2**63 - 1


class Coded(NamedTuple):
    """A column by its distinct values and the number of each row's value."""

    values: list[Any]
    codes: npt.NDArray[np.int64]


class GivenColumns(NamedTuple):
    """Columns as users give them; what was not given is None."""

    coords: Any = None
    start: Sequence[int] | None = None
    shape: Sequence[int] | None = None
    locations: Any = None
    location_codes: Any = None
    offsets: Any = None
    lengths: Any = None
    etags: Any = None
    last_modified: Any = None


class VirtualRefs(Record, frozen=True, eq=False):
    """Virtual references of one array, as columns, not yet checked against it."""

    places: npt.NDArray[np.integer] | Box
    """Coordinates (n, rank); or a box, whose positions the rows have in row-major order."""
    sources: npt.NDArray[np.int64]
    """For each row, which of the next three it has."""
    urls: list[str]
    etags: list[str | None]
    modified: npt.NDArray[np.int64]
    """Seconds since 1970; 0 where there is none."""
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.sources)

    def coords(self) -> npt.NDArray[np.integer]:
        """Coordinates (n, rank) of all rows."""
        if isinstance(self.places, Box):
            return self.places.delinearize(np.arange(len(self), dtype=np.uint64))
        return self.places

    def take(self, rows: npt.NDArray[np.intp]) -> VirtualRefs:
        """Chosen rows."""
        return VirtualRefs(
            self.coords()[rows],
            self.sources[rows],
            self.urls,
            self.etags,
            self.modified,
            self.offsets[rows],
            self.lengths[rows],
        )


# --- reading what was given


def read_refs(chunks: Any, given: GivenColumns, path: str) -> VirtualRefs:
    """References from a list of specs, an Arrow table, or columns."""
    if chunks is None:
        return from_columns(given, path)
    if arrow_columns.is_arrow(chunks):
        columns = arrow_columns.read_table(chunks, GivenColumns._fields)
        twice = [name for name in columns if getattr(given, name) is not None]
        if twice:
            raise InvalidInputError(f"given twice, in the table and as an argument: {twice}")
        return from_columns(given._replace(**columns), path)
    if any(column is not None for column in given):
        raise InvalidInputError("expected a list of VirtualChunkSpec, or columns; found both")
    return from_specs(list(chunks), path)


def from_specs(chunks: Sequence[VirtualChunkSpec], path: str) -> VirtualRefs:
    """References from the list form of the official package."""
    coords = _from_lists(list(map(attrgetter("index"), chunks)), path)
    count = len(coords)
    etags = _strings(list(map(attrgetter("etag_checksum"), chunks)), count, "etags")
    times = _coded(list(map(attrgetter("last_updated_at_checksum"), chunks)))
    # As everywhere in the list form, an etag makes the time unnecessary.
    has_etag = np.array([bool(etag) for etag in etags.values], dtype=bool)
    modified = np.where(has_etag[etags.codes], 0, _seconds(times, count))
    locations = _strings(list(map(attrgetter("location"), chunks)), count, "locations")
    return _with_sources(
        coords,
        locations,
        etags,
        modified,
        _integers(list(map(attrgetter("offset"), chunks)), count, "offset", 0),
        _integers(list(map(attrgetter("length"), chunks)), count, "length", 0),
    )


def from_columns(given: GivenColumns, path: str) -> VirtualRefs:
    """References from columns."""
    for name in ("locations", "offsets", "lengths"):
        if getattr(given, name) is None:
            raise InvalidInputError(f"virtual references need the column {name!r}")
    places = _places(given, path)
    count = places.size if isinstance(places, Box) else len(places)
    offsets = _integers(given.offsets, count, "offset", 0)
    if given.location_codes is not None:
        refs = _with_dictionary(given, places, offsets, count)
    else:
        refs = _with_sources(
            places,
            _strings(given.locations, count, "locations"),
            _strings(given.etags, count, "etags"),
            _seconds(given.last_modified, count),
            offsets,
            _integers(given.lengths, count, "length", 0),
        )
    if isinstance(places, Box):
        refs = _without_missing(refs)
    if len(refs) and not refs.lengths.all():
        coords = refs.coords()[int(np.argmin(refs.lengths))].tolist()
        raise InvalidInputError(f"a virtual chunk has at least 1 byte, {coords} of {path} has none")
    return refs


def _with_dictionary(
    given: GivenColumns, places: npt.NDArray[np.integer] | Box, offsets: Any, count: int
) -> VirtualRefs:
    """Locations that are numbered by the caller; etags and times are those of the locations."""
    urls = _listed(given.locations)
    codes = _integers(given.location_codes, count, "location code", 0)
    if count and int(codes.max()) >= len(urls):
        raise InvalidInputError(
            f"location codes number the {len(urls)} locations from 0; found {int(codes.max())}"
        )
    sources = codes.astype(np.int64)
    used = np.zeros(len(urls), dtype=bool)
    used[sources] = True
    etags = _strings(given.etags, len(urls), "etags")
    rows = np.flatnonzero(used)
    return VirtualRefs(
        places,
        (np.cumsum(used) - 1)[sources],
        _chosen(urls, rows),
        _chosen(etags.values, etags.codes[rows]),
        _seconds(given.last_modified, len(urls))[rows],
        offsets,
        _integers(given.lengths, count, "length", 0),
    )


def _with_sources(
    places: npt.NDArray[np.integer] | Box,
    locations: Coded,
    etags: Coded,
    modified: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64],
) -> VirtualRefs:
    """Number the distinct combinations of location, etag and time."""
    times, time_codes = _distinct(modified)
    if len(etags.values) == 1 and len(times) == 1:
        count = len(locations.values)
        every = etags.values * count, np.full(count, times[0])
        return VirtualRefs(places, locations.codes, locations.values, *every, offsets, lengths)
    sources, location, etag = _paired(locations, etags)
    sources, pair, time = _paired(
        Coded([None] * len(location), sources), Coded([None] * len(times), time_codes)
    )
    return VirtualRefs(
        places,
        sources,
        _chosen(locations.values, location[pair]),
        _chosen(etags.values, etag[pair]),
        times[time],
        offsets,
        lengths,
    )


def _paired(
    first: Coded, second: Coded
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Numbers of the pairs of two columns, and which values each pair has of either."""
    if len(second.values) == 1:
        rows = np.arange(len(first.values))
        return first.codes, rows, np.zeros_like(rows)
    base = max(1, len(second.values))
    pairs, codes = np.unique(first.codes * base + second.codes, return_inverse=True)
    return codes.astype(np.int64), pairs // base, pairs % base


def _distinct(
    values: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), dtype=np.int64)
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct, codes.astype(np.int64)


def _without_missing(refs: VirtualRefs) -> VirtualRefs:
    """In a box, an empty location stands for a chunk that there is not."""
    if all(refs.urls):
        return refs
    present = np.array(list(map(bool, refs.urls)), dtype=bool)
    kept = refs.take(np.flatnonzero(present[refs.sources]))
    number = np.cumsum(present) - 1
    rows = np.flatnonzero(present)
    return VirtualRefs(
        kept.places,
        number[kept.sources],
        _chosen(kept.urls, rows),
        _chosen(kept.etags, rows),
        kept.modified[rows],
        kept.offsets,
        kept.lengths,
    )


# --- columns of one kind


def _places(given: GivenColumns, path: str) -> npt.NDArray[np.integer] | Box:
    """The coordinates, or the box that the rows fill."""
    if (given.coords is None) == (given.shape is None):
        raise InvalidInputError(
            "virtual references need either `coords`, one row for each, or the `shape` (and "
            "`start`) of a box of chunks that they fill"
        )
    if given.coords is not None:
        return _from_lists(given.coords, path)
    assert given.shape is not None
    shape = tuple(map(int, given.shape))
    start = tuple(map(int, given.start)) if given.start is not None else (0,) * len(shape)
    if len(start) != len(shape) or min((*start, *shape, 0)) < 0:
        raise InvalidInputError(
            f"invalid chunk index: a box of chunks has a start and a shape of 0 or more along each "
            f"dimension, found {start} and {shape}"
        )
    if prod(shape) > MAX_BOX_POSITIONS:
        raise InvalidInputError(f"invalid chunk index: nothing has {shape} chunks")
    return Box(start, tuple(low + extent for low, extent in zip(start, shape, strict=True)))


def _from_lists(coords: Any, path: str) -> npt.NDArray[np.integer]:
    """Coordinates (n, rank); those of an array of one dimension may be a plain column."""
    try:
        table = np.asarray(coords)
    except (ValueError, OverflowError):
        table = np.empty(0, dtype=object)
    if table.size == 0 and table.dtype.kind == "f":
        table = table.astype(np.int64)
    if table.ndim == 1:
        table = table.reshape(-1, 1)
    if table.dtype.kind not in "iu" or table.ndim != 2:
        raise InvalidInputError(
            f"invalid chunk index: the coordinates of chunks of {path} are whole numbers, one row "
            "of as many as the array has dimensions for each chunk"
        )
    return table


def _integers(values: Any, count: int, what: str, least: int) -> npt.NDArray[np.uint64]:
    """A column of numbers that may be positions in a file; one number stands for all."""
    if arrow_columns.is_arrow(values):
        values = arrow_columns.numbers(values)
    try:
        column = np.asarray(values)
    except OverflowError:
        column = np.empty(0, dtype=object)
    if column.dtype.kind not in "iu" and not (column.size == 0 and column.dtype.kind == "f"):
        raise InvalidInputError(
            f"the {what} of a virtual chunk is a whole number of at least {least}, below 2**63"
        )
    if column.ndim == 0:
        column = np.broadcast_to(column, (count,))
    if column.shape != (count,):
        raise _wrong_length(f"{what}s", count, column.shape)
    if count and (int(column.min()) < least or int(column.max()) > LARGEST_POSITION):
        bad = np.flatnonzero((column < least) | (column > LARGEST_POSITION))[0]
        raise InvalidInputError(
            f"the {what} of a virtual chunk is at least {least} and below 2**63, found "
            f"{int(column[bad])} in row {int(bad)}"
        )
    return column.astype(np.uint64)


def _strings(values: Any, count: int, what: str) -> Coded:
    """A column of strings; one string, or None, stands for all."""
    if values is None or isinstance(values, str):
        return Coded([values], np.zeros(count, dtype=np.int64))
    coded = _coded(values)
    if len(coded.codes) != count:
        raise _wrong_length(what, count, (len(coded.codes),))
    return coded


def _coded(values: Any) -> Coded:
    """Find the distinct values of a column."""
    if arrow_columns.is_arrow(values):
        return Coded(*arrow_columns.strings(values))
    if isinstance(values, list) and len(values) > 1:
        # Neighbours are mostly equal, or all values differ: both are seen without hashing all.
        differs = np.fromiter(map(operator.ne, values, islice(values, 1, None)), dtype=bool)
        heads = list(compress(values, chain((True,), differs.tolist())))
        if len(heads) < len(values):
            runs = _coded(heads)
            numbered = np.concatenate([[0], np.cumsum(differs)])
            return Coded(runs.values, runs.codes[numbered])
        if _ascends(values):
            return Coded(values, np.arange(len(values)))
    numbers: dict[Any, int] = {}
    codes = np.empty(len(values), dtype=np.int64)
    start = 0
    try:
        for part in _parts(values):
            fresh = [value for value in dict.fromkeys(part) if value not in numbers]
            numbers.update(zip(fresh, range(len(numbers), len(numbers) + len(fresh)), strict=True))
            stop = start + len(part)
            codes[start:stop] = np.fromiter(
                map(numbers.__getitem__, part), dtype=np.int64, count=len(part)
            )
            start = stop
    except TypeError:
        raise InvalidInputError(
            "a column of locations, etags or times has values of another kind"
        ) from None
    return Coded(list(numbers), codes)


def _ascends(values: list[Any]) -> bool:
    """Whether all values differ because they are in order, as names of files often are."""
    try:
        return all(map(operator.lt, values, islice(values, 1, None)))
    except TypeError:
        return False


def _parts(values: Any) -> Iterator[list[Any]]:
    """The values of a column, as Python objects, some at a time."""
    for start in range(0, len(values), BATCH_ROWS):
        stop = min(len(values), start + BATCH_ROWS)
        if isinstance(values, StringColumn):
            yield texts(values.slice(start, stop))
        else:
            part = values[start:stop]
            yield part if isinstance(part, list) else np.asarray(part, dtype=object).tolist()


def texts(column: StringColumn) -> list[str]:
    """All strings of a column, without a loop in Python."""
    slices = map(slice, column.starts().tolist(), column.ends.tolist())
    return list(map(bytes.decode, map(column.data.__getitem__, slices)))


def _listed(values: Any) -> list[Any]:
    """A dictionary of locations as Python strings."""
    if isinstance(values, StringColumn):
        return texts(values)
    if arrow_columns.is_arrow(values):
        coded = Coded(*arrow_columns.strings(values))
        return _chosen(coded.values, coded.codes)
    return list(np.asarray(values, dtype=object).tolist())


def _chosen(values: list[Any], rows: npt.NDArray[np.integer]) -> list[Any]:
    """Values by their numbers."""
    return list(map(values.__getitem__, rows.tolist()))


def _seconds(values: Any, count: int) -> npt.NDArray[np.int64]:
    """Times of the last change, in seconds since 1970; 0 where there is none."""
    if values is None:
        return np.zeros(count, dtype=np.int64)
    if isinstance(values, datetime):
        return np.full(count, _second(values), dtype=np.int64)
    if arrow_columns.is_arrow(values):
        values = arrow_columns.times(values)
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
    if column.shape != (count,):
        raise _wrong_length("times", count, column.shape)
    return column.astype(np.int64)


def _second(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return virtual_ref("", 0, 0, value).last_modified or 0
    raise InvalidInputError(f"the time of a last change is a datetime, found {value!r}")


def _wrong_length(what: str, count: int, found: tuple[int, ...]) -> InvalidInputError:
    return InvalidInputError(f"expected {count} {what}, one for each chunk, found {found}")
