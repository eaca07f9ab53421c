"""Statements as typed values: what a text asks for, with queries and expressions left as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
from sqlglot import TokenType

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record
from icefloe.spark.statements.references import tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot import Token

_COMMAND = re.compile(r"\s*(CALL|EXPLAIN)\b\s*", re.IGNORECASE)
_EXPLAIN_MODES = {"EXTENDED", "CODEGEN", "COST", "FORMATTED"}

Name = tuple[str, ...]


class Query(Record, frozen=True):
    """A query, or whatever else Spark runs."""

    text: str


class Explain(Record, frozen=True):
    """`EXPLAIN [mode] query`."""

    mode: str | None
    text: str


class DeclaredColumn(Record, frozen=True):
    """A column that a table is declared with."""

    name: str
    type: str
    comment: str | None = None


class CreateTable(Record, frozen=True):
    """`CREATE TABLE … USING icefloe`."""

    name: Name
    columns: tuple[DeclaredColumn, ...] = ()
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """OPTIONS and LOCATION, as `path`."""
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    """TBLPROPERTIES: attributes of the group."""
    query: str | None = None
    or_replace: bool = False
    if_not_exists: bool = False


class DropTable(Record, frozen=True):
    """`DROP TABLE`."""

    name: Name
    if_exists: bool = False


class Insert(Record, frozen=True):
    """`INSERT INTO` or `INSERT OVERWRITE`."""

    name: Name
    query: str
    columns: Name = ()
    by_name: bool = False
    overwrite: bool = False


class Delete(Record, frozen=True):
    """`DELETE FROM`."""

    name: Name
    table: str
    """The table as written, with its alias."""
    where: str | None = None


class Assignment(Record, frozen=True):
    """`column = expression`."""

    column: str
    expression: str


class UpdateRows(Record, frozen=True):
    """`UPDATE … SET …`."""

    name: Name
    table: str
    assignments: tuple[Assignment, ...]
    where: str | None = None


class MergeClause(Record, frozen=True):
    """`WHEN [NOT] MATCHED [BY SOURCE] [AND condition] THEN action`."""

    when: Literal["matched", "not matched", "not matched by source"]
    action: Literal["update", "insert", "delete"]
    condition: str | None = None
    assignments: tuple[Assignment, ...] | None = None
    """None for `*`: the columns of the source."""


class Merge(Record, frozen=True):
    """`MERGE INTO`."""

    name: Name
    table: str
    alias: str
    source: str
    source_alias: str
    on: str
    clauses: tuple[MergeClause, ...]


class SetAttributes(Record, frozen=True):
    """`ALTER TABLE … SET` or `UNSET TBLPROPERTIES`, of a table or of one of its columns."""

    name: Name
    column: str | None
    values: dict[str, str | None]
    """None removes an attribute."""


class RenameTable(Record, frozen=True):
    """`ALTER TABLE … RENAME TO …`."""

    name: Name
    new_name: str


class RenameColumn(Record, frozen=True):
    """`ALTER TABLE … RENAME COLUMN … TO …`."""

    name: Name
    column: str
    new_column: str


class CreateRef(Record, frozen=True):
    """`ALTER TABLE … CREATE BRANCH` or `TAG`."""

    name: Name
    kind: Literal["branch", "tag"]
    ref: str
    version: str | None = None
    or_replace: bool = False
    if_not_exists: bool = False


class DropRef(Record, frozen=True):
    """`ALTER TABLE … DROP BRANCH` or `TAG`."""

    name: Name
    kind: Literal["branch", "tag"]
    ref: str
    if_exists: bool = False


class Call(Record, frozen=True):
    """`CALL icefloe.system.procedure(name => value)`."""

    procedure: str
    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = msgspec.field(default_factory=dict)


Statement = (
    Query
    | Explain
    | CreateTable
    | DropTable
    | Insert
    | Delete
    | UpdateRows
    | Merge
    | SetAttributes
    | RenameTable
    | RenameColumn
    | CreateRef
    | DropRef
    | Call
)


def parse_statement(text: str) -> Statement:
    """Parse a statement; one that icefloe does not execute is a query, for Spark."""
    command = _COMMAND.match(text)
    if command is not None:
        rest = _without_semicolon(text[command.end() :])
        return _explain(rest) if command[1].upper() == "EXPLAIN" else _call(rest)
    text = _without_semicolon(text)
    cursor = Cursor(text)
    reader = _READERS.get(cursor.word())
    found = None if reader is None else reader(cursor)
    return Query(text) if found is None else found


def _without_semicolon(text: str) -> str:
    tokens = tokens_of(text)
    if tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        return text[: tokens[-1].start]
    return text


class Cursor:
    """A place among the tokens of a statement."""

    def __init__(self, text: str) -> None:
        """Begin at the first token."""
        self.text = text
        self._tokens = tokens_of(text)
        self._at = 0

    def fail(self, expected: str) -> NoReturn:
        """Raise the error that something else was expected here."""
        found = repr(self._token().text) if self.has_more() else "the end"
        raise InvalidInputError(f"expected {expected}, found {found} in {shortened(self.text)!r}")

    def has_more(self) -> bool:
        """Whether there are tokens left."""
        return self._at < len(self._tokens)

    def _token(self) -> Token:
        return self._tokens[self._at]

    def word(self, ahead: int = 0) -> str:
        """A token in upper case; empty at the end, and for quoted names and strings."""
        at = self._at + ahead
        if at >= len(self._tokens):
            return ""
        token = self._tokens[at]
        is_quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
        return "" if is_quoted else " ".join(str(token.text).upper().split())

    def take(self, *words: str) -> bool:
        """Take words if they are next."""
        if any(self.word(ahead) != word for ahead, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Take words, which must be next."""
        if not self.take(*words):
            self.fail(" ".join(words))

    def identifier(self) -> str:
        """Take a name."""
        if not self.has_more() or self._token().token_type == TokenType.STRING:
            self.fail("a name")
        token = self._token()
        quoted = token.token_type == TokenType.IDENTIFIER
        if not quoted and not re.fullmatch(r"\w+", str(token.text)):
            self.fail("a name")
        self._at += 1
        return str(token.text)

    def name(self) -> Name:
        """Take a name of several parts."""
        parts = [self.identifier()]
        while self.take("."):
            parts.append(self.identifier())
        return tuple(parts)

    def string(self) -> str:
        """Take a string in quotes."""
        if not self.has_more() or self._token().token_type != TokenType.STRING:
            self.fail("a text in quotes")
        self._at += 1
        return str(self._tokens[self._at - 1].text)

    def literal(self) -> Any:
        """Take a literal: a text, number, boolean, NULL, or a date or time as its text."""
        if self.word() in ("TIMESTAMP", "DATE", "TIMESTAMP_NTZ"):
            self._at += 1
            return self.string()
        sign = -1 if self.take("-") else 1
        if not self.has_more():
            self.fail("a literal")
        token = self._token()
        self._at += 1
        if token.token_type == TokenType.STRING and sign == 1:
            return str(token.text)
        if token.token_type == TokenType.NUMBER:
            text = str(token.text)
            return sign * (int(text) if text.isdecimal() else float(text))
        word = str(token.text).upper()
        if word in ("TRUE", "FALSE", "NULL") and sign == 1:
            return {"TRUE": True, "FALSE": False, "NULL": None}[word]
        self._at -= 1
        return self.fail("a literal")

    def rest(self) -> str:
        """Take everything that is left, as written."""
        start = self._token().start if self.has_more() else len(self.text)
        self._at = len(self._tokens)
        return self.text[start:]

    def until(self, *words: str) -> str:
        """Take an expression up to one of some words outside of parentheses, or to the end."""
        if not self.has_more():
            self.fail("an expression")
        start = end = self._token().start
        depth = cases = 0
        while self.has_more():
            word = self.word()
            if depth == 0 and cases == 0 and word in words:
                break
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
            cases += {"CASE": 1, "END": -1}.get(word, 0)
            if depth < 0:
                break
            end = self._token().end + 1
            self._at += 1
        if end == start:
            self.fail("an expression")
        return self.text[start:end]

    def table(self, *ends: str) -> tuple[Name, str, str]:
        """Take a table with its alias: the name, both as written, and the alias."""
        start = self._token().start if self.has_more() else len(self.text)
        name = self.name()
        alias = name[-1]
        if self.take("AS") or (self.has_more() and self.word() not in ends):
            alias = self.identifier()
        return name, self.text[start : self._tokens[self._at - 1].end + 1], alias

    def pairs(self) -> dict[str, str]:
        """Take `('key' = 'value', …)`; the sign may be left out, and keys may be names."""
        self.need("(")
        properties: dict[str, str] = {}
        while not self.take(")"):
            is_text = self.has_more() and self._token().token_type == TokenType.STRING
            key = self.string() if is_text else ".".join(self.name())
            self.take("=")
            properties[key] = _as_text(self.literal())
            if not self.take(",") and self.word() != ")":
                self.fail("a comma or )")
        return properties

    def names(self) -> Name:
        """Take `(a, b)`."""
        self.need("(")
        found = [self.identifier()]
        while self.take(","):
            found.append(self.identifier())
        self.need(")")
        return tuple(found)

    def end(self) -> None:
        """Raise if there is more."""
        if self.has_more():
            self.fail("the end")


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- statements


def _explain(text: str) -> Explain:
    cursor = Cursor(text)
    mode = cursor.word() if cursor.word() in _EXPLAIN_MODES else None
    if mode is not None:
        cursor.take(mode)
    return Explain(mode, cursor.rest())


def _call(text: str) -> Call:
    cursor = Cursor(text)
    name = [part.lower() for part in cursor.name()]
    if name[:-1] not in (["icefloe", "system"], ["system"]):
        raise InvalidInputError(
            f"procedures are in icefloe.system, found {'.'.join(name)!r}; write CALL "
            f"icefloe.system.{name[-1]}(table => …)"
        )
    positional: list[Any] = []
    named: dict[str, Any] = {}
    cursor.need("(")
    while not cursor.take(")"):
        if cursor.word(1) in ("=>", "="):
            key = cursor.identifier().lower()
            cursor.take("=>")
            named[key] = cursor.literal()
        elif cursor.word(1) == "=" and cursor.word(2) == ">":
            key = cursor.identifier().lower()
            named[key] = cursor.literal()
        else:
            positional.append(cursor.literal())
        if not cursor.take(",") and cursor.word() != ")":
            cursor.fail("a comma or )")
    cursor.end()
    return Call(name[-1], tuple(positional), named)


def _create(cursor: Cursor) -> CreateTable | None:
    cursor.need("CREATE")
    or_replace = cursor.take("OR", "REPLACE")
    if not cursor.take("TABLE"):
        return None
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    columns = _columns(cursor) if cursor.word() == "(" else ()
    if not cursor.take("USING") or cursor.identifier().lower() != "icefloe":
        return None
    options: dict[str, str] = {}
    properties: dict[str, str] = {}
    query = None
    while cursor.has_more():
        if cursor.take("LOCATION"):
            options["path"] = cursor.string()
        elif cursor.take("OPTIONS"):
            options |= {key.lower(): value for key, value in cursor.pairs().items()}
        elif cursor.take("TBLPROPERTIES"):
            properties |= cursor.pairs()
        elif cursor.take("COMMENT"):
            properties["title"] = cursor.string()
        elif cursor.take("AS"):
            query = cursor.rest()
        else:
            cursor.fail("LOCATION, OPTIONS, TBLPROPERTIES, COMMENT or AS")
    return CreateTable(
        name=name,
        columns=columns,
        options=options,
        properties=properties,
        query=query,
        or_replace=or_replace,
        if_not_exists=if_not_exists,
    )


def _columns(cursor: Cursor) -> tuple[DeclaredColumn, ...]:
    cursor.need("(")
    columns = []
    while not cursor.take(")"):
        name = cursor.identifier()
        kind = cursor.until(",", "COMMENT", "NOT")
        if cursor.take("NOT"):
            cursor.need("NULL")
        comment = cursor.string() if cursor.take("COMMENT") else None
        columns.append(DeclaredColumn(name, kind, comment))
        if not cursor.take(",") and cursor.word() != ")":
            cursor.fail("a comma or )")
    return tuple(columns)


def _drop(cursor: Cursor) -> DropTable | None:
    cursor.need("DROP")
    if not (cursor.take("TABLE") or cursor.take("VIEW")):
        return None
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.name()
    if cursor.has_more():
        return None
    return DropTable(name, if_exists)


def _insert(cursor: Cursor) -> Insert | None:
    cursor.need("INSERT")
    overwrite = cursor.take("OVERWRITE")
    if not (cursor.take("INTO") or overwrite):
        cursor.fail("INTO or OVERWRITE")
    cursor.take("TABLE")
    if cursor.word() == "DIRECTORY":
        return None
    name = cursor.name()
    by_name = cursor.take("BY", "NAME")
    is_list = cursor.word() == "(" and cursor.word(1) not in (
        "SELECT",
        "WITH",
        "VALUES",
        "FROM",
        "(",
    )
    columns = cursor.names() if is_list else ()
    return Insert(
        name=name, query=cursor.rest(), columns=columns, by_name=by_name, overwrite=overwrite
    )


def _delete(cursor: Cursor) -> Delete:
    cursor.need("DELETE", "FROM")
    name, table, _ = cursor.table("WHERE")
    where = cursor.rest() if cursor.take("WHERE") else None
    cursor.end()
    return Delete(name, table, where)


def _update(cursor: Cursor) -> UpdateRows:
    cursor.need("UPDATE")
    name, table, _ = cursor.table("SET")
    cursor.need("SET")
    assignments = _assignments(cursor, "WHERE")
    where = cursor.rest() if cursor.take("WHERE") else None
    cursor.end()
    return UpdateRows(name=name, table=table, assignments=assignments, where=where)


def _assignments(cursor: Cursor, *ends: str) -> tuple[Assignment, ...]:
    assignments = []
    while True:
        column = cursor.name()[-1]
        cursor.need("=")
        assignments.append(Assignment(column, cursor.until(",", *ends)))
        if not cursor.take(","):
            return tuple(assignments)


def _merge(cursor: Cursor) -> Merge:
    cursor.need("MERGE", "INTO")
    name, table, alias = cursor.table("USING")
    cursor.need("USING")
    if cursor.word() == "(":
        source = cursor.until("ON", "AS")
        # until() takes the alias too, if there is no AS before it
        source, source_alias = _source_alias(source, cursor)
    else:
        _, source, source_alias = cursor.table("ON")
    cursor.need("ON")
    on = cursor.until("WHEN")
    clauses = []
    while cursor.take("WHEN"):
        clauses.append(_merge_clause(cursor))
    cursor.end()
    if not clauses:
        cursor.fail("WHEN MATCHED or WHEN NOT MATCHED")
    return Merge(
        name=name,
        table=table,
        alias=alias,
        source=source,
        source_alias=source_alias,
        on=on,
        clauses=tuple(clauses),
    )


def _source_alias(source: str, cursor: Cursor) -> tuple[str, str]:
    if cursor.take("AS"):
        alias = cursor.identifier()
        return f"{source} AS `{alias}`", alias
    inner = tokens_of(source)
    if inner[-1].text == ")":
        cursor.fail("an alias of the source")
    return source, str(inner[-1].text)


def _merge_clause(cursor: Cursor) -> MergeClause:
    when: Any = "not matched" if cursor.take("NOT") else "matched"
    cursor.need("MATCHED")
    if when == "not matched" and cursor.take("BY"):
        if cursor.take("SOURCE"):
            when = "not matched by source"
        else:
            cursor.need("TARGET")
    condition = cursor.until("THEN") if cursor.take("AND") else None
    cursor.need("THEN")
    if cursor.take("DELETE"):
        return _allowed(cursor, MergeClause(when, "delete", condition))
    if cursor.take("UPDATE"):
        cursor.need("SET")
        assignments = None if cursor.take("*") else _assignments(cursor, "WHEN")
        return _allowed(
            cursor,
            MergeClause(when=when, action="update", condition=condition, assignments=assignments),
        )
    cursor.need("INSERT")
    if cursor.take("*"):
        return _allowed(cursor, MergeClause(when, "insert", condition))
    columns = cursor.names()
    cursor.need("VALUES", "(")
    values = [cursor.until(",")]
    while cursor.take(","):
        values.append(cursor.until(","))
    cursor.need(")")
    if len(values) != len(columns):
        cursor.fail(f"{len(columns)} values for the columns {', '.join(columns)}")
    pairs = tuple(map(Assignment, columns, values))
    return _allowed(
        cursor, MergeClause(when=when, action="insert", condition=condition, assignments=pairs)
    )


def _allowed(cursor: Cursor, clause: MergeClause) -> MergeClause:
    if (clause.action == "insert") != (clause.when == "not matched"):
        cursor.fail(f"no {clause.action.upper()} after WHEN {clause.when.upper()}")
    return clause


def _alter(cursor: Cursor) -> Statement | None:
    cursor.need("ALTER")
    if not cursor.take("TABLE"):
        return None
    name = cursor.name()
    if cursor.take("RENAME"):
        return _rename(cursor, name)
    if cursor.take("DROP", "BRANCH") or cursor.take("DROP", "TAG"):
        kind: Any = cursor.word(-1).lower()
        if_exists = cursor.take("IF", "EXISTS")
        return DropRef(name=name, kind=kind, ref=cursor.identifier(), if_exists=if_exists)
    if cursor.word() in ("CREATE", "REPLACE"):
        return _create_ref(cursor, name)
    return _set_attributes(cursor, name)


def _rename(cursor: Cursor, name: Name) -> RenameTable | RenameColumn:
    if cursor.take("TO"):
        return RenameTable(name, cursor.name()[-1])
    cursor.need("COLUMN")
    column = cursor.identifier()
    cursor.need("TO")
    return RenameColumn(name, column, cursor.identifier())


def _set_attributes(cursor: Cursor, name: Name) -> SetAttributes | None:
    column_name = None
    if cursor.take("ALTER", "COLUMN") or cursor.take("CHANGE", "COLUMN"):
        column_name = cursor.identifier()
        if cursor.take("COMMENT"):
            return SetAttributes(name, column_name, {"long_name": cursor.string()})
    if cursor.take("SET", "TBLPROPERTIES"):
        return SetAttributes(name, column_name, dict(cursor.pairs()))
    if cursor.take("UNSET", "TBLPROPERTIES"):
        cursor.take("IF", "EXISTS")
        return SetAttributes(name, column_name, dict.fromkeys(_keys(cursor)))
    return None


def _keys(cursor: Cursor) -> list[str]:
    cursor.need("(")
    found = [cursor.string()]
    while cursor.take(","):
        found.append(cursor.string())
    cursor.need(")")
    return found


def _create_ref(cursor: Cursor, name: Name) -> CreateRef:
    or_replace = cursor.take("CREATE", "OR", "REPLACE") or cursor.take("REPLACE")
    if not or_replace:
        cursor.need("CREATE")
    if cursor.word() not in ("BRANCH", "TAG"):
        cursor.fail("BRANCH or TAG")
    kind: Any = cursor.word().lower()
    cursor.identifier()
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    ref = cursor.identifier()
    version = None
    if cursor.take("AS", "OF", "VERSION"):
        version = _as_text(cursor.literal())
    if cursor.has_more():
        cursor.fail(
            "AS OF VERSION or the end (how long versions are retained is told to expire_snapshots)"
        )
    return CreateRef(
        name=name,
        kind=kind,
        ref=ref,
        version=version,
        or_replace=or_replace,
        if_not_exists=if_not_exists,
    )


_READERS: dict[str, Callable[[Cursor], Statement | None]] = {
    "CREATE": _create,
    "DROP": _drop,
    "INSERT": _insert,
    "DELETE": _delete,
    "UPDATE": _update,
    "MERGE": _merge,
    "ALTER": _alter,
}
