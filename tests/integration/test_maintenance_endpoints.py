"""Expiry, collection, compaction and verification on object stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from icefloe import Repository
from tests.integration.maintained import NATIVE, fill, make, names, values

if TYPE_CHECKING:
    from icefloe.storage.port import Storage


@pytest.fixture(params=["s3_endpoint", "gcs_endpoint", "azure_endpoint"])
def storage(request: pytest.FixtureRequest) -> Storage:
    found: Storage = request.getfixturevalue(request.param).storage()
    return found


@pytest.mark.endpoint
def test_a_repository_on_an_object_store_is_kept_in_order(storage: Storage) -> None:
    repo = make(NATIVE, storage)
    for value in range(1, 4):
        fill(repo, value)
    repo.create_tag("v1", "main~1")
    assert repo.compact(branch="main").old_files == 4
    assert len(repo.expire_snapshots(keep_last=1)) == 3
    # The clocks of these stores count whole seconds: an hour from now means all that is there.
    planned = repo.garbage_collect(datetime.now(UTC) + timedelta(hours=1), dry_run=True)
    summary = repo.garbage_collect(datetime.now(UTC) + timedelta(hours=1))
    assert summary.chunks_deleted == planned.chunks_deleted == 8
    assert len(names(repo, "chunks")) == 5
    assert names(repo, "maintenance/leases") == names(repo, "maintenance/clock") == set()
    again = Repository.open(repo.storage)
    assert again.verify(deep=True).is_clean
    assert values(again, branch="main") == [3] * 4
    assert values(again, tag="v1") == [2] * 4
