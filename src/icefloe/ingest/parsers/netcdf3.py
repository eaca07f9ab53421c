"""Parses NetCDF 3 (classic, 64-bit offset and 64-bit data): only the header is read.

VirtualiZarr's parser is not used because it turns numeric attributes into text and drops fill
values.
"""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import ParsedArray, ParsedFile, array_document
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    from icefloe.ingest.authorized import AuthorizedStore

_FIRST_READ_BYTES = 64 * 1024
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_STREAMING = 0xFFFFFFFF
_TYPES = {
    1: ">i1",
    2: "S1",
    3: ">i2",
    4: ">i4",
    5: ">f4",
    6: ">f8",
    7: ">u1",
    8: ">u2",
    9: ">u4",
    10: ">i8",
    11: ">u8",
}
# Default fill values of the NetCDF library.
_FILLS: dict[str, Any] = {
    "i1": -127,
    "i2": -32767,
    "i4": -2147483647,
    "f4": 9.969209968386869e36,
    "f8": 9.969209968386869e36,
    "u1": 255,
    "u2": 65535,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
}


class _TooShortError(Exception):
    """More of the header is needed."""


class _NetcdfVariable(NamedTuple):
    name: str
    dimensions: list[int]
    attributes: dict[str, Any]
    dtype: np.dtype[Any]
    begin: int


def parse_netcdf3(url: str, store: AuthorizedStore) -> ParsedFile:
    """Read the header of a file."""
    status = store.status(url)
    size = status.size or 0
    length = _FIRST_READ_BYTES
    while True:
        data = store.get_range(url, start=0, length=length)
        try:
            header = _Header(data, size, url)
        except _TooShortError:
            if len(data) >= size:
                raise _damaged(url, "its header ends too soon") from None
            length *= 4
            continue
        arrays = {variable.name: header.array(variable) for variable in header.variables}
        return ParsedFile(
            url=url, format="netcdf3", status=status, arrays=arrays, attributes=header.attributes
        )


class _Header:
    """The header of a NetCDF 3 file."""

    def __init__(self, data: bytes, size: int, url: str) -> None:
        self._data = data
        self._at = 4
        self._url = url
        version = data[3] if len(data) > 3 else 0
        if data[:3] != b"CDF" or version not in (1, 2, 5):
            raise _damaged(url, f"it begins with {data[:4]!r}, not with CDF and 1, 2 or 5")
        self._wide = version == 5
        self._offset_format = ">I" if version == 1 else ">Q"
        records = self._count()
        self.dimensions = self._list(_DIMENSIONS, self._dimension)
        self.attributes = dict(self._list(_ATTRIBUTES, self._attribute))
        self.variables = self._list(_VARIABLES, self._variable)
        sizes = [self._slab(variable) for variable in self.variables if self._is_record(variable)]
        # A single record variable is not padded.
        self._record_bytes = sizes[0] if len(sizes) == 1 else sum(-(-n // 4) * 4 for n in sizes)
        streaming = 2**64 - 1 if self._wide else _STREAMING
        self._records = self._records_in(size) if records == streaming else records

    # --- reading

    def _take(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length]
        if len(piece) < length:
            raise _TooShortError
        self._at += length
        return piece

    def _number(self, fmt: str) -> int:
        return int(struct.unpack(fmt, self._take(struct.calcsize(fmt)))[0])

    def _count(self) -> int:
        return self._number(">Q" if self._wide else ">I")

    def _name(self) -> str:
        length = self._count()
        return self._take(-(-length // 4) * 4)[:length].decode("utf-8")

    def _list(self, tag: int, read: Any) -> list[Any]:
        found, count = self._number(">I"), self._count()
        if found not in (0, tag) or (found == 0 and count):
            raise _damaged(self._url, f"expected the list {tag}, found {found}")
        return [read() for _ in range(count)]

    def _dimension(self) -> tuple[str, int]:
        return self._name(), self._count()

    def _attribute(self) -> tuple[str, Any]:
        name = self._name()
        dtype, count = self._type(), self._count()
        length = dtype.itemsize * count
        data = self._take(-(-length // 4) * 4)[:length]
        if dtype.kind == "S":
            return name, data.rstrip(b"\0").decode("utf-8", errors="replace")
        values = np.frombuffer(data, dtype=dtype).tolist()
        return name, values[0] if len(values) == 1 else values

    def _variable(self) -> _NetcdfVariable:
        name = self._name()
        dimensions = [self._count() for _ in range(self._count())]
        attributes = dict(self._list(_ATTRIBUTES, self._attribute))
        dtype = self._type()
        self._count()  # its size, which cannot hold large ones and is not needed
        return _NetcdfVariable(
            name=name,
            dimensions=dimensions,
            attributes=attributes,
            dtype=dtype,
            begin=self._number(self._offset_format),
        )

    def _type(self) -> np.dtype[Any]:
        code = self._number(">I")
        if code not in _TYPES:
            raise _damaged(self._url, f"{code} is no type of NetCDF 3")
        return np.dtype(_TYPES[code])

    # --- understanding

    def _is_record(self, variable: _NetcdfVariable) -> bool:
        return bool(variable.dimensions) and self.dimensions[variable.dimensions[0]][1] == 0

    def _slab(self, variable: _NetcdfVariable) -> int:
        """Size of one record of a variable in bytes."""
        inner = [self.dimensions[number][1] for number in variable.dimensions[1:]]
        return int(prod(inner) * variable.dtype.itemsize)

    def _records_in(self, size: int) -> int:
        """The number of records of a file that was written as a stream, computed from its size."""
        begins = [v.begin for v in self.variables if self._is_record(v)]
        return (size - min(begins)) // self._record_bytes if begins and self._record_bytes else 0

    def array(self, variable: _NetcdfVariable) -> ParsedArray:
        """The array of a variable; one chunk for each record, or one for all of it."""
        dims = [self.dimensions[number][0] for number in variable.dimensions]
        shape = [self.dimensions[number][1] for number in variable.dimensions]
        is_record = self._is_record(variable)
        if is_record:
            shape[0] = self._records
        chunk_shape = [1, *shape[1:]] if is_record else list(shape)
        document = array_document(
            shape=shape,
            dtype=variable.dtype,
            chunk_shape=[max(1, size) for size in chunk_shape],
            dims=dims,
            attributes=_zarr_attributes(variable),
            fill_value=_fill_value(variable),
        )
        return ParsedArray(document, self._references(variable, shape, is_record=is_record))

    def _references(
        self, variable: _NetcdfVariable, shape: list[int], *, is_record: bool
    ) -> VirtualColumns:
        if 0 in shape:
            return VirtualColumns.none(len(shape))
        count = shape[0] if is_record else 1
        coords = np.zeros((count, len(shape)), dtype=np.int64)
        if is_record:
            coords[:, 0] = np.arange(count)
        step = self._record_bytes if is_record else 0
        offsets = variable.begin + step * np.arange(count, dtype=np.int64)
        length = self._slab(variable) if is_record else prod(shape) * variable.dtype.itemsize
        return VirtualColumns.in_one_object(self._url, coords, offsets, np.full(count, length))


def _fill_value(variable: _NetcdfVariable) -> Any:
    if variable.dtype.kind == "S":
        return b""
    return variable.attributes.get("_FillValue", _FILLS[variable.dtype.str[1:]])


def _zarr_attributes(variable: _NetcdfVariable) -> dict[str, Any]:
    from virtualizarr.parsers.utils import encode_cf_fill_value

    attributes = dict(variable.attributes)
    if "_FillValue" in attributes and variable.dtype.kind != "S":
        value = variable.dtype.newbyteorder("=").type(attributes["_FillValue"])
        attributes["_FillValue"] = encode_cf_fill_value(value, variable.dtype.newbyteorder("="))
    elif "_FillValue" in attributes:
        del attributes["_FillValue"]
    return attributes


def _damaged(url: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{url} is not a readable NetCDF 3 file: {reason}")
