"""Finds the merge base of two snapshots: the newest snapshot that both contain.

Containment follows descent as snapshots recorded it, including expired ones, and earlier merges. A
merge from an older base would bring back what one side deleted; so if the right base is gone, the
merge is refused.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import SnapshotNotFoundError
from icefloe.storage.concurrency import together
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from icefloe.engine.context import Context
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotStub

_Times = dict["SnapshotId", "datetime"]


class MergeBase(NamedTuple):
    """The base of a merge."""

    snapshot_id: SnapshotId
    line: list[SnapshotId]
    """The other commits that the merge brings in, newest first."""


class _Contained(NamedTuple):
    """What a snapshot contains, by descent or by merges, back to where the two sides diverged."""

    times: _Times
    """When each was written. Some may have been collected."""
    mentioned: set[SnapshotId]
    """Snapshots that merges mention in addition, whether they exist or not."""

    def all(self) -> set[SnapshotId]:
        return self.times.keys() | self.mentioned


def find_merge_base(context: Context, source: SnapshotId, target: SnapshotId) -> MergeBase:
    """Find the newest snapshot that both contain or are.

    Raises:
        SnapshotNotFoundError: If it was collected, or can no longer be determined.
    """
    return MergeBase(source, []) if source == target else _Search(context, source, target).base()


class _Search:
    """The search for the base of two snapshots."""

    def __init__(self, context: Context, source: SnapshotId, target: SnapshotId) -> None:
        self._context = context
        self._tips = (source, target)
        self._lines = self._until_they_meet()

    def _until_they_meet(self) -> dict[SnapshotId, dict[SnapshotId, SnapshotStub]]:
        """Both lines of history, newest first, back to where they meet, and no further."""
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
        # In insertion order: the newest ancestor of one side that the other side has, too.
        fork = next((stub for stub in mine.values() if stub.id in theirs), None)
        source, target, fork_exists = together(
            self._context.storage,
            lambda: self._contained(self._tips[0], fork),
            lambda: self._contained(self._tips[1], fork),
            lambda: fork is not None and fork.id not in self._tips and self._exists(fork.id),
        )
        for common in self._newest_first(source, target):
            if not all(self._is_unbroken(line, common) for line in self._lines.values()):
                break
            is_fork = fork is not None and common == fork.id
            if common in self._tips or (fork_exists if is_fork else self._exists(common)):
                return MergeBase(common, self._line_beyond(source, target))
            if common in mine or common in theirs:
                raise SnapshotNotFoundError(_gone(self._tips, common), str(common))
            # On a third branch that both merged, and that was deleted since.
        raise SnapshotNotFoundError(_gone(self._tips, None))

    def _newest_first(self, source: _Contained, target: _Contained) -> list[SnapshotId]:
        """What both contain, as far as the time of writing is known."""
        times = {**source.times, **target.times}
        both = source.all() & target.all()
        unknown = [each for each in both if each not in times]
        for snapshot in self._context.files.in_parallel(self._context.history.find, unknown):
            if snapshot is not None:
                times[snapshot.id] = snapshot.written_at
        return sorted(both & times.keys(), key=times.__getitem__, reverse=True)

    def _line_beyond(self, source: _Contained, target: _Contained) -> list[SnapshotId]:
        """The ancestors of the source that the target does not contain."""
        new = source.times.keys() - target.all() - {self._tips[0]}
        return sorted(new, key=source.times.__getitem__, reverse=True)

    def _line(self, start: SnapshotId) -> Iterator[SnapshotStub]:
        """A snapshot and its ancestors, newest first, as far as they are recorded."""
        with contextlib.suppress(SnapshotNotFoundError):
            yield from self._context.history.recorded_stubs(start)

    def _contained(self, start: SnapshotId, fork: SnapshotStub | None) -> _Contained:
        """The snapshots that one contains, back to where the two sides diverged."""
        contained = _Contained({} if fork is None else {fork.id: fork.written_at}, set())
        waiting = [start]
        while waiting:
            tip = waiting.pop()
            line = self._lines[tip].values() if tip in self._lines else self._line(tip)
            new = []
            for stub in line:
                if stub.id in contained.times:
                    break
                if fork is not None and stub.written_at < fork.written_at:
                    break
                contained.times[stub.id] = stub.written_at
                new.append(stub.id)
            for merged, came_along in self._context.files.in_parallel(self._merged_by, new):
                waiting += merged
                contained.mentioned.update(came_along)
        return contained

    def _merged_by(
        self, snapshot_id: SnapshotId
    ) -> tuple[tuple[SnapshotId, ...], tuple[SnapshotId, ...]]:
        """The tips that a commit merged, and the other commits that this brought in."""
        snapshot = self._context.history.find(snapshot_id)
        return ((), ()) if snapshot is None else (snapshot.merged_ids(), snapshot.merged_line())

    def _is_unbroken(self, line: dict[SnapshotId, SnapshotStub], common: SnapshotId) -> bool:
        """Whether a line really goes back to a snapshot, without a gap left by expiry.

        After expiry the first snapshot follows, and a cut says so. Other programs leave no cut, but
        then the next commit has nodes that it did not create.
        """
        last = [*line][-2:]
        if len(last) < 2 or last[1] != common:
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
        """Whether a snapshot exists in the storage, whatever is cached."""
        return is_there(self._context.storage, self._context.format.layout.snapshot(snapshot_id))


def _gone(tips: tuple[SnapshotId, SnapshotId], base: SnapshotId | None) -> str:
    which = "the last commit that both have" if base is None else f"{base}, which both have last,"
    return (
        f"cannot merge {tips[0]} into {tips[1]}: {which} has expired and is gone, so "
        "the changes since then cannot be determined; apply single commits with cherry_pick, "
        "and before you merge branches, expire only snapshots older than their common ancestor"
    )
