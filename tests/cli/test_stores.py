"""Commands on every generation of the format, and on an object store by alias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe import Repository
from icefloe.formats.registry import GENERATIONS
from tests.endpoints.fixtures import S3Endpoint, fresh_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import CommandLine

READING = [
    ["log", "--all"],
    ["tree"],
    ["ls"],
    ["diff", "v1", "main"],
    ["diff", "v1", "main", "--values"],
    ["blame", "surface/t2m"],
    ["branch", "list"],
    ["tag", "list"],
]


def told(icefloe: CommandLine, place: object, words: list[str]) -> list[dict[str, Any]]:
    """What a command says, without ids, which migrations may change."""
    at = 2 if words[0] in ("branch", "tag") else 1
    rows = icefloe.json(*words[:at], place, *words[at:])
    return [
        {key: value for key, value in row.items() if not key.endswith(("id", "ids", "_chunks"))}
        for row in rows
    ]


@pytest.mark.parametrize("generation", sorted(GENERATIONS.keys() - {"repository"}))
def test_commands_say_the_same_of_every_generation(
    icefloe: CommandLine, weather: Path, tmp_path: Path, generation: str
) -> None:
    copy = tmp_path / generation
    icefloe.run("migrate", weather, copy, "--generation", generation)
    for words in READING:
        assert told(icefloe, copy, words) == told(icefloe, weather, words), words
    tip = Repository.open(copy).lookup_branch("fix")
    assert icefloe.json("show", copy, tip[:8])["commit"]["message"] == "Correct the calibration"
    icefloe.run("expire", copy, "--keep-last", 1, "--yes")
    icefloe.run("gc", copy, "--older-than", "0m", "--yes")
    assert "no problems found" in icefloe.run("verify", copy)


@pytest.mark.endpoint
def test_a_bucket_is_used_by_alias_with_credentials_of_the_environment(
    icefloe: CommandLine,
    weather: Path,
    tmp_path: Path,
    s3_endpoint: S3Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[places.cloud]\nurl = "s3://{s3_endpoint.bucket}/{fresh_prefix()}"\n'
        f'endpoint_url = "{s3_endpoint.endpoint_url}"\nregion = "{s3_endpoint.region}"\n'
        "allow_http = true\nforce_path_style = true\n"
    )
    monkeypatch.setenv("ICEFLOE_CONFIG", str(config))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_endpoint.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_endpoint.secret_access_key)
    icefloe.run("clone", weather, "cloud")
    assert told(icefloe, "cloud", ["log", "--all"]) == told(icefloe, weather, ["log", "--all"])
    icefloe.run("export", "cloud", tmp_path / "plain")
    status = icefloe.run("status", "cloud") + icefloe.run("alias")
    assert s3_endpoint.secret_access_key not in status
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "no credentials" in icefloe.run("log", "cloud", code=2)
