"""The working tree by itself: no branch, no commit."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import icefloe
from icefloe.changes.change_set import ChangeSet
from icefloe.engine.commit.write import CommitMessage, uncommitted_diff, write_commit
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import InvalidInputError, NodeNotFoundError, ReadOnlyError
from icefloe.formats.port import LiveTip
from icefloe.model.chunk_refs import InlineRef, NativeRef, PendingRef
from icefloe.model.ids import SnapshotId
from icefloe.model.segments import Segments
from tests.documents import array, group

SMALL, PACKED, LARGE = b"x", b"y" * 1000, b"z" * (1024 * 1024 + 1)


def new_tree(*, read_only: bool = False) -> WorkingTree:
    """A tree on the first snapshot of a new repository."""
    context = icefloe.Repository.create(icefloe.in_memory_storage())._context
    tip = context.refs.tip("main")
    assert isinstance(tip, LiveTip)
    snapshot = context.files.read_snapshot(tip.snapshot_id)
    return WorkingTree(context, snapshot, read_only=read_only)


@pytest.fixture
def tree() -> WorkingTree:
    tree = new_tree()
    tree.set_document("/", group())
    tree.set_document("/a", array((10,)))
    return tree


def objects(tree: WorkingTree) -> set[str]:
    return {info.key for info in tree.context.storage.list("")}


def test_a_tree_writes_nothing_but_chunks_to_the_storage() -> None:
    tree = new_tree()
    before = objects(tree)
    tree.set_document("/", group())
    tree.set_document("/a", array((10,)))
    tree.set_chunk("/a", (0,), SMALL)
    tree.delete_chunk("/a", (1,))
    tree.move("/a", "/b")
    assert objects(tree) == before
    tree.set_chunk("/b", (2,), LARGE)
    assert len(objects(tree) - before) == 1


@pytest.mark.parametrize(
    ("data", "kind"), [(SMALL, InlineRef), (PACKED, PendingRef), (LARGE, NativeRef)]
)
def test_the_size_of_a_chunk_says_where_it_goes(tree: WorkingTree, data: bytes, kind: type) -> None:
    tree.set_chunk("/a", (3,), memoryview(data))
    assert isinstance(tree.locate("/a", (3,)), kind)
    assert tree.get_chunk("/a", (3,)) == data
    assert tree.chunk_size("/a", (3,)) == len(data)


def test_pending_chunks_become_a_pack_and_keep_their_bytes(tree: WorkingTree) -> None:
    for place in range(4):
        tree.set_chunk("/a", (place,), PACKED)
    before = objects(tree)
    tree.settle_pending()
    assert len(objects(tree) - before) == 1
    assert all(isinstance(tree.locate("/a", (place,)), NativeRef) for place in range(4))
    assert tree.get_chunk("/a", (2,)) == PACKED


@pytest.mark.parametrize("data", [SMALL, PACKED, LARGE])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_chunk_outside_of_the_grid_is_refused_before_anything_is_written(
    tree: WorkingTree, data: bytes, is_async: bool
) -> None:
    def write() -> None:
        if is_async:
            asyncio.run(tree.set_chunk_async("/a", (10,), data))
        else:
            tree.set_chunk("/a", (10,), data)

    before = objects(tree)
    with pytest.raises(InvalidInputError, match="invalid chunk index"):
        write()
    assert objects(tree) == before
    assert tree.chunk_table("/a") is None


@pytest.mark.parametrize("data", [SMALL, PACKED, LARGE])
def test_a_read_only_tree_refuses_every_edit_and_writes_nothing(data: bytes) -> None:
    tree = new_tree()
    tree.set_document("/a", array((10,)))
    tree.read_only = True
    before = objects(tree)
    coords, segments = np.array([[0], [1]]), Segments.of([data, data])
    for edit in (
        lambda: tree.set_chunk("/a", (0,), data),
        lambda: tree.write_chunks("/a", coords, segments),
        lambda: tree.delete_chunk("/a", (0,)),
        lambda: tree.delete_chunks("/a", coords),
        lambda: tree.clear_chunks("/a"),
        lambda: tree.set_chunk_refs("/a", None),
        lambda: tree.rearrange_chunks("/a", lambda places: places),
        lambda: tree.set_document("/b", group()),
        lambda: tree.delete_node("/a"),
        lambda: tree.move("/a", "/b"),
        lambda: tree.discard("/a"),
    ):
        with pytest.raises(ReadOnlyError):
            edit()
    assert objects(tree) == before


def test_many_chunks_are_written_and_read_as_segments(tree: WorkingTree) -> None:
    coords = np.array([[4], [1], [7]])
    tree.write_chunks("/a", coords, Segments.of([b"four", b"one", b"seven"]))
    found = {}
    for group_ in tree.read_chunks("/a", np.array([[1], [4], [5], [7], [99]])):
        for number, row in enumerate(group_.rows.tolist()):
            found[row] = bytes(group_.segments.piece(number))
    assert found == {0: b"one", 1: b"four", 3: b"seven"}
    assert tree.chunk_coords("/a").tolist() == [[1], [4], [7]]
    tree.delete_chunks("/a", np.array([[1], [4]]))
    assert tree.chunk_coords("/a").tolist() == [[7]]
    tree.clear_chunks("/a")
    assert tree.chunk_coords("/a").tolist() == []


def test_chunks_are_shifted_and_what_leaves_the_grid_is_dropped(tree: WorkingTree) -> None:
    for place in (0, 8):
        tree.set_chunk("/a", (place,), b"%d" % place)
    tree.rearrange_chunks("/a", lambda places: places + 3)
    assert tree.get_chunk("/a", (3,)) == b"0"
    assert tree.chunk_coords("/a").tolist() == [[3]]


def test_a_group_has_no_chunks(tree: WorkingTree) -> None:
    with pytest.raises(NodeNotFoundError, match="/ is a group"):
        tree.get_chunk("/", (0,))
    with pytest.raises(NodeNotFoundError, match="does not exist"):
        tree.set_chunk("/none", (0,), SMALL)


def test_a_reader_shows_the_tree_of_its_moment(tree: WorkingTree) -> None:
    tree.set_chunk("/a", (1,), SMALL)
    reader = tree.array_reader("/a")
    tree.set_chunk("/a", (2,), SMALL)
    assert [table.index.coords().tolist() for table in reader.tables()] == [[[1]]]


def test_changes_laid_over_another_snapshot_are_shown_at_once(tree: WorkingTree) -> None:
    """What a commit and a rebase do to a tree."""
    tree.set_chunk("/a", (1,), SMALL)
    message = CommitMessage.of("first", {"by": "me"}, defaults={"by": "nobody", "on": 1})
    assert message.metadata == {"by": "me", "on": 1}
    context = tree.context
    snapshot = write_commit(context.files, tree.snapshot, tree.changes, message, context.settings)
    other = ChangeSet(snapshot.nodes)
    other.set_document("/b", group())
    tree.show(snapshot, other)
    assert not tree.read_only
    assert tree.array_paths() == ["/a"]
    assert uncommitted_diff(tree).new_groups == {"/b"}
    tree.show_committed(snapshot)
    assert tree.read_only
    assert tree.changes.is_empty
    assert tree.get_chunk("/a", (1,)) == SMALL


def test_portable_changes_and_node_changes_are_copies(tree: WorkingTree) -> None:
    tree.set_chunk("/a", (1,), PACKED)
    portable, nodes = tree.portable_changes(), tree.node_changes()
    assert list(portable.chunks) == list(tree.changes.chunks)
    assert nodes.chunks == {}
    tree.delete_node("/a")
    assert portable.get("/a") is not None
    assert nodes.get("/a") is not None


def test_the_snapshot_of_an_error_is_the_one_that_is_shown(tree: WorkingTree) -> None:
    with pytest.raises(NodeNotFoundError, match=str(SnapshotId(tree.snapshot.id))):
        tree.get_node_id("/none")
