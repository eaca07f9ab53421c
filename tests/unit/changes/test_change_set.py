import pickle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from icefloe.changes.change_set import ChangeSet
from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.chunk_refs import InlineRef
from icefloe.model.ids import NodeId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import NodeTable, expect_array, make_node
from tests import documents


def group(label: str = "") -> bytes:
    return documents.group(label=label)


def array(size: int = 4) -> bytes:
    return documents.array([size])


def table(**documents: bytes) -> NodeTable:
    named = {"/" + path.replace("__", "/"): doc for path, doc in documents.items()}
    nodes = [make_node(NodeId.random(), "/", group())]
    return NodeTable.of([*nodes, *(make_node(NodeId.random(), p, d) for p, d in named.items())])


def test_create_and_delete_leaves_nothing() -> None:
    changes = ChangeSet(table())
    changes.set_document("/a", group())
    changes.set_document("/a/b", array())
    assert not changes.is_empty
    changes.delete("/a")
    assert changes.is_empty
    assert changes.get("/a") is None


def test_a_node_keeps_its_kind_and_rank() -> None:
    changes = ChangeSet(table(a=array(), g=group()))
    with pytest.raises(AlreadyExistsError, match="node already exists"):
        changes.set_document("/a", group())
    with pytest.raises(AlreadyExistsError, match="node already exists"):
        changes.set_document("/g", array())
    changes.delete("/a")
    changes.set_document("/a", group())
    log = changes.log({})
    assert len(log.deleted_arrays) == len(log.new_groups) == 1


def test_move_keeps_ids_and_takes_children_along() -> None:  # R3-09
    base = table(g=group(), g__a=array(), g__h=group(), g__h__b=array())
    changes = ChangeSet(base)
    ids = {node.path: node.id for node in base}
    changes.move("/g", "/x")
    assert list(changes.paths_below("/")) == ["/x", "/x/a", "/x/h", "/x/h/b"]
    moved = changes.get("/x/h/b")
    assert moved is not None
    assert moved.id == ids["/g/h/b"]
    log = changes.log({})
    assert [(m.source, m.target) for m in log.moves] == [("/g", "/x")]
    changes.move("/x/h", "/x/k")
    assert sorted((m.source, m.target) for m in changes.log({}).moves) == [
        ("/g", "/x"),
        ("/g/h", "/x/k"),
    ]
    changes.move("/x/k", "/x/h")
    changes.move("/x", "/g")
    assert changes.is_empty


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/nope", "/x", NodeNotFoundError),
        ("/g", "/a", AlreadyExistsError),
        ("/g", "/g/inside", InvalidInputError),
        ("/", "/x", InvalidInputError),
        ("/g", "/a/below-an-array", InvalidInputError),
        ("/g", "/missing/parent", InvalidInputError),
    ],
)
def test_moves_that_make_no_sense(source: str, target: str, error: type[Exception]) -> None:
    changes = ChangeSet(table(g=group(), a=array()))
    with pytest.raises(error):
        changes.move(source, target)
    assert changes.is_empty


def test_changes_lie_over_another_base_by_id() -> None:
    base = table(g=group(), g__a=array(), b=array())
    changes = ChangeSet(base)
    changes.set_document("/b", array(9))
    changes.set_document("/new", group("mine"))
    changes.delete("/g/a")
    loaded = pickle.loads(pickle.dumps(changes))
    # Meanwhile somebody moved /b, added /c and gave /g/a more attributes.
    b = base.get("/b")
    assert b is not None
    others = [n for n in base if n.path != "/b"]
    c = make_node(NodeId.random(), "/c", group())
    loaded.rebase(NodeTable.of([*others, b.evolve(path="/elsewhere"), c]))
    assert list(loaded.paths_below("/")) == ["/c", "/elsewhere", "/g", "/new"]
    elsewhere = loaded.get("/elsewhere")
    assert elsewhere is not None
    assert elsewhere.is_array
    assert elsewhere.array.shape == (9,)


def test_a_move_replaces_what_readers_see_at_once() -> None:
    """Readers take no lock: they must find a moving node at its old or its new place."""
    changes = ChangeSet(table(g=group(), g__a=array()))
    changes.set_document("/g/n", group())
    seen = changes._overlay
    before = dict(seen)
    changes.move("/g", "/h")
    assert changes._overlay is not seen
    assert seen == before


class Vanishing(dict[str, Any]):
    """A dictionary that another thread empties after each look at it."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self.clear()
        return found


def test_a_reader_looks_once() -> None:
    changes = ChangeSet(table())
    changes.set_document("/a", group())
    changes._overlay = Vanishing(changes._overlay)
    assert changes.get("/a") is not None
    assert changes.get("/a") is None


def test_absorbing_two_creators_of_one_group_makes_one_group() -> None:
    base = table()
    one, two = ChangeSet(base), ChangeSet(base)
    one.set_document("/a", group("first"))
    two.set_document("/a", group("second"))
    one.absorb(two)
    assert [node.document for node in one.new.values()] == [group("second")]
    assert one.all_nodes()[1:] == list(one.new.values())


def test_absorbing_two_creators_of_one_array_joins_their_chunks() -> None:
    base = table()
    one, two = ChangeSet(base), ChangeSet(base)
    for place, changes in enumerate((one, two)):
        changes.set_document("/a", array())
        node = expect_array(changes.get("/a"), "/a")
        changes.edits(node).set((place,), InlineRef(b"%d" % place))
    one.absorb(two)
    (joined,) = one.new.values()
    edits = one.chunks[joined.id]
    assert set(one.chunks) == {joined.id}
    assert edits.get((0,)) == (True, InlineRef(b"0"))
    assert edits.get((1,)) == (True, InlineRef(b"1"))


@pytest.mark.parametrize("other", [array(5), group()])
def test_absorbing_another_node_of_the_same_path_is_refused(other: bytes) -> None:
    base = table()
    one, two = ChangeSet(base), ChangeSet(base)
    one.set_document("/a", array())
    two.set_document("/a", other)
    with pytest.raises(AlreadyExistsError, match="different nodes at /a"):
        one.absorb(two)


def test_what_one_changed_and_another_deleted_is_gone() -> None:
    base = table(a=array(), b=array())
    for deleter_first in (True, False):
        writer, deleter = ChangeSet(base), ChangeSet(base)
        node = expect_array(base.get("/a"), "/a")
        writer.edits(node).set((0,), InlineRef(b"x"))
        writer.set_document("/a", array(3))
        writer.move("/a", "/moved")
        deleter.delete("/a")
        both = deleter if deleter_first else writer
        both.absorb(writer if deleter_first else deleter)
        assert set(both.deleted) == {node.id}
        assert (both.chunks, both.documents, both.places) == ({}, {}, {})
        assert list(both.paths_below("/")) == ["/b"]


def test_a_moved_child_survives_the_deletion_of_its_old_group() -> None:
    base = table(g=group(), g__a=array())
    one, two = ChangeSet(base), ChangeSet(base)
    two.move("/g/a", "/a")
    two.delete("/g")
    two.set_document("/g", group("new"))
    one.absorb(two)
    assert list(one.paths_below("/")) == ["/a", "/g"]


def test_a_node_stays_deleted_where_another_one_was_moved_to() -> None:
    changes = ChangeSet(table(a=array(), g=group(), g__b=array()))
    changes.delete("/g")
    changes.move("/a", "/g")
    changes.discard("/g")
    assert {node.path: node.is_array for node in changes.all_nodes()} == {"/": False, "/g": True}
    changes.discard("/")
    assert [node.path for node in changes.all_nodes()] == ["/", "/g"]
    changes.move("/g", "/a")
    changes.discard("/")
    assert changes.is_empty


def test_a_node_is_not_restored_below_an_array() -> None:
    changes = ChangeSet(table(g=group(), g__b=array()))
    changes.delete("/g")
    changes.set_document("/g", array())
    changes.discard("/g/b")
    assert [node.path for node in changes.all_nodes()] == ["/", "/g"]
    changes.discard("/g")
    assert changes.is_empty


def test_changes_of_a_moved_node_are_discarded_and_its_move_stays() -> None:
    changes = ChangeSet(table(a=array()))
    changes.set_document("/n", group())
    changes.move("/a", "/n/a")
    changes.set_document("/n/a", array(2))
    changes.discard("/n")
    moved = changes.get("/n/a")
    assert moved is not None
    assert moved.document == array()
    assert changes.get("/n") is not None, "a node below no group would be hidden"


def test_two_moves_to_one_path_are_refused() -> None:
    base = table(a=array(), b=array())
    one, two = ChangeSet(base), ChangeSet(base)
    one.move("/a", "/x")
    two.move("/b", "/x")
    with pytest.raises(AlreadyExistsError, match="two different nodes would be at /x"):
        one.absorb(two)


def test_changes_are_not_laid_over_a_node_that_others_put_there() -> None:
    base = table()
    changes = ChangeSet(base)
    changes.set_document("/x", group())
    other = NodeTable.of([*base, make_node(NodeId.random(), "/x", array())])
    with pytest.raises(AlreadyExistsError, match="two different nodes would be at /x"):
        changes.rebase(other)
    assert changes.base is base


def test_swapped_paths_are_laid_over_another_base() -> None:
    base = table(a=array(1), b=array(2))
    changes = ChangeSet(base)
    changes.move("/a", "/t")
    changes.move("/b", "/a")
    changes.move("/t", "/b")
    changes.rebase(NodeTable.of(list(base)))
    shapes = [node.array.shape for node in changes.all_nodes() if node.is_array]
    assert shapes == [(2,), (1,)]


def test_deleting_all_chunks_spares_those_that_were_not_seen() -> None:
    base = table(a=array())
    node = expect_array(base.get("/a"), "/a")
    old = ArrayChunks.of([(0,), (1,)], [InlineRef(b"0"), InlineRef(b"1")], 1)
    changes = ChangeSet(base)
    changes.edits(node).clear()
    changes.edits(node).set((1,), InlineRef(b"new"))
    twin = changes.copy()
    twin.make_clears_explicit(lambda _: old)
    newer = ArrayChunks.of([(0,), (1,), (2,)], [InlineRef(b"%d" % k) for k in range(3)], 1)
    kept = twin.chunks[node.id].apply(newer)
    assert kept is not None
    assert kept.index.tuples() == [(1,), (2,)]
    assert kept.refs.get(0) == InlineRef(b"new")
    assert changes.chunks[node.id].cleared
    assert twin.chunks[node.id].touched(None) == changes.chunks[node.id].touched(old)


names = st.sampled_from(["a", "b", "c"])
node_paths = st.lists(names, min_size=1, max_size=3).map(lambda s: "/" + "/".join(s))


class ChangeSetMachine(RuleBasedStateMachine):
    """A change set over a random base against a dictionary of documents."""

    @initialize(initial=st.sets(node_paths, min_size=2, max_size=6))
    def start(self, initial: set[str]) -> None:
        closed = {"/"}
        for path in initial:
            above: str | None = path
            while above is not None:
                closed.add(above)
                above = paths.parent(above)
        self.base = NodeTable.of(make_node(NodeId.random(), p, group()) for p in closed)
        self.changes = ChangeSet(self.base)
        self.model = {node.path: (node.id, group()) for node in self.base}

    @rule(path=node_paths, label=names)
    def write(self, path: str, label: str) -> None:
        parent = paths.parent(path)
        if parent not in self.model:
            return
        self.changes.set_document(path, group(label))
        node = self.changes.get(path)
        assert node is not None
        if path in self.model:
            assert node.id == self.model[path][0]
        self.model[path] = (node.id, group(label))

    @rule(path=node_paths)
    def delete(self, path: str) -> None:
        self.changes.delete(path)
        self.model = {p: v for p, v in self.model.items() if not paths.is_within(p, path)}

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data(), name=names)
    def move(self, data: st.DataObject, name: str) -> None:
        source, group = (data.draw(st.sampled_from(sorted(self.model))) for _ in range(2))
        to = f"{group.rstrip('/')}/{name}"
        try:
            self.changes.move(source, to)
        except (AlreadyExistsError, InvalidInputError):
            return
        self.model = {
            to + p[len(source) :] if paths.is_within(p, source) else p: v
            for p, v in self.model.items()
        }

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        known = {*self.model, *self.base.paths}
        path = data.draw(st.sampled_from(sorted(known)))
        self.changes.discard(path)
        if path != "/" and paths.parent(path) not in self.model:
            return
        base = {node.id: node.path for node in self.base}
        moved = {
            base[node_id]: place
            for place, (node_id, _) in self.model.items()
            if node_id in base and base[node_id] != place
        }
        filled = {
            place
            for place, (node_id, _) in self.model.items()
            if node_id not in base and any(paths.is_within(to, place) for to in moved.values())
        }
        after = {}
        for place, (node_id, document) in self.model.items():
            if not paths.is_within(place, path) or place in filled:
                after[place] = (node_id, document)
            elif node_id in base:
                after[place] = (node_id, group())
        occupied = {*moved, *moved.values(), *filled}
        present = {node_id for node_id, _ in self.model.values()}
        for node in self.base:
            is_blocked = any(paths.is_within(node.path, place) for place in occupied)
            if node.id not in present and paths.is_within(node.path, path) and not is_blocked:
                after[node.path] = (node.id, group())
        self.model = after

    @rule()
    def travel(self) -> None:
        self.changes = pickle.loads(pickle.dumps(self.changes))
        self.changes.rebase(self.base)

    @rule()
    def merge_into_a_fresh_one(self) -> None:
        fresh = ChangeSet(self.base)
        fresh.absorb(self.changes)
        self.changes = fresh

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        nodes = {n.path: (n.id, n.document) for n in self.changes.all_nodes()}
        assert nodes == self.model
        assert all(paths.parent(path) in nodes for path in nodes if path != "/")

    @invariant()
    def log_leads_from_the_base_to_here(self) -> None:
        if not hasattr(self, "model"):
            return
        log = self.changes.log({})
        ids_before = set(self.base.node_ids())
        ids_now = {node_id for node_id, _ in self.model.values()}
        assert log.new_groups == ids_now - ids_before
        assert log.deleted_groups == ids_before - ids_now
        places = {node_id: path for path, (node_id, _) in self.model.items()}
        for move in log.moves:
            assert places[move.node_id] == move.target


TestChangeSet = ChangeSetMachine.TestCase
TestChangeSet.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
