"""Commits on a branch that need no session: squash, fast-forward and rewritten manifests."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.changes.change_set import ChangeSet
from icefloe.engine.branches.refs import live_tip, point_to
from icefloe.engine.commit.rewritten_manifests import rewrite_manifests
from icefloe.engine.commit.write import CommitMessage, Replaced, as_one, write_commit
from icefloe.engine.operation_log import OperationLog
from icefloe.engine.retention.branch_moves import retry_after_collection
from icefloe.errors import ConflictError, InvalidInputError
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from icefloe.engine.commit.rebase import ShowTree
    from icefloe.engine.context import Context
    from icefloe.formats.port import LiveTip
    from icefloe.model.ids import SnapshotId


class Committer(NamedTuple):
    """The common arguments of commits on branches."""

    context: Context
    default_metadata: dict[str, Any]
    """Properties of every commit, unless it says otherwise."""
    show: ShowTree
    """Makes what conflict solvers see of a tree."""

    def message(self, text: str, metadata: dict[str, Any] | None) -> CommitMessage:
        """The checked message and metadata of a commit that starts now."""
        return CommitMessage.of(text, metadata, defaults=self.default_metadata)


def squash(
    committer: Committer,
    branch: str,
    since: SnapshotId,
    *,
    message: str,
    metadata: dict[str, Any] | None = None,
) -> str:
    """Replace all commits of a branch after a snapshot by one; returns its id."""
    context = committer.context
    ensure_conditional_writes(context.storage)
    squashed_message = committer.message(message, metadata)

    def replace(tip: LiveTip) -> str:
        newest = context.files.read_snapshot(tip.snapshot_id)
        changes = None
        if since != newest.id and context.history.shows(since, newest.id):
            changes = context.history.changes_between(since, newest.id)
        if changes is None:
            raise InvalidInputError(
                f"cannot squash {tip.branch!r}: {since} is not an earlier snapshot of it"
            )
        squashed = takewhile(lambda each: each.id != since, context.history.ancestry(newest.id))
        snapshot = write_commit(
            context.files,
            as_one(squashed),
            ChangeSet(newest.nodes),
            squashed_message,
            context.settings,
            replaced=Replaced(context.files.read_snapshot(since), changes),
            checks=[partial(context.refs.check_same_repository, tip)],
        )
        context.refs.publish(tip, snapshot)
        _log_move(context, "squash", branch, newest.id, snapshot.id)
        return str(snapshot.id)

    return retry_after_collection(context.refs, live_tip(context.refs, branch), replace)


def fast_forward(context: Context, from_branch: str, to_branch: str) -> str:
    """Move a branch to the tip of another that descends from its own; returns that snapshot's id.

    Raises:
        ConflictError: If the branch has commits of its own.
    """
    ensure_conditional_writes(context.storage)
    source, target = live_tip(context.refs, from_branch), live_tip(context.refs, to_branch)
    if source.snapshot_id == target.snapshot_id:
        return str(target.snapshot_id)
    if context.history.between(target.snapshot_id, source.snapshot_id) is None:
        raise ConflictError(
            f"cannot fast-forward {to_branch!r} to {from_branch!r}: it has commits of its own "
            f"since they parted; merge {to_branch!r} into {from_branch!r} first",
            str(source.snapshot_id),
            str(target.snapshot_id),
        )
    point_to(context, target, source.snapshot_id)
    _log_move(context, "publish", to_branch, target.snapshot_id, source.snapshot_id)
    return str(source.snapshot_id)


def commit_rewritten_manifests(
    committer: Committer,
    branch: str,
    *,
    message: str,
    metadata: dict[str, Any] | None = None,
    commit_method: str = "new_commit",
) -> str:
    """Commit the tip of a branch with its manifests packed as configured; returns the new id."""
    if commit_method not in {"new_commit", "amend"}:
        raise InvalidInputError(
            f"commit_method is 'new_commit' or 'amend', found {commit_method!r}"
        )
    context = committer.context
    checked_message = committer.message(message, metadata)
    ensure_conditional_writes(context.storage)

    def rewrite(tip: LiveTip) -> str:
        base = context.files.read_snapshot(tip.snapshot_id)
        is_amended = commit_method == "amend"
        replaced = Replaced(*context.history.replaceable(base)) if is_amended else None
        rewritten = rewrite_manifests(context.files, base, context.settings)
        snapshot = write_commit(
            context.files,
            rewritten,
            ChangeSet(rewritten.nodes),
            checked_message,
            context.settings,
            replaced=replaced,
            checks=[partial(context.refs.check_same_repository, tip)],
        )
        context.refs.publish(tip, snapshot)
        return str(snapshot.id)

    snapshot_id = retry_after_collection(context.refs, live_tip(context.refs, branch), rewrite)
    details = {"branch": branch, "snapshot_id": snapshot_id}
    OperationLog(context.storage).add_later("rewrite_manifests", details)
    return snapshot_id


def _log_move(
    context: Context, kind: str, branch: str, before: SnapshotId, after: SnapshotId
) -> None:
    """Log a move of a branch that is not a commit."""
    details = {"branch": branch, "from": str(before), "to": str(after)}
    OperationLog(context.storage).add_later(kind, details)
