"""What a predicate of a query says of one table: conditions that rows must meet to matter.

Every step may only weaken a condition. What it lets through too much, Spark filters out, because
Spark runs the whole query; what it left out too much would be missing from the result.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
from sqlglot import exp

from icefloe.model.record import Record
from icefloe.spark.statements.time_parts import (
    DATE_LENGTH,
    MOMENT,
    TimePart,
    measured,
    moment_of,
    part_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NullSafeEQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
_PLAIN_TEXT = re.compile(r"[^'\\]*")
_MINUTE_LENGTH = len("2026-01-31 12:00")
_EXACT_IN_FLOAT32 = 2**24
_EXACT_IN_FLOAT64 = 2**53
# Time zones have jumped by a whole day, at most.
_ZONE_MARGIN = timedelta(days=2)


class Value(Record, frozen=True):
    """A literal of a query: its kind in Spark and its text."""

    kind: str
    """integer, decimal, text, boolean, timestamp (of the session's zone), timestamp_ntz or date."""
    text: str


class Comparison(Record, frozen=True):
    """A column of a source, or a part of the times in it, compared with a literal."""

    source: str
    column: str
    operator: str
    value: Value
    part: TimePart | None = None


class Missing(Record, frozen=True):
    """Whether a column of a source is null, or (negated) is not."""

    source: str
    column: str
    negated: bool = False


class Every(Record, frozen=True):
    """All of several predicates."""

    parts: tuple[Any, ...]


class Some(Record, frozen=True):
    """At least one of several predicates."""

    parts: tuple[Any, ...]


Predicate = Comparison | Missing | Every | Some
Leaf = Comparison | Missing
Truth = bool | None


def every(parts: Iterable[Predicate | None]) -> Predicate | None:
    """All of some predicates; None says nothing, and is left out."""
    known = tuple(part for part in parts if part is not None)
    return known[0] if len(known) == 1 else Every(known) if known else None


def some(parts: Iterable[Predicate | None]) -> Predicate | None:
    """One of some predicates; if one of them says nothing, all together say nothing."""
    listed = tuple(parts)
    known = tuple(part for part in listed if part is not None)
    if len(known) < len(listed) or not known:
        return None
    return known[0] if len(known) == 1 else Some(known)


# --- from expressions of sqlglot


def predicate_of(
    expression: exp.Expr,
    parameters: Mapping[str, Value] | None = None,
    *,
    negated: bool = False,
) -> Predicate | None:
    """What follows from a boolean expression; None where it is not understood.

    Args:
        expression: An expression with qualified columns.
        parameters: Values of named parameters, `:name`.
        negated: Whether the expression is under a NOT.
    """
    known = parameters or {}
    match expression:
        case exp.Paren():
            return predicate_of(expression.this, known, negated=negated)
        case exp.Not():
            return predicate_of(expression.this, known, negated=not negated)
        case exp.And() | exp.Or():
            parts = [predicate_of(one, known, negated=negated) for one in expression.flatten()]
            return every(parts) if isinstance(expression, exp.And) != negated else some(parts)
        case exp.Between():
            return _between(expression, known, negated=negated)
        case exp.In():
            return _one_of(expression, known, negated=negated)
        case exp.Is():
            return _is_null(expression, negated=negated)
        case exp.Column():
            truth = Value("boolean", "false" if negated else "true")
            return _comparison(expression, "=", truth)
    return _compared(expression, known, negated=negated)


def _compared(
    expression: exp.Expr, known: Mapping[str, Value], *, negated: bool
) -> Predicate | None:
    operator = _OPERATORS.get(type(expression))
    if operator is None:
        return None
    if negated:
        if isinstance(expression, exp.NullSafeEQ):
            return None  # true for nulls
        operator = _NEGATED[operator]
    left, right = expression.this, expression.expression
    value = literal(right, known)
    if value is not None:
        return _comparison(left, operator, value)
    value = literal(left, known)
    return None if value is None else _comparison(right, _FLIPPED[operator], value)


def _between(
    expression: exp.Between, known: Mapping[str, Value], *, negated: bool
) -> Predicate | None:
    if expression.args.get("symmetric"):
        return None
    bounds = [(">=", expression.args["low"]), ("<=", expression.args["high"])]
    parts = []
    for operator, bound in bounds:
        value = literal(bound, known)
        chosen = _NEGATED[operator] if negated else operator
        parts.append(None if value is None else _comparison(expression.this, chosen, value))
    return some(parts) if negated else every(parts)


def _one_of(expression: exp.In, known: Mapping[str, Value], *, negated: bool) -> Predicate | None:
    listed = expression.expressions
    if not listed or expression.args.get("query") or expression.args.get("unnest"):
        return None
    values = [literal(one, known) for one in listed]
    parts = [
        None if value is None else _comparison(expression.this, "!=" if negated else "=", value)
        for value in values
    ]
    return every(parts) if negated else some(parts)


def _is_null(expression: exp.Is, *, negated: bool) -> Predicate | None:
    column = expression.this
    if not isinstance(expression.expression, exp.Null) or not _is_column(column):
        return None
    return Missing(column.table, column.name, negated)


def _comparison(column: exp.Expr, operator: str, value: Value) -> Comparison | None:
    column = column.unnest()
    time_part = measured(column)
    if time_part is not None:
        column = time_part.of.unnest()
    if not _is_column(column):
        return None
    return Comparison(
        source=column.table,
        column=column.name,
        operator=operator,
        value=value,
        part=None if time_part is None else time_part.part,
    )


def _is_column(expression: exp.Expr) -> TypeGuard[exp.Column]:
    return isinstance(expression, exp.Column) and bool(expression.table)


def literal(expression: exp.Expr, parameters: Mapping[str, Value]) -> Value | None:
    """The literal that an expression is; None if it is none, or one of a kind that is not known."""
    match expression:
        case exp.Paren():
            return literal(expression.this, parameters)
        case exp.Neg():
            return _negative(literal(expression.this, parameters))
        case exp.Literal(is_string=True):
            return Value("text", expression.name)
        case exp.Literal():
            kind = "integer" if expression.name.isdecimal() else "decimal"
            return Value(kind, expression.name)
        case exp.Boolean():
            return Value("boolean", "true" if expression.this else "false")
        case exp.Placeholder():
            return parameters.get(expression.name)
        case exp.Cast():
            return _typed_literal(expression)
    return None


def _negative(value: Value | None) -> Value | None:
    if value is None or value.kind not in ("integer", "decimal"):
        return None
    return Value(value.kind, value.text[1:] if value.text[0] == "-" else "-" + value.text)


_TIME_KINDS = {
    exp.DataType.Type.TIMESTAMP: "timestamp",
    exp.DataType.Type.TIMESTAMPTZ: "timestamp",
    exp.DataType.Type.TIMESTAMPLTZ: "timestamp",
    exp.DataType.Type.TIMESTAMPNTZ: "timestamp_ntz",
    exp.DataType.Type.DATE: "date",
}


def _typed_literal(expression: exp.Cast) -> Value | None:
    """TIMESTAMP '…' and DATE '…', which sqlglot reads as casts."""
    inner = expression.this
    kind = _TIME_KINDS.get(expression.to.this)
    if kind is None or not (isinstance(inner, exp.Literal) and inner.is_string):
        return None
    if kind == "date" and len(inner.name.strip()) > DATE_LENGTH:
        return None
    return Value(kind, inner.name)


# --- about one source


def restricted(
    predicate: Predicate | None, accept: Callable[[Leaf], Leaf | None]
) -> Predicate | None:
    """What a predicate says of leaves that a function accepts; the function may rename them."""
    match predicate:
        case None:
            return None
        case Every(parts):
            return every(restricted(part, accept) for part in parts)
        case Some(parts):
            return some(restricted(part, accept) for part in parts)
    return accept(predicate)


def about(predicate: Predicate | None, source: str) -> Predicate | None:
    """What a predicate says of one source."""
    return restricted(predicate, lambda leaf: leaf if leaf.source == source else None)


def rejects_nulls(predicate: Predicate) -> bool:
    """Whether a predicate is not true if all columns are null, as an outer join makes them."""
    return _on_nulls(predicate) is not True


def _on_nulls(predicate: Predicate) -> bool | None:
    match predicate:
        case Missing(_, _, negated):
            return not negated
        case Every(parts):
            return reduce(_and, map(_on_nulls, parts))
        case Some(parts):
            return reduce(_or, map(_on_nulls, parts))
    return None


def _and(one: Truth, other: Truth) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _or(one: Truth, other: Truth) -> bool | None:
    if one is True or other is True:
        return True
    return None if one is None or other is None else False


# --- as the text of a condition


def condition_text(
    predicate: Predicate | None, types: Mapping[str, pa.DataType], *, zone_is_utc: bool
) -> str | None:
    """The predicate as a condition for `table`; None if nothing of it can be one.

    Comparisons whose meaning in Spark may differ from ours are left out, or widened.

    Args:
        predicate: A predicate on one table.
        types: The types of the table's columns, by name in lower case.
        zone_is_utc: Whether literals of `TIMESTAMP` are in UTC, as the stored times are.
    """
    match predicate:
        case None:
            return None
        case Every(parts):
            texts = [condition_text(p, types, zone_is_utc=zone_is_utc) for p in parts]
            known = [text for text in texts if text is not None]
            return " AND ".join(f"({text})" for text in known) or None
        case Some(parts):
            texts = [condition_text(p, types, zone_is_utc=zone_is_utc) for p in parts]
            if any(text is None for text in texts):
                return None
            return " OR ".join(f"({text})" for text in texts)
    column = predicate.column
    if column not in types or "`" in column:
        return None
    if isinstance(predicate, Missing):
        return f"`{column}` IS {'NOT ' if predicate.negated else ''}NULL"
    return _comparison_text(predicate, types[column], zone_is_utc)


def _comparison_text(
    compared: Comparison,
    kind: pa.DataType,
    zone_is_utc: bool,  # noqa: FBT001
) -> str | None:
    column, operator, value = compared.column, compared.operator, compared.value
    if compared.part is not None:
        if not pa.types.is_timestamp(kind) or kind.tz is not None:
            return None
        literal_parts = (value.kind, value.text)
        return part_text(
            f"`{column}`", operator, literal_parts, compared.part, zone_is_utc=zone_is_utc
        )
    if pa.types.is_timestamp(kind):
        return _time_text(column, operator, value, kind, zone_is_utc)
    name = f"`{column}`"
    if pa.types.is_boolean(kind):
        return f"{name} {operator} {value.text}" if value.kind == "boolean" else None
    if pa.types.is_string(kind):
        is_plain = value.kind == "text" and _PLAIN_TEXT.fullmatch(value.text)
        return f"{name} {operator} '{value.text}'" if is_plain else None
    if value.kind not in ("integer", "decimal") or not _is_exact(value, kind):
        return None
    return f"{name} {operator} {value.text}"


def _is_exact(value: Value, kind: pa.DataType) -> bool:
    """Whether Spark and we compare the numbers of a column with a literal in the same way."""
    size = abs(float(value.text))
    if pa.types.is_integer(kind):
        return size < (2**63 if value.kind == "integer" else _EXACT_IN_FLOAT64)
    if pa.types.is_float32(kind):
        return value.kind == "decimal" or size <= _EXACT_IN_FLOAT32
    if pa.types.is_float64(kind):
        return value.kind == "decimal" or size <= _EXACT_IN_FLOAT64
    return False


def _time_text(
    column: str,
    operator: str,
    value: Value,
    kind: pa.DataType,
    zone_is_utc: bool,  # noqa: FBT001
) -> str | None:
    known = value.kind in ("text", "timestamp", "timestamp_ntz", "date")
    if kind.tz is not None or not known or not MOMENT.fullmatch(value.text.strip()):
        return None
    text = value.text.strip()
    if len(text) == _MINUTE_LENGTH:
        text += ":00"
    if value.kind != "timestamp" or zone_is_utc:
        return f"`{column}` {operator} '{text}'"
    # Spark compares local times, some of which do not exist: they move, by less than the margin.
    if operator == "!=":
        return None
    moment = moment_of(text)
    if moment is None:
        return None
    low, high = (moment - _ZONE_MARGIN).isoformat(), (moment + _ZONE_MARGIN).isoformat()
    texts = [f"`{column}` >= '{low}'"] if operator in ("=", ">", ">=") else []
    texts += [f"`{column}` <= '{high}'"] if operator in ("=", "<", "<=") else []
    return " AND ".join(texts)
