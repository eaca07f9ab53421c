"""Snapshots and their differences as the public API shows them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.model.snapshot import public_properties

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime

    from icefloe.engine.history.walk import History
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.nodes import Node, NodeTable
    from icefloe.model.snapshot import ListedCommit, Snapshot
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.objects.metadata import MetadataFiles

_SHOWN_CHUNKS = 10
_SHOWN_COMMITS = 10


class ManifestFileInfo(msgspec.Struct, frozen=True):
    """A manifest that a snapshot refers to."""

    id: str
    size_bytes: int
    num_chunk_refs: int


class SnapshotInfo:
    """A commit: its id, parent, time, message, metadata and manifests.

    The manifests are read when they are first asked for, where the history does not need the files
    of snapshots: version 2 of the icechunk format lists everything else in one file.
    """

    __slots__ = ("_manifests", "id", "message", "metadata", "parent_id", "written_at")

    def __init__(
        self,
        id: str,
        parent_id: str | None,
        written_at: datetime,
        message: str,
        metadata: dict[str, Any],
        manifests: list[ManifestFileInfo] | Callable[[], list[ManifestFileInfo]],
    ) -> None:
        """Take what there is to know of a commit; `manifests` may be a function that reads them."""
        self.id = id
        self.parent_id = parent_id
        self.written_at = written_at
        self.message = message
        self.metadata = metadata
        self._manifests = manifests

    @property
    def manifests(self) -> list[ManifestFileInfo]:
        """The manifests that the snapshot refers to."""
        if callable(self._manifests):
            self._manifests = self._manifests()
        return self._manifests

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotInfo:
        """Describe a snapshot."""
        return cls(
            id=str(snapshot.id),
            parent_id=None if snapshot.parent_id is None else str(snapshot.parent_id),
            written_at=snapshot.written_at,
            message=snapshot.message,
            metadata=public_properties(snapshot.metadata),
            manifests=_manifests_of(snapshot),
        )

    def _listed(self) -> dict[str, Any]:
        """What is known of a commit without the file of its snapshot."""
        return {
            "id": self.id,
            "parent_id": self.parent_id,
            "written_at": self.written_at,
            "message": self.message,
            "metadata": self.metadata,
        }

    def _shown(self) -> dict[str, Any]:
        """What there is to show without reading anything."""
        fields = self._listed()
        return fields if callable(self._manifests) else fields | {"manifests": self._manifests}

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in self._shown().items())
        return f"{type(self).__name__}({', '.join(fields)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SnapshotInfo):
            return NotImplemented
        return self._listed() == other._listed() and self.manifests == other.manifests

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return SnapshotInfo, (*self._listed().values(), self.manifests)

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from icefloe.html_tables import html_table

        rows = [(name, value) for name, value in self._shown().items() if value]
        return html_table(type(self).__name__, rows)


def _manifests_of(snapshot: Snapshot) -> list[ManifestFileInfo]:
    return [ManifestFileInfo(str(m.id), m.size_bytes, m.num_chunk_refs) for m in snapshot.manifests]


def _listed_info(commit: ListedCommit, files: MetadataFiles) -> SnapshotInfo:
    """Describe a snapshot whose file was not read."""
    return SnapshotInfo(
        id=str(commit.id),
        parent_id=None if commit.parent_id is None else str(commit.parent_id),
        written_at=commit.written_at,
        message=commit.message,
        metadata=public_properties(commit.metadata),
        manifests=lambda: _manifests_of(files.read_snapshot(commit.id)),
    )


class Ancestry:
    """Snapshots of a history, newest first, for `for`, `next`, `async for` and `anext`."""

    def __init__(
        self,
        history: History,
        snapshot_id: SnapshotId,
        *,
        reread: bool = False,
        known_cuts: frozenset[SnapshotId] | None = None,
    ) -> None:
        """Start at a snapshot; raises SnapshotNotFoundError now, not at the first step.

        Where one file lists all commits, uses the list that was read last, unless it must be
        `reread`. Elsewhere, `known_cuts` need not be listed again.
        """
        self._history, self._start = history, snapshot_id
        listed = history.refs.listed_history(snapshot_id, reread=reread)
        self._infos: Iterator[SnapshotInfo]
        if listed is None:
            history.files.read_snapshot(snapshot_id)
            ancestors = history.ancestry(snapshot_id, known_cuts=known_cuts)
            self._infos = map(SnapshotInfo.of, ancestors)
        else:
            self._infos = (_listed_info(commit, history.files) for commit in listed)

    def __repr__(self) -> str:
        return f"<icefloe.Ancestry of {self._start}>"

    def _repr_html_(self) -> str:
        """Show the newest snapshots in a notebook; iterating begins where it would anyway."""
        from icefloe.html_tables import html_table

        newest = islice(Ancestry(self._history, self._start), _SHOWN_COMMITS)
        return html_table(
            "Ancestry (the newest)",
            [(info.id[:8], info.written_at, info.message.partition("\n")[0]) for info in newest],
            ("id", "written at", "message"),
        )

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return self

    def __next__(self) -> SnapshotInfo:
        return next(self._infos)

    def __aiter__(self) -> AsyncIterator[SnapshotInfo]:
        return self

    async def __anext__(self) -> SnapshotInfo:
        import asyncio

        info = await asyncio.to_thread(next, self._infos, None)
        if info is None:
            raise StopAsyncIteration
        return info


class Diff:
    """Which nodes and chunks differ between two snapshots, by path; `print` it for a summary."""

    def __init__(self, log: TransactionLog, before: NodeTable, after: NodeTable) -> None:
        """Give the nodes of a log their paths: before for deleted nodes, after for all others."""
        self._log = log
        self._before = before
        self._after = after
        self.new_groups = _paths(log.new_groups, after)
        self.new_arrays = _paths(log.new_arrays, after)
        self.deleted_groups = _paths(log.deleted_groups, before)
        self.deleted_arrays = _paths(log.deleted_arrays, before)
        self.updated_groups = _paths(log.updated_groups, after)
        self.updated_arrays = _paths(log.updated_arrays, after)
        self.moved_nodes: list[tuple[str, str]] = sorted(_moved(log, before, after))

    @property
    def updated_chunks(self) -> dict[str, list[list[int]]]:
        """Coordinates of the chunks that were set, replaced or deleted, by array."""
        return {path: index.coords().tolist() for path, index in self.chunk_indexes().items()}

    def chunk_indexes(self) -> dict[str, ChunkIndex]:
        """Like `updated_chunks`, as columns for arrays of many chunks."""
        named = {
            node.path: index
            for node_id, index in self._log.updated_chunks.items()
            if (node := self._after.by_id(node_id) or self._before.by_id(node_id)) is not None
        }
        return dict(sorted(named.items()))

    def written_chunks(self, node: Node) -> ChunkIndex | None:
        """Like `updated_chunks` for one array; None if none of its chunks were written."""
        return self._log.updated_chunks.get(node.id)

    def earlier(self, node: Node) -> Node | None:
        """The node before the changes, wherever it was then, or the one that it replaced."""
        known = self._before.by_id(node.id)
        if known is not None:
            return known
        replaced = self._before.get(node.path)
        is_gone = replaced is not None and self._after.by_id(replaced.id) is None
        return replaced if is_gone else None

    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (
            self.new_groups
            or self.new_arrays
            or self.deleted_groups
            or self.deleted_arrays
            or self.updated_groups
            or self.updated_arrays
            or self.moved_nodes
            or self._log.updated_chunks
        )

    def _repr_html_(self) -> str:
        """Show it in a notebook: what changed, and where in each array."""
        from icefloe.html_tables import chunk_map, html_table

        nodes = [
            (what, len(changed), sorted(map(str, changed)))
            for what, changed in (
                ("new groups", self.new_groups),
                ("new arrays", self.new_arrays),
                ("deleted groups", self.deleted_groups),
                ("deleted arrays", self.deleted_arrays),
                ("updated groups", self.updated_groups),
                ("updated arrays", self.updated_arrays),
                ("moved", [f"{old} → {new}" for old, new in self.moved_nodes]),
            )
            if changed
        ]
        chunks = []
        for path, index in self.chunk_indexes().items():
            node = self._after.get(path) or self._before.get(path)
            grid = node.array.grid_shape if node is not None and node.is_array else None
            chunks.append((path, len(index), chunk_map(index.coords(), grid) if grid else ""))
        if not chunks:
            return html_table("Diff", nodes or [("nothing differs", "", "")])
        return html_table("Diff", nodes) + html_table(
            "chunks", chunks, ("array", "written", "where")
        )

    def __repr__(self) -> str:
        sections = [
            ("Groups created", self.new_groups),
            ("Arrays created", self.new_arrays),
            ("Group definitions updated", self.updated_groups),
            ("Array definitions updated", self.updated_arrays),
            ("Groups deleted", self.deleted_groups),
            ("Arrays deleted", self.deleted_arrays),
        ]
        lines: list[str] = []
        for title, paths in sections:
            if paths:
                lines += [f"{title}:", *(f"    {path}" for path in sorted(paths)), ""]
        if self.moved_nodes:
            moves = (f"    {source} -> {target}" for source, target in self.moved_nodes)
            lines += ["Nodes moved:", *moves, ""]
        chunks = list(self._chunk_lines())
        if chunks:
            lines += ["Chunks updated:", *chunks]
        return "".join(f"{line}\n" for line in lines)

    def _chunk_lines(self) -> Iterator[str]:
        for path, index in self.chunk_indexes().items():
            yield f"    {path}:"
            coords = index.coords()
            yield from (f"        {row}" for row in coords[:_SHOWN_CHUNKS].tolist())
            if len(coords) > _SHOWN_CHUNKS:
                yield f"        ... {len(coords) - _SHOWN_CHUNKS} more"


def _paths(ids: frozenset[NodeId], nodes: NodeTable) -> set[str]:
    return {node.path for node_id in ids if (node := nodes.by_id(node_id)) is not None}


def _moved(log: TransactionLog, before: NodeTable, after: NodeTable) -> Iterator[tuple[str, str]]:
    for node_id in {move.node_id for move in log.moves}:
        old, new = before.by_id(node_id), after.by_id(node_id)
        if old is not None and new is not None and old.path != new.path:
            yield old.path, new.path
