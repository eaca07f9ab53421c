"""What options and descriptions of sessions can do, and what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark.tables.places import Place
from icefloe.spark.worker import SessionSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["os:system", "importlib.util:find_spec", "no_such_module:f"])
def test_providers_are_no_way_to_run_anything(name: str) -> None:
    with pytest.raises(InvalidInputError, match="storage-provider"):
        Place("true", provider=name).open()


def test_descriptions_of_sessions_show_no_pickles(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path / "repo")
    for session in (repo.readonly_session("main"), repo.writable_session("main")):
        spec = SessionSpec.of(session)
        assert spec.open().snapshot_id == session.snapshot_id
        assert repr(spec) == f"SessionSpec({spec.snapshot_id}, writable={not session.read_only})"
