"""How operations on local files grow: work counted by calls, among many references or commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe import Repository, local_filesystem_storage
from tests.calls import count_calls
from tests.documents import group
from tests.formats import EVERY_FORMAT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", EVERY_FORMAT)
@pytest.mark.parametrize("create", ["create_tag", "create_branch"])
def test_a_new_name_takes_a_few_calls_for_each_that_a_folder_has(
    tmp_path: Path, create: str, name: str
) -> None:
    repo = Repository.create(
        local_filesystem_storage(tmp_path, durability="none"), **EVERY_FORMAT[name]
    )
    tip = repo.lookup_branch("main")

    def calls(new: str) -> int:
        return count_calls(lambda: getattr(repo, create)(new, tip))

    for number in range(5):
        repo.create_tag(f"tag-{number}", tip)
        repo.create_branch(f"branch-{number}", tip)
    calls("first")
    few = calls("few")
    for number in range(5, 105):
        repo.create_tag(f"tag-{number}", tip)
        repo.create_branch(f"branch-{number}", tip)
    # The names of a folder are compared in one pass: some differ only in case or accents (H-25).
    assert calls("many") - few <= 200 * 4 + 100


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_opening_takes_a_few_calls_for_each_doubling_of_the_history(
    tmp_path: Path, name: str
) -> None:
    storage = local_filesystem_storage(tmp_path, durability="none")
    Repository.create(storage, **EVERY_FORMAT[name])

    def commit(count: int) -> int:
        for number in range(count):
            session = Repository.open(storage).writable_session("main")
            session.tree.set_document("/", group(base=session.snapshot_id))
            session.commit(f"commit {number}")
        return count_calls(lambda: Repository.open(storage).readonly_session("main"))

    commit(2)
    few = commit(10)
    assert commit(120) - few <= 400
