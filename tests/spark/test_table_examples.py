"""The examples in the docstrings of the functions for tables, run on Spark."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
import icefloe.spark
import icefloe.tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NAMES = ["compute_statistics", "register", "register_functions", "table", "write_table"]


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """Temperatures over 3 times and 4 latitudes, in chunks of one time."""
    made = icefloe.Repository.create(str(tmp_path / "weather"))
    session = made.writable_session("main")
    group = zarr.create_group(session.store)

    def add(name: str, values: np.ndarray, dims: list[str], chunks: tuple[int, ...]) -> None:
        array = group.create_array(
            name, shape=values.shape, chunks=chunks, dtype=values.dtype, dimension_names=dims
        )
        array[...] = values

    add("time", np.arange(3), ["time"], (3,))
    add("lat", np.array([30.0, 40.0, 50.0, 60.0]), ["lat"], (4,))
    temperatures = np.array(
        [[290, 291, 292, 293], [305, 304, 303, 302], [301, 300, 299, 298]], "f4"
    )
    add("t2m", temperatures, ["time", "lat"], (1, 4))
    session.commit("weather")
    return made


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_docstrings_print_what_they_say(
    spark: SparkSession, repo: icefloe.Repository, name: str
) -> None:
    function = getattr(icefloe.spark, name)
    known = {"icefloe": icefloe, "spark": spark, "repo": repo, "url": repo.storage.location}
    (example,) = [
        found
        for found in doctest.DocTestFinder(recurse=False).find(function, name, globs=known)
        if found.examples
    ]
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.attempted > 0
    assert result.failed == 0
