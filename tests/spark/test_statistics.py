"""Jobs that make statistics of the chunks they write: the same as of chunks that are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import (
    NewArray,
    compute_statistics,
    copy,
    ingest,
    map_blocks,
    rechunk,
    table,
    write,
    write_table,
)
from icefloe.tables.schema import variable_of
from icefloe.tables.statistics import GROUP, read_entries
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DIMS = ("y", "x")
NEW = NewArray((10, 7), "f4", (3, 4), dims=DIMS, fill_value=np.nan)
PACKED = NewArray(
    (10, 7), "i2", (3, 4), dims=DIMS, fill_value=-1,
    attributes={"_FillValue": -1, "scale_factor": 0.1, "add_offset": 280.0},
)  # fmt: skip
SHARDED = NewArray((10, 7), "i4", (1, 2), (3, 4), dims=DIMS)


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))


def numbers_at(region: tuple[Any, ...]) -> np.ndarray:
    rows = np.arange(region[0].start, region[0].stop)[:, None]
    columns = np.arange(region[1].start, region[1].stop)[None, :]
    return rows * 10 + columns


def holes_at(region: tuple[Any, ...]) -> np.ndarray:
    values = numbers_at(region).astype("f4")
    values[values % 7 == 0] = np.nan
    return values


def packed_at(region: tuple[Any, ...]) -> np.ndarray:
    values = numbers_at(region).astype("i2")
    return np.where(values % 5 == 0, -1, values)


def known(repo: icefloe.Repository, path: str, branch: str = "main") -> tuple[Any, ...]:
    session = repo.readonly_session(branch)
    found = read_entries(session, variable_of(session, path))
    assert found is not None
    return found


def check(spark: SparkSession, repo: icefloe.Repository, *paths: Any, group: str = "/") -> None:
    """All chunks have statistics, which equal those that are computed afterwards from scratch."""
    before = repo.lookup_branch("main")
    mine = {path: known(repo, path) for path in paths}
    names = [path.rpartition("/")[2] for path in paths]
    assert compute_statistics(spark, repo, group=group, variables=names).snapshot_id is None
    repo.create_branch("again", before)
    session = repo.writable_session("again")
    session.tree.delete_node(GROUP)
    session.commit("without")
    compute_statistics(spark, repo, group=group, variables=names, branch="again")
    for path in paths:
        (numbers, current), (expected, there) = mine[path], known(repo, path, "again")
        np.testing.assert_array_equal(current, there)
        np.testing.assert_array_equal(numbers[current], expected[there])
        assert current.sum() == len(repo.readonly_session("main").tree.chunk_coords(path))
    repo.delete_branch("again")


def chunks_read(repo: icefloe.Repository, where: str, **request: Any) -> int:
    scan = Scan(repo.readonly_session("main"), ScanRequest(where=where, task_bytes=1, **request))
    return sum(len(boxes) for boxes in scan.splits())


def test_filled_arrays(spark: SparkSession, repo: icefloe.Repository) -> None:
    functions = {"a": holes_at, "b": packed_at, "s": numbers_at}
    create = {"a": NEW, "b": PACKED, "s": SHARDED}
    report = write(spark, repo, functions, create=create, task_bytes=150, statistics=True)
    assert report.plan.tasks > 3
    assert "statistics /a, /b, /s" in str(report.plan)
    assert len(list(repo.ancestry(branch="main"))) == 2
    check(spark, repo, "/a", "/b", "/s")
    # Conditions use them, and find what numpy finds.
    whole = (slice(0, 10), slice(0, 7))
    expected = np.argwhere(packed_at(whole) * 0.1 + 280.0 > 288.95)
    found = table(spark, repo, variables=["b"], where="b > 288.95").collect()
    assert sorted((r.y, r.x) for r in found) == sorted(map(tuple, expected.tolist()))
    assert chunks_read(repo, "b > 288.95", variables=("b",)) == 2
    assert chunks_read(repo, "a > 1000", variables=("a",)) == 0
    missing = int(np.isnan(holes_at(whole)).sum())
    assert table(spark, repo, variables=["a"], where="a is null").count() == missing


def test_regions_appends_and_plain_writes_after(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    write(spark, repo, {"a": holes_at}, create={"a": NEW}, statistics=["a"])
    write(spark, repo, {"a": lambda _: -5}, region={"y": slice(2, 5)}, statistics="/a")
    check(spark, repo, "/a")
    growth: dict[str, Any] = {"append_dim": "y", "append_size": 4, "task_bytes": 1}
    write(spark, repo, {"a": holes_at}, statistics=True, **growth)
    check(spark, repo, "/a")
    assert known(repo, "/a")[1].shape == (5, 2)
    assert chunks_read(repo, "a < 0") == 4
    # Somebody who knows nothing of statistics changes one value.
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[12, 6] = -100
    session.commit("corrected")
    assert known(repo, "/a")[1].sum() == 9
    rows = table(spark, repo, where="a < -50").collect()
    assert [(r.y, r.x, r.a) for r in rows] == [(12, 6, -100.0)]
    assert chunks_read(repo, "a < -50") == 1
    # A job without statistics: what is not known any more is read.
    write(spark, repo, {"a": lambda _: -200}, region={"y": slice(0, 1)})
    assert chunks_read(repo, "a < -150") == 3
    assert table(spark, repo, where="a < -150").count() == 7


def test_results_of_maps_and_of_rechunking(spark: SparkSession, repo: icefloe.Repository) -> None:
    write(spark, repo, {"a": holes_at, "b": packed_at}, create={"a": NEW, "b": PACKED})
    map_blocks(spark, repo, lambda a, b: a + b, ["a", "b"], "c", chunks=(4, 3), statistics=True)
    check(spark, repo, "/c")
    rechunk(spark, repo, "c", (2, 7), task_bytes=1, statistics=True)
    check(spark, repo, "/c")
    # Through an intermediate copy, with little memory, and to shards.
    long = NewArray((32, 32), "i2", (32, 1), dims=DIMS, attributes={"_FillValue": 3})
    write(spark, repo, {"l": numbers_at}, create={"l": long})
    report = rechunk(spark, repo, "l", (1, 32), memory_bytes=700, statistics=["/l"])
    assert "two passes" in str(report.plan)
    check(spark, repo, "/c", "/l")
    rechunk(spark, repo, ["l", "c"], (2, 2), shards=(4, 4), statistics=True)
    check(spark, repo, "/c", "/l")
    groups = [p for p in repo.readonly_session("main").tree.node_paths(GROUP) if p.count("/") == 2]
    assert len(groups) == 2


def dataset(days: int = 6) -> xr.Dataset:
    rng = np.random.default_rng(3)
    t = rng.normal(280, 10, (days, 5, 4)).round(1)
    t[1, 2, 3] = np.nan
    return xr.Dataset(
        {"t": (("time", "y", "x"), t), "n": (("time",), np.arange(days))},
        {"time": pd.date_range("2020-01-01", periods=days)},
    )


def test_copies(spark: SparkSession, repo: icefloe.Repository, tmp_path: Path) -> None:
    source = icefloe.Repository.create(str(tmp_path / "source"))
    write(spark, source, {"g/a": holes_at, "g/b": packed_at}, create={"g/a": NEW, "g/b": PACKED})
    session = source.readonly_session("main")
    opened = zarr.open_group(session.store, mode="r")["g"]
    copy(spark, repo, session, variables=["g/a"], isel={"y": slice(1, 9)}, statistics=True)
    check(spark, repo, "/g/a", group="g")
    opened = tmp_path / "plain.zarr"  # type: ignore[assignment]
    encoding = {"t": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -9, "chunks": (2, 5, 2)}}
    dataset().to_zarr(opened, encoding=encoding, consolidated=False, zarr_format=3)
    copy(spark, repo, opened, group="z", chunks={"x": 3}, statistics=["t"])
    check(spark, repo, "/z/t", group="z")
    # xarray encodes; what is in memory is written by the driver.
    lazy = xr.open_zarr(opened, consolidated=False)
    copy(spark, repo, lazy, group="lazy", chunks={"time": 4}, task_bytes=1, statistics=True)
    check(spark, repo, "/lazy/t", "/lazy/n", group="lazy")
    eager = dataset()
    eager["t"].encoding = {"chunks": (4, 5, 4)}
    copy(spark, repo, eager, group="eager", chunks={"time": 4}, statistics=True)
    check(spark, repo, "/eager/t", "/eager/n", group="eager")
    more = dataset(7).isel(time=slice(6, 7)).chunk()
    copy(spark, repo, more, group="eager", append_dim="time", statistics=True)
    check(spark, repo, "/eager/t", "/eager/n", group="eager")


def in_files(repo_path: Path, folder: Path, days: int = 6) -> icefloe.Repository:
    config = icefloe.RepositoryConfig()
    store = icefloe.local_filesystem_store(str(folder))
    url = f"{folder.as_uri()}/"
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
    stored = {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -9, "chunksizes": (1, 5, 2)}
    for day in range(days):
        one = dataset().isel(time=slice(day, day + 1)).drop_vars("n")
        one.to_netcdf(folder / f"{day}.nc", engine="h5netcdf", encoding={"t": stored})
    return icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(repo_path)), config, {url: None}
    )


@pytest.mark.parametrize("mode", ["virtual", "copy"])
def test_ingested_files(spark: SparkSession, tmp_path: Path, mode: Any) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    repo = in_files(tmp_path / "repo", folder)
    chunks: dict[str, Any] = {"chunks": {"time": 2, "y": 3}} if mode == "copy" else {}
    first = [str(folder / f"{day}.nc") for day in (0, 1, 3)]
    ingest(spark, repo, first, mode=mode, statistics=True, **chunks)
    check(spark, repo, "/t")
    ingest(spark, repo, f"{folder}/*.nc", mode=mode, statistics=["t"], **chunks)
    if mode == "copy":
        check(spark, repo, "/t")
    else:  # day 3 was moved to its new place, and not read again
        assert known(repo, "/t")[1].all(axis=(1, 2)).tolist() == [
            True,
            True,
            True,
            False,
            True,
            True,
        ]
    values = dataset()["t"].values.round(1)
    found = table(spark, repo, variables=["t"], where="t > 285").count()
    assert found == int((values > 285).sum())
    with pytest.raises(InvalidInputError, match=r"no such variable, found .*t"):
        ingest(spark, repo, f"{folder}/*.nc", mode=mode, statistics=["u"], again=True)
    with pytest.raises(InvalidInputError, match="check='none'"):
        ingest(spark, repo, first, mode="virtual", check="none", statistics=True)


def test_a_plan_says_that_values_will_be_read(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    repo = in_files(tmp_path / "repo", folder, 2)
    ingest(spark, repo, f"{folder}/*.nc", statistics=True, dry_run=True)
    assert "for which all values are read" in capsys.readouterr().out


def test_rows(spark: SparkSession, repo: icefloe.Repository) -> None:
    frame = spark.createDataFrame(
        [(y, x, float(y * 10 + x)) for y in range(6) for x in range(4)], "y long, x long, v double"
    )
    given: dict[str, Any] = {"dims": DIMS, "chunks": {"y": 2, "x": 3}, "statistics": True}
    write_table(frame, repo, **given)
    check(spark, repo, "/v")
    region = {"y": slice(1, 4)}
    some = frame.filter("y = 2 and x < 2")
    write_table(some, repo, operation="overwrite", region=region, statistics=["v"])
    check(spark, repo, "/v")
    assert table(spark, repo, where="v is null").count() == 6


def test_two_jobs_with_statistics_of_one_array_both_land(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    write(spark, repo, {"a": numbers_at}, create={"a": NEW})

    def act(region: Any) -> Any:
        other = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
        if len(list(other.ancestry(branch="main"))) == 2:
            compute_by_hand(other)
        return np.full([part.stop - part.start for part in region], 5)

    write(spark, repo, {"a": act}, region=(slice(0, 3),), statistics=True)
    assert [s.message for s in repo.ancestry(branch="main")][:2] == ["write", "by hand"]
    numbers, current = known(repo, "/a")
    assert current.all()
    assert numbers[0].tolist() == [[5, 5, 0], [5, 5, 0]]
    check(spark, repo, "/a")


def test_branches_with_statistics_of_one_array_merge(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    write(spark, repo, {"a": numbers_at}, create={"a": NEW}, statistics=True)
    repo.create_branch("other", repo.lookup_branch("main"))
    for branch, rows in (("main", slice(0, 3)), ("other", slice(3, 6))):
        filled = {"a": lambda region: numbers_at(region) + 1000}
        write(spark, repo, filled, region=(rows,), branch=branch, statistics=True)
    repo.merge("other", "main")
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[...]
    assert (values[:6] >= 1000).all()
    assert (values[6:] < 1000).all()
    numbers, current = known(repo, "/a")
    assert current.tolist() == [[True] * 2, [False] * 2, [True] * 2, [True] * 2]
    assert numbers[0, 0].tolist() == [1000, 1023, 0]
    assert table(spark, repo, where="a >= 1000").count() == 42
    compute_statistics(spark, repo, variables=["a"])
    check(spark, repo, "/a")


def compute_by_hand(repo: Any) -> None:
    from icefloe.tables.summarize import Summaries, WrittenStatistics

    session = repo.writable_session("main")
    statistics, summaries = WrittenStatistics(session), Summaries(session, ["/a"])
    summaries.add_chunks("/a", session.tree.chunk_coords("/a"))
    statistics.add_own(summaries)
    statistics.write()
    session.commit("by hand")


def test_many_chunks_whose_manifests_executors_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.spark.engine.job.LINK_ABOVE_CHUNKS", 1)
    split = icefloe.ManifestSplittingConfig.from_dict(
        {icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Axis(0): 2}}
    )
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=split))
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icefloe.Repository.create(storage, config)
    write(spark, repo, {"a": holes_at}, create={"a": NEW}, task_bytes=50, statistics=True)
    assert len(repo.readonly_session("main").tree.snapshot.manifests) > 2
    check(spark, repo, "/a")


@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_other_generations(spark: SparkSession, tmp_path: Path, generation: str) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icefloe.Repository.create(storage, generation=generation)
    write(spark, repo, {"a": holes_at}, create={"a": NEW}, statistics=True)
    check(spark, repo, "/a")
