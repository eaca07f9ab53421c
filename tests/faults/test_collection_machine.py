"""Writers, expiry, compaction and collection in any order, and in the middle of each other.

Whatever a branch or tag reaches can be read and is what was written, and so is what a lease names
or what is young; sessions lose nothing; and in the end verification finds nothing wrong (T-GC).
Every operation can be paused at each of its requests, while others do something; or dies there.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import icefloe
from icefloe import BasicConflictSolver, Repository
from icefloe.engine.retention import leases
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.storage.clock import CLOCK_FOLDER
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from icefloe.testing.requests import FarStorage
from tests.faults.guards import GUARDS
from tests.formats import FORMATS, OFFICIAL_FORMATS
from tests.integration.maintained import NATIVE, PACKED
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.engine.retention.leases import Lease
    from icefloe.session import Session

_Result = TypeVar("_Result")
FAILURES = (AssertionError, IcefloeError)
"""How the machine reports that something was lost."""
EXAMPLES_PER_GUARD = 500
"""How many histories the machine may try until it notices that a guard is off."""
CHUNKS = 4
KEEP_EVERY = timedelta(minutes=5)
MAX_TAGS = 2
BRANCHES = ["main", "one", "two"]
FIRST = str(FIRST_SNAPSHOT_ID)
# The promise to young sessions holds for cutoffs of more than five minutes.
CUTOFFS = [timedelta(minutes=7), timedelta(minutes=45), timedelta(hours=3)]

MACHINE_FORMATS = {name: FORMATS[name] for name in ("columns", "store", "dataset")}
MACHINE_FORMATS |= OFFICIAL_FORMATS
Values = tuple[int, ...]


@dataclass
class Writer:
    """A session that is open, and what it wrote."""

    session: Session
    storage: Pausable
    branch: str
    edits: dict[int, int] = field(default_factory=dict)
    slept: bool = False
    unmoored: bool = False
    """Whether its branch was reset or deleted, so that it may have nothing to build on."""


class Pausable(ForwardingStorage):
    """Lets others act before some request, when told to."""

    def __init__(self, inner: ClockedStorage) -> None:
        super().__init__(inner)
        self._act: Callable[[], object] | None = None
        self._begin = ("", "")
        self._left = -1
        self._lock = threading.Lock()
        self.is_sure = False
        """Whether a lease was renewed: its holder goes on without looking again for a while."""

    def pause(self, begin: tuple[str, str], after: int, act: Callable[[], object]) -> None:
        """Act once, `after` so many requests from the first of a kind (verb, prefix of key) on."""
        self._begin, self._left, self._act = begin, after, act

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        self._due(verb, key)()
        if verb == "put" and key.startswith("maintenance/leases/"):
            self.is_sure = not key.endswith("/00000000.json")
        return act()

    def _due(self, verb: str, key: str) -> Callable[[], object]:
        """What others do before a request; requests come from several threads."""
        with self._lock:
            if self._act is not None:
                if verb.startswith(self._begin[0]) and key.startswith(self._begin[1]):
                    self._begin = ("", "")  # from here on, each request counts
                    self._left -= 1
                elif self._begin == ("", ""):
                    self._left -= 1
                if self._left < 0 and self._begin == ("", ""):
                    act_now, self._act = self._act, None
                    return act_now
        return lambda: None

    def head(self, key: str) -> Any:  # the clock of the storage below
        self._run("head", key, lambda: None)
        return self._inner.head(key)


class Deed(NamedTuple):
    """Something that somebody does in the middle of what somebody else does."""

    what: str
    pick: int


def deeds(*kinds: str) -> st.SearchStrategy[list[Deed]]:
    one = st.builds(Deed, st.sampled_from(kinds), st.integers(0, 1000))
    return st.lists(one, min_size=1, max_size=3)


class Stage(NamedTuple):
    """Where a collection can be paused."""

    begin: tuple[str, str]
    stride: int = 1


STAGES = [
    Stage(("", ""), 5),
    Stage(("list", "maintenance/leases/")),
    Stage(("put", "maintenance/collections/"), 0),
    Stage(("put", "maintenance/collections/")),
    Stage(("list", f"{CLOCK_FOLDER}/")),
]
"""Anywhere, after listing, before it announces, while it looks again, and before it deletes."""
TIME = ("wait", "sleep", "freeze")
NAMING = ("tag", "branch", "reset", "hold")
OTHERS = ("commit", "flush", "expire", "collect", "delete", "start")


class CollectionMachine(RuleBasedStateMachine):
    steps = 0
    pauses = 0

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0
        """By the clocks of those who do something, which may stand still."""
        self.really_passed = 0.0
        """By the storage's clock."""
        self._real = leases.seconds_awake_or_asleep
        leases.seconds_awake_or_asleep = lambda: self.passed
        self.values: dict[str, Values] = {FIRST: ()}
        """What each snapshot ever seen holds."""
        self.written: dict[str, float] = {}
        """When each was written."""
        self.refs: dict[str, str] = {}
        """What each branch and tag points to."""
        self.open: list[Writer] = []
        self.held: list[tuple[Lease, str]] = []
        self.tags = 0
        self.alone = False

    @initialize(
        packed=st.booleans(),
        generation=st.sampled_from(sorted(MACHINE_FORMATS)),
        is_far=st.booleans(),
    )
    def create(self, packed: bool, generation: str, is_far: bool) -> None:
        memory = icefloe.in_memory_storage()
        self.clock = ClockedStorage(FarStorage(memory) if is_far else memory)
        config = PACKED if packed else NATIVE
        self.repo = Repository.create(self.clock, config, **MACHINE_FORMATS[generation])
        session = self.repo.writable_session("main")
        zarr.create_array(
            session.store, name="a", shape=(CHUNKS,), chunks=(1,), dtype="u1", compressors=None
        )
        self.refs["branch main"] = self.note(session.commit("start"), (0,) * CHUNKS)
        for value in (1, 2):
            self.start("main", [value, value + 1], value)
            self.finish(self.open.pop())

    def teardown(self) -> None:
        leases.seconds_awake_or_asleep = self._real
        if hasattr(self, "repo"):
            report = Repository.open(self.clock).verify(deep=True)
            assert report.is_clean, str(report)

    def note(self, snapshot_id: str, values: Values) -> str:
        self.values[snapshot_id] = values
        self.written[snapshot_id] = self.really_passed
        return snapshot_id

    # --- writers

    @rule(
        branch=st.sampled_from(BRANCHES),
        chunks=st.lists(st.integers(0, CHUNKS - 1), min_size=1, max_size=2),
        value=st.integers(1, 9),
    )
    def start(self, branch: str, chunks: Sequence[int], value: int) -> None:
        name = branch if f"branch {branch}" in self.refs else "main"
        storage = Pausable(self.clock)
        writer = Writer(Repository.open(storage).writable_session(name), storage, name)
        self.open.append(writer)
        for chunk in chunks:
            self.write_chunk(writer, chunk, value)

    @rule(pick=st.integers(0, 9), chunk=st.integers(0, CHUNKS - 1), value=st.integers(1, 9))
    def write(self, pick: int, chunk: int, value: int) -> None:
        self.make_busy()
        self.write_chunk(self.open[pick % len(self.open)], chunk, value)

    def make_busy(self) -> None:
        """Somebody has a session open.

        Not a precondition of rules: which of them apply would depend on the order in which requests
        that are sent together are answered, and no run could be repeated.
        """
        if not self.open:
            self.start("main", [0], 3)

    def write_chunk(self, writer: Writer, chunk: int, value: int) -> None:
        zarr.open_array(writer.session.store, path="a")[chunk] = value
        writer.session.tree.settle_pending()
        writer.edits[chunk] = value

    @rule(pick=st.integers(0, 9))
    def commit(self, pick: int) -> None:
        self.make_busy()
        self.finish(self.open.pop(pick % len(self.open)))

    @rule(pick=st.integers(0, 9))
    def amend(self, pick: int) -> None:
        """The newest commit is replaced, and is reached no more unless something else does."""
        self.make_busy()
        self.replace_tip(self.open.pop(pick % len(self.open)))

    @rule(pick=st.integers(0, 9), after=st.integers(0, 25), others=deeds("expire", "collect"))
    def amend_meanwhile(self, pick: int, after: int, others: list[Deed]) -> None:
        """Others tidy up in the middle of an amendment."""
        self.make_busy()
        writer = self.open.pop(pick % len(self.open))
        self.pause(writer.storage, ("", ""), after, others)
        self.replace_tip(writer)

    def replace_tip(self, writer: Writer) -> None:
        base = writer.session.snapshot_id
        if self.repo.lookup_snapshot(base).parent_id is None:
            return  # the first snapshot is not amended
        try:
            new = writer.session.amend("a")
        except ConflictError:
            ref = self.refs.get(f"branch {writer.branch}")
            assert writer.unmoored or writer.slept or ref != base, "nobody moved the branch"
            return
        except (SessionStateError, FormatError, SnapshotNotFoundError):
            assert writer.slept, "only who sleeps longer than its lease holds may lose something"
            return
        self.unmoor(writer.branch)
        before = self.values[base]
        self.refs[f"branch {writer.branch}"] = self.note(new, over(before, writer.edits))

    @rule(
        name=st.sampled_from(BRANCHES),
        back=st.integers(1, 3),
        after=st.integers(0, 25),
        others=deeds("expire", "collect"),
    )
    def squash_meanwhile(self, name: str, back: int, after: int, others: list[Deed]) -> None:
        """Several commits become one, while others tidy up."""
        ref = f"branch {name}"
        if ref not in self.refs:
            return
        history = [info.id for info in self.repo.ancestry(branch=name)]
        since, before = history[min(back, len(history) - 1)], self.refs[ref]
        if since == before:
            return
        storage = Pausable(self.clock)
        repo = Repository.open(storage)
        self.pause(storage, ("", ""), after, others)
        try:
            new = repo.squash(name, since, message="s")
        except InvalidInputError:
            # Expiry cut the history after that snapshot in the meantime.
            assert since not in [info.id for info in self.repo.ancestry(branch=name)]
            return
        self.unmoor(name)
        self.refs[ref] = self.note(new, self.values[before])

    @rule(pick=st.integers(0, 9), after=st.integers(0, 25), others=deeds("expire", "collect"))
    def commit_meanwhile(self, pick: int, after: int, others: list[Deed]) -> None:
        """Others tidy up in the middle of a commit."""
        self.make_busy()
        writer = self.open.pop(pick % len(self.open))
        self.pause(writer.storage, ("", ""), after, others)
        self.finish(writer)

    @rule(
        pick=st.integers(0, 9),
        after=st.integers(0, 25),
        others=deeds("expire", "collect"),
        cutoff=st.sampled_from(CUTOFFS),
    )
    def commit_frozen(self, pick: int, after: int, others: list[Deed], cutoff: timedelta) -> None:
        """The machine of a writer is paused anywhere in a commit, while others tidy up."""
        self.make_busy()
        writer = self.open.pop(pick % len(self.open))
        writer.slept = True
        self.pause_frozen(writer.storage, after, others, cutoff)
        self.finish(writer)

    @rule(
        pick=st.integers(0, 9),
        after=st.integers(0, 25),
        others=deeds("expire", "collect"),
        cutoff=st.sampled_from(CUTOFFS),
    )
    def flush_frozen(self, pick: int, after: int, others: list[Deed], cutoff: timedelta) -> None:
        """The same in a flush, which ends without moving a branch."""
        self.make_busy()
        writer = self.open.pop(pick % len(self.open))
        writer.slept = True
        self.pause_frozen(writer.storage, after, others, cutoff)
        self.put_away(writer)

    def pause_frozen(
        self, storage: Pausable, after: int, others: list[Deed], cutoff: timedelta
    ) -> None:
        def act() -> None:
            CollectionMachine.pauses += 1
            self.freeze()
            for deed in others:
                self.do(deed)
            self.collect(cutoff)

        storage.pause(("", ""), after, act)

    @rule(pick=st.integers(0, 9), cutoff=st.sampled_from(CUTOFFS))
    def oversleep_frozen(self, pick: int, cutoff: timedelta) -> None:
        """The same before a commit or flush, which begins as if nothing was."""
        self.make_busy()
        self.freeze()
        self.collect(cutoff)
        (self.commit if pick % 2 else self.flush)(pick)

    def finish(self, writer: Writer) -> None:
        try:
            new = writer.session.commit("c", rebase_with=BasicConflictSolver())
        except ConflictError:
            assert writer.unmoored or writer.slept, "it has what the session is based on"
            return
        except (SessionStateError, FormatError, SnapshotNotFoundError):
            assert writer.slept, "only who sleeps longer than its lease holds may lose something"
            return
        before = self.values[self.refs[f"branch {writer.branch}"]]
        self.refs[f"branch {writer.branch}"] = self.note(new, over(before, writer.edits))

    @rule(pick=st.integers(0, 9))
    def flush(self, pick: int) -> None:
        """A snapshot that nothing points to, yet."""
        self.make_busy()
        self.put_away(self.open.pop(pick % len(self.open)))

    def put_away(self, writer: Writer) -> None:
        before, started = self.values[writer.session.snapshot_id], self.really_passed
        try:
            new = writer.session.flush("f")
        except (SessionStateError, FormatError, SnapshotNotFoundError):
            assert writer.slept, "only who sleeps longer than its lease holds may lose something"
            return
        self.note(new, over(before, writer.edits))
        self.written[new] = started

    @rule(
        branch=st.sampled_from(BRANCHES), chunk=st.integers(0, CHUNKS - 1), pick=st.integers(0, 99)
    )
    def put_aside(self, branch: str, chunk: int, pick: int) -> None:
        """Somebody keeps work as a snapshot that nothing points to, and takes the branch back."""
        self.wait(10)
        self.start(branch, [chunk], 7)
        name = self.open[-1].branch
        self.flush(len(self.open) - 1)
        self.reset(name, pick)
        self.collect(CUTOFFS[0])

    @rule(branch=st.sampled_from(BRANCHES), minutes=st.sampled_from([0, 60]), flushes=st.booleans())
    def work(self, branch: str, minutes: int, flushes: bool) -> None:
        """Others tidy up while a session is open: too young for a lease, or for an hour."""
        self.start(branch, [0, 2], 6)
        self.wait(minutes)
        self.collect(CUTOFFS[0])
        (self.flush if flushes else self.commit)(len(self.open) - 1)

    @rule(pick=st.integers(0, 9), wakes=st.booleans(), cutoff=st.sampled_from(CUTOFFS))
    def oversleep(self, pick: int, wakes: bool, cutoff: timedelta) -> None:
        """A session sleeps for longer than its lease holds, and goes on as if nothing was."""
        self.make_busy()
        self.sleep()
        self.collect(cutoff)
        if wakes:
            self.wait(5)
        (self.commit if pick % 2 else self.flush)(pick)

    def make_garbage(self) -> None:
        """There is something that a collection deletes, unless somebody names it.

        Every other time nobody else is at work, whose lease would keep all that is younger.
        """
        self.alone = not self.alone
        while self.alone and self.open:
            self.commit(0)
        while self.alone and self.held:
            self.let_go()
        self.start("main", [1], 8)
        self.flush(len(self.open) - 1)
        self.wait(200)

    # --- references

    @rule(name=st.sampled_from(BRANCHES[1:]), pick=st.integers(0, 1000))
    def branch(self, name: str, pick: int) -> None:
        self.make_branch(self.repo, name, self.some_snapshot(pick))

    def make_branch(self, repo: Repository, name: str, target: str) -> None:
        try:
            repo.create_branch(name, target)
        except AlreadyExistsError:
            return
        except SnapshotNotFoundError:
            self.refused(target)
            return
        self.refs[f"branch {name}"] = target

    @rule(pick=st.integers(0, 1000))
    def tag(self, pick: int) -> None:
        self.make_tag(self.repo, self.some_snapshot(pick))

    def make_tag(self, repo: Repository, target: str) -> None:
        if self.tags == MAX_TAGS:  # they stay, and before long nothing would be garbage
            self.make_branch(repo, "two", target)
            return
        self.tags += 1
        name = f"t{self.tags}"
        try:
            repo.create_tag(name, target)
        except SnapshotNotFoundError:
            self.refused(target)
            return
        self.refs[f"tag {name}"] = target

    @rule(name=st.sampled_from(BRANCHES), pick=st.integers(0, 1000))
    def reset(self, name: str, pick: int) -> None:
        self.move_branch(self.repo, name, self.some_snapshot(pick))

    def move_branch(self, repo: Repository, name: str, target: str) -> None:
        if f"branch {name}" not in self.refs:
            return
        self.unmoor(name)
        try:
            repo.reset_branch(name, target)
        except (ConflictError, RefNotFoundError):
            return  # it moved in the middle of this
        except SnapshotNotFoundError:
            self.refused(target)
            return
        self.refs[f"branch {name}"] = target

    @rule(name=st.sampled_from(BRANCHES[1:]))
    def delete(self, name: str) -> None:
        if self.refs.pop(f"branch {name}", None) is not None:
            self.unmoor(name)
            self.repo.delete_branch(name)

    @rule(pick=st.integers(0, 1000))
    def hold(self, pick: int) -> None:
        """Somebody reads a snapshot for a long time."""
        self.take_lease(self.repo, self.some_snapshot(pick))

    def take_lease(self, repo: Repository, target: str) -> None:
        lease = repo.lease(snapshot_ids=[target])
        try:
            lease.take()
        except SnapshotNotFoundError:
            self.refused(target)
            return
        self.held.append((lease, target))

    @rule()
    def let_go(self) -> None:
        if self.held:
            lease, _ = self.held.pop(0)
            lease.release()

    @rule(
        what=st.sampled_from(NAMING),
        pick=st.integers(0, 1000),
        after=st.integers(0, 12),
        others=deeds("expire", "collect"),
    )
    def name_meanwhile(self, what: str, pick: int, after: int, others: list[Deed]) -> None:
        """Others tidy up while somebody gives a snapshot a name."""
        self.make_garbage()
        storage, target = Pausable(self.clock), self.some_snapshot(pick)
        repo = Repository.open(storage)
        self.pause(storage, ("", ""), after, others)
        self.give_name(what, repo, pick, target)

    @rule(
        what=st.sampled_from(["tag", "branch", "reset"]),
        pick=st.integers(0, 1000),
        after=st.integers(0, 25),
        others=deeds("expire", "collect"),
        cutoff=st.sampled_from(CUTOFFS),
    )
    def name_frozen(
        self, what: str, pick: int, after: int, others: list[Deed], cutoff: timedelta
    ) -> None:
        """The machine of somebody who gives a snapshot a name is paused."""
        self.make_garbage()
        storage, target = Pausable(self.clock), self.some_snapshot(pick)
        repo = Repository.open(storage)
        self.pause_frozen(storage, after, others, cutoff)
        self.give_name(what, repo, pick, target)

    def give_name(self, what: str, repo: Repository, pick: int, target: str) -> None:
        if what == "tag":
            self.make_tag(repo, target)
        elif what == "branch":
            self.make_branch(repo, BRANCHES[1 + pick % 2], target)
        elif what == "hold":
            self.take_lease(repo, target)
        else:
            self.move_branch(repo, BRANCHES[pick % 3], target)

    def unmoor(self, branch: str) -> None:
        for writer in self.open:
            if writer.branch == branch:
                writer.unmoored = True

    def some_snapshot(self, pick: int) -> str:
        """One that may be named; mostly a new one that no branch or tag points to."""
        known = [each for each in self.written if self.is_there(each)]
        loose = [each for each in known if each not in self.refs.values()]
        if loose and pick % 4:
            return loose[-1 - pick // 4 % min(3, len(loose))]
        return known[pick // 4 % len(known)]

    def is_there(self, snapshot_id: str) -> bool:
        try:
            self.clock.head(
                self.repo._context.format.layout.snapshot(SnapshotId.parse(snapshot_id))
            )
        except ObjectNotFoundError:
            return False
        return True

    def refused(self, target: str) -> None:
        """A snapshot is gone, or about to be: only one that nothing needs."""
        assert not self.is_young(target), "young snapshots stay"
        assert target not in {held for _, held in self.held}
        for ref in self.refs.values():
            assert target not in {info.id for info in self.repo.ancestry(snapshot_id=ref)}

    def is_young(self, snapshot_id: str) -> bool:
        return self.really_passed - self.written[snapshot_id] < min(CUTOFFS).total_seconds()

    # --- time

    @rule(minutes=st.sampled_from([5, 10, 60, 200]))
    def wait(self, minutes: int) -> None:
        """Time passes, and the threads of sessions and leases do what they do meanwhile."""
        while minutes > 0:
            # The first time young sessions take their lease; later, all are renewed in time.
            step, minutes = (5, minutes - 5) if minutes % 20 else (20, minutes - 20)
            self.pass_time(timedelta(minutes=step))
            for writer in self.open:
                writer.session.publication.lease._keep()
            for lease, _ in self.held:
                lease._renew_in_time()

    @rule()
    def sleep(self) -> None:
        """Time passes, and nobody does anything."""
        self.pass_time(timedelta(days=2))
        for writer in self.open:
            writer.slept = True
        self.held.clear()

    @rule()
    def freeze(self) -> None:
        """All machines are paused from outside, and their clocks with them."""
        before = self.passed
        self.sleep()
        self.passed = before

    def pass_time(self, duration: timedelta) -> None:
        self.clock.wait(duration)
        self.really_passed += duration.total_seconds()
        self.passed += duration.total_seconds()

    # --- maintenance

    @rule(keep=st.integers(1, 3), by_age=st.booleans())
    def expire(self, keep: int, by_age: bool) -> None:
        self.repo.expire_snapshots(timedelta(0) if by_age else None, keep_last=keep)

    @rule(cutoff=st.sampled_from(CUTOFFS))
    def collect(self, cutoff: timedelta) -> None:
        self.repo.garbage_collect(cutoff)

    @rule(
        cutoff=st.sampled_from(CUTOFFS),
        stage=st.sampled_from(STAGES),
        after=st.integers(0, 8),
        sleeps=st.booleans(),
        others=deeds(*NAMING, *NAMING, *OTHERS, "wait"),
    )
    def collect_meanwhile(
        self, cutoff: timedelta, stage: Stage, after: int, sleeps: bool, others: list[Deed]
    ) -> None:
        """Others do something in the middle of a collection, or while the collector sleeps."""
        self.make_garbage()
        first = [Deed("sleep", 0)] if sleeps else []
        self.collect_paused(cutoff, stage.begin, after * stage.stride, first + others)

    @rule(cutoff=st.sampled_from(CUTOFFS), others=deeds(*NAMING))
    def name_before_it_announces(self, cutoff: timedelta, others: list[Deed]) -> None:
        """Others name what a collection has found to be garbage, and has not yet announced."""
        self.make_garbage()
        self.collect_paused(cutoff, STAGES[2].begin, 0, others)

    @rule(
        cutoff=st.sampled_from(CUTOFFS),
        how=st.sampled_from(["sleep", "freeze"]),
        after=st.integers(0, 1),
        others=deeds("collect", *NAMING),
    )
    def collector_sleeps(self, cutoff: timedelta, how: str, after: int, others: list[Deed]) -> None:
        """A collection is suspended after its last look, for longer than its lease holds."""
        self.make_garbage()
        self.collect_paused(cutoff, STAGES[-1].begin, after, [Deed(how, 0), *others])

    @rule(
        cutoff=st.sampled_from(CUTOFFS),
        kind=st.sampled_from([ObjectKind.SNAPSHOT, ObjectKind.MANIFEST, ObjectKind.CHUNK_FILE]),
        others=deeds(*NAMING, *NAMING, *OTHERS),
    )
    def collect_meanwhile_deleting(
        self, cutoff: timedelta, kind: ObjectKind, others: list[Deed]
    ) -> None:
        """Others do something just before a collection deletes."""
        self.make_garbage()
        folder = self.repo._context.format.layout.folder(kind)
        self.collect_paused(cutoff, ("delete_many", folder), 0, others)

    def collect_paused(
        self, cutoff: timedelta, begin: tuple[str, str], after: int, others: list[Deed]
    ) -> None:
        storage, started = Pausable(self.clock), self.really_passed
        repo = Repository.open(storage)
        self.pause(storage, begin, after, others)
        try:
            repo.garbage_collect(cutoff)
        except SessionStateError:
            assert self.really_passed > started, "a collection only ends when it was suspended"

    def pause(
        self, storage: Pausable, begin: tuple[str, str], after: int, others: list[Deed]
    ) -> None:
        def act() -> None:
            CollectionMachine.pauses += 1
            for deed in others:
                # No time can be ruled out between a last look and the request that follows.
                if deed.what not in TIME or not storage.is_sure:
                    self.do(deed)

        storage.pause(begin, after, act)

    def do(self, deed: Deed) -> None:
        pick = deed.pick
        {
            "tag": lambda: self.tag(pick),
            "branch": lambda: self.branch(BRANCHES[1 + pick % 2], pick // 2),
            "reset": lambda: self.reset(BRANCHES[pick % 3], pick // 3),
            "hold": lambda: self.hold(pick),
            "expire": lambda: self.repo.expire_snapshots(keep_last=1 + pick % 3),
            "collect": lambda: self.repo.garbage_collect(CUTOFFS[pick % len(CUTOFFS)]),
            "delete": lambda: self.delete(BRANCHES[1 + pick % 2]),
            "commit": lambda: self.commit(pick),
            "flush": lambda: self.flush(pick),
            "start": lambda: self.start(BRANCHES[pick % 3], [pick % CHUNKS], 1 + pick % 9),
            "wait": lambda: self.wait([5, 60, 200][pick % 3]),
            "sleep": self.sleep,
            "freeze": self.freeze,
        }[deed.what]()

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

    @rule(
        fault=st.sampled_from(Fault),
        nth=st.integers(1, 6),
        cutoff=st.sampled_from(CUTOFFS),
        later=deeds(*NAMING),
    )
    def fail_deleting(self, fault: Fault, nth: int, cutoff: timedelta, later: list[Deed]) -> None:
        """A collection dies while it deletes; what it leaves can be named, or not."""
        self.make_garbage()
        faulty = FaultyStorage(self.clock)
        repo = Repository.open(faulty)
        faulty.inject(fault, verb="delete_many", nth=nth)
        with contextlib.suppress(StorageError, CrashError):
            repo.garbage_collect(cutoff)
        for deed in later:
            self.do(deed)

    def learn(self, branch: str) -> None:
        """A compaction may have added a commit, which changed nothing."""
        new, ref = self.repo.lookup_branch(branch), f"branch {branch}"
        if new != self.refs[ref]:
            assert self.repo.lookup_snapshot(new).message == "compact chunk files"
            self.refs[ref] = self.note(new, self.values[self.refs[ref]])

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
        needed = {held for _, held in self.held}
        needed |= {each for each in self.written if self.is_young(each)}
        for ref, expected in self.refs.items():
            kind, _, name = ref.partition(" ")
            found = repo.lookup_branch(name) if kind == "branch" else repo.lookup_tag(name)
            assert found == expected, ref
            needed |= {info.id for info in repo.ancestry(snapshot_id=found)}
        for snapshot_id in needed - {FIRST}:
            session = repo.readonly_session(snapshot_id=snapshot_id)
            chunks = [session.get_chunk("/a", (at,)) for at in range(CHUNKS)]
            read = tuple(0 if data is None else data[0] for data in chunks)
            assert read == self.values[snapshot_id], snapshot_id


def over(before: Values, edits: dict[int, int]) -> Values:
    return tuple(edits.get(chunk, value) for chunk, value in enumerate(before))


def test_nothing_that_is_reached_is_ever_deleted(
    record_property: Callable[[str, object], None],
) -> None:
    CollectionMachine.steps = CollectionMachine.pauses = 0
    budget = settings(max_examples=settings().max_examples // 2)
    run_state_machine_as_test(CollectionMachine, settings=budget)
    record_property("steps of the collection machine", CollectionMachine.steps)
    record_property("pauses of the collection machine", CollectionMachine.pauses)


UNNOTICED = {
    "what lies between the base of a session and its branch stays",
    "a lease begins by the storage's clock",
    "a collection asks for the storage's clock before it deletes",
    "sessions mind what collections that run may delete",
    "sessions look for what they need when their lease lapsed",
    "what new snapshots refer to is looked for again before deleting",
}
"""What takes more than the machine has: see test_collection_guards.py."""


@pytest.mark.skipif(not IS_DEEP, reason="takes minutes: done by `make test-deep`")
@pytest.mark.parametrize("name", [name for name in GUARDS if name not in UNNOTICED])
def test_the_machine_notices_when_a_guard_is_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    GUARDS[name](monkeypatch)
    budget = settings(
        max_examples=EXAMPLES_PER_GUARD, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises((*FAILURES, FlakyFailure)) as noticed:
        run_state_machine_as_test(CollectionMachine, settings=budget)
    # Storages answer concurrent requests in any order, so a failure may not repeat: one is enough.
    error = noticed.value
    failures = error.exceptions if isinstance(error, FlakyFailure) else (error,)
    assert all(isinstance(failure, FAILURES) for failure in failures)
