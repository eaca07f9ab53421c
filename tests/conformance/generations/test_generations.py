"""Every generation, in every spec version, passes the suite for generations."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe.testing.generations import GenerationTests
from tests.formats import FORMATS


@pytest.mark.parametrize("name", FORMATS)
class TestGenerations(GenerationTests):
    @pytest.fixture
    def how(self, name: str) -> dict[str, Any]:
        return FORMATS[name]
