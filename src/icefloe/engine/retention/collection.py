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
G7  Before anything is deleted, the tip of every branch is published once more. So a commit that
    began before that fails with a conflict, whatever its clock says, and checks that its files are
    still there (`uncommitted.py`).
"""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from icefloe.engine.history.expired_parents import CUTS_FOLDER, cut_key
from icefloe.engine.retention.announcements import (
    announce,
    announcement_key,
    list_announcements,
)
from icefloe.engine.retention.id_sets import are_in, are_names, id_set
from icefloe.engine.retention.leases import Lease, LeaseFiles
from icefloe.engine.retention.marking import (
    CarefulRefs,
    Marks,
    MemoryLimits,
    first_snapshots,
    read_references,
)
from icefloe.engine.retention.session_lease import SAFE_CUTOFF_SECONDS
from icefloe.engine.retention.stored_objects import (
    StoredObjects,
    as_moment,
    key_maker,
    list_objects,
)
from icefloe.errors import (
    ConflictError,
    IcefloeError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.formats.port import LiveTip, ObjectKind
from icefloe.model.ids import SnapshotId
from icefloe.objects.shared_caches import forget_shared
from icefloe.storage.clock import CLOCK_FOLDER, storage_now
from icefloe.storage.port import Swept
from icefloe.storage.probe import PROBE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.leases import StoredLease

logger = logging.getLogger(__name__)

BATCH = 1000
_ORDER = (
    ObjectKind.SNAPSHOT,
    ObjectKind.TRANSACTION_LOG,
    ObjectKind.MANIFEST,
    ObjectKind.ATTRIBUTES,
    ObjectKind.CHUNK_FILE,
)
_DEBRIS_AFTER = timedelta(hours=1)


class GCSummary(msgspec.Struct, frozen=True):
    """What a garbage collection deleted, or would delete.

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
    """Only older objects were considered: the given moment, or the beginning of a lease."""
    leases: int = 0
    """Number of leases that held."""
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
    context: Context, older_than: datetime | timedelta, *, dry_run: bool, limits: MemoryLimits
) -> GCSummary:
    """Delete what nothing reaches and was written before a moment of the storage's clock."""
    with context.storage.using_reserve():  # a full disk is why many collections are run
        return _collect(context, older_than, dry_run=dry_run, limits=limits)


def _collect(
    context: Context, older_than: datetime | timedelta, *, dry_run: bool, limits: MemoryLimits
) -> GCSummary:
    storage = context.storage
    if not storage.capabilities.can_list:
        raise StorageError(f"{storage.location} cannot list objects, so garbage is not found")
    now = storage_now(storage)
    cutoff = as_moment(older_than, now, "delete_object_older_than")
    if now - cutoff < timedelta(seconds=SAFE_CUTOFF_SECONDS) and not dry_run:
        logger.warning(
            "collecting what is younger than %d seconds: sessions that are open now may lose what "
            "they wrote, unless they have a lease",
            SAFE_CUTOFF_SECONDS,
        )
    return _Collection(context, now, cutoff, limits, dry_run=dry_run).run()


class _Garbage(NamedTuple):
    """The objects to delete."""

    objects: dict[ObjectKind, StoredObjects]
    cutoff: datetime
    leases: list[StoredLease]

    def older_than(self, cutoff: datetime) -> _Garbage:
        """The garbage that is older than a moment."""
        if cutoff == self.cutoff:
            return self
        older = {kind: objects.split(cutoff)[0] for kind, objects in self.objects.items()}
        return self._replace(objects=older, cutoff=cutoff)

    def without(self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None) -> _Garbage:
        """The garbage without what is marked.

        `manifests` are the ids of those whose chunk files were not spared before; None means all.
        """
        live = {
            ObjectKind.SNAPSHOT: marks.snapshot_ids(),
            ObjectKind.TRANSACTION_LOG: marks.snapshot_ids(),
            ObjectKind.MANIFEST: marks.manifest_ids(),
            ObjectKind.ATTRIBUTES: marks.attribute_ids(),
        }
        left = {kind: self.objects[kind].outside(ids) for kind, ids in live.items()}
        files = self.objects[ObjectKind.CHUNK_FILE]
        if len(files):
            # Manifests are read only if a chunk file depends on them.
            files = files.outside(marks.chunk_file_ids(manifests))
        left[ObjectKind.CHUNK_FILE] = files
        return self._replace(objects=left)


class _Collection:
    """One run of the protocol G1 to G7."""

    def __init__(
        self,
        context: Context,
        now: datetime,
        cutoff: datetime,
        limits: MemoryLimits,
        *,
        dry_run: bool,
    ) -> None:
        self._context = context
        self._storage = context.storage
        self._now = now
        self._cutoff = cutoff
        self._limits = limits
        self._dry_run = dry_run
        self._swept = Swept()

    def run(self) -> GCSummary:
        layout = self._context.format.layout
        listed = {kind: list_objects(self._storage, layout, kind) for kind in _ORDER}  # G1
        listed[ObjectKind.SNAPSHOT] = self._snapshots(listed[ObjectKind.SNAPSHOT])
        leases = self._leases()
        cutoff = _cutoff(self._cutoff, leases)  # G2
        # First of all, because a disk may be full of them. They are not objects: nothing refers to
        # them.
        before = min(cutoff, self._now - _DEBRIS_AFTER)
        self._swept = self._storage.sweep_temporary(before, dry_run=self._dry_run)
        parts = {kind: objects.split(cutoff) for kind, objects in listed.items()}
        young = parts[ObjectKind.SNAPSHOT][1]
        old = {kind: old for kind, (old, _) in parts.items()}
        marks = Marks(self._context, self._limits)
        self._mark(marks, leases)
        self._mark_young(marks, young)
        garbage = self._without_strangers(_Garbage(old, cutoff, leases).without(marks))
        if self._dry_run:
            return self._summary(garbage, self._notes(garbage))
        return self._delete_announced(garbage, marks)

    def _snapshots(self, objects: StoredObjects) -> StoredObjects:
        """Only the snapshots: other programs may have put anything beside them (G6)."""
        if not are_names(objects.ids).any():
            return objects
        return objects.without_strangers(id_set(self._context.refs.listed_snapshots()))

    def _without_strangers(self, garbage: _Garbage) -> _Garbage:
        """Spare what icefloe did not name, unless a snapshot to delete refers to it (G6)."""
        if not any(are_names(objects.ids).any() for objects in garbage.objects.values()):
            return garbage
        going = Marks(self._context, self._limits)
        for data in garbage.objects[ObjectKind.SNAPSHOT].each_id():
            with contextlib.suppress(SnapshotNotFoundError):  # another collection was quicker
                going.add_snapshot(going.files.read_snapshot(SnapshotId(data)))
        manifests = garbage.objects[ObjectKind.MANIFEST].among(going.manifest_ids())
        known = {
            ObjectKind.MANIFEST: going.manifest_ids(),
            ObjectKind.ATTRIBUTES: going.attribute_ids(),
            ObjectKind.CHUNK_FILE: going.chunk_file_ids(np.sort(manifests.ids)),
        }
        left = {kind: garbage.objects[kind].without_strangers(ids) for kind, ids in known.items()}
        return garbage._replace(objects={**garbage.objects, **left})

    def _leases(self) -> list[StoredLease]:
        files = LeaseFiles(self._storage)
        return files.active(self._now) if self._dry_run else files.break_lapsed(self._now)

    def _mark(self, marks: Marks, leases: list[StoredLease]) -> None:
        """Mark everything that references and leases reach (G3)."""
        references = read_references(self._context)
        for target in sorted(references.all()):
            marks.add_history(target)
        for root in first_snapshots(marks):
            marks.add_history(root, is_whole=False)
        held = {snapshot_id for lease in leases for snapshot_id in lease.snapshots}
        for snapshot_id in held:
            marks.add_history(snapshot_id, is_whole=False)
        if held:
            marks.add_paths(references.branches.values(), held)

    def _mark_young(self, marks: Marks, snapshots: StoredObjects) -> None:
        """Mark snapshots that are not old enough: somebody may be about to name them."""
        for data in snapshots.each_id():
            # A writer that died after its snapshot, or flushed it, may have built on others.
            marks.add_history(SnapshotId(data), is_whole=False)

    def _delete_announced(self, garbage: _Garbage, marks: Marks) -> GCSummary:
        lease = Lease(self._storage, holder="garbage collection", protects_new=False)
        with lease:
            snapshots = garbage.objects[ObjectKind.SNAPSHOT]
            announce(
                self._storage, lease.id, map(SnapshotId, snapshots.each_id()), garbage.cutoff
            )  # G4
            try:
                if any(map(len, garbage.objects.values())):
                    self._move_branches()  # G7
                garbage = self._spare(garbage, marks, lease)
                notes = self._notes(garbage)
                fence = _Fence(lease)
                gone = garbage.objects[ObjectKind.SNAPSHOT]
                if len(gone):
                    fence.check()
                self._context.refs.forget({SnapshotId(each) for each in gone.each_id()})
                for kind in _ORDER:  # G5
                    self._delete(kind, garbage.objects[kind], fence)
                self._delete_notes(notes)
            finally:
                self._withdraw(lease)
        self._context.files.forget()
        forget_shared()
        summary = self._summary(garbage, notes)
        logger.info("collected garbage in %s: %s", self._storage.location, summary)
        return summary

    def _move_branches(self) -> None:
        """Publish the tip of every branch once more, so that commits under way notice."""
        refs = self._context.refs
        branches = refs.branches()
        for _ in range(self._context.settings.publish_max_tries):
            careful = CarefulRefs(self._context)
            tips = [careful.tip(branch) for branch in sorted(branches)]
            branches = refs.repeat([tip for tip in tips if isinstance(tip, LiveTip)])
            if not branches:
                return
        raise ConflictError(
            f"branch {min(branches)!r} kept moving, so nothing was deleted; run the "
            "garbage collection when fewer writers are at work"
        )

    def _spare(self, garbage: _Garbage, marks: Marks, own: Lease) -> _Garbage:
        """Read leases, references and new snapshots again, and spare what they reach by now."""
        snapshots, manifests = len(marks.snapshots), marks.manifest_ids()
        leases = [lease for lease in LeaseFiles(self._storage).find() if lease.id != own.id]
        garbage = garbage.older_than(_cutoff(garbage.cutoff, leases))  # G2
        self._mark(marks, leases)
        layout = self._context.format.layout
        snapshots_now = self._snapshots(list_objects(self._storage, layout, ObjectKind.SNAPSHOT))
        _, young = snapshots_now.split(garbage.cutoff)
        self._mark_young(marks, young)
        if len(marks.snapshots) == snapshots:
            return garbage
        reached = marks.manifest_ids()
        return garbage.without(marks, reached[~are_in(reached, manifests)])

    # --- deleting

    def _delete(self, kind: ObjectKind, objects: StoredObjects, fence: _Fence) -> None:
        key_of = key_maker(self._context.format.layout, kind)
        ids = objects.newest_first().each_id() if kind is ObjectKind.SNAPSHOT else objects.each_id()
        for batch in _batched(ids, BATCH):
            fence.check()
            self._storage.delete_many([key_of(data) for data in batch])

    def _notes(self, garbage: _Garbage) -> dict[str, int]:
        """Small objects under `maintenance/` that nothing needs any more, with their sizes."""
        gone = {cut_key(SnapshotId(i)) for i in garbage.objects[ObjectKind.SNAPSHOT].each_id()}
        announced = list_announcements(self._storage)
        held = {lease.id for lease in LeaseFiles(self._storage).find()}
        last = self._now - _DEBRIS_AFTER
        notes: dict[str, int] = {}
        if gone:
            notes.update(
                {i.key: i.size for i in self._storage.list(f"{CUTS_FOLDER}/") if i.key in gone}
            )
        notes.update({i.key: i.size for lease_id, i in announced.items() if lease_id not in held})
        for folder in (CLOCK_FOLDER, PROBE_FOLDER):
            for info in self._storage.list(f"{folder}/"):
                if info.last_modified < last:
                    notes[info.key] = info.size
        return notes

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
        return GCSummary(
            bytes_deleted=sum(sizes) + sum(notes.values()) + self._swept.size_bytes,
            chunks_deleted=counts[ObjectKind.CHUNK_FILE],
            manifests_deleted=counts[ObjectKind.MANIFEST],
            snapshots_deleted=counts[ObjectKind.SNAPSHOT],
            attributes_deleted=counts[ObjectKind.ATTRIBUTES],
            transaction_logs_deleted=counts[ObjectKind.TRANSACTION_LOG],
            notes_deleted=len(notes),
            cutoff=garbage.cutoff,
            leases=len(garbage.leases),
            temporary_files_deleted=self._swept.files,
        )


class _Fence:
    """Ends a collection that was suspended for so long that its lease lapsed.

    Whoever names a snapshot ignores announcements of collections whose lease lapsed (G4).
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def check(self) -> None:
        # By the storage's clock each time: the local one may have stood still.
        if not self._lease.renew():
            raise SessionStateError(
                "the garbage collection was suspended for longer than its lease held, and was "
                "ended before it could do harm; run it again"
            )


def _cutoff(moment: datetime, leases: list[StoredLease]) -> datetime:
    """The earlier of a moment and the beginning of the first lease: nothing younger is deleted."""
    return min([moment, *(lease.begins for lease in leases if lease.begins is not None)])


def _batched(ids: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while batch := list(islice(ids, size)):
        yield batch
