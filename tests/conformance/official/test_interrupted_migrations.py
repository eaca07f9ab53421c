"""Migrations from version 1 to 2 by the official package that ended at any point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from tests.conformance.official.packages import (
    IS_NEW,
    Place,
    agree,
    create_official,
    icechunk,
    verify_files,
)

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(not IS_NEW, reason="versions before 2 cannot upgrade a repository"),
]
LEFT = {
    "everything": ("refs/", "config.yaml"),
    "main alone": ("refs/branch.main/",),
    "all but main": ("refs/branch.dev/", "refs/tag.", "config.yaml"),
    "the configuration": ("config.yaml",),
    "nothing": (),
}
"""What of version 1 an interrupted cleanup left beside `repo`."""


def contents(storage: Storage) -> dict[str, bytes]:
    return {info.key: storage.get(info.key) for info in storage.list()}


def put(repo: Any, value: int, branch: str = "main") -> str:
    session = repo.writable_session(branch)
    zarr.open_group(session.store)["x"][value] = value
    return str(session.commit(f"{value}"))


def version_1(place: Place) -> dict[str, bytes]:
    """The files of a repository of version 1: branches, tags, one deleted, a configuration."""
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 3
    theirs = create_official(place, 1, config)
    session = theirs.writable_session("main")
    zarr.group(session.store).create_array("x", shape=(8,), chunks=(2,), dtype="i8")[:] = 0
    first = session.commit("start")
    put(theirs, 1)
    theirs.create_branch("dev", first)
    put(theirs, 2, "dev")
    theirs.create_tag("v1", first)
    theirs.create_tag("gone", first)
    theirs.delete_tag("gone")
    return contents(place.ours())


def upgraded(place: Place) -> None:
    theirs = icechunk.Repository.open(place.theirs())
    icechunk.upgrade_icechunk_repository(theirs, dry_run=False, delete_unused_v1_files=True)


def use(place: Place, spec_version: int) -> None:
    """Read by both, write by both."""
    opened: Any = icefloe.Repository.open(place.ours())
    assert (opened.generation, opened.spec_version) == ("icechunk", spec_version)
    assert opened.config.inline_chunk_threshold_bytes == 3
    before = agree(place)
    assert set(before) == {"main", "dev", "tag v1"}
    put(opened, 3)
    put(icechunk.Repository.open(place.theirs()), 4)
    put(opened, 5, "dev")
    opened.create_tag("ours", opened.lookup_branch("main"))
    after = agree(place)
    assert after["main"]["x values"] == [0, 1, 0, 3, 4, 0, 0, 0]
    assert after["dev"]["x values"] == [0, 0, 2, 0, 0, 5, 0, 0]
    assert np.array_equal(after["tag v1"]["x values"], np.zeros(8))
    with pytest.raises(icefloe.AlreadyExistsError):
        opened.create_tag("gone", opened.lookup_branch("main"))
    assert opened.verify(deep=True).is_clean
    assert verify_files(place.ours()) >= 4


@pytest.mark.parametrize("left", list(LEFT))
def test_migrations_that_ended_while_they_deleted_files_of_version_1(
    local_place: Place, left: str
) -> None:
    # F8-04
    before = version_1(local_place)
    upgraded(local_place)
    storage = local_place.ours()
    assert not [info.key for info in storage.list("refs/")]
    for key, data in before.items():
        if key.startswith(LEFT[left]):
            storage.put(key, data)
    # Whatever is left of version 1 says nothing any more, even if it is not what it was.
    stale = "refs/branch.stale/ref.json"
    if any(stale.startswith(prefix) for prefix in LEFT[left]):
        storage.put(stale, before["refs/branch.dev/ref.json"])
    use(local_place, 2)


def test_migrations_that_ended_before_the_repository_was_of_version_2(local_place: Place) -> None:
    # F8-04: everything that a migration writes before `repo` means nothing to version 1.
    before = version_1(local_place)
    upgraded(local_place)
    storage = local_place.ours()
    storage.delete_many(["repo"])
    for key, data in before.items():
        storage.put(key, data)
    use(local_place, 1)
    # It is migrated in the end, with what both packages wrote meanwhile.
    trees = agree(local_place)
    upgraded(local_place)
    assert icefloe.Repository.open(local_place.ours()).spec_version == 2
    assert agree(local_place) == trees
