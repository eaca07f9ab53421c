"""Named jobs are done once: whatever expires, is reset, rebased, merged or migrated."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import FormatError, RebaseFailedError
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport
from icefloe.spark.engine.transactions import FOLDER, Transaction, find_transaction
from icefloe.testing.clock import ClockedStorage

FORMATS: list[dict[str, Any]] = [
    {"generation": "repository", "spec_version": 1},
    {"generation": "repository", "spec_version": 2},
    {"generation": "store"},
    {"generation": "dataset"},
]
PLAN = JobPlan("write", (), 0, 0, 0, 0)
DAY = timedelta(days=1)


@pytest.fixture(params=FORMATS, ids=lambda each: "-".join(map(str, each.values())))
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    return made(**request.param)


@pytest.fixture
def plain() -> icefloe.Repository:
    return made()


def made(**settings: Any) -> icefloe.Repository:
    repo = icefloe.Repository.create(ClockedStorage(icefloe.in_memory_storage()), **settings)
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        for name in "abcd":
            root.create_array(name, shape=(4,), chunks=(1,), dtype="u1")
    return repo


def begin(
    repo: icefloe.Repository, app: str | None, version: int | None, array: str, branch: str = "main"
) -> Job:
    """A job whose tasks have written, and that is about to commit."""
    options = JobOptions(branch=branch, txn_app_id=app, txn_version=version)
    job = Job(None, repo, "write", options)
    stored = zarr.open_array(job.session.store, path=array)
    stored[:] = stored[:] + 1
    return job


def run(
    repo: icefloe.Repository, app: str | None, version: int | None, array: str, branch: str = "main"
) -> JobReport:
    """A whole job, which adds one to an array."""
    job = begin(repo, app, version, array, branch)
    return job.is_settled(PLAN) or job.commit(PLAN)


def values(repo: icefloe.Repository, branch: str = "main") -> list[int]:
    root = zarr.open_group(repo.readonly_session(branch).store, mode="r")
    return [int(np.asarray(root[name])[0]) for name in "abcd"]


def forget_history(repo: icefloe.Repository) -> set[str]:
    assert isinstance(repo.storage, ClockedStorage)
    repo.storage.wait(10 * DAY)
    gone = repo.expire_snapshots(keep_last=1)
    repo.garbage_collect(DAY)
    return gone


def test_expiry_and_collection_do_not_forget(repo: icefloe.Repository) -> None:
    first = run(repo, "nightly", 7, "a")
    run(repo, "other", 1, "b")
    for _ in range(3):
        run(repo, None, None, "c")
    assert first.snapshot_id in forget_history(repo)
    repo = icefloe.Repository.open(repo.storage)
    assert len(list(repo.ancestry(branch="main"))) == 2
    tip = repo.lookup_branch("main")
    again = run(repo, "nightly", 7, "a")
    assert again.repeated
    assert again.snapshot_id == tip
    assert run(repo, "nightly", 6, "a").repeated
    assert run(repo, "other", 1, "b").repeated
    assert values(repo) == [1, 1, 3, 0]
    assert not run(repo, "nightly", 8, "a").repeated
    assert not run(repo, "third", 1, "d").repeated
    forget_history(repo)
    assert run(repo, "nightly", 8, "a").repeated
    assert values(repo) == [2, 1, 3, 1]
    assert repo.verify().is_clean


def test_a_reset_takes_transactions_back_with_their_changes(repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")
    run(repo, "nightly", 1, "a")
    repo.create_branch("kept", repo.lookup_branch("main"))
    repo.reset_branch("main", before)
    assert not run(repo, "nightly", 1, "a").repeated
    assert values(repo) == [1, 0, 0, 0]
    # The other branch has it, and so has a branch that is reset to what has it.
    assert run(repo, "nightly", 1, "a", "kept").repeated
    run(repo, "nightly", 2, "a")
    repo.reset_branch("kept", repo.lookup_branch("main"))
    forget_history(repo)
    assert run(repo, "nightly", 2, "a", "kept").repeated


def test_jobs_of_other_applications_are_rebased(repo: icefloe.Repository) -> None:
    jobs = [begin(repo, f"app {name}", 1, name) for name in "abcd"]
    done = [job.commit(PLAN) for job in jobs]
    assert not any(report.repeated for report in done)
    assert values(repo) == [1, 1, 1, 1]
    forget_history(repo)
    assert all(run(repo, f"app {name}", 1, name).repeated for name in "abcd")
    # All have a group by now.
    for job in [begin(repo, f"app {name}", 2, name) for name in "abcd"]:
        job.commit(PLAN)
    assert values(repo) == [2, 2, 2, 2]


def test_a_job_that_runs_twice_at_a_time(repo: icefloe.Repository) -> None:
    one, two = begin(repo, "nightly", 1, "a"), begin(repo, "nightly", 1, "a")
    first = one.commit(PLAN)
    second = two.commit(PLAN)
    assert (second.repeated, second.snapshot_id) == (True, first.snapshot_id)
    assert values(repo) == [1, 0, 0, 0]


def test_versions_of_one_application_at_a_time(plain: icefloe.Repository) -> None:
    for start in (1, 3):  # when its group is new, and when it is there
        older = begin(plain, "nightly", start, "a")
        newer = begin(plain, "nightly", start + 1, "b")
        older.commit(PLAN)
        newer.commit(PLAN)
    assert values(plain) == [2, 2, 0, 0]
    assert run(plain, "nightly", 4, "b").repeated
    # The other way round, the older one is late, and counts as done.
    older, newer = begin(plain, "nightly", 5, "a"), begin(plain, "nightly", 6, "b")
    newer.commit(PLAN)
    assert older.commit(PLAN).repeated
    assert values(plain) == [2, 3, 0, 0]


def test_a_real_conflict_is_still_one(plain: icefloe.Repository) -> None:
    one, two = begin(plain, "one", 1, "a"), begin(plain, "two", 1, "a")
    one.commit(PLAN)
    with pytest.raises(RebaseFailedError):
        two.commit(PLAN)
    assert not find_transaction(plain, "main", Transaction("two", 1))


def test_merge_squash_and_migration_take_transactions_along(plain: icefloe.Repository) -> None:
    plain.create_branch("dev", plain.lookup_branch("main"))
    run(plain, "nightly", 1, "a", "dev")
    run(plain, None, None, "b")
    plain.merge("dev", "main")
    assert run(plain, "nightly", 1, "a").repeated
    start = plain.lookup_branch("main")
    run(plain, "nightly", 2, "a")
    run(plain, None, None, "c")
    plain.squash("main", start, message="one")
    assert run(plain, "nightly", 2, "a").repeated
    forget_history(plain)
    place = icefloe.in_memory_storage()
    plain.migrate(place, generation="store")
    other = icefloe.Repository.open(place)
    assert run(other, "nightly", 2, "a").repeated
    assert values(other) == values(plain) == [2, 1, 1, 0]


def test_commits_of_writers_that_only_say_it(plain: icefloe.Repository) -> None:
    session = plain.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 5
    told = session.commit("by hand", {"txnAppId": "nightly", "txnVersion": 3})
    assert run(plain, "nightly", 3, "a").snapshot_id == told
    assert not run(plain, "nightly", 4, "a").repeated


def test_an_array_at_the_root_has_no_room_for_groups() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, shape=(4,), chunks=(1,), dtype="u1")
    done = run(repo, "nightly", 1, "")
    again = run(repo, "nightly", 1, "")
    assert (again.repeated, again.snapshot_id) == (True, done.snapshot_id)


def test_a_damaged_group_is_no_answer(plain: icefloe.Repository) -> None:
    run(plain, "nightly", 1, "a")
    session = plain.writable_session("main")
    path = Transaction("nightly", 1).path
    session.tree.set_document(path, b'{"zarr_format": 3, "node_type": "group"}')
    session.commit("damage")
    with pytest.raises(FormatError, match="delete that group"):
        run(plain, "nightly", 1, "a")
    assert path.startswith(f"{FOLDER}/")
