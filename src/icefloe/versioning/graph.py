"""The ancestry of all branches and tags as a graph that people can read in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.record import Record

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotStub
    from icefloe.versioning.history import History


class GraphRow(Record, frozen=True):
    """One snapshot of the graph."""

    id: str
    parent_id: str | None
    written_at: str
    message: str
    branches: tuple[str, ...]
    tags: tuple[str, ...]


class AncestryGraph:
    """All snapshots that branches and tags reach, newest first."""

    def __init__(self, rows: list[GraphRow]) -> None:
        """Take the snapshots, children before parents."""
        self.rows = rows

    @classmethod
    def of(cls, history: History) -> AncestryGraph:
        """Read the graph of a repository."""
        branches: dict[SnapshotId, list[str]] = {}
        tags: dict[SnapshotId, list[str]] = {}
        for branch in sorted(history.refs.branches()):
            tip = history.refs.tip(branch)
            if tip is not None and tip.snapshot_id is not None:
                branches.setdefault(tip.snapshot_id, []).append(branch)
        for tag in sorted(history.refs.tags()):
            target = history.refs.tag(tag)
            if target is not None:
                tags.setdefault(target, []).append(tag)
        stubs: dict[SnapshotId, SnapshotStub] = {}
        parents: dict[SnapshotId, SnapshotId | None] = {}
        for start in (*branches, *tags):
            child = None
            for stub in history.stubs(start):
                if child is not None:
                    parents[child] = stub.id
                if stub.id in stubs:
                    break
                stubs[stub.id] = stub
                parents.setdefault(stub.id, None)
                child = stub.id
        ordered = sorted(stubs.values(), key=lambda s: s.written_at, reverse=True)
        return cls(
            [
                GraphRow(
                    str(s.id),
                    None if (parent := parents[s.id]) is None else str(parent),
                    s.written_at.isoformat(sep=" ", timespec="seconds"),
                    s.message,
                    tuple(branches.get(s.id, ())),
                    tuple(tags.get(s.id, ())),
                )
                for s in ordered
            ]
        )

    def __str__(self) -> str:
        lanes: list[str] = []
        lines: list[str] = []
        for row in self.rows:
            if row.id not in lanes:
                lanes.append(row.id)
            place = lanes.index(row.id)
            marks = " ".join("*" if i == place else "|" for i in range(len(lanes)))
            names = [*row.branches, *(f"tag: {tag}" for tag in row.tags)]
            labels = f" ({', '.join(names)})" if names else ""
            title = row.message.splitlines()[0] if row.message else ""
            lines.append(f"{marks}  {row.id}{labels} {row.written_at} {title}")
            joined = [i for i, lane in enumerate(lanes) if lane == row.parent_id and i != place]
            if row.parent_id is None:
                del lanes[place]
            elif joined:
                # Two lines of history meet: the one further right ends here.
                other = joined[0]
                keep, end = min(place, other), max(place, other)
                lanes[keep] = row.parent_id
                lines.append(" ".join("/" if i == end else "|" for i in range(len(lanes))).rstrip())
                del lanes[end]
            else:
                lanes[place] = row.parent_id
        return "\n".join(lines)

    __repr__ = __str__
