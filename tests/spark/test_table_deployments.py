"""Tables on Spark Connect and on a cluster of two executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.programs import run_program

PROGRAM = Path(__file__).parent / "program_tables.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["connect", "local-cluster"])
def test_tables_elsewhere(kind: str, tmp_path: Path) -> None:
    assert run_program(PROGRAM, kind, str(tmp_path), timeout=800).strip().endswith("done")
