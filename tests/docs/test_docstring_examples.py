"""The examples in docstrings run and print what they say, and the most used names have one."""

from __future__ import annotations

import doctest
import importlib
import pydoc
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
NEEDS_A_CLUSTER = "icefloe.spark."

NEED_FILES = {
    "icefloe.virtual.datasets",
    "icefloe.ingest.local",
    "icefloe.ingest.log",
    "icefloe.ingest.place",
    "icefloe.ingest.planner",
    "icefloe.ingest.read",
}
"""Their examples start from files, and are run by `test_virtual_examples.py`."""

NAMES = (
    # what most programs call
    "Repository",
    "Repository.create",
    "Repository.open",
    "Repository.open_or_create",
    "Repository.readonly_session",
    "Repository.writable_session",
    "Repository.transaction",
    "Session",
    "Session.store",
    "Session.commit",
    "Session.rebase",
    "Session.status",
    "Session.read_region",
    "Session.write_region",
    "Session.set_virtual_refs",
    "Session.fork",
    "Session.merge",
    "ForkSession",
    # history, branches
    "Repository.ancestry",
    "Repository.diff",
    "Repository.diff_values",
    "Repository.blame",
    "Repository.create_branch",
    "Repository.create_tag",
    "Repository.merge",
    "Repository.cherry_pick",
    "Repository.revert",
    # upkeep
    "Repository.expire_snapshots",
    "Repository.garbage_collect",
    "Repository.compact",
    "Repository.verify",
    "Repository.lease",
    "Repository.chunk_storage_stats",
    # around arrays, files and clusters
    "dask.store_dask",
    "distributed.merge_sessions",
    "spark.compute_statistics",
    "spark.copy",
    "spark.ingest",
    "spark.local_session",
    "spark.map_blocks",
    "spark.rechunk",
    "spark.reduce",
    "spark.register",
    "spark.table",
    "spark.write",
    "spark.write_table",
    "tables.scan",
    "virtual.reference_files",
    "xarray.to_icefloe",
    # places and settings
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestSet",
    "ManifestSplitCondition",
    "ManifestSplittingConfig",
    "RepositoryConfig",
    "S3StaticCredentials",
    "Storage",
    "StorageSettings",
    "VirtualChunkContainer",
    "azure_credentials",
    "containers_credentials",
    "gcs_credentials",
    "in_memory_storage",
    "local_filesystem_storage",
    "s3_credentials",
    "s3_storage",
    "s3_store",
    "split_storage",
)


def modules_with_examples() -> list[str]:
    modules = (
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((SOURCE / "icefloe").rglob("*.py"))
        if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)
    )
    return [
        name for name in modules if not name.startswith(NEEDS_A_CLUSTER) and name not in NEED_FILES
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_name_has_an_example(name: str) -> None:
    thing = pydoc.locate(f"icefloe.{name}")
    assert thing is not None, name
    assert ">>>" in (thing.__doc__ or "")
