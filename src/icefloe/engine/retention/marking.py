"""Marks everything that branches, tags and leases reach, with caches of its own.

Nothing is guessed: what cannot be read raises, so that nothing is deleted.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from icefloe.engine.history.expired_parents import CachedCuts
from icefloe.engine.history.walk import History, up_to_cut
from icefloe.engine.retention.id_sets import IdSet, as_ids, id_bytes, id_set
from icefloe.errors import FormatError, InvalidInputError, SnapshotNotFoundError
from icefloe.formats.port import DeletedTip, LiveTip
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID, ManifestId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.objects.metadata import MetadataFiles
from icefloe.objects.shared_caches import CacheBudget
from icefloe.progress import ProgressStage, track
from icefloe.storage.concurrency import AT_ONCE, each_at_once, together
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.formats.port import BranchTip
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.manifest import Manifest
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.port import Capabilities

    _Unread = dict[SnapshotId, set[SnapshotId | None]]
    """Snapshots to read, each with the children that lead to it; None for where a walk begins."""
    _Missing = dict[SnapshotId, set[SnapshotId | None]]
    """Snapshots that are not there, with the same."""

_LIMIT_NAMES = (
    "max_snapshots_in_memory",
    "max_compressed_manifest_mem_bytes",
    "max_concurrent_manifest_fetches",
    "max_concurrent_requests",
)


class MemoryLimits(NamedTuple):
    """How much a walk over all snapshots and manifests holds in memory at a time."""

    snapshots: int = 50
    """Snapshots that are cached or being read."""
    manifest_bytes: int = 512 * 1024 * 1024
    """Compressed bytes of manifests that are read at a time."""
    manifest_fetches: int = 500
    """Manifests that are read at a time."""
    requests: int = AT_ONCE
    """Requests of other kinds that are sent at a time."""

    def check(self) -> None:
        """Raise InvalidInputError unless every limit is 1 or more."""
        for name, value in zip(_LIMIT_NAMES, self, strict=True):
            if value < 1:
                raise InvalidInputError(f"{name} is 1 or more, found {value}")


DEFAULT_LIMITS = MemoryLimits()


class _WithoutPages(ForwardingStorage):
    """A storage whose listings may be stale, so that references are found by reading."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the storage without quick listings."""
        return msgspec.structs.replace(self.inner.capabilities, lists_in_pages=False)


class RefTargets(NamedTuple):
    """The snapshots that branches and tags point to, by name."""

    tips: dict[str, BranchTip]
    """The newest state of each branch, deleted ones among them."""
    tags: dict[str, SnapshotId]

    @property
    def branches(self) -> dict[str, SnapshotId]:
        """The snapshots that branches point to."""
        return {
            name: tip.snapshot_id for name, tip in self.tips.items() if isinstance(tip, LiveTip)
        }

    def all(self) -> set[SnapshotId]:
        """All snapshots that a branch or tag points to."""
        return {*self.branches.values(), *self.tags.values()}


class CarefulRefs:
    """Branches and tags as they are now, also where listings of a branch lag behind."""

    def __init__(self, context: Context) -> None:
        """Read nothing yet."""
        self._storage = context.storage
        self._is_one_file = context.format.swaps_references
        self.listed = context.format.make_refs(context.storage).view()
        """The references as listings show them."""
        self._probed = context.format.make_refs(_WithoutPages(context.storage)).view()

    def tips(self, known: Mapping[str, BranchTip] | None = None) -> dict[str, BranchTip]:
        """Newest states of all branches that are listed.

        A state that is `known` and still listed as the newest one is not read again: only for
        callers to whom it does no harm that listings lag behind.

        Raises:
            FormatError: If an entry is missing before the newest one of a branch.
        """
        if self._is_one_file:
            return self.listed.tips()
        numbers = self.listed.newest_numbers()
        newest: dict[str, BranchTip] = {
            branch: tip
            for branch, tip in (known or {}).items()
            if numbers.get(branch) == tip.sequence
        }
        listed = {branch: number for branch, number in numbers.items() if branch not in newest}
        if self._storage.capabilities.lists_in_pages:
            for branch, number in listed.items():
                self._probed.start_at(DeletedTip(branch, number))
        tips = each_at_once(self._storage, self._probed.tip, listed)
        for (branch, number), tip in zip(listed.items(), tips, strict=True):
            if tip is not None and number > tip.sequence:
                # The tip was found by its number, and a gap hides what comes after it.
                raise FormatError(
                    f"branch {branch!r} is at entry {tip.sequence}, although there is an entry "
                    f"{number}: the sequence has a gap, and nothing is deleted; `verify` "
                    "tells more, and `repair` fills the gap"
                )
            if tip is not None:
                newest[branch] = tip
        return newest


def read_references(context: Context) -> RefTargets:
    """Read all branches and tags from the storage, also where listings lag behind."""
    careful = CarefulRefs(context)
    tips, tags, _ = together(
        context.storage,
        careful.tips,
        careful.listed.tag_targets,
        # Others may have expired and collected what it listed when it was read last.
        lambda: context.refs.listed_history(FIRST_SNAPSHOT_ID, reread=True),
    )
    return RefTargets(tips, tags)


class MarkedManifest(NamedTuple):
    """A manifest that is reached, as a small value for other processes."""

    id: ManifestId
    size_bytes: int
    checksum: int
    is_doubtful: bool
    """Whether it may be missing: see `Marks.add_snapshot`."""


class Marks:
    """The snapshots that are reached, and the objects that they refer to."""

    def __init__(
        self, context: Context, limits: MemoryLimits = DEFAULT_LIMITS, *, verify: bool = False
    ) -> None:
        """Start with nothing reached; `verify` compares everything that is read with checksums."""
        limits.check()
        self.limits = limits
        read_ahead = max(1, min(limits.requests, limits.snapshots // 2))
        # Private: a shared cache would hide that an object is gone.
        budget = CacheBudget(
            manifests=1 << 28, snapshot_count=limits.snapshots - read_ahead, is_private=True
        )
        # Verification compares the files of snapshots itself, to report all that differ.
        listed = None if verify else context.refs.snapshot_files
        # What the repository's own references remember may have been collected in the meantime.
        refs = context.format.make_refs(context.storage) if verify else context.refs
        self.files = MetadataFiles(
            context.storage,
            context.format,
            budget,
            min(limits.manifest_fetches, AT_ONCE),
            verify=verify,
            listed=listed,
            complete=refs.complete,
        )
        self.history = History(self.files, refs, CachedCuts(context.storage), read_ahead)
        self._read_ahead = read_ahead
        self.snapshots: set[SnapshotId] = set()
        self._earlier_logs: set[SnapshotId] = set()
        """Snapshots of which only the logs are needed."""
        self._walked: set[SnapshotId] = set()
        """Those of them whose ancestors are marked, too, or will be."""
        self.settled: Collection[SnapshotId] = frozenset()
        """Snapshots at which histories end here, because nothing depends on those before."""
        self.num_refs = 0
        """Number of chunk references in all manifests."""
        self._manifests = IdSet()
        self._infos: dict[bytes, ManifestFileInfo] = {}
        self._doubtful: set[ManifestId] = set()
        """Manifests that only snapshots refer to which need not be whole."""
        self._attributes = IdSet()

    def add_history(self, snapshot_id: SnapshotId, *, is_whole: bool = True) -> None:
        """Mark one history: see `add_histories`."""
        self.add_histories([snapshot_id], is_whole=is_whole)

    def add_histories(self, targets: Iterable[SnapshotId], *, is_whole: bool = True) -> None:
        """Mark snapshots, their ancestors, and the tips that they merged: later merges start there.

        A snapshot names many of its ancestors, so that they are read at the same time.

        Raises:
            SnapshotNotFoundError: If one is missing, unless histories need not be whole.
        """
        todo = list(targets)
        while missing := self._walk(todo, is_whole=is_whole):
            known = self.history.cuts.all()
            if self.history.cuts.reread() <= known:
                self._explain(missing)
                return
            # An expiry cut histories since the cuts were read, and another garbage collection
            # deleted what is behind them: walk again, up to the new cuts.

    def _walk(self, targets: list[SnapshotId], *, is_whole: bool) -> _Missing:
        """Mark histories; returns the snapshots that are missing although they must be there."""
        cuts = self.history.cuts.all()
        merged: list[SnapshotId] = []
        walked: set[SnapshotId] = set()
        unread: _Unread = {}
        missing: _Missing = {}
        for target in targets:
            self._want(unread, [target], None)
        stage = ProgressStage("snapshots", None)
        while unread:
            batch = dict(islice(unread.items(), self._read_ahead))
            for snapshot_id in batch:
                del unread[snapshot_id]
            walked.update(batch)
            self._walked.update(batch)
            read = self.files.find_snapshots(list(batch))
            stage.update(len(walked), len(walked) + len(unread))
            for (snapshot_id, children), snapshot in zip(batch.items(), read, strict=True):
                if snapshot is None:
                    self._walked.discard(snapshot_id)
                    if is_whole:
                        missing.setdefault(snapshot_id, set()).update(children)
                    continue
                self.add_snapshot(snapshot, is_whole=is_whole)
                merged += snapshot.merged_ids()
                self._want(unread, self._parents(snapshot, cuts, unread), snapshot.id)
        self._add_present(merged)
        if missing:
            self._walked -= walked
        return missing

    def _want(
        self, unread: _Unread, snapshots: Iterable[SnapshotId], child: SnapshotId | None
    ) -> None:
        """Have snapshots read, each of which is the parent of the one before; the first of child's.

        What is on the way to be marked is not read again, nor is what comes before it.
        """
        for snapshot_id in snapshots:
            if snapshot_id in self._walked or snapshot_id in self.settled:
                return
            unread.setdefault(snapshot_id, set()).add(child)
            child = snapshot_id

    def _parents(
        self,
        snapshot: Snapshot,
        cuts: Collection[SnapshotId],
        unread: Collection[SnapshotId],
    ) -> list[SnapshotId]:
        """The ancestors of a snapshot that it names, unless a descendant has named its parent."""
        if snapshot.id in cuts:
            root = self.history.cuts.root_behind(snapshot.id)
            return [] if root is None or root == snapshot.id else [root]
        if snapshot.parent_id is None or snapshot.parent_id in unread:
            return []
        return up_to_cut([stub.id for stub in snapshot.history] or [snapshot.parent_id], cuts)

    def _explain(self, missing: _Missing) -> None:
        """Mark the objects that replace missing snapshots; raises if a history is damaged."""
        for snapshot_id, children in missing.items():
            for child in children:
                if child is None:
                    self.files.read_snapshot(snapshot_id)
                elif child not in missing:  # otherwise the history ended before it
                    descendant = self.files.read_snapshot(child)
                    for snapshot in self.history.instead_of_missing(descendant, snapshot_id):
                        self.add_snapshot(snapshot)
                    # Who expired them may have listed their logs only now.
                    self._earlier_logs.update(self.history.refs.earlier_logs(child) or ())

    def add_paths(self, tips: Iterable[SnapshotId], bases: Collection[SnapshotId]) -> None:
        """Mark the snapshots between bases and tips that descend from them, even expired ones.

        A session that is based on one of them must be able to rebase to the tip.
        """
        for tip in tips:
            missing, path = set(bases), list[SnapshotId]()
            with contextlib.suppress(SnapshotNotFoundError):
                for stub in self.history.recorded_stubs(tip):
                    if stub.id in missing:
                        missing.discard(stub.id)
                        self._add_present(path)
                        path.clear()
                    if not missing:
                        break
                    path.append(stub.id)

    def _add_present(self, snapshots: Iterable[SnapshotId]) -> None:
        todo = [each for each in dict.fromkeys(snapshots) if each not in self.snapshots]
        for start in range(0, len(todo), self._read_ahead):
            batch = todo[start : start + self._read_ahead]
            for snapshot in self.files.find_snapshots(batch):
                if snapshot is not None:
                    self.add_snapshot(snapshot)

    def add_snapshot(self, snapshot: Snapshot, *, is_whole: bool = True) -> None:
        """Mark a snapshot without its ancestors; its manifests may be missing unless it is whole.

        So it is with one that was written after a collection had deleted what it refers to: its
        writer was suspended for long, and will not publish it.
        """
        self.snapshots.add(snapshot.id)
        self._earlier_logs.update(self.history.refs.earlier_logs(snapshot.id) or ())
        self._manifests.add_each([info.id for info in snapshot.manifests])
        for info in snapshot.manifests:
            if info.id not in self._infos:
                self._infos[info.id] = info
                self.num_refs += info.num_chunk_refs
                if not is_whole:
                    self._doubtful.add(info.id)
            elif is_whole and self._doubtful:
                self._doubtful.discard(info.id)
        self._attributes.add_each([info.id for info in snapshot.attribute_files])

    def snapshot_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the marked snapshots."""
        return id_set(self.snapshots)

    def log_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the snapshots whose logs are needed."""
        return id_set(self.snapshots | self._earlier_logs)

    def manifest_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the marked manifests."""
        return self._manifests.sorted()

    def attribute_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the marked attribute files."""
        return self._attributes.sorted()

    def marked_manifests(
        self, ids: npt.NDArray[np.bytes_] | None = None
    ) -> Iterator[MarkedManifest]:
        """All marked manifests, or those with some ids, as `add_manifests` of others takes them."""
        for value in (self.manifest_ids() if ids is None else ids).tolist():
            manifest_id = ManifestId(id_bytes(value))
            info = self._infos[manifest_id]
            is_doubtful = manifest_id in self._doubtful
            yield MarkedManifest(
                id=manifest_id,
                size_bytes=info.size_bytes,
                checksum=info.checksum,
                is_doubtful=is_doubtful,
            )

    def add_manifests(self, manifests: Iterable[MarkedManifest]) -> None:
        """Mark manifests that another process has marked."""
        for manifest_id, size_bytes, checksum, is_doubtful in manifests:
            self._manifests.add_each([manifest_id])
            self._infos[manifest_id] = ManifestFileInfo(
                manifest_id, size_bytes, 0, checksum=checksum
            )
            if is_doubtful:
                self._doubtful.add(manifest_id)

    def manifests(self, ids: npt.NDArray[np.bytes_] | None = None) -> Iterator[Manifest]:
        """Read all marked manifests, or those with some ids, a few at a time."""
        wanted = (self.manifest_ids() if ids is None else ids).tolist()
        return track(self._in_windows(wanted), "manifests", len(wanted))

    def _in_windows(self, ids: list[bytes]) -> Iterator[Manifest]:
        window: list[ManifestId] = []
        held = 0
        at_once = min(self.limits.manifest_fetches, AT_ONCE)
        for value in ids:
            manifest_id = ManifestId(id_bytes(value))
            size = self._infos[manifest_id].size_bytes if manifest_id in self._infos else 0
            if window and (len(window) >= at_once or held + size > self.limits.manifest_bytes):
                yield from self._read(window)
                window, held = [], 0
            window.append(manifest_id)
            held += size
        yield from self._read(window)

    def _read(self, window: list[ManifestId]) -> Iterator[Manifest]:
        for manifest in self.files.in_parallel(self._open, window):
            if manifest is not None:
                yield manifest

    def _open(self, manifest_id: ManifestId) -> Manifest | None:
        info = self._infos.get(manifest_id)
        size, checksum = (0, 0) if info is None else (info.size_bytes, info.checksum)
        try:
            return self.files.manifest(manifest_id, size, checksum)
        except FormatError:
            key = self.files.format.layout.manifest(manifest_id)
            if manifest_id in self._doubtful and not is_there(self.files.storage, key):
                return None
            raise

    def chunk_file_ids(self, ids: npt.NDArray[np.bytes_] | None = None) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the chunk files that all, or some, marked manifests refer to."""
        file_ids = IdSet()
        for manifest in self.manifests(ids):
            for block in manifest.blocks():
                file_ids.add(native_files(block.refs))
        return file_ids.sorted()


def native_files(refs: ChunkRefs) -> npt.NDArray[np.bytes_]:
    """Ids of the chunk files that references use, possibly with duplicates."""
    native = refs.kinds == ChunkKind.NATIVE
    sources = refs.sources if native.all() else refs.sources[native]
    used = np.zeros(len(refs.files), dtype=np.bool_)
    used[sources] = True
    return as_ids(refs.files[used])


def first_snapshots(marks: Marks) -> list[SnapshotId]:
    """Snapshots that are never deleted: the first one, and those where expired histories end."""
    cuts = marks.history.cuts
    roots = each_at_once(marks.files.storage, cuts.root_behind, cuts.all(), marks.limits.requests)
    return [FIRST_SNAPSHOT_ID, *sorted({root for root in roots if root is not None})]
