"""Manifests that parts of a session write and the commit only links."""

from __future__ import annotations

import pickle

import pytest

import icefloe
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.errors import InvalidInputError, RebaseFailedError
from tests.documents import array, group

ANY = ManifestSplitCondition.AnyArray()
CONFIG = icefloe.RepositoryConfig(
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict({ANY: {ManifestSplitDimCondition.Axis(0): 4}})
    )
)
SIZE = 10


@pytest.fixture
def repo(tmp_path):
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    repo = icefloe.Repository.create(storage, CONFIG)
    session = repo.writable_session("main")
    session.set_document("/", group())
    session.set_document("/a", array((SIZE, 2)))
    session.commit("nodes")
    return repo


def wrote(session, chunks, deleted=()):
    """What another process makes of a part of a session: tiles, by path."""
    part = pickle.loads(pickle.dumps(session.part()))
    for place, data in chunks.items():
        part.set_chunk("/a", place, data)
    for place in deleted:
        part.delete_chunk("/a", place)
    return part.written_tiles("/a")


def contents(repo):
    session = repo.readonly_session("main")
    return {c: session.get_chunk("/a", c) for c in map(tuple, session.chunk_coords("/a").tolist())}


def filled(rows, text=b"x"):
    return {(row, column): text + bytes([row, column]) for row in rows for column in range(2)}


def test_linked_manifests_are_not_written_again(repo):
    session = repo.writable_session("main")
    tiles = [*wrote(session, filled(range(4))), *wrote(session, filled(range(4, SIZE)))]
    assert [tile.extents.lower for tile in tiles] == [(0, 0), (4, 0), (8, 0)]
    session.link_tiles("/a", tiles)
    assert session.has_uncommitted_changes
    assert session.status().chunk_indexes()["/a"].is_dense
    session.commit("linked")
    assert contents(repo) == filled(range(SIZE))
    node = repo.readonly_session("main").get_node("/a")
    assert {ref.manifest_id for ref in node.manifests} == {tile.info.id for tile in tiles}
    older, newer = parent(repo), repo.lookup_branch("main")
    diff = repo.diff(from_snapshot_id=older, to_snapshot_id=newer)
    assert len(diff.chunk_indexes()["/a"]) == 2 * SIZE


def parent(repo):
    return list(repo.ancestry(branch="main"))[1].id


def test_what_the_base_has_in_a_tile_stays(repo):
    session = repo.writable_session("main")
    for place, data in filled(range(SIZE), b"old").items():
        session.set_chunk("/a", place, data)
    session.commit("old")
    session = repo.writable_session("main")
    session.link_tiles("/a", wrote(session, {(5, 0): b"new"}, deleted=[(6, 1)]))
    session.set_chunk("/a", (0, 0), b"edited")
    session.commit("linked")
    expected = {**filled(range(SIZE), b"old"), (5, 0): b"new", (0, 0): b"edited"}
    del expected[6, 1]
    assert contents(repo) == expected


def test_edits_over_a_linked_tile_win(repo):
    session = repo.writable_session("main")
    session.link_tiles("/a", wrote(session, filled(range(SIZE))))
    session.set_chunk("/a", (5, 0), b"edited")
    session.commit("both")
    assert contents(repo) == {**filled(range(SIZE)), (5, 0): b"edited"}


@pytest.mark.parametrize("row", [0, 5])
def test_a_branch_that_moved_keeps_their_chunks(repo, row):
    session = repo.writable_session("main")
    session.link_tiles("/a", wrote(session, {(4, 0): b"ours", (6, 1): b"ours"}))
    theirs = repo.writable_session("main")
    theirs.set_chunk("/a", (row, 1), b"theirs")
    theirs.commit("theirs")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert contents(repo) == {(4, 0): b"ours", (6, 1): b"ours", (row, 1): b"theirs"}


def test_a_conflict_within_a_linked_tile_is_found(repo):
    for solver, fails in (
        (icefloe.ConflictDetector(), True),
        (icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs), False),
    ):
        session = repo.writable_session("main")
        session.link_tiles("/a", wrote(session, {(4, 0): b"ours", (4, 1): b"ours"}))
        theirs = repo.writable_session("main")
        theirs.set_chunk("/a", (4, 0), b"theirs")
        theirs.commit("theirs")
        if fails:
            with pytest.raises(RebaseFailedError):
                session.commit("ours", rebase_with=solver)
        else:
            session.commit("ours", rebase_with=solver)
    assert contents(repo) == {(4, 0): b"theirs", (4, 1): b"ours"}


def test_two_manifests_for_one_tile_are_refused(repo):
    session = repo.writable_session("main")
    tiles = wrote(session, filled(range(4)))
    session.link_tiles("/a", tiles)
    with pytest.raises(InvalidInputError, match="one tile"):
        session.link_tiles("/a", wrote(session, filled([2])))


def test_what_cannot_be_written_apart_is_not(repo):
    session = repo.writable_session("main")
    part = session.part()
    part.set_chunk("/a", (0, 0), b"x")
    part.delete_chunk("/a", (9, 0))
    assert part.written_tiles("/a") is None, "a tile without references"
    part = session.part()
    part.set_chunk("/a", (0, 0), b"x")
    assert len(part.written_tiles("/a")) == 1


def test_an_array_that_is_not_cut_has_no_tiles(tmp_path):
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    session = icefloe.Repository.create(storage).writable_session("main")
    session.set_document("/a", array((SIZE, 2)))
    assert wrote(session, {(0, 0): b"x"}) is None


def test_deleting_an_array_forgets_its_tiles(repo):
    session = repo.writable_session("main")
    session.link_tiles("/a", wrote(session, filled(range(4))))
    session.delete_node("/a")
    session.commit("gone")
    assert repo.readonly_session("main").get_node("/a") is None
