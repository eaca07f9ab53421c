"""What a reader asks of a table, as values that travel to executors."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from icefloe.model.record import Record
from icefloe.tables.decoding import AS_CF, Reading

Layout = Literal["cells", "lines", "chunks"]
LAYOUTS: tuple[Layout, ...] = ("cells", "lines", "chunks")
DEFAULT_BATCH_ROWS = 131_072


class TableRequest(Record, frozen=True):
    """Columns, cells and form of a table."""

    group: str = "/"
    variables: tuple[str, ...] | None = None
    dims: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    """The columns that are returned; all by default."""
    sel: dict[str, Any] = msgspec.field(default_factory=dict)
    isel: dict[str, Any] = msgspec.field(default_factory=dict)
    where: str | None = None
    layout: Layout = "cells"
    inner_dims: int | None = None
    """With lines: how many of the last dimensions one row holds."""
    carried: tuple[str, ...] = ()
    """With lines: inner dimensions whose coordinate values every row holds."""
    changed_since: str | None = None
    """Only cells whose chunks changed after this snapshot."""
    task_bytes: int | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    reading: Reading = AS_CF
    use_statistics: bool = True
