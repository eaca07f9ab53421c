"""Which manifests commits write: random edits and configurations against a model of dictionaries.

After every commit the machine reads everything back through a repository that was just opened, and
holds the layout of the manifests against the rules of seed 004. How arrays are split and what a
commit may rewrite is worked out here chunk by chunk, in another way than the engine does.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

import icefloe
from icefloe.config import (
    ManifestConfig,
    ManifestPreload,
    ManifestRule,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.model.chunk_index import Box
from icefloe.model.chunk_refs import InlineRef
from icefloe.model.manifest import ArrayChunks
from icefloe.packing.tiles import Tiling
from tests.documents import array, group
from tests.formats import EVERY_FORMAT, OFFICIAL_FORMATS, records_moves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from random import Random

    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.session import Session

Coords = tuple[int, ...]
Grid = tuple[int, ...]

NAMES = ("a", "b", "c", "d", "time", "x")
PLACES = tuple(f"{folder}/{name}" for folder in ("", "/g") for name in NAMES)
GRIDS: tuple[Grid, ...] = (
    *((), (0,), (1,), (3,), (4,), (6,), (9,), (30,)),
    *((2, 3), (3, 2), (3, 3), (4, 4), (5, 6)),
    *((60,), (100_000,), (10**9,), (7, 300), (1000, 1000), (50, 3, 10**5)),
)
MANY = 64
"""Grids with more chunks than this are never full."""


# --- configurations

# Chosen by a random generator that hypothesis seeds, not by its own strategies: these prefer simple
# values, and a configuration of simple values has little to pack.


def some_sets(chance: Random) -> list[ManifestSet]:
    names = ["one", "two", "three"][: chance.choice([1, 2, 2, 3])]
    sets = []
    for place, name in enumerate(names):
        by_number = chance.random() < 0.4
        split_size = chance.choice([None, None, 2, 4, 6])
        sets.append(
            ManifestSet(
                name=name,
                max_manifest_size=None if by_number else chance.randint(6, 30),
                arrays_per_manifest=chance.randint(1, 4) if by_number else None,
                overflow_to=chance.choice([*names[place + 1 :], "default"]),
                cardinality=None if split_size else chance.choice([1, 1, 2, None]),
                split_size=split_size,
            )
        )
    if chance.random() < 0.7:
        size, split_size = chance.randint(6, 40), chance.choice([None, 3, 5, 6])
        sets.append(ManifestSet(name="default", max_manifest_size=size, split_size=split_size))
    return sets


def some_range(chance: Random) -> tuple[int, int | None] | None:
    return chance.choice([None, None, (0, chance.randint(2, 12)), (chance.randint(0, 5), None)])


def some_rules(chance: Random, names: list[str]) -> list[ManifestRule]:
    rules = [
        ManifestRule(
            target=chance.choice(names),
            path=chance.choice([".*", "/g/.*", ".*/time", ".*/[ab]"]),
            metadata_chunks=some_range(chance),
            initialized_chunks=some_range(chance),
        )
        for _ in range(chance.randint(0, 2))
    ]
    if chance.random() < 0.5:
        rules.append(ManifestRule(target=chance.choice(names)))
    return rules


def some_splitting(chance: Random, share: float) -> ManifestSplittingConfig:
    if chance.random() >= share:
        return ManifestSplittingConfig(())  # none, also if the repository's own has some
    cuts = chance.choice([{0: 1}, {0: 2}, {0: 3}, {1: 1}, {1: 2}, {0: 2, 1: 2}])
    sizes: dict[ManifestSplitDimCondition, int] = {
        ManifestSplitDimCondition.Axis(axis): size for axis, size in cuts.items()
    }
    condition = ManifestSplitCondition.name_matches(
        chance.choice(["^a$", "^[ab]$", "^[cd]$", ".*"])
    )
    return ManifestSplittingConfig.from_dict({condition: sizes})


def some_config(chance: Random, split_share: float) -> ManifestConfig:
    sets = some_sets(chance)
    return ManifestConfig(
        sets=sets,
        rules=some_rules(chance, [each.name for each in sets]),
        splitting=some_splitting(chance, split_share),
        preload=ManifestPreload(max_manifests=0),
    )


chances = st.randoms(use_true_random=True)


# --- the model


@dataclass
class ModelArray:
    grid: Grid
    chunks: dict[Coords, bytes] = field(default_factory=dict)

    def places(self, chance: Random) -> list[Coords]:
        """All chunks of the grid, or some near each other and some far off if it is huge."""
        if self.size <= MANY:
            return list(itertools.product(*map(range, self.grid)))
        corner = [chance.randrange(extent) for extent in self.grid]
        far = [tuple(chance.randrange(extent) for extent in self.grid) for _ in range(10)]
        near = [
            tuple(
                min(extent - 1, low + chance.randrange(6))
                for low, extent in zip(corner, self.grid, strict=True)
            )
            for _ in range(20)
        ]
        return sorted({*far, *near, *chance.sample(sorted(self.chunks), len(self.chunks) // 2)})

    @property
    def size(self) -> int:
        """Chunks of the grid (H-39)."""
        return prod(self.grid)


def some_places(chance: Random, model: ModelArray) -> list[Coords]:
    places = model.places(chance)
    return chance.sample(places, min(len(places), chance.randint(1, 4)))


@dataclass
class Edits:
    """What a session did since it started, by the ids of nodes."""

    chunks: dict[NodeId, set[Coords] | None] = field(default_factory=dict)
    """Chunks that were set or deleted; None for all."""
    deleted: set[NodeId] = field(default_factory=set)

    def touch(self, node_id: NodeId, places: Iterable[Coords]) -> None:
        known = self.chunks.setdefault(node_id, set())
        if known is not None:
            known.update(places)


@dataclass(frozen=True)
class Part:
    """The references of one array in one manifest, by what the snapshot says."""

    node_id: NodeId
    manifest_id: ManifestId
    box: Box
    count: int


@dataclass(frozen=True)
class Layout:
    """Which parts of which arrays are in which manifest."""

    parts: tuple[Part, ...]
    set_names: dict[ManifestId, str]

    def of_array(self, node_id: NodeId) -> list[Part]:
        return [part for part in self.parts if part.node_id == node_id]

    def of_manifest(self, manifest_id: ManifestId) -> list[Part]:
        return [part for part in self.parts if part.manifest_id == manifest_id]

    @cached_property
    def packed(self) -> dict[ManifestId, str]:
        """The manifests that are no pieces of a split array, with their sets."""
        return {
            manifest_id: name
            for manifest_id, name in self.set_names.items()
            if len(parts := self.of_manifest(manifest_id)) > 1
            or len(self.of_array(parts[0].node_id)) == 1
        }

    def size(self, manifest_id: ManifestId) -> int:
        return sum(part.count for part in self.of_manifest(manifest_id))


def layout_of(session: Session) -> Layout:
    snapshot = session.tree.snapshot
    parts = tuple(
        Part(node.id, ref.manifest_id, ref.extents, ref.num_refs)
        for node in snapshot.nodes
        for ref in node.manifests
    )
    names = {info.id: info.set_name for info in snapshot.manifests}
    assert names.keys() == {part.manifest_id for part in parts}  # R1-29
    assert len(snapshot.manifests) == len(names)
    layout = Layout(parts, names)
    for info in snapshot.manifests:
        assert info.num_chunk_refs == layout.size(info.id)
    return layout


class Cut:
    """How an array is split under a configuration, worked out chunk by chunk."""

    def __init__(self, path: str, model: ModelArray, config: ManifestConfig) -> None:
        self.config = config
        self.sets = config.chunk_manifests()
        self.path = path
        self.model = model
        self.max_refs = 0
        self.set_name = ""
        assert config.splitting is not None
        self.sizes = config.splitting.sizes_for(path, [None] * len(model.grid))
        self.is_chosen = any(size is not None for size in self.sizes)
        self.is_whole = not self.is_chosen
        if self.is_chosen:
            return
        self.set_name = self.landing()
        split_size = self.sets.set_named(self.set_name).split_size
        if split_size is not None and len(model.chunks) > split_size:
            self.is_whole = False
            self.max_refs = split_size
            self.sizes = list(Tiling.for_grid(model.grid, split_size).shape)

    @property
    def geometry(self) -> tuple[object, ...]:
        return (self.max_refs, *self.sizes)

    def wanted(self) -> str:
        """The set that the rules choose (H-35)."""
        size, count = self.model.size, len(self.model.chunks)
        matching = (rule for rule in self.sets.rules if rule.matches(self.path, size, count))
        return next((rule.target for rule in matching), "default")

    def landing(self) -> str:
        """The first set from there on that does not refuse an array of this size."""
        way = list(self.way(self.wanted()))
        return next(name for name in way if name == way[-1] or not self.is_refused(name))

    def way(self, name: str | None) -> Iterator[str]:
        """A set, and those that it overflows to."""
        while name is not None:
            yield name
            name = self.sets.set_named(name).overflow_to

    def is_refused(self, name: str) -> bool:
        """Whether the array is too large for a set that does not split it."""
        each = self.sets.set_named(name)
        if each.split_size is not None and len(self.model.chunks) > each.split_size:
            return False
        return each.max_manifest_size is not None and self.model.size > each.max_manifest_size

    def tile(self, coords: Coords) -> Coords:
        return tuple(
            0 if size is None else c // size for c, size in zip(coords, self.sizes, strict=True)
        )

    def reaches(self, box: Box, tile: Coords) -> bool:
        """Whether a box of chunks reaches into a tile."""
        low, high = self.tile(box.lower), self.tile(tuple(c - 1 for c in box.upper))
        return all(a <= t <= b for a, t, b in zip(low, tile, high, strict=True))

    def parts(self, counts: dict[Coords, int]) -> list[set[Coords]]:
        """Tiles that belong together, if tiles have so many references."""
        if len(counts) <= 1 or sum(counts.values()) <= self.max_refs:
            return [set(counts)]
        # The first dimension in which they differ is halved, at the highest power of two.
        axis = next(
            at for at, column in enumerate(zip(*counts, strict=True)) if len(set(column)) > 1
        )
        low, high = min(t[axis] for t in counts), max(t[axis] for t in counts)
        step = 1
        while low // (step * 2) != high // (step * 2):
            step *= 2
        middle = high // step * step
        left = {tile: n for tile, n in counts.items() if tile[axis] < middle}
        return self.parts(left) + self.parts({t: n for t, n in counts.items() if t not in left})


# --- what a commit may rewrite


class Reach:
    """The manifests of a base that a commit has a reason to rewrite (R4-51, H-36)."""

    def __init__(
        self,
        base: Layout,
        edits: Edits,
        cuts: dict[NodeId, Cut],
        chunks: dict[NodeId, set[Coords]],
    ) -> None:
        self.base = base
        self.cuts = cuts
        self.chunks = chunks
        """The chunks of the base."""
        self.manifests: set[ManifestId] = set()
        for node_id in edits.deleted:
            self.manifests.update(part.manifest_id for part in base.of_array(node_id))
        for node_id, places in edits.chunks.items():
            self.manifests.update(self._edited(node_id, places))
        while more := set(self._neighbours()) - self.manifests:
            self.manifests |= more

    def _edited(self, node_id: NodeId, places: set[Coords] | None) -> set[ManifestId]:
        parts = self.base.of_array(node_id)
        if not parts:
            return set()  # a new array has another id before it is committed, in some generations
        cut = self.cuts[node_id]
        if cut.is_whole or places is None:
            return {part.manifest_id for part in parts}
        # All that is read and written again: tiles with something new or gone, whatever has
        # references there or begins in the same part, and what lies in the way of such a part.
        hot = {cut.tile(coords) for coords in places}
        taken: set[ManifestId] = set()
        # What is read before it is known how many references there are.
        as_it_was = Cut(
            cut.path,
            ModelArray(cut.model.grid, dict.fromkeys(self.chunks[node_id], b"")),
            cut.config,
        )
        tiles = set(map(as_it_was.tile, places))
        first = [p for p in parts if any(as_it_was.reaches(p.box, tile) for tile in tiles)]
        while True:
            boxes = list(self._parts_to_write(cut, parts, taken, hot))
            hit = [part for part in parts if self._is_hit(cut, part, hot, boxes)]
            hit += [] if as_it_was.is_whole else first
            if taken == (taken := {part.manifest_id for part in hit}):
                return taken
            for part in hit:
                hot.update(map(cut.tile, self._chunks_of(part)))
                hot.add(cut.tile(part.box.lower))

    def _chunks_of(self, part: Part) -> set[Coords]:
        return {c for c in self.chunks[part.node_id] if part.box.contains(c)}

    def _is_hit(
        self,
        cut: Cut,
        part: Part,
        hot: set[Coords],
        written: list[tuple[set[Coords], Box | None]],
    ) -> bool:
        if any(cut.reaches(part.box, tile) for tile in hot):
            return True
        start = cut.tile(part.box.lower)
        return any(
            start in tiles or (box is not None and part.box.intersects(box))
            for tiles, box in written
        )

    def _parts_to_write(
        self, cut: Cut, parts: list[Part], taken: set[ManifestId], hot: set[Coords]
    ) -> Iterator[tuple[set[Coords], Box | None]]:
        """Tiles of each new part with something hot in it, and the box of its references.

        What is not taken counts where it begins, what is new or taken chunk by chunk.
        """
        left = [part for part in parts if part.manifest_id not in taken]
        new = {c for c in cut.model.chunks if not any(part.box.contains(c) for part in left)}
        counts = dict.fromkeys(hot, 0)
        for coords in new:
            counts[cut.tile(coords)] = counts.get(cut.tile(coords), 0) + 1
        for part in left:
            start = cut.tile(part.box.lower)
            counts[start] = counts.get(start, 0) + part.count
        for tiles in cut.parts(counts):
            if tiles & hot:
                inside = [c for c in new if cut.tile(c) in tiles]
                yield tiles, bounds(inside) if inside else None

    def _neighbours(self) -> Iterator[ManifestId]:
        for manifest_id in self.manifests:
            for part in self.base.of_manifest(manifest_id):
                cut = self.cuts.get(part.node_id)
                if cut is not None and cut.is_whole:
                    yield from (p.manifest_id for p in self.base.of_array(part.node_id))


def bounds(places: Iterable[Coords]) -> Box:
    columns = list(zip(*places, strict=True))
    return Box(tuple(map(min, columns)), tuple(max(column) + 1 for column in columns))


# --- the machine


class PackingMachine(RuleBasedStateMachine):
    """Many arrays that share manifests, of which some are cut."""

    places: ClassVar[Sequence[str]] = PLACES
    grids: ClassVar[Sequence[Grid]] = GRIDS
    split_share: ClassVar[float] = 0.4
    formats: ClassVar[Sequence[str]] = ("columns", "rows")

    @initialize(chance=chances, number=st.integers(0, 1))
    def create(self, chance: Random, number: int) -> None:
        how = EVERY_FORMAT[self.formats[number % len(self.formats)]]
        self.storage = icefloe.in_memory_storage()
        self.configure(some_config(chance, self.split_share))
        repo = icefloe.Repository.create(self.storage, self.repository_config(), **how)
        self.can_move = records_moves(repo)
        session = repo.writable_session("main")
        session.tree.set_document("/", group())
        session.tree.set_document("/g", group())
        session.commit("groups")
        self.model: dict[str, ModelArray] = {}
        self.counter = 0
        self.geometries: dict[NodeId, tuple[object, ...]] = {}
        self.begin()
        for _ in range(chance.randint(3, 9)):
            self.create_array(chance)
        self.commit()

    def configure(self, config: ManifestConfig) -> None:
        self.config = config
        self.sets = config.chunk_manifests()

    def repository_config(self) -> icefloe.RepositoryConfig:
        return icefloe.RepositoryConfig(manifest=self.config, inline_chunk_threshold_bytes=4)

    def begin(self) -> None:
        repo = icefloe.Repository.open(self.storage, self.repository_config())
        self.session = repo.writable_session("main")
        self.base = layout_of(self.session)
        self.edits = Edits()
        self.born: set[NodeId] = set()
        self.committed = {self.node_id(path): set(m.chunks) for path, m in self.model.items()}

    def node_id(self, path: str) -> NodeId:
        node = self.session.get_node(path)
        assert node is not None
        return node.id

    def content(self) -> bytes:
        """Bytes that no other chunk has; sometimes inline and sometimes in a file."""
        self.counter += 1
        return self.counter.to_bytes(3 if self.counter % 3 else 6, "big")

    def some_array(self, chance: Random) -> tuple[str, ModelArray]:
        path = chance.choice(sorted(self.model))
        return path, self.model[path]

    # --- edits

    def create_array(self, chance: Random) -> None:
        free = [path for path in self.places if path not in self.model]
        if free:
            self._create(chance, chance.choice(free), chance.choice(self.grids))

    def _create(self, chance: Random, path: str, grid: Grid) -> None:
        self.session.tree.set_document(path, array(grid))
        model = self.model[path] = ModelArray(grid)
        self.born.add(self.node_id(path))
        share = chance.choice([0, 0.3, 0.7, 1, 1])
        self._write(path, [coords for coords in model.places(chance) if chance.random() < share])

    def _write(self, path: str, places: list[Coords]) -> None:
        for coords in places:
            content = self.content()
            self.session.tree.set_chunk(path, coords, content)
            self.model[path].chunks[coords] = content
        if places:
            self.edits.touch(self.node_id(path), places)

    def write_chunks(self, chance: Random) -> None:
        path, model = self.some_array(chance)
        self._write(path, some_places(chance, model))

    def write_columns(self, chance: Random) -> None:
        path, model = self.some_array(chance)
        if not model.size:
            return
        places = model.places(chance)
        start = chance.randrange(len(places))
        places = places[start : start + chance.randint(1, 30)]
        contents = [self.counter.to_bytes(3, "big") for self.counter in self._numbers(len(places))]
        table = ArrayChunks.of(places, [InlineRef(c) for c in contents], len(model.grid))
        self.session.tree.set_chunk_refs(path, table)
        model.chunks.update(zip(places, contents, strict=True))
        self.edits.touch(self.node_id(path), places)

    def _numbers(self, count: int) -> range:
        return range(self.counter + 1, self.counter + 1 + count)

    def delete_chunks(self, chance: Random) -> None:
        path, model = self.some_array(chance)
        places = some_places(chance, model)
        for coords in places:
            self.session.tree.delete_chunk(path, coords)
            model.chunks.pop(coords, None)
        if places:
            self.edits.touch(self.node_id(path), places)

    def clear(self, chance: Random) -> None:
        path, model = self.some_array(chance)
        self.session.tree.clear_chunks(path)
        model.chunks.clear()
        self.edits.chunks[self.node_id(path)] = None

    def resize(self, chance: Random) -> None:
        """As zarr does: chunks outside of the new shape are deleted one by one."""
        path, model = self.some_array(chance)
        grid = tuple(max(0, n + chance.randint(-3, 2)) for n in model.grid)
        inside = Box((0,) * len(grid), grid)
        outside = [coords for coords in model.chunks if not inside.contains(coords)]
        for coords in outside:
            self.session.tree.delete_chunk(path, coords)
            del model.chunks[coords]
        if outside:
            self.edits.touch(self.node_id(path), outside)
        self.session.tree.set_document(path, array(grid))
        model.grid = grid

    def delete_array(self, chance: Random) -> None:
        path, model = self.some_array(chance)
        node_id = self.node_id(path)
        self.session.tree.delete_node(path)
        self.edits.chunks.pop(node_id, None)
        if node_id in self.born:
            self.born.discard(node_id)
        else:
            self.edits.deleted.add(node_id)
        del self.model[path]
        if chance.random() < 0.5:  # H-36
            self._create(chance, path, model.grid)
            assert self.node_id(path) != node_id

    def move_array(self, chance: Random) -> None:
        path, _ = self.some_array(chance)
        goal = chance.choice(self.places)
        if goal not in self.model and self.can_move:
            self.session.move(path, goal)
            self.model[goal] = self.model.pop(path)

    # Writing is what commits are mostly for.
    EDITS = (
        create_array,
        create_array,
        write_chunks,
        write_chunks,
        write_chunks,
        write_columns,
        delete_chunks,
        clear,
        resize,
        delete_array,
        move_array,
    )

    # --- steps: each ends with a commit, so that none is idle

    @rule(chance=chances)
    def work(self, chance: Random) -> None:
        for _ in range(chance.randint(1, 3)):
            edit = chance.choice(self.EDITS) if self.model else self.EDITS[0]
            note(edit.__name__)
            edit(self, chance)
        self.commit()

    @rule(chance=chances)
    def work_on(self, chance: Random) -> None:
        """The same, so that configurations last for a while."""
        self.work(chance)

    @rule(chance=chances)
    def work_under_another_configuration(self, chance: Random) -> None:
        config = some_config(chance, self.split_share)
        if chance.random() < 0.5:
            config = ManifestConfig(
                sets=self.config.sets,
                rules=self.config.rules,
                splitting=config.splitting,
                preload=config.preload,
            )
        self.configure(config)
        note(str(self.config))
        self.begin()
        self.work(chance)

    # --- commits

    def commit(self) -> None:
        self.session.commit("packed", allow_empty=True)
        base, edits, chunks = self.base, self.edits, self.committed
        # As written, not as remembered: the layout comes from files, and so does every chunk.
        self.begin()
        self.check_contents()
        self.check_parts()
        self.check_placement(base, edits, chunks)

    def check_contents(self) -> None:
        for path, model in self.model.items():
            coords = [tuple(row) for row in self.session.tree.chunk_coords(path).tolist()]
            assert coords == sorted(model.chunks)
            places = itertools.product(*map(range, model.grid)) if model.size <= MANY else coords
            for place in places:
                assert self.session.get_chunk(path, place) == model.chunks.get(place)

    def check_parts(self) -> None:
        """Extents are bounding boxes and keep out of each other's way; counts are true (R4-02)."""
        snapshot_chunks = self.session.tree.chunks
        for path, model in self.model.items():
            node = self.session.get_node(path)
            assert node is not None
            parts = self.base.of_array(node.id)
            assert bool(parts) == bool(model.chunks)  # H-43
            assert sum(part.count for part in parts) == len(model.chunks)
            for one, other in itertools.combinations(parts, 2):
                assert not one.box.intersects(other.box), (path, one, other)
            for part in parts:
                table = snapshot_chunks.manifest(part.manifest_id).array(node.id)
                assert table is not None
                rows = [tuple(row) for row in table.index.coords().tolist()]
                assert len(rows) == part.count
                assert part.box.lower == tuple(map(min, zip(*rows, strict=True)))
                assert part.box.upper == tuple(max(c) + 1 for c in zip(*rows, strict=True))
        for manifest_id in self.base.set_names:
            held = set(snapshot_chunks.manifest(manifest_id).index.arrays)
            assert held == {part.node_id for part in self.base.of_manifest(manifest_id)}  # H-36

    def check_placement(
        self, before: Layout, edits: Edits, chunks: dict[NodeId, set[Coords]]
    ) -> None:
        after = self.base
        cuts = {
            self.node_id(path): Cut(path, model, self.config) for path, model in self.model.items()
        }
        new = after.set_names.keys() - before.set_names.keys()
        gone = before.set_names.keys() - after.set_names.keys()
        reach = Reach(before, edits, cuts, chunks)
        pulled = gone - reach.manifests
        self.check_pulled(before, after, pulled, reach)
        for each in self.sets.sets:
            count = sum(name == each.name for name in after.packed.values())
            standing = sum(
                before.packed[m] == each.name
                for m in before.packed.keys() - reach.manifests - pulled
            )
            assert each.cardinality is None or count <= max(each.cardinality, standing)  # R4-26
        came_from = {
            part.node_id: before.set_names[m] for m in pulled for part in before.of_manifest(m)
        }
        for manifest_id in new:
            self.check_new(manifest_id, cuts, came_from)
        self.check_not_in_vain(before, gone, cuts, edits)
        for node_id, cut in cuts.items():
            self.check_number(node_id, cut, before)

    def check_pulled(
        self, before: Layout, after: Layout, pulled: set[ManifestId], reach: Reach
    ) -> None:
        """Beyond the closure, only full sets are packed again, their smallest first (H-38).

        Pieces of an array go with it that was split once and is packed as a whole now.
        """
        limits = {each.name: each.cardinality for each in self.sets.sets}
        shared = pulled & before.packed.keys()
        standing = before.packed.keys() - reach.manifests - pulled
        for manifest_id in shared:
            name = before.set_names[manifest_id]
            limit = limits.get(name)
            assert limit is not None, "a manifest of a set without limit"
            assert sum(n == name for n in after.packed.values()) >= min(limit, 1)
            kept = [before.size(m) for m in standing if before.set_names[m] == name]
            assert all(size >= before.size(manifest_id) for size in kept)
        for manifest_id in pulled - shared:
            (piece,) = before.of_manifest(manifest_id)
            assert reach.cuts[piece.node_id].is_whole
            assert any(part.manifest_id in shared for part in before.of_array(piece.node_id))

    def check_new(
        self, manifest_id: ManifestId, cuts: dict[NodeId, Cut], came_from: dict[NodeId, str]
    ) -> None:
        parts = self.base.of_manifest(manifest_id)
        name = self.base.set_names[manifest_id]
        cut = cuts[parts[0].node_id]
        if not cut.is_whole:
            self.check_piece(parts, name, cut)
            return
        each = self.sets.set_named(name)
        splits = each.split_size is not None and len(cut.model.chunks) > each.split_size
        if splits:  # it went on to this set from one that is full
            self.check_piece(parts, name, self.as_in(name, cut))
        total = sum(cuts[part.node_id].model.size for part in parts)
        limit = each.max_manifest_size
        if not splits and limit is not None and not (name == "default" and len(parts) == 1):
            assert total <= limit  # R4-23, R4-31
        if each.arrays_per_manifest is not None:
            assert len(parts) <= each.arrays_per_manifest  # R4-24
        for part in parts:
            cut = cuts[part.node_id]
            assert cut.is_whole
            assert splits or self.base.of_array(part.node_id) == [part]  # R4-14
            ways = [list(cut.way(start)) for start in (cut.wanted(), came_from.get(part.node_id))]
            passed = [way[: way.index(name)] for way in ways if name in way]
            # R4-25, R4-33, H-34. What a full set packs again goes on from there, whatever
            # the rules say.
            assert any(all(self.had_no_place(each, cut) for each in way) for way in passed)

    def as_in(self, name: str, cut: Cut) -> Cut:
        """How a set splits an array that another one had no place for."""
        twin = Cut(cut.path, cut.model, self.config)
        split_size = self.sets.set_named(name).split_size
        assert split_size is not None
        twin.set_name, twin.max_refs = name, split_size
        twin.sizes = list(Tiling.for_grid(cut.model.grid, split_size).shape)
        return twin

    def had_no_place(self, name: str, cut: Cut) -> bool:
        """Whether an array had to go on from a set: too large for it, or it was full."""
        each = self.sets.set_named(name)
        count = sum(other == name for other in self.base.packed.values())
        return cut.is_refused(name) or (each.cardinality is not None and count >= each.cardinality)

    def check_piece(self, parts: list[Part], name: str, cut: Cut) -> None:
        """Pieces of split arrays have a manifest each, in the set that splits them."""
        (part,) = parts
        assert name == cut.set_name
        chunks = [c for c in cut.model.chunks if part.box.contains(c)]
        assert len(chunks) == part.count
        assert len({cut.tile(c) for c in chunks}) == 1 or part.count <= cut.max_refs
        assert cut.is_chosen or part.count <= cut.max_refs

    def check_number(self, node_id: NodeId, cut: Cut, before: Layout) -> None:
        """A part of the grid with few references has one manifest, also after many commits.

        Not if some manifests are from when the array was split in another way.
        """
        parts = self.base.of_array(node_id)
        if cut.is_whole or not parts:
            self.geometries.pop(node_id, None)
            return
        known = self.geometries.get(node_id)
        new = all(part.manifest_id not in before.set_names for part in parts)
        if not new and known != cut.geometry and len(before.of_array(node_id)) > 1:
            self.geometries.pop(node_id, None)
            return
        self.geometries[node_id] = cut.geometry
        counts: dict[Coords, int] = {}
        for part in parts:
            start = cut.tile(part.box.lower)
            counts[start] = counts.get(start, 0) + part.count
        assert len(cut.parts(counts)) == len(parts)

    def check_not_in_vain(
        self, before: Layout, gone: set[ManifestId], cuts: dict[NodeId, Cut], edits: Edits
    ) -> None:
        """No manifest of a split array is written again with what it had (R4-09)."""
        for node_id, cut in cuts.items():
            places = edits.chunks.get(node_id, set())
            if cut.is_whole or places is None or self.geometries.get(node_id) != cut.geometry:
                continue
            tiles = set(map(cut.tile, places))
            old = {
                (part.box, part.count)
                for part in before.of_array(node_id)
                if part.manifest_id in gone and part.manifest_id not in before.packed
            }
            for part in self.base.of_array(node_id):
                if part.manifest_id not in before.set_names and (part.box, part.count) in old:
                    assert any(cut.reaches(part.box, tile) for tile in tiles)


class CuttingMachine(PackingMachine):
    """Few arrays of two dimensions with holes, which are split now in this way and now in that."""

    places = ("/a", "/b", "/g/a")
    grids = ((3, 3), (4, 4), (2, 5), (5, 6), (8, 9), (100, 100))
    split_share = 0.5


class OtherPackingMachine(PackingMachine):
    """The same in the other generations."""

    formats = ("store", "dataset")


class OtherCuttingMachine(CuttingMachine):
    """The same in the other generations."""

    formats = ("dataset", "store")


class Alone(PackingMachine):
    """The official formats, where no two arrays share a manifest."""

    formats = tuple(OFFICIAL_FORMATS)

    def configure(self, config: ManifestConfig) -> None:
        sets = config.chunk_manifests().alone().sets
        super().configure(msgspec.structs.replace(config, sets=list(sets)))

    def check_new(
        self, manifest_id: ManifestId, cuts: dict[NodeId, Cut], came_from: dict[NodeId, str]
    ) -> None:
        """Sets are not recorded, and an array has its manifests for itself."""
        (part,) = self.base.of_manifest(manifest_id)
        cut = cuts[part.node_id]
        if cut.is_whole:
            assert self.base.of_array(part.node_id) == [part]
        else:
            self.check_piece([part], cut.set_name, cut)


class OfficialPackingMachine(Alone):
    """The same in the official formats."""


class OfficialCuttingMachine(Alone, CuttingMachine):
    """The same in the official formats."""


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (PackingMachine, 0.3),
        (CuttingMachine, 0.3),
        (OtherPackingMachine, 0.06),
        (OtherCuttingMachine, 0.06),
        (OfficialPackingMachine, 0.06),
        (OfficialCuttingMachine, 0.06),
    ],
)
def test_packing(machine: type[PackingMachine], share: float) -> None:
    # R4-02, R4-14, R4-23, R4-24, R4-58, R4-59, R4-63, R4-64, R4-75, R4-76
    # Each step commits and reads everything back, so fewer of them do.
    examples = max(2, int(settings().max_examples * share))
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))
