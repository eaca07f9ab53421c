"""The formats that engine tests run on: how to create a repository in each, and where things lie.

A module whose tests hold for every generation says so with

    pytestmark = pytest.mark.usefixtures("each_generation")

and creates its repositories with `new_repository` of `tests.builders`, or with
`Repository.create(..., **how())`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import detect, format_for
from icefloe.model.ids import ChunkFileId
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe import Repository
    from icefloe.storage.port import Storage

OFFICIAL_FORMATS: dict[str, dict[str, Any]] = {
    "icechunk": {"generation": "icechunk", "spec_version": 2},
    "icechunk1": {"generation": "icechunk", "spec_version": 1},
}
"""Arguments of `Repository.create` by a short name.

The suites of all generations run on these in the deep profile only, as `make test` would take too
long. What it runs: their codecs, references and damage, crash points and other faults, budgets,
and `tests/conformance/official` with the official package itself.
"""
FORMATS: dict[str, dict[str, Any]] = {
    "columns": {"spec_version": 2},
    "rows": {"spec_version": 1},
    "store": {"generation": "store"},
    "dataset": {"generation": "dataset"},
    **(OFFICIAL_FORMATS if IS_DEEP else {}),
}
"""Arguments of `Repository.create` by a short name."""
EVERY_FORMAT: dict[str, dict[str, Any]] = {**FORMATS, **OFFICIAL_FORMATS}
"""Those of the official package in every profile, for tests about them."""
ALL_GENERATIONS = ("repository", "store", "dataset", "icechunk")
GENERATIONS = ALL_GENERATIONS if IS_DEEP else ALL_GENERATIONS[:-1]

_chosen = ["repository"]


def how(*, is_old: bool = False) -> dict[str, Any]:
    """Arguments of `Repository.create` for the generation that a test runs on now.

    In the first version of its format if that is_old.
    """
    return {"generation": _chosen[-1]} | ({"spec_version": 1} if is_old else {})


@contextlib.contextmanager
def chosen(generation: str) -> Iterator[None]:
    """Let tests run on a generation."""
    _chosen.append(generation)
    try:
        yield
    finally:
        _chosen.pop()


@pytest.fixture(scope="module", params=GENERATIONS)
def each_generation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tests that use this run on every generation."""
    with chosen(request.param):
        yield request.param


def keeps_logs() -> bool:
    """Whether the generation keeps logs, which also tell of chunks that were written as they were.

    Without logs, what a commit changed is what differs from its parent.
    """
    return format_for(_chosen[-1]).keeps_logs


def needs_manifest_sets() -> None:
    """Skip a test of arrays that share a manifest, where each has manifests of its own."""
    if not format_for(_chosen[-1]).keeps_manifest_sets:
        pytest.skip("arrays share no manifests in this generation")


def needs_moves(repository: Repository) -> None:
    """Skip a test that moves nodes, where the format cannot record moves."""
    if not records_moves(repository):
        pytest.skip("version 1 of the official format cannot record moves")


def records_moves(repository: Repository) -> bool:
    """Whether nodes can be moved: everywhere but in version 1 of the official format."""
    return (repository.generation, repository.spec_version) != ("icechunk", 1)


@contextlib.contextmanager
def wide_ids() -> Iterator[None]:
    """Name new chunk files by 16 bytes, as other implementations may in the oldest generations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkFileId, "random", lambda: ChunkFileId(os.urandom(ChunkFileId.WIDE_SIZE)))
        yield


# --- where things lie

_KINDS = {
    "snapshots": ObjectKind.SNAPSHOT,
    "transactions": ObjectKind.TRANSACTION_LOG,
    "manifests": ObjectKind.MANIFEST,
    "attributes": ObjectKind.ATTRIBUTES,
    "chunks": ObjectKind.CHUNK_FILE,
}
_REFERENCES = {"repository": "refs/", "store": "r/", "dataset": "state.json", "icechunk": "repo"}
PUBLISHING = {
    "repository": "create",
    "store": "create",
    "dataset": "replace",
    "icechunk": "replace",
}
"""The operation that makes a commit visible, by generation."""


def folder(name: str, generation: str | None = None) -> str:
    """What the keys of the objects start with that have their folder by this name in `repository`.

    `refs` is what the keys of references start with.
    """
    generation = generation or _chosen[-1]
    if name == "refs":
        return _REFERENCES[generation]
    kind = _KINDS.get(name)
    return f"{name}/" if kind is None else format_for(generation).layout.folder(kind)


def folder_in(storage: Storage, name: str) -> str:
    """The same for a repository that is there."""
    found = detect(storage)
    assert found is not None
    return folder(name, found.name)
