"""Sessions on their way to worker processes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark.engine.worker import SessionSpec, ignore_codec_warnings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(tmp_path / "repo")
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i4")
    array[:] = [1, 2, 3, 4]
    session.commit("numbers")
    return repo


def test_sessions_of_one_repository_share_it_in_a_worker(repo: icefloe.Repository) -> None:
    reader = SessionSpec.of(repo.readonly_session("main"))
    writer = SessionSpec.of(repo.writable_session("main"))
    assert reader.context == writer.context
    opened, part = reader.open(), writer.open_part()
    assert opened.tree.context is part.tree.context
    assert (opened.read_only, part.read_only) == (True, False)
    assert np.array_equal(opened.read_region("a"), [1, 2, 3, 4])


def test_the_repository_is_pickled_once(repo: icefloe.Repository, tmp_path: Path) -> None:
    folder = str(tmp_path / "repo").encode()
    for session in (repo.readonly_session("main"), repo.writable_session("main")):
        spec = SessionSpec.of(session)
        assert folder in spec.context
        assert folder not in spec.session


def test_parts_are_independent_and_see_new_arrays(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="b", shape=(2,), chunks=(1,), dtype="i4")
    spec = SessionSpec.of(session)
    first, second = spec.open_part(), spec.open_part()
    first.write_region("b", slice(0, 1), 7)
    assert list(first.tree.written_chunks()) == ["/b"]
    assert second.tree.written_chunks() == {}


def test_a_repository_in_memory_is_refused() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="workers cannot see the repository"):
        SessionSpec.of(repo.readonly_session("main"))


def test_warnings_of_user_processes_are_left_alone() -> None:
    before = list(warnings.filters)
    ignore_codec_warnings()
    assert warnings.filters == before


def test_workers_of_spark_ignore_warnings_about_codecs_from_their_first_task_on() -> None:
    code = """
import sys, types, warnings
before = list(warnings.filters)
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="pyspark.worker")
from icefloe.spark.engine.tasks import TaskOutput, run_item
ours = lambda: [f for f in warnings.filters if f[1] is not None and "Numcodecs" in f[1].pattern]
assert not ours(), "set by an import"
list(run_item(0, lambda: [TaskOutput()], may_retry=False))
assert len(ours()) == 1
list(run_item(1, lambda: [TaskOutput()], may_retry=False))
assert len(ours()) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
