"""Statistics made while chunks are written are those of the chunks as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs.numcodecs import FixedScaleOffset

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.tables.decoding import Reading, decoding_of
from icefloe.tables.schema import variable_of
from icefloe.tables.statistics import GROUP, bindings, read_entries, wanted_arrays
from icefloe.tables.summarize import Summaries, WrittenStatistics, is_exact, summarize_block

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
GENERATIONS = ("repository", "store", "dataset")


def plainly(chunk: np.ndarray, missing: list[float], unsigned: str | None = None) -> list[float]:
    """Smallest, largest and missing, value by value."""
    left, count = [], 0
    for stored in chunk.ravel():
        if stored != stored or any(stored == each for each in missing):
            count += 1
        else:
            left.append(float(stored if unsigned is None else stored.view(unsigned)))
    return [min(left), max(left), count] if left else [np.nan, np.nan, count]


@st.composite
def blocks(draw: Any) -> tuple[np.ndarray, tuple[int, ...], dict[str, Any]]:
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=3))
    chunks = tuple(draw(st.integers(1, 4)) for _ in shape)
    dtype = draw(st.sampled_from(["i1", "u2", ">i4", "f4", "f8", "f2", "?", "u8"]))
    size = int(np.prod(shape, dtype=int))
    some = st.integers(0, 1) if dtype == "?" else st.integers(0 if dtype[0] == "u" else -3, 3)
    values = np.array(draw(st.lists(some, min_size=size, max_size=size)), dtype=dtype)
    attributes: dict[str, Any] = {}
    if np.dtype(dtype).kind == "f":
        holes = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        values[np.array(holes, dtype=bool)] = np.nan
        if draw(st.booleans()):
            attributes["_FillValue"] = draw(st.sampled_from(["NaN", 2.0]))
    elif dtype != "?" and draw(st.booleans()):
        attributes |= {"_FillValue": 1, "missing_value": draw(st.sampled_from([1, 2]))}
        if dtype == "i1" and draw(st.booleans()):
            attributes["_Unsigned"] = "true"
    return values.reshape(shape), chunks, attributes


@given(blocks(), st.booleans())
def test_blocks_are_summarized_as_value_by_value(block: Any, nan_is_null: bool) -> None:
    values, chunks, attributes = block
    decoding = decoding_of(values.dtype, attributes, Reading(nan_is_null=nan_is_null))
    found = summarize_block(values, chunks, decoding)
    assert found is not None
    for place in np.ndindex(*found.shape[:-1]):
        part = tuple(slice(p * c, (p + 1) * c) for p, c in zip(place, chunks, strict=True))
        missing = [each for each in decoding.missing if each == each]
        expected = plainly(values[part], missing, decoding.unsigned)
        np.testing.assert_array_equal(found[place], expected)


@given(blocks())
def test_large_chunks_are_summarized_in_pieces(block: Any) -> None:
    values, chunks, attributes = block
    decoding = decoding_of(values.dtype, attributes)
    whole = summarize_block(values, chunks, decoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icefloe.tables.summarize._STEP_BYTES", 2 * values.itemsize)
        np.testing.assert_array_equal(summarize_block(values, chunks, decoding), whole)


def test_what_is_no_number_has_no_statistics() -> None:
    text = np.array(["a", "b"], dtype=object)
    assert summarize_block(text, (1,), decoding_of(text.dtype, {})) is None
    times = np.array([1, 2], dtype="M8[s]")
    assert summarize_block(times, (1,), decoding_of(times.dtype, {})) is None


def make(
    shape: Any, chunks: Any, generation: str = "repository", **more: Any
) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=more.pop("inline", 0))
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, generation=generation)
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    dims = [f"d{axis}" for axis in range(len(shape))]
    given = {"dtype": "i2", "dimension_names": dims, **more}
    group.create_array("v", shape=shape, chunks=chunks, **given)
    session.commit("empty")
    return repo


def looked_up(session: icefloe.Session) -> tuple[np.ndarray, np.ndarray]:
    found = read_entries(session, variable_of(session, "/v"))
    assert found is not None
    return found


def computed(repo: icefloe.Repository) -> tuple[np.ndarray, np.ndarray]:
    """What reading all chunks again gives."""
    session = repo.writable_session("main")
    session.tree.delete_node(GROUP)
    summaries = Summaries(session, ["/v"])
    summaries.add_chunks("/v", session.tree.chunk_coords("/v"))
    statistics = WrittenStatistics(session)
    statistics.add_own(summaries)
    statistics.write()
    return looked_up(session)


@given(st.data())
def test_they_equal_those_of_the_chunks_read_again(data: Any) -> None:
    rank = data.draw(st.integers(1, 2))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(rank))
    chunks = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
    more: dict[str, Any] = {"dtype": data.draw(st.sampled_from(["i2", "f4"]))}
    more["fill_value"] = data.draw(st.sampled_from([0, 3]))
    if data.draw(st.booleans()):
        more["attributes"] = {"_FillValue": 3, "scale_factor": 0.5, "add_offset": 1.0}
    if data.draw(st.booleans()):
        more["shards"] = tuple(2 * c for c in chunks)
    elif more["dtype"] == "f4" and data.draw(st.booleans()):
        more["filters"] = [FixedScaleOffset(offset=0, scale=1, dtype="<f4", astype="<i2")]
    repo = make(shape, chunks, inline=data.draw(st.sampled_from([0, 1000])), **more)
    for _ in range(data.draw(st.integers(1, 3))):
        session = repo.writable_session("main")
        statistics, summaries = WrittenStatistics(session), Summaries(session, ["/v"])
        for _ in range(data.draw(st.integers(1, 2))):
            ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
            region = tuple(slice(a, b) for a, b in ends)
            extent = tuple(b - a for a, b in ends)
            size = int(np.prod(extent))
            some = st.sampled_from([0, 1, 2.4, 3, -3])
            drawn = data.draw(st.lists(some, min_size=size, max_size=size))
            values = np.array(drawn).astype(more["dtype"]).reshape(extent)
            session.write_region("/v", region, values)
            summaries.add("/v", region, values)
        statistics.add_own(summaries)
        statistics.write()
        if session.has_uncommitted_changes:
            session.commit("more")
    reader = repo.readonly_session("main")
    if not len(reader.tree.chunk_coords("/v")):
        found = read_entries(reader, variable_of(reader, "/v"))
        assert found is None or not found[1].any()
        return
    numbers, current = looked_up(reader)
    expected, there = computed(repo)
    np.testing.assert_array_equal(current, there)
    np.testing.assert_array_equal(numbers[current], expected[there])
    assert current.sum() == len(reader.tree.chunk_coords("/v"))


def write_all(repo: icefloe.Repository, values: np.ndarray) -> None:
    session = repo.writable_session("main")
    statistics, summaries = WrittenStatistics(session), Summaries(session, ["/v"])
    region = tuple(slice(0, n) for n in values.shape)
    session.write_region("/v", region, values)
    summaries.add("/v", region, values)
    statistics.add_own(summaries)
    statistics.write()
    session.commit("values")


def test_codecs_that_lose_digits_are_known() -> None:
    repo = make((4,), (2,), dtype="f4", shards=(4,))
    assert is_exact(repo.readonly_session("main"), "/v")
    lossy = [FixedScaleOffset(offset=0, scale=1, dtype="<f4", astype="<i2")]
    repo = make((4,), (2,), dtype="f4", filters=lossy)
    assert not is_exact(repo.readonly_session("main"), "/v")
    write_all(repo, np.array([1.4, 2, 3, 4], dtype="f4"))
    numbers, _ = looked_up(repo.readonly_session("main"))
    assert numbers.tolist() == [[1, 2, 0], [3, 4, 0]]


def test_whole_chunks_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = make((10, 6), (3, 2))
    session = repo.writable_session("main")
    read = []
    whole = session.read_region
    monkeypatch.setattr(
        session, "read_region", lambda path, region: read.append(region) or whole(path, region)
    )
    summaries = Summaries(session, ["/v"])
    values = np.arange(60, dtype="i2").reshape(10, 6)
    session.write_region("/v", (slice(0, 10), slice(0, 6)), values)
    summaries.add("/v", (slice(0, 10), slice(0, 6)), values)
    assert read == []
    region = (slice(2, 10), slice(0, 6))
    session.write_region("/v", region, values[2:])
    summaries.add("/v", region, values[2:])
    assert read == [(slice(0, 3), slice(0, 6))]
    session.tree.settle_pending()
    entries = summaries.entries("/v", session.tree.chunk_table("/v"))
    assert len(entries.coords) == 12
    assert len(np.unique(entries.coords, axis=0)) == 12


@pytest.mark.parametrize("generation", GENERATIONS)
def test_arrays_made_in_the_same_commit_have_them_after_it(generation: str) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), generation=generation)
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("v", shape=(20,), chunks=(5,), dtype="f4")[:] = np.arange(20)
    statistics = WrittenStatistics(session)
    statistics.add_written(["/v"])
    statistics.write()
    session.commit("an array and what is known of it")
    numbers, current = looked_up(repo.readonly_session("main"))
    assert current.all()
    assert numbers[:, 1].tolist() == [4, 9, 14, 19]


def test_an_array_at_the_path_of_another_does_not_take_its_place() -> None:
    repo = make((20,), (5,))
    write_all(repo, np.arange(20, dtype="i2"))
    session = repo.writable_session("main")
    session.move("/v", "/w")
    zarr.open_group(session.store).create_array("v", shape=(20,), chunks=(5,), dtype="i2")
    session.commit("another")
    write_all(repo, np.arange(20, 40, dtype="i2"))
    session = repo.readonly_session("main")
    numbers, current = looked_up(session)
    assert current.all()
    assert numbers[0].tolist() == [20, 24, 0]
    moved = read_entries(session, variable_of(session, "/w"))
    assert moved is not None
    assert moved[1].all()
    assert moved[0][0].tolist() == [0, 4, 0]


def test_the_statistics_of_an_array_that_was_replaced_do_not_pile_up() -> None:
    repo = make((20,), (5,))
    write_all(repo, np.arange(20, dtype="i2"))
    session = repo.writable_session("main")
    group = zarr.open_group(session.store)
    group.create_array("v", shape=(20,), chunks=(4,), dtype="i2", overwrite=True)
    session.commit("other chunks")
    assert read_entries(session, variable_of(session, "/v")) is None
    write_all(repo, np.arange(20, dtype="i2"))
    session = repo.readonly_session("main")
    assert looked_up(session)[1].tolist() == [True] * 5
    assert len([p for p in session.tree.node_paths(GROUP) if p.count("/") == 2]) == 1


def test_both_writers_keep_what_they_found() -> None:
    repo = make((20,), (5,))
    one, two = repo.writable_session("main"), repo.writable_session("main")
    kept = []
    for session, half in ((one, slice(0, 10)), (two, slice(10, 20))):
        values = np.arange(half.start, half.stop, dtype="i2")
        session.write_region("/v", (half,), values)
        summaries = Summaries(session, ["/v"])
        summaries.add("/v", (half,), values)
        kept.append(WrittenStatistics(session))
        kept[-1].add_own(summaries)
        kept[-1].write()
    one.commit("first half")
    with pytest.raises(icefloe.ConflictError):
        two.commit("second half")
    kept[1].withdraw()
    two.rebase(icefloe.ConflictDetector())
    kept[1].write()
    two.commit("second half")
    numbers, current = looked_up(repo.readonly_session("main"))
    assert current.all()
    assert numbers[:, 0].tolist() == [0, 5, 10, 15]


def test_only_changes_below_a_path_are_discarded() -> None:
    repo = make((20,), (5,))
    write_all(repo, np.arange(20, dtype="i2"))
    session = repo.writable_session("main")
    group = zarr.open_group(session.store)
    group["v"][0] = 7
    session.tree.delete_node(GROUP)
    group.create_group(".statistics/new")
    group.create_group("other")
    session.discard_changes(GROUP)
    assert [p for p in session.tree.node_paths("/") if "new" in p] == []
    assert session.get_node("/other") is not None
    assert group["v"][0] == 7
    assert looked_up(session)[1].tolist() == [False, True, True, True]
    session.discard_changes("/v")
    assert group["v"][0] == 0
    assert looked_up(session)[1].all()
    session.discard_changes("/other")
    assert not session.has_uncommitted_changes


def test_files_with_wide_names_can_be_named() -> None:
    from icefloe.model.chunk_refs import ChunkRefs, NativeRef
    from icefloe.model.ids import ChunkFileId
    from icefloe.model.manifest import ArrayChunks

    ids = [ChunkFileId(bytes([n]) * 16) for n in (1, 2)] + [ChunkFileId(b"\1" * 12)]
    coords = np.array([[0], [1], [2]])
    table = ArrayChunks.from_columns(coords, ChunkRefs.of([NativeRef(i, 0, 5) for i in ids]))
    words = bindings(table, coords, (3,), (1,))
    assert (words != 0).any(axis=1).all()
    assert len(np.unique(words, axis=0)) == 3
    narrow = ArrayChunks.from_columns(coords[2:], ChunkRefs.of([NativeRef(ids[2], 0, 5)]))
    np.testing.assert_array_equal(bindings(narrow, coords[2:], (3,), (1,)), words[2:])


def test_which_arrays_are_wanted() -> None:
    repo = make((20,), (5,))
    session = repo.writable_session("main")
    group = zarr.open_group(session.store)
    group.create_array("g/one", shape=(5,), chunks=(5,), dtype="f4")
    group.create_array("g/text", shape=(5,), chunks=(1,), dtype=str)
    written = ["/v", "/g/one", "/g/text"]
    assert wanted_arrays(session, False, written) == ()
    assert wanted_arrays(session, True, written) == ("/v",)
    assert wanted_arrays(session, ["one"], written, "/g") == ("/g/one",)
    assert wanted_arrays(session, "/v", written, "/g") == ("/v",)
    for name in ("nothing", "g/text"):
        with pytest.raises(InvalidInputError, match=r"which are /g/one, /v"):
            wanted_arrays(session, [name], written)
