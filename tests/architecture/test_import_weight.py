"""What importing icefloe loads, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import zarr

import icefloe

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


UNUSED_BY_READERS = (
    "icefloe.changes.conflicts",
    "icefloe.config.plain_tree",
    "icefloe.config.safe_yaml",
    "icefloe.config.serialization",
    "icefloe.engine.branches",
    "icefloe.engine.commit",
    "icefloe.engine.operation_log",
    "icefloe.engine.retention",
    "icefloe.engine.user_references",
    "icefloe.formats.dataset",
    "icefloe.formats.store",
    "icefloe.objects.foreign",
    "icefloe.packing",
    "icefloe.storage.access.credentials",
    "icefloe.storage.object_store",
    "icefloe.upkeep",
)
"""Rooms and modules that a process does without which opens a local repository and reads."""

MODULES_OF_A_READER = 109
"""How many modules of ours such a process loads at most; each takes a third of a millisecond."""


def loaded_after(statements: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after some statements."""
    return {name.split(".")[0] for name in modules_after(statements)}


def modules_after(statements: str) -> set[str]:
    """All modules that a fresh interpreter has loaded after some statements."""
    code = f"{statements}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
    )
    return set(json.loads(done.stdout))


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


def test_a_cold_process_that_reads_an_array_loads_what_it_needs(tmp_path: Path) -> None:
    """No clock, but what the clock would measure: names and number of the modules."""
    repo = icefloe.Repository.create(str(tmp_path))
    session = repo.writable_session("main")
    values = zarr.create_array(session.store, name="a", shape=(100,), chunks=(25,), dtype="f4")
    values[:] = np.arange(100)
    session.commit("values")
    zarr_alone = modules_after("import zarr")
    loaded = modules_after(
        "import icefloe, zarr\n"
        f"repo = icefloe.Repository.open({str(tmp_path)!r})\n"
        "store = repo.readonly_session('main').store\n"
        "assert zarr.open_array(store, path='a', mode='r')[:].sum() == 4950\n"
    )
    ours = {name for name in loaded if name.split(".")[0] == "icefloe"}
    needless = {
        name
        for name in ours
        if any(f"{name}.".startswith(f"{each}.") for each in UNUSED_BY_READERS)
    }
    assert needless == set()
    assert len(ours) <= MODULES_OF_A_READER
    libraries = {name.split(".")[0] for name in loaded - zarr_alone - ours}
    assert libraries - sys.stdlib_module_names == {"msgspec"}


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


def test_loading_modules_does_not_run_the_garbage_collector(tmp_path: Path) -> None:
    """It would look at all that zarr has loaded: a third of the time of a short script."""
    icefloe.Repository.create(str(tmp_path))
    code = (
        "import gc, icefloe, zarr\n"
        "runs = lambda: [each['collections'] for each in gc.get_stats()]\n"
        "before = runs()\n"
        f"icefloe.Repository.open({str(tmp_path)!r}).readonly_session('main').store\n"
        "young, middle, full = (now - then for now, then in zip(runs(), before, strict=True))\n"
        "assert young <= 4 and middle <= 1 and full == 0, (young, middle, full)\n"
        "assert gc.isenabled()\n"
        "gc.disable()\n"
        "icefloe.GCSummary\n"
        "assert not gc.isenabled()\n"
    )
    modules_after(code)
