"""The examples in the docstrings of `icefloe.virtual` run."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from scipy.io import netcdf_file

import icefloe
import icefloe.virtual

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    "Difference",
    "FileAttribute",
    "ParseOptions",
    "Policies",
    "ingested_files",
    "plan_files",
    "read_file",
    "read_header",
    "reference_files",
    "references",
    "write_virtual",
)


def write_month(path: Path, times: list[int]) -> None:
    with netcdf_file(str(path), "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createVariable("time", "i4", ("time",))[:] = np.array(times)
        file.createVariable("x", "i4", ("x",))[:] = np.arange(3)
        file.createVariable("rain", "f4", ("time", "x"))[:] = np.ones((len(times), 3))


@pytest.fixture
def scope(tmp_path: Path) -> dict[str, Any]:
    write_month(tmp_path / "jan.nc", [0, 1])
    write_month(tmp_path / "feb.nc", [2, 3])
    with h5py.File(tmp_path / "march.h5", "w") as file:
        file["rain"] = [[1.0, 2.0]]
    prefix = f"{tmp_path.as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={prefix: None}
    )
    return {"session": repository.writable_session("main"), "prefix": prefix}


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, scope: dict[str, Any]) -> None:
    text = getattr(icefloe.virtual, name).__doc__
    test = doctest.DocTestParser().get_doctest(text, scope, name, None, None)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_public_name_says_what_it_is() -> None:
    for name in icefloe.virtual.__all__:
        assert getattr(icefloe.virtual, name).__doc__
