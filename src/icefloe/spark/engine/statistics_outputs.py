"""Chunk statistics on their way from tasks to the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.spark.engine.tasks import TaskOutput
from icefloe.tables.statistics import Entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.manifest import ArrayChunks
    from icefloe.spark.engine.runner import Results
    from icefloe.tables.summarize import Summaries, WrittenStatistics

_PREFIX = "statistics of "


def take_statistics(results: Results, written: WrittenStatistics) -> Results:
    """Add the statistics that tasks returned to those of a job; returns the other outputs."""
    outputs = results.of(lambda name: name.startswith(_PREFIX)).outputs()
    written.add_tables((name.removeprefix(_PREFIX), table) for _, name, table in outputs)
    return results.without(_PREFIX)


def written_output(
    summaries: Summaries | None, path: str, table: ArrayChunks | None
) -> Iterator[TaskOutput]:
    """The statistics of chunks of an array that a task has written, if it has any."""
    if summaries is not None and path in summaries.paths:
        entries = summaries.entries(path, table)
        if len(entries.coords):
            yield TaskOutput(_PREFIX + path, entries.to_arrow())


def unbound_output(summaries: Summaries, path: str) -> TaskOutput:
    """The statistics of chunks that a task has read; the driver binds them to references."""
    coords, numbers = summaries.numbers(path)
    words = np.empty((len(coords), 0), dtype=np.uint64)
    return TaskOutput(_PREFIX + path, Entries(coords, numbers, words).to_arrow())
