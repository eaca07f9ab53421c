"""The history of a repository: snapshots by name and time, their ancestors, and differences."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime
from functools import cache, cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import msgspec

from icefloe.errors import (
    FormatError,
    InvalidInputError,
    InvalidTypeError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.model.bounded_text import described, shortened
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.nodes import NodeTable
from icefloe.model.record import Record
from icefloe.model.snapshot import MOVED_CHUNKS, Snapshot
from icefloe.objects.expected import Referrer
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.storage.concurrency import together

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from icefloe.changes.compare import ReadableNodes
    from icefloe.engine.history.expired_parents import Cuts
    from icefloe.engine.info import Diff
    from icefloe.formats.port import Refs
    from icefloe.model.ids import ManifestId
    from icefloe.model.manifest import ManifestFileInfo
    from icefloe.model.snapshot import SnapshotStub
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.objects.metadata import MetadataFiles

    Lookup = Callable[[str], SnapshotId | None]

_FIRST_READ_AHEAD = 4
MAX_READ_AHEAD = 64
"""How many ancestors are read at the same time while walking through them."""

_MAX_VERSION_LENGTH = 1_000
"""Longer texts are not searched for steps, which takes quadratic time."""


@cache
def _steps() -> re.Pattern[str]:
    """Compiled when a name has steps, which few have."""
    return re.compile(r"(?P<name>.+?)(?P<steps>(?:[~^]\d{0,12}|@\{[^}]*\})+)", re.DOTALL)


@cache
def _step() -> re.Pattern[str]:
    return re.compile(r"~(?P<count>\d*)|(?P<parent>\^)(?P<which>\d*)|@\{(?P<when>[^}]*)\}")


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
                raise InvalidTypeError(f"{what} is given as a string, found {described(name)}")
        if len(names) != 1:
            raise InvalidInputError(f"Must provide one of {what}; found {len(names)} of them")


def check_new_name(name: object, what: str) -> None:
    """Raise InvalidInputError if the name of a new branch or tag looks like `main~3`.

    Existing references with such names can be read: an exact name takes precedence.
    """
    if not isinstance(name, str):
        raise InvalidTypeError(f"the name of a {what} is a string, found {described(name)}")
    if _with_steps(name):
        raise InvalidInputError(
            f"{name!r} cannot be the name of a {what}: it means a version, as `main~3`, `main^` "
            "and `main@{2026-01-31}` do; choose a name that does not end like these"
        )


def _with_steps(name: str) -> re.Match[str] | None:
    """A name and the steps that it ends with, as in `main~3`; None if there are no steps."""
    return None if len(name) > _MAX_VERSION_LENGTH else _steps().fullmatch(name)


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
        self._cuts = cuts

    @cached_property
    def cuts(self) -> Cuts:
        """Where expiry cut the history; sessions that only read data need not know."""
        if self._cuts is not None:
            return self._cuts
        from icefloe.engine.history.expired_parents import Cuts

        return Cuts(self.files.storage)

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
            from icefloe.engine.history.missing_names import missing_branch, missing_tag

            raise (missing_branch if revision.tag is None else missing_tag)(self.refs, name)
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
        """A snapshot by its id or the beginning of it, or by the name of a branch or tag."""
        snapshot_id = self.refs.snapshot_id(name) or self._branch(name) or self.refs.tag(name)
        if snapshot_id is not None:
            return snapshot_id
        from icefloe.engine.history.newest import SHORTEST_ID, find_short_id, is_short_id

        if is_short_id(name):
            snapshot_id = find_short_id(self, name)
        if snapshot_id is None and _steps().fullmatch(name) is None:
            from icefloe.model.spelling import suggestion

            near = suggestion(name, (*self.refs.branches(), *self.refs.tags()))
            raise SnapshotNotFoundError(
                f"invalid snapshot id: `{shortened(name)}`; expected 20 characters of base 32 or "
                f"at least the first {SHORTEST_ID} of them, or a branch or tag{near}",
                name,
            )
        return snapshot_id

    def _resolve_steps(self, name: str, lookup: Lookup) -> SnapshotId | None:
        match = _with_steps(name)
        if match is None:
            return None
        target = lookup(match["name"])
        if target is None:
            return None
        from icefloe.model.moments import parse_moment

        for step in _step().finditer(match["steps"]):
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

    def stubs(
        self, snapshot_id: SnapshotId, known_cuts: frozenset[SnapshotId] | None = None
    ) -> Iterator[SnapshotStub]:
        """A snapshot and its ancestors, newest first, reading as few files as possible."""
        listed = self.refs.lineage(snapshot_id)
        if listed is not None:
            yield from listed
            return
        cuts = self.cuts.all() if known_cuts is None else known_cuts
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
        listed = self.refs.lineage(snapshot_id, with_expired=True)
        if listed is not None:
            yield from listed
            return
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

    def ancestry(
        self,
        snapshot_id: SnapshotId,
        up_to: Collection[SnapshotId] = (),
        known_cuts: frozenset[SnapshotId] | None = None,
    ) -> Iterator[Snapshot]:
        """A snapshot and its ancestors, newest first; not beyond the first of some snapshots."""
        cuts = self.cuts.all() if known_cuts is None else known_cuts
        for snapshot in self._recorded_ancestry(snapshot_id, cuts, up_to):
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
        if self.files.format.is_official:  # expiry gives it that parent itself
            return self._reread(snapshot.id)
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
        self,
        snapshot_id: SnapshotId,
        cuts: frozenset[SnapshotId],
        last: Collection[SnapshotId],
    ) -> Iterator[Snapshot]:
        """A snapshot and its ancestors up to the first cut, or the first of some others."""
        snapshot = self.files.read_snapshot(snapshot_id)
        seen = {snapshot.id}
        # Asked before snapshots are handed out: callers may add to these what they get.
        is_last = snapshot.id in last
        yield snapshot
        is_local = self.files.storage.capabilities.reads_are_immediate
        limit = 1 if is_local else self._read_ahead
        read_ahead = min(_FIRST_READ_AHEAD, limit)
        while snapshot.parent_id is not None and snapshot.id not in cuts and not is_last:
            known = [stub.id for stub in islice(snapshot.history, read_ahead)]
            ids = up_to_cut(up_to_cut(known or [snapshot.parent_id], cuts), last)
            is_last = ids[-1] in last
            read_ahead = min(4 * read_ahead, limit)
            for ancestor_id, ancestor in zip(ids, self._find_each(ids), strict=True):
                if ancestor is None:
                    yield from self.instead_of_missing(snapshot, ancestor_id, seen)
                    return
                _refuse_cycle(ancestor_id, seen)
                yield ancestor
                snapshot = ancestor

    def _find_each(self, snapshot_ids: list[SnapshotId]) -> Iterable[Snapshot | None]:
        """Read snapshots, at the same time unless one is damaged: it hides none before it."""
        try:
            return self.files.find_snapshots(snapshot_ids)
        except FormatError:
            return map(self.find, snapshot_ids)

    def instead_of_missing(
        self, child: Snapshot, missing: SnapshotId, walked: Collection[SnapshotId] = ()
    ) -> Iterator[Snapshot]:
        """The rest of a history whose next snapshot is missing; raises if it is damaged.

        `walked` are the snapshots of the history up to the child of the missing one: an expiry may
        have cut it after any of them in the meantime, and a garbage collection may be deleting the
        rest.
        """
        if self.files.format.is_official:
            # Another process may have expired it, and given the child another parent.
            shown = self._reread(child.id)
            if shown.parent_id is not None and shown.parent_id != missing:
                yield from self._recorded_ancestry(shown.parent_id, frozenset(), frozenset())
                return
        # A storage that cannot list, or a cut that was made in the meantime.
        last, root = child.id, self.cuts.root_behind(child.id)
        if root is None and (newer := self.cuts.reread().intersection(walked)):
            last = min(newer)
            root = self.cuts.root_behind(last)
        if root is not None:
            if root != last:
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

    def _reread(self, snapshot_id: SnapshotId) -> Snapshot:
        """A snapshot with the parent that its file, or the list of snapshots, has now."""
        if self.refs.lists_snapshots:
            self.refs.listed_history(snapshot_id, reread=True)
            return self.files.read_snapshot(snapshot_id)
        return self.files.read_snapshot(snapshot_id, reread=True)

    def merged_by(self, snapshot_ids: list[SnapshotId]) -> dict[SnapshotId, tuple[SnapshotId, ...]]:
        """The tips of other branches that snapshots merged; reads all of these snapshots."""

        def merged(snapshot_id: SnapshotId) -> tuple[SnapshotId, ...]:
            try:
                return self.files.read_snapshot(snapshot_id).merged_ids()
            except SnapshotNotFoundError:
                return ()  # old layouts mention a first snapshot that has no file

        merges = self.files.in_parallel(merged, snapshot_ids)
        return dict(zip(snapshot_ids, merges, strict=True))

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
        log = self.own_log(snapshot_id)
        earlier = self.refs.earlier_logs(snapshot_id)
        if log is None or (earlier is not None and not earlier):
            return log
        if earlier is None:
            snapshot = self.files.read_snapshot(snapshot_id)
            is_whole = self.has_whole_log(snapshot)
            return log if is_whole else self._compared_with_parent(snapshot_id)
        # Commits between it and its parent expired. If something of them is gone, compare.
        from icefloe.changes.logs import brings_back, combine

        before = self.files.in_parallel(self.files.read_transaction_log, list(earlier))
        logs = [each for each in before if each is not None]
        if len(logs) == len(earlier) and not brings_back([*logs, log]):
            return combine([*logs, log])
        return self._compared_with_parent(snapshot_id)

    def has_whole_log(self, snapshot: Snapshot, log: TransactionLog | None = None) -> bool:
        """Whether the log of a commit, which is read if not given, has all that differs.

        It does not where expiry gave it the first snapshot as its parent, or a migration after an
        expiry. That has no nodes, so that a complete log lists all nodes of the commit as new, and
        none as deleted, updated or moved.
        """
        if self.refs.earlier_logs(snapshot.id):
            return False
        if snapshot.parent_id != FIRST_SNAPSHOT_ID:
            return True
        log = self.files.read_transaction_log(snapshot.id) if log is None else log
        if log is None:
            return True
        had_nodes = (
            log.deleted_groups
            or log.deleted_arrays
            or log.updated_groups
            or log.updated_arrays
            or log.moves
        )
        new = log.new_groups | log.new_arrays
        if not had_nodes and new >= set(snapshot.nodes.node_ids()):
            return True
        # Official programs leave no cut. Elsewhere, a log that lacks something is damaged without.
        is_official = self.files.format.is_official
        return not is_official and self.cuts.root_behind(snapshot.id) is None

    def own_log(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        """The same without what commits changed that expired between it and its parent."""
        log = self.files.read_transaction_log(snapshot_id)
        return self._compared_with_parent(snapshot_id) if log is None else log

    def _compared_with_parent(self, snapshot_id: SnapshotId) -> TransactionLog | None:
        snapshot = self.files.read_snapshot(snapshot_id)
        if snapshot.parent_id is None:
            return self._all_new(snapshot)
        parent = self.find(snapshot.parent_id)
        return None if parent is None else compared_step(self.files, parent, snapshot)

    def _all_new(self, snapshot: Snapshot) -> TransactionLog:
        from icefloe.changes.compare import compare_nodes

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

    def changes_between(
        self, older: SnapshotId, newer: SnapshotId, newest_log: TransactionLog | None = None
    ) -> TransactionLog | None:
        """What the commits after `older` up to `newer` changed; None unless it is an ancestor.

        `newest_log` is that of `newer` itself, where it was read.
        """
        is_near = self.files.storage.capabilities.reads_are_immediate
        if is_near or self.files.has_snapshot(newer):
            path = self.between(older, newer)
        else:
            # Most often all that has to be read.
            path, newest_log = together(
                self.files.storage,
                lambda: self.between(older, newer),
                lambda: self.files.read_transaction_log(newer),
            )
        if path is None:
            # The first snapshot stays an ancestor when those after it are gone.
            return self._compared(older, newer) if self.shows(older, newer) else None
        log = self.combined_log(older, path, {newer: newest_log} if newest_log is not None else {})
        return self._compared(older, newer) if log is None else log

    def combined_log(
        self,
        older: SnapshotId,
        path: list[SnapshotId],
        known: Mapping[SnapshotId, TransactionLog] | None = None,
    ) -> TransactionLog | None:
        """The logs of all commits after one, oldest first, as one; None if they are incomplete.

        Those that are `known` are not read again.
        """
        from icefloe.changes.logs import brings_back, combine

        have = known or {}
        try:
            self._fetch_to_compare(path)
            logs = self.files.in_parallel(lambda each: have.get(each) or self._step(each), path)
        except SnapshotNotFoundError:
            # Expired snapshots between the two were collected.
            return None
        if older == FIRST_SNAPSHOT_ID and path:
            # A migration after an expiry records the first snapshot as the parent.
            oldest = self.find(path[0])
            if oldest is None or not self.has_whole_log(oldest, logs[0]):
                return None
        return None if brings_back(logs) else combine(logs)

    def _step(self, snapshot_id: SnapshotId) -> TransactionLog:
        # Where they are recorded, commits that expired are steps of their own.
        is_recorded = self.refs.earlier_logs(snapshot_id) is not None
        log = self.own_log(snapshot_id) if is_recorded else self.known_log(snapshot_id)
        return self._all_new(self.files.read_snapshot(snapshot_id)) if log is None else log

    def _fetch_to_compare(self, path: list[SnapshotId]) -> None:
        """Read what comparing consecutive commits will need at the same time, where that helps."""
        if self.files.format.keeps_logs or self.files.storage.capabilities.reads_are_immediate:
            return
        found = self.files.find_snapshots(path)
        first = found[0] if found else None
        if first is not None and first.parent_id is not None:
            found = [self.find(first.parent_id), *found]
        fetch_to_compare(self.files, [each for each in found if each is not None])

    def _compared(self, older: SnapshotId, newer: SnapshotId) -> TransactionLog:
        """What differs between two snapshots, by comparing them."""
        before, after = self._both(older, newer)
        return compared(self.files, before, after)

    def _both(self, one: SnapshotId, other: SnapshotId) -> tuple[Snapshot, Snapshot]:
        return together(
            self.files.storage,
            lambda: self.files.read_snapshot(one),
            lambda: self.files.read_snapshot(other),
        )

    def difference(self, before: Snapshot, after: Snapshot) -> TransactionLog:
        """What differs between any two snapshots: from logs if one descends from the other."""
        from icefloe.model.transaction_log import TransactionLog

        if before.id == after.id:
            return TransactionLog()
        log = self.changes_between(before.id, after.id)
        return compared(self.files, before, after) if log is None else log

    def common_ancestor(self, one: SnapshotId, other: SnapshotId) -> SnapshotId | None:
        """The newest snapshot that is, or is an ancestor of, both."""
        cuts, _ = together(self.files.storage, self.cuts.all, lambda: self._both(one, other))
        ancestors = {stub.id for stub in self.stubs(one, cuts)}
        return next((stub.id for stub in self.stubs(other, cuts) if stub.id in ancestors), None)

    def diff(self, older: SnapshotId, newer: SnapshotId) -> Diff:
        """Differences between two snapshots that have a common ancestor."""
        from icefloe.engine.info import Diff

        if older != newer and self.common_ancestor(older, newer) is None:
            raise InvalidInputError(
                f"the ancestry of {newer} doesn't include {older}, nor anything that it descends "
                "from: a diff is between two snapshots of one history"
            )
        before, after = self._both(older, newer)
        return Diff(self.difference(before, after), before.nodes, after.nodes)


def up_to_cut(ids: list[SnapshotId], cuts: Collection[SnapshotId]) -> list[SnapshotId]:
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
        from icefloe.model.moments import zone_advice

        raise InvalidTypeError(
            f"as_of is a datetime with a timezone, found {described(moment)}{zone_advice(moment)}"
        )


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


def compared_step(files: MetadataFiles, parent: Snapshot, snapshot: Snapshot) -> TransactionLog:
    """What changed from a snapshot to its child, by comparing them."""
    log = compared(files, parent, snapshot)
    if snapshot.metadata.get(MOVED_CHUNKS):
        # A compaction: the chunks are elsewhere, with the same bytes.
        log = msgspec.structs.replace(log, updated_chunks={})
    return log


def fetch_to_compare(files: MetadataFiles, snapshots: Sequence[Snapshot]) -> None:
    """Read the manifests that consecutive snapshots do not share, all at the same time."""
    unshared: dict[ManifestId, tuple[Snapshot, ManifestFileInfo]] = {}
    for before, after in pairwise(snapshots):
        listed = [{info.id: info for info in each.manifests} for each in (before, after)]
        for manifest_id in listed[0].keys() ^ listed[1].keys():
            mine = manifest_id in listed[1]
            unshared[manifest_id] = (after if mine else before, listed[mine][manifest_id])

    def fetch(place: tuple[Snapshot, ManifestFileInfo]) -> None:
        snapshot, info = place
        files.manifest(info.id, info.size_bytes, info.checksum, Referrer(snapshot.id))

    files.in_parallel(fetch, unshared.values())


def compared(files: MetadataFiles, before: Snapshot, after: Snapshot) -> TransactionLog:
    """What differs between two snapshots, by comparing them."""
    from icefloe.changes.compare import compare_nodes

    if not files.storage.capabilities.reads_are_immediate:
        fetch_to_compare(files, [before, after])
    return compare_nodes(_state(files, before), _state(files, after))


def _state(files: MetadataFiles, snapshot: Snapshot) -> ReadableNodes:
    from icefloe.changes.compare import ReadableNodes

    chunks = SnapshotChunks(files, snapshot).table
    return ReadableNodes(list(snapshot.nodes), chunks, files.documents_of(snapshot))
