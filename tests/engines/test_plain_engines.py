"""Spark, DuckDB and Polars query the manifests of a dataset, with no icefloe in their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.spark.engine.local import find_java_home
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
    session.tree.set_document("/", group())
    session.tree.set_document("/group", group())
    session.tree.set_document("/group/temperature", array_document((5, 2), (1, 1)))
    session.tree.set_document("/time", array_document((400,), (1,)))
    for row, column in np.ndindex(5, 2):
        session.tree.set_chunk("/group/temperature", (row, column), bytes(10 + row + column))
    for place in range(400):
        session.tree.set_chunk("/time", (place,), b"t")
    session.commit("one")
    session = repo.writable_session("main")
    session.tree.set_chunk("/group/temperature", (4, 1), bytes(100))
    session.commit("two")
    return folder


def ask(question: str, engine: str, folder: Path) -> Any:
    """The answer of an engine in a process of its own."""
    pytest.importorskip({"spark": "pyspark"}.get(engine, engine))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    if engine == "spark" and (java_home := find_java_home()) is not None:
        environment["JAVA_HOME"] = str(java_home)
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), question, engine, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("engine", ["duckdb", "polars", "spark"])
def test_an_engine_needs_no_icefloe(dataset: Path, engine: str) -> None:
    found = ask("chunks", engine, dataset)
    reader = Repository.open(str(dataset)).readonly_session("main")
    table = reader.tree.chunk_table("/group/temperature")
    assert table is not None
    refs = {tuple(c): r for c, r in zip(table.index.tuples(), table.refs.tolist(), strict=True)}
    assert found["chunks"] == {"/group/temperature": 10, "/time": 400}
    assert found["bytes"] == {str(ref.file): ref.length for ref in refs.values()}
    assert found["region"] == sorted(str(refs[row, col].file) for row in (2, 3) for col in (0, 1))


@pytest.fixture(scope="module")
def widened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose schema became wide, and that then lost the array that needed it."""
    folder = tmp_path_factory.mktemp("widened")
    repo = Repository.create(str(folder), generation="dataset")
    for document in (
        {"/": group(), "/a": array_document((10,), (1,))},
        {"/a": array_document((2**40,), (1,)), "/b": array_document((3,), (1,))},
        {"/a": array_document((20,), (1,))},
    ):
        session = repo.writable_session("main")
        for path, text in document.items():
            session.tree.set_document(path, text)
        if "/b" in document:
            session.tree.set_chunk("/a", (2**40 - 1,), b"far out")
        session.commit("next")
    return folder


@pytest.mark.parametrize("engine", ["duckdb", "polars", "pyarrow", "spark"])
def test_an_engine_reads_all_structure_files_at_once(widened: Path, engine: str) -> None:  # H-02
    """Files from before the schema was widened too, with the schema of the newest one."""
    found = ask("shapes", engine, widened)
    assert found == {"/a": [[10], [20], [2**40]], "/b": [[3]]}
