"""Jobs and SQL on a repository of the official package, whose results that package reads."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.spark import map_blocks, reduce, register, sql, write
from tests.endpoints.fixtures import fresh_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.endpoints.fixtures import S3Endpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
VALUES = np.random.default_rng(3).random((12, 8)).astype("f4")


def test_spark_on_a_repository_of_the_official_package(spark: SparkSession, tmp_path: Path) -> None:
    # F8-15
    path = str(tmp_path / "official")
    official = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = official.writable_session("main")
    data = xr.Dataset(
        {"t2m": (("time", "lat"), VALUES)},
        coords={"time": np.arange(12), "lat": np.linspace(-70, 70, 8)},
    )
    data.to_zarr(session.store, encoding={"t2m": {"chunks": (3, 4)}}, consolidated=False)
    session.commit("by the official package")

    repo = icefloe.Repository.open(path)
    register(spark, path, "official_weather", variables=["t2m"])
    (largest,) = spark.sql("select max(t2m) from official_weather where lat > 0").first()
    assert largest == VALUES[:, 4:].max()
    spark.catalog.dropTempView("official_weather")

    map_blocks(spark, repo, np.negative, "t2m", "negative")
    reduce(spark, repo, "t2m", "max", "highest/t2m", dims="time")

    def zeros(region: Any) -> Any:
        return np.zeros([part.stop - part.start for part in region], dtype="f4")

    write(spark, repo, {"t2m": zeros}, region=(slice(0, 3),))

    reader = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    store = reader.readonly_session("main").store
    found = xr.open_zarr(store, consolidated=False).load()
    np.testing.assert_array_equal(found.negative, -VALUES)
    np.testing.assert_array_equal(found.t2m[3:], VALUES[3:])
    assert not found.t2m[:3].any()
    highest = xr.open_zarr(store, group="highest", consolidated=False).load()
    np.testing.assert_array_equal(highest.t2m, VALUES.max(axis=0))
    assert [info.message for info in reader.ancestry(branch="main")][-2:] == [
        "by the official package",
        "Repository initialized",
    ]


@pytest.mark.endpoint
def test_virtual_native_and_inline_chunks_that_the_official_package_wrote(
    spark: SparkSession, s3_endpoint: S3Endpoint, tmp_path: Path
) -> None:
    # F8-15: each kind of check is made in the tasks, with the credentials of who opened it.
    values = np.random.default_rng(5).integers(0, 2**60, 300)
    values[:100] = 1  # compressed to few bytes: inline
    memory: Any = zarr.storage.MemoryStore()
    zarr.create_array(memory, name="x", shape=(300,), chunks=(100,), dtype="i8")[:] = values
    encoded = memory._store_dict["x/c/2"].to_bytes()
    prefix = fresh_prefix()
    files = s3_endpoint.storage(prefix)
    files.put("data.bin", b"head" + encoded)
    url = f"s3://{s3_endpoint.bucket}/{prefix}/"
    where: dict[str, Any] = {
        "region": s3_endpoint.region,
        "endpoint_url": s3_endpoint.endpoint_url,
        "allow_http": True,
        "s3_compatible": True,
        "force_path_style": True,
    }
    keys: dict[str, Any] = {
        "access_key_id": s3_endpoint.access_key_id,
        "secret_access_key": s3_endpoint.secret_access_key,
    }
    config = icechunk.RepositoryConfig.default()
    store = icechunk.s3_store(**where)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, store))
    theirs = icechunk.containers_credentials({url: icechunk.s3_credentials(**keys)})
    path = str(tmp_path / "official")
    place = icechunk.local_filesystem_storage(path)
    official = icechunk.Repository.create(place, config, authorize_virtual_chunk_access=theirs)
    official.save_config()
    now = datetime.now(UTC)
    checks: dict[str, Any] = {
        "plain": None,
        "etag": f'"{hashlib.md5(files.get("data.bin")).hexdigest()}"',
        "in_time": now + timedelta(minutes=5),
        "changed": "another",
        "too_late": now - timedelta(days=5),
    }
    session = official.writable_session("main")
    group = zarr.group(session.store)
    coordinate = group.create_array("i", shape=(300,), dtype="i8", dimension_names=["i"])
    coordinate[:] = np.arange(300)
    for name, checksum in checks.items():
        array = group.create_array(
            name, shape=(300,), chunks=(100,), dtype="i8", dimension_names=["i"]
        )
        array[:200] = values[:200]
        session.store.set_virtual_ref(
            f"{name}/c/2", f"{url}data.bin", offset=4, length=len(encoded), checksum=checksum
        )
    session.commit("by the official package")

    trusted = icefloe.RepositoryConfig()
    container = icefloe.VirtualChunkContainer(url, icefloe.s3_store(**where))
    trusted.set_virtual_chunk_container(container)
    ours = icefloe.containers_credentials({url: icefloe.s3_credentials(**keys)})
    repo = icefloe.Repository.open(path, trusted, ours)
    stats = repo.chunk_storage_stats()
    assert min(stats.virtual_bytes, stats.native_bytes, stats.inlined_bytes) > 0
    good = ["plain", "etag", "in_time"]
    register(spark, repo, "checked", variables=good, local_bytes=0)  # so that tasks read
    question = "SELECT max(plain), max(etag), sum(CAST(in_time AS DECIMAL(38))) FROM checked"
    row = sql(spark, question).first()
    assert [int(each) for each in row] == [values.max(), values.max(), sum(values.tolist())]
    (last,) = sql(spark, "SELECT min(etag) FROM checked WHERE i >= 200").first()
    assert last == values[200:].min()
    for name in ("changed", "too_late"):
        register(spark, repo, f"of_{name}", variables=[name], local_bytes=0)
        (first,) = sql(spark, f"SELECT max({name}) FROM of_{name} WHERE i < 200").first()
        assert first == values[:200].max()
        with pytest.raises(Exception, match=r"data\.bin"):
            sql(spark, f"SELECT max({name}) FROM of_{name}").collect()
        spark.catalog.dropTempView(f"of_{name}")
    sql(spark, "UPDATE checked SET plain = 7 WHERE i = 250")
    spark.catalog.dropTempView("checked")
    map_blocks(spark, repo, np.negative, "etag", "negative")
    reduce(spark, repo, "in_time", "max", "highest")

    reader = icechunk.Repository.open(place, authorize_virtual_chunk_access=theirs)
    found: Any = zarr.open_group(reader.readonly_session("main").store, mode="r")
    assert np.array_equal(found["negative"][:], -values)
    assert found["highest"][...] == values.max()
    expected = values.copy()
    expected[250] = 7
    assert np.array_equal(found["plain"][:], expected)
    assert np.array_equal(found["in_time"][:], values)
    assert repo.verify().is_clean
