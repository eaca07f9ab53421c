"""Conditions on columns, a part of SQL: parse them, evaluate them, and prune chunks by them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record
from icefloe.tables.indexing import time_period

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    Truth = npt.NDArray[np.bool_]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![A-Za-z_])"
    r"|'(?P<text>(?:[^']|'')*)'|\"(?P<quoted>[^\"]*)\"|`(?P<escaped>[^`]+)`"
    r"|(?P<word>[^\W\d]\w*)|(?P<operator><=>|<=|>=|<>|!=|==|[=<>(),]))"
)
MAX_CONDITION_LENGTH = 1024 * 1024
MAX_CONDITION_NESTING = 50
_MAX_NUMBER_LENGTH = 400
"""Any float64 is shorter."""
_MAX_PART = 2**31
"""No part of a time is larger, nor any literal that is worth comparing with one."""
_SPACE = re.compile(r"\s*")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
_KEYWORDS = {"and", "or", "not", "between", "in", "is", "null", "true", "false"}
_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "!=": pc.not_equal,
}


TIME_PARTS: dict[str, Callable[[Any], Any]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "weekofyear": pc.iso_week,
    "dayofyear": pc.day_of_year,
    "day": pc.day,
    "dayofmonth": pc.day,
    # As in Spark, weeks begin on Sunday, with the number 1.
    "dayofweek": partial(pc.day_of_week, count_from_zero=False, week_start=7),
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
}
"""Functions of times that are whole numbers, by their names in SQL."""


class Compare(Record, frozen=True):
    """A column, or a part of the times in it, compared with a value."""

    column: str
    operator: str
    value: Any
    part: str | None = None
    """The name of one of `TIME_PARTS`."""


class IsNull(Record, frozen=True):
    """Whether a column has no value, or (negated) has one."""

    column: str
    negated: bool = False


class Both(Record, frozen=True):
    """All of several conditions."""

    parts: tuple[Any, ...]


class Either(Record, frozen=True):
    """At least one of several conditions."""

    parts: tuple[Any, ...]


Condition = Compare | IsNull | Both | Either


class Bounds(Record, frozen=True, eq=False):
    """Bounds of the values of a column in each of many blocks."""

    low: Any
    high: Any
    """The smallest and largest values, as arrays; undefined where `known` is false."""
    known: Any
    some_null: Any
    only_null: Any


def parse_condition(text: str, columns: Sequence[str]) -> Condition:
    """Parse a condition; raises InvalidInputError for anything that is not supported.

    Length and depth are bounded, see docs/decisions/0045-own-parser-for-where-conditions.md.
    """
    return _Parser(text, columns).parse()


def _end_of_space(text: str, position: int) -> int:
    matched = _SPACE.match(text, position)
    return position if matched is None else matched.end()


class _Parser:
    def __init__(self, text: str, columns: Sequence[str]) -> None:
        self._text = text
        self._columns = columns
        if len(text) > MAX_CONDITION_LENGTH:
            raise InvalidInputError(
                f"a condition has at most {MAX_CONDITION_LENGTH} characters, found {len(text)}"
            )
        self._tokens = list(self._tokenize())
        self._at = 0
        self._depth = 0

    def _tokenize(self) -> Iterable[tuple[str, str]]:
        position = 0
        while (position := _end_of_space(self._text, position)) < len(self._text):
            matched = _TOKEN.match(self._text, position)
            if matched is None:
                raise self._error(self._text[position : position + 20].strip())
            kind = matched.lastgroup or ""
            yield kind, matched[kind]
            position = matched.end()

    def _error(self, found: str) -> InvalidInputError:
        return InvalidInputError(
            "a condition compares columns, or parts of times such as month(time), with values (=, "
            "<>, <, <=, >, >=, BETWEEN, IN, IS NULL), joined by AND, OR and NOT; "
            f"cannot read {shortened(found)!r} in {shortened(self._text)!r}"
        )

    def parse(self) -> Condition:
        condition = self._either(negated=False)
        if self._at < len(self._tokens):
            raise self._error(self._tokens[self._at][1])
        return condition

    def _is_word(self, word: str) -> bool:
        if self._at >= len(self._tokens):
            return False
        kind, text = self._tokens[self._at]
        return kind == "word" and text.lower() == word

    def _take_word(self, word: str) -> bool:
        if self._is_word(word):
            self._at += 1
            return True
        return False

    def _take_operator(self, *operators: str) -> str | None:
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "operator" and text in operators:
                self._at += 1
                return text
        return None

    def _need(self, operator: str) -> None:
        if self._take_operator(operator) is None:
            raise self._error(f"no {operator}")

    def _either(self, *, negated: bool) -> Condition:
        parts = [self._both(negated=negated)]
        while self._take_word("or"):
            parts.append(self._both(negated=negated))
        return _joined(Both if negated else Either, parts)

    def _both(self, *, negated: bool) -> Condition:
        parts = [self._one(negated=negated)]
        while self._take_word("and"):
            parts.append(self._one(negated=negated))
        return _joined(Either if negated else Both, parts)

    def _one(self, *, negated: bool) -> Condition:
        while self._take_word("not"):
            negated = not negated
        if self._take_operator("("):
            self._depth += 1
            if self._depth > MAX_CONDITION_NESTING:
                raise InvalidInputError(
                    f"parentheses in a condition are nested at most {MAX_CONDITION_NESTING} deep; "
                    f"simplify {shortened(self._text)!r}"
                )
            inner = self._either(negated=negated)
            self._need(")")
            self._depth -= 1
            return inner
        return self._predicate(negated=negated)

    def _predicate(self, *, negated: bool) -> Condition:
        left = self._operand()
        if self._take_word("is"):
            negated ^= self._take_word("not")
            if not self._take_word("null"):
                raise self._error("IS")
            return IsNull(self._column(left), negated)
        negated ^= self._take_word("not")
        if self._take_word("between"):
            low = self._operand()
            if not self._take_word("and"):
                raise self._error("BETWEEN without AND")
            high = self._operand()
            found = [self._compare(left, ">=", low), self._compare(left, "<=", high)]
            return _negate(_joined(Both, found)) if negated else _joined(Both, found)
        if self._take_word("in"):
            return self._one_of(left, negated=negated)
        operator = self._take_operator("=", "==", "<>", "!=", "<", "<=", ">", ">=")
        if operator is None and left[0] == "column" and self._ends_here():
            return Compare(self._column(left), "!=" if negated else "=", value=True)
        if operator is None:
            raise self._error(str(left[1]))
        operator = {"==": "=", "<>": "!="}.get(operator, operator)
        compared = self._compare(left, operator, self._operand())
        return _negate(compared) if negated else compared

    def _ends_here(self) -> bool:
        at_end = self._at == len(self._tokens) or self._tokens[self._at] == ("operator", ")")
        return at_end or self._is_word("and") or self._is_word("or")

    def _one_of(self, left: tuple[str, Any], *, negated: bool) -> Condition:
        self._need("(")
        values = [self._operand()]
        while self._take_operator(","):
            values.append(self._operand())
        self._need(")")
        found = _joined(Either, [self._compare(left, "=", value) for value in values])
        return _negate(found) if negated else found

    def _operand(self) -> tuple[str, Any]:
        if self._at >= len(self._tokens):
            raise self._error("the end")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return "value", self._number(text)
        if kind == "text":
            return "value", text.replace("''", "'")
        if kind in {"escaped", "quoted"}:
            return "column", text
        word = text.lower()
        if kind == "word" and word in TIME_PARTS and self._take_operator("("):
            column = self._column(self._operand())
            self._need(")")
            return "part", (word, column)
        if kind != "word" or word in _KEYWORDS - {"true", "false"}:
            raise self._error(text)
        if word in {"true", "false"}:
            return "value", word == "true"
        if word in {"timestamp", "timestamp_ntz", "date"} and self._at < len(self._tokens):
            next_kind, literal = self._tokens[self._at]
            if next_kind == "text":
                self._at += 1
                return "value", literal
        return "column", text

    def _number(self, text: str) -> float | int:
        if len(text) > _MAX_NUMBER_LENGTH:
            raise InvalidInputError(
                f"a number in a condition has at most {_MAX_NUMBER_LENGTH} characters, found "
                f"{len(text)} in {shortened(self._text)!r}"
            )
        return float(text) if re.search(r"[.eE]", text) else int(text)

    def _column(self, operand: tuple[str, Any]) -> str:
        kind, name = operand
        if kind != "column":
            raise self._error(str(name))
        if name in self._columns:
            return str(name)
        same = [c for c in self._columns if c.lower() == str(name).lower()]
        if len(same) != 1:
            raise InvalidInputError(
                f"the condition {shortened(self._text)!r} names {shortened(name)!r}; the table has "
                f"{', '.join(self._columns)}"
            )
        return same[0]

    def _compare(self, left: tuple[str, Any], operator: str, right: tuple[str, Any]) -> Condition:
        if left[0] == "value" and right[0] in ("column", "part"):
            left, right, operator = right, left, _FLIPPED[operator]
        if left[0] == "part" and right[0] == "value":
            part, column = left[1]
            is_number = isinstance(right[1], int) and not isinstance(right[1], bool)
            if not is_number or abs(right[1]) > _MAX_PART:
                raise self._error(f"{part}({column}) {operator} {right[1]}")
            return Compare(column=column, operator=operator, value=right[1], part=part)
        if left[0] != "column" or right[0] != "value":
            raise self._error(f"{left[1]} {operator} {right[1]}")
        return Compare(self._column(left), operator, right[1])


def _joined(kind: type[Both] | type[Either], parts: list[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _negate(condition: Condition) -> Condition:
    match condition:
        case Compare(column, operator, value, part):
            opposite = _NEGATED[operator]
            return Compare(column=column, operator=opposite, value=value, part=part)
        case IsNull(column, negated):
            return IsNull(column, not negated)
        case Both(parts):
            return Either(tuple(map(_negate, parts)))
        case Either(parts):
            return Both(tuple(map(_negate, parts)))


def columns_of(condition: Condition) -> set[str]:
    """The columns in a condition."""
    if isinstance(condition, Compare | IsNull):
        return {condition.column}
    return set().union(*map(columns_of, condition.parts))


def comparisons_of_parts(condition: Condition) -> list[Compare]:
    """The comparisons of parts of times in a condition."""
    match condition:
        case Compare():
            return [] if condition.part is None else [condition]
        case IsNull():
            return []
    return [one for part in condition.parts for one in comparisons_of_parts(part)]


def check_parts(condition: Condition, kind_of: Callable[[str], pa.DataType]) -> None:
    """Raise InvalidInputError for parts of what is no time."""
    for one in comparisons_of_parts(condition):
        kind = kind_of(one.column)
        if not pa.types.is_timestamp(kind):
            raise InvalidInputError(
                f"{one.part}({one.column}) is a part of a time, and {one.column!r} is of {kind}"
            )


def conjuncts(condition: Condition) -> list[Condition]:
    """Conditions that must all hold."""
    if isinstance(condition, Both):
        return [one for part in condition.parts for one in conjuncts(part)]
    return [condition]


def evaluate(condition: Condition, columns: Mapping[str, pa.Array]) -> pa.Array:
    """Evaluate a condition on columns: true, false or null, as in SQL."""
    match condition:
        case Compare(name, operator, value, part):
            if part is not None:
                return _COMPUTE[operator](TIME_PARTS[part](columns[name]), value)
            return _compare(columns[name], name, operator, value)
        case IsNull(name, negated):
            return pc.is_valid(columns[name]) if negated else pc.is_null(columns[name])
        case Both(parts):
            found = [evaluate(part, columns) for part in parts]
            return _reduced(pc.and_kleene, found)
        case Either(parts):
            found = [evaluate(part, columns) for part in parts]
            return _reduced(pc.or_kleene, found)


def _reduced(join: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = join(result, part)
    return result


def _compare(column: pa.Array, name: str, operator: str, value: Any) -> pa.Array:
    literal = literal_for(column.type, name, value)
    if pa.types.is_floating(column.type) or pa.types.is_floating(literal.type):
        # Integers that float64 has not are beyond all literals that it has exactly.
        column = column.cast(pa.float64(), safe=False)
        literal = literal.cast(pa.float64())
    found = _COMPUTE[operator](column, literal)
    if operator in {">", ">="} and pa.types.is_floating(column.type):
        # Spark sorts NaN behind all numbers.
        found = pc.or_kleene(found, pc.is_nan(column))
    return found


def literal_for(kind: pa.DataType, name: str, value: Any) -> pa.Scalar:
    """A value of a condition as a scalar that is comparable with a column of some type."""
    try:
        if pa.types.is_timestamp(kind):
            # SQL reads a month as its first moment.
            first = time_period(name, value)[0]
            return pa.scalar(first.astype(np.int64).item(), pa.int64()).cast(kind)
        if isinstance(value, bool) != pa.types.is_boolean(kind):
            raise _incomparable(kind, name, value)
        if isinstance(value, bool):
            return pa.scalar(value, pa.bool_())
        if isinstance(value, float) and not pa.types.is_string(kind):
            return pa.scalar(value, pa.float64())
        if isinstance(value, int) and pa.types.is_floating(kind):
            return pa.scalar(float(value), pa.float64())
        if isinstance(value, int) and pa.types.is_integer(kind):
            return pa.scalar(value, pa.int64())
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
        raise _incomparable(kind, name, value) from None


def _incomparable(wanted: pa.DataType, name: str, value: Any) -> InvalidInputError:
    return InvalidInputError(
        f"column {name!r} is of {wanted}, which cannot be compared with {shortened(repr(value))}"
    )


def bounds_key(column: str, part: str | None = None) -> str:
    """Under which name the bounds of a column, or of a part of it, are given to `may_match`."""
    return column if part is None else f"{part}({column})"


def may_match(condition: Condition, bounds: Mapping[str, Bounds]) -> Truth | bool:
    """The blocks in which a condition may hold somewhere; True if too little is known."""
    match condition:
        case Both(parts):
            every: Truth | bool = True
            for part in parts:
                every = every & may_match(part, bounds)
            return every
        case Either(parts):
            some: Truth | bool = False
            for part in parts:
                some = some | may_match(part, bounds)
            return some
        case IsNull(name, negated):
            known = bounds.get(name)
            if known is None:
                return True
            nulls: Truth = ~known.known | (~known.only_null if negated else known.some_null)
            return nulls
        case Compare(name, operator, value, part):
            known = bounds.get(bounds_key(name, part))
            return True if known is None else _may_compare(known, operator, value)


def _may_compare(known: Bounds, operator: str, value: Any) -> Truth:
    match operator:
        case "<":
            holds = known.low < value
        case "<=":
            holds = known.low <= value
        case ">":
            holds = known.high > value
        case ">=":
            holds = known.high >= value
        case "=":
            holds = (known.low <= value) & (known.high >= value)
        case _:
            holds = (known.low != value) | (known.high != value)
    truth: Truth = ~known.known | (holds & ~known.only_null)
    return truth
