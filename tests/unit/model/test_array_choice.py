"""Names of arrays, groups and patterns choose arrays; what fits none is an error."""

from __future__ import annotations

import pytest

from icefloe.errors import NodeNotFoundError
from icefloe.model.array_choice import chosen_arrays

PATHS = ["/a", "/g/t2m", "/g/tp", "/g/x[1]", "/gust"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, PATHS),
        ("*", PATHS),
        ("/", PATHS),
        ([], []),
        ("a", ["/a"]),
        (["/a/", "g/tp"], ["/a", "/g/tp"]),
        ("g", ["/g/t2m", "/g/tp", "/g/x[1]"]),
        ("/g*", ["/g/t2m", "/g/tp", "/g/x[1]", "/gust"]),
        ("g/t?m", ["/g/t2m"]),
        ("g/x[1]", ["/g/x[1]"]),
        (["g", "g/tp"], ["/g/t2m", "/g/tp", "/g/x[1]"]),
    ],
)
def test_arrays_are_chosen_in_the_order_that_they_have(
    choice: str | list[str] | None, expected: list[str]
) -> None:
    assert chosen_arrays(choice, PATHS) == expected


@pytest.mark.parametrize("name", ["b", "gus", "/g/t2m/x", "h*", "A"])
def test_a_name_that_fits_nothing_is_an_error(name: str) -> None:
    with pytest.raises(NodeNotFoundError, match="there are /a, /g/t2m") as raised:
        chosen_arrays(["a", name], PATHS)
    assert raised.value.path == name


def test_where_there_are_no_arrays_all_of_them_are_none() -> None:
    assert chosen_arrays("*", []) == []
    with pytest.raises(NodeNotFoundError, match="no arrays"):
        chosen_arrays("a", [])
