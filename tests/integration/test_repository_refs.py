"""Branches and tags: what they may be called, how they move, and what never changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import icefloe
from icefloe import (
    AlreadyExistsError,
    ConflictDetector,
    ConflictError,
    IcefloeError,
    InvalidInputError,
    RefNotFoundError,
    Repository,
    SnapshotNotFoundError,
)
from icefloe.model.ids import SnapshotId
from tests.documents import commit_attribute, group

ABSENT = "ZZZZZZZZZZZZZZZZZZZG"


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(icefloe.in_memory_storage())
    for value in range(4):
        commit_attribute(made, value)
    return made


def branch_files(repository: Repository, branch: str) -> list[bytes]:
    storage = repository.storage
    listed = storage.list(f"refs/branch.{branch}/")
    return [b"".join(storage.get(info.key).split()) for info in listed][::-1]


def test_a_branch_is_created_at_any_version(repository: Repository) -> None:
    tip = repository.lookup_branch("main")
    repository.create_branch("dev", tip)
    repository.create_branch("older", "main~2")
    assert repository.list_branches() == {"main", "dev", "older"}
    assert repository.lookup_branch("dev") == tip
    older = list(repository.ancestry(branch="main"))[2]
    assert repository.lookup_branch("older") == older.id


def test_branches_go_their_own_ways(repository: Repository) -> None:
    repository.create_branch("dev", "main")
    on_main = commit_attribute(repository, "main")
    on_dev = commit_attribute(repository, "dev", "dev")
    assert repository.lookup_branch("main") == on_main
    assert repository.lookup_branch("dev") == on_dev
    parents = {repository.lookup_snapshot(tip).parent_id for tip in (on_main, on_dev)}
    assert len(parents) == 1


def test_a_taken_name_is_refused(repository: Repository) -> None:
    with pytest.raises(AlreadyExistsError, match="'main' exists already"):
        repository.create_branch("main", "main~1")
    assert repository.lookup_branch("main") == next(repository.ancestry(branch="main")).id


def test_references_point_to_snapshots_that_exist(repository: Repository) -> None:
    for change in (repository.create_branch, repository.create_tag):
        with pytest.raises(SnapshotNotFoundError, match="does not exist"):
            change("x", ABSENT)
        with pytest.raises(SnapshotNotFoundError, match="invalid snapshot id: `nonsense`"):
            change("x", "nonsense")
    with pytest.raises(SnapshotNotFoundError):
        repository.reset_branch("main", ABSENT)
    assert repository.list_branches() == {"main"}
    assert repository.list_tags() == set()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0", "a\nb", "x" * 300, "\ud800"])
def test_impossible_names_are_refused(repository: Repository, name: str) -> None:  # R1-19, R1-23
    for create in (repository.create_branch, repository.create_tag):
        with pytest.raises(InvalidInputError):
            create(name, "main")
    for lookup in (repository.lookup_branch, repository.lookup_tag, repository.writable_session):
        with pytest.raises(RefNotFoundError, match="ref not found"):
            lookup(name)


@pytest.mark.parametrize("name", ["ünï¢ødé", "with space", "a.b", "-", "ref.json", "v1~x", "@{x}"])
def test_odd_names_work(repository: Repository, name: str) -> None:  # api-facts 10
    repository.create_branch(name, "main~1")
    repository.create_tag(name, "main~2")
    assert repository.list_branches() == {"main", name}
    assert repository.list_tags() == {name}
    snapshots = [info.id for info in repository.ancestry(branch="main")]
    assert repository.lookup_branch(name) == snapshots[1]
    assert repository.lookup_tag(name) == snapshots[2]
    tip = commit_attribute(repository, "x", name)
    assert repository.lookup_branch(name) == tip
    repository.delete_branch(name)
    assert repository.list_branches() == {"main"}


@pytest.mark.parametrize("name", ["main~1", "v1~12", "a^", "a@{2026-01-31}"])
def test_names_that_mean_a_version_are_refused(repository: Repository, name: str) -> None:
    """Others would be shown another snapshot than they ask for; what is called so is read."""
    for create in (repository.create_branch, repository.create_tag):
        with pytest.raises(InvalidInputError, match="it means a version"):
            create(name, "main")
    repository._context.refs.create_branch(name, SnapshotId.parse(repository.lookup_branch("main")))
    assert repository.lookup_branch(name) == repository.lookup_branch("main")


def test_what_is_not_there_is_not_found(repository: Repository) -> None:
    for call in (
        repository.lookup_branch,
        repository.lookup_tag,
        repository.delete_branch,
        repository.delete_tag,
        repository.writable_session,
        repository.readonly_session,
        lambda name: repository.reset_branch(name, "main"),
        lambda name: repository.ancestry(branch=name),
        lambda name: repository.readonly_session(tag=name),
    ):
        with pytest.raises(RefNotFoundError, match="ref not found `nope`") as caught:
            call("nope")
        assert caught.value.name == "nope"


# --- deleting and resetting


def test_main_stays(repository: Repository) -> None:  # R1-10, api-facts 11
    with pytest.raises(IcefloeError, match="main branch cannot be deleted"):
        repository.delete_branch("main")
    assert repository.list_branches() == {"main"}


def test_a_branch_that_is_created_again_goes_on_in_its_sequence(repository: Repository) -> None:
    repository.create_branch("dev", "main~1")
    first = repository.lookup_branch("dev")
    repository.delete_branch("dev")
    assert repository.list_branches() == {"main"}
    with pytest.raises(RefNotFoundError):
        repository.lookup_branch("dev")
    with pytest.raises(RefNotFoundError):
        repository.delete_branch("dev")
    repository.create_branch("dev", "main")
    tip = repository.lookup_branch("main")
    assert repository.lookup_branch("dev") == tip
    contents = [b'{"snapshot":"%b"}' % first.encode(), b'{"snapshot":null}']
    assert branch_files(repository, "dev") == [*contents, b'{"snapshot":"%b"}' % tip.encode()]


def test_deleting_a_branch_leaves_its_snapshots(repository: Repository) -> None:
    repository.create_branch("dev", "main")
    tip = commit_attribute(repository, "dev", "dev")
    repository.delete_branch("dev")
    assert repository.lookup_snapshot(tip).message == "value dev"
    repository.create_branch("saved", tip)
    assert repository.lookup_branch("saved") == tip


def test_a_branch_is_reset_by_one_more_entry(repository: Repository) -> None:  # H-22
    ids = [info.id for info in repository.ancestry(branch="main")]
    entries = len(branch_files(repository, "main"))
    repository.reset_branch("main", ids[2])
    assert repository.lookup_branch("main") == ids[2]
    assert [info.id for info in repository.ancestry(branch="main")] == ids[2:]
    assert len(branch_files(repository, "main")) == entries + 1
    repository.reset_branch("main", ids[0])
    assert [info.id for info in repository.ancestry(branch="main")] == ids


def test_a_reset_can_say_where_it_expects_the_branch(repository: Repository) -> None:
    ids = [info.id for info in repository.ancestry(branch="main")]
    with pytest.raises(ConflictError, match="branch update conflict") as caught:
        repository.reset_branch("main", ids[2], from_snapshot_id=ids[1])
    assert (caught.value.expected_parent, caught.value.actual_parent) == (ids[1], ids[0])
    assert repository.lookup_branch("main") == ids[0]
    repository.reset_branch("main", ids[2], from_snapshot_id=ids[0])
    assert repository.lookup_branch("main") == ids[2]


def test_a_commit_after_a_reset_starts_from_there(repository: Repository) -> None:
    ids = [info.id for info in repository.ancestry(branch="main")]
    repository.reset_branch("main", ids[2])
    tip = commit_attribute(repository, "other")
    assert [info.id for info in repository.ancestry(branch="main")] == [tip, *ids[2:]]


@pytest.mark.parametrize(
    "happened",
    ["deleted", "deleted and created again", "reset", "reset and back", "amended", "committed"],
)
def test_a_stale_session_cannot_commit(repository: Repository, happened: str) -> None:  # T-ABA
    # R3-37, R3-99, R1-43
    repository.create_branch("dev", "main")
    tip = repository.lookup_branch("dev")
    stale = repository.writable_session("dev")
    stale.tree.set_document("/", group(stale=True))
    if happened.startswith("deleted"):
        repository.delete_branch("dev")
        if "again" in happened:
            repository.create_branch("dev", tip)
    elif happened.startswith("reset"):
        repository.reset_branch("dev", "main~1")
        if "back" in happened:
            repository.reset_branch("dev", tip)
    elif happened == "amended":
        other = repository.writable_session("dev")
        other.tree.set_document("/new", group())
        other.amend("amended")
    else:
        commit_attribute(repository, "other", "dev")
    files = branch_files(repository, "dev")
    with pytest.raises(ConflictError) as caught:
        stale.commit("stale")
    assert caught.value.expected_parent == tip
    if happened == "deleted":
        assert caught.value.actual_parent is None  # api-facts 44
    assert branch_files(repository, "dev") == files
    assert stale.has_uncommitted_changes
    assert not stale.read_only
    if happened in {"deleted", "reset", "amended"}:
        with pytest.raises(ConflictError):
            stale.rebase(ConflictDetector())
        with pytest.raises(ConflictError):
            stale.commit("stale", rebase_with=ConflictDetector())
        assert branch_files(repository, "dev") == files


# --- tags


def test_tags_never_change(repository: Repository) -> None:  # R1-11, R1-24, R1-25, R1-44, H-21
    _, target, *_ = [info.id for info in repository.ancestry(branch="main")]
    repository.create_tag("v1", "main~1")
    assert repository.lookup_tag("v1") == target
    commit_attribute(repository, "later")
    for version in ("main", target):
        with pytest.raises(AlreadyExistsError, match="'v1' exists already"):
            repository.create_tag("v1", version)
    with pytest.raises(InvalidInputError, match="tags cannot be deleted once created"):
        repository.delete_tag("v1")
    assert repository.list_tags() == {"v1"}
    assert repository.lookup_tag("v1") == target
    content = repository.storage.get("refs/tag.v1/ref.json")
    assert b"".join(content.split()) == b'{"snapshot":"%b"}' % target.encode()


def test_a_branch_and_a_tag_may_share_a_name(repository: Repository) -> None:  # api-facts 10
    repository.create_tag("main", "main~2")
    ids = [info.id for info in repository.ancestry(branch="main")]
    assert repository.lookup_tag("main") == ids[2]
    assert repository.readonly_session("main").snapshot_id == ids[0]
    assert repository.readonly_session(tag="main").snapshot_id == ids[2]


def test_names_that_a_file_system_could_mix_up_are_refused(repository: Repository) -> None:  # H-25
    repository.create_tag("Release", "main")
    with pytest.raises(AlreadyExistsError, match="differs from it only in case"):
        repository.create_tag("release", "main~1")
    repository.create_branch("Dev", "main")
    with pytest.raises(AlreadyExistsError, match="differs from it only in case"):
        repository.create_branch("dEV", "main")


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_one_of_many_threads_gets_a_name(repository: Repository, kind: str) -> None:  # T-RACE
    targets = [info.id for info in repository.ancestry(branch="main")][:4]
    for round_number in range(10):
        barrier = threading.Barrier(4)

        def create(
            target: str, barrier: threading.Barrier = barrier, name: str = f"n{round_number}"
        ) -> str | None:
            barrier.wait()
            try:
                getattr(repository, f"create_{kind}")(name, target)
            except AlreadyExistsError:
                return None
            return target

        with ThreadPoolExecutor(4) as racers:
            won = [target for target in racers.map(create, targets) if target is not None]
        assert won == [getattr(repository, f"lookup_{kind}")(f"n{round_number}")]
