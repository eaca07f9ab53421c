"""Repositories of the reference implementation of that time can be kept in order."""

from __future__ import annotations

from datetime import timedelta

import pytest

import icefloe
from icefloe import Repository
from tests.golden.test_reference_repositories_opened import GOLDEN

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason=f"the reference repositories are not at {GOLDEN}"
)


@pytest.mark.parametrize("name", ["gen3-bare-msgpack", "gen3-header39"])
def test_reference_repositories_are_sound_and_can_be_maintained(name: str) -> None:
    root = GOLDEN / name
    storage = icefloe.in_memory_storage()
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        storage.put(file.relative_to(root).as_posix(), file.read_bytes())
    repo = Repository.open(storage)
    assert repo.verify(deep=True).problems == ()
    tips = {branch: repo.lookup_branch(branch) for branch in repo.list_branches()}
    chunks = {branch: read(repo, branch) for branch in tips}
    assert len(repo.expire_snapshots(keep_last=1)) == 2
    assert repo.garbage_collect(timedelta(0)).snapshots_deleted >= 2
    assert repo.compact(branch="main").old_files == 3
    repo = Repository.open(storage)
    assert repo.verify(deep=True).problems == ()
    assert {branch: read(repo, branch) for branch in tips} == chunks


def read(repo: Repository, branch: str) -> dict[str, dict[tuple[int, ...], bytes | None]]:
    session = repo.readonly_session(branch)
    found = {}
    for path in session.tree.node_paths("/"):
        node = session.get_node(path)
        if node is not None and node.is_array:
            coords = [tuple(row) for row in session.tree.chunk_coords(path).tolist()]
            found[path] = {
                at: session.get_chunk(path, at)
                for at in coords
                if session.chunk_type(path, at) is not icefloe.ChunkKind.VIRTUAL
            }
    return found
