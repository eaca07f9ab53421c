"""Puts what we appended along a dimension behind what others appended meanwhile. No I/O here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from icefloe.changes.documents import merge_documents
from icefloe.model.nodes import ArrayNode
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import Node, NodeTable
    from icefloe.model.zarr_document import ArrayMetadata


class Appended(Record, frozen=True):
    """An array that both sides made longer: its nodes in the base and in their head."""

    before: ArrayNode
    other: ArrayNode
    axis: int
    chunk: int
    base: int
    ours: int
    theirs: int

    @property
    def node_id(self) -> NodeId:
        """The id, which both nodes have."""
        return self.before.id


class NotAppendable(Exception):  # noqa: N818 - says what is wrong; turned into a conflict
    """Why what we appended cannot go behind what others appended."""


def move_behind(
    ours: ChangeSet,
    head: NodeTable,
    their_new: Iterable[NodeId],
    dimension: str,
    document_of: Callable[[Node], bytes],
) -> set[NodeId]:
    """Move our appended chunks behind theirs, in every array that both sides made longer.

    Args:
        ours: Our changes over the common base, without linked tiles: what is in a manifest
            cannot be moved. Changed in place, if all can be moved.
        head: The nodes of what others committed.
        their_new: Arrays that they created.
        dimension: Name of the dimension.
        document_of: Gives the whole document of a node.

    Returns:
        The arrays that were moved.

    Raises:
        NotAppendable: If it is not safe: nothing was changed then.
    """
    appended = list(_both_appended(ours, head, dimension))
    if not appended:
        return set()
    shifts = {each.theirs - each.base for each in appended}
    if len(shifts) > 1:
        raise NotAppendable(
            f"others made arrays longer along {dimension!r} by different numbers: {sorted(shifts)}"
        )
    shift = shifts.pop()
    theirs = [node for node_id in their_new if (node := head.by_id(node_id)) is not None]
    _check_none_is_new([*ours.new.values(), *theirs], dimension)
    _check_all_move(ours, head, dimension, {each.node_id for each in appended})
    documents = {}
    for each in appended:
        for side, length in (("base", each.base), ("other writer", each.theirs)):
            if length % each.chunk:
                raise NotAppendable(
                    f"{each.before.path}: the {side} ends within a chunk (length {length}, chunks "
                    f"of {each.chunk}); appends can only follow each other at whole chunks"
                )
        documents[each.node_id] = _merged_document(ours, each, document_of)
    for each in appended:
        ours.documents[each.node_id] = documents[each.node_id]
        assert each.node_id not in ours.linked, "tiles are unlinked before they are moved"
        edits = ours.chunks.get(each.node_id)
        if edits is not None:
            ours.chunks[each.node_id] = edits.shifted(
                each.axis, each.base // each.chunk, shift // each.chunk
            )
    return {each.node_id for each in appended}


def _both_appended(ours: ChangeSet, head: NodeTable, dimension: str) -> Iterator[Appended]:
    for node_id in ours.documents:
        before, mine = ours.base.array_by_id(node_id), ours.array_by_id(node_id)
        other = head.array_by_id(node_id)
        if before is None or mine is None or other is None:
            continue
        axis = _axis(before.array, dimension)
        if axis is None or before.array.chunk_shape is None:
            continue
        arrays = (before.array, mine.array, other.array)
        lengths = [array.shape[axis] for array in arrays]
        if lengths[1] <= lengths[0] or lengths[2] <= lengths[0]:
            continue
        yield Appended(
            before=before,
            other=other,
            axis=axis,
            chunk=before.array.chunk_shape[axis],
            base=lengths[0],
            ours=lengths[1],
            theirs=lengths[2],
        )


def _check_none_is_new(created: Iterable[Node], dimension: str) -> None:
    for node in created:
        if node.is_array and _axis(node.array, dimension) is not None:
            raise NotAppendable(
                f"{node.path} is new and has dimension {dimension!r}, whose length is another now"
            )


def _check_all_move(ours: ChangeSet, head: NodeTable, dimension: str, moving: set[NodeId]) -> None:
    """Arrays along the dimension must move together, or they would not fit any more."""
    for node_id in ours.documents:
        before, mine = ours.base.array_by_id(node_id), ours.array_by_id(node_id)
        if node_id in moving or before is None or mine is None or head.by_id(node_id) is None:
            continue
        axis = _axis(before.array, dimension)
        if axis is not None and mine.array.shape[axis] != before.array.shape[axis]:
            raise NotAppendable(
                f"{mine.path} was made longer along {dimension!r} by us and not by others"
            )


def _merged_document(
    ours: ChangeSet, each: Appended, document_of: Callable[[Node], bytes]
) -> bytes:
    mine, path = ours.documents[each.node_id], each.before.path
    our_shape = json.loads(mine)["shape"]
    if [n for i, n in enumerate(our_shape) if i != each.axis] != [
        n for i, n in enumerate(each.other.array.shape) if i != each.axis
    ]:
        raise NotAppendable(f"{path}: other dimensions changed too")
    shape = list(each.other.array.shape)
    shape[each.axis] += each.ours - each.base
    base, theirs = document_of(each.before), document_of(each.other)
    merged, conflicts = merge_documents(base, mine, theirs, {"shape": shape})
    if conflicts:
        raise NotAppendable(f"{path}: both sides changed {'; '.join(map(str, conflicts))}")
    return merged


def _axis(array: ArrayMetadata, dimension: str) -> int | None:
    names = array.dimension_names or ()
    return names.index(dimension) if dimension in names else None
