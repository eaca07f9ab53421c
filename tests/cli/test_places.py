"""Places by alias, the configuration file, and errors for bad input."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from icefloe.cli.exit_codes import ExitCode, exit_code_of
from icefloe.cli.places import PlaceOptions, find_place
from icefloe.errors import CommitStateUnknownError, IcefloeError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import CommandLine


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    monkeypatch.setenv("ICEFLOE_CONFIG", str(path))
    return path


def test_an_alias_names_a_place(
    icefloe: CommandLine, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, tmp_path, f'[places.w]\nurl = "{weather}"\n')
    assert len(icefloe.json("log", "w")) == 5
    [row] = icefloe.json("alias")
    assert row == {"alias": "w", "url": str(weather), "authorize": []}
    assert "config.toml" in icefloe.run("alias")


def test_a_folder_with_the_name_of_an_alias_is_reached_as_a_path(
    icefloe: CommandLine, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, tmp_path, '[places.weather]\nurl = "/nothing"\n')
    monkeypatch.chdir(weather.parent)
    icefloe.run("log", "weather", code=3)
    icefloe.run("log", "./weather")


def test_options_of_an_alias_become_options_of_its_url() -> None:
    alias = PlaceOptions(
        url="s3://bucket/era5", region="eu-central-1", anonymous=True, endpoint_url="http://[::1]:9"
    )
    assert alias.full_url() == (
        "s3://bucket/era5?region=eu-central-1&endpoint_url=http%3A%2F%2F%5B%3A%3A1%5D%3A9"
        "&anonymous=true"
    )
    assert PlaceOptions(url="/a b", durability="none").full_url() == "file:///a%20b?durability=none"
    assert find_place("s3://bucket/x").full_url() == "s3://bucket/x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[places.x]\n", "missing required field `url`"),
        ('[places.x]\nurl = "s3://b/x"\nsecret_key = "k"\n', "unknown field `secret_key`"),
        ("[places.x]\nurl = 3\n", "Expected `str`, got `int`"),
        ('[places."a/b"]\nurl = "x"\n', "the alias 'a/b'"),
        ("[elsewhere]\n", "unknown field `elsewhere`"),
        ("not toml", "cannot be read as TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_that_names_it(
    icefloe: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    reason: str,
) -> None:
    path = configure(monkeypatch, tmp_path, text)
    message = icefloe.run("log", "x", code=2)
    assert message.startswith(f"icefloe: {path} ")
    assert reason in message
    assert message.count("\n") == 1


def test_a_missing_file_is_an_error_only_if_it_was_named(
    icefloe: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "no aliases" in icefloe.run("alias")
    monkeypatch.setenv("ICEFLOE_CONFIG", str(tmp_path / "gone.toml"))
    assert "does not exist" in icefloe.run("alias", code=2)


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["log", "ftp://host/x"], 2, "unknown kind of storage 'ftp'"),
        (["log", "s3://user:secret@bucket/x"], 2, "must not hold credentials"),
        (["log", "s3://bucket/x?key=hunter2"], 2, "unknown options ['key']"),
        (["log", ""], 2, "expected a URL, a path or an alias, found an empty text"),
        (["log", "PLACE", "main~99"], 3, "goes back 99 commits"),
        (["log", "PLACE", "main@{soon}"], 2, "ISO 8601"),
        (["log", "/nothing/here"], 3, "check the path, or create it with `icefloe init`"),
        (["log", "FOLDER/file"], 3, "is a file, not a folder; files such as NetCDF"),
        (["log", "FOLDER"], 3, "is empty; create a repository there with `icefloe init`"),
        (["log", "PLACE/snapshots"], 3, "is a part of a repository: open"),
        (["init", "FOLDER/file"], 5, "is a file, not a folder"),
        (["export", "PLACE", "FOLDER/file"], 5, "is a file, not a folder"),
        (["export", "PLACE", "FOLDER/x", "-g", "/surfce"], 3, "did you mean '/surface"),
        (["log", "PLACE", "mian"], 3, "did you mean 'main'?"),
        (["diff", "PLACE", "main", "drift"], 3, "did you mean 'draft'?"),
        (["ls", "PLACE", "surfce"], 3, "did you mean '/surface"),
        (["ingest", "PLACE", "FOLDER/gone.nc"], 2, "there is no file "),
        (["ingest", "PLACE", "FOLDER/file"], 2, "--add-container adds its folder"),
        (["ingest", "PLACE", "s3://b/x.nc"], 2, "set_virtual_chunk_container"),
        (["ls", "PLACE", "../x"], 2, "path"),
        (["merge", "PLACE", "nothing"], 3, "nothing"),
        (["tag", "create", "PLACE", "main~3"], 2, "cannot be the name of a tag"),
        (["merge", "PLACE", "fix", "-p", "x"], 2, "KEY=VALUE"),
    ],
)
def test_bad_input_is_one_sentence(
    icefloe: CommandLine,
    weather: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    reason: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "top-secret")
    (tmp_path / "folder").mkdir()
    if any("FOLDER/" in word for word in words):
        (tmp_path / "folder" / "file").write_text("a file")
    names = {"PLACE": str(weather), "FOLDER": str(tmp_path / "folder")}
    words = [re.sub("PLACE|FOLDER", lambda found: names[found[0]], word) for word in words]
    message = icefloe.run(*words, code=code)
    assert reason in message
    assert message.count("\n") == 1
    assert "hunter2" not in message
    assert "top-secret" not in message


def all_kinds(root: type[IcefloeError]) -> list[type[IcefloeError]]:
    return [root, *(each for kind in root.__subclasses__() for each in all_kinds(kind))]


@pytest.mark.parametrize("kind", all_kinds(IcefloeError), ids=lambda kind: kind.__name__)
def test_every_error_of_the_library_has_an_exit_code(kind: type[IcefloeError]) -> None:
    assert exit_code_of(kind("message")) in ExitCode
    assert exit_code_of(kind("message")) not in (ExitCode.OK, ExitCode.PROBLEMS)


def test_a_commit_in_doubt_is_a_failure_of_the_storage() -> None:
    assert exit_code_of(CommitStateUnknownError("in doubt")) is ExitCode.STORAGE
