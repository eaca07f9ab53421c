"""Marks everything that branches, tags and leases reach, with caches of its own.

Nothing is guessed: what cannot be read raises, so that nothing is deleted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from icefloe.engine.history.expired_parents import CachedCuts
from icefloe.engine.history.walk import MAX_READ_AHEAD, History
from icefloe.engine.retention.id_sets import IdSet, as_ids, id_bytes, id_set
from icefloe.errors import FormatError, InvalidInputError, SnapshotNotFoundError
from icefloe.formats.port import LiveTip
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID, ManifestId, SnapshotId
from icefloe.objects.metadata import MAX_PARALLEL_FILES, MetadataFiles
from icefloe.objects.shared_caches import CacheBudget
from icefloe.storage.forwarding import ForwardingStorage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.formats.port import BranchTip
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.manifest import Manifest, ManifestFileInfo
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.port import Capabilities


_LIMIT_NAMES = (
    "max_snapshots_in_memory",
    "max_compressed_manifest_mem_bytes",
    "max_concurrent_manifest_fetches",
)


class MemoryLimits(NamedTuple):
    """How much a walk over all snapshots and manifests holds in memory at a time."""

    snapshots: int = 50
    """Snapshots that are cached or being read."""
    manifest_bytes: int = 512 * 1024 * 1024
    """Compressed bytes of manifests that are read at a time."""
    manifest_fetches: int = 500
    """Manifests that are read at a time."""

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

    branches: dict[str, SnapshotId]
    tags: dict[str, SnapshotId]

    def all(self) -> set[SnapshotId]:
        """All snapshots that a branch or tag points to."""
        return {*self.branches.values(), *self.tags.values()}


class CarefulRefs:
    """Branches and tags as they are now, also where listings of a branch lag behind."""

    def __init__(self, context: Context) -> None:
        """Read nothing yet."""
        self.listed = context.format.make_refs(context.storage).view()
        """The references as listings show them."""
        self._probed = context.format.make_refs(_WithoutPages(context.storage)).view()

    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""
        listed = self.listed.tip(branch)
        if listed is not None:
            self._probed.start_at(listed)
        return self._probed.tip(branch)


def read_references(context: Context) -> RefTargets:
    """Read all branches and tags from the storage, also where listings lag behind."""
    careful = CarefulRefs(context)
    refs = careful.listed
    branches: dict[str, SnapshotId] = {}
    for branch in refs.branches():
        newest = next(refs.states(branch), None)
        tip = careful.tip(branch)
        if newest is not None and tip is not None and newest.sequence > tip.sequence:
            # The tip was found by its number, and a gap hides what comes after it.
            raise FormatError(
                f"branch {branch!r} is at entry {tip.sequence}, although there is an entry "
                f"{newest.sequence}: the sequence has a gap, and nothing is deleted; `verify` "
                "tells more, and `repair` fills the gap",
                newest.key,
            )
        if isinstance(tip, LiveTip):
            branches[branch] = tip.snapshot_id
    tags = {name: target for name in refs.tags() if (target := refs.tag(name)) is not None}
    return RefTargets(branches, tags)


class Marks:
    """The snapshots that are reached, and the objects that they refer to."""

    def __init__(
        self, context: Context, limits: MemoryLimits = DEFAULT_LIMITS, *, verify: bool = False
    ) -> None:
        """Start with nothing reached; `verify` compares everything that is read with checksums."""
        limits.check()
        self.limits = limits
        read_ahead = max(1, min(MAX_READ_AHEAD, limits.snapshots // 2))
        # Private: a shared cache would hide that an object is gone.
        budget = CacheBudget(
            manifests=1 << 28, snapshot_count=limits.snapshots - read_ahead, is_private=True
        )
        # Verification compares the files of snapshots itself, to report all that differ.
        listed = None if verify else context.refs.snapshot_files
        self.files = MetadataFiles(
            context.storage, context.format, budget, verify=verify, listed=listed
        )
        self.history = History(self.files, context.refs, CachedCuts(context.storage), read_ahead)
        self.snapshots: set[SnapshotId] = set()
        self.num_refs = 0
        """Number of chunk references in all manifests."""
        self._manifests = IdSet()
        self._infos: dict[bytes, ManifestFileInfo] = {}
        self._attributes = IdSet()

    def add_history(self, snapshot_id: SnapshotId, *, is_whole: bool = True) -> None:
        """Mark a snapshot, its ancestors, and the tips that they merged: later merges start there.

        Raises:
            SnapshotNotFoundError: If one is missing, unless the history need not be whole.
        """
        if snapshot_id in self.snapshots:
            return
        merged: list[SnapshotId] = []
        try:
            for snapshot in self.history.ancestry(snapshot_id):
                if snapshot.id in self.snapshots:
                    break
                self.add_snapshot(snapshot)
                merged += snapshot.merged_ids()
        except SnapshotNotFoundError:
            if is_whole:
                raise
        self._add_present(merged)

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
        for snapshot_id in snapshots:
            if snapshot_id not in self.snapshots:
                with contextlib.suppress(SnapshotNotFoundError):
                    self.add_snapshot(self.files.read_snapshot(snapshot_id))

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Mark a snapshot without its ancestors."""
        self.snapshots.add(snapshot.id)
        self._manifests.add_each([info.id for info in snapshot.manifests])
        for info in snapshot.manifests:
            if info.id not in self._infos:
                self._infos[info.id] = info
                self.num_refs += info.num_chunk_refs
        self._attributes.add_each([info.id for info in snapshot.attribute_files])

    def snapshot_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the marked snapshots."""
        return id_set(self.snapshots)

    def manifest_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the marked manifests."""
        return self._manifests.sorted()

    def attribute_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the marked attribute files."""
        return self._attributes.sorted()

    def manifests(self, ids: npt.NDArray[np.bytes_] | None = None) -> Iterator[Manifest]:
        """Read all marked manifests, or those with some ids, a few at a time."""
        window: list[ManifestId] = []
        held = 0
        at_once = min(self.limits.manifest_fetches, MAX_PARALLEL_FILES)
        for value in (self.manifest_ids() if ids is None else ids).tolist():
            manifest_id = ManifestId(id_bytes(value))
            size = self._infos[manifest_id].size_bytes if manifest_id in self._infos else 0
            if window and (len(window) >= at_once or held + size > self.limits.manifest_bytes):
                yield from self.files.in_parallel(self._open, window)
                window, held = [], 0
            window.append(manifest_id)
            held += size
        yield from self.files.in_parallel(self._open, window)

    def _open(self, manifest_id: ManifestId) -> Manifest:
        info = self._infos.get(manifest_id)
        if info is None:
            return self.files.manifest(manifest_id, 0)
        return self.files.manifest(manifest_id, info.size_bytes, info.checksum)

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


def first_snapshots(marks: Marks) -> Iterator[SnapshotId]:
    """Snapshots that are never deleted: the first one, and those where expired histories end."""
    yield FIRST_SNAPSHOT_ID
    for snapshot_id in marks.history.cuts.all():
        root = marks.history.cuts.root_behind(snapshot_id)
        if root is not None:
            yield root
