"""Expiry: what leaves the history, what stays, and what can still be read (api-facts 41, H-12)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import zarr

import icefloe
from icefloe import ExpirationPolicy, Repository
from icefloe.errors import InvalidInputError, RefNotFoundError
from icefloe.formats.registry import GENERATIONS
from icefloe.model.ids import FIRST_SNAPSHOT_ID
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.clock import ClockedStorage
from tests.integration.maintained import DAY, NATIVE, fill, make, messages, values, wait

FIRST = str(FIRST_SNAPSHOT_ID)

pytestmark = pytest.mark.usefixtures("each_generation")


def written_at(repo: Repository, snapshot_id: str) -> datetime:
    """The time of a commit, as a cutoff.

    Also sets a clock that does not move to now: no cutoff is later than the storage's time, and
    commits on a busy machine take seconds.
    """
    if isinstance(repo.storage, ClockedStorage):
        repo.storage.now = max(repo.storage.now, datetime.now(UTC))
    return repo.lookup_snapshot(snapshot_id).written_at


def history(repo: Repository, **version: str) -> list[str]:
    return [info.id for info in repo.ancestry(**version)]


@pytest.fixture
def repo() -> Repository:
    return make()


def test_old_snapshots_leave_the_history_and_stay_readable(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 7)]
    expired = repo.expire_snapshots(written_at(repo, ids[3]))
    # The cutoff is exclusive; the commit that made the array is as old as any.
    assert expired == {*ids[:3], *history(repo, snapshot_id=ids[0])[1:-1]}
    assert history(repo, branch="main") == [ids[5], ids[4], ids[3], FIRST]
    assert [info.parent_id for info in repo.ancestry(branch="main")] == [
        ids[4],
        ids[3],
        FIRST,
        None,
    ]
    assert repo.lookup_snapshot(ids[3]).parent_id == FIRST
    assert values(repo, snapshot_id=ids[1]) == [2] * 4
    assert repo.expire_snapshots(written_at(repo, ids[3])) == set()
    assert Repository.open(repo.storage).lookup_branch("main~3") == FIRST


def test_later_commits_go_on_from_a_cut_history(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 4)]
    repo.expire_snapshots(written_at(repo, ids[2]))
    last = fill(repo, 4)
    assert history(repo, branch="main") == [last, ids[2], FIRST]
    assert str(repo.ancestry_graph()).count("\n") == 2
    after_first = datetime.now(UTC) - timedelta(days=365)
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repo.readonly_session("main", as_of=after_first)


def test_a_difference_across_a_cut_has_all_that_changed(repo: Repository) -> None:
    fill(repo, 1, chunks=slice(0, 1))
    middle = fill(repo, 2, chunks=slice(1, 2))
    tip = fill(repo, 3, chunks=slice(2, 3))
    before = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    assert repo.expire_snapshots(written_at(repo, tip)) >= {middle}
    wait(repo, DAY)
    repo.garbage_collect(timedelta(0))
    with pytest.raises(icefloe.SnapshotNotFoundError):
        Repository.open(repo.storage).lookup_snapshot(middle)
    after = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    assert repr(after) == repr(before)
    assert after.updated_chunks == {"/a": [[0], [1], [2]]}


def test_an_old_tip_stays_and_is_named(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 4)]
    repo.create_tag("v1", ids[0])
    expired = repo.expire_snapshots(datetime.now(UTC) + DAY)
    assert set(ids) <= expired
    assert history(repo, branch="main") == [ids[2], FIRST]
    assert history(repo, tag="v1") == [ids[0], FIRST]
    assert repo.expire_snapshots(datetime.now(UTC) + DAY) == set()


def test_a_tag_in_the_middle_does_not_lengthen_the_branch(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 6)]
    repo.create_tag("v1", ids[1])
    expired = repo.expire_snapshots(written_at(repo, ids[2]))
    assert {ids[0], ids[1]} <= expired
    assert history(repo, branch="main") == [*reversed(ids[2:]), FIRST]
    assert history(repo, tag="v1") == [ids[1], FIRST]


def test_a_dry_run_changes_nothing(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 4)]
    before = history(repo, branch="main")
    expected = repo.expire_snapshots(written_at(repo, ids[2]), dry_run=True)
    assert history(repo, branch="main") == before
    assert {entry.kind for entry in repo.operations()} == {"create", "commit"}
    assert repo.expire_snapshots(written_at(repo, ids[2])) == expected


def test_the_last_snapshots_stay_whatever_their_age(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 7)]
    wait(repo, DAY)
    repo.expire_snapshots(timedelta(hours=1), keep_last=2)
    assert history(repo, branch="main") == [ids[5], ids[4], FIRST]
    repo = make()
    ids = [fill(repo, value) for value in range(1, 7)]
    repo.expire_snapshots(keep_last=3)
    assert history(repo, branch="main") == [*ids[:2:-1], FIRST]
    # What is young stays, even if it is more than the last ones.
    repo.expire_snapshots(timedelta(days=1), keep_last=1)
    assert history(repo, branch="main") == [*ids[:2:-1], FIRST]


def test_branches_and_tags_have_policies_of_their_own(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 5)]
    repo.create_tag("release-1", ids[3])
    repo.create_branch("dev", ids[3])
    on_dev = [fill(repo, value, "dev") for value in range(11, 15)]
    on_main = [fill(repo, value) for value in range(21, 25)]
    expired = repo.expire_snapshots(
        keep_last=1,
        branches={"dev": ExpirationPolicy(keep_last=2)},
        tags={"release-*": None},
    )
    assert history(repo, branch="main") == [on_main[-1], FIRST]
    assert history(repo, branch="dev") == [on_dev[3], on_dev[2], FIRST]
    assert messages(repo, tag="release-1") == ["4", "3", "2", "1"]
    assert expired == {*on_main[:3], *on_dev[:2]}


def test_a_branch_that_keeps_more_keeps_it_for_all_that_share_it(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 7)]
    repo.create_branch("long", ids[5])
    policies = {"long": ExpirationPolicy(keep_last=4), "main": ExpirationPolicy(keep_last=2)}
    expired = repo.expire_snapshots(branches=policies)
    assert history(repo, branch="long") == [*ids[:1:-1], FIRST]
    assert history(repo, branch="main") == [*ids[:1:-1], FIRST]
    assert expired.isdisjoint(ids[2:])
    assert repo.expire_snapshots(branches=policies) == set()


def test_expired_branches_go_only_if_asked_and_main_never(repo: Repository) -> None:
    tip = fill(repo, 1)
    repo.create_branch("old", tip)
    on_old = fill(repo, 2, "old")
    moment = datetime.now(UTC)
    repo.create_branch("new", tip)
    fill(repo, 3, "new")
    assert repo.expire_snapshots(moment) >= {tip, on_old}
    assert repo.list_branches() == {"main", "old", "new"}
    fill(repo, 4, "old")
    assert repo.expire_snapshots(moment, delete_expired_branches=True) == {on_old}
    assert repo.list_branches() == {"main", "old", "new"}
    wait(repo, DAY)
    expired = repo.expire_snapshots(timedelta(hours=1), delete_expired_branches=True)
    assert repo.list_branches() == {"main"}
    assert len(expired) == 2
    assert values(repo, branch="main") == [1] * 4


def test_what_cannot_be_asked_for_is_refused(repo: Repository) -> None:
    if repo.generation != "icechunk":
        with pytest.raises(InvalidInputError, match="tags cannot be deleted"):
            repo.expire_snapshots(timedelta(0), delete_expired_tags=True)
    with pytest.raises(InvalidInputError, match="say what expires"):
        repo.expire_snapshots()
    with pytest.raises(InvalidInputError, match="keep_last"):
        repo.expire_snapshots(keep_last=0)
    with pytest.raises(TypeError, match="timezone"):
        repo.expire_snapshots(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(TypeError, match="timezone"):
        repo.expire_snapshots("yesterday")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"older_than": datetime(2026, 1, 1)}, "timezone"),  # noqa: DTZ001
        ({"older_than": 5}, "timezone"),
        ({"older_than": timedelta(days=-1)}, "a time before now"),
        ({"keep_last": "3"}, "keep_last is an integer"),
        ({"branches": {"main": 3}}, "ExpirationPolicy, or None.*'main': 3"),
        ({"branches": {5: None}}, "ExpirationPolicy, or None.*5: None"),
        ({"tags": {"v*": timedelta(1)}}, "ExpirationPolicy, or None"),
        ({"branches": ["main"]}, "policies by name"),
    ],
)
def test_every_refusal_is_an_error_of_ours(
    repo: Repository, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        repo.expire_snapshots(**arguments)
    if "older_than" in arguments:
        with pytest.raises(InvalidInputError, match=message):
            repo.garbage_collect(arguments["older_than"])


def test_a_misspelt_name_protects_nothing_and_is_refused(repo: Repository) -> None:
    ids = [fill(repo, value) for value in range(1, 4)]
    repo.create_branch("dev", "main")
    repo.create_tag("v1", "main")
    with pytest.raises(RefNotFoundError, match=r"`mian`.*\(dev, main\).*`mian\*`") as error:
        repo.expire_snapshots(timedelta(0), branches={"mian": None})
    assert error.value.name == "mian"
    with pytest.raises(RefNotFoundError, match=r"tags.*\(v1\)"):
        repo.expire_snapshots(timedelta(0), tags={"main": None}, dry_run=True)
    assert history(repo, branch="main")[:3] == ids[::-1]
    branches, tags = {"main": None, "release-*": None, "x?": None}, {"v[2-9]": None}
    assert repo.expire_snapshots(keep_last=1, branches=branches, tags=tags) == set()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wrong_clock_of_this_computer_expires_no_more_than_a_right_one(hours: int) -> None:
    """The storage's clock is `hours` off from ours, or ours from it (T-CLOCK)."""
    storage = ClockedStorage(MemoryStorage(), datetime.now(UTC) + timedelta(hours=hours))
    repo = make(storage=storage)
    ids = [fill(repo, value) for value in range(1, 4)]
    # Written at moments of our clock; an hour ago by either clock is before them all.
    assert repo.expire_snapshots(datetime.now(UTC) - timedelta(hours=1.5)) == set()
    assert repo.expire_snapshots(timedelta(hours=2.5)) == set()
    assert history(repo, branch="main")[:3] == ids[::-1]


def test_histories_without_a_listing_end_where_they_were_cut(repo: Repository) -> None:
    import msgspec

    from icefloe.storage.forwarding import ForwardingStorage

    class Unlisted(ForwardingStorage):
        @property
        def capabilities(self) -> Any:
            return msgspec.structs.replace(
                super().capabilities, can_list=False, lists_in_pages=False
            )

    ids = [fill(repo, value) for value in range(1, 4)]
    repo.expire_snapshots(keep_last=2)
    wait(repo, DAY)
    repo.garbage_collect(timedelta(0))
    unlisted = Repository.open(Unlisted(repo.storage))
    assert history(unlisted, branch="main") == [ids[2], ids[1], FIRST]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_blame_and_diffs_end_where_the_history_does(generation: str) -> None:
    repo = Repository.create(
        ClockedStorage(icefloe.in_memory_storage()), NATIVE, generation=generation
    )
    with repo.transaction("main", message="start") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="u1")
    commits = [fill(repo, place + 1, chunks=slice(place, place + 1)) for place in range(4)]
    repo.expire_snapshots(keep_last=2)
    wait(repo, 10 * DAY)
    assert repo.garbage_collect(DAY).snapshots_deleted == 3
    found = repo.blame("/a", branch="main")
    # Without logs, nobody knows what the oldest commit changed, and it is not blamed for all.
    keeps_logs = GENERATIONS[generation].keeps_logs
    unknown = 2 if keeps_logs else 3
    written = [found.snapshot_id(place) for place in range(4)]
    assert written == [None] * unknown + commits[unknown:]
    assert f"{unknown}  written before the history begins" in repr(found)
    oldest = json.loads(repo.inspect_transaction_log(commits[2]))
    assert oldest["is_known"] == keeps_logs
    assert "new_arrays" not in oldest or oldest["new_arrays"] == []
    assert "reason" in oldest or len(oldest["updated_chunks"]) == 1
    for one, other in (commits[2:], commits[:1:-1]):
        diff = repo.diff(from_snapshot_id=one, to_snapshot_id=other)
        assert diff.updated_chunks == {"/a": [[3]]}
    root = list(repo.ancestry(branch="main"))[-1].id
    assert repo.diff(from_snapshot_id=root, to_branch="main").new_arrays == {"/a"}
    assert repo.diff(from_branch="main", to_snapshot_id=root).deleted_arrays == {"/a"}
