"""What the documentation and the help of the command line say is so."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from icefloe.cli.app import make_app
from scripts import draw_cli_pictures, write_cli_reference

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "command-line.md"


def all_commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(make_app())
    commands = {}
    for name, command in root.commands.items():
        members = getattr(command, "commands", None)
        if members is None:
            commands[name] = command
        else:
            commands |= {f"{name} {member}": each for member, each in members.items()}
    return commands


NAMED_BY_THE_ISSUE = """
    init clone open log show tree ls diff merge cherry-pick revert squash publish blame status stats
    expire gc verify repair compact rewrite-manifests materialize migrate export ingest sql run ui
""".split()  # noqa: SIM905


def test_all_commands_are_there() -> None:
    commands = all_commands()
    assert set(NAMED_BY_THE_ISSUE) <= set(commands)
    assert {"branch list", "branch create", "tag create", "tag delete", "config set"} <= set(
        commands
    )


def test_every_command_has_json_help_and_examples() -> None:
    for name, command in all_commands().items():
        options = {option for each in command.params for option in each.opts}
        assert {"--json", "--quiet", "--debug"} <= options, name
        assert command.help, name
        assert f"icefloe {name}" in command.epilog, name
        assert all(each.help for each in command.params), name


def examples() -> list[str]:
    return [
        line
        for command in all_commands().values()
        for line in command.epilog.split("\n\n")
        if line.startswith("icefloe")
    ]


@pytest.mark.parametrize("line", examples())
def test_examples_of_the_help_are_understood(icefloe: CommandLine, line: str) -> None:
    text = icefloe.run(*shlex.split(line)[1:], "--help")
    assert "Examples:" in text


def test_the_reference_page_is_that_of_the_commands() -> None:
    assert write_cli_reference.PAGE.read_text() == write_cli_reference.page(), "run `make cli`"


def test_the_pictures_are_what_commands_print() -> None:
    # In a process of its own: what is drawn depends on ids that are made in a certain order.
    code = (
        "import json; from scripts import draw_cli_pictures as pictures; "
        "print(json.dumps(pictures.draw()))"
    )
    drawn = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name, svg in json.loads(drawn.stdout).items():
        assert draw_cli_pictures.path_of(name).read_text() == svg, f"{name}: run `make cli`"


def test_the_page_on_the_command_line_works(
    icefloe: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if language == "python":
            exec(code, {})
        if language != "sh":
            continue
        for line in code.splitlines():
            words = shlex.split(line.replace("FOLDER", f"{tmp_path.as_uri()}/"))
            assert words[0] == "icefloe"
            icefloe.run(*words[1:])
            ran += 1
    assert ran > 25
