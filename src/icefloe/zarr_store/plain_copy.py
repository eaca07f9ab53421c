"""Copies a group of a session to a plain Zarr store: documents and chunks, byte for byte.

Nothing is decoded, so any codec and data type is copied, and zarr is not needed.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from icefloe.errors import AlreadyExistsError
from icefloe.model import paths
from icefloe.model.nodes import expect_node
from icefloe.model.record import Record
from icefloe.storage.keys import RESERVED_SEGMENT
from icefloe.storage.local.local_storage import LocalStorage
from icefloe.storage.workers import ThreadJob, in_any_order
from icefloe.zarr_store.keys import chunk_keys, document_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.nodes import ArrayNode
    from icefloe.storage.port import Storage

_CHUNKS_AT_ONCE = 1024
_WRITES_AT_A_TIME = 16
_MAX_BYTES = 256 * 1024 * 1024


class PlainCopy(Record, frozen=True):
    """The result of a copy to a plain Zarr store."""

    groups: int
    arrays: int
    chunks: int
    bytes: int
    """Bytes of the chunks."""


def copy_to_plain_store(
    tree: WorkingTree,
    target: Storage,
    *,
    group: str = "/",
    progress: Callable[[int, int], None] | None = None,
) -> PlainCopy:
    """Copy a group or array, with all below it, to an empty place; it becomes the root there.

    Args:
        tree: What to copy: the tree of a session.
        target: An empty storage.
        group: Path of the group or array.
        progress: Called with the number of chunks that are copied, and of all chunks.

    Raises:
        AlreadyExistsError: The place is not empty.
        NodeNotFoundError: There is no such group or array.
    """
    root = paths.canonical(group)
    expect_node(tree.get_node(root), root, lambda: tree.node_paths(paths.ROOT))
    existing = next(target.list(limit=1), None)
    if existing is not None:
        raise AlreadyExistsError(
            f"{target.location} has {existing.key!r} already: export to an empty place"
        )
    all_paths = [root, *(path for path in tree.node_paths(root) if path != root)]
    arrays = [node for path in all_paths if (node := tree.get_node(path)) and node.is_array]
    total = sum(node.num_refs for node in arrays)
    chunks = size = 0
    jobs = (job for node in arrays for job in _chunk_jobs(tree, target, node, root))
    for written in in_any_order(jobs, at_a_time=_WRITES_AT_A_TIME, max_bytes=_MAX_BYTES):
        chunks += 1
        size += written
        if progress is not None:
            progress(chunks, total)
    # Documents come last, children first: a copy that died is not taken for a whole one.
    for path in reversed(all_paths):
        document = tree.document(path)
        assert document is not None
        target.put(document_key(_below(path, root)), document)
    target.sync()
    if isinstance(target, LocalStorage):
        # Zarr would warn of a folder that is no part of the hierarchy.
        shutil.rmtree(target.root / RESERVED_SEGMENT, ignore_errors=True)
    return PlainCopy(
        groups=len(all_paths) - len(arrays), arrays=len(arrays), chunks=chunks, bytes=size
    )


def _chunk_jobs(
    tree: WorkingTree, target: Storage, node: ArrayNode, root: str
) -> Iterator[ThreadJob[int]]:
    for table in tree.chunk_tables(node.path):
        coords = table.index.coords()
        for start in range(0, len(coords), _CHUNKS_AT_ONCE):
            some = coords[start : start + _CHUNKS_AT_ONCE]
            keys = list(chunk_keys(_below(node.path, root), node.array, some))
            for rows, segments in tree.read_chunks(node.path, some):
                for number, row in enumerate(rows.tolist()):
                    piece = bytes(segments.piece(number))
                    yield ThreadJob(len(piece), _put(target, keys[row], piece))


def _put(target: Storage, key: str, data: bytes) -> Callable[[], int]:
    def run() -> int:
        target.put(key, data)
        return len(data)

    return run


def _below(path: str, root: str) -> str:
    """A path as it is in the copy, whose root is another."""
    return path if root == "/" else path.removeprefix(root) or "/"
