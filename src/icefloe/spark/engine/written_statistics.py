"""Statistics of the chunks that a job writes: made by its tasks, kept by its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.spark.engine.tasks import Output
from icefloe.tables.chunk_summaries import Summaries
from icefloe.tables.columns import variable_of
from icefloe.tables.statistics import GROUP, Entries, bound, write_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.model.manifest import ArrayChunks
    from icefloe.session import Session
    from icefloe.spark.engine.runner import Results
    from icefloe.tables.columns import Variable

_PREFIX = "statistics of "


class WrittenStatistics:
    """What a job has found about the chunks that it writes.

    Others may keep statistics of the same arrays meanwhile, in the same chunks of theirs. So ours
    are taken back before the session is rebased, and laid over theirs after.
    """

    def __init__(self, session: Session) -> None:
        """Take the session that commits."""
        self._session = session
        self._found: dict[str, tuple[Variable, list[Entries]]] = {}
        self._is_written = False

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, variable: Variable, entries: Entries) -> None:
        """Take what was found about some chunks of an array."""
        if len(entries.coords):
            self._found.setdefault(variable.path, (variable, []))[1].append(entries)

    def take_from(self, results: Results) -> Results:
        """Take what tasks found; returns what else they returned."""
        found: dict[str, list[Entries]] = {}
        for _, name, table in results.of(_is_statistics).outputs():
            found.setdefault(name.removeprefix(_PREFIX), []).append(_entries_of(table))
        for path, parts in found.items():
            # As it is now, when tasks have looked at it: a rebase may bring other attributes.
            variable = variable_of(self._session, path)
            entries = _joined(parts)
            if not entries.words.shape[1]:
                chunks = self._session.tree.chunk_table(path)
                entries = bound(entries.coords, entries.numbers, chunks, variable)
            self.add(variable, entries)
        return results.without(_PREFIX)

    def look_at(self, arrays: Sequence[str]) -> None:
        """Read the chunks of arrays that the session itself has written so far."""
        if not arrays:
            return
        summaries = Summaries(self._session, arrays)
        written = self._session.status().chunk_indexes()
        for path in arrays:
            if path in written:
                summaries.add_chunks(path, written[path].coords())
        self.take_own(summaries)

    def take_own(self, summaries: Summaries) -> None:
        """Take what was found about chunks that the session itself has written."""
        if summaries.paths:
            self._session.tree.settle_pending()  # before, small chunks have no reference
        for path in summaries.paths:
            entries = summaries.entries(path, self._session.tree.chunk_table(path))
            self.add(variable_of(self._session, path), entries)

    def write(self) -> None:
        """Put all of it into the session."""
        for variable, found in self._found.values():
            write_entries(self._session, variable, _joined(found))
        self._is_written = True

    def withdraw(self) -> None:
        """Take it out of the session again."""
        if self._found and self._is_written:
            self._session.discard_changes(GROUP)
            self._is_written = False


def _is_statistics(name: str) -> bool:
    return name.startswith(_PREFIX)


def _joined(found: Sequence[Entries]) -> Entries:
    return Entries(
        np.concatenate([each.coords for each in found]),
        np.concatenate([each.numbers for each in found]),
        np.concatenate([each.words for each in found]),
    )


# --- from tasks to the driver


def outputs_about(
    summaries: Summaries | None, path: str, table: ArrayChunks | None
) -> Iterator[Output]:
    """What a task found about the chunks of an array that it has written."""
    if summaries is not None and path in summaries.paths:
        entries = summaries.entries(path, table)
        if len(entries.coords):
            yield Output(_PREFIX + path, _table_of(entries))


def unbound_output(summaries: Summaries, path: str) -> Output:
    """What a task found about chunks that it has read; the driver knows their references."""
    coords, numbers = summaries.numbers(path)
    words = np.empty((len(coords), 0), dtype=np.uint64)
    return Output(_PREFIX + path, _table_of(Entries(coords, numbers, words)))


def _table_of(entries: Entries) -> pa.Table:
    columns: dict[str, Any] = {}
    for name, block in (("c", entries.coords), ("n", entries.numbers), ("w", entries.words)):
        columns |= {f"{name}{at}": block[:, at] for at in range(block.shape[1])}
    return pa.table(columns)


def _entries_of(table: pa.Table) -> Entries:
    def block(letter: str, dtype: Any) -> Any:
        names = [name for name in table.column_names if name.startswith(letter)]
        if not names:  # coordinates of an array without dimensions
            return np.empty((table.num_rows, 0), dtype=dtype)
        return np.stack([table.column(n).to_numpy() for n in names], axis=1).astype(dtype)

    return Entries(block("c", np.int64), block("n", np.float64), block("w", np.uint64))
