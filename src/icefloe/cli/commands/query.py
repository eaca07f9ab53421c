"""The command `sql`: queries over arrays as tables, by DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli import wording
from icefloe.cli.arguments import Authorize, Place, VersionOption
from icefloe.cli.command import DATA, command
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Column, Records, View
from icefloe.errors import InvalidInputError
from icefloe.extras import require
from icefloe.model import MAIN

if TYPE_CHECKING:
    from icefloe.tables import Scan

TABLE = "data"
"""The name of the table in queries."""


_NOTHING_BUT_THE_TABLE: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
"""A query names no variable of this process, no file, no address and no extension to load."""


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    command(
        app,
        sql,
        DATA,
        "icefloe sql ./weather 'select avg(t2m) from data'",
        "icefloe sql era5 'select time, max(t2m) from data group by time' "
        '--where "lat > 60" --variable t2m --version v1',
    )


def sql(
    out: Output,
    place: Place,
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="A query of the table `data`.", show_default=False),
    ],
    group: Annotated[str, typer.Option("--group", "-g", help="The group of the arrays.")] = "/",
    variables: Annotated[
        list[str] | None,
        typer.Option("--variable", help="Only these arrays; all by default. May be repeated."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help="Read only chunks that can match this condition."),
    ] = None,
    version: VersionOption = MAIN,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="How many rows of the result to show.")
    ] = 1000,
    authorize: Authorize = None,
) -> View:
    """Query arrays as a table with one row per cell, by DuckDB.

    The table is called `data`; it has a column for each dimension and for each array. --where and
    --variable decide what is read, the query decides what is done with it. A query has access to
    nothing else: no files, no network and no extensions of DuckDB.
    """
    require("icefloe sql", "duckdb", "pyarrow")
    from icefloe.tables import scan

    session = open_place(place, authorize or ()).readonly_session(snapshot_id=version)
    with out.working("querying"):
        return _query(scan(session, group=group, variables=variables, where=where), query, max_rows)


def _query(table: Scan, query: str, max_rows: int) -> Records:
    import duckdb

    if not query.strip(" \t\r\n;"):
        raise InvalidInputError(f"the query is empty: write for example 'select * from {TABLE}'")
    connection = duckdb.connect(":memory:", config=_NOTHING_BUT_THE_TABLE)
    try:
        connection.register(TABLE, table)  # not a reader: a query may name the table twice
        cursor = connection.execute(query)
        names = _distinct([column[0] for column in cursor.description or ()])
        values = cursor.fetchmany(max_rows + 1)
    except duckdb.Error as error:
        raise InvalidInputError(f"the query failed: {_reason(error)}") from None
    finally:
        connection.close()
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in values[:max_rows]]
    more = "" if len(values) <= max_rows else f"the first {max_rows:,} rows: --max-rows shows more"
    columns = tuple(Column(name, wording.printable(name), wording.cell) for name in names)
    return Records(rows, columns, "no rows", note=more)


def _reason(error: Exception) -> str:
    reason = str(error).splitlines()[0]
    if "'pytz'" in reason:
        return (
            "times with a time zone need pytz: pip install pytz, or cast them in the query, as in "
            "now()::timestamp"
        )
    if "disabled" in reason:
        return f"{reason}; a query reads the table {TABLE} and nothing else"
    return reason


def _distinct(names: list[str]) -> list[str]:
    """Names of columns, of which no two are the same: those of a join may be.

    >>> _distinct(["x", "y", "x", "x_1"])
    ['x', 'y', 'x_2', 'x_1']
    """
    distinct_names: list[str] = []
    for name in names:
        number, distinct = 0, name
        while distinct in distinct_names or (number and distinct in names):
            number += 1
            distinct = f"{name}_{number}"
        distinct_names.append(distinct)
    return distinct_names
