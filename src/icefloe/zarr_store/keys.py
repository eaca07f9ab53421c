"""The grammar of store keys: which node, and which of its chunks, a Zarr key names.

A key is `[path/]zarr.json` or `[path/]` and the name that the array's chunk key encoding gives to
a chunk. Zarr's default encoding (`c/0/1`, a scalar's `c`) is recognised by its form alone; the
others (`c.0.1`, `0.1`, `0/1`) only below an array that uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from icefloe.errors import InvalidInputError
from icefloe.model.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

    from icefloe.model.nodes import Node
    from icefloe.model.zarr_document import ArrayMetadata

DOCUMENT_NAME = "zarr.json"
ZARR_V2_NAMES = frozenset({".zarray", ".zgroup", ".zattrs", ".zmetadata"})
_CHUNK_NAMES_AT_ONCE = 4096
_MOST_DIGITS = 20
"""Of an unsigned 64-bit number; also keeps absurd keys from costing time."""

Coords = tuple[int, ...]


class NodeLookup(Protocol):
    """What finding the array of a key needs of a session."""

    def get_node(self, path: str) -> Node | None:
        """The node at a path."""


def resolve(key: str, nodes: NodeLookup) -> tuple[str, Coords | None] | None:
    """The node that a key belongs to, and the chunk's coordinates (None for its document).

    Returns None for the metadata names of Zarr 2, which Zarr probes and no session has.
    Raises InvalidInputError for what cannot be a key. A chunk of an array that does not exist
    resolves if its form says that it is one.
    """
    plain = _plain_chunk(key)
    if plain is not None:
        node = nodes.get_node(plain[0])
        array = node.array if node is not None and node.is_array else None
        # The fast path: almost every key that a program uses ends here.
        if array is not None and _fits(array, plain[1]):
            return plain
        if array is None or (array.key_encoding == "default" and array.key_separator == "/"):
            # A missing array or a wrong number of indices: the session says what is wrong.
            return _search(key, nodes) or plain
    else:
        path = document_path(key)
        if path is not None:
            return path, None
    found = _search(key, nodes)
    if found is not None:
        return found
    if key.rpartition("/")[2] in ZARR_V2_NAMES:
        return None
    raise InvalidInputError(
        f"invalid zarr key format {key!r}: expected '[path/]zarr.json' or a chunk key of an "
        "existing array such as '[path/]c/0/1'"
    )


def document_path(key: str) -> str | None:
    """The node whose document a key names; None for other keys."""
    if not key.endswith(DOCUMENT_NAME):
        return None
    head = key[: -len(DOCUMENT_NAME)]
    if head in {"", "/"}:
        return ROOT
    if head[-1] != "/" or "//" in head:
        return None
    return _absolute(head[:-1])


def document_key(path: str) -> str:
    """The key of a node's document."""
    return DOCUMENT_NAME if path == ROOT else f"{path[1:]}/{DOCUMENT_NAME}"


def chunk_keys(path: str, array: ArrayMetadata, coords: npt.NDArray[np.uint64]) -> Iterator[str]:
    """Keys of an array's chunks, given as rows of coordinates."""
    start = "" if path == ROOT else path[1:] + "/"
    if array.key_encoding == "default":
        start += "c" if array.rank == 0 else "c" + array.key_separator
    elif array.rank == 0:
        start += "0"
    separator = array.key_separator
    for first in range(0, len(coords), _CHUNK_NAMES_AT_ONCE):
        # Plain lists of integers become text much faster than rows of numpy do.
        for row in coords[first : first + _CHUNK_NAMES_AT_ONCE].tolist():
            yield start + separator.join(map(str, row))


def chunk_coords(array: ArrayMetadata, name: str) -> Coords | None:
    """Coordinates of the chunk with a name below its array; None if it cannot be one's name."""
    if array.key_encoding == "default":
        if name == "c":
            return () if array.rank == 0 else None
        if name[:2] != "c" + array.key_separator:
            return None
        name = name[2:]
    elif array.rank == 0:
        return () if name == "0" else None
    coords = _integers(name.split(array.key_separator))
    return coords if coords is not None and len(coords) == array.rank else None


def chunk_folder(array: ArrayMetadata, name: str) -> Coords | None:
    """The first coordinates of all chunks in a folder below an array; None if it is no folder."""
    if array.key_separator != "/":
        return None
    if array.key_encoding == "default":
        if name == "c":
            return ()
        if not name.startswith("c/"):
            return None
        name = name[2:]
    coords = _integers(name.split("/"))
    return coords if coords is not None and len(coords) < array.rank else None


def enclosing_arrays(path: str, nodes: NodeLookup) -> Iterator[tuple[str, ArrayMetadata, str]]:
    """Arrays strictly above a path, the nearest first, with the rest of the path below each."""
    for head, rest in _splits(path.lstrip("/")):
        node = nodes.get_node(head)
        if node is not None and node.is_array:
            yield head, node.array, rest


def _plain_chunk(key: str) -> tuple[str, Coords] | None:
    """Split `[path/]c/0/1` and `[path/]c` at the last `c`; None for other forms."""
    head, marker, tail = key.rpartition("c/")
    if not marker:
        if key == "c":
            return ROOT, ()
        return (_absolute(key[:-2]), ()) if key.endswith("/c") else None
    if head and head[-1] != "/":
        return None
    coords = _integers(tail.split("/"))
    if coords is None:
        # `x/c/y/c` is a scalar's chunk below a node that is called `c`.
        return (_absolute(key[:-2]), ()) if key.endswith("/c") else None
    return _absolute(head[:-1]), coords


def _fits(array: ArrayMetadata, coords: Coords) -> bool:
    """Whether an array calls the chunk with these coordinates `c/0/1`."""
    return (
        len(array.shape) == len(coords)
        and array.key_encoding == "default"
        and (array.key_separator == "/" or not coords)
    )


def _search(key: str, nodes: NodeLookup) -> tuple[str, Coords] | None:
    """The array with the longest path whose encoding fits the rest of the key."""
    for path, array, rest in enclosing_arrays(key, nodes):
        coords = chunk_coords(array, rest)
        if coords is not None:
            return path, coords
    return None


def _splits(key: str) -> Iterable[tuple[str, str]]:
    """All ways to cut a key into a node's path and a rest, the longest path first."""
    position = key.rfind("/")
    while position > 0:
        yield "/" + key[:position], key[position + 1 :]
        position = key.rfind("/", 0, position)
    yield ROOT, key


def _absolute(path: str) -> str:
    if path[:1] == "/":
        return path
    return "/" + path


def _integers(parts: list[str]) -> Coords | None:
    """Parse canonical decimal numbers: no signs, no leading zeros, ASCII digits only."""
    for part in parts:
        if not part.isdecimal() or (part[0] == "0" and part != "0"):
            return None
        if len(part) > _MOST_DIGITS or not part.isascii():
            return None
    return tuple(map(int, parts))
