"""Statements as typed values: what a text asks for, with queries and expressions left as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
from sqlglot import TokenType

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record
from icefloe.spark.statements.references import tokens_of, version_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlglot import Token

_COMMAND = re.compile(r"\s*(CALL|EXPLAIN)\b\s*", re.IGNORECASE)
_FIRST_WORD = re.compile(r"\s*(\w+)")
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
    with_: str = ""
    """The names of WITH that stand before the statement."""


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
    with_: str = ""


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
    with_: str = ""


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


class Unsupported(Record, frozen=True):
    """A statement of other kinds of tables, and what to use for one of icefloe instead."""

    name: Name
    advice: str


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
    | Unsupported
)


def parse_statement(text: str) -> Statement:
    """Parse a statement; one that icefloe does not execute is a query, for Spark."""
    command = _COMMAND.match(text)
    if command is not None:
        rest = _without_semicolon(text[command.end() :])
        return _explain(rest) if command[1].upper() == "EXPLAIN" else _call(rest)
    text = _without_semicolon(text)
    other = _of_other_tables(text)
    if other is not None:
        return other
    cursor = Cursor(text)
    names = _names_of_with(cursor)
    reader = _READERS.get(cursor.word())
    statement = None if reader is None else reader(cursor)
    if names and isinstance(statement, Insert):
        query = (
            f"({statement.query})" if Cursor(statement.query).word() == "WITH" else statement.query
        )
        return msgspec.structs.replace(statement, query=f"{names} {query}")
    if names and isinstance(statement, Delete | UpdateRows | Merge):
        return msgspec.structs.replace(statement, with_=names)
    return Query(text) if statement is None or names else statement


def _names_of_with(cursor: Cursor) -> str:
    """Take WITH, if what follows it is a statement that writes; empty if not."""
    if cursor.word() != "WITH":
        return ""
    return cursor.before("INSERT", "DELETE", "UPDATE", "MERGE")


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

    def is_name(self) -> bool:
        """Whether a name is next."""
        if not self.has_more() or self._token().token_type == TokenType.STRING:
            return False
        token = self._token()
        quoted = token.token_type == TokenType.IDENTIFIER
        return quoted or bool(re.fullmatch(r"\w+", str(token.text)))

    def identifier(self) -> str:
        """Take a name."""
        if not self.is_name():
            self.fail("a name")
        self._at += 1
        return str(self._tokens[self._at - 1].text)

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

    def before(self, *words: str) -> str:
        """Take what comes before one of some words outside of parentheses; nothing without it."""
        depth = 0
        for at in range(self._at, len(self._tokens)):
            word = self.word(at - self._at)
            if depth == 0 and word in words:
                start, self._at = self._token().start, at
                return self.text[start : self._tokens[at - 1].end + 1]
            depth += {"(": 1, ")": -1}.get(word, 0)
        return ""

    def table(self, *ends: str, is_read: bool = False) -> tuple[Name, str, str]:
        """Take a table with its alias: the name, all as written, and the alias.

        Args:
            ends: Words that may follow it.
            is_read: Whether it is only read from, so that it may have a version.
        """
        start = self._token().start if self.has_more() else len(self.text)
        name = self.name()
        alias = name[-1]
        if is_read:
            self._at += version_length(self._tokens, self._at)
        if self.take("AS") or (self.has_more() and self.word() not in ends):
            alias = self.identifier()
        if is_read and self.word() == "(":
            self.names()  # of its columns
        return name, self.text[start : self._tokens[self._at - 1].end + 1], alias

    def subquery(self) -> tuple[str, str]:
        """Take a query in parentheses with its alias: both as written, and the alias."""
        start = self._token().start
        depth = 0
        while self.has_more():
            depth += {"(": 1, ")": -1}.get(self.word(), 0)
            self._at += 1
            if depth == 0:
                break
        if not (self.take("AS") or self.is_name()) or self.word() == "ON":
            self.fail("an alias of the source")
        alias = self.identifier()
        if self.word() == "(":
            self.names()  # of its columns
        return self.text[start : self._tokens[self._at - 1].end + 1], alias

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
    if cursor.word() in ("PARTITION", "REPLACE", "VERSION", "VERSION AS OF", "FOR"):
        cursor.fail(
            "columns or a query (rows say by their coordinates which cells they are, and INSERT "
            "OVERWRITE replaces the region that they span)"
        )
    by_name = cursor.take("BY", "NAME")
    is_list = cursor.word() == "(" and cursor.word(1) not in (
        "SELECT",
        "WITH",
        "VALUES",
        "FROM",
        "(",
    )
    columns = cursor.names() if is_list else ()
    _check_once(cursor, columns)
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
            _check_once(cursor, [each.column for each in assignments])
            return tuple(assignments)


def _check_once(cursor: Cursor, columns: Sequence[str]) -> None:
    lowered = [column.lower() for column in columns]
    twice = [column for column in columns if lowered.count(column.lower()) > 1]
    if twice:
        raise InvalidInputError(
            f"the column {twice[0]!r} is set {len(twice)} times in {shortened(cursor.text)!r}; "
            "name it once"
        )


def _merge(cursor: Cursor) -> Merge:
    cursor.need("MERGE", "INTO")
    name, table, alias = cursor.table("USING")
    cursor.need("USING")
    if cursor.word() == "(":
        source, source_alias = cursor.subquery()
    else:
        _, source, source_alias = cursor.table("ON", is_read=True)
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
    _check_once(cursor, columns)
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
    change: Statement | None
    if cursor.take("RENAME"):
        change = _rename(cursor, name)
    elif cursor.take("DROP", "BRANCH") or cursor.take("DROP", "TAG"):
        kind: Any = cursor.word(-1).lower()
        if_exists = cursor.take("IF", "EXISTS")
        change = DropRef(name=name, kind=kind, ref=cursor.identifier(), if_exists=if_exists)
    elif cursor.word() in ("CREATE", "REPLACE"):
        change = _create_ref(cursor, name)
    else:
        change = _set_attributes(cursor, name)
    if change is None:
        return Unsupported(name, _ALTER_ADVICE)
    cursor.end()
    return change


_ALTER_ADVICE = (
    "ALTER TABLE takes SET and UNSET TBLPROPERTIES (also behind ALTER COLUMN), ALTER COLUMN … "
    "COMMENT, RENAME TO, RENAME COLUMN, and CREATE, REPLACE and DROP of BRANCH and TAG; add and "
    "remove arrays with zarr or xarray, or write them with icefloe.spark.write_table"
)


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


_OTHER_TABLES = {
    ("TRUNCATE", "TABLE"): "DELETE FROM {0} makes all cells missing",
    ("VACUUM",): "CALL icefloe.system.expire_snapshots('{0}') forgets old versions, and "
    "CALL icefloe.system.remove_orphan_files('{0}') deletes unreferenced files",
    ("OPTIMIZE",): "CALL icefloe.system.rewrite_data_files('{0}') packs small chunks",
    ("RESTORE", "TABLE"): "CALL icefloe.system.set_current_snapshot('{0}', '…') moves the branch",
    ("RESTORE",): "CALL icefloe.system.set_current_snapshot('{0}', '…') moves the branch",
    ("ANALYZE", "TABLE"): "CALL icefloe.system.compute_statistics('{0}') makes statistics",
    ("DESCRIBE", "HISTORY"): "SELECT * FROM {0}.snapshots lists the commits",
    ("DESC", "HISTORY"): "SELECT * FROM {0}.snapshots lists the commits",
    ("DESCRIBE", "DETAIL"): "SELECT * FROM {0}.files and {0}.nodes list files and arrays",
    ("MSCK", "REPAIR", "TABLE"): "tables of icefloe have no partitions to find",
}
"""Statements of other kinds of tables, and what to use for {0} instead."""


def _of_other_tables(text: str) -> Unsupported | None:
    first = _FIRST_WORD.match(text)
    if first is None or first[1].upper() not in {words[0] for words in _OTHER_TABLES}:
        return None
    for words, advice in _OTHER_TABLES.items():
        cursor = Cursor(text[first.end() :])  # the tokens of some commands are one text
        if first[1].upper() == words[0] and cursor.take(*words[1:]) and cursor.is_name():
            name = cursor.name()
            used = f"{' '.join(words)} is for other tables: {advice.format('.'.join(name))}"
            return Unsupported(name, used)
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
            "AS OF VERSION or the end (expire_snapshots determines how long versions are retained)"
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
