"""Finds the snapshot that a merge compares both branches with: the newest that both contain.

By descent as snapshots recorded it, whatever has expired since, and by earlier merges. What a merge
started from an older snapshot would bring back what one side deleted; so if the right one is gone,
there is no merge.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from icefloe.errors import ObjectNotFoundError, SnapshotNotFoundError
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import MERGED_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from icefloe.model.snapshot import Snapshot, SnapshotStub
    from icefloe.versioning.context import Context


def merge_base(context: Context, source: SnapshotId, target: SnapshotId) -> SnapshotId:
    """The newest snapshot that two contain, or are.

    Raises:
        SnapshotNotFoundError: If it was collected, or nobody knows any more which it is.
    """
    return source if source == target else _Search(context, source, target).base()


class _Search:
    """Looks for the base of two snapshots."""

    def __init__(self, context: Context, source: SnapshotId, target: SnapshotId) -> None:
        self._context = context
        self._tips = (source, target)
        self._lines = {tip: {stub.id: stub for stub in self._line(tip)} for tip in self._tips}

    def base(self) -> SnapshotId:
        mine, theirs = self._lines.values()
        # Dictionaries keep their order: the newest ancestor of one that the other has, too.
        fork = next((stub for stub in mine.values() if stub.id in theirs), None)
        contained, other = (self._contained(tip, fork) for tip in self._tips)
        both = sorted(contained.keys() & other.keys(), key=contained.__getitem__, reverse=True)
        for found in both:
            if found in self._tips or self._exists(found):
                return found
            if found in mine or found in theirs:
                raise SnapshotNotFoundError(_gone(self._tips, found), str(found))
            # A third branch that both merged, and that was deleted since.
        raise SnapshotNotFoundError(_gone(self._tips, None))

    def _line(self, start: SnapshotId) -> Iterator[SnapshotStub]:
        """A snapshot and its ancestors, newest first, as far as anybody knows them."""
        with contextlib.suppress(SnapshotNotFoundError):
            yield from self._context.history.recorded_stubs(start)

    def _contained(
        self, start: SnapshotId, fork: SnapshotStub | None
    ) -> dict[SnapshotId, datetime]:
        """The snapshots that one contains, with their times, back to where the two parted."""
        found = {} if fork is None else {fork.id: fork.written_at}
        waiting = [start]
        while waiting:
            tip = waiting.pop()
            line = self._lines[tip].values() if tip in self._lines else self._line(tip)
            new = []
            for stub in line:
                if stub.id in found or (fork is not None and stub.written_at < fork.written_at):
                    break
                found[stub.id] = stub.written_at
                new.append(stub.id)
            for merged in self._context.files.in_parallel(self._merged_by, new):
                waiting += merged
        return found

    def _merged_by(self, snapshot_id: SnapshotId) -> list[SnapshotId]:
        try:
            return _merged_ids(self._context.files.read_snapshot(snapshot_id))
        except SnapshotNotFoundError:
            return []

    def _exists(self, snapshot_id: SnapshotId) -> bool:
        """Whether a snapshot is there, whatever caches remember of it."""
        try:
            self._context.storage.head(self._context.format.layout.snapshot(snapshot_id))
        except ObjectNotFoundError:
            return False
        return True


def _merged_ids(snapshot: Snapshot) -> list[SnapshotId]:
    """The tips of other branches that a commit merged."""
    merged = snapshot.metadata.get(MERGED_KEY)
    texts = merged if isinstance(merged, list) else [merged]
    return [SnapshotId.parse(text) for text in texts if isinstance(text, str)]


def _gone(tips: tuple[SnapshotId, SnapshotId], base: SnapshotId | None) -> str:
    which = "the last commit that both have" if base is None else f"{base}, which both have last,"
    return (
        f"cannot merge {tips[0]} into {tips[1]}: {which} has expired and was collected, so nobody "
        "can tell what each of them changed since then; take over single commits with cherry_pick, "
        "and expire branches that are still to be merged only as far as where they parted"
    )
