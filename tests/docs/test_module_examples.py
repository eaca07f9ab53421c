"""The examples in docstrings of modules that need neither a cluster nor a network."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        ("icefloe.cf.decoding", 2),
        ("icefloe.cf.times", 2),
        ("icefloe.dask", 8),
        ("icefloe.distributed", 10),
        ("icefloe.progress", 1),
        ("icefloe.xarray", 7),
    ],
)
def test_examples_give_what_they_say(name: str, examples: int) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0
    assert results.attempted >= examples
