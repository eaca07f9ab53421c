"""What a comparison of a part of a time says of the time: `year(time) = 2001` is a range of times.

Years, truncated times and dates grow with the time, so that comparisons with them are ranges. Other
parts (months, hours) repeat: a condition on them stays one on the part.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from sqlglot import exp

from icefloe.model.record import Record
from icefloe.tables.where import TIME_PARTS

MOMENT = re.compile(r"\d{4}(-\d{2}(-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?)?)?", re.ASCII)
DATE_LENGTH = len("2024-01-31")
_MONTHS = {"year": 12, "quarter": 3, "month": 1}
_STEPS = {
    "week": timedelta(weeks=1),
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
}
_UNITS = dict.fromkeys(("yyyy", "yy"), "year") | dict.fromkeys(("mon", "mm"), "month")
_UNITS |= {"dd": "day"} | {unit: unit for unit in (*_MONTHS, *_STEPS)}
"""The units of `date_trunc` by their names in Spark, in lower case."""
_DATE_UNITS = {"year", "quarter", "month", "week"}
"""The units of `trunc`, which gives null for others."""
_NUMBERS: dict[type[exp.Expr], str] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfYear: "dayofyear",
    exp.DayOfWeek: "dayofweek",
    exp.WeekOfYear: "weekofyear",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
}
_FIELDS = {name: name for name in ("year", "quarter", "month", "day", "hour", "minute")}
_FIELDS |= {"doy": "dayofyear", "week": "weekofyear"}
"""The fields of EXTRACT that are whole numbers; seconds have a fraction there."""


class TimePart(Record, frozen=True):
    """A function of a time: a number (`month`), or the time truncated to a unit."""

    unit: str
    gives: str
    """number, date or timestamp."""


class MeasuredTime(Record, frozen=True, eq=False):
    """An expression that is a part of another one, mostly a column."""

    of: exp.Expr
    part: TimePart


def measured(expression: exp.Expr) -> MeasuredTime | None:
    """The time of which an expression is a part; None if it is none that is known."""
    match expression:
        case exp.TimestampTrunc() if expression.args.get("zone") is None:
            unit = _UNITS.get(expression.text("unit").lower())
            return None if unit is None else _measured(expression.this, unit, "timestamp")
        case exp.DateTrunc():
            unit = _UNITS.get(expression.text("unit").lower())
            return _measured(_plain(expression.this), unit, "date") if unit in _DATE_UNITS else None
        case exp.Cast() if expression.to.this == exp.DataType.Type.DATE:
            return _measured(expression.this, "day", "date")
        case exp.TsOrDsToDate() if expression.args.get("format") is None:
            return _measured(expression.this, "day", "date")
        case exp.Extract():
            unit = _FIELDS.get(expression.name.lower())
            return None if unit is None else _measured(expression.expression, unit, "number")
    number = _NUMBERS.get(type(expression))
    return None if number is None else _measured(_plain(expression.this), number, "number")


def _measured(of: exp.Expr, unit: str, gives: str) -> MeasuredTime:
    return MeasuredTime(of, TimePart(unit, gives))


def _plain(expression: exp.Expr) -> exp.Expr:
    """Without the conversion to a date that sqlglot adds to arguments of functions of dates."""
    if isinstance(expression, exp.TsOrDsToDate) and expression.args.get("format") is None:
        inner: exp.Expr = expression.this
        return inner
    return expression


def part_text(
    column: str, operator: str, literal: tuple[str, str], part: TimePart, *, zone_is_utc: bool
) -> str | None:
    """A comparison of a part of a time as a condition on the time; None if it cannot be one.

    Args:
        column: The column, quoted.
        operator: One of `=`, `!=`, `<`, `<=`, `>`, `>=`.
        literal: The kind of the literal and its text.
        part: The part that is compared.
        zone_is_utc: Whether the zone of the session is UTC, so that times without a zone are
            the same as those with one.

    >>> year = TimePart("year", "number")
    >>> part_text("`t`", "=", ("integer", "2001"), year, zone_is_utc=False)
    "`t` >= '2001-01-01 00:00:00' AND `t` < '2002-01-01 00:00:00'"
    >>> part_text("`t`", ">", ("date", "2001-01-15"), TimePart("month", "date"), zone_is_utc=False)
    "`t` >= '2001-02-01 00:00:00'"
    >>> part_text("`t`", "<=", ("integer", "3"), TimePart("month", "number"), zone_is_utc=False)
    'month(`t`) <= 3'
    """
    kind, text = literal
    if part.gives == "number":
        if kind != "integer":
            return None
        if part.unit != "year":
            return f"{part.unit}({column}) {operator} {text}" if part.unit in TIME_PARTS else None
    moment = _moment(kind, text, part, zone_is_utc=zone_is_utc)
    if moment is None:
        return None
    try:
        return _range_text(column, operator, moment, part.unit)
    except (OverflowError, ValueError):
        return None  # beyond the years that there are


def _moment(kind: str, text: str, part: TimePart, *, zone_is_utc: bool) -> datetime | None:
    """The moment that a literal is, as Spark compares it with a part."""
    text = text.strip()
    if part.gives == "number":
        text = f"{int(text):04}"
    elif kind not in ("text", "date", "timestamp_ntz", "timestamp"):
        return None
    elif part.gives == "timestamp" or kind == "timestamp":
        if not zone_is_utc:
            return None  # Spark compares times of the session's zone
    elif kind == "text" and len(text) > DATE_LENGTH:
        return None
    return moment_of(text)


def moment_of(text: str) -> datetime | None:
    """The first moment of a year, month, day or time that a literal says; None if it is none."""
    if not MOMENT.fullmatch(text):
        return None
    whole = text + "-01-01"[len(text) - 4 :] if len(text) < DATE_LENGTH else text
    try:
        return datetime.fromisoformat(whole)
    except ValueError:
        return None


def _range_text(column: str, operator: str, moment: datetime, unit: str) -> str | None:
    start = _floor(moment, unit)
    end = _after(start, unit)
    first = start if start == moment else end  # whose part is not below the literal
    match operator:
        case "<":
            return f"{column} < '{first}'"
        case "<=":
            return f"{column} < '{end}'"
        case ">":
            return f"{column} >= '{end}'"
        case ">=":
            return f"{column} >= '{first}'"
    if start != moment:
        return None  # no time has such a part
    if operator == "=":
        return f"{column} >= '{start}' AND {column} < '{end}'"
    return f"{column} < '{start}' OR {column} >= '{end}'"


def _floor(moment: datetime, unit: str) -> datetime:
    if unit in _MONTHS:
        length = _MONTHS[unit]
        return datetime(moment.year, (moment.month - 1) // length * length + 1, 1)  # noqa: DTZ001
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=moment.weekday())
    return moment - (moment - midnight) % _STEPS[unit]


def _after(start: datetime, unit: str) -> datetime:
    if unit not in _MONTHS:
        return start + _STEPS[unit]
    months = start.month - 1 + _MONTHS[unit]
    return start.replace(year=start.year + months // 12, month=months % 12 + 1)
