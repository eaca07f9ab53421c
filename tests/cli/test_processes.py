"""The script as a process: streams, exit codes, JSON, what it loads, and what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from icefloe.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {"zarr", "numcodecs", "xarray", "dask", "pandas", "pyspark", "pyarrow", "duckdb", "obstore"}


def run(*words: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "icefloe.cli", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def loaded_by(*words: object) -> set[str]:
    """Top-level modules that a command has loaded when it ends."""
    program = (
        "import sys, json, atexit\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['icefloe', *{[str(word) for word in words]!r}]\n"
        "from icefloe.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


def test_the_script_prints_its_version() -> None:
    assert run("--version").stdout == f"icefloe {__version__}\n"


def test_results_go_to_one_stream_and_errors_to_the_other(weather: Path) -> None:
    done = run("log", weather)
    assert "Write February" in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    failed = run("log", weather, "nothing~1", code=3)
    assert failed.stdout == ""
    assert failed.stderr.startswith("icefloe: ")
    assert failed.stderr.count("\n") == 1


def test_programs_get_errors_as_json_too(weather: Path) -> None:
    failed = run("show", weather, "nothing", "--json", code=3)
    error = json.loads(failed.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("snapshot-not-found", 3)
    assert error["message"] in failed.stderr


def test_a_traceback_is_shown_on_request(weather: Path) -> None:
    failed = run("show", weather, "nothing", "--debug", code=3)
    assert "Traceback" in failed.stderr
    assert "SnapshotNotFoundError" in failed.stderr


def test_a_reader_that_has_seen_enough_is_no_error(weather: Path) -> None:
    words = [sys.executable, "-m", "icefloe.cli", "log", str(weather)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.wait(120) == 0
        assert process.stderr.read() == ""


def test_dangerous_commands_refuse_to_ask_without_a_terminal(changed: Path) -> None:
    failed = run("branch", "delete", changed, "draft", code=7)
    assert "no terminal to ask at" in failed.stderr


def test_usage_errors_end_with_2() -> None:
    assert "PLACE" in run("log", code=2).stderr
    assert "No such command" in run("lgo", code=2).stderr


def test_a_usage_error_is_one_sentence_and_json_for_programs() -> None:
    failed = run("clone", "somewhere", "--json", code=2)
    assert failed.stderr == ("icefloe: Missing argument 'TARGET'. See `icefloe clone --help`.\n")
    error = json.loads(failed.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("invalid-input", 2)
    assert error["message"] in failed.stderr
    failed = run("branch", "list", "here", "--jsn", code=2)
    assert failed.stderr.count("\n") == 1
    assert failed.stdout == ""
    assert "Usage: icefloe" in run(code=2).stdout


def test_help_and_log_load_no_heavy_library(weather: Path) -> None:
    assert loaded_by("--help") & (HEAVY | {"numpy"}) == set()
    loaded = loaded_by("log", weather, "--json")
    assert "icefloe" in loaded
    assert loaded & (HEAVY | {"rich", "tqdm"}) == set()


def test_without_the_extra_the_script_says_what_to_install() -> None:
    program = (
        "import sys, importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'typer' else find(name, *a)\n"
        "from icefloe.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert "pip install 'icefloe[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_completion(shell: str) -> None:
    script = run(_ICEFLOE_COMPLETE=f"source_{shell}")
    assert "_ICEFLOE_COMPLETE" in script.stdout


def test_commands_branches_and_aliases_are_completed(weather: Path, tmp_path: Path) -> None:
    def complete(line: str, config: str = "") -> list[str]:
        return run(
            _ICEFLOE_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split(" ")) - 1),
            ICEFLOE_CONFIG=config,
        ).stdout.split()

    assert complete("icefloe che") == ["cherry-pick"]
    assert set(complete(f"icefloe log {weather} ")) == {"draft", "fix", "main", "v1"}
    config = tmp_path / "config.toml"
    config.write_text('[places.weather]\nurl = "/w"\n')
    assert complete("icefloe log w", str(config)) == ["weather"]
    assert complete("icefloe init here --generation d") == ["dataset"]
