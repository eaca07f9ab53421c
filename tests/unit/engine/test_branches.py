"""Branches, tags and merges as functions of a context, without a repository around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe.engine.branches import commits, merge, refs
from icefloe.engine.branches.commits import Committer
from icefloe.engine.history.walk import Revision
from icefloe.engine.operation_log import operations
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.model.ids import SnapshotId
from tests.unit.engine.on_context import chunks, new_context, set_chunk

if TYPE_CHECKING:
    from icefloe.engine.context import Context


@pytest.fixture
def context() -> Context:
    return new_context()


def tip(context: Context, branch: str = "main") -> SnapshotId:
    return context.history.resolve(Revision(branch=branch))


def committer(context: Context, **metadata: Any) -> Committer:
    return Committer(context, metadata, lambda tree: tree)


def test_a_branch_is_created_moved_and_deleted(context: Context) -> None:
    first, second = str(tip(context)), set_chunk(context, 0, b"0")
    refs.create_branch(context, "work", first)
    with pytest.raises(AlreadyExistsError):
        refs.create_branch(context, "work", second)
    with pytest.raises(ConflictError, match="expected"):
        refs.reset_branch(context, "work", second, from_snapshot_id=second)
    refs.reset_branch(context, "work", second, from_snapshot_id=first)
    assert str(tip(context, "work")) == second
    with pytest.raises(ConflictError, match="expected"):
        refs.delete_branch(context, "work", from_snapshot_id=first)
    refs.delete_branch(context, "work", from_snapshot_id=second)
    with pytest.raises(RefNotFoundError, match="create_branch"):
        refs.live_tip(context.refs, "work")
    kinds = [operation.kind for operation in operations(context.storage, context.history)]
    assert sorted(kind for kind in kinds if "branch" in kind) == [
        "create_branch",
        "delete_branch",
        "reset_branch",
    ]


def test_main_stays_and_so_do_tags(context: Context) -> None:
    with pytest.raises(InvalidInputError, match="main branch"):
        refs.delete_branch(context, "main")
    with pytest.raises(RefNotFoundError):
        refs.delete_tag(context, "v1")
    refs.create_tag(context, "v1", "main")
    with pytest.raises(InvalidInputError, match="cannot be deleted"):
        refs.delete_tag(context, "v1")


@pytest.mark.parametrize("make", [refs.create_branch, refs.create_tag])
def test_nothing_can_point_to_a_snapshot_that_is_gone(context: Context, make: Any) -> None:
    missing = str(SnapshotId.random())
    with pytest.raises(SnapshotNotFoundError, match=missing):
        make(context, "name", missing)
    assert context.refs.branches() == {"main"}
    assert context.refs.tags() == set()


def test_a_merge_takes_both_sides(context: Context) -> None:
    refs.create_branch(context, "work", "main")
    set_chunk(context, 0, b"main")
    set_chunk(context, 1, b"work", "work")
    merged = merge.merge(committer(context, job="nightly"), "work", "main", metadata={"n": 1})
    assert chunks(context) == {0: b"main", 1: b"work"}
    snapshot = context.files.read_snapshot(tip(context))
    assert str(snapshot.id) == merged
    assert snapshot.public_metadata() == {"job": "nightly", "n": 1}
    assert merge.merge(committer(context), "work", "main") == merged


def test_a_merge_without_own_commits_is_a_fast_forward(context: Context) -> None:
    refs.create_branch(context, "work", "main")
    newest = set_chunk(context, 1, b"work", "work")
    assert merge.merge(committer(context), "work", "main") == newest
    refs.create_branch(context, "more", "main")
    picked = set_chunk(context, 2, b"more", "more")
    merged = merge.merge(committer(context), "more", "main", fast_forward=False)
    assert merged != picked
    assert chunks(context) == {1: b"work", 2: b"more"}


def test_a_conflict_changes_nothing(context: Context) -> None:
    refs.create_branch(context, "work", "main")
    set_chunk(context, 0, b"work", "work")
    before = set_chunk(context, 0, b"main")
    with pytest.raises(RebaseFailedError):
        merge.merge(committer(context), "work", "main")
    assert str(tip(context)) == before


def test_cherry_pick_and_revert_are_opposites(context: Context) -> None:
    refs.create_branch(context, "work", "main")
    set_chunk(context, 0, b"0", "work")
    picked = tip(context, "work")
    set_chunk(context, 1, b"1")
    merge.cherry_pick(committer(context), picked, "main", metadata={"picked": True})
    assert chunks(context) == {0: b"0", 1: b"1"}
    assert context.files.read_snapshot(tip(context)).public_metadata() == {"picked": True}
    merge.revert(committer(context), tip(context), "main")
    assert chunks(context) == {1: b"1"}
    assert context.files.read_snapshot(tip(context)).message.startswith("Revert '0'")


def test_squash_replaces_commits_and_fast_forward_refuses_what_diverged(context: Context) -> None:
    since = tip(context)
    refs.create_branch(context, "work", "main")
    for index in range(3):
        set_chunk(context, index, b"x", "work")
    commits.squash(committer(context), "work", since, message="one")
    assert next(stub.message for stub in context.history.stubs(tip(context, "work"))) == "one"
    assert context.history.between(since, tip(context, "work")) == [tip(context, "work")]
    with pytest.raises(InvalidInputError, match="cannot squash"):
        commits.squash(committer(context), "main", tip(context, "work"), message="no")
    set_chunk(context, 9, b"main")
    with pytest.raises(ConflictError, match="cannot fast-forward"):
        commits.fast_forward(context, "work", "main")


def test_rewritten_manifests_are_a_commit_or_an_amended_one(context: Context) -> None:
    before = set_chunk(context, 0, b"0")
    with pytest.raises(InvalidInputError, match="commit_method"):
        commits.commit_rewritten_manifests(
            committer(context), "main", message="m", commit_method="x"
        )
    new = commits.commit_rewritten_manifests(committer(context), "main", message="m")
    assert str(context.files.read_snapshot(tip(context)).parent_id) == before
    amended = commits.commit_rewritten_manifests(
        committer(context), "main", message="m", commit_method="amend"
    )
    assert new != amended
    assert str(context.files.read_snapshot(tip(context)).parent_id) == before
    assert chunks(context) == {0: b"0"}
