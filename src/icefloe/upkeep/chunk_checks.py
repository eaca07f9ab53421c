"""Are the bytes there that references speak of, and are they those that were written?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.engine.retention.id_sets import IdSet, are_in, as_ids
from icefloe.errors import IcefloeError
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import ChunkFileId
from icefloe.objects.checksums import checksums
from icefloe.upkeep.findings import Problem, ProblemKind
from icefloe.upkeep.ranges import KEY_TYPE, range_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.candidates import Objects
    from icefloe.model.manifest import ArrayChunks

_SHOWN_CHUNKS = 10
_BYTES_AT_ONCE = 64 * 1024 * 1024
_JOBS_AT_ONCE = 256


class Place(NamedTuple):
    """Whose chunks are looked at."""

    path: str
    snapshot_id: str


class ChunkChecker:
    """Checks native references against the files that there are."""

    def __init__(self, context: Context, listed: Objects, *, deep: bool) -> None:
        """Take what files there are, and whether to read them."""
        self._context = context
        order = np.argsort(listed.ids, kind="stable")
        self._ids = listed.ids[order]
        self._sizes = listed.sizes[order]
        self._deep = deep
        self._seen = IdSet(KEY_TYPE)
        self.bytes_read = 0

    def check(self, chunks: ArrayChunks, place: Place) -> Iterator[Problem]:
        """Problems of some references of an array."""
        refs = chunks.refs
        native = np.flatnonzero(refs.kinds == ChunkKind.NATIVE)
        if len(native) == 0:
            return
        sizes = self._size_of_each_file(refs.files)[refs.sources[native]]
        ends = (refs.offsets[native] + refs.lengths[native]).astype(np.int64)
        missing, short = sizes < 0, (sizes >= 0) & (ends > sizes)
        yield from self._report(chunks, native[missing], place, "chunk file is missing")
        yield from self._report(chunks, native[short], place, "chunk file is too short")
        if self._deep:
            yield from self._read(chunks, native[~(missing | short)], place)

    def _size_of_each_file(self, files: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        ids = as_ids(files)
        sizes = np.full(len(ids), -1, dtype=np.int64)
        there = are_in(ids, self._ids)
        sizes[there] = self._sizes[np.searchsorted(self._ids, ids[there])]
        return sizes

    def _report(
        self,
        chunks: ArrayChunks,
        rows: npt.NDArray[np.intp],
        place: Place,
        message: str,
        kind: ProblemKind = ProblemKind.CHUNK_FILE,
    ) -> Iterator[Problem]:
        """One problem for each file."""
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
        self, chunks: ArrayChunks, rows: npt.NDArray[np.intp], place: Place
    ) -> Iterator[Problem]:
        refs = chunks.refs
        rows = rows[refs.checksums[rows] != 0]
        keys = range_keys(refs, rows, refs.files)
        new = ~are_in(keys, self._seen.sorted())
        rows = rows[new]
        self._seen.add(keys[new])
        # File by file, and within a file from front to back.
        rows = rows[np.lexsort((refs.offsets[rows], refs.sources[rows]))]
        wrong: list[int] = []
        for window in self._windows(chunks, rows):
            found = self._context.files.in_parallel(lambda job: self._wrong(chunks, job), window)
            for job, bad in zip(window, found, strict=True):
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
        """Rows in jobs of one file each, and as many jobs together as fit into memory."""
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
        """Of some chunks of one file, those whose bytes are not what they were; or why not."""
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
        found = checksums(b"".join(data), ends - lengths.astype(np.int64), lengths.astype(np.int64))
        bad: list[int] = rows[found != refs.checksums[rows]].tolist()
        return bad
