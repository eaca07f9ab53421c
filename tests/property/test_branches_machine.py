"""Branches against a plain model: merges, rebases, picks, reverts and squashes of any edits.

Writers differ in what they put into files of their own, attributes and chunks, and in the width of
the ids of these files. None of that may show in a branch, or in what counts as a conflict.
"""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from icefloe import (
    AppendSolver,
    ChunkPackingConfig,
    MergeSolver,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    VersionSelection,
    in_memory_storage,
)
from icefloe.engine.history.merge_base import find_merge_base
from icefloe.errors import InvalidInputError
from icefloe.model.ids import SnapshotId
from tests.documents import array, chunks_of, group, node_paths
from tests.formats import FORMATS, OFFICIAL_FORMATS, wide_ids

BRANCHES = ("main", "work", "third")
ARRAYS = ("a", "b")
LENGTH = 6
LONG = 200
"""Attributes with a text of that length are above the threshold of some writers."""

WRITERS = {
    "all in files": RepositoryConfig(
        inline_attributes_threshold_bytes=0,
        inline_chunk_threshold_bytes=0,
        chunk_packing=ChunkPackingConfig(max_chunk_bytes=0),
    ),
    "long attributes in files": RepositoryConfig(inline_attributes_threshold_bytes=100),
    "nothing in files": RepositoryConfig(inline_attributes_threshold_bytes=1 << 20),
    "chunks in packs": RepositoryConfig(
        inline_attributes_threshold_bytes=100, inline_chunk_threshold_bytes=0
    ),
}


@dataclass
class ModelArray:
    """An array of one dimension, with a chunk for each element."""

    path: str
    length: int = LENGTH
    attributes: dict[str, Any] = field(default_factory=dict)
    chunks: dict[int, bytes] = field(default_factory=dict)

    def document(self) -> tuple[dict[str, Any], int]:
        return self.attributes, self.length


Tree = dict[str, ModelArray]
"""Arrays by the name that they began with."""


class Clash(Exception):  # noqa: N818 - what the model says, not an error
    """Both sides changed something, each in its own way."""


def merged_value(base: Any, ours: Any, theirs: Any) -> Any:
    if ours in (base, theirs):
        return theirs
    if theirs != base:
        raise Clash
    return ours


def merged_array(
    base: ModelArray, ours: ModelArray, theirs: ModelArray, *, is_rebase: bool
) -> ModelArray:
    """A three-way merge; raises Clash.

    A rebase, as in the official package, goes by what was written: equal writes clash, too.
    """
    all_keys = {*base.attributes, *ours.attributes, *theirs.attributes}
    attributes = {
        key: merged_value(*(side.attributes.get(key) for side in (base, ours, theirs)))
        for key in all_keys
    }
    length = merged_value(base.length, ours.length, theirs.length)
    places = {*base.chunks, *ours.chunks, *theirs.chunks}
    was, mine, other = (side.chunks.get for side in (base, ours, theirs))
    touched = {p for p in places if mine(p) != was(p) and (is_rebase or mine(p) != other(p))}
    their_touched = {p for p in places if other(p) != was(p)}
    if touched & their_touched or (touched and theirs.length != base.length):
        raise Clash
    has_document = ours.document() not in (base.document(), theirs.document())
    is_cut = has_document and ours.length < base.length and ours.length < theirs.length
    if is_cut and any(p >= ours.length and p in theirs.chunks for p in their_touched):
        raise Clash  # what they wrote would be hidden
    chunks = {p: (mine if p in touched else other)(p) for p in places}
    return ModelArray(
        path=merged_value(base.path, ours.path, theirs.path),
        length=length,
        attributes={key: value for key, value in attributes.items() if value is not None},
        chunks={place: data for place, data in chunks.items() if data is not None},
    )


def merged_tree(base: Tree, ours: Tree, theirs: Tree, *, is_rebase: bool = False) -> Tree:
    return {
        name: merged_array(base[name], ours[name], theirs[name], is_rebase=is_rebase)
        for name in base
    }


@dataclass
class Commit:
    parent: str
    tree: Tree


places = st.sets(st.integers(0, 7), min_size=1, max_size=3)
keys = st.sampled_from(["x", "y"])
edits = st.one_of(
    st.tuples(st.just("put"), places),
    st.tuples(st.just("drop"), places),
    st.tuples(st.just("attribute"), keys, st.booleans()),
    st.tuples(st.just("unset"), keys),
    st.tuples(st.just("resize"), st.integers(2, 8)),
    st.tuples(st.just("append"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("describe and put"), places, keys),
    st.tuples(st.just("rename")),
)
work = st.dictionaries(st.sampled_from(ARRAYS), edits, min_size=1)
branches = st.sampled_from(BRANCHES)
writers = st.tuples(st.sampled_from([*WRITERS]), st.booleans())
numbers = st.integers(0, 2**16)


def foreign_ids(how: dict[str, Any]) -> Any:
    """Ids of 16 bytes, where a format has room for those of other implementations."""
    has_room = how.get("generation") in {"store", "dataset"}
    return wide_ids() if has_room else contextlib.nullcontext()


class BranchesMachine(RuleBasedStateMachine):
    how: ClassVar[dict[str, Any]] = {}
    """The format: arguments of `Repository.create`."""

    def __init__(self) -> None:
        super().__init__()
        storage = in_memory_storage()
        first = WRITERS["nothing in files"]
        self.repo = Repository.create(storage, first, **self.how)
        self.opened = {name: Repository.open(storage, config) for name, config in WRITERS.items()}
        self.values = 0
        start = {name: ModelArray(f"/{name}", attributes={"x": "", "y": ""}) for name in ARRAYS}
        session = self.repo.writable_session("main")
        session.tree.set_document("/", group())
        for node in start.values():
            session.tree.set_document(node.path, self.document(node))
            for place in range(3):
                node.chunks[place] = self.value()
                session.tree.set_chunk(node.path, (place,), node.chunks[place])
        self.first = session.commit("start")
        self.commits = {self.first: Commit("", start)}
        self.tips = dict.fromkeys(BRANCHES, self.first)
        for branch in BRANCHES[1:]:
            self.repo.create_branch(branch, self.first)

    # --- helpers

    def value(self) -> bytes:
        """Bytes that were never written before."""
        self.values += 1
        return self.values.to_bytes(2, "big")

    def text(self, *, is_long: bool) -> str:
        self.values += 1
        return f"{self.values} {'x' * LONG * is_long}"

    def document(self, node: ModelArray) -> bytes:
        """The metadata of an array, spelled in one of several ways."""
        self.values += 1
        document = json.loads(array((node.length,), **node.attributes))
        if self.values % 2:
            document = dict(reversed(document.items()))
        return json.dumps(document, indent=self.values % 3 or None).encode()

    @contextlib.contextmanager
    def writing(self, writer: tuple[str, bool]) -> Any:
        """A repository that is opened as some writer does."""
        name, is_wide = writer
        with foreign_ids(self.how) if is_wide else contextlib.nullcontext():
            yield self.opened[name]

    def edit(self, session: Any, tree: Tree, todo: dict[str, tuple[Any, ...]]) -> None:
        for name, (what, *more) in todo.items():
            getattr(self, what.replace(" ", "_"))(session, tree[name], *more)

    def put(self, session: Any, node: ModelArray, chosen: set[int]) -> None:
        for place in sorted(chosen):
            if place < node.length:
                node.chunks[place] = self.value()
                session.tree.set_chunk(node.path, (place,), node.chunks[place])

    def drop(self, session: Any, node: ModelArray, chosen: set[int]) -> None:
        for place in sorted(chosen & node.chunks.keys()):
            del node.chunks[place]
            session.tree.delete_chunk(node.path, (place,))

    def attribute(self, session: Any, node: ModelArray, key: str, is_long: bool) -> None:
        node.attributes[key] = self.text(is_long=is_long)
        session.tree.set_document(node.path, self.document(node))

    def unset(self, session: Any, node: ModelArray, key: str) -> None:
        if node.attributes.pop(key, None) is not None:
            session.tree.set_document(node.path, self.document(node))

    def resize(self, session: Any, node: ModelArray, length: int) -> None:
        self.drop(session, node, {place for place in node.chunks if place >= length})
        if length != node.length:
            node.length = length
            session.tree.set_document(node.path, self.document(node))

    def append(self, session: Any, node: ModelArray, count: int, is_long: bool) -> None:
        old = node.length
        node.attributes["x"] = self.text(is_long=is_long)
        self.resize(session, node, old + count)
        self.put(session, node, set(range(old, old + count)))

    def describe_and_put(self, session: Any, node: ModelArray, chosen: set[int], key: str) -> None:
        self.attribute(session, node, key, is_long=True)
        self.put(session, node, chosen)

    def rename(self, session: Any, node: ModelArray) -> None:
        self.values += 1
        target = f"/renamed {self.values}"
        if self.how == OFFICIAL_FORMATS["icechunk1"]:
            with pytest.raises(InvalidInputError, match="cannot record"):
                session.move(node.path, target)
            return
        session.move(node.path, target)
        node.path = target

    def note(self, branch: str, tip: str, tree: Tree, *, parent: str | None = None) -> None:
        """Record where a branch is, and what it should show."""
        if tip in self.commits:
            assert self.commits[tip].tree == tree
        else:
            self.commits[tip] = Commit(parent or self.tips[branch], tree)
        self.tips[branch] = tip
        self.check(branch)
        report = self.repo.verify()
        assert report.is_clean, report

    def check(self, branch: str) -> None:
        session = self.repo.readonly_session(branch)
        assert session.snapshot_id == self.tips[branch]
        tree = self.commits[self.tips[branch]].tree
        assert node_paths(session) == sorted(["/", *(node.path for node in tree.values())])
        for node in tree.values():
            document = json.loads(session.tree.document(node.path))
            assert (document["attributes"], document["shape"]) == (node.attributes, [node.length])
            assert chunks_of(session, node.path) == node.chunks

    def chosen(self, number: int) -> str | None:
        """A commit after the first."""
        later = [each for each in self.commits if each != self.first]
        return later[number % len(later)] if later else None

    def lay_over(self, branch: str, base: Tree, ours: Tree, act: Any, *, is_rebase: bool) -> None:
        """Expect what the model says of laying a difference over the tip of a branch."""
        head = self.commits[self.tips[branch]].tree
        try:
            expected = merged_tree(base, ours, head, is_rebase=is_rebase)
        except Clash:
            with pytest.raises(RebaseFailedError):
                act()
            assert self.repo.lookup_branch(branch) == self.tips[branch]
            return
        self.note(branch, act(), expected)

    # --- rules

    @rule(branch=branches, writer=writers, todo=work)
    def commit(self, branch: str, writer: tuple[str, bool], todo: dict[str, Any]) -> None:
        tree = copy.deepcopy(self.commits[self.tips[branch]].tree)
        with self.writing(writer) as repo:
            session = repo.writable_session(branch)
            self.edit(session, tree, todo)
            if not session.has_uncommitted_changes:
                return
            self.note(branch, session.commit("edit"), tree)

    @rule(branch=branches, our_writer=writers, their_writer=writers, ours=work, theirs=work)
    def rebase(
        self,
        branch: str,
        our_writer: tuple[str, bool],
        their_writer: tuple[str, bool],
        ours: dict[str, Any],
        theirs: dict[str, Any],
    ) -> None:
        base = self.commits[self.tips[branch]].tree
        mine = copy.deepcopy(base)
        with self.writing(our_writer) as repo:
            session = repo.writable_session(branch)
            self.edit(session, mine, ours)
        self.commit(branch, their_writer, theirs)
        if not session.has_uncommitted_changes:
            return

        def act() -> str:
            with self.writing(our_writer):
                session.rebase(MergeSolver())
                return session.commit("rebased")

        self.lay_over(branch, base, mine, act, is_rebase=True)

    @rule(source=branches, into=branches, writer=writers, forward=st.booleans())
    def merge(self, source: str, into: str, writer: tuple[str, bool], forward: bool) -> None:
        if source == into:
            return
        ids = [SnapshotId.parse(self.tips[branch]) for branch in (source, into)]
        base = str(find_merge_base(self.repo._context, *ids).snapshot_id)

        def act() -> str:
            with self.writing(writer) as repo:
                return repo.merge(source, into, fast_forward=forward)

        ours = self.commits[self.tips[source]].tree
        self.lay_over(into, self.commits[base].tree, ours, act, is_rebase=False)

    @rule(number=numbers, branch=branches, writer=writers, is_undone=st.booleans())
    def pick_or_revert(
        self, number: int, branch: str, writer: tuple[str, bool], is_undone: bool
    ) -> None:
        picked = self.chosen(number)
        if picked is None:
            return
        commit = self.commits[picked]
        before, after = self.commits[commit.parent].tree, commit.tree

        def act() -> str:
            with self.writing(writer) as repo:
                return (repo.revert if is_undone else repo.cherry_pick)(picked, branch=branch)

        if is_undone:
            before, after = after, before
        self.lay_over(branch, before, after, act, is_rebase=False)

    @rule(branch=branches, back=st.integers(1, 4), writer=writers)
    def squash(self, branch: str, back: int, writer: tuple[str, bool]) -> None:
        since = tip = self.tips[branch]
        for _ in range(back):
            since = self.commits[since].parent or since
        if since == tip:
            return
        with self.writing(writer) as repo:
            squashed = repo.squash(branch, since, message="squashed")
        self.note(branch, squashed, self.commits[tip].tree, parent=since)

    @rule(branch=branches)
    def compact(self, branch: str) -> None:
        self.repo.compact(branch=branch, small_file_bytes=100, min_live_share=1)
        tip = self.repo.lookup_branch(branch)
        self.note(branch, tip, self.commits[self.tips[branch]].tree)

    def teardown(self) -> None:
        self.repo = Repository.open(self.repo.storage)
        self.repo._context.files.forget()
        for branch in BRANCHES:
            self.check(branch)
        report = self.repo.verify(deep=True)
        assert report.is_clean, report


@pytest.mark.parametrize("name", FORMATS)
def test_branches_are_as_the_model(name: str) -> None:
    machine = type("Machine", (BranchesMachine,), {"how": FORMATS[name]})
    examples = max(2, settings().max_examples // 5)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))


sides = st.fixed_dictionaries(
    {
        "count": st.integers(1, 3),
        "text": st.none() | st.booleans(),
        "overwrites": st.booleans(),
        "writer": writers,
    }
)


@pytest.mark.parametrize("name", FORMATS)
@given(ours=sides, theirs=sides, is_merge=st.booleans())
def test_appends_follow_each_other(
    name: str, ours: dict[str, Any], theirs: dict[str, Any], is_merge: bool
) -> None:
    """Whoever appends, whatever else is changed in the same array, and wherever that is kept."""

    def session_of(writer: tuple[str, bool], branch: str) -> Any:
        return Repository.open(storage, WRITERS[writer[0]]).writable_session(branch)

    def ids_of(writer: tuple[str, bool]) -> Any:
        return foreign_ids(FORMATS[name]) if writer[1] else contextlib.nullcontext()

    def append(session: Any, side: dict[str, Any], key: str, place: int) -> None:
        attributes = dict.fromkeys("xy", "")
        if side["text"] is not None:
            attributes[key] = key * (LONG if side["text"] else 1)
        document = json.loads(array((4 + side["count"],), **attributes))  # type: ignore[arg-type]
        session.tree.set_document("/a", json.dumps({**document, "dimension_names": ["t"]}).encode())
        for new in range(4, 4 + side["count"]):
            session.tree.set_chunk("/a", (new,), key.encode() + bytes([new]))
        if side["overwrites"]:
            session.tree.set_chunk("/a", (place,), key.encode())

    storage = in_memory_storage()
    repo = Repository.create(storage, WRITERS["nothing in files"], **FORMATS[name])
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    document = json.loads(array((4,), x="", y=""))
    session.tree.set_document("/a", json.dumps({**document, "dimension_names": ["t"]}).encode())
    for place in range(4):
        session.tree.set_chunk("/a", (place,), b"start")
    repo.create_branch("work", session.commit("start"))

    with ids_of(ours["writer"]):
        session = session_of(ours["writer"], "work" if is_merge else "main")
        append(session, ours, "x", 0)
        if is_merge:
            session.commit("ours")
    with ids_of(theirs["writer"]):
        other = session_of(theirs["writer"], "main")
        append(other, theirs, "y", 1)
        other.commit("theirs")
    repo._context.files.forget()
    solver = AppendSolver("t", MergeSolver(on_chunk_conflict=VersionSelection.Fail))
    with ids_of(ours["writer"]):
        if is_merge:
            repo.merge("work", "main", solver=solver)
        else:
            session.rebase(solver)
            session.commit("ours")

    shown = repo.readonly_session("main")
    found = json.loads(shown.tree.document("/a"))
    assert found["shape"] == [4 + ours["count"] + theirs["count"]]
    texts = {
        key: "" if side["text"] is None else key * (LONG if side["text"] else 1)
        for key, side in (("x", ours), ("y", theirs))
    }
    assert found["attributes"] == texts
    expected = dict.fromkeys(range(4), b"start")
    for key, side, place, behind in (("y", theirs, 1, 0), ("x", ours, 0, theirs["count"])):
        if side["overwrites"]:
            expected[place] = key.encode()
        for new in range(4, 4 + side["count"]):
            expected[new + behind] = key.encode() + bytes([new])
    assert chunks_of(shown, "/a") == expected
    report = repo.verify(deep=True)
    assert report.is_clean, report
