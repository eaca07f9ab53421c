"""Fixtures of the tests that put a proxy before each object store."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["s3_endpoint", "gcs_endpoint", "azure_endpoint"])
def endpoint(request):
    """Each object store on loopback."""
    return request.getfixturevalue(request.param)
