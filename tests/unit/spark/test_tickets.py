"""What options and descriptions of sessions can do, and what they show."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, cast

import pytest

import icefloe
from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.spark import register_storage_provider
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.tables.options import SourceOptions

if TYPE_CHECKING:
    from pathlib import Path


def test_options_name_registered_providers_and_never_import(tmp_path: Path) -> None:
    loads = f"!!python/object/apply:os.mkdir [{tmp_path / 'made'}]"
    for name in (
        "yaml:unsafe_load",
        "os:system",
        "icefloe.storage.probe:probe",
        "theirs",
    ):
        options = SourceOptions({"path": loads, "storage-provider": name}, {"ours": b""})
        with pytest.raises(InvalidInputError, match=r"no storage provider.*registered: 'ours'"):
            options.location()
    assert not (tmp_path / "made").exists()


def test_a_registered_provider_makes_the_storage(tmp_path: Path) -> None:
    icefloe.Repository.create(tmp_path / "repo")
    providers = {"files": pickle.dumps(icefloe.local_filesystem_storage)}
    options = SourceOptions(
        {"path": str(tmp_path / "repo"), "storage-provider": "files"}, providers
    )
    assert options.location().open().list_branches() == {"main"}


@pytest.mark.parametrize("name", ["", "a b", "module:function", "x" * 101, None])
def test_names_of_providers_are_plain_words(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="name of a storage provider"):
        register_storage_provider(cast("Any", None), name, icefloe.local_filesystem_storage)


def test_a_provider_is_a_function() -> None:
    with pytest.raises(InvalidTypeError, match="found str"):
        register_storage_provider(cast("Any", None), "a", cast("Any", "yaml:unsafe_load"))


def test_descriptions_of_sessions_show_no_pickles(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(tmp_path / "repo")
    for session in (repo.readonly_session("main"), repo.writable_session("main")):
        spec = SessionSpec.of(session)
        assert spec.open().snapshot_id == session.snapshot_id
        assert repr(spec) == f"SessionSpec({spec.snapshot_id}, writable={not session.read_only})"
