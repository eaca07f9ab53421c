"""The web viewer and the command line on repositories of the official package."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import make_app
from icefloe.viewer.answers import Answers
from icefloe.viewer.sampling import Plane
from tests.conformance.official.packages import Place, create_official

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
VALUES = np.arange(48, dtype="f4").reshape(6, 8)


@pytest.fixture
def tips(local_place: Place, spec_version: int) -> list[str]:
    """Commits of the official package, newest first: arrays, a branch and a tag, a move."""
    repo = create_official(local_place, spec_version)
    session = repo.writable_session("main")
    root = zarr.group(session.store, attributes={"title": "official"})
    array = root.create_array(
        "g/t", shape=(6, 8), chunks=(3, 4), dtype="f4", dimension_names=["y", "x"]
    )
    array[:] = VALUES
    array.attrs["scale_factor"] = 2.0
    tips = [session.commit("first", metadata={"source": {"model": 1}})]
    repo.create_branch("dev", tips[0])
    repo.create_tag("v1", tips[0])
    session = repo.writable_session("main")
    zarr.open_group(session.store)["g/t"][0] = -1
    tips.insert(0, session.commit("second"))
    if spec_version == 2:
        session = repo.rearrange_session("main")
        session.move("/g/t", "/g/moved")
        tips.insert(0, session.commit("third"))
    return tips


def test_the_viewer(local_place: Place, tips: list[str], spec_version: int) -> None:
    answers = Answers(icefloe.Repository.open(local_place.ours()))
    path = "/g/moved" if spec_version == 2 else "/g/t"
    summary = answers.summary()
    assert (summary["generation"], summary["spec_version"]) == ("icechunk", spec_version)
    assert (summary["branches"], summary["tags"]) == (["main", "dev"], ["v1"])
    commits = answers.history("", 10)["commits"]
    assert [str(commit.id) for commit in commits[:-1]] == tips
    pages = answers.history("", 1)
    assert str(answers.history(pages["next"], 1)["commits"][0].id) == tips[1]
    assert [node["path"] for node in answers.tree("main")["nodes"]] == ["/", "/g", path]
    assert answers.commit(tips[-1])["properties"] == {"source": {"model": 1}}
    assert answers.commit(tips[-2])["changes"]
    assert answers.changes("v1", "main")["changes"]
    node = answers.node("main", path)
    assert node["metadata"]["attributes"] == {"scale_factor": 2.0}
    assert node["bytes"]["inlined"] + node["bytes"]["native"] > 0
    assert answers.sizes("main", "/")["arrays"][0]["path"] == path
    assert answers.chunks("main", path, 0, 1)["share"] == [1.0] * 4
    plane = Plane(0, 1, (0, 0))
    picture = answers.picture("v1", "/g/t", plane)
    assert np.array_equal(_numbers(picture), VALUES * 2)
    if spec_version == 1:
        changed = answers.difference("v1", "main", path, plane)
        assert changed["changed"] == 8


def _numbers(answer: dict[str, Any]) -> Any:
    shape = (answer["height"], answer["width"])
    return np.frombuffer(base64.b64decode(answer["values"]), "<f8").reshape(shape)


@pytest.mark.usefixtures("local_place")
def test_commands(tmp_path: Path, tips: list[str], spec_version: int) -> None:
    app, place = make_app(), str(tmp_path / "repo")

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [arguments[0], place, *arguments[1:], "--json"])
        assert result.exit_code == 0, result.stdout + result.stderr
        return json.loads(result.stdout)

    log = run("log")
    assert [commit["id"] for commit in log[:-1]] == tips
    assert log[-2]["tags"] == ["v1"]
    array = "/g/moved" if spec_version == 2 else "/g/t"
    assert array in json.dumps(run("tree"))
    assert "/g/t" in json.dumps(run("tree", "--version", "v1"))
    status = json.dumps(run("status"))
    assert "icechunk" in status
    assert "dev" in status
    assert run("show", tips[-1])["commit"]["properties"] == {"source": {"model": 1}}
    assert array in json.dumps(run("diff", "v1", "main"))
    assert not run("verify")["problems"]
    for command in ("log", "tree", "status", "verify"):
        result = CliRunner().invoke(app, [command, place])
        assert result.exit_code == 0, result.stdout + result.stderr
        assert result.stdout.strip()
