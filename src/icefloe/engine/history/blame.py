"""Which commit last wrote each chunk of an array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.bounded_text import first_line
from icefloe.model.nodes import expect_array
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.history.walk import History
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotStub


_DRAWN_COMMITS = 20


class Blame:
    """The chunks of an array and the commits that last wrote them, as columns.

    Made by `Repository.blame`; `print` it for a summary.
    """

    def __init__(
        self,
        path: str,
        coords: npt.NDArray[np.uint64],
        writers: npt.NDArray[np.int64],
        snapshots: list[SnapshotStub],
    ) -> None:
        """Take one row per chunk: its coordinates and the index of its snapshot."""
        self.path = path
        self.coords = coords
        """Coordinates (n, rank) of all initialised chunks."""
        self.writers = writers
        """Index into `snapshots` for each chunk; -1 if it was written before the history begins."""
        self.snapshots = snapshots
        """The snapshots that last wrote one of the chunks, newest first."""

    def __len__(self) -> int:
        return len(self.coords)

    def snapshot_id(self, *coords: int) -> str | None:
        """Id of the snapshot that last wrote one chunk; None if it is not initialised."""
        rank = self.coords.shape[1]
        if len(coords) != rank or not all(map(_is_coordinate, coords)):
            raise InvalidInputError(
                f"a chunk of {self.path} has {rank} coordinates, integers from 0 on; found {coords}"
            )
        rows = np.flatnonzero((self.coords == np.array(coords, dtype=np.uint64)).all(axis=1))
        if len(rows) == 0 or self.writers[rows[0]] < 0:
            return None
        return str(self.snapshots[self.writers[rows[0]]].id)

    def _counts(self) -> list[tuple[SnapshotStub, int]]:
        counts = np.bincount(self.writers[self.writers >= 0], minlength=len(self.snapshots))
        return list(zip(self.snapshots, counts.tolist(), strict=True))

    def _repr_html_(self) -> str:
        """Show it in a notebook: the commits, how many chunks each wrote last, and where."""
        from icefloe.html_tables import chunk_map, html_table

        grid = tuple(int(most) + 1 for most in self.coords.max(axis=0)) if len(self) else ()
        rows = [
            (
                str(stub.id)[:8],
                stub.written_at,
                count,
                chunk_map(self.coords[self.writers == number], grid),
                first_line(stub.message),
            )
            for number, (stub, count) in enumerate(self._counts()[:_DRAWN_COMMITS])
        ]
        more = len(self.snapshots) - _DRAWN_COMMITS
        rest = (
            f", the newest {_DRAWN_COMMITS} of {len(self.snapshots):,} commits" if more > 0 else ""
        )
        return html_table(
            f"{self.path}: {len(self):,} chunks{rest}",
            rows,
            ("id", "written at", "chunks", "where", "message"),
        )

    def __repr__(self) -> str:
        lines = [f"{self.path}: {len(self)} chunks"]
        for stub, count in self._counts():
            when = stub.written_at.isoformat(sep=" ", timespec="seconds")
            lines.append(f"  {count:>8}  {stub.id}  {when}  {first_line(stub.message)}")
        unknown = int((self.writers < 0).sum())
        if unknown:
            lines.append(f"  {unknown:>8}  written before the history begins")
        return "\n".join(lines)


def _is_coordinate(value: object) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and 0 <= value < 2**64  # type: ignore[operator]


def blame(history: History, snapshot_id: SnapshotId, path: str) -> Blame:
    """Walk the logs from newest to oldest until every chunk of an array is attributed."""
    path = paths.canonical(path)
    snapshot = history.files.read_snapshot(snapshot_id)
    node = expect_array(
        snapshot.nodes.get(path), path, lambda: snapshot.nodes.paths_below(paths.ROOT)
    )
    table = SnapshotChunks(history.files, snapshot).table(node) if node.manifests else None
    if table is None:
        empty = np.empty((0, node.array.rank), dtype=np.uint64)
        return Blame(path, empty, np.empty(0, dtype=np.int64), [])
    coords = table.index.coords()
    writers = np.full(len(coords), -1, dtype=np.int64)
    writing: list[SnapshotStub] = []
    unknown = np.arange(len(coords))
    for stub in history.stubs(snapshot_id):
        if len(unknown) == 0:
            break
        log = history.own_log(stub.id)
        if log is None:
            break  # its parent was collected, so what it changed is unknown
        index = log.updated_chunks.get(node.id)
        if index is None:
            continue
        wrote = index.find_many(coords[unknown]) >= 0
        if wrote.any():
            writers[unknown[wrote]] = len(writing)
            writing.append(stub)
            unknown = unknown[~wrote]
    return Blame(path, coords, writers, writing)
