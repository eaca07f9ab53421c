"""Merges the changes of forks into the tree that they were forked from."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.fork_changes import (
    Inherited,
    absorb_since,
    changes_since,
    merge_metadata,
    same_chunks,
)
from icefloe.changes.groups import fill_groups
from icefloe.engine.commit.linked_tiles import unlink_common
from icefloe.engine.retention.uncommitted import check_own_files
from icefloe.errors import InvalidInputError
from icefloe.formats.port import LiveTip
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.engine.tree.working_tree import WorkingTree


class OverlapWarning(UserWarning):
    """Two forks of a session wrote the same chunk, or changed the same metadata of a node."""


class ForkedChanges(Record, frozen=True, eq=False):
    """The changes of a fork."""

    base_id: SnapshotId
    tip: LiveTip
    """The tip that the branch had when the session was forked."""
    changes: ChangeSet
    inherited: Inherited | None = None
    """What it began with, if the session had uncommitted changes."""
    cleared: frozenset[NodeId] = frozenset()
    """Arrays all chunks of which were deleted at some time."""


def merge_forks(
    tree: WorkingTree, tip: LiveTip, forks: Sequence[ForkedChanges], *, stacklevel: int
) -> None:
    """Merge the changes of forks, in their order; later ones win.

    Args:
        tree: Where the changes go; its base is that of the forks.
        tip: The tip of the branch that the tree will be committed to.
        forks: The changes.
        stacklevel: Whom an OverlapWarning points to, as for `warnings.warn`.
    """
    context = tree.context
    merged = tree.portable_changes()
    base = tree.snapshot
    for fork in forks:
        if fork.base_id != base.id:
            raise InvalidInputError(
                f"cannot merge a fork of snapshot {fork.base_id} into a session on {base.id}"
            )
        if fork.tip != tip:
            # A garbage collection may have run between the two tips, which our commit cannot see.
            check_own_files(context, fork.changes)
        chunks, metadata = _merge_fork(tree, merged, fork)
        _warn_of_overlap(chunks, metadata, stacklevel + 2)
        fill_groups(merged)
    if forks:
        tree.show(base, merged)


def _merge_fork(
    tree: WorkingTree, merged: ChangeSet, fork: ForkedChanges
) -> tuple[list[str], list[str]]:
    """Add the changes of one fork; returns what it changed and others, too: chunks, metadata."""
    files, document_of = tree.context.files, tree.context.files.documents_of(tree.snapshot)
    inherited = fork.inherited
    if inherited is None:
        unlink_common(files, merged, fork.changes)
        chunks = same_chunks(merged, fork.changes)
        metadata = merge_metadata(merged, fork.changes, document_of)
        merged.absorb(fork.changes)
        return chunks, metadata
    if inherited.origin not in tree.fork_points:
        raise InvalidInputError(
            "cannot merge a fork of a session with uncommitted changes into another session, or "
            "after they were discarded: merge it into the one that it came from"
        )
    earlier = inherited.changes
    since = changes_since(earlier, fork.changes, fork.cleared)
    ours = changes_since(earlier, merged).changes
    unlink_common(files, merged, since.changes)
    unlink_common(files, ours, since.changes)
    chunks = same_chunks(merged, since.changes, ours.chunks, fork.changes)
    metadata = merge_metadata(
        ours, since.changes, lambda node: earlier.documents.get(node.id) or document_of(node)
    )
    metadata += absorb_since(merged, since, earlier)
    return chunks, metadata


def _warn_of_overlap(chunks: Sequence[str], metadata: Sequence[str], stacklevel: int) -> None:
    if chunks:
        warnings.warn(
            f"forks wrote the same chunks, and the later one wins: {'; '.join(chunks)}. "
            "Cut the work along chunks so that no two tasks write one",
            OverlapWarning,
            stacklevel=stacklevel,
        )
    if metadata:
        warnings.warn(
            f"forks changed the same nodes, and the later one wins: {'; '.join(metadata)}. Resize, "
            "move and delete before you fork, or after the forks are merged",
            OverlapWarning,
            stacklevel=stacklevel,
        )
