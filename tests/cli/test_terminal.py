"""The command line in a real terminal (tmux): colours, questions, width, progress, prompt."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from icefloe import Repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.terminals import Terminal


def test_the_log_has_colours_and_a_graph(terminal: Terminal, weather: Path) -> None:
    screen = terminal.run(f"icefloe log {weather} --all")
    assert "├─╯" in screen
    assert "ended-0-" in screen
    coloured = terminal.screen(escapes=True)
    assert "\x1b[35m" in coloured  # magenta ids
    assert re.search(r"\x1b\[32m(\x1b\[49m)? +main", coloured)  # green branches
    terminal.run(f"NO_COLOR=1 icefloe log {weather} > plain; grep -c $'\\x1b' plain")
    assert "\n0\n" in terminal.screen()


def test_colours_can_be_read_on_light_backgrounds(terminal: Terminal, weather: Path) -> None:
    terminal.run(f"icefloe log {weather} --all; icefloe tree {weather}; icefloe status {weather}")
    terminal.run("icefloe log --help; icefloe")
    drawn = terminal.screen(escapes=True)
    codes = {code for each in re.findall(r"\x1b\[([\d;]+)m", drawn) for code in each.split(";")}
    assert {"2", "31", "32", "35", "36"} <= codes
    # No yellow, no white and nothing bright; what is dimmed has no colour besides.
    assert not codes & {"33", "37", *map(str, range(90, 98))}
    assert not re.search(r"\x1b\[(0;)?2m(\x1b\[49m)?\x1b\[3[1-8]m", drawn)


def test_dangerous_commands_show_what_they_would_do_and_ask(
    terminal: Terminal, changed: Path
) -> None:
    words = f"icefloe branch delete {changed} draft"
    terminal.type(f"{words}; echo ended-$?-")
    screen = terminal.wait_for("Delete the branch draft? [y/N]")
    assert "Write March\n" in screen
    terminal.type("no")
    assert "nothing was done" in terminal.wait_for("ended-7-")
    assert "draft" in Repository.open(changed).list_branches()
    terminal.type(f"clear; {words}; echo finished-$?-")
    terminal.wait_for("Delete the branch draft? [y/N]")
    terminal.type("y")
    terminal.wait_for("finished-0-")
    assert "draft" not in Repository.open(changed).list_branches()


def test_a_prompt_has_the_repository_ready(terminal: Terminal, weather: Path) -> None:
    terminal.type(f"icefloe open {weather} v1")
    terminal.wait_for("repo, session and store are ready.")
    terminal.type("print(sorted(repo.list_branches()), session.mode)")
    terminal.wait_for("['draft', 'fix', 'main'] readonly")
    terminal.type("exit()")


def test_ctrl_c_ends_with_130(terminal: Terminal, changed: Path) -> None:
    terminal.type(f"icefloe branch delete {changed} draft; echo ended-$?-")
    terminal.wait_for("[y/N]")
    terminal.press("C-c")
    assert "Traceback" not in terminal.wait_for("ended-130-")


SHELLS = {
    "bash": ("bash --norc --noprofile", "source <(_ICEFLOE_COMPLETE=source_bash icefloe)"),
    "zsh": (
        "zsh -f",
        "autoload -Uz compinit; compinit -u; source <(_ICEFLOE_COMPLETE=source_zsh icefloe)",
    ),
    "fish": ("fish --no-config", "_ICEFLOE_COMPLETE=source_fish icefloe | source"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_commands_and_branches(
    terminal: Terminal, weather: Path, tmp_path: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    start, source = SHELLS[shell]
    script = tmp_path / "bin" / "icefloe"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m icefloe.cli "$@"\n')
    script.chmod(0o755)
    terminal.type(f"unset -f icefloe; cd {weather.parent}; PATH={script.parent}:$PATH {start}")
    terminal.type(f"{source}; clear; echo rea''dy")
    terminal.wait_for("ready")
    terminal.press("icefloe cherr", "Tab")
    terminal.wait_for("icefloe cherry-pick")
    terminal.press("C-c")
    terminal.press(f"icefloe log ./{weather.name} dra", "Tab")
    terminal.wait_for(f"icefloe log ./{weather.name} draft")
