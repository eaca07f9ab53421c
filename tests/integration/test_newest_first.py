"""Histories in pages, newest first, and snapshots by the beginning of their ids."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import InvalidInputError, Repository, SnapshotNotFoundError
from icefloe.engine.history import newest
from icefloe.engine.history.newest import NewestFirst, named_snapshots
from tests.builders import commit_documents, new_repository
from tests.documents import group

if TYPE_CHECKING:
    from icefloe.engine.history.walk import History

STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "branch", "tag"]), st.integers(0, 5)), max_size=9
)


def history_of(repository: Repository) -> History:
    return repository.readonly_session("main").tree.context.history


def grown(steps: list[tuple[str, int]]) -> Repository:
    """A repository whose branches, tags and commits are drawn."""
    repository = new_repository()
    for number, (kind, choice) in enumerate(steps):
        branch = sorted(repository.list_branches())[choice % len(repository.list_branches())]
        if kind == "commit":
            commit_documents(repository, {f"/n{number}": group()}, branch)
        elif kind == "branch":
            repository.create_branch(f"b{number}", repository.lookup_branch(branch))
        else:
            repository.create_tag(f"t{number}", repository.lookup_branch(branch))
    return repository


@given(STEPS, st.integers(1, 4))
def test_pages_have_each_commit_of_the_graph_once_in_its_order(
    steps: list[tuple[str, int]], page_size: int
) -> None:
    repository = grown(steps)
    history = history_of(repository)
    commits = {
        commit.id: commit
        for start in repository.list_branches() | repository.list_tags()
        for commit in repository.ancestry(snapshot_id=start)
    }
    newest_first = sorted(commits.values(), key=lambda commit: commit.written_at, reverse=True)
    expected = [(commit.id, commit.parent_id) for commit in newest_first]
    rows = repository.ancestry_graph(merges=False).rows
    assert [(row.id, row.parent_id) for row in rows] == expected
    pages, starts = [], list(named_snapshots(history))
    while starts:
        walk = NewestFirst(history, starts)
        pages += [
            (str(stub.id), None if parent is None else str(parent))
            for stub, parent in islice(walk, page_size)
        ]
        starts = walk.rest()
    assert pages == expected


def test_the_beginning_of_an_id_names_a_snapshot() -> None:
    repository = grown([("commit", 0), ("branch", 0), ("commit", 0), ("commit", 1)])
    for row in repository.ancestry_graph().rows:
        for length in (4, 8, 19):
            assert repository.lookup_snapshot(row.id[:length]).id == row.id
            assert repository.readonly_session(snapshot_id=row.id[:length]).snapshot_id == row.id
    with pytest.raises(SnapshotNotFoundError, match="at least the first 4"):
        repository.lookup_snapshot(row.id[:3])
    with pytest.raises(SnapshotNotFoundError):
        repository.lookup_snapshot("ZZZZZZ")


def test_a_branch_or_tag_goes_before_the_beginning_of_an_id() -> None:
    repository = grown([("commit", 0)])
    tip, first = (row.id for row in repository.ancestry_graph().rows)
    repository.create_tag(tip[:6], first)
    assert repository.lookup_snapshot(tip[:6]).id == first
    assert repository.lookup_snapshot(tip[:7]).id == tip


def test_an_ambiguous_beginning_is_refused_with_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = grown([("commit", 0)] * 3)
    monkeypatch.setattr(newest, "SHORTEST_ID", 0)
    with pytest.raises(InvalidInputError, match=r"beginning of 4 snapshot ids.*more characters"):
        repository.lookup_snapshot("")
