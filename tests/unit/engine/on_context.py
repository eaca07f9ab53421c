"""A repository without its facade: a context, and commits by trees, for tests of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import icefloe
from icefloe.config.repository import RepositoryConfig
from icefloe.engine.branches.refs import live_tip
from icefloe.engine.commit.publication import Publication
from icefloe.engine.context import Context, VirtualAccess
from icefloe.engine.initialize import write_first_snapshot
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.formats.registry import DEFAULT_GENERATION, format_for
from tests.documents import array, group

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

NATIVE = RepositoryConfig(
    inline_chunk_threshold_bytes=0, chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=0)
)


def new_context(storage: Storage | None = None) -> Context:
    """A repository that has a group and an array `/a` of ten chunks, none of them written."""
    storage = storage or icefloe.in_memory_storage()
    context = Context(storage, format_for(DEFAULT_GENERATION), NATIVE, VirtualAccess({}))
    context.refs.create_branch("main", write_first_snapshot(context))
    tree, publication = writer(context)
    tree.set_document("/", group())
    tree.set_document("/a", array((10,)))
    publication.commit(publication.message("start", None))
    return context


def writer(context: Context, branch: str = "main") -> tuple[WorkingTree, Publication]:
    """What a writable session has."""
    tip = live_tip(context.refs, branch)
    snapshot = context.files.read_snapshot(tip.snapshot_id)
    tree = WorkingTree(context, snapshot, read_only=False)
    return tree, Publication(tree, tip)


def set_chunk(context: Context, index: int, data: bytes, branch: str = "main") -> str:
    """A commit that writes one chunk of `/a`; returns its id."""
    tree, publication = writer(context, branch)
    tree.set_chunk("/a", (index,), data)
    return str(publication.commit(publication.message(f"{index}", None)).id)


def chunks(context: Context, branch: str = "main") -> dict[int, bytes]:
    """The chunks of `/a` at the tip of a branch."""
    tip = live_tip(context.refs, branch)
    tree = WorkingTree(context, context.files.read_snapshot(tip.snapshot_id))
    values = {index: tree.get_chunk("/a", (index,)) for index in range(10)}
    return {index: value for index, value in values.items() if value is not None}
