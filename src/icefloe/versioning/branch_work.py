"""Work on branches as in git: merge, cherry-pick, revert, squash and publish.

Each of them takes the difference of two snapshots as a change set and lays it over the tip of a
branch, with the conflict detection of a rebase. One commit at most; the tip moves last.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.compare import same_refs
from icefloe.changes.patches import patch
from icefloe.changes.solvers import MergeSolver
from icefloe.errors import (
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.files.snapshot_chunks import SnapshotChunks
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.snapshot import merged_mark
from icefloe.storage.probe import ensure_conditional_writes
from icefloe.versioning.branch_moves import moved_from
from icefloe.versioning.commit import CommitMessage, as_one, write_commit
from icefloe.versioning.commit_metadata import check_message, plain_metadata
from icefloe.versioning.doomed import SnapshotLease, pinned
from icefloe.versioning.operations import OperationLog
from icefloe.versioning.rebase import MeetingView, back_off, rebase_changes
from icefloe.versioning.session import looking_at

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.formats.port import BranchTip
    from icefloe.model.ids import SnapshotId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.versioning.context import Context


class _Contained(NamedTuple):
    """What a snapshot contains, by descent or by merges, back to some common ancestor."""

    tip: SnapshotId
    oldest: SnapshotId
    times: dict[SnapshotId, datetime]
    """When those were written that are there."""
    told: set[SnapshotId]
    """What merges tell of in addition, whether it is there or not."""

    def all(self) -> set[SnapshotId]:
        return self.times.keys() | self.told

    def line_beyond(self, other: _Contained) -> list[SnapshotId]:
        """The commits before the tip that another one does not contain, newest first."""
        new = self.times.keys() - other.all() - {self.tip}
        return sorted(new, key=lambda each: self.times[each], reverse=True)


class BranchWork:
    """The operations on branches of an open repository."""

    def __init__(self, context: Context, default_metadata: dict[str, Any]) -> None:
        """Take the repository's parts and what every commit says."""
        self._context = context
        self._default_metadata = default_metadata

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
        assert target.snapshot_id is not None
        oldest = self._common_ancestor(source.id, target.snapshot_id)
        mine = self._contained(source.id, oldest)
        theirs = self._contained(target.snapshot_id, oldest)
        base_id = self._merge_base(mine, theirs)
        if base_id == source.id:
            return str(target.snapshot_id)
        is_contained = base_id == target.snapshot_id
        if is_contained and fast_forward and self._descends(source.id, target.snapshot_id):
            return self.publish(from_branch, into_branch)
        said = self._said(message or f"Merge branch {from_branch!r} into {into_branch!r}", metadata)
        said.metadata.update(merged_mark([source.id], mine.line_beyond(theirs)))
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

    def _squash(self, tip: BranchTip, since: SnapshotId, said: CommitMessage) -> str:
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
            parent=context.files.read_snapshot(since),
            replaced=changes,
        )
        context.refs.advance(tip, snapshot.id)
        self._note("squash", tip.branch, newest.id, snapshot.id)
        return str(snapshot.id)

    def publish(self, from_branch: str, to_branch: str) -> str:
        """See Repository.publish."""
        ensure_conditional_writes(self._context.storage)
        source, target = self._live_tip(from_branch), self._live_tip(to_branch)
        assert source.snapshot_id is not None
        assert target.snapshot_id is not None
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

    def _forward(self, tip: BranchTip, to: SnapshotId) -> None:
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
            context.history.net_difference(base, after),
            context.files.document,
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
        tip: BranchTip,
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
        self._drop_what_is_there(ours, head)
        view = MeetingView(context, base, head, looking_at)
        theirs = context.history.net_difference(base, head)
        rebase_changes(
            view, ours, theirs, SnapshotChunks(context.files, base), solver or MergeSolver()
        )
        if ours.is_empty and not keep_empty:
            return str(head.id)
        snapshot = write_commit(context.files, head, ours, said, context.settings, are_known=True)
        context.refs.advance(tip, snapshot.id)
        return str(snapshot.id)

    def _drop_what_is_there(self, ours: ChangeSet, head: Snapshot) -> None:
        """Forget changes that the branch has already, as after an earlier pick of a part."""
        document = self._context.files.document
        nodes = {
            node_id: head.nodes.by_id(node_id)
            for node_id in {*ours.new, *ours.documents, *ours.places, *ours.deleted, *ours.chunks}
        }
        for node_id, known in nodes.items():
            if known is None:
                ours.deleted.pop(node_id, None)
                continue
            created = ours.new.get(node_id)
            if created is not None and _is_same(known, document(known), created):
                del ours.new[node_id]
            if node_id in ours.documents and document(known) == ours.documents[node_id]:
                del ours.documents[node_id]
            if ours.places.get(node_id) == known.path:
                del ours.places[node_id]
        chunks = SnapshotChunks(self._context.files, head)
        for node_id, edits in ours.chunks.items():
            known = nodes[node_id]
            if known is not None:
                _drop_same_chunks(edits, chunks.table(known) if known.manifests else None)
        ours.chunks = {i: edits for i, edits in ours.chunks.items() if not edits.is_empty}
        ours.rebase(ours.base)

    def _descends(self, snapshot_id: SnapshotId, ancestor: SnapshotId) -> bool:
        """Whether one snapshot follows another, commit by commit; merges do not count."""
        return self._context.history.between(ancestor, snapshot_id) is not None

    def _common_ancestor(self, source: SnapshotId, target: SnapshotId) -> Snapshot:
        common = self._context.history.common_ancestor(source, target)
        if common is None:
            raise InvalidInputError(f"snapshots {source} and {target} have no common ancestor")
        return self._context.files.read_snapshot(common)

    def _merge_base(self, source: _Contained, target: _Contained) -> SnapshotId:
        """The newest snapshot that both branches contain, by descent or by earlier merges."""
        times = {**source.times, **target.times}
        both = source.all() & target.all()
        unknown = [each for each in both if each not in times]
        for snapshot in self._context.files.in_parallel(self._context.history.find, unknown):
            if snapshot is not None:
                times[snapshot.id] = snapshot.written_at
        known = sorted(both & times.keys(), key=lambda each: times[each], reverse=True)
        staying = {source.tip, target.tip, source.oldest}
        return next(each for each in known if each in staying or self._exists(each))

    def _contained(self, start: SnapshotId, oldest: Snapshot) -> _Contained:
        """The snapshots that one contains, back to the first common one."""
        found = _Contained(start, oldest.id, {oldest.id: oldest.written_at}, set())
        merged: list[SnapshotId] = []
        self._walk(start, oldest, found, merged)
        while merged:
            # A branch that was merged may have been deleted and collected since.
            with contextlib.suppress(SnapshotNotFoundError):
                self._walk(merged.pop(), oldest, found, merged)
        return found

    def _walk(
        self, start: SnapshotId, oldest: Snapshot, found: _Contained, merged: list[SnapshotId]
    ) -> None:
        """Note a snapshot and its ancestors, and what they merged."""
        for snapshot in self._context.history.ancestry(start):
            if snapshot.id in found.times or snapshot.written_at < oldest.written_at:
                break
            found.times[snapshot.id] = snapshot.written_at
            found.told.update(snapshot.merged_line())
            merged += snapshot.merged_ids()

    def _exists(self, snapshot_id: SnapshotId) -> bool:
        """Whether a snapshot is there, whatever we remember of it."""
        try:
            self._context.storage.head(self._context.format.layout.snapshot(snapshot_id))
        except ObjectNotFoundError:
            return False
        return True

    def _parent(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.parent_id is None:
            raise SessionStateError(
                f"{snapshot.id} is the first snapshot of the repository: it has no changes"
            )
        return self._context.files.read_snapshot(snapshot.parent_id)

    def _snapshot(self, tip: BranchTip) -> Snapshot:
        assert tip.snapshot_id is not None
        return self._context.files.read_snapshot(tip.snapshot_id)

    def _live_tip(self, branch: str) -> BranchTip:
        tip = self._context.refs.tip(branch)
        if tip is None or tip.snapshot_id is None:
            raise RefNotFoundError(f"ref not found `{branch}`: there is no such branch", branch)
        return tip

    def _said(self, message: str, metadata: dict[str, Any] | None) -> CommitMessage:
        given = {} if metadata is None else plain_metadata(metadata)
        properties = {**self._default_metadata, **given}
        return CommitMessage(check_message(message), properties, datetime.now(UTC))


def _is_same(known: Node, document: bytes, created: Node) -> bool:
    return known.path == created.path and document == created.document


def _drop_same_chunks(edits: ChunkEdits, theirs: ArrayChunks | None) -> None:
    """Forget edits that set a chunk to what it is already, or delete what is not there."""
    mine, gone = edits.own()
    same = []
    if mine is not None and theirs is not None:
        coords = mine.index.coords()
        rows = theirs.index.find_many(coords)
        both = np.flatnonzero(rows >= 0)
        alike = same_refs(mine.refs.take(both), theirs.refs.take(rows[both]))
        same.append(coords[both[alike]])
    if gone is not None:
        coords = gone.coords()
        same.append(coords if theirs is None else coords[theirs.index.find_many(coords) < 0])
    if any(map(len, same)):
        edits.discard(ChunkIndex.from_coords(np.concatenate(same))[0])
