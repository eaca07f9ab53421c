"""Copies virtual chunks into the repository: their bytes as they are, one commit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.config.locations import parse_location
from icefloe.errors import InvalidInputError
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.nodes import expect_array
from icefloe.model.record import Record
from icefloe.model.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.model.array_choice import ArrayChoice
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.zarr_document import ArrayMetadata
    from icefloe.repository import Repository
    from icefloe.session import Session

BATCH_BYTES = 64 * 1024 * 1024
"""How many bytes are copied at a time."""


class Materialized(Record, frozen=True):
    """What was copied, or would be."""

    chunks: int
    bytes: int
    arrays: dict[str, int]
    """Number of chunks by array."""
    snapshot_id: str | None
    """The commit; None if nothing was committed."""

    def __str__(self) -> str:
        done = "copied" if self.snapshot_id is not None else "to copy"
        return (
            f"{self.chunks} virtual chunks of {len(self.arrays)} arrays, {self.bytes} bytes {done}"
        )


def materialize(
    repository: Repository,
    branch: str,
    *,
    arrays: ArrayChoice = None,
    region: Mapping[str, slice] | None = None,
    locations: str | Iterable[str] | None = None,
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    dry_run: bool = False,
    rebase_with: ConflictSolver | None = None,
) -> Materialized:
    """Copy chosen virtual chunks into the repository, as one commit on a branch.

    Args:
        repository: Where to copy to.
        branch: Whose tip to change.
        arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.
        region: By dimension name, which elements to copy; chunks that have any of them are copied
            whole.
        locations: URL prefixes of folders, or URLs of files; chunks in others stay virtual.
        message: Message of the commit.
        metadata: Properties of the commit.
        dry_run: Count chunks and bytes, and copy nothing.
        rebase_with: What to do if the branch moves meanwhile.
    """
    if dry_run:
        session = repository.readonly_session(branch)
        return materialize_in(
            session, arrays=arrays, region=region, locations=locations, dry_run=True
        )
    session = repository.writable_session(branch)
    done = materialize_in(session, arrays=arrays, region=region, locations=locations)
    if not done.chunks:
        return done
    said = message or f"Copy {done.chunks} virtual chunks into the repository"
    snapshot_id = session.commit(said, metadata, rebase_with)
    return Materialized(done.chunks, done.bytes, done.arrays, snapshot_id)


def materialize_in(
    session: Session,
    *,
    arrays: ArrayChoice = None,
    region: Mapping[str, slice] | None = None,
    locations: str | Iterable[str] | None = None,
    dry_run: bool = False,
) -> Materialized:
    """Copy chosen virtual chunks into a session; committing is left to the caller."""
    chosen = chosen_arrays(arrays, session.tree.array_paths())
    _check_region(session, chosen, region)
    places = None if locations is None else _Places(locations)
    counts: dict[str, int] = {}
    total = 0
    for path in chosen:
        box = _box(path, _metadata(session, path), region)
        for coords, lengths in _chosen(session.tree.chunk_tables(path), box, places):
            counts[path] = counts.get(path, 0) + len(coords)
            total += int(lengths.sum())
            if not dry_run:
                _copy(session, path, coords, lengths)
    return Materialized(sum(counts.values()), total, counts, None)


def _copy(
    session: Session, path: str, coords: npt.NDArray[np.int64], lengths: npt.NDArray[np.uint64]
) -> None:
    """Copy chunks, some at a time, so that memory is bounded."""
    starts = np.flatnonzero(
        np.diff(np.cumsum(lengths) // np.uint64(BATCH_BYTES), prepend=0)
    ).tolist()
    bounds = [0, *starts, len(coords)]
    for start, stop in pairwise(bounds):
        batch = coords[start:stop]
        if not len(batch):
            continue
        for found in session.read_chunks(path, batch):
            rows = [found.segments.piece(row) for row in range(len(found.segments))]
            session.write_chunks(path, batch[found.rows], Segments.of(rows))


def _chosen(
    tables: Iterable[ArrayChunks], box: tuple[Any, Any] | None, places: _Places | None
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    for table in tables:
        refs = table.refs
        chosen = refs.kinds == ChunkKind.VIRTUAL
        coords = table.index.coords().astype(np.int64)
        if box is not None:
            lower, upper = box
            chosen &= ((coords >= lower) & (coords < upper)).all(axis=1)
        rows = np.flatnonzero(chosen)
        if places is not None and len(rows):
            used, where = np.unique(refs.sources[rows], return_inverse=True)
            fits = np.array([places.has(url) for url in refs.locations.urls.take(used).tolist()])
            rows = rows[fits[where]]
        if len(rows):
            yield coords[rows], refs.lengths[rows]


def _metadata(session: Session, path: str) -> ArrayMetadata:
    return expect_array(session.get_node(path), path).array


def _check_region(
    session: Session, paths: Iterable[str], region: Mapping[str, slice] | None
) -> None:
    """Raise InvalidInputError unless a region is made of slices along dimensions that there are."""
    if region is None:
        return
    known = {name for path in paths for name in _metadata(session, path).dimension_names or ()}
    for name, chosen in region.items():
        if name not in known:
            shown = ", ".join(sorted(filter(None, known))) or "none with a name"
            raise InvalidInputError(
                f"none of the chosen arrays has a dimension {name!r}; there are: {shown}"
            )
        given: object = chosen
        if not isinstance(given, slice) or given.step not in (None, 1):
            raise InvalidInputError(
                f"a region has slices of positions with no steps, found {chosen!r} along {name!r}"
            )


def _box(
    path: str, array: ArrayMetadata, region: Mapping[str, slice] | None
) -> tuple[Any, Any] | None:
    """The chunks that have elements of a region."""
    if region is None:
        return None
    names = array.dimension_names or ()
    if array.chunk_shape is None:
        raise InvalidInputError(f"{path} has chunks of several sizes: choose it without a region")
    lower, upper = [], []
    for name, size, chunk in zip(names, array.shape, array.chunk_shape, strict=False):
        start, stop, _ = region.get(name or "", slice(None)).indices(size)
        lower.append(start // chunk if chunk else 0)
        upper.append(-(-stop // chunk) if chunk and stop > start else 0)
    missing = set(region) - set(names)
    if missing or len(lower) != len(array.shape):
        # An array without the dimension has no part of the region.
        return np.zeros(len(array.shape), np.int64), np.zeros(len(array.shape), np.int64)
    return np.array(lower, np.int64), np.array(upper, np.int64)


class _Places:
    """Folders and files that locations are compared with, in their canonical form."""

    def __init__(self, urls: str | Iterable[str]) -> None:
        given = [urls] if isinstance(urls, str) else urls
        self._places = [parse_location(url) for url in given]

    def has(self, url: str) -> bool:
        location = parse_location(url)
        return any(location == place or location.is_below(place) for place in self._places)
