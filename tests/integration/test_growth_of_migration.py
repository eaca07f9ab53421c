"""References of a migrated repository: work and requests for each do not follow their number."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import Repository
from icefloe.errors import AlreadyExistsError
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import detect, format_for
from icefloe.model.ids import SnapshotId
from icefloe.testing.faults import FaultyStorage
from tests.formats import OFFICIAL_FORMATS

if TYPE_CHECKING:
    from icefloe.model.snapshot import Snapshot

FORMATS: dict[str, dict[str, Any]] = {
    "repository": {"generation": "repository"},
    "store": {"generation": "store"},
    "dataset": {"generation": "dataset"},
    **OFFICIAL_FORMATS,
}
FEW, MANY = 25, 100


def target_of(name: str) -> tuple[FaultyStorage, Any, Snapshot]:
    """The objects of a repository with one snapshot and no references, as a migration has them."""
    memory = icefloe.in_memory_storage()
    repo = Repository.create(memory, **FORMATS[name])
    snapshot = repo._context.files.read_snapshot(SnapshotId.parse(repo.lookup_branch("main")))
    generation = detect(memory)
    assert generation == format_for(**FORMATS[name])
    kept = generation.layout.folder(ObjectKind.SNAPSHOT)
    keys = [info.key for info in memory.list("")]
    memory.delete_many([key for key in keys if not key.startswith(kept)])
    return FaultyStorage(memory), generation, snapshot


def cost_of(name: str, count: int) -> tuple[int, int]:
    """Requests, and calls of functions, to publish so many branches and as many tags."""
    storage, generation, snapshot = target_of(name)
    snapshot_id = snapshot.id
    branches = {f"branch-{number}": snapshot_id for number in range(count)}
    tags = {f"tag-{number}": snapshot_id for number in range(count)}
    refs = generation.make_refs(storage)
    calls = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    storage.trace.clear()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        refs.create_all({"main": snapshot_id, **branches}, tags, [snapshot])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    requests = len(storage.trace)
    again = generation.make_refs(storage)
    assert again.branches() == {"main", *branches}
    assert again.tag_targets() == tags
    return requests, calls


@pytest.mark.parametrize("name", FORMATS)
def test_references_are_published_in_time_that_follows_their_number(name: str) -> None:
    few, many = cost_of(name, FEW), cost_of(name, MANY)
    for before, after in zip(few, many, strict=True):
        assert after <= before * MANY / FEW * 1.1


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "icechunk"])
def test_a_second_try_finishes_and_names_that_are_hard_to_tell_apart_are_refused(name: str) -> None:
    storage, generation, snapshot = target_of(name)
    snapshot_id = snapshot.id
    generation.make_refs(storage).create_all({"main": snapshot_id}, {"v1": snapshot_id})
    generation.make_refs(storage).create_all(
        {"main": snapshot_id, "dev": snapshot_id}, {"v1": snapshot_id, "v2": snapshot_id}
    )
    refs = generation.make_refs(storage)
    assert (refs.branches(), refs.tags()) == ({"main", "dev"}, {"v1", "v2"})
    for tags in ({"V1": snapshot_id}, {"w": snapshot_id, "W": snapshot_id}):
        with pytest.raises(AlreadyExistsError, match="only in case or accents"):
            refs.create_all({"main": snapshot_id}, tags)
