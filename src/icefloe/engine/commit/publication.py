"""The working tree of a session on its way into a branch: commit, flush, amend and rebase."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icefloe.changes.conflicts import ConflictDetector, check_solver
from icefloe.engine.async_twin import async_twin
from icefloe.engine.commit.commit_metadata import check_message, plain_metadata
from icefloe.engine.commit.rebase import MeetingView, back_off, rebase_changes
from icefloe.engine.commit.unlinking import unlink
from icefloe.engine.commit.write import CommitMessage, write_commit
from icefloe.engine.retention.announcements import pinned
from icefloe.engine.retention.session_lease import SessionLease
from icefloe.engine.retention.uncommitted import check_own_files
from icefloe.engine.retention.unsettled import Unsettled
from icefloe.engine.working_tree import WorkingTree
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.formats.port import LiveTip
from icefloe.model import paths

if TYPE_CHECKING:
    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.engine.context import Context
    from icefloe.formats.port import BranchTip
    from icefloe.model.snapshot import Snapshot
    from icefloe.session import Session

_MAX_MOVES_READ = 100
"""If a branch moved more often, looking for our files is quicker than reading all moves."""


class CommittedTree(WorkingTree):
    """Changes over a snapshot, and the place of the branch that they go to."""

    _is_leased = True

    def __init__(
        self,
        context: Context,
        snapshot: Snapshot,
        tip: LiveTip | None = None,
        default_metadata: dict[str, Any] | None = None,
    ) -> None:
        """Take the snapshot to show and, for a writable session, where its branch stands."""
        super().__init__(context, snapshot)
        self._tip = tip
        self._default_metadata = dict(default_metadata or {})
        self._started_at = datetime.now(UTC)
        self._unmerged_forks = False
        self._unsettled = Unsettled()
        self._lease = (
            SessionLease(context.storage, snapshot.id)
            if tip is not None and self._is_leased
            else None
        )

    @staticmethod
    def _looking_at(context: Context, snapshot: Snapshot, changes: ChangeSet | None) -> Session:
        """A read-only session on a snapshot, with changes laid over it if given."""
        raise NotImplementedError

    # --- committing

    def discard_changes(self, path: str | None = None) -> None:
        """Forget all uncommitted changes, if there are any.

        With a path, only those of the node there and of all below it; moves stay.
        """
        with self._lock:
            if path is not None:
                self._check_writable()
                self._changes.discard(paths.canonical(path))
                return
            self._unsettled.forget()
            self._show(self._snapshot)

    def commit(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        *,
        allow_empty: bool = False,
    ) -> str:
        """Publish the changes as the next snapshot of the branch, all or nothing.

        If the branch moved meanwhile, raises ConflictError; with a solver, the changes are
        rebased and the commit is tried again. Afterwards the session is read-only.

        After an error that leaves open whether the commit landed (CommitStateUnknownError) it may
        be called again: if it has landed, that raises ConflictError whatever the solver.
        """
        if rebase_with is not None:
            check_solver(rebase_with)
        with self._lock:
            self._check_commit(allow_empty=allow_empty)
            self._refuse_twice()
            said = self._said(message, metadata)
            tries = min(rebase_tries, self._context.settings.publish_max_tries)
            attempt = 0
            while True:
                try:
                    return self._write_and_publish(said)
                except ConflictError:
                    if rebase_with is None or attempt >= tries:
                        raise
                back_off(self._context.settings, attempt)
                attempt += 1
                self._rebase(rebase_with)

    def flush(self, message: str, metadata: dict[str, Any] | None = None) -> str:
        """Write the changes as a snapshot that no branch points to; returns its id."""
        with self._lock:
            self._check_commit(allow_empty=False)
            said = self._said(message, metadata)
            snapshot, seen = None, self._confirm_tip(self._tip)
            while snapshot is None:
                snapshot = self._write(said)
                self._confirm_lease()
                newest = self._confirm_tip(seen)
                if newest != seen:  # what was just written may be gone
                    snapshot, seen = None, newest
            self._context.storage.sync()
            self._finish(snapshot)
            return str(snapshot.id)

    def amend(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        allow_empty: bool = False,
    ) -> str:
        """Replace the tip of the branch by a snapshot that has its changes and ours."""
        with self._lock:
            self._check_commit(allow_empty=allow_empty)
            self._refuse_twice()
            return self._write_and_publish(self._said(message, metadata), is_amended=True)

    def rebase(self, solver: ConflictSolver) -> None:
        """Lay the changes over the newest snapshot of the branch.

        Raises RebaseFailedError if there are conflicts that the solver does not resolve; then
        the session is as it was.
        """
        check_solver(solver)
        with self._lock:
            self._check_writable()
            self._rebase(solver)

    commit_async = async_twin(commit)
    flush_async = async_twin(flush)
    amend_async = async_twin(amend)
    rebase_async = async_twin(rebase)

    def _check_commit(self, *, allow_empty: bool) -> None:
        self._check_writable()
        if self._unmerged_forks:
            warnings.warn(
                "this session was forked and no fork was merged back: changes of forks that are "
                "not merged are not committed",
                UserWarning,
                stacklevel=3,
            )
        if self._changes.is_empty and not allow_empty:
            raise SessionStateError("cannot commit, no changes made to the session")

    def _said(self, message: str, metadata: dict[str, Any] | None) -> CommitMessage:
        given = {} if metadata is None else plain_metadata(metadata)
        properties = {**self._default_metadata, **given}
        return CommitMessage(check_message(message), properties, self._started_at)

    def _write(self, said: CommitMessage, *, is_amended: bool = False) -> Snapshot:
        self._packs.write_all()
        # A snapshot over what is gone would be of no use, and a burden to who collects.
        self._confirm_lease()
        parent, replaced = None, None
        if is_amended:
            parent, replaced = self._context.history.replaceable(self._snapshot)
        return write_commit(
            self._context.files,
            self._snapshot,
            self._changes,
            said,
            self._context.settings,
            parent=parent,
            replaced=replaced,
        )

    def _write_and_publish(self, said: CommitMessage, *, is_amended: bool = False) -> str:
        while True:
            snapshot = self._write(said, is_amended=is_amended)
            try:
                self._publish(snapshot)
            except ConflictError as error:
                if error.actual_parent != str(self._snapshot.id) or not self._follow():
                    raise
            else:
                return str(snapshot.id)

    def _follow(self) -> bool:
        """Take the place of the branch anew if it moved from where it stood to where it stood.

        A collection does that before it deletes: what was written before may be gone.
        """
        assert self._tip is not None
        newest = None
        for tip in self._context.refs.reflog(self._tip.branch):
            if tip.sequence <= self._tip.sequence:
                break
            if not isinstance(tip, LiveTip) or tip.snapshot_id != self._snapshot.id:
                return False
            newest = newest or tip
        if newest is not None:
            self._take_place(newest)
        return newest is not None

    def _take_place(self, tip: LiveTip) -> None:
        """Stand where the branch stands, on our base; a collection may have come by."""
        check_own_files(self._context, self._changes)
        self._tip = tip

    def _publish(self, snapshot: Snapshot) -> None:
        assert self._tip is not None
        self._confirm_lease()
        # Before it is tried: it may be interrupted at any point.
        self._unsettled.add(snapshot.id)
        try:
            self._context.refs.advance(self._tip, snapshot.id)
        except ConflictError:
            self._unsettled.settle(snapshot.id)
            raise
        except CommitStateUnknownError as error:
            raise CommitStateUnknownError(error.message, error.key, str(snapshot.id)) from error
        self._finish(snapshot)

    def _refuse_twice(self) -> None:
        """Raise ConflictError if an earlier commit of these changes has landed after all."""
        if self._unsettled:
            assert self._tip is not None
            tip = self._context.refs.tip(self._tip.branch)
            self._unsettled.refuse_landed(self._context.history, self._snapshot.id, tip)

    def _confirm_lease(self) -> None:
        """Make sure that nothing that we need was collected, if that could have happened."""
        if self._lease is None or self._lease.confirm():
            return
        self._look()
        self._lease.looked()

    def _confirm_tip(self, seen: BranchTip | None) -> BranchTip | None:
        """The same for who publishes nothing, if a collection moved the branch since it was seen.

        Returns where the branch is then; what was written before that may be gone.
        """
        assert self._tip is not None
        tip = self._context.refs.tip(self._tip.branch)
        if tip == seen or not self._is_passed(tip, seen):
            return seen
        self._look()
        return tip

    def _look(self) -> None:
        check_own_files(self._context, self._changes)
        if self._snapshot.parent_id is not None and not self._base_stays():
            raise SessionStateError(
                f"snapshot {self._snapshot.id} that this session is based on was collected as "
                "garbage: no branch had it any more, and the session was suspended or cut off for "
                "longer than its lease held; start a new session"
            )

    def _base_stays(self) -> bool:
        """Whether our base is there, and no collection that runs is about to delete it."""
        context = self._context
        try:
            with pinned(context.storage, context.format.layout, self._snapshot.id):
                return True
        except SnapshotNotFoundError:
            return False

    def _finish(self, snapshot: Snapshot) -> None:
        if self._lease is not None:
            self._lease.end()
        self._tip = None
        self._unmerged_forks = False
        self._show(snapshot)

    def _rebase(self, solver: ConflictSolver) -> None:
        assert self._tip is not None
        tip = self._context.refs.tip(self._tip.branch)
        if not isinstance(tip, LiveTip):
            raise ConflictError(
                f"branch {self._tip.branch!r} was deleted", str(self._snapshot.id), None
            )
        if tip.snapshot_id == self._snapshot.id:
            if tip != self._tip:
                self._take_place(tip)
            return
        self._unsettled.refuse_landed(self._context.history, self._snapshot.id, tip)
        theirs = self._context.history.changes_between(self._snapshot.id, tip.snapshot_id)
        if theirs is None:
            raise ConflictError(
                f"branch {tip.branch!r} was reset: its history no longer has snapshot "
                f"{self._snapshot.id} that this session is based on; start a new session",
                str(self._snapshot.id),
                str(tip.snapshot_id),
            )
        if self._is_passed(tip, self._tip):
            check_own_files(self._context, self._changes)
        head = self._context.files.read_snapshot(tip.snapshot_id)
        ours = self._portable_changes()
        # Solvers of that kind may do more, such as to move what was appended.
        every = type(solver) is not ConflictDetector
        unlink(self._context.files, ours, self._snapshot, head, all_tiles=every)
        view = MeetingView(self._context, self._snapshot, head, self._looking_at)
        rebase_changes(view, ours, theirs, self._view.chunks, solver)
        self._unsettled.forget()
        self._tip = tip
        self._show(head, ours)

    def _is_passed(self, tip: BranchTip | None, seen: BranchTip | None) -> bool:
        """Whether a collection may have come by between two states of the branch.

        It leaves a move that went nowhere, but on a branch that was deleted at that time.
        """
        if tip is None or seen is None or tip.snapshot_id is None:
            return True
        if tip.sequence <= seen.sequence + 1:
            return tip.snapshot_id == seen.snapshot_id
        if tip.sequence > seen.sequence + _MAX_MOVES_READ:
            return True
        later = None
        for entry in self._context.refs.reflog(tip.branch):
            if entry.snapshot_id is None or (later and entry.snapshot_id == later.snapshot_id):
                return True
            if entry.sequence <= seen.sequence:
                return False
            later = entry
        return True

    def _portable_changes(self) -> ChangeSet:
        """A copy of the changes that means the same on another base, and next to others."""
        with self._lock:
            self._packs.write_all()
            copied = self._changes.copy()
            copied.make_clears_explicit(self._view.chunks.table)
            return copied
