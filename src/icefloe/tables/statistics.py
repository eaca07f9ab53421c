"""Chunk statistics: smallest and largest value and the number of missing ones, kept with the data.

They are in a hidden group of the repository and are versioned with it. Each entry is bound to the
reference of the chunk that it was computed from. Once the chunk is rewritten, or more or fewer of
its cells are inside of the array, the entry is stale and is not used.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import zarr

from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.record import Record
from icefloe.tables.schema import attributes_of, variable_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode
    from icefloe.tables.decoding import Decoding
    from icefloe.tables.schema import Variable
    from icefloe.zarr_store.session_port import SessionPort

    Coords = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Words = npt.NDArray[np.uint64]

StatisticsChoice: TypeAlias = "bool | str | Sequence[str]"
"""The arrays of a job that get statistics: all or none of them, or some by name."""
NUMBERS = 3
"""Numbers in an entry: smallest value, largest value, number of missing values."""
GROUP = paths.DERIVED_GROUP
"""Has a group for the statistics of each array, named after the id of its node."""
_ARRAY = "entries"
_WORDS = 4
_WIDTH = NUMBERS + _WORDS
_NAME_BYTES = 12
_ENTRIES_PER_CHUNK = 16_384
_EXACT = 2.0**53
_FORM = 2


class Entries(Record, frozen=True, eq=False):
    """Statistics of some chunks of an array."""

    coords: Any
    """Coordinates of the chunks, (n, rank)."""
    numbers: Any
    """Smallest and largest stored value (NaN if all are missing) and missing ones, (n, 3)."""
    words: Any
    """The chunk references that they are bound to, see `bindings`: (n, 4), or (n, 0) if unbound."""

    def to_arrow(self) -> pa.Table:
        """The entries as a table, to send them from a task to the driver."""
        columns: dict[str, Any] = {}
        for name, block in (("c", self.coords), ("n", self.numbers), ("w", self.words)):
            columns |= {f"{name}{at}": block[:, at] for at in range(block.shape[1])}
        return pa.table(columns)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Entries:
        """The entries that `to_arrow` made a table of."""

        def block(letter: str, dtype: Any) -> Any:
            names = [name for name in table.column_names if name.startswith(letter)]
            if not names:  # coordinates of an array without dimensions
                return np.empty((table.num_rows, 0), dtype=dtype)
            return np.stack([table.column(n).to_numpy() for n in names], axis=1).astype(dtype)

        return cls(block("c", np.int64), block("n", np.float64), block("w", np.uint64))

    @classmethod
    def concat(cls, parts: Sequence[Entries]) -> Entries:
        """All entries of several tables of them."""
        return cls(
            np.concatenate([each.coords for each in parts]),
            np.concatenate([each.numbers for each in parts]),
            np.concatenate([each.words for each in parts]),
        )


def bound(
    coords: Coords, numbers: Floats, table: ArrayChunks | None, variable: Variable
) -> Entries:
    """Entries bound to the references of a chunk table; chunks that have none are left out."""
    words = np.zeros((len(coords), _WORDS), dtype=np.uint64)
    if table is not None and len(coords):
        words = bindings(table, coords, variable.shape, variable.units)
    known = (words != 0).any(axis=1)
    return Entries(coords[known], numbers[known], words[known])


def bindings(
    table: ArrayChunks, coords: Coords, shape: Sequence[int], chunk_shape: Sequence[int]
) -> Words:
    """The words that bind entries to the chunks at some coordinates; zeros if nothing can.

    The words are: 12 bytes of the file's id (or of a digest), the length, the offset, and how many
    cells of the chunk are inside of the array.
    """
    words = np.zeros((len(coords), _WORDS), dtype=np.uint64)
    rows = table.index.find_many(coords.astype(np.uint64))
    there = np.flatnonzero(rows >= 0)
    refs = table.refs.take(rows[there])
    names = np.zeros((len(there), 16), dtype=np.uint8)
    native = refs.kinds == ChunkKind.NATIVE
    names[native, :_NAME_BYTES] = _file_names(refs.files)[refs.sources[native]]
    for row in np.flatnonzero(refs.kinds == ChunkKind.INLINE).tolist():
        start, length = int(refs.offsets[row]), int(refs.lengths[row])
        names[row, :_NAME_BYTES] = _digest(refs.inline[start : start + length])
    known = np.ones(len(there), dtype=bool)
    virtual = np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL)
    for source in np.unique(refs.sources[virtual]).tolist():
        of_source = virtual[refs.sources[virtual] == source]
        etag, modified = refs.locations.etags[source], int(refs.locations.modified[source])
        text = f"{refs.locations.urls[source]}\n{etag}\n{modified}"
        names[of_source, :_NAME_BYTES] = _digest(text.encode())
        # Without an etag or a time of modification, a change of the file would not be noticed.
        known[of_source] = bool(etag) or modified != 0
    packed = names.view("<u8").reshape(-1, 2)
    offsets = np.where(refs.kinds == ChunkKind.INLINE, 0, refs.offsets)
    words[there, 0] = packed[:, 0]
    words[there, 1] = packed[:, 1] | (refs.lengths.astype(np.uint64) << np.uint64(32))
    words[there, 2] = offsets
    words[there, 3] = _extent_codes(coords[there], shape, chunk_shape)
    words[there[~known]] = 0
    return words


def _file_names(files: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Ids of chunk files in 12 bytes: the id itself, or a digest of a longer one."""
    names: npt.NDArray[np.uint8] = files[:, :_NAME_BYTES].copy()
    for row in np.flatnonzero(files[:, _NAME_BYTES:].any(axis=1)).tolist():
        names[row] = _digest(files[row].tobytes())
    return names


def _digest(data: bytes) -> npt.NDArray[np.uint8]:
    digest = hashlib.blake2b(data, digest_size=_NAME_BYTES).digest()
    return np.frombuffer(digest, dtype=np.uint8)


def _extent_codes(coords: Coords, shape: Sequence[int], chunk_shape: Sequence[int]) -> Words:
    """A number for how much of a chunk is inside of the array, along all dimensions."""
    code = np.ones(len(coords), dtype=np.uint64)
    for axis, (size, chunk) in enumerate(zip(shape, chunk_shape, strict=True)):
        inside = np.minimum(chunk, size - coords[:, axis] * chunk)
        code = code * np.uint64(chunk + 1) + inside.astype(np.uint64)
    return code


# --- keeping


def write_entries(session: SessionPort, variable: Variable, entries: Entries) -> None:
    """Write entries to a session, for its commit."""
    node = session.get_node(variable.path)
    if node is None or not node.is_array or not len(entries.coords):
        return
    array = _open(session, node, variable)
    rows = np.empty((len(entries.coords), _WIDTH), dtype=np.uint64)
    rows[:, :NUMBERS] = np.ascontiguousarray(entries.numbers, dtype=np.float64).view(np.uint64)
    rows[:, NUMBERS:] = entries.words
    low = entries.coords.min(axis=0)
    region = tuple(map(slice, low.tolist(), (entries.coords.max(axis=0) + 1).tolist()))
    block = np.asarray(array[region])
    block[tuple((entries.coords - low).T)] = rows
    array[region] = block


def _grid(shape: Sequence[int], units: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-size // unit) for size, unit in zip(shape, units, strict=True))


def _meaning(variable: Variable) -> dict[str, Any]:
    """The properties of an array that its statistics depend on, besides the chunks."""
    decoding = variable.decoding
    return {
        "form": _FORM,
        "chunk_shape": list(variable.units),
        "stored": repr((decoding.dtype, decoding.unsigned, decoding.missing)),
    }


def _place(session: SessionPort, node: ArrayNode) -> str | None:
    """The group with the statistics of an array; None if there is none.

    It is named after the id of the array's node. If a commit or a migration gave the node another
    id, the group is found by the path of the array.
    """
    own = f"{GROUP}/{node.id}"
    if session.get_node(own) is not None:
        return own
    named = [path for path, array in _groups(session) if array == node.path]
    if not named:
        return None
    nodes = map(session.get_node, session.tree.node_paths("/"))
    others = {str(each.id) for each in nodes if each is not None}
    return next((path for path in named if path.rpartition("/")[2] not in others), None)


def _groups(session: SessionPort) -> Iterator[tuple[str, Any]]:
    """All groups of statistics, and the path of the array that each is of."""
    if session.get_node(GROUP) is None:
        return
    for path in session.tree.node_paths(GROUP):
        if path.count("/") == GROUP.count("/") + 1:
            yield path, attributes_of(session, path).get("array")


def _open(session: SessionPort, node: ArrayNode, variable: Variable) -> zarr.Array[Any]:
    """The array that holds the entries of an array, at least as large as its chunk grid."""
    path = _place(session, node) or f"{GROUP}/{node.id}"
    meaning = _meaning(variable)
    root = zarr.open_group(session.store, mode="r+")
    group = root.require_group(path.lstrip("/"))
    if any(group.attrs.get(key) != value for key, value in meaning.items()):
        session.tree.delete_node(path)
        group = root.require_group(path.lstrip("/"))
    group.attrs.update({**meaning, "array": variable.path})
    grid = _grid(variable.shape, variable.units)
    if _ARRAY not in group:
        return group.create_array(
            _ARRAY, shape=(*grid, _WIDTH), chunks=_entry_chunks(grid), dtype="<u8", fill_value=0
        )
    array: Any = group[_ARRAY]
    wanted = tuple(map(max, (*grid, _WIDTH), array.shape))
    if array.shape != wanted:
        array.resize(wanted)
    return array  # type: ignore[no-any-return]


def _entry_chunks(grid: tuple[int, ...]) -> tuple[int, ...]:
    room = _ENTRIES_PER_CHUNK
    chunks = []
    for extent in reversed(grid):
        chunks.append(max(1, min(extent, room)))
        room = max(1, room // chunks[-1])
    return (*reversed(chunks), _WIDTH)


def read_entries(
    session: SessionPort, variable: Variable
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]] | None:
    """The numbers of all chunks of an array (grid, 3), and which of them are up to date."""
    node = session.get_node(variable.path)
    path = _place(session, node) if node is not None and node.is_array else None
    if path is None or session.get_node(f"{path}/{_ARRAY}") is None:
        return None
    group = zarr.open_group(session.store, path=path.lstrip("/"), mode="r")
    if any(group.attrs.get(key) != value for key, value in _meaning(variable).items()):
        return None
    grid = _grid(variable.shape, variable.units)
    entries = _fitted(session.read_region(f"{path}/{_ARRAY}"), grid)
    numbers = np.ascontiguousarray(entries[..., :NUMBERS]).view(np.float64)
    table = session.tree.chunk_table(variable.path)
    if table is None:
        return numbers, np.zeros(grid, dtype=bool)
    coords = np.argwhere(np.ones(grid, dtype=bool)).astype(np.int64)
    now = bindings(table, coords, variable.shape, variable.units).reshape(*grid, _WORDS)
    words = entries[..., NUMBERS:]
    current = (now == words).all(axis=-1) & (words != 0).any(axis=-1)
    return numbers, current


def _fitted(entries: npt.NDArray[Any], grid: tuple[int, ...]) -> npt.NDArray[Any]:
    """Entries cut or padded to the size of a grid, which may have changed since."""
    fitted = np.zeros((*grid, entries.shape[-1]), dtype=entries.dtype)
    common = tuple(slice(0, min(a, b)) for a, b in zip(grid, entries.shape, strict=False))
    fitted[common] = entries[common]
    return fitted


def decoded_bounds(
    numbers: npt.NDArray[Any], decoding: Decoding
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Bounds of column values, from bounds of stored values, and where they can be relied on."""
    low, high = numbers[..., 0], numbers[..., 1]
    safe = ~np.isnan(low) & (np.abs(low) < _EXACT) & (np.abs(high) < _EXACT)
    low, high = np.where(safe, low, 0.0), np.where(safe, high, 0.0)
    if decoding.float_type is not None:
        ends = [decoding.scaled(one.astype(decoding.viewed_dtype)) for one in (low, high)]
        low, high = (one(*ends).astype(np.float64) for one in (np.minimum, np.maximum))
    if decoding.times is not None:
        if not decoding.times.is_real:
            return low, high, np.zeros_like(safe)
        moments = [decoding.times.decode(one)[0].astype(np.float64) for one in (low, high)]
        # A microsecond wider: fractions of units were rounded again here.
        return moments[0] - 1.0, moments[1] + 1.0, safe
    return low, high, safe


# --- which arrays have statistics


def has_numbers(decoding: Decoding) -> bool:
    """Whether an array is of a type that has a smallest and a largest value."""
    return decoding.dtype != "string" and np.dtype(decoding.dtype).kind in "biuf"


def wanted_arrays(
    session: SessionPort, choice: StatisticsChoice, written: Iterable[str], group: str = "/"
) -> tuple[str, ...]:
    """The arrays, among those that a job writes, that get statistics.

    Args:
        session: The session of the job.
        choice: True for all arrays of numbers with more than one chunk, False for none, or names.
        written: Paths of the arrays that the job writes.
        group: The group that names are relative to.
    """
    if choice is False:
        return ()
    root = session.get_node(paths.ROOT)
    beside_root = root is None or not root.is_array
    known = {path: variable_of(session, path) for path in written if beside_root}
    numbers = [path for path, variable in known.items() if has_numbers(variable.decoding)]
    if choice is True:
        return tuple(path for path in numbers if chunk_count(known[path]) > 1)
    named = [choice] if isinstance(choice, str) else list(choice)
    chosen = []
    for name in named:
        inside = paths.canonical(f"{group.rstrip('/')}/{name.lstrip('/')}")
        path = inside if inside in known else paths.canonical(name)
        if path not in numbers:
            raise InvalidInputError(
                f"no statistics of {name!r}: they are made of arrays of numbers that the tasks of "
                f"this job write, which are {', '.join(sorted(numbers)) or 'none'}"
            )
        chosen.append(path)
    return tuple(dict.fromkeys(chosen))


def chunk_count(variable: Variable) -> int:
    """The number of chunks in the grid of an array."""
    return prod(-(-size // unit) for size, unit in zip(variable.shape, variable.units, strict=True))
