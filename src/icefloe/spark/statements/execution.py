"""The function `icefloe.spark.sql`: Spark SQL on registered tables, with statements of Iceberg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.spark.statements import parsing
from icefloe.spark.statements.catalog import CATALOG, catalog_of
from icefloe.spark.statements.changes import Changes
from icefloe.spark.statements.explain import describe
from icefloe.spark.statements.procedures import call
from icefloe.spark.statements.queries import PlannedTable, Statements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from icefloe.spark.statements.catalog import NamedTable


def sql(
    spark: SparkSession,
    statement: str,
    args: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    locations: Sequence[str] = (),
) -> DataFrame:
    """Run a SQL statement on registered tables.

    Queries read only what they need: each table is loaded for the query, with the columns that it
    uses, and without chunks that its conditions on coordinates and variables rule out. Spark runs
    the unchanged text. Each statement that writes is one commit, which the next statement sees.

    Statements:

    - queries of Spark SQL, with `weather VERSION AS OF '…'` (a snapshot, branch or tag),
      `weather TIMESTAMP AS OF '…'`, `weather.branch_dev`, `weather.tag_v1`, metadata tables such as
      `weather.snapshots`, and URLs in backquotes;
    - `EXPLAIN`, which also shows how many chunks and bytes are read, out of how many;
    - `CREATE TABLE … USING icefloe`, `DROP TABLE`, `INSERT INTO`, `INSERT OVERWRITE`, `DELETE`,
      `UPDATE`, `MERGE INTO`;
    - `ALTER TABLE`: `SET TBLPROPERTIES`, `RENAME TO`, `RENAME COLUMN`, `CREATE BRANCH`, `DROP TAG`;
    - `CALL icefloe.system.expire_snapshots(table => 'weather', retain_last => 5)` and others.

    Args:
        spark: The session, classic or Connect.
        statement: The statement.
        args: Values of parameters, as for `spark.sql`.
        locations: URLs of folders in which the statement may open and create repositories that it
            names by their URL; none by default.

    Returns:
        The result of a query, or the new snapshot of a statement that writes.

    Raises:
        InvalidInputError: The statement cannot be parsed, or names something that does not exist.
        ConflictError: The branch moved, and the change cannot be rebased.

    Example:
        >>> frame = icefloe.spark.register(spark, repo, "weather")
        >>> icefloe.spark.sql(spark, "SELECT max(t2m) FROM weather WHERE lat > 40").first()[0]
        303.0
    """
    statements = Statements(spark, catalog_of(spark), args, locations)
    parsed = parsing.parse_statement(statement)
    match parsed:
        case parsing.Query(text):
            return statements.query(text)
        case parsing.Explain(mode, text):
            return _explain(statements, mode, text)
        case parsing.Call():
            return call(statements, parsed)
        case parsing.CreateTable():
            return Changes(statements).create(parsed)
    target = _target(statements, parsed)
    if target is None:  # it is a table of Spark
        return statements.query(statement)
    if isinstance(parsed, parsing.Unsupported):
        raise InvalidInputError(parsed.advice)
    return _change(Changes(statements), parsed, target)


def _target(statements: Statements, statement: Any) -> NamedTable | None:
    if isinstance(statement, parsing.DropTable) and len(_in_catalog(statement.name)) > 1:
        return None  # a table in a database of Spark
    return statements.named(statement.name)


def _in_catalog(name: parsing.Name) -> parsing.Name:
    return name[1:] if name[0].lower() == CATALOG else name


def _change(changes: Changes, statement: Any, target: NamedTable) -> DataFrame:
    match statement:
        case parsing.Insert():
            return changes.insert(statement, target)
        case parsing.Delete():
            return changes.delete(statement, target)
        case parsing.UpdateRows():
            return changes.update(statement, target)
        case parsing.Merge():
            return changes.merge(statement, target)
        case parsing.DropTable():
            return changes.drop(statement)
    return _alter(changes, statement, target)


def _alter(changes: Changes, statement: Any, target: NamedTable) -> DataFrame:
    match statement:
        case parsing.SetAttributes():
            return changes.set_attributes(statement, target)
        case parsing.RenameTable():
            return changes.rename(statement, target)
        case parsing.RenameColumn():
            return changes.rename_column(statement, target)
        case parsing.CreateRef():
            return changes.create_ref(statement, target)
        case parsing.DropRef():
            return changes.drop_ref(statement, target)
    raise AssertionError(f"no such statement: {statement!r}")


def _explain(statements: Statements, mode: str | None, text: str) -> DataFrame:
    inner = parsing.parse_statement(text)
    if not isinstance(inner, parsing.Query):
        raise InvalidInputError(
            "EXPLAIN tells how a query is run; run the statement itself, or EXPLAIN the query in it"
        )
    parsed, tables = statements.plan(text)
    read = [describe(table) for table in tables if isinstance(table, PlannedTable)]
    prefix = f"EXPLAIN {mode} " if mode else "EXPLAIN "
    plan = statements.run(parsed, statements.frames(tables), prefix).collect()[0][0]
    told = "\n".join(["== Tables of icefloe ==", *read, "", plan]) if read else plan
    return statements.spark.createDataFrame([(told,)], "plan string")
