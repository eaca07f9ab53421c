"""Spark, DuckDB and Polars query the manifests of a dataset, with no icefloe in their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.spark.java import find_java_home
from icefloe.testing.generations import array_document, split_every
from tests.documents import group

PROGRAMS = Path(__file__).with_name("programs.py")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose array of temperatures has two chunk files for each of 5 leading indices."""
    folder = tmp_path_factory.mktemp("dataset")
    config = RepositoryConfig(manifest=split_every(300), inline_chunk_threshold_bytes=4)
    config.chunk_packing = icefloe.ChunkPackingConfig(max_chunk_bytes=0)
    repo = Repository.create(str(folder), config, generation="dataset")
    session = repo.writable_session("main")
    session.set_document("/", group())
    session.set_document("/group", group())
    session.set_document("/group/temperature", array_document((5, 2), (1, 1)))
    session.set_document("/time", array_document((400,), (1,)))
    for row, column in np.ndindex(5, 2):
        session.set_chunk("/group/temperature", (row, column), bytes(10 + row + column))
    for place in range(400):
        session.set_chunk("/time", (place,), b"t")
    session.commit("one")
    session = repo.writable_session("main")
    session.set_chunk("/group/temperature", (4, 1), bytes(100))
    session.commit("two")
    return folder


@pytest.mark.parametrize("engine", ["duckdb", "polars", "spark"])
def test_an_engine_needs_no_icefloe(dataset: Path, engine: str) -> None:
    pytest.importorskip({"spark": "pyspark"}.get(engine, engine))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if engine == "spark" and (java_home := find_java_home()) is not None:
        environment["JAVA_HOME"] = str(java_home)
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), engine, str(dataset)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=dataset,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    reader = Repository.open(str(dataset)).readonly_session("main")
    table = reader.chunk_table("/group/temperature")
    assert table is not None
    refs = {tuple(c): r for c, r in zip(table.index.tuples(), table.refs.tolist(), strict=True)}
    assert found["chunks"] == {"/group/temperature": 10, "/time": 400}
    assert found["bytes"] == {str(ref.file): ref.length for ref in refs.values()}
    assert found["region"] == sorted(str(refs[row, col].file) for row in (2, 3) for col in (0, 1))
