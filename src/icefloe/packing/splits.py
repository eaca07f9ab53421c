"""Decides whether an array is split into several manifests, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.record import Record
from icefloe.packing.manifest_plan import Item, PlannedManifest, T, set_for
from icefloe.packing.tiles import Tiling

if TYPE_CHECKING:
    from icefloe.config.manifest_sets import ChunkManifests, ManifestSet
    from icefloe.config.settings import Settings
    from icefloe.model.nodes import ArrayNode


class Split(Record, frozen=True, eq=False):
    """How an array is split into manifests."""

    tiling: Tiling
    set_name: str
    """The manifest set that splits it; empty if `ManifestSplittingConfig` does."""


def split_of(node: ArrayNode, settings: Settings, num_refs: int) -> Split | None:
    """How an array with this many references is split; None if it is packed as a whole."""
    array = node.array
    if settings.splitting.split_sizes:
        names = array.dimension_names or (None,) * array.rank
        sizes = settings.splitting.sizes_for(node.path, names)
        if any(size is not None for size in sizes):
            return Split(Tiling(tuple(sizes)), "")
    config = settings.chunk_manifests
    if not any(each.splits(num_refs) for each in config.sets):
        return None
    each = set_for(Item.of(None, node, num_refs), config)
    return _split_in(each, node, num_refs)


def split_of_planned(
    planned: PlannedManifest[T], node: ArrayNode, config: ChunkManifests
) -> Split | None:
    """How the set of a planned manifest splits the array that is in it; None if it does not.

    That is an array that went on to this set from one that is full.
    """
    each = config.set_named(planned.set_name)
    return _split_in(each, node, planned.items[0].initialized_chunks)


def _split_in(each: ManifestSet, node: ArrayNode, num_refs: int) -> Split | None:
    """How a set splits an array; None if it has few references, or an unknown kind of grid."""
    grid_shape = node.array.grid_shape
    if each.split_size is None or num_refs <= each.split_size or grid_shape is None:
        return None
    return Split(Tiling.for_grid(grid_shape, each.split_size), each.name)


def possible_split(node: ArrayNode, settings: Settings) -> Split | None:
    """How an array would be split if it had all chunks of its grid."""
    return split_of(node, settings, max(node.num_refs, node.array.num_chunks or 0))
