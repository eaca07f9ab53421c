"""A repository against a plain-dict model: random edits, commits, references and time travel."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import zarr
import zarr.errors
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from zarr.core.sync import sync

import icefloe
from icefloe import (
    BasicConflictSolver,
    CachingConfig,
    ConflictDetector,
    ConflictError,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    VersionSelection,
)
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NodeNotFoundError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from tests.formats import FORMATS, OFFICIAL_FORMATS
from tests.property import hierarchy
from tests.property.hierarchy import (
    Coords,
    ModelNode,
    Tree,
    below,
    check_shows,
    copied,
    expected_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from icefloe.session import Session
    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import S3Endpoint

# Small enough that inline and native chunks, inline and spilled attributes all occur.
CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)
# Room for a few chunks and logs.
CACHING = CachingConfig(num_bytes_chunks=2000, num_transaction_changes=20)

# `c` and `0` are what folders of chunks are called.
NODE_NAMES = ("a", "b", "c", "0", "ü x")
BRANCH_NAMES = ("dev", "Dev", "my branch!")
TAG_NAMES = ("v1", "it works!")
CHUNK_SHAPES: tuple[Coords, ...] = ((2,), (8,), (1, 2), (2, 3), ())
MAX_DEPTH = 3

numbers = st.integers(0, 2**16)
values = st.integers(1, 255)
attribute_sets = st.one_of(
    st.dictionaries(
        st.sampled_from(["k", "l", "ö"]),
        st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=5)),
        max_size=3,
    ),
    st.integers(200, 400).map(lambda size: {"long": "x" * size}),
)


# What a rule chooses from: methods of the machine and their arguments.
EDITS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "write_chunks": {
        "writes": st.lists(st.tuples(numbers, numbers, values), min_size=1, max_size=4)
    },
    "write_region": {"number": numbers, "chunk": numbers, "value": values},
    "delete_all_chunks": {"number": numbers},
    "delete_chunk": {"number": numbers, "chunk": numbers},
    "create_group": {
        "number": numbers,
        "name": st.sampled_from(NODE_NAMES),
        "attributes": attribute_sets,
    },
    "create_array": {
        "number": numbers,
        "name": st.sampled_from(NODE_NAMES),
        "attributes": attribute_sets,
        "chunk_shape": st.sampled_from(CHUNK_SHAPES),
        "chunks": st.integers(0, 3),
    },
    "delete_node": {"number": numbers},
    "move": {"number": numbers, "group": numbers, "name": st.sampled_from(NODE_NAMES)},
    "set_attributes": {
        "changes": st.lists(st.tuples(numbers, attribute_sets), min_size=1, max_size=3)
    },
    "resize": {"number": numbers, "sizes": st.tuples(st.integers(0, 9), st.integers(0, 9))},
    "shift": {"number": numbers, "offsets": st.tuples(st.integers(-2, 2), st.integers(-2, 2))},
}
REFERENCES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "create_branch": {"name": st.sampled_from(BRANCH_NAMES), "number": numbers},
    "delete_branch": {"number": numbers},
    "delete_main": {},
    "reset_branch": {
        "branch": numbers,
        "number": numbers,
        "expected": st.sampled_from([None, True, False]),
    },
    "create_tag": {"name": st.sampled_from(TAG_NAMES), "number": numbers},
}
LOOKS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "travel_by_id": {"number": numbers},
    "travel_by_tag": {"number": numbers},
    "travel_back": {"branch": numbers, "back": numbers},
    "read_history": {"branch": numbers},
    "diff": {"number": numbers, "back": numbers},
    "pickle_a_reader": {},
}
ARRAY_EDITS = {
    "write_chunks",
    "write_region",
    "delete_all_chunks",
    "delete_chunk",
    "resize",
    "shift",
}

Call = tuple[str, dict[str, Any]]


def calls(table: dict[str, dict[str, st.SearchStrategy[Any]]]) -> st.SearchStrategy[Call]:
    return st.one_of(
        *(st.tuples(st.just(name), st.fixed_dictionaries(given)) for name, given in table.items())
    )


many_edits = st.lists(calls(EDITS), min_size=1, max_size=6)


@dataclass
class ModelSnapshot:
    parent: str | None
    tree: Tree
    message: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelBranch:
    tip: str | None
    """None when the branch is deleted."""
    sequence: int = 0


@dataclass
class Draft:
    """A writable session and what it should show."""

    session: Session
    branch: str
    base: str
    sequence: int
    tree: Tree
    written: set[tuple[str, Coords]] = field(default_factory=set)
    """Chunks that were set or deleted."""
    touched: set[str] = field(default_factory=set)
    """Nodes that were created, changed, moved or deleted, other than by writing chunks."""
    their_groups: Tree = field(default_factory=dict)
    """Groups that rivals created since, under names that nobody else uses."""
    their_chunks: dict[tuple[str, Coords], bytes] = field(default_factory=dict)
    """Chunks that rivals wrote since, in arrays of the base."""
    is_cut_off: bool = False
    """The branch was moved other than by commits."""

    def touch(self, path: str) -> None:
        self.touched.update(below(self.tree, path))

    def forget(self) -> None:
        self.written.clear()
        self.touched.clear()

    def is_murky(self) -> bool:
        """Whether rivals wrote to arrays that we changed otherwise: not for this model."""
        return any(path in self.touched for path, _ in self.their_chunks)

    def clashes(self) -> set[tuple[str, Coords]]:
        """Chunks that both sides wrote."""
        return self.their_chunks.keys() & self.written

    def merged(self, chunks_of: VersionSelection) -> Tree:
        tree = copied({**self.tree, **self.their_groups})
        for (path, coords), data in self.their_chunks.items():
            if chunks_of is VersionSelection.UseTheirs or (path, coords) not in self.written:
                tree[path].chunks[coords] = data
        return tree


def pick(options: Sequence[Any], number: int) -> Any:
    return options[number % len(options)]


class RepositoryMachine(RuleBasedStateMachine):
    make_storage: ClassVar[Callable[[], Storage]]
    how: ClassVar[dict[str, Any]] = {}
    """The format: arguments of `Repository.create`."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = type(self).make_storage()
        self.repo = Repository.create(self.storage, CONFIG, **self.how)
        self.identities = 0
        self.rivals = 0
        self.messages = 0
        first = self.repo.lookup_branch("main")
        self.snapshots = {first: ModelSnapshot(None, {}, "Repository initialized")}
        self.branches = {"main": ModelBranch(first)}
        self.tags: dict[str, str] = {}
        self.deleted_tags: set[str] = set()
        self.draft: Draft | None = None

    @initialize(chunk_shape=st.sampled_from(CHUNK_SHAPES))
    def begin(self, chunk_shape: Coords) -> None:
        draft = self.draft = self.open("main")
        self.add_group("/", {})
        self.add_group("/b", {})
        for path in ("/a", "/b/c"):
            self.add_array(path, tuple(2 * c for c in chunk_shape), chunk_shape, {})
            for coords in draft.tree[path].coords()[:-1]:
                self.set_chunk(path, coords, 1)
        self.publish(draft, draft.session.commit("beginning"), "beginning")
        self.draft = self.open("main")

    # --- helpers

    def group(self, attributes: dict[str, Any] | None = None) -> ModelNode:
        self.identities += 1
        return ModelNode(attributes or {}, identity=self.identities)

    def add_group(self, path: str, attributes: dict[str, Any]) -> None:
        hierarchy.create_group(self.draft.session, path, attributes)
        self.draft.tree[path] = self.group(attributes)
        self.draft.touch(path)

    def add_array(
        self, path: str, shape: Coords, chunk_shape: Coords, attributes: dict[str, Any]
    ) -> None:
        node = self.group(attributes)
        node.shape, node.chunk_shape = shape, chunk_shape
        hierarchy.create_array(self.draft.session, path, node)
        self.draft.tree[path] = node
        self.draft.touch(path)

    def set_chunk(self, path: str, coords: Coords, value: int) -> None:
        node = self.draft.tree[path]
        hierarchy.set_raw(self.draft.session, path, coords, node.chunk_of(value))
        node.chunks[coords] = node.chunk_of(value)
        self.draft.written.add((path, coords))

    def open(self, branch: str) -> Draft:
        at = self.branches[branch]
        assert at.tip is not None
        session = self.repo.writable_session(branch)
        assert (session.branch, session.snapshot_id) == (branch, at.tip)
        return Draft(session, branch, at.tip, at.sequence, copied(self.snapshots[at.tip].tree))

    def living(self) -> list[str]:
        return sorted(name for name, branch in self.branches.items() if branch.tip is not None)

    def history(self, snapshot_id: str) -> list[str]:
        """A snapshot and its ancestors, newest first."""
        chain = [snapshot_id]
        while (parent := self.snapshots[chain[-1]].parent) is not None:
            chain.append(parent)
        return chain

    def message(self) -> str:
        self.messages += 1
        return f"commit {self.messages}"

    def publish(
        self, draft: Draft, snapshot_id: str, message: str, *, parent: str | None = None
    ) -> None:
        """Record a commit of what the draft now shows."""
        assert snapshot_id not in self.snapshots
        branch = self.branches[draft.branch]
        parent = parent or branch.tip
        self.snapshots[snapshot_id] = ModelSnapshot(parent, copied(draft.tree), message)
        branch.tip = snapshot_id
        branch.sequence += 1

    def has_moved(self, draft: Draft) -> bool:
        return self.branches[draft.branch].sequence != draft.sequence

    def check_committed(self, draft: Draft, snapshot_id: str) -> None:
        assert draft.session.read_only
        assert draft.session.snapshot_id == snapshot_id
        assert not draft.session.has_uncommitted_changes
        check_shows(draft.session, self.snapshots[snapshot_id].tree)

    def arrays(self, tree: Tree) -> list[str]:
        return sorted(path for path, node in tree.items() if node.is_array)

    def groups(self, tree: Tree) -> list[str]:
        return sorted(path for path, node in tree.items() if not node.is_array)

    # --- editing

    @rule(number=numbers, edits=many_edits)
    def edit(self, number: int, edits: list[Call]) -> None:
        if self.draft is None:
            self.draft = self.open(pick(self.living(), number))
        for edit in edits:
            self.call(edit)

    @rule(
        number=numbers,
        edits=many_edits,
        solve=st.sampled_from([*VersionSelection]),
        properties=st.booleans(),
    )
    def edit_and_commit(
        self, number: int, edits: list[Call], solve: VersionSelection, properties: bool
    ) -> None:
        self.edit(number, edits)
        self.commit(solve, properties)

    def call(self, what: Call) -> None:
        name, arguments = what
        if self.is_possible(name):
            getattr(self, name)(**arguments)
            self.draft_shows_the_model()

    def is_possible(self, name: str) -> bool:
        tree = self.draft.tree if self.draft is not None else {}
        if name in ARRAY_EDITS:
            return bool(self.arrays(tree))
        match name:
            case "delete_node" | "move":
                return len(tree) > 1
            case "set_attributes":
                return bool(tree)
            case "delete_branch":
                return len(self.living()) > 1
            case "travel_by_tag":
                return bool(self.tags)
            case "pickle_a_reader":
                return self.draft is not None
        return True

    def write_chunks(self, writes: list[tuple[int, int, int]]) -> None:
        for number, chunk, value in writes:
            path, node = self.some_array(number)
            if node.coords():
                self.set_chunk(path, pick(node.coords(), chunk), value)

    def write_region(self, number: int, chunk: int, value: int) -> None:
        path, node = self.some_array(number)
        if not node.coords():
            return
        coords = pick(node.coords(), chunk)
        hierarchy.open_array(self.draft.session, path)[node.region(coords)] = value
        # Of a chunk at the edge, what lies outside of the array is for zarr to decide.
        found = self.draft.session.store.get_sync(hierarchy.chunk_key(path, coords))
        assert found is not None
        node.chunks[coords] = found.to_bytes()
        assert (node.dense()[node.region(coords)] == value).all()
        self.draft.written.add((path, coords))

    def delete_all_chunks(self, number: int) -> None:
        path, node = self.some_array(number)
        sync(self.draft.session.store.delete_dir(f"{path.strip('/')}/c"))
        self.draft.written.update((path, coords) for coords in node.chunks)
        node.chunks.clear()
        self.draft.touched.add(path)

    def delete_chunk(self, number: int, chunk: int) -> None:
        path, node = self.some_array(number)
        if not node.coords():
            return
        coords = pick(node.coords(), chunk)
        self.draft.session.store.delete_sync(hierarchy.chunk_key(path, coords))
        node.chunks.pop(coords, None)
        self.draft.written.add((path, coords))

    def create_group(self, number: int, name: str, attributes: dict[str, Any]) -> None:
        path = self.free_path(number, name)
        if path is None:
            return
        self.add_group(path, attributes)

    def create_array(
        self, number: int, name: str, attributes: dict[str, Any], chunk_shape: Coords, chunks: int
    ) -> None:
        path = self.free_path(number, name)
        if path in (None, "/"):
            return
        shape = tuple(chunks * c - (chunks > 1) for c in chunk_shape)
        self.add_array(path, shape, chunk_shape, attributes)

    def delete_node(self, number: int) -> None:
        path = self.some_node(number)
        self.draft.touch(path)
        hierarchy.delete_node(self.draft.session, path)
        for gone in below(self.draft.tree, path):
            del self.draft.tree[gone]

    def move(self, number: int, group: int, name: str) -> None:
        tree = self.draft.tree
        source = self.some_node(number)
        parent = pick([p for p in sorted(tree) if p.count("/") < MAX_DEPTH], group)
        target = f"{parent.rstrip('/')}/{name}"
        node_id = self.draft.session.get_node_id(source)
        if self.how == OFFICIAL_FORMATS["icechunk1"]:
            with pytest.raises(InvalidInputError, match="version 1 of the icechunk format"):
                self.draft.session.move(source, target)
            return
        is_inside = target == source or target.startswith(f"{source}/")
        if is_inside or target in tree or tree[parent].is_array:
            with pytest.raises((AlreadyExistsError, InvalidInputError)):
                self.draft.session.move(source, target)
            return
        self.draft.touch(source)
        self.draft.session.move(source, target)
        for old in below(tree, source):
            tree[target + old[len(source) :]] = tree.pop(old)
        self.draft.touch(target)
        assert self.draft.session.get_node_id(target) == node_id
        with pytest.raises(NodeNotFoundError):
            self.draft.session.get_node_id(source)

    def set_attributes(self, changes: list[tuple[int, dict[str, Any]]]) -> None:
        for number, attributes in changes:
            path = pick(sorted(self.draft.tree), number)
            hierarchy.set_attributes(self.draft.session, path, attributes)
            self.draft.tree[path].attributes = attributes
            self.draft.touched.add(path)

    def resize(self, number: int, sizes: tuple[int, int]) -> None:
        path, node = self.some_array(number)
        shape = sizes[: len(node.chunk_shape)]
        hierarchy.open_array(self.draft.session, path).resize(shape)
        node.resize(shape)
        self.draft.touched.add(path)

    def shift(self, number: int, offsets: tuple[int, int]) -> None:
        path, node = self.some_array(number)
        offset = offsets[: len(node.chunk_shape)]
        self.draft.session.shift_array(path, offset)
        moved = {
            tuple(i + o for i, o in zip(coords, offset, strict=True)): data
            for coords, data in node.chunks.items()
        }
        inside = set(node.coords())
        node.chunks = {coords: data for coords, data in moved.items() if coords in inside}
        self.draft.touched.add(path)

    def some_array(self, number: int) -> tuple[str, ModelNode]:
        assert self.draft is not None
        path = pick(self.arrays(self.draft.tree), number)
        return path, self.draft.tree[path]

    def some_node(self, number: int) -> str:
        assert self.draft is not None
        return pick(sorted(self.draft.tree)[1:], number)

    def free_path(self, number: int, name: str) -> str | None:
        """A path where a node can be created; None if it is taken, which zarr must refuse."""
        draft = self.draft
        assert draft is not None
        if not draft.tree:
            return "/"
        groups = [p for p in self.groups(draft.tree) if p.count("/") < MAX_DEPTH]
        path = f"{pick(groups, number).rstrip('/')}/{name}"
        if path not in draft.tree:
            return path
        with pytest.raises((zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError)):
            zarr.create_group(draft.session.store, path=path.strip("/"))
        return None

    # --- ending a session

    @precondition(lambda self: self.draft)
    @rule()
    def discard(self) -> None:
        self.draft.session.discard_changes()
        assert not self.draft.session.has_uncommitted_changes
        self.draft.tree = copied(self.snapshots[self.draft.base].tree)
        self.draft.forget()

    @precondition(lambda self: self.draft)
    @rule(solve=st.sampled_from([None, *VersionSelection]), properties=st.booleans())
    def commit(self, solve: VersionSelection | None, properties: bool) -> None:
        metadata = {"number": self.messages, "nested": {"ü": [1, None]}} if properties else {}
        self.commit_draft(solve, metadata)

    def commit_draft(self, solve: VersionSelection | None, metadata: dict[str, Any]) -> None:
        draft, message = self.draft, self.message()
        if not draft.session.has_uncommitted_changes:
            assert draft.tree == self.snapshots[draft.base].tree
            with pytest.raises(SessionStateError):
                draft.session.commit(message)
        if self.has_moved(draft) and not self.overtake(draft, solve):
            return
        # Nothing may be left of our changes when theirs were taken instead.
        allow_empty = not draft.session.has_uncommitted_changes
        snapshot_id = draft.session.commit(message, metadata, allow_empty=allow_empty)
        self.publish(draft, snapshot_id, message)
        self.snapshots[snapshot_id].metadata = metadata
        self.check_committed(draft, snapshot_id)
        self.draft = None

    def overtake(self, draft: Draft, solve: VersionSelection | None) -> bool:
        """Rebase a session whose branch moved; False if that cannot be or is not wanted."""
        with pytest.raises(ConflictError):
            draft.session.commit("too late", allow_empty=True)
        if solve is None:
            self.draft = None
            return False
        tip = self.branches[draft.branch].tip
        if tip is None or draft.base not in self.history(tip):
            with pytest.raises(ConflictError) as caught:
                draft.session.rebase(BasicConflictSolver())
            assert not isinstance(caught.value, RebaseFailedError)
            self.draft = None
            return False
        if draft.is_cut_off or draft.is_murky():
            self.draft = None
            return False
        if draft.clashes():
            with pytest.raises(RebaseFailedError) as failed:
                draft.session.rebase(ConflictDetector())
            paths = {conflict.path for conflict in failed.value.conflicts}
            assert paths == {path for path, _ in draft.clashes()}
            check_shows(draft.session, draft.tree)
            if solve is VersionSelection.Fail:
                self.draft = None
                return False
        draft.session.rebase(BasicConflictSolver(on_chunk_conflict=solve))
        draft.tree = draft.merged(solve)
        draft.base, draft.sequence = tip, self.branches[draft.branch].sequence
        draft.their_groups.clear()
        draft.their_chunks.clear()
        check_shows(draft.session, draft.tree)
        return True

    @precondition(lambda self: self.draft)
    @rule()
    def amend(self) -> None:
        draft, message = self.draft, self.message()
        if not draft.session.has_uncommitted_changes:
            with pytest.raises(SessionStateError):
                draft.session.amend(message)
        parent = self.snapshots[draft.base].parent
        if parent is None:
            with pytest.raises(SessionStateError):
                draft.session.amend(message, allow_empty=True)
            return
        if self.has_moved(draft):
            with pytest.raises(ConflictError):
                draft.session.amend(message, allow_empty=True)
            return
        snapshot_id = draft.session.amend(message, allow_empty=True)
        self.publish(draft, snapshot_id, message, parent=parent)
        self.check_committed(draft, snapshot_id)
        self.draft = None

    @precondition(lambda self: self.draft)
    @rule()
    def flush(self) -> None:
        draft, message = self.draft, self.message()
        if not draft.session.has_uncommitted_changes:
            with pytest.raises(SessionStateError):
                draft.session.flush(message)
            return
        snapshot_id = draft.session.flush(message)
        self.snapshots[snapshot_id] = ModelSnapshot(draft.base, copied(draft.tree), message)
        self.check_committed(draft, snapshot_id)
        self.draft = None

    # --- rivals, who commit to the draft's branch meanwhile

    @precondition(lambda self: self.draft and self.branches[self.draft.branch].tip)
    @rule()
    def rival_creates_a_group(self) -> None:
        mine = self.draft
        rival, message = self.open(mine.branch), self.message()
        if "/" not in rival.tree or "/" not in mine.tree:
            return
        self.rivals += 1
        path, node = f"/rival {self.rivals}", self.group({"by": self.rivals})
        hierarchy.create_group(rival.session, path, node.attributes)
        rival.tree[path] = mine.their_groups[path] = node
        self.publish(rival, rival.session.commit(message), message)

    @precondition(lambda self: self.draft and self.branches[self.draft.branch].tip)
    @rule(number=numbers, value=values, meets_ours=st.booleans())
    def rival_writes_a_chunk(self, number: int, value: int, meets_ours: bool) -> None:
        self.race(number, value, meets_ours=meets_ours)

    @precondition(lambda self: self.draft and self.branches[self.draft.branch].tip)
    @rule(number=numbers, ours=values, theirs=values, solve=st.sampled_from([*VersionSelection]))
    def both_write_a_chunk_and_we_commit(
        self, number: int, ours: int, theirs: int, solve: VersionSelection
    ) -> None:
        arrays = [p for p in self.arrays(self.draft.tree) if self.draft.tree[p].coords()]
        if arrays:
            path = pick(arrays, number)
            self.set_chunk(path, pick(self.draft.tree[path].coords(), number), ours)
            self.race(number, theirs, meets_ours=True)
            self.commit_draft(solve, {})

    def race(self, number: int, value: int, *, meets_ours: bool) -> None:
        mine = self.draft
        rival, message = self.open(mine.branch), self.message()
        base = self.snapshots[mine.base].tree
        chunks = [
            (path, coords)
            for path in self.arrays(rival.tree)
            if path in base and base[path].identity == rival.tree[path].identity
            for coords in rival.tree[path].coords()
            if not meets_ours or (path, coords) in mine.written
        ]
        if not chunks:
            return
        path, coords = pick(chunks, number)
        data = rival.tree[path].chunk_of(value)
        hierarchy.set_raw(rival.session, path, coords, data)
        rival.tree[path].chunks[coords] = mine.their_chunks[path, coords] = data
        self.publish(rival, rival.session.commit(message), message)

    # --- references

    @rule(what=calls(REFERENCES))
    def refer(self, what: Call) -> None:
        self.call(what)

    def create_branch(self, name: str, number: int) -> None:
        target = pick(list(self.snapshots), number)
        current = self.branches.get(name)
        # Only folders with sequences remember the names of deleted branches.
        forgets = self.repo.generation in {"dataset", "icechunk"}
        others = self.living() if forgets else self.branches
        twins = [b for b in others if b != name and b.casefold() == name.casefold()]
        if self.how == OFFICIAL_FORMATS["icechunk"]:
            twins = []  # names are in a file, which tells them apart by case
        if (current and current.tip) or (not current and twins):
            with pytest.raises(AlreadyExistsError):
                self.repo.create_branch(name, target)
            return
        self.repo.create_branch(name, target)
        self.move_branch(name, target)

    def delete_branch(self, number: int) -> None:
        name = pick([name for name in self.living() if name != "main"], number)
        self.repo.delete_branch(name)
        self.move_branch(name, None)
        with pytest.raises(RefNotFoundError):
            self.repo.lookup_branch(name)
        with pytest.raises(RefNotFoundError):
            self.repo.writable_session(name)
        with pytest.raises(RefNotFoundError):
            self.repo.delete_branch(name)

    def delete_main(self) -> None:
        with pytest.raises(InvalidInputError):
            self.repo.delete_branch("main")

    def reset_branch(self, branch: int, number: int, expected: bool | None) -> None:
        name = pick(self.living(), branch)
        target = pick(list(self.snapshots), number)
        tip = self.branches[name].tip
        if expected is False:
            others = [s for s in self.snapshots if s != tip]
            with pytest.raises(ConflictError):
                self.repo.reset_branch(name, target, from_snapshot_id=pick(others, number))
            return
        self.repo.reset_branch(name, target, from_snapshot_id=tip if expected else None)
        self.move_branch(name, target)

    def move_branch(self, name: str, target: str | None) -> None:
        branch = self.branches.setdefault(name, ModelBranch(None, -1))
        if branch.tip == target:
            return  # sessions follow a branch that was set to where it stood
        branch.tip = target
        branch.sequence += 1
        if self.draft is not None and self.draft.branch == name:
            self.draft.is_cut_off = True

    def create_tag(self, name: str, number: int) -> None:
        target = pick(list(self.snapshots), number)
        if name in self.tags:
            with pytest.raises(AlreadyExistsError):
                self.repo.create_tag(name, target)
            if self.repo.generation == "icechunk":
                self.repo.delete_tag(name)
                del self.tags[name]
                self.deleted_tags.add(name)
            else:
                with pytest.raises(InvalidInputError):
                    self.repo.delete_tag(name)
            return
        with pytest.raises(RefNotFoundError):
            self.repo.lookup_tag(name)
        if name in self.deleted_tags:
            with pytest.raises(AlreadyExistsError):
                self.repo.create_tag(name, target)
            return
        self.repo.create_tag(name, target)
        self.tags[name] = target

    # --- looking back

    @rule(what=calls(LOOKS))
    def look(self, what: Call) -> None:
        self.call(what)

    def travel_by_id(self, number: int) -> None:
        snapshot_id = pick(list(self.snapshots), number)
        session = self.repo.readonly_session(snapshot_id=snapshot_id)
        assert session.snapshot_id == snapshot_id
        check_shows(session, self.snapshots[snapshot_id].tree)

    def travel_by_tag(self, number: int) -> None:
        name = pick(sorted(self.tags), number)
        session = self.repo.readonly_session(tag=name)
        assert session.snapshot_id == self.tags[name] == self.repo.lookup_tag(name)
        check_shows(session, self.snapshots[self.tags[name]].tree)

    def travel_back(self, branch: int, back: int) -> None:
        name = pick(self.living(), branch)
        chain = self.history(self.branches[name].tip)
        steps = back % len(chain)
        assert self.repo.readonly_session(f"{name}~{steps}").snapshot_id == chain[steps]
        moment = self.repo.lookup_snapshot(chain[steps]).written_at
        assert self.repo.readonly_session(name, as_of=moment).snapshot_id == chain[steps]
        by_moment = f"{name}@{{{moment.isoformat()}}}"
        assert self.repo.readonly_session(by_moment).snapshot_id == chain[steps]
        with pytest.raises(SnapshotNotFoundError):
            self.repo.readonly_session(f"{name}~{len(chain)}")
        beginning = self.repo.lookup_snapshot(chain[-1]).written_at
        with pytest.raises(SnapshotNotFoundError):
            self.repo.readonly_session(name, as_of=beginning - timedelta(microseconds=1))

    def read_history(self, branch: int) -> None:
        name = pick(self.living(), branch)
        self.check_history(self.repo, name)

    def check_history(self, repo: Repository, name: str) -> None:
        tip = self.branches[name].tip
        assert tip is not None
        assert repo.lookup_branch(name) == tip
        found = list(repo.ancestry(branch=name))
        chain = self.history(tip)
        assert [info.id for info in found] == chain
        for info in found:
            known = self.snapshots[info.id]
            assert (info.parent_id, info.message) == (known.parent, known.message)
            if known.parent is not None:
                assert info.metadata == known.metadata
        moments = [info.written_at for info in found]
        assert moments == sorted(set(moments), reverse=True)

    def diff(self, number: int, back: int) -> None:
        newer = pick(list(self.snapshots), number)
        ancestors = self.history(newer)[1:]
        if not ancestors:
            return
        older = pick(ancestors, back)
        diff = self.repo.diff(from_snapshot_id=older, to_snapshot_id=newer)
        before, after = self.snapshots[older].tree, self.snapshots[newer].tree
        was = {node.identity: path for path, node in before.items()}
        now = {node.identity: path for path, node in after.items()}
        new = {now[i] for i in now.keys() - was.keys()}
        gone = {was[i] for i in was.keys() - now.keys()}
        assert diff.new_arrays == {p for p in new if after[p].is_array}
        assert diff.new_groups == {p for p in new if not after[p].is_array}
        assert diff.deleted_arrays == {p for p in gone if before[p].is_array}
        assert diff.deleted_groups == {p for p in gone if not before[p].is_array}
        moved = {(was[i], now[i]) for i in was.keys() & now.keys() if was[i] != now[i]}
        assert set(diff.moved_nodes) <= moved
        self.check_diff_of_kept_nodes(diff, before, after, was, now)

    def check_diff_of_kept_nodes(
        self, diff: Any, before: Tree, after: Tree, was: dict[int, str], now: dict[int, str]
    ) -> None:
        """A log may name what was changed and changed back; it must name all that differs."""
        chunks = {path: {tuple(c) for c in found} for path, found in diff.updated_chunks.items()}
        for identity in was.keys() & now.keys():
            old, new, path = before[was[identity]], after[now[identity]], now[identity]
            if (old.attributes, old.shape) != (new.attributes, new.shape):
                assert path in diff.updated_arrays | diff.updated_groups
            differing = {
                coords
                for coords in old.chunks.keys() | new.chunks.keys()
                if old.chunks.get(coords) != new.chunks.get(coords)
            }
            assert differing <= chunks.get(path, set())
            if was[identity] != path:
                carried = {target for _, target in diff.moved_nodes}
                assert any(path == t or path.startswith(f"{t}/") for t in carried)

    # --- other clients

    @rule(threshold=st.sampled_from([None, 0, 250, 1 << 20]), is_caching=st.booleans())
    def reopen(self, threshold: int | None, is_caching: bool) -> None:
        """Go on as another client, who may cache, or put more or fewer attributes into files."""
        config = RepositoryConfig(
            inline_attributes_threshold_bytes=threshold, caching=CACHING if is_caching else None
        )
        self.repo = Repository.open(self.storage, config)
        assert self.repo.generation == self.how.get("generation", "repository")
        assert self.repo.spec_version == self.how.get("spec_version", self.repo.spec_version)
        expected = 200 if threshold is None else threshold
        assert self.repo.config.inline_attributes_threshold_bytes == expected

    @rule()
    def pickle(self) -> None:
        self.repo = pickle.loads(pickle.dumps(self.repo))

    def pickle_a_reader(self) -> None:
        session = self.repo.readonly_session(snapshot_id=self.draft.base)
        copy = pickle.loads(pickle.dumps(session))
        assert copy.read_only
        check_shows(copy, self.snapshots[self.draft.base].tree)

    # --- always

    @invariant()
    def draft_shows_the_model(self) -> None:
        if self.draft is None:
            return
        listed = list(self.draft.session.store.list())
        assert set(listed) == expected_keys(self.draft.tree)
        assert len(listed) == len(set(listed))
        if self.draft.tree != self.snapshots[self.draft.base].tree:
            assert self.draft.session.has_uncommitted_changes

    @invariant()
    def references_are_as_the_model(self) -> None:
        assert self.repo.list_branches() == set(self.living())
        assert self.repo.list_tags() == set(self.tags)

    def teardown(self) -> None:
        if self.draft is not None:
            check_shows(self.draft.session, self.draft.tree)
        repo = Repository.open(self.storage)
        for name in self.living():
            self.check_history(repo, name)
        for snapshot_id, snapshot in self.snapshots.items():
            check_shows(repo.readonly_session(snapshot_id=snapshot_id), snapshot.tree)
        for name, target in self.tags.items():
            assert repo.lookup_tag(name) == target
        report = repo.verify(deep=True)
        assert report.is_clean, report


def run(
    make_storage: Callable[[], Storage], *, how: dict[str, Any] | None = None, share: float = 1.0
) -> None:
    """Run the machine with a share of the profile's examples."""
    machine = type(
        "Machine",
        (RepositoryMachine,),
        {"make_storage": staticmethod(make_storage), "how": how or {}},
    )
    examples = max(2, int(settings().max_examples * share))
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))


@pytest.mark.parametrize("name", FORMATS)
def test_in_memory(name: str) -> None:
    share = 0.12 if "generation" in FORMATS[name] else 0.6
    run(icefloe.in_memory_storage, how=FORMATS[name], share=share)


def test_on_local_files(tmp_path: Path) -> None:
    counter = iter(range(10**9))
    run(
        lambda: icefloe.local_filesystem_storage(str(tmp_path / str(next(counter)))),
        share=0.2,
    )


@pytest.mark.endpoint
def test_on_s3(s3_endpoint: S3Endpoint) -> None:
    run(s3_endpoint.storage, share=0.06)
