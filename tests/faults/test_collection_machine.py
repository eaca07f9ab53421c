"""Writers, expiry, compaction and collection in any order, and at the same time, with faults.

Whatever a branch or tag reaches can be read and is what was written; sessions lose nothing; and in
the end verification finds nothing wrong (T-GC).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import hypothesis.strategies as st
import zarr
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import icefloe
from icefloe import BasicConflictSolver, Repository
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.model.ids import FIRST_SNAPSHOT_ID
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from icefloe.versioning import leases
from tests.integration.maintained import NATIVE, PACKED

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.versioning.session import Session

_Result = TypeVar("_Result")
CHUNKS = 4
KEEP_EVERY = timedelta(minutes=5)
BRANCHES = ["main", "one", "two"]
FIRST = str(FIRST_SNAPSHOT_ID)
# The promise to young sessions holds for cutoffs of more than five minutes.
CUTOFFS = [timedelta(minutes=7), timedelta(minutes=45), timedelta(hours=3), timedelta(days=1)]

Values = tuple[int, ...]


@dataclass
class Writer:
    """A session that is open, and what it wrote."""

    session: Session
    branch: str
    edits: dict[int, int] = field(default_factory=dict)
    slept: bool = False


class Interrupted(ForwardingStorage):
    """Lets somebody else act before the nth operation."""

    def __init__(self, inner: ClockedStorage, nth: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._left = nth
        self._act = act

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        self._left -= 1
        if self._left == 0:
            self._act()
        return act()

    def head(self, key: str):  # the clock of the storage below
        self._run("head", key, lambda: None)
        return self._inner.head(key)


class CollectionMachine(RuleBasedStateMachine):
    writers = Bundle("writers")
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0
        self._real = leases.seconds_awake_or_asleep
        leases.seconds_awake_or_asleep = lambda: self.passed
        self.values: dict[str, Values] = {FIRST: ()}
        """What each snapshot ever seen holds."""
        self.refs: dict[str, str] = {}
        """What each branch and tag points to."""
        self.open: list[Writer] = []
        self.tags = 0

    @initialize(
        packed=st.booleans(), generation=st.sampled_from(["repository", "store", "dataset"])
    )
    def create(self, packed: bool, generation: str) -> None:
        self.clock = ClockedStorage(icefloe.in_memory_storage())
        self.repo = Repository.create(
            self.clock, PACKED if packed else NATIVE, generation=generation
        )
        session = self.repo.writable_session("main")
        zarr.create_array(
            session.store, name="a", shape=(CHUNKS,), chunks=(1,), dtype="u1", compressors=None
        )
        self.refs["branch main"] = session.commit("start")
        self.values[self.refs["branch main"]] = (0,) * CHUNKS

    def teardown(self) -> None:
        leases.seconds_awake_or_asleep = self._real
        if hasattr(self, "repo"):
            report = Repository.open(self.clock).verify(deep=True)
            assert report.is_clean, str(report)

    # --- writers

    @rule(
        target=writers,
        branch=st.sampled_from(BRANCHES),
        chunk=st.integers(0, CHUNKS - 1),
        value=st.integers(1, 9),
    )
    def start(self, branch: str, chunk: int, value: int) -> Writer:
        name = branch if f"branch {branch}" in self.refs else "main"
        writer = Writer(self.repo.writable_session(name), name)
        self.open.append(writer)
        self.write(writer, chunk, value)
        return writer

    @rule(writer=writers, chunk=st.integers(0, CHUNKS - 1), value=st.integers(1, 9))
    def write(self, writer: Writer, chunk: int, value: int) -> None:
        if writer in self.open:
            zarr.open_array(writer.session.store, path="a")[chunk] = value
            writer.session._packs.write_all()
            writer.edits[chunk] = value

    @rule(pick=st.integers(0, 1000))
    def commit(self, pick: int) -> None:
        if self.open:
            self.finish(self.open.pop(pick % len(self.open)))

    def finish(self, writer: Writer) -> None:
        try:
            new = writer.session.commit("c", rebase_with=BasicConflictSolver())
        except ConflictError:
            # The branch was deleted or reset, and no longer has what the session is based on.
            return
        except SessionStateError:
            assert writer.slept, "only who sleeps longer than its lease holds may lose something"
            return
        before = self.values[self.refs[f"branch {writer.branch}"]]
        self.values[new] = tuple(
            writer.edits.get(chunk, value) for chunk, value in enumerate(before)
        )
        self.refs[f"branch {writer.branch}"] = new

    # --- references

    @rule(name=st.sampled_from(BRANCHES[1:]), pick=st.integers(0, 1000))
    def branch(self, name: str, pick: int) -> None:
        target = self.some_snapshot(pick)
        try:
            self.repo.create_branch(name, target)
        except (AlreadyExistsError, SnapshotNotFoundError):
            return
        self.refs[f"branch {name}"] = target

    @rule(pick=st.integers(0, 1000))
    def tag(self, pick: int) -> None:
        target, self.tags = self.some_snapshot(pick), self.tags + 1
        try:
            self.repo.create_tag(f"t{self.tags}", target)
        except SnapshotNotFoundError:
            return
        self.refs[f"tag t{self.tags}"] = target

    @rule(name=st.sampled_from(BRANCHES), pick=st.integers(0, 1000))
    def reset(self, name: str, pick: int) -> None:
        target = self.some_snapshot(pick)
        if f"branch {name}" in self.refs:
            try:
                self.repo.reset_branch(name, target)
            except SnapshotNotFoundError:
                return
            self.refs[f"branch {name}"] = target

    @rule(name=st.sampled_from(BRANCHES[1:]))
    def delete(self, name: str) -> None:
        if self.refs.pop(f"branch {name}", None) is not None:
            self.repo.delete_branch(name)

    def some_snapshot(self, pick: int) -> str:
        known = [snapshot_id for snapshot_id in self.values if snapshot_id != FIRST]
        return known[pick % len(known)]

    # --- time

    @rule(steps=st.integers(1, 40))
    def wait(self, steps: int) -> None:
        """Time passes, and the threads of sessions do what they do every five minutes."""
        for _ in range(steps):
            self.clock.wait(KEEP_EVERY)
            self.passed += KEEP_EVERY.total_seconds()
            for writer in self.open:
                writer.session._lease._keep()

    @rule()
    def sleep(self) -> None:
        """Time passes, and nobody does anything."""
        self.clock.wait(timedelta(days=2))
        self.passed += timedelta(days=2).total_seconds()
        for writer in self.open:
            writer.slept = True

    # --- maintenance

    @rule(keep=st.integers(1, 3), name=st.sampled_from(["keep", "age"]))
    def expire(self, keep: int, name: str) -> None:
        if name == "keep":
            self.repo.expire_snapshots(keep_last=keep)
        else:
            self.repo.expire_snapshots(timedelta(0), keep_last=keep)

    @rule(cutoff=st.sampled_from(CUTOFFS))
    def collect(self, cutoff: timedelta) -> None:
        self.repo.garbage_collect(cutoff)

    @rule(
        cutoff=st.sampled_from(CUTOFFS),
        nth=st.integers(1, 80),
        what=st.sampled_from(["tag", "branch", "reset", "commit", "expire", "collect", "delete"]),
        pick=st.integers(0, 1000),
    )
    def collect_meanwhile(self, cutoff: timedelta, nth: int, what: str, pick: int) -> None:
        """Somebody else does something in the middle of a collection."""

        def meanwhile() -> None:
            if what == "tag":
                self.tag(pick)
            elif what == "branch":
                self.branch(BRANCHES[1 + pick % 2], pick // 2)
            elif what == "reset":
                self.reset(BRANCHES[pick % 3], pick // 3)
            elif what == "expire":
                self.repo.expire_snapshots(keep_last=1 + pick % 3)
            elif what == "collect":
                self.repo.garbage_collect(cutoff)
            elif what == "delete":
                self.delete(BRANCHES[1 + pick % 2])
            else:
                self.commit(pick)

        Repository.open(Interrupted(self.clock, nth, meanwhile)).garbage_collect(cutoff)

    @rule(name=st.sampled_from(BRANCHES))
    def compact(self, name: str) -> None:
        if f"branch {name}" in self.refs:
            self.repo.compact(branch=name)
            self.learn(name)

    @rule(
        what=st.sampled_from(["collect", "expire", "compact"]),
        fault=st.sampled_from(Fault),
        nth=st.integers(1, 60),
        cutoff=st.sampled_from(CUTOFFS),
    )
    def fail(self, what: str, fault: Fault, nth: int, cutoff: timedelta) -> None:
        """An operation of maintenance that fails or dies somewhere."""
        faulty = FaultyStorage(self.clock)
        repo = Repository.open(faulty)
        faulty.inject(fault, nth=nth)
        try:
            if what == "collect":
                repo.garbage_collect(cutoff)
            elif what == "expire":
                repo.expire_snapshots(keep_last=1)
            else:
                repo.compact(branch="main")
        except (StorageError, CrashError):
            pass
        self.learn("main")

    def learn(self, branch: str) -> None:
        """A compaction may have added a commit, which changed nothing."""
        new, ref = self.repo.lookup_branch(branch), f"branch {branch}"
        if new != self.refs[ref]:
            assert self.repo.lookup_snapshot(new).message == "compact chunk files"
            self.values[new] = self.values[self.refs[ref]]
            self.refs[ref] = new

    # --- what always holds

    @invariant()
    def all_that_is_reached_can_be_read(self) -> None:
        if not hasattr(self, "repo"):
            return
        CollectionMachine.steps += 1
        repo = Repository.open(self.clock)
        assert {f"branch {name}" for name in repo.list_branches()} == {
            ref for ref in self.refs if ref.startswith("branch")
        }
        for ref, expected in self.refs.items():
            kind, _, name = ref.partition(" ")
            found = repo.lookup_branch(name) if kind == "branch" else repo.lookup_tag(name)
            assert found == expected, ref
            for info in repo.ancestry(snapshot_id=found):
                if info.id != FIRST:
                    session = repo.readonly_session(snapshot_id=info.id)
                    chunks = [session.get_chunk("/a", (at,)) for at in range(CHUNKS)]
                    read = tuple(0 if data is None else data[0] for data in chunks)
                    assert read == self.values[info.id], (ref, info.message)


def test_nothing_that_is_reached_is_ever_deleted(
    record_property: Callable[[str, object], None],
) -> None:
    CollectionMachine.steps = 0
    budget = settings(max_examples=settings().max_examples // 2)
    run_state_machine_as_test(CollectionMachine, settings=budget)
    record_property("steps of the collection machine", CollectionMachine.steps)
