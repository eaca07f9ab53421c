"""Programs that query the Parquet files of a dataset with one engine and know nothing of icefloe.

Each is run as `python programs.py <question> <engine> <folder of the dataset>` and prints JSON. The
question `chunks` asks for the chunks of each array, the bytes of each file, and the files behind
the first rows of an array; `shapes` for the shapes that arrays have in any structure file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WANTED = "/group/temperature"


def newest(folder: Path) -> tuple[str, list[str]]:
    """The structure file of `main`; needs nothing but JSON."""
    state = json.loads((folder / "state.json").read_text())
    tip = state["refs"]["main"]["snapshot-id"]
    (snapshot,) = [each for each in state["snapshots"] if each["snapshot-id"] == tip]
    return str(folder / "s" / snapshot["structure-file"]), [
        each["snapshot-id"] for each in state["snapshots"]
    ]


def with_duckdb(folder: Path) -> dict[str, Any]:
    import duckdb

    structure, _ = newest(folder)
    db = duckdb.connect()
    db.execute(f"create view nodes as select * from read_parquet('{structure}')")
    files = db.execute(
        "select distinct item.inventory_file from (select unnest(inventories) as item from nodes)"
    ).fetchall()
    paths = [str(folder / "i" / name) for (name,) in files]
    db.execute(f"create view chunks as select * from read_parquet({paths})")
    joined = "chunks join nodes on chunks.array_id = nodes.id"
    counts = db.execute(f"select path, count(*) from {joined} group by path").fetchall()
    sizes = db.execute(
        "select chunk_file, sum(length) from chunks where chunk_file is not null group by 1"
    ).fetchall()
    region = db.execute(
        f"select distinct chunk_file from {joined} where path = ? and coord >= ? and coord < ?",
        [WANTED, bytes([2]), bytes([4])],
    ).fetchall()
    return answer(counts, sizes, [name for (name,) in region])


def with_polars(folder: Path) -> dict[str, Any]:
    import polars as pl

    structure, _ = newest(folder)
    nodes = pl.read_parquet(structure)
    files = nodes.select(pl.col("inventories").explode().struct.field("inventory_file"))
    names = [name for name in files["inventory_file"].unique() if name is not None]
    chunks = pl.scan_parquet([str(folder / "i" / name) for name in names])
    ids = nodes.select(pl.col("id").cast(pl.UInt32).alias("array_id"), "path")
    joined = chunks.join(ids.lazy(), on="array_id")
    counts = joined.group_by("path").len().collect().rows()
    stored = chunks.filter(pl.col("chunk_file").is_not_null())
    sizes = stored.group_by("chunk_file").agg(pl.col("length").cast(pl.UInt64).sum())
    near = (pl.col("coord") >= bytes([2])) & (pl.col("coord") < bytes([4]))
    region = joined.filter((pl.col("path") == WANTED) & near).select("chunk_file").unique()
    return answer(counts, sizes.collect().rows(), region.collect()["chunk_file"].to_list())


def start_spark() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def with_spark(folder: Path) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812

    spark = start_spark()
    structure, _ = newest(folder)
    nodes = spark.read.parquet(structure)
    inventories = nodes.select(F.explode("inventories.inventory_file").alias("name")).distinct()
    paths = [str(folder / "i" / row.name) for row in inventories.collect()]
    chunks = spark.read.parquet(*paths)
    joined = chunks.join(nodes.select(F.col("id").alias("node"), "path"), F.expr("array_id = node"))
    counts = [(row.path, row["count"]) for row in joined.groupBy("path").count().collect()]
    stored = chunks.filter("chunk_file is not null")
    sizes = [
        (row.chunk_file, row.total)
        for row in stored.groupBy("chunk_file").agg(F.sum("length").alias("total")).collect()
    ]
    near = (F.col("coord") >= F.lit(bytearray([2]))) & (F.col("coord") < F.lit(bytearray([4])))
    wanted = joined.filter((F.col("path") == WANTED) & near).select("chunk_file").distinct()
    region = [row.chunk_file for row in wanted.collect()]
    spark.stop()
    return answer(counts, sizes, region)


def answer(counts: Any, sizes: Any, region: list[str | None]) -> dict[str, Any]:
    return {
        "chunks": {path: int(count) for path, count in counts},
        "bytes": {name: int(size) for name, size in sizes},
        "region": sorted(name for name in region if name is not None),
    }


def shapes_with_duckdb(folder: Path) -> list[Any]:
    import duckdb

    query = "select path, array_metadata.shape from read_parquet('{}', union_by_name = true)"
    return duckdb.connect().execute(query.format(folder / "s" / "*.parquet")).fetchall()


def shapes_with_polars(folder: Path) -> list[Any]:
    import polars as pl

    table = pl.scan_parquet(
        folder / "s" / "*.parquet",
        schema=pl.read_parquet_schema(newest(folder)[0]),
        cast_options=pl.ScanCastOptions(integer_cast="upcast"),
    )
    return table.select("path", pl.col("array_metadata").struct.field("shape")).collect().rows()


def shapes_with_pyarrow(folder: Path) -> list[Any]:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    table = ds.dataset(folder / "s", schema=pq.read_schema(newest(folder)[0])).to_table()
    arrays = table["array_metadata"].to_pylist()
    return [
        (path, array and array["shape"])
        for path, array in zip(table["path"].to_pylist(), arrays, strict=True)
    ]


def shapes_with_spark(folder: Path) -> list[Any]:
    spark = start_spark()
    schema = spark.read.parquet(newest(folder)[0]).schema
    rows = (
        spark.read.schema(schema).parquet(str(folder / "s")).select("path", "array_metadata.shape")
    )
    found = [tuple(row) for row in rows.collect()]
    spark.stop()
    return found


def all_shapes(rows: list[Any]) -> dict[str, list[list[int]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for path, shape in rows:
        if shape is not None:
            found.setdefault(path, set()).add(tuple(map(int, shape)))
    return {path: sorted(map(list, shapes)) for path, shapes in found.items()}


ENGINES: dict[str, dict[str, Any]] = {
    "chunks": {"duckdb": with_duckdb, "polars": with_polars, "spark": with_spark},
    "shapes": {
        "duckdb": lambda folder: all_shapes(shapes_with_duckdb(folder)),
        "polars": lambda folder: all_shapes(shapes_with_polars(folder)),
        "pyarrow": lambda folder: all_shapes(shapes_with_pyarrow(folder)),
        "spark": lambda folder: all_shapes(shapes_with_spark(folder)),
    },
}


if __name__ == "__main__":
    question, engine, place = sys.argv[1:]
    found = ENGINES[question][engine](Path(place))
    assert "icefloe" not in sys.modules
    print(json.dumps(found))
