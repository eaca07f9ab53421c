"""Regular expressions that take time in proportion to the text, whatever the expression.

Those of a configuration come from files that anybody may have written. Python's own engine tries
one way after the other, and a short hostile expression keeps it busy for ever. Here all ways are
followed at the same time; what cannot be done so (backreferences, looking around) is refused, as
the official package refuses it.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    CharacterTest = Callable[[str], bool]

# Python's own parser: what an expression means is as everywhere else. It has no public name.
_parser: Any = importlib.import_module("re._parser")

MAX_STATES = 5_000
"""Counted repetitions are written out, so a short expression may ask for many states."""
_MAX_KNOWN_STEPS = 10_000
_FLAGS = re.IGNORECASE | re.DOTALL | re.VERBOSE | re.UNICODE
_ACCEPT = 0
_CATEGORIES: dict[str, CharacterTest] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_WORD": lambda character: character.isalnum() or character == "_",
}


class UnsupportedError(ValueError):
    """An expression that this engine does not take, and why."""


class _State(NamedTuple):
    """What may come next: one character, or other states for free."""

    test: CharacterTest | None = None
    target: int = 0
    free: tuple[int, ...] = ()
    anchor: str = ""
    """Where the free ones are open: `start`, `end` (also before a last line break), `last`, or
    anywhere."""


class Automaton:
    """A compiled expression. Threads may share it."""

    def __init__(self, regex: str, *, anywhere: bool = False) -> None:
        """Compile an expression for whole texts, or for parts of them.

        Raises `re.error`, UnsupportedError, OverflowError or RecursionError.
        """
        parsed = _parser.parse(regex)
        self._states: list[_State] = [_State()]
        after = self._anything(_ACCEPT) if anywhere else _ACCEPT
        start = self._sequence(parsed, parsed.state.flags, after)
        # A state of its own, which is nowhere in the midst of a text.
        first = self._add(_State(free=(self._anything(start) if anywhere else start,)))
        self._start = frozenset((first,))
        self._accepts: dict[frozenset[int], bool] = {}
        self._steps: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._known_steps = 0

    def matches(self, text: str) -> bool:
        """Whether the expression describes the text."""
        # `$` also holds before a line break that ends the text.
        end = len(text) - text.endswith("\n")
        if end == 0:
            return self._matches_nothing_much(text)
        steps, now = self._steps, self._start
        for character in text[:end]:
            known = steps.get(now)
            following = None if known is None else known.get(character)
            now = self._step(now, character) if following is None else following
        if end < len(text):
            now = self._cross(now, "\n", ("end",))
        accepts = self._accepts.get(now)
        return self._ends_well(now) if accepts is None else accepts

    def _matches_nothing_much(self, text: str) -> bool:
        """Whether the expression describes an empty text, or a line break alone."""
        if not text:
            return _ACCEPT in self._reachable(self._start, ("start", "end", "last"))
        return self._ends_well(self._cross(self._start, "\n", ("start", "end")))

    # --- matching

    def _step(self, now: frozenset[int], character: str) -> frozenset[int]:
        """Where a character in the midst of a text leads; remembered."""
        # Nothing leads back to the first states, so only a text's first character meets them.
        following = self._cross(now, character, ("start",) if now == self._start else ())
        if self._known_steps >= _MAX_KNOWN_STEPS:
            self._steps.clear()
            self._accepts.clear()
            self._known_steps = 0
        self._steps.setdefault(now, {})[character] = following
        self._known_steps += 1
        return following

    def _ends_well(self, now: frozenset[int]) -> bool:
        """Whether a text may end here; remembered."""
        found = self._accepts[now] = _ACCEPT in self._reachable(now, ("end", "last"))
        return found

    def _cross(
        self, now: frozenset[int], character: str, open_anchors: Sequence[str]
    ) -> frozenset[int]:
        """The states behind a character."""
        states = map(self._states.__getitem__, self._reachable(now, open_anchors))
        return frozenset(s.target for s in states if s.test is not None and s.test(character))

    def _reachable(self, now: frozenset[int], open_anchors: Sequence[str]) -> set[int]:
        """All states that are reached without reading a character."""
        reached: set[int] = set()
        waiting = list(now)
        while waiting:
            number = waiting.pop()
            if number in reached:
                continue
            reached.add(number)
            _, _, free, anchor = self._states[number]
            if not anchor or anchor in open_anchors:
                waiting.extend(free)
        return reached

    # --- compiling: each part is built backwards, knowing the state that comes after it

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise UnsupportedError("its repetitions are too many")
        self._states.append(state)
        return len(self._states) - 1

    def _anything(self, after: int) -> int:
        """Any number of any characters."""
        loop = self._add(_State())
        again = self._add(_State(lambda _: True, loop))
        self._states[loop] = _State(free=(again, after))
        return loop

    def _sequence(self, parts: Any, flags: int, after: int) -> int:
        if flags & ~_FLAGS:
            raise UnsupportedError("of flags it may have i, s, x and u only")
        for op, argument in reversed(list(parts)):
            after = self._part(str(op), argument, flags, after)
        return after

    def _part(self, op: str, argument: Any, flags: int, after: int) -> int:
        match op:
            case "BRANCH":
                ways = [self._sequence(each, flags, after) for each in argument[1]]
                return self._add(_State(free=tuple(ways)))
            case "SUBPATTERN":
                _, added, removed, parts = argument
                return self._sequence(parts, (flags | added) & ~removed, after)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat(argument, flags, after)
            case "AT":
                return self._anchor(str(argument), after)
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._add(_State(_character_test(op, argument, flags), after))
        raise UnsupportedError(f"{op.lower().replace('_', ' ')} is not supported")

    def _repeat(self, argument: Any, flags: int, after: int) -> int:
        least, most, parts = argument
        if str(most) == "MAXREPEAT":
            loop = self._add(_State())
            again = self._sequence(parts, flags, loop)
            self._states[loop] = _State(free=(again, after))
            after = loop
        else:
            done = after
            for _ in range(most - least):
                after = self._add(_State(free=(self._sequence(parts, flags, after), done)))
        for _ in range(least):
            after = self._sequence(parts, flags, after)
        return after

    def _anchor(self, where: str, after: int) -> int:
        match where:
            case "AT_BEGINNING" | "AT_BEGINNING_STRING":
                return self._add(_State(free=(after,), anchor="start"))
            case "AT_END":
                return self._add(_State(free=(after,), anchor="end"))
            case "AT_END_STRING":
                return self._add(_State(free=(after,), anchor="last"))
        raise UnsupportedError(f"{where.lower().replace('_', ' ')} is not supported")


def _character_test(op: str, argument: Any, flags: int) -> CharacterTest:
    match op:
        case "ANY":
            if flags & re.DOTALL:
                return lambda _: True
            return lambda character: character != "\n"
        case "IN":
            test, negated = _set_test(argument)
        case _:
            test, negated = chr(argument).__eq__, op == "NOT_LITERAL"
    if flags & re.IGNORECASE:
        plain = test

        def test(character: str) -> bool:
            return any(map(plain, {character, character.lower(), character.upper()}))

    return (lambda character: not test(character)) if negated else test


def _set_test(items: Any) -> tuple[CharacterTest, bool]:
    """A test for the characters of a set, and whether the others are meant."""
    tests: list[CharacterTest] = []
    negated = False
    for op, argument in items:
        match str(op):
            case "NEGATE":
                negated = True
            case "LITERAL":
                tests.append(chr(argument).__eq__)
            case "RANGE":
                tests.append(_between(*map(chr, argument)))
            case "CATEGORY":
                tests.append(_category(str(argument)))
            case other:
                raise UnsupportedError(f"{other.lower()} in a set is not supported")
    return (lambda character: any(test(character) for test in tests)), negated


def _between(first: str, last: str) -> CharacterTest:
    return lambda character: first <= character <= last


def _category(name: str) -> CharacterTest:
    plain = _CATEGORIES[name.replace("_NOT_", "_")]
    return (lambda character: not plain(character)) if "_NOT_" in name else plain
