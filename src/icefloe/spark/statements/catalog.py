"""The names that SQL knows: registered tables with their versions and metadata tables, and URLs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from icefloe.errors import InvalidInputError, NodeNotFoundError, RefNotFoundError
from icefloe.model import MAIN
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.tables.read_table import TableChoice, frame_of, table
from icefloe.tables.metadata_tables import METADATA_TABLES
from icefloe.tables.schema import read_table_schema, read_variables
from icefloe.tables.table_scan import open_repository
from icefloe.tables.versions import SnapshotSelector

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from pyspark.sql import DataFrame, SparkSession

    from icefloe.repository import Repository
    from icefloe.spark.statements.references import AsOf
    from icefloe.spark.tables.read_table import Source, TableKeywords
    from icefloe.zarr_store.session_port import SessionPort

CATALOG = "icefloe"
"""The name of the catalog, which may stand before the name of a table."""
_YEAR_LENGTH = len("2024")
_NAME = re.compile(r"[^\W\d]\w*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|/|\./")


@with_keywords_of(table)
def register(
    spark: SparkSession, source: Source, name: str, **keywords: Unpack[TableKeywords]
) -> DataFrame:
    """Register a table for SQL under a name.

    `icefloe.spark.sql` reads the newest snapshot of the branch in each query, and only what the
    query needs. Plain `spark.sql` sees a temporary view of the complete table at the current
    snapshot.

    Args:
        spark: The session, classic or Connect.
        source: A repository, or its URL.
        name: The name of the table and view; an existing one of the same name is replaced.
        keywords: The other arguments of `table`.

    Returns:
        The DataFrame of the view.

    Example:
        >>> frame = icefloe.spark.register(spark, repo, "weather")
        >>> icefloe.spark.sql(spark, "SELECT max(t2m) FROM weather WHERE lat > 40").first()[0]
        303.0
    """
    checked_name(name)
    catalog = catalog_of(spark)
    entry = RegisteredTable(name, open_repository(source), TableChoice.of(**keywords))
    frame = entry.frame(spark)
    frame.createOrReplaceTempView(name)
    catalog.tables[name.lower()] = entry
    return frame


def checked_name(name: str) -> str:
    """The name of a table; raises InvalidInputError for one that Spark takes for no view."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            "the name of a table consists of letters, digits and _, and begins with no digit; "
            f"found {shortened(name)!r}"
        )
    return name


class RegisteredTable(Record, frozen=True, eq=False):
    """A table with a name."""

    name: str
    repository: Any
    choice: TableChoice
    declared: tuple[tuple[str, str], ...] | None = None
    """Names and types of columns that CREATE TABLE gave; the first INSERT makes arrays of them."""
    write_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of `write_table` that CREATE TABLE gave."""
    order: tuple[str, ...] = ()
    """The columns in the order of CREATE TABLE; arrays have none."""

    @property
    def branch(self) -> str:
        """The branch that statements write to."""
        return self.choice.selector.branch or MAIN

    def has_arrays(self, session: SessionPort | None = None) -> bool:
        """Whether there is anything to read; a table that was only declared has no arrays yet."""
        session = session or self.choice.selector.session(self.repository)
        try:
            return bool(read_variables(session, self.choice.request.group))
        except NodeNotFoundError:
            return False

    def no_rows(self, spark: SparkSession) -> DataFrame:
        """A DataFrame with the declared columns."""
        columns = (f"`{name}` {kind}" for name, kind in self.declared or ())
        return spark.createDataFrame([], ", ".join(columns))

    def frame(self, spark: SparkSession) -> DataFrame:
        """The whole table, as it is now."""
        session = self.choice.selector.session(self.repository)
        if self.declared is not None and not self.has_arrays(session):
            return self.no_rows(spark)
        return frame_of(spark, session, self.ordered(session).choice)

    def ordered(self, session: SessionPort) -> RegisteredTable:
        """The table with its columns in the order of CREATE TABLE, and later ones behind."""
        request = self.choice.request
        if not self.order or request.columns is not None or not self.has_arrays(session):
            return self
        names = read_table_schema(
            session, request.group, variables=request.variables, dims=request.dims
        ).names
        first = [name for name in self.order if name in names]
        columns = (*first, *(name for name in names if name not in first))
        choice = msgspec.structs.replace(
            self.choice, request=msgspec.structs.replace(request, columns=columns)
        )
        return msgspec.structs.replace(self, choice=choice)


class NamedTable(Record, frozen=True, eq=False):
    """What a name in a query means: a version of a table, or a metadata table of it."""

    table: RegisteredTable
    selector: SnapshotSelector
    metadata: str | None = None


class Catalog:
    """The tables of a Spark session, by name in lower case."""

    def __init__(self) -> None:
        """Begin without tables."""
        self.tables: dict[str, RegisteredTable] = {}

    def find(
        self, parts: Sequence[str], locations: Iterable[str], as_of: AsOf | None, zone: str
    ) -> NamedTable | None:
        """What a name means; None if it is a name of Spark's own.

        Args:
            parts: The parts of the name: `weather.branch_dev`.
            locations: URLs below which repositories may be named by their URL.
            as_of: The version that follows the name.
            zone: The time zone of times without one.
        """
        if len(parts) > 1 and parts[0].lower() == CATALOG:
            parts = parts[1:]
        table = self.tables.get(parts[0].lower())
        if table is None and _URL.match(parts[0]):
            table = _by_url(parts[0], locations)
        if table is None:
            return None
        selector, metadata = _version(table, parts[1:])
        if as_of is not None:
            selector = _at(table.repository, selector, as_of, zone)
        if table.order and metadata is None:
            table = table.ordered(selector.session(table.repository))
        return NamedTable(table, selector, metadata)


_catalogs: WeakKeyDictionary[SparkSession, Catalog] = WeakKeyDictionary()


def catalog_of(spark: SparkSession) -> Catalog:
    """The catalog of a Spark session."""
    return _catalogs.setdefault(spark, Catalog())


def _by_url(text: str, locations: Iterable[str]) -> RegisteredTable:
    url, _, group = text.partition("#")
    check_location(url, locations)
    choice = TableChoice.of(group=group or "/")
    return RegisteredTable(text, open_repository(url), choice)


def written_branch(target: NamedTable) -> str:
    """The branch that a statement writes to; raises InvalidInputError for another version."""
    selector = target.selector
    if target.metadata is not None or selector.tag or selector.snapshot_id or selector.as_of:
        raise InvalidInputError(
            f"statements change the tip of a branch; write to {target.table.name} or "
            f"{target.table.name}.branch_…"
        )
    return selector.branch or MAIN


def check_location(url: str, locations: Iterable[str]) -> None:
    """Raise unless a URL of a statement is at or below one that the caller allows.

    Settings behind `?` are refused: they could send credentials to another server.
    """
    allowed = [_folder(location) for location in locations]
    own = _folder(url)
    leads_away = ".." in unquote(own).split("/") or "?" in unquote(own)
    if leads_away or not any(own.startswith(prefix) for prefix in allowed):
        known = ", ".join(map(repr, allowed)) or "none"
        raise InvalidInputError(
            f"SQL may not open {shortened(url)!r}; allowed are URLs below: {known}. Give sql(…, "
            "locations=[…]), or give the table a name with icefloe.spark.register"
        )


def _folder(url: str) -> str:
    return url.removeprefix("file://").rstrip("/") + "/"


def _version(table: RegisteredTable, parts: Sequence[str]) -> tuple[SnapshotSelector, str | None]:
    """The version and the metadata table that the parts behind a name select."""
    selector = table.choice.selector
    metadata = None
    for part in parts:
        kind, _, ref = part.partition("_")
        if metadata is None and kind.lower() == "branch" and ref:
            selector = SnapshotSelector(branch=ref)
        elif metadata is None and kind.lower() == "tag" and ref:
            selector = SnapshotSelector(tag=ref)
        elif metadata is None and part.lower() in METADATA_TABLES:
            metadata = part.lower()
        else:
            raise InvalidInputError(
                f"{table.name} has no {shortened(part)!r}; behind the name of a table stands "
                f"branch_… or tag_…, or a metadata table: {', '.join(METADATA_TABLES)}"
            )
    return selector, metadata


def _at(
    repository: Repository, selector: SnapshotSelector, as_of: AsOf, zone: str
) -> SnapshotSelector:
    if as_of.version is not None:
        return selector_of_version(repository, as_of.version)
    assert as_of.timestamp is not None
    return SnapshotSelector(branch=selector.branch, as_of=moment_text(as_of.timestamp, zone))


def selector_of_version(repository: Repository, version: str) -> SnapshotSelector:
    """A version by its name: a branch, a tag or the id of a snapshot."""
    for kind, look in (("branch", repository.lookup_branch), ("tag", repository.lookup_tag)):
        try:
            look(version)
        except (RefNotFoundError, InvalidInputError):
            continue
        return SnapshotSelector(**{kind: version})
    return SnapshotSelector(snapshot_id=version)


def moment_text(text: str, zone: str) -> str:
    """A time of SQL in ISO 8601 with its zone: of the session, if the text has none."""
    plain = text.strip()
    try:
        if plain.isdecimal() and len(plain) != _YEAR_LENGTH:
            return datetime.fromtimestamp(int(plain), UTC).isoformat()
        moment = datetime.fromisoformat(f"{plain}-01-01" if plain.isdecimal() else plain)
        own = ZoneInfo(zone)
    except (ValueError, OverflowError, OSError, ZoneInfoNotFoundError):
        raise InvalidInputError(
            f"expected a time such as '2024-01-31 12:00:00', or seconds since 1970, found "
            f"{shortened(text)!r}"
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=own)).isoformat()


def refresh(spark: SparkSession, repository: Repository) -> None:
    """Let the views of plain `spark.sql` show the newest snapshots of a repository."""
    for entry in catalog_of(spark).tables.values():
        selector = entry.choice.selector
        follows = selector.tag is None and selector.snapshot_id is None and selector.as_of is None
        if entry.repository.storage.location == repository.storage.location and follows:
            entry.frame(spark).createOrReplaceTempView(entry.name)
