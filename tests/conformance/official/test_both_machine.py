"""Both packages work on one repository in any order, and see what a plain model says.

Each step is made by one of them: commits and amended commits, moves, references, rebases, forks,
expiry and collection, compaction, virtual chunks that become native ones. After each step both
read every branch and tag. Repositories stay open, so that what they remember is tried, too.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import icefloe
from tests.conformance.official.packages import (
    Place,
    access,
    create_official,
    create_ours,
    icechunk,
    verify_files,
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
LENGTH, CHUNK = 6, 2
NUMBERS = np.arange(100, dtype="<i8")
packages = st.sampled_from(["ours", "theirs"])
numbers = st.integers(0, 2**16)
edits = st.lists(
    st.tuples(
        st.sampled_from(["create", "chunk", "chunk", "virtual", "attribute", "delete", "resize"]),
        st.sampled_from(["a", "b", "g/a", "g/b"]),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=5,
)

Array = tuple[tuple[int, ...], dict[str, Any]]
Contents = dict[str, Array]
"""Values and attributes by path."""


def chosen(names: Any, number: int) -> Any:
    options = sorted(names)
    return options[number % len(options)]


class BothPackagesMachine(RuleBasedStateMachine):
    """One repository, two packages, one model."""

    spec_version: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name).resolve()
        self.place = Place(folder, None)
        (folder / "files").mkdir()
        (folder / "files" / "data.bin").write_bytes(NUMBERS.tobytes())
        self.prefix = f"file://{folder}/files/"
        self.files = str(folder / "files")
        self.repos: dict[str, Any] = {}
        self.contents: dict[str, Contents] = {}
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.burnt: set[str] = set()
        self.count = 0

    def teardown(self) -> None:
        try:
            if self.repos:
                self.reopen()
                self.check_everything()
                report = self.repos["ours"].verify(deep=True)
                assert report.is_clean, str(report)
                verify_files(self.place.ours())
        finally:
            self.repos.clear()
            self._folder.cleanup()

    # --- beginning

    @initialize(
        creator=packages, is_split=st.booleans(), inline=st.sampled_from([0, 512]), number=numbers
    )
    def create(self, creator: str, is_split: bool, inline: int, number: int) -> None:
        config = icechunk.RepositoryConfig.default()
        config.inline_chunk_threshold_bytes = inline
        store = icechunk.local_filesystem_store(self.files)
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(self.prefix, store))
        if is_split:
            sizes = {icechunk.ManifestSplitDimCondition.Any(): 1 + number % 2}
            splitting = icechunk.ManifestSplittingConfig.from_dict(
                {icechunk.ManifestSplitCondition.AnyArray(): sizes}
            )
            config.manifest = icechunk.ManifestConfig(splitting=splitting)
        if creator == "theirs":
            create_official(self.place, self.spec_version, config).save_config()
        else:
            create_ours(self.place, self.spec_version)
            opened = icechunk.Repository.open(self.place.theirs(), config)
            opened.save_config()
        self.reopen()
        first = self.repos["ours"].lookup_branch("main")
        self.contents[first] = {}
        self.branches["main"] = first
        self.commit(creator, "main", [("create", "a", 5), ("create", "g/a", 6)], is_amended=False)

    @rule()
    def reopen(self) -> None:
        self.repos = {
            "ours": icefloe.Repository.open(self.place.ours(), None, {self.prefix: None}),
            "theirs": icechunk.Repository.open(
                self.place.theirs(), authorize_virtual_chunk_access=access(self.prefix)
            ),
        }

    # --- contents

    def apply(self, session: Any, contents: Contents, todo: list[tuple[str, str, int]]) -> bool:
        """Make edits in a session and in the model; returns whether anything is different then."""
        group = zarr.open_group(session.store, mode="a")
        before = dict(contents)
        for kind, path, number in todo:
            values, attributes = contents.get(path, ((), {}))
            place = number % max(len(values), 1)
            if kind == "create" and path not in contents:
                parent, _, name = path.rpartition("/")
                owner = group.require_group(parent) if parent else group
                array = owner.create_array(
                    name, shape=(LENGTH,), chunks=(CHUNK,), dtype="<i8", compressors=None
                )
                array[:3] = number
                contents[path] = (*[number] * 3, *[0] * (LENGTH - 3)), {}
            elif path not in contents:
                continue
            elif kind == "chunk" and values:
                group[path][place] = number
                contents[path] = (*values[:place], number, *values[place + 1 :]), attributes
            elif kind == "virtual" and len(values) >= CHUNK:
                chunk = place // CHUNK if (place // CHUNK + 1) * CHUNK <= len(values) else 0
                session.store.set_virtual_ref(
                    f"{path}/c/{chunk}", f"{self.prefix}data.bin", offset=8 * number, length=16
                )
                new = list(values)
                new[chunk * CHUNK : (chunk + 1) * CHUNK] = [number, number + 1]
                contents[path] = tuple(new), attributes
            elif kind == "attribute":
                size = 100_000 if number == 7 else 3
                group[path].attrs["text"] = f"{number}" * size
                contents[path] = values, {"text": f"{number}" * size}
            elif kind == "delete":
                del group[path]
                del contents[path]
            elif kind == "resize":
                length = CHUNK * (1 + number % 5)
                group[path].resize((length,))
                padded = values + (0,) * max(0, length - len(values))
                contents[path] = padded[:length], attributes
        return contents != before

    def tell(self) -> str:
        self.count += 1
        return f"commit {self.count}"

    @rule(who=packages, number=numbers, todo=edits, is_amended=st.booleans())
    def edit(
        self,
        who: str,
        number: int,
        todo: list[tuple[str, str, int]],
        is_amended: bool,
    ) -> None:
        self.commit(who, chosen(self.branches, number), todo, is_amended=is_amended)

    def commit(
        self, who: str, branch: str, todo: list[tuple[str, str, int]], *, is_amended: bool
    ) -> None:
        session = self.repos[who].writable_session(branch)
        contents = dict(self.contents[self.branches[branch]])
        if not self.apply(session, contents, todo):
            return
        is_first = not self.contents[self.branches[branch]]
        if is_amended and self.spec_version == 2 and not is_first:
            tip = session.amend(self.tell())
        else:
            tip = session.commit(self.tell(), metadata={"by": who})
        self.move_branch(branch, tip, contents)

    def move_branch(self, branch: str, tip: str, contents: Contents) -> None:
        self.branches[branch] = tip
        self.contents[tip] = contents

    @rule(who=packages, number=numbers, to=st.sampled_from(["m", "n", "h"]), todo=edits)
    def move(self, who: str, number: int, to: str, todo: list[tuple[str, str, int]]) -> None:
        branch = chosen(self.branches, number)
        contents = dict(self.contents[self.branches[branch]])
        if self.spec_version == 1 or not contents:
            return
        sources = set(contents) | {path.partition("/")[0] for path in contents if "/" in path}
        source = chosen(sources, number // 7)
        target = f"{to}{self.count}"
        if who == "ours":
            session = self.repos[who].writable_session(branch)
        else:
            session = self.repos[who].rearrange_session(branch)
        session.move(f"/{source}", f"/{target}")
        for path in list(contents):
            if path == source or path.startswith(f"{source}/"):
                contents[target + path[len(source) :]] = contents.pop(path)
        if who == "ours":  # the official package has sessions that do nothing but move
            self.apply(session, contents, todo)
        self.move_branch(branch, session.commit(self.tell()), contents)

    @rule(
        first=packages,
        second=packages,
        number=numbers,
        places=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    )
    def race(self, first: str, second: str, number: int, places: tuple[int, int]) -> None:
        """Two sessions on one branch: the later one is rebased, or conflicts."""
        branch = chosen(self.branches, number)
        contents = dict(self.contents[self.branches[branch]])
        paths = [path for path, (values, _) in contents.items() if len(values) >= 2 * CHUNK]
        if not paths:
            return
        path = chosen(paths, number // 5)
        sessions = [self.repos[who].writable_session(branch) for who in (first, second)]
        for session, place in zip(sessions, places, strict=True):
            zarr.open_group(session.store)[path][place * CHUNK] = 50 + number % 7
        values, attributes = contents[path]
        new = list(values)
        new[places[0] * CHUNK] = 50 + number % 7
        contents[path] = tuple(new), attributes
        self.move_branch(branch, sessions[0].commit(self.tell()), dict(contents))
        theirs = {"ours": icefloe, "theirs": icechunk}[second]
        if places[0] == places[1]:
            with pytest.raises(theirs.RebaseFailedError):
                sessions[1].commit(self.tell(), rebase_with=theirs.ConflictDetector())
            return
        tip = sessions[1].commit(self.tell(), rebase_with=theirs.ConflictDetector())
        new[places[1] * CHUNK] = 50 + number % 7
        self.move_branch(branch, tip, contents | {path: (tuple(new), attributes)})

    @rule(who=packages, number=numbers)
    def cooperate(self, who: str, number: int) -> None:
        """Forks of one session write chunks, and one commit has all of them."""
        branch = chosen(self.branches, number)
        contents = dict(self.contents[self.branches[branch]])
        paths = [path for path, (values, _) in contents.items() if len(values) >= 2 * CHUNK]
        if not paths:
            return
        path = chosen(paths, number // 5)
        session = self.repos[who].writable_session(branch)
        forks = [session.fork() for _ in range(2)]
        values, attributes = contents[path]
        new = list(values)
        for place, fork in enumerate(forks):
            zarr.open_group(fork.store)[path][place * CHUNK] = new[place * CHUNK] = number % 91
        session.merge(*forks)
        tip = session.commit(self.tell())
        self.move_branch(branch, tip, contents | {path: (tuple(new), attributes)})

    @rule(who=packages, number=numbers, todo=edits)
    def flush(self, who: str, number: int, todo: list[tuple[str, str, int]]) -> None:
        """A snapshot that no branch has; a tag or a branch may keep it."""
        branch = chosen(self.branches, number)
        contents = dict(self.contents[self.branches[branch]])
        session = self.repos[who].writable_session(branch)
        if self.spec_version == 1 or not self.apply(session, contents, todo):
            return
        loose = session.flush(self.tell())
        self.contents[loose] = contents
        if number % 2:
            name = f"loose{self.count}"
            self.repos[who].create_branch(name, loose)
            self.branches[name] = loose

    # --- references

    @rule(who=packages, number=numbers, name=st.sampled_from(["dev", "x y", "z"]))
    def create_branch(self, who: str, number: int, name: str) -> None:
        tip = self.branches[chosen(self.branches, number)]
        if name in self.branches:
            return
        self.repos[who].create_branch(name, tip)
        self.branches[name] = tip

    @rule(who=packages, number=numbers)
    def delete_branch(self, who: str, number: int) -> None:
        name = chosen(self.branches, number)
        if name != "main":
            self.repos[who].delete_branch(name)
            del self.branches[name]

    @rule(who=packages, number=numbers, to=numbers)
    def reset_branch(self, who: str, number: int, to: int) -> None:
        name = chosen(self.branches, number)
        tips = {*self.branches.values(), *self.tags.values()}
        tip = chosen(tips, to)
        self.repos[who].reset_branch(name, tip)
        self.branches[name] = tip

    @rule(who=packages, number=numbers, name=st.sampled_from(["t1", "t2", "t 3", "t4"]))
    def create_tag(self, who: str, number: int, name: str) -> None:
        tip = self.branches[chosen(self.branches, number)]
        if name in self.tags or name in self.burnt:
            errors = {"ours": icefloe.IcefloeError, "theirs": icechunk.IcechunkError}
            with pytest.raises(errors[who]):
                self.repos[who].create_tag(name, tip)
            return
        self.repos[who].create_tag(name, tip)
        self.tags[name] = tip

    @rule(who=packages, number=numbers)
    def delete_tag(self, who: str, number: int) -> None:
        if self.tags:
            name = chosen(self.tags, number)
            self.repos[who].delete_tag(name)
            del self.tags[name]
            self.burnt.add(name)

    # --- maintenance

    @rule(who=packages, number=numbers, deletes=st.booleans())
    def expire(self, who: str, number: int, deletes: bool) -> None:
        repo = self.repos[who]
        infos = list(repo.ancestry(branch=chosen(self.branches, number)))
        moment = infos[number % len(infos)].written_at
        repo.expire_snapshots(moment, delete_expired_tags=deletes)
        if deletes:
            left = set(repo.list_tags())
            assert left <= set(self.tags)
            self.burnt |= set(self.tags) - left
            self.tags = {name: tip for name, tip in self.tags.items() if name in left}
        if self.spec_version == 1:
            self.reopen()  # what is open keeps the histories that it has read

    @rule(who=packages)
    def collect(self, who: str) -> None:
        self.repos[who].garbage_collect(datetime.now(UTC) + timedelta(minutes=1))

    @rule(who=packages, number=numbers)
    def rewrite(self, who: str, number: int) -> None:
        branch = chosen(self.branches, number)
        contents = self.contents[self.branches[branch]]
        self.repos[who].rewrite_manifests(self.tell(), branch=branch)
        self.moved(branch, contents)

    @rule(number=numbers, is_materialized=st.booleans())
    def compact(self, number: int, is_materialized: bool) -> None:
        branch = chosen(self.branches, number)
        contents = self.contents[self.branches[branch]]
        if is_materialized:
            self.repos["ours"].materialize(branch=branch)
        else:
            self.repos["ours"].compact(branch=branch)
        self.moved(branch, contents)

    def moved(self, branch: str, contents: Contents) -> None:
        tip = self.repos["ours"].lookup_branch(branch)
        self.move_branch(branch, tip, contents)

    # --- what must hold

    def read(self, repo: Any, **ref: str) -> Contents:
        group: Any = zarr.open_group(repo.readonly_session(**ref).store, mode="r")
        return {
            name: (tuple(node[...].tolist()), node.attrs.asdict())
            for name, node in group.members(None)
            if isinstance(node, zarr.Array)
        }

    @invariant()
    def check_everything(self) -> None:
        for repo in self.repos.values():
            assert set(repo.list_branches()) == set(self.branches)
            assert set(repo.list_tags()) == set(self.tags)
            for name, tip in self.branches.items():
                assert repo.lookup_branch(name) == tip
                if self.contents[tip]:
                    assert self.read(repo, branch=name) == self.contents[tip]
            for name, tip in self.tags.items():
                assert repo.lookup_tag(name) == tip
                if self.contents[tip]:
                    assert self.read(repo, tag=name) == self.contents[tip]
        if self.repos:
            for name in self.branches:
                histories = [
                    [(info.id, info.parent_id, info.message) for info in repo.ancestry(branch=name)]
                    for repo in self.repos.values()
                ]
                assert histories[0] == histories[1]


def test_both_packages_on_one_repository(spec_version: int) -> None:
    # F8-08, F8-09, F8-10, F8-13
    machine = type("Machine", (BothPackagesMachine,), {"spec_version": spec_version})
    examples = max(2, int(settings().max_examples * 0.1))
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))
