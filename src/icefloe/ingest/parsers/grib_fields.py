"""Fields of GRIB messages, read by eccodes: names, levels and grids are those that cfgrib gives.

Each message is a chunk, which the codec `icefloe.grib` decodes.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from posixpath import basename
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import ParsedArray, ParsedFile, array_document, array_of_values
from icefloe.model.record import Record
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.objects.foreign.source import SourceStatus

_TIME_UNITS = "seconds since 1970-01-01"
_STACKED = ("isobaricInhPa", "isobaricInPa", "hybrid", "theta", "potentialVorticity")
"""Levels that stay a dimension where a file has only one: the others are in other files."""
_COEFFICIENTS = ("sh", "rotated_sh", "stretched_sh", "stretched_rotated_sh")
"""Grids that are none: the values are coefficients of spherical harmonics."""
_INDICATOR_BYTES, _SECTION_HEAD_BYTES, _DATA = 16, 5, 7
_END = b"7777"
_UNKNOWN = ("", "unknown", "unknown.", "none")
_MISSING = -1e100
"""Marks missing values while a message is decoded: no measured value is like that."""


# --- files


class _GribVariable(Record, frozen=True, eq=False):
    name: str
    messages: list[_Message]
    attributes: dict[str, Any]


class _Axis(Record, frozen=True, eq=False):
    """A dimension along which each message has one index."""

    name: str
    values: npt.NDArray[Any]
    attributes: dict[str, Any]


class GribField(Record, frozen=True, eq=False):
    """A field of a message, and where the message is."""

    offset: int
    message: bytes
    number: int = 0
    """Which of the fields of the message; most have one."""


def parse_fields(url: str, status: SourceStatus | None, fields: Iterable[GribField]) -> ParsedFile:
    """Put the fields of a file in order: variables, times, levels, members."""
    variables, grids = _read(url, fields)
    arrays: dict[str, ParsedArray] = {}
    places: dict[str, tuple[str, ...]] = {}
    for number, (key, grid) in enumerate(grids.items()):
        suffix = f"_{number + 1}" if number else ""
        places[key], coordinates = _grid_arrays(grid, suffix)
        arrays |= coordinates
        if coordinates and not grid.is_regular:
            names = " ".join(coordinates)
            for variable in variables:
                if variable.messages[0].grid == key:
                    variable.attributes["coordinates"] = names
    axes = _axes(variables)
    for axis in axes.values():
        arrays[axis.name] = array_of_values(axis.values, (axis.name,), axis.attributes)
    for variable in variables:
        key = variable.messages[0].grid
        arrays[variable.name] = _array(url, variable, axes, places[key], grids[key])
    return ParsedFile(url=url, format="grib", status=status, arrays=arrays, attributes={})


def walk_messages(data: bytes, url: str) -> Iterator[GribField]:
    """The messages of a file that begins with edition 1, as eccodes finds them."""
    eccodes = _load_eccodes()
    with tempfile.TemporaryFile() as file:  # the library walks through files only
        file.write(data)
        file.seek(0)
        try:
            while (handle := eccodes.codes_grib_new_from_file(file, headers_only=True)) is not None:
                try:
                    start = int(eccodes.codes_get_message_offset(handle))
                    length = int(eccodes.codes_get(handle, "totalLength"))
                finally:
                    eccodes.codes_release(handle)
                yield GribField(start, data[start : start + length])
        except eccodes.CodesInternalError as error:
            raise InvalidInputError(f"{url} cannot be read as GRIB: {error}") from error


def _read(url: str, fields: Iterable[GribField]) -> tuple[list[_GribVariable], dict[str, _Grid]]:
    groups: dict[tuple[str, ...], _GribVariable] = {}
    grids: dict[str, _Grid] = {}
    for field in fields:
        try:
            with _opened(single_field(field.message, field.number)) as (eccodes, handle):
                message = _message(eccodes, handle, field)
                key = (message.name, message.level_type, message.step_type, message.grid)
                if key not in groups:
                    groups[key] = _GribVariable(message.name, [], _attributes_of(handle))
                groups[key].messages.append(message)
                if message.grid not in grids:
                    grids[message.grid] = _grid_of(eccodes, handle)
        except InvalidInputError as error:
            msg = f"{url} cannot be read as GRIB: the message at byte {field.offset}: {error}"
            raise InvalidInputError(msg) from error
    if not groups:
        raise InvalidInputError(f"{url} has no complete GRIB message")
    return _with_names_of_their_own(groups), grids


def _with_names_of_their_own(groups: dict[tuple[str, ...], _GribVariable]) -> list[_GribVariable]:
    """Make variable names unique by appending the type of level, the type of step or a number."""
    by_name: dict[str, _GribVariable] = {}
    for (name, level_type, step_type, _), variable in groups.items():
        candidates = [name, f"{name}_{level_type}", f"{name}_{level_type}_{step_type}"]
        candidates += [f"{candidates[-1]}_{number}" for number in range(2, len(groups) + 2)]
        chosen = next(candidate for candidate in candidates if candidate not in by_name)
        by_name[chosen] = _GribVariable(chosen, variable.messages, variable.attributes)
    return list(by_name.values())


def _grid_arrays(grid: _Grid, suffix: str) -> tuple[tuple[str, ...], dict[str, ParsedArray]]:
    """Names of the dimensions of a grid, and the arrays with the coordinates of its points."""
    north = {"units": "degrees_north", "standard_name": "latitude"}
    east = {"units": "degrees_east", "standard_name": "longitude"}
    latitude, longitude = f"latitude{suffix}", f"longitude{suffix}"
    if grid.latitudes is None or grid.longitudes is None:
        return (f"values{suffix}",), {}
    if grid.is_regular:
        return (latitude, longitude), {
            latitude: array_of_values(grid.latitudes[:, 0], (latitude,), north),
            longitude: array_of_values(grid.longitudes[0], (longitude,), east),
        }
    dims = (f"y{suffix}", f"x{suffix}") if len(grid.shape) == 2 else (f"point{suffix}",)
    return dims, {
        latitude: array_of_values(grid.latitudes, dims, north),
        longitude: array_of_values(grid.longitudes, dims, east),
    }


def _axes(variables: list[_GribVariable]) -> dict[str, _Axis]:
    """Dimensions that all variables share, by what they count: times, members or levels."""
    every = [message for variable in variables for message in variable.messages]
    times = np.unique([message.time for message in every]).astype(np.int64)
    calendar = {"units": _TIME_UNITS, "calendar": "proleptic_gregorian", "standard_name": "time"}
    axes = {"time": _Axis("time", times, calendar)}
    members = np.unique([message.member for message in every]).astype(np.int64)
    if len(members) > 1:
        axes["member"] = _Axis("number", members, {"standard_name": "realization", "units": "1"})
    for kind in dict.fromkeys(message.level_type for message in every):
        levels = np.unique([message.level for message in every if message.level_type == kind])
        if len(levels) > 1 or kind in _STACKED:
            down = kind.startswith("isobaric")
            axes[kind] = _Axis(kind, levels[::-1] if down else levels, _level_attributes(kind))
    return axes


def _level_attributes(kind: str) -> dict[str, Any]:
    units = {"isobaricInhPa": "hPa", "isobaricInPa": "Pa", "theta": "K"}.get(kind)
    return {"long_name": kind} | ({"units": units} if units else {})


def _array(
    url: str, variable: _GribVariable, axes: dict[str, _Axis], places: tuple[str, ...], grid: _Grid
) -> ParsedArray:
    messages = variable.messages
    along: dict[str, list[int] | list[float]] = {
        "member": [message.member for message in messages],
        "time": [message.time for message in messages],
        messages[0].level_type: [message.level for message in messages],
    }
    used = [(axes[name], values) for name, values in along.items() if name in axes]
    coords = np.zeros((len(messages), len(used) + len(places)), dtype=np.int64)
    for column, (axis, values) in enumerate(used):
        order = np.argsort(axis.values)
        coords[:, column] = order[np.searchsorted(axis.values, values, sorter=order)]
    _, cells, counts = np.unique(coords, axis=0, return_inverse=True, return_counts=True)
    if np.any(counts > 1):
        same = np.flatnonzero(cells.reshape(-1) == np.argmax(counts > 1))
        raise _twice(url, variable.name, [messages[number] for number in same.tolist()])
    document = array_document(
        shape=[*(len(axis.values) for axis, _ in used), *grid.shape],
        dtype=np.dtype(np.float64),
        chunk_shape=[1] * len(used) + list(grid.shape),
        dims=[*(axis.name for axis, _ in used), *places],
        attributes=variable.attributes,
        fill_value=np.nan,
        codecs=[{"name": "icefloe.grib", **_settings(variable, url)}],
    )
    offsets = np.array([message.offset for message in messages], dtype=np.int64)
    lengths = np.array([message.length for message in messages], dtype=np.int64)
    return ParsedArray(document, VirtualColumns.in_one_object(url, coords, offsets, lengths))


def _twice(url: str, name: str, messages: Sequence[_Message]) -> InvalidInputError:
    """The error about messages for one cell: of several forecasts, or of one."""
    runs = sorted({message.run for message in messages})
    if len(runs) > 1:
        return InvalidInputError(
            f"{url} has {name} of several forecasts for the same time: those of {runs[0]} and "
            f"{runs[1]}. Write a file for each, for example with `grib_copy {basename(url)} "
            "'[dataDate]_[dataTime].grib'`, and ingest them with "
            r"file_coordinates={'run': r'(\d+_\d+)\.grib'}"
        )
    return InvalidInputError(
        f"{url} has {name} twice for the same time, level and member: one message is at byte "
        f"{messages[0].offset}. Keep one of them, for example with `grib_copy`"
    )


def _settings(variable: _GribVariable, url: str) -> dict[str, Any]:
    """What the codec must know: which field of its message each chunk is."""
    fields = {message.field for message in variable.messages}
    if len(fields) > 1:
        raise InvalidInputError(
            f"{url}: {variable.name} is field {min(fields)} of some messages and {max(fields)} of "
            "others; write each field as a message of its own, for example with `grib_copy`"
        )
    return {"configuration": {"field": fields.pop()}} if fields != {0} else {}


# --- messages


class _Message(Record, frozen=True):
    """The keys of a message, and its position in the file."""

    name: str
    level_type: str
    step_type: str
    grid: str
    """Equal for messages on the same grid."""
    time: int
    """When its values hold, in seconds since 1970."""
    run: str
    """Date and time at which the forecast begins."""
    level: float
    member: int
    offset: int
    length: int
    field: int
    """Which of the fields of its message."""


class _Grid(Record, frozen=True, eq=False):
    """The coordinates of the values of a message."""

    shape: tuple[int, ...]
    latitudes: npt.NDArray[np.float64] | None
    longitudes: npt.NDArray[np.float64] | None
    """Both None for values that are at no place: coefficients of spherical harmonics."""

    @property
    def is_regular(self) -> bool:
        """Whether rows have one latitude each, and columns one longitude."""
        if len(self.shape) != 2 or self.latitudes is None or self.longitudes is None:
            return False
        rows, columns = self.latitudes[:, :1], self.longitudes[:1]
        return bool(np.all(self.latitudes == rows) and np.all(self.longitudes == columns))


def _load_eccodes() -> Any:
    try:
        import eccodes
    except ImportError as error:
        raise InvalidInputError(
            f"GRIB is read by the package eccodes: pip install 'icefloe[ingest-grib]' ({error})"
        ) from error
    return eccodes


def _message(eccodes: Any, handle: int, field: GribField) -> _Message:
    def get(key: str, kind: type, default: Any) -> Any:
        try:
            return eccodes.codes_get(handle, key, ktype=kind)
        except eccodes.KeyValueNotFoundError:
            return default

    name = next(
        (n for key in ("cfVarName", "shortName") if (n := get(key, str, "")) not in _UNKNOWN),
        f"param{get('paramId', int, 0)}",
    )
    date, clock = get("validityDate", int, 0), get("validityTime", int, 0)
    day = np.datetime64(f"{date // 10000:04}-{date // 100 % 100:02}-{date % 100:02}", "s")
    return _Message(
        name=name,
        level_type=get("typeOfLevel", str, "unknown"),
        step_type=get("stepType", str, "instant"),
        grid=get("md5GridSection", str, ""),
        time=int(day.astype(np.int64)) + clock // 100 * 3600 + clock % 100 * 60,
        run=f"{get('dataDate', int, 0):08}_{get('dataTime', int, 0):04}",
        level=get("level", float, 0.0),
        member=get("number", int, 0),
        offset=field.offset,
        length=len(field.message),
        field=field.number,
    )


def _attributes_of(handle: int) -> dict[str, Any]:
    """Attributes of the variable of a message, with the names that CF and cfgrib use."""
    eccodes = _load_eccodes()
    names = {
        "units": "units",
        "name": "long_name",
        "cfName": "standard_name",
        "shortName": "GRIB_shortName",
        "paramId": "GRIB_paramId",
        "typeOfLevel": "GRIB_typeOfLevel",
        "stepType": "GRIB_stepType",
        "gridType": "GRIB_gridType",
        "M": "GRIB_M",  # the truncation of spherical harmonics
    }
    attributes = {}
    for key, name in names.items():
        try:
            value = eccodes.codes_get(handle, key)
        except eccodes.KeyValueNotFoundError:
            continue
        if value not in _UNKNOWN:
            attributes[name] = value
    return attributes


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[Any, int]]:
    eccodes = _load_eccodes()
    try:
        handle = eccodes.codes_new_from_message(data)
    except eccodes.CodesInternalError as error:
        raise InvalidInputError(f"{len(data)} bytes are no GRIB message: {error}") from error
    try:
        yield eccodes, handle
    except eccodes.CodesInternalError as error:
        raise InvalidInputError(f"a GRIB message cannot be decoded: {error}") from error
    finally:
        eccodes.codes_release(handle)


def single_field(data: bytes, number: int) -> bytes:
    """A message of edition 2 with one of its fields only; the first is what eccodes takes."""
    if not number:
        return data
    sections: dict[int, bytes] = {}
    position, count = _INDICATOR_BYTES, 0
    while position < len(data) - len(_END) and count <= number:
        size, kind = int.from_bytes(data[position : position + 4]), data[position + 4]
        if size < _SECTION_HEAD_BYTES:
            break
        sections[kind] = data[position : position + size]
        position += size
        count += kind == _DATA
    if count <= number:
        raise InvalidInputError(f"a GRIB message has {count} fields, and number {number} is asked")
    body = b"".join(sections[kind] for kind in sorted(sections))
    length = _INDICATOR_BYTES + len(body) + len(_END)
    return data[:8] + length.to_bytes(8) + body + _END


def values_of(data: bytes, field: int = 0) -> npt.NDArray[np.float64]:
    """The values of a field of a message row by row, NaN where there are none."""
    with _opened(single_field(data, field)) as (eccodes, handle):
        eccodes.codes_set(handle, "missingValue", _MISSING)
        values = eccodes.codes_get_values(handle)
        if eccodes.codes_get(handle, "bitmapPresent"):
            values = np.where(values == _MISSING, np.nan, values)
        return _row_by_row(eccodes, handle, values)


def _grid_of(eccodes: Any, handle: int) -> _Grid:
    """Where the values of a message are, in the order of `values_of`."""
    if eccodes.codes_get(handle, "gridType", ktype=str) in _COEFFICIENTS:
        return _Grid((int(eccodes.codes_get_size(handle, "values")),), None, None)
    latitudes, longitudes = (
        _row_by_row(eccodes, handle, eccodes.codes_get_array(handle, key))
        for key in ("latitudes", "longitudes")
    )
    return _Grid(latitudes.shape, latitudes, longitudes)


def _row_by_row(
    eccodes: Any, handle: int, values: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Reshape to rows and columns if the grid has such, whatever its scanning order."""

    def number(key: str) -> int:
        missing = not eccodes.codes_is_defined(handle, key) or eccodes.codes_is_missing(handle, key)
        return 0 if missing else int(eccodes.codes_get(handle, key, ktype=int))

    columns, rows = number("Nx") or number("Ni"), number("Ny") or number("Nj")
    if columns * rows != len(values):  # a reduced grid, or coefficients
        return values
    if number("jPointsAreConsecutive"):
        return np.ascontiguousarray(values.reshape(columns, rows).T)
    return values.reshape(rows, columns)
