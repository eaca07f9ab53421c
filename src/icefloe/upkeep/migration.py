"""Copies a repository to another generation of the format, with all of its history.

M1  Objects keep their ids. Chunk files are linked, or copied by the store itself, where source and
    target share a disk or a bucket; their bytes never change.
M2  Chunk files are copied first, then manifests, attribute files, logs and snapshots, the oldest
    first; then tags and branches, and `main` last. Until then the target is not a repository.
M3  Objects that exist in the target are not written again: a migration that died is started again
    and continues. Nodes get the same numbers on each run, in the order in which the history created
    them.
M4  At the end every snapshot is compared with its original, and the target is verified.
M5  Nothing of the source is collected in the meantime: history that expires after it was surveyed
    is copied all the same. Later each of the two collects its own names; shared bytes stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.config.serialization import to_json
from icefloe.engine.commit.node_numbers import NEXT_NODE
from icefloe.engine.context import Context, VirtualAccess
from icefloe.engine.history.expired_parents import CachedCuts, Cuts
from icefloe.engine.history.walk import History
from icefloe.engine.retention.leases import default_holder, lease_on_everything
from icefloe.engine.retention.marking import read_references
from icefloe.engine.tree.grid_checks import no_bytes
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    StoragePermissionError,
)
from icefloe.formats.file_sums import sum_of
from icefloe.formats.port import NODE_NUMBERS, NodeNumbering, ObjectKind
from icefloe.formats.registry import detect, format_for
from icefloe.html_tables import Report
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID, ChunkFileId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.snapshot import (
    AttributesFileInfo,
    FileSum,
    Snapshot,
    SnapshotStub,
    merged_mark,
)
from icefloe.objects.metadata import MetadataFiles
from icefloe.storage.copying import CopyMethod, copy_object
from icefloe.storage.presence import is_there
from icefloe.storage.probe import ensure_conditional_writes
from icefloe.upkeep.migration_copies import CopyProof, NewIds, narrow
from icefloe.upkeep.verification import verify_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from icefloe.engine.retention.leases import Lease
    from icefloe.engine.retention.marking import RefTargets
    from icefloe.formats.port import Generation
    from icefloe.model.ids import AttributesId
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.storage.port import Storage
    from icefloe.upkeep.findings import Problem

    Progress = Callable[[str, int, int], None]
    FileCopier = Callable[[list[tuple[str, str]]], Iterable[CopyMethod]]
    """Copies objects, given by their keys in source and target; returns how each was copied."""

logger = logging.getLogger(__name__)

_HISTORY = 16


class MigrationReport(Report, frozen=True):
    """What a migration copied, including objects that an earlier run had copied."""

    generation: str
    spec_version: int
    snapshots: int
    manifests: int
    attribute_files: int
    chunk_files: int
    copied: dict[str, int]
    """Number of chunk files by how this run copied them: `linked`, `server-side` (by the store) or
    `transferred`."""
    branches: int
    tags: int
    problems: tuple[str, ...] = ()
    """What `verify` found in the target; empty if there is nothing wrong."""


def migrate_repository(
    source: Context,
    target: Storage,
    *,
    generation: str,
    spec_version: int | None = None,
    progress: Progress | None = None,
    copy_files: FileCopier | None = None,
    dry_run: bool = False,
) -> MigrationReport:
    """Copy a repository as described in the module; raises FormatError if the copy is not equal.

    With `copy_files`, that copies all chunk files, before the first manifest is written. A dry run
    counts what there is to copy.
    """
    fmt = format_for(generation, spec_version)
    if target.location == source.storage.location:
        raise InvalidInputError(
            f"{target.location} holds the repository itself: migrate it to another place"
        )
    existing = detect(target)
    if existing is not None:
        raise AlreadyExistsError(
            f"a repository exists already at {target.location} ({existing.name}, spec version "
            f"{existing.spec_version}); migrate to an empty place"
        )
    migration = _Migration(source, target, fmt, progress or _quiet)
    if dry_run:
        return migration.count()
    ensure_conditional_writes(target)
    with _without_collections(source.storage):
        return migration.run(copy_files)


@contextlib.contextmanager
def _without_collections(storage: Storage) -> Iterator[None]:
    """Keep garbage collection away from the source (M5), if it can be written to at all."""
    lease = lease_on_everything(storage, f"migration by {default_holder()}")
    if not _take(lease, storage):
        logger.warning(
            "%s may not be written to, so that it is migrated without a lease: see to it that "
            "nobody collects garbage there meanwhile",
            storage.location,
        )
    try:
        yield
    finally:
        lease.release()


def _take(lease: Lease, storage: Storage) -> bool:
    """Take a lease and renew it in the background; False where nothing may be written."""
    if not storage.capabilities.can_write:
        return False
    try:
        lease.take()
    except StoragePermissionError as error:
        logger.debug("no lease on %s: %s", storage.location, error)
        return False
    lease.renew_later()
    return True


def _quiet(stage: str, done: int, total: int) -> None:
    del stage, done, total


def _part_of(manifest_id: ManifestId, node_id: NodeId) -> ManifestId:
    """The id of what a manifest has of one array, where arrays share none; on each run the same."""
    return ManifestId(hashlib.blake2b(manifest_id + node_id, digest_size=12).digest())


class _Migration:
    def __init__(
        self, source: Context, target: Storage, fmt: Generation, progress: Progress
    ) -> None:
        self._source = source
        # What has expired before now is not copied, and may be gone.
        self._history = History(source.files, source.refs, CachedCuts(source.storage))
        self._target = target
        self._format = fmt
        self._progress = progress
        self._files = MetadataFiles(target, fmt)
        self._parents: dict[SnapshotId, list[SnapshotStub]] = {}
        """All snapshots, oldest first, with their nearest ancestors after expiry."""
        self._depths: dict[SnapshotId, int] = {}
        self._without_file: dict[SnapshotId, Snapshot] = {}
        """Snapshots that have no file."""
        self._parts: dict[ManifestId, dict[NodeId, int]] = {}
        """Arrays that some snapshot has in each manifest, with their ranks."""
        self._infos: dict[ManifestId, ManifestFileInfo] = {}
        self._attributes: dict[AttributesId, FileSum] = {}
        """Attribute files, with size and checksum in the target."""
        self._sums: dict[SnapshotId, FileSum] = {}
        """Snapshot files of the target, with size and checksum."""
        self._ids = NewIds(fmt.node_numbering)
        self._chunk_files: set[ChunkFileId] = set()
        self._arrays: set[NodeId] = set()
        """All arrays."""
        self._paths: dict[NodeId, str] = {}
        """The newest path of each array, for errors."""
        refs = fmt.make_refs(target)
        self._can_move = refs.records_moves
        self._lists_expired = refs.lists_snapshots
        self._copied = dict.fromkeys(CopyMethod, 0)
        self._new_infos: dict[ManifestId, ManifestFileInfo] = {}
        self._new_refs: dict[tuple[ManifestId, NodeId], ManifestRef | None] = {}

    def count(self) -> MigrationReport:
        """What there is to copy; nothing is written."""
        refs = self._survey_all()
        for manifest_id, nodes in self._parts.items():
            self._new_files(self._tables(manifest_id, nodes).values(), {})
        return self._report(refs, ())

    def _survey_all(self) -> RefTargets:
        refs = read_references(self._source)
        # Refuse names that the target cannot have before anything is copied.
        self._format.make_refs(self._target).check_names(refs.branches, refs.tags)
        self._survey(sorted(refs.all()))
        return refs

    def run(self, copy_files: FileCopier | None) -> MigrationReport:
        refs = self._survey_all()
        present = {kind: self._present(kind) for kind in ObjectKind}
        if copy_files is not None:
            self._copy_ahead(copy_files, present[ObjectKind.CHUNK_FILE])
        self._copy_manifests(present)
        if self._format.keeps_attribute_files:
            self._copy_attributes(present[ObjectKind.ATTRIBUTES])
        self._copy_snapshots(present)
        config = self._config()
        self._copy_cuts()
        if config is not None and not self._format.make_config(self._target).is_with_refs:
            self._copy_config(config)
        self._target.sync()
        copy = Context(
            self._target, self._format, self._source.config, VirtualAccess({}, frozenset())
        )
        self._compare_all(copy)
        self._publish(refs, config)
        return self._report(refs, verify_repository(copy).problems)

    def _report(self, refs: RefTargets, problems: Iterable[Problem]) -> MigrationReport:
        return MigrationReport(
            generation=self._format.name,
            spec_version=self._format.spec_version,
            snapshots=len(self._parents),
            manifests=len(self._parts),
            attribute_files=len(self._attributes) if self._format.keeps_attribute_files else 0,
            chunk_files=len(self._chunk_files),
            copied={str(method): count for method, count in self._copied.items() if count},
            branches=len(refs.branches),
            tags=len(refs.tags),
            problems=tuple(map(str, problems)),
        )

    # --- what there is

    def _survey(self, targets: Iterable[SnapshotId]) -> None:
        """Find all snapshots, what they refer to, and the numbers of their nodes."""
        for target in targets:
            if target in self._parents:
                continue
            chain = []
            for snapshot in self._history.ancestry(target):
                chain.append(snapshot.stub())
                if not self._has_file(snapshot):
                    self._without_file[snapshot.id] = snapshot
            for place, stub in enumerate(chain):
                self._parents.setdefault(stub.id, chain[place + 1 : place + 1 + _HISTORY])
                self._depths.setdefault(stub.id, len(chain) - 1 - place)
        ordered = sorted(self._parents, key=lambda each: (self._depths[each], each))
        self._parents = {each: self._parents[each] for each in ordered}
        for number, snapshot_id in enumerate(ordered):
            self._survey_snapshot(self._read(snapshot_id))
            self._progress("survey", number + 1, len(ordered))

    def _has_file(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot has a file; the first one of old layouts has none."""
        key = self._source.format.layout.snapshot(snapshot.id)
        is_later = bool(snapshot.total_parents or len(snapshot.nodes))
        return is_later or is_there(self._source.storage, key)

    def _read(self, snapshot_id: SnapshotId) -> Snapshot:
        snapshot = self._without_file.get(snapshot_id)
        return self._source.files.read_snapshot(snapshot_id) if snapshot is None else snapshot

    def _survey_snapshot(self, snapshot: Snapshot) -> None:
        self._infos.update({info.id: info for info in snapshot.manifests})
        for info in snapshot.attribute_files:
            self._attributes.setdefault(info.id, FileSum())
        for node in snapshot.nodes:
            self._ids.node(node.id)  # by the order in which they are met (M3)
            if node.attributes is not None:
                self._attributes.setdefault(node.attributes.file, FileSum())
            if node.is_array:
                self._arrays.add(node.id)
                self._paths[node.id] = node.path
                for ref in node.manifests:
                    self._parts.setdefault(ref.manifest_id, {})[node.id] = node.array.rank

    def _present(self, kind: ObjectKind) -> dict[str, int]:
        """Objects of a kind that the target has already, with their sizes."""
        folder = self._format.layout.folder(kind)
        return {info.key: info.size for info in self._target.list(folder)}

    # --- copying

    def _copy_manifests(self, present: Mapping[ObjectKind, Mapping[str, int]]) -> None:
        for number, (manifest_id, nodes) in enumerate(self._parts.items()):
            tables = self._tables(manifest_id, nodes)
            self._copy_chunk_files(tables.values(), present[ObjectKind.CHUNK_FILE])
            new_id = narrow(manifest_id)
            parts = [(self._ids.node(node_id), table) for node_id, table in tables.items()]
            is_shared = self._format.keeps_manifest_sets or len(parts) == 1
            for node_id in nodes:
                table = tables.get(node_id)
                in_manifest = new_id if is_shared else _part_of(new_id, self._ids.node(node_id))
                self._new_refs[manifest_id, node_id] = (
                    None if table is None else ManifestRef(in_manifest, table.index.box, len(table))
                )
            files = {new_id: parts} if is_shared else {_part_of(new_id, p[0]): [p] for p in parts}
            known = self._infos.get(manifest_id)
            for file_id, contents in files.items():
                if contents:
                    set_name = "" if known is None else known.set_name
                    self._copy_manifest(file_id, contents, set_name, present[ObjectKind.MANIFEST])
            self._progress("manifests", number + 1, len(self._parts))

    def _copy_manifest(
        self,
        new_id: ManifestId,
        parts: list[tuple[NodeId, ArrayChunks]],
        set_name: str,
        present: Mapping[str, int],
    ) -> None:
        key = self._format.layout.manifest(new_id)
        if key in present:
            held = self._sum_of(key)
        else:
            file = self._format.codec.encode_manifest(parts, manifest_id=new_id)
            held = self._put(key, file.data, file.attributes)
        self._new_infos[new_id] = ManifestFileInfo(
            id=new_id,
            size_bytes=held.size_bytes,
            num_chunk_refs=sum(len(table) for _, table in parts),
            set_name=set_name,
            checksum=held.checksum,
        )

    def _tables(
        self, manifest_id: ManifestId, nodes: Mapping[NodeId, int]
    ) -> dict[NodeId, ArrayChunks]:
        info = self._infos.get(manifest_id)
        manifest = self._source.files.manifest(manifest_id, 0 if info is None else info.size_bytes)
        tables = {}
        for node_id, rank in nodes.items():
            table = manifest.array(node_id, rank)
            if table is not None and len(table):
                self._check_empty(node_id, table)
                tables[node_id] = ArrayChunks(table.index, self._ids.chunk_files(table.refs))
        return tables

    def _check_empty(self, node_id: NodeId, table: ArrayChunks) -> None:
        """Refuse chunks without bytes that the source can have, and the target cannot."""
        if self._format.keeps_empty_chunks or not self._source.format.keeps_empty_chunks:
            return
        empty = np.flatnonzero(table.refs.lengths == 0)
        if len(empty):
            raise no_bytes(self._paths[node_id], table.index.coords()[empty[0]].tolist())

    def _copy_ahead(self, copy_files: FileCopier, present: Mapping[str, int]) -> None:
        """Copy the chunk files of all manifests."""
        todo: list[ChunkFileId] = []
        for manifest_id, nodes in self._parts.items():
            todo += self._new_files(self._tables(manifest_id, nodes).values(), present)
        for method in copy_files([self._keys(each) for each in todo]):
            self._copied[method] += 1

    def _copy_chunk_files(self, tables: Iterable[ArrayChunks], present: Mapping[str, int]) -> None:
        for method in self._files.in_parallel(
            self._copy_chunk_file, self._new_files(tables, present)
        ):
            self._copied[method] += 1
        self._progress("chunk files", len(self._chunk_files), len(self._chunk_files))

    def _new_files(
        self, tables: Iterable[ArrayChunks], present: Mapping[str, int]
    ) -> list[ChunkFileId]:
        """The chunk files of some references that no earlier ones had, and the target has not."""
        needed: set[ChunkFileId] = set()
        for table in tables:
            native = table.refs.kinds == ChunkKind.NATIVE
            used = np.unique(table.refs.sources[native])
            needed.update(ChunkFileId(row.tobytes()) for row in table.refs.files[used])
        new = sorted(needed - self._chunk_files)
        self._chunk_files.update(new)
        return [each for each in new if self._format.layout.chunk_file(each) not in present]

    def _keys(self, file_id: ChunkFileId) -> tuple[str, str]:
        """The keys of a chunk file in source and target."""
        original = self._ids.original(file_id)
        source = self._source.format.layout.chunk_file(original)
        return source, self._format.layout.chunk_file(file_id)

    def _copy_chunk_file(self, file_id: ChunkFileId) -> CopyMethod:
        source, target = self._keys(file_id)
        return copy_object(self._source.storage, source, self._target, target)

    def _copy_attributes(self, present: Mapping[str, int]) -> None:
        for number, file_id in enumerate(self._attributes):
            key = self._format.layout.attributes(narrow(file_id))
            if key in present:
                self._attributes[file_id] = self._sum_of(key)
                continue
            old_key = self._source.format.layout.attributes(file_id)
            rows = self._source.format.codec.decode_attributes(
                self._source.storage.get(old_key), old_key
            )
            file = self._format.codec.encode_attributes(rows)
            self._attributes[file_id] = self._put(key, file.data, file.attributes)
            self._progress("attribute files", number + 1, len(self._attributes))

    def _copy_snapshots(self, present: Mapping[ObjectKind, Mapping[str, int]]) -> None:
        layout, codec = self._format.layout, self._format.codec
        for number, snapshot_id in enumerate(self._parents):
            new_id = narrow(snapshot_id)
            key = layout.snapshot(new_id)
            if key in present[ObjectKind.SNAPSHOT]:
                self._sums[new_id] = self._sum_of(key)
                continue
            renamed = self._renamed(self._read(snapshot_id))
            if self._format.keeps_logs and self._parents[snapshot_id]:
                log_key = layout.transaction_log(new_id)
                if log_key in present[ObjectKind.TRANSACTION_LOG]:
                    log_file = self._sum_of(log_key)
                else:
                    log = self._ids.log(self._log_of(snapshot_id))
                    file = codec.encode_transaction_log(log, renamed)
                    log_file = self._put(log_key, file.data, file.attributes)
                renamed = msgspec.structs.replace(renamed, log_file=log_file)
            file = codec.encode_snapshot(renamed)
            self._sums[new_id] = self._put(key, file.data, file.attributes)
            self._progress("snapshots", number + 1, len(self._parents))

    def _log_of(self, snapshot_id: SnapshotId) -> TransactionLog:
        """The log of a commit, without what expired before it: cuts tell of that.

        But with it where references list the commits that expired: those are not there any more.
        """
        if self._lists_expired and snapshot_id in self._cut:
            parent = self._parents[snapshot_id][0].id
            log = self._history.changes_between(parent, snapshot_id)
        else:
            log = self._history.own_log(snapshot_id)
        log = self._history.log(snapshot_id) if log is None else log
        if not log.moves or self._can_move:
            return log
        # What moved has changed, for all that the target can tell.
        moved = {move.node_id for move in log.moves}
        arrays = {each for each in moved if each in self._arrays}
        return msgspec.structs.replace(
            log,
            moves=(),
            updated_arrays=log.updated_arrays | arrays,
            updated_groups=log.updated_groups | (moved - arrays),
        )

    def _copy_cuts(self) -> None:
        """Copy where histories were cut by expiry: a merge must not start there."""
        cuts = Cuts(self._target)
        for snapshot_id in sorted(self._cut):
            parents = self._parents[snapshot_id]
            if parents:
                cuts.add(narrow(snapshot_id), narrow(parents[0].id))

    @cached_property
    def _cut(self) -> set[SnapshotId]:
        """Snapshots after which expiry cut the history of the source."""
        refs, cuts = self._history.refs, self._history.cuts.all()
        return {
            each
            for each, parents in self._parents.items()
            if each in cuts or refs.earlier_logs(each) or self._has_lost_parents(each, parents)
        }

    def _has_lost_parents(self, snapshot_id: SnapshotId, parents: list[SnapshotStub]) -> bool:
        """Whether a snapshot follows the first one, although its log has nodes before it."""
        is_second = len(parents) > 0 and parents[0].id == FIRST_SNAPSHOT_ID
        return is_second and not self._history.has_whole_log(self._read(snapshot_id))

    def _renamed(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot as the target has it."""
        history = tuple(
            SnapshotStub(narrow(stub.id), stub.written_at, stub.message)
            for stub in self._parents[snapshot.id]
        )
        nodes = [self._renamed_node(node, snapshot) for node in snapshot.nodes]
        used = {ref.manifest_id for node in nodes for ref in node.manifests}
        files = set()
        if self._format.keeps_attribute_files:
            files = {node.attributes.file for node in snapshot.nodes if node.attributes is not None}
        metadata = {
            name: value
            for name, value in snapshot.metadata.items()
            if name not in {NEXT_NODE, NODE_NUMBERS}
        }
        metadata |= merged_mark(
            map(narrow, snapshot.merged_ids()), map(narrow, snapshot.merged_line())
        )
        if self._format.node_numbering is NodeNumbering.SEQUENTIAL:
            metadata[NEXT_NODE] = self._ids.num_nodes
        return msgspec.structs.replace(
            snapshot,
            id=narrow(snapshot.id),
            parent_id=history[0].id if history else None,
            metadata=metadata,
            total_parents=self._depths[snapshot.id],
            history=history,
            manifests=tuple(info for each, info in sorted(self._new_infos.items()) if each in used),
            attribute_files=tuple(self._attributes_info(each) for each in sorted(files)),
            nodes=NodeTable.of(nodes),
            log_file=None,
            parent_file=self._sums.get(history[0].id) if history else None,
        )

    def _attributes_info(self, file_id: AttributesId) -> AttributesFileInfo:
        held = self._attributes[file_id]
        return AttributesFileInfo(narrow(file_id), held.size_bytes, held.checksum)

    def _renamed_node(self, node: Node, snapshot: Snapshot) -> Node:
        refs = [self._new_refs[ref.manifest_id, node.id] for ref in node.manifests]
        attributes = node.attributes
        if attributes is not None:
            attributes = AttributesRef(narrow(attributes.file), attributes.row, attributes.position)
        renamed = node.evolve(id=self._ids.node(node.id), attributes=attributes)
        if attributes is not None and not self._format.keeps_attribute_files:
            document = self._source.files.document(node, snapshot)
            renamed = renamed.evolve(document=document, attributes=None)
        if not renamed.is_array:
            return renamed
        return renamed.evolve(manifests=tuple(ref for ref in refs if ref is not None))

    def _config(self) -> bytes | None:
        """The configuration stored with the source, whatever it was opened with."""
        stored = self._source.format.make_config(self._source.storage)
        newest = stored.read()
        if newest is not None:
            return newest[1]
        return None if stored.read_legacy() is None else to_json(self._source.config)

    def _copy_config(self, data: bytes) -> None:
        files = self._format.make_config(self._target)
        present = files.read()
        if present is None or present[1] != data:
            files.write(None if present is None else present[0], data)

    def _put(self, key: str, data: bytes, attributes: dict[str, str]) -> FileSum:
        keeps = self._target.capabilities.keeps_attributes
        self._target.put(key, data, attributes if keeps else None)
        return sum_of(data)

    def _sum_of(self, key: str) -> FileSum:
        """Size and checksum of a file that an earlier run left in the target."""
        return sum_of(self._target.get(key))

    # --- publishing

    def _publish(self, refs: RefTargets, config: bytes | None) -> None:
        """Create the references, `main` last (M2), unless an earlier run did."""
        self._format.make_refs(self._target).create_all(
            {name: narrow(target) for name, target in refs.branches.items()},
            {name: narrow(target) for name, target in refs.tags.items()},
            map(self._as_listed, self._parents),
            config,
        )

    def _as_listed(self, snapshot_id: SnapshotId) -> Snapshot:
        """A snapshot as what lists the snapshots of the target needs it."""
        parents = self._parents[snapshot_id]
        copy = self._files.read_snapshot(narrow(snapshot_id))
        return msgspec.structs.replace(copy, parent_id=narrow(parents[0].id) if parents else None)

    # --- proof

    def _compare_all(self, copy: Context) -> None:
        """Compare every snapshot with its original (M4), before the target is a repository."""
        proof = CopyProof(self._source.files, copy.files, self._ids.chunk_files)
        for number, snapshot_id in enumerate(self._parents):
            twin = copy.files.read_snapshot(narrow(snapshot_id))
            proof.compare(self._read(snapshot_id), twin)
            self._progress("compare", number + 1, len(self._parents))
