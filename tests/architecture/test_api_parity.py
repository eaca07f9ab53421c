"""What signatures do not show: defaults, numbers of enums, async forms, kinds of members.

Facts about the official package, 1.1.21, recorded as data; `test_public_api.py` compares names and
parameters. Differences are listed with their reasons, and a reason that is not needed any more
fails.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import icefloe
from icefloe import (
    ChunkType,
    CompressionAlgorithm,
    ConflictType,
    ForkSession,
    IcechunkError,
    IcechunkStore,
    IcefloeStore,
    Repository,
    Session,
    VersionSelection,
)

CLASSES: dict[str, type] = {
    "Repository": Repository,
    "Session": Session,
    "ForkSession": ForkSession,
    "IcechunkStore": IcechunkStore,
}

ASYNC_FORMS = {
    "Repository": """
        chunk_storage_stats create create_branch create_tag delete_branch delete_tag diff exists
        expire_snapshots fetch_config garbage_collect inspect_snapshot list_branches list_tags
        lookup_branch lookup_snapshot lookup_tag open open_or_create readonly_session reopen
        reset_branch rewrite_manifests save_config total_chunks_storage writable_session
    """,
    "Session": "all_virtual_chunk_locations chunk_type commit flush merge rebase amend move",
    "ForkSession": "all_virtual_chunk_locations chunk_type commit flush merge rebase amend move",
    "IcechunkStore": "set_virtual_ref set_virtual_refs set_virtual_refs_arr",
}
"""Methods with an `_async` form; `amend`, `move` and `set_virtual_refs_arr` are of 2.x."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "Repository.inspect_snapshot": {"pretty": True},
    "Repository.expire_snapshots": {
        "delete_expired_branches": False,
        "delete_expired_tags": False,
    },
    "Repository.garbage_collect": {
        "dry_run": False,
        "max_snapshots_in_memory": 50,
        "max_compressed_manifest_mem_bytes": 512 * 1024 * 1024,
        "max_concurrent_manifest_fetches": 500,
    },
    "Repository.chunk_storage_stats": {
        "max_snapshots_in_memory": 50,
        "max_compressed_manifest_mem_bytes": 512 * 1024 * 1024,
        "max_concurrent_manifest_fetches": 500,
    },
    "Repository.transaction": {"rebase_tries": 1000, "metadata": None, "rebase_with": None},
    "Repository.create": {"config": None, "authorize_virtual_chunk_access": None},
    "Repository.readonly_session": {"branch": None, "tag": None, "as_of": None},
    "Repository.reset_branch": {"from_snapshot_id": None},
    "Session.chunk_coordinates": {"batch_size": 1000},
    "Session.commit": {"metadata": None, "rebase_with": None, "rebase_tries": 1000},
    "Session.flush": {"metadata": None},
    "IcechunkStore.set_virtual_ref": {"checksum": None, "validate_container": True},
    "IcechunkStore.set_virtual_refs": {"validate_containers": True},
    "IcechunkStore.with_read_only": {"read_only": False},
}

PROPERTIES = {
    "Repository": "authorized_virtual_container_prefixes config storage",
    "Session": "branch config has_uncommitted_changes read_only snapshot_id store",
    "IcechunkStore": "session supports_consolidated_metadata supports_deletes supports_listing"
    " supports_partial_writes supports_writes",
}

CLASS_METHODS = {"create", "open", "open_or_create"}
STATIC_METHODS = {"exists", "fetch_config"}

ENUMS: dict[type, dict[str, int]] = {
    ChunkType: {"UNINITIALIZED": 0, "NATIVE": 1, "VIRTUAL": 2, "INLINE": 3},
    VersionSelection: {"Fail": 0, "UseOurs": 1, "UseTheirs": 2},
    CompressionAlgorithm: {"Zstd": 0},
    ConflictType: {
        "NewNodeConflictsWithExistingNode": 1,
        "NewNodeInInvalidGroup": 2,
        "ZarrMetadataDoubleUpdate": 3,
        "ZarrMetadataUpdateOfDeletedArray": 4,
        "ZarrMetadataUpdateOfDeletedGroup": 5,
        "ChunkDoubleUpdate": 6,
        "ChunksUpdatedInDeletedArray": 7,
        "ChunksUpdatedInUpdatedArray": 8,
        "DeleteOfUpdatedArray": 9,
        "DeleteOfUpdatedGroup": 10,
    },
}

OURS_ALONE = {ConflictType: {"MoveOfChangedNode"}}
"""Members beyond the official ones: 1.x cannot move nodes."""


def pairs() -> list[tuple[str, str]]:
    return [(owner, method) for owner, methods in ASYNC_FORMS.items() for method in methods.split()]


@pytest.mark.parametrize(("owner", "method"), pairs(), ids=lambda value: value)
def test_every_method_that_waits_has_an_async_form(owner: str, method: str) -> None:
    plain, twin = getattr(CLASSES[owner], method), getattr(CLASSES[owner], f"{method}_async")
    assert inspect.iscoroutinefunction(twin)
    assert not inspect.iscoroutinefunction(plain)
    if owner != "ForkSession":
        assert list(inspect.signature(twin).parameters) == list(inspect.signature(plain).parameters)


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_defaults_are_the_official_ones(name: str) -> None:
    owner, _, method = name.partition(".")
    parameters = inspect.signature(getattr(CLASSES[owner], method)).parameters
    ours = {parameter: parameters[parameter].default for parameter in DEFAULTS[name]}
    assert ours == DEFAULTS[name]


@pytest.mark.parametrize("owner", sorted(PROPERTIES))
def test_properties_are_properties(owner: str) -> None:
    for name in PROPERTIES[owner].split():
        assert isinstance(inspect.getattr_static(CLASSES[owner], name), property), name


def test_class_and_static_methods() -> None:
    for names, kind in ((CLASS_METHODS, classmethod), (STATIC_METHODS, staticmethod)):
        for name in names:
            for form in (name, f"{name}_async"):
                assert isinstance(inspect.getattr_static(Repository, form), kind), form


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_enums_have_the_official_numbers(enum: Any) -> None:
    ours = {member.name: member.value for member in enum}
    extra = OURS_ALONE.get(enum, set())
    assert {name: value for name, value in ours.items() if name not in extra} == ENUMS[enum]
    assert extra <= set(ours)
    assert len(set(ours.values())) == len(ours)


def test_names_with_the_other_brand_are_aliases() -> None:
    assert IcechunkStore is IcefloeStore
    assert IcechunkError is icefloe.IcefloeError


def test_the_error_tree_of_two_point_one() -> None:
    """In 1.1.21 a conflict is no IcechunkError; there, a handler of both must name both."""
    tree = {
        "ConflictError": "IcechunkError",
        "RebaseFailedError": "ConflictError",
        "NotFoundError": "IcechunkError",
        "NodeNotFoundError": "NotFoundError",
        "SnapshotNotFoundError": "NotFoundError",
        "RefNotFoundError": "NotFoundError",
        "RepositoryNotFoundError": "NotFoundError",
        "AlreadyExistsError": "IcechunkError",
        "ReadOnlyError": "IcechunkError",
        "InvalidInputError": "IcechunkError",
        "SessionStateError": "IcechunkError",
        "StorageError": "IcechunkError",
        "FormatError": "IcechunkError",
    }
    for name, parent in tree.items():
        assert issubclass(getattr(icefloe, name), getattr(icefloe, parent)), name
    assert issubclass(icefloe.NotFoundError, KeyError)
    assert issubclass(icefloe.InvalidInputError, ValueError)


def test_values_have_the_official_fields() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    info = repository.lookup_snapshot("main")
    for name in ("id", "parent_id", "written_at", "message", "metadata", "manifests"):
        assert hasattr(info, name)
    status = repository.writable_session("main").status()
    for name in (
        "new_groups",
        "new_arrays",
        "deleted_groups",
        "deleted_arrays",
        "updated_groups",
        "updated_arrays",
    ):
        assert getattr(status, name) == set()
    assert status.updated_chunks == {}
    assert status.moved_nodes == []
