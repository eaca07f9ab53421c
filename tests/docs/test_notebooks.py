"""Every notebook of the examples runs from its first cell to its last, and shows its pictures.

The cells run in IPython's shell in this process, without the messages of a kernel: libraries are
loaded once for all notebooks, and the one for Spark uses the Spark of the other tests.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import pytest
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PRINTED = {
    "el-nino": "cells changed",
    "version-control": "/tas: 72520 cells changed",
    "spark-and-sql": "2 files, 480 references",
}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    for name in ("displayhook", "excepthook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # restored afterwards
    module = ModuleType("notebook_under_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    shell = InteractiveShell(
        user_module=module,
        config=Config(HistoryManager={"enabled": False, "hist_file": ":memory:"}),
    )
    yield shell
    plt.close("all")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:pyspark.*")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(
    notebook: Path,
    shell: InteractiveShell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shown: list[dict[str, Any]] = []
    shell.display_trap.hook = CapturingDisplayHook(shell, shown)
    pictures = 0
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"])).raise_error()
            for number in plt.get_fignums():
                plt.figure(number).savefig(picture := io.BytesIO())
                pictures += len(picture.getvalue()) > 10_000
                plt.close(number)
    assert pictures
    kinds = {kind for output in shown for kind in output["data"]}
    assert "text/html" in kinds or "image/svg+xml" in kinds
    assert PRINTED[notebook.stem] in capsys.readouterr().out


def test_notebooks_are_listed_and_kept_without_outputs() -> None:
    page = (ROOT / "docs" / "tutorial" / "notebooks.md").read_text()
    assert [notebook.stem for notebook in NOTEBOOKS] == sorted(PRINTED)
    for notebook in NOTEBOOKS:
        assert notebook.relative_to(ROOT).as_posix() in page
        cells = json.loads(notebook.read_text())["cells"]
        assert [cell for cell in cells if cell.get("outputs")] == []
