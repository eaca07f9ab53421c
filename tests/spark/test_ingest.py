"""Files brought into one group by Spark, by reference and as copies, compared with xarray."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import xarray as xr
from kerchunk.netCDF3 import NetCDF3ToZarr

import icefloe
from icefloe.errors import BrokenFilesError, InconsistentFilesError, InvalidInputError
from icefloe.ingest.sources import find_files
from icefloe.model.chunk_refs import ChunkKind
from icefloe.spark import ingest
from icefloe.virtual import ingested_files
from tests.builders import read_dataset, repository_beside_s3
from tests.virtual.files import by_xarray, grib_message, month_file, series_file, tiff_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def repo(tmp_path: Path, data: Path) -> icefloe.Repository:
    """A repository on disk, which workers reach, that may read the folder `data`."""
    config = icefloe.RepositoryConfig.default()
    prefix = f"{data.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(data)))
    )
    return icefloe.Repository.create(
        str(tmp_path / "repo"), config, authorize_virtual_chunk_access={prefix: None}
    )


def found_in(repo: icefloe.Repository, group: str | None = None) -> xr.Dataset:
    return read_dataset(repo, group).load()


def months(data: Path, *numbers: int, **settings: Any) -> list[Path]:
    return [
        month_file(data / f"{n:02d}.nc", n, days=3, variables=("t2m", "d2m"), **settings)
        for n in numbers
    ]


@pytest.mark.parametrize("mode", ["virtual", "copy"])
def test_months_grow_into_one_group(
    spark: SparkSession, repo: icefloe.Repository, data: Path, mode: Any
) -> None:
    files = months(data, 1, 3)
    chunks = {"time": 2} if mode == "copy" else None
    done = ingest(spark, repo, str(data / "*.nc"), mode=mode, chunks=chunks, message="first")
    assert [url.rpartition("/")[2] for url in done.new] == ["01.nc", "03.nc"]
    assert done.variables == ("d2m", "t2m")
    assert done.snapshot_id == repo.lookup_branch("main")
    xr.testing.assert_identical(found_in(repo), by_xarray(files))
    session = repo.readonly_session("main")
    virtual = session.chunk_count("/t2m", ChunkKind.VIRTUAL)
    assert virtual == (6 if mode == "virtual" else 0)
    assert found_in(repo).t2m.encoding["chunks"][0] == (1 if mode == "virtual" else 2)
    # The same again: nothing happens.
    again = ingest(spark, repo, str(data / "*.nc"), mode=mode)
    assert again.snapshot_id is None
    assert (len(again.unchanged), again.new, again.replaced) == (2, (), ())
    # One more at the end, and one that is late.
    files += months(data, 4, 2)
    done = ingest(spark, repo, f"{data}/", mode=mode)
    assert [url.rpartition("/")[2] for url in done.new] == ["02.nc", "04.nc"]
    assert len(done.unchanged) == 2
    xr.testing.assert_identical(found_in(repo), by_xarray(files))
    # One is corrected.
    months(data, 3, seed=99)
    os.utime(data / "03.nc", (1_900_000_000, 1_900_000_000))
    done = ingest(spark, repo, f"{data}/", mode=mode)
    assert [url.rpartition("/")[2] for url in done.replaced] == ["03.nc"]
    expected = by_xarray(files)
    xr.testing.assert_identical(found_in(repo), expected)
    assert "1 replaced, 3 unchanged" in str(done)
    table = ingested_files(repo.readonly_session("main"))
    assert len(table["url"]) == 5
    assert table["is_current"] == [True, False, True, True, True]
    assert set(table["mode"]) == {mode}
    assert table["size"][4] == (data / "03.nc").stat().st_size
    assert table["last_modified"][4] == 1_900_000_000
    assert table["variables"][0] == ("d2m", "lat", "lon", "t2m", "time")
    assert set(table["region"][0]) == {"time"}
    # The table belongs to its snapshot.
    first = list(repo.ancestry(branch="main"))[2]
    assert first.message == "first"
    old = repo.readonly_session(snapshot_id=first.id)
    assert len(ingested_files(old)["url"]) == 2


def test_broken_files_follow_the_policy(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    good = months(data, 1, 2)
    broken = months(data, 3)[0]
    whole = broken.read_bytes()
    broken.write_bytes(whole[:2000])
    tip = repo.lookup_branch("main")
    with pytest.raises(BrokenFilesError, match=r"03\.nc") as raised:
        ingest(spark, repo, f"{data}/")
    assert [each.url.rpartition("/")[2] for each in raised.value.files] == ["03.nc"]
    assert repo.lookup_branch("main") == tip
    done = ingest(spark, repo, f"{data}/", on_broken="skip")
    assert [(each.url.rpartition("/")[2], each.action) for each in done.broken] == [
        ("03.nc", "skipped")
    ]
    assert "skipped" in str(done)
    xr.testing.assert_identical(found_in(repo), by_xarray(good))
    # Skipped files are tried again; quarantined ones only when they have changed.
    done = ingest(spark, repo, f"{data}/", on_broken="quarantine")
    assert [each.action for each in done.broken] == ["quarantined"]
    table = ingested_files(repo.readonly_session("main"))
    assert table["state"] == ["ingested", "ingested", "quarantined"]
    assert "cannot be read as HDF5" in table["error"][2]
    tip = repo.lookup_branch("main")
    done = ingest(spark, repo, f"{data}/", on_broken="quarantine")
    assert "cannot be read as HDF5" in done.broken[0].reason
    assert repo.lookup_branch("main") == tip
    broken.write_bytes(whole)
    done = ingest(spark, repo, f"{data}/", on_broken="quarantine")
    assert (len(done.new), done.broken) == (1, ())
    xr.testing.assert_identical(found_in(repo), by_xarray([*good, broken]))


def test_inconsistent_files_are_reported_and_nothing_is_committed(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    months(data, 1)
    months(data, 2, chunks=(3, 3, 5))
    months(data, 3, dtype="i4")
    tip = repo.lookup_branch("main")
    with pytest.raises(InconsistentFilesError) as raised:
        ingest(spark, repo, f"{data}/")
    assert {(each.variable, each.what) for each in raised.value.differences} >= {
        ("t2m", "data type"),
        ("d2m", "data type"),
    }
    assert repo.lookup_branch("main") == tip
    # Chunks do not matter to copies; types do.
    with pytest.raises(InconsistentFilesError, match="data type"):
        ingest(spark, repo, f"{data}/", mode="copy")
    done = ingest(spark, repo, f"{data}/0[12].nc", mode="copy")
    assert len(done.new) == 2
    xr.testing.assert_identical(found_in(repo), by_xarray([data / "01.nc", data / "02.nc"]))


def test_decoded_copies_of_files_that_are_packed_in_other_ways(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    files = [
        *months(data, 1),
        *months(data, 2, attributes={"scale_factor": 0.5, "add_offset": 100.0}),
        *months(data, 3, file_format="NETCDF3_CLASSIC"),
    ]
    done = ingest(
        spark,
        repo,
        f"{data}/",
        mode="copy",
        decode=True,
        encoding={"t2m": {"chunks": {"time": 4, "lat": 2}, "compressors": None}},
    )
    assert done.variables == ("d2m", "t2m")
    found = found_in(repo)
    assert found.t2m.encoding["chunks"] == (4, 2, 5)
    assert "scale_factor" not in found.t2m.encoding
    expected = by_xarray(files)
    np.testing.assert_array_equal(found.t2m.values, expected.t2m.values)
    assert found.t2m.attrs == {"units": "K"}


@pytest.mark.parametrize("types", [("i2", "f4"), ("f4", "i2"), ("f4", "f8"), ("i2", "i4")])
def test_decoded_copies_of_packed_files_beside_files_of_floats(
    spark: SparkSession, repo: icefloe.Repository, data: Path, types: tuple[str, str]
) -> None:
    files = [*months(data, 1, dtype=types[0]), *months(data, 2, dtype=types[1])]
    with pytest.raises(InconsistentFilesError, match="decode=True"):
        ingest(spark, repo, f"{data}/", mode="copy")
    ingest(spark, repo, f"{data}/", mode="copy", decode=True)
    found, expected = found_in(repo), by_xarray(files)
    assert found.t2m.dtype == expected.t2m.dtype
    np.testing.assert_array_equal(found.t2m.values, expected.t2m.values)
    # What is there decides about later files: its type does not change.
    (narrow,) = months(data, 3, dtype="f4")
    (wide,) = months(data, 4, dtype="f8")
    if found.t2m.dtype == np.float64:
        ingest(spark, repo, f"{data}/", mode="copy", decode=True)
        np.testing.assert_array_equal(
            found_in(repo).t2m.values, by_xarray([*files, narrow, wide]).t2m.values
        )
    else:
        with pytest.raises(InconsistentFilesError, match="cannot hold float64 values"):
            ingest(spark, repo, f"{data}/", mode="copy", decode=True)


def test_files_that_references_cannot_describe_are_copied(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(4096), "u1").reshape(2, 2048)
    for number in (1, 0):
        with h5py.File(data / f"{number}.h5", "w") as file:
            file.create_dataset("v", data=noise[number], chunks=(2048,), compression="lzf")
    with pytest.raises(BrokenFilesError, match=r"filter lzf .* or copy the file"):
        ingest(spark, repo, f"{data}/")
    ingest(spark, repo, f"{data}/", mode="copy", file_coordinates={"run": r"/(\d)\.h5"})
    np.testing.assert_array_equal(found_in(repo).v.values, noise)


def test_series_whose_chunks_are_not_full(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    for start in (0, 10):
        series_file(data / f"{start:02d}.nc", start, 10)
    ingest(spark, repo, f"{data}/")
    np.testing.assert_array_equal(found_in(repo).v.values, np.arange(20))
    series_file(data / "20.nc", 20, 7)
    ingest(spark, repo, f"{data}/")
    np.testing.assert_array_equal(found_in(repo).v.values, np.arange(27))
    session = repo.readonly_session("main")
    assert session.chunk_count("/v", ChunkKind.VIRTUAL) == 3
    np.testing.assert_array_equal(session.read_region("/v"), np.arange(27))


def test_members_and_times_with_a_hole(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    files = {}
    for member in (0, 1):
        for month in (1, 2):
            if (member, month) != (1, 1):
                name = f"m{member}_{month}.nc"
                files[member, month] = month_file(data / name, month, seed=member + 10 * month)
    frame = spark.createDataFrame([(str(path),) for path in files.values()], "path string")
    for mode in ("virtual", "copy"):
        ingest(spark, repo, frame, mode=mode, group=mode, file_coordinates={"member": r"/m(\d)_"})
        found = found_in(repo, mode)
        assert found.t2m.shape == (2, 8, 3, 5)
        expected = by_xarray([files[0, 1], files[0, 2]])
        np.testing.assert_array_equal(found.t2m.sel(member=0).values, expected.t2m.values)
        with xr.open_dataset(files[1, 2], engine="netcdf4") as data_set:
            np.testing.assert_array_equal(found.t2m.sel(member=1)[4:].values, data_set.t2m.values)
        assert np.isnan(found.t2m.sel(member=1)[:4]).all()
    # The missing one arrives.
    late = month_file(data / "m1_1.nc", 1, seed=11)
    for mode in ("virtual", "copy"):
        done = ingest(
            spark,
            repo,
            [str(late)],
            mode=mode,  # type: ignore[arg-type]
            group=mode,
            file_coordinates={"member": r"/m(\d)_"},
        )
        assert len(done.new) == 1
        with xr.open_dataset(late, engine="netcdf4") as data_set:
            got = found_in(repo, mode).t2m.sel(member=1)[:4].values
            np.testing.assert_array_equal(got, data_set.t2m.values)


def test_a_late_file_tears_chunks_of_a_copy_apart(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    files = months(data, 1, 4)
    options: dict[str, Any] = {"mode": "copy", "chunks": {"time": 4, "lat": 2}}
    ingest(spark, repo, f"{data}/", **options)
    files += months(data, 2)
    extra = month_file(data / "03.nc", 3, days=2, variables=("d2m",))
    ingest(spark, repo, f"{data}/", **options)
    expected = by_xarray([*files, extra], compat="no_conflicts")
    xr.testing.assert_equal(found_in(repo), expected.transpose("time", "lat", "lon"))


def test_a_file_that_moved_leaves_no_references_to_what_it_was(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    months(data, 1)
    moving = month_file(data / "x.nc", 2, days=4)
    ingest(spark, repo, f"{data}/")
    month_file(data / "x.nc", 3, days=2, seed=5)
    os.utime(moving, (1_900_000_000, 1_900_000_000))
    done = ingest(spark, repo, f"{data}/")
    assert "files that were ingested before lie elsewhere now" in str(done)
    found = found_in(repo)
    assert found.sizes["time"] == 9
    assert np.isnan(found.t2m.values[3:7]).all()
    with xr.open_dataset(moving, engine="netcdf4") as expected:
        np.testing.assert_array_equal(found.t2m.values[7:], expected.t2m.values)
    assert repo.check_virtual_sources().is_fine


@pytest.mark.endpoint
def test_prefixes_on_s3(spark: SparkSession, tmp_path: Path, data: Path, s3_endpoint: Any) -> None:
    files = months(data, 1, 2)
    place = s3_endpoint.storage()
    for path in files:
        place.put(f"in/{path.name}", path.read_bytes())
    place.put("in/readme.txt", b"not data")
    prefix = place.location.partition("?")[0].rstrip("/") + "/in/"
    repo = repository_beside_s3(s3_endpoint, prefix, tmp_path / "s3repo")
    done = ingest(spark, repo, prefix, on_broken="skip")
    assert [each.url for each in done.broken] == [f"{prefix}readme.txt"]
    xr.testing.assert_identical(found_in(repo), by_xarray(files))
    again = ingest(spark, repo, f"{prefix}*.nc")
    assert (len(again.unchanged), again.snapshot_id) == (2, None)
    etags = ingested_files(repo.readonly_session("main"))["etag"]
    assert all(etags)


def test_other_formats(spark: SparkSession, repo: icefloe.Repository, data: Path) -> None:
    for step in (6, 0):
        (data / f"{step}.grib2").write_bytes(
            grib_message("t", step, 500) + grib_message("t", step, 850, missing=True)
        )
    for day in (2, 1):
        image = np.arange(1024, dtype="f4").reshape(32, 32) + day
        tiff_file(data / f"day{day}.tif", image)
    xr.Dataset({"v": ("x", np.arange(4.0))}, {"x": [0, 1, 2, 3]}).to_zarr(
        data / "a.zarr", consolidated=False
    )
    xr.Dataset({"v": ("x", np.arange(4.0) + 9)}, {"x": [4, 5, 6, 7]}).to_zarr(
        data / "b.zarr", consolidated=False
    )
    for mode in ("virtual", "copy"):
        ingest(spark, repo, str(data / "*.grib2"), mode=mode, group=f"{mode}/grib")
        found = found_in(repo, f"{mode}/grib")
        assert dict(found.t.sizes) == {
            "time": 2,
            "isobaricInhPa": 2,
            "latitude": 9,
            "longitude": 16,
        }
        assert float(found.t.sel(isobaricInhPa=500)[1, 0, 0]) == pytest.approx(211.0)
        assert int(np.isnan(found.t).sum()) == 2
        ingest(
            spark,
            repo,
            str(data / "day*.tif"),
            mode=mode,
            group=f"{mode}/tif",
            file_coordinates={"day": r"day(\d)"},
        )
        found = found_in(repo, f"{mode}/tif")
        np.testing.assert_array_equal(found.band_data[:, 0, 0], [1, 2])
        done = ingest(spark, repo, str(data / "*.zarr"), mode=mode, group=f"{mode}/zarr")
        assert len(done.new) == 2
        values = found_in(repo, f"{mode}/zarr").v.values.tolist()
        assert values == [0, 1, 2, 3, 9, 10, 11, 12]
        again = ingest(spark, repo, str(data / "*.zarr"), mode=mode, group=f"{mode}/zarr")
        assert again.snapshot_id is None


@pytest.mark.parametrize("mode", ["virtual", "copy"])
def test_grib_1_and_kerchunk_references(
    spark: SparkSession, repo: icefloe.Repository, data: Path, mode: Any
) -> None:
    for step in (6, 0):
        (data / f"{step}.grib").write_bytes(grib_message("t", step, 850, edition=1))
    ingest(spark, repo, str(data / "*.grib"), mode=mode, group="grib")
    found = found_in(repo, "grib").t
    assert dict(found.sizes) == {"time": 2, "isobaricInhPa": 1, "latitude": 9, "longitude": 16}
    # As the message was made: half a unit from point to point, its step and its level on top.
    expected = np.arange(144).reshape(9, 16) * 0.5 + 200 + 8.5
    np.testing.assert_allclose(found.values[:, 0], [expected, expected + 6], atol=0.01)

    files = months(data, 1, 2, file_format="NETCDF3_CLASSIC")
    for file in files:
        refs = NetCDF3ToZarr(str(file), inline_threshold=100).translate()
        for value in refs["refs"].values():
            if isinstance(value, list):
                value[0] = file.as_uri()
        file.with_suffix(".json").write_text(json.dumps(refs))
    ingest(spark, repo, str(data / "*.json"), mode=mode, group="kerchunk")
    ingest(spark, repo, files, mode=mode, group="files")
    xr.testing.assert_equal(found_in(repo, "kerchunk"), found_in(repo, "files"))


def test_dry_run_and_repeated_transactions(
    spark: SparkSession,
    repo: icefloe.Repository,
    data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    months(data, 1, 2)
    tip = repo.lookup_branch("main")
    ingest(spark, repo, f"{data}/", dry_run=True)
    printed = capsys.readouterr().out
    assert "ingest (virtual): /t2m, /d2m" in printed
    assert "2 to ingest, 0 unchanged, 0 broken" in printed
    assert repo.lookup_branch("main") == tip
    done = ingest(spark, repo, f"{data}/", txn_app_id="nightly", txn_version=1)
    assert not done.job.repeated
    months(data, 3)
    done = ingest(spark, repo, f"{data}/", txn_app_id="nightly", txn_version=1)
    assert done.job.repeated
    assert found_in(repo).sizes["time"] == 6


def test_arguments_are_checked(spark: SparkSession, repo: icefloe.Repository, data: Path) -> None:
    months(data, 1)
    for bad in ({"mode": "move"}, {"on_broken": "cry"}, {"compat": "maybe"}):
        with pytest.raises(InvalidInputError):
            ingest(spark, repo, f"{data}/", **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="no files were found"):
        ingest(spark, repo, str(data / "*.h5"))
    with pytest.raises(InvalidInputError, match="no virtual chunk container"):
        ingest(spark, repo, "/elsewhere/a.nc")
    with pytest.raises(InvalidInputError, match="has unknown"):
        ingest(spark, repo, f"{data}/", mode="copy", encoding={"t2m": {"zlib": True}})


def test_names_of_sources(repo: icefloe.Repository, data: Path) -> None:
    for name in ("a.nc", "b c.nc", "x/1.nc", "x/y/2.nc", "x/s.zarr/zarr.json", "x/s.zarr/v/c/0"):
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    sources = repo.readonly_session("main").tree.virtual_sources

    def names(given: Any) -> list[str]:
        base = f"{data.as_uri()}/"
        return [url.removeprefix(base) for url in find_files(given, sources)]

    assert names(str(data / "*.nc")) == ["a.nc", "b%20c.nc"]
    assert names(f"{data.as_uri()}/**/*.nc") == ["a.nc", "b%20c.nc", "x/1.nc", "x/y/2.nc"]
    assert names(str(data / "x" / "*.zarr")) == ["x/s.zarr"]
    assert names(f"{data}/x/") == ["x/1.nc", "x/s.zarr", "x/y/2.nc"]
    assert names([data / "a.nc", str(data / "x" / "?.nc")]) == ["a.nc", "x/1.nc"]
    assert names(str(data / "x" / "s.zarr")) == ["x/s.zarr"]
    assert names(str(data / "[ab]*.nc")) == ["a.nc", "b%20c.nc"]
    with pytest.raises(InvalidInputError, match="sources are paths"):
        find_files(3, sources)
