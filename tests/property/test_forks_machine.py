"""The same edits by one session and spread over forks that are merged: equal repositories."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

import icefloe
from icefloe import Repository, RepositoryConfig
from tests.concurrency.writers import processes
from tests.formats import OFFICIAL_FORMATS
from tests.property import hierarchy
from tests.property.fork_work import Edit, apply, work
from tests.property.hierarchy import Coords, ModelNode, Tree, below, observe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.storage.port import Storage

CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)
WORKERS = 3
"""The session itself and its forks."""

numbers = st.integers(0, 2**16)
workers = st.integers(0, WORKERS - 1)


def pick(options: list[Any], number: int) -> Any:
    return options[number % len(options)]


class ForksMachine(RuleBasedStateMachine):
    make_storage: ClassVar[Callable[[], Storage]]
    run_work: ClassVar[Callable[[bytes, list[Edit]], bytes]] = staticmethod(work)
    how: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.serial = self.new_repository()
        self.parallel = self.new_repository()
        self.names = 0
        self.rounds = 0
        self.begin()

    def new_repository(self) -> Repository:
        repo = Repository.create(type(self).make_storage(), CONFIG, **type(self).how)
        session = repo.writable_session("main")
        hierarchy.create_group(session, "/", {})
        for path in ("/g", "/h"):
            hierarchy.create_group(session, path, {})
        for path, chunk_shape in (("/a", (2,)), ("/b", (2, 4)), ("/g/c", (8,)), ("/h/d", (2,))):
            shape = tuple(3 * c for c in chunk_shape)
            hierarchy.create_array(session, path, ModelNode({}, shape, chunk_shape))
        hierarchy.set_raw(session, "/a", (1,), b"ab")
        hierarchy.set_raw(session, "/b", (1, 1), b"abcdefgh")
        session.commit("beginning")
        return repo

    def begin(self) -> None:
        self.session = self.serial.writable_session("main")
        self.tree = observe(self.session)
        self.edits: list[list[Edit]] = [[] for _ in range(WORKERS)]
        self.before: list[Edit] = []
        """Edits of the session before it is forked."""
        self.is_whole = True
        # Who has which part, so that the order of the workers makes no difference.
        self.chunk_owner: dict[tuple[str, Coords], int] = {}
        self.node_owner: dict[str, int] = {}

    # --- who may do what

    def do(self, worker: int, edit: Edit) -> None:
        apply(self.session, edit)
        self.edits[worker].append(edit)

    def is_others(self, worker: int, path: str) -> bool:
        """Whether another worker creates, deletes or changes a node."""
        return self.node_owner.get(path, worker) != worker

    def has_others_chunks(self, worker: int, path: str) -> bool:
        return any(p == path and w != worker for (p, _), w in self.chunk_owner.items())

    def usable(self, worker: int, *, arrays: bool) -> list[str]:
        return sorted(
            path
            for path, node in self.tree.items()
            if path != "/" and node.is_array == arrays and not self.is_others(worker, path)
        )

    # --- edits

    @rule(worker=workers, number=numbers, chunk=numbers, value=st.integers(1, 255))
    def write(self, worker: int, number: int, chunk: int, value: int) -> None:
        found = self.free_chunk(worker, number, chunk)
        if found is not None:
            path, coords = found
            data = self.tree[path].chunk_of(value)
            self.do(worker, ("write", path, coords, data))
            self.tree[path].chunks[coords] = data

    @rule(worker=workers, number=numbers, chunk=numbers)
    def delete_chunk(self, worker: int, number: int, chunk: int) -> None:
        found = self.free_chunk(worker, number, chunk)
        if found is not None:
            path, coords = found
            self.do(worker, ("delete chunk", path, coords))
            self.tree[path].chunks.pop(coords, None)

    def free_chunk(self, worker: int, number: int, chunk: int) -> tuple[str, Coords] | None:
        paths = [p for p in self.usable(worker, arrays=True) if self.tree[p].coords()]
        if not paths:
            return None
        path = pick(paths, number)
        coords = pick(self.tree[path].coords(), chunk)
        if self.chunk_owner.setdefault((path, coords), worker) != worker:
            return None
        return path, coords

    @rule(worker=workers, number=numbers, value=st.one_of(st.integers(), st.just("x" * 300)))
    def set_attributes(self, worker: int, number: int, value: Any) -> None:
        paths = self.usable(worker, arrays=True) + self.usable(worker, arrays=False)
        path = pick(paths, number) if paths else "/"
        if self.is_others(worker, path):
            return
        self.claim(worker, path)
        self.do(worker, ("attributes", path, {"k": value}))
        self.tree[path].attributes = {"k": value}

    @rule(worker=workers, number=numbers, size=st.integers(0, 12))
    def resize(self, worker: int, number: int, size: int) -> None:
        paths = [
            p for p in self.usable(worker, arrays=True) if not self.has_others_chunks(worker, p)
        ]
        if not paths:
            return
        path = pick(paths, number)
        node = self.tree[path]
        assert node.shape is not None
        shape = (size, *node.shape[1:])
        self.claim(worker, path)
        self.do(worker, ("resize", path, shape))
        node.resize(shape)

    @rule(worker=workers, number=numbers)
    def delete_all_chunks(self, worker: int, number: int) -> None:
        paths = [
            p for p in self.usable(worker, arrays=True) if not self.has_others_chunks(worker, p)
        ]
        if not paths:
            return
        path = pick(paths, number)
        self.claim(worker, path)
        self.do(worker, ("clear", path))
        self.tree[path].chunks.clear()

    @rule(worker=workers, number=numbers, chunk=st.sampled_from([2, 8]))
    def create_array(self, worker: int, number: int, chunk: int) -> None:
        path = self.new_path(worker, number)
        node = ModelNode({"new": True}, (2 * chunk,), (chunk,))
        self.do(worker, ("array", path, node.shape, node.chunk_shape, node.attributes))
        self.tree[path] = node
        self.claim(worker, path)

    @rule(worker=workers, number=numbers)
    def create_group(self, worker: int, number: int) -> None:
        path = self.new_path(worker, number)
        self.do(worker, ("group", path))
        self.tree[path] = ModelNode()
        self.claim(worker, path)

    def new_path(self, worker: int, number: int) -> str:
        parents = ["/", *self.usable(worker, arrays=False)]
        self.names += 1
        return f"{pick(parents, number).rstrip('/')}/n{self.names}"

    @rule(worker=workers, number=numbers)
    def delete_node(self, worker: int, number: int) -> None:
        path = self.own_subtree(worker, number)
        if path is not None:
            self.do(worker, ("delete", path))
            for gone in below(self.tree, path):
                del self.tree[gone]

    @rule(worker=workers, number=numbers, group=numbers)
    def move(self, worker: int, number: int, group: int) -> None:
        source = self.own_subtree(worker, number)
        if source is None or self.how == OFFICIAL_FORMATS["icechunk1"]:  # it has no moves
            return
        parents = ["/", *self.usable(worker, arrays=False)]
        parent = pick([p for p in parents if p not in below(self.tree, source)], group)
        self.names += 1
        target = f"{parent.rstrip('/')}/n{self.names}"
        self.do(worker, ("move", source, target))
        for old in below(self.tree, source):
            self.tree[target + old[len(source) :]] = self.tree.pop(old)
        for new in below(self.tree, target):
            self.claim(worker, new)

    def own_subtree(self, worker: int, number: int) -> str | None:
        """A node that nobody else touches, nor anything below it; it is the worker's then."""
        paths = [
            path
            for path in self.tree
            if path != "/"
            and not any(
                self.is_others(worker, p) or self.has_others_chunks(worker, p)
                for p in {*below(self.tree, path), *self.owned_below(path)}
            )
        ]
        if not paths:
            return None
        path = pick(sorted(paths), number)
        for part in below(self.tree, path):
            self.claim(worker, part)
        return path

    def owned_below(self, path: str) -> list[str]:
        return [p for p in self.node_owner if p.startswith(f"{path}/")]

    def claim(self, worker: int, path: str) -> None:
        self.node_owner[path] = worker
        # Somebody else may not take away the group in which this happened.
        parent = hierarchy.parent_of(path)
        while parent != "/":
            self.chunk_owner.setdefault((parent, (worker,)), worker)
            parent = hierarchy.parent_of(parent)

    # --- putting it together

    @precondition(lambda self: not any(self.edits[1:]))
    @rule()
    def fork_here(self) -> None:
        """What was done so far is done by the session before it is forked."""
        self.before += self.edits[0]
        self.edits[0] = []
        self.chunk_owner.clear()
        self.node_owner.clear()

    @rule(order=st.permutations(range(1, WORKERS)), at_once=st.booleans())
    def merge_and_commit(self, order: list[int], at_once: bool) -> None:
        self.is_whole = False
        session = self.parallel.writable_session("main")
        for edit in self.before:
            apply(session, edit)
        forks = {number: pickle.dumps(session.fork()) for number in range(1, WORKERS)}
        for edit in self.edits[0]:
            apply(session, edit)
        done = [
            pickle.loads(type(self).run_work(forks[number], self.edits[number])) for number in order
        ]
        if at_once:
            session.merge(*done)
        else:
            for fork in done:
                session.merge(fork)
        shown = observe(session)
        self.rounds += 1
        message = f"round {self.rounds}"
        for each in (self.session, session):
            each.commit(message, allow_empty=True)
        assert shown == self.tree
        assert self.at_tip(self.serial) == self.tree
        assert self.at_tip(self.parallel) == self.tree
        assert diff_of(self.serial) == diff_of(self.parallel)
        self.begin()

    def at_tip(self, repo: Repository) -> Tree:
        return observe(Repository.open(repo.storage).readonly_session("main"))

    def teardown(self) -> None:
        if self.is_whole:  # else a merge has failed, and that is what to report
            self.merge_and_commit(list(range(1, WORKERS)), at_once=True)


def diff_of(repo: Repository) -> Any:
    diff = repo.diff(from_snapshot_id="main~1", to_branch="main")
    return (
        diff.new_groups,
        diff.new_arrays,
        diff.deleted_groups,
        diff.deleted_arrays,
        diff.updated_groups,
        diff.updated_arrays,
        diff.updated_chunks,
        diff.moved_nodes,
    )


def run(
    make_storage: Callable[[], Storage],
    run_work: Callable[..., bytes],
    share: float,
    how: dict[str, Any] | None = None,
) -> None:
    machine = type(
        "Machine",
        (ForksMachine,),
        {
            "make_storage": staticmethod(make_storage),
            "run_work": staticmethod(run_work),
            "how": how or {},
        },
    )
    examples = max(2, int(settings().max_examples * share))
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))


def test_forks_in_memory() -> None:
    run(icefloe.in_memory_storage, work, share=0.3)


@pytest.mark.parametrize("name", OFFICIAL_FORMATS)
def test_forks_in_the_official_formats(name: str) -> None:
    run(icefloe.in_memory_storage, work, share=0.06, how=OFFICIAL_FORMATS[name])


def test_forks_in_another_process(tmp_path: Path) -> None:
    counter = iter(range(10**9))
    with ProcessPoolExecutor(1, processes()) as pool:
        run(
            lambda: icefloe.local_filesystem_storage(str(tmp_path / str(next(counter)))),
            lambda fork, edits: pool.submit(work, fork, edits).result(),
            share=0.1,
        )
