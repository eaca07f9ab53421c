"""Decides which references go into which manifest (seed 004). Pure functions, no I/O."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Generic, TypeVar

from icefloe.config.manifest_sets import DEFAULT_SET, ChunkManifests, ManifestSet
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from icefloe.model.nodes import ArrayNode

T = TypeVar("T")


class Item(Record, Generic[T], frozen=True):
    """The references of one array, which are packed as a whole."""

    content: T
    node_id: NodeId
    path: str
    metadata_chunks: int
    """Chunks of the array's grid (H-39), which sets are filled by (R4-66)."""
    initialized_chunks: int
    """Chunks that the array has."""

    @classmethod
    def of(cls, content: T, node: ArrayNode, num_refs: int) -> Item[T]:
        """An array with `num_refs` references.

        It has at least as many chunks in its grid, even if that is of an unknown kind.
        """
        grid = node.array.num_chunks or 0
        return cls(
            content=content,
            node_id=node.id,
            path=node.path,
            metadata_chunks=max(grid, num_refs),
            initialized_chunks=num_refs,
        )


class Standing(Record, frozen=True):
    """A manifest of the base snapshot that the commit has no reason to rewrite."""

    manifest_id: ManifestId
    set_name: str
    size: int


class PlannedManifest(Record, Generic[T], frozen=True):
    """A manifest to write; several, if it is one array that the set splits."""

    set_name: str
    items: tuple[Item[T], ...]


class Plan(Record, Generic[T], frozen=True):
    """The manifests to write, and the standing ones that they replace."""

    manifests: list[PlannedManifest[T]]
    pulled: list[ManifestId]


def closure(
    modified: Iterable[T],
    manifests_of: Callable[[T], Iterable[ManifestId]],
    members_of: Callable[[ManifestId], Iterable[T]],
) -> tuple[set[T], set[ManifestId]]:
    """All items to rewrite if some are modified, and the manifests they are in (R4-51..57).

    Each manifest is visited once.
    """
    members: set[T] = set()
    seen: set[ManifestId] = set()
    waiting = list(modified)
    while waiting:
        member = waiting.pop()
        if member in members:
            continue
        members.add(member)
        for manifest in manifests_of(member):
            if manifest not in seen:
                seen.add(manifest)
                waiting.extend(other for other in members_of(manifest) if other not in members)
    return members, seen


def plan_manifests(
    items: Sequence[Item[T]],
    standing: Sequence[Standing],
    config: ChunkManifests,
    items_of: Callable[[ManifestId], Sequence[Item[T]]],
) -> Plan[T]:
    """Place every item in exactly one manifest, by the rules, set after set (R4-58..70).

    A set whose cardinality leaves no room for new manifests takes its smallest existing ones and
    packs them again, so that the limit holds across commits (H-38).
    """
    desired: dict[str, list[Item[T]]] = {each.name: [] for each in config.sets}
    for item in items:
        desired[apply_rules(item, config)].append(item)
    by_set: dict[str, list[Standing]] = {each.name: [] for each in config.sets}
    for manifest in standing:
        by_set.setdefault(manifest.set_name, []).append(manifest)
    manifests: list[PlannedManifest[T]] = []
    pulled: list[ManifestId] = []
    for each in in_overflow_order(config.sets):
        bins, overflow, again = _fill(each, desired[each.name], by_set[each.name], items_of)
        manifests += [PlannedManifest(each.name, tuple(packed)) for packed in bins]
        pulled += again
        if overflow:
            assert each.overflow_to is not None
            desired[each.overflow_to] += overflow
    return Plan(manifests, pulled)


def apply_rules(item: Item[T], config: ChunkManifests) -> str:
    """The set that an item should go to: the first rule that matches, else `default` (H-35)."""
    for rule in config.rules:
        if rule.matches(item.path, item.metadata_chunks, item.initialized_chunks):
            return rule.target
    return DEFAULT_SET


def set_for(item: Item[T], config: ChunkManifests) -> ManifestSet:
    """The first set, from where the rules send an item, that its size allows.

    If that one is full, the item still overflows.
    """
    each = config.set_named(apply_rules(item, config))
    while not _fits(each, item) and each.overflow_to is not None:
        each = config.set_named(each.overflow_to)
    return each


def in_overflow_order(sets: Sequence[ManifestSet]) -> list[ManifestSet]:
    """Sets so that overflow goes to a later one; otherwise as configured (R4-61, R4-69)."""
    feeds: Mapping[str, int] = {
        each.name: sum(other.overflow_to == each.name for other in sets) for each in sets
    }
    waiting = dict(feeds)
    ordered: list[ManifestSet] = []
    left = list(sets)
    while left:
        ready = next(each for each in left if waiting[each.name] == 0)
        left.remove(ready)
        ordered.append(ready)
        if ready.overflow_to is not None:
            waiting[ready.overflow_to] -= 1
    return ordered


def _fill(
    each: ManifestSet,
    candidates: Sequence[Item[T]],
    standing: Sequence[Standing],
    items_of: Callable[[ManifestId], Sequence[Item[T]]],
) -> tuple[list[list[Item[T]]], list[Item[T]], list[ManifestId]]:
    """Bins of one set, what overflows, and which standing manifests were taken in again."""
    placeable, alone, overflow = _by_fit(each, candidates)
    if not placeable:
        return alone, overflow, []
    bins = _pack(each, placeable)
    if each.cardinality is None:
        return alone + bins, overflow, []
    pulled: list[ManifestId] = []
    smallest_first = sorted(standing, key=lambda manifest: manifest.size)
    while smallest_first and len(bins) > each.cardinality - len(smallest_first):
        if not _has_room(each, smallest_first[0], placeable):
            break  # no use in writing it again
        taken = smallest_first.pop(0).manifest_id
        pulled.append(taken)
        # A manifest may be older than the present limits, so what it holds need not fit any more.
        again, _, too_large = _by_fit(each, items_of(taken))
        placeable += again
        overflow += too_large
        bins = _pack(each, placeable)
    kept, spilled = _at_most(max(0, each.cardinality - len(smallest_first)), bins, each)
    return kept, overflow + spilled, pulled


def _has_room(each: ManifestSet, manifest: Standing, items: Sequence[Item[T]]) -> bool:
    """Whether a standing manifest might take any of some items in."""
    limit = each.max_manifest_size
    return limit is None or manifest.size + min(map(_size, items)) <= limit


def _at_most(
    count: int, bins: list[list[Item[T]]], each: ManifestSet
) -> tuple[list[list[Item[T]]], list[Item[T]]]:
    """As many bins of a set as are allowed, and the items that overflow to another set."""
    if len(bins) <= count:
        return bins, []
    if each.arrays_per_manifest is not None:
        # The smallest overflow (H-44), as they fit elsewhere most easily.
        largest_first = sorted((i for packed in bins for i in packed), key=_size, reverse=True)
        places = count * each.arrays_per_manifest
        return _pack(each, largest_first[:places]), largest_first[places:]
    fullest_first = sorted(bins, key=lambda packed: sum(map(_size, packed)), reverse=True)
    return fullest_first[:count], [item for packed in fullest_first[count:] for item in packed]


def _by_fit(
    each: ManifestSet, candidates: Sequence[Item[T]]
) -> tuple[list[Item[T]], list[list[Item[T]]], list[Item[T]]]:
    """Items that fit into a manifest, those that get one alone, and those that overflow."""
    placeable, alone, overflow = [], [], []
    for item in candidates:
        if each.splits(item.initialized_chunks):
            alone.append([item])
        elif _fits(each, item):
            placeable.append(item)
        elif each.overflow_to is None:
            alone.append([item])
        else:
            overflow.append(item)
    return placeable, alone, overflow


def _fits(each: ManifestSet, item: Item[T]) -> bool:
    """Whether a set can take an item: whole, or split."""
    limit = each.max_manifest_size
    return limit is None or _size(item) <= limit or each.splits(item.initialized_chunks)


def _pack(each: ManifestSet, items: Sequence[Item[T]]) -> list[list[Item[T]]]:
    if each.arrays_per_manifest is not None:
        return pack_by_number(items, each.arrays_per_manifest, _size)
    assert each.max_manifest_size is not None
    return pack_by_size(items, each.max_manifest_size, _size)


def _size(item: Item[T]) -> int:
    return item.metadata_chunks


def pack_by_size(items: Iterable[T], bin_size: int, size: Callable[[T], int]) -> list[list[T]]:
    """Bins of at most `bin_size`, by best fit of the largest first (R4-66, R4-70).

    That needs at most 11/9 of the smallest possible number of bins, and one more.
    """
    bins: list[list[T]] = []
    # Bins by the room that they have left, so that the tightest that fits is found by bisection.
    room: list[tuple[int, int]] = []
    for item in sorted(items, key=size, reverse=True):
        needed = size(item)
        place = bisect_left(room, (needed, -1))
        if place == len(room):
            bins.append([item])
            insort(room, (bin_size - needed, len(bins) - 1))
        else:
            left, number = room.pop(place)
            bins[number].append(item)
            insort(room, (left - needed, number))
    return bins


def pack_by_number(items: Iterable[T], per_bin: int, size: Callable[[T], int]) -> list[list[T]]:
    """Bins of `per_bin` items, large ones with small ones; the last may have fewer (R4-71..73)."""
    ordered = sorted(items, key=size, reverse=True)
    bins = []
    while ordered:
        large = ordered[: (per_bin + 1) // 2]
        rest = ordered[len(large) :]
        small_count = min(per_bin - len(large), len(rest))
        small = rest[len(rest) - small_count :]
        bins.append(large + small)
        ordered = rest[: len(rest) - small_count]
    return bins
