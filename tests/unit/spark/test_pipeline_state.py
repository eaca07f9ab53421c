"""What a run of a pipeline takes as done, from what commits say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.ingest.log import IngestedFile, record_ingested
from icefloe.spark.publishing.pipeline_file import load_pipeline
from icefloe.spark.publishing.pipeline_run import PIPELINE, _PipelineRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = """
name: derived
target: {repository: target}
steps:
  - {do: copy, source: source, group: in}
  - {do: map_blocks, function: f, inputs: in/a, blocks: xarray, output: out/a}
  - {do: reduce, array: in/a, how: sum, by: labels, output: out/sum}
"""


def commit(repo: icefloe.Repository, act: Callable[[Any], None], **metadata: Any) -> None:
    session = repo.writable_session("main")
    act(zarr.open_group(session.store))
    session.commit("a commit", metadata=metadata, allow_empty=True)


def create(root: Any, *names: str) -> None:
    for name in names:
        root.create_array(name, data=np.arange(4), chunks=(2,), dimension_names=("time",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.yaml").write_text(FILE)
    return tmp_path


def new_run(folder: Path) -> _PipelineRun:
    no_spark: Any = None
    return _PipelineRun(no_spark, load_pipeline(folder / "pipeline.yaml"), {}, progress=None)


def states(folder: Path) -> list[str]:
    return [step.detail for step in new_run(folder).plan().steps]


def finish(repo: icefloe.Repository, run: _PipelineRun) -> dict[str, Any]:
    """Commit what the steps of a run would: marks of their results."""
    entries = {step.label: run._entry(step) for step in run._pipeline.steps}
    commit(repo, lambda root: None, **{PIPELINE: run._mark(entries)})
    return entries


def test_steps_are_repeated_if_what_they_read_was_deleted(folder: Path) -> None:
    source, target = (
        icefloe.Repository.create(str(folder / name)) for name in ("source", "target")
    )
    commit(source, lambda root: create(root, "a"))
    commit(target, lambda root: create(root, "in/a", "in/time", "in/labels", "labels"))
    finish(target, new_run(folder))
    assert states(folder) == ["up to date"] * 3
    commit(target, lambda root: root.__delitem__("in/labels"))  # those of the root count now
    assert states(folder) == ["up to date", "up to date", "would run"]
    finish(target, new_run(folder))
    commit(target, lambda root: root.__delitem__("in/time"))
    assert states(folder) == ["up to date", "would run", "would run"]


def test_a_plan_counts_the_files_that_the_group_of_a_step_lacks(tmp_path: Path) -> None:
    """The entries of these files are read by their keys, and not the complete table."""
    (tmp_path / "pipeline.yaml").write_text(
        "name: daily\ntarget: {repository: target, containers: [data]}\n"
        "sources: {days: {files: data/*.nc}}\n"
        "steps: [{do: ingest, source: days, group: a/}, {do: ingest, source: days, group: b}]\n"
    )
    target = icefloe.Repository.create(str(tmp_path / "target"))
    (tmp_path / "data").mkdir()
    for day in range(3):
        (tmp_path / "data" / f"{day}.nc").write_bytes(b"CDF")
    session = target.writable_session("main")
    for group, days in {"/a": 2, "/b": 1}.items():
        urls = [(tmp_path / "data" / f"{day}.nc").as_uri() for day in range(days)]
        entries = [IngestedFile(url, "netcdf3", "copy", "ingested", "2026") for url in urls]
        zarr.create_group(session.store, path=group)
        record_ingested(session, group, entries)
    session.commit("ingested")
    assert states(tmp_path) == ["3 files, 1 of them new", "3 files, 2 of them new"]


def test_a_run_copies_one_version_of_a_source(folder: Path) -> None:
    source, target = (
        icefloe.Repository.create(str(folder / name)) for name in ("source", "target")
    )
    commit(source, lambda root: create(root, "a"))
    commit(target, lambda root: create(root, "in/a", "labels"))
    run = new_run(folder)
    entries = finish(target, run)
    target.create_branch("pipeline-derived", target.lookup_branch("main"))
    commit(source, lambda root: create(root, "b"))  # while the run goes on
    assert run._joint_mark(target)["steps"] == entries
    assert states(folder)[0] == "would run"
