"""Makes small files of each format, for tests that reference and ingest them."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import eccodes
import netCDF4
import numpy as np
import xarray as xr

import icefloe

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from icefloe.session import Session


def repository_for(folder: Path, **settings: Any) -> icefloe.Repository:
    """A repository in memory that may read a folder."""
    config = icefloe.RepositoryConfig(**settings)
    prefix = f"{folder.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    return icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={prefix: None}
    )


def session_for(folder: Path) -> Session:
    return repository_for(folder).writable_session("main")


def month_file(
    path: Path,
    month: int,
    *,
    days: int = 4,
    file_format: str = "NETCDF4",
    start: str | None = None,
    dtype: str = "i2",
    zlib_level: int | None = 4,
    chunks: tuple[int, int, int] | None = None,
    first_day: int = 0,
    variables: tuple[str, ...] = ("t2m",),
    lat: tuple[float, ...] = (60.0, 50.0, 40.0),
    seed: int | None = None,
    attributes: dict[str, Any] | None = None,
    unlimited: bool = True,
) -> Path:
    """A NetCDF file with some days of packed values, missing ones among them."""
    compression: dict[str, Any] = {}
    if file_format == "NETCDF4" and zlib_level is not None:
        compression = {"zlib": True, "complevel": zlib_level}
    random = np.random.default_rng(month if seed is None else seed)
    with netCDF4.Dataset(path, "w", format=file_format) as data:  # type: ignore[arg-type]
        data.title = "made by a test"
        data.history = f"month {month}"
        data.createDimension("time", None if unlimited else days)
        data.createDimension("lat", len(lat))
        data.createDimension("lon", 5)
        time = data.createVariable("time", "f8", ("time",))
        time.units = start or f"days since 2026-{month:02d}-01"
        time.calendar = "standard"
        time[:] = np.arange(days) + first_day
        for name, values in (("lat", lat), ("lon", np.arange(5) * 1.5)):
            data.createVariable(name, "f4", (name,))[:] = values
        for name in variables:
            variable = data.createVariable(
                name,
                dtype,
                ("time", "lat", "lon"),
                fill_value=-999,
                chunksizes=chunks,
                **compression,
            )
            variable.set_auto_maskandscale(False)
            if dtype.startswith("i"):
                variable.scale_factor = 0.01
                variable.add_offset = 280.0
            variable.units = "K"
            for key, value in (attributes or {}).items():
                variable.setncattr(key, value)
            values = random.integers(-900, 900, (days, len(lat), 5))  # type: ignore[assignment]
            values[0, 0, 0] = -999
            variable[:] = values
    return path


def series_file(path: Path, start: int, length: int, *, chunk: int | None = None) -> Path:
    """A NetCDF file with a short uncompressed series along an unlimited dimension."""
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("time", None)
        time = data.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(start, start + length)
        chunks = None if chunk is None else (chunk,)
        data.createVariable("v", "i4", ("time",), chunksizes=chunks)[:] = np.arange(
            start, start + length
        )
    return path


def tiff_file(
    path: Path,
    image: npt.NDArray[Any],
    *,
    tile: int = 16,
    strip: int | None = None,
    compressed: bool = True,
    order: str = "<",
    corner: tuple[float, float] = (10.0, 50.0),
    scale: tuple[float, float] = (0.5, 0.25),
    nodata: str | None = None,
    predictor: int = 1,
    texts: dict[int, str] | None = None,
    geo_keys: dict[int, int] | None = None,
) -> Path:
    """A GeoTIFF of square tiles, or of strips of some rows of which the last may be short.

    Predictor 2 keeps differences of neighbours.
    """
    height, width = image.shape
    rows, columns = (tile, tile) if strip is None else (strip, width)
    out = bytearray(b"II*\0" if order == "<" else b"MM\0*") + bytearray(4)
    offsets, lengths = [], []
    for row in range(0, height, rows):
        for column in range(0, width, columns):
            part = image[row : row + rows, column : column + columns]
            shape = (tile, tile) if strip is None else part.shape
            block = np.zeros(shape, image.dtype.newbyteorder(order))  # type: ignore[arg-type]
            block[: part.shape[0], : part.shape[1]] = part
            if predictor == 2:
                block[:, 1:] -= block[:, :-1].copy()
            data = zlib.compress(block.tobytes()) if compressed else block.tobytes()
            offsets.append(len(out))
            lengths.append(len(data))
            out += data

    def appended(fmt: str, values: Any) -> int:
        if len(out) % 2:
            out.append(0)
        at = len(out)
        out.extend(struct.pack(f"{order}{len(values)}{fmt}", *values))
        return at

    kind = {"u": 1, "i": 2, "f": 3}[image.dtype.kind]
    offset_tag, length_tag = (324, 325) if strip is None else (273, 279)
    tags = [
        *([(322, 4, 1, tile), (323, 4, 1, tile)] if strip is None else [(278, 4, 1, strip)]),
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, image.itemsize * 8),
        (259, 3, 1, 8 if compressed else 1),
        (262, 3, 1, 1),
        (277, 3, 1, 1),
        # A single number stands in the directory itself.
        (offset_tag, 4, len(offsets), appended("I", offsets) if len(offsets) > 1 else offsets[0]),
        (length_tag, 4, len(offsets), appended("I", lengths) if len(lengths) > 1 else lengths[0]),
        (317, 3, 1, predictor),
        (339, 3, 1, kind),
        (33550, 12, 3, appended("d", (*scale, 0.0))),
        (33922, 12, 6, appended("d", (0.0, 0.0, 0.0, *corner, 0.0))),
    ]
    if nodata is not None:
        text = nodata.encode() + b"\0"
        text += b"\0" * (-len(text) % 8 + (8 if len(text) < 8 else 0))
        at = len(out)
        out += text
        tags.append((42113, 2, len(text), at))
    for tag, words in (texts or {}).items():
        text = words.encode() + b"\0"
        inside = int.from_bytes(text.ljust(4, b"\0"), "little" if order == "<" else "big")
        tags.append((tag, 2, len(text), inside if len(text) <= 4 else appended("B", text)))
    if geo_keys:
        keys = [1, 1, 0, len(geo_keys)]
        for key, code in sorted(geo_keys.items()):
            keys += [key, 0, 1, code]
        tags.append((34735, 3, len(keys), appended("H", keys)))
    if len(out) % 2:
        out.append(0)
    out[4:8] = struct.pack(f"{order}I", len(out))
    out += struct.pack(f"{order}H", len(tags))
    for tag, code, count, value in sorted(tags):
        out += struct.pack(f"{order}HHI", tag, code, count)
        is_short = code == 3 and count == 1
        out += struct.pack(f"{order}HH", value, 0) if is_short else struct.pack(f"{order}I", value)
    out += bytes(4)
    path.write_bytes(out)
    return path


def grib_message(
    short_name: str,
    step: int,
    level: int,
    *,
    missing: bool = False,
    edition: int = 2,
    keys: dict[str, Any] | None = None,
) -> bytes:
    """A GRIB message on a small global grid."""
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    try:
        for key, value in {
            "Ni": 16,
            "Nj": 9,
            "latitudeOfFirstGridPointInDegrees": 80,
            "latitudeOfLastGridPointInDegrees": -80,
            "longitudeOfFirstGridPointInDegrees": 0,
            "longitudeOfLastGridPointInDegrees": 337.5,
            "iDirectionIncrementInDegrees": 22.5,
            "jDirectionIncrementInDegrees": 20,
            "dataDate": 20260101,
            "dataTime": 0,
            "stepRange": step,
            "shortName": short_name,
            "level": level,
            **(keys or {}),
        }.items():
            eccodes.codes_set(handle, key, value)
        values = np.arange(144) * 0.5 + 200 + step + level / 100
        if missing:
            eccodes.codes_set(handle, "bitmapPresent", 1)
            eccodes.codes_set(handle, "missingValue", 9999)
            values[7] = 9999
        eccodes.codes_set_values(handle, values)
        message: bytes = eccodes.codes_get_message(handle)
        return message
    finally:
        eccodes.codes_release(handle)


def grib_sample(name: str) -> bytes:
    """A message on the grid of one of eccodes' samples, with values of its own."""
    handle = eccodes.codes_grib_new_from_samples(name)
    try:
        count = eccodes.codes_get_size(handle, "values")
        eccodes.codes_set_values(handle, 250 + np.arange(count) % 40)
        message: bytes = eccodes.codes_get_message(handle)
        return message
    finally:
        eccodes.codes_release(handle)


def several_fields(*messages: bytes) -> bytes:
    """One message of GRIB 2 with the fields of several that are on the same grid."""
    parts = [messages[0][16:-4]]
    for message in messages[1:]:
        position = 16
        while message[position + 4] < 4:  # what the fields share
            position += int.from_bytes(message[position : position + 4])
        parts.append(message[position:-4])
    body = b"".join(parts) + b"7777"
    return messages[0][:8] + (16 + len(body)).to_bytes(8) + body


def grib_points(message: bytes) -> list[tuple[float, float, float]]:
    """Latitude, longitude and value of every point, as eccodes walks through them."""
    handle = eccodes.codes_new_from_message(message)
    points = eccodes.codes_grib_iterator_new(handle, 0)
    try:
        return list(iter(lambda: eccodes.codes_grib_iterator_next(points), []))
    finally:
        eccodes.codes_grib_iterator_delete(points)
        eccodes.codes_release(handle)


def cmip_file(
    path: Path,
    variable: str,
    months: range,
    *,
    seed: int = 0,
    bounds_shift: float = 0.0,
    lat: tuple[float, ...] = (-60.0, 0.0, 60.0),
    attributes: dict[str, Any] | None = None,
) -> Path:
    """A file as CMIP has them: one variable, bounds, a scalar height, curvilinear coordinates."""
    random = np.random.default_rng([seed, len(variable), *variable.encode(), months.start])
    with netCDF4.Dataset(path, "w") as data:
        data.setncatts({"Conventions": "CF-1.7", "variable_id": variable, **(attributes or {})})
        for name, size in (("time", None), ("lat", len(lat)), ("lon", 4), ("bnds", 2)):
            data.createDimension(name, size)
        time = data.createVariable("time", "f8", ("time",))
        time.setncatts({"units": "days since 1850-01-01", "calendar": "360_day"})
        time.bounds = "time_bnds"
        time[:] = 30.0 * np.array(months) + 15
        time_bnds = data.createVariable("time_bnds", "f8", ("time", "bnds"))
        time_bnds[:] = 30.0 * np.stack([np.array(months), np.array(months) + 1], axis=1)
        time_bnds[0, 1] += bounds_shift
        for name, values in (("lat", np.array(lat)), ("lon", np.arange(4) * 90.0)):
            coordinate = data.createVariable(name, "f8", (name,))
            coordinate.bounds = f"{name}_bnds"
            coordinate[:] = values
            bounds = data.createVariable(f"{name}_bnds", "f8", (name, "bnds"))
            bounds[:] = np.stack([values - 30, values + 30], axis=1)
        height = data.createVariable("height", "f8", ())
        height[...] = 2.0
        area = data.createVariable("area", "f4", ("lat", "lon"))
        area[:] = np.arange(4 * len(lat)).reshape(len(lat), 4)
        field = data.createVariable(
            variable,
            "f4",
            ("time", "lat", "lon"),
            fill_value=1e20,
            zlib=True,
            chunksizes=(1, len(lat), 4),
        )
        field.setncatts({"units": "1", "coordinates": "height area"})
        field[:] = random.normal(size=(len(months), len(lat), 4))
    return path


def nemo_file(
    path: Path, month: int, *, counter: float | None = 0.0, steps: int = 1, date: str = ""
) -> Path:
    """A file as NEMO has them: the dimension of time has no coordinates that are of use."""
    random = np.random.default_rng(month)
    with netCDF4.Dataset(path, "w") as data:
        data.file_date = date or f"2015-{month:02d}-01"
        for name, size in (("time_counter", None), ("y", 3), ("x", 4), ("axis_nbounds", 2)):
            data.createDimension(name, size)
        for name in ("nav_lat", "nav_lon"):
            variable = data.createVariable(name, "f4", ("y", "x"))
            variable[:] = np.arange(12).reshape(3, 4)
        centered = data.createVariable("time_centered", "f8", ("time_counter",))
        centered.units = "seconds since 1900-01-01"
        centered.bounds = "time_centered_bounds"
        centered[:] = 1000.0 * month + np.arange(steps)
        bounds = data.createVariable("time_centered_bounds", "f8", ("time_counter", "axis_nbounds"))
        bounds[:] = 1000.0 * month + np.arange(2 * steps).reshape(steps, 2)
        if counter is not None:
            data.createVariable("time_counter", "f8", ("time_counter",))[:] = np.full(
                steps, counter
            )
        tos = data.createVariable(
            "tos", "f4", ("time_counter", "y", "x"), zlib=True, chunksizes=(1, 3, 4)
        )
        tos.coordinates = "time_centered nav_lat nav_lon"
        tos[:] = random.normal(size=(steps, 3, 4))
    return path


def by_xarray(files: list[Path], **options: Any) -> xr.Dataset:
    """What xarray makes of the files."""
    chosen = {
        "combine": "by_coords",
        "data_vars": "minimal",
        "coords": "minimal",
        "compat": "override",
        "join": "outer",
        "combine_attrs": "drop_conflicts",
        "engine": "netcdf4",
        **options,
    }
    with xr.open_mfdataset(files, **chosen) as data:
        return data.load()
