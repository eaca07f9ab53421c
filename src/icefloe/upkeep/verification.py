"""Verifies everything that branches and tags reach, and reports what is wrong with it.

Bypasses all shared caches, changes nothing, and does not stop at the first problem. Others may
write and collect garbage at the same time:

- References are read first and objects are listed after that, so the listing has everything that
  was written before a reference that was read.
- A problem is reported only if branches and tags still reach it afterwards: nobody can let a
  reference point to a snapshot again once it was collected. What they no longer reach may have been
  collected, and may have hidden that others need the same object; so everything is checked again.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from icefloe.config.serialization import from_json
from icefloe.engine.history.walk import compared_step
from icefloe.engine.retention.marking import Marks, first_snapshots
from icefloe.engine.retention.stored_objects import (
    ListedSizes,
    StoredObjects,
    key_maker,
    list_objects,
)
from icefloe.errors import FormatError, IcefloeError, SnapshotNotFoundError, StorageError
from icefloe.formats.port import ObjectKind
from icefloe.model.nodes import ArrayNode
from icefloe.objects.expected import Referrer, differs, not_expected
from icefloe.progress import ProgressStage
from icefloe.storage.concurrency import each_at_once, together
from icefloe.upkeep.checks import (
    ArrayOfSnapshot,
    CheckedPart,
    LocalChunkChecks,
    check_branch,
    log_errors,
)
from icefloe.upkeep.findings import Orphans, Problem, ProblemKind, VerificationReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.engine.context import Context
    from icefloe.engine.history.walk import History
    from icefloe.formats.port import Refs
    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import ManifestFileInfo
    from icefloe.model.nodes import ManifestRef, Node
    from icefloe.model.snapshot import FileSum, Snapshot
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.upkeep.checks import ChunkChecks

_Result = TypeVar("_Result")

_SHOWN_ORPHANS = 100
_SHOWN_ARRAYS = 10
_MAX_PASSES = 5
"""How often to start again, at most, if problems are no longer reached."""
_MAX_WALKS = 10


def verify_repository(
    context: Context,
    *,
    deep: bool = False,
    start_checks: Callable[[], ChunkChecks] | None = None,
) -> VerificationReport:
    """Check everything that is reached; `deep` also reads chunks that have checksums.

    `start_checks` lists chunk files and checks chunks against them; in this process by default.
    """
    if not context.storage.capabilities.can_list:
        raise StorageError(f"{context.storage.location} cannot list objects, so it is not verified")
    for _ in range(_MAX_PASSES):
        verifier = _Verifier(context, deep=deep)
        report = verifier.run(start_checks or (lambda: LocalChunkChecks(context, deep=deep)))
        lasting = _still_reached(context, report.problems)
        if len(lasting) == len(report.problems):
            break
    return msgspec.structs.replace(report, problems=lasting)


def _still_reached(context: Context, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Problems of references, and of snapshots that references still reach."""
    if all(not problem.snapshot_id for problem in problems):
        return problems
    for _ in range(_MAX_WALKS):
        walk = _Walk(context)
        if not walk.was_disturbed():
            break
    return tuple(each for each in problems if not each.snapshot_id or walk.needs(each.snapshot_id))


class _Walk:
    """The snapshots that references need at a moment, including missing ones."""

    def __init__(self, context: Context) -> None:
        self._context = context
        verifier = _Verifier(context, deep=False)
        history = verifier.history
        self._cuts = history.cuts.all()
        self._needed: set[str] = set()
        self._broken: set[SnapshotId] = set()
        for tip in verifier.read_targets():
            self._needed.add(str(tip))
            try:
                self._needed.update(str(stub.id) for stub in history.stubs(tip))
            except SnapshotNotFoundError as error:
                self._needed.add(error.snapshot_id)
                self._broken.add(tip)
            except IcefloeError:
                self._broken.add(tip)

    def needs(self, snapshot_id: str) -> bool:
        return snapshot_id in self._needed

    def was_disturbed(self) -> bool:
        """Whether a history that broke off has changed in the meantime."""
        if not self._broken:
            return False
        now = _Verifier(self._context, deep=False)
        return now.history.cuts.all() != self._cuts or not self._broken <= set(now.read_targets())


class _HistoryStep(NamedTuple):
    """A snapshot on the way through a history, or the end of the history if there is none."""

    tip: SnapshotId
    snapshot: Snapshot | None = None
    is_new: bool = False
    """Whether no history before led through it."""
    error: IcefloeError | None = None
    """Why the history ends early."""


class _Verifier:
    def __init__(self, context: Context, *, deep: bool) -> None:
        self._context = context
        self._layout = context.format.layout
        self._deep = deep
        self._marks = Marks(context, verify=True)
        self._files = self._marks.files
        self._problems: list[Problem] = []
        self._checked = dict.fromkeys(
            ("branches", "tags", "snapshots", "nodes", "manifests", "references", "logs"), 0
        )
        self._manifests: dict[ManifestId, int | None] = {}
        """Number of references of each; None if it cannot be read."""
        self._parts: set[tuple[ManifestId, NodeId, object, int]] = set()
        self._described: set[ManifestId] = set()
        """Manifests whose extents the snapshot records; the earliest layouts do not, and readers
        assume the whole grid."""
        self._listed: Mapping[SnapshotId, FileSum] = {}
        self._sizes: ListedSizes | None = None
        """Of the manifests that were listed."""
        self._logs: dict[SnapshotId, TransactionLog | None] = {}
        """Logs that were read ahead."""
        self._attribute_rows: set[tuple[bytes, int]] = set()
        self._stage = ProgressStage("snapshots verified", None)
        self._chunk_stage = ProgressStage("manifests", None)

    def run(self, start_checks: Callable[[], ChunkChecks]) -> VerificationReport:
        storage = self._context.storage
        _, targets, _ = together(
            storage, self._check_configuration, self.read_targets, self.history.cuts.all
        )
        kinds = [kind for kind in ObjectKind if kind is not ObjectKind.CHUNK_FILE]
        objects, self._chunks = together(
            storage,
            lambda: each_at_once(
                storage, lambda kind: list_objects(storage, self._layout, kind), kinds
            ),
            start_checks,
        )
        listed = dict[ObjectKind, StoredObjects](zip(kinds, objects, strict=True))
        self._sizes = ListedSizes(listed[ObjectKind.MANIFEST])
        self._check_histories(targets)
        with contextlib.suppress(IcefloeError):  # reported with its descendants
            for root in first_snapshots(self._marks):
                self._marks.add_history(root, is_whole=False)
        self._problems += self._chunks.finish()
        if self._deep:
            self._checked["bytes of chunks"] = self._chunks.bytes_read
        orphans = self._orphans(listed)
        return VerificationReport(
            problems=tuple(self._problems), checked=self._checked, orphans=orphans, deep=self._deep
        )

    def _add(self, kind: ProblemKind, message: str, **where: object) -> None:
        self._problems.append(Problem(kind, message, **where))  # type: ignore[arg-type]

    # --- references

    def _check_configuration(self) -> None:
        files = self._context.format.make_config(self._context.storage)
        try:
            newest = files.read()
            if newest is not None:
                sequence, data = newest
                from_json(data, key=files.key(sequence))
        except IcefloeError as error:
            self._add(ProblemKind.CONFIGURATION, str(error), key=getattr(error, "key", ""))

    @property
    def history(self) -> History:
        """The history as it is in storage, without shared caches."""
        return self._marks.history

    def read_targets(self) -> list[SnapshotId]:
        """Read all references, and what they record of the files of snapshots."""
        refs = self._context.format.make_refs(self._context.storage).view()
        targets = list(self._targets(refs))
        with contextlib.suppress(IcefloeError):  # what cannot be read is reported
            self._listed = refs.snapshot_files()
        return targets

    def _targets(self, refs: Refs) -> Iterator[SnapshotId]:
        """What branches and tags point to, once each; checks every state of a branch."""
        storage = self._context.storage
        branches, tags = together(
            storage,
            lambda: sorted(self._names(refs.branches, "branches")),
            lambda: sorted(self._names(refs.tags, "tags")),
        )
        self._checked["branches"] += len(branches)
        self._checked["tags"] += len(tags)
        states, targets = together(
            storage,
            lambda: each_at_once(storage, _caught(lambda name: check_branch(refs, name)), branches),
            lambda: each_at_once(storage, _caught(refs.tag), tags),
        )
        reached: list[SnapshotId | None] = []
        for branch, state in zip(branches, states, strict=True):
            if isinstance(state, IcefloeError):
                key = getattr(state, "key", "")
                self._add(ProblemKind.REFERENCE, f"branch {branch!r}: {state}", key=key)
            else:
                reached.append(state[0])
                self._problems += state[1]
        for tag, target in zip(tags, targets, strict=True):
            if isinstance(target, IcefloeError):
                self._add(ProblemKind.REFERENCE, f"tag {tag!r}: {target}")
            else:
                reached.append(target)
        return iter(dict.fromkeys(target for target in reached if target is not None))

    def _names(self, read: object, what: str) -> set[str]:
        assert callable(read)
        try:
            names: set[str] = read()
        except IcefloeError as error:
            self._add(ProblemKind.REFERENCE, f"{what} cannot be listed: {error}")
            return set()
        return names

    # --- snapshots

    def _fetch(self, snapshots: list[Snapshot]) -> None:
        """Read the manifests and logs of some snapshots at the same time, for who checks them.

        What is wrong with them is found then.
        """
        infos = {
            info.id: (snapshot, info)
            for snapshot in snapshots
            for info in snapshot.manifests
            if info.id not in self._manifests
        }

        def fetch_manifest(place: tuple[Snapshot, ManifestFileInfo]) -> None:
            snapshot, info = place
            size = info.size_bytes if info.checksum else 0
            with contextlib.suppress(IcefloeError):
                self._files.manifest(info.id, size, info.checksum, Referrer(snapshot.id))

        def fetch_log(snapshot: Snapshot) -> None:
            with contextlib.suppress(IcefloeError):
                log = self._files.read_transaction_log(snapshot.id, of=snapshot)
                self._logs[snapshot.id] = log

        together(
            self._context.storage,
            lambda: self._files.in_parallel(fetch_manifest, infos.values()),
            lambda: self._files.in_parallel(fetch_log, snapshots),
        )

    def _walk(self, tips: list[SnapshotId]) -> Iterator[_HistoryStep]:
        """The snapshots of histories, one history after the other, each up to what came before."""
        walked: set[SnapshotId] = set()
        for tip in tips:
            if tip in walked:
                continue
            newest: SnapshotId | None = None
            error: IcefloeError | None = None
            try:
                for snapshot in self._marks.history.ancestry(tip, walked):
                    is_new = snapshot.id not in walked
                    walked.add(snapshot.id)
                    newest = snapshot.id
                    yield _HistoryStep(tip, snapshot, is_new=is_new)
            except IcefloeError as caught:
                error = caught
                if newest is not None:
                    walked.discard(newest)  # it is not checked, so other histories lead through it
            yield _HistoryStep(tip, error=error)

    def _ahead(self, steps: Iterator[_HistoryStep]) -> Iterator[_HistoryStep]:
        """Steps through histories, many at a time.

        While manifests and logs of some snapshots are read, so are the next snapshots.
        """
        at_once = max(1, self._marks.limits.snapshots // 4)  # twice: half of what is cached

        def read_next() -> list[_HistoryStep]:
            return list(itertools.islice(steps, at_once))

        batch = read_next()
        while batch:
            new = [step.snapshot for step in batch if step.snapshot is not None and step.is_new]
            fetch = partial(self._fetch, new)
            _, following = together(self._context.storage, fetch, read_next)
            yield from batch
            batch = following

    def _check_histories(self, tips: list[SnapshotId]) -> None:
        steps = self._walk(tips)
        if not self._context.storage.capabilities.reads_are_immediate:
            steps = self._ahead(steps)
        unchecked: Snapshot | None = None
        """The newest snapshot that waits for its parent."""
        for step in steps:
            if step.error is not None:
                unchecked = None
                self._add_broken_history(step.tip, step.error)
            if unchecked is not None:
                self._check_step(unchecked, step.snapshot)
                self._logs.pop(unchecked.id, None)
            unchecked = step.snapshot if step.is_new else None

    def _check_step(self, snapshot: Snapshot, parent: Snapshot | None) -> None:
        self._marks.add_snapshot(snapshot)
        try:
            self._check_snapshot(snapshot, parent)
            self._check_listed_file(snapshot)
            self._check_parent_file(snapshot, parent)
        except IcefloeError as error:
            self._add_broken_history(snapshot.id, error)

    def _add_broken_history(self, tip: SnapshotId, error: IcefloeError) -> None:
        missing = error.snapshot_id if isinstance(error, SnapshotNotFoundError) else ""
        self._add(
            ProblemKind.SNAPSHOT,
            f"the history of {tip} breaks off: {error}",
            key=getattr(error, "key", ""),
            snapshot_id=missing or str(tip),
        )

    def _check_listed_file(self, snapshot: Snapshot) -> None:
        """Compare the file of a snapshot with what references record of it."""
        actual, expected = snapshot.own_file, self._listed.get(snapshot.id)
        if actual is not None and expected is not None and differs(actual, expected):
            key = self._layout.snapshot(snapshot.id)
            error = not_expected(actual, expected, "snapshot", key, Referrer(snapshot.id))
            self._add(ProblemKind.SNAPSHOT, str(error), key=key, snapshot_id=str(snapshot.id))

    def _check_parent_file(self, snapshot: Snapshot, parent: Snapshot | None) -> None:
        """Compare the file of a parent with what its child records of it."""
        if parent is None or parent.id != snapshot.parent_id:
            return
        actual, expected = parent.own_file, snapshot.parent_file
        if actual is not None and expected is not None and differs(actual, expected):
            key = self._layout.snapshot(parent.id)
            error = not_expected(actual, expected, "snapshot", key, Referrer(snapshot.id))
            self._add(ProblemKind.SNAPSHOT, str(error), key=key, snapshot_id=str(parent.id))

    def _check_snapshot(self, snapshot: Snapshot, parent: Snapshot | None) -> None:
        self._checked["snapshots"] += 1
        self._stage.advance()
        where = {"snapshot_id": str(snapshot.id)}
        if parent is not None and parent.written_at >= snapshot.written_at:
            self._add(
                ProblemKind.SNAPSHOT,
                f"it was written at {snapshot.written_at.isoformat()}, not after its parent",
                **where,
            )
        infos = {info.id: info for info in snapshot.manifests}
        self._described = {info.id for info in infos.values() if info.num_chunk_refs}
        for info in infos.values():
            count = self._count_refs(info, snapshot)
            if info.num_chunk_refs and count not in (None, info.num_chunk_refs):
                self._add(
                    ProblemKind.MANIFEST,
                    f"it has {count} references, and the snapshot says {info.num_chunk_refs}",
                    key=self._layout.manifest(info.id),
                    **where,
                )
        self._check_nodes(snapshot)
        # After a cut the first snapshot follows; one may have been made in the meantime.
        history = self._marks.history
        is_cut = snapshot.id in history.cuts.all() or self._is_cut_by_others(snapshot)
        if parent is not None and parent.id == snapshot.parent_id and not is_cut:
            self._check_log(snapshot, parent)

    def _is_cut_by_others(self, snapshot: Snapshot) -> bool:
        """Whether another program gave a commit the first snapshot as its parent."""
        if not self._files.format.is_official:
            return False
        try:
            log = self._logs.get(snapshot.id)
            return not self._marks.history.has_whole_log(snapshot, log)
        except FormatError:
            return False  # its log is damaged, which is found where it is compared

    def _check_nodes(self, snapshot: Snapshot) -> None:
        where = {"snapshot_id": str(snapshot.id)}
        for row, path in enumerate(snapshot.nodes.paths):
            try:
                node = snapshot.nodes.get(path)
                assert node is not None, row
                self._check_attributes(node, snapshot)
                if node.is_array:
                    self._check_array(node, snapshot)
                self._checked["nodes"] += 1
            except IcefloeError as error:
                key = getattr(error, "key", "")
                self._add(ProblemKind.NODE, str(error), path=path, key=key, **where)

    def _check_attributes(self, node: Node, snapshot: Snapshot) -> None:
        ref = node.attributes
        if ref is None or (bytes(ref.file), ref.row) in self._attribute_rows:
            return
        self._attribute_rows.add((bytes(ref.file), ref.row))
        try:
            self._files.document(node, snapshot)
        except IcefloeError as error:
            self._add(
                ProblemKind.ATTRIBUTES,
                str(error),
                key=self._layout.attributes(ref.file),
                path=node.path,
                snapshot_id=str(snapshot.id),
            )

    # --- arrays and manifests

    def _count_refs(self, info: ManifestFileInfo, snapshot: Snapshot) -> int | None:
        """Read a manifest from end to end; None if that is not possible."""
        manifest_id, size = info.id, info.size_bytes
        if manifest_id in self._manifests:
            return self._manifests[manifest_id]
        self._checked["manifests"] += 1
        self._chunk_stage.advance()
        count: int | None = None
        key = self._layout.manifest(manifest_id)
        try:
            known = size if info.checksum else 0
            manifest = self._files.manifest(
                manifest_id, known, info.checksum, Referrer(snapshot.id)
            )
            manifest.load_all()
            count = manifest.num_refs
            real = size if info.checksum else self._stored_size(manifest_id)
            if size not in (0, real):
                self._add(
                    ProblemKind.MANIFEST,
                    f"it has {real} bytes, and the snapshot says {size}",
                    key=key,
                    snapshot_id=str(snapshot.id),
                )
        except IcefloeError as error:
            count = None
            needing = _arrays_with(manifest_id, snapshot)
            self._add(
                ProblemKind.MANIFEST,
                f"{error}; needed by {', '.join(needing[:_SHOWN_ARRAYS])}"
                + (f" and {len(needing) - _SHOWN_ARRAYS} more" * (len(needing) > _SHOWN_ARRAYS)),
                key=key,
                path=needing[0] if len(needing) == 1 else "",
                snapshot_id=str(snapshot.id),
            )
        self._manifests[manifest_id] = count
        return count

    def _stored_size(self, manifest_id: ManifestId) -> int:
        """Bytes of a manifest: as listed, or by asking where a listing lagged behind."""
        size = None if self._sizes is None else self._sizes.get(manifest_id)
        if size is None:
            size = self._context.storage.head(self._layout.manifest(manifest_id)).size
        return size

    def _check_array(self, node: ArrayNode, snapshot: Snapshot) -> None:
        for one, other in _overlapping(node.manifests):
            self._add(
                ProblemKind.EXTENTS,
                f"extents {one} and {other} overlap",
                path=node.path,
                snapshot_id=str(snapshot.id),
            )
        for ref in node.manifests:
            part = (ref.manifest_id, node.id, ref.extents, ref.num_refs)
            if part not in self._parts:
                self._parts.add(part)
                self._check_part(
                    node, ref, snapshot, is_described=ref.manifest_id in self._described
                )

    def _check_part(
        self, node: ArrayNode, ref: ManifestRef, snapshot: Snapshot, *, is_described: bool
    ) -> None:
        if self._manifests.get(ref.manifest_id) is None:
            return  # reported already
        where = {
            "key": self._layout.manifest(ref.manifest_id),
            "path": node.path,
            "snapshot_id": str(snapshot.id),
        }
        table = self._files.manifest(ref.manifest_id, 0).array(node.id, node.array.rank)
        if table is None:
            if not is_described:
                return
            self._add(ProblemKind.EXTENTS, "the manifest has nothing of this array", **where)
            return
        self._checked["references"] += len(table)
        box = table.index.box
        if not is_described:
            pass
        elif box != ref.extents:
            self._add(
                ProblemKind.EXTENTS,
                f"extents are {ref.extents.lower} to {ref.extents.upper}, and the manifest has "
                f"{box.lower} to {box.upper}",
                **where,
            )
        elif len(table) != ref.num_refs:
            self._add(
                ProblemKind.EXTENTS,
                f"the manifest has {len(table)} references, and the array says {ref.num_refs}",
                **where,
            )
        place = ArrayOfSnapshot(node.path, str(snapshot.id))
        part = CheckedPart(
            manifest_id=ref.manifest_id, node_id=node.id, rank=node.array.rank, place=place
        )
        self._problems += self._chunks.check(part, table)

    # --- logs

    def _check_log(self, snapshot: Snapshot, parent: Snapshot) -> None:
        where = {"key": self._layout.transaction_log(snapshot.id), "snapshot_id": str(snapshot.id)}
        log = None
        try:
            if snapshot.id in self._logs:
                log = self._logs[snapshot.id]
            else:
                log = self._files.read_transaction_log(snapshot.id, of=snapshot)
            if log is None and snapshot.log_file is not None:
                self._add(ProblemKind.TRANSACTION_LOG, "it is missing", repairable=True, **where)
        except IcefloeError as error:
            self._add(ProblemKind.TRANSACTION_LOG, str(error), repairable=True, **where)
            # One that can be read is checked all the same, to report all that repair will fix.
            with contextlib.suppress(IcefloeError):
                log = self._files.read_transaction_log(snapshot.id, check=False)
        if log is None:
            return  # a format without logs, where what changed is found by comparison
        self._checked["logs"] += 1
        try:
            actual = compared_step(self._files, parent, snapshot)
            if not self._context.refs.records_moves:
                actual = msgspec.structs.replace(actual, moves=())
            errors = list(log_errors(log, actual, self._smaller(snapshot, actual)))
        except IcefloeError:
            return  # what it should record cannot be read, which is reported
        for message in errors:
            self._add(ProblemKind.TRANSACTION_LOG, message, repairable=True, **where)

    def _smaller(self, snapshot: Snapshot, actual: TransactionLog) -> dict[NodeId, tuple[int, ...]]:
        """The grids of changed arrays whose chunks outside of them a log need not list.

        Official 1.x does not list the chunks that are gone because an array became smaller.
        """
        if not self._context.format.is_official:
            return {}
        nodes = [snapshot.nodes.by_id(node_id) for node_id in actual.updated_chunks]
        return {
            node.id: node.array.grid_shape
            for node in nodes
            if isinstance(node, ArrayNode) and node.array.grid_shape is not None
        }

    # --- unreachable objects

    def _orphans(self, listed: dict[ObjectKind, StoredObjects]) -> dict[str, Orphans]:
        live = {
            ObjectKind.SNAPSHOT: self._marks.snapshot_ids(),
            ObjectKind.TRANSACTION_LOG: self._marks.log_ids(),
            ObjectKind.MANIFEST: self._marks.manifest_ids(),
            ObjectKind.ATTRIBUTES: self._marks.attribute_ids(),
        }
        orphans: dict[str, Orphans] = {}
        for kind, ids in live.items():
            unreached = listed[kind].outside(ids)
            key_of = key_maker(self._layout, kind)
            shown = itertools.islice(unreached.each_id(), _SHOWN_ORPHANS)
            orphans[kind.value] = Orphans(
                count=len(unreached),
                bytes=int(unreached.sizes.sum()),
                keys=tuple(map(key_of, shown)),
            )
        if not self._problems:
            # If manifests cannot be read, it is unknown which chunk files are needed.
            files = self._chunks.files.unreached(self._marks)
            totals = files.totals()
            orphans[ObjectKind.CHUNK_FILE.value] = Orphans(
                count=totals.files,
                bytes=totals.size_bytes,
                keys=tuple(files.some_keys(_SHOWN_ORPHANS)) if totals.files else (),
            )
        return orphans


def _caught(
    read: Callable[[str], _Result],
) -> Callable[[str], _Result | IcefloeError]:
    """A function that returns what is wrong instead of raising it."""

    def catch(name: str) -> _Result | IcefloeError:
        try:
            return read(name)
        except IcefloeError as error:
            return error

    return catch


def _arrays_with(manifest_id: ManifestId, snapshot: Snapshot) -> list[str]:
    """Paths of the arrays of a snapshot that have references in a manifest."""
    needing: list[str] = []
    for path in snapshot.nodes.paths:
        with contextlib.suppress(IcefloeError):  # nodes that cannot be read are reported
            node = snapshot.nodes.get(path)
            if node is not None and any(ref.manifest_id == manifest_id for ref in node.manifests):
                needing.append(path)
    return needing


def _overlapping(refs: tuple[ManifestRef, ...]) -> Iterator[tuple[str, str]]:
    """Pairs of extents of one array that have a chunk in common."""
    # Sorted by the first dimension, only neighbours that reach far enough can overlap.
    ordered = sorted(refs, key=lambda ref: ref.extents.lower)
    open_: list[ManifestRef] = []
    for ref in ordered:
        first = ref.extents.lower[:1]
        open_ = [other for other in open_ if not first or other.extents.upper[:1] > first]
        for other in open_:
            if other.extents.intersects(ref.extents):
                yield _text(other), _text(ref)
        open_.append(ref)


def _text(ref: ManifestRef) -> str:
    return f"{list(ref.extents.lower)}..{list(ref.extents.upper)}"
