"""The methods of a repository that tell its history; what they do is in `history` and beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.engine.async_twin import async_twin
from icefloe.engine.history.blame import Blame, blame
from icefloe.engine.history.graph import AncestryGraph
from icefloe.engine.history.walk import Version
from icefloe.engine.info import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.engine.inspection import describe_snapshot
from icefloe.engine.maintained import MaintainedRepository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from datetime import datetime

    from icefloe.engine.context import Context
    from icefloe.model.ids import SnapshotId


class RepositoryHistory(MaintainedRepository):
    """Snapshots by name, their ancestry, and what changed between them."""

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """A snapshot by its id."""
        snapshot = self._context.files.read_snapshot(self._existing(snapshot_id))
        return SnapshotInfo.of(self._context.history.with_shown_parent(snapshot))

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Ancestry:
        """A snapshot and its ancestors, newest first; works with `for` and with `async for`."""
        return Ancestry(self._context, self._resolve(branch, tag, snapshot_id))

    async_ancestry = ancestry

    def ancestry_graph(self, *, merges: bool = True) -> AncestryGraph:
        """All branches and tags with their history, to look at.

        Args:
            merges: Whether to show what was merged where, for which each snapshot is read; without
                it a long history is read from a few of them.
        """
        return AncestryGraph.of(self._context.history, merges=merges)

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """What changed from one snapshot to another that has a common ancestor with it."""
        Version(from_branch, from_tag, from_snapshot_id).check(
            "from_branch, from_tag, or from_snapshot_id"
        )
        Version(to_branch, to_tag, to_snapshot_id).check("to_branch, to_tag, or to_snapshot_id")
        older = self._resolve(from_branch, from_tag, from_snapshot_id)
        newer = self._resolve(to_branch, to_tag, to_snapshot_id)
        return self._context.history.diff(older, newer)

    def blame(
        self,
        path: str,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Blame:
        """Which commit last wrote each chunk of an array, as columns."""
        return blame(self._context.history, self._resolve(branch, tag, snapshot_id), path)

    def inspect_snapshot(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """A snapshot as JSON, for people."""
        snapshot = self._context.files.read_snapshot(self._existing(snapshot_id))
        text = msgspec.json.encode(describe_snapshot(snapshot))
        return (msgspec.json.format(text, indent=2) if pretty else text).decode()

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifests that a snapshot refers to."""
        return self.lookup_snapshot(snapshot_id).manifests

    def _resolve(
        self,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> SnapshotId:
        return self._context.history.resolve(Version(branch, tag, snapshot_id), as_of)

    def _existing(self, snapshot_id: str) -> SnapshotId:
        """The id of a snapshot that is really there; raises SnapshotNotFoundError."""
        found = self._resolve(snapshot_id=snapshot_id)
        return self._context.files.read_snapshot(found).id

    lookup_snapshot_async = async_twin(lookup_snapshot)
    ancestry_graph_async = async_twin(ancestry_graph)
    diff_async = async_twin(diff)
    inspect_snapshot_async = async_twin(inspect_snapshot)
    list_manifest_files_async = async_twin(list_manifest_files)


class Ancestry:
    """Snapshots of a history, newest first, for `for`, `next`, `async for` and `anext`."""

    def __init__(self, context: Context, snapshot_id: SnapshotId) -> None:
        """Start at a snapshot; that it is missing shows here, not at the first step."""
        context.files.read_snapshot(snapshot_id)
        self._snapshots = context.history.ancestry(snapshot_id)

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return self

    def __next__(self) -> SnapshotInfo:
        return SnapshotInfo.of(next(self._snapshots))

    def __aiter__(self) -> AsyncIterator[SnapshotInfo]:
        return self

    async def __anext__(self) -> SnapshotInfo:
        snapshot = await _next_in_thread(self._snapshots)
        if snapshot is None:
            raise StopAsyncIteration
        return SnapshotInfo.of(snapshot)


async def _next_in_thread(iterator: Iterator[Any]) -> Any:
    import asyncio

    return await asyncio.to_thread(next, iterator, None)
