"""What EXPLAIN adds to the plan of Spark: what of each table is read, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.html_tables import readable_size
from icefloe.model.record import Record
from icefloe.spark.tables.read_table import scan_of

if TYPE_CHECKING:
    from icefloe.spark.statements.queries import PlannedTable
    from icefloe.spark.tables.read_table import TableChoice


class ReadCost(Record, frozen=True):
    """Chunks of all variables that are read, and about their size in memory."""

    chunks: int
    num_bytes: int


def describe(table: PlannedTable) -> str:
    """A few lines on what is read of a table."""
    read = cost(table, table.choice)
    whole = cost(table, table.named.table.choice)
    columns = table.choice.request.columns or table.columns
    sizes = f"{readable_size(read.num_bytes)} of {readable_size(whole.num_bytes)}"
    lines = [
        f"{table.named.table.name}: snapshot {table.session.snapshot_id}",
        f"  columns: {', '.join(columns)} ({len(columns)} of {len(table.columns)})",
        f"  condition: {(table.condition or 'none').replace('`', '')}",
        f"  reads {read.chunks:,} of {whole.chunks:,} chunks, {sizes}",
    ]
    return "\n".join(lines)


def cost(table: PlannedTable, choice: TableChoice) -> ReadCost:
    """What it costs to read a choice of a table; nothing but metadata and coordinates is read."""
    scan, _ = scan_of(table.session, choice.request, choice.where)
    plan = scan.plan
    every = set(plan.table.dims)
    wide = [v for v in plan.table.values if v.name in plan.needed and set(v.dims) == every]
    if not wide:
        return ReadCost(0, 0)
    chunks, num_bytes = plan.cost(scan.splits())
    return ReadCost(chunks * len(wide), num_bytes)
