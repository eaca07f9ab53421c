"""Draw docs/pictures/cli-*.svg: what commands print in a terminal, run on a real repository.

Ids and times are replaced by the same ones each time, so that the pictures change only when the
commands do. A test compares them.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cli.repositories import weather_repository  # noqa: E402

PICTURES = {
    "cli-log": ["log", "weather", "--all"],
    "cli-tree": ["tree", "weather", "--sizes"],
    "cli-status": ["status", "weather"],
}
SHORT_IDS = ["8ZQ4W1KT", "C5F0XH7R", "3NMBV6YD", "TJ2SAE9P", "QW7K4G1X", "H0D8RZ5C", "1CECHNKR"]
ABOUT_TERMINALS = {"COLORTERM", "NO_COLOR", "LINES"}
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
THEME = TerminalTheme(
    (24, 28, 36),
    (220, 223, 228),
    [(40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239),
     (198, 120, 221), (86, 182, 194), (220, 223, 228)],
)  # fmt: skip


def draw() -> dict[str, str]:
    """The pictures by name."""
    with tempfile.TemporaryDirectory() as folder:
        # The log of operations names the host and the process, and columns are as wide as these.
        with patch("socket.gethostname", lambda: "host"), patch("os.getpid", lambda: 4711):
            repository = weather_repository(Path(folder) / "weather", pause=0.05)
        ids = [row.id for row in repository.ancestry_graph().rows]
        return {
            name: picture(words, output(words, Path(folder)), ids)
            for name, words in PICTURES.items()
        }


def output(words: list[str], folder: Path) -> str:
    """What a command prints in a terminal."""
    inherited = {name: value for name, value in os.environ.items() if name not in ABOUT_TERMINALS}
    return subprocess.run(
        [sys.executable, "-m", "icefloe.cli", *words],
        cwd=folder,
        env=inherited | TERMINAL | {"XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def picture(words: list[str], printed: str, ids: list[str]) -> str:
    for snapshot_id, short in zip(ids, SHORT_IDS, strict=True):
        printed = printed.replace(snapshot_id, short + "X" * 12).replace(snapshot_id[:8], short)
    printed = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-01-31 12:00", printed)
    printed = re.sub(r"file:///\S*/weather", "file:///data/weather", printed)
    lines = [Text.from_ansi(line) for line in printed.splitlines()]
    for line in lines:
        line.rstrip()
    prompt = Text("$ ", style="dim").append(" ".join(["icefloe", *words]), style="bold")
    width = max(len(line) for line in [prompt, *lines]) + 1
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(prompt, *lines, sep="\n")
    return console.export_svg(title="icefloe", theme=THEME, unique_id=f"icefloe-{words[0]}")


def path_of(name: str) -> Path:
    return ROOT / "docs" / "pictures" / f"{name}.svg"


if __name__ == "__main__":
    for name, svg in draw().items():
        path_of(name).write_text(svg)
