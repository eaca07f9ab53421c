"""The examples in docstrings run and print what they say, and the most used names have one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import icefloe

SOURCE = Path(__file__).parents[2] / "src"
NEEDS_A_CLUSTER = "icefloe.spark."

NAMES = (
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
        if "\n    >>> " in path.read_text()
    )
    return [name for name in modules if not name.startswith(NEEDS_A_CLUSTER)]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_name_has_an_example(name: str) -> None:
    assert ">>>" in (getattr(icefloe, name).__doc__ or "")
