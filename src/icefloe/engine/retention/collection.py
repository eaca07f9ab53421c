"""Garbage collection: deletes old objects that no branch, tag or lease reaches.

Invariants, cited by tests (docs/explanation/retention.md shows them as states and transitions):

G1  Objects are listed before references are read; what appears later is never deleted.
G2  Nothing is deleted that is younger than the cutoff or than the beginning of a lease that holds,
    by the storage's clock alone.
G3  What a branch, a tag, the first snapshot, a lease or a young snapshot reaches stays, with
    everything that it refers to, and the tips that it merged. A chunk file stays as long as one
    reference to any part of it does.
G4  The snapshots to delete are announced before leases, references and new snapshots are read for
    the last time, so that nobody can name one of them unnoticed (`announcements.py`, `pins.py`).
G5  Snapshots are deleted first, newest first, then logs, manifests, attributes and chunk files: a
    collection that dies in between leaves only garbage, which the next one finds.
G6  What cannot be read ends the collection before anything is deleted. Objects that icefloe did not
    name are deleted only together with a snapshot that refers to them, and only where a format
    leaves names free; sequence files of branches never are.
G7  Before anything is deleted, the tip of every branch is published again. So a commit that
    began before that fails with a conflict, whatever its clock says, and checks that its files are
    still there (`uncommitted.py`).
"""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.engine.history.expired_parents import CUTS_FOLDER, cut_key
from icefloe.engine.retention.announcements import (
    announce,
    announcement_key,
    list_announcements,
)
from icefloe.engine.retention.candidate_files import (
    CandidateFiles,
    ChunkFileLister,
    LocalFileLister,
    key_batches,
)
from icefloe.engine.retention.id_sets import are_in, are_names, id_set
from icefloe.engine.retention.leases import Lease, LeaseFiles
from icefloe.engine.retention.marking import (
    CarefulRefs,
    Marks,
    MemoryLimits,
    RefTargets,
    first_snapshots,
    read_references,
)
from icefloe.engine.retention.session_lease import SAFE_CUTOFF_SECONDS
from icefloe.engine.retention.stored_objects import StoredObjects, as_moment, list_objects
from icefloe.errors import (
    ConflictError,
    IcefloeError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.formats.port import LiveTip, ObjectKind
from icefloe.html_tables import Report
from icefloe.model.ids import SnapshotId
from icefloe.objects.shared_caches import forget_shared
from icefloe.storage.clock import CLOCK_FOLDER, storage_now
from icefloe.storage.concurrency import each_at_once, together
from icefloe.storage.port import ObjectInfo, Swept
from icefloe.storage.probe import PROBE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.leases import StoredLease
    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

_METADATA = (
    ObjectKind.SNAPSHOT,
    ObjectKind.TRANSACTION_LOG,
    ObjectKind.MANIFEST,
    ObjectKind.ATTRIBUTES,
)
"""The kinds of which there are few, in the order of deletion (G5); chunk files come last."""
_DEBRIS_AFTER = timedelta(hours=1)
_REFERRED_LATER = timedelta(days=1)
"""How much later than a snapshot an object may be written that it refers to; a commit writes both
within minutes, the snapshot last, and by one clock."""


class GCSummary(Report, frozen=True):
    """The objects that a garbage collection deleted, or would delete.

    Examples:
        >>> from datetime import timedelta
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> summary = repo.garbage_collect(timedelta(days=1), dry_run=True)
        >>> summary.bytes_deleted, summary.snapshots_deleted
        (0, 0)
    """

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    """Chunk files; each may have held many chunks."""
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    transaction_logs_deleted: int = 0
    notes_deleted: int = 0
    """Small objects under `maintenance/` that are no longer needed."""
    cutoff: datetime | None = None
    """Only older objects were considered: the given time, or the beginning of a lease."""
    leases: int = 0
    """Number of valid leases."""
    temporary_files_deleted: int = 0
    """Half-written local files of writers that were killed; never younger than an hour."""

    def __str__(self) -> str:
        counts = {
            "snapshots": self.snapshots_deleted,
            "transaction logs": self.transaction_logs_deleted,
            "manifests": self.manifests_deleted,
            "attribute files": self.attributes_deleted,
            "chunk files": self.chunks_deleted,
            "notes": self.notes_deleted,
            "temporary files": self.temporary_files_deleted,
        }
        deleted = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        when = "" if self.cutoff is None else f", older than {self.cutoff:%Y-%m-%d %H:%M:%S} UTC"
        held = f"; {self.leases} leases held" if self.leases else ""
        return f"{deleted or 'nothing'} ({self.bytes_deleted:,} bytes){when}{held}"


def collect_garbage(
    context: Context,
    older_than: datetime | timedelta,
    *,
    written_since: datetime | timedelta | None = None,
    dry_run: bool,
    limits: MemoryLimits,
    lister: ChunkFileLister | None = None,
) -> GCSummary:
    """Delete unreachable objects that were written before a moment of the storage's clock.

    With `written_since`, only what was written from that moment on. Chunk files are listed, marked
    and deleted by the `lister`; in this process by default.
    """
    if not context.storage.capabilities.can_list:
        raise StorageError(
            f"{context.storage.location} cannot list objects, so garbage is not found"
        )
    with context.storage.using_reserve():  # a full disk is why many collections are run
        limits.check()
        lister = lister or LocalFileLister(context, limits.requests)
        collection = _Collection(context, limits, lister, dry_run=dry_run)
        return collection.run(older_than, written_since)


class _Listed(NamedTuple):
    """All objects of the repository."""

    objects: dict[ObjectKind, StoredObjects]
    """Those of each kind but chunk files."""
    files: CandidateFiles

    def written_since(self, moment: datetime) -> _Listed:
        later = {kind: objects.split(moment)[1] for kind, objects in self.objects.items()}
        return _Listed(later, self.files.written_since(moment))


class _Garbage(NamedTuple):
    """The objects to delete."""

    objects: dict[ObjectKind, StoredObjects]
    """Those of each kind but chunk files."""
    files: CandidateFiles
    cutoff: datetime
    leases: list[StoredLease]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not any(map(len, self.objects.values())) and not self.files.totals().files

    def older_than(self, cutoff: datetime) -> _Garbage:
        """The garbage that is older than a moment."""
        if cutoff == self.cutoff:
            return self
        older = {kind: objects.split(cutoff)[0] for kind, objects in self.objects.items()}
        return self._replace(objects=older, files=self.files.older_than(cutoff), cutoff=cutoff)

    def without(self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None) -> _Garbage:
        """The garbage without what is marked.

        `manifests` are the ids of those whose chunk files were not spared before; None means all.
        """
        live = {
            ObjectKind.SNAPSHOT: marks.snapshot_ids(),
            ObjectKind.TRANSACTION_LOG: marks.log_ids(),
            ObjectKind.MANIFEST: marks.manifest_ids(),
            ObjectKind.ATTRIBUTES: marks.attribute_ids(),
        }
        left = {kind: self.objects[kind].outside(ids) for kind, ids in live.items()}
        return self._replace(objects=left, files=self.files.unreached(marks, manifests))


class _Collection:
    """One run of the protocol G1 to G7."""

    def __init__(
        self, context: Context, limits: MemoryLimits, lister: ChunkFileLister, *, dry_run: bool
    ) -> None:
        self._context = context
        self._storage = context.storage
        self._limits = limits
        self._lister = lister
        self._dry_run = dry_run
        self._swept = Swept()

    def run(
        self, older_than: datetime | timedelta, written_since: datetime | timedelta | None
    ) -> GCSummary:
        marks = Marks(self._context, self._limits)
        # Nothing here depends on the storage's time, but for what is made of it.
        now, (listed, references), (debris, leases) = together(
            self._storage,
            lambda: storage_now(self._storage),
            lambda: self._list(marks),
            lambda: _debris_and_leases(self._storage),
        )
        self._now = now
        asked = self._moment(older_than, now)
        if not self._dry_run:
            leases = LeaseFiles(self._storage).break_lapsed(now, leases)
        leases = [lease for lease in leases if not self._dry_run or lease.ends >= now]
        cutoff = _cutoff(asked, leases)  # G2
        # First of all, because a disk may be full of them. They are not objects: nothing refers to
        # them.
        before = min(cutoff, now - _DEBRIS_AFTER)
        self._swept = self._storage.sweep_temporary(before, dry_run=self._dry_run)
        if written_since is not None:
            first = as_moment(written_since, now, "written_since")
            listed = self._since(listed, marks, first)
        parts = {kind: objects.split(cutoff) for kind, objects in listed.objects.items()}
        young = parts[ObjectKind.SNAPSHOT][1]
        old = {kind: old for kind, (old, _) in parts.items()}
        self._mark(marks, references, leases)
        self._mark_young(marks, young)
        candidates = _Garbage(
            objects=old, files=listed.files.older_than(cutoff), cutoff=cutoff, leases=leases
        )
        garbage = self._without_strangers(candidates.without(marks))
        if self._dry_run or garbage.is_empty:
            notes = debris.notes({lease.id for lease in leases}, now)
            if not self._dry_run:
                self._delete_notes(notes)
            return self._summary(garbage, notes)
        return self._delete_announced(garbage, marks, references)

    def _list(self, marks: Marks) -> tuple[_Listed, RefTargets]:
        """All objects, and then what references point to (G1)."""
        layout = self._context.format.layout

        objects: dict[ObjectKind, StoredObjects] = {}
        files: list[CandidateFiles] = []

        def list_kind(kind: ObjectKind) -> None:
            if kind is ObjectKind.CHUNK_FILE:
                files.append(self._lister.list_files())
            else:
                objects[kind] = list_objects(self._storage, layout, kind)

        # Chunk files first: most often there are most of them.
        kinds = (ObjectKind.CHUNK_FILE, *_METADATA)
        each_at_once(self._storage, list_kind, kinds, self._limits.requests)
        objects[ObjectKind.SNAPSHOT] = self._snapshots(objects[ObjectKind.SNAPSHOT])
        listed = _Listed(objects, files[0])
        references, _ = together(
            self._storage,
            lambda: read_references(self._context),
            lambda: first_snapshots(marks),  # reads all cuts, which histories lead to
        )
        return listed, references

    def _moment(self, older_than: datetime | timedelta, now: datetime) -> datetime:
        cutoff = as_moment(older_than, now, "delete_object_older_than")
        if now - cutoff < timedelta(seconds=SAFE_CUTOFF_SECONDS) and not self._dry_run:
            logger.warning(
                "collecting what is younger than %d seconds: sessions that are open now may lose "
                "what they wrote, unless they have a lease",
                SAFE_CUTOFF_SECONDS,
            )
        return cutoff

    def _since(self, listed: _Listed, marks: Marks, first: datetime) -> _Listed:
        """Objects written from a moment on, to which no much older object refers."""
        settled, _ = listed.objects[ObjectKind.SNAPSHOT].split(first - _REFERRED_LATER)
        marks.settled = {SnapshotId(each) for each in settled.each_id()}
        return listed.written_since(first)

    def _snapshots(self, objects: StoredObjects) -> StoredObjects:
        """Only the snapshots: other programs may have put anything beside them (G6)."""
        if not are_names(objects.ids).any():
            return objects
        return objects.without_strangers(id_set(self._context.refs.listed_snapshots()))

    def _without_strangers(self, garbage: _Garbage) -> _Garbage:
        """Spare what icefloe did not name, unless a snapshot to delete refers to it (G6)."""
        has_names = any(are_names(objects.ids).any() for objects in garbage.objects.values())
        if not has_names and not garbage.files.totals().strangers:
            return garbage
        going = Marks(self._context, self._limits)
        for data in garbage.objects[ObjectKind.SNAPSHOT].each_id():
            with contextlib.suppress(SnapshotNotFoundError):  # another collection was quicker
                going.add_snapshot(going.files.read_snapshot(SnapshotId(data)))
        manifests = garbage.objects[ObjectKind.MANIFEST].among(going.manifest_ids())
        known = {
            ObjectKind.MANIFEST: going.manifest_ids(),
            ObjectKind.ATTRIBUTES: going.attribute_ids(),
        }
        left = {kind: garbage.objects[kind].without_strangers(ids) for kind, ids in known.items()}
        files = garbage.files.without_strangers(going, np.sort(manifests.ids))
        return garbage._replace(objects={**garbage.objects, **left}, files=files)

    def _mark(self, marks: Marks, references: RefTargets, leases: list[StoredLease]) -> None:
        """Mark everything that references and leases reach (G3)."""
        references = self._mark_histories(marks, references)
        held = {snapshot_id for lease in leases for snapshot_id in lease.snapshots}
        marks.add_histories([*first_snapshots(marks), *sorted(held)], is_whole=False)
        if held:
            marks.add_paths(references.branches.values(), held)

    def _mark_histories(self, marks: Marks, references: RefTargets) -> RefTargets:
        """Mark all histories of references; returns these, read again if they moved meanwhile.

        Another collection may delete what a branch pointed to when it was read.
        """
        while True:
            try:
                marks.add_histories(sorted(references.all()))
            except SnapshotNotFoundError:
                moved = read_references(self._context)
                if moved.all() == references.all():
                    raise
                references = moved
            else:
                return references

    def _mark_young(self, marks: Marks, snapshots: StoredObjects) -> None:
        """Mark snapshots that are not old enough: somebody may be about to name them."""
        # A writer that died after its snapshot, or flushed it, may have built on others.
        marks.add_histories(map(SnapshotId, snapshots.each_id()), is_whole=False)

    def _delete_announced(
        self, garbage: _Garbage, marks: Marks, references: RefTargets
    ) -> GCSummary:
        with Lease(self._storage, holder="garbage collection", protects_new=False) as lease:
            snapshots = garbage.objects[ObjectKind.SNAPSHOT]
            announce(
                self._storage, lease.id, map(SnapshotId, snapshots.each_id()), garbage.cutoff
            )  # G4
            try:
                if not garbage.is_empty:
                    self._move_branches(references)  # G7
                garbage, (cuts, notes) = together(
                    self._storage,
                    lambda: self._spare(garbage, marks, lease),
                    lambda: self._cuts_and_notes(garbage),
                )
                notes |= _cuts_of(garbage, cuts)
                self._delete_all(garbage, marks, _Fence(lease))
                self._delete_notes(notes)
            finally:
                together(self._storage, lambda: self._withdraw(lease), lease.release)
        self._context.files.forget()
        forget_shared()
        summary = self._summary(garbage, notes)
        logger.info("collected garbage in %s: %s", self._storage.location, summary)
        return summary

    def _move_branches(self, references: RefTargets) -> None:
        """Publish the tip of every branch again, so that commits in progress notice."""
        moved: set[str] | None = None
        # Entries are never altered, and publishing fails where one more is not listed yet.
        known = references.tips
        for _ in range(self._context.settings.publish_max_tries):
            tips = CarefulRefs(self._context).tips(known).values()
            known = {}
            branches = self._context.refs.repeat(
                [
                    tip
                    for tip in tips
                    if isinstance(tip, LiveTip) and (moved is None or tip.branch in moved)
                ]
            )
            if not branches:
                return
            moved = branches
        raise ConflictError(
            f"branch {min(branches)!r} kept moving, so nothing was deleted; run the "
            "garbage collection when fewer writers are at work"
        )

    def _spare(self, garbage: _Garbage, marks: Marks, own: Lease) -> _Garbage:
        """Read leases, references and new snapshots again, and retain what they reach by now."""
        snapshots, manifests = len(marks.snapshots), marks.manifest_ids()
        # Who pins a snapshot names it before the pin is released: references come after leases.
        leases = LeaseFiles(self._storage).find(but=own.id)
        garbage = garbage.older_than(_cutoff(garbage.cutoff, leases))  # G2
        layout = self._context.format.layout
        references, listed = together(
            self._storage,
            lambda: read_references(self._context),
            lambda: list_objects(self._storage, layout, ObjectKind.SNAPSHOT),
        )
        self._mark(marks, references, leases)
        _, young = self._snapshots(listed).split(garbage.cutoff)
        self._mark_young(marks, young)
        if len(marks.snapshots) == snapshots:
            return garbage
        reached = marks.manifest_ids()
        return garbage.without(marks, reached[~are_in(reached, manifests)])

    # --- deleting

    def _delete_all(self, garbage: _Garbage, marks: Marks, fence: _Fence) -> None:
        """Delete snapshots, one batch after the other, and then all the rest (G5)."""
        gone = garbage.objects[ObjectKind.SNAPSHOT]
        if self._context.format.swaps_references:
            if len(gone):
                fence.check()
            gone_ids = {SnapshotId(each) for each in gone.each_id()}
            self._context.refs.forget(gone_ids, marks.snapshots)
        for batch in key_batches(self._context, ObjectKind.SNAPSHOT, gone.newest_first()):
            fence.check()
            self._storage.delete_many(batch)
        rest = chain.from_iterable(
            key_batches(self._context, kind, garbage.objects[kind])
            for kind in _METADATA
            if kind is not ObjectKind.SNAPSHOT
        )
        garbage.files.delete(rest, fence)

    def _cuts_and_notes(self, garbage: _Garbage) -> tuple[list[ObjectInfo], dict[str, int]]:
        """All cuts, if there may be some to delete, and the notes that nothing needs any more."""

        def cuts() -> list[ObjectInfo]:
            has_snapshots = len(garbage.objects[ObjectKind.SNAPSHOT]) > 0
            return list(self._storage.list(f"{CUTS_FOLDER}/")) if has_snapshots else []

        def notes() -> dict[str, int]:
            debris = _Debris.find(self._storage)
            return debris.notes(LeaseFiles(self._storage).ids(), self._now)

        return together(self._storage, cuts, notes)

    def _delete_notes(self, notes: dict[str, int]) -> None:
        if notes:
            self._storage.delete_many(list(notes))

    def _withdraw(self, lease: Lease) -> None:
        try:
            self._storage.delete_many([announcement_key(lease.id)])
        except IcefloeError as error:
            logger.warning("the announcement of a collection was left behind: %s", error)

    def _summary(self, garbage: _Garbage, notes: dict[str, int]) -> GCSummary:
        counts = {kind: len(objects) for kind, objects in garbage.objects.items()}
        sizes = [int(np.sum(objects.sizes)) for objects in garbage.objects.values()]
        chunk_files = garbage.files.totals()
        return GCSummary(
            bytes_deleted=sum(
                [*sizes, chunk_files.size_bytes, *notes.values(), self._swept.size_bytes]
            ),
            chunks_deleted=chunk_files.files,
            manifests_deleted=counts[ObjectKind.MANIFEST],
            snapshots_deleted=counts[ObjectKind.SNAPSHOT],
            attributes_deleted=counts[ObjectKind.ATTRIBUTES],
            transaction_logs_deleted=counts[ObjectKind.TRANSACTION_LOG],
            notes_deleted=len(notes),
            cutoff=garbage.cutoff,
            leases=len(garbage.leases),
            temporary_files_deleted=self._swept.files,
        )


def _cuts_of(garbage: _Garbage, listed: list[ObjectInfo]) -> dict[str, int]:
    """The cuts after snapshots that are deleted, with their sizes.

    A snapshot that is spared keeps its cut: without it, its history would seem to be damaged.
    """
    gone = {cut_key(SnapshotId(each)) for each in garbage.objects[ObjectKind.SNAPSHOT].each_id()}
    return {info.key: info.size for info in listed if info.key in gone}


class _Debris(NamedTuple):
    """Small objects that collections, clocks and probes may have left behind."""

    announcements: dict[str, ObjectInfo]
    """By the id of the lease of their collection; leases must be read after these."""
    others: list[ObjectInfo]

    @classmethod
    def find(cls, storage: Storage) -> _Debris:
        announcements, clocks, probes = together(
            storage,
            lambda: list_announcements(storage),
            lambda: list(storage.list(f"{CLOCK_FOLDER}/")),
            lambda: list(storage.list(f"{PROBE_FOLDER}/")),
        )
        return cls(announcements, clocks + probes)

    def notes(self, held: Collection[str], now: datetime) -> dict[str, int]:
        """Those that nothing needs any more, with their sizes; `held` are the ids of leases."""
        left = [info for lease_id, info in self.announcements.items() if lease_id not in held]
        last = now - _DEBRIS_AFTER
        left += [info for info in self.others if info.last_modified < last]
        return {info.key: info.size for info in left}


def _debris_and_leases(storage: Storage) -> tuple[_Debris, list[StoredLease]]:
    """Leases last: an announcement without a lease is that of a collection that is over."""
    debris = _Debris.find(storage)
    return debris, LeaseFiles(storage).find()


class _Fence:
    """Ends a collection that was suspended for so long that its lease lapsed.

    Whoever names a snapshot ignores announcements of collections whose lease lapsed (G4).
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def check(self) -> datetime:
        # By the storage's clock each time: the local one may have stood still.
        if not self._lease.renew() or self._lease.written_at is None:
            raise SessionStateError(
                "the garbage collection was suspended for longer than its lease held, and was "
                "ended before it could do harm; run it again"
            )
        return self._lease.written_at + self._lease.lifetime


def _cutoff(moment: datetime, leases: list[StoredLease]) -> datetime:
    """The earlier of a moment and the beginning of the first lease: nothing younger is deleted."""
    return min([moment, *(lease.begins for lease in leases if lease.begins is not None)])
