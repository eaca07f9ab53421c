"""Lets executors write the manifests of big jobs, which the driver only links.

A tile is the part of an array that one manifest may cover. Tasks of the first pass spill their
references to objects of the repository, cut along tiles, and return only the names of these objects
and the number of references per tile. From these numbers the driver decides which tiles share a
manifest. Tasks of the second pass gather the references of each manifest and write it. The driver
holds a few values per tile, whatever the number of chunks. The spilled objects are garbage
afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.arrays.error_context import doing
from icefloe.changes.linked import LinkedTile, corners
from icefloe.engine.commit.linked_tiles import link_tiles, write_tiles
from icefloe.errors import TaskFailedError
from icefloe.model.chunk_index import Box, ChunkIndex, is_inside
from icefloe.model.ids import ChunkFileId, ManifestId
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.record import Record
from icefloe.packing.splits import Split, split_of
from icefloe.packing.tiles import Tiling
from icefloe.spark.engine.chunk_tables import WrittenChunks, from_table, joined, to_table
from icefloe.spark.engine.tasks import TaskOutput, pack, unpack
from icefloe.spark.engine.worker import SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.config.settings import Settings
    from icefloe.engine.context import Context
    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.nodes import ArrayNode
    from icefloe.spark.engine.runner import Results

LINKED = "linked"
"""Kind of tables that describe a linked manifest instead of references."""


class Spilling(Record, frozen=True, eq=False):
    """A work function that spills its references to objects instead of returning them."""

    work: Any
    session: SessionSpec
    tilings: dict[str, Tiling]
    """The manifest tiling of each array; references of other arrays are returned as they are."""

    def __call__(self, item: Any, shared: Any) -> Iterator[TaskOutput]:
        """Do the work, and spill its references."""
        tree: WorkingTree | None = None
        for output in self.work(item, shared):
            tiling = self.tilings.get(output.name)
            if tiling is None or output.table is None:
                yield output
                continue
            tree = tree or self.session.open_part().tree
            table = _spilled(tree.context, tiling, output.table)
            yield output._replace(table=table)


def _spilled(context: Context, tiling: Tiling, table: pa.Table) -> pa.Table:
    written = from_table(table, len(tiling.shape))
    rows = []
    for piece in _pieces(tiling, written):
        place = _put_object(context, pack(to_table(piece)))
        for tile, refs, touched in _counted(tiling, piece):
            rows.append({"tile": tile, "object": place, "refs": refs, "chunks": touched})
    return pa.Table.from_pylist(rows, schema=_SPILLED)


def _put_object(context: Context, data: bytes) -> bytes:
    """Put bytes into an object that nothing refers to, for later tasks; returns its id."""
    file_id = ChunkFileId.random()
    context.storage.put(context.format.layout.chunk_file(file_id), data)
    return bytes(file_id)


def _get_object(context: Context, file_id: bytes) -> bytes:
    return context.storage.get(context.format.layout.chunk_file(ChunkFileId(file_id)))


_SPILLED = pa.schema(
    [
        ("tile", pa.list_(pa.int64())),
        ("object", pa.binary()),
        ("refs", pa.int64()),
        ("chunks", pa.int64()),
    ],
    metadata={"kind": "spilled"},
)


def _pieces(tiling: Tiling, written: WrittenChunks) -> Iterator[WrittenChunks]:
    """Cut what a task wrote into parts that would each have a manifest if they were alone."""
    if written.chunks is not None:
        for chunks in tiling.cut(written.chunks):
            yield WrittenChunks(chunks, None)
    if written.deleted is not None:
        for deleted in tiling.cut_index(written.deleted):
            yield WrittenChunks(None, deleted)


def _counted(tiling: Tiling, piece: WrittenChunks) -> Iterator[tuple[list[int], int, int]]:
    """Yield each tile of a piece, with the numbers of its references and its touched chunks."""
    index = piece.deleted if piece.chunks is None else piece.chunks.index
    assert index is not None
    tiles, counts = tiling.counted(index)
    for tile, count in zip(tiles.tolist(), counts.tolist(), strict=True):
        yield tile, 0 if piece.chunks is None else count, count


class TileTask(Record, frozen=True, eq=False):
    """A manifest to write: a box of tiles of an array, and the objects with their references."""

    array: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    """The corners of the box of tiles, both inclusive."""
    objects: tuple[bytes, ...]
    tiling: Tiling
    split: Split | None
    """None if the references must go to the driver: the manifest cannot be written alone."""


def tile_tasks(tree: WorkingTree, results: Results, tilings: dict[str, Tiling]) -> list[TileTask]:
    """Plan the manifests from what tasks spilled."""
    tables: dict[str, list[pa.Table]] = {}
    for _, path, table in results.outputs():
        if path in tilings and table.num_rows:
            tables.setdefault(path, []).append(table)
    tasks: list[TileTask] = []
    for path, spilled in sorted(tables.items()):
        node = tree.get_array(path)
        tasks += _tasks_of(node, tree.settings, pa.concat_tables(spilled), tilings[path])
    return tasks


def _tasks_of(
    node: ArrayNode, settings: Settings, spilled: pa.Table, tiling: Tiling
) -> Iterator[TileTask]:
    rank = len(tiling.shape)
    tiles = np.array(spilled.column("tile").to_pylist(), dtype=np.int64).reshape(-1, rank)
    refs = spilled.column("refs").to_numpy()
    objects = spilled.column("object").to_pylist()
    lower, upper = corners([ref.extents for ref in node.manifests]).reshape(2, -1, rank)
    held = np.array([ref.num_refs for ref in node.manifests], dtype=np.int64)
    # An upper bound: overwritten chunks count twice. The commit joins manifests that are too small.
    split = split_of(node, settings, int(held.sum() + refs.sum()))
    if split is not None and split.tiling.shape != tiling.shape:
        split = None
    numbers = tiling.parts_of(
        np.concatenate([tiles, tiling.tiles_of(lower)]), np.concatenate([refs, held])
    )[: len(tiles)]
    rows_of = [np.flatnonzero(numbers == number) for number in np.unique(numbers).tolist()]
    reach = [_reach(tiling, tiles[rows], lower, upper) for rows in rows_of]
    apart = _apart(reach)
    for rows, is_apart in zip(rows_of, apart, strict=True):
        mine = tiles[rows]
        yield TileTask(
            array=node.path,
            first=tuple(mine.min(axis=0).tolist()),
            last=tuple(mine.max(axis=0).tolist()),
            objects=tuple(dict.fromkeys(objects[row] for row in rows.tolist())),
            tiling=tiling,
            split=split if is_apart else None,
        )


def _reach(
    tiling: Tiling,
    tiles: npt.NDArray[np.int64],
    lower: npt.NDArray[np.int64],
    upper: npt.NDArray[np.int64],
) -> Box:
    """Return the box around some tiles and the old manifests that overlap them.

    Old manifests are given by their corners, in chunks.
    """
    hit = tiling.touched(lower, upper, tiles)
    low = np.concatenate([tiles, tiling.tiles_of(lower[hit])]).min(axis=0)
    high = np.concatenate([tiles, tiling.tiles_of(upper[hit] - 1)]).max(axis=0)
    return Box(tuple(low.tolist()), tuple((high + 1).tolist()))


def _apart(boxes: Sequence[Box]) -> list[bool]:
    """Return, for each box, whether it overlaps no other one."""
    lower, upper = corners(boxes)
    return [
        int(((lower < high) & (upper > low)).all(axis=1).sum()) == 1
        for low, high in zip(lower, upper, strict=True)
    ]


def write_tile_manifests(tasks: Sequence[TileTask], session: SessionSpec) -> Iterator[TaskOutput]:
    """Write the manifests of some tiles, on an executor."""
    for task in tasks:
        tree = session.open_part().tree
        with doing(array=task.array, region=f"tiles {task.first} to {task.last}"):
            yield from _write_tile(tree, task)


def _write_tile(tree: WorkingTree, task: TileTask) -> Iterator[TaskOutput]:
    parts = [_within(task, _get_object(tree.context, place)) for place in task.objects]
    together = joined(task.array, parts)
    tiles = None
    if task.split is not None:
        tree.set_chunk_refs(task.array, together.chunks, together.deleted)
        tiles = write_tiles(tree, task.array, task.split)
    if tiles is None:
        yield TaskOutput(task.array, to_table(together))
        return
    for tile in tiles:
        yield TaskOutput(task.array, _tile_table(tile))


def _within(task: TileTask, data: bytes) -> WrittenChunks:
    """Read the references of a spilled object that belong to the tiles of a task."""
    written = from_table(unpack(data), len(task.first))
    chunks, deleted = written
    upper = [last + 1 for last in task.last]
    if chunks is not None:
        coords = chunks.index.coords()
        inside = is_inside(task.tiling.tiles_of(coords), task.first, upper)
        if not inside.all():
            rows = np.flatnonzero(inside)
            chunks = (
                ArrayChunks.from_sorted(coords[rows], chunks.refs.take(rows)) if len(rows) else None
            )
    if deleted is not None:
        coords = deleted.coords()
        inside = is_inside(task.tiling.tiles_of(coords), task.first, upper)
        deleted = ChunkIndex.from_coords(coords[inside])[0] if inside.any() else None
    return WrittenChunks(chunks, deleted)


def _tile_table(tile: LinkedTile) -> pa.Table:
    touched = tile.touched
    row = {
        "manifest": [bytes(tile.info.id)],
        "size_bytes": [tile.info.size_bytes],
        "checksum": [tile.info.checksum],
        "num_refs": [tile.info.num_chunk_refs],
        "set_name": [tile.info.set_name],
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
        id=ManifestId(row["manifest"]),
        size_bytes=row["size_bytes"],
        num_chunk_refs=row["num_refs"],
        set_name=row["set_name"],
        checksum=row["checksum"],
    )
    return LinkedTile(
        info=info,
        extents=Box(tuple(row["lower"]), tuple(row["upper"])),
        touched=ChunkIndex(box, positions),
        replaced=tuple(map(ManifestId, row["replaced"])),
    )


def absorb_tiles(tree: WorkingTree, results: Results) -> int:
    """Link the manifests that tasks wrote; return the number of chunks that they touched."""
    tiles: dict[str, list[LinkedTile]] = {}
    loose: dict[str, list[WrittenChunks]] = {}
    for _, path, table in results.outputs():
        if (table.schema.metadata or {}).get(b"kind") == LINKED.encode():
            tiles.setdefault(path, []).append(_tile_of(table))
            continue
        rank = tree.get_array(path).array.rank
        loose.setdefault(path, []).append(from_table(table, rank))
    count = 0
    for path, linked in tiles.items():
        link_tiles(tree, path, linked)
        count += sum(len(tile.touched) for tile in linked)
    for path, parts in loose.items():
        written = joined(path, parts)
        tree.set_chunk_refs(path, written.chunks, written.deleted)
        count += written.num_chunks
    return count


def check_counts(results: Results, tilings: dict[str, Any], linked: int) -> None:
    """Raise TaskFailedError if the manifests have other than the number of spilled chunks."""
    spilled = sum(
        sum(table.column("chunks").to_pylist())
        for _, path, table in results.outputs()
        if path in tilings
    )
    if spilled != linked:
        raise TaskFailedError(
            f"tasks wrote references of {spilled} chunks, their manifests have {linked}; nothing "
            "was committed"
        )
