"""Detects the format of a file, and parses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icefloe.errors import IcefloeError, InvalidInputError, VirtualChunkError
from icefloe.ingest.authorized import AuthorizedRegistry, AuthorizedStore
from icefloe.ingest.parsed import ParsedArray, ParsedFile
from icefloe.ingest.quiet import quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.objects.foreign.source import SourceStatus

FileFormat = Literal["netcdf3", "hdf5", "grib", "geotiff", "kerchunk", "zarr"]

_HDF5_STARTS = (0, 512, 1024, 2048)
"""Where the superblock may be; users may have put something before it."""
_SMALL_BYTES = 4096
_SIGNS_OF_DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What parsers raise where a file says something that makes no sense."""


def parse_file(
    url: str,
    sources: VirtualChunkResolver,
    *,
    file_format: FileFormat | None = None,
    group: str | None = None,
    parser: Callable[[str, Any], Any] | None = None,
    for_copies: bool = False,
    drop: Collection[str] = (),
    load: Collection[str] = (),
    status: SourceStatus | None = None,
) -> ParsedFile:
    """Read the documents and references of a file, not its data.

    Args:
        url: The file, or the folder of a Zarr store or of Parquet references.
        sources: What may be read.
        file_format: Its format; detected by default.
        group: The group of the file to read; the root by default.
        parser: A parser of VirtualiZarr to use instead of icefloe's.
        for_copies: Whether values are copied, so that references are not needed.
        drop: Names of variables to skip; they may be of kinds that cannot be parsed.
        load: Names or patterns of variables whose values will be read.
        status: Size, etag and age of the file, if these are known already.
    """
    url = sources.absolute(url)
    store = AuthorizedStore(sources, {} if status is None else {url: status})
    if parser is not None:
        from icefloe.ingest.parsers.manifest_stores import arrays_of

        with quietly():
            arrays, attributes = arrays_of(parser(url, AuthorizedRegistry(store)))
        name = type(parser).__name__
        return _checked(
            ParsedFile(
                url=url,
                format=name,
                status=store.find(url),
                arrays=arrays,
                attributes=attributes,
            )
        )
    format_name = file_format or detect_format(url, store)
    if format_name == "hdf5" and for_copies:
        from icefloe.ingest.parsers.hdf5 import parse_hdf5_for_copies

        return parse_hdf5_for_copies(url, store, group, drop=drop)
    try:
        if format_name == "hdf5":
            from icefloe.ingest.parsers.hdf5 import parse_hdf5

            parsed = parse_hdf5(url, store, group, drop=drop, load=load)
        else:
            parsed = _parse(format_name, url, store, group)
    except _SIGNS_OF_DAMAGE as error:
        if isinstance(error, IcefloeError):
            raise
        msg = f"{url} cannot be read as {format_name}: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error
    return _checked(parsed)


def _checked(parsed: ParsedFile) -> ParsedFile:
    """The file, after a check that its chunks are possible; raises InvalidInputError."""
    _check_complete(parsed)
    for name, array in parsed.arrays.items():
        _check_references(name, array, parsed.url)
        _check_lengths(name, array, parsed.url)
    return parsed


def _check_references(name: str, array: ParsedArray, url: str) -> None:
    """Raise InvalidInputError unless all chunks are in the grid and their ranges are possible.

    References are validated here and nowhere later.
    """
    try:
        array.references.check_ranges()
    except InvalidInputError as error:
        raise InvalidInputError(f"{url}: {name!r}: {error}") from None
    pairs = zip(array.shape, array.chunk_shape, strict=True)
    grid = [-(-size // chunk) for size, chunk in pairs]
    inline = np.array(list(array.inline), dtype=np.int64).reshape(len(array.inline), len(grid))
    for coords in (array.references.coords, inline):
        outside = ((coords < 0) | (coords >= np.array(grid, dtype=np.int64))).any(axis=1)
        if outside.any():
            raise InvalidInputError(
                f"{url}: {name!r} has a chunk {coords[int(np.argmax(outside))].tolist()}, which is "
                f"outside of its chunk grid {grid}; write the file again, or leave the variable "
                f"out: drop_variables=[{name!r}]"
            )


def _check_lengths(name: str, array: ParsedArray, url: str) -> None:
    """Raise InvalidInputError if the size of an uncompressed chunk does not match its shape."""
    expected = array.raw_chunk_bytes
    if expected is None:
        return
    wrong = np.flatnonzero(array.references.lengths != expected)
    places = array.references.coords[wrong[:1]].tolist()
    lengths = array.references.lengths[wrong[:1]].tolist()
    for place, data in array.inline.items():
        if len(data) != expected:
            places.append(list(place))
            lengths.append(len(data))
    if places:
        raise InvalidInputError(
            f"{url}: chunk {places[0]} of {name!r} has {lengths[0]} bytes, and {expected} are "
            "expected of an uncompressed chunk, at the edge of an array too; write the file again, "
            f"or leave the variable out: drop_variables=[{name!r}]"
        )


def _check_complete(parsed: ParsedFile) -> None:
    """Raise InvalidInputError if a file is truncated."""
    size = None if parsed.status is None else parsed.status.size
    if size is None:
        return
    for name, array in parsed.arrays.items():
        refs = array.references
        if refs.locations != [parsed.url] or not len(refs):
            continue
        end = int((refs.offsets + refs.lengths).max())
        if end > size:
            raise InvalidInputError(
                f"{parsed.url} is cut off: it has {size} bytes, and {name!r} needs {end}; get a "
                "complete copy of the file"
            )


def detect_format(url: str, store: AuthorizedStore) -> FileFormat:
    """Detect the format of a file by its first bytes."""
    status = store.find(url) if not _is_folder_name(url) else None
    if status is None:
        return _folder_format(url, store)
    start = store.get_range(url, start=0, length=_SMALL_BYTES)
    if start[:3] == b"CDF" and start[3:4] in (b"\1", b"\2", b"\5"):
        return "netcdf3"
    if any(start[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in _HDF5_STARTS):
        return "hdf5"
    if start[:4] == b"GRIB":
        return "grib"
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "geotiff"
    if start.lstrip()[:1] == b"{":
        return "kerchunk"
    raise InvalidInputError(
        f"{url} is in no format that can be referenced: expected NetCDF, HDF5, GRIB, GeoTIFF, "
        f"kerchunk references or a Zarr store, found a file that begins with {start[:8]!r}"
    )


def _is_folder_name(url: str) -> bool:
    return url.rstrip("/").endswith((".zarr", ".parq", ".parquet"))


def _folder_format(url: str, store: AuthorizedStore) -> FileFormat:
    base = url.rstrip("/")
    names: tuple[tuple[str, FileFormat], ...] = (("zarr.json", "zarr"), (".zgroup", "zarr"))
    for name, found in (*names, (".zmetadata", "kerchunk")):
        if store.sources.status(f"{base}/{name}") is not None:
            return found
    raise VirtualChunkError(f"{url} does not exist, and is no folder of a Zarr store")


def _parse(
    file_format: FileFormat, url: str, store: AuthorizedStore, group: str | None
) -> ParsedFile:
    match file_format:
        case "zarr":
            from icefloe.ingest.parsers.zarr_stores import parse_zarr

            return parse_zarr(url, store, group)
        case "kerchunk":
            from icefloe.ingest.parsers import kerchunk

            if url.rstrip("/").endswith(".json") or not _is_references_folder(url, store):
                return kerchunk.parse_kerchunk_json(url, store, group)
            return kerchunk.parse_kerchunk_parquet(url, store, group)
    if group is not None:
        raise InvalidInputError(f"files in {file_format} have no groups, found group={group!r}")
    if file_format == "netcdf3":
        from icefloe.ingest.parsers.netcdf3 import parse_netcdf3

        return parse_netcdf3(url, store)
    if file_format == "grib":
        from icefloe.ingest.parsers.grib import parse_grib

        return parse_grib(url, store)
    if file_format == "geotiff":
        from icefloe.ingest.parsers.geotiff import parse_geotiff

        return parse_geotiff(url, store)
    raise InvalidInputError(f"{file_format!r} is no format that can be referenced")


def _is_references_folder(url: str, store: AuthorizedStore) -> bool:
    return store.sources.status(f"{url.rstrip('/')}/.zmetadata") is not None
