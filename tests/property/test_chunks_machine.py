"""Chunks of all sizes, written alone and in batches, against a model that is a dictionary.

The machine overwrites, deletes and shifts chunks, lets packs fail, forks, and reads back whole
chunks, parts of them and batches, with and without checksums.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import icefloe
from icefloe.config import ChunkPackingConfig, ChunkReadingConfig
from icefloe.errors import StorageError
from icefloe.model.byte_range import ByteRange
from icefloe.model.segments import Segments
from icefloe.testing.faults import Fault, FaultyStorage
from tests.documents import array, group

if TYPE_CHECKING:
    from icefloe.session import Session

GRIDS = {"/line": (12,), "/plane": (4, 3), "/point": ()}
PLACES = {path: list(np.ndindex(*grid)) for path, grid in GRIDS.items()}
SIZES = st.sampled_from([0, 5, 50, 51, 80, 199, 200, 201, 600])
PATHS = st.sampled_from(sorted(GRIDS))
Coords = tuple[int, ...]


class Chunks(RuleBasedStateMachine):
    """One session after the other on one branch."""

    @initialize(
        pack_bytes=st.sampled_from([150, 500, 5000]),
        gap=st.sampled_from([None, 0, 100]),
        request=st.sampled_from([1, 300, 10_000]),
    )
    def begin(self, pack_bytes: int, gap: int | None, request: int) -> None:
        self.storage = FaultyStorage(icefloe.in_memory_storage())
        config = icefloe.RepositoryConfig(
            inline_chunk_threshold_bytes=50,
            chunk_packing=ChunkPackingConfig(max_chunk_bytes=200, pack_bytes=pack_bytes),
            chunk_reading=ChunkReadingConfig(max_gap_bytes=gap, max_request_bytes=request),
        )
        self.repo = icefloe.Repository.create(self.storage, config)
        self.session: Session = self.repo.writable_session("main")
        self.session.tree.set_document("/", group())
        for path, grid in GRIDS.items():
            self.session.tree.set_document(path, array(grid))
        self.model: dict[tuple[str, Coords], bytes] = {}
        self.length = GRIDS["/line"][0]
        self.hidden: dict[tuple[str, Coords], bytes] = {}
        self.count = 0

    def place(self, path: str, number: int) -> Coords:
        """A chunk that can be written."""
        places = PLACES[path][: self.length] if path == "/line" else PLACES[path]
        return places[number % len(places)]

    def bytes_of(self, size: int) -> bytes:
        """Bytes that no other chunk has."""
        self.count += 1
        return (self.count.to_bytes(2, "little") * (size // 2 + 1))[:size]

    # --- writing

    @rule(path=PATHS, number=st.integers(0, 11), size=SIZES)
    def write_one(self, path: str, number: int, size: int) -> None:
        place = self.place(path, number)
        self.model[path, place] = data = self.bytes_of(size)
        self.session.tree.set_chunk(path, place, data)

    @rule(
        path=PATHS,
        numbers=st.lists(st.integers(0, 11), max_size=12, unique=True),
        sizes=st.one_of(SIZES.map(lambda size: [size] * 12), st.lists(SIZES, min_size=12)),
        shape=st.sampled_from(["bytes", "bytearray", "spread"]),
        fails_at=st.sampled_from([0, 0, 1, 2]),
    )
    def write_many(
        self, path: str, numbers: list[int], sizes: list[int], shape: str, fails_at: int
    ) -> None:
        places = list(dict.fromkeys(self.place(path, number) for number in numbers))
        chunks = [self.bytes_of(size) for _, size in zip(places, sizes, strict=False)]
        coords = np.array(places, dtype=np.int64).reshape(len(places), len(GRIDS[path]))
        segments = Segments.of(chunks)
        if shape == "bytearray":
            segments = Segments(
                memoryview(bytearray(segments.data)), segments.offsets, segments.lengths
            )
        elif shape == "spread":
            spread = Segments.of([each + b"?" * 7 for each in chunks])
            segments = Segments(spread.data, spread.offsets, segments.lengths)
        if fails_at:
            self.storage.inject(Fault.ERROR, verb="put", key="chunks/", nth=fails_at)
        before = dict(self.model)
        self.model |= zip([(path, place) for place in places], chunks, strict=True)
        try:
            self.session.write_chunks(path, coords, segments)
        except StorageError:
            # Either none of them is set, or all are and some wait: both can go on.
            found = self.session.get_chunk(path, places[0])
            if found != chunks[0]:
                self.model = before
        self.storage.revive()
        if shape == "bytearray":
            segments.data[:] = bytes(len(segments.data))

    @rule(path=PATHS, number=st.integers(0, 11))
    def delete_one(self, path: str, number: int) -> None:
        place = self.place(path, number)
        self.session.tree.delete_chunk(path, place)
        self.model.pop((path, place), None)

    @rule(path=PATHS)
    def delete_all(self, path: str) -> None:
        self.session.tree.clear_chunks(path)
        self.model = {key: data for key, data in self.model.items() if key[0] != path}
        self.hidden = {key: data for key, data in self.hidden.items() if key[0] != path}

    @rule(by=st.integers(-3, 3))
    def shift(self, by: int) -> None:
        self.session.shift_array("/line", (by,))
        moved = {
            (path, (place[0] + by,)): data
            for (path, place), data in self.model.items()
            if path == "/line" and 0 <= place[0] + by < self.length
        }
        if by:
            self.hidden = {}
        self.model = {k: d for k, d in self.model.items() if k[0] != "/line"} | moved

    @rule(length=st.integers(1, 12))
    def set_length(self, length: int) -> None:
        """By a document, which deletes no chunks: the next commit drops those outside."""
        self.session.tree.set_document("/line", array((length,)))
        self.length = length
        both = self.model | self.hidden
        self.hidden = {k: d for k, d in both.items() if k[0] == "/line" and k[1][0] >= length}
        self.model = {k: d for k, d in both.items() if k not in self.hidden}

    # --- sessions

    @rule(fails=st.booleans())
    def commit(self, fails: bool) -> None:
        if not self.session.has_uncommitted_changes:
            return
        if fails:
            self.storage.inject(Fault.ERROR, verb="put", key="chunks/")
            try:
                self.session.commit("fails, perhaps")
            except StorageError:
                self.check_batches(self.session)
        self.storage.revive()
        if self.session.branch is not None:
            self.session.commit("works")
        self.hidden = {}
        reader = icefloe.Repository.open(self.storage).readonly_session("main")
        reader.verify_chunks = True
        self.check_batches(reader)
        self.session = self.repo.writable_session("main")

    @rule(path=PATHS, number=st.integers(0, 11), size=SIZES)
    def fork(self, path: str, number: int, size: int) -> None:
        self.commit(False)
        fork = pickle.loads(pickle.dumps(self.session.fork()))
        place = self.place(path, number)
        self.model[path, place] = data = self.bytes_of(size)
        coords = np.array([place], dtype=np.int64).reshape(1, len(place))
        fork.write_chunks(path, coords, Segments.of([data]))
        self.session.merge(pickle.loads(pickle.dumps(fork)))

    # --- reading

    @rule(
        path=PATHS,
        number=st.integers(0, 11),
        start=st.integers(-700, 700),
        length=st.none() | st.integers(0, 700),
        verify=st.booleans(),
    )
    def read_part(
        self, path: str, number: int, start: int, length: int | None, verify: bool
    ) -> None:
        place = self.place(path, number)
        found = self.session.get_chunk(path, place, ByteRange(start, length), verify=verify)
        whole = self.model.get((path, place))
        if whole is None:
            assert found is None
            return
        rest = whole[start:] if start >= -len(whole) else whole
        assert found == (rest if length is None else rest[:length])

    @rule(path=PATHS, numbers=st.permutations(range(12)), count=st.integers(0, 12))
    def read_some(self, path: str, numbers: list[int], count: int) -> None:
        places = [PLACES[path][n] for n in numbers[:count] if n < len(PLACES[path])]
        self.check(self.session, path, places)

    @invariant()
    def all_is_there(self) -> None:
        if hasattr(self, "session"):
            self.check_batches(self.session)

    def check_batches(self, session: Session) -> None:
        for path, places in PLACES.items():
            self.check(session, path, places)
            assert session.chunk_count(path) == sum(key[0] == path for key in self.model)

    def check(self, session: Session, path: str, places: list[Coords]) -> None:
        coords = np.array(places, dtype=np.int64).reshape(len(places), len(GRIDS[path]))
        found: dict[Coords, bytes] = {}
        for part in session.read_chunks(path, coords):
            for at, row in enumerate(part.rows.tolist()):
                assert places[row] not in found
                found[places[row]] = bytes(part.segments.piece(at))
        wanted = ((place, self.model.get((path, place))) for place in places)
        assert found == {place: data for place, data in wanted if data is not None}


def test_chunks_agree_with_a_dictionary() -> None:  # R0-62, R2-01
    run_state_machine_as_test(Chunks)
