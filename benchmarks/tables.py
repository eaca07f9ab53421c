"""Arrays as tables against Parquet with the same rows: one Spark session, cases interleaved.

`python -m benchmarks.tables [--days 64] [--repetitions 3]` prints seconds and ratios to Parquet.
`reduce` commits its result as an array, so Parquet writes its own too where it is large.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LATITUDES, LONGITUDES, CHUNK = 180, 360, (8, 90, 180)


def prepare(spark: Any, folder: Path, days: int) -> None:
    """A repository and a Parquet folder with the same cells."""
    import numpy as np
    import xarray as xr

    import icefloe
    from icefloe.spark import compute_statistics, table

    rng = np.random.default_rng(1)
    season = np.linspace(0, 40, days)[:, None, None]
    north = np.linspace(-30, 30, LATITUDES)[None, :, None]
    noise = rng.normal(0, 2, (days, LATITUDES, LONGITUDES))
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), (285 + season - np.abs(north) + noise).astype("f4"))},
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(days) * np.timedelta64(1, "D"),
            "lat": np.linspace(-89.5, 89.5, LATITUDES),
            "lon": np.arange(LONGITUDES, dtype="f8"),
        },
    )
    eight = xr.Dataset({f"v{number}": dataset.t2m + number for number in range(8)})
    repo = icefloe.Repository.create(str(folder / "repository"))
    session = repo.writable_session("main")
    for group, data in {"/": dataset, "eight": eight}.items():
        data.to_zarr(
            session.store,
            group=group,
            mode="a",
            consolidated=False,
            zarr_format=3,
            encoding={name: {"chunks": CHUNK} for name in data.data_vars},
        )
    session.commit("data")
    compute_statistics(spark, repo, progress=False)
    table(spark, repo).write.parquet(str(folder / "parquet"))
    table(spark, repo, group="eight").write.parquet(str(folder / "parquet-of-eight"))


def cases(spark: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """What is measured: by question, how each candidate answers it."""
    from pyspark.sql.functions import month

    from icefloe.spark import reduce, register, sql, table

    repo, rows = str(folder / "repository"), str(folder / "parquet")
    register(spark, repo, "eight", group="eight")
    spark.read.parquet(str(folder / "parquet-of-eight")).createOrReplaceTempView("parquet_of_eight")

    def parquet() -> Any:
        return spark.read.parquet(rows)

    def source(**options: str) -> Any:
        return spark.read.format("icefloe").options(**options).load(repo)

    def reduced(output: str, **how: Any) -> None:
        reduce(
            spark, repo, "t2m", "mean", f"results/{output}", overwrite=True, progress=False, **how
        )

    total = "sum(t2m)", "sum(lat)", "sum(lon)", "max(time)"
    one_week = "time between '2020-01-10' and '2020-01-16'"
    hot = "t2m > 330"  # the last tenth of the days
    of_eight = "SELECT lat, avg(v3) FROM {} GROUP BY lat"
    week_of_eight = "SELECT avg(v3) FROM {} WHERE time >= '2020-01-10' AND time < '2020-01-17'"
    eight: dict[str, Any] = {"group": "eight", "columns": ["time", "lat", "v3"]}
    return {
        "sum of all columns": {
            "parquet": lambda: parquet().selectExpr(*total).collect(),
            "table": lambda: table(spark, repo).selectExpr(*total).collect(),
            "source": lambda: source().selectExpr(*total).collect(),
        },
        "mean by latitude": {
            "parquet": lambda: parquet().groupBy("lat").avg("t2m").collect(),
            "table": lambda: table(spark, repo).groupBy("lat").avg("t2m").collect(),
            "reduce": lambda: reduced("by-latitude", dims=("time", "lon")),
        },
        "mean by month and place": {
            "parquet": lambda: parquet()
            .groupBy(month("time"), "lat", "lon").avg("t2m")
            .write.mode("overwrite").parquet(str(folder / "monthly")),
            "reduce": lambda: reduced("monthly", by="time.month"),
        },
        "mean of one week": {
            "parquet": lambda: parquet().filter(one_week).agg({"t2m": "avg"}).collect(),
            "table": lambda: table(
                spark, repo, sel={"time": slice("2020-01-10", "2020-01-16")}
            ).agg({"t2m": "avg"}).collect(),
        },
        "one of eight variables": {
            "parquet": lambda: spark.sql(of_eight.format("parquet_of_eight")).collect(),
            "by hand": lambda: table(spark, repo, **eight).groupBy("lat").avg("v3").collect(),
            "sql": lambda: sql(spark, of_eight.format("eight")).collect(),
            "view": lambda: spark.sql(of_eight.format("eight")).collect(),
        },
        "a week of one of eight": {
            "parquet": lambda: spark.sql(week_of_eight.format("parquet_of_eight")).collect(),
            "by hand": lambda: table(
                spark, repo, sel={"time": slice("2020-01-10", "2020-01-16")}, **eight
            ).agg({"v3": "avg"}).collect(),
            "sql": lambda: sql(spark, week_of_eight.format("eight")).collect(),
            "view": lambda: spark.sql(week_of_eight.format("eight")).collect(),
        },
        "count of hot cells": {
            "parquet": lambda: parquet().filter(hot).count(),
            "table": lambda: table(spark, repo, where=hot).count(),
        },
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--questions", default="", help="only questions with this text in them")
    arguments = parser.parse_args()
    from icefloe.spark import local_session

    spark = local_session(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(spark, folder, arguments.days)
        questions = {
            question: candidates
            for question, candidates in cases(spark, folder).items()
            if arguments.questions in question
        }
        seconds: dict[tuple[str, str], list[float]] = {}
        for repetition in range(arguments.repetitions + 1):
            for question, candidates in questions.items():
                for candidate, answer in candidates.items():
                    started = time.perf_counter()
                    answer()
                    if repetition:  # the first round warms the JVM up
                        taken = time.perf_counter() - started
                        seconds.setdefault((question, candidate), []).append(taken)
        cells = arguments.days * LATITUDES * LONGITUDES
        sys.stdout.write(f"{cells:,} cells\n")
        for (question, candidate), measured in seconds.items():
            best = statistics.median(measured)
            against = statistics.median(seconds[question, "parquet"])
            sys.stdout.write(
                f"{question:22} {candidate:8} {best:7.2f} s  {best / against:6.2f} x Parquet\n"
            )
    spark.stop()


if __name__ == "__main__":
    main()
