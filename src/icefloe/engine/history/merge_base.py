"""Finds the snapshot that a merge compares both branches with: the newest that both contain.

By descent as snapshots recorded it, whatever has expired since, and by earlier merges. A merge that
started from an older snapshot would bring back what one side deleted; so if the right one is gone,
there is no merge.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import SnapshotNotFoundError
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from icefloe.engine.context import Context
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotStub

_Times = dict["SnapshotId", "datetime"]


class MergeBase(NamedTuple):
    """Where a merge starts."""

    snapshot_id: SnapshotId
    line: list[SnapshotId]
    """The commits that come along with the tip that is merged, newest first."""


class _Contained(NamedTuple):
    """What a snapshot contains, by descent or by merges, back to where two parted."""

    times: _Times
    """When they were written. Some may have been collected."""
    told: set[SnapshotId]
    """What merges tell of in addition, whether it is there or not."""

    def all(self) -> set[SnapshotId]:
        return self.times.keys() | self.told


def find_merge_base(context: Context, source: SnapshotId, target: SnapshotId) -> MergeBase:
    """The newest snapshot that two contain, or are.

    Raises:
        SnapshotNotFoundError: If it was collected, or nobody knows any more which it is.
    """
    return MergeBase(source, []) if source == target else _Search(context, source, target).base()


class _Search:
    """Looks for the base of two snapshots."""

    def __init__(self, context: Context, source: SnapshotId, target: SnapshotId) -> None:
        self._context = context
        self._tips = (source, target)
        self._lines = self._until_they_meet()

    def _until_they_meet(self) -> dict[SnapshotId, dict[SnapshotId, SnapshotStub]]:
        """Both lines, newest first, back to where they part: no further, they may be long."""
        waiting = {tip: self._line(tip) for tip in self._tips}
        next_ones = {tip: next(line, None) for tip, line in waiting.items()}
        lines: dict[SnapshotId, dict[SnapshotId, SnapshotStub]] = {tip: {} for tip in self._tips}
        while left := {tip: stub for tip, stub in next_ones.items() if stub is not None}:
            tip = max(left, key=lambda each: left[each].written_at)
            stub = left[tip]
            lines[tip][stub.id] = stub
            if all(stub.id in line for line in lines.values()):
                break
            next_ones[tip] = next(waiting[tip], None)
        return lines

    def base(self) -> MergeBase:
        mine, theirs = self._lines.values()
        # Dictionaries keep their order: the newest ancestor of one that the other has, too.
        fork = next((stub for stub in mine.values() if stub.id in theirs), None)
        source, target = (self._contained(tip, fork) for tip in self._tips)
        for found in self._newest_first(source, target):
            if not all(self._is_told(found, line) for line in self._lines.values()):
                break
            if found in self._tips or self._exists(found):
                return MergeBase(found, self._line_beyond(source, target))
            if found in mine or found in theirs:
                raise SnapshotNotFoundError(_gone(self._tips, found), str(found))
            # A third branch that both merged, and that was deleted since.
        raise SnapshotNotFoundError(_gone(self._tips, None))

    def _newest_first(self, source: _Contained, target: _Contained) -> list[SnapshotId]:
        """What both contain, as far as anybody knows its time."""
        times = {**source.times, **target.times}
        both = source.all() & target.all()
        unknown = [each for each in both if each not in times]
        for snapshot in self._context.files.in_parallel(self._context.history.find, unknown):
            if snapshot is not None:
                times[snapshot.id] = snapshot.written_at
        return sorted(both & times.keys(), key=times.__getitem__, reverse=True)

    def _line_beyond(self, source: _Contained, target: _Contained) -> list[SnapshotId]:
        """The commits before the source that the target does not contain."""
        new = source.times.keys() - target.all() - {self._tips[0]}
        return sorted(new, key=source.times.__getitem__, reverse=True)

    def _line(self, start: SnapshotId) -> Iterator[SnapshotStub]:
        """A snapshot and its ancestors, newest first, as far as anybody knows them."""
        with contextlib.suppress(SnapshotNotFoundError):
            yield from self._context.history.recorded_stubs(start)

    def _contained(self, start: SnapshotId, fork: SnapshotStub | None) -> _Contained:
        """The snapshots that one contains, back to where the two parted."""
        found = _Contained({} if fork is None else {fork.id: fork.written_at}, set())
        waiting = [start]
        while waiting:
            tip = waiting.pop()
            line = self._lines[tip].values() if tip in self._lines else self._line(tip)
            new = []
            for stub in line:
                if stub.id in found.times:
                    break
                if fork is not None and stub.written_at < fork.written_at:
                    break
                found.times[stub.id] = stub.written_at
                new.append(stub.id)
            for merged, came_along in self._context.files.in_parallel(self._merged_by, new):
                waiting += merged
                found.told.update(came_along)
        return found

    def _merged_by(
        self, snapshot_id: SnapshotId
    ) -> tuple[tuple[SnapshotId, ...], tuple[SnapshotId, ...]]:
        """The tips that a commit merged, and the commits that came along with them."""
        snapshot = self._context.history.find(snapshot_id)
        return ((), ()) if snapshot is None else (snapshot.merged_ids(), snapshot.merged_line())

    def _is_told(self, found: SnapshotId, line: dict[SnapshotId, SnapshotStub]) -> bool:
        """Whether a line goes back to a snapshot without a gap that nobody sees.

        Copies of what has expired go on with the first snapshot, and are marked. So does what
        other programs expire; there the next commit has nodes that it did not create.
        """
        last = [*line][-2:]
        if len(last) < 2 or last[1] != found:
            return True
        first, second = map(self._context.history.find, reversed(last))
        if first is None or second is None or first.parent_id is not None:
            return True
        if self._context.history.cuts.root_behind(second.id) is not None:
            return False
        log = self._context.files.read_transaction_log(second.id)
        if log is None:
            return True
        created = log.new_groups | log.new_arrays | {node.id for node in first.nodes}
        return all(node.id in created for node in second.nodes)

    def _exists(self, snapshot_id: SnapshotId) -> bool:
        """Whether a snapshot is there, whatever caches remember of it."""
        return is_there(self._context.storage, self._context.format.layout.snapshot(snapshot_id))


def _gone(tips: tuple[SnapshotId, SnapshotId], base: SnapshotId | None) -> str:
    which = "the last commit that both have" if base is None else f"{base}, which both have last,"
    return (
        f"cannot merge {tips[0]} into {tips[1]}: {which} has expired and is gone, so nobody "
        "can tell what each of them changed since then; take over single commits with cherry_pick, "
        "and expire branches that are still to be merged only as far as where they parted"
    )
