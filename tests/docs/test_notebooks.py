"""Every notebook of the examples runs from its first cell to its last, in a real kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    document = json.loads(notebook.read_text())
    cells = ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    shown: list[str] = []

    def collect(message: dict[str, Any]) -> None:
        content = message["content"]
        shown.extend(content.get("data", {}))
        shown.append(content.get("text", ""))

    try:
        for cell in cells:
            reply = client.execute_interactive(cell, timeout=120, output_hook=collect)
            assert reply["content"]["status"] == "ok", "\n".join(reply["content"]["traceback"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "image/png" in shown
    assert "cells changed" in "".join(shown)


def test_notebooks_are_listed_and_kept_without_outputs() -> None:
    page = (ROOT / "docs" / "tutorial" / "notebooks.md").read_text()
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        assert notebook.relative_to(ROOT).as_posix() in page
        cells = json.loads(notebook.read_text())["cells"]
        assert [cell for cell in cells if cell.get("outputs")] == []
