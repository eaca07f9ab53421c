"""Checks the files that virtual chunks are in: which are missing, changed or too short?

Sends one request per distinct file, and reads none.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.errors import IcefloeError
from icefloe.html_tables import Report
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.record import Record
from icefloe.objects.foreign.source import same_etag
from icefloe.progress import track

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.array_choice import ArrayChoice
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.objects.foreign.source import SourceStatus

_PARALLEL_REQUESTS = 32
_SHOWN = 20


class SourceProblem(StrEnum):
    """What is wrong with a file that virtual chunks are in."""

    MISSING = "missing"
    CHANGED = "changed"
    TRUNCATED = "truncated"
    UNREADABLE = "unreadable"
    """Not authorised, or its store does not respond."""


class VirtualSourceInfo(Record, frozen=True):
    """One file that virtual chunks are in."""

    url: str
    problem: SourceProblem | None
    explanation: str
    """What was expected and what was found; empty if there is no problem."""
    chunks: int
    """Number of virtual chunks in it."""
    referenced_bytes: int
    arrays: tuple[str, ...]
    is_checked: bool
    """Whether an etag or a time was recorded, so that a change would be noticed."""


class VirtualSourcesReport(Report, frozen=True):
    """The state of all files that virtual chunks are in."""

    sources: tuple[VirtualSourceInfo, ...]

    @property
    def problems(self) -> list[VirtualSourceInfo]:
        """The files that have a problem."""
        return [source for source in self.sources if source.problem is not None]

    @property
    def is_fine(self) -> bool:
        """Whether no file has a problem."""
        return not self.problems

    def columns(self) -> dict[str, list[object]]:
        """The report as columns, for data frames."""
        names = VirtualSourceInfo.__struct_fields__
        return {name: [getattr(source, name) for source in self.sources] for name in names}

    def __str__(self) -> str:
        problems = self.problems
        chunks = sum(source.chunks for source in self.sources)
        lines = [f"{len(self.sources)} files of {chunks} virtual chunks: {len(problems)} problems"]
        lines += [
            f"  {source.problem}: {source.url} ({source.chunks} chunks of "
            f"{', '.join(source.arrays)}): {source.explanation}"
            for source in problems[:_SHOWN]
        ]
        if len(problems) > _SHOWN:
            lines.append(f"  and {len(problems) - _SHOWN} more")
        return "\n".join(lines)


class ExpectedSource(NamedTuple):
    """What references expect of a file."""

    end: int
    chunks: int
    size: int
    checks: frozenset[tuple[str, int]]
    arrays: tuple[str, ...]

    def joined(self, other: ExpectedSource) -> ExpectedSource:
        """What this and other references expect."""
        return ExpectedSource(
            end=max(self.end, other.end),
            chunks=self.chunks + other.chunks,
            size=self.size + other.size,
            checks=self.checks | other.checks,
            arrays=tuple(dict.fromkeys(self.arrays + other.arrays)),
        )


def check_virtual_sources(tree: WorkingTree, arrays: ArrayChoice = None) -> VirtualSourcesReport:
    """Check every file that virtual chunks of a tree are in, without reading any.

    Args:
        tree: The snapshot to check.
        arrays: Arrays or groups to check; all by default.
    """
    expected = expected_sources(tree, chosen_arrays(arrays, tree.array_paths()))
    return VirtualSourcesReport(tuple(examine_sources(expected, tree.virtual_sources)))


def examine_sources(
    expected: Mapping[str, ExpectedSource], resolver: VirtualChunkResolver
) -> list[VirtualSourceInfo]:
    """The state of each file, sorted by URL."""

    def look(url: str) -> VirtualSourceInfo:
        return _examined(url, expected[url], resolver)

    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as threads:
        return list(track(threads.map(look, sorted(expected)), "files", len(expected)))


def expected_sources(tree: WorkingTree, paths: Iterable[str]) -> dict[str, ExpectedSource]:
    """What the virtual chunks of some arrays expect of each file, by URL."""
    expected: dict[str, ExpectedSource] = {}
    for path in paths:
        for table in tree.chunk_tables(path):
            refs = table.refs
            rows = np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL)
            if not len(rows):
                continue
            used, where = np.unique(refs.sources[rows], return_inverse=True)
            ends = np.zeros(len(used), dtype=np.uint64)
            np.maximum.at(ends, where, refs.offsets[rows] + refs.lengths[rows])
            counts = np.bincount(where)
            sizes = np.bincount(where, weights=refs.lengths[rows].astype(np.float64))
            urls, etags = refs.locations.urls.take(used).tolist(), refs.locations.etags.take(used)
            times = refs.locations.modified[used]
            for row, url in enumerate(urls):
                check = (etags[row], int(times[row]))
                one = ExpectedSource(
                    end=int(ends[row]),
                    chunks=int(counts[row]),
                    size=int(sizes[row]),
                    checks=frozenset({check}),
                    arrays=(path,),
                )
                expected[url] = expected[url].joined(one) if url in expected else one
    return expected


def _examined(
    url: str, expected: ExpectedSource, resolver: VirtualChunkResolver
) -> VirtualSourceInfo:
    problem: SourceProblem | None
    try:
        problem, explanation = _verdict(expected, resolver.status(url))
    except IcefloeError as error:
        problem, explanation = SourceProblem.UNREADABLE, error.message
    is_checked = any(etag or seconds for etag, seconds in expected.checks)
    return VirtualSourceInfo(
        url=url,
        problem=problem,
        explanation=explanation,
        chunks=expected.chunks,
        referenced_bytes=expected.size,
        arrays=expected.arrays,
        is_checked=is_checked,
    )


def _verdict(
    expected: ExpectedSource, status: SourceStatus | None
) -> tuple[SourceProblem | None, str]:
    if status is None:
        return SourceProblem.MISSING, "it does not exist"
    if status.size is not None and status.size < expected.end:
        return (
            SourceProblem.TRUNCATED,
            f"expected at least {expected.end} bytes, found {status.size}",
        )
    for etag, seconds in sorted(expected.checks):
        if etag and (status.etag is None or not same_etag(etag, status.etag)):
            return SourceProblem.CHANGED, f"expected the etag {etag}, found {status.etag}"
        if seconds and (status.last_modified is None or status.last_modified > seconds):
            explanation = (
                f"expected a last change at {seconds} seconds since 1970 or before, found "
                f"{status.last_modified}"
            )
            return SourceProblem.CHANGED, explanation
    return None, ""
