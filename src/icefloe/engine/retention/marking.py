"""Finds everything that branches, tags and leases reach. Reads through caches of its own.

Nothing is guessed: what cannot be read raises, and then nothing is deleted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from icefloe.engine.history.expired_parents import SeenCuts
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


class Limits(NamedTuple):
    """How much is held in memory at a time."""

    snapshots: int = 50
    """Those that are kept and those that are being read, together."""
    manifest_bytes: int = 512 * 1024 * 1024
    manifest_fetches: int = 500

    def check(self) -> None:
        """Raise InvalidInputError for what leaves no room to work in."""
        for name, value in zip(_LIMIT_NAMES, self, strict=True):
            if value < 1:
                raise InvalidInputError(f"{name} is 1 or more, found {value}")


class _WithoutPages(ForwardingStorage):
    """A storage whose listings are not trusted to be fresh: references are found by reading."""

    @property
    def capabilities(self) -> Capabilities:
        """What the storage can do, but for quick listings."""
        return msgspec.structs.replace(self.inner.capabilities, lists_in_pages=False)


class References(NamedTuple):
    """What all branches and tags point to."""

    branches: dict[str, SnapshotId]
    tags: dict[str, SnapshotId]

    def targets(self) -> set[SnapshotId]:
        """All snapshots that something points to."""
        return {*self.branches.values(), *self.tags.values()}


class CarefulRefs:
    """References as they are now, found past a listing of a branch that may lag behind."""

    def __init__(self, context: Context) -> None:
        """Read nothing yet."""
        self.listed = context.format.make_refs(context.storage).view()
        """As listings show them."""
        self._probed = context.format.make_refs(_WithoutPages(context.storage)).view()

    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""
        listed = self.listed.tip(branch)
        if listed is not None:
            self._probed.start_at(listed)
        return self._probed.tip(branch)


def read_references(context: Context) -> References:
    """Read all references from the storage, past a listing that may lag behind."""
    careful = CarefulRefs(context)
    refs = careful.listed
    branches: dict[str, SnapshotId] = {}
    for branch in refs.branches():
        newest = next(refs.states(branch), None)
        tip = careful.tip(branch)
        if newest is not None and tip is not None and newest.sequence > tip.sequence:
            # It was found by its number, and a gap hides what comes after it.
            raise FormatError(
                f"branch {branch!r} is at entry {tip.sequence}, although there is an entry "
                f"{newest.sequence}: the sequence has a gap, and nothing is deleted; `verify` "
                "tells more, and `repair` fills the gap",
                newest.key,
            )
        if isinstance(tip, LiveTip):
            branches[branch] = tip.snapshot_id
    tags = {name: target for name in refs.tags() if (target := refs.tag(name)) is not None}
    return References(branches, tags)


class Marks:
    """What is reached: snapshots, and what they refer to."""

    def __init__(self, context: Context, limits: Limits, *, verify: bool = False) -> None:
        """Nothing is reached yet; `verify` compares all that is read with its checksums."""
        limits.check()
        self.limits = limits
        read_ahead = max(1, min(MAX_READ_AHEAD, limits.snapshots // 2))
        budget = CacheBudget(manifests=1 << 28, snapshot_count=limits.snapshots - read_ahead)
        # A storage around the storage shares no caches: what is not there any more is missed.
        storage = ForwardingStorage(context.storage)
        # Whoever verifies compares the files of snapshots by himself, to report all that differ.
        listed = None if verify else context.refs.snapshot_files
        self.files = MetadataFiles(storage, context.format, budget, verify=verify, listed=listed)
        self.history = History(self.files, context.refs, SeenCuts(context.storage), read_ahead)
        self.snapshots: set[SnapshotId] = set()
        self.num_refs = 0
        """References in all manifests."""
        self._manifests = IdSet()
        self._infos: dict[bytes, ManifestFileInfo] = {}
        self._attributes = IdSet()

    def add_history(self, snapshot_id: SnapshotId, *, is_whole: bool = True) -> None:
        """Reach a snapshot and its ancestors, and what these merged, where later merges start.

        Raises SnapshotNotFoundError if one is missing, unless the history need not be whole.
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
        """Reach what lies between snapshots and their descendants, though it may have expired.

        Whoever works on a snapshot must be able to lay his changes over what came after it.
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
        """Reach a snapshot alone."""
        self.snapshots.add(snapshot.id)
        self._manifests.add_each([info.id for info in snapshot.manifests])
        for info in snapshot.manifests:
            if info.id not in self._infos:
                self._infos[info.id] = info
                self.num_refs += info.num_chunk_refs
        self._attributes.add_each([info.id for info in snapshot.attribute_files])

    def snapshot_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the snapshots that are reached."""
        return id_set(self.snapshots)

    def manifest_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the manifests that are reached."""
        return self._manifests.sorted()

    def attribute_ids(self) -> npt.NDArray[np.bytes_]:
        """Sorted ids of the attribute files that are reached."""
        return self._attributes.sorted()

    def manifests(self, ids: npt.NDArray[np.bytes_] | None = None) -> Iterator[Manifest]:
        """Manifests that are reached, all or some, read a few at a time."""
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
        """Sorted ids of the chunk files that all or some manifests refer to; reads those."""
        found = IdSet()
        for manifest in self.manifests(ids):
            for block in manifest.blocks():
                found.add(native_files(block.refs))
        return found.sorted()


def native_files(refs: ChunkRefs) -> npt.NDArray[np.bytes_]:
    """Ids of the chunk files that references use; some may be there twice."""
    native = refs.kinds == ChunkKind.NATIVE
    sources = refs.sources if native.all() else refs.sources[native]
    used = np.zeros(len(refs.files), dtype=np.bool_)
    used[sources] = True
    return as_ids(refs.files[used])


def first_snapshots(marks: Marks) -> Iterator[SnapshotId]:
    """Snapshots that stay whatever happens: the first one, and where cut histories end."""
    yield FIRST_SNAPSHOT_ID
    for snapshot_id in marks.history.cuts.all():
        root = marks.history.cuts.root_behind(snapshot_id)
        if root is not None:
            yield root
