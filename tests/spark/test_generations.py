"""The pipeline in every generation of the format, compared with numpy."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.config import ManifestConfig, ManifestSplittingConfig
from icefloe.errors import RebaseFailedError
from icefloe.spark import NewArray, ingest, map_blocks, rechunk, reduce, table, write, write_table
from icefloe.spark.engine import linking
from icefloe.spark.engine.job import Job
from icefloe.tables import zarr_arrays as arrays
from tests.builders import read_dataset
from tests.virtual.files import month_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

FORMATS = [
    ("repository", 1),
    ("repository", 2),
    ("store", None),
    ("dataset", None),
    ("icechunk", 2),
]
ANY = icefloe.ManifestSplitCondition.AnyArray()
FIRST = icefloe.ManifestSplitDimCondition.Axis(0)
NEW = NewArray((8, 6), "i4", (2, 3), dims=("y", "x"))


def numbers(region: Any) -> Any:
    rows = np.arange(region[0].start, region[0].stop)[:, None]
    return rows * 10 + np.arange(region[1].start, region[1].stop) + 1


VALUES = numbers((slice(0, 8), slice(0, 6)))


@pytest.fixture(params=FORMATS, ids=lambda each: each[0] + (f"-{each[1]}" if each[1] else ""))
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    """A repository whose arrays are cut after two rows of chunks, and that may read `data`."""
    data = tmp_path / "data"
    data.mkdir()
    splitting = ManifestSplittingConfig.from_dict({ANY: {FIRST: 2}})
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    prefix = f"{data.as_uri()}/"
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(data)))
    )
    generation, spec_version = request.param
    return icefloe.Repository.create(
        str(tmp_path / "repo"),
        config,
        authorize_virtual_chunk_access={prefix: None},
        spec_version=spec_version,
        generation=generation,
    )


def reopened(repo: icefloe.Repository) -> icefloe.Session:
    """A session that knows nothing but what is in the files."""
    return icefloe.Repository.open(repo.storage).readonly_session("main")


def test_every_kind_of_job(spark: SparkSession, repo: icefloe.Repository) -> None:
    write(spark, repo, {"t": numbers}, create={"t": NEW}, task_bytes=50)
    map_blocks(spark, repo, np.negative, "t", "mapped")
    reduce(spark, repo, "t", "sum", "total/t", dims="y")
    rechunk(spark, repo, "mapped", (8, 1))
    write(spark, repo, {"t": lambda region: numbers(region) * 2}, region=(slice(4, 8),))
    session = reopened(repo)
    doubled = np.where(np.arange(8)[:, None] < 4, VALUES, VALUES * 2)
    np.testing.assert_array_equal(session.read_region("/t"), doubled)
    np.testing.assert_array_equal(session.read_region("/mapped"), -VALUES)
    np.testing.assert_array_equal(session.read_region("/total/t"), VALUES.sum(axis=0))
    assert len(list(repo.ancestry(branch="main"))) == 6


def test_files_by_reference(spark: SparkSession, repo: icefloe.Repository, tmp_path: Path) -> None:
    files = [month_file(tmp_path / "data" / f"{n}.nc", n, days=2) for n in (1, 2)]
    done = ingest(spark, repo, str(tmp_path / "data" / "*.nc"))
    assert len(done.new) == 2
    again = icefloe.Repository.open(
        repo.storage,
        authorize_virtual_chunk_access={f"{(tmp_path / 'data').as_uri()}/": None},
    )
    found = read_dataset(again).load()
    with xr.open_mfdataset(files, combine="nested", concat_dim="time", engine="netcdf4") as data:
        np.testing.assert_array_equal(found.t2m, data.t2m)
        np.testing.assert_array_equal(found.time, data.time)
    # Expiry takes the commit away, not what it says was ingested.
    write(spark, repo, {"t": numbers}, create={"t": NEW})
    assert done.snapshot_id in repo.expire_snapshots(keep_last=1)
    assert repo.garbage_collect(timedelta(0)).snapshots_deleted == 1
    tip = repo.lookup_branch("main")
    repeated = ingest(spark, repo, str(tmp_path / "data" / "*.nc"))
    assert (repeated.snapshot_id, len(repeated.unchanged)) == (None, 2)
    assert repo.lookup_branch("main") == tip


def test_tables(spark: SparkSession, repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    xr.Dataset({"v": (("y", "x"), VALUES)}, {"y": np.arange(8) * 0.5}).to_zarr(
        session.store, consolidated=False, zarr_format=3, encoding={"v": {"chunks": (2, 3)}}
    )
    session.commit("data")
    rows = table(spark, repo, partition_bytes=100)
    counted = rows.selectExpr("count(v)", "sum(v)").collect()[0]
    assert tuple(counted) == (VALUES.size, VALUES.sum())
    chosen = table(spark, repo, where="v >= 41").selectExpr("y", "x", "v * 2 AS v")
    write_table(chosen, repo, group="doubled", dims=["y", "x"], chunks={"y": 2, "x": 3})
    found = xr.open_zarr(reopened(repo).store, group="doubled", consolidated=False)
    np.testing.assert_array_equal(found.v, VALUES[4:] * 2)
    np.testing.assert_array_equal(found.y, np.arange(4, 8) * 0.5)


class Watched:
    """What the driver does in jobs that all count as big ones, and what others do meanwhile."""

    def __init__(self, monkeypatch: Any) -> None:
        self.linked: list[Any] = []
        """Arrays with manifests that executors wrote."""
        self.meanwhile = None
        """Is called after the tasks and before the commit."""
        monkeypatch.setattr("icefloe.spark.engine.job.LINK_ABOVE_CHUNKS", 1)
        link, commit = linking.link_tiles, Job.commit  # type: ignore[attr-defined]

        def noted(tree: Any, path: Any, tiles: Any) -> None:
            self.linked.append(path)
            link(tree, path, tiles)

        def late(job: Any, plan: Any) -> Any:
            if self.meanwhile is not None:
                self.meanwhile()
            return commit(job, plan)

        monkeypatch.setattr(linking, "link_tiles", noted)
        monkeypatch.setattr(Job, "commit", late)


def somebody(
    repo: icefloe.Repository, place: tuple[Any, ...] | None, *, new: bool = False
) -> Callable[..., Any]:
    """Another writer, which writes one chunk, and adds an array if asked to."""

    def commit() -> None:
        session = repo.writable_session("main")
        if new:
            arrays.create(session, "/other", NEW)
            session.write_region("/other", (slice(0, 8), slice(0, 6)), VALUES * 3)
        else:
            session.write_region("/t", place, np.full((2, 3), 7, "i4"))
        session.commit("somebody else")

    return commit


def test_big_jobs_with_new_and_with_existing_arrays(
    spark: SparkSession, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repo.writable_session("main")
    zarr.create_group(root.store)
    root.commit("root")
    watched = Watched(monkeypatch)
    # The other array gets the number that this one would have had.
    watched.meanwhile = somebody(repo, None, new=True)  # type: ignore[assignment]
    write(spark, repo, {"t": numbers}, create={"t": NEW}, task_bytes=50)
    keeps_ids = repo.generation in {"repository", "icechunk"}
    assert watched.linked == (["/t"] if keeps_ids else [])
    np.testing.assert_array_equal(reopened(repo).read_region("/t"), VALUES)
    np.testing.assert_array_equal(reopened(repo).read_region("/other"), VALUES * 3)

    watched.linked.clear()
    half = (slice(4, 8), slice(0, 6))
    watched.meanwhile = somebody(repo, (slice(0, 2), slice(0, 3)))  # type: ignore[assignment]
    write(spark, repo, {"t": lambda region: -numbers(region)}, region=half)
    assert watched.linked == ["/t"]
    expected = np.where(np.arange(8)[:, None] < 4, VALUES, -VALUES)
    expected[:2, :3] = 7
    session = reopened(repo)
    np.testing.assert_array_equal(session.read_region("/t"), expected)
    assert len(session.get_node("/t").manifests) == 2
    changed = repo.diff(from_branch="main~1", to_branch="main").chunk_indexes()["/t"]
    assert sorted(map(tuple, changed.coords().tolist())) == [(2, 0), (2, 1), (3, 0), (3, 1)]

    watched.meanwhile = somebody(repo, (slice(4, 6), slice(0, 3)))  # type: ignore[assignment]
    with pytest.raises(RebaseFailedError, match="/t"):
        write(spark, repo, {"t": numbers}, region=half)
    expected[4:6, :3] = 7
    np.testing.assert_array_equal(reopened(repo).read_region("/t"), expected)
