"""Reads GRIB messages by eccodes: what one says about itself, its grid, its values."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_UNKNOWN = ("", "unknown", "unknown.", "none")


class GribMessage(Record, frozen=True):
    """What tells one message of a file from another, and where it is."""

    name: str
    level_type: str
    step_type: str
    grid: str
    """Equal for messages on the same grid."""
    time: int
    """When its values hold, in seconds since 1970."""
    level: float
    member: int
    offset: int
    length: int


class Grid(Record, frozen=True, eq=False):
    """Where the values of a message are."""

    shape: tuple[int, ...]
    latitudes: npt.NDArray[np.float64]
    longitudes: npt.NDArray[np.float64]

    @property
    def is_regular(self) -> bool:
        """Whether rows have one latitude each, and columns one longitude."""
        if len(self.shape) != 2:
            return False
        rows, columns = self.latitudes[:, :1], self.longitudes[:1]
        return bool(np.all(self.latitudes == rows) and np.all(self.longitudes == columns))


def load_eccodes() -> Any:
    """The library; gribberish, which reads edition 2, does not know edition 1."""
    try:
        import eccodes
    except ImportError as error:
        raise InvalidInputError(
            f"GRIB edition 1 is read by the package eccodes: pip install eccodes ({error})"
        ) from error
    return eccodes


def messages_of(file: BinaryIO) -> Iterator[tuple[GribMessage, int]]:
    """All messages of a file without their values, and the handle of each while it is there."""
    eccodes = load_eccodes()
    while (handle := eccodes.codes_grib_new_from_file(file, headers_only=True)) is not None:
        try:
            yield _message(eccodes, handle), handle
        finally:
            eccodes.codes_release(handle)


def _message(eccodes: Any, handle: int) -> GribMessage:
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
    return GribMessage(
        name=name,
        level_type=get("typeOfLevel", str, "unknown"),
        step_type=get("stepType", str, "instant"),
        grid=get("md5GridSection", str, ""),
        time=int(day.astype(np.int64)) + clock // 100 * 3600 + clock % 100 * 60,
        level=get("level", float, 0.0),
        member=get("number", int, 0),
        offset=int(eccodes.codes_get_message_offset(handle)),
        length=int(eccodes.codes_get(handle, "totalLength")),
    )


def attributes_of(handle: int) -> dict[str, Any]:
    """Attributes of the variable that a message belongs to, as CF and cfgrib name them."""
    eccodes = load_eccodes()
    wanted = {
        "units": "units",
        "name": "long_name",
        "cfName": "standard_name",
        "shortName": "GRIB_shortName",
        "paramId": "GRIB_paramId",
        "typeOfLevel": "GRIB_typeOfLevel",
        "stepType": "GRIB_stepType",
        "gridType": "GRIB_gridType",
    }
    found = {}
    for key, name in wanted.items():
        try:
            value = eccodes.codes_get(handle, key)
        except eccodes.KeyValueNotFoundError:
            continue
        if value not in _UNKNOWN:
            found[name] = value
    return found


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[Any, int]]:
    eccodes = load_eccodes()
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


def values_of(data: bytes) -> npt.NDArray[np.float64]:
    """The values of a message row by row, NaN where there are none."""
    with _opened(data) as (eccodes, handle):
        eccodes.codes_set(handle, "missingValue", _MISSING)
        values = eccodes.codes_get_values(handle)
        if eccodes.codes_get(handle, "bitmapPresent"):
            values = np.where(values == _MISSING, np.nan, values)
        return _row_by_row(eccodes, handle, values)


_MISSING = -1e100
"""Stands for missing values while a message is decoded: no measured value is like that."""


def grid_of(data: bytes) -> Grid:
    """Where the values of a message are, in the order of `values_of`."""
    with _opened(data) as (eccodes, handle):
        latitudes, longitudes = (
            _row_by_row(eccodes, handle, eccodes.codes_get_array(handle, key))
            for key in ("latitudes", "longitudes")
        )
        return Grid(latitudes.shape, latitudes, longitudes)


def _row_by_row(
    eccodes: Any, handle: int, values: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """As rows of columns where the grid has such, also if it is scanned column by column."""

    def number(key: str) -> int:
        missing = not eccodes.codes_is_defined(handle, key) or eccodes.codes_is_missing(handle, key)
        return 0 if missing else int(eccodes.codes_get(handle, key, ktype=int))

    columns, rows = number("Nx") or number("Ni"), number("Ny") or number("Nj")
    if columns * rows != len(values):  # a reduced grid, or coefficients
        return values
    if number("jPointsAreConsecutive"):
        return np.ascontiguousarray(values.reshape(columns, rows).T)
    return values.reshape(rows, columns)
