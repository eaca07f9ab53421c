"""Many chunks are read at once: located together, fetched in few requests, wherever they are."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

import icefloe
from icefloe.config import ChunkPackingConfig, ChunkReadingConfig, ManifestSplittingConfig
from icefloe.errors import InvalidInputError, NodeNotFoundError, StorageError, VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.storage.workers import ThreadJob, in_any_order
from icefloe.testing.faults import Fault, FaultyStorage
from tests.documents import array, group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icefloe.config import RepositoryConfig
    from icefloe.session import Session
    from icefloe.storage.port import Storage

SIDE = 12
GRID = np.array(list(np.ndindex(SIDE, SIDE)))


def size_at(place: tuple[int, int]) -> int:
    """Sizes of every arrangement: inline, packed, alone; some chunks are empty."""
    row, column = place
    return (0, 7, 300, 3000)[(row * 5 + column) % 4]


def data_at(place: tuple[int, int], salt: int = 0) -> bytes:
    return bytes([(place[0] * 31 + place[1] * 7 + salt) % 256]) * size_at(place)


def settings(**reading: int) -> RepositoryConfig:
    return icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=10,
        chunk_packing=ChunkPackingConfig(max_chunk_bytes=1000, pack_bytes=4000),
        chunk_reading=ChunkReadingConfig(**reading),
    )


def session_on(storage: Storage, config: RepositoryConfig | None = None) -> Session:
    repo = icefloe.Repository.create(storage, config or settings())
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((SIDE, SIDE)))
    return session


def contents(session: Session, coords: np.ndarray, path: str = "/a") -> dict[int, bytes]:
    """What a bulk read finds, by row."""
    found: dict[int, bytes] = {}
    for part in session.read_chunks(path, coords):
        assert len(part.rows) == len(part.segments)
        for at, row in enumerate(part.rows.tolist()):
            assert row not in found
            found[row] = bytes(part.segments.piece(at))
    return found


def one_by_one(session: Session, coords: np.ndarray, path: str = "/a") -> dict[int, bytes]:
    each = {row: session.get_chunk(path, tuple(place)) for row, place in enumerate(coords.tolist())}
    return {row: data for row, data in each.items() if data is not None}


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return icefloe.in_memory_storage()
    return icefloe.local_filesystem_storage(str(tmp_path / "repo"), durability="none")


SELECTIONS = {
    "all": GRID,
    "backwards": GRID[::-1],
    "few": GRID[[5, 77, 3]],
    "one": GRID[[40]],
    "none": GRID[:0],
    "beyond": np.array([[0, 0], [SIDE, 0], [-1, 2], [3, 3]]),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_many_at_once_are_the_same_as_one_by_one(storage: Storage, name: str) -> None:
    session = session_on(storage)
    for place in itertools.islice(map(tuple, GRID.tolist()), 0, 130):
        session.tree.set_chunk("/a", place, data_at(place))
    committed = session.commit("most chunks")
    repo = icefloe.Repository.open(storage)
    edited = repo.writable_session("main")
    for place in map(tuple, GRID[[3, 40, 77, 140]].tolist()):
        edited.tree.set_chunk("/a", place, data_at(place, salt=9) + b"x")
    edited.tree.delete_chunk("/a", (0, 5))
    coords = SELECTIONS[name]
    for reader in (repo.readonly_session(snapshot_id=committed), edited):
        found = contents(reader, coords)
        assert found == one_by_one(reader, coords)
        if name == "all":
            assert len(found) >= 129


def test_uncommitted_chunks_lie_over_several_manifests() -> None:
    config = settings()
    config.manifest = icefloe.ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict(
            {
                icefloe.ManifestSplitCondition.AnyArray(): {
                    icefloe.ManifestSplitDimCondition.Any(): 5
                }
            }
        )
    )
    storage = icefloe.in_memory_storage()
    session = session_on(storage, config)
    for place in map(tuple, GRID[::5].tolist()):
        session.tree.set_chunk("/a", place, data_at(place))
    session.commit("sparse, in tiles")
    edited = icefloe.Repository.open(storage).writable_session("main")
    node = edited.get_node("/a")
    assert node is not None
    assert len(node.manifests) == 9
    for place in map(tuple, GRID[::7].tolist()):
        edited.tree.set_chunk("/a", place, data_at(place, salt=1))
    edited.shift_array("/a", (1, 1))
    edited.tree.set_chunk("/a", (4, 4), b"later")
    assert contents(edited, GRID) == one_by_one(edited, GRID)
    edited.tree.clear_chunks("/a")
    edited.tree.set_chunk("/a", (2, 2), b"last")
    assert contents(edited, GRID) == {26: b"last"}


def test_neighbours_come_in_one_request() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    config = settings(max_gap_bytes=0)
    config.chunk_packing = ChunkPackingConfig()
    session = session_on(storage, config)
    for place in map(tuple, GRID.tolist()):
        session.tree.set_chunk("/a", place, b"%3d" % (place[0] * SIDE + place[1]) * 100)
    session.commit("one pack")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    reader.get_chunk("/a", (0, 0))
    storage.trace.clear()
    assert len(contents(reader, GRID)) == SIDE * SIDE
    assert [verb for verb, key in storage.trace if key.startswith("chunks/")] == ["get"]


def test_requests_are_limited_in_size_and_gaps_are_not_read() -> None:
    sizes: list[int] = []

    class Noting(FaultyStorage):
        def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            sizes.extend(length for _, length in ranges)
            return super().get_ranges(key, ranges)

    storage = Noting(icefloe.in_memory_storage())
    config = settings(max_gap_bytes=100, max_request_bytes=1000)
    config.chunk_packing = ChunkPackingConfig()
    session = session_on(storage, config)
    for place in map(tuple, GRID.tolist()):
        session.tree.set_chunk("/a", place, b"c" * 100)
    session.commit("one pack")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    wanted = np.array([(0, n) for n in (0, 1, 3, 6, 7)])
    assert contents(reader, wanted) == dict.fromkeys(range(5), b"c" * 100)
    assert sorted(sizes) == [200, 400]
    sizes.clear()
    contents(reader, GRID)
    assert not sizes or max(sizes) <= 1000


def test_segments_are_pieces_of_what_was_fetched() -> None:
    storage = icefloe.in_memory_storage()
    config = settings()
    config.chunk_packing = ChunkPackingConfig()
    session = session_on(storage, config)
    for place in map(tuple, GRID.tolist()):
        session.tree.set_chunk("/a", place, os.urandom(100))
    session.commit("one pack")
    (found,) = icefloe.Repository.open(storage).readonly_session("main").read_chunks("/a", GRID)
    assert len(found.segments.data) == 100 * len(GRID)


def test_fetching_waits_for_whoever_takes_the_results() -> None:
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        return number

    jobs = [ThreadJob(10, partial(work, n)) for n in range(20)]
    results = in_any_order(jobs, at_a_time=4, max_bytes=30)
    first = next(results)
    assert len(started) <= 4, "nothing is fetched ahead of the limit"
    rest = list(results)
    assert sorted([first, *rest]) == list(range(20))


def test_whoever_stops_early_leaves_nothing_behind() -> None:
    done: list[int] = []
    jobs = [ThreadJob(1, partial(done.append, n)) for n in range(100)]
    results = in_any_order(jobs, at_a_time=2, max_bytes=100)
    next(results)
    results.close()  # type: ignore[attr-defined]
    count = len(done)
    assert count < 10
    assert len(done) == count


def test_a_failing_request_is_the_error_of_the_read() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    session = session_on(storage)
    for place in map(tuple, GRID.tolist()):
        session.tree.set_chunk("/a", place, data_at(place))
    session.commit("chunks")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    storage.inject(Fault.ERROR, verb="get", key="chunks/", times=1000)
    with pytest.raises(StorageError, match="injected"):
        contents(reader, GRID)
    storage.revive()
    assert len(contents(icefloe.Repository.open(storage).readonly_session("main"), GRID)) == 144


def test_what_cannot_be_asked_for_is_refused() -> None:
    session = session_on(icefloe.in_memory_storage())
    with pytest.raises(NodeNotFoundError):
        session.read_chunks("/nothing", GRID)
    with pytest.raises(InvalidInputError, match=r"shape \(n, 2\)"):
        session.read_chunks("/a", GRID[:, :1])


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "x.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "y.bin").write_bytes(bytes(reversed(range(256))) * 10)
    return folder


@pytest.fixture
def virtual(sources: Path) -> Session:
    prefix = sources.as_uri() + "/"
    config = settings()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(sources)))
    )
    repo = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={prefix: None}
    )
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((SIDE, SIDE)))
    for number, place in enumerate(map(tuple, GRID[:20].tolist())):
        location = prefix + ("x.bin", "y.bin")[number % 2]
        session.tree.set_virtual_ref("/a", place, VirtualRef(location, 100 * number, 100))
    session.tree.set_chunk("/a", (5, 5), b"packed" * 50)
    return session


def test_virtual_chunks_are_read_along(virtual: Session) -> None:
    found = contents(virtual, GRID)
    assert found == one_by_one(virtual, GRID)
    assert len(found) == 21


def test_a_virtual_chunk_behind_the_end_of_its_file_is_the_error_of_the_read(
    virtual: Session, sources: Path
) -> None:
    (sources / "y.bin").write_bytes(bytes(500))
    with pytest.raises(VirtualChunkError, match="not enough data"):
        contents(virtual, GRID)
    assert contents(virtual, GRID[:5]) == one_by_one(virtual, GRID[:5])


def test_virtual_chunks_of_a_place_that_was_not_authorised_are_not_read(
    virtual: Session,
) -> None:
    storage = virtual.tree.context.storage
    virtual.commit("references")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    with pytest.raises(VirtualChunkError, match="authorize"):
        contents(reader, GRID)
