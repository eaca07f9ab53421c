"""Local files beside the official package, which takes no locks there."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from tests.conformance.official.packages import (
    Place,
    agree,
    create_official,
    history,
    icechunk,
    tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.endpoints.fixtures import S3Endpoint

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def put(repo: Any, value: int) -> str:
    """Commit one number."""
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group.require_array("x", shape=(8,), chunks=(1,), dtype="i8")[0] = value
    return str(session.commit(f"{value}"))


def tip(repo: Any) -> str:
    return str(repo.lookup_branch("main"))


def expire(repo: Any) -> None:
    repo.expire_snapshots(datetime.now(UTC) + timedelta(minutes=1))


WRITES: dict[str, Callable[[Any], object]] = {
    "session": lambda repo: repo.writable_session("main"),
    "commit": lambda repo: put(repo, 7),
    "tag": lambda repo: repo.create_tag("t", tip(repo)),
    "deleted tag": lambda repo: repo.delete_tag("old"),
    "branch": lambda repo: repo.create_branch("b", tip(repo)),
    "deleted branch": lambda repo: repo.delete_branch("old"),
    "reset branch": lambda repo: repo.reset_branch("main", "main~1"),
    "expiry": expire,
    "collection": lambda repo: repo.garbage_collect(datetime.now(UTC) + timedelta(minutes=1)),
}
GARBAGE = "chunks/VY76P925PRY57WFEK410"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "takes no locks on local files" in message]


@pytest.mark.parametrize("write", list(WRITES))
def test_the_first_write_after_an_official_commit_warns(
    local_place: Place, spec_version: int, write: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = create_official(local_place, spec_version)
    for value in range(3):
        put(theirs, value)
    theirs.create_tag("old", tip(theirs))
    theirs.create_branch("old", tip(theirs))
    local_place.ours().put(GARBAGE, b"nobody's")
    with caplog.at_level(logging.WARNING):
        ours: Any = icefloe.Repository.open(local_place.ours())
        history(ours, branch="main")
        tree(ours, branch="main")
        ours.verify()
        assert warnings(caplog) == []
        WRITES[write](ours)
        [message] = warnings(caplog)
        assert "was written by ic-" in message
        # Once for a repository, whatever is written next.
        put(icefloe.Repository.open(local_place.ours()), 9)
        ours.create_tag("another", tip(ours))
        assert len(warnings(caplog)) == 1
    agree(local_place)


@pytest.mark.parametrize("write", list(WRITES))
def test_no_write_warns_where_the_newest_commit_is_ours(
    local_place: Place, spec_version: int, write: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours: Any = icefloe.Repository.create(
        local_place.ours(), generation="icechunk", spec_version=spec_version
    )
    for value in range(3):
        put(ours, value)
    theirs = icechunk.Repository.open(local_place.theirs())
    theirs.create_tag("old", tip(theirs))
    theirs.create_branch("old", tip(theirs))
    local_place.ours().put(GARBAGE, b"nobody's")
    with caplog.at_level(logging.WARNING):
        WRITES[write](icefloe.Repository.open(local_place.ours()))
    assert warnings(caplog) == []


@pytest.mark.endpoint
def test_no_write_warns_on_object_stores(
    tmp_path: Path, s3_endpoint: S3Endpoint, spec_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path, s3_endpoint)
    theirs = create_official(place, spec_version)
    put(theirs, 1)
    with caplog.at_level(logging.WARNING):
        ours: Any = icefloe.Repository.open(place.ours())
        put(ours, 2)
        ours.create_tag("t", tip(ours))
    assert warnings(caplog) == []
