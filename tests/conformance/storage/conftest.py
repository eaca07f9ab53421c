"""Fixtures of the tests that put a proxy before each object store."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["s3_endpoint", "gcs_endpoint", "azure_endpoint"])
def endpoint(request: pytest.FixtureRequest) -> Any:
    """Each object store on loopback."""
    return request.getfixturevalue(request.param)
