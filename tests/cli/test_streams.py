"""Standard streams of all kinds: closed, full, read for a while, or in another encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe import Repository

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = f'"{sys.executable}" -m icefloe.cli'
ANY = ["--help", "log {place} --json", "tree {place}"]


def shell(line: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which `icefloe` is the command line and {place} a repository."""
    return subprocess.run(
        ["bash", "-c", f'icefloe() {{ {SCRIPT} "$@"; }}; {line.replace("{place}", str(place))}'],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        timeout=120,
    )


@pytest.mark.parametrize("words", ANY)
@pytest.mark.parametrize("stream", [">&-", "2>&-", "<&-", "| true"])
def test_a_closed_stream_is_no_error(weather: Path, words: str, stream: str) -> None:
    done = shell(f"set -o pipefail; icefloe {words} {stream}", weather)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("words", ANY)
def test_a_full_disk_is_one_sentence(weather: Path, words: str) -> None:
    done = shell(f"icefloe {words} > /dev/full", weather)
    assert done.returncode == 5
    assert done.stderr == ("icefloe: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize("stream", [">&-", "> /dev/full", "| true", "2>&-"])
def test_an_error_has_its_exit_code_wherever_it_is_written(weather: Path, stream: str) -> None:
    done = shell(f"set -o pipefail; icefloe log {{place}}-not --json {stream}", weather)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_other_encodings_get_what_they_can_show(
    weather: Path, tmp_path: Path, encoding: str
) -> None:
    repository = Repository.create(tmp_path / "place")
    with repository.transaction("main", message="Größe × 𝛑 → ∞") as store:
        zarr.create_group(store).create_array("größe", shape=(2, 3), dtype="i1")
    for words in ("--help", "log {place}", "log {place} --all", "tree {place}", "log ./größer"):
        done = shell(f"icefloe {words}", tmp_path / "place", PYTHONIOENCODING=encoding)
        assert "Traceback" not in done.stderr
        assert done.returncode == (3 if "größer" in words else 0)
    graph = shell("icefloe log {place} --all", weather, PYTHONIOENCODING="ascii").stdout
    assert "* " in graph
    assert "|-/" in graph
    text = shell("icefloe log {place} --json", tmp_path / "place", PYTHONIOENCODING=encoding).stdout
    assert json.loads(text)[0]["message"] == "Größe × 𝛑 → ∞"


def test_an_unreachable_server_is_one_sentence_with_logs_on_request(tmp_path: Path) -> None:
    words = "icefloe log http://127.0.0.1:9/nothing"
    done = shell(words, tmp_path)
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert "cannot be reached: Connection refused" in done.stderr
    assert "attempt 1 of 3 failed" in shell(f"{words} --debug", tmp_path).stderr


@pytest.mark.parametrize("module", ["icefloe.cli.app", "icefloe.cli.commit_graph"])
def test_ctrl_c_before_a_command_begins_is_no_traceback(weather: Path, module: str) -> None:
    program = (
        "import sys, types\n"
        "class Interrupted(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        raise KeyboardInterrupt\n"
        f"sys.modules[{module!r}] = Interrupted({module!r})\n"
        f"sys.argv = ['icefloe', 'log', {str(weather)!r}]\n"
        "from icefloe.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "icefloe: interrupted\n")
