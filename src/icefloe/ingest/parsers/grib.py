"""GRIB edition 2: parsed by gribberish, whose codec decodes each message as a chunk.

Each message is checked section by section first: the libraries that decode them believe the
lengths that a file states, and may never end on a damaged one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import (
    ParsedArray,
    ParsedFile,
    array_document,
    array_of_values,
)
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.ingest.authorized import AuthorizedStore

_EDITION_AT = 7
_TIME_UNITS = "seconds since 1970-01-01"
_MAGIC, _END = b"GRIB", b"7777"
_INDICATOR_BYTES = 16
_SECTION_HEAD_BYTES = 5
_LEAST_BYTES = {1: 21, 2: 5, 3: 14, 4: 9, 5: 11, 6: 6, 7: 5}
"""Of each section: its head, and what all of its kinds have."""
_GRID, _PRODUCT, _DATA = 3, 4, 7
_BEFORE = {1: {0}, 2: {1, 7}, 3: {1, 2, 7}, 4: {3, 7}, 5: {4}, 6: {5}, 7: {6}}
"""Which section each one may follow; from local use, grid or product on they may be repeated."""


def parse_grib(url: str, store: AuthorizedStore) -> ParsedFile:
    """Read a whole file: GRIB has no index of its messages."""
    from gribberish import parse_grib_dataset

    data = store.read(url)
    edition = data[_EDITION_AT : _EDITION_AT + 1]
    if edition == b"\x01":
        from icefloe.ingest.parsers.grib1 import parse_grib1

        return parse_grib1(url, store, data)
    if edition != b"\x02":
        found_edition = edition[0] if edition else "?"
        raise InvalidInputError(
            f"{url} is GRIB edition {found_edition}; editions 1 and 2 can be referenced"
        )
    _check_messages(data, url)
    try:
        found = parse_grib_dataset(data)
    # The library panics on what it does not know, and its panics are no Exceptions.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        msg = f"{url} cannot be read as GRIB: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error
    arrays = {name: _coordinate(entry, url) for name, entry in found["coords"].items()}
    arrays |= {name: _variable(name, entry, url) for name, entry in found["data_vars"].items()}
    return ParsedFile(url, "grib", store.status(url), arrays, {})


def _variable(name: str, entry: dict[str, Any], url: str) -> ParsedArray:
    shape = tuple(entry["values"]["shape"])
    ranges = np.array(entry["values"]["offsets"], dtype=np.int64).reshape(-1, 2)
    outer = _outer_dimensions(shape, len(ranges), name, url)
    coords = np.zeros((len(ranges), len(shape)), dtype=np.int64)
    coords[:, :outer] = np.argwhere(np.ones(shape[:outer], dtype=bool)).reshape(-1, outer)
    document = array_document(
        shape=shape,
        dtype=np.dtype(np.float64),
        chunk_shape=[1] * outer + list(shape[outer:]),
        dims=entry["dims"],
        attributes=_attributes(entry["attrs"]),
        fill_value=np.nan,
        codecs=[{"name": "gribberish", "configuration": {"var": name}}],
    )
    return ParsedArray(
        document, VirtualColumns.in_one_object(url, coords, ranges[:, 0], ranges[:, 1])
    )


def _outer_dimensions(shape: tuple[int, ...], messages: int, name: str, url: str) -> int:
    """How many leading dimensions number messages; the others lie inside of each."""
    outer, count = 0, 1
    while count < messages and outer < len(shape):
        count *= shape[outer]
        outer += 1
    while outer < len(shape) - 2 and shape[outer] == 1:
        outer += 1
    if count != messages:
        msg = f"{url}: {name} has {messages} messages, which do not fill its shape {shape}"
        raise InvalidInputError(msg)
    return outer


_NOT_OF_ALL = {
    "reference_date",
    "forecast_date",
    "forecast_end_date",
    "fixed_surface_value",
    "proj_params",
}
"""Attributes that are those of one message only, or no JSON."""


def _attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in attributes.items() if k not in _NOT_OF_ALL and v != ""}
    if "unit" in kept:  # others call it units
        kept["units"] = kept.pop("unit")
    return kept


def _coordinate(entry: dict[str, Any], url: str) -> ParsedArray:
    values: npt.NDArray[Any] = np.asarray(entry["values"])
    if values.dtype == object:
        raise InvalidInputError(f"{url}: a coordinate of the grid cannot be read: {entry['dims']}")
    attributes = _attributes(entry["attrs"])
    if values.dtype.kind == "M":
        values = values.astype("datetime64[s]").astype(np.int64)
        attributes |= {"units": _TIME_UNITS, "calendar": "proleptic_gregorian"}
    return array_of_values(values, entry["dims"], attributes)


# --- sections of messages


def _check_messages(data: bytes, url: str) -> None:
    """Raise InvalidInputError unless all messages of a file are whole, section by section."""
    start = data.find(_MAGIC)
    while start >= 0:
        end = _check_message(data, start, url)
        start = data.find(_MAGIC, end)


def _check_message(data: bytes, start: int, url: str) -> int:
    """Check one message; returns where it ends."""
    if len(data) < start + _INDICATOR_BYTES:
        raise _damaged(url, start, "the file ends in the middle of it")
    edition = data[start + 7]
    if edition != 2:
        raise _damaged(url, start, f"it has edition {edition}, and the first one has edition 2")
    length = int.from_bytes(data[start + 8 : start + _INDICATOR_BYTES])
    end = start + length
    if end > len(data):
        raise _damaged(
            url, start, f"it should have {length} bytes, and the file has {len(data) - start} more"
        )
    position, before = start + _INDICATOR_BYTES, 0
    while position < end - len(_END):
        size, number = int.from_bytes(data[position : position + 4]), data[position + 4]
        if number not in _BEFORE or before not in _BEFORE[number]:
            raise _damaged(url, start, f"section {number} follows section {before}")
        if size < _LEAST_BYTES[number] or position + size > end - len(_END):
            raise _damaged(url, start, f"section {number} cannot have {size} bytes")
        position, before = position + size, number
    if before != _DATA or data[end - len(_END) : end] != _END:
        raise _damaged(url, start, "it does not end with its data")
    return end


def _damaged(url: str, start: int, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} cannot be read as GRIB: the message at byte {start} is damaged: {what}"
    )
