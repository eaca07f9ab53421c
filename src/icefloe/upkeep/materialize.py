"""Copies virtual chunks into a tree, byte for byte."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from icefloe.config.locations import parse_location
from icefloe.errors import InvalidInputError
from icefloe.html_tables import Report
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.nodes import expect_array
from icefloe.model.segments import Segments
from icefloe.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.array_choice import ArrayChoice
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.zarr_document import ArrayMetadata

BATCH_BYTES = 64 * 1024 * 1024
"""How many bytes to copy at a time."""


class Materialized(Report, frozen=True):
    """How many virtual chunks were copied into the repository, or would be."""

    chunks: int
    bytes: int
    arrays: dict[str, int]
    """Number of chunks by array."""
    snapshot_id: str | None
    """The commit; None if nothing was committed."""

    def committed_as(self, snapshot_id: str) -> Materialized:
        """The same with the id of the commit."""
        return msgspec.structs.replace(self, snapshot_id=snapshot_id)

    def __str__(self) -> str:
        done = "copied" if self.snapshot_id is not None else "to copy"
        return (
            f"{self.chunks} virtual chunks of {len(self.arrays)} arrays, {self.bytes} bytes {done}"
        )


class VirtualChunkChoice(NamedTuple):
    """Which virtual chunks to copy; all by default."""

    arrays: ArrayChoice = None
    """Paths of arrays or groups, or patterns such as `/era5/t*`."""
    region: Mapping[str, slice] | None = None
    """Elements by dimension name; chunks that have any of them are copied whole."""
    locations: str | Iterable[str] | None = None
    """URL prefixes of folders, or URLs of files."""


class VirtualBatch(NamedTuple):
    """Some virtual chunks of an array, which are copied at a time."""

    path: str
    coords: npt.NDArray[np.int64]
    size_bytes: int


def copy_virtual_chunks(
    tree: WorkingTree, choice: VirtualChunkChoice, *, dry_run: bool = False
) -> Materialized:
    """Copy chosen virtual chunks into a tree, which the caller commits; or only count them."""
    counts = Counts()
    stage = ProgressStage("chunks", None)
    for batch in counts.counted(virtual_batches(tree, choice)):
        if not dry_run:
            copy_batch(tree, batch)
        stage.advance(len(batch.coords))
    return counts.summary()


class Counts:
    """Counts the chunks of batches on their way."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._arrays: dict[str, int] = {}
        self._bytes = 0

    def counted(self, batches: Iterable[VirtualBatch]) -> Iterator[VirtualBatch]:
        """The same batches."""
        for batch in batches:
            self._arrays[batch.path] = self._arrays.get(batch.path, 0) + len(batch.coords)
            self._bytes += batch.size_bytes
            yield batch

    def summary(self) -> Materialized:
        """How many there were, not committed yet."""
        chunks = sum(self._arrays.values())
        return Materialized(
            chunks=chunks, bytes=self._bytes, arrays=dict(self._arrays), snapshot_id=None
        )


def virtual_batches(tree: WorkingTree, choice: VirtualChunkChoice) -> Iterator[VirtualBatch]:
    """The chosen virtual chunks, as many at a time as fit into memory well."""
    chosen = chosen_arrays(choice.arrays, tree.array_paths())
    region = choice.region
    _check_region(tree, chosen, region)
    places = None if choice.locations is None else _UrlPrefixes(choice.locations)
    for path in chosen:
        box = _box(path, _metadata(tree, path), region)
        for coords, lengths in _chosen(tree.chunk_tables(path), box, places):
            filled = np.cumsum(lengths) // np.uint64(BATCH_BYTES)
            starts = np.flatnonzero(np.diff(filled, prepend=0)).tolist()
            for start, stop in pairwise([0, *starts, len(coords)]):
                if stop > start:
                    size = int(lengths[start:stop].sum())
                    yield VirtualBatch(path, coords[start:stop], size)


def copy_batch(tree: WorkingTree, batch: VirtualBatch) -> None:
    """Copy virtual chunks into a tree."""
    for chunks in tree.read_chunks(batch.path, batch.coords):
        pieces = [chunks.segments.piece(row) for row in range(len(chunks.segments))]
        tree.write_chunks(batch.path, batch.coords[chunks.rows], Segments.of(pieces))


def _chosen(
    tables: Iterable[ArrayChunks], box: tuple[Any, Any] | None, places: _UrlPrefixes | None
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


def _metadata(tree: WorkingTree, path: str) -> ArrayMetadata:
    return expect_array(tree.get_node(path), path).array


def _check_region(
    tree: WorkingTree, paths: Iterable[str], region: Mapping[str, slice] | None
) -> None:
    """Raise InvalidInputError unless a region consists of slices along existing dimensions."""
    if region is None:
        return
    known = {name for path in paths for name in _metadata(tree, path).dimension_names or ()}
    for name, chosen in region.items():
        if name not in known:
            shown = ", ".join(sorted(filter(None, known))) or "none with a name"
            raise InvalidInputError(
                f"none of the chosen arrays has a dimension {name!r}; there are: {shown}"
            )
        if not _is_plain_slice(chosen):
            raise InvalidInputError(
                f"a region has slices of positions with no steps, found {chosen!r} along {name!r}"
            )


def _is_plain_slice(value: object) -> bool:
    return isinstance(value, slice) and value.step in (None, 1)


def _box(
    path: str, array: ArrayMetadata, region: Mapping[str, slice] | None
) -> tuple[Any, Any] | None:
    """The lower and upper corner of the chunks that have elements of a region; None for all."""
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


class _UrlPrefixes:
    """Folders and files in canonical form, to compare locations with."""

    def __init__(self, urls: str | Iterable[str]) -> None:
        self._places = [parse_location(url) for url in ([urls] if isinstance(urls, str) else urls)]

    def has(self, url: str) -> bool:
        location = parse_location(url)
        return any(location == place or location.is_below(place) for place in self._places)
