"""Sessions: a working tree on a branch, which is committed, rebased, forked and merged."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.compare import disputed
from icefloe.changes.conflicts import ConflictDetector
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    InvalidInputError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.model import paths
from icefloe.model.ids import ChunkFileId
from icefloe.model.nodes import NodeTable
from icefloe.versioning.async_twin import async_twin
from icefloe.versioning.commit import CommitMessage, touched_chunks, write_commit
from icefloe.versioning.commit_metadata import check_message, plain_metadata
from icefloe.versioning.doomed import pinned
from icefloe.versioning.info import Diff
from icefloe.versioning.manifest_writer import write_tiles
from icefloe.versioning.rebase import MeetingView, back_off, rebase_changes
from icefloe.versioning.session_lease import SessionLease, missing_chunk_files
from icefloe.versioning.unlinking import unlink
from icefloe.versioning.unsettled import Unsettled
from icefloe.versioning.working_tree import WorkingTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.changes.linked import LinkedTile
    from icefloe.config.repository import RepositoryConfig
    from icefloe.formats.port import BranchTip
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.versioning.context import Context
    from icefloe.zarr_store.store import IcefloeStore


class OverlapWarning(UserWarning):
    """Two forks of a session wrote the same chunk."""


class Session(WorkingTree):
    """A view of one snapshot; a writable one collects changes until it is committed.

    Threads and event loops may share a session.
    """

    _is_leased = True

    def __init__(
        self,
        context: Context,
        snapshot: Snapshot,
        tip: BranchTip | None = None,
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

    def __repr__(self) -> str:
        where = f"branch {self.branch!r}" if self.branch is not None else "read-only"
        return f"<icefloe.{type(self).__name__} {where} at {self.snapshot_id}>"

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise InvalidInputError(
                "a writable session cannot be pickled; use fork() and merge() to write from "
                "several processes"
            )
        return {"context": self._context, "snapshot_id": self._snapshot.id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        self.__init__(context, context.files.read_snapshot(state["snapshot_id"]))  # type: ignore[misc]

    # --- what it is

    @property
    def read_only(self) -> bool:
        """Whether the session only reads."""
        return self._tip is None

    @property
    def mode(self) -> str:
        """`readonly` or `writable`; a writable session also moves nodes."""
        return "readonly" if self.read_only else "writable"

    @property
    def snapshot_id(self) -> str:
        """The snapshot that the session shows or is based on."""
        return str(self._snapshot.id)

    @property
    def branch(self) -> str | None:
        """The branch that a commit goes to; None when read-only."""
        return None if self._tip is None else self._tip.branch

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is something to commit."""
        return not self._changes.is_empty

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration."""
        return self._context.config.copy()

    @property
    def store(self) -> IcefloeStore:
        """A Zarr store on this session; all of them share its state."""
        from icefloe.zarr_store.store import IcefloeStore

        return IcefloeStore(self)

    # --- regions

    def read_region(
        self,
        path: str,
        selection: Any = ...,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Read a box of an array, without an object for each chunk.

        Gives the values that Zarr gives, for any codec and data type.

        Args:
            path: Path of the array.
            selection: Integers, slices (also with steps) and an ellipsis, as numpy takes them.
            out: An array to read into; a new one if not given.

        Returns:
            The values, always as an array: one without axes if integers select all axes.
        """
        from icefloe.regions.transfer import read_region

        return read_region(self, path, selection, out)

    def write_region(
        self,
        path: str,
        selection: Any,
        values: npt.ArrayLike,
        *,
        write_empty_chunks: bool | None = None,
    ) -> None:
        """Write a box of an array, without an object for each chunk.

        Chunks that the selection covers in part are read first. Two writers of parts of one
        chunk must not write at the same time: one of them would undo what the other did.

        Args:
            path: Path of the array.
            selection: Integers, slices (also with steps) and an ellipsis, as numpy takes them.
            values: What to write; numpy's rules of broadcasting hold.
            write_empty_chunks: Whether to keep chunks that only have the fill value, instead of
                deleting them; as Zarr's setting `array.write_empty_chunks` says if not given.
        """
        from icefloe.regions.transfer import write_region

        write_region(self, path, selection, values, write_empty_chunks=write_empty_chunks)

    read_region_async = async_twin(read_region)
    write_region_async = async_twin(write_region)

    def status(self) -> Diff:
        """What the session changed so far."""
        with self._lock:
            log = self._changes.log(touched_chunks(self._changes, self._view.chunks))
            after = NodeTable.of(self._changes.all_nodes())
            return Diff(log, self._snapshot.nodes, after)

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
        with self._lock:
            self._check_commit(allow_empty=allow_empty)
            self._refuse_twice()
            said = self._said(message, metadata)
            tries = min(rebase_tries, self._context.settings.publish_max_tries)
            attempt = 0
            while True:
                snapshot = self._write(said)
                try:
                    self._publish(snapshot)
                except ConflictError:
                    if rebase_with is None or attempt >= tries:
                        raise
                else:
                    return str(snapshot.id)
                back_off(self._context.settings, attempt)
                attempt += 1
                self._rebase(rebase_with)

    def flush(self, message: str, metadata: dict[str, Any] | None = None) -> str:
        """Write the changes as a snapshot that no branch points to; returns its id."""
        with self._lock:
            self._check_commit(allow_empty=False)
            snapshot = self._write(self._said(message, metadata))
            self._confirm_lease()
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
            parent, replaced = self._context.history.replaceable(self._snapshot)
            snapshot = self._write(self._said(message, metadata), parent, replaced)
            self._publish(snapshot)
            return str(snapshot.id)

    def rebase(self, solver: ConflictSolver) -> None:
        """Lay the changes over the newest snapshot of the branch.

        Raises RebaseFailedError if there are conflicts that the solver does not resolve; then
        the session is as it was.
        """
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

    def _write(
        self,
        said: CommitMessage,
        parent: Snapshot | None = None,
        replaced: TransactionLog | None = None,
    ) -> Snapshot:
        self._packs.write_all()
        # A snapshot over what is gone would be of no use, and a burden to who collects.
        self._confirm_lease()
        return write_commit(
            self._context.files,
            self._snapshot,
            self._changes,
            said,
            self._context.settings,
            parent=parent,
            replaced=replaced,
        )

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
        lost = missing_chunk_files(self._context, self._changes)
        if lost:
            raise SessionStateError(
                f"{len(lost)} chunk files that this session wrote, such as {lost[0]}, were "
                "collected as garbage: the session was suspended or cut off for longer than its "
                "lease held; write them again in a new session"
            )
        if self._snapshot.parent_id is None or self._base_stays():
            self._lease.looked()
            return
        raise SessionStateError(
            f"snapshot {self._snapshot.id} that this session is based on was collected as garbage: "
            "no branch had it any more, and the session was suspended or cut off for longer than "
            "its lease held; start a new session"
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
        if tip is None or tip.snapshot_id is None:
            raise ConflictError(
                f"branch {self._tip.branch!r} was deleted", str(self._snapshot.id), None
            )
        if tip.snapshot_id == self._snapshot.id:
            self._tip = tip
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
        head = self._context.files.read_snapshot(tip.snapshot_id)
        ours = self._portable_changes()
        every = not isinstance(solver, ConflictDetector)
        unlink(self._context.files, ours, self._snapshot, head, all_tiles=every)
        view = MeetingView(self._context, self._snapshot, head, looking_at)
        rebase_changes(view, ours, theirs, self._view.chunks, solver)
        self._unsettled.forget()
        self._tip = tip
        self._show(head, ours)

    def _portable_changes(self) -> ChangeSet:
        """A copy of the changes that means the same on another base, and next to others."""
        with self._lock:
            self._packs.write_all()
            copied = self._changes.copy()
            copied.make_clears_explicit(self._view.chunks.table)
            return copied

    # --- cooperating writers

    def fork(self) -> ForkSession:
        """A copy for another process or thread, whose changes are merged back before the commit.

        Fork before you write: a fork does not see uncommitted changes.
        """
        with self._lock:
            if self.read_only:
                raise InvalidInputError(
                    "a read-only session is not forked; it can be pickled and shared as it is"
                )
            if not self._changes.is_empty:
                raise InvalidInputError(
                    "cannot fork a session with uncommitted changes. Please commit first, or fork "
                    "before you write"
                )
            self._unmerged_forks = True
            return ForkSession(self._context, self._snapshot, self._tip, self._default_metadata)

    def part(self) -> ForkSession:
        """A fork for the tasks of one job, which sees the nodes that this session made or changed.

        It does not see uncommitted chunks. What its copies write comes back as columns, by
        `ForkSession.written` and `set_chunk_refs`, instead of by `merge`.
        """
        with self._lock:
            self._check_writable()
            part = ForkSession(self._context, self._snapshot, self._tip, self._default_metadata)
            nodes = self._changes.copy()
            nodes.linked = {}
            nodes.chunks = {
                node_id: _only_cleared(edits)
                for node_id, edits in nodes.chunks.items()
                if edits.cleared
            }
            part._show(self._snapshot, nodes)  # noqa: SLF001
            return part

    def can_link(self, path: str) -> bool:
        """Whether manifests of an array can be written before the commit, for `link_tiles`.

        Not those of a new one where only the commit knows the ids of new nodes, as in the
        generations `store` and `dataset`: the manifests would name another node.
        """
        with self._lock:
            node = self._view.array(path)
            numbered_later = self._context.format.generation.node_numbering is not None
            return not (numbered_later and node.id in self._changes.new)

    def link_tiles(self, path: str, tiles: Sequence[LinkedTile]) -> None:
        """Take over tiles of an array whose manifests parts of this session have written.

        Until the commit, reads do not show them.
        """
        with self._lock:
            self._check_writable()
            node = self._view.array(path)
            if not self.can_link(path):
                raise InvalidInputError(
                    f"manifests were written for {path}, a new array whose id is given by the "
                    "commit; give its references to set_chunk_refs, or commit it first"
                )
            known = self._changes.linked.setdefault(node.id, [])
            together = sorted([*known, *tiles], key=lambda tile: tile.extents.lower)
            for one, other in pairwise(together):
                if one.extents.intersects(other.extents):
                    raise InvalidInputError(f"two manifests were written for one tile of {path}")
            self._changes.linked[node.id] = together

    def merge(self, *others: ForkSession) -> None:
        """Take over the changes of forks.

        Where two wrote one chunk, the later one wins, and an OverlapWarning says which chunks:
        most often tasks were not cut along chunks, and one overwrote what the other wrote.
        """
        for other in others:
            if not isinstance(other, ForkSession):
                raise TypeError(
                    f"only forks can be merged; Received {type(other).__name__!r}. "
                    "Use fork() to make one"
                )
        # Each fork is copied under its own lock before ours is taken: two sessions that merge each
        # other do not wait for each other.
        parts = [(other, other._portable_changes()) for other in others if other is not self]  # noqa: SLF001
        with self._lock:
            self._check_writable()
            merged = self._portable_changes()
            for other, changes in parts:
                if other.snapshot_id != self.snapshot_id:
                    raise InvalidInputError(
                        f"cannot merge a fork of snapshot {other.snapshot_id} into a session on "
                        f"{self.snapshot_id}"
                    )
                _warn_of_overlap(merged, changes)
                merged.absorb(changes)
            if parts:
                self._show(self._snapshot, merged)
            self._unmerged_forks = False

    merge_async = async_twin(merge)

    def allow_pickling(self) -> None:
        """Removed from the official API; use fork and merge."""
        raise RuntimeError("allow_pickling() does not exist any more: use fork() and merge()")


class ForkSession(Session):
    """A part of a session's work: it can be pickled and written to, and is merged back."""

    _is_leased = False  # the session that it came from has a lease for both

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._packs.write_all()
            self._context.storage.sync()
            return {
                "context": self._context,
                "snapshot_id": self._snapshot.id,
                "tip": self._tip,
                "changes": self._changes.copy(),
                "metadata": self._default_metadata,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        snapshot = context.files.read_snapshot(state["snapshot_id"])
        Session.__init__(self, context, snapshot, state["tip"], state["metadata"])
        changes: ChangeSet = state["changes"]
        changes.rebase(snapshot.nodes)
        self._show(snapshot, changes)

    def written(self) -> dict[str, tuple[ArrayChunks | None, ChunkIndex | None]]:
        """References of the chunks that were written, and which ones were deleted, by array."""
        with self._lock:
            self._packs.write_all()
            self._context.storage.sync()
            found = {}
            for node_id, edits in self._changes.chunks.items():
                node = self._changes.by_id(node_id)
                if node is not None and not edits.is_empty:
                    found[node.path] = edits.own()
            return found

    def put_object(self, data: bytes) -> ChunkFileId:
        """Put bytes into an object that nothing refers to, for tasks that come after this one."""
        place = ChunkFileId.random()
        self._context.storage.put(self._context.format.layout.chunk_file(place), data)
        return place

    def get_object(self, place: ChunkFileId) -> bytes:
        """What another part gave to `put_object`."""
        return self._context.storage.get(self._context.format.layout.chunk_file(place))

    def written_tiles(self, path: str) -> list[LinkedTile] | None:
        """Write the manifests of the tiles of an array that were edited, for `link_tiles`.

        None if they must be written with the rest of the array (see `write_tiles`), or by the
        commit (see `can_link`).
        """
        with self._lock:
            if not self.can_link(path):
                return None
            self._packs.write_all()
            node = self._view.array(path)
            edits = self._changes.edits(node)
            tiles = write_tiles(
                self._context.files, self._view.chunks, node, edits, self._context.settings
            )
            self._context.storage.sync()
            return tiles

    def fork(self) -> ForkSession:
        """A fork of a fork; only while it has no changes."""
        child = super().fork()
        self._unmerged_forks = False
        return child

    def commit(self, *_: Any, **__: Any) -> str:
        """Refuse: the session that was forked commits."""
        raise TypeError("Cannot commit a fork of a Session. Merge it into the session it came from")

    def flush(self, *_: Any, **__: Any) -> str:
        """Refuse: the session that was forked flushes."""
        raise TypeError("Cannot flush a fork of a Session. Merge it into the session it came from")

    def amend(self, *_: Any, **__: Any) -> str:
        """Refuse: the session that was forked amends."""
        raise TypeError("Cannot amend a fork of a Session. Merge it into the session it came from")


def _warn_of_overlap(ours: ChangeSet, later: ChangeSet) -> None:
    found = [
        f"{node.path} {common.tolist()[:5]}{' …' if len(common) > 5 else ''}"
        for node_id, edits in later.chunks.items()
        if (mine := ours.chunks.get(node_id)) is not None
        and (node := later.by_id(node_id)) is not None
        and len(common := disputed(mine, edits))
    ]
    if found:
        warnings.warn(
            f"forks wrote the same chunks, and the later one wins: {'; '.join(found)}. "
            "Cut the work along chunks so that no two tasks write one",
            OverlapWarning,
            stacklevel=4,
        )


def _only_cleared(edits: ChunkEdits) -> ChunkEdits:
    """Of some edits, only that all chunks of the base are gone."""
    cleared = ChunkEdits(edits.rank)
    cleared.cleared = True
    return cleared


def looking_at(context: Context, snapshot: Snapshot, changes: ChangeSet | None) -> Session:
    """A read-only session on a snapshot, with changes laid over it if given."""
    session = Session(context, snapshot)
    if changes is not None:
        session._show(snapshot, changes)  # noqa: SLF001
    return session
