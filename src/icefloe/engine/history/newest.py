"""Commits of several histories, newest first, a page at a time; and commits by short ids."""

from __future__ import annotations

import heapq
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import InvalidInputError
from icefloe.formats.port import LiveTip
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.engine.history.walk import History
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import SnapshotStub

SHORTEST_ID = 4
"""Fewer characters of an id are not taken for an abbreviation."""
_ID_CHARACTERS = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_ID_LENGTH = 20


class Commit(NamedTuple):
    """A commit and its parent, as the histories of later snapshots remember them."""

    stub: SnapshotStub
    parent_id: SnapshotId | None


class NewestFirst:
    """The commits that some snapshots descend from, each once, newest first.

    It reads no more of the histories than was asked for. `rest` is where to continue, so that a
    long history can be shown in pages.
    """

    def __init__(self, history: History, starts: Iterable[SnapshotId]) -> None:
        """Take the snapshots to begin with."""
        self._seen: set[SnapshotId] = set()
        # The number decides between commits of the same time; newer ones have smaller keys.
        self._lines: list[tuple[float, int, Commit, Iterator[Commit]]] = []
        for number, start in enumerate(dict.fromkeys(starts)):
            self._push(number, _with_parents(history.stubs(start)))

    def _push(self, number: int, line: Iterator[Commit]) -> None:
        commit = next(line, None)
        if commit is not None and commit.stub.id not in self._seen:
            heapq.heappush(self._lines, (-commit.stub.written_at.timestamp(), number, commit, line))

    def __iter__(self) -> Iterator[Commit]:
        return self

    def __next__(self) -> Commit:
        while self._lines:
            _, number, commit, line = heapq.heappop(self._lines)
            if commit.stub.id in self._seen:
                continue  # another history reached it first, and continues
            self._seen.add(commit.stub.id)
            self._push(number, line)
            return commit
        raise StopIteration

    def rest(self) -> list[SnapshotId]:
        """The snapshots to begin with for the commits that were not returned yet."""
        heads = [commit.stub.id for _, _, commit, _ in sorted(self._lines)]
        return [each for each in dict.fromkeys(heads) if each not in self._seen]


class LogEntry(Record, frozen=True):
    """A commit as a log shows it."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    branches: tuple[str, ...]
    tags: tuple[str, ...]
    merged_ids: tuple[str, ...]
    """The tips of other branches that it merged, or whose merges it squashed."""

    @property
    def merged_id(self) -> str | None:
        """The tip of the other branch that it merged; the last one if there are several."""
        return self.merged_ids[0] if self.merged_ids else None


class LogPage(NamedTuple):
    """Some commits of a log, and where the next page begins."""

    entries: list[LogEntry]
    rest: list[SnapshotId]
    """Empty if there is nothing more."""


def read_log_page(
    history: History,
    count: int | None,
    starts: Iterable[SnapshotId] | None = None,
    *,
    merges: bool = True,
) -> LogPage:
    """The newest commits that some snapshots descend from, or all branches and tags.

    What it reads follows `count`, however long the history is; None means all of it. Merges are
    in the files of snapshots, and are only looked up with `merges`.
    """
    named = named_snapshots(history)
    walk = NewestFirst(history, named if starts is None else starts)
    page = list(islice(walk, count))
    merged = history.merged_by([commit.stub.id for commit in page]) if merges else {}
    entries = []
    for stub, parent in page:
        branches, tags = named.get(stub.id, ([], []))
        entries.append(
            LogEntry(
                id=str(stub.id),
                parent_id=None if parent is None else str(parent),
                written_at=stub.written_at,
                message=stub.message,
                branches=tuple(branches),
                tags=tuple(tags),
                merged_ids=tuple(map(str, merged.get(stub.id, ()))),
            )
        )
    return LogPage(entries, walk.rest())


def _with_parents(stubs: Iterator[SnapshotStub]) -> Iterator[Commit]:
    stub = next(stubs)
    for parent in stubs:
        yield Commit(stub, parent.id)
        stub = parent
    yield Commit(stub, None)


def named_snapshots(history: History) -> dict[SnapshotId, tuple[list[str], list[str]]]:
    """Names of the branches and of the tags that point to a snapshot, sorted, by its id."""
    named: dict[SnapshotId, tuple[list[str], list[str]]] = {}
    for branch in sorted(history.refs.branches()):
        tip = history.refs.tip(branch)
        if isinstance(tip, LiveTip):
            named.setdefault(tip.snapshot_id, ([], []))[0].append(branch)
    for tag in sorted(history.refs.tags()):
        target = history.refs.tag(tag)
        if target is not None:
            named.setdefault(target, ([], []))[1].append(tag)
    return named


def is_whole_id(name: str) -> bool:
    """Whether a text has the form of the whole id of a snapshot."""
    return len(name) == _ID_LENGTH and set(name.upper()) <= _ID_CHARACTERS


def is_short_id(text: str) -> bool:
    """Whether a text can be the beginning of a snapshot's id."""
    return SHORTEST_ID <= len(text) < _ID_LENGTH and set(text) <= _ID_CHARACTERS


def find_short_id(history: History, text: str) -> SnapshotId | None:
    """The snapshot whose id begins with a text, among those that branches and tags reach.

    Raises InvalidInputError if there are several, with some of them.
    """
    matches = [
        commit.stub
        for commit in NewestFirst(history, named_snapshots(history))
        if str(commit.stub.id).startswith(text)
    ]
    if len(matches) > 1:
        some = ", ".join(str(stub.id) for stub in matches[:3])
        raise InvalidInputError(
            f"{text!r} is the beginning of {len(matches)} snapshot ids ({some}): "
            "give more characters"
        )
    return matches[0].id if matches else None
