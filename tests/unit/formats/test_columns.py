"""Packed columns: what each form looks like, and which forms are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.formats.columns import (
    MAX_FREE_VALUES,
    pack_integers,
    pack_list,
    pack_strings,
    unpack_boxes,
    unpack_column,
    unpack_integers,
    unpack_strings,
)
from icefloe.model.chunk_refs import StringColumn


def packed(values: Any) -> Any:
    return pack_integers(np.asarray(values, dtype=np.int64))


def test_equal_values_are_stored_once() -> None:
    assert packed([7] * 1000) == 7
    assert packed([]) == 0
    assert packed([3]) == 3
    assert pack_list([5, 5, 5]) == 5


def test_few_values_are_stored_as_they_are() -> None:
    assert packed([5, 1, 9]) == [5, 1, 9]
    assert pack_list([5, 1, 9]) == [5, 1, 9]


def test_a_straight_line_takes_no_bytes_per_value() -> None:
    assert packed(range(100, 10_100, 10)) == [100, 10, b""]


def test_residuals_are_as_narrow_as_can_be() -> None:
    values = [1000 + number * 7 % 200 for number in range(100)]
    base, planes = packed(values)
    assert (base, len(planes)) == (1000, 100)


def test_ascending_values_are_stored_as_steps() -> None:
    values = np.cumsum(np.arange(1000) % 7 + 2**33)
    first, step, planes = packed(values)
    assert (first, step, len(planes)) == (2**33, 2**33, 999)


def test_planes_hold_the_lowest_bytes_first() -> None:
    values = [0x010203, *range(20), 0x040506] * 2
    base, planes = packed(values)
    count = len(values)
    assert base == 0
    assert (planes[0], planes[count], planes[2 * count]) == (3, 2, 1)


def test_long_columns_always_have_a_plane() -> None:
    count = MAX_FREE_VALUES + 1
    assert packed([4] * count) == [4, bytes(count)]
    assert unpack_integers([4, bytes(count)], count, "key").tolist() == [4] * count


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "text",
        1.5,
        True,
        [],
        [1, 2],
        [1, 2, 3, 4],
        [b""],
        [1, b"12"],
        [1, 2, b"1"],
        [1, 2, 3, b""],
        ["1", b"123"],
        [1, None, b"12"],
        [1, b"x" * 27],
        -1,
        2**63,
        [-5, b"\0\0\0"],
        [0, b"\xff" * 24],
        [1, "2", 3],
        {},
    ],
)
def test_what_is_no_column_is_refused(bad: Any) -> None:
    with pytest.raises(FormatError):
        unpack_integers(bad, 3, "key")
    with pytest.raises(FormatError):
        unpack_column(bad, 3, "key")


@pytest.mark.parametrize("bad", [7, [0, 1, b""], [0, b""]])
def test_a_small_file_cannot_ask_for_much_memory(bad: Any) -> None:
    for count in (MAX_FREE_VALUES + 1, 2**40, 2**62):
        with pytest.raises(FormatError):
            unpack_integers(bad, count, "key")
        with pytest.raises(FormatError):
            unpack_column(bad, count, "key")


def test_limits_are_inclusive() -> None:
    assert unpack_integers([1, 2, 3], 3, "key", limit=3).tolist() == [1, 2, 3]
    with pytest.raises(FormatError, match="0 to 2, found 3"):
        unpack_integers([1, 2, 3], 3, "key", limit=2)
    with pytest.raises(FormatError, match="0 to 2, found 3"):
        unpack_integers(3, 3, "key", limit=2)


def test_strings_that_share_most_bytes_share_them() -> None:
    urls = [f"s3://some-bucket/data/file_{number:06d}.nc" for number in range(1000)]
    lengths, first, places, count, planes = pack_strings(StringColumn.of(urls))
    assert lengths == len(urls[0])
    assert first == urls[0].encode()
    assert (places, count) == ([30, 31, 32], 3)
    assert planes[-10:] == b"0123456789"
    assert len(planes) == 3 * 1000


def test_a_few_strings_stand_as_they_are() -> None:
    assert pack_strings(StringColumn.of(["ab", "c"])) == [[2, 1], b"abc"]


def test_one_long_string_does_not_pad_all_others() -> None:
    strings = ["a" * 5000, *"bcdefghijk"]
    form = pack_strings(StringColumn.of(strings))
    assert len(form) == 2
    assert unpack_strings(form, len(strings), "key").tolist() == strings


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        [1, "abc"],
        [1, b"ab"],
        [[1, 1, 2], b"abc"],
        [2**40, b"abc"],
        [1, b"a", 0, 1, b"ab"],
        [1, b"a", 0, 2, b"abcdef"],
        [1, b"a", 5, 1, b"abc"],
        [1, b"abcd", 0, 1, b"abc"],
        [2, b"a", 0, 1, b"abc"],
        [1, None, 0, 1, b"abc"],
        [1, b"a", 0, None, b"abc"],
        [1, b"\xff\xfe\xfd"],
        [[1, 1, 2], "ä€".encode()[:4]],
        [[1, 2, 1], "aäb".encode()[:4][::-1]],
    ],
)
def test_what_is_no_column_of_strings_is_refused(bad: Any) -> None:
    with pytest.raises(FormatError):
        unpack_strings(bad, 3, "key")


def test_strings_may_not_share_a_character() -> None:
    with pytest.raises(FormatError, match="middle of a character"):
        unpack_strings([[1, 1], "ä".encode()], 2, "key")


def test_many_equal_strings_do_not_come_from_nothing() -> None:
    with pytest.raises(FormatError, match="too large"):
        unpack_strings([1000, b"x" * 1000, 0, 0, b""], 65_536, "key")
    equal = StringColumn.of(["x" * 1000] * 20_000)
    assert len(unpack_strings(pack_strings(equal), 20_000, "key")) == 20_000


@pytest.mark.parametrize(
    ("lower", "shapes", "ranks"),
    [
        (0, 0, [1]),
        (0, [1, 0], [2]),
        (2**63 - 1, 1, [1]),
        (0, 2**32, [2]),
        (0, [2**31, 2**31, 2**31], [3]),
        (0, 2, [64]),
    ],
)
def test_boxes_that_cannot_be_are_refused(lower: Any, shapes: Any, ranks: list[int]) -> None:
    with pytest.raises(FormatError):
        unpack_boxes(lower, shapes, ranks, "key")


def test_large_boxes_that_can_be_are_taken() -> None:
    assert unpack_boxes(0, [2**31, 2**31, 2**20], [2, 1], "key")[1] == [2**31, 2**31, 2**20]
    assert unpack_boxes(0, 0, [0, 0], "key") == ([], [])
