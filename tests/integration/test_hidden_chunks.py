"""Arrays that became smaller by a document, which deletes no chunks, as zarr's resize does.

The official package drops the chunks outside of the grid when it commits, and shows them again if
the array grows before that; so does icefloe, which counts and lists only chunks that readers see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import VersionSelection
from tests.builders import new_repository
from tests.documents import array, array_document, chunks_of, group
from tests.formats import FORMATS, OFFICIAL_FORMATS

if TYPE_CHECKING:
    from icefloe import Repository
    from icefloe.session import Session

LENGTH = 6


@pytest.fixture(params=FORMATS | OFFICIAL_FORMATS)
def repository(request: pytest.FixtureRequest) -> Repository:
    """One with an array of six chunks."""
    how = (FORMATS | OFFICIAL_FORMATS)[request.param]
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), **how)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((LENGTH,)))
    for place in range(LENGTH):
        session.tree.set_chunk("/a", (place,), bytes([place]) * 3)
    session.commit("long")
    return repo


def commit(repo: Repository, length: int, *written: int, branch: str = "main") -> str:
    session = repo.writable_session(branch)
    for place in written:
        session.tree.set_chunk("/a", (place,), b"new")
    session.tree.set_document("/a", array((length,)))
    return session.commit(f"{length}")


def check_visible(session: Session, expected: int) -> None:
    """Whatever counts or lists chunks agrees with what can be read."""

    async def listed() -> tuple[list[tuple[int, ...]], list[str]]:
        coords = [place async for place in session.chunk_coordinates("/a")]
        return coords, [key async for key in session.store.list_prefix("a") if "/c/" in key]

    places, keys = asyncio.run(listed())
    assert places == [(place,) for place in range(expected)]
    assert sorted(keys) == [f"a/c/{place}" for place in range(expected)]
    assert session.chunk_count("/a") == expected
    assert session.chunk_bytes("/a").total_bytes == 3 * expected
    assert sum(len(batch.coords) for batch in session.chunk_batches("/a", 2)) == expected
    assert [session.get_chunk("/a", (place,)) is not None for place in range(LENGTH)] == [
        place < expected for place in range(LENGTH)
    ]


def test_chunks_outside_of_a_smaller_array_are_dropped_by_the_commit(
    repository: Repository,
) -> None:
    before = repository.lookup_branch("main")
    session = repository.writable_session("main")
    session.tree.set_chunk("/a", (5,), b"new")
    session.tree.set_document("/a", array((3,)))
    check_visible(session, 3)
    [(path, places)] = session.status().updated_chunks.items()
    assert (path, sorted(map(tuple, places))) == ("/a", [(3,), (4,), (5,)])
    short = session.commit("short")
    check_visible(repository.readonly_session("main"), 3)
    [(path, places)] = repository.diff(
        from_snapshot_id=before, to_snapshot_id=short
    ).updated_chunks.items()
    assert (path, sorted(map(tuple, places))) == ("/a", [(3,), (4,), (5,)])
    check_visible(repository.readonly_session(snapshot_id=before), LENGTH)
    grown = repository.writable_session("main")
    grown.tree.set_document("/a", array((LENGTH,)))
    check_visible(grown, 3)
    grown.commit("long again")
    check_visible(repository.readonly_session("main"), 3)
    assert repository.verify(deep=True).is_clean


def test_an_array_that_grows_again_before_the_commit_has_all_its_chunks(
    repository: Repository,
) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/a", array((2,)))
    check_visible(session, 2)
    session.tree.set_document("/a", array((LENGTH,)))
    check_visible(session, LENGTH)


def test_chunks_that_a_shift_did_not_see_do_not_come_into_view(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/a", array((3,)))
    session.shift_array("/a", (-2,))
    assert chunks_of(session, "/a") == {0: b"\x02" * 3}
    session.tree.set_document("/a", array((LENGTH,)))
    assert chunks_of(session, "/a") == {0: b"\x02" * 3}


@pytest.mark.parametrize("we_shrink", [True, False])
@pytest.mark.parametrize("by_merge", [True, False])
def test_a_conflict_that_is_resolved_leaves_no_chunks_outside(
    repository: Repository, we_shrink: bool, by_merge: bool
) -> None:
    solver: Any = (
        icefloe.MergeSolver(on_chunk_conflict=VersionSelection.UseOurs)
        if by_merge
        else icefloe.BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    )
    repository.create_branch("work", repository.lookup_branch("main"))
    branch = "work" if by_merge else "main"
    session = repository.writable_session(branch)
    if we_shrink:
        session.tree.set_document("/a", array((3,)))
    else:
        session.tree.set_chunk("/a", (5,), b"new")
    other = repository.writable_session("main")
    if we_shrink:
        other.tree.set_chunk("/a", (5,), b"new")
    else:
        other.tree.set_document("/a", array((3,)))
    other.commit("theirs")
    try:
        if by_merge:
            session.commit("ours")
            repository.merge("work", "main", solver=solver)
        else:
            session.commit("ours", rebase_with=solver)
    except icefloe.RebaseFailedError:
        pass
    reader = repository.readonly_session("main")
    length = reader.get_node("/a").array.shape[0]
    check_visible(reader, length)
    if length == 3:
        commit(repository, LENGTH)
        check_visible(repository.readonly_session("main"), 3)
    assert repository.verify(deep=True).is_clean


@pytest.mark.parametrize("to", ["columns", "dataset", "icechunk1"])
def test_upkeep_of_an_array_that_became_smaller(repository: Repository, to: str) -> None:
    commit(repository, 3)
    repository.compact(branch="main")
    repository.rewrite_manifests("again", branch="main")
    repository.materialize("main")
    place = icefloe.in_memory_storage()
    how = {"generation": "repository", **(FORMATS | OFFICIAL_FORMATS)[to]}
    assert not repository.migrate(place, **how).problems
    migrated = icefloe.Repository.open(place)
    for repo in (repository, migrated):
        check_visible(repo.readonly_session("main"), 3)
        commit(repo, LENGTH)
        check_visible(repo.readonly_session("main"), 3)
        assert repo.verify(deep=True).is_clean


def test_arrays_that_are_split_drop_only_what_is_outside() -> None:
    repo = new_repository()
    session = repo.writable_session("main")
    session.tree.set_document("/a", array_document((20, 20), (1, 1)))
    for place in range(20):
        session.tree.set_chunk("/a", (place, place), bytes([place]))
        session.tree.set_chunk("/a", (place, 0), bytes([place]))
    session.commit("square")
    session = repo.writable_session("main")
    session.tree.set_document("/a", array_document((20, 7), (1, 1)))
    session.commit("narrow")
    session = repo.writable_session("main")
    session.tree.set_document("/a", array_document((20, 20), (1, 1)))
    left = {tuple(row) for row in session.tree.chunk_coords("/a").tolist()}
    assert left == {(n, 0) for n in range(20)} | {(n, n) for n in range(7)}
    assert session.chunk_count("/a") == len(left)
