"""Expressions of a configuration mean what they mean in Python, and cannot keep a reader busy."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icefloe.config.patterns import matches_whole, occurs_in, pattern_error
from icefloe.config.preloading import COORDINATE_NAMES
from icefloe.errors import InvalidInputError

atoms = st.sampled_from(
    ["a", "b", "/", ".", r"\d", r"\w", r"\S", "[ab]", "[^a]", "[a-c1]", r"[^\W_]", "^", "$", "é"]
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{2,}"])).map(
            "({0[0]}){0[1]}".format
        ),
    ),
    max_leaves=6,
)
texts = st.text("abc1/_\n é", max_size=8)


@given(expressions, texts, st.sampled_from(["", "(?i)", "(?s)"]))
@example("(a|b)*$", "ab\n", "")
@example("", "", "")
def test_they_mean_what_they_mean_in_python(regex: str, text: str, flags: str) -> None:
    # Two differences: classes such as \w are ASCII, and $ is the end of the text alone.
    theirs = re.compile(flags + regex.replace("$", r"\Z"), re.ASCII if "é" not in regex else 0)
    if "é" in regex and set(regex) & set("\\"):
        return
    assert matches_whole(flags + regex, text) == (theirs.fullmatch(text) is not None)
    assert occurs_in(flags + regex, text) == (theirs.search(text) is not None)


@pytest.mark.parametrize("regex", COORDINATE_NAMES)
@pytest.mark.parametrize("name", ["time", "time_bnds", "lat", "latitude_bounds", "plev", "air", ""])
def test_the_usual_names(regex: str, name: str) -> None:
    assert occurs_in(regex, name) == (re.search(regex, name) is not None)


@pytest.mark.parametrize(
    "regex",
    [
        "(a*)*b",
        "(a|a)*b",
        "(a|aa)+$b",
        "a*a*a*a*a*a*a*a*b",
        "(.*)*x",
        "(?:(?:a?){50}a{50})",
        "(a{1,9}){1,9}c",
    ],
)
def test_hostile_expressions_end(regex: str) -> None:
    # Python's own engine would take longer than anybody lives for most of these.
    assert not matches_whole(regex, "a" * 2000)


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid perl operator"),
        ("(?<!a)b", "invalid"),
        ("(?>a)", "invalid perl operator"),
        ("a{99999}", "invalid repetition size"),
        ("((a{99}){99}){99}", "repetition"),
        ("(", "missing )"),
        ("\ud800", "not valid Unicode"),
        ("a" * 1_001, "more than 1000"),
        ("(" * 400 + ")" * 400, ""),
    ],
)
def test_what_is_refused_says_why(regex: str, reason: str) -> None:
    error = pattern_error(regex)
    assert error is None if not reason else error is not None and reason in error
    assert not (error and matches_whole(regex, "a"))


def test_a_rule_with_a_backreference_is_refused_by_name() -> None:
    from icefloe.config import ManifestConfig, ManifestRule, ManifestSet

    sets = [ManifestSet(name="a", max_manifest_size=9)]
    with pytest.raises(InvalidInputError, match="path"):
        ManifestConfig(sets=sets, rules=[ManifestRule(target="a", path=r"(a)\1")])
