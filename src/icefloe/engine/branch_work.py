"""Work on branches as in git: merge, cherry-pick, revert, squash and publish.

Each of them takes the difference of two snapshots as a change set and lays it over the tip of a
branch, with the conflict detection of a rebase. One commit at most; the tip moves last.
"""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.patches import patch
from icefloe.changes.solvers import AppendSolver, MergeSolver
from icefloe.engine.commit.node_numbers import NodeOrigin
from icefloe.engine.commit.rebase import MergeInputs, back_off, rebase_changes
from icefloe.engine.commit.write import CommitMessage, Replaced, as_one, write_commit
from icefloe.engine.history.merge_base import find_merge_base
from icefloe.engine.history.merge_simplification import Meeting
from icefloe.engine.history.net_difference import net_difference
from icefloe.engine.operations import OperationLog
from icefloe.engine.retention.announcements import SnapshotLease, pinned
from icefloe.engine.retention.branch_moves import moved_from
from icefloe.errors import (
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.formats.port import LiveTip
from icefloe.model.snapshot import merged_mark
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.engine.commit.rebase import ShowTree
    from icefloe.engine.context import Context
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot

_TAKEN = (
    "\nthe appends could not be put behind each other: a part of them is on both branches already, "
    "as after a cherry_pick; pick the other commits, too"
)


class BranchWork:
    """The operations on branches of an open repository."""

    def __init__(self, context: Context, default_metadata: dict[str, Any], show: ShowTree) -> None:
        """Take the repository's parts, what every commit says, and what shows trees to solvers."""
        self._context = context
        self._default_metadata = default_metadata
        self._show = show

    # --- operations

    def merge(
        self,
        from_branch: str,
        into_branch: str,
        message: str | None,
        metadata: dict[str, Any] | None,
        solver: ConflictSolver | None,
        *,
        fast_forward: bool,
    ) -> str:
        """See Repository.merge."""
        source = self._snapshot(self._live_tip(from_branch))
        target = self._live_tip(into_branch)
        found = find_merge_base(self._context, source.id, target.snapshot_id)
        base_id = found.snapshot_id
        if base_id == source.id:
            return str(target.snapshot_id)
        is_contained = base_id == target.snapshot_id
        if is_contained and fast_forward and self._descends(source.id, target.snapshot_id):
            return self.publish(from_branch, into_branch)
        said = self._said(message or f"Merge branch {from_branch!r} into {into_branch!r}", metadata)
        said.metadata.update(merged_mark([source.id], found.line))
        base = self._context.files.read_snapshot(base_id)
        # That the other branch took over all of this one, and no more, needs no commit.
        keep_empty = not is_contained or not fast_forward
        return self._apply(base, source, into_branch, said, solver, keep_empty=keep_empty)

    def cherry_pick(
        self,
        picked: SnapshotId,
        branch: str,
        message: str | None,
        metadata: dict[str, Any] | None,
        solver: ConflictSolver | None,
    ) -> str:
        """See Repository.cherry_pick."""
        after = self._context.files.read_snapshot(picked)
        said = self._said(message or after.message, {**after.public_metadata(), **(metadata or {})})
        return self._apply(self._parent(after), after, branch, said, solver)

    def revert(
        self,
        undone: SnapshotId,
        branch: str,
        message: str | None,
        metadata: dict[str, Any] | None,
        solver: ConflictSolver | None,
    ) -> str:
        """See Repository.revert."""
        before = self._context.files.read_snapshot(undone)
        title = before.message.partition("\n")[0]
        said = self._said(message or f"Revert '{title}' ({before.id})", metadata)
        return self._apply(before, self._parent(before), branch, said, solver)

    def squash(
        self, branch: str, since: SnapshotId, message: str, metadata: dict[str, Any] | None
    ) -> str:
        """See Repository.squash."""
        context = self._context
        ensure_conditional_writes(context.storage)
        said = self._said(message, metadata)
        squashed = partial(self._squash, since=since, said=said)
        return moved_from(context.refs, self._live_tip(branch), squashed)

    def _squash(self, tip: LiveTip, since: SnapshotId, said: CommitMessage) -> str:
        context = self._context
        newest = self._snapshot(tip)
        changes = None
        if since != newest.id and context.history.shows(since, newest.id):
            changes = context.history.changes_between(since, newest.id)
        if changes is None:
            raise InvalidInputError(
                f"cannot squash {tip.branch!r}: {since} is not an earlier snapshot of it"
            )
        gone = takewhile(lambda each: each.id != since, context.history.ancestry(newest.id))
        snapshot = write_commit(
            context.files,
            as_one(gone),
            ChangeSet(newest.nodes),
            said,
            context.settings,
            replaced=Replaced(context.files.read_snapshot(since), changes),
        )
        context.refs.advance(tip, snapshot.id)
        self._note("squash", tip.branch, newest.id, snapshot.id)
        return str(snapshot.id)

    def publish(self, from_branch: str, to_branch: str) -> str:
        """See Repository.publish."""
        ensure_conditional_writes(self._context.storage)
        source, target = self._live_tip(from_branch), self._live_tip(to_branch)
        if source.snapshot_id == target.snapshot_id:
            return str(target.snapshot_id)
        if not self._descends(source.snapshot_id, target.snapshot_id):
            raise ConflictError(
                f"cannot fast-forward {to_branch!r} to {from_branch!r}: it has commits of its own "
                f"since they parted; merge {to_branch!r} into {from_branch!r} first",
                str(source.snapshot_id),
                str(target.snapshot_id),
            )
        moved_from(self._context.refs, target, partial(self._forward, to=source.snapshot_id))
        self._note("publish", to_branch, target.snapshot_id, source.snapshot_id)
        return str(source.snapshot_id)

    def _forward(self, tip: LiveTip, to: SnapshotId) -> None:
        with self._pinned(to):
            self._context.refs.advance(tip, to)

    def _note(self, kind: str, branch: str, before: SnapshotId, after: SnapshotId) -> None:
        """Write down what no commit tells: that a branch moved, and from where."""
        details = {"branch": branch, "from": str(before), "to": str(after)}
        OperationLog(self._context.storage).add(kind, details)

    # --- parts of them

    def _apply(
        self,
        base: Snapshot,
        after: Snapshot,
        branch: str,
        said: CommitMessage,
        solver: ConflictSolver | None,
        *,
        keep_empty: bool = False,
    ) -> str:
        """Commit what leads from one snapshot to another on top of a branch."""
        context = self._context
        ensure_conditional_writes(context.storage)
        patched = patch(
            base.nodes,
            after.nodes,
            net_difference(context.history, base, after),
            context.files.documents_of(after),
            SnapshotChunks(context.files, after).table,
        )
        attempt = 0
        while True:
            tip = self._live_tip(branch)
            try:
                # The commit refers to chunk files of a snapshot that nothing else may reach. Each
                # time after the tip: a collection that comes later moves the branch.
                with self._pinned(after.id):
                    return self._lay_over(
                        tip, base, patched.copy(), said, solver, keep_empty=keep_empty
                    )
            except RebaseFailedError:
                raise
            except ConflictError:
                if attempt >= context.settings.publish_max_tries:
                    raise
            back_off(context.settings, attempt)
            attempt += 1

    def _pinned(self, snapshot_id: SnapshotId) -> AbstractContextManager[SnapshotLease]:
        return pinned(self._context.storage, self._context.format.layout, snapshot_id)

    def _lay_over(
        self,
        tip: LiveTip,
        base: Snapshot,
        ours: ChangeSet,
        said: CommitMessage,
        solver: ConflictSolver | None,
        *,
        keep_empty: bool,
    ) -> str:
        """Commit changes over a base on top of a branch; raises ConflictError if that moved."""
        context = self._context
        head = self._snapshot(tip)
        solver = solver or MergeSolver()
        shown = ours.copy()
        meeting = Meeting(context, base, head, ours)
        grown = meeting.grown(solver)
        advice = ""
        if isinstance(solver, AppendSolver) and meeting.has_taken(grown):
            advice = _TAKEN
            grown, solver = {}, solver.others
        meeting.drop_what_is_there(grown)
        theirs = net_difference(context.history, base, head)
        theirs = meeting.without_moved(theirs, grown)
        inputs = MergeInputs(context, base, head, self._show)
        chunks = SnapshotChunks(context.files, base)
        rebase_changes(inputs, ours, theirs, chunks, solver, shown=shown, advice=advice)
        if ours.is_empty and not keep_empty:
            return str(head.id)
        snapshot = write_commit(
            context.files,
            head,
            ours,
            said,
            context.settings,
            new_nodes=NodeOrigin.OTHER_BRANCH,
        )
        context.refs.advance(tip, snapshot.id)
        return str(snapshot.id)

    def _descends(self, snapshot_id: SnapshotId, ancestor: SnapshotId) -> bool:
        """Whether one snapshot follows another, commit by commit; merges do not count."""
        return self._context.history.between(ancestor, snapshot_id) is not None

    def _parent(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.parent_id is None:
            raise SessionStateError(
                f"{snapshot.id} is the first snapshot of the repository: it has no changes"
            )
        return self._context.files.read_snapshot(snapshot.parent_id)

    def _snapshot(self, tip: LiveTip) -> Snapshot:
        return self._context.files.read_snapshot(tip.snapshot_id)

    def _live_tip(self, branch: str) -> LiveTip:
        tip = self._context.refs.tip(branch)
        if not isinstance(tip, LiveTip):
            raise RefNotFoundError(f"ref not found `{branch}`: there is no such branch", branch)
        return tip

    def _said(self, message: str, metadata: dict[str, Any] | None) -> CommitMessage:
        return CommitMessage.of(message, metadata, defaults=self._default_metadata)
