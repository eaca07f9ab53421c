"""Statistics of chunks: smallest and largest value and how many are missing, kept with the data.

They live in the repository, in a hidden group, and are versioned with it. An entry names the
reference of the chunk that it was made from: when the chunk is written anew, or comes to show
other cells, the entry means nothing any more and is never used.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.model.manifest import ArrayChunks
    from icefloe.spark.tables.columns import Variable
    from icefloe.spark.tables.decoding import Decoding
    from icefloe.versioning.session import Session

    Coords = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Words = npt.NDArray[np.uint64]

GROUP = "/.statistics"
"""Where statistics are: a group for each array, by the id of its node."""
_WORDS = 4
_NUMBERS = 3
_ENTRIES_PER_CHUNK = 16_384
_EXACT = 2.0**53
_FORM = 1


class Entries(Record, frozen=True, eq=False):
    """Statistics of some chunks of an array."""

    coords: Any
    """Coordinates of the chunks, (n, rank)."""
    numbers: Any
    """Smallest and largest stored value and number of missing ones, (n, 3); NaN if all are."""


def summarize(values: npt.NDArray[Any], decoding: Decoding) -> tuple[float, float, int] | None:
    """Smallest and largest stored value and the number of missing ones; None if there are none."""
    if decoding.dtype == "string" or np.dtype(decoding.dtype).kind not in "biuf":
        return None
    flat = values.reshape(-1)
    mask = decoding.missing_mask(flat)
    if decoding.unsigned is not None:
        flat = np.ascontiguousarray(flat).view(decoding.unsigned)
    if flat.dtype.kind == "f":
        nans = np.isnan(flat)
        mask = nans if mask is None else mask | nans
    missing = 0 if mask is None else int(mask.sum())
    if missing == flat.size:
        return np.nan, np.nan, missing
    left = flat if mask is None else flat[~mask]
    return float(left.min()), float(left.max()), missing


def summarize_block(
    values: npt.NDArray[Any],
    start: Sequence[int],
    chunk_shape: Sequence[int],
    decoding: Decoding,
) -> Entries | None:
    """Statistics of all chunks of a block that begins at the corner of one."""
    counts = [-(-size // c) for size, c in zip(values.shape, chunk_shape, strict=True)]
    coords, numbers = [], []
    for place in np.ndindex(*counts):
        part = tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, chunk_shape, strict=True))
        found = summarize(values[part], decoding)
        if found is None:
            return None
        coords.append([s // c + p for s, c, p in zip(start, chunk_shape, place, strict=True)])
        numbers.append(found)
    return Entries(
        np.array(coords, dtype=np.int64).reshape(-1, values.ndim),
        np.array(numbers, dtype=np.float64).reshape(-1, _NUMBERS),
    )


def bindings(
    table: ArrayChunks, coords: Coords, shape: Sequence[int], chunk_shape: Sequence[int]
) -> Words:
    """What an entry must name to be about the chunks at some coordinates; zeros if nothing can.

    The words are: 12 bytes of the file's id (or of a digest), the length, the offset, and how many
    cells of the chunk are inside of the array.
    """
    words = np.zeros((len(coords), _WORDS), dtype=np.uint64)
    rows = table.index.find_many(coords.astype(np.uint64))
    there = np.flatnonzero(rows >= 0)
    refs = table.refs.take(rows[there])
    names = np.zeros((len(there), 16), dtype=np.uint8)
    native = refs.kinds == ChunkKind.NATIVE
    names[native, :12] = refs.files[refs.sources[native]]
    for row in np.flatnonzero(refs.kinds == ChunkKind.INLINE).tolist():
        start, length = int(refs.offsets[row]), int(refs.lengths[row])
        names[row, :12] = _digest(refs.inline[start : start + length])
    known = np.ones(len(there), dtype=bool)
    virtual = np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL)
    for source in np.unique(refs.sources[virtual]).tolist():
        of_source = virtual[refs.sources[virtual] == source]
        etag, modified = refs.locations.etags[source], int(refs.locations.modified[source])
        text = f"{refs.locations.urls[source]}\n{etag}\n{modified}"
        names[of_source, :12] = _digest(text.encode())
        # Without a checksum the file may change and nobody would know.
        known[of_source] = bool(etag) or modified != 0
    packed = names.view("<u8").reshape(-1, 2)
    offsets = np.where(refs.kinds == ChunkKind.INLINE, 0, refs.offsets)
    words[there, 0] = packed[:, 0]
    words[there, 1] = packed[:, 1] | (refs.lengths.astype(np.uint64) << np.uint64(32))
    words[there, 2] = offsets
    words[there, 3] = _extent_codes(coords[there], shape, chunk_shape)
    words[there[~known]] = 0
    return words


def _digest(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(hashlib.blake2b(data, digest_size=12).digest(), dtype=np.uint8)


def _extent_codes(coords: Coords, shape: Sequence[int], chunk_shape: Sequence[int]) -> Words:
    """A number that tells how much of a chunk is inside of the array, along all dimensions."""
    code = np.ones(len(coords), dtype=np.uint64)
    for axis, (size, chunk) in enumerate(zip(shape, chunk_shape, strict=True)):
        inside = np.minimum(chunk, size - coords[:, axis] * chunk)
        code = code * np.uint64(chunk + 1) + inside.astype(np.uint64)
    return code


# --- keeping


def write_entries(session: Session, variable: Variable, entries: Entries) -> None:
    """Keep statistics of chunks in a session, for its commit."""
    node = session.get_node(variable.path)
    table = session.chunk_table(variable.path)
    if node is None or node.array is None or table is None or not len(entries.coords):
        return
    shape, units = variable.shape, variable.units
    grid = _grid(shape, units)
    numbers, words = _open(session, str(node.id), variable, grid)
    place = tuple(entries.coords.T)
    bound = bindings(table, entries.coords, shape, units)
    _set(numbers, place, entries.numbers)
    _set(words, place, bound)


def _set(array: zarr.Array[Any], place: tuple[Any, ...], rows: npt.NDArray[Any]) -> None:
    """Set rows of an array whose last axis is theirs."""
    low = [int(one.min()) for one in place]
    high = [int(one.max()) + 1 for one in place]
    region = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    block = np.asarray(array[region])
    block[tuple(one - a for one, a in zip(place, low, strict=True))] = rows
    array[region] = block


def _grid(shape: Sequence[int], units: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-size // unit) for size, unit in zip(shape, units, strict=True))


def _meaning(variable: Variable) -> dict[str, Any]:
    """What the numbers depend on besides the chunks."""
    decoding = variable.decoding
    return {
        "form": _FORM,
        "array": variable.path,
        "chunk_shape": list(variable.units),
        "stored": repr((decoding.dtype, decoding.unsigned, decoding.missing)),
    }


def _open(
    session: Session, node_id: str, variable: Variable, grid: tuple[int, ...]
) -> tuple[zarr.Array[Any], zarr.Array[Any]]:
    """The two arrays of an array's statistics, as large as its grid."""
    path = f"{GROUP}/{node_id}"
    meaning = _meaning(variable)
    root = zarr.open_group(session.store, mode="r+")
    group = root.require_group(path.lstrip("/"))
    if {k: v for k, v in group.attrs.items() if k != "array"} != {
        k: v for k, v in meaning.items() if k != "array"
    }:
        session.delete_node(path)
        group = root.require_group(path.lstrip("/"))
    group.attrs.update(meaning)
    found = []
    for name, width, dtype in (("numbers", _NUMBERS, "<f8"), ("bindings", _WORDS, "<u8")):
        wanted = (*grid, width)
        if name in group:
            array: Any = group[name]
            if array.shape != wanted:
                array.resize(wanted)
        else:
            array = group.create_array(
                name, shape=wanted, chunks=_entry_chunks(grid, width), dtype=dtype, fill_value=0
            )
        found.append(array)
    return found[0], found[1]


def _entry_chunks(grid: tuple[int, ...], width: int) -> tuple[int, ...]:
    room = _ENTRIES_PER_CHUNK
    chunks = []
    for extent in reversed(grid):
        chunks.append(max(1, min(extent, room)))
        room = max(1, room // chunks[-1])
    return (*reversed(chunks), width)


def read_entries(
    session: Session, variable: Variable
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]] | None:
    """Numbers for all chunks of an array (grid, 3), and which are of the chunks as they are now."""
    node = session.get_node(variable.path)
    if node is None:
        return None
    path = f"{GROUP}/{node.id}"
    if session.get_node(f"{path}/bindings") is None:
        return None
    group = zarr.open_group(session.store, path=path.lstrip("/"), mode="r")
    meaning = _meaning(variable)
    if any(group.attrs.get(key) != meaning[key] for key in ("form", "chunk_shape", "stored")):
        return None
    grid = _grid(variable.shape, variable.units)
    numbers = _fitted(session.read_region(f"{path}/numbers"), grid)
    words = _fitted(session.read_region(f"{path}/bindings"), grid)
    coords = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1)
    flat = coords.reshape(-1, len(grid)).astype(np.int64)
    table = session.chunk_table(variable.path)
    if table is None:
        return numbers, np.zeros(grid, dtype=bool)
    now = bindings(table, flat, variable.shape, variable.units).reshape(*grid, _WORDS)
    current = (now == words).all(axis=-1) & (words != 0).any(axis=-1)
    return numbers, current


def _fitted(entries: npt.NDArray[Any], grid: tuple[int, ...]) -> npt.NDArray[Any]:
    """Entries cut or filled up to the size of a grid, which may have changed since."""
    fitted = np.zeros((*grid, entries.shape[-1]), dtype=entries.dtype)
    common = tuple(slice(0, min(a, b)) for a, b in zip(grid, entries.shape, strict=False))
    fitted[common] = entries[common]
    return fitted


def decoded_bounds(
    numbers: npt.NDArray[Any], decoding: Decoding
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Bounds of column values from those of stored ones, and where they can be relied on."""
    low, high = numbers[..., 0], numbers[..., 1]
    safe = ~np.isnan(low) & (np.abs(low) < _EXACT) & (np.abs(high) < _EXACT)
    low, high = np.where(safe, low, 0.0), np.where(safe, high, 0.0)
    if decoding.times is not None:
        if not decoding.times.is_real:
            return low, high, np.zeros_like(safe)
        moments = [decoding.times.decode(one)[0].astype(np.float64) for one in (low, high)]
        # A microsecond wider: fractions of units were rounded once more here.
        return moments[0] - 1.0, moments[1] + 1.0, safe
    if decoding.float_type is not None:
        dtype = np.dtype(decoding.unsigned or decoding.dtype)
        ends = [decoding.scaled(one.astype(dtype)).astype(np.float64) for one in (low, high)]
        return np.minimum(*ends), np.maximum(*ends), safe
    return low, high, safe
