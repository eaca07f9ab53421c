"""Sequence numbers as names, and how the newest file is found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.formats.sequence import (
    MAX_SEQUENCE,
    SequenceFolder,
    parse_sequence_name,
    sequence_name,
)
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.requests import CountingStorage


class PickyStorage(MemoryStorage):
    """A storage that lists in one way only, and counts what it is asked for."""

    def __init__(self, *, can_list: bool, lists_in_pages: bool) -> None:
        super().__init__()
        self.chosen = {"can_list": can_list, "lists_in_pages": lists_in_pages}
        self.reads: list[str] = []
        self.listings: list[int | None] = []

    @property
    def capabilities(self) -> Any:
        return msgspec.structs.replace(super().capabilities, **self.chosen)

    def get(self, key: Any, start: int = 0, length: Any = None) -> Any:
        self.reads.append(key)
        return super().get(key, start, length)

    def list(self, prefix: str = "", *, start_after: str = "", limit: Any = None) -> Any:
        assert self.chosen["can_list"]
        self.listings.append(limit)
        return super().list(prefix, start_after=start_after, limit=limit)


@pytest.mark.parametrize(
    ("sequence", "name"),
    [
        (0, "ZZZZZZZZ"),  # R3-45, R1-21
        (1, "ZZZZZZZY"),
        (5, "ZZZZZZZT"),
        (9, "ZZZZZZZP"),
        (100, "ZZZZZZWV"),
        (1099511627775, "00000000"),
    ],
)
def test_names(sequence: int, name: str) -> None:  # R3-43, R1-20
    assert sequence_name(sequence) == f"{name}.json"
    assert parse_sequence_name(f"{name}.json") == sequence


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE))
def test_newer_sorts_first(one: int, other: int) -> None:
    assert (sequence_name(one) < sequence_name(other)) == (one > other)  # R3-44
    assert parse_sequence_name(sequence_name(one)) == one


@pytest.mark.parametrize("sequence", [-1, MAX_SEQUENCE + 1])
def test_there_is_a_last_number(sequence: int) -> None:
    with pytest.raises(InvalidInputError, match="1099511627775"):  # R3-46, H-19
        sequence_name(sequence)


@pytest.mark.parametrize(
    "name", ["ref.json", "ZZZZZZZZ", "ZZZZZZZ.json", "zzzzzzzz.json", "ZZZZZZZU.json", ".json", ""]
)
def test_other_names_are_no_sequence(name: str) -> None:
    assert parse_sequence_name(name) is None


WAYS = [
    {"can_list": True, "lists_in_pages": True},
    {"can_list": True, "lists_in_pages": False},
    {"can_list": False, "lists_in_pages": False},
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9, 100])
def test_the_newest_is_found(way: dict[str, bool], count: int) -> None:
    storage = PickyStorage(**way)
    folder = SequenceFolder(storage, "refs/branch.x")
    for sequence in range(count):
        folder.create(sequence, b"%d" % sequence)
    expected = (count - 1, b"%d" % (count - 1)) if count else None
    assert folder.newest() == expected
    assert SequenceFolder(storage, "refs/branch.x").newest() == expected


def test_listing_asks_for_one_key() -> None:
    storage = PickyStorage(can_list=True, lists_in_pages=True)
    folder = SequenceFolder(storage, "f")
    for sequence in range(50):
        folder.create(sequence, b"x")
    assert folder.newest() == (49, b"x")
    assert storage.listings == [1]  # R3-94
    assert storage.reads == []  # it is known what was written
    other = SequenceFolder(storage, "f")
    assert other.newest() == other.newest() == (49, b"x")
    assert storage.listings == [1, 1, 1]
    assert len(storage.reads) == 1


def test_a_file_of_another_repository_at_the_same_place_is_read() -> None:
    storage = PickyStorage(can_list=True, lists_in_pages=True)
    folder = SequenceFolder(storage, "f")
    storage.create(folder.key(0), b"one")
    assert folder.newest() == (0, b"one")
    storage.delete_many([folder.key(0)])
    storage.create(folder.key(0), b"two")
    assert folder.newest() == (0, b"two")


def test_a_guess_saves_a_round_and_decides_nothing() -> None:
    storage = CountingStorage(MemoryStorage())
    writer = SequenceFolder(storage, "f")
    for sequence in range(3):
        writer.create(sequence, b"%d" % sequence)
    for guess, rounds in ((2, 1), (1, 2), (3, 2), (None, 2)):
        folder = SequenceFolder(storage, "f")
        with storage.counting() as counts:
            assert folder.newest(guess) == (2, b"2")
        assert counts.rounds == rounds


def test_foreign_files_do_not_hide_the_newest() -> None:
    storage = PickyStorage(can_list=True, lists_in_pages=True)
    folder = SequenceFolder(storage, "f")
    storage.put("f/.DS_Store", b"")
    storage.put("f/ref.json", b"{}")
    assert folder.newest() is None
    folder.create(0, b"x")
    folder.create(1, b"y")
    assert folder.newest() == (1, b"y")


def test_probing_reads_few_files() -> None:
    storage = PickyStorage(can_list=False, lists_in_pages=False)
    for sequence in range(1000):
        storage.create(f"f/{sequence_name(sequence)}", b"x")
    folder = SequenceFolder(storage, "f")
    assert folder.newest() == (999, b"x")
    assert len(storage.reads) <= 22  # H-26: two logarithms
    storage.reads.clear()
    storage.create(f"f/{sequence_name(1000)}", b"y")
    assert folder.newest() == (1000, b"y")
    assert len(storage.reads) <= 4


def test_probing_forgets_what_is_gone() -> None:
    storage = PickyStorage(can_list=False, lists_in_pages=False)
    folder = SequenceFolder(storage, "f")
    for sequence in range(5):
        folder.create(sequence, b"x")
    storage.delete_many([f"f/{sequence_name(sequence)}" for sequence in range(5)])
    assert folder.newest() is None
    folder.create(0, b"again")
    assert folder.newest() == (0, b"again")


def test_a_number_is_taken_once() -> None:
    folder = SequenceFolder(MemoryStorage(), "f")
    folder.create(0, b"ours")
    folder.create(0, b"ours")
    with pytest.raises(AlreadyExistsError):
        folder.create(0, b"theirs")
    assert folder.read(0) == b"ours"
    assert folder.read(1) is None
