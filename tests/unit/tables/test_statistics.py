"""Statistics of chunks prune, and never wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.tables.decoding import Reading
from icefloe.tables.schema import read_variables
from icefloe.tables.statistics import read_entries
from icefloe.tables.summarize import Summaries, WrittenStatistics
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan


def keep_statistics(session: icefloe.Session, name: str = "v") -> None:
    path = f"/{name}"
    summaries = Summaries(session, [path])
    summaries.add_chunks(path, session.tree.chunk_coords(path))
    statistics = WrittenStatistics(session)
    statistics.add_own(summaries)
    statistics.write()


def make(data: np.ndarray, chunks: tuple[int, ...], **arguments: Any) -> icefloe.Repository:
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=arguments.pop("inline", 0))
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    dims = [f"d{axis}" for axis in range(data.ndim)]
    group = zarr.create_group(session.store)
    array = group.create_array(
        "v", shape=data.shape, chunks=chunks, dtype=data.dtype, dimension_names=dims, **arguments
    )
    array[...] = data
    session.commit("data")
    return repo


def tasks(session: icefloe.Session, where: str, **request: Any) -> int:
    scan = Scan(session, ScanRequest(where=where, task_bytes=1, **request))
    return sum(len(boxes) for boxes in scan.splits())


def cells(session: icefloe.Session, where: str, **request: Any) -> list[Any]:
    scan = Scan(session, ScanRequest(where=where, **request))
    batches = [b for boxes in scan.splits() for b in scan.read(boxes)]
    table = pa.Table.from_batches(batches, schema=scan.schema)
    return sorted(map(tuple, (row.values() for row in table.to_pylist())), key=str)


@pytest.mark.parametrize("inline", [0, 4096])
def test_chunks_without_a_wanted_cell_are_not_read(inline: int) -> None:
    repo = make(np.arange(100.0), (10,), inline=inline)
    session = repo.writable_session("main")
    assert tasks(session, "v > 72") == 10
    whole = cells(session, "v > 72")
    keep_statistics(session)
    session.commit("statistics")
    reader = repo.readonly_session("main")
    scan = Scan(reader, ScanRequest(where="v > 72"))
    read = sum(int((b[:, 0, 1] - b[:, 0, 0]).sum()) for b in scan.splits())
    assert read == 30
    assert cells(reader, "v > 72") == whole
    assert tasks(reader, "v > 1000") == 0
    assert tasks(reader, "v is null") == 0
    assert tasks(reader, "v = 55 or d0 = 3") == 2
    assert cells(reader, "v > 1000", use_statistics=False) == []


def test_a_chunk_written_later_is_read_again() -> None:
    repo = make(np.arange(100.0), (10,))
    session = repo.writable_session("main")
    keep_statistics(session)
    session.commit("statistics")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="v", mode="r+")[5] = 1000.0
    assert cells(session, "v > 500") == [(5, 1000.0)]
    session.commit("later")
    reader = repo.readonly_session("main")
    assert cells(reader, "v > 500") == [(5, 1000.0)]
    _, current = read_entries(reader, read_variables(reader)["v"])
    assert current.tolist() == [False] + [True] * 9


def test_cells_that_come_into_view_are_seen() -> None:
    repo = make(np.array([5.0] * 9), (4,), fill_value=1000.0)
    session = repo.writable_session("main")
    keep_statistics(session)
    zarr.open_array(session.store, path="v", mode="r+").resize((12,))
    session.commit("longer")
    found = cells(repo.readonly_session("main"), "v > 500")
    assert sorted(row[0] for row in found) == [9, 10, 11]


def test_attributes_that_change_what_values_mean() -> None:
    repo = make(np.arange(20, dtype="i2"), (5,))
    session = repo.writable_session("main")
    keep_statistics(session)
    session.commit("statistics")
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="v", mode="r+")
    array.attrs["scale_factor"] = -2.0
    assert [row[1] for row in cells(session, "v <= -36")] == [-36.0, -38.0]
    assert tasks(session, "v <= -36") == 1
    array.attrs["_FillValue"] = 19
    assert cells(session, "v <= -36") == [(18, -36.0)]


def test_moved_arrays_keep_their_statistics() -> None:
    repo = make(np.arange(100.0), (10,))
    session = repo.writable_session("main")
    keep_statistics(session)
    session.commit("statistics")
    session = repo.writable_session("main")
    session.move("/v", "/w")
    session.commit("moved")
    assert tasks(repo.readonly_session("main"), "w > 1000") == 0


def test_uninitialised_chunks_and_nan() -> None:
    data = np.full(30, np.nan)
    data[3] = 7.0
    repo = make(data, (10,), fill_value=np.nan)
    session = repo.writable_session("main")
    keep_statistics(session)
    session.commit("statistics")
    reader = repo.readonly_session("main")
    assert [row[0] for row in cells(reader, "v > 0")] == [3]
    assert len(cells(reader, "v is null")) == 29
    kept = Reading(nan_is_null=False)
    assert len(cells(reader, "v > 8", reading=kept)) == 29  # Spark: NaN is larger than all


@given(st.data())
def test_pruned_answers_are_the_answers(data: Any) -> None:
    shape = [data.draw(st.integers(1, 9)) for _ in range(data.draw(st.integers(1, 2)))]
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    dtype = data.draw(st.sampled_from(["i1", "u2", "f4", "i8", "u8"]))
    low = 0 if dtype[0] == "u" else -9
    size = int(np.prod(shape))
    values = data.draw(st.lists(st.integers(low, 9), min_size=size, max_size=size))
    repo = make(np.array(values, dtype=dtype).reshape(shape), chunks)
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="v", mode="r+")
    if dtype[1] != "8" and data.draw(st.booleans()):
        array.attrs["scale_factor"] = data.draw(st.sampled_from([0.5, -0.5]))
        array.attrs["_FillValue"] = "NaN" if dtype[0] == "f" else 3
    keep_statistics(session)
    session.commit("statistics", allow_empty=True)
    session = repo.writable_session("main")
    for _ in range(data.draw(st.integers(0, 2))):
        place = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
        zarr.open_array(session.store, path="v", mode="r+")[place] = data.draw(st.integers(low, 9))
    number = data.draw(st.sampled_from(["-3", "0", "2.5", "4"]))
    operator = data.draw(st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]))
    where = data.draw(
        st.sampled_from(
            [
                f"v {operator} {number}",
                f"not (v {operator} {number} and d0 > 2)",
                f"v is null or v {operator} {number}",
                f"v in (1, {number}) and v is not null",
            ]
        )
    )
    assert cells(session, where) == cells(session, where, use_statistics=False)
