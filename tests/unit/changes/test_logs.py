"""Logs of several commits as one, and logs derived from two states."""

from __future__ import annotations

from icefloe.changes.compare import ReadableNodes, compare_chunks, compare_nodes
from icefloe.changes.logs import brings_back, combine
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.chunk_refs import InlineRef
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import ManifestRef, Node, make_node
from icefloe.model.transaction_log import Move, TransactionLog
from tests import documents

A, B, C = NodeId.random(), NodeId.random(), NodeId.random()


def index(*places: int) -> ChunkIndex:
    return ChunkIndex.from_tuples([(place,) for place in places], 1)


def chunks(**data: bytes) -> ArrayChunks:
    places = [(int(name[1:]),) for name in data]
    return ArrayChunks.of(places, [InlineRef(value) for value in data.values()], 1)


def test_one_log_is_itself() -> None:
    log = TransactionLog(new_groups=frozenset({A}))
    assert combine([log]) is log
    assert combine([]) == TransactionLog()


def test_a_node_that_came_and_went_is_nowhere() -> None:
    combined = combine(
        [
            TransactionLog(
                new_arrays=frozenset({A}), new_groups=frozenset({B}), updated_chunks={A: index(1)}
            ),
            TransactionLog(updated_arrays=frozenset({A}), moves=(Move(A, "/a", "/b"),)),
            TransactionLog(deleted_arrays=frozenset({A}), deleted_groups=frozenset({B})),
        ]
    )
    assert combined == TransactionLog()


def test_chunks_of_all_commits_are_joined_and_outlive_their_array() -> None:  # api-facts 13
    combined = combine(
        [
            TransactionLog(updated_chunks={A: index(1, 2), B: index(0)}),
            TransactionLog(updated_chunks={A: index(2, 5)}),
            TransactionLog(deleted_arrays=frozenset({B})),
        ]
    )
    assert combined.updated_chunks == {A: index(1, 2, 5), B: index(0)}
    assert combined.deleted_arrays == {B}


def test_a_new_array_whose_definition_changed_is_in_both() -> None:  # api-facts 13
    combined = combine(
        [TransactionLog(new_arrays=frozenset({C})), TransactionLog(updated_arrays=frozenset({C}))]
    )
    assert combined.new_arrays == combined.updated_arrays == {C}


def test_a_node_that_comes_back_is_there() -> None:
    created = TransactionLog(new_arrays=frozenset({A}), updated_chunks={A: index(1)})
    deleted = TransactionLog(deleted_arrays=frozenset({A}))
    edited = TransactionLog(updated_chunks={A: index(2)})
    assert combine([created, deleted, created]) == created
    assert combine([created, deleted, created, deleted]) == TransactionLog()
    back = combine([edited, deleted, created])
    assert back.updated_arrays == {A}
    assert back.updated_chunks == {A: index(1, 2)}
    assert not back.new_arrays | back.deleted_arrays
    assert combine([deleted, created, deleted]) == TransactionLog(
        deleted_arrays=frozenset({A}), updated_chunks={A: index(1)}
    )
    # Chunk 3 of the node as it was would be missing from the combined log.
    assert brings_back([deleted, edited, created])
    assert not brings_back([created, edited, deleted])


def group(node_id: NodeId, path: str, label: str = "") -> Node:
    return make_node(node_id, path, documents.group(label=label))


def array(node_id: NodeId, path: str, refs: int = 0) -> Node:
    node = make_node(node_id, path, documents.array([9]))
    pointer = ManifestRef(ManifestId.random(), Box((0,), (9,)), refs)
    return node.evolve(manifests=(pointer,) if refs else ())


def test_states_are_compared_by_id() -> None:
    before = [group(A, "/g"), array(B, "/old", 1), array(C, "/gone")]
    created = NodeId.random()
    after = [group(A, "/g", "new"), array(B, "/new", 2), array(created, "/c", 1)]
    tables = {"/old": chunks(_0=b"x", _1=b"y"), "/new": chunks(_0=b"x", _1=b"z", _3=b"")}
    log = compare_nodes(
        ReadableNodes(before, lambda node: tables.get(node.path), lambda node: node.document),
        ReadableNodes(
            after,
            lambda node: tables.get(node.path, chunks(_7=b"q")),
            lambda node: node.document,
        ),
    )
    assert log == TransactionLog(
        new_arrays=frozenset({created}),
        deleted_arrays=frozenset({C}),
        updated_groups=frozenset({A}),
        updated_chunks={B: index(1, 3), created: index(7)},
        moves=(Move(B, "/old", "/new"),),
    )


def test_chunks_are_compared_by_what_they_refer_to() -> None:
    one = chunks(_0=b"a", _4=b"b")
    assert compare_chunks(None, None) is None
    assert compare_chunks(one, chunks(_0=b"a", _4=b"b")) is None
    assert compare_chunks(None, one) == compare_chunks(one, None) == index(0, 4)
    assert compare_chunks(one, chunks(_0=b"a", _4=b"c")) == index(4)
    assert compare_chunks(one, chunks(_5=b"a")) == index(0, 4, 5)
