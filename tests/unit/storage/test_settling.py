from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    ConflictError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    StorageUnreachableError,
)
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.settling import attempts, settle_create, settle_replace


class BadNetwork:
    """One writer's way to a store that others write to as well: loses, doubles and delays."""

    def __init__(self, store: MemoryStorage, chance: random.Random, reliability: float) -> None:
        self.store = store
        self.chance = chance
        self.reliability = reliability
        self.in_flight: list[Any] = []

    def send(self, request: Any) -> Any:
        """Deliver a request, or not, or later, or twice; answer, or not."""
        self.deliver_late()
        if self.chance.random() < self.reliability:
            return request()
        match self.chance.randrange(5):
            case 0:
                raise StorageUnreachableError("connection refused")
            case 1:
                self.in_flight.append(request)
                raise StorageError("timeout")
            case 2:
                with contextlib.suppress(AlreadyExistsError, ConflictError):
                    request()
                raise StorageError("connection reset")
            case 3:
                with contextlib.suppress(AlreadyExistsError, ConflictError):
                    request()
                return request()
            case _:
                raise StoragePermissionError("clock skew")

    def deliver_late(self, *, all_of_them: bool = False) -> None:
        for request in [*self.in_flight]:
            if all_of_them or self.chance.random() < 0.5:
                self.in_flight.remove(request)
                with contextlib.suppress(AlreadyExistsError, ConflictError, ObjectNotFoundError):
                    request()


def strictly_create(store: MemoryStorage, key: str, data: bytes) -> None:
    """Create as a server does, to which equal bytes are no excuse."""
    try:
        store.replace(key, data, None)
    except ConflictError:
        raise AlreadyExistsError(key) from None


@given(seed=st.integers(0, 2**32), reliability=st.sampled_from([0.1, 0.5, 0.9]))
def test_create_tells_the_truth_on_a_bad_network(seed: int, reliability: Any) -> None:
    chance = random.Random(seed)
    store = MemoryStorage()
    networks = [BadNetwork(store, chance, reliability) for _ in range(3)]
    outcomes = {}
    for name, network in enumerate(networks):
        data = b"writer %d" % name
        try:
            settle_create(
                "key",
                data,
                put=lambda network=network, data=data: network.send(  # type: ignore[misc]
                    lambda: strictly_create(store, "key", data)
                ),
                read=lambda network=network: network.send(lambda: store.get("key")),  # type: ignore[misc]
                tries=range(8),
            )
            outcomes[data] = "created"
        except (
            AlreadyExistsError,
            CommitStateUnknownError,
            StoragePermissionError,
            StorageUnreachableError,
        ) as error:
            outcomes[data] = type(error).__name__
    for network in networks:
        network.deliver_late(all_of_them=True)
    final = None
    try:
        final = store.get("key")
    except ObjectNotFoundError:
        assert "created" not in outcomes.values()
        assert "AlreadyExistsError" not in outcomes.values()
    for data, outcome in outcomes.items():
        if outcome == "created":
            assert final == data
        elif outcome != "CommitStateUnknownError":
            assert final != data


@given(seed=st.integers(0, 2**32), reliability=st.sampled_from([0.1, 0.5, 0.9]))
def test_replace_tells_the_truth_on_a_bad_network(seed: int, reliability: Any) -> None:
    chance = random.Random(seed)
    store = MemoryStorage()
    first = store.replace("key", b"start", None)
    applied = {b"start"}
    networks = [BadNetwork(store, chance, reliability) for _ in range(3)]

    def apply(data: Any, expected: Any) -> Any:
        version = store.replace("key", data, expected)
        applied.add(data)
        return version

    outcomes = {}
    for name, network in enumerate(networks):
        data = b"writer %d" % name
        expected = chance.choice([first, store.get_with_version("key")[1]])
        try:
            settle_replace(
                "key",
                data,
                expected,
                put=lambda network=network, data=data, expected=expected: network.send(  # type: ignore[misc]
                    lambda: apply(data, expected)
                ),
                read=lambda network=network: network.send(lambda: store.get_with_version("key")),  # type: ignore[misc]
                tries=range(8),
            )
            outcomes[data] = "replaced"
        except (
            ConflictError,
            CommitStateUnknownError,
            StoragePermissionError,
            StorageUnreachableError,
        ) as error:
            outcomes[data] = type(error).__name__
    for network in networks:
        network.deliver_late(all_of_them=True)
    for data, outcome in outcomes.items():
        if outcome == "replaced":
            assert data in applied
        elif outcome != "CommitStateUnknownError":
            assert data not in applied


def never() -> None:
    raise StorageError("no route")


def test_without_any_answer_the_state_is_unknown() -> None:
    for tries in (0, 1, 3):
        with pytest.raises(CommitStateUnknownError) as caught:
            settle_create("key", b"1", put=never, read=never, tries=range(tries))
        assert caught.value.key == "key"


def test_a_409_while_nothing_is_there_is_tried_again() -> None:
    answers = [AlreadyExistsError("409"), AlreadyExistsError("409"), None]

    def put() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    def read() -> None:
        raise ObjectNotFoundError("key", "key")

    settle_create("key", b"1", put=put, read=read, tries=range(5))
    assert answers == []


def test_attempts_are_counted_and_end_in_time() -> None:
    assert [*attempts(3, 0.0, 0.0, 60.0)] == [0, 1, 2]
    assert [*attempts(1, 10.0, 10.0, 0.0)] == [0]
    assert len([*attempts(1000, 10.0, 10.0, 0.0)]) < 1000


def test_a_change_that_another_writer_replaced_since_is_unknown_and_no_conflict() -> None:
    store = MemoryStorage()
    first = store.replace("key", b"start", None)

    def put() -> None:
        ours = store.replace("key", b"ours", first)
        store.replace("key", b"theirs", ours)
        raise StorageError("connection reset")

    with pytest.raises(CommitStateUnknownError):
        settle_replace(
            "key",
            b"ours",
            first,
            put=put,
            read=lambda: store.get_with_version("key"),
            tries=range(3),
        )
