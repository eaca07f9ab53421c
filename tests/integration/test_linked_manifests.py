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
from icefloe.errors import AlreadyExistsError, InvalidInputError, RebaseFailedError
from tests.documents import array, group

ANY = ManifestSplitCondition.AnyArray()
CONFIG = icefloe.RepositoryConfig(
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict({ANY: {ManifestSplitDimCondition.Axis(0): 4}})
    )
)
SIZE = 10
FORMATS = [("repository", 1), ("repository", 2), ("store", None), ("dataset", None)]


def create(tmp_path, generation, spec_version):
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    how = {} if spec_version is None else {"spec_version": spec_version}
    return icefloe.Repository.create(storage, CONFIG, generation=generation, **how)


@pytest.fixture(params=FORMATS, ids=lambda each: f"{each[0]}-{each[1] or 0}")
def repo(request, tmp_path):
    repo = create(tmp_path, *request.param)
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


def test_a_tile_without_a_chunk_that_it_deleted_does_not_bring_it_back(repo):
    with repo.transaction("main", message="first") as store:
        store.session.set_chunk("/a", (5, 0), b"old")
    session = repo.writable_session("main")
    session.link_tiles("/a", wrote(session, {(6, 0): b"ours"}, deleted=[(5, 0)]))
    theirs = repo.writable_session("main")
    theirs.set_chunk("/a", (4, 0), b"theirs")
    theirs.commit("beside what the tile has, and in the manifest that it replaces")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert contents(repo) == {(4, 0): b"theirs", (6, 0): b"ours"}


def test_a_conflict_within_a_linked_tile_is_found(repo):
    # Without logs, writing what is there already is no change: each of them writes another value.
    for solver, fails, value in (
        (icefloe.ConflictDetector(), True, b"first"),
        (
            icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseTheirs),
            False,
            b"theirs",
        ),
    ):
        session = repo.writable_session("main")
        session.link_tiles("/a", wrote(session, {(4, 0): b"ours", (4, 1): b"ours"}))
        theirs = repo.writable_session("main")
        theirs.set_chunk("/a", (4, 0), value)
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


@pytest.mark.parametrize(("generation", "spec_version"), FORMATS)
def test_new_arrays_are_linked_where_their_ids_are_known(tmp_path, generation, spec_version):
    repo = create(tmp_path, generation, spec_version)
    known = generation == "repository"
    session = repo.writable_session("main")
    session.set_document("/a", array((SIZE, 2)))
    assert session.can_link("/a") is known
    tiles = wrote(session, filled(range(SIZE)))
    assert (tiles is not None) is known
    if tiles is None:
        chunks, deleted = written(session, filled(range(SIZE)))
        session.set_chunk_refs("/a", chunks, deleted)
    else:
        session.link_tiles("/a", tiles)
    theirs = repo.writable_session("main")
    theirs.set_document("/b", array((2, 2)))
    theirs.set_chunk("/b", (0, 0), b"theirs")
    theirs.commit("another new array, which may take the number")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert contents(repo) == filled(range(SIZE))
    assert repo.readonly_session("main").get_chunk("/b", (0, 0)) == b"theirs"
    session = repo.writable_session("main")
    assert session.can_link("/a")


def written(session, chunks):
    part = pickle.loads(pickle.dumps(session.part()))
    for place, data in chunks.items():
        part.set_chunk("/a", place, data)
    return part.written()["/a"]


@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_a_manifest_that_would_name_another_node_is_refused(tmp_path, generation):
    session = create(tmp_path, generation, None).writable_session("main")
    session.set_document("/a", array((SIZE, 2)))
    with pytest.raises(InvalidInputError, match="given by the commit"):
        session.link_tiles("/a", [])


def test_forks_that_created_one_array_do_not_mix_its_manifests(tmp_path):
    repo = create(tmp_path, "repository", 2)
    session = repo.writable_session("main")
    forks = session.fork(), session.fork()
    for fork in forks:
        fork.set_document("/a", array((SIZE, 2)))
    forks[1].link_tiles("/a", wrote(forks[1], filled(range(4))))
    with pytest.raises(AlreadyExistsError, match="before you fork"):
        session.merge(*forks)
