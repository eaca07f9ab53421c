"""Retries of moves of branches: after garbage collections, and after other writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.config.settings import Settings
from icefloe.engine.branches.refs import live_tip
from icefloe.engine.retention import branch_moves
from icefloe.engine.retention.branch_moves import (
    retry_after_collection,
    retry_on_conflict,
    undo_creation,
)
from icefloe.errors import ConflictError, RebaseFailedError, StorageError
from icefloe.model.ids import SnapshotId
from tests.unit.engine.on_context import new_context, set_chunk

if TYPE_CHECKING:
    from icefloe.engine.context import Context
    from icefloe.formats.port import BranchTip, LiveTip


@pytest.fixture
def context() -> Context:
    return new_context()


def tip(context: Context, branch: str = "main") -> LiveTip:
    return live_tip(context.refs, branch)


def test_a_move_is_tried_again_from_a_tip_that_was_published_again(context: Context) -> None:
    seen = tip(context)
    for _ in range(3):  # as garbage collections do
        assert context.refs.repeat([tip(context)]) == set()
    target = context.files.read_snapshot(seen.snapshot_id).parent_id
    assert target is not None
    tried: list[int] = []
    checked: list[int] = []

    def move(state: LiveTip) -> BranchTip:
        tried.append(state.sequence)
        return context.refs.advance(state, target)

    retry_after_collection(context.refs, seen, move, lambda state: checked.append(state.sequence))
    assert tried == [seen.sequence, seen.sequence + 3]
    assert checked == [seen.sequence + 3]
    assert tip(context).snapshot_id == target


def test_nothing_is_retried_if_what_is_needed_is_gone(context: Context) -> None:
    seen = tip(context)
    context.refs.repeat([seen])

    def gone(_: LiveTip) -> None:
        raise StorageError("gone")

    with pytest.raises(StorageError, match="gone"):
        retry_after_collection(
            context.refs, seen, lambda state: context.refs.advance(state, SnapshotId.random()), gone
        )
    assert tip(context).sequence == seen.sequence + 1


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_branch_that_had_another_snapshot_is_a_conflict(
    context: Context, comes_back: bool
) -> None:
    seen = tip(context)
    set_chunk(context, 0, b"0")
    if comes_back:
        context.refs.advance(tip(context), seen.snapshot_id)
    newest = tip(context)
    with pytest.raises(ConflictError, match="moved"):
        retry_after_collection(
            context.refs, seen, lambda state: context.refs.advance(state, SnapshotId.random())
        )
    assert tip(context) == newest


def test_a_new_branch_is_taken_back_unless_it_was_used(context: Context) -> None:
    start = tip(context).snapshot_id
    new = context.refs.create_branch("new", start)
    context.refs.repeat([new])
    undo_creation(context.refs, new)
    assert context.refs.branches() == {"main"}
    used = context.refs.create_branch("used", start)
    set_chunk(context, 0, b"0", "used")
    undo_creation(context.refs, used)
    assert context.refs.branches() == {"main", "used"}


def test_work_is_retried_as_often_as_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(branch_moves, "back_off", lambda _, attempt: pauses.append(attempt))
    calls: list[str] = []

    def work() -> str:
        calls.append("work")
        if calls.count("work") <= 2:
            raise ConflictError("moved")
        return "done"

    settings = Settings()
    assert retry_on_conflict(settings, work, before_retry=lambda: calls.append("again")) == "done"
    assert calls == ["work", "again", "work", "again", "work"]
    assert pauses == [0, 1]
    calls.clear()
    with pytest.raises(ConflictError):
        retry_on_conflict(settings, work, tries=1)
    assert calls == ["work", "work"]


def test_conflicts_of_changes_are_not_retried() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise RebaseFailedError("both wrote it")

    with pytest.raises(RebaseFailedError):
        retry_on_conflict(Settings(), work)
    assert len(calls) == 1
