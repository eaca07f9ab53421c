"""Repositories and runners that the tests of the command line share."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from icefloe.cli.app import make_app
from icefloe.repository import Repository
from tests.cli.repositories import weather_repository
from tests.cli.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class CommandLine:
    """Runs commands in this process, without a terminal."""

    def __init__(self) -> None:
        self._app = make_app()

    def run(self, *arguments: object, code: int = 0) -> str:
        """Standard output of a command that ends with a code; standard error if it is not 0."""
        result = CliRunner().invoke(self._app, [str(each) for each in arguments])
        assert result.exit_code == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result.stdout if code in (0, 1) else result.stderr

    def json(self, *arguments: object, code: int = 0) -> Any:
        """What a command prints with `--json`."""
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture(scope="session")
def icefloe() -> CommandLine:
    return CommandLine()


@pytest.fixture(scope="session")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that tests only read."""
    folder = tmp_path_factory.mktemp("read-only") / "weather"
    weather_repository(folder)
    return folder


@pytest.fixture
def changed(weather: Path, tmp_path: Path) -> Path:
    """A copy of the same repository, which a test may change."""
    return shutil.copytree(weather, tmp_path / "changed")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in a folder of its own, with the command `icefloe`."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux, which makes a real terminal, is not installed")
    terminal = Terminal(tmp_path)
    terminal.type(f'icefloe() {{ "{sys.executable}" -m icefloe.cli "$@"; }}; clear')
    yield terminal
    terminal.close()


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ICEFLOE_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-configuration"))
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def tip(place: Path, branch: str = "main") -> str:
    return Repository.open(place).lookup_branch(branch)
