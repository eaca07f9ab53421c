"""Statements as typed values, names in a catalog, and the tables of a query in its text."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.spark.statements import parsing
from icefloe.spark.statements.catalog import check_location, moment_text
from icefloe.spark.statements.parsing import parse_statement
from icefloe.spark.statements.references import AsOf, parse_query

STATEMENTS = {
    "SELECT 1;": parsing.Query("SELECT 1"),
    "explain formatted SELECT a FROM b": parsing.Explain("FORMATTED", "SELECT a FROM b"),
    "INSERT INTO a.b (x, y) VALUES (1, 2)": parsing.Insert(
        ("a", "b"), "VALUES (1, 2)", columns=("x", "y")
    ),
    "insert overwrite table t by name (select 1 as x)": parsing.Insert(
        ("t",), "(select 1 as x)", by_name=True, overwrite=True
    ),
    "DELETE FROM t AS w WHERE w.x IN (SELECT x FROM u WHERE y)": parsing.Delete(
        ("t",), "t AS w", "w.x IN (SELECT x FROM u WHERE y)"
    ),
    "UPDATE t SET t.a = CASE WHEN b THEN 1 END, c = f(1, 2) WHERE d": parsing.UpdateRows(
        ("t",),
        "t",
        (parsing.Assignment("a", "CASE WHEN b THEN 1 END"), parsing.Assignment("c", "f(1, 2)")),
        "d",
    ),
    "MERGE INTO t USING s ON t.x = s.x WHEN NOT MATCHED THEN INSERT (x) VALUES (s.x + 1)": (
        parsing.Merge(
            ("t",), "t", "t", "s", "s", "t.x = s.x",
            (
                parsing.MergeClause(
                    "not matched", "insert", None, (parsing.Assignment("x", "s.x + 1"),)
                ),
            ),
        )
    ),
    "CREATE TABLE t (a DECIMAL(3, 1) NOT NULL, `b c` INT COMMENT 'x') USING icefloe LOCATION '/'": (
        parsing.CreateTable(
            ("t",),
            (
                parsing.DeclaredColumn("a", "DECIMAL(3, 1)"),
                parsing.DeclaredColumn("b c", "INT", "x"),
            ),
            {"path": "/"},
        )
    ),
    "ALTER TABLE t CREATE TAG IF NOT EXISTS v1 AS OF VERSION 'abc'": parsing.CreateRef(
        ("t",), "tag", "v1", "abc", if_not_exists=True
    ),
    "ALTER TABLE t DROP BRANCH `a-b`": parsing.DropRef(("t",), "branch", "a-b"),
    "ALTER TABLE t RENAME COLUMN a TO b": parsing.RenameColumn(("t",), "a", "b"),
    "ALTER TABLE t UNSET TBLPROPERTIES ('a', 'b')": parsing.SetAttributes(
        ("t",), None, {"a": None, "b": None}
    ),
    "CALL system.f('t', -1, a => TIMESTAMP '2024-01-01', b => true, c => NULL)": parsing.Call(
        "f", ("t", -1), {"a": "2024-01-01", "b": True, "c": None}
    ),
    "WITH n AS (SELECT 1 AS x) INSERT INTO t SELECT x FROM n": parsing.Insert(
        ("t",), "WITH n AS (SELECT 1 AS x) SELECT x FROM n"
    ),
    "WITH n AS (SELECT 1 AS x), m AS (SELECT 2) DELETE FROM t WHERE x IN (SELECT x FROM n)": (
        parsing.Delete(
            ("t",), "t", "x IN (SELECT x FROM n)",
            "WITH n AS (SELECT 1 AS x), m AS (SELECT 2)",
        )
    ),
    "WITH n AS (DELETE) SELECT 1": parsing.Query("WITH n AS (DELETE) SELECT 1"),
    "MERGE INTO t USING s VERSION AS OF 'v1' AS o (x, y) ON t.x = o.x WHEN MATCHED THEN DELETE": (
        parsing.Merge(
            ("t",), "t", "t", "s VERSION AS OF 'v1' AS o (x, y)", "o", "t.x = o.x",
            (parsing.MergeClause("matched", "delete"),),
        )
    ),
    "MERGE INTO t USING (SELECT a AS b FROM s) `o o`(x) ON t.x = b WHEN MATCHED THEN DELETE": (
        parsing.Merge(
            ("t",), "t", "t", "(SELECT a AS b FROM s) `o o`(x)", "o o", "t.x = b",
            (parsing.MergeClause("matched", "delete"),),
        )
    ),
    "OPTIMIZE a.t": parsing.Unsupported(
        ("a", "t"),
        "OPTIMIZE is for other tables: CALL icefloe.system.rewrite_data_files('a.t') packs small "
        "chunks",
    ),
    "CREATE TABLE t USING parquet AS SELECT 1": parsing.Query(
        "CREATE TABLE t USING parquet AS SELECT 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements_become_values(text: str) -> None:
    assert parse_statement(text) == STATEMENTS[text]


WRONG = {
    "CALL os.system('rm')": "procedures are in icefloe.system",
    "CALL icefloe.system.f(g())": "expected a literal",
    "UPDATE t SET a": "expected =, found the end",
    "MERGE INTO t USING s ON x": "expected WHEN MATCHED",
    "MERGE INTO t USING s ON x WHEN MATCHED THEN INSERT *": "no INSERT after WHEN MATCHED",
    "MERGE INTO t USING (SELECT 1) ON x WHEN MATCHED THEN DELETE": "an alias of the source",
    "ALTER TABLE t CREATE BRANCH b RETAIN 3 DAYS": "expire_snapshots determines how long",
    "CREATE TABLE t USING icefloe PARTITIONED BY (a)": "expected LOCATION, OPTIONS",
    "SELECT 'x": "cannot read the statement",
    "ALTER TABLE t SET TBLPROPERTIES ('a' = 'b') and more": "expected the end, found 'and'",
    "ALTER TABLE t RENAME TO u v": "expected the end, found 'v'",
    "ALTER TABLE t DROP TAG a b": "expected the end, found 'b'",
    "UPDATE t SET a = 1, A = 2": "column 'a' is set 2 times",
    "INSERT INTO t (a, b, a) VALUES (1, 2, 3)": "column 'a' is set 2 times",
    "INSERT OVERWRITE t PARTITION (a = 1) SELECT 2": "rows say by their coordinates",
    "INSERT INTO t REPLACE WHERE a = 1 SELECT 2": "rows say by their coordinates",
    "DELETE FROM t VERSION AS OF 'v1' WHERE a": "expected the end",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidInputError, match=WRONG[text]) as error:
        parse_statement(text)
    assert "\n" not in str(error.value)


_WORDS = ["SELECT", "FROM", "MERGE", "INTO", "USING", "ALTER", "TABLE", "CALL", "CREATE", "icefloe"]
_WORDS += [
    "weather",
    "SET",
    "(",
    ")",
    ",",
    ".",
    "=",
    "=>",
    "'x",
    "'x'",
    "`",
    "1",
    "*",
    ";",
    "--",
    "AS",
]
_WORDS += ["VERSION AS OF", "FOR", "TIMESTAMP", "WHEN", "MATCHED", "INSERT", "\x00", "{", "é"]


@given(st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join) | st.text(max_size=40))
def test_any_text_is_a_statement_or_an_error_of_ours(text: str) -> None:
    with suppress(IcefloeError):
        parse_statement(text)
        parse_query(text)


def test_tables_are_replaced_in_the_text_and_nowhere_else() -> None:
    text = (
        "WITH w AS (SELECT 'weather' FROM weather.branch_x VERSION AS OF 'v') -- weather\n"
        "SELECT weather.t2m, w.* FROM w, icefloe.`s3://b/W` TABLESAMPLE (5 PERCENT), weather a"
    )
    parsed = parse_query(text)
    assert [reference.parts for reference in parsed.references] == [
        ("weather", "branch_x"),
        ("icefloe", "s3://b/W"),
        ("weather",),
    ]
    assert parsed.references[0].as_of == AsOf(version="v")
    assert parsed.with_tables(["{0}", "{1}", None]) == (
        "WITH w AS (SELECT 'weather' FROM {0} AS `branch_x`) -- weather\n"
        "SELECT weather.t2m, w.* FROM w, {1} TABLESAMPLE (5 PERCENT) AS `s3://b/W`, weather a"
    )


@pytest.mark.parametrize(
    ("clause", "advice"),
    [
        ("VERSION AS OF MAWVJPFNWAEB5BSR5HPG", "'MAWVJPFNWAEB5BSR5HPG'; write the snapshot id, "),
        ("TIMESTAMP AS OF current_timestamp()", "'current_timestamp'; compute the time first"),
        ("TIMESTAMP AS OF now() - INTERVAL 1 DAY", "'now'; compute the time first"),
    ],
)
def test_a_version_that_is_no_literal_has_advice_for_its_kind(clause: str, advice: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(f"literal, found {advice}")):
        parse_query(f"SELECT * FROM weather {clause}")


@pytest.mark.parametrize("url", ["/data/a", "file:///data/a/b", "s3://b/c", "s3://b/c/d"])
def test_urls_below_a_location_are_allowed(url: str) -> None:
    check_location(url, ["/data/a", "s3://b/c/"])


@pytest.mark.parametrize(
    "url",
    [
        "/data",
        "/data/ab",
        "/data/a/../b",
        "/data/a/%2e%2e/b",
        "s3://b/cd",
        "s3://b/c?endpoint_url=x",
        "",
    ],
)
def test_other_urls_are_not(url: str) -> None:
    with pytest.raises(InvalidInputError, match="SQL may not open"):
        check_location(url, ["/data/a", "s3://b/c/"])


def test_times_of_sql_are_of_the_zone_of_the_session() -> None:
    assert moment_text("2024-07-01", "America/New_York") == "2024-07-01T00:00:00-04:00"
    assert moment_text("2024-07-01 12:00:00+02:00", "UTC") == "2024-07-01T12:00:00+02:00"
    assert moment_text("0", "Asia/Tokyo") == "1970-01-01T00:00:00+00:00"
    assert moment_text("2024", "UTC") == "2024-01-01T00:00:00+00:00"
    for text in ("yesterday", "1700000000000", "9" * 40):
        with pytest.raises(InvalidInputError, match="expected a time"):
            moment_text(text, "UTC")
