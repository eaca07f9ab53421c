"""A real terminal, by tmux."""

from __future__ import annotations

import subprocess
import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
        self.press(line, "Enter")

    def press(self, *keys: str) -> None:
        """Press keys by the names that tmux has for them, or type a text."""
        for key in keys:
            is_name = key in ("Tab", "Enter") or key.startswith("C-")
            self._tmux("send-keys", *([] if is_name else ["-l"]), key)

    def screen(self, *, escapes: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-", *(["-e"] if escapes else []))

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """The screen as soon as it has a text."""
        deadline = time.monotonic() + seconds
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
