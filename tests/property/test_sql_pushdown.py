"""What a query needs of its tables is enough: drawn queries on whole and on reduced tables.

DuckDB runs them, which knows nothing of how the needs are found.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from icefloe.spark.statements.predicates import condition_text
from icefloe.spark.statements.pushdown import SourceColumns, table_needs
from icefloe.spark.statements.references import DIALECT, parse_query
from tests.drawn_queries import COLUMNS, TIMES, queries


def tables() -> dict[str, pa.Table]:
    rng = np.random.default_rng(5)
    times, lats, lons = (part.ravel() for part in np.meshgrid(range(4), range(4), range(3)))
    moments = np.array(TIMES, dtype="M8[us]")[times]

    def with_gaps(size: int, share: float = 0.3) -> pa.Array:
        return pa.array(rng.integers(0, 6, size), mask=rng.random(size) < share)

    weather = {"time": moments, "lat": lats, "lon": lons}
    weather |= {"t2m": with_gaps(48), "rain": with_gaps(48).cast(pa.float32())}
    station = {"lat": np.arange(1, 6), "height": with_gaps(5), "t2m": with_gaps(5)}
    return {"weather": pa.table(weather), "station": pa.table(station)}


TABLES = tables()


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name, table in TABLES.items():
        connection.register(name, table)
        assert tuple(table.column_names) == COLUMNS[name]
    return connection


def rows(database: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    return sorted(repr(row) for row in database.execute(text).fetchall())


def reduced(query: str) -> list[str]:
    """Each table of a query as a subquery without what the query does not need."""
    parsed = parse_query(query)
    names = [reference.parts[0] for reference in parsed.references]
    types = [{f.name: f.type for f in TABLES[name].schema} for name in names]
    found = table_needs(parsed.tree, [SourceColumns(one) for one in types], DIALECT)
    texts = []
    for name, kinds, needs in zip(names, types, found, strict=True):
        condition = condition_text(needs.predicate, kinds, zone_is_utc=True)
        listed = [
            column if needs.columns is None or column in needs.columns else f"NULL::INT AS {column}"
            for column in kinds
        ]
        where = "" if condition is None else f" WHERE {condition}"
        texts.append(f"(SELECT {', '.join(listed)} FROM {name}{where})")
    return texts


@given(query=queries())
def test_reduced_tables_give_the_same_result(
    database: duckdb.DuckDBPyConnection, query: str
) -> None:
    changed = parse_query(query).with_tables(reduced(query)).replace("`", '"')
    assert rows(database, changed) == rows(database, query), changed
