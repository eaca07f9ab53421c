"""Collects garbage: deletes what no branch, tag or lease reaches and what is old enough.

Invariants, cited by tests:

G1  What is listed is listed before references are read; what appears later is never deleted.
G2  Nothing is deleted that is younger than the cutoff or than the beginning of a lease that holds,
    by the storage's clock alone.
G3  What a branch, a tag, the first snapshot, a lease or a young snapshot reaches stays, with all
    that it refers to, and the tips that it merged. A chunk file stays while one reference to any
    part of it does.
G4  The snapshots to be deleted are announced before leases, references and new snapshots are read
    for the last time, so that nobody can name one of them unnoticed (see `announcements.py`).
G5  Snapshots go first, newest first, then logs, manifests, attributes and chunk files: whoever
    dies in between leaves only garbage, which the next collection finds.
G6  What cannot be read ends the collection before anything is deleted. Objects that are not named
    like ours are deleted only together with a snapshot that refers to them, and where a format
    leaves names free; sequence files of branches never are.
G7  Before anything is deleted, every branch gets one more entry, for the snapshot that it has. So
    whoever began to commit before that finds that the branch has moved, whatever its clock says,
    and looks for what it needs (engine/retention/uncommitted.py).
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
from icefloe.engine.retention.announcements import announce, announcements, doomed_key
from icefloe.engine.retention.candidates import Objects, key_maker, list_objects
from icefloe.engine.retention.cutoff import as_moment
from icefloe.engine.retention.id_sets import are_in, are_names, id_set
from icefloe.engine.retention.leases import Lease, LeaseFiles
from icefloe.engine.retention.marking import (
    CarefulRefs,
    Limits,
    Marks,
    first_snapshots,
    read_references,
)
from icefloe.engine.retention.session_lease import SAFE_CUTOFF_SECONDS
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
    from icefloe.engine.retention.leases import FoundLease

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
    """What a garbage collection deleted, or would delete."""

    bytes_deleted: int = 0
    chunks_deleted: int = 0
    """Chunk files; each may have held many chunks."""
    manifests_deleted: int = 0
    snapshots_deleted: int = 0
    attributes_deleted: int = 0
    transaction_logs_deleted: int = 0
    notes_deleted: int = 0
    """Small objects of maintenance that are of no use any more."""
    cutoff: datetime | None = None
    """Only what is older was looked at: the given moment, or the beginning of a lease."""
    leases: int = 0
    """Leases that held."""
    temporary_files_deleted: int = 0
    """What writers that died left half written on local files; never younger than an hour."""

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
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        when = "" if self.cutoff is None else f", older than {self.cutoff:%Y-%m-%d %H:%M:%S} UTC"
        held = f"; {self.leases} leases held" if self.leases else ""
        return f"{found or 'nothing'} ({self.bytes_deleted:,} bytes){when}{held}"


def collect_garbage(
    context: Context, older_than: datetime | timedelta, *, dry_run: bool, limits: Limits
) -> GCSummary:
    """Delete what is not reached and was written before a moment of the storage's clock."""
    with context.storage.using_reserve():  # a full disk is why many collections are run
        return _collect(context, older_than, dry_run=dry_run, limits=limits)


def _collect(
    context: Context, older_than: datetime | timedelta, *, dry_run: bool, limits: Limits
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


class _Doomed(NamedTuple):
    """What is to be deleted."""

    objects: dict[ObjectKind, Objects]
    cutoff: datetime
    leases: list[FoundLease]

    def older_than(self, cutoff: datetime) -> _Doomed:
        """What is left to be deleted of what is older."""
        if cutoff == self.cutoff:
            return self
        left = {kind: objects.split(cutoff)[0] for kind, objects in self.objects.items()}
        return self._replace(objects=left, cutoff=cutoff)

    def without(self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None) -> _Doomed:
        """What is left to be deleted when more is reached.

        `manifests` are those whose chunk files were not spared before; None means all.
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
            # Manifests are read only if a chunk file depends on it.
            files = files.outside(marks.chunk_file_ids(manifests))
        left[ObjectKind.CHUNK_FILE] = files
        return self._replace(objects=left)


class _Collection:
    def __init__(
        self, context: Context, now: datetime, cutoff: datetime, limits: Limits, *, dry_run: bool
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
        # First of all, for a disk may be full of them. They are no objects: nothing refers to them.
        before = min(cutoff, self._now - _DEBRIS_AFTER)
        self._swept = self._storage.sweep_temporary(before, dry_run=self._dry_run)
        parts = {kind: objects.split(cutoff) for kind, objects in listed.items()}
        young = parts[ObjectKind.SNAPSHOT][1]
        old = {kind: old for kind, (old, _) in parts.items()}
        marks = Marks(self._context, self._limits)
        self._mark(marks, leases)
        self._mark_young(marks, young)
        doomed = self._without_strangers(_Doomed(old, cutoff, leases).without(marks))
        if self._dry_run:
            return self._summary(doomed, self._notes(doomed))
        return self._delete_announced(doomed, marks)

    def _snapshots(self, objects: Objects) -> Objects:
        """Those that are snapshots: others may have put anything beside them (G6)."""
        if not are_names(objects.ids).any():
            return objects
        return objects.without_strangers(id_set(self._context.refs.listed_snapshots()))

    def _without_strangers(self, doomed: _Doomed) -> _Doomed:
        """Leave what is not named like ours, unless a snapshot that goes refers to it (G6)."""
        if not any(are_names(objects.ids).any() for objects in doomed.objects.values()):
            return doomed
        going = Marks(self._context, self._limits)
        for data in doomed.objects[ObjectKind.SNAPSHOT].each_id():
            with contextlib.suppress(SnapshotNotFoundError):  # somebody else collects, too
                going.add_snapshot(going.files.read_snapshot(SnapshotId(data)))
        manifests = doomed.objects[ObjectKind.MANIFEST].among(going.manifest_ids())
        known = {
            ObjectKind.MANIFEST: going.manifest_ids(),
            ObjectKind.ATTRIBUTES: going.attribute_ids(),
            ObjectKind.CHUNK_FILE: going.chunk_file_ids(np.sort(manifests.ids)),
        }
        left = {kind: doomed.objects[kind].without_strangers(ids) for kind, ids in known.items()}
        return doomed._replace(objects={**doomed.objects, **left})

    def _leases(self) -> list[FoundLease]:
        files = LeaseFiles(self._storage)
        return files.active(self._now) if self._dry_run else files.break_lapsed(self._now)

    def _mark(self, marks: Marks, leases: list[FoundLease]) -> None:
        """Reach all that references and leases reach (G3)."""
        references = read_references(self._context)
        tips = references.targets()
        for target in sorted(tips):
            marks.add_history(target)
        for root in first_snapshots(marks):
            marks.add_history(root, is_whole=False)
        held = {snapshot_id for lease in leases for snapshot_id in lease.snapshots}
        for snapshot_id in held:
            marks.add_history(snapshot_id, is_whole=False)
        if held:
            marks.add_paths(references.branches.values(), held)

    def _mark_young(self, marks: Marks, snapshots: Objects) -> None:
        """Reach snapshots that are not old enough: somebody may be about to name them."""
        for data in snapshots.each_id():
            # Who dies after its snapshot, or flushed it, may have built on others.
            marks.add_history(SnapshotId(data), is_whole=False)

    def _delete_announced(self, doomed: _Doomed, marks: Marks) -> GCSummary:
        lease = Lease(self._storage, holder="garbage collection", protects_new=False)
        with lease:
            snapshots = doomed.objects[ObjectKind.SNAPSHOT]
            announce(
                self._storage, lease.id, map(SnapshotId, snapshots.each_id()), doomed.cutoff
            )  # G4
            try:
                if any(map(len, doomed.objects.values())):
                    self._move_branches()  # G7
                doomed = self._spare(doomed, marks, lease)
                notes = self._notes(doomed)
                fence = _Fence(lease)
                gone = doomed.objects[ObjectKind.SNAPSHOT]
                if len(gone):
                    fence.check()
                self._context.refs.forget({SnapshotId(each) for each in gone.each_id()})
                for kind in _ORDER:  # G5
                    self._delete(kind, doomed.objects[kind], fence)
                self._delete_notes(notes)
            finally:
                self._withdraw(lease)
        self._context.files.forget()
        forget_shared()
        summary = self._summary(doomed, notes)
        logger.info("collected garbage in %s: %s", self._storage.location, summary)
        return summary

    def _move_branches(self) -> None:
        """Let every branch move to where it stands: commits that are under way notice it."""
        refs = self._context.refs
        branches = refs.branches()
        for _ in range(self._context.settings.publish_max_tries):
            careful = CarefulRefs(self._context)
            tips = [careful.tip(branch) for branch in sorted(branches)]
            branches = refs.repeat([tip for tip in tips if isinstance(tip, LiveTip)])
            if not branches:
                return
        raise ConflictError(
            f"branch {min(branches)!r} never stood still, so that nothing was deleted; run the "
            "garbage collection when fewer writers are at work"
        )

    def _spare(self, doomed: _Doomed, marks: Marks, own: Lease) -> _Doomed:
        """Read leases and references once more, and spare what is reached by now.

        So is what new snapshots refer to: they may have been flushed.
        """
        snapshots, manifests = len(marks.snapshots), marks.manifest_ids()
        leases = [lease for lease in LeaseFiles(self._storage).find() if lease.id != own.id]
        doomed = doomed.older_than(_cutoff(doomed.cutoff, leases))  # G2
        self._mark(marks, leases)
        layout = self._context.format.layout
        snapshots_now = self._snapshots(list_objects(self._storage, layout, ObjectKind.SNAPSHOT))
        _, young = snapshots_now.split(doomed.cutoff)
        self._mark_young(marks, young)
        if len(marks.snapshots) == snapshots:
            return doomed
        reached = marks.manifest_ids()
        return doomed.without(marks, reached[~are_in(reached, manifests)])

    # --- deleting

    def _delete(self, kind: ObjectKind, objects: Objects, fence: _Fence) -> None:
        key_of = key_maker(self._context.format.layout, kind)
        ids = objects.newest_first().each_id() if kind is ObjectKind.SNAPSHOT else objects.each_id()
        for batch in _batched(ids, BATCH):
            fence.check()
            self._storage.delete_many([key_of(data) for data in batch])

    def _notes(self, doomed: _Doomed) -> dict[str, int]:
        """Small objects that nothing needs any more, with their sizes."""
        gone = {cut_key(SnapshotId(i)) for i in doomed.objects[ObjectKind.SNAPSHOT].each_id()}
        announced = announcements(self._storage)
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
            self._storage.delete_many([doomed_key(lease.id)])
        except IcefloeError as error:
            logger.warning("the announcement of a collection was left behind: %s", error)

    def _summary(self, doomed: _Doomed, notes: dict[str, int]) -> GCSummary:
        counts = {kind: len(objects) for kind, objects in doomed.objects.items()}
        sizes = [int(np.sum(objects.sizes)) for objects in doomed.objects.values()]
        return GCSummary(
            bytes_deleted=sum(sizes) + sum(notes.values()) + self._swept.size_bytes,
            chunks_deleted=counts[ObjectKind.CHUNK_FILE],
            manifests_deleted=counts[ObjectKind.MANIFEST],
            snapshots_deleted=counts[ObjectKind.SNAPSHOT],
            attributes_deleted=counts[ObjectKind.ATTRIBUTES],
            transaction_logs_deleted=counts[ObjectKind.TRANSACTION_LOG],
            notes_deleted=len(notes),
            cutoff=doomed.cutoff,
            leases=len(doomed.leases),
            temporary_files_deleted=self._swept.files,
        )


class _Fence:
    """Ends a collection that was suspended for so long that its announcement held no more.

    Whoever names a snapshot minds only announcements of collections whose lease holds (G4).
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def check(self) -> None:
        # Each time by the storage's clock: ours may have stood still.
        if not self._lease.renew():
            raise SessionStateError(
                "the garbage collection was suspended for longer than its lease held, and was "
                "ended before it could do harm; run it again"
            )


def _cutoff(moment: datetime, leases: list[FoundLease]) -> datetime:
    """Nothing younger is deleted: a moment, or the beginning of the first lease if that is."""
    return min([moment, *(lease.begins for lease in leases if lease.begins is not None)])


def _batched(ids: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while batch := list(islice(ids, size)):
        yield batch
