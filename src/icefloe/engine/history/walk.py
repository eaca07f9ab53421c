"""The history of a repository: snapshots by name and time, their ancestors, and differences."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from icefloe.changes.compare import State, compare_nodes
from icefloe.changes.logs import brings_back, combine
from icefloe.engine.history.expired_parents import Cuts
from icefloe.engine.info import Diff
from icefloe.errors import (
    FormatError,
    InvalidInputError,
    InvalidTypeError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.model.bounded_text import shortened
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.nodes import NodeTable
from icefloe.model.record import Record
from icefloe.model.snapshot import MOVED_CHUNKS, Snapshot
from icefloe.model.transaction_log import TransactionLog
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.formats.port import Refs
    from icefloe.model.snapshot import SnapshotStub
    from icefloe.objects.metadata import MetadataFiles

    Lookup = Callable[[str], SnapshotId | None]

MAX_READ_AHEAD = 16
"""How many ancestors are read at the same time while walking through them."""

_STEPS = re.compile(r"(?P<name>.+?)(?P<steps>(?:[~^]\d{0,12}|@\{[^}]*\})+)", re.DOTALL)
_MAX_VERSION_LENGTH = 1_000
"""Longer texts are not searched for steps, which takes quadratic time."""
_STEP = re.compile(r"~(?P<count>\d*)|(?P<parent>\^)(?P<which>\d*)|@\{(?P<when>[^}]*)\}")


class Revision(Record, frozen=True):
    """A snapshot by name, as in git: by branch, by tag or by id. Exactly one field is set."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None

    def check(self, what: str = "branch, tag, or snapshot_id") -> None:
        """Raise InvalidInputError unless exactly one field is set."""
        names = [v for v in (self.branch, self.tag, self.snapshot_id) if v is not None]
        for name in names:
            if not isinstance(name, str):
                raise InvalidTypeError(f"{what} is given as a string, found {name!r}")
        if len(names) != 1:
            raise InvalidInputError(f"Must provide one of {what}; found {len(names)} of them")


def check_new_name(name: object, what: str) -> None:
    """Raise InvalidInputError if the name of a new branch or tag looks like `main~3`.

    Existing references with such names can be read: an exact name takes precedence.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"the name of a {what} is a string, found {name!r}")
    if _with_steps(name):
        raise InvalidInputError(
            f"{name!r} cannot be the name of a {what}: it means a version, as `main~3`, `main^` "
            "and `main@{2026-01-31}` do; choose a name that does not end like these"
        )


def _with_steps(name: str) -> re.Match[str] | None:
    """A name and the steps that it ends with, as in `main~3`; None if there are no steps."""
    return None if len(name) > _MAX_VERSION_LENGTH else _STEPS.fullmatch(name)


class History:
    """The snapshots of a repository and how they descend from each other."""

    def __init__(
        self,
        files: MetadataFiles,
        refs: Refs,
        cuts: Cuts | None = None,
        read_ahead: int = MAX_READ_AHEAD,
    ) -> None:
        """Take where snapshots, references and the cuts of expiry are read from."""
        self._read_ahead = read_ahead
        self.files = files
        self.refs = refs
        self.cuts = Cuts(files.storage) if cuts is None else cuts

    # --- names of versions

    def resolve(self, revision: Revision, as_of: datetime | None = None) -> SnapshotId:
        """Find the snapshot that a revision names.

        Names may end in steps, as in git: `main~3` is three commits back, `main@{2026-01-31}` is
        the newest commit up to that moment. A reference with exactly that name takes precedence.

        Raises:
            RefNotFoundError: If there is no such branch or tag.
            SnapshotNotFoundError: If the history does not go back that far.
        """
        revision.check()
        if as_of is not None:
            _check_moment(as_of)
            if revision.branch is None:
                raise InvalidInputError("as_of must be given together with a branch")
        name, lookup = self._lookup_for(revision)
        target = lookup(name)
        if target is None:
            target = self._resolve_steps(name, lookup)
        if target is None:
            raise RefNotFoundError(f"ref not found `{name}`", name)
        return target if as_of is None else self.as_of(target, as_of)

    def _lookup_for(self, revision: Revision) -> tuple[str, Lookup]:
        if revision.branch is not None:
            return revision.branch, self._branch
        if revision.tag is not None:
            return revision.tag, self.refs.tag
        assert revision.snapshot_id is not None
        return revision.snapshot_id, self._any

    def _branch(self, name: str) -> SnapshotId | None:
        tip = self.refs.tip(name)
        return None if tip is None else tip.snapshot_id

    def _any(self, name: str) -> SnapshotId | None:
        """A snapshot by its id, or by the name of a branch or tag."""
        found = self.refs.snapshot_id(name) or self._branch(name) or self.refs.tag(name)
        if found is None and _STEPS.fullmatch(name) is None:
            raise SnapshotNotFoundError(
                f"invalid snapshot id: `{name}`; expected 20 characters of base 32, "
                "or a branch or tag",
                name,
            )
        return found

    def _resolve_steps(self, name: str, lookup: Lookup) -> SnapshotId | None:
        match = _with_steps(name)
        if match is None:
            return None
        target = lookup(match["name"])
        if target is None:
            return None
        for step in _STEP.finditer(match["steps"]):
            if step["when"] is not None:
                target = self.as_of(target, parse_moment(step["when"]))
            elif step["parent"]:
                if step["which"] not in {"", "1"}:
                    raise InvalidInputError(f"{name!r}: a snapshot has one parent")
                target = self.ancestor(target, 1, name)
            else:
                target = self.ancestor(target, int(step["count"] or 1), name)
        return target

    # --- walking

    def stubs(self, snapshot_id: SnapshotId) -> Iterator[SnapshotStub]:
        """A snapshot and its ancestors, newest first, reading as few files as possible."""
        cuts = self.cuts.all()
        for stub in self.recorded_stubs(snapshot_id):
            yield stub
            root = self.cuts.root_behind(stub.id) if stub.id in cuts else None
            if root is not None:
                if root != stub.id:
                    yield self.files.read_snapshot(root).stub()
                return

    def recorded_stubs(self, snapshot_id: SnapshotId) -> Iterator[SnapshotStub]:
        """Like `stubs`, but as the snapshots themselves record it, including expired ones.

        Raises:
            SnapshotNotFoundError: Where the next snapshot was collected.
        """
        snapshot = self.files.read_snapshot(snapshot_id)
        seen = {snapshot.id}
        yield snapshot.stub()
        while (parent_id := snapshot.parent_id) is not None:
            known = snapshot.history
            for stub in known:
                _refuse_cycle(stub.id, seen)
                yield stub
            if known:
                if len(known) >= snapshot.total_parents:
                    return
                snapshot = self.files.read_snapshot(known[-1].id)
                continue
            # A layout whose snapshots record their parent only.
            parent = self.find(parent_id)
            if parent is None:
                return
            _refuse_cycle(parent_id, seen)
            yield parent.stub()
            snapshot = parent

    def ancestry(self, snapshot_id: SnapshotId) -> Iterator[Snapshot]:
        """A snapshot and its ancestors, newest first."""
        cuts = self.cuts.all()
        for snapshot in self._recorded_ancestry(snapshot_id, cuts):
            if snapshot.id not in cuts:
                yield snapshot
                continue
            shown = self.with_shown_parent(snapshot)
            yield shown
            if shown.parent_id is not None:
                yield self.files.read_snapshot(shown.parent_id)
            return

    def with_shown_parent(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot with the parent that it has after expiry."""
        root = self.cuts.root_behind(snapshot.id)
        if root is None:
            return snapshot
        return msgspec.structs.replace(
            snapshot,
            parent_id=None if root == snapshot.id else root,
            history=(),
            total_parents=1,
            parent_file=None,
        )

    def _recorded_ancestry(
        self, snapshot_id: SnapshotId, cuts: frozenset[SnapshotId]
    ) -> Iterator[Snapshot]:
        """A snapshot and its ancestors up to the first cut."""
        snapshot = self.files.read_snapshot(snapshot_id)
        seen = {snapshot.id}
        yield snapshot
        read_ahead = 1
        while snapshot.parent_id is not None and snapshot.id not in cuts:
            known = [stub.id for stub in snapshot.history] or [snapshot.parent_id]
            ids = _up_to_cut(known[:read_ahead], cuts)
            read_ahead = min(2 * read_ahead, self._read_ahead)
            for ancestor_id, ancestor in zip(ids, self.files.find_snapshots(ids), strict=True):
                if ancestor is None:
                    yield from self._instead_of_missing(snapshot, ancestor_id)
                    return
                _refuse_cycle(ancestor_id, seen)
                yield ancestor
                snapshot = ancestor

    def _instead_of_missing(self, child: Snapshot, missing: SnapshotId) -> Iterator[Snapshot]:
        """The rest of a history whose next snapshot is missing; raises if it is damaged."""
        root = self.cuts.root_behind(child.id)
        if root is not None:
            # A storage that cannot list, or a cut that was made in the meantime.
            if root != child.id:
                yield self.files.read_snapshot(root)
            return
        if child.history and len(child.history) >= child.total_parents:
            first = child.history[-1]
            if _is_only_mentioned(first, missing):
                yield _as_mentioned(first)
                return
        raise SnapshotNotFoundError(
            f"snapshot {missing} is missing, although {child.id} descends from it; "
            "the repository is damaged",
            str(missing),
        )

    def find(self, snapshot_id: SnapshotId) -> Snapshot | None:
        """Read a snapshot; None if it does not exist."""
        return self.files.find_snapshot(snapshot_id)

    def ancestor(self, snapshot_id: SnapshotId, steps: int, name: str) -> SnapshotId:
        """The ancestor a number of commits back."""
        for back, stub in enumerate(self.stubs(snapshot_id)):
            if back == steps:
                return stub.id
        raise SnapshotNotFoundError(
            f"{name!r} goes back {steps} commits, but there are only {back}", name
        )

    def as_of(self, snapshot_id: SnapshotId, moment: datetime) -> SnapshotId:
        """The newest of a snapshot and its ancestors that was written at or before a moment."""
        _check_moment(moment)
        oldest = None
        for stub in self.stubs(snapshot_id):
            if stub.written_at <= moment:
                return stub.id
            oldest = stub
        raise SnapshotNotFoundError(
            f"no snapshot was written up to {moment.isoformat()}; the first is of "
            f"{oldest.written_at.isoformat() if oldest else 'never'}"
        )

    def between(self, older: SnapshotId, newer: SnapshotId) -> list[SnapshotId] | None:
        """Snapshots after `older` up to `newer`, oldest first; None unless `older` is an ancestor.

        Includes expired ones that still exist: a session must be able to rebase over them.
        """
        path: list[SnapshotId] = []
        with contextlib.suppress(SnapshotNotFoundError):
            for stub in self.recorded_stubs(newer):
                if stub.id == older:
                    return path[::-1]
                path.append(stub.id)
        return None

    # --- differences

    def log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """What a commit changed, from its log or, in formats without logs, by comparison.

        Where there is nothing to compare with, everything in the snapshot counts as new.
        """
        log = self.known_log(snapshot_id)
        if log is not None:
            return log
        return self._all_new(self.files.read_snapshot(snapshot_id))

    def known_log(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        """What a commit changed; None if it must be compared with a parent that was collected."""
        log = self.files.read_transaction_log(snapshot_id)
        if log is not None:
            return log
        snapshot = self.files.read_snapshot(snapshot_id)
        if snapshot.parent_id is None:
            return self._all_new(snapshot)
        parent = self.find(snapshot.parent_id)
        return None if parent is None else compared_step(self.files, parent, snapshot)

    def _all_new(self, snapshot: Snapshot) -> TransactionLog:
        state = _state(self.files, snapshot)
        return compare_nodes(state._replace(nodes=()), state)

    def replaceable(self, snapshot: Snapshot) -> tuple[Snapshot, TransactionLog]:
        """The parent of the commit that amends a snapshot, and the changes since that parent."""
        parent_id = self.with_shown_parent(snapshot).parent_id
        if parent_id is None:
            raise SessionStateError("the first snapshot of a repository cannot be amended")
        log = self.changes_between(parent_id, snapshot.id)
        assert log is not None
        return self.files.read_snapshot(parent_id), log

    def shows(self, older: SnapshotId, newer: SnapshotId) -> bool:
        """Whether a snapshot is an ancestor of another and has not expired."""
        return any(stub.id == older for stub in self.stubs(newer))

    def changes_between(self, older: SnapshotId, newer: SnapshotId) -> TransactionLog | None:
        """What the commits after `older` up to `newer` changed; None unless it is an ancestor."""
        path = self.between(older, newer)
        if path is None:
            # The first snapshot stays an ancestor when those after it are gone.
            return self._compared(older, newer) if self.shows(older, newer) else None
        log = self.combined_log(path)
        return self._compared(older, newer) if log is None else log

    def combined_log(self, path: list[SnapshotId]) -> TransactionLog | None:
        """The logs of consecutive commits, oldest first, as one; None if they are incomplete."""
        try:
            logs = self.files.in_parallel(self.log, path)
        except SnapshotNotFoundError:
            # Expired snapshots between the two were collected.
            return None
        return None if brings_back(logs) else combine(logs)

    def _compared(self, older: SnapshotId, newer: SnapshotId) -> TransactionLog:
        """What differs between two snapshots, by comparing them."""
        before, after = self.files.read_snapshot(older), self.files.read_snapshot(newer)
        return compared(self.files, before, after)

    def difference(self, before: Snapshot, after: Snapshot) -> TransactionLog:
        """What differs between any two snapshots: from logs if one descends from the other."""
        if before.id == after.id:
            return TransactionLog()
        log = self.changes_between(before.id, after.id)
        return compared(self.files, before, after) if log is None else log

    def common_ancestor(self, one: SnapshotId, other: SnapshotId) -> SnapshotId | None:
        """The newest snapshot that is, or is an ancestor of, both."""
        ancestors = {stub.id for stub in self.stubs(one)}
        return next((stub.id for stub in self.stubs(other) if stub.id in ancestors), None)

    def diff(self, older: SnapshotId, newer: SnapshotId) -> Diff:
        """Differences between two snapshots that have a common ancestor."""
        if older != newer and self.common_ancestor(older, newer) is None:
            raise InvalidInputError(
                f"the ancestry of {newer} doesn't include {older}, nor anything that it descends "
                "from: a diff is between two snapshots of one history"
            )
        before, after = self.files.read_snapshot(older), self.files.read_snapshot(newer)
        return Diff(self.difference(before, after), before.nodes, after.nodes)


def _up_to_cut(ids: list[SnapshotId], cuts: frozenset[SnapshotId]) -> list[SnapshotId]:
    """Ancestors, newest first, up to the first one after which the history is cut."""
    for place, snapshot_id in enumerate(ids):
        if snapshot_id in cuts:
            return ids[: place + 1]
    return ids


def _refuse_cycle(snapshot_id: SnapshotId, seen: set[SnapshotId]) -> None:
    if snapshot_id in seen:
        raise FormatError(
            f"snapshot {snapshot_id} is an ancestor of itself; the repository is damaged"
        )
    seen.add(snapshot_id)


def _check_moment(moment: object) -> None:
    # To Python a zone without an offset is naive, too.
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidTypeError(f"as_of is a datetime with a timezone, found {moment!r}")


def _is_only_mentioned(first: SnapshotStub, missing: SnapshotId) -> bool:
    """Whether the missing snapshot is a first one that never had a file.

    That is so in repositories of the earliest layouts; in ours it has a well-known id.
    """
    return first.id == missing != FIRST_SNAPSHOT_ID


def _as_mentioned(first: SnapshotStub) -> Snapshot:
    """The first snapshot of a repository, of which there is nothing but a stub."""
    return Snapshot(
        id=first.id,
        parent_id=None,
        written_at=first.written_at,
        started_at=first.written_at,
        message=first.message,
        metadata={},
        total_parents=0,
        history=(),
        manifests=(),
        attribute_files=(),
        nodes=NodeTable.of([]),
    )


def parse_moment(text: str) -> datetime:
    """Parse a moment in ISO 8601; UTC by default, and a date alone means the end of that day."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"expected a date or time in ISO 8601, such as 2026-01-31 or 2026-01-31T12:00Z, "
            f"found {shortened(text)!r}"
        ) from None
    if len(text.strip()) == len("2026-01-31"):
        moment = moment.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def compared_step(files: MetadataFiles, parent: Snapshot, snapshot: Snapshot) -> TransactionLog:
    """What changed from a snapshot to its child, by comparing them."""
    log = compared(files, parent, snapshot)
    if snapshot.metadata.get(MOVED_CHUNKS):
        # A compaction: the chunks are elsewhere, with the same bytes.
        log = msgspec.structs.replace(log, updated_chunks={})
    return log


def compared(files: MetadataFiles, before: Snapshot, after: Snapshot) -> TransactionLog:
    """What differs between two snapshots, by comparing them."""
    return compare_nodes(_state(files, before), _state(files, after))


def _state(files: MetadataFiles, snapshot: Snapshot) -> State:
    chunks = SnapshotChunks(files, snapshot).table
    return State(list(snapshot.nodes), chunks, files.documents_of(snapshot))
