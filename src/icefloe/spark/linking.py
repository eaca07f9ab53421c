"""Big jobs: executors write the manifests too, and the driver only links them.

Tasks of the first pass put their references into objects of the repository, one for each tile
(the part of an array that has a manifest of its own), and return only where these are. A second
pass gathers the references of each tile and writes its manifest. The driver holds a few values
for each tile, whatever the number of chunks. Objects of the first pass are garbage afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.changes.linked import LinkedTile
from icefloe.errors import NodeNotFoundError, TaskFailedError
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.ids import ChunkFileId, ManifestId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.record import Record
from icefloe.packing.tiles import Tiling
from icefloe.spark.failures import doing
from icefloe.spark.references import WrittenChunks, from_table, joined, to_table
from icefloe.spark.tasks import Output, pack, unpack
from icefloe.spark.worker import SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.spark.runner import Results
    from icefloe.versioning.session import ForkSession, Session

LINKED = "linked"
"""Metadata of tables that describe a tile instead of references."""


class Spilling(Record, frozen=True, eq=False):
    """A work function whose references go to objects instead of to the driver."""

    work: Any
    session: SessionSpec
    tilings: dict[str, tuple[int | None, ...]]
    """How each array that is cut is cut; references of others are returned as they are."""

    def __call__(self, item: Any, shared: Any) -> Iterator[Output]:
        """Do the work, and put its references aside."""
        part: ForkSession | None = None
        for output in self.work(item, shared):
            shape = self.tilings.get(output.name)
            if shape is None or output.table is None:
                yield output
                continue
            part = part or self.session.open_part()
            table = _spilled(part, Tiling(shape), output)
            yield output._replace(table=table)


def _spilled(part: ForkSession, tiling: Tiling, output: Output) -> pa.Table:
    assert output.table is not None
    written = from_table(output.table, len(tiling.shape))
    rows = []
    for tile, piece in _by_tile(tiling, written):
        place = part.put_object(pack(to_table(piece)))
        rows.append({"tile": list(tile), "object": bytes(place), "chunks": piece.num_chunks})
    return pa.Table.from_pylist(rows, schema=_SPILLED)


_SPILLED = pa.schema(
    [("tile", pa.list_(pa.int64())), ("object", pa.binary()), ("chunks", pa.int64())],
    metadata={"kind": "spilled"},
)


def _by_tile(
    tiling: Tiling, written: WrittenChunks
) -> Iterator[tuple[tuple[int, ...], WrittenChunks]]:
    pieces = [] if written.chunks is None else tiling.cut(written.chunks)
    deleted = _deleted_by_tile(tiling, written.deleted)
    for piece in pieces:
        tile = tuple(tiling.tiles_of(np.array([piece.index.box.lower]))[0].tolist())
        yield tile, WrittenChunks(piece, deleted.pop(tile, None))
    for tile, gone in deleted.items():
        yield tile, WrittenChunks(None, gone)


def _deleted_by_tile(
    tiling: Tiling, deleted: ChunkIndex | None
) -> dict[tuple[int, ...], ChunkIndex]:
    if deleted is None or not len(deleted):
        return {}
    coords = deleted.coords()
    tiles = tiling.tiles_of(coords)
    found = {}
    for tile in tiling.distinct(coords):
        inside = (tiles == tile).all(axis=1)
        found[tuple(tile.tolist())] = ChunkIndex.from_coords(coords[inside])[0]
    return found


class TileTask(Record, frozen=True):
    """A manifest to write: the tile of an array, and where its references were put."""

    array: str
    tile: tuple[int, ...]
    objects: tuple[bytes, ...]


def tile_tasks(results: Results, tilings: dict[str, Any]) -> list[TileTask]:
    """The manifests that follow from what tasks put aside."""
    found: dict[tuple[str, tuple[int, ...]], list[bytes]] = {}
    for _, path, table in results.outputs():
        if path in tilings:
            for row in table.to_pylist():
                found.setdefault((path, tuple(row["tile"])), []).append(row["object"])
    return [TileTask(path, tile, tuple(objects)) for (path, tile), objects in sorted(found.items())]


def write_tile_manifests(tasks: Sequence[TileTask], session: SessionSpec) -> Iterator[Output]:
    """On executors: write the manifests of some tiles."""
    for task in tasks:
        part = session.open_part()
        with doing(array=task.array, region=f"tile {task.tile}"):
            yield from _write_tile(part, task)


def _write_tile(part: ForkSession, task: TileTask) -> Iterator[Output]:
    node = part.get_node(task.array)
    if node is None or node.array is None:
        raise NodeNotFoundError(f"node not found: {task.array}; expected an array", task.array)
    rank = node.array.rank
    parts = [
        from_table(unpack(part.get_object(ChunkFileId(place))), rank) for place in task.objects
    ]
    together = joined(task.array, parts)
    part.set_chunk_refs(task.array, together.chunks, together.deleted)
    tiles = part.written_tiles(task.array)
    if tiles is None:
        yield Output(task.array, to_table(together))
        return
    for tile in tiles:
        yield Output(task.array, _tile_table(tile))


def _tile_table(tile: LinkedTile) -> pa.Table:
    touched = tile.touched
    row = {
        "manifest": [bytes(tile.info.id)],
        "size_bytes": [tile.info.size_bytes],
        "checksum": [tile.info.checksum],
        "num_refs": [tile.info.num_chunk_refs],
        "lower": [list(tile.extents.lower)],
        "upper": [list(tile.extents.upper)],
        "touched_lower": [list(touched.box.lower)],
        "touched_upper": [list(touched.box.upper)],
        "touched": [None if touched.is_dense else touched.positions().tobytes()],
        "replaced": [[bytes(each) for each in tile.replaced]],
    }
    return pa.table(row).replace_schema_metadata({"kind": LINKED})


def _tile_of(table: pa.Table) -> LinkedTile:
    (row,) = table.to_pylist()
    box = Box(tuple(row["touched_lower"]), tuple(row["touched_upper"]))
    positions = None if row["touched"] is None else np.frombuffer(row["touched"], dtype=np.uint64)
    info = ManifestFileInfo(
        ManifestId(row["manifest"]), row["size_bytes"], row["num_refs"], checksum=row["checksum"]
    )
    return LinkedTile(
        info,
        Box(tuple(row["lower"]), tuple(row["upper"])),
        ChunkIndex(box, positions),
        tuple(map(ManifestId, row["replaced"])),
    )


def absorb_tiles(session: Session, results: Results) -> int:
    """Link the manifests that tasks wrote; returns how many chunks they have touched."""
    tiles: dict[str, list[LinkedTile]] = {}
    loose: dict[str, list[WrittenChunks]] = {}
    for _, path, table in results.outputs():
        if (table.schema.metadata or {}).get(b"kind") == LINKED.encode():
            tiles.setdefault(path, []).append(_tile_of(table))
            continue
        node = session.get_node(path)
        assert node is not None
        assert node.array is not None
        loose.setdefault(path, []).append(from_table(table, node.array.rank))
    count = 0
    for path, found in tiles.items():
        session.link_tiles(path, found)
        count += sum(len(tile.touched) for tile in found)
    for path, parts in loose.items():
        written = joined(path, parts)
        session.set_chunk_refs(path, written.chunks, written.deleted)
        count += written.num_chunks
    return count


def check_counts(results: Results, tilings: dict[str, Any], found: int) -> None:
    """As many chunks as tasks put aside are in the manifests; raises TaskFailedError."""
    put = sum(
        sum(table.column("chunks").to_pylist())
        for _, path, table in results.outputs()
        if path in tilings
    )
    if put != found:
        raise TaskFailedError(
            f"tasks wrote references of {put} chunks, their manifests have {found}; nothing was "
            "committed"
        )
