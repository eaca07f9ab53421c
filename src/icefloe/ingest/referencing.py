"""References files from a session: parse, plan, write; for a few files, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.ingest.apply import (
    child,
    clear_region,
    replaced_box,
    write_documents,
    write_references,
    write_values,
)
from icefloe.ingest.differences import Difference, report
from icefloe.ingest.existing import existing_header
from icefloe.ingest.headers import FileHeader, header_of
from icefloe.ingest.new_dimensions import FileCoordinate, with_new_dimensions
from icefloe.ingest.parsers.detection import FileFormat, parse_file
from icefloe.ingest.place import references
from icefloe.ingest.planning import plan_files
from icefloe.model import paths
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.ingest.parsed import ParsedFile
    from icefloe.ingest.place import PlacedChunks
    from icefloe.ingest.plan import IngestPlan
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.session import Session

AnyFile = str | os.PathLike[str]
_PARALLEL_FILES = 4


class ParseOptions(Record, frozen=True, eq=False):
    """How files are read; the same for all of them."""

    file_format: FileFormat | None = None
    group: str | None = None
    """Of the file."""
    parser: Callable[[str, Any], Any] | None = None
    loadable_variables: tuple[str, ...] | None = None
    drop_variables: tuple[str, ...] = ()
    rename: dict[str, str] = msgspec.field(default_factory=dict)
    concat_dims: tuple[str, ...] | None = None
    file_coordinates: dict[str, FileCoordinate] = msgspec.field(default_factory=dict)
    for_copies: bool = False
    """Whether values are copied, and references are not needed."""


class Referenced(Record, frozen=True, eq=False):
    """What became of files."""

    files: int
    variables: list[str]
    """Variables that are virtual."""
    stored_variables: list[str]
    """Variables whose values are in the repository now."""
    references: int
    virtual_bytes: int
    stored_bytes: int
    remarks: list[Difference]
    """What was not the same in all files and did not matter."""
    snapshot_id: str | None
    """The commit, if one was asked for."""

    def __str__(self) -> str:
        text = (
            f"{self.files} files: {self.references} references to {self.virtual_bytes} bytes for "
            f"{', '.join(self.variables) or 'nothing'}; {self.stored_bytes} bytes stored for "
            f"{', '.join(self.stored_variables) or 'nothing'}"
        )
        return f"{text}\n{report(self.remarks)}" if self.remarks else text


def read_file(url: str, sources: VirtualChunkResolver, options: ParseOptions) -> ParsedFile:
    """Parse a file as the options say."""
    parsed = parse_file(
        url,
        sources,
        file_format=options.file_format,
        group=options.group,
        parser=options.parser,
        for_copies=options.for_copies,
        drop=options.drop_variables,
        load=options.loadable_variables or (),
    )
    arrays = {
        options.rename.get(name, name): _renamed(array, options.rename)
        for name, array in parsed.arrays.items()
        if name not in options.drop_variables
    }
    parsed = msgspec.structs.replace(parsed, arrays=arrays)
    return with_new_dimensions(parsed, sources, options.concat_dims or (), options.file_coordinates)


def _renamed(array: Any, rename: Mapping[str, str]) -> Any:
    if not rename or not set(array.dims) & set(rename):
        return array
    dims = [rename.get(dim, dim) for dim in array.dims]
    return msgspec.structs.replace(array, document={**array.document, "dimension_names": dims})


def read_header(url: str, sources: VirtualChunkResolver, options: ParseOptions) -> FileHeader:
    """The header of a file: its documents, and the values of its coordinates."""
    return header_of(read_file(url, sources, options), sources, options.loadable_variables)


def reference_files(
    session: Session,
    files: AnyFile | Iterable[AnyFile],
    *,
    group: str = "/",
    concat_dims: Sequence[str] | str | None = None,
    file_coordinates: Mapping[str, FileCoordinate] | None = None,
    loadable_variables: Iterable[str] | None = None,
    drop_variables: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    file_format: FileFormat | None = None,
    file_group: str | None = None,
    parser: Callable[[str, Any], Any] | None = None,
    compat: str = "equals",
    check: str = "auto",
    commit: str | None = None,
) -> Referenced:
    """Make files readable as one Zarr group, without copying their data.

    The files must lie in virtual chunk containers of the repository, and these must be authorised.
    Several files are put together by their coordinates; what the group has already stays, and a
    file for a part that is there replaces it. If something does not fit, nothing is written and
    InconsistentFilesError says what differs where.

    Args:
        session: A writable session.
        files: Paths or URLs: NetCDF 3 and 4, HDF5, GRIB, GeoTIFF, kerchunk references (JSON, or
            a folder of Parquet), Zarr stores.
        group: Where to put the arrays.
        concat_dims: Dimensions to put files together along; found out if not given. One that
            files only have a scalar coordinate of becomes a dimension.
        file_coordinates: For a dimension that files do not have, how their URLs tell where they
            lie along it: a function, a mapping, or a regular expression with a group.
        loadable_variables: Names or patterns of variables to store in the repository itself,
            besides the coordinates of dimensions; by default also scalars and small variables
            that others name as coordinates, bounds or grid mapping.
        drop_variables: Names of variables to leave out.
        rename: Other names for variables and dimensions.
        file_format: Format of the files; found out if not given.
        file_group: Which group of the files to read.
        parser: A parser of VirtualiZarr to use instead of ours. What it says is believed: our
            checks of HDF5 (links to other files, skipped filters) are not made.
        compat: `equals`: variables without any of these dimensions must be the same in all files.
            `override`: those of the first file are taken.
        check: How readers notice that a file has changed: `etag`, `last_modified`, `none`, or
            what fits its store (`auto`).
        commit: Message of a commit to make; without it, committing is left to the caller.
    """
    if compat not in ("equals", "override"):
        raise InvalidInputError(f"compat is 'equals' or 'override', found {compat!r}")
    dims = (concat_dims,) if isinstance(concat_dims, str) else concat_dims
    options = ParseOptions(
        file_format,
        file_group,
        parser,
        None if loadable_variables is None else tuple(loadable_variables),
        tuple(drop_variables),
        dict(rename or {}),
        None if dims is None else tuple(dims),
        dict(file_coordinates or {}),
    )
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    sources = session.tree.virtual_sources
    parsed = _parse_all([checked_url(file, sources) for file in given], sources, options)
    headers = [header_of(each, sources, options.loadable_variables) for each in parsed]
    at = paths.canonical(group)
    existing = existing_header(session, at)
    plan = plan_files(
        headers,
        concat_dims=_all_dims(dims, options),
        existing=existing,
        compare_values=compat == "equals",
    )
    plan.check()
    return _write(session, at, plan, parsed, check, commit)


def _all_dims(dims: Sequence[str] | None, options: ParseOptions) -> list[str] | None:
    if dims is None:
        return None
    return list(dict.fromkeys([*dims, *options.file_coordinates]))


def _parse_all(
    urls: Sequence[str], sources: VirtualChunkResolver, options: ParseOptions
) -> list[ParsedFile]:
    if not urls:
        raise InvalidInputError("expected at least one file, found none")
    twice = (
        sorted({url for url in urls if urls.count(url) > 1}) if len(set(urls)) < len(urls) else []
    )
    if twice:
        raise InvalidInputError(f"each file is named once, found {twice[:3]} several times")
    if len(urls) == 1:
        return [read_file(urls[0], sources, options)]
    with ThreadPoolExecutor(min(_PARALLEL_FILES, len(urls))) as threads:
        return list(threads.map(lambda url: read_file(url, sources, options), urls))


def checked_url(file: AnyFile, sources: VirtualChunkResolver) -> str:
    """The URL of a file that lies in a container; raises InvalidInputError with advice if not."""
    text = os.fspath(file)
    url = text if "://" in text else Path(text).absolute().as_uri()
    try:
        return sources.absolute(url)
    except VirtualChunkError:
        raise InvalidInputError(_advice(url)) from None


def _advice(url: str) -> str:
    """How to let a repository read a place."""
    scheme, _, rest = url.partition("://")
    folder = url.rpartition("/")[0] + "/" if "/" in rest.lstrip("/") else f"{url}/"
    stores = {
        "file": f"icefloe.local_filesystem_store({folder.removeprefix('file://')!r})",
        "s3": "icefloe.s3_store(region=…)",
        "gs": "icefloe.gcs_store()",
        "az": "icefloe.azure_store(…)",
        "http": "icefloe.http_store()",
        "https": "icefloe.http_store()",
    }
    store = stores.get(scheme, "…")
    return (
        f"{url} is in no virtual chunk container of the repository. Say that chunks may be read "
        f"from there:\n"
        f"    config = icefloe.RepositoryConfig.default()\n"
        f"    config.set_virtual_chunk_container(\n"
        f"        icefloe.VirtualChunkContainer({folder!r}, {store})\n"
        f"    )\n"
        f"    repo = icefloe.Repository.open(\n"
        f"        …, config, authorize_virtual_chunk_access={{{folder!r}: None or credentials}}\n"
        f"    )\n"
        f"    repo.save_config()  # so that others need to authorise it only"
    )


def _write(
    session: Session,
    group: str,
    plan: IngestPlan,
    parsed: Sequence[ParsedFile],
    check: str,
    commit: str | None,
) -> Referenced:
    found: dict[str, list[PlacedChunks]] = {}
    for file in parsed:
        for name, refs in references(file, plan, check=check).items():
            found.setdefault(name, []).append(refs)
    write_documents(session, group, plan)
    stored = write_values(session, group, plan)
    clear_replaced(session, group, plan, found)
    count = write_references(session, group, found)
    virtual = sum(int(part.references.lengths.sum()) for parts in found.values() for part in parts)
    snapshot_id = None if commit is None else session.commit(commit)
    return Referenced(
        len(parsed),
        sorted(found),
        sorted(name for name, regions in plan.values.items() if regions),
        count,
        virtual,
        stored,
        [each for each in plan.differences if not each.is_error],
        snapshot_id,
    )


def clear_replaced(
    session: Session,
    group: str,
    plan: IngestPlan,
    found: Mapping[str, Sequence[PlacedChunks]],
) -> None:
    """Remove chunks of parts that files replace, if the new file does not have them any more."""
    for name, variable in plan.variables.items():
        if not variable.is_virtual or not variable.exists:
            continue
        new = [part.references.coords for part in found.get(name, ()) if len(part.references)]
        keep = np.concatenate(new) if new else None
        for url in variable.files:
            box = replaced_box(plan, variable, url)
            if box is not None:
                clear_region(session, child(group, name), *box, keep)
