"""Branches and tags of a dataset: they move by swapping the state file for its successor.

The four algorithms that spec 000 leaves empty are here and in `engine`:

- *Initialize* (H-09): write the first structure file, then create the state file if it is absent.
- *Write snapshot* (H-10): write chunks, manifests, attributes and the structure file; then read the
  state, add the snapshot, move the branch, count the generation up, and swap it in if nobody else
  did meanwhile. If somebody did but the branch did not move, try again.
- *Read snapshot* (H-11): by id, by reference, by `main`; without references, the one listed last.
- *Expire* (H-12): drop snapshots from the list that no reference reaches; collecting garbage then
  deletes unreferenced objects.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

import msgspec

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
)
from icefloe.formats.authorship import signed
from icefloe.formats.dataset.layout import LAYOUT, STATE_KEY
from icefloe.formats.dataset.state import FOREIGN, State
from icefloe.formats.file_sums import sum_of
from icefloe.formats.port import (
    BranchState,
    BranchTip,
    LiveTip,
    RefDefaults,
    branch_moved,
    branch_tip,
)
from icefloe.formats.sequence_refs import (
    MAX_NAME_BYTES,
    check_ref_name,
    refuse_tag_deletion,
    twins_of,
    without_twins,
)
from icefloe.model import MAIN
from icefloe.model.ids import SnapshotId
from icefloe.storage.probe import ensure_conditional_replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    from icefloe.formats.dataset.codec import StructureSchema
    from icefloe.formats.dataset.state import RefType
    from icefloe.formats.port import Codec
    from icefloe.model.snapshot import FileSum, Snapshot
    from icefloe.storage.port import ObjectVersion, Storage

_MAX_TRIES = 1000
_LONGEST_PAUSE = 0.1


class StateRefs(RefDefaults):
    """Branches and tags of a dataset in a storage."""

    records_moves = True

    numbers_moves = True

    def __init__(self, storage: Storage) -> None:
        """Take where the state file is."""
        self._storage = storage
        self._latest: State | None = None
        """The state that was read last."""
        self._swappable: tuple[State, ObjectVersion] | None = None
        """The same with its version, or the state that was swapped in last."""
        self._schema: StructureSchema | None = None
        self._written: Callable[[], Snapshot | None] = lambda: None

    def view(self) -> StateRefs:
        """The same references, from a state file that is read once, when it is needed."""
        return _StateView(self._storage)

    # --- reading

    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""
        state = self.read()
        if state is None:
            return None
        return _tip_in(state, branch)

    def find_tip(self, branch: str) -> Callable[[], BranchTip | None]:
        """Find the newest state of a branch, and read it in the same request."""
        tip = self.tip(branch)
        return lambda: tip

    def branches(self) -> set[str]:
        """Names of the branches that exist."""
        state = self.read()
        if state is None:
            return set()
        return state.names("branch") or ({MAIN} if state.latest() else set())

    def tips(self) -> dict[str, BranchTip]:
        """Newest states of all branches."""
        state = self.read()
        return {} if state is None else state.tips()

    def newest_numbers(self) -> dict[str, int]:
        """Numbers of the newest states of all branches."""
        return {branch: tip.sequence for branch, tip in self.tips().items()}

    def tag_targets(self) -> dict[str, SnapshotId]:
        """The snapshots that all tags name."""
        state = self.read()
        return {} if state is None else state.tag_targets()

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot that a tag names."""
        state = self.read()
        return None if state is None else state.tag(name)

    def tags(self) -> set[str]:
        """Names of all tags."""
        state = self.read()
        return set() if state is None else state.names("tag")

    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """All states of a branch, newest first."""
        state = self.read()
        return iter(()) if state is None else iter(state.log(branch))

    def entries(self, tip: BranchTip, down_to: int) -> list[BranchTip]:
        """The states of a branch from `tip` down to one of a number, as far as they are listed."""
        states = self.reflog(tip.branch)
        return [each for each in states if down_to <= each.sequence <= tip.sequence]

    def snapshot_id(self, text: str) -> SnapshotId | None:
        """The snapshot that a text names: an id that the state file lists, or one of icefloe's."""
        for state in (self._latest, None):
            known = state or self.read()
            found = None if known is None else known.find(text)
            if found is not None:
                return found
            with contextlib.suppress(InvalidInputError):
                return SnapshotId.parse(text)
        return None

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """Add what only the state file says of a snapshot that another program wrote."""
        if FOREIGN not in snapshot.metadata:
            return snapshot
        state = self._latest
        if state is None or not state.lists(snapshot.id):
            state = self.read()
        return snapshot if state is None else state.completed(snapshot)

    def listed_snapshots(self) -> set[SnapshotId]:
        """All snapshots that the state file lists."""
        state = self.read()
        return set() if state is None else set(state.snapshot_ids())

    def snapshot_files(self) -> Mapping[SnapshotId, FileSum]:
        """What the state file remembers of structure files, as it was when it was read last."""
        state = self._latest or self.read()
        return {} if state is None else state.snapshot_files

    def remember(
        self,
        find: Callable[[SnapshotId], FileSum | None],
        written: Callable[[], Snapshot | None],
    ) -> None:
        """Take what knows the structure file that was written last; others are read."""
        del find
        self._written = written

    def states(self, branch: str) -> Iterator[BranchState]:
        """The same: one file has all of them, or none can be read."""
        for tip in self.reflog(branch):
            yield BranchState(tip.sequence, STATE_KEY, tip)

    def read(self) -> State | None:
        """The state of the dataset; None if there is none."""
        return self._read_version()[0]

    def _parse(self, data: bytes) -> State:
        state = State.parse(data, self._latest)
        self._check_root(state)
        self._latest = state
        if self._schema is not None:
            self._schema.is_wide |= state.is_wide
        return state

    def _check_root(self, state: State) -> None:
        here = self._storage.location
        is_elsewhere = state.store_root.rstrip("/") not in ("", here.rstrip("/"))
        if is_elsewhere and self._data_root() is None:
            raise InvalidInputError(
                f"the data of the dataset at {here} are at {state.store_root}: open it with "
                "icefloe.split_storage(state=..., data=...), or with allowed_roots=[...] to let "
                "the state file lead to them"
            )

    def _data_root(self) -> str | None:
        """Where the data are, if they are elsewhere than the state file."""
        storage: object = self._storage
        while storage is not None:
            root = getattr(storage, "data_root", None)
            if root is not None:
                return str(root)
            storage = getattr(storage, "inner", None)
        return None

    # --- moving

    def publish(self, tip: LiveTip, snapshot: Snapshot) -> BranchTip:
        """Publish a commit that was just written as the next state of a branch, like `advance`."""
        return self.advance(tip, snapshot.id)

    def delete_tag(self, name: str) -> None:
        """Refuse: the specification says that tags cannot be deleted once created (R1-25)."""
        refuse_tag_deletion(name)

    def advance(self, tip: BranchTip, snapshot_id: SnapshotId | None) -> BranchTip:
        """Publish the next state of a branch: atomic, durable, settled.

        Raises ConflictError if the branch has moved past `tip`.
        """
        if snapshot_id is None and tip.branch == MAIN:
            raise InvalidInputError("every repository has a branch 'main': it cannot be deleted")
        moved = branch_tip(tip.branch, tip.sequence + 1, snapshot_id)

        def change(state: State) -> State:
            found = _tip_in(state, tip.branch)
            if found != tip:
                if snapshot_id is not None and moved in state.log(tip.branch):
                    return state  # by us: a request arrived twice, and others swapped since
                actual = None if found is None else found.snapshot_id
                raise branch_moved(tip, actual)
            return self._moved(state, tip.branch, "branch", snapshot_id)

        self._swap(change)
        return moved

    def repeat(self, tips: Collection[LiveTip]) -> set[str]:
        """Publish for each branch one more state for the snapshot that it has, in one swap.

        Returns the branches that have moved past their `tips`, to which nothing was done.
        """
        moved: set[str] = set()

        def change(state: State) -> State:
            moved.clear()
            moved.update(tip.branch for tip in tips if _tip_in(state, tip.branch) != tip)
            still = {tip.branch: tip.snapshot_id for tip in tips if tip.branch not in moved}
            return self._moved_all(state, still, "branch") if still else state

        self._swap(change)
        return moved

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> LiveTip:
        """Create a branch, or continue the log of a deleted one; `main` creates the dataset.

        Raises AlreadyExistsError, InvalidInputError for a bad name.
        """
        check_ref_name(branch, "branch", MAX_NAME_BYTES)
        taken = f"branch {branch!r} exists already"
        created = [LiveTip(branch, 0, snapshot_id)]

        def change(state: State) -> State:
            tip = state.tip(branch)
            if isinstance(tip, LiveTip):
                raise AlreadyExistsError(taken)
            self._refuse_taken(state, branch, "branch")
            created[0] = LiveTip(branch, 0 if tip is None else tip.sequence + 1, snapshot_id)
            return self._moved(state, branch, "branch", snapshot_id)

        self._swap(change, may_create=branch == MAIN)
        return created[0]

    def prepare_branch(self, branch: str) -> Callable[[SnapshotId], LiveTip]:
        """Read the state; what it says is checked when the branch is created."""
        check_ref_name(branch, "branch", MAX_NAME_BYTES)
        self.read()
        return lambda snapshot_id: self.create_branch(branch, snapshot_id)

    def prepare_tag(self, name: str) -> Callable[[SnapshotId], Callable[[], None]]:
        """Read the state; what it says is checked when the tag is created."""
        check_ref_name(name, "tag", MAX_NAME_BYTES)
        self.read()
        return lambda snapshot_id: self.create_tag(name, snapshot_id)

    def create_main(self, snapshot_id: SnapshotId) -> None:
        """Publish a new dataset, where nothing was before; raises AlreadyExistsError."""
        ensure_conditional_replace(self._storage)
        first = State.first(self._data_root() or "")
        if not self._replace(self._moved(first, MAIN, "branch", snapshot_id), None):
            self.create_branch(MAIN, snapshot_id)

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> Callable[[], None]:
        """Create a tag. Raises AlreadyExistsError, InvalidInputError for a bad name.

        Returns how to undo it: only for a caller that finds that the snapshot is gone.
        """
        check_ref_name(name, "tag", MAX_NAME_BYTES)

        def change(state: State) -> State:
            if state.tag(name) is not None:
                raise AlreadyExistsError(f"tag {name!r} exists already; tags never change")
            self._refuse_taken(state, name, "tag")
            return self._moved(state, name, "tag", snapshot_id)

        self._swap(change)

        def without(state: State) -> State:
            is_ours = state.tag(name) == snapshot_id
            return self._moved(state, name, "tag", None) if is_ours else state

        return lambda: self._swap(without)

    def check_names(self, branches: Collection[str], tags: Collection[str]) -> None:
        """Raise InvalidInputError unless all of these names could be given, side by side."""
        for name in (*branches, *tags):
            check_ref_name(name, "branch or tag", MAX_NAME_BYTES)
        shared = sorted(set(branches) & set(tags))
        if shared:
            raise InvalidInputError(
                f"branches and tags of a dataset share their names, and {shared[0]!r} is both"
            )

    def create_all(
        self,
        branches: Mapping[str, SnapshotId],
        tags: Mapping[str, SnapshotId],
        snapshots: Iterable[Snapshot] = (),
        config: bytes | None = None,
        *,
        is_new: bool = False,  # noqa: ARG002 (one that is there is another's)
    ) -> None:
        """Publish a dataset with its branches and tags, in one swap."""
        del snapshots, config

        def change(state: State) -> State:
            tips = {name: state.tip(name) for name in branches}
            moved: dict[str, SnapshotId | None] = {
                name: branches[name]
                for name in sorted(branches, key=lambda name: name != MAIN)
                if (tip := tips[name]) is None or tip.snapshot_id != branches[name]
            }
            if moved:
                state = self._moved_all(state, moved, "branch")
            new_tags = {name: each for name, each in tags.items() if state.tag(name) != each}
            for tag in new_tags.keys() - without_twins(new_tags.keys(), state.all_names()):
                self._refuse_taken(state, tag, "tag")
                twins = twins_of(tag, new_tags.keys())
                if twins:
                    raise _differs("tag", tag, twins[0])
            return self._moved_all(state, new_tags, "tag") if new_tags else state

        self._swap(change, may_create=True)

    def forget(
        self, snapshots: Collection[SnapshotId], reached: Collection[SnapshotId] = ()
    ) -> None:
        """Take snapshots from the list that nothing refers to any more (H-12)."""
        del reached
        state = self.read()
        if state is not None and any(state.lists(each) for each in snapshots):
            self._swap(lambda state: state.without_snapshots(set(snapshots)))

    def inform(self, codec: Codec) -> None:
        """Let a codec know whether structure files have the wide schema by now."""
        from icefloe.formats.dataset.codec import DatasetCodec

        if isinstance(codec, DatasetCodec):
            self._schema = codec.schema
            if self._latest is not None:
                self._schema.is_wide |= self._latest.is_wide

    def _moved(self, state: State, name: str, kind: RefType, target: SnapshotId | None) -> State:
        return self._moved_all(state, {name: target}, kind)

    def _moved_all(
        self, state: State, targets: Mapping[str, SnapshotId | None], kind: RefType
    ) -> State:
        added: dict[SnapshotId, Snapshot] = {}
        is_wide = False
        for target in targets.values():
            if target is not None and target not in added:
                unlisted, wide = self._unlisted(state, target, added)
                added.update((each.id, each) for each in unlisted)
                is_wide |= wide
        return state.with_refs(targets, kind, list(added.values()), is_wide=is_wide)

    def _unlisted(
        self, state: State, snapshot_id: SnapshotId, added: Container[SnapshotId]
    ) -> tuple[list[Snapshot], bool]:
        """A snapshot and its ancestors, oldest first, as far as they are not listed or `added`.

        Also says whether the structure file of one of them has the wide schema.
        """
        from icefloe.formats.dataset.codec import DatasetCodec
        from icefloe.formats.dataset.parquet_files import has_wide_schema

        codec, layout = DatasetCodec(), LAYOUT
        snapshots: list[Snapshot] = []
        is_wide = False
        missing: SnapshotId | None = snapshot_id
        while missing is not None and missing not in added and not state.lists(missing):
            written = self._written()
            if written is not None and written.id == missing:
                is_wide = is_wide or (self._schema is not None and self._schema.is_wide)
                snapshots.append(written)
                missing = written.parent_id
                continue
            key = layout.snapshot(missing)
            try:
                data = self._storage.get(key)
            except ObjectNotFoundError:
                break  # expired
            snapshot = codec.decode_snapshot(data, missing, key)
            is_wide = is_wide or has_wide_schema(data, key)
            snapshots.append(msgspec.structs.replace(snapshot, own_file=sum_of(data)))
            missing = snapshot.parent_id
        return snapshots[::-1], is_wide

    @staticmethod
    def _refuse_taken(state: State, name: str, what: str) -> None:
        """Refuse a name that a reference has, or one that is hard to tell from it (R0-42, H-25)."""
        names = state.all_names()
        if name in names:
            raise AlreadyExistsError(
                f"{name!r} is taken: branches and tags of a dataset share their names"
            )
        for other in twins_of(name, names):
            raise _differs(what, name, other)

    def _swap(self, change: Callable[[State], State], *, may_create: bool = False) -> None:
        """Replace the state file by its successor, and retry if another writer was first.

        `change` raises if it must not be done, and returns the same state if it is done already;
        it is asked again for each state.
        """
        ensure_conditional_replace(self._storage)
        if self._swap_known(change):
            return
        for attempt in range(_MAX_TRIES):
            state, version = self._read_version()
            if state is None:
                if not may_create:
                    raise FormatError(f"{STATE_KEY} is missing", STATE_KEY)
                state = State.first(self._data_root() or "")
            successor = change(state)
            if successor is state or self._replace(successor, version):
                return
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.002 * 2 ** min(attempt, 10))))
        raise ConflictError(f"{STATE_KEY} was swapped by others {_MAX_TRIES} times in a row")

    def _swap_known(self, change: Callable[[State], State]) -> bool:
        """Replace the state that was seen last, without reading it again; False if that is old.

        What an old state would refuse, or has already, says nothing: the newest one decides.
        """
        if self._swappable is None:
            return False
        state, version = self._swappable
        try:
            successor = change(state)
        except IcefloeError:
            return False
        return successor is not state and self._replace(successor, version)

    def _replace(self, successor: State, version: ObjectVersion | None) -> bool:
        """Swap a state in, unless the state file has another version by now."""
        self._swappable = None
        try:
            # Another client may be about to make the same change.
            swapped = self._storage.replace(STATE_KEY, signed(successor.encode()), version)
        except ConflictError:
            return False
        self._swappable = successor, swapped
        return True

    def _read_version(self) -> tuple[State | None, ObjectVersion | None]:
        try:
            data, version = self._storage.get_with_version(STATE_KEY)
        except ObjectNotFoundError:
            self._swappable = None
            return None, None
        state = self._parse(data)
        self._swappable = state, version
        return state, version


class _StateView(StateRefs):
    """References as they were when they were first read here."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._state: State | None = None

    def read(self) -> State | None:
        """The state of the dataset; None if there is none."""
        if self._state is None:
            self._state = super().read()
        return self._state


def _tip_in(state: State, branch: str) -> BranchTip | None:
    """The tip of a branch; without references, `main` is the snapshot listed last."""
    return state.tip(branch) or (state.latest() if branch == MAIN else None)


def _differs(what: str, name: str, other: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"{what} {name!r} differs from {other!r} only in case or accents")
