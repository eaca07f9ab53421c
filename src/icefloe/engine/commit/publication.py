"""Publishes the changes of a working tree on a branch: write, publish, and follow the branch.

A commit is written as an `UnpublishedCommit`, bound to the tip that the branch had then, and is
published by one atomic step that fails if the branch has moved. Garbage collection moves branches,
too: before it deletes, it publishes the tip of each branch again (G7 of
`retention/collection.py`). Who finds such a move writes the commit again, after checking that what
the session wrote before was not collected.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.changes.chunk_edits import prepare_tables
from icefloe.changes.conflicts import ConflictDetector
from icefloe.engine.commit.linked_tiles import unlink
from icefloe.engine.commit.rebase import MergeInputs, rebase_changes
from icefloe.engine.commit.write import CommitMessage, Replaced, write_commit
from icefloe.engine.retention.branch_moves import retry_after_collection, retry_on_conflict
from icefloe.engine.retention.pins import pinned
from icefloe.engine.retention.session_lease import SessionLease
from icefloe.engine.retention.uncommitted import (
    check_own_files,
    check_still_there,
    written_files,
)
from icefloe.engine.retention.unsettled import Unsettled
from icefloe.engine.tree.grid_checks import no_bytes
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    IcefloeError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.formats.port import LiveTip, branch_moved
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.record import Record
from icefloe.model.snapshot import Snapshot
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.storage.concurrency import together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.engine.commit.rebase import ShowTree
    from icefloe.engine.context import Context
    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.formats.port import BranchTip, Refs
    from icefloe.model.transaction_log import TransactionLog

    Write = Callable[[CommitMessage], "UnpublishedCommit"]

_MAX_MOVES_READ = 100
"""If a branch moved more often, looking for our files is quicker than reading all moves."""


class UnpublishedCommit(Record, frozen=True):
    """A commit of which everything is written but the reference that makes it visible (C1)."""

    snapshot: Snapshot
    """What was written; its `parent_id` is the commit that it follows."""
    tip: LiveTip
    """The state of the branch that it was written for, and the only one it can replace."""

    def publish(self, refs: Refs) -> BranchTip:
        """Make it the tip of its branch; raises ConflictError if the branch has moved."""
        return refs.publish(self.tip, self.snapshot)


class Publication:
    """The way of a tree's changes into a branch.

    It has the branch's tip that the changes are based on, the lease that protects what was written
    from garbage collection, and the attempts to commit whose outcome is unknown. Callers hold the
    lock of the tree.
    """

    def __init__(
        self, tree: WorkingTree, tip: LiveTip, default_metadata: dict[str, Any] | None = None
    ) -> None:
        """Start from the tip of a branch, whose snapshot the tree shows.

        Args:
            tree: The changes that will be committed.
            tip: The tip of the branch.
            default_metadata: Properties of every commit, unless it has others.
        """
        self.tree = tree
        self.tip = tip
        self.default_metadata = dict(default_metadata or {})
        self.lease = SessionLease(tree.context.storage, tree.snapshot.id)
        self._started_at = datetime.now(UTC)
        self._unsettled = Unsettled()
        self._seen: str | None = None
        """The snapshot that the branch was last seen at, if it had moved."""

    @property
    def _context(self) -> Context:
        return self.tree.context

    def message(self, text: str, metadata: dict[str, Any] | None) -> CommitMessage:
        """A checked message with the default metadata and some more."""
        return CommitMessage.of(
            text, metadata, defaults=self.default_metadata, started_at=self._started_at
        )

    # --- write, publish, follow

    def commit(self, message: CommitMessage) -> Snapshot:
        """Publish the changes as the next commit of the branch; raises ConflictError."""
        return self._write_and_publish(self.write, message)

    def commit_or_rebase(
        self, message: CommitMessage, solver: ConflictSolver, tries: int, show: ShowTree
    ) -> Snapshot:
        """Publish the changes; where the branch has moved, rebase them and try again."""
        settings = self._context.settings
        # It is expected that the branch moves: to look at the same time as the first files are
        # written saves the snapshot, and the attempt to publish it.
        looks = not self._context.storage.capabilities.reads_are_immediate

        def attempt() -> Snapshot:
            nonlocal looks
            write, looks = self._write_if_unmoved if looks else self.write, False
            return self._write_and_publish(write, message)

        return retry_on_conflict(
            settings,
            attempt,
            tries=min(tries, settings.publish_max_tries),
            before_retry=partial(self.rebase, solver, show),
        )

    def amend(self, message: CommitMessage) -> Snapshot:
        """Publish the changes and those of the branch's tip as one commit in place of the tip."""
        return self._write_and_publish(self.write_amended, message)

    def flush(self, message: CommitMessage) -> Snapshot:
        """Write the changes as a snapshot that no branch points to."""
        seen = self._check_collections_since(self.tip)
        while True:
            unpublished = self.write(message)
            self._check_lapsed_lease()
            newest = self._check_collections_since(seen)
            if newest == seen:
                self._context.storage.sync()
                self._context.refs.list_detached(unpublished.snapshot)
                return self._finish(unpublished)
            seen = newest  # a collection may have deleted what was just written

    def write(self, message: CommitMessage) -> UnpublishedCommit:
        """Write everything of a commit but its reference."""
        return self._write(message, lambda: None)

    def _write_if_unmoved(self, message: CommitMessage) -> UnpublishedCommit:
        """Like `write`; raises ConflictError if the branch has moved before the snapshot."""
        return self._write(message, lambda: None, [self._refuse_if_moved])

    def write_amended(self, message: CommitMessage) -> UnpublishedCommit:
        """Like `write`, for a commit in place of the one that the tree is based on."""
        history = self._context.history
        return self._write(message, lambda: Replaced(*history.replaceable(self.tree.snapshot)))

    def _write(
        self,
        message: CommitMessage,
        replaced: Callable[[], Replaced | None],
        more_checks: Sequence[Callable[[], None]] = (),
    ) -> UnpublishedCommit:
        context, tree = self._context, self.tree
        checks: list[Callable[[], None]] = [
            partial(context.refs.check_same_repository, self.tip),
            *more_checks,
        ]
        if self._has_first_base:
            checks += self._checks_of_files()
        with tree.packed() as (changes, uploads):
            # A snapshot over objects that are gone would only be more garbage.
            self._check_lapsed_lease()
            if not context.format.keeps_empty_chunks:
                _check_empty_chunks(changes)
            snapshot = write_commit(
                context.files,
                tree.snapshot,
                changes,
                message,
                context.settings,
                replaced=replaced(),
                uploads=uploads,
                checks=checks,
            )
        return UnpublishedCommit(snapshot, self.tip)

    @property
    def _has_first_base(self) -> bool:
        """Whether our base is the first snapshot, by which no repository is known from another."""
        return self.tree.snapshot.id == FIRST_SNAPSHOT_ID

    def _checks_of_files(self) -> list[partial[None]]:
        """What shows that the repository is the one in which we wrote: our files are there."""
        files = written_files(self._context, self.tree.changes)
        return [partial(check_still_there, self._context, files)] if files else []

    def publish(self, unpublished: UnpublishedCommit) -> Snapshot:
        """Make a commit visible; raises ConflictError if the branch has moved."""
        self._check_lapsed_lease()
        snapshot_id = unpublished.snapshot.id
        # Before it is tried: it may be interrupted at any point.
        self._unsettled.add(snapshot_id)
        try:
            unpublished.publish(self._context.refs)
        except ConflictError as error:
            self._unsettled.settle(snapshot_id)
            self._seen = error.actual_parent
            raise
        except CommitStateUnknownError as error:
            raise CommitStateUnknownError(error.message, error.key, str(snapshot_id)) from error
        return self._finish(unpublished)

    def _write_and_publish(self, write: Write, message: CommitMessage) -> Snapshot:
        """Write a commit and publish it."""
        self._check_no_earlier_attempt_landed()

        def write_and_publish(_: LiveTip) -> Snapshot:
            return self.publish(write(message))

        return retry_after_collection(
            self._context.refs, self.tip, write_and_publish, self._move_to_collected
        )

    def _refuse_if_moved(self) -> None:
        """Raise ConflictError if the branch has another snapshot than its tip that we know."""
        newest: BranchTip | None = None
        with contextlib.suppress(IcefloeError):  # publishing notices in any case
            newest = self._context.refs.tip(self.tip.branch)
        if isinstance(newest, LiveTip) and newest.snapshot_id != self.tip.snapshot_id:
            self._seen = str(newest.snapshot_id)
            raise branch_moved(self.tip, newest.snapshot_id)

    def _finish(self, unpublished: UnpublishedCommit) -> Snapshot:
        self.lease.end()
        self.tree.show_committed(unpublished.snapshot)
        return unpublished.snapshot

    def discard_changes(self) -> None:
        """Forget all changes of the tree."""
        self._unsettled.forget()
        self.tree.show(self.tree.snapshot)

    def _check_no_earlier_attempt_landed(self) -> None:
        """Raise ConflictError if an earlier commit of these changes has landed after all."""
        if self._unsettled:
            tip = self._context.refs.tip(self.tip.branch)
            self._unsettled.refuse_landed(self._context.history, self.tree.snapshot.id, tip)

    # --- rebase

    def rebase(self, solver: ConflictSolver, show: ShowTree) -> None:
        """Lay the changes over the newest snapshot of the branch.

        Raises RebaseFailedError if there are conflicts that the solver does not resolve; then
        nothing has changed.

        Args:
            solver: Decides about conflicts.
            show: Makes what solvers see of a tree.
        """
        context, tree, base = self._context, self.tree, self.tree.snapshot
        tip, (seen, log) = together(
            context.storage, lambda: context.refs.tip(self.tip.branch), self._read_seen
        )
        if not isinstance(tip, LiveTip):
            raise ConflictError(f"branch {self.tip.branch!r} was deleted", str(base.id), None)
        if tip.snapshot_id == base.id:
            if tip != self.tip:
                self._move_to_collected(tip)
            return
        self._unsettled.refuse_landed(context.history, base.id, tip)
        was_seen = tip.snapshot_id == seen
        theirs, may_be_collected, _ = together(
            context.storage,
            lambda: context.history.changes_between(
                base.id, tip.snapshot_id, log if was_seen else None
            ),
            lambda: self._may_have_been_collected(self.tip, tip),
            partial(self._fetch_edited, tip.snapshot_id) if was_seen else lambda: None,
        )
        if theirs is None:
            raise ConflictError(
                f"branch {tip.branch!r} was reset: its history no longer has snapshot "
                f"{base.id} that this session is based on; start a new session",
                str(base.id),
                str(tip.snapshot_id),
            )
        if may_be_collected or self._has_first_base:
            check_own_files(context, tree.changes)
        head = context.files.read_snapshot(tip.snapshot_id)
        ours = tree.portable_changes()
        # Other solvers decide chunk by chunk, or move what was appended.
        unlink(context.files, ours, base, head, all_tiles=type(solver) is not ConflictDetector)
        inputs = MergeInputs(context=context, base=base, head=head, show=show)
        rebase_changes(inputs, ours, theirs, tree.chunks, solver)
        self._unsettled.forget()
        self.tip = tip
        tree.show(head, ours)

    def _read_seen(self) -> tuple[SnapshotId | None, TransactionLog | None]:
        """Read the commit that the branch was seen at, which most often is the newest one.

        Returns its id and its log, if it has one.
        """
        seen, self._seen = self._seen, None
        context = self._context
        if seen is None or context.storage.capabilities.reads_are_immediate:
            return None, None
        with contextlib.suppress(IcefloeError):  # the caller that needs it gets the error
            snapshot_id = SnapshotId.from_text(seen)
            _, log = together(
                context.storage,
                lambda: context.files.read_snapshot(snapshot_id),
                lambda: context.files.read_transaction_log(snapshot_id),
            )
            return snapshot_id, log
        return None, None

    def _fetch_edited(self, snapshot_id: SnapshotId) -> None:
        """Read the manifests of a snapshot that the changes need for a rebase onto it."""
        with contextlib.suppress(IcefloeError):  # the caller that needs it gets the error
            head = self._context.files.read_snapshot(snapshot_id)
            SnapshotChunks(self._context.files, head).fetch_edited(self.tree.changes)

    # --- garbage collections beside the session

    def _move_to_collected(self, tip: LiveTip) -> None:
        """Move to a tip that a garbage collection published for our base."""
        check_own_files(self._context, self.tree.changes)
        self.tip = tip

    def _check_lapsed_lease(self) -> None:
        """If our lease has lapsed, make sure that nothing that we need was collected."""
        if not self.lease.confirm():
            self._check_nothing_collected()
            self.lease.note_all_present()

    def _check_collections_since(self, seen: BranchTip | None) -> BranchTip | None:
        """If a collection moved the branch since, make sure that nothing we need was collected.

        Returns the tip up to which that is known: `seen`, unless a collection came after it.
        Commits find out when they publish; this is for what is not published.
        """
        tip = self._context.refs.tip(self.tip.branch)
        if tip == seen or not self._may_have_been_collected(seen, tip):
            return seen
        self._check_nothing_collected()
        return tip

    def _check_nothing_collected(self) -> None:
        """Raise SessionStateError unless our base and all that we wrote are there and stay."""
        check_own_files(self._context, self.tree.changes)
        base = self.tree.snapshot
        if base.parent_id is not None and not self._is_base_safe_from_collection():
            raise SessionStateError(
                f"snapshot {base.id} that this session is based on was collected as "
                "garbage: no branch had it any more, and the session was suspended or cut off for "
                "longer than its lease held; start a new session"
            )

    def _is_base_safe_from_collection(self) -> bool:
        """Whether our base exists and no collection that is running will delete it."""
        context = self._context
        try:
            with pinned(context.storage, context.format.layout, self.tree.snapshot.id):
                return True
        except SnapshotNotFoundError:
            return False

    def _may_have_been_collected(self, seen: BranchTip | None, tip: BranchTip | None) -> bool:
        """Whether a garbage collection may have run between two tips of the branch.

        It publishes the tip of each branch again, but not of branches that are deleted.
        """
        if tip is None or seen is None or tip.snapshot_id is None:
            return True
        if tip.sequence <= seen.sequence + 1:
            return tip.snapshot_id == seen.snapshot_id
        refs = self._context.refs
        if refs.numbers_moves and tip.sequence > seen.sequence + _MAX_MOVES_READ:
            return True
        later = None
        for entry in refs.entries(tip, seen.sequence):
            if entry.snapshot_id is None or (later and entry.snapshot_id == later.snapshot_id):
                return True
            if entry.sequence <= seen.sequence:
                return False
            later = entry
        return True


def _check_empty_chunks(changes: ChangeSet) -> None:
    """Refuse chunks without bytes, where the format cannot have them.

    Not when they are set: a zarr store takes any bytes, and the chunk may still be replaced.
    """
    prepare_tables(changes.chunks.values())
    for node_id, edits in changes.chunks.items():
        node, table = changes.array_by_id(node_id), edits.apply(None)
        if node is None or table is None:
            continue
        empty = np.flatnonzero(table.refs.lengths == 0)
        if len(empty):
            raise no_bytes(node.path, table.index.coords()[empty[0]].tolist())
