"""Merge, cherry-pick and revert, as in git.

Each takes the difference of two snapshots as a change set and rebases it onto the tip of a branch,
with the conflict detection of a session's rebase. One commit at most; the branch moves last.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.changes.patches import patch
from icefloe.changes.solvers import AppendSolver, MergeSolver
from icefloe.engine.branches.commits import fast_forward as fast_forward_branch
from icefloe.engine.branches.merge_sides import MergeSides
from icefloe.engine.branches.refs import live_tip
from icefloe.engine.commit.node_numbers import NodeOrigin
from icefloe.engine.commit.rebase import MergeInputs, rebase_changes
from icefloe.engine.commit.write import write_commit
from icefloe.engine.history.merge_base import find_merge_base
from icefloe.engine.history.net_difference import net_difference
from icefloe.engine.retention.branch_moves import retry_on_conflict
from icefloe.engine.retention.pins import check_snapshot, pinned_during
from icefloe.errors import SessionStateError, SnapshotNotFoundError
from icefloe.model.ids import FIRST_SNAPSHOT_ID
from icefloe.model.snapshot import merged_mark
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.storage.concurrency import together
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.engine.branches.commits import Committer
    from icefloe.engine.commit.write import CommitMessage
    from icefloe.engine.context import Context
    from icefloe.formats.port import LiveTip
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog

_PARTLY_PICKED = (
    "\nthe appends could not be put behind each other: a part of them is on both branches already, "
    "as after a cherry_pick; pick the other commits, too"
)


class _Commit(NamedTuple):
    """The commit to make of a difference."""

    message: CommitMessage
    solver: ConflictSolver | None
    keep_empty: bool = False
    """Whether to commit although the branch has all of the changes already."""


def merge(
    committer: Committer,
    from_branch: str,
    into_branch: str,
    *,
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    solver: ConflictSolver | None = None,
    fast_forward: bool = True,
) -> str:
    """Merge a branch into another; see `Repository.merge`."""
    context = committer.context

    def tip_and_snapshot(branch: str) -> tuple[LiveTip, Snapshot]:
        tip = live_tip(context.refs, branch)
        return tip, context.files.read_snapshot(tip.snapshot_id)

    (_, source), (target, _) = together(
        context.storage,
        lambda: tip_and_snapshot(from_branch),
        lambda: tip_and_snapshot(into_branch),
    )
    merge_base = find_merge_base(context, source.id, target.snapshot_id)
    if merge_base.snapshot_id == source.id:
        return str(target.snapshot_id)
    # The target has no commits that the source does not contain.
    is_contained = merge_base.snapshot_id == target.snapshot_id
    if is_contained and fast_forward:
        descends = context.history.between(target.snapshot_id, source.id) is not None
        if descends:
            return fast_forward_branch(context, from_branch, into_branch)
    checked = committer.message(
        message or f"Merge branch {from_branch!r} into {into_branch!r}", metadata
    )
    checked.metadata.update(merged_mark([source.id], merge_base.line))
    base = context.files.read_snapshot(merge_base.snapshot_id)
    # If the source contains the target and changed nothing else, no commit is needed.
    keep_empty = not is_contained or not fast_forward
    commit = _Commit(checked, solver, keep_empty)
    return _commit_difference(committer, base, source, into_branch, commit, target)


def cherry_pick(
    committer: Committer,
    snapshot_id: SnapshotId,
    branch: str,
    *,
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    solver: ConflictSolver | None = None,
) -> str:
    """Commit on a branch what a commit elsewhere changed; see `Repository.cherry_pick`."""
    picked = committer.context.files.read_snapshot(snapshot_id)
    properties = {**picked.public_metadata(), **(metadata or {})}
    commit = _Commit(committer.message(message or picked.message, properties), solver)
    parent = _parent(committer.context, picked)
    return _commit_difference(committer, parent, picked, branch, commit)


def revert(
    committer: Committer,
    snapshot_id: SnapshotId,
    branch: str,
    *,
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    solver: ConflictSolver | None = None,
) -> str:
    """Commit on a branch the opposite of what a commit changed; see `Repository.revert`."""
    reverted = committer.context.files.read_snapshot(snapshot_id)
    title = reverted.message.partition("\n")[0]
    text = message or f"Revert '{title}' ({reverted.id})"
    commit = _Commit(committer.message(text, metadata), solver)
    parent = _parent(committer.context, reverted)
    return _commit_difference(committer, reverted, parent, branch, commit)


def _commit_difference(
    committer: Committer,
    base: Snapshot,
    after: Snapshot,
    branch: str,
    commit: _Commit,
    seen: LiveTip | None = None,
) -> str:
    """Commit on a branch what leads from one snapshot to another.

    `seen` is the tip of the branch, if it was just read.
    """
    context = committer.context
    ensure_conditional_writes(context.storage)
    # The commit refers to chunk files of a snapshot that nothing else may reach. Every repository
    # has the first one, and no collection deletes it: the other one shows which repository it is.
    pinned = base if after.id == FIRST_SNAPSHOT_ID else after

    @cache
    def difference() -> ChangeSet:
        return patch(
            base.nodes,
            after.nodes,
            net_difference(context.history, base, after),
            context.files.documents_of(after),
            SnapshotChunks(context.files, after).table,
        )

    def both_sides(tip: LiveTip) -> tuple[ChangeSet, TransactionLog]:
        """The changes, and what the branch changed; manifests that their commit needs are read."""
        head = context.files.read_snapshot(tip.snapshot_id)

        def ours() -> ChangeSet:
            changes = difference().copy()
            SnapshotChunks(context.files, head).fetch_edited(changes)
            return changes

        return together(context.storage, ours, lambda: net_difference(context.history, base, head))

    def checks(tip: LiveTip) -> list[Callable[[], None]]:
        """That the repository was not replaced by another one after `pinned` was pinned."""
        checks: list[Callable[[], None]] = [partial(context.refs.check_same_repository, tip)]
        if tip.snapshot_id == FIRST_SNAPSHOT_ID:
            layout = context.format.layout
            checks.append(partial(check_snapshot, context.storage, layout, pinned.id))
        return checks

    def attempt() -> str:
        nonlocal seen
        tip, seen = seen or live_tip(context.refs, branch), None
        # Announcements are read after the tip: a collection that starts later re-publishes the
        # branch.
        with pinned_during(
            context.storage, context.format.layout, pinned.id, lambda: both_sides(tip)
        ) as (ours, theirs):
            return _commit_on_tip(committer, tip, base, ours, theirs, commit, checks(tip))

    return retry_on_conflict(context.settings, attempt)


def _commit_on_tip(
    committer: Committer,
    tip: LiveTip,
    base: Snapshot,
    changes: ChangeSet,
    theirs: TransactionLog,
    commit: _Commit,
    checks: Sequence[Callable[[], None]],
) -> str:
    """Rebase changes from a base to the tip of a branch and commit them; alters `changes`.

    `theirs` is what changed from the base to the tip; `checks` run before the snapshot is written.

    Raises:
        ConflictError: If the branch moved.
    """
    context = committer.context
    head = context.files.read_snapshot(tip.snapshot_id)
    solver = commit.solver or MergeSolver()
    all_changes = changes.copy()
    sides = MergeSides(context, base, head, changes)
    appends = sides.common_appends(solver)
    advice = ""
    if isinstance(solver, AppendSolver) and sides.share_appended_chunks(appends):
        advice, appends, solver = _PARTLY_PICKED, {}, solver.others
    sides.drop_common_changes(appends)
    their_log = sides.without_relocated_chunks(theirs, appends)
    rebase_changes(
        MergeInputs(context=context, base=base, head=head, show=committer.show),
        changes,
        their_log,
        SnapshotChunks(context.files, base),
        solver,
        shown=all_changes,
        advice=advice,
    )
    if changes.is_empty and not commit.keep_empty:
        return str(head.id)
    snapshot = write_commit(
        context.files,
        head,
        changes,
        commit.message,
        context.settings,
        new_nodes=NodeOrigin.OTHER_BRANCH,
        checks=checks,
    )
    context.refs.publish(tip, snapshot)
    return str(snapshot.id)


def _parent(context: Context, snapshot: Snapshot) -> Snapshot:
    if snapshot.parent_id is None:
        raise SessionStateError(
            f"{snapshot.id} is the first snapshot of the repository: it has no changes"
        )
    history = context.history
    # Compared with the first snapshot, which expiry can make its parent, all nodes are changes.
    is_cut = snapshot.parent_id == FIRST_SNAPSHOT_ID and (
        history.cuts.root_behind(snapshot.id) is not None or not history.has_whole_log(snapshot)
    )
    parent = None if is_cut else history.find(snapshot.parent_id)
    if parent is None:
        raise SnapshotNotFoundError(
            f"what {snapshot.id} changed is not known any more: the commit before it has expired. "
            "Copy the values that you need from "
            f"repo.readonly_session(snapshot_id='{snapshot.id}') or an earlier snapshot",
            str(snapshot.parent_id),
        )
    return parent
