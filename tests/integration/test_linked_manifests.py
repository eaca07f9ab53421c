"""Manifests that parts of a session write and the commit only links."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.engine.commit.linked_tiles import can_link, link_tiles, write_tiles
from icefloe.engine.retention.uncommitted import check_own_files
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.session import ForkSession
from tests.documents import array, group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ANY = ManifestSplitCondition.AnyArray()
CONFIG = icefloe.RepositoryConfig(
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict({ANY: {ManifestSplitDimCondition.Axis(0): 4}})
    )
)
SIZE = 10
FORMATS = [("repository", 1), ("repository", 2), ("store", None), ("dataset", None)]


def create(tmp_path: Path, generation: str, spec_version: int | None) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    how: dict[str, Any] = {} if spec_version is None else {"spec_version": spec_version}
    return icefloe.Repository.create(storage, CONFIG, generation=generation, **how)


@pytest.fixture(params=FORMATS, ids=lambda each: f"{each[0]}-{each[1] or 0}")
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    repo = create(tmp_path, *request.param)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((SIZE, 2)))
    session.commit("nodes")
    return repo


def wrote(
    session: icefloe.ForkSession | icefloe.Session,
    chunks: dict[Any, Any],
    deleted: Sequence[Any] = (),
) -> list[Any] | None:
    """What another process makes of a part of a session: tiles, by path."""
    part = pickle.loads(pickle.dumps(ForkSession.part_of(session)))
    for place, data in chunks.items():
        part.tree.set_chunk("/a", place, data)
    for place in deleted:
        part.tree.delete_chunk("/a", place)
    return write_tiles(part.tree, "/a")


def contents(repo: icefloe.Repository) -> dict[Any, bytes | None]:
    session = repo.readonly_session("main")
    return {
        c: session.get_chunk("/a", c) for c in map(tuple, session.tree.chunk_coords("/a").tolist())
    }


def filled(rows: Any, text: bytes = b"x") -> dict[Any, Any]:
    return {(row, column): text + bytes([row, column]) for row in rows for column in range(2)}


def test_linked_manifests_are_not_written_again(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    tiles = [*wrote(session, filled(range(4))), *wrote(session, filled(range(4, SIZE)))]
    assert [tile.extents.lower for tile in tiles] == [(0, 0), (4, 0), (8, 0)]
    link_tiles(session.tree, "/a", tiles)
    assert session.has_uncommitted_changes
    assert session.status().chunk_indexes()["/a"].is_dense
    session.commit("linked")
    assert contents(repo) == filled(range(SIZE))
    node = repo.readonly_session("main").get_node("/a")
    assert {ref.manifest_id for ref in node.manifests} == {tile.info.id for tile in tiles}
    older, newer = parent(repo), repo.lookup_branch("main")
    diff = repo.diff(from_snapshot_id=older, to_snapshot_id=newer)
    assert len(diff.chunk_indexes()["/a"]) == 2 * SIZE


def parent(repo: icefloe.Repository) -> str:
    return list(repo.ancestry(branch="main"))[1].id


def test_what_the_base_has_in_a_tile_stays(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    for place, data in filled(range(SIZE), b"old").items():
        session.tree.set_chunk("/a", place, data)
    session.commit("old")
    session = repo.writable_session("main")
    link_tiles(session.tree, "/a", wrote(session, {(5, 0): b"new"}, deleted=[(6, 1)]))
    session.tree.set_chunk("/a", (0, 0), b"edited")
    session.commit("linked")
    expected = {**filled(range(SIZE), b"old"), (5, 0): b"new", (0, 0): b"edited"}
    del expected[6, 1]
    assert contents(repo) == expected


def test_edits_over_a_linked_tile_win(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    link_tiles(session.tree, "/a", wrote(session, filled(range(SIZE))))
    session.tree.set_chunk("/a", (5, 0), b"edited")
    session.commit("both")
    assert contents(repo) == {**filled(range(SIZE)), (5, 0): b"edited"}


def test_the_log_of_a_tile_with_edits_over_it_has_what_changed_and_no_more(
    repo: icefloe.Repository,
) -> None:
    with repo.transaction("main", message="old") as store:
        for place, data in filled(range(SIZE), b"old").items():
            store.session.tree.set_chunk("/a", place, data)
    session = repo.writable_session("main")
    link_tiles(session.tree, "/a", wrote(session, {(5, 0): b"new"}, deleted=[(6, 1)]))
    session.tree.set_chunk("/a", (4, 0), b"edited")
    session.commit("both")
    diff = repo.diff(from_snapshot_id=parent(repo), to_branch="main")
    assert diff.chunk_indexes()["/a"].tuples() == [(4, 0), (5, 0), (6, 1)]
    assert repo.verify(deep=True).is_clean


@pytest.mark.parametrize("row", [0, 5])
def test_a_branch_that_moved_keeps_their_chunks(repo: icefloe.Repository, row: int) -> None:
    session = repo.writable_session("main")
    link_tiles(session.tree, "/a", wrote(session, {(4, 0): b"ours", (6, 1): b"ours"}))
    theirs = repo.writable_session("main")
    theirs.tree.set_chunk("/a", (row, 1), b"theirs")
    theirs.commit("theirs")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert contents(repo) == {(4, 0): b"ours", (6, 1): b"ours", (row, 1): b"theirs"}


def test_a_tile_without_a_chunk_that_it_deleted_does_not_bring_it_back(
    repo: icefloe.Repository,
) -> None:
    with repo.transaction("main", message="first") as store:
        store.session.tree.set_chunk("/a", (5, 0), b"old")
    session = repo.writable_session("main")
    link_tiles(session.tree, "/a", wrote(session, {(6, 0): b"ours"}, deleted=[(5, 0)]))
    theirs = repo.writable_session("main")
    theirs.tree.set_chunk("/a", (4, 0), b"theirs")
    theirs.commit("beside what the tile has, and in the manifest that it replaces")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert contents(repo) == {(4, 0): b"theirs", (6, 0): b"ours"}


def test_a_conflict_within_a_linked_tile_is_found(repo: icefloe.Repository) -> None:
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
        link_tiles(session.tree, "/a", wrote(session, {(4, 0): b"ours", (4, 1): b"ours"}))
        theirs = repo.writable_session("main")
        theirs.tree.set_chunk("/a", (4, 0), value)
        theirs.commit("theirs")
        if fails:
            with pytest.raises(RebaseFailedError):
                session.commit("ours", rebase_with=solver)
        else:
            session.commit("ours", rebase_with=solver)
    assert contents(repo) == {(4, 0): b"theirs", (4, 1): b"ours"}


def test_two_manifests_for_one_tile_are_refused(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    tiles = wrote(session, filled(range(4)))
    link_tiles(session.tree, "/a", tiles)
    with pytest.raises(InvalidInputError, match="one tile"):
        link_tiles(session.tree, "/a", wrote(session, filled([2])))


def test_manifests_of_one_tile_are_found_among_others(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="wider") as store:
        store.session.tree.set_document("/a", array((SIZE, 4)))
    session = repo.writable_session("main")
    left, right = {(0, 0): b"x", (2, 1): b"x"}, {(0, 2): b"y", (3, 3): b"y"}
    link_tiles(session.tree, "/a", [*wrote(session, left), *wrote(session, right)])
    with pytest.raises(InvalidInputError, match="one tile"):
        link_tiles(session.tree, "/a", wrote(session, {(1, 0): b"z"}))
    session.commit("both")
    assert contents(repo) == {**left, **right}


def test_forks_link_one_tile(repo: icefloe.Repository) -> None:
    """Manifests of one tile, each with what the base has there."""
    with repo.transaction("main", message="old") as store:
        for place, data in filled(range(SIZE), b"old").items():
            store.session.tree.set_chunk("/a", place, data)
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for fork, row in zip(forks, (0, 2, 9), strict=True):
        link_tiles(fork.tree, "/a", wrote(fork, {(row, 0): b"new"}, deleted=[(row, 1)]))
    alone = forks[2].tree.changes.linked[forks[2].get_node("/a").id][0]
    session.merge(*forks)
    session.commit("together")
    expected = {**filled(range(SIZE), b"old"), **{(row, 0): b"new" for row in (0, 2, 9)}}
    assert contents(repo) == {
        k: v for k, v in expected.items() if k not in {(0, 1), (2, 1), (9, 1)}
    }
    assert repo.verify(deep=True).is_clean
    found = {ref.manifest_id for ref in repo.readonly_session("main").get_node("/a").manifests}
    assert alone.info.id in found, "what one fork alone wrote is not written again"


def test_forks_that_delete_all_but_a_part_of_a_tile(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="old") as store:
        for place in ((0, 0), (3, 1)):
            store.session.tree.set_chunk("/a", place, b"old")
    session = repo.writable_session("main")
    forks = session.fork(), session.fork()
    for fork, gone in zip(forks, ((0, 0), (3, 1)), strict=True):
        link_tiles(fork.tree, "/a", wrote(fork, {(1, 0): b"same"}, deleted=[gone]))
    session.merge(*forks)  # what both wrote is the same
    session.commit("together")
    assert contents(repo) == {(1, 0): b"same"}


@pytest.mark.parametrize("is_linked", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_later_fork_wins_linked_or_not(
    repo: icefloe.Repository, is_linked: tuple[bool, ...], at_once: bool
) -> None:
    session = repo.writable_session("main")
    forks = session.fork(), session.fork()
    for number, (fork, links) in enumerate(zip(forks, is_linked, strict=True)):
        chunks = {(0, 0): b"both%d" % number, (1, number): b"one", (5 + number, 0): b"one"}
        if links:
            link_tiles(fork.tree, "/a", wrote(fork, chunks))
            continue
        for place, data in chunks.items():
            fork.tree.set_chunk("/a", place, data)
    if not at_once:
        session.merge(forks[0])
    with pytest.warns(icefloe.OverlapWarning, match=r"the later one wins: /a \[\[0, 0\]\]\."):
        session.merge(*(forks if at_once else forks[1:]))
    session.commit("together")
    ones = dict.fromkeys([(1, 0), (1, 1), (5, 0), (6, 0)], b"one")
    assert contents(repo) == {(0, 0): b"both1", **ones}
    assert repo.verify(deep=True).is_clean


def test_a_tile_over_what_an_earlier_fork_cleared(repo: icefloe.Repository) -> None:
    with repo.transaction("main", message="old") as store:
        for place, data in filled(range(SIZE), b"old").items():
            store.session.tree.set_chunk("/a", place, data)
    session = repo.writable_session("main")
    forks = session.fork(), session.fork()
    forks[0].tree.clear_chunks("/a")
    link_tiles(forks[1].tree, "/a", wrote(forks[1], {(5, 0): b"new"}))
    with pytest.warns(icefloe.OverlapWarning):
        session.merge(*forks)
    session.commit("together")
    assert contents(repo) == {(5, 0): b"new"}


PLACES = st.tuples(st.integers(0, SIZE - 1), st.integers(0, 1))
WORK = st.dictionaries(PLACES, st.booleans(), min_size=1, max_size=6)


@given(old=st.sets(PLACES), forks=st.lists(st.tuples(WORK, WORK), min_size=2, max_size=3))
def test_forks_with_tiles_do_as_forks_with_edits(old: Any, forks: Any) -> None:
    """Each writes or deletes some chunks, by manifests of its own, and others over those."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), CONFIG)
    with repo.transaction("main", message="old") as store:
        store.session.tree.set_document("/a", array((SIZE, 2)))
        for place in old:
            store.session.tree.set_chunk("/a", place, b"old")
    expected = dict.fromkeys(old, b"old")
    session = repo.writable_session("main")
    done = []
    for number, works in enumerate(forks):
        fork = session.fork()
        for step, work in enumerate(works):
            data = b"%d %d" % (number, step)
            into = fork if step else ForkSession.part_of(fork)
            for place, is_kept in work.items():
                if is_kept:
                    into.tree.set_chunk("/a", place, data)
                    expected[place] = data
                else:
                    into.tree.delete_chunk("/a", place)
                    expected.pop(place, None)
            if into is fork:
                continue
            tiles = write_tiles(into.tree, "/a")
            if tiles is None:
                fork.tree.set_chunk_refs("/a", *into.tree.written_chunks()["/a"])
            else:
                link_tiles(fork.tree, "/a", tiles)
        done.append(fork)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", icefloe.OverlapWarning)
        session.merge(*done)
    session.commit("together", allow_empty=True)
    assert contents(repo) == expected
    assert repo.verify().is_clean


def test_what_cannot_be_written_apart_is_not(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    part = ForkSession.part_of(session)
    part.tree.set_chunk("/a", (0, 0), b"x")
    part.tree.delete_chunk("/a", (9, 0))
    assert write_tiles(part.tree, "/a") is None, "a tile without references"
    part = ForkSession.part_of(session)
    part.tree.set_chunk("/a", (0, 0), b"x")
    assert len(write_tiles(part.tree, "/a")) == 1


def test_an_array_that_is_not_cut_has_no_tiles(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    session = icefloe.Repository.create(storage).writable_session("main")
    session.tree.set_document("/a", array((SIZE, 2)))
    assert wrote(session, {(0, 0): b"x"}) is None


def test_deleting_an_array_forgets_its_tiles(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    link_tiles(session.tree, "/a", wrote(session, filled(range(4))))
    session.tree.delete_node("/a")
    session.commit("gone")
    assert repo.readonly_session("main").get_node("/a") is None


@pytest.mark.parametrize(("generation", "spec_version"), FORMATS)
def test_new_arrays_are_linked_where_their_ids_are_known(
    tmp_path: Path, generation: str, spec_version: int | None
) -> None:
    repo = create(tmp_path, generation, spec_version)
    known = generation == "repository"
    session = repo.writable_session("main")
    session.tree.set_document("/a", array((SIZE, 2)))
    assert can_link(session.tree, "/a") is known
    tiles = wrote(session, filled(range(SIZE)))
    assert (tiles is not None) is known
    if tiles is None:
        chunks, deleted = written(session, filled(range(SIZE)))
        session.tree.set_chunk_refs("/a", chunks, deleted)
    else:
        link_tiles(session.tree, "/a", tiles)
    theirs = repo.writable_session("main")
    theirs.tree.set_document("/b", array((2, 2)))
    theirs.tree.set_chunk("/b", (0, 0), b"theirs")
    theirs.commit("another new array, which may take the number")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert contents(repo) == filled(range(SIZE))
    assert repo.readonly_session("main").get_chunk("/b", (0, 0)) == b"theirs"
    session = repo.writable_session("main")
    assert can_link(session.tree, "/a")


def written(session: icefloe.Session, chunks: dict[Any, Any]) -> tuple[Any, ...]:
    part = pickle.loads(pickle.dumps(ForkSession.part_of(session)))
    for place, data in chunks.items():
        part.tree.set_chunk("/a", place, data)
    return part.tree.written_chunks()["/a"]


@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_a_manifest_that_would_name_another_node_is_refused(
    tmp_path: Path, generation: str
) -> None:
    session = create(tmp_path, generation, None).writable_session("main")
    session.tree.set_document("/a", array((SIZE, 2)))
    with pytest.raises(InvalidInputError, match="given by the commit"):
        link_tiles(session.tree, "/a", [])


def test_forks_that_created_one_array_do_not_mix_its_manifests(tmp_path: Path) -> None:
    repo = create(tmp_path, "repository", 2)
    session = repo.writable_session("main")
    forks = session.fork(), session.fork()
    for fork in forks:
        fork.tree.set_document("/a", array((SIZE, 2)))
    link_tiles(forks[1].tree, "/a", wrote(forks[1], filled(range(4))))
    with pytest.raises(AlreadyExistsError, match="before you fork"):
        session.merge(*forks)


def test_a_session_says_that_manifests_were_collected_and_not_chunk_files(
    repo: icefloe.Repository,
) -> None:
    session = repo.writable_session("main")
    (tile,) = wrote(session, filled(range(4)))
    link_tiles(session.tree, "/a", [tile])
    key = repo._context.format.layout.manifest(tile.info.id)
    repo.storage.delete_many([key])
    with pytest.raises(SessionStateError, match=f"1 manifests that this session wrote.*{key}"):
        check_own_files(repo._context, session.tree.changes)
