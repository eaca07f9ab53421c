"""`icefloe run`: a pipeline in a terminal, with everything that may be wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from icefloe import Repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import CommandLine
    from tests.cli.terminals import Terminal

FILE = """
name: weather
target: {repository: repo, create: true, containers: [data]}
sources: {days: {files: data/*.nc}}
steps: [{do: ingest, source: days, mode: copy}]
expectations: [{expect: in_range, arrays: t, high: 60}]
"""


def test_a_pipeline_is_run_in_a_terminal_and_says_what_it_did(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    part = xr.Dataset({"t": ("time", np.array([10.0, 99.0]))}, {"time": [0, 1]})
    part.to_netcdf(tmp_path / "data" / "0.nc", format="NETCDF3_64BIT")
    (tmp_path / "pipeline.yaml").write_text(FILE)
    terminal.type("icefloe run pipeline.yaml --json > told.json; echo ended-$?-")
    terminal.wait_for("running weather")  # while it takes a while
    screen = terminal.wait_for("ended-1-", 280)  # it worked, and the answer is no
    # Nothing but our own warning: those of Java and bars of Spark are not for people.
    lines = [line for line in screen.splitlines() if line and not line.startswith("$")]
    assert len(lines) == 2, screen
    told, end = lines
    assert told.startswith("publish: pipeline-weather failed validation, see the branch ")
    assert end == "ended-1-"
    report = json.loads((tmp_path / "told.json").read_text())
    assert report["status"] == "failed"
    assert report["validation"]["results"][0]["failing"] == 1
    repo = Repository.open(str(tmp_path / "repo"))
    assert repo.list_branches() == {"main", report["quarantine"]}


def test_what_is_wrong_is_said_before_spark_is_started(
    icefloe: CommandLine, tmp_path: Path
) -> None:
    place = tmp_path / "pipeline.yaml"
    assert "there is no pipeline file" in icefloe.run("run", place, code=2)
    place.write_text(FILE.replace("do: ingest", "do: digest"))
    assert f"{place}, line 5, steps[0].do: Invalid value" in icefloe.run("run", place, code=2)
    step = "{do: map_blocks, function: f, inputs: t, output: u}"
    place.write_text(FILE.replace("mode: copy}]", f"mode: copy}}, {step}]"))
    error = icefloe.run("run", place, code=2)
    assert "steps[1].function of the pipeline names the function 'f': run it in Python" in error
    place.write_text(FILE)
    refused = icefloe.run("run", place, "--master", "local", "--remote", "sc://x", code=2)
    assert "--master or --remote, not both" in refused
    assert not (tmp_path / "repo").exists()
