"""What importing icefloe loads, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

CORE = (
    "errors",
    "model",
    "storage",
    "config",
    "changes",
    "packing",
    "formats",
    "objects",
    "engine",
    "upkeep",
)

HEAVY = {"zarr", "numcodecs", "xarray", "dask", "pandas", "pyspark", "pyarrow"}
"""Libraries that the core never needs."""

PARQUET = {
    f"formats/dataset/{name}.py"
    for name in (
        "arrow_schemas",
        "attributes_table",
        "codec",
        "file_names",
        "manifest_table",
        "parquet_files",
        "structure_table",
    )
}
"""The codec of the generation `dataset`, which is loaded with pyarrow when it is first used."""

ON_FIRST_USE = {"obstore", "yaml", "zstandard", "matplotlib", "requests"}
"""Libraries that wait until something needs them, so that a program starts quickly."""


def loaded_after(statements: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after some statements."""
    code = f"{statements}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_import_icefloe_is_light() -> None:
    loaded = loaded_after("import icefloe")
    assert "icefloe" in loaded
    assert loaded & (HEAVY | ON_FIRST_USE) == set()


def test_looking_at_a_repository_loads_neither_zarr_nor_a_client_for_buckets() -> None:
    loaded = loaded_after(
        "import icefloe\n"
        "repo = icefloe.Repository.create(icefloe.in_memory_storage())\n"
        "assert len(list(repo.ancestry(branch='main'))) == 1\n"
        "assert repo.readonly_session('main').snapshot_id\n"
    )
    assert loaded & (HEAVY | ON_FIRST_USE - {"zstandard"}) == set()


def test_no_module_of_the_core_loads_zarr_or_its_kin() -> None:
    modules = [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for part in CORE
        for path in [SOURCE / "icefloe" / f"{part}.py", *(SOURCE / "icefloe" / part).rglob("*.py")]
        if path.exists() and path.relative_to(SOURCE / "icefloe").as_posix() not in PARQUET
    ]
    assert len(modules) > len(CORE)
    statements = "\n".join(f"import {module.removesuffix('.__init__')}" for module in modules)
    assert loaded_after(statements) & HEAVY == set()
