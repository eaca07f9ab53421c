"""The command line in a real terminal (tmux): colours, questions, width, progress, prompt."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from icefloe import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux, which makes a real terminal, is not installed"
)


class Terminal:
    """A terminal of tmux on a server of its own."""

    def __init__(self, folder: Path, columns: int = 100) -> None:
        self._socket = f"icefloe-{uuid.uuid4().hex}"
        self._marks = 0
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "50",
            "-c", str(folder), "env", "PS1=$ ", "bash", "--norc", "--noprofile",
        )  # fmt: skip

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self._socket, *words],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def screen(self, *, escapes: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-", *(["-e"] if escapes else []))

    def wait_for(self, text: str) -> str:
        """The screen as soon as it has a text."""
        deadline = time.monotonic() + 90
        while text not in (screen := self.screen()):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def run(self, line: str) -> str:
        """The screen when a command has ended."""
        self._marks += 1
        self.type(f"{line}; echo ended-$?-{self._marks}-")
        return self.wait_for_end()

    def wait_for_end(self) -> str:
        deadline = time.monotonic() + 90
        while True:
            screen = self.screen()
            ends = [each for each in screen.splitlines() if each.startswith("ended-")]
            if len(ends) == self._marks:
                return screen
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    terminal.type(f'icefloe() {{ "{sys.executable}" -m icefloe.cli "$@"; }}; clear')
    yield terminal
    terminal.close()


def test_the_log_has_colours_and_a_graph(terminal: Terminal, weather: Path) -> None:
    screen = terminal.run(f"icefloe log {weather} --all")
    assert "├─╯" in screen
    assert "ended-0-" in screen
    coloured = terminal.screen(escapes=True)
    assert "\x1b[33m" in coloured  # yellow ids
    assert re.search(r"\x1b\[32m(\x1b\[49m)? +main", coloured)  # green branches
    terminal.run(f"NO_COLOR=1 icefloe log {weather} > plain; grep -c $'\\x1b' plain")
    assert "\n0\n" in terminal.screen()


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
    terminal._tmux("send-keys", "C-c")
    assert "Traceback" not in terminal.wait_for("ended-130-")
