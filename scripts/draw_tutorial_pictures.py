"""Draw the pictures of the tutorials from what their code computes.

PYTHONPATH=. .venv/bin/python scripts/draw_tutorial_pictures.py
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from tests.docs.test_code_blocks import blocks_of

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"


def names_of(page: str) -> dict[str, Any]:
    """Run all Python blocks of a tutorial in the current folder."""
    module = ModuleType("tutorial")
    sys.modules[module.__name__] = module  # so that its functions can be pickled
    for block in blocks_of((ROOT / "docs" / "tutorial" / page).read_text()):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(block.code, vars(module))
    return vars(module)


def main() -> None:
    mpl.use("Agg")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        graph = names_of("first-steps.md")["repo"].ancestry_graph().to_svg()
        (PICTURES / "tutorial-history.svg").write_text(graph)

        names_of("files-to-sql.md")
        (PICTURES / "tutorial-monthly.png").write_bytes(Path("monthly.png").read_bytes())

        rows = names_of("sql-over-arrays.md")["monthly"].collect()
        figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
        for lat in sorted({row.lat for row in rows}):
            line = sorted((row.month, row["mean"], row.highest) for row in rows if row.lat == lat)
            months, means, highest = zip(*line, strict=True)
            drawn = axis.plot(months, means, marker="o", label=f"{lat:.0f}°N, mean")
            axis.plot(months, highest, ls=":", color=drawn[0].get_color(), label="highest")
        axis.set(xlabel="month", ylabel="temperature, K", xticks=(1, 2, 3))
        axis.legend(fontsize=8)
        figure.savefig(PICTURES / "tutorial-sql.png", dpi=110)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
