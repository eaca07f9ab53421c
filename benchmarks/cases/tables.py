"""Arrays as tables against Parquet files with the same rows, in Spark.

Each question is asked twice before the clock starts, so that the JVM is warm. `reduce` commits its
result as an array, so Parquet writes its own too where it is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.case import Case, Setting
from benchmarks.cases.spark_jobs import with_spark

if TYPE_CHECKING:
    from collections.abc import Callable

LATITUDES, LONGITUDES, CHUNK = 180, 360, (8, 90, 180)
ALL_COLUMNS = "sum(t2m)", "sum(lat)", "sum(lon)", "max(time)"
WEEK = {"time": slice("2020-01-10", "2020-01-16")}
HOT = "t2m > 330"  # the last tenth of the days
OF_EIGHT = "SELECT lat, avg(v3) FROM {} GROUP BY lat"
WEEK_OF_EIGHT = "SELECT avg(v3) FROM {} WHERE time >= '2020-01-10' AND time < '2020-01-17'"
EIGHT: dict[str, Any] = {"group": "eight", "columns": ["time", "lat", "v3"]}


def written(setting: Setting) -> None:
    """A repository and folders of Parquet files with the same cells."""
    import numpy as np
    import xarray as xr

    import icefloe
    from icefloe.spark import compute_statistics, table

    spark = with_spark(setting)[1]
    days, folder = setting["days"], setting.folder
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
    spark.stop()


class Asked:
    """A Spark session, the two copies of the data, and the ways to ask for them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.spark = with_spark(setting)[1]
        self.repo = str(setting.folder / "repository")

    def parquet(self) -> Any:
        return self.spark.read.parquet(str(self.setting.folder / "parquet"))

    def table(self, **options: Any) -> Any:
        from icefloe.spark import table

        return table(self.spark, self.repo, **options)

    def reduce(self, output: str, **how: Any) -> None:
        from icefloe.spark import reduce

        target = f"results/{output}"
        reduce(self.spark, self.repo, "t2m", "mean", target, overwrite=True, progress=False, **how)

    def sql(self, text: str) -> Any:
        """By icefloe, which reads what the text needs."""
        from icefloe.spark import sql

        self._register()
        return sql(self.spark, text.format("eight")).collect()

    def view(self, text: str) -> Any:
        """By plain Spark, on a view of the whole table."""
        self._register()
        return self.spark.sql(text.format("eight")).collect()

    def parquet_sql(self, text: str) -> Any:
        rows = self.spark.read.parquet(str(self.setting.folder / "parquet-of-eight"))
        rows.createOrReplaceTempView("parquet_of_eight")
        return self.spark.sql(text.format("parquet_of_eight")).collect()

    def _register(self) -> None:
        from icefloe.spark import register

        register(self.spark, self.repo, "eight", group="eight")


def monthly(asked: Asked) -> None:
    from pyspark.sql.functions import month

    rows = asked.parquet().groupBy(month("time"), "lat", "lon").avg("t2m")
    rows.write.mode("overwrite").parquet(str(asked.setting.folder / "monthly"))


QUESTIONS: dict[str, tuple[str, dict[str, Callable[[Asked], object]]]] = {
    "sum": (
        "sum of all columns",
        {
            "parquet": lambda asked: asked.parquet().selectExpr(*ALL_COLUMNS).collect(),
            "icefloe-table": lambda asked: asked.table().selectExpr(*ALL_COLUMNS).collect(),
        },
    ),
    "by-latitude": (
        "mean by latitude",
        {
            "parquet": lambda asked: asked.parquet().groupBy("lat").avg("t2m").collect(),
            "icefloe-table": lambda asked: asked.table().groupBy("lat").avg("t2m").collect(),
            "icefloe-reduce": lambda asked: asked.reduce("by-latitude", dims=("time", "lon")),
        },
    ),
    "monthly": (
        "mean by month and place",
        {
            "parquet": monthly,
            "icefloe-reduce": lambda asked: asked.reduce("monthly", by="time.month"),
        },
    ),
    "week": (
        "mean of one week",
        {
            "parquet": lambda asked: (
                asked.parquet()
                .filter("time between '2020-01-10' and '2020-01-16'")
                .agg({"t2m": "avg"})
                .collect()
            ),
            "icefloe-table": lambda asked: asked.table(sel=WEEK).agg({"t2m": "avg"}).collect(),
        },
    ),
    "hot": (
        "count of hot cells in the last tenth",
        {
            "parquet": lambda asked: asked.parquet().filter(HOT).count(),
            "icefloe-table": lambda asked: asked.table(where=HOT).count(),
        },
    ),
    "one-of-eight": (
        "one of eight variables, mean by latitude",
        {
            "parquet": lambda asked: asked.parquet_sql(OF_EIGHT),
            "icefloe-table": lambda asked: asked.table(**EIGHT).groupBy("lat").avg("v3").collect(),
            "icefloe-sql": lambda asked: asked.sql(OF_EIGHT),
            "icefloe-view": lambda asked: asked.view(OF_EIGHT),
        },
    ),
    "week-of-eight": (
        "a week of one of eight variables",
        {
            "parquet": lambda asked: asked.parquet_sql(WEEK_OF_EIGHT),
            "icefloe-table": lambda asked: (
                asked.table(sel=WEEK, **EIGHT).agg({"v3": "avg"}).collect()
            ),
            "icefloe-sql": lambda asked: asked.sql(WEEK_OF_EIGHT),
            "icefloe-view": lambda asked: asked.view(WEEK_OF_EIGHT),
        },
    ),
}


def with_question(setting: Setting) -> Callable[[], object]:
    asked = Asked(setting)
    answer = QUESTIONS[setting["question"]][1][setting.peer.name]  # type: ignore[attr-defined]
    for _ in range(2):
        answer(asked)
    return lambda: answer(asked)


def ask(answer: Callable[[], object], _: int) -> None:
    answer()


CASES = [
    Case(
        name=f"tables-{name}",
        title=title,
        peers=tuple(answers),
        run=ask,
        start=with_question,
        prepare=written,
        prepared_by="icefloe-table",
        against=("parquet",),
        parameters={"days": 64, "operations": 3, "question": name},
        quick={"days": 32, "operations": 1},
        in_processes=True,
    )
    for name, (title, answers) in QUESTIONS.items()
]
