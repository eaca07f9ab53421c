"""Any table over random shapes and chunks has the cells that numpy says, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan
from tests import counting

if TYPE_CHECKING:
    import pyarrow as pa


@st.composite
def tables(draw: Any) -> tuple[np.ndarray, tuple[int, ...], dict[str, Any], int]:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    data = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    data[data % 5 == 3] = np.nan
    isel: dict[str, Any] = {}
    for axis, size in enumerate(shape):
        kind = draw(st.sampled_from(["all", "one", "slice", "some"]))
        if kind == "one":
            isel[f"d{axis}"] = draw(st.integers(-size, size - 1))
        elif kind == "slice":
            start, stop = draw(st.integers(0, size)), draw(st.integers(0, size))
            isel[f"d{axis}"] = slice(start, stop, draw(st.integers(1, 3)))
        elif kind == "some":
            isel[f"d{axis}"] = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
    return data, chunks, isel, draw(st.sampled_from([1, 16, 64, 4096]))


@given(tables(), st.sampled_from(["cells", "lines", "chunks"]), st.integers(1, 50))
def test_cells_are_those_of_numpy(
    table: tuple[np.ndarray, tuple[int, ...], dict[str, Any], int], layout: Any, threshold: int
) -> None:
    data, chunks, isel, task_bytes = table
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    dims = [f"d{axis}" for axis in range(data.ndim)]
    group = zarr.create_group(session.store)
    group.create_array(
        "v", shape=data.shape, chunks=chunks, dtype="f4", dimension_names=dims, fill_value=0
    )[...] = data
    condition = f"v < {threshold} and (d0 <> 2 or v is not null)" if layout == "cells" else None
    request = ScanRequest(
        isel=isel, where=condition, layout=layout, task_bytes=task_bytes, batch_rows=7
    )
    scan = Scan(session, request)
    found: dict[tuple[int, ...], float | None] = {}
    for boxes in scan.splits():
        for batch in scan.read(boxes):
            assert batch.schema == scan.schema
            for place, value in _cells(scan, batch):
                assert place not in found
                found[place] = value
    chosen = np.meshgrid(*(axis.numbers() for axis in scan.plan.axes), indexing="ij")
    wanted = {}
    for place in zip(*(c.ravel().tolist() for c in chosen), strict=True):
        value = None if np.isnan(data[place]) else float(data[place])
        if condition is None or (value is not None and value < threshold):
            wanted[place] = value
    assert found == wanted
    counting.count(counting.CELLS, len(wanted))


def _cells(scan: Scan, batch: pa.RecordBatch) -> Any:
    dims = scan.plan.table.dims
    for row in batch.to_pylist():
        if scan.plan.request.layout == "cells":
            yield tuple(row[d] for d in dims), row["v"]
            continue
        if scan.plan.request.layout == "chunks":
            places = np.meshgrid(*(row[d] for d in dims), indexing="ij")
            yield from zip(
                zip(*(p.ravel().tolist() for p in places), strict=True), row["v"], strict=True
            )
            continue
        outer = [row[d] for d in dims[: len(dims) - scan.plan.inner_dims]]
        for number, value in enumerate(row["v"]):
            at = np.unravel_index(number, row["_extent"])
            inner = [
                scan.plan.coordinates[d][int(start + p)].as_py()
                for d, start, p in zip(dims[len(outer) :], row["_start"], at, strict=True)
            ]
            yield (*outer, *inner), value
