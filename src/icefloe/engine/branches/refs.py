"""Creates, moves and deletes branches and tags, beside garbage collections that do the same.

A branch or tag may be made to point to a snapshot that nothing else reaches. So the snapshot is
pinned first, and a reference whose pin was broken in between is taken back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from icefloe.engine.history.walk import Revision, check_new_name
from icefloe.engine.operation_log import OperationLog
from icefloe.engine.retention.branch_moves import retry_after_collection, undo_creation
from icefloe.engine.retention.pins import pinned
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.formats.port import MAIN, LiveTip
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.engine.context import Context
    from icefloe.engine.retention.pins import SnapshotLease
    from icefloe.formats.port import Refs
    from icefloe.model.ids import SnapshotId


def live_tip(refs: Refs, branch: str) -> LiveTip:
    """The newest state of a branch; raises RefNotFoundError if the branch does not exist."""
    Revision(branch=branch).check("branch")
    tip = refs.tip(branch)
    if not isinstance(tip, LiveTip):
        raise RefNotFoundError(
            f"ref not found `{branch}`: there is no such branch; create it with create_branch",
            branch,
        )
    return tip


def create_branch(context: Context, branch: str, snapshot_id: str) -> None:
    """Create a branch at a snapshot."""
    check_new_name(branch, "branch")
    ensure_conditional_writes(context.storage)
    with _pinned(context, snapshot_id) as (target, pin):
        tip = context.refs.create_branch(branch, target)
        try:
            pin.confirm()
        except SnapshotNotFoundError:
            undo_creation(context.refs, tip)
            raise
    _log(context, "create_branch", branch=branch, snapshot_id=target)


def reset_branch(
    context: Context, branch: str, snapshot_id: str, from_snapshot_id: str | None = None
) -> None:
    """Let a branch point to another snapshot, as the next state of its sequence (H-22)."""
    tip = live_tip(context.refs, branch)
    resolve = context.history.resolve
    if from_snapshot_id is not None and tip.snapshot_id != resolve(
        Revision(snapshot_id=from_snapshot_id)
    ):
        raise ConflictError(
            f"branch update conflict: {branch!r} is at {tip.snapshot_id}, "
            f"expected {from_snapshot_id}",
            from_snapshot_id,
            str(tip.snapshot_id),
        )
    target = resolve(Revision(snapshot_id=snapshot_id))
    point_to(context, tip, target)
    _log(context, "reset_branch", branch=branch, **{"from": tip.snapshot_id, "to": target})


def point_to(context: Context, tip: LiveTip, target: SnapshotId) -> None:
    """Advance a branch to a snapshot that exists; raises ConflictError if the branch moved."""

    def move(state: LiveTip) -> None:
        with pinned(context.storage, context.format.layout, target):
            context.refs.advance(state, target)

    retry_after_collection(context.refs, tip, move)


def delete_branch(context: Context, branch: str) -> None:
    """Delete a branch other than `main`."""
    if branch == MAIN:
        raise InvalidInputError("main branch cannot be deleted")
    refs = context.refs
    tip = live_tip(refs, branch)
    retry_after_collection(refs, tip, lambda state: refs.advance(state, None))
    _log(context, "delete_branch", branch=branch, snapshot_id=tip.snapshot_id)


def create_tag(context: Context, tag: str, snapshot_id: str) -> None:
    """Create a tag for a snapshot; it cannot be changed or deleted."""
    check_new_name(tag, "tag")
    ensure_conditional_writes(context.storage)
    with _pinned(context, snapshot_id) as (target, pin):
        try:
            undo = context.refs.create_tag(tag, target)
        except AlreadyExistsError:
            _require_lasting(context, tag)
            raise
        try:
            pin.confirm()
        except SnapshotNotFoundError:
            undo()
            raise
    _log(context, "create_tag", tag=tag, snapshot_id=target)


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
    """Refuse: the specification says that tags cannot be deleted once created (R1-25)."""
    if context.refs.tag(tag) is None:
        raise RefNotFoundError(f"ref not found `{tag}`", tag)
    raise InvalidInputError(
        f"tags cannot be deleted once created: {tag!r} stays; create another tag instead"
    )


@contextlib.contextmanager
def _pinned(context: Context, revision: str) -> Iterator[tuple[SnapshotId, SnapshotLease]]:
    snapshot_id = context.history.resolve(Revision(snapshot_id=revision))
    with pinned(context.storage, context.format.layout, snapshot_id) as pin:
        yield snapshot_id, pin


def _log(context: Context, kind: str, **details: object) -> None:
    plain = {name: str(value) for name, value in details.items()}
    OperationLog(context.storage).add(kind, plain)
