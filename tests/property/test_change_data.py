"""Change data against a model: the changes of a table turn what it was into what it is."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.tables.change_data import (
    AFTER,
    BEFORE,
    CHANGE_TYPE,
    DELETE,
    INSERT,
    SNAPSHOT,
    ChangeScan,
    check_change_request,
)
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan
from tests.builders import new_repository

if TYPE_CHECKING:
    import icefloe

Cells = dict[tuple[Any, ...], tuple[Any, ...]]
NAMES = ("time", "x", "v", "w")


@st.composite
def tables(draw: st.DrawFn) -> xr.Dataset:
    """Cells of two variables, some of them missing."""
    sizes = draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    first = draw(st.sampled_from([0, 0, 0, 1]))  # a table whose coordinates are other ones
    numbers = st.sampled_from([np.nan, 1.0, 2.0])
    values = {
        name: (
            ("time", "x"),
            np.array(draw(st.lists(numbers, min_size=20, max_size=20)))[: sizes[0] * sizes[1]]
            .reshape(sizes)
            .astype("f4"),
        )
        for name in ("v", "w")
    }
    coords = {"time": np.arange(first, first + sizes[0]), "x": np.arange(sizes[1]) * 10}
    return xr.Dataset(values, coords=coords)


def write(repo: icefloe.Repository, data: xr.Dataset) -> str:
    """Make the arrays what a dataset says, without writing chunks that stay."""
    session = repo.writable_session("main")
    encoding = {"v": {"chunks": (2, 3)}, "w": {"chunks": (2, 3)}}
    if session.get_node("/v") is None:
        data.to_zarr(session.store, mode="w", encoding=encoding, consolidated=False)
        return session.commit("first")
    root = zarr.open_group(session.store, mode="r+")
    for name in ("v", "w", "time", "x"):
        array, new = root[name], data[name].values
        assert isinstance(array, zarr.Array)
        array.resize(new.shape)
        old = array[...]
        for place in np.argwhere(~((old == new) | (np.isnan(old) & np.isnan(new)))):
            array[tuple(place)] = new[tuple(place)]
    return session.commit("next", allow_empty=True)


def cells(data: xr.Dataset | None) -> Cells:
    """The cells that exist, by coordinates."""
    if data is None:
        return {}
    rows = data.to_dataframe().reset_index()[list(NAMES)].itertuples(index=False)
    found = {(t, x): tuple(None if np.isnan(n) else n for n in (v, w)) for t, x, v, w in rows}
    return {place: values for place, values in found.items() if values != (None, None)}


def changes(scan: ChangeScan) -> list[dict[str, Any]]:
    return [
        row for boxes in scan.splits() for batch in scan.read(boxes) for row in batch.to_pylist()
    ]


def scan_of(repo: icefloe.Repository, snapshot_id: str) -> Scan:
    return Scan(repo.readonly_session(snapshot_id=snapshot_id), ScanRequest(task_bytes=1))


@given(st.lists(tables(), min_size=2, max_size=3))
def test_changes_turn_what_was_into_what_is(versions: list[xr.Dataset]) -> None:
    repo = new_repository()
    commits = [write(repo, data) for data in versions]
    for start, end in [(None, 0), (0, len(versions) - 1), *pairwise(range(len(versions)))]:
        before = None if start is None else scan_of(repo, commits[start])
        was = cells(None if start is None else versions[start])
        expected = cells(versions[end])
        found = changes(ChangeScan(before, scan_of(repo, commits[end]), NAMES))
        assert {row[SNAPSHOT] for row in found} <= {commits[end]}
        by_kind: dict[str, Cells] = {kind: {} for kind in (INSERT, BEFORE, AFTER, DELETE)}
        for row in found:
            place = (row["time"], row["x"])
            assert place not in by_kind[row[CHANGE_TYPE]]  # told once
            by_kind[row[CHANGE_TYPE]][place] = (row["v"], row["w"])
        assert by_kind[BEFORE].keys() == by_kind[AFTER].keys()
        gone = by_kind[DELETE] | by_kind[BEFORE]
        assert gone.items() <= was.items()
        left = {place: values for place, values in was.items() if place not in gone}
        new = by_kind[INSERT] | by_kind[AFTER]
        assert not left.keys() & new.keys()
        assert left | new == expected
        # No more is told than what differs, but for cells that moved to another chunk.
        if start is not None and (versions[start].time[0] == versions[end].time[0]).item():
            assert {p for p in gone | new if was.get(p) == expected.get(p)} == set()


def test_change_data_is_about_whole_tables() -> None:
    check_change_request(ScanRequest())
    with pytest.raises(InvalidInputError, match="'where' is not possible"):
        check_change_request(ScanRequest(where="v > 1"))
    with pytest.raises(InvalidInputError, match="'layout' is not possible"):
        check_change_request(ScanRequest(layout="lines"))
    repo = new_repository()
    data = xr.Dataset({"v": (("time",), [1.0])}, coords={"time": [0]})
    first = write_plain(repo, data)
    other = write_plain(repo, data.rename(time="hour"))
    with pytest.raises(InvalidInputError, match="had the dimensions time and has hour"):
        ChangeScan(scan_of(repo, first), scan_of(repo, other), ("v",))
    none = ChangeScan(None, scan_of(repo, other), ("hour",))
    with pytest.raises(InvalidInputError, match="needs a variable over all dimensions"):
        changes(none)


def write_plain(repo: icefloe.Repository, data: xr.Dataset) -> str:
    session = repo.writable_session("main")
    data.to_zarr(session.store, mode="w", consolidated=False)
    return session.commit("data")
