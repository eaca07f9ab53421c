from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.official.packages import SPEC_VERSIONS, Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a repository will be: local files, or S3 on loopback."""
    endpoint = request.getfixturevalue("s3_endpoint") if request.param == "s3" else None
    return Place(tmp_path, endpoint)


@pytest.fixture
def local_place(tmp_path: Path) -> Place:
    """Where a repository will be, on local files."""
    return Place(tmp_path, None)


@pytest.fixture(params=SPEC_VERSIONS)
def spec_version(request: pytest.FixtureRequest) -> int:
    """Each version of the format that the installed official package has."""
    return int(request.param)
