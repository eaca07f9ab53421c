"""Listing a session's keys the way Zarr lists a store, in loops of both kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.paths import ROOT, canonical, child_prefix
from icefloe.zarr_store.keys import (
    DOCUMENT_NAME,
    Coords,
    chunk_folder,
    chunk_keys,
    document_key,
    enclosing_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from icefloe.engine.port import Tree
    from icefloe.model.zarr_document import ArrayMetadata


class KeyListing:
    """Keys for `for` and `next` as well as for `async for` and `anext`."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Take the keys; they are asked for one by one."""
        self._keys = iter(keys)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return next(self._keys)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        for key in self._keys:
            return key
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the listing, as callers of asynchronous generators may do."""
        self._keys = iter(())


def folder_path(prefix: str) -> str:
    """The canonical path of a folder that a caller names, with or without slashes at its ends."""
    try:
        return canonical(prefix)
    except InvalidInputError as error:
        raise InvalidInputError(f"bad key prefix {prefix!r}: {error}") from None


def keys_below(tree: Tree, path: str) -> Iterator[str]:
    """All keys of the node at a path and of all nodes below it, sorted by path."""
    paths = list(tree.node_paths(path))
    if tree.get_node(path) is not None:
        paths.insert(0, path)
    return _keys_of(tree, paths)


def _keys_of(tree: Tree, paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        node = tree.get_node(path)
        if node is None:
            # Deleted while its neighbours were being listed.
            continue
        yield document_key(path)
        if node.is_array:
            yield from chunk_keys(path, node.array, _initialised(tree, path))


def names_in(tree: Tree, path: str) -> list[str]:
    """Names of the immediate members of a node or of a folder of chunks.

    Where no node is, there are none: nodes do not imply groups above them.
    """
    # A dictionary, as a node below an array may be called `c` like the folder of its chunks.
    names: dict[str, None] = {}
    node = tree.get_node(path)
    if node is not None:
        names[DOCUMENT_NAME] = None
        if node.is_array:
            names.update(dict.fromkeys(_chunk_names(tree, path, node.array)))
        start = len(child_prefix(path))
        children = (below[start:] for below in tree.node_paths(path))
        names.update((name, None) for name in children if "/" not in name)
    for array_path, array, coords in chunk_folders(tree, path):
        names.update(dict.fromkeys(_next_indices(tree, array_path, array, coords)))
    return list(names)


def chunk_folders(tree: Tree, path: str) -> Iterator[tuple[str, ArrayMetadata, Coords]]:
    """Arrays for whose chunks a path is a folder, and the first coordinates of those in it."""
    if path == ROOT:
        return
    for array_path, array, rest in enclosing_arrays(path, tree):
        coords = chunk_folder(array, rest)
        if coords is not None:
            yield array_path, array, coords


def chunks_in(tree: Tree, array_path: str, folder: Coords) -> npt.NDArray[np.uint64]:
    """Coordinates of the initialised chunks of an array whose first coordinates are given."""
    coords = _initialised(tree, array_path)
    return coords[_starts_with(coords, folder)]


def _starts_with(coords: npt.NDArray[np.uint64], folder: Coords) -> npt.NDArray[np.bool_]:
    start = np.array(folder, dtype=np.uint64)
    return (coords[:, : len(folder)] == start).all(axis=1)  # type: ignore[no-any-return]


def size_below(tree: Tree, path: str) -> int:
    """Number of bytes of all values of the node at a path and of those below it."""
    total = 0
    for below in (path, *tree.node_paths(path)):
        node = tree.get_node(below)
        if node is not None:
            total += len(tree.document(below) or b"")
            if node.is_array:
                total += size_in(tree, below, ())
    return total


def size_in(tree: Tree, array_path: str, folder: Coords) -> int:
    """Number of bytes of the initialised chunks of an array whose first coordinates are given."""
    table = tree.chunk_table(array_path)
    if table is None:
        return 0
    rows = table.index.find_many(chunks_in(tree, array_path, folder))
    return int(table.refs.lengths[rows].sum())


def _chunk_names(tree: Tree, path: str, array: ArrayMetadata) -> Iterable[str]:
    """The names of chunks in an array's folder."""
    if array.key_encoding == "default" and (array.key_separator == "/" or array.rank == 0):
        # Always, chunks or not: an array's folder looks the same before and after its first one.
        return ("c",)
    if array.key_separator == "/" and array.rank > 0:
        return _next_indices(tree, path, array, ())
    start = len(child_prefix(path)) - 1
    return (key[start:] for key in chunk_keys(path, array, _initialised(tree, path)))


def _next_indices(
    tree: Tree, array_path: str, array: ArrayMetadata, folder: Coords
) -> Iterable[str]:
    """Which indices follow the first coordinates of a chunk folder."""
    if len(folder) >= array.rank:
        return ()
    indices = chunks_in(tree, array_path, folder)[:, len(folder)]
    return map(str, np.unique(indices).tolist())


def _initialised(tree: Tree, path: str) -> npt.NDArray[np.uint64]:
    """Coordinates of an array's chunks."""
    node = tree.get_node(path)
    if node is None or not node.is_array:
        return np.empty((0, 1), dtype=np.uint64)
    return tree.chunk_coords(path)
