"""The methods of a repository that make, move and merge branches and tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.changes.conflicts import check_solver
from icefloe.engine.async_twin import async_twin
from icefloe.engine.branch_work import BranchWork
from icefloe.engine.history.walk import Version, check_new_name
from icefloe.engine.repository_history import RepositoryHistory
from icefloe.engine.retention.branch_moves import moved_from, take_back
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.formats.port import LiveTip
from icefloe.formats.sequence_refs import MAIN
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.engine.commit.rebase import ShowTree


class BranchedRepository(RepositoryHistory):
    """Branches and tags: made, moved, merged and published."""

    _default_metadata: dict[str, Any]
    _show: ShowTree

    # --- branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot."""
        check_new_name(branch, "branch")
        ensure_conditional_writes(self._context.storage)
        with self._pinned(snapshot_id) as (target, pin):
            tip = self._context.refs.create_branch(branch, target)
            try:
                pin.confirm()
            except SnapshotNotFoundError:
                take_back(self._context.refs, tip)
                raise
        self._note("create_branch", {"branch": branch, "snapshot_id": str(target)})

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return self._context.refs.branches()

    def lookup_branch(self, branch: str) -> str:
        """Id of the snapshot at the tip of a branch."""
        return str(self._context.history.resolve(Version(branch=branch)))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Let a branch point to another snapshot, as one more entry of its sequence (H-22)."""
        tip = self._live_tip(branch)
        if from_snapshot_id is not None and tip.snapshot_id != self._resolve(
            snapshot_id=from_snapshot_id
        ):
            raise ConflictError(
                f"branch update conflict: {branch!r} is at {tip.snapshot_id}, "
                f"expected {from_snapshot_id}",
                from_snapshot_id,
                str(tip.snapshot_id),
            )
        target = self._resolve(snapshot_id=snapshot_id)

        def move(place: LiveTip) -> None:
            with self._pinned(str(target)):
                self._context.refs.advance(place, target)

        moved_from(self._context.refs, tip, move)
        moved = {"branch": branch, "from": str(tip.snapshot_id), "to": str(target)}
        self._note("reset_branch", moved)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; `main` stays. The snapshots stay until garbage is collected."""
        if branch == MAIN:
            raise InvalidInputError("main branch cannot be deleted")
        tip = self._live_tip(branch)
        refs = self._context.refs
        moved_from(refs, tip, lambda place: refs.advance(place, None))
        self._note("delete_branch", {"branch": branch, "snapshot_id": str(tip.snapshot_id)})

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Give a snapshot a name for ever."""
        check_new_name(tag, "tag")
        ensure_conditional_writes(self._context.storage)
        with self._pinned(snapshot_id) as (target, pin):
            try:
                undo = self._context.refs.create_tag(tag, target)
            except AlreadyExistsError:
                self._require_lasting(tag)
                raise
            try:
                pin.confirm()
            except SnapshotNotFoundError:
                undo()
                raise
        self._note("create_tag", {"tag": tag, "snapshot_id": str(target)})

    def _require_lasting(self, tag: str) -> None:
        """Raise ConflictError if the client that just created a tag is about to undo it."""
        target = self._context.refs.tag(tag)
        if target is None:
            return
        try:
            with self._pinned(str(target)):
                pass
        except SnapshotNotFoundError:
            raise ConflictError(
                f"tag {tag!r} was just created for snapshot {target}, which was collected at the "
                "same moment, so that the tag does not last; try again"
            ) from None

    def list_tags(self) -> set[str]:
        """Names of all tags."""
        return self._context.refs.tags()

    def lookup_tag(self, tag: str) -> str:
        """Id of the snapshot that a tag names."""
        return str(self._context.history.resolve(Version(tag=tag)))

    def delete_tag(self, tag: str) -> None:
        """Refuse: the specification says that tags cannot be deleted once created (R1-25)."""
        if self._context.refs.tag(tag) is None:
            raise RefNotFoundError(f"ref not found `{tag}`", tag)
        raise InvalidInputError(
            f"tags cannot be deleted once created: {tag!r} stays; create another tag instead"
        )

    def _live_tip(self, branch: str) -> LiveTip:
        """Where an existing branch stands; raises RefNotFoundError."""
        Version(branch=branch).check("branch")
        tip = self._context.refs.tip(branch)
        if not isinstance(tip, LiveTip):
            raise RefNotFoundError(
                f"ref not found `{branch}`: there is no such branch; create it with create_branch",
                branch,
            )
        return tip

    create_branch_async = async_twin(create_branch)
    list_branches_async = async_twin(list_branches)
    lookup_branch_async = async_twin(lookup_branch)
    reset_branch_async = async_twin(reset_branch)
    delete_branch_async = async_twin(delete_branch)
    create_tag_async = async_twin(create_tag)
    list_tags_async = async_twin(list_tags)
    lookup_tag_async = async_twin(lookup_tag)
    delete_tag_async = async_twin(delete_tag)

    # --- work on branches

    def merge(
        self,
        from_branch: str,
        into_branch: str,
        *,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
        fast_forward: bool = True,
    ) -> str:
        """Bring what a branch has into another: a three-way merge as one commit.

        What differs since the two parted is compared chunk by chunk, key by key of the metadata
        and attribute by attribute. If the other branch has no commits of its own, it is moved
        forward instead. What was merged is remembered, so a later merge takes only what is new.

        Args:
            from_branch: Whose changes to take.
            into_branch: The branch that moves.
            message: Message of the commit.
            metadata: Properties of the commit.
            solver: Decides conflicts, with `from_branch` as ours; MergeSolver() if not given,
                which merges metadata and leaves chunks that both wrote to you.
            fast_forward: Whether to move the branch without a commit where that is enough.

        Returns:
            The id of the snapshot that `into_branch` points to then.

        Raises:
            RebaseFailedError: If conflicts are left; nothing was changed then.
            SnapshotNotFoundError: If the last commit that both have has expired and is gone.
        """
        work = self._branch_work(solver)
        return work.merge(
            from_branch, into_branch, message, metadata, solver, fast_forward=fast_forward
        )

    def cherry_pick(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
    ) -> str:
        """Commit on a branch what one commit elsewhere changed; returns the tip's id."""
        picked = self._existing(snapshot_id)
        return self._branch_work(solver).cherry_pick(picked, branch, message, metadata, solver)

    def revert(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
    ) -> str:
        """Commit on a branch the opposite of what one commit changed; returns the tip's id.

        The chunks that it replaced come back as they were; later changes of other chunks stay.
        """
        undone = self._existing(snapshot_id)
        return self._branch_work(solver).revert(undone, branch, message, metadata, solver)

    def squash(
        self,
        branch: str,
        since_snapshot_id: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Make one commit of all commits of a branch after a snapshot; returns its id.

        Other branches and tags keep the single commits. Raises ConflictError if the branch moved.
        """
        since = self._existing(since_snapshot_id)
        return self._branch_work().squash(branch, since, message, metadata)

    def publish(self, from_branch: str, to_branch: str) -> str:
        """Move a branch forward to the tip of another, whose commits follow its own.

        The last step of write, audit, publish: write on a branch, look at it, then publish it.
        Raises ConflictError if the branch has commits that the other does not have.
        """
        return self._branch_work().publish(from_branch, to_branch)

    def _branch_work(self, solver: ConflictSolver | None = None) -> BranchWork:
        if solver is not None:
            check_solver(solver)
        return BranchWork(self._context, self._default_metadata, self._show)
