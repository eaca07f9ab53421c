"""Every public name of the installed official package is one of icefloe's, or has a reason."""

from __future__ import annotations

import inspect

import icechunk
import pytest

import icefloe
from tests.architecture.test_official_2_3 import DEVIATIONS


def test_every_public_name_is_there_or_has_a_reason() -> None:
    if icechunk.__version__.startswith("1."):
        pytest.skip("1.x has its own list: tests/architecture/test_api_parity.py")
    names = {
        name
        for name, value in vars(icechunk).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    absent = {name for name in names if not hasattr(icefloe, name)}
    assert absent - set(DEVIATIONS) == set()
