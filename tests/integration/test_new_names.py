"""What a new branch or tag costs among many, on local files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe import Repository, local_filesystem_storage
from tests.calls import count_calls
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
