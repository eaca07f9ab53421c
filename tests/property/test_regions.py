"""Regions and the pipeline against Zarr on a memory store, and against numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.storage import MemoryStore

import icefloe
from icefloe.zarr_store.pipeline import StorePipeline
from tests.property.region_arrays import ArrayKind, assert_same, kinds, selections, values

if TYPE_CHECKING:
    from icefloe.session import Session

# Zarr warns of data types that its specification does not have yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")


def new_session() -> tuple[icefloe.Repository, Session]:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    return repository, repository.writable_session("main")


def stored_chunks(store: Any) -> Any:
    keys = (key.split("/") for key in store._store_dict)
    return {tuple(map(int, key[2:])) for key in keys if key[:2] == ["a", "c"]}


def our_chunks(session: Session) -> Any:
    return {tuple(row) for row in session.tree.chunk_coords("/a").tolist()}


@given(st.data())
def test_regions_are_what_zarr_and_numpy_say(data: st.DataObject) -> None:
    kind = data.draw(kinds())
    memory = MemoryStore()
    theirs = kind.make(memory)
    repository, session = new_session()
    kind.make(session.store)
    model = np.full(kind.shape, theirs.fill_value, dtype=np.dtype(kind.dtype))

    for _ in range(data.draw(st.integers(0, 3))):
        selection = data.draw(selections(kind.shape, backwards=False))
        given_values = data.draw(values(kind, model[selection].shape))
        model[selection] = given_values
        theirs[selection] = given_values
        keep = kind.write_empty_chunks
        session.write_region("a", selection, given_values, write_empty_chunks=keep)
        assert our_chunks(session) == stored_chunks(memory)
    if data.draw(st.booleans()) and session.has_uncommitted_changes:
        session.commit("written")
        session = repository.readonly_session("main")

    assert_same(session.read_region("a"), theirs[...])
    assert_same(session.read_region("/a", ...), model)
    for _ in range(3):
        selection = data.draw(selections(kind.shape))
        expected = model[selection]
        assert_same(session.read_region("a", selection), expected)
        out = np.zeros(expected.shape, model.dtype, order="F")
        assert session.read_region("a", selection, out) is out
        assert_same(out, expected)


@given(st.data())
def test_backward_and_broadcast_writes_are_what_numpy_says(data: st.DataObject) -> None:
    kind = data.draw(kinds())
    _, session = new_session()
    array = kind.make(session.store)
    model = np.full(kind.shape, array.fill_value, dtype=np.dtype(kind.dtype))
    selection = data.draw(selections(kind.shape))
    given_values = data.draw(values(kind, model[selection].shape))
    if given_values.ndim and data.draw(st.booleans()):
        given_values = given_values[:1]
    model[selection] = given_values
    session.write_region("a", selection, given_values)
    assert_same(session.read_region("a"), model)
    assert_same(array[...], model)


@given(st.data())
def test_arrays_of_zarr_are_what_they_are_on_a_memory_store(data: st.DataObject) -> None:
    kind = data.draw(kinds())
    memory = MemoryStore()
    repository, session = new_session()
    arrays = [kind.make(memory), kind.make(session.store)]
    assert isinstance(arrays[1]._async_array.codec_pipeline, StorePipeline)

    for _ in range(data.draw(st.integers(0, 3))):
        selection = data.draw(selections(kind.shape, backwards=False))
        shape = np.empty(kind.shape, bool)[selection].shape
        given_values = data.draw(values(kind, shape))
        for array in arrays:
            array[selection] = given_values
        assert our_chunks(session) == stored_chunks(memory)
        assert array[...].flags.f_contiguous == arrays[0][...].flags.f_contiguous
    if 0 not in kind.shape and kind.shape:
        write_fancily(data, kind, arrays)
        assert our_chunks(session) == stored_chunks(memory)
    if data.draw(st.booleans()) and session.has_uncommitted_changes:
        session.commit("written")
        store = repository.readonly_session("main").store
        arrays = [arrays[0], zarr.open_array(store, path="a", mode="r")]

    assert_same(arrays[1][...], arrays[0][...])
    for _ in range(2):
        selection = data.draw(selections(kind.shape, backwards=False))
        assert_same(arrays[1][selection], arrays[0][selection])
    if 0 not in kind.shape and kind.shape:
        read_fancily(data, kind, arrays)


def indices(data: st.DataObject, size: int) -> Any:
    return data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4, unique=True))


def write_fancily(data: st.DataObject, kind: ArrayKind, arrays: Any) -> None:
    if np.dtype(kind.dtype).names is not None or kind.shards is not None:
        return  # Zarr 3.1 itself fails to write some of these
    first = sorted(indices(data, kind.shape[0]))
    shape = (len(first), *kind.shape[1:])
    given_values = data.draw(values(kind, shape))
    points = tuple(
        np.array([data.draw(st.integers(0, s - 1)) for _ in range(2)]) for s in kind.shape
    )
    for array in arrays:
        array.oindex[(first, *(slice(None),) * (len(kind.shape) - 1))] = given_values
        array.vindex[points] = given_values.reshape(-1)[0]


def read_fancily(data: st.DataObject, kind: ArrayKind, arrays: Any) -> None:
    rest = (slice(None),) * (len(kind.shape) - 1)
    first = indices(data, kind.shape[0])
    chosen = sorted(first)
    assert_same(arrays[1].oindex[(chosen, *rest)], arrays[0].oindex[(chosen, *rest)])
    mixed = (chosen, *(0,) * len(rest))
    assert_same(arrays[1].oindex[mixed], arrays[0].oindex[mixed])
    points = tuple(np.array([data.draw(st.integers(0, s - 1)) for _ in first]) for s in kind.shape)
    assert_same(arrays[1].vindex[points], arrays[0].vindex[points])
    mask = np.random.default_rng(len(first)).random(kind.shape) < 0.5
    assert_same(arrays[1].vindex[mask], arrays[0].vindex[mask])
