"""The tables that a query names: where in the text, which version, and the query as a tree."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.optimizer.scope import traverse_scope

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record
from icefloe.spark.statements.pushdown import REFERENCE, RENAMED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot import Token

MAX_STATEMENT_LENGTH = 1024 * 1024
DIALECT = "spark"
CASE_SENSITIVE_DIALECT = "spark, normalization_strategy=case_sensitive"
_VERSION_WORDS = {"VERSION", "SYSTEM_VERSION"}
_TIME_WORDS = {"TIMESTAMP", "SYSTEM_TIME"}


class AsOf(Record, frozen=True):
    """A version of a table by `VERSION AS OF` or `TIMESTAMP AS OF`."""

    version: str | None = None
    timestamp: str | None = None


class Reference(Record, frozen=True):
    """A table that a query reads from."""

    parts: tuple[str, ...]
    """The parts of its name, as written."""
    start: int
    end: int
    """The text that names the table and its version."""
    alias_at: int | None
    """Where an alias belongs, if the query gives none."""
    as_of: AsOf | None = None


class ParsedQuery(Record, frozen=True, eq=False):
    """A query whose tables are numbered."""

    text: str
    tree: Any
    """Tables have their numbers under `REFERENCE` in the metadata of their nodes."""
    references: tuple[Reference, ...]

    def with_tables(self, names: Sequence[str | None]) -> str:
        """The text of the query with other tables, by number; None leaves one as it is."""
        text, end = [], len(self.text)
        edits: list[tuple[int, int, str]] = []
        for reference, name in zip(self.references, names, strict=True):
            if name is None:
                continue
            edits.append((reference.start, reference.end, name))
            if reference.alias_at is not None:
                alias = reference.parts[-1].replace("`", "``")
                edits.append((reference.alias_at, reference.alias_at, f" AS `{alias}`"))
        for start, stop, new in sorted(edits, reverse=True):
            text += [self.text[stop:end], new]
            end = start
        return "".join([self.text[:end], *reversed(text)])


def tokens_of(text: str) -> list[Token]:
    """The tokens of a statement."""
    if len(text) > MAX_STATEMENT_LENGTH:
        raise InvalidInputError(
            f"a statement has at most {MAX_STATEMENT_LENGTH} characters, found {len(text)}"
        )
    try:
        return list(sqlglot.tokenize(text, read=DIALECT))
    except SqlglotError as error:
        raise _unreadable(text, error) from None


def first_word(text: str) -> str:
    """The first token of a statement in upper case; empty if there is none."""
    tokens = tokens_of(text)
    return str(tokens[0].text).upper() if tokens else ""


def whole_table_query(text: str) -> str:
    """`TABLE weather` as the query that it is short for, which sqlglot knows; others unchanged."""
    tokens = tokens_of(text)
    if not tokens or tokens[0].token_type != TokenType.TABLE:
        return text
    return f"{text[: tokens[0].start]}SELECT * FROM{text[tokens[0].end + 1 :]}"


def parse_query(text: str, dialect: str = DIALECT) -> ParsedQuery:
    """Parse a query and number the tables that it reads from."""
    plain, versions = _without_versions(text)
    try:
        tree = normalize_identifiers(_parsed(plain, text), dialect=dialect)
        tables = _tables(tree)
    except (SqlglotError, RecursionError) as error:
        raise _unreadable(text, error) from None
    tokens = tokens_of(plain)
    at = {token.start: number for number, token in enumerate(tokens)}
    references: list[Reference] = []
    for node in tables:
        first, last = node.parts[0].meta.get("start"), node.parts[-1].meta.get("end")
        if first is None or last is None:
            continue
        numbers = range(at[first], at[node.parts[-1].meta["start"]] + 1)
        parts = tuple(tokens[number].text for number in numbers if number % 2 == at[first] % 2)
        end, as_of = versions.get(last, (last + 1, None))
        alias = None if node.alias else _behind_sample(tokens, numbers[-1] + 1, end)
        node.meta[REFERENCE] = len(references)
        if node.alias_column_names:
            node.meta[RENAMED] = True
        if not node.alias:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name)))
        references.append(Reference(parts=parts, start=first, end=end, alias_at=alias, as_of=as_of))
        for part in ("db", "catalog"):
            node.set(part, None)
        node.set("this", exp.to_identifier(f"_{node.meta[REFERENCE]}"))
    return ParsedQuery(text, tree, tuple(references))


def _tables(tree: exp.Expr) -> list[exp.Table]:
    """The tables that are read from, in the order of the text: not names of WITH."""
    tables: dict[int, exp.Table] = {}
    is_run_once = isinstance(tree, exp.Query | exp.Insert) or (
        isinstance(tree, exp.Create) and tree.kind == "TABLE"
    )
    if not is_run_once:
        return []  # a view would outlive what its tables are replaced by
    for scope in traverse_scope(tree):
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
                tables[id(source)] = source
    return sorted(tables.values(), key=lambda table: table.parts[0].meta.get("start", 0))


def _parsed(plain: str, text: str) -> exp.Expr:
    try:
        with _quiet():
            statements = sqlglot.parse(plain, read=DIALECT)
    except (SqlglotError, RecursionError) as error:
        raise _unreadable(text, error) from None
    if len(statements) != 1 or statements[0] is None:
        raise InvalidInputError(
            f"expected one statement, found {len(statements)} in {shortened(text)!r}"
        )
    return statements[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of sqlglot about statements that it does not know."""
    logger = logging.getLogger("sqlglot")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _unreadable(text: str, error: Exception) -> InvalidInputError:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else _first_line(error)
    return InvalidInputError(
        f"cannot read the statement {shortened(text)!r}: {reason}; icefloe.spark.sql takes queries "
        "of Spark SQL (put names that are words of SQL in backquotes), and spark.sql runs what "
        "this cannot read on registered views"
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip().rstrip(".")


# --- VERSION AS OF


def _without_versions(text: str) -> tuple[str, dict[int, tuple[int, AsOf | None]]]:
    """The text with spaces instead of AS OF clauses, and those by the end of the table's name."""
    tokens = tokens_of(text)
    plain = list(text)
    clauses: dict[int, tuple[int, AsOf | None]] = {}
    for number in range(1, len(tokens)):
        clause = _as_of(tokens, number)
        if clause is None:
            continue
        last, as_of = clause
        start, end = tokens[number].start, last.end + 1
        plain[start:end] = " " * (end - start)
        clauses[tokens[number - 1].end] = (end, as_of)
    return "".join(plain), clauses


def version_length(tokens: Sequence[Token], number: int) -> int:
    """How many tokens the AS OF clause has that begins at a token; 0 if there is none."""
    clause = None if number >= len(tokens) else _as_of(tokens, number)
    if clause is None:
        return 0
    return next(n for n, token in enumerate(tokens[number:]) if token.start == clause[0].start) + 1


def _as_of(tokens: Sequence[Token], number: int) -> tuple[Token, AsOf] | None:
    """The clause that begins at a token: `[FOR] VERSION AS OF 'x'` or `TIMESTAMP AS OF '…'`."""
    words = [token.text.upper() for token in tokens[number : number + 8]]
    at = 1 if words[:1] == ["FOR"] else 0
    if words[at : at + 1] and words[at] in ("VERSION AS OF", "TIMESTAMP AS OF"):
        kind, at = words[at].partition(" ")[0], at + 1
    elif words[at + 1 : at + 3] == ["AS", "OF"]:
        kind, at = words[at], at + 3
    else:
        return None
    if kind not in _VERSION_WORDS | _TIME_WORDS:
        return None
    if words[at : at + 1] in (["TIMESTAMP"], ["DATE"]):
        at += 1
    if number + at >= len(tokens):
        return None
    value = tokens[number + at]
    if value.token_type not in (TokenType.STRING, TokenType.NUMBER):
        advice = (
            "write the snapshot id, branch or tag in quotes"
            if kind in _VERSION_WORDS
            else "compute the time first, and write it like '2024-01-31 12:00:00'"
        )
        raise InvalidInputError(
            f"{kind} AS OF is followed by a literal, found {shortened(value.text)!r}; {advice}"
        )
    if kind in _VERSION_WORDS:
        return value, AsOf(version=value.text)
    return value, AsOf(timestamp=value.text)


def _behind_sample(tokens: Sequence[Token], number: int, end: int) -> int:
    """Where an alias belongs behind a table: after TABLESAMPLE (…), if there is one."""
    if number >= len(tokens) or tokens[number].text.upper() != "TABLESAMPLE":
        return end
    while number < len(tokens):
        number = _behind_parentheses(tokens, number + 1)
        if number >= len(tokens) or tokens[number].text.upper() not in ("REPEATABLE", "SEED"):
            break
    return tokens[number - 1].end + 1


def _behind_parentheses(tokens: Sequence[Token], number: int) -> int:
    depth = 0
    while number < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[number].text, 0)
        number += 1
        if depth == 0:
            break
    return number
