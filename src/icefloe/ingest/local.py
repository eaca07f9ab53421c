"""References files from a session, with threads of this process: for a few files."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.extras import require
from icefloe.html_tables import Report
from icefloe.ingest.apply import write_references
from icefloe.ingest.driver import ingest_files, remarks
from icefloe.ingest.headers import digest_of, header_of
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.parsed import ParsedFile
from icefloe.ingest.place import place_references
from icefloe.ingest.plan import Difference, report
from icefloe.ingest.read import HeaderResult, read_file
from icefloe.ingest.sources import AnyFile, checked_url
from icefloe.progress import long_call, track

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from icefloe.ingest.driver import FileSurvey, FileToRead, PlacedFile
    from icefloe.ingest.file_rules import FileCoordinate, FileOrder
    from icefloe.ingest.parsers.detection import FileFormat
    from icefloe.ingest.place import PlacedChunks
    from icefloe.ingest.plan import IngestPlan
    from icefloe.ingest.policies import DuplicatePolicy
    from icefloe.session import Session

_PARALLEL_FILES = 4


class Referenced(Report, frozen=True, eq=False):
    """The report of `reference_files`; print it for a summary."""

    files: int
    variables: list[str]
    """Variables that are virtual."""
    stored_variables: list[str]
    """Variables whose values the repository itself stores now."""
    references: int
    """Number of chunks that are references."""
    virtual_bytes: int
    """Bytes that these references refer to."""
    stored_bytes: int
    """Bytes of values that were stored."""
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
    file_order: Mapping[str, FileOrder] | None = None,
    duplicates: DuplicatePolicy = "fail",
    tolerance: float = 0.0,
    check: str = "auto",
    commit: str | None = None,
) -> Referenced:
    """Make files readable as one Zarr group, without copying their data.

    The files must be in virtual chunk containers of the repository, and these must be authorized.
    Several files are concatenated by their coordinates; existing data of the group stays, and a
    file for an existing part replaces it. If files do not fit together, nothing is written and
    InconsistentFilesError lists the differences.

    Args:
        session: A writable session.
        files: Paths or URLs: NetCDF 3 and 4, HDF5, GRIB, GeoTIFF, kerchunk references (JSON, or
            a folder of Parquet), Zarr stores.
        group: The group that gets the arrays.
        concat_dims: Dimensions to concatenate files along; by default those along which their
            coordinates differ. A scalar coordinate of that name becomes a dimension.
        file_coordinates: For a dimension that files do not have, how the URL of a file gives its
            coordinate: a function, a mapping, a regular expression with a group, or a
            `FileAttribute`.
        loadable_variables: Names or patterns of variables to store in the repository itself,
            besides the coordinates of dimensions; by default also scalars and small variables
            that others name as coordinates, bounds or grid mapping.
        drop_variables: Names of variables to leave out.
        rename: New names for variables and dimensions.
        file_format: Format of the files; detected if not given.
        file_group: Which group of the files to read.
        parser: A VirtualiZarr parser to use instead of icefloe's. Its results are trusted, without
            icefloe's checks of HDF5 (links to other files, skipped filters).
        compat: `equals`: variables without any of these dimensions must be equal in all files.
            `override`: those of the first file are used.
        file_order: For a dimension without coordinates, or whose coordinates do not determine the
            order of files, how to sort them: `name`, or a rule as in `file_coordinates`. Files of
            later calls are appended.
        duplicates: What to do if several files contain the same part: `fail`; or use the `first` of
            them by name, or the `newest`.
        tolerance: Coordinates and other stored variables that differ by no more are equal.
        check: How readers detect that a file has changed: `etag`, `last_modified`, `none`, or the
            best of these for its store (`auto`).
        commit: Message of a commit to make; without it, the caller commits.

    Returns:
        What was referenced and stored.

    Raises:
        InvalidInputError: A file cannot be referenced, or is in no container.
        InconsistentFilesError: The files do not fit together.

    Example:
        >>> import tempfile, h5py, icefloe
        >>> from icefloe.virtual import reference_files
        >>> folder = tempfile.mkdtemp()
        >>> with h5py.File(f"{folder}/a.h5", "w") as file:
        ...     file["t"] = [10, 20, 30]
        >>> config = icefloe.RepositoryConfig.default()
        >>> config.set_virtual_chunk_container(
        ...     icefloe.VirtualChunkContainer(
        ...         f"file://{folder}/", icefloe.local_filesystem_store(folder)
        ...     )
        ... )
        >>> repo = icefloe.Repository.create(
        ...     icefloe.in_memory_storage(),
        ...     config,
        ...     authorize_virtual_chunk_access={f"file://{folder}/": None},
        ... )
        >>> session = repo.writable_session("main")
        >>> print(reference_files(session, f"{folder}/a.h5", commit="reference a file"))
        1 files: 1 references to 24 bytes for t; 0 bytes stored for nothing
    """
    require("reference_files", "virtualizarr", "h5py")
    options = IngestOptions.of(
        group=group,
        concat_dims=concat_dims,
        file_coordinates=file_coordinates,
        loadable_variables=loadable_variables,
        drop_variables=drop_variables,
        rename=rename,
        file_format=file_format,
        file_group=file_group,
        parser=parser,
        compat=compat,
        file_order=file_order,
        duplicates=duplicates,
        tolerance=tolerance,
        check=check,
        keeps_log=False,
    )
    names = [files] if isinstance(files, str | os.PathLike) else list(files)
    urls = [checked_url(name, session.tree.virtual_sources) for name in names]
    _check_names(urls)
    runner = _LocalRunner(session, options, commit)
    with long_call("reference files"):
        outcome = ingest_files(runner, dict.fromkeys(urls), options)
    plan = outcome.plan
    stored = {} if plan is None else plan.values
    return Referenced(
        files=len(urls),
        variables=runner.variables,
        stored_variables=sorted(name for name, regions in stored.items() if regions),
        references=runner.references,
        virtual_bytes=runner.virtual_bytes,
        stored_bytes=outcome.stored_bytes,
        remarks=remarks(outcome, options),
        snapshot_id=runner.snapshot_id,
    )


def _check_names(urls: Sequence[str]) -> None:
    if not urls:
        raise InvalidInputError("expected at least one file, found none")
    if len(set(urls)) < len(urls):
        twice = sorted({url for url in urls if urls.count(url) > 1})
        raise InvalidInputError(f"each file is named once, found {twice[:3]} several times")


class _LocalRunner:
    """Runs an ingest in threads; every file is parsed once and held in memory."""

    def __init__(self, session: Session, options: IngestOptions, message: str | None) -> None:
        self.session = session
        self._options = options
        self._message = message
        self.variables: list[str] = []
        self.references = 0
        self.virtual_bytes = 0
        self.snapshot_id: str | None = None
        self._parsed: dict[str, ParsedFile] = {}

    def read_headers(self, files: Sequence[FileToRead]) -> Iterable[HeaderResult]:
        if len(files) == 1:
            return [self._read_header(files[0].url)]
        with ThreadPoolExecutor(min(_PARALLEL_FILES, len(files))) as threads:
            headers = threads.map(self._read_header, [file.url for file in files])
            return list(track(headers, "files", len(files)))

    def _read_header(self, url: str) -> HeaderResult:
        sources, parse = self.session.tree.virtual_sources, self._options.parse
        parsed = read_file(url, sources, parse)
        header = header_of(parsed, sources, parse.loadable_variables)
        self._parsed[url] = parsed
        return HeaderResult(
            url=url, state="read", status=parsed.status, header=header, parsed=parsed
        )

    def read_digests(self, names: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], bytes]:
        sources = self.session.tree.virtual_sources
        return {
            (url, name): digest_of(self._parsed[url].arrays[name], sources)
            for name, urls in names.items()
            for url in urls
        }

    def accept(self, plan: IngestPlan, survey: FileSurvey) -> bool:  # noqa: ARG002
        return True

    def write_references(
        self,
        plan: IngestPlan,
        files: Sequence[PlacedFile],
        *,
        is_edited: bool,  # noqa: ARG002
    ) -> None:
        placed: dict[str, list[PlacedChunks]] = {}
        for file in files:
            assert isinstance(file.parsed, ParsedFile)
            for name, start in file.starts.items():
                chunks = place_references(
                    file.parsed, name, plan.variables[name], start, check=self._options.check
                )
                placed.setdefault(name, []).append(chunks)
                self.virtual_bytes += int(chunks.references.lengths.sum())
        self.variables = sorted(placed)
        self.references = write_references(self.session, self._options.group, placed)

    def copy_values(self, plan: IngestPlan, survey: FileSurvey) -> None:
        raise NotImplementedError("values are copied by a cluster: icefloe.spark.ingest")

    def commit(self) -> None:
        if self._message is not None:
            self.snapshot_id = self.session.commit(self._message)
