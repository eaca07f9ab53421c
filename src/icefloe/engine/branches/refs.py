"""Creates, moves and deletes branches and tags, beside garbage collections that do the same.

A branch or tag may be made to point to a snapshot that nothing else reaches. So the snapshot is
pinned first, and a reference whose pin was broken in between is taken back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from icefloe.engine.history.missing_names import missing_branch, missing_tag
from icefloe.engine.history.walk import Revision, check_new_name
from icefloe.engine.operation_log import OperationLog
from icefloe.engine.retention.branch_moves import retry_after_collection, undo_creation
from icefloe.engine.retention.pins import pinned, pinned_beside
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    SnapshotNotFoundError,
)
from icefloe.formats.port import LiveTip
from icefloe.model import MAIN
from icefloe.storage.concurrency import together
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.engine.context import Context
    from icefloe.engine.retention.pins import SnapshotLease
    from icefloe.formats.port import BranchTip, Refs
    from icefloe.model.ids import SnapshotId


_Found = TypeVar("_Found")
_Result = TypeVar("_Result")


def live_tip(refs: Refs, branch: str) -> LiveTip:
    """The newest state of a branch; raises RefNotFoundError if the branch does not exist."""
    Revision(branch=branch).check("branch")
    return _live(refs, branch, refs.tip(branch))


def _live(refs: Refs, branch: str, tip: BranchTip | None) -> LiveTip:
    if not isinstance(tip, LiveTip):
        raise missing_branch(refs, branch)
    return tip


def create_branch(context: Context, branch: str, snapshot_id: str) -> None:
    """Create a branch at a snapshot."""
    check_new_name(branch, "branch")
    target = context.history.resolve(Revision(snapshot_id=snapshot_id))
    with _pinned_beside(
        context, target, lambda: context.refs.prepare_branch(branch), lambda create: create
    ) as (pin, create):
        tip = create(target)
        _confirm(
            context,
            pin,
            lambda: undo_creation(context.refs, tip),
            "create_branch",
            branch=branch,
            snapshot_id=target,
        )


def reset_branch(
    context: Context, branch: str, snapshot_id: str, from_snapshot_id: str | None = None
) -> None:
    """Let a branch point to another snapshot, as the next state of its sequence (H-22)."""
    resolve = context.history.resolve
    target = resolve(Revision(snapshot_id=snapshot_id))
    expected = None if from_snapshot_id is None else resolve(Revision(snapshot_id=from_snapshot_id))
    Revision(branch=branch).check("branch")
    # A collection that has published the branch again before its newest state is found has been
    # announced before, and one that does so later lets the move fail. What that state says does
    # not matter for this, so it is read beside the announcements.
    with _pinned_beside(
        context,
        target,
        lambda: context.refs.find_tip(branch),
        lambda read: _live(context.refs, branch, read()),
    ) as (_, tip):
        _check_expected(tip, expected)
        _move(context, tip, target, is_pinned=True)
    _log_later(context, "reset_branch", branch=branch, **{"from": tip.snapshot_id, "to": target})


def _check_expected(tip: LiveTip, expected: SnapshotId | None) -> None:
    """Raise ConflictError unless a branch is where the caller says that it is."""
    if expected is not None and tip.snapshot_id != expected:
        raise ConflictError(
            f"branch update conflict: {tip.branch!r} is at {tip.snapshot_id}, expected {expected}",
            str(expected),
            str(tip.snapshot_id),
        )


def point_to(context: Context, tip: LiveTip, target: SnapshotId) -> None:
    """Advance a branch to a snapshot that exists; raises ConflictError if the branch moved."""
    _move(context, tip, target, is_pinned=False)


def _move(context: Context, tip: LiveTip, target: SnapshotId, *, is_pinned: bool) -> None:
    def move(state: LiveTip) -> None:
        if context.refs.lists_snapshots or (is_pinned and state == tip):
            context.refs.advance(state, target)
            return
        with pinned(context.storage, context.format.layout, target):
            context.refs.advance(state, target)

    retry_after_collection(context.refs, tip, move)


def delete_branch(context: Context, branch: str, from_snapshot_id: str | None = None) -> None:
    """Delete a branch other than `main`."""
    if branch == MAIN:
        raise InvalidInputError("main branch cannot be deleted")
    refs = context.refs
    tip = live_tip(refs, branch)
    if from_snapshot_id is not None:
        _check_expected(tip, context.history.resolve(Revision(snapshot_id=from_snapshot_id)))
    retry_after_collection(refs, tip, lambda state: refs.advance(state, None))
    _log_later(context, "delete_branch", branch=branch, snapshot_id=tip.snapshot_id)


def create_tag(context: Context, tag: str, snapshot_id: str) -> None:
    """Create a tag for a snapshot; it cannot be changed or deleted."""
    check_new_name(tag, "tag")
    target = context.history.resolve(Revision(snapshot_id=snapshot_id))
    try:
        with _pinned_beside(
            context, target, lambda: context.refs.prepare_tag(tag), lambda create: create
        ) as (pin, create):
            undo = create(target)
            _confirm(context, pin, undo, "create_tag", tag=tag, snapshot_id=target)
    except AlreadyExistsError:
        _require_lasting(context, tag)
        raise


def _require_lasting(context: Context, tag: str) -> None:
    """Raise ConflictError if the client that just created a tag is about to undo it."""
    target = context.refs.tag(tag)
    if target is None:
        return
    try:
        with pinned(context.storage, context.format.layout, target):
            pass
    except SnapshotNotFoundError:
        raise ConflictError(
            f"tag {tag!r} was just created for snapshot {target}, which was collected at the "
            "same moment, so that the tag does not last; try again"
        ) from None


def delete_tag(context: Context, tag: str) -> None:
    """Delete a tag where the generation has that; its name is not given again."""
    target = context.refs.tag(tag)
    if target is None:
        raise missing_tag(context.refs, tag)
    context.refs.delete_tag(tag)
    _log_later(context, "delete_tag", tag=tag, snapshot_id=target)


@contextlib.contextmanager
def _pinned_beside(
    context: Context,
    target: SnapshotId,
    work: Callable[[], _Found],
    then: Callable[[_Found], _Result],
) -> Iterator[tuple[SnapshotLease | None, _Result]]:
    """Pin a snapshot, and do something else at the same time, the probe of the storage among it.

    What comes `then` may be done while the pin is checked. Where references check their targets
    themselves, there is no pin.
    """
    storage = context.storage

    def probe_and_work() -> _Found:
        ensure_conditional_writes(storage)
        return work()

    if context.refs.lists_snapshots:
        yield None, then(probe_and_work())
        return
    with pinned_beside(
        storage, context.format.layout, target, probe_and_work, then
    ) as pin_and_result:
        yield pin_and_result


def _confirm(
    context: Context,
    pin: SnapshotLease | None,
    undo: Callable[[], None],
    kind: str,
    **details: object,
) -> None:
    """Log what was created, and undo it if the pin was broken before and the snapshot is gone."""
    if pin is None:
        _log_later(context, kind, **details)
        return
    entries: list[str] = []
    try:
        together(
            context.storage, pin.confirm, lambda: entries.append(_log(context, kind, **details))
        )
    except SnapshotNotFoundError:
        undo()
        for entry in entries:
            OperationLog(context.storage).take_back(entry)
        raise


def _log(context: Context, kind: str, **details: object) -> str:
    return OperationLog(context.storage).add(kind, _plain(details))


def _log_later(context: Context, kind: str, **details: object) -> None:
    OperationLog(context.storage).add_later(kind, _plain(details))


def _plain(details: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in details.items()}
