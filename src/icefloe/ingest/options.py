"""The options of an ingest, as frozen values that are built once from keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.ingest.file_rules import FileCoordinate, FileOrder
from icefloe.ingest.parsers.detection import FileFormat
from icefloe.ingest.policies import DuplicatePolicy, FlippedPolicy, Policies
from icefloe.model import paths
from icefloe.model.record import Record

Mode = Literal["virtual", "copy"]
BrokenPolicy = Literal["fail", "skip", "quarantine"]
_MODES = ("virtual", "copy")
_BROKEN_POLICIES = ("fail", "skip", "quarantine")


class ParseOptions(Record, frozen=True, eq=False):
    """How files are parsed; the same for all files of an ingest.

    Example:
        >>> from icefloe.virtual import ParseOptions
        >>> ParseOptions(drop_variables=("history",), rename={"lat": "latitude"}).rename
        {'lat': 'latitude'}
    """

    file_format: FileFormat | None = None
    """Format of the files; detected from their first bytes if None."""
    group: str | None = None
    """The group of the file to read; its root if None."""
    parser: Callable[[str, Any], Any] | None = None
    """A VirtualiZarr parser to use instead of icefloe's."""
    loadable_variables: tuple[str, ...] | None = None
    """Names or patterns of variables whose values are stored, besides dimension coordinates."""
    drop_variables: tuple[str, ...] = ()
    """Names of variables to leave out."""
    rename: dict[str, str] = msgspec.field(default_factory=dict)
    """New names of variables and dimensions, by their names in the file."""
    concat_dims: tuple[str, ...] | None = None
    """Dimensions to concatenate along; a scalar of that name becomes a dimension."""
    file_coordinates: dict[str, FileCoordinate] = msgspec.field(default_factory=dict)
    """By new dimension, how the URL of a file gives its coordinate."""
    for_copies: bool = False
    """Whether values are copied, so that references are not needed."""

    @property
    def all_concat_dims(self) -> list[str] | None:
        """Dimensions to concatenate along, with those of `file_coordinates`; None if not given."""
        if self.concat_dims is None:
            return None
        return list(dict.fromkeys([*self.concat_dims, *self.file_coordinates]))


class IngestOptions(Record, frozen=True, eq=False):
    """The options of `reference_files` and of `icefloe.spark.ingest`, which documents them."""

    parse: ParseOptions
    group: str = "/"
    mode: Mode = "virtual"
    compat: str = "equals"
    check: str = "auto"
    decode: bool = False
    chunks: dict[str, int] = msgspec.field(default_factory=dict)
    encoding: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    on_broken: BrokenPolicy = "fail"
    again: bool = False
    statistics: bool | tuple[str, ...] = False
    policies: Policies = Policies()
    """What to do with files that do not quite fit together."""
    checkpoint_files: int | None = None
    """How many files are committed to a staging branch at a time; all at once if None."""
    keeps_log: bool = True
    """Whether ingested files are recorded in the repository, and skipped while unchanged."""

    @classmethod
    def of(
        cls,
        *,
        mode: Mode = "virtual",
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
        decode: bool = False,
        chunks: Mapping[str, int] | None = None,
        encoding: Mapping[str, Mapping[str, Any]] | None = None,
        on_broken: BrokenPolicy = "fail",
        again: bool = False,
        statistics: bool | Sequence[str] = False,
        file_order: Mapping[str, FileOrder] | None = None,
        duplicates: DuplicatePolicy = "fail",
        tolerance: float = 0.0,
        flipped: FlippedPolicy = "fail",
        checkpoint_files: int | None = None,
        keeps_log: bool = True,
    ) -> IngestOptions:
        """Build and validate options from what users pass; raises InvalidInputError."""
        dims = (concat_dims,) if isinstance(concat_dims, str) else concat_dims
        parse = ParseOptions(
            file_format=file_format,
            group=file_group,
            parser=parser,
            loadable_variables=None if loadable_variables is None else tuple(loadable_variables),
            drop_variables=tuple(drop_variables),
            rename=dict(rename or {}),
            concat_dims=None if dims is None else tuple(dims),
            file_coordinates=dict(file_coordinates or {}),
            for_copies=mode == "copy",
        )
        options = cls(
            parse=parse,
            group=paths.canonical(group),
            mode=mode,
            compat=compat,
            check=check,
            decode=decode and mode == "copy",
            chunks=dict(chunks or {}),
            encoding={name: dict(each) for name, each in (encoding or {}).items()},
            on_broken=on_broken,
            again=again,
            statistics=statistics if isinstance(statistics, bool) else tuple(statistics),
            policies=Policies(
                duplicates=duplicates,
                tolerance=tolerance,
                flipped=flipped,
                file_order=dict(file_order or {}),
                copies=mode == "copy",
                decode=decode and mode == "copy",
            ),
            checkpoint_files=checkpoint_files,
            keeps_log=keeps_log,
        )
        options._validate()
        return options

    def _validate(self) -> None:
        if self.mode not in _MODES:
            raise InvalidInputError(f"mode is one of {_MODES}, found {self.mode!r}")
        if self.on_broken not in _BROKEN_POLICIES:
            raise InvalidInputError(
                f"on_broken is one of {_BROKEN_POLICIES}, found {self.on_broken!r}"
            )
        self.policies.check()
        if self.checkpoint_files is not None and self.checkpoint_files < 1:
            raise InvalidInputError(
                f"checkpoint_files is a number of files, found {self.checkpoint_files}"
            )
        if self.compat not in ("equals", "override"):
            raise InvalidInputError(f"compat is 'equals' or 'override', found {self.compat!r}")
        if self.statistics and self.mode == "virtual" and self.check == "none":
            raise InvalidInputError(
                "statistics of chunks in other files hold as long as the file does, which cannot "
                "be told with check='none'; use another check, or no statistics"
            )
