"""Branches and tags of version 2: they move by replacing the `repo` file by its successor.

Every change is one update of the file, see `RepoFile.update`. Its list of snapshots and its log of
operations answer what other formats ask the files of snapshots and branches.
"""

from __future__ import annotations

import json
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.formats.icechunk import flexbuffers
from icefloe.formats.icechunk.config_tree import to_official
from icefloe.formats.icechunk.layout import LAYOUT, REPO_KEY
from icefloe.formats.icechunk.listed_snapshots import (
    ListedSnapshots,
    microseconds,
)
from icefloe.formats.icechunk.official_refs import OfficialRefs
from icefloe.formats.icechunk.repo_document import RepoDocument
from icefloe.formats.icechunk.repo_file import (
    CREATE_TAG,
    DELETE_TAG,
    MOVE_NODE,
    RepoFile,
    check_flag,
    check_status,
    utc_now,
)
from icefloe.formats.icechunk.update_columns import UpdateColumns
from icefloe.formats.port import (
    BranchState,
    DeletedTip,
    LiveTip,
    branch_moved,
)
from icefloe.formats.sequence_refs import MAX_NAME_BYTES, check_ref_name
from icefloe.model import MAIN
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_updates import (
    RepoStatus,
    UpdateType,
)
from icefloe.model.snapshot import SnapshotStub

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.formats.port import BranchTip, Codec
    from icefloe.model.repo_updates import Update, UpdateKind
    from icefloe.model.snapshot import ListedCommit, Snapshot
    from icefloe.storage.port import Storage

_HISTORY = 16
"""Ancestors that a snapshot remembers: as many as are read ahead."""


class RepoRefs(RepoFile, OfficialRefs):
    """Branches, tags and snapshots of a repository, as its `repo` file lists them."""

    records_moves = True

    lists_snapshots = True

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        super().__init__(storage)
        self._codec: Codec | None = None

    def view(self) -> RepoRefs:
        """The same references, from a file that is read once, when it is needed."""
        return _RepoView(self._storage)

    # --- reading

    def tip(self, branch: str) -> BranchTip | None:
        """Where a branch points; None if there is none."""
        found = self.read()
        return None if found is None else _tip_in(found, branch)

    def branches(self) -> set[str]:
        """Names of the branches that exist."""
        found = self.read()
        return set() if found is None else set(found.branches)

    def tag(self, name: str) -> SnapshotId | None:
        """What a tag points to."""
        found = self.read()
        return None if found is None else found.tags.get(name)

    def tags(self) -> set[str]:
        """Names of all tags that are not deleted."""
        found = self.read()
        return set() if found is None else set(found.tags)

    def tips(self) -> dict[str, BranchTip]:
        """Newest states of all branches."""
        newest = self.read()
        if newest is None:
            return {}
        tips = {branch: _tip_in(newest, branch) for branch in newest.branches}
        return {branch: tip for branch, tip in tips.items() if tip is not None}

    def tag_targets(self) -> dict[str, SnapshotId]:
        """What all tags point to."""
        newest = self.read()
        return {} if newest is None else dict(newest.tags)

    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """The states of a branch as far as the log of operations tells of them, newest first."""
        newest = self.read()
        if newest is None:
            return
        state = newest.branches.get(branch)
        has_moved = False
        for at, update, document in self._moves(branch, newest):
            has_moved = True
            after = _new_tip(update.kind) or state
            if isinstance(update.kind, UpdateType.BranchDeleted):
                yield DeletedTip(branch, at)
            elif after is not None:
                yield LiveTip(branch, at, after)
            state = _tip_before(update.kind, after, document)
        if not has_moved and state is not None:
            yield LiveTip(branch, _sequence(newest, branch), state)

    def _moves(
        self, branch: str, newest: RepoDocument
    ) -> Iterator[tuple[int, Update, RepoDocument]]:
        """The updates that concern a branch, over all backups, newest first."""
        for document in self.documents(newest):
            for at, update in document.updates.moves(branch):
                yield at, update, document

    def _check_unmoved(self, document: RepoDocument, tip: BranchTip) -> None:
        """Raise ConflictError if a branch moved, or garbage was collected, since `tip`."""
        actual = document.branches.get(tip.branch)
        if actual != tip.snapshot_id or self._has_moved(document, tip):
            raise branch_moved(tip, actual)

    def _has_moved(self, newest: RepoDocument, tip: BranchTip) -> bool:
        """Whether a branch may have left `tip` and returned to it, or garbage was collected."""
        oldest = newest
        for document in self.documents(newest):
            moved = document.updates.last_move(tip.branch)
            if moved is not None:
                return moved > tip.sequence
            if document.updates.oldest_at() <= tip.sequence + 1:
                return False  # it lists all that was done since
            oldest = document
        return oldest.before_updates is not None  # then the rest of the log is lost

    def states(self, branch: str) -> Iterator[BranchState]:
        """The same: one file has all of them, or none can be read."""
        for tip in self.reflog(branch):
            yield BranchState(tip.sequence, REPO_KEY, tip)

    def _listing(
        self, snapshot_id: SnapshotId, *, reread: bool = False
    ) -> tuple[ListedSnapshots, int] | None:
        """The list that has a snapshot, and its row there: the known list, or else the newest."""
        for document in (None,) if reread else (self._latest, None):
            found = self.read() if document is None else document
            row = None if found is None else found.snapshots.find(snapshot_id)
            if found is not None and row is not None:
                return found.snapshots, row
        return None

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """Add the parent of a snapshot, and some ancestors: files do not say them."""
        listing = self._listing(snapshot.id)
        if listing is None:
            return snapshot
        listed, row = listing
        ancestors = list(islice(listed.lineage(row), 1, _HISTORY + 1))
        history = tuple(map(listed.stub, ancestors))
        return msgspec.structs.replace(
            snapshot,
            parent_id=history[0].id if history else None,
            total_parents=listed.depth(row),
            history=history,
            parent_file=None,
        )

    def lineage(
        self, snapshot_id: SnapshotId, *, with_expired: bool = False
    ) -> Iterator[SnapshotStub] | None:
        """A snapshot and its ancestors as they are listed, newest first."""
        listing = self._listing(snapshot_id)
        if listing is None:
            return None
        listed, row = listing
        if with_expired:
            return _with_expired(listed, row)
        return map(listed.stub, listed.lineage(row))

    def listed_history(
        self, snapshot_id: SnapshotId, *, reread: bool = False
    ) -> Iterator[ListedCommit] | None:
        """A snapshot and its ancestors with all that a history shows of them, newest first."""
        listing = self._listing(snapshot_id, reread=reread)
        if listing is None:
            return None
        listed, row = listing
        return map(listed.commit, listed.lineage(row))

    def earlier_logs(self, snapshot_id: SnapshotId) -> Sequence[SnapshotId] | None:
        """The snapshots whose logs come before that of a commit, because they expired."""
        listing = self._listing(snapshot_id)
        return () if listing is None else listing[0].pruned_ids(listing[1])

    def listed_snapshots(self) -> Collection[SnapshotId]:
        """All snapshots that the file lists."""
        listed = self.document().snapshots
        return {listed.id_at(row) for row in range(len(listed))}

    def inform(self, codec: Codec) -> None:
        """Take the codec that reads snapshots, and its level of compression."""
        from icefloe.formats.icechunk.codec import IcechunkCodec

        if isinstance(codec, IcechunkCodec):
            self._codec = codec
            self._level = codec.level

    # --- moving

    def check_writable(self, tip: LiveTip) -> None:
        """Raise ReadOnlyError if the status of the repository forbids to change it."""
        check_status(self.known().status)
        self._others.warn(tip.snapshot_id)

    def check_move(self) -> None:
        """Raise InvalidInputError if a feature flag forbids to move nodes."""
        check_flag(self.known(), MOVE_NODE, "moving nodes")

    def publish(self, tip: LiveTip, snapshot: Snapshot) -> BranchTip:
        """Publish a commit that was just written as the next state of a branch, like `advance`."""

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            self._check_unmoved(document, tip)
            new, before = str(snapshot.id), str(tip.snapshot_id)
            kind: UpdateKind = UpdateType.NewCommit(tip.branch, new)
            pruned: Sequence[SnapshotId] = ()
            if snapshot.parent_id != tip.snapshot_id:
                kind = UpdateType.CommitAmended(tip.branch, before, new)
                pruned = _inherited(document, tip.snapshot_id, snapshot)
            return kind, {
                "snapshots": _with_snapshot(document, snapshot, pruned),
                "branches": {**document.branches, tip.branch: snapshot.id},
            }

        document = self.update(change)
        return LiveTip(tip.branch, _sequence(document, tip.branch), snapshot.id)

    def advance(self, tip: BranchTip, snapshot_id: SnapshotId | None) -> BranchTip:
        """Publish the next state of a branch: atomic, durable, settled.

        Raises ConflictError if the branch has moved past `tip`.
        """
        if snapshot_id is None and tip.branch == MAIN:
            raise InvalidInputError("every repository has a branch 'main': it cannot be deleted")

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            self._check_unmoved(document, tip)
            branches = dict(document.branches)
            before = str(tip.snapshot_id)
            if snapshot_id is None:
                del branches[tip.branch]
                return UpdateType.BranchDeleted(tip.branch, before), {"branches": branches}
            _check_listed(document, snapshot_id)
            branches[tip.branch] = snapshot_id
            return UpdateType.BranchReset(tip.branch, before), {"branches": branches}

        document = self.update(change, is_just_read=True)
        if snapshot_id is None:
            return DeletedTip(tip.branch, tip.sequence)
        return LiveTip(tip.branch, _sequence(document, tip.branch), snapshot_id)

    def repeat(self, tips: Collection[LiveTip]) -> set[str]:
        """Let every branch have one more state, by an update that says that garbage is collected.

        Returns the branches that have moved past their `tips`, to which nothing was done.
        """
        moved: set[str] = set()

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]] | None:
            moved.clear()
            moved.update(tip.branch for tip in tips if _tip_in(document, tip.branch) != tip)
            return None if len(moved) == len(tips) else (UpdateType.GCRan(), {})

        self.update(change)
        return moved

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> LiveTip:
        """Create a branch; `main` creates the repository.

        Raises AlreadyExistsError, InvalidInputError for a bad name.
        """
        check_ref_name(branch, "branch", MAX_NAME_BYTES)
        if branch == MAIN and self.read() is None:
            self.create_all(
                {MAIN: snapshot_id}, {}, [self._read_snapshot(snapshot_id)], is_new=True
            )
            return LiveTip(MAIN, _sequence(self.document(), MAIN), snapshot_id)

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            if branch in document.branches:
                raise AlreadyExistsError(f"branch {branch!r} exists already")
            _check_listed(document, snapshot_id)
            branches = {**document.branches, branch: snapshot_id}
            return UpdateType.BranchCreated(branch), {"branches": branches}

        document = self.update(change)
        return LiveTip(branch, _sequence(document, branch), snapshot_id)

    def _read_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        assert self._codec is not None
        key = LAYOUT.snapshot(snapshot_id)
        return self._codec.decode_snapshot(self._storage.get(key), snapshot_id, key)

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> Callable[[], None]:
        """Create a tag. Raises AlreadyExistsError, InvalidInputError for a bad name.

        Returns how to undo it: only for a caller that finds that the snapshot is gone. That cannot
        be, as tags are only created for snapshots that are listed.
        """
        check_ref_name(name, "tag", MAX_NAME_BYTES)

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            check_flag(document, CREATE_TAG, "creating tags")
            if name in document.tags or name in document.deleted_tags:
                raise AlreadyExistsError(
                    f"tag {name!r} exists already, or did once; tags never change"
                )
            _check_listed(document, snapshot_id)
            return UpdateType.TagCreated(name), {"tags": {**document.tags, name: snapshot_id}}

        self.update(change)

        def without(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]] | None:
            if document.tags.get(name) != snapshot_id:
                return None
            tags = {each: target for each, target in document.tags.items() if each != name}
            return UpdateType.TagDeleted(name, str(snapshot_id)), {"tags": tags}

        def undo() -> None:
            self.update(without)

        return undo

    def delete_tag(self, name: str) -> None:
        """Delete a tag; its name cannot be given again."""

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            check_flag(document, DELETE_TAG, "deleting tags")
            target = document.tags.get(name)
            if target is None:
                raise RefNotFoundError(f"ref not found `{name}`", name)
            return UpdateType.TagDeleted(name, str(target)), {
                "tags": {each: of for each, of in document.tags.items() if each != name},
                "deleted_tags": document.deleted_tags | {name},
            }

        self.update(change)

    def check_names(self, branches: Collection[str], tags: Collection[str]) -> None:
        """Raise InvalidInputError unless all of these names could be given, side by side."""
        for name in (*branches, *tags):
            check_ref_name(name, "branch or tag", MAX_NAME_BYTES)

    def create_all(
        self,
        branches: Mapping[str, SnapshotId],
        tags: Mapping[str, SnapshotId],
        snapshots: Iterable[Snapshot] = (),
        config: bytes | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Publish a repository with all that it has, as one file."""
        now = utc_now()
        tree = None if config is None else to_official(json.loads(config), None)
        document = RepoDocument.first(
            ListedSnapshots.of(snapshots),
            UpdateColumns.of(UpdateType.RepoInitialized(), microseconds(now)),
            branches=dict(branches),
            tags=dict(tags),
            status=RepoStatus(set_at=now),
            config=None if tree is None else flexbuffers.encode(tree),
        )
        try:
            self._storage.create(REPO_KEY, document.encode(self._level))
        except AlreadyExistsError:
            present = self.document()
            is_equal = present.branches == document.branches and present.tags == document.tags
            if is_equal and not is_new:
                return  # as an earlier try left it
            raise AlreadyExistsError(
                f"a repository exists already at {self._storage.location}"
            ) from None

    def list_detached(self, snapshot: Snapshot) -> None:
        """List a snapshot that no branch points to."""

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            snapshots = _with_snapshot(document, snapshot)
            return UpdateType.NewDetachedSnapshot(str(snapshot.id)), {"snapshots": snapshots}

        self.update(change)

    def forget(
        self, snapshots: Collection[SnapshotId], reached: Collection[SnapshotId] = ()
    ) -> None:
        """Take snapshots from the list that are about to be deleted.

        One that stays without its parent gets the nearest ancestor that stays.
        """

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]] | None:
            listed = document.snapshots
            rows = [row for each in snapshots if (row := listed.find(each)) is not None]
            if not rows:
                return None
            is_left = np.ones(len(listed), dtype=np.bool_)
            is_left[rows] = False
            parents = {}
            for row in _orphans(listed, is_left):
                if listed.id_at(row) not in reached:
                    raise _in_use(f"snapshot {listed.id_at(row)} was built on one of them")
                parents[row] = listed.parent_among(row, is_left)
            for name, target in (*document.branches.items(), *document.tags.items()):
                if target in snapshots:
                    raise _in_use(f"{name!r} was made to point to one of them")
            left = (listed.with_parents(parents) if parents else listed).take(
                np.flatnonzero(is_left)
            )
            return UpdateType.GCRan(), {"snapshots": left}

        self.update(change)

    def expire(self, cuts: Mapping[SnapshotId, SnapshotId]) -> bool:
        """Give snapshots the parents that they have after expiry, and list what lay between."""

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]] | None:
            listed = document.snapshots
            parents: dict[int, tuple[int, Sequence[SnapshotId]]] = {}
            for snapshot_id, root_id in cuts.items():
                row, root = listed.find(snapshot_id), listed.find(root_id)
                if row is None or root is None or row == root:
                    continue
                is_root = np.zeros(len(listed), dtype=np.bool_)
                is_root[root] = True
                parent, pruned = listed.parent_among(row, is_root)
                if parent >= 0:
                    parents[row] = (parent, pruned)
            if not parents:
                return None
            return UpdateType.ExpirationRan(), {"snapshots": listed.with_parents(parents)}

        self.update(change)
        return True


class _RepoView(RepoRefs):
    """References as they were when they were first read here."""

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        super().__init__(storage)
        self._reading = threading.Lock()

    def read(self) -> RepoDocument | None:
        """What the file said; None if there is none."""
        with self._reading:  # threads that ask at the same time share one request
            return super().read() if self._latest is None else self._latest


def _tip_in(document: RepoDocument, branch: str) -> LiveTip | None:
    target = document.branches.get(branch)
    return None if target is None else LiveTip(branch, _sequence(document, branch), target)


def _sequence(document: RepoDocument, branch: str) -> int:
    """When a branch last moved: microseconds since 1970, and never more than that.

    Where the log of operations does not reach back so far, it is before all of it.
    """
    moved = document.updates.last_move(branch)
    return document.updates.oldest_at() - 1 if moved is None else moved


def _with_snapshot(
    document: RepoDocument, snapshot: Snapshot, pruned: Sequence[SnapshotId] = ()
) -> ListedSnapshots:
    """The list of snapshots with one more, unless it is there."""
    if document.snapshots.find(snapshot.id) is not None:
        return document.snapshots
    if snapshot.parent_id is not None:
        _check_listed(document, snapshot.parent_id)
    return document.snapshots.with_snapshot(snapshot, pruned)


def _inherited(
    document: RepoDocument, replaced: SnapshotId, snapshot: Snapshot
) -> Sequence[SnapshotId]:
    """The logs that an amended commit inherits from the one that it replaces."""
    row = document.snapshots.find(replaced)
    if row is None or document.snapshots.parent_id(row) != snapshot.parent_id:
        return ()
    return document.snapshots.pruned_ids(row)


def _check_listed(document: RepoDocument, snapshot_id: SnapshotId) -> None:
    if document.snapshots.find(snapshot_id) is None:
        raise SnapshotNotFoundError(
            f"snapshot {snapshot_id} does not exist in this repository", str(snapshot_id)
        )


def _with_expired(listed: ListedSnapshots, row: int) -> Iterator[SnapshotStub]:
    """A snapshot and its ancestors with those that expired between them, newest first."""
    for each in listed.lineage(row):
        yield listed.stub(each)
        for snapshot_id in reversed(listed.pruned_ids(each)):
            expired = listed.find(snapshot_id)
            # Of one that was collected the log is kept, and nothing else is known.
            known = listed.stub(each if expired is None else expired)
            yield SnapshotStub(snapshot_id, known.written_at, "") if expired is None else known


def _orphans(listed: ListedSnapshots, is_left: npt.NDArray[np.bool_]) -> list[int]:
    """The rows that stay although their parents do not."""
    has_parent = is_left & (listed.parents >= 0)
    rows = np.flatnonzero(has_parent)
    found: list[int] = rows[~is_left[listed.parents[rows]]].tolist()
    return found


def _in_use(reason: str) -> ConflictError:
    return ConflictError(
        f"while garbage was collected, {reason}: nothing was deleted; run the garbage collection "
        "again"
    )


def _new_tip(kind: UpdateKind) -> SnapshotId | None:
    """Where a branch stood after an update, if the update says so."""
    if isinstance(kind, UpdateType.NewCommit | UpdateType.CommitAmended):
        return SnapshotId.parse(kind.new_snap_id)
    return None


def _tip_before(
    kind: UpdateKind, after: SnapshotId | None, document: RepoDocument
) -> SnapshotId | None:
    """Where a branch stood before an update, as far as that is known."""
    if isinstance(
        kind, UpdateType.CommitAmended | UpdateType.BranchReset | UpdateType.BranchDeleted
    ):
        return SnapshotId.parse(kind.previous_snap_id)
    if isinstance(kind, UpdateType.NewCommit):
        row = None if after is None else document.snapshots.find(after)
        return None if row is None else document.snapshots.parent_id(row)
    return None if isinstance(kind, UpdateType.BranchCreated) else after
