"""Reads files of other formats: what a parser finds, as the options ask for it, and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from icefloe.errors import StorageError, VirtualChunkError
from icefloe.ingest.expand_dims import expand_dims
from icefloe.ingest.headers import decoded_header, header_of
from icefloe.ingest.parsers.detection import parse_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.ingest.headers import FileHeader
    from icefloe.ingest.log import IngestedFile
    from icefloe.ingest.options import IngestOptions, ParseOptions
    from icefloe.ingest.parsed import ParsedArray, ParsedFile
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.objects.foreign.source import SourceStatus


class HeaderResult(NamedTuple):
    """What reading the header of one file gave."""

    url: str
    state: Literal["read", "unchanged", "broken"]
    status: SourceStatus | None
    header: FileHeader | None = None
    parsed: ParsedFile | bytes | None = None
    """The parsed file, perhaps pickled, if it need not be parsed again to place its references."""
    error: str = ""
    """Why a broken file cannot be read."""


def read_file(
    url: str,
    sources: VirtualChunkResolver,
    options: ParseOptions,
    *,
    status: SourceStatus | None = None,
) -> ParsedFile:
    """Parse a file: its Zarr documents and chunk references, not its data.

    Args:
        url: URL of the file, in a virtual chunk container.
        sources: What may be read: `session.tree.virtual_sources`.
        options: How files are parsed.
        status: Size, etag and age of the file, if already known, for example from a listing.

    Returns:
        The file with variables dropped, renamed and expanded as the options say.

    Raises:
        InvalidInputError: The file cannot be referenced.
        VirtualChunkError: The file is missing, or may not be read.

    Example:
        With a file `jan.nc` in a container that `session` may read:

        >>> from icefloe.virtual import ParseOptions, read_file
        >>> parsed = read_file(f"{prefix}jan.nc", session.tree.virtual_sources, ParseOptions())
        >>> parsed.format, sorted(parsed.arrays)
        ('netcdf3', ['rain', 'time', 'x'])
        >>> parsed.arrays["rain"].shape, len(parsed.arrays["rain"].references)
        ((2, 3), 2)
    """
    parsed = parse_file(
        url,
        sources,
        file_format=options.file_format,
        group=options.group,
        parser=options.parser,
        for_copies=options.for_copies,
        drop=options.drop_variables,
        load=options.loadable_variables or (),
        status=status,
    )
    arrays = {
        options.rename.get(name, name): _with_renamed_dims(array, options.rename)
        for name, array in parsed.arrays.items()
        if name not in options.drop_variables
    }
    parsed = msgspec.structs.replace(parsed, arrays=arrays)
    return expand_dims(parsed, sources, options.concat_dims or (), options.file_coordinates)


def _with_renamed_dims(array: ParsedArray, rename: Mapping[str, str]) -> ParsedArray:
    if not rename or not set(array.dims) & set(rename):
        return array
    dims = [rename.get(dim, dim) for dim in array.dims]
    return msgspec.structs.replace(array, document={**array.document, "dimension_names": dims})


def read_header(url: str, sources: VirtualChunkResolver, options: ParseOptions) -> FileHeader:
    """Read the header of a file: its Zarr documents, and the values of its coordinates.

    Headers are small and can be pickled: a cluster reads them in tasks and plans in one process.

    Args:
        url: URL of the file, in a virtual chunk container.
        sources: What may be read: `session.tree.virtual_sources`.
        options: How files are parsed.

    Example:
        >>> from icefloe.virtual import ParseOptions, read_header
        >>> header = read_header(f"{prefix}jan.nc", session.tree.virtual_sources, ParseOptions())
        >>> header.sizes["time"], header.sizes["x"]
        (2, 3)
        >>> header.coordinate("time").tolist()
        [0, 1]
    """
    return header_of(read_file(url, sources, options), sources, options.loadable_variables)


def examine_file(
    url: str,
    logged: IngestedFile | None,
    listed: SourceStatus | None,
    sources: VirtualChunkResolver,
    options: IngestOptions,
) -> HeaderResult:
    """Read the header of a file, unless it is as the log has it; a broken file is a result, too.

    Args:
        url: The file.
        logged: Its entry in the log.
        listed: Its status, if a listing had it.
        sources: What may be read.
        options: How files are parsed.

    Raises:
        StorageError: The storage failed; another attempt may succeed.
    """
    status = listed
    try:
        status = listed or sources.status(url)
        if logged is not None and logged.is_as(status):
            return HeaderResult(url, "unchanged", status, error=logged.error)
        parsed = read_file(url, sources, options.parse, status=status)
        header = header_of(parsed, sources, options.parse.loadable_variables)
        if options.decode:
            header = decoded_header(header)
        # Of several objects, such as a Zarr store, only parsing shows whether one has changed.
        if logged is not None and logged.is_as(header.status):
            return HeaderResult(url, "unchanged", header.status, error=logged.error)
    except (StorageError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 (the other files are read, whatever is wrong with one)
        return HeaderResult(url, "broken", status, error=f"{type(error).__name__}: {error}")
    is_one_object = status == header.status
    return HeaderResult(
        url=url,
        state="read",
        status=header.status,
        header=header,
        parsed=parsed if is_one_object else None,
    )


def check_unchanged(url: str, status: SourceStatus | None, planned: SourceStatus | None) -> None:
    """Raise VirtualChunkError if a file is no longer as it was when its header was read."""
    if status != planned:
        raise VirtualChunkError(
            f"{url} changed while it was ingested: it was {planned}, and is {status} now; ingest "
            "it again when it is complete"
        )
