"""Statistics of the chunks that a session writes, made while their values are in memory.

Values are not read again, unless what is stored may differ from them: chunks that were written in
part, arrays whose codecs lose digits, and values that others encode.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.spark.engine.failures import doing
from icefloe.spark.engine.grid import Grid, Region, shape_of, shifted, split
from icefloe.tables.columns import variable_of
from icefloe.tables.statistics import Entries, bound
from icefloe.tables.summarizing import NUMBERS, summarize_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from icefloe.model.manifest import ArrayChunks
    from icefloe.session import TreeSession

    Coords = npt.NDArray[np.int64]

_STEP_BYTES = 32 * 1024 * 1024
"""What is read at a time, where values must be read."""
_EXACT_CODECS = frozenset(
    ["bytes", "transpose", "zstd", "gzip", "blosc", "crc32c", "sharding_indexed"]
    + [f"numcodecs.{name}" for name in ("zstd", "gzip", "zlib", "blosc", "lz4", "lzma", "bz2")]
    + [f"numcodecs.{name}" for name in ("shuffle", "crc32", "crc32c", "adler32", "fletcher32")]
)
"""Codecs that give back what they got, whatever it is."""


class Summaries:
    """What was found about chunks of some arrays, until their references are known."""

    def __init__(self, session: TreeSession, paths: Iterable[str] = ()) -> None:
        """Take the session that writes, or a part of one, and the arrays that are wanted."""
        self._session = session
        self._arrays = {path: _Array(session, path) for path in paths}
        self._found: dict[str, list[tuple[Coords, npt.NDArray[np.float64]]]] = {}

    @property
    def paths(self) -> list[str]:
        """Arrays of which something was found."""
        return list(self._found)

    def add(self, path: str, region: Region, values: npt.NDArray[Any] | None = None) -> None:
        """Look at what was just written to a region of an array.

        Args:
            path: The array; nothing happens if it is not wanted.
            region: Where the values were written.
            values: As they were given to be stored; without, they are read.
        """
        array = self._arrays.get(path)
        if array is None or not prod(shape_of(region)):
            return
        box = array.grid.covering(region)
        inner = _covered(array.grid, region) if values is not None and array.is_exact else None
        if inner is None or values is None:
            self._read(array, box)
            return
        here = array.grid.region(inner)
        self._look_at(array, inner, values[shifted(here, [-part.start for part in region])])
        for part in _around(box, inner):
            self._read(array, part)

    def add_chunks(self, path: str, coords: npt.NDArray[Any]) -> None:
        """Read chunks of an array, and look at them."""
        array = self._arrays.get(path)
        if array is not None:
            for box in _boxes(coords.astype(np.int64)):
                self._read(array, box)

    def entries(self, path: str, table: ArrayChunks | None) -> Entries:
        """What was found about those chunks of an array that a table refers to."""
        coords, numbers = self.numbers(path)
        return bound(coords, numbers, table, self._arrays[path].variable)

    def numbers(self, path: str) -> tuple[Coords, npt.NDArray[np.float64]]:
        """Coordinates of all chunks that were looked at, and what was found."""
        found = self._found.get(path, [])
        rank = len(self._arrays[path].variable.shape)
        coords = np.concatenate([np.empty((0, rank), dtype=np.int64), *(c for c, _ in found)])
        numbers = np.concatenate([np.empty((0, NUMBERS)), *(n for _, n in found)])
        if len(found) > 1:
            # What was written again was found again; the last is true.
            places = self._arrays[path].grid.box.linearize(coords)
            _, last = np.unique(places[::-1], return_index=True)
            kept = len(coords) - 1 - last
            coords, numbers = coords[kept], numbers[kept]
        return coords, numbers

    def _read(self, array: _Array, box: Box) -> None:
        for step in split(box, _STEP_BYTES // array.grid.chunk_bytes):
            region = array.grid.region(step)
            with doing(array=array.grid.path, region=region):
                values = self._session.read_region(array.grid.path, region)
            self._look_at(array, step, values)

    def _look_at(self, array: _Array, box: Box, values: npt.NDArray[Any]) -> None:
        numbers = summarize_block(values, array.grid.chunk_shape, array.variable.decoding)
        if numbers is not None:
            coords = box.delinearize(np.arange(box.size, dtype=np.uint64)).astype(np.int64)
            found = (coords.reshape(-1, box.rank), numbers.reshape(-1, NUMBERS))
            self._found.setdefault(array.grid.path, []).append(found)


class _Array:
    """An array that is looked at."""

    def __init__(self, session: TreeSession, path: str) -> None:
        self.variable = variable_of(session, path)
        one = self.variable
        none = (None,) * len(one.shape)
        self.grid = Grid(one.path, one.shape, one.units, max(1, one.itemsize), none)
        self.is_exact = is_exact(session, path)


def is_exact(session: TreeSession, path: str) -> bool:
    """Whether values are read from an array as they were written, to the last bit."""
    document = json.loads(session.tree.document(path) or b"{}")
    names = set(_codec_names(document.get("codecs")))
    return bool(names) and names <= _EXACT_CODECS


def _codec_names(codecs: Any) -> Iterator[str]:
    for codec in codecs or ():
        name = codec if isinstance(codec, str) else codec.get("name", "")
        yield name
        if name == "sharding_indexed":
            inner = codec.get("configuration", {}).get("codecs")
            yield from _codec_names(inner) if inner else ("",)


def _covered(grid: Grid, region: Region) -> Box | None:
    """The chunks whose elements are all in a region; None if there are none."""
    lower, upper = [], []
    for part, size, extent in zip(region, grid.chunk_shape, grid.shape, strict=True):
        lower.append(-(-part.start // size))
        upper.append(-(-part.stop // size) if part.stop == extent else part.stop // size)
    if any(low >= high for low, high in zip(lower, upper, strict=True)):
        return None
    return Box(tuple(lower), tuple(upper))


def _around(box: Box, inner: Box) -> Iterator[Box]:
    """A box without another one inside of it, as boxes."""
    lower, upper = list(box.lower), list(box.upper)
    for axis in range(box.rank):
        for first, last in (
            (lower[axis], inner.lower[axis]),
            (inner.upper[axis], upper[axis]),
        ):
            if first < last:
                yield Box(
                    (*lower[:axis], first, *lower[axis + 1 :]),
                    (*upper[:axis], last, *upper[axis + 1 :]),
                )
        lower[axis], upper[axis] = inner.lower[axis], inner.upper[axis]


def _boxes(coords: Coords) -> Iterator[Box]:
    """Boxes of chunks: one if they fill one, else runs along the last dimension."""
    if not len(coords):
        return
    index, _ = ChunkIndex.from_coords(coords)
    if index.is_dense:
        yield index.box
        return
    ordered = index.coords().astype(np.int64)
    step = np.diff(ordered, axis=0)
    follows = (step[:, :-1] == 0).all(axis=1) & (step[:, -1] == 1)
    cuts = np.flatnonzero(~follows) + 1
    firsts = ordered[np.append(0, cuts)].tolist()
    lasts = ordered[np.append(cuts, len(ordered)) - 1].tolist()
    for first, last in zip(firsts, lasts, strict=True):
        yield Box(tuple(first), tuple(number + 1 for number in last))
