"""Expectations on real Spark: what holds, what does not and where, and what need not be read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError, TaskFailedError
from icefloe.spark import (
    BlockCheck,
    EqualTo,
    GapFree,
    HasAttributes,
    HasUnits,
    InRange,
    MissingAtMost,
    Monotonic,
    NoDuplicates,
    ValidationReport,
    compute_statistics,
    validate,
)
from icefloe.xarray import to_icefloe

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TIMES = np.arange("2020-01-01", "2020-01-09", dtype="M8[D]").astype("M8[ns]")


def weather() -> xr.Dataset:
    values = 280 + np.arange(8 * 4 * 6, dtype="f4").reshape(8, 4, 6) / 10
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {
            "t2m": (dims, values, {"units": "K"}),
            "rain": (dims, np.where(values < 281, np.nan, values - 281)),
        },
        {"time": TIMES, "lat": [60.0, 50.0, 40.0, 30.0], "lon": np.arange(6) * 10.0},
        {"title": "weather"},
    )


def new_repo(place: Path, dataset: xr.Dataset) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(place))
    commit(repo, dataset)
    return repo


def commit(repo: icefloe.Repository, dataset: xr.Dataset, **options: Any) -> str:
    session = repo.writable_session("main")
    packed: dict[str, Any] = {
        "t2m": {"dtype": "i4", "scale_factor": 0.1, "add_offset": 250.0, "_FillValue": -1}
    }
    encoding: dict[str, dict[str, Any]] = {
        str(name): {"chunks": (3, 2, 6)} for name in dataset.data_vars
    }
    for name, more in packed.items():
        encoding[name] |= more
    if not options:
        options = {"encoding": encoding, "mode": "w"}
    to_icefloe(dataset, session, **options)
    return session.commit("data")


def outcome(report: ValidationReport) -> dict[tuple[str, str], bool]:
    return {(each.expectation, each.array): each.passed for each in report.results}


def is_warm(block: np.ndarray) -> np.ndarray:
    return block >= 280


def rains_when_warm(warm: np.ndarray, rain: np.ndarray) -> bool:
    return bool((np.isnan(rain) == (warm < 281 - 1e-3)).all())


def test_every_kind_of_expectation_that_holds(spark: SparkSession, tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo", weather())
    expectations = [
        InRange("t2m", low=280, high=300),
        InRange("time", low="2020-01-01", high="2020-01-31"),
        MissingAtMost(("t2m", "lat")),
        MissingAtMost("rain", share=0.06),
        Monotonic("lat", direction="decreasing"),
        Monotonic(("time", "lon")),
        GapFree("time", step="1D"),
        GapFree(("lat", "lon")),
        NoDuplicates("time"),
        HasUnits("t2m", units="K"),
        HasAttributes("/", attributes={"title": "weather"}),
        EqualTo("*", version="main"),
        BlockCheck("t2m", function="is_warm"),
        BlockCheck(("t2m", "rain"), function="rains_when_warm"),
    ]
    functions: dict[str, Any] = {"is_warm": is_warm, "rains_when_warm": rains_when_warm}
    report = validate(spark, repo, expectations, functions=functions)
    assert report.passed, str(report)
    assert len(report.results) == 21
    assert report.snapshot_id == repo.lookup_branch("main")


def test_every_kind_of_expectation_that_does_not_hold(spark: SparkSession, tmp_path: Path) -> None:
    wrong = weather()
    wrong["t2m"][5, 1, 2] = 999.0
    wrong["time"] = TIMES[[0, 1, 2, 3, 3, 5, 6, 7]]
    del wrong["t2m"].attrs["units"]
    repo = new_repo(tmp_path / "repo", wrong)
    report = validate(
        spark,
        repo,
        [
            InRange("t2m", low=200, high=350),
            MissingAtMost("rain", share=0.01),
            Monotonic("time"),
            Monotonic("lat", direction="increasing"),
            GapFree("time", step="1D"),
            NoDuplicates("time", severity="warning"),
            HasUnits("t2m"),
            HasAttributes("/", attributes=["source"]),
            HasAttributes("/", attributes={"title": "climate"}),
            BlockCheck("t2m", function="is_cold", name="nothing burns"),
            InRange("snow", low=0),
        ],
        functions={"is_cold": lambda block: block < 900},
    )
    assert not report.passed
    assert [each.passed for each in report.results] == [False] * 11
    in_range, missing, monotonic, falling, gaps, twice, units, source, title, burns, none = (
        report.results
    )
    assert in_range.detail == "1 of 192 values is outside of 200 to 350: 999"
    (example,) = in_range.examples
    assert example.index == (5, 1, 2)
    assert example.coordinates == {"time": "2020-01-06", "lat": "50.0", "lon": "20.0"}
    assert example.value == 999.0
    assert missing.detail == "10 of 192 values are missing (5.21%); at most 1.00% may be missing"
    assert missing.examples[0].value is None
    assert monotonic.examples[0].index == (4,)
    assert falling.failing == 3
    assert [each.index for each in gaps.examples] == [(4,), (5,)]
    assert (twice.failing, twice.verdict) == (1, "warning")
    assert units.detail == source.detail.replace("source", "units") == "has no attribute 'units'"
    assert title.detail == "attribute 'title' is 'weather', expected 'climate'"
    assert burns.title == "nothing burns"
    assert none.detail.startswith("no array is at 'snow'")
    assert len(report.failures) == 10
    assert report.warnings == (twice,)


def test_a_report_as_data_text_and_page(spark: SparkSession, tmp_path: Path) -> None:
    wrong = weather()
    wrong["t2m"][5, 1, 2] = 999.0
    wrong["t2m"].attrs["units"] = "<b>K</b>"
    repo = new_repo(tmp_path / "repo", wrong)
    expectations = [InRange("t2m", high=350), HasUnits("t2m", units="K"), Monotonic("time")]
    report = validate(spark, repo, expectations)
    report.write(tmp_path / "reports", "weather")
    data = json.loads((tmp_path / "reports" / "weather.json").read_bytes())
    assert data["passed"] is False
    assert ValidationReport.from_data(data) == report
    text = (tmp_path / "reports" / "weather.txt").read_text()
    assert "failed  /t2m  in range: 1 of 192 values is outside of 350 and less: 999" in text
    assert "at [5, 1, 2] (time=2020-01-06, lat=50.0, lon=20.0): 999" in text
    page = (tmp_path / "reports" / "weather.html").read_text()
    assert "failing cells over lat (down) and lon (across)" in page
    assert "failing cells along time" in page
    assert '<rect x="16" y="8"' in page  # lon 2, lat 1
    assert "<b>K" not in page  # text of data is text
    assert "<html" not in report._repr_html_()


def test_chunks_whose_statistics_tell_enough_are_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = new_repo(tmp_path / "repo", weather())
    expectations = [InRange(("t2m", "rain"), high=290), MissingAtMost("rain", share=0.5)]
    before = validate(spark, repo, expectations)
    compute_statistics(spark, repo)
    after = validate(spark, repo, expectations)
    assert (before.chunks_read, before.chunks_skipped) == (12, 0)
    # Of the packed array, the last chunks have values above 290 and are read.
    assert 0 < after.chunks_read < 6
    assert after.chunks_skipped == 12 - after.chunks_read
    strip = [(r.passed, r.cells, r.failing, r.detail, r.examples) for r in before.results]
    assert strip == [(r.passed, r.cells, r.failing, r.detail, r.examples) for r in after.results]
    # Too much is missing: now chunks with missing values are read, to show where.
    few = validate(spark, repo, [MissingAtMost("rain", share=0.01)])
    assert not few.passed
    assert few.results[0].where is not None
    assert 0 < few.chunks_read < 6


def test_equal_to_another_version_reads_only_what_was_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = new_repo(tmp_path / "repo", weather())
    repo.create_tag("v1", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    t2m = zarr.open_array(session.store, path="t2m")
    t2m[0, 0, 0] += 3
    session.commit("a correction of 0.3")
    near = [
        EqualTo("t2m", version="v1", absolute=0.31),
        EqualTo("t2m", version="v1", relative=0.002),
        EqualTo("t2m", version="v1"),
        EqualTo("t2m", version="v1", absolute=0.29),
        EqualTo("rain", version="v1"),
    ]
    report = validate(spark, repo, near)
    assert [each.passed for each in report.results] == [True, True, False, False, True]
    assert report.results[2].examples[0].index == (0, 0, 0)
    assert report.chunks_read == 4  # one chunk for each comparison of t2m
    assert report.chunks_skipped == 4 * 5 + 6


def test_longer_arrays_are_equal_as_far_as_both_have_cells(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = new_repo(tmp_path / "repo", weather())
    repo.create_tag("v1", repo.lookup_branch("main"))
    more = weather().isel(time=[6, 7])
    more["time"] = more["time"] + np.timedelta64(2, "D")
    commit(repo, more, append_dim="time")
    assert validate(spark, repo, [EqualTo(("t2m", "rain", "time"), version="v1")]).passed
    # An array that the other version does not have, and one that was replaced by another kind.
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("wind", shape=(2,), dtype="f4")
    del root["rain"]
    root.create_array("rain", shape=(2,), dtype="f4")
    session.commit("more")
    report = validate(spark, repo, [EqualTo(("wind", "rain"), version="v1")])
    assert [each.detail for each in report.results] == [
        "cannot be compared with v1: another number of dimensions",
        "v1 has no such array",
    ]


def test_what_makes_no_sense_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    repo = new_repo(tmp_path / "repo", weather())

    def refused(expectation: Any, message: str, error: type[Exception] = InvalidInputError) -> None:
        functions = {"wrong": lambda block: block}
        with pytest.raises(error, match=message):
            validate(spark, repo, [expectation], functions=functions)

    with pytest.raises(InvalidInputError, match="low, high or both; found neither"):
        InRange("t2m")
    refused(Monotonic("t2m"), "coordinates of one dimension.*time: 8, lat: 4, lon: 6")
    refused(BlockCheck("t2m", function="other"), "no function is called 'other'.*wrong")
    refused(BlockCheck(("t2m", "lat"), function="wrong"), "arrays of one shape")
    refused(InRange("time", low="yesterday"), "a time such as")
    refused("t2m > 0", "an expectation is one of InRange")
    refused(BlockCheck("t2m", function="wrong"), "returns True or False", TaskFailedError)
    refused(GapFree("time", step="6 parsecs"), "a step is a number and one of", TaskFailedError)
    refused(InRange("t2m", low="2020-01-01"), "no times of the usual calendar", TaskFailedError)
