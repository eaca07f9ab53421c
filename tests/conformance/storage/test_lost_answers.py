"""Every answer may get lost; a conditional write still ends in the truth (R3-14, H-49)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    ConflictError,
    StoragePermissionError,
)
from tests.endpoints.fault_proxy import CUTS, IMPATIENT, Trouble, troubled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import Storage
    from tests.endpoints.fault_proxy import FaultProxy

pytestmark = pytest.mark.endpoint

LASTING = {Trouble.FORBIDDEN, Trouble.CLOSE_AFTER, Trouble.SLOW_SENDER_400}
HEALING = [trouble for trouble in Trouble if trouble not in {*LASTING, *CUTS}]


@pytest.fixture
def proxy(endpoint: Any) -> Iterator[FaultProxy]:
    with troubled(endpoint.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def storage(endpoint: Any, proxy: FaultProxy) -> Storage:
    return endpoint.storage(endpoint_url=proxy.url).with_settings(IMPATIENT)


@pytest.mark.parametrize("trouble", HEALING, ids=lambda trouble: trouble.name)
def test_create_succeeds_in_spite_of(storage: Storage, proxy: FaultProxy, trouble: Trouble) -> None:
    proxy.plan(trouble, method="PUT", path="refs/next")
    storage.create("refs/next", b"ours")
    assert storage.get("refs/next") == b"ours"


@pytest.mark.parametrize("trouble", HEALING, ids=lambda trouble: trouble.name)
def test_create_sees_that_another_was_first_in_spite_of(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    storage.create("refs/next", b"theirs")
    proxy.plan(trouble, method="PUT", path="refs/next")
    with pytest.raises(AlreadyExistsError):
        storage.create("refs/next", b"ours")
    assert storage.get("refs/next") == b"theirs"


@pytest.mark.parametrize("trouble", HEALING, ids=lambda trouble: trouble.name)
def test_replace_succeeds_in_spite_of(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    version = storage.replace("state", b"old", None)
    proxy.plan(trouble, method="PUT", path="state")
    version = storage.replace("state", b"new", version)
    assert storage.get_with_version("state") == (b"new", version)
    storage.replace("state", b"newer", version)


@pytest.mark.parametrize("trouble", HEALING, ids=lambda trouble: trouble.name)
def test_replace_never_claims_a_change_that_was_refused(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    stale = storage.replace("state", b"old", None)
    storage.replace("state", b"theirs", stale)
    proxy.plan(trouble, method="PUT", path="state")
    # After a lost answer it cannot be known whether ours came between the two.
    with pytest.raises((ConflictError, CommitStateUnknownError)):
        storage.replace("state", b"ours", stale)
    assert storage.get("state") == b"theirs"


def test_read_back_is_tried_again(storage: Storage, proxy: FaultProxy) -> None:
    proxy.plan(Trouble.DROP_AFTER, method="PUT", path="refs/next")
    proxy.plan(Trouble.ERROR_503_BEFORE, method="GET", path="refs/next", times=2)
    storage.create("refs/next", b"ours")
    assert storage.get("refs/next") == b"ours"


def test_a_store_that_never_answers_leaves_it_unknown(storage: Storage, proxy: FaultProxy) -> None:
    proxy.plan(Trouble.DROP_AFTER, method="PUT", path="refs/next", times=100)
    proxy.plan(Trouble.DROP_BEFORE, method="GET", path="refs/next", times=1000)
    with pytest.raises(CommitStateUnknownError) as caught:
        storage.create("refs/next", b"ours")
    assert caught.value.key == "refs/next"


def test_a_refusal_is_reported_at_once(storage: Storage, proxy: FaultProxy) -> None:
    proxy.plan(Trouble.FORBIDDEN, method="PUT", path="refs/next", times=100)
    with pytest.raises(StoragePermissionError):
        storage.create("refs/next", b"ours")
    assert [method for method, _ in proxy.requests].count("PUT") == 1


def test_a_refusal_after_a_lost_answer_is_no_answer(storage: Storage, proxy: FaultProxy) -> None:
    proxy.plan(Trouble.DROP_AFTER, method="PUT", path="refs/next")
    proxy.plan(Trouble.DROP_BEFORE, method="GET", path="refs/next", times=6)
    proxy.plan(Trouble.FORBIDDEN, method="PUT", path="refs/next", times=100)
    storage.create("refs/next", b"ours")
    assert storage.get("refs/next") == b"ours"
