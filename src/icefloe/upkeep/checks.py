"""Checks of single parts of a repository: branches, transaction logs and chunk files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from icefloe.engine.retention.candidate_files import LocalFileLister
from icefloe.engine.retention.id_sets import IdSet, are_in, as_ids
from icefloe.errors import IcefloeError
from icefloe.model import paths
from icefloe.model.chunk_index import is_inside
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import ChunkFileId
from icefloe.objects.checksums import checksums
from icefloe.storage.concurrency import AT_ONCE
from icefloe.upkeep.findings import Problem, ProblemKind
from icefloe.upkeep.ranges import KEY_TYPE, range_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.candidate_files import CandidateFiles, LocalFiles
    from icefloe.engine.retention.stored_objects import StoredObjects
    from icefloe.formats.port import BranchState, Refs
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.transaction_log import TransactionLog

_SHOWN_CHUNKS = 10
_BYTES_AT_ONCE = 64 * 1024 * 1024
_JOBS_AT_ONCE = 256
_MOST_SEEN = 1 << 20
"""Chunks that are remembered as read, so that they are not read again; some 100 MiB."""


# --- branches


def check_branch(refs: Refs, branch: str) -> tuple[SnapshotId | None, list[Problem]]:
    """The newest snapshot of a branch that can be read, and the problems of its states."""
    states = list(refs.states(branch))
    good = [state for state in states if state.tip is not None]
    tip = good[0].tip if good else None
    problems = [
        _branch_problem(branch, state, states[0], good) for state in states if state.tip is None
    ]
    return None if tip is None else tip.snapshot_id, problems


def _branch_problem(
    branch: str, state: BranchState, newest: BranchState, good: list[BranchState]
) -> Problem:
    before = next((other for other in good if other.sequence < state.sequence), None)
    last = (
        "no entry before it can be read"
        if before is None
        else f"the last good entry before it is {_text(before)}"
    )
    fillable = state.is_missing and newest.tip is not None
    if newest.tip is not None:
        last += f"; the branch is at {_text(newest)}"
    return Problem(
        ProblemKind.REFERENCE,
        f"branch {branch!r}: {state.fault}; {last}; {_outlook(state, newest, before)}",
        key=state.key,
        repairable=fillable,
    )


def _outlook(state: BranchState, newest: BranchState, before: BranchState | None) -> str:
    """What repair will do, or what is left to do by hand."""
    if state.is_missing and newest.tip is not None:
        return (
            f"until number {state.sequence} exists again, storages without ordered listings "
            "see an older state of the branch; repair repeats the entry before it there, and "
            "the branch does not move"
        )
    if state.sequence < newest.sequence:
        return "repair leaves it alone: what it pointed to cannot be derived, and nobody needs it"
    back = f", or delete it, and the branch is at {_text(before)} again" if before else ""
    return (
        "repair leaves it alone: the commit that it names may have been acknowledged; "
        f"restore the object from a copy{back}"
    )


def _text(state: BranchState) -> str:
    assert state.tip is not None
    target = state.tip.snapshot_id
    where = "the branch as deleted" if target is None else f"snapshot {target}"
    return f"number {state.sequence} ({where})"


# --- transaction logs


def log_errors(
    log: TransactionLog, actual: TransactionLog, smaller: Mapping[NodeId, Sequence[int]]
) -> Iterator[str]:
    """What a transaction log lacks or gets wrong, given what actually changed.

    A log may have more: chunks and documents that were set to what they were before. It may lack
    the chunks that lie outside of the grids of `smaller`: arrays that a resize made smaller.
    """
    for name in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays"):
        logged, real = getattr(log, name), getattr(actual, name)
        if logged != real:
            yield f"{name}: it tells of {len(logged)}, and there are {len(real)}"
    for name in ("updated_groups", "updated_arrays"):
        absent = getattr(actual, name) - getattr(log, name)
        if absent:
            yield f"{name}: {len(absent)} are not in it"
    for node_id, index in actual.updated_chunks.items():
        chunks = log.updated_chunks.get(node_id)
        grid = smaller.get(node_id) if node_id in log.updated_arrays else None
        missing = _missing(index, chunks, grid)
        if missing:
            yield f"{missing} changed chunks of node {node_id} are not in it"
    sources = [move.source for move in log.moves]
    for move in actual.moves:
        if not any(paths.is_within(move.source, source) for source in sources):
            yield f"the move of {move.source} to {move.target} is not in it"


def _missing(index: ChunkIndex, logged: ChunkIndex | None, grid: Sequence[int] | None) -> int:
    """How many changed chunks are not in a log; only those inside of a grid, if there is one."""
    coords = index.coords()
    if logged is not None and logged.rank == index.rank:
        coords = coords[logged.find_many(coords) < 0]
    return len(coords) if grid is None else int(is_inside(coords, (0,) * len(grid), grid).sum())


# --- chunk files


class ArrayOfSnapshot(NamedTuple):
    """The array whose chunks are checked."""

    path: str
    snapshot_id: str


class CheckedPart(NamedTuple):
    """What a manifest has of an array: references to check."""

    manifest_id: ManifestId
    node_id: NodeId
    rank: int
    place: ArrayOfSnapshot


class ChunkChecks(Protocol):
    """How chunks are checked against the chunk files that exist: here, or on a cluster."""

    @property
    def files(self) -> CandidateFiles:
        """The chunk files that exist."""

    @property
    def bytes_read(self) -> int:
        """How many bytes of chunks were read."""

    def check(self, part: CheckedPart, chunks: ArrayChunks) -> Iterable[Problem]:
        """Problems with some references of an array, or nothing if they are checked later."""

    def finish(self) -> Iterable[Problem]:
        """Problems with what was left for later."""


class LocalChunkChecks:
    """Checks chunks at once, in this process."""

    def __init__(self, context: Context, *, deep: bool) -> None:
        """List the chunk files that exist."""
        self.files: LocalFiles = LocalFileLister(context, AT_ONCE).list_files()
        self._checker = ChunkChecker(context, self.files.objects, deep=deep)

    @property
    def bytes_read(self) -> int:
        """How many bytes of chunks were read."""
        return self._checker.bytes_read

    def check(self, part: CheckedPart, chunks: ArrayChunks) -> Iterable[Problem]:
        """Problems with some references of an array."""
        return self._checker.check(chunks, part.place)

    def finish(self) -> Iterable[Problem]:
        """Nothing is left for later."""
        return ()


class ChunkChecker:
    """Checks native references against the chunk files that exist."""

    def __init__(self, context: Context, listed: StoredObjects, *, deep: bool) -> None:
        """Take the existing files, and whether to read them."""
        self._context = context
        self._listed = listed
        self._deep = deep
        self._seen = IdSet(KEY_TYPE)
        self.bytes_read = 0

    def check(self, chunks: ArrayChunks, place: ArrayOfSnapshot) -> Iterator[Problem]:
        """Problems with some references of an array."""
        refs = chunks.refs
        native = np.flatnonzero(refs.kinds == ChunkKind.NATIVE)
        if len(native) == 0:
            return
        sizes = self._listed.sizes_of(as_ids(refs.files))[refs.sources[native]]
        ends = (refs.offsets[native] + refs.lengths[native]).astype(np.int64)
        missing, short = sizes < 0, (sizes >= 0) & (ends > sizes)
        yield from self._report(chunks, native[missing], place, "chunk file is missing")
        yield from self._report(chunks, native[short], place, "chunk file is too short")
        if self._deep:
            yield from self._read(chunks, native[~(missing | short)], place)

    def _report(
        self,
        chunks: ArrayChunks,
        rows: npt.NDArray[np.intp],
        place: ArrayOfSnapshot,
        message: str,
        kind: ProblemKind = ProblemKind.CHUNK_FILE,
    ) -> Iterator[Problem]:
        """One problem per file."""
        coords = chunks.index.coords()
        for source in np.unique(chunks.refs.sources[rows]).tolist():
            mine = rows[chunks.refs.sources[rows] == source]
            shown = coords[mine[:_SHOWN_CHUNKS]].tolist()
            yield Problem(
                kind,
                f"{message}; {len(mine)} chunks of this array need it",
                key=self._key(chunks.refs.files[source]),
                path=place.path,
                snapshot_id=place.snapshot_id,
                chunks=tuple(map(tuple, shown)),
            )

    def _key(self, file: npt.NDArray[np.uint8]) -> str:
        return self._context.format.layout.chunk_file(ChunkFileId(file.tobytes()))

    # --- the bytes themselves

    def _read(
        self, chunks: ArrayChunks, rows: npt.NDArray[np.intp], place: ArrayOfSnapshot
    ) -> Iterator[Problem]:
        refs = chunks.refs
        rows = rows[refs.checksums[rows] != 0]
        keys = range_keys(refs, rows, refs.files)
        new = ~are_in(keys, self._seen.sorted())
        rows = rows[new]
        if len(self._seen) > _MOST_SEEN:
            # Memory is bounded; the price is that a chunk of two manifests may be read twice.
            self._seen = IdSet(KEY_TYPE)
        self._seen.add(keys[new])
        # File by file, and within a file from front to back.
        rows = rows[np.lexsort((refs.offsets[rows], refs.sources[rows]))]
        wrong: list[int] = []
        for window in self._windows(chunks, rows):
            results = self._context.files.in_parallel(lambda job: self._wrong(chunks, job), window)
            for job, bad in zip(window, results, strict=True):
                if isinstance(bad, IcefloeError):
                    message = f"chunk file cannot be read ({bad})"
                    yield from self._report(chunks, job, place, message)
                else:
                    wrong += bad
        message = "chunk file has other bytes than were written"
        rows = np.array(wrong, dtype=np.intp)
        yield from self._report(chunks, rows, place, message, ProblemKind.CHECKSUM)

    def _windows(
        self, chunks: ArrayChunks, rows: npt.NDArray[np.intp]
    ) -> Iterator[list[npt.NDArray[np.intp]]]:
        """Rows in jobs of one file each, and in windows of as many jobs as fit into memory."""
        window: list[npt.NDArray[np.intp]] = []
        held = 0
        changes = np.flatnonzero(np.diff(chunks.refs.sources[rows])) + 1
        for job in np.split(rows, changes):
            filled = np.cumsum(chunks.refs.lengths[job]) // np.uint64(_BYTES_AT_ONCE)
            for part in np.split(job, np.flatnonzero(np.diff(filled)) + 1):
                if len(part) == 0:
                    continue
                size = int(chunks.refs.lengths[part].sum())
                if window and (held + size > _BYTES_AT_ONCE or len(window) >= _JOBS_AT_ONCE):
                    yield window
                    window, held = [], 0
                window.append(part)
                held += size
        if window:
            yield window

    def _wrong(self, chunks: ArrayChunks, rows: npt.NDArray[np.intp]) -> list[int] | IcefloeError:
        """The chunks of one file whose bytes are wrong, or the error that reading it gave."""
        refs = chunks.refs
        key = self._key(refs.files[refs.sources[rows[0]]])
        offsets, lengths = refs.offsets[rows], refs.lengths[rows]
        ranges = list(zip(offsets.tolist(), lengths.tolist(), strict=True))
        try:
            data = self._context.storage.get_ranges(key, ranges)
        except IcefloeError as error:
            return error
        self.bytes_read += sum(map(len, data))
        ends = np.cumsum(lengths.astype(np.int64))
        actual = checksums(
            b"".join(data), ends - lengths.astype(np.int64), lengths.astype(np.int64)
        )
        bad: list[int] = rows[actual != refs.checksums[rows]].tolist()
        return bad
