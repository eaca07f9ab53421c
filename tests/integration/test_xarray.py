"""xarray objects through sessions: `to_icefloe`, and plain `to_zarr` and `open_zarr`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from icefloe.xarray import to_icechunk, to_icefloe
from tests.builders import new_repository, read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe

# Zarr warns of data types whose names are not final; xarray stores strings with one of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return new_repository(tmp_path / "repository")


def climate(first_day: int = 0, days: int = 10) -> xr.Dataset:
    """Temperatures with all that a climate dataset has: times, units, masks, packed values."""
    rng = np.random.default_rng(first_day)
    time = pd.date_range("2000-01-01", periods=first_day + days, freq="D")[first_day:]
    temperature = rng.normal(280, 10, (days, 4, 6)).round(2)
    temperature[0, 0, :] = np.nan
    return xr.Dataset(
        {
            "temperature": (
                ("time", "lat", "lon"),
                temperature,
                {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: mean"},
            ),
            "rain": (("time", "lat", "lon"), rng.random((days, 4, 6)).astype("f4")),
            "mask": (("lat", "lon"), rng.random((4, 6)) > 0.5),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        coords={
            "time": ("time", time, {"long_name": "day"}),
            "lat": ("lat", np.linspace(-45, 45, 4), {"units": "degrees_north", "axis": "Y"}),
            "lon": ("lon", np.linspace(0, 300, 6), {"units": "degrees_east", "axis": "X"}),
            "station": ("lat", ["a", "bb", "ccc", "é"]),
        },
        attrs={"Conventions": "CF-1.8", "title": "a test", "levels": [1, 2, 3]},
    )


ENCODING: dict[str, dict[str, Any]] = {
    "temperature": {
        "dtype": "int16",
        "scale_factor": 0.01,
        "add_offset": 280.0,
        "_FillValue": -32768,
    },
    "time": {"units": "hours since 1990-01-01", "calendar": "gregorian", "dtype": "int64"},
}


def reopen(repository: icefloe.Repository, **kwargs: Any) -> xr.Dataset:
    return read_dataset(repository, **kwargs)


def write(obj: xr.DataArray | xr.Dataset, repository: icefloe.Repository, **kwargs: Any) -> None:
    session = repository.writable_session("main")
    to_icefloe(obj, session, **kwargs)
    session.commit("written")


@pytest.mark.parametrize("chunks", [None, {"time": 3, "lat": 2}], ids=["memory", "dask"])
def test_round_trip(
    repository: icefloe.Repository, chunks: dict[str, int] | None
) -> None:  # R0-01, R0-02
    dataset = climate() if chunks is None else climate().chunk(chunks)
    write(dataset, repository)
    again = reopen(repository)
    xr.testing.assert_identical(again.load(), climate())
    assert next(iter(repository.ancestry(branch="main"))).message == "written"


@pytest.mark.parametrize("chunks", [None, {"time": 5}], ids=["memory", "dask"])
def test_encodings_times_and_attributes_survive(
    repository: icefloe.Repository, chunks: dict[str, int] | None
) -> None:
    dataset = climate() if chunks is None else climate().chunk(chunks)
    write(dataset, repository, encoding=ENCODING)
    again = reopen(repository)
    for name, encoding in ENCODING.items():
        expected = {k: v for k, v in encoding.items() if k not in ("dtype", "calendar")}
        assert {key: again[name].encoding[key] for key in expected} == expected
        assert again[name].encoding["dtype"] == np.dtype(encoding["dtype"])
    assert again.time.encoding["calendar"] in ("gregorian", "standard", "proleptic_gregorian")
    assert again.temperature.attrs == climate().temperature.attrs
    assert again.attrs == climate().attrs
    xr.testing.assert_allclose(again, climate())
    assert np.isnan(again.temperature[0, 0]).all()
    raw = reopen(repository, decode_cf=False)
    assert raw.temperature.dtype == "int16"
    assert raw.temperature.attrs["units"] == "K"
    assert raw.time.attrs["units"] == "hours since 1990-01-01"


@pytest.mark.parametrize("chunks", [None, {"time": 5}], ids=["memory", "dask"])
def test_appending(repository: icefloe.Repository, chunks: dict[str, int] | None) -> None:
    whole = climate(0, 30)
    parts = [whole.isel(time=slice(start, start + 10)) for start in (0, 10, 20)]
    write(
        parts[0], repository, encoding={n: {"chunks": (5, 4, 6)} for n in ("temperature", "rain")}
    )
    for part in parts[1:]:
        new = part.drop_vars(["mask", "crs", "station"])
        write(new if chunks is None else new.chunk(chunks), repository, append_dim="time")
    again = reopen(repository)
    xr.testing.assert_identical(again.load(), whole)
    assert len(list(repository.ancestry(branch="main"))) == 4
    before = repository.readonly_session(snapshot_id=list(repository.ancestry(branch="main"))[2].id)
    old = read_dataset(before)
    xr.testing.assert_identical(old.load(), parts[0])


@pytest.mark.parametrize("chunks", [None, {"time": 5}], ids=["memory", "dask"])
@pytest.mark.parametrize("region", ["explicit", "auto", "mixed"])
def test_regions(
    repository: icefloe.Repository, chunks: dict[str, int] | None, region: str
) -> None:
    whole = climate(0, 20)
    write(whole.chunk({"time": 5}), repository)
    patch = whole[["temperature", "rain"]].isel(time=slice(5, 15)) * 0 + 7
    expected = whole.copy(deep=True)
    for name in ("temperature", "rain"):
        expected[name][5:15] = patch[name]
    where = {
        "explicit": {"time": slice(5, 15)},
        "auto": "auto",
        "mixed": {"time": "auto"},
    }[region]
    if region == "explicit":
        patch = patch.drop_vars(["lat", "lon", "station", "time"])
    elif region == "mixed":
        patch = patch.drop_vars(["lat", "lon", "station"])
    else:
        patch = patch.drop_vars("station")
    write(patch if chunks is None else patch.chunk(chunks), repository, region=where)
    again = reopen(repository).load()
    for name in ("temperature", "rain"):
        np.testing.assert_array_equal(again[name].values, expected[name].values)
    xr.testing.assert_identical(again.drop_vars(["temperature", "rain"]),
                                whole.drop_vars(["temperature", "rain"]))  # fmt: skip


def test_groups(repository: icefloe.Repository) -> None:
    write(climate(), repository, group="model/a")
    write(climate(5), repository, group="model/b", mode="w")
    xr.testing.assert_identical(reopen(repository, group="model/a").load(), climate())
    xr.testing.assert_identical(reopen(repository, group="model/b").load(), climate(5))


def test_modes(repository: icefloe.Repository) -> None:
    write(climate(), repository)
    session = repository.writable_session("main")
    with pytest.raises(FileExistsError):
        to_icefloe(climate(), session)
    assert not session.has_uncommitted_changes
    write(climate(3)[["rain"]], repository, mode="w")
    assert list(reopen(repository).data_vars) == ["rain"]
    write(climate(3)[["temperature"]], repository, mode="a")
    xr.testing.assert_identical(
        reopen(repository)[["rain", "temperature"]].load(), climate(3)[["rain", "temperature"]]
    )
    changed = climate(3)[["rain"]] + 1
    write(changed.drop_vars("station"), repository, mode="r+")
    xr.testing.assert_identical(reopen(repository).rain.load().drop_vars("station"),
                                changed.rain.drop_vars("station"))  # fmt: skip
    more = climate(3).isel(time=slice(0, 5)).assign_coords(time=climate(13, 5).time)
    write(more[["rain", "temperature"]], repository, mode="a-", append_dim="time")
    assert reopen(repository).sizes["time"] == 15


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mode": "x"}, "mode is"),
        ({"mode": "r"}, "mode is"),
        ({"mode": "w", "append_dim": "time"}, "append_dim needs mode"),
        ({"mode": "w-", "region": {"time": slice(0, 1)}}, "region needs mode"),
    ],
)
def test_arguments_that_do_not_fit(
    repository: icefloe.Repository, kwargs: dict[str, Any], message: str
) -> None:
    session = repository.writable_session("main")
    with pytest.raises(ValueError, match=message):
        to_icefloe(climate(), session, **kwargs)
    assert not session.has_uncommitted_changes


def test_encoding_of_existing_variables_is_refused(repository: icefloe.Repository) -> None:
    write(climate(), repository)
    with pytest.raises(ValueError, match="already exists, but encoding was provided"):
        write(climate(), repository, mode="a", encoding=ENCODING)


def test_names_must_be_strings(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    with pytest.raises(ValueError, match="non-empty strings"):
        to_icefloe(xr.Dataset({5: ("x", [1, 2])}), session)
    with pytest.raises(TypeError, match="DataArray or Dataset"):
        to_icefloe(np.ones(3), session)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, "rain", "lat", "time"])
@pytest.mark.parametrize("chunks", [None, {"time": 5}], ids=["memory", "dask"])
def test_data_arrays(
    repository: icefloe.Repository, name: str | None, chunks: dict[str, int] | None
) -> None:
    array = climate().rain.drop_vars("station").rename(name)
    write(array if chunks is None else array.chunk(chunks), repository)
    dataset = reopen(repository)
    stored = dataset[name if name == "rain" else "__xarray_dataarray_variable__"]
    np.testing.assert_array_equal(stored.values, array.values)
    assert dataset.attrs == ({"__xarray_dataarray_name__": name} if name in ("lat", "time") else {})


def test_a_session_with_uncommitted_changes_takes_dask_arrays(
    repository: icefloe.Repository,
) -> None:
    session = repository.writable_session("main")
    to_icefloe(climate()[["rain"]], session)
    to_icefloe(climate()[["mask"]], session, mode="a")
    to_icefloe(climate()[["temperature"]].chunk({"time": 2}), session, mode="a")
    session.commit("three variables, one of them by tasks")
    names = ["mask", "rain", "temperature"]
    xr.testing.assert_identical(reopen(repository).load()[names], climate()[names])


def test_unsafe_chunks_are_refused(repository: icefloe.Repository) -> None:
    dataset = climate()[["rain"]].chunk({"time": 3})
    session = repository.writable_session("main")
    with pytest.raises(ValueError, match="chunks"):
        to_icefloe(dataset, session, encoding={"rain": {"chunks": (4, 4, 6)}})
    write(dataset, repository, encoding={"rain": {"chunks": (4, 4, 6)}}, align_chunks=True)
    xr.testing.assert_identical(reopen(repository).load(), climate()[["rain"]])


def test_chunks_and_shards_as_encoded(repository: icefloe.Repository) -> None:
    write(climate(0, 8), repository,
          encoding={"rain": {"chunks": (2, 2, 3), "shards": (4, 4, 6)}})  # fmt: skip
    store = repository.readonly_session("main").store
    assert len([key for key in store.list() if key.startswith("rain/c/")]) == 2
    again = reopen(repository)
    assert again.rain.encoding["chunks"] == (2, 2, 3)
    xr.testing.assert_identical(again.load(), climate(0, 8))


def test_cftime_calendars(repository: icefloe.Repository) -> None:
    time = xr.date_range("2000-02-25", periods=10, calendar="360_day", use_cftime=True)
    dataset = xr.Dataset({"x": ("time", np.arange(10))}, coords={"time": time})
    write(dataset, repository)
    again = reopen(repository)
    assert again.time.dt.calendar == "360_day"
    xr.testing.assert_identical(again.load(), dataset)


@pytest.mark.parametrize("chunks", [None, {}], ids=["memory", "dask"])
def test_empty_and_scalar_variables(
    repository: icefloe.Repository, chunks: dict[str, Any] | None
) -> None:
    dataset = xr.Dataset({"empty": (("t", "x"), np.zeros((0, 3))), "scalar": ((), 5.0)})
    write(dataset if chunks is None else dataset.chunk(chunks), repository)
    again = reopen(repository)
    assert again["empty"].shape == (0, 3)
    assert float(again["scalar"]) == 5.0
    write(xr.Dataset({"empty": (("t", "x"), np.ones((2, 3)))}), repository, append_dim="t")
    np.testing.assert_array_equal(reopen(repository)["empty"].values, np.ones((2, 3)))


def test_plain_to_zarr_and_open_zarr(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    climate(0, 10).to_zarr(session.store, consolidated=False, zarr_format=3, encoding=ENCODING)
    session.commit("with xarray alone")
    session = repository.writable_session("main")
    more = climate(10, 5).drop_vars(["mask", "crs", "station"])
    more.to_zarr(session.store, append_dim="time", consolidated=False)
    part = (climate(0, 2)[["rain"]] * 0).drop_vars(["lat", "lon", "station", "time"])
    part.to_zarr(session.store, region={"time": slice(0, 2)}, consolidated=False)
    session.commit("appended")
    again = reopen(repository)
    assert again.sizes["time"] == 15
    assert (again.rain[:2] == 0).all()
    np.testing.assert_array_equal(again.rain[2:10].values, climate(0, 10).rain[2:].values)
    np.testing.assert_array_equal(again.rain[10:].values, climate(10, 5).rain.values)
    eager = xr.open_dataset(
        repository.readonly_session("main").store,  # type: ignore[arg-type]
        engine="zarr",
        consolidated=False,
    )
    xr.testing.assert_identical(eager.load(), again.load())


def test_plain_to_zarr_with_dask_threads(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    climate().chunk({"time": 2}).to_zarr(session.store, consolidated=False)
    session.commit("threads share the session")
    xr.testing.assert_identical(reopen(repository).load(), climate())


def test_data_trees(repository: icefloe.Repository) -> None:
    nodes = {"/one": climate(), "/two/deep": climate(0, 3)[["rain"]]}
    tree = xr.DataTree.from_dict(nodes)
    session = repository.writable_session("main")
    tree.to_zarr(session.store, consolidated=False)
    session.commit("a tree")
    again = xr.open_datatree(
        repository.readonly_session("main").store,  # type: ignore[arg-type]
        engine="zarr",
        consolidated=False,
    )
    assert sorted(again.groups) == ["/", "/one", "/two", "/two/deep"]
    for path, dataset in nodes.items():
        xr.testing.assert_identical(again[path].to_dataset().load(), dataset)


def test_consolidated_metadata_is_not_needed(repository: icefloe.Repository) -> None:
    write(climate(), repository)
    store = repository.readonly_session("main").store
    xr.testing.assert_identical(xr.open_zarr(store).load(), climate())


def test_time_travel(repository: icefloe.Repository) -> None:  # R3-07, R1-03
    write(climate(), repository)
    repository.create_tag("v1", repository.lookup_branch("main"))
    write(climate(4), repository, mode="w")
    old = xr.open_zarr(repository.readonly_session(tag="v1").store, consolidated=False)
    xr.testing.assert_identical(old.load(), climate())
    xr.testing.assert_identical(reopen(repository).load(), climate(4))


def test_the_official_name() -> None:
    assert to_icechunk is to_icefloe


@pytest.mark.parametrize("chunks", [None, {"time": 5}])
def test_a_store_stands_for_its_session(
    repository: icefloe.Repository, chunks: dict[str, int] | None
) -> None:
    data = climate()[["rain"]]
    session = repository.writable_session("main")
    to_icefloe(
        data if chunks is None else data.chunk(chunks),
        session.store,
        encoding={"rain": {"chunks": (5, 4, 6)}},
    )
    session.commit("written")
    xr.testing.assert_identical(reopen(repository).load(), data)


def test_what_is_no_session_is_refused(repository: icefloe.Repository) -> None:
    with pytest.raises(TypeError, match="writable session or its store, found a Repository"):
        to_icefloe(climate(), repository)  # type: ignore[arg-type]


def test_data_in_memory_can_be_written_to_a_fork(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork = session.fork()
    to_icefloe(climate(), fork.store)
    session.merge(fork)
    session.commit("written")
    xr.testing.assert_identical(reopen(repository).load(), climate())
