"""All that a repository shows, with commits named by their messages, to compare two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe import Repository
from tests.property.hierarchy import observe

if TYPE_CHECKING:
    from icefloe.storage.port import Storage


def picture(storage: Storage) -> dict[str, Any]:
    """Open a repository as a new client and read everything that a reference reaches."""
    repo = Repository.open(storage)
    trees: dict[str, Any] = {}

    def history(snapshot_id: str) -> list[tuple[str, Any]]:
        commits = []
        for info in repo.ancestry(snapshot_id=snapshot_id):
            if info.id not in trees:
                trees[info.id] = observe(repo.readonly_session(snapshot_id=info.id))
            commits.append((info.message, trees[info.id]))
        return commits

    return {
        "branches": {name: history(repo.lookup_branch(name)) for name in repo.list_branches()},
        "tags": {name: history(repo.lookup_tag(name)) for name in repo.list_tags()},
        "config": Repository.fetch_config(storage),
    }


def copy_objects(source: Storage, target: Storage) -> None:
    for info in source.list():
        target.put(info.key, source.get(info.key))
    target.sync()
