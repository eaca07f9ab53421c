"""How many requests operations on many references take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import Repository
from icefloe.errors import AlreadyExistsError
from icefloe.formats.dataset.layout import STATE_KEY
from icefloe.formats.sequence_refs import twins_of
from icefloe.testing.faults import FaultyStorage
from tests.formats import how
from tests.integration.maintained import HOUR, fill, make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("each_generation")

MAINTENANCE: dict[str, Callable[[Repository], object]] = {
    "garbage_collect": lambda repo: repo.garbage_collect(0 * HOUR),
    "verify": lambda repo: repo.verify(),
    "expire": lambda repo: repo.expire_snapshots(0 * HOUR),
    "chunk_storage_stats": lambda repo: repo.chunk_storage_stats(),
    "inspect_repo_info": lambda repo: repo.inspect_repo_info(),
}


def requests(act: Callable[[Repository], object], references: int) -> list[tuple[str, str]]:
    """Requests of something that is done to a repository of so many branches and tags."""
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = make(storage=storage)
    gone = fill(repo, 1)
    repo.reset_branch("main", "main~1")
    assert gone != repo.lookup_branch("main")
    for number in range(references):
        repo.create_tag(f"tag {number}", "main")
        repo.create_branch(f"branch {number}", "main")
    fresh = Repository.open(storage)
    storage.trace.clear()
    act(fresh)
    return list(storage.trace)


@pytest.mark.parametrize("what", MAINTENANCE)
def test_requests_follow_the_number_of_references(what: str, each_generation: str) -> None:
    few, some, many = (requests(MAINTENANCE[what], count) for count in (4, 8, 12))
    assert len(many) - len(some) == len(some) - len(few)
    if each_generation == "dataset":
        # One file has all references, and reading it takes time that follows their number.
        assert len(many) == len(few)
        assert sum(key == STATE_KEY for _, key in many) < 20


def test_a_tag_or_branch_takes_as_many_requests_among_many_as_among_few() -> None:
    for create in ("create_tag", "create_branch"):
        counts = {
            len(requests(lambda repo, create=create: getattr(repo, create)("new", "main"), count))  # type: ignore[misc]
            for count in (2, 12)
        }
        assert len(counts) == 1


def test_a_history_that_was_read_is_not_read_again() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = make(storage=storage)
    for value in range(20):
        fill(repo, value)
    first = [info.id for info in repo.ancestry(branch="main")]
    storage.trace.clear()
    assert [info.id for info in repo.ancestry(branch="main")] == first
    assert {verb for verb, _ in storage.trace} <= {"get", "get_with_version", "list"}
    assert len(storage.trace) <= 3  # the branch and the cuts


# --- many references at once


def test_branches_are_repeated_unless_they_have_moved() -> None:
    repo = make()
    repo.create_branch("moves", "main")
    repo.create_branch("stays", "main")
    refs = repo._context.refs
    tips = [tip for name in ("main", "moves", "stays") if (tip := refs.tip(name)) is not None]
    fill(repo, 1, "moves")
    assert refs.repeat(tips) == {"moves"}  # type: ignore[arg-type]
    for tip in tips:
        newest = refs.tip(tip.branch)
        assert newest is not None
        assert newest.sequence > tip.sequence
        assert (newest.snapshot_id == tip.snapshot_id) == (tip.branch != "moves")
    assert refs.repeat([]) == set()


def test_a_view_shows_what_the_references_are() -> None:
    repo = make()
    repo.create_tag("v1", "main")
    refs = repo._context.refs
    view = refs.view()
    assert (view.branches(), view.tags()) == ({"main"}, {"v1"})
    assert view.tip("main") == refs.tip("main")
    assert view.tag("v1") == refs.tag("v1")
    assert list(view.reflog("main")) == list(refs.reflog("main"))
    # It may be used to publish: that goes by what is in the storage.
    fill(repo, 1)
    tip = refs.tip("main")
    assert tip is not None
    assert view.advance(tip, tip.snapshot_id).sequence > tip.sequence
    assert refs.view().tip("main") == refs.tip("main")


# --- names that are hard to tell apart (H-25)


def test_twins_among_many_names() -> None:
    others = ["v1", "V1", "straße", "e\u0301te", "\u0301x", "\u0338y", "=", "\ufb01n", "K2", ""]
    assert twins_of("v1", others) == ["V1"]
    assert twins_of("STRASSE", others) == ["straße"]
    assert twins_of("\u00c9TE", others) == ["e\u0301te"]
    assert twins_of("fin", others) == ["\ufb01n"]
    assert twins_of("\u212a2", others) == ["K2"]
    assert twins_of("\u0338Y", others) == ["\u0338y"]
    assert twins_of("x", others) == []
    assert twins_of("v1", []) == []


def test_twins_are_refused_on_local_files(tmp_path: Path, each_generation: str) -> None:
    if each_generation == "icechunk":
        pytest.skip("names are no files there")
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path)), **how())
    repo.create_tag("v1", "main")
    repo.create_branch("dev", "main")
    with pytest.raises(AlreadyExistsError, match="only in case or accents"):
        repo.create_tag("V1", "main")
    with pytest.raises(AlreadyExistsError, match="only in case or accents"):
        repo.create_branch("DEV", "main")
    repo.delete_branch("dev")
    assert repo.list_tags() == {"v1"}
    assert repo.list_branches() == {"main"}


def test_what_a_killed_writer_left_is_no_twin(tmp_path: Path, each_generation: str) -> None:
    """It may make the folder of a reference and die."""
    repo = Repository.create(icefloe.local_filesystem_storage(str(tmp_path)), **how())
    folders = {
        "repository": ["refs/tag.v1", "refs/branch.dev"],
        "store": ["r/dev"],
        "dataset": [],
        "icechunk": [],
    }[each_generation]
    for folder in folders:
        (tmp_path / folder).mkdir()
    repo.create_tag("V1", "main")
    repo.create_branch("DEV", "main")
    assert repo.list_tags() == {"V1"}
    assert repo.list_branches() == {"main", "DEV"}
