"""Version control and maintenance against a plain model: references, commits, expiry, collection.

Branches, tags, commits, amends, resets, expiry and garbage collection come in any order, and after
each step all references and all histories are compared with the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from string import ascii_letters
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe import CachingConfig, Repository, RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import format_for
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from tests.formats import FORMATS, OFFICIAL_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.session import Session

FIRST = str(FIRST_SNAPSHOT_ID)
CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=2, inline_attributes_threshold_bytes=60)
CACHING = RepositoryConfig(caching=CachingConfig(num_bytes_chunks=2000, num_transaction_changes=20))
TICK = timedelta(microseconds=1)
GROUPS = ("", "a", "b")
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [9],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
    "attributes": {},
}

numbers = st.integers(0, 2**16)
names = st.text("abcxyzAö -", min_size=1, max_size=3)
edits = st.one_of(
    st.tuples(st.sampled_from(GROUPS), st.sampled_from([1, 100])),
    st.tuples(st.just("chunk"), st.integers(0, 2)),
)
several = st.lists(st.tuples(edits, st.booleans()), min_size=3, max_size=10)
"""Edits that are each committed, or amend the commit before: rules alone make short histories."""

Edit = tuple[str, int]
Contents = dict[str, bytes]
"""What a store holds by key."""


@dataclass(frozen=True)
class Commit:
    """A snapshot as its history shows it."""

    parent: str | None
    written_at: datetime
    stored_at: datetime
    """When its file was written, by the storage's clock."""
    contents: Contents


@dataclass
class Model:
    """What a repository should say."""

    commits: dict[str, Commit]
    branches: dict[str, str] = field(default_factory=lambda: {"main": FIRST})
    deleted_branches: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)

    def history(self, snapshot_id: str | None) -> Iterator[str]:
        """A snapshot and its ancestors, newest first."""
        while snapshot_id is not None:
            yield snapshot_id
            snapshot_id = self.commits[snapshot_id].parent

    def expire(self, moment: datetime, *, delete_branches: bool) -> set[str]:
        """Cut histories behind what is not older than a moment; returns what has expired."""
        tips = [*self.branches.items(), *((None, target) for target in self.tags.values())]
        expired: set[str] = set()
        cuts: list[str] = []
        for branch, tip in tips:
            line = list(self.history(tip))[:-1]  # the first snapshot stays
            old = [each for each in line if self.commits[each].written_at < moment]
            if delete_branches and branch not in {None, "main"} and line and old == line:
                expired.update(old)
                del self.branches[branch]
                self.deleted_branches.add(branch)
                continue
            last = next((each for each in reversed(line) if each not in old), tip)
            if set(old) - {last}:
                expired.update(old)
                cuts.append(last)
        for last in cuts:
            self.commits[last] = replace(self.commits[last], parent=FIRST)
        return expired

    def collect(self, cutoff: datetime) -> set[str]:
        """Drop what nothing reaches and is old; returns what was dropped."""
        young = [each for each, commit in self.commits.items() if commit.stored_at >= cutoff]
        live = {FIRST}
        for tip in [*self.branches.values(), *self.tags.values(), *young]:
            live.update(self.history(tip))
        gone = self.commits.keys() - live
        for each in gone:
            del self.commits[each]
        return gone


def pick(options: Any, number: int) -> Any:
    ordered = sorted(options)
    return ordered[number % len(ordered)]


class VersionControlMachine(RuleBasedStateMachine):
    how: ClassVar[dict[str, Any]] = {}
    """The format: arguments of `Repository.create`."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = icefloe.in_memory_storage()
        self.repo = Repository.create(self.storage, CONFIG, **self.how)
        self.layout = format_for(self.repo.generation, self.repo.spec_version).layout
        self.model = Model({FIRST: self.stored(FIRST, None, {})})
        self.values = 0
        self.check_out("main")

    # --- helpers

    def stored(self, snapshot_id: str, parent: str | None, contents: Contents) -> Commit:
        info = self.repo.lookup_snapshot(snapshot_id)
        assert info.parent_id == parent
        stored_at = self.stored_times()[snapshot_id]
        return Commit(parent, info.written_at, stored_at, contents)

    def stored_times(self) -> dict[str, datetime]:
        """When the file of each snapshot was written."""
        found = {}
        for info in self.storage.list(self.layout.folder(ObjectKind.SNAPSHOT)):
            name = self.layout.parse(info.key)
            assert name is not None
            found[str(SnapshotId(name.id))] = info.last_modified
        return found

    def look_at_times(self) -> None:
        """The first official version writes a snapshot again whose parent expires."""
        for snapshot_id, stored_at in self.stored_times().items():
            commit = self.model.commits[snapshot_id]
            self.model.commits[snapshot_id] = replace(commit, stored_at=stored_at)

    def check_out(self, branch: str) -> None:
        self.branch = branch
        self.session: Session = self.repo.writable_session(branch)
        self.base = self.model.branches[branch]
        assert self.session.snapshot_id == self.base
        self.contents = dict(self.model.commits[self.base].contents)

    def give_up_if_moved(self) -> None:
        """Start again where the branch is: this machine does not rebase."""
        if self.model.branches.get(self.branch) != self.base:
            self.check_out("main")

    def some_moment(self, number: int, *, is_stored: bool) -> datetime:
        """The time of some commit, or just after it."""
        commits = self.model.commits.values()
        times = [each.stored_at if is_stored else each.written_at for each in commits]
        return pick([*times, *(time + TICK for time in times)], number)

    # --- edits and commits

    def edit(self, what: str, size: int) -> None:
        self.values += 1
        if what == "chunk":
            if "x/zarr.json" not in self.contents:
                self.put("x/zarr.json", msgspec.json.encode(ARRAY))
            self.put(f"x/c/{size}", self.values.to_bytes(3, "big"))
            return
        attributes = {"value": self.values, "text": "x" * size}
        document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        self.put(f"{what}/zarr.json".strip("/"), msgspec.json.encode(document))

    def put(self, key: str, data: bytes) -> None:
        self.session.store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))
        self.contents[key] = data

    @rule(edit=edits)
    def change(self, edit: Edit) -> None:
        self.edit(*edit)

    @initialize(todo=several)
    def begin(self, todo: list[tuple[Edit, bool]]) -> None:
        self.commit_several(todo)

    @rule(todo=several)
    def commit_several(self, todo: list[tuple[Edit, bool]]) -> None:
        for edit, is_amended in todo:
            self.edit(*edit)
            if is_amended and self.model.commits[self.base].parent is not None:
                self.commit(parent=self.model.commits[self.base].parent)
            else:
                self.commit()

    def commit(self, parent: str | None = None) -> None:
        message = f"commit {self.values}"
        if parent is None:
            snapshot_id = self.session.commit(message)
        else:
            snapshot_id = self.session.amend(message)
        assert snapshot_id not in self.model.commits
        commit = self.stored(snapshot_id, parent or self.base, dict(self.contents))
        assert commit.written_at > self.model.commits[commit.parent].written_at
        self.model.commits[snapshot_id] = commit
        self.model.branches[self.branch] = snapshot_id
        self.check_out(self.branch)

    # --- references

    @rule(number=numbers)
    def check_out_branch(self, number: int) -> None:
        self.check_out(pick(self.model.branches, number))

    @rule(name=names, number=numbers)
    def create_branch(self, name: str, number: int) -> None:
        target = pick(self.model.commits, number)
        if self.cannot_be_listed(name):
            with pytest.raises(InvalidInputError, match="letters and digits of ASCII"):
                self.repo.create_branch(name, target)
            return
        if self.is_taken(name, "branch"):
            with pytest.raises(AlreadyExistsError):
                self.repo.create_branch(name, target)
            return
        self.repo.create_branch(name, target)
        self.model.branches[name] = target
        self.model.deleted_branches.discard(name)

    @rule(name=names, number=numbers)
    def create_tag(self, name: str, number: int) -> None:
        target = pick(self.model.commits, number)
        if self.cannot_be_listed(name):
            with pytest.raises(InvalidInputError, match="letters and digits of ASCII"):
                self.repo.create_tag(name, target)
            return
        if self.is_taken(name, "tag"):
            with pytest.raises(AlreadyExistsError):
                self.repo.create_tag(name, target)
            return
        self.repo.create_tag(name, target)
        self.model.tags[name] = target

    def cannot_be_listed(self, name: str) -> bool:
        """Whether readers of the first official version would not list a name everywhere."""
        is_strict = self.how == OFFICIAL_FORMATS["icechunk1"]
        return is_strict and not set(name) <= set(f"{ascii_letters} -")

    def is_taken(self, name: str, kind: str) -> bool:
        """Whether a name is, or is hard to tell from one that is (H-25)."""
        model = self.model
        if self.repo.generation == "icechunk":
            same = set(model.tags if kind == "tag" else model.branches)
            if self.repo.spec_version == 1:  # each is a file of this name
                return name.casefold() in {other.casefold() for other in same}
            return name in same
        if self.repo.generation == "dataset":
            taken = model.branches.keys() | model.tags.keys()
        elif kind == "tag":
            taken = set(model.tags)
        elif name in model.deleted_branches:
            return False
        else:
            taken = model.branches.keys() | model.deleted_branches
        return name.casefold() in {other.casefold() for other in taken}

    @rule(number=numbers)
    def delete_branch(self, number: int) -> None:
        branch = pick(self.model.branches, number)
        if branch == "main":
            with pytest.raises(InvalidInputError, match="main branch cannot be deleted"):
                self.repo.delete_branch(branch)
            return
        self.repo.delete_branch(branch)
        del self.model.branches[branch]
        self.model.deleted_branches.add(branch)
        with pytest.raises(RefNotFoundError):
            self.repo.lookup_branch(branch)
        self.give_up_if_moved()

    @rule(number=numbers, to=numbers, expected=st.sampled_from([None, True, False]))
    def reset_branch(self, number: int, to: int, expected: bool | None) -> None:
        branch, snapshot_id = pick(self.model.branches, number), pick(self.model.commits, to)
        tip = self.model.branches[branch]
        if expected is False:
            wrong = next((each for each in self.model.commits if each != tip), None)
            if wrong is not None:
                with pytest.raises(ConflictError):
                    self.repo.reset_branch(branch, snapshot_id, from_snapshot_id=wrong)
            return
        self.repo.reset_branch(branch, snapshot_id, from_snapshot_id=tip if expected else None)
        self.model.branches[branch] = snapshot_id
        if branch == self.branch:
            self.check_out(branch)

    # --- maintenance

    @rule(number=numbers, delete_branches=st.booleans())
    def expire(self, number: int, delete_branches: bool) -> None:
        moment = self.some_moment(number, is_stored=False)
        expired = self.repo.expire_snapshots(moment, delete_expired_branches=delete_branches)
        assert expired == self.model.expire(moment, delete_branches=delete_branches)
        assert self.repo.expire_snapshots(moment, delete_expired_branches=delete_branches) == set()
        self.look_at_times()
        self.give_up_if_moved()

    @rule(number=numbers, is_dry=st.booleans())
    def collect(self, number: int, is_dry: bool) -> None:
        cutoff = self.some_moment(number, is_stored=True)
        planned = self.repo.garbage_collect(cutoff, dry_run=True)
        if is_dry:
            assert self.stored_times().keys() == self.model.commits.keys()
            return
        summary = self.repo.garbage_collect(cutoff)
        gone = self.model.collect(cutoff)
        assert summary.snapshots_deleted == planned.snapshots_deleted == len(gone)
        assert self.stored_times().keys() == self.model.commits.keys()
        for snapshot_id in gone:
            with pytest.raises(SnapshotNotFoundError):
                self.repo.lookup_snapshot(snapshot_id)
        self.check_out(self.branch)  # what was not committed may be gone

    @rule(is_caching=st.booleans())
    def reopen(self, is_caching: bool) -> None:
        self.repo = Repository.open(self.storage, CACHING if is_caching else None)
        assert self.repo.config.inline_attributes_threshold_bytes == 60
        self.check_out(self.branch)

    @rule(number=numbers)
    def travel(self, number: int) -> None:
        snapshot_id = pick(self.model.commits, number)
        self.check_shows(self.repo.readonly_session(snapshot_id=snapshot_id), snapshot_id)

    def check_shows(self, session: Session, snapshot_id: str) -> None:
        contents = self.model.commits[snapshot_id].contents
        assert set(session.store.list()) == contents.keys()
        prototype = default_buffer_prototype()
        for key, data in contents.items():
            found = session.store.get_sync(key, prototype=prototype)
            assert found is not None
            assert found.to_bytes() == data

    # --- always

    @invariant()
    def references_are_those_of_the_model(self) -> None:
        assert self.repo.list_branches() == self.model.branches.keys()
        assert self.repo.list_tags() == self.model.tags.keys()
        for branch, tip in self.model.branches.items():
            assert self.repo.lookup_branch(branch) == tip
        for tag, target in self.model.tags.items():
            assert self.repo.lookup_tag(tag) == target

    @invariant()
    def histories_are_those_of_the_model(self) -> None:
        ways = [({"branch": name}, tip) for name, tip in self.model.branches.items()]
        ways += [({"tag": name}, target) for name, target in self.model.tags.items()]
        for way, tip in ways:
            infos = list(self.repo.ancestry(**way))
            assert [info.id for info in infos] == list(self.model.history(tip))
            times = [info.written_at for info in infos]
            assert times == [self.model.commits[info.id].written_at for info in infos]
            assert times == sorted(set(times), reverse=True)

    def teardown(self) -> None:
        repo = Repository.open(self.storage)
        for snapshot_id in self.model.commits:
            self.check_shows(repo.readonly_session(snapshot_id=snapshot_id), snapshot_id)
        report = repo.verify()
        assert report.is_clean, str(report)


@pytest.mark.parametrize("name", FORMATS)
def test_version_control(name: str) -> None:
    machine = type("Machine", (VersionControlMachine,), {"how": FORMATS[name]})
    examples = max(2, int(settings().max_examples * 0.3))
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))
