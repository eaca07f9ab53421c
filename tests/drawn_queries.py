"""Draws queries on the tables `weather` and `station`: joins, subqueries, WITH, windows, unions.

Results do not depend on the order of rows, so that any two engines agree on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = {
    "weather": ("time", "lat", "lon", "t2m", "rain"),
    "station": ("lat", "height", "t2m"),
}
"""Columns whose names begin with `time` are times, all others numbers; `t2m` of both, `rain` and
`height` have nulls."""
TIMES = ("2000-12-31 18:00:00", "2001-01-01 00:00:00", "2001-03-15 06:30:00", "2002-01-01 00:00:00")
"""The times of `weather`."""


def _is_time(column: str) -> bool:
    return column.rsplit(".", maxsplit=1)[-1].startswith("time")


def _numbers(columns: list[str]) -> list[str]:
    return [column for column in columns if not _is_time(column)]


@st.composite
def queries(draw: Callable[[st.SearchStrategy], object]) -> str:
    """A query, with WITH or not; half of them filter what another query gives."""
    drawing = _Drawing(draw)
    return drawing.filtered() if draw(st.booleans()) else drawing.query()


class _Drawing:
    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw
        self._count = 0
        self._ctes: dict[str, list[str]] = {}

    def _one_of(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def _chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 - percent

    def _name(self, column: str = "") -> str:
        """A new name; one that says so for a column of times."""
        self._count += 1
        return f"{'time' if _is_time(column) else 'n'}{self._count}"

    def filtered(self) -> str:
        """A query on what another gives, with conditions that may be passed on to its tables."""
        text, outputs = self.body(1)
        conditions = [
            " AND ".join(self._simple(outputs) for _ in range(self._one_of(1, 1, 2)))
            for _ in range(2)
        ]
        kind = self._one_of("derived", "with", "twice", "joined")
        if kind == "derived":
            return f"SELECT * FROM ({text}) d WHERE {conditions[0]}"
        if kind == "with":
            return f"WITH d AS ({text}) SELECT count(*) AS n FROM d WHERE {conditions[0]}"
        if kind == "joined" and _numbers(outputs):
            join = self._one_of("LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
            on = f"d.{_numbers(outputs)[0]} = s.lat"
            return f"SELECT * FROM ({text}) d {join} station s ON {on} WHERE {conditions[0]}"
        parts = [f"SELECT * FROM d WHERE {condition}" for condition in conditions]
        return f"WITH d AS ({text}) {self._one_of(*parts, 'SELECT * FROM d')} UNION ALL {parts[0]}"

    def _simple(self, outputs: list[str]) -> str:
        column = f"d.{self._one_of(*outputs)}"
        if _is_time(column):
            return self._of_time(column)
        number = self._draw(st.integers(0, 4))
        return self._one_of(f"{column} > {number}", f"{column} = {number}", f"{column} IS NULL")

    def query(self) -> str:
        texts = []
        for _ in range(self._draw(st.integers(0, 2))):
            name = self._name()
            text, outputs = self.body(2)
            texts.append(f"{name} AS ({text})")
            self._ctes[name] = outputs
        text, _ = self.body(0)
        return f"WITH {', '.join(texts)} {text}" if texts else text

    def body(self, depth: int) -> tuple[str, list[str]]:
        if depth < 3 and self._chance(20):
            left, outputs = self.select(depth + 1, width=2)
            right, _ = self.select(depth + 1, width=2)
            word = self._one_of("UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT")
            return f"{left} {word} {right}", outputs
        return self.select(depth)

    # --- one SELECT

    def select(self, depth: int, width: int | None = None) -> tuple[str, list[str]]:
        sources, columns = self.from_clause(depth)
        where = f" WHERE {self.predicate(columns, depth)}" if self._chance(75) else ""
        kind = self._one_of("plain", "star", "group", "window", "window", "distinct")
        if (
            kind == "star"
            and width is None
            and len({c.split(".")[1] for c in columns}) == len(columns)
        ):
            return f"SELECT * FROM {sources}{where}", [c.split(".")[1] for c in columns]
        count = width or self._draw(st.integers(1, 3))
        # Operands of unions have the same types, and what is computed is a number.
        numbers = _numbers(columns)
        if width is not None and not numbers:
            values = ["1"] * width
            names = [self._name() for _ in values]
            listed = ", ".join(f"{v} AS {n}" for v, n in zip(values, names, strict=True))
            return f"SELECT {listed} FROM {sources}{where}", names
        chosen = [self._one_of(*(columns if width is None else numbers)) for _ in range(count)]
        if kind in ("group", "window"):
            chosen[1:] = [self._one_of(*(numbers or ["1"])) for _ in chosen[1:]]
        names = [self._name(column) for column in chosen]
        rest = ""
        if kind == "group":
            values = [chosen[0]] + [self._aggregate(c) for c in chosen[1:]]
            rest = f" GROUP BY {chosen[0]}"
        elif kind == "window":
            values = [chosen[0]] + [self._window(chosen[0], c, columns) for c in chosen[1:]]
        else:
            values = [c if _is_time(c) or self._chance(80) else f"{c} + 1" for c in chosen]
        listed = ", ".join(f"{v} AS {n}" for v, n in zip(values, names, strict=True))
        distinct = "DISTINCT " if kind == "distinct" else ""
        if depth and width is None and self._chance(35):
            rest += f" ORDER BY {', '.join(f'{n} NULLS FIRST' for n in names)} LIMIT 5"
        return f"SELECT {distinct}{listed} FROM {sources}{where}{rest}", names

    def _aggregate(self, column: str) -> str:
        return self._one_of("count(*)", f"sum({column})", f"max({column})")

    def _window(self, first: str, column: str, columns: list[str]) -> str:
        by = self._one_of(first, self._one_of(*columns))
        what = self._one_of(f"sum({column})", "count(*)", f"max({column})")
        return f"{what} OVER (PARTITION BY {by})"

    # --- FROM

    def source(self, depth: int) -> tuple[str, list[str]]:
        kinds = ["weather", "weather", "station", *self._ctes]
        name = self._one_of(*kinds, *(["derived"] if depth < 3 else []))
        alias = self._name()
        if name == "derived":
            text, outputs = self.body(depth + 1)
            return f"({text}) {alias}", [f"{alias}.{o}" for o in outputs]
        outputs = self._ctes.get(name) or list(COLUMNS[name])
        return f"{name} {alias}", [f"{alias}.{o}" for o in outputs]

    def from_clause(self, depth: int) -> tuple[str, list[str]]:
        text, columns = self.source(depth)
        for _ in range(self._one_of(0, 0, 1, 1, 2)):
            other, others = self.source(depth + 1)
            kind = self._one_of("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI", "ANTI", ",")
            on = self._equal(columns, others)
            if self._chance(50):
                on += f" AND {self.predicate(columns + others, 3)}"
            if kind == ",":
                return f"{text}, {other}", columns + others
            if kind in ("SEMI", "ANTI"):
                text = f"{text} {kind} JOIN {other} ON {on}"
                continue
            text = f"{text} {kind} {other} ON {on}"
            columns = columns + others
        return text, columns

    def _equal(self, columns: list[str], others: list[str]) -> str:
        """A condition that a column is equal to one of others, of the same type."""
        column = self._one_of(*columns)
        alike = [other for other in others if _is_time(other) == _is_time(column)]
        return f"{column} = {self._one_of(*alike)}" if alike else f"{column} IS NOT NULL"

    # --- predicates

    def predicate(self, columns: list[str], depth: int) -> str:
        kind = self._one_of("leaf", "leaf", "and", "and", "or", "not", "subquery")
        if kind == "leaf" or depth > 4:
            return self.leaf(columns)
        if kind == "subquery":
            return self.subquery(columns, depth)
        if kind == "not":
            return f"NOT ({self.predicate(columns, depth + 1)})"
        left, right = (self.predicate(columns, depth + 1) for _ in range(2))
        return f"({left} {kind.upper()} {right})"

    def leaf(self, columns: list[str]) -> str:
        column = self._one_of(*columns)
        if _is_time(column):
            return self._of_time(column)
        number = self._draw(st.integers(-1, 6))
        other = self._draw(st.integers(0, 6))
        return self._one_of(
            f"{column} {self._one_of('=', '<', '<=', '>', '>=', '<>')} {number}",
            f"{number} {self._one_of('<', '>=', '=')} {column}",
            f"{column} BETWEEN {number} AND {other}",
            f"{column} NOT BETWEEN {number} AND {other}",
            f"{column} {self._one_of('IN', 'NOT IN')} ({number}, {other})",
            f"{column} IS NULL",
            f"{column} IS {self._one_of('NULL', 'NOT NULL')}",
            f"{column} < {number}.5",
            f"{column} + 1 > {number}",
            f"{column} >= {self._one_of(*_numbers(columns))}",
        )

    def _of_time(self, column: str) -> str:
        operator = self._one_of("=", "<", "<=", ">", ">=", "<>")
        number = self._draw(st.integers(0, 4))
        moment = self._one_of(*TIMES, "2001-03-01 00:00:00", "2001-07-04 12:00:00")
        unit = self._one_of("year", "quarter", "month", "week", "day", "hour")
        return self._one_of(
            f"{column} {operator} '{moment}'",
            f"{column} NOT BETWEEN '2001-01-01' AND '{moment}'",
            f"{column} BETWEEN '2001-01-01' AND '{moment}'",
            f"year({column}) {operator} {1999 + number}",
            f"year({column}) NOT IN (2001, {1999 + number})",
            f"{1999 + number} {self._one_of('<', '>=', '=')} extract(YEAR FROM {column})",
            f"month({column}) {operator} {number}",
            f"month({column}) IN ({number}, 12)",
            f"{self._one_of('quarter', 'day', 'dayofyear', 'hour')}({column}) {operator} {number}",
            f"weekofyear({column}) BETWEEN {number} AND 30",
            f"date_trunc('{unit}', {column}) {operator} '{moment}'",
            f"CAST({column} AS DATE) {operator} '{moment[:10]}'",
            f"CAST({column} AS DATE) BETWEEN '2001-01-01' AND '{moment[:10]}'",
            f"{column} IS {self._one_of('NULL', 'NOT NULL')}",
        )

    def subquery(self, columns: list[str], depth: int) -> str:
        table = self._one_of("weather", "station")
        alias = self._name()
        own = [f"{alias}.{column}" for column in COLUMNS[table]]
        outer = self._one_of(*columns)
        where = self.predicate(own, depth + 3)
        alike = [column for column in own if _is_time(column) == _is_time(outer)]
        if alike and self._chance(50):
            return f"{outer} IN (SELECT {self._one_of(*alike)} FROM {table} {alias} WHERE {where})"
        where = f"{self._equal([outer], own)} AND {where}"
        return f"EXISTS (SELECT * FROM {table} {alias} WHERE {where})"
