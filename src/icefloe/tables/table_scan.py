"""Scans: arrays of one snapshot as a table, read as a stream of Arrow batches."""

from __future__ import annotations

from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.repository import Repository
from icefloe.tables.block_reader import BlockReader
from icefloe.tables.decoding import Reading
from icefloe.tables.indexing import selection_of
from icefloe.tables.pruning import plan_splits
from icefloe.tables.table_plan import DEFAULT_BATCH_ROWS, ScanRequest, TablePlan, plan_table
from icefloe.tables.versions import SnapshotSelector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icefloe.session import Session
    from icefloe.tables.splits import Boxes
    from icefloe.tables.table_plan import Layout
    from icefloe.zarr_store.session_port import SessionPort

    Source = Session | Repository | str | PathLike[str]
    Names = Sequence[str] | str


class Scan:
    """A table of one snapshot, which is read when its batches are requested.

    Every library that supports the Arrow C stream interface accepts a scan: `pyarrow.table(scan)`,
    `polars.DataFrame(scan)`, or `duckdb.from_arrow(scan.to_reader())`. It can be read many times.
    """

    def __init__(
        self,
        session: SessionPort,
        request: ScanRequest | None = None,
        *,
        plan: TablePlan | None = None,
    ) -> None:
        """Plan what to read, or use a plan; call `scan` to create one."""
        self._session = session
        self.plan = plan_table(session, request or ScanRequest()) if plan is None else plan
        self._reader = BlockReader(session, self.plan)

    @property
    def session(self) -> SessionPort:
        """The session that is read."""
        return self._session

    def __repr__(self) -> str:
        columns = ", ".join(self.plan.columns)
        return f"Scan({columns}; snapshot {self._session.snapshot_id})"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return self.plan.schema()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the table batch by batch; about one block of chunks is in memory at a time."""
        for boxes in self.splits():
            yield from self.read(boxes)

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as a stream, for libraries that take a `pyarrow.RecordBatchReader`.

        A reader can be read once.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Read everything into one Arrow table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @property
    def num_chunks(self) -> int:
        """How many chunks of each variable are left to read after pruning."""
        return self.plan.cost(self.splits())[0]

    def splits(self) -> list[Boxes]:
        """The blocks to read, divided into tasks of bounded size, in row-major order.

        Chunks that cannot have a matching cell are skipped.
        """
        return plan_splits(self._session, self.plan)

    def read(self, boxes: Boxes) -> Iterator[pa.RecordBatch]:
        """The batches of one split."""
        return self._reader.read(boxes)

    def with_request(self, request: ScanRequest) -> Scan:
        """The same cells for another list of columns or another layout; nothing is read again."""
        return Scan(self._session, plan=self.plan.with_request(request))


def scan(
    source: Source,
    *,
    group: str = "/",
    variables: Names | None = None,
    dims: Names | None = None,
    columns: Names | None = None,
    sel: Mapping[str, Any] | None = None,
    isel: Mapping[str, Any] | None = None,
    where: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: str | datetime | None = None,
    changed_since: str | None = None,
    layout: Layout = "cells",
    nan_as_null: bool = True,
    decode: bool = True,
    batch_rows: int = DEFAULT_BATCH_ROWS,
) -> Scan:
    """Scan the variables of a group as a table with one row per cell, without Spark.

    The table has a column for each dimension, with its coordinate values, and one for each
    variable. CF attributes are applied: scale factors, fill values (as nulls) and times. Chunks
    that cannot have a matching cell, by their coordinates or by their statistics, are not read.

    Args:
        source: A session, a repository, or the URL or path of a repository.
        group: The group of the arrays.
        variables: The data variables; all of them by default, if they share dimensions.
        dims: Instead of `variables`: all variables over these dimensions.
        columns: The columns to return; all by default.
        sel: Coordinate values by dimension: a value, a list, a slice (both ends included), or
            `{"nearest": value}`. Times may be text such as `2020-02`.
        isel: Positions by dimension: a number, a list or a slice.
        where: A condition in SQL: columns compared with values, joined by AND, OR and NOT.
        branch: The branch to read, `main` by default. Not with a session.
        tag: The tag to read instead.
        snapshot_id: The snapshot to read instead.
        as_of: Read the newest snapshot of the branch at this time.
        changed_since: Only cells in chunks that changed after this snapshot.
        layout: `cells`, or `chunks` for one row per chunk, with lists of values.
        nan_as_null: Whether NaN is null.
        decode: Whether to apply CF attributes.
        batch_rows: The largest number of rows in a batch.

    Returns:
        A scan; nothing but metadata and coordinates has been read.

    Raises:
        InvalidInputError: A column, selection or condition does not fit the table.
        NodeNotFoundError: There is no such group.

    Example:
        >>> import icefloe.tables, numpy as np, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> group = zarr.create_group(session.store)
        >>> for name, dims in [("x", ["x"]), ("t", ["x"])]:
        ...     array = group.create_array(
        ...         name, shape=(4,), chunks=(2,), dtype="i4", dimension_names=dims
        ...     )
        ...     array[:] = np.arange(4)
        >>> found = icefloe.tables.scan(session, where="x >= 2 and t < 3")
        >>> found.to_table().to_pylist()
        [{'x': 2, 't': 2}]
        >>> found.num_chunks
        1
    """
    if layout not in ("cells", "chunks"):
        raise InvalidInputError(f"layout is 'cells' or 'chunks', found {layout!r}")
    selector = selector_of(branch, tag, snapshot_id, as_of)
    request = request_of(
        group=group,
        variables=variables,
        dims=dims,
        columns=columns,
        sel=sel,
        isel=isel,
        where=where,
        layout=layout,
        changed_since=changed_since,
        batch_rows=batch_rows,
        reading=Reading(decode=decode, nan_is_null=nan_as_null),
    )
    return Scan(open_session(source, selector), request)


def open_session(source: Source, selector: SnapshotSelector) -> Session:
    """The session to read: a given one, or one on the selected snapshot of a repository."""
    if isinstance(source, Repository | str | PathLike):
        return selector.session(open_repository(source))
    if selector != SnapshotSelector():
        raise InvalidInputError(
            "a session is on a snapshot already: give a repository to select branch, tag, "
            "snapshot_id or as_of"
        )
    return source


def open_repository(source: Repository | str | PathLike[str]) -> Repository:
    """A repository, opened if it is given by its URL."""
    return source if isinstance(source, Repository) else Repository.open(source)


def selector_of(
    branch: str | None, tag: str | None, snapshot_id: str | None, as_of: str | datetime | None
) -> SnapshotSelector:
    """The version that the arguments of a function select."""
    time = as_of.isoformat() if isinstance(as_of, datetime) else as_of
    return SnapshotSelector(branch=branch, tag=tag, snapshot_id=snapshot_id, as_of=time)


def request_of(
    *,
    variables: Names | None,
    dims: Names | None,
    columns: Names | None,
    sel: Mapping[str, Any] | None,
    isel: Mapping[str, Any] | None,
    **others: Any,
) -> ScanRequest:
    """A request from the arguments of `scan` or of `icefloe.spark.table`."""
    return ScanRequest(
        variables=_tuple(variables),
        dims=_tuple(dims),
        columns=_tuple(columns),
        sel={dim: selection_of(choice) for dim, choice in (sel or {}).items()},
        isel=dict(isel or {}),
        **others,
    )


def _tuple(names: Names | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)
