"""What the page asks for, as plain values: history, tree, metadata, pictures, chunks, sizes.

Everything is read through read-only sessions, and bounded: a page of history, a part of a tree,
a picture of few pixels.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.cf.decoding import coding_of
from icefloe.engine.history.newest import read_log_page
from icefloe.engine.inspection import describe_changes, describe_node
from icefloe.engine.port import parsed_document
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN, paths
from icefloe.model.ids import SnapshotId
from icefloe.model.nodes import expect_array, expect_node
from icefloe.viewer.sampling import MAX_BYTES, Plane, sample_plane

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.nodes import ArrayNode
    from icefloe.repository import Repository

MAX_NODES = 5000
"""How many nodes of a tree are sent at once."""
MAX_REFERENCES = 2_000_000
"""Maps of chunks and sizes are not made of more references than this."""
MAX_PAGE = 500
MAX_SIZES = 100
MAP_CELLS = 64
"""A map of chunks has at most so many cells along each side."""
_MAX_STARTS = 1000
_NORTH = ("degrees_north", "degree_north", "degrees_N", "degree_N", "degreesN", "degreeN")
"""Units of latitudes, as CF spells them."""


class Answers:
    """Answers questions about one repository; it has no method that writes."""

    def __init__(self, repository: Repository, max_bytes: int = MAX_BYTES) -> None:
        """Take the repository, and how many bytes a picture may cost."""
        self._repository = repository
        self._max_bytes = max_bytes
        self._tree = lru_cache(maxsize=8)(self._open)

    def _open(self, snapshot_id: str) -> WorkingTree:
        return self._repository.readonly_session(snapshot_id=snapshot_id).tree

    def _at(self, version: str) -> WorkingTree:
        # Branches move, so that only ids can be remembered.
        return self._tree(self._repository.lookup_snapshot(version).id)

    def summary(self) -> dict[str, Any]:
        """The place, format, branches and tags."""
        repository = self._repository
        return {
            "location": repository.storage.location,
            "generation": repository.generation,
            "spec_version": repository.spec_version,
            "branches": sorted(repository.list_branches(), key=lambda name: (name != MAIN, name)),
            "tags": sorted(repository.list_tags()),
        }

    def history(self, cursor: str, count: int) -> dict[str, Any]:
        """A page of commits of all branches and tags, and the cursor of the next page."""
        history = self._repository.context.history
        starts = [SnapshotId.from_text(text) for text in cursor.split(",")[:_MAX_STARTS] if text]
        page = read_log_page(history, max(1, min(count, MAX_PAGE)), starts or None)
        return {"commits": page.entries, "next": ",".join(map(str, page.rest))}

    def commit(self, version: str) -> dict[str, Any]:
        """A commit, and what it changed."""
        info = self._repository.lookup_snapshot(version)
        changes: list[dict[str, Any]] = []
        if info.parent_id is not None:
            diff = self._repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=info.id)
            changes = describe_changes(diff)
        return {
            "id": info.id,
            "parent_id": info.parent_id,
            "written_at": info.written_at,
            "message": info.message,
            "properties": info.metadata,
            "changes": changes[:MAX_NODES],
        }

    def tree(self, version: str) -> dict[str, Any]:
        """Groups and arrays in the order of their paths."""
        tree = self._at(version)
        all_paths = list(tree.node_paths("/"))
        if tree.get_node("/") is not None and "/" not in all_paths:
            all_paths.insert(0, "/")
        nodes = [tree.get_node(path) for path in all_paths[:MAX_NODES]]
        return {
            "snapshot_id": str(tree.snapshot.id),
            "nodes": [describe_node(node) for node in nodes if node is not None],
            "left_out": max(0, len(all_paths) - MAX_NODES),
        }

    def node(self, version: str, path: str) -> dict[str, Any]:
        """A node with its whole metadata."""
        tree = self._at(version)
        path = paths.canonical(path)
        node = expect_node(tree.get_node(path), path, lambda: tree.node_paths("/"))
        described = describe_node(node) | {"metadata": parsed_document(tree, path)}
        if node.is_array and node.num_refs <= MAX_REFERENCES:
            sizes = tree.array_reader(path).bytes()
            described["bytes"] = {
                "native": sizes.native_bytes,
                "virtual": sizes.virtual_bytes,
                "inlined": sizes.inlined_bytes,
            }
        return described

    def sizes(self, version: str, group: str) -> dict[str, Any]:
        """Bytes of the largest arrays below a group, largest first."""
        tree = self._at(version)
        group = paths.canonical(group)
        nodes = [tree.get_node(path) for path in tree.node_paths(group)]
        arrays = [node for node in nodes if node is not None and node.is_array]
        references = sum(node.num_refs for node in arrays)
        if references > MAX_REFERENCES:
            raise InvalidInputError(
                f"{group} has {references:,} chunks, and sizes are added up of at most "
                f"{MAX_REFERENCES:,}: choose a smaller group, or use `icefloe stats`"
            )
        rows: list[dict[str, Any]] = [
            {"path": node.path, "bytes": tree.array_reader(node.path).bytes().total_bytes}
            for node in arrays
        ]
        rows.sort(key=lambda row: (-row["bytes"], row["path"]))
        return {"total": sum(row["bytes"] for row in rows), "arrays": rows[:MAX_SIZES]}

    def chunks(self, version: str, path: str, rows: int | None, columns: int) -> dict[str, Any]:
        """How much of an array is written: the share of chunks that exist, by rows and columns."""
        tree = self._at(version)
        node = _array(tree, path)
        grid = node.array.grid_shape
        if grid is None or node.array.rank == 0:
            raise InvalidInputError(f"{node.path} has no regular grid of chunks to draw")
        if node.num_refs > MAX_REFERENCES:
            raise InvalidInputError(
                f"{node.path} has {node.num_refs:,} chunks, and a map is made of at most "
                f"{MAX_REFERENCES:,}"
            )
        axes = [columns] if rows is None else [rows, columns]
        if not set(axes) <= set(range(len(grid))) or len(set(axes)) != len(axes):
            raise InvalidInputError(f"{node.path} has {len(grid)} axes: choose two different ones")
        cells = [min(MAP_CELLS, grid[axis]) for axis in axes]
        counts = np.zeros(cells, dtype=np.int64)
        for table in tree.chunk_tables(node.path):
            coords = table.index.coords()
            places = tuple(
                coords[:, axis].astype(np.int64) * size // grid[axis]
                for axis, size in zip(axes, cells, strict=True)
            )
            np.add.at(counts, places, 1)
        return {
            "grid_shape": grid,
            "cells": cells if rows is not None else [1, *cells],
            "share": (counts / _chunks_per_cell(grid, axes, cells)).reshape(-1).tolist(),
            "chunks": node.num_refs,
            "chunks_in_grid": node.array.num_chunks,
        }

    def picture(self, version: str, path: str, plane: Plane) -> dict[str, Any]:
        """A plane of an array as numbers for the pixels of a picture."""
        tree = self._at(version)
        node = _array(tree, path)
        sample = sample_plane(tree, node, plane, _itemsize(node), self._max_bytes)
        order = self._row_order(tree, node, plane)
        values = _numbers(tree, node, sample.values)[order]
        return _pixels(values) | {
            "kind": _KINDS.get(sample.values.dtype.kind, "number"),
            "rows": sample.rows[order].tolist(),
            "columns": sample.columns.tolist(),
            "is_complete": sample.is_complete,
            "chunks_read": sample.chunks_read,
        }

    def difference(self, older: str, newer: str, path: str, plane: Plane) -> dict[str, Any]:
        """The same for the newer values minus the older ones."""
        pictures, samples = [], []
        for version in (older, newer):
            tree = self._at(version)
            node = _array(tree, path)
            sample = sample_plane(tree, node, plane, _itemsize(node), self._max_bytes)
            samples.append(sample)
            pictures.append(_numbers(tree, node, sample.values))
        if pictures[0].shape != pictures[1].shape:
            raise InvalidInputError(f"{path} has another shape in {older} than in {newer}")
        with np.errstate(invalid="ignore", over="ignore"):
            kinds = {sample.values.dtype.kind for sample in samples}
            values = pictures[1] - pictures[0]
            if kinds == {"c"}:  # numbers of one magnitude may differ
                values = np.abs(samples[1].values - samples[0].values).astype(np.float64)
        both = np.isnan(pictures[0]) & np.isnan(pictures[1])
        values[both] = 0
        order = self._row_order(tree, node, plane)
        return _pixels(values[order]) | {
            "kind": _KINDS_OF_DIFFERENCES.get("".join(kinds), "number"),
            "rows": samples[1].rows[order].tolist(),
            "columns": samples[1].columns.tolist(),
            "is_complete": all(sample.is_complete for sample in samples),
            "chunks_read": sum(sample.chunks_read for sample in samples),
            "changed": int(np.count_nonzero(values)),
        }

    def _row_order(self, tree: WorkingTree, node: ArrayNode, plane: Plane) -> slice:
        """Rows from the last to the first if they are latitudes that ascend: north is up."""
        dims = node.array.dimension_names
        name = dims[plane.rows] if dims and plane.rows is not None else None
        path = f"{(paths.parent(node.path) or '').rstrip('/')}/{name}"
        coordinate = tree.get_node(path) if name else None
        if coordinate is None or not coordinate.is_array or len(coordinate.array.shape) != 1:
            return slice(None)
        attributes = parsed_document(tree, path).get("attributes", {})
        is_latitude = attributes.get("standard_name") == "latitude"
        if not is_latitude and attributes.get("units") not in _NORTH:
            return slice(None)
        whole = Plane(None, 0, (0,))
        try:
            sample = sample_plane(tree, coordinate, whole, _itemsize(coordinate), self._max_bytes)
            degrees = _numbers(tree, coordinate, sample.values)[0]
        except InvalidInputError:  # a chunk above the budget, or no numbers
            return slice(None)
        return slice(None, None, -1) if degrees[0] < degrees[-1] else slice(None)

    def changes(self, older: str, newer: str) -> dict[str, Any]:
        """Which nodes differ between two versions."""
        diff = self._repository.diff(from_snapshot_id=older, to_snapshot_id=newer)
        rows = describe_changes(diff)
        return {"changes": rows[:MAX_NODES], "left_out": max(0, len(rows) - MAX_NODES)}


def _array(tree: WorkingTree, path: str) -> ArrayNode:
    path = paths.canonical(path)
    return expect_array(tree.get_node(path), path, lambda: tree.node_paths("/"))


def _itemsize(node: ArrayNode) -> int:
    """Bytes of one value; 16 for types that numpy does not know by this name."""
    try:
        return np.dtype(node.array.data_type).itemsize or 16
    except TypeError:
        return 16


def _chunks_per_cell(
    grid: tuple[int, ...], axes: list[int], cells: list[int]
) -> npt.NDArray[np.int64]:
    """How many chunks fall into each cell of a map."""
    others = 1
    for axis, extent in enumerate(grid):
        if axis not in axes:
            others *= extent
    widths = [
        np.bincount(np.arange(grid[axis]) * size // grid[axis], minlength=size)
        if grid[axis] <= MAX_REFERENCES
        else np.full(size, grid[axis] / size)
        for axis, size in zip(axes, cells, strict=True)
    ]
    product: npt.NDArray[np.int64] = widths[0] if len(widths) == 1 else np.outer(*widths)
    return product * others


def _numbers(
    tree: WorkingTree, node: ArrayNode, stored: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Values as CF attributes decode them, missing ones as NaN; times in seconds."""
    if stored.dtype.kind not in "biufmMc":
        raise InvalidInputError(f"{node.path} has values of type {stored.dtype}, not numbers")
    if stored.dtype.kind in "mM":
        milliseconds = stored.astype(f"{stored.dtype.kind}8[ms]").astype(np.int64)
        times: npt.NDArray[np.float64] = milliseconds / 1000
        times[np.isnat(stored)] = np.nan
        return times
    if stored.dtype.kind == "c":
        magnitudes: npt.NDArray[np.float64] = np.abs(stored).astype(np.float64)
        return magnitudes
    if stored.dtype.kind == "b":
        return stored.astype(np.float64)
    attributes = parsed_document(tree, node.path).get("attributes", {})
    decoded = coding_of(stored.dtype, attributes).decode_numbers(stored)
    return np.asarray(decoded, dtype=np.float64)


_KINDS = {"M": "time", "m": "seconds", "c": "magnitude"}
"""What the numbers of a picture are, by the kind of data type that numpy has for the values."""

_KINDS_OF_DIFFERENCES = {**_KINDS, "M": "seconds"}
"""The same for differences, if both versions have the same kind of data type."""


def _pixels(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    return {
        "height": values.shape[0],
        "width": values.shape[1],
        "lowest": float(finite.min()) if finite.size else None,
        "highest": float(finite.max()) if finite.size else None,
        "missing": int(values.size - finite.size),
        "infinite": int(np.count_nonzero(np.isinf(values))),
        "values": base64.b64encode(values.astype("<f8").tobytes()).decode("ascii"),
    }
