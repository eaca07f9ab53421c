"""What queries need of their tables, and what is left to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icefloe.spark.statements.predicates import condition_text
from icefloe.spark.statements.pushdown import SourceColumns, table_needs
from icefloe.spark.statements.references import DIALECT, parse_query

TYPES = {
    "time": pa.timestamp("us"), "lat": pa.float64(), "n": pa.int64(), "t2m": pa.float32(),
    "name": pa.string(), "wet": pa.bool_(),
}  # fmt: skip


def needs(query: str, *, zone_is_utc: bool = True) -> list[tuple[str, str | None]]:
    """The columns and the condition for each table of a query."""
    parsed = parse_query(query)
    tables = [SourceColumns(TYPES) for _ in parsed.references]
    found = table_needs(parsed.tree, tables, DIALECT)
    return [
        (
            "all" if one.columns is None else " ".join(sorted(one.columns)),
            condition_text(one.predicate, TYPES, zone_is_utc=zone_is_utc),
        )
        for one in found
    ]


def where(condition: str, **zone: bool) -> str | None:
    ((_, text),) = needs(f"SELECT 1 FROM w WHERE {condition}", **zone)
    return None if text is None else text.replace("`", "")


CONDITIONS = {
    "time >= '2024-02' AND lat < 3": "(time >= '2024-02') AND (lat < 3)",
    "time = DATE '2024-02-01'": "time = '2024-02-01'",
    "time < '2024-02-01 18:00'": "time < '2024-02-01 18:00:00'",
    "NOT (lat < 3 OR t2m IS NULL)": "(lat >= 3) AND (t2m IS NOT NULL)",
    "lat = 3 OR lat = t2m": None,
    "lat = 3 AND lat = t2m": "lat = 3",
    "(lat = 3 AND lat = t2m) OR n IN (1, 2)": "(lat = 3) OR ((n = 1) OR (n = 2))",
    "wet AND NOT wet": "(wet = true) AND (wet = false)",
    "-3 < n": "n > -3",
    "n <=> 3": "n = 3",
    "NOT n <=> 3": None,
    "year(time) = 2024": "time >= '2024-01-01 00:00:00' AND time < '2025-01-01 00:00:00'",
    "extract(YEAR FROM time) < 2024": "time < '2024-01-01 00:00:00'",
    "NOT year(time) IN (2024)": "time < '2024-01-01 00:00:00' OR time >= '2025-01-01 00:00:00'",
    "year(time) = 9999": None,  # there is no year behind it
    "year(time) = 2024.5": None,
    "year(n) = 2024": None,
    "year(time) + 1 = 2024": None,
    "month(time) BETWEEN 6 AND 8": "(month(time) >= 6) AND (month(time) <= 8)",
    "12 > dayofmonth(time)": "day(time) < 12",
    "dayofweek((time)) = 1": "dayofweek(time) = 1",
    "extract(SECOND FROM time) = 1": None,  # has a fraction
    "date_trunc('mm', time) = '2024-02-01'": (
        "time >= '2024-02-01 00:00:00' AND time < '2024-03-01 00:00:00'"
    ),
    "date_trunc('MONTH', time) = '2024-02-02'": None,  # holds nowhere
    "date_trunc('quarter', time) > '2024-12-31'": "time >= '2025-01-01 00:00:00'",
    "date_trunc('century', time) = '2000-01-01'": None,
    "trunc(time, 'week') <= DATE '2024-01-31'": "time < '2024-02-05 00:00:00'",
    "trunc(time, 'hour') <= DATE '2024-01-31'": None,  # null in Spark
    "CAST(time AS DATE) <> '2024-01-31'": (
        "time < '2024-01-31 00:00:00' OR time >= '2024-02-01 00:00:00'"
    ),
    "to_date(time) >= DATE '2024-01-31'": "time >= '2024-01-31 00:00:00'",
    "date(time) < TIMESTAMP_NTZ '2024-01-31 12:00:00'": "time < '2024-02-01 00:00:00'",
    "CAST(time AS DATE) = '2024-01-31 12:00:00'": None,
    "to_date(time, 'yyyy') = '2024-01-01'": None,
    "CAST(name AS DATE) = '2024-01-31'": None,
    "n = 1.5": "n = 1.5",
    "n > 9007199254740993.0": None,  # Spark compares decimals
    "t2m = 16777217": None,  # Spark may compare float32
    "t2m > 0.1": "t2m > 0.1",
    "t2m = 0.1F": None,
    "lat > '45'": None,  # Spark casts the text
    "name > 'b'": "name > 'b'",
    "name = 'it''s'": None,  # quoted in another way by Spark
    "time > 'yesterday'": None,
    "time > '2024-01-01 00:00:00+01:00'": None,
    "n IN (SELECT n FROM v)": None,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_that_are_understood_are_pushed(condition: str) -> None:
    query = f"SELECT 1 FROM w WHERE {condition}"
    _, text = needs(query)[0]
    assert (None if text is None else text.replace("`", "")) == CONDITIONS[condition]


def test_local_times_are_widened_where_a_zone_may_shift_them() -> None:
    query = "time > TIMESTAMP '2024-03-31 02:30:00'"
    assert where(query) == "time > '2024-03-31 02:30:00'"
    assert where(query, zone_is_utc=False) == "time >= '2024-03-29T02:30:00'"
    assert where("time = TIMESTAMP '2024'", zone_is_utc=False) == (
        "time >= '2023-12-30T00:00:00' AND time <= '2024-01-03T00:00:00'"
    )
    assert where("time <> TIMESTAMP '2024'", zone_is_utc=False) is None
    assert where("year(time) > 2024", zone_is_utc=False) == "time >= '2025-01-01 00:00:00'"
    assert where("hour(time) = 6", zone_is_utc=False) == "hour(time) = 6"
    assert where("date_trunc('day', time) > '2024-01-01'", zone_is_utc=False) is None


JOINS = {
    "JOIN v ON {}": ("`n` = 1", "`lat` = 2"),
    "LEFT JOIN v ON {}": (None, "`lat` = 2"),
    "RIGHT JOIN v ON {}": ("`n` = 1", None),
    "FULL JOIN v ON {}": (None, None),
    "LEFT SEMI JOIN v ON {}": ("`n` = 1", "`lat` = 2"),
    "LEFT ANTI JOIN v ON {}": (None, "`lat` = 2"),
}


@pytest.mark.parametrize("join", JOINS)
def test_conditions_of_joins_reach_only_sides_that_are_not_preserved(join: str) -> None:
    query = f"SELECT 1 FROM w {join.format('w.time = v.time AND w.n = 1 AND v.lat = 2')}"
    assert tuple(text for _, text in needs(query)) == JOINS[join]


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [("JOIN", True, True), ("LEFT JOIN", True, False), ("RIGHT JOIN", False, True),
     ("FULL JOIN", False, False)],
)  # fmt: skip
def test_is_null_is_not_pushed_where_joins_make_nulls(kind: str, left: bool, right: bool) -> None:
    query = f"SELECT 1 FROM w {kind} v ON w.n = v.n WHERE w.lat IS NULL AND v.t2m IS NULL"
    found = [text is not None for _, text in needs(query)]
    assert found == [left, right]
    query = f"SELECT 1 FROM w {kind} v ON w.n = v.n WHERE w.lat > 1 AND v.t2m > 1"
    assert all(text is not None for _, text in needs(query))


SUBQUERIES = {
    "SELECT n FROM (SELECT * FROM w) WHERE lat > 1": ("lat n", True),
    "SELECT n FROM (SELECT lat AS l, n FROM w) WHERE l > 1": ("lat n", True),
    "SELECT n FROM (SELECT lat + 1 AS lat, n FROM w) WHERE lat > 1": ("lat n", False),
    "SELECT n FROM (SELECT * FROM w LIMIT 5) WHERE lat > 1": ("lat n", False),
    "SELECT * FROM (SELECT lat, max(n) FROM w GROUP BY lat) WHERE lat > 1": ("lat n", True),
    "SELECT * FROM (SELECT lat, max(n) AS m FROM w GROUP BY lat) WHERE m > 1": ("lat n", False),
    "SELECT * FROM (SELECT lat, count(*) FROM w GROUP BY ROLLUP (lat)) WHERE lat > 1": (
        "lat",
        False,
    ),
    "SELECT r FROM (SELECT *, rank() OVER (PARTITION BY lat ORDER BY n) r FROM w) WHERE lat > 1": (
        "lat n",
        True,
    ),
    "SELECT r FROM (SELECT *, rank() OVER (PARTITION BY n ORDER BY lat) r FROM w) WHERE lat > 1": (
        "lat n",
        False,
    ),
    "SELECT n FROM (SELECT *, rand() r FROM w) WHERE lat > 1": ("lat n", False),
    "WITH c AS (SELECT * FROM w) SELECT n FROM c WHERE lat > 1": ("lat n", True),
    "WITH c AS (SELECT * FROM w) SELECT n FROM c WHERE lat > 1 UNION SELECT t2m FROM c": (
        "lat n t2m",
        False,
    ),
    "SELECT count(*) FROM (SELECT DISTINCT lat, n FROM w)": ("lat n", False),
    "SELECT count(*) FROM (SELECT lat, n FROM w)": ("", False),
    "SELECT 1 FROM w TABLESAMPLE (5 ROWS) WHERE lat > 1": ("lat", False),
    "SELECT * FROM w PIVOT (sum(t2m) FOR lat IN (1, 2))": ("all", False),
    "SELECT a FROM w AS v(lat, a, b, c, d, e) WHERE lat > 1": ("all", False),
    "SELECT struct(*) FROM w WHERE lat > 1": ("all", True),
}


@pytest.mark.parametrize("query", SUBQUERIES)
def test_subqueries_pass_conditions_on_where_no_other_row_depends_on_them(query: str) -> None:
    columns, is_pushed = SUBQUERIES[query]
    ((found, text),) = needs(query)
    assert (found, text is not None) == (columns, is_pushed)


def test_all_uses_of_a_block_count() -> None:
    query = (
        "WITH c AS (SELECT lat, n FROM w) "
        "SELECT a.n FROM c a JOIN c b ON a.n = b.n WHERE a.lat > 1 AND b.lat < 0"
    )
    assert needs(query) == [("lat n", "(`lat` < 0) OR (`lat` > 1)")] or needs(query) == [
        ("lat n", "(`lat` > 1) OR (`lat` < 0)")
    ]


def test_unions_push_where_no_type_changes() -> None:
    union = "SELECT * FROM (SELECT {} AS x FROM w UNION ALL SELECT lat FROM v) WHERE x > 1"
    assert [text for _, text in needs(union.format("lat"))] == ["`lat` > 1"] * 2
    assert [text for _, text in needs(union.format("n"))] == [None, None]


def test_a_query_that_cannot_be_resolved_is_left_to_spark() -> None:
    assert needs("SELECT nothing FROM w, v WHERE lat > 1") != []
    assert needs(
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c) SELECT * FROM w"
    ) == [("all", None)]
