"""Cooperating writers: forks of a session, merged back before the commit."""

from __future__ import annotations

import json
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    AlreadyExistsError,
    ConflictDetector,
    ForkSession,
    IcefloeError,
    InvalidInputError,
    OverlapWarning,
    Repository,
    SessionStateError,
)
from icefloe.distributed import merge_sessions
from tests.documents import array, chunks_of, group, make_tree, node_paths, set_chunks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.session import Session, TreeSession


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "r")
    make_tree(made)
    return made


@pytest.fixture
def session(repository: Repository) -> Session:
    return repository.writable_session("main")


def test_a_fork_is_a_writable_session_of_its_own(session: Session) -> None:  # api-facts 19
    fork = session.fork()
    assert isinstance(fork, ForkSession)
    assert not fork.read_only
    assert fork.branch == "main"
    assert fork.snapshot_id == session.snapshot_id
    other = session.fork()
    set_chunks(fork, "/b", [5])
    assert not session.has_uncommitted_changes
    assert not other.has_uncommitted_changes
    assert session.get_chunk("/b", (5,)) is None


def test_forks_are_merged_and_committed_once(repository: Repository, session: Session) -> None:
    forks = [session.fork() for _ in range(3)]
    for place, fork in enumerate(forks):
        set_chunks(fork, "/b", [5 + place], b"%d" % place)
        fork.tree.set_document(f"/new{place}", group())
    session.merge(*forks)
    set_chunks(session, "/b", [9], b"own")
    session.commit("together")
    reader = repository.readonly_session("main")
    found = chunks_of(reader, "/b")
    assert {k: found[k] for k in (5, 6, 7, 9)} == {5: b"0", 6: b"1", 7: b"2", 9: b"own"}
    assert node_paths(reader) == ["/", "/b", "/g", "/g/a", "/new0", "/new1", "/new2"]
    assert len(list(repository.ancestry(branch="main"))) == 3


def test_a_fork_travels_with_what_it_wrote(session: Session) -> None:
    fork = session.fork()
    set_chunks(fork, "/b", [5], b"x")
    set_chunks(fork, "/b", [6], b"y" * 600)
    fork.tree.set_document("/n", array(label=1))
    set_chunks(fork, "/n", [0])
    fork.tree.delete_chunk("/g/a", (3,))
    fork.tree.delete_node("/g/a")
    fork.move("/g", "/h")
    arrived: ForkSession = pickle.loads(pickle.dumps(fork))
    assert repr(arrived.status()) == repr(fork.status())
    assert arrived.get_chunk("/b", (6,)) == b"y" * 600
    session.merge(arrived)
    assert repr(session.status()) == repr(fork.status())
    assert session.commit("x")


def test_what_a_pickle_holds_does_not_change_while_it_is_made(session: Session) -> None:
    fork = session.fork()
    set_chunks(fork, "/b", [5])
    node = fork.get_node("/b")
    assert node is not None
    changes = fork.__getstate__()["changes"]
    fork.tree.set_document("/n", group())
    set_chunks(fork, "/b", [6])
    assert changes.new == {}
    assert changes.chunks[node.id].get((6,)) == (False, None)


def test_the_store_of_a_fork_travels(session: Session) -> None:
    fork = session.fork()
    store = pickle.loads(pickle.dumps(fork.store))
    zarr.open_array(store, path="b")[4] = 44
    assert fork.get_chunk("/b", (4,)) is None, "a copy"
    session.merge(store.session)
    assert session.get_chunk("/b", (4,)) == bytes([44])


def _write_one(fork: ForkSession, place: int) -> ForkSession:
    zarr.open_array(fork.store, path="b")[place] = place
    return fork


def test_forks_write_in_other_processes(repository: Repository, session: Session) -> None:
    fork = session.fork()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        session.merge(*pool.map(_write_one, [fork] * 6, range(4, 10)))
    session.commit("from processes")
    data = zarr.open_array(repository.readonly_session("main").store, path="b", mode="r")
    assert data[:].tolist() == [1, 1, 1, 0, 4, 5, 6, 7, 8, 9]


def test_threads_share_one_fork(repository: Repository, session: Session) -> None:
    """Every task of a scheduler of threads returns the same fork (api-facts 20)."""
    fork = session.fork()
    with ThreadPoolExecutor(4) as pool:
        same = list(pool.map(_write_one, [fork] * 6, range(4, 10)))
    session.merge(merge_sessions(*same))
    session.merge(*same)
    session.commit("from threads")
    data = zarr.open_array(repository.readonly_session("main").store, path="b", mode="r")
    assert data[:].tolist() == [1, 1, 1, 0, 4, 5, 6, 7, 8, 9]


def test_merging_a_fork_into_itself_is_harmless(session: Session) -> None:
    fork = session.fork()
    set_chunks(fork, "/b", [5])
    fork.tree.clear_chunks("/g/a")
    before = repr(fork.status())
    fork.merge(fork, fork)
    assert repr(fork.status()) == before


def test_two_forks_that_merge_each_other_do_not_wait_for_each_other(session: Session) -> None:
    one, two = session.fork(), session.fork()
    set_chunks(one, "/b", [4])
    set_chunks(two, "/b", [5])
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            for done in [pool.submit(one.merge, two), pool.submit(two.merge, one)]:
                done.result(60)
    assert repr(one.status()) == repr(two.status())


def test_forks_of_forks(repository: Repository, session: Session) -> None:
    child = session.fork()
    grandchild = child.fork()
    great = grandchild.fork()
    set_chunks(great, "/b", [7])
    set_chunks(grandchild, "/b", [8])
    set_chunks(child, "/b", [9])
    grandchild.merge(great)
    child.merge(grandchild)
    session.merge(child)
    session.commit("family")
    assert chunks_of(repository.readonly_session("main"), "/b").keys() == {0, 1, 2, 7, 8, 9}


def test_the_later_merge_wins(session: Session) -> None:
    one, two = session.fork(), session.fork()
    for value, fork in enumerate((one, two)):
        set_chunks(fork, "/b", [0], b"%d" % value)
        fork.tree.set_document("/b", array(label=value))
    with (
        pytest.warns(OverlapWarning, match=r"the later one wins: /b \[\[0\]\]"),
        pytest.warns(OverlapWarning, match=r"the later one wins: /b: attributes.label"),
    ):
        session.merge(two, one)
    assert session.get_chunk("/b", (0,)) == b"0"
    assert session.tree.document("/b") == array(label=0)


def test_chunks_of_an_array_that_both_created_are_reported(session: Session) -> None:
    forks = session.fork(), session.fork()
    for place, fork in enumerate(forks):
        fork.tree.set_document("/n", array())
        set_chunks(fork, "/n", [0, 1 + place], b"%d" % place)
    with pytest.warns(OverlapWarning, match=r"the later one wins: /n \[\[0\]\]\."):
        session.merge(*forks)
    assert chunks_of(session, "/n") == {0: b"1", 1: b"0", 2: b"1"}


def test_forks_may_create_the_same_group(repository: Repository) -> None:
    """Workers that open a group in mode `a` all create it; the official package merges them."""
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for place, fork in enumerate(forks):
        shared = zarr.open_group(fork.store, path="shared")
        shared.create_array(f"a{place}", shape=(1,), dtype="u1")[:] = place + 1
    session.merge(*forks)
    session.commit("together")
    found = zarr.open_group(repository.readonly_session("main").store, path="shared", mode="r")
    assert {name: int(np.asarray(data)[0]) for name, data in found.arrays()} == {
        "a0": 1,
        "a1": 2,
        "a2": 3,
    }


def test_attributes_of_a_group_that_several_forks_create_all_stay(session: Session) -> None:
    forks = [session.fork() for _ in range(3)]
    for place, fork in enumerate(forks):
        own = {} if place == 2 else {f"of{place}": place, "last": place}
        fork.tree.set_document("/n", group(**own))
    session.merge(*forks)
    attributes = json.loads(session.tree.document("/n"))["attributes"]
    assert attributes == {"of0": 0, "of1": 1, "last": 1}


def test_forks_that_create_different_arrays_at_one_path_are_refused(session: Session) -> None:
    one, two = session.fork(), session.fork()
    one.tree.set_document("/n", array())
    two.tree.set_document("/n", array((20,)))
    with pytest.raises(AlreadyExistsError, match="different nodes at /n"):
        session.merge(one, two)
    assert not session.has_uncommitted_changes, "nothing was merged"
    session.merge(one)
    assert session.tree.document("/n") == array()


@pytest.mark.parametrize("is_first", [False, True])
def test_forks_that_put_an_array_over_nodes_of_others_are_refused(
    session: Session, is_first: bool
) -> None:
    one, two = session.fork(), session.fork()
    one.tree.delete_node("/g")
    one.tree.set_document("/g", array())
    two.tree.set_document("/g/new", group())
    forks = (one, two) if is_first else (two, one)
    with pytest.raises(AlreadyExistsError, match="created /g/new below it"):
        session.merge(*forks)
    assert not session.has_uncommitted_changes, "nothing was merged"


def test_deleting_all_chunks_in_a_fork_spares_those_of_others(session: Session) -> None:
    one, two = session.fork(), session.fork()
    set_chunks(one, "/b", [7])
    two.tree.clear_chunks("/b")
    session.merge(one, two)
    assert chunks_of(session, "/b") == {7: b"\x01"}


def test_what_one_fork_wrote_and_another_deleted_is_gone(
    repository: Repository, session: Session
) -> None:
    one, two = session.fork(), session.fork()
    set_chunks(one, "/b", [7])
    two.tree.delete_node("/b")
    with pytest.warns(OverlapWarning, match="and is gone"):
        session.merge(one, two)
    tip = session.commit("gone")
    assert "/b" not in node_paths(repository.readonly_session("main"))
    (manifest,) = repository.lookup_snapshot(tip).manifests
    assert manifest.num_chunk_refs == 10, "only the manifest of /g/a is left"


# --- what is refused


def test_metadata_that_two_forks_changed_is_merged_key_by_key(session: Session) -> None:
    longer, told = session.fork(), session.fork()
    longer.tree.set_document("/b", array(shape=[12]))
    set_chunks(longer, "/b", [10, 11])
    told.tree.set_document("/b", array(k=1))
    session.merge(longer, told)
    document = json.loads(session.tree.document("/b") or b"{}")
    assert (document["shape"], document["attributes"]) == ([12], {"k": 1})
    assert {10, 11} <= chunks_of(session, "/b").keys()


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            lambda fork: fork.tree.set_document("/b", array(shape=[12])),
            lambda fork: fork.tree.set_document("/b", array(shape=[14])),
            "/b: shape",
        ),
        (lambda fork: fork.move("/b", "/c"), lambda fork: fork.move("/b", "/d"), "/c is /d"),
        (
            lambda fork: fork.tree.delete_node("/b"),
            lambda fork: fork.tree.set_document("/b", array(k=1)),
            "/b was deleted by one and changed by another",
        ),
        (
            lambda fork: set_chunks(fork, "/b", [5]),
            lambda fork: fork.tree.delete_node("/b"),
            "/b was deleted by one and changed by another",
        ),
    ],
    ids=["resizes", "moves", "delete and change", "write and delete"],
)
def test_contradictions_of_forks_are_told(
    session: Session,
    first: Callable[[TreeSession], None],
    second: Callable[[TreeSession], None],
    told: str,
) -> None:
    forks = session.fork(), session.fork()
    first(forks[0])
    second(forks[1])
    with pytest.warns(OverlapWarning, match=told) as warned:
        session.merge(*forks)
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.parametrize("leave", ["delete_node", "move"])
def test_a_group_that_a_fork_filled_stays(repository: Repository, leave: str) -> None:
    session = repository.writable_session("main")
    fork, other = session.fork(), session.fork()
    if leave == "move":
        fork.move("/g", "/h")
    else:
        fork.tree.delete_node("/g")
    other.tree.set_document("/g/new", group())
    other.tree.set_document("/g/new/a", array())
    session.merge(fork, other)
    session.commit("merged")
    found = node_paths(repository.readonly_session("main"))
    assert {"/g", "/g/new", "/g/new/a"} <= set(found)
    assert "/g/a" not in found


def test_a_fork_is_not_committed(repository: Repository, session: Session) -> None:
    fork = session.fork()
    set_chunks(fork, "/b", [5])
    tip = repository.lookup_branch("main")
    for how in ("commit", "flush", "amend"):
        with pytest.raises(TypeError, match=f"Cannot {how} a fork") as error:
            getattr(fork, how)("x", {"k": 1})
        assert isinstance(error.value, icefloe.SessionStateError)
        assert error.value.kind == icefloe.ErrorKind.FORK_SESSION
    assert repository.lookup_branch("main") == tip
    assert fork.has_uncommitted_changes


async def test_a_fork_is_not_committed_by_the_async_forms_either(session: Session) -> None:
    fork = session.fork()
    set_chunks(fork, "/b", [5])
    for how in ("commit", "flush", "amend"):
        with pytest.raises(TypeError, match=f"Cannot {how} a fork"):
            await getattr(fork, f"{how}_async")("x")
    assert fork.has_uncommitted_changes


def test_only_writable_sessions_are_forked(repository: Repository) -> None:
    with pytest.raises(ValueError, match="can be pickled"):
        repository.readonly_session("main").fork()


def test_a_fork_begins_with_uncommitted_changes(repository: Repository, session: Session) -> None:
    set_chunks(session, "/b", [5], b"session")
    session.tree.set_document("/n", array())
    set_chunks(session, "/n", [0, 1], b"new")
    one, two = (pickle.loads(pickle.dumps(session.fork())) for _ in range(2))
    assert one.get_chunk("/b", (5,)) == b"session"
    set_chunks(one, "/n", [1, 2], b"one")
    set_chunks(one, "/b", [5], b"one")
    set_chunks(two, "/n", [3], b"two")
    with warnings.catch_warnings():  # each wrote its own chunks, over those of before
        warnings.simplefilter("error")
        session.merge(one, two)
    session.commit("all of it")
    committed = repository.readonly_session("main")
    assert committed.get_chunk("/b", (5,)) == b"one"
    assert chunks_of(committed, "/n") == {0: b"new", 1: b"one", 2: b"one", 3: b"two"}


def test_forks_change_metadata_of_an_uncommitted_array(session: Session) -> None:
    session.tree.set_document("/n", array(label=0, unit="K"))
    session.tree.set_document("/b", array(label=0))
    one, two = session.fork(), session.fork()
    one.tree.set_document("/n", array(label=1, unit="K"))
    two.tree.set_document("/n", array(label=0, unit="C"))
    two.tree.set_document("/b", array(label=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.merge(one, two)
    merged = json.loads(session.tree.document("/n"))
    assert merged["attributes"] == {"label": 1, "unit": "C"}
    assert session.tree.document("/b") == array(label=2)


def test_forks_that_overlap_are_told_from_what_they_began_with(session: Session) -> None:
    session.tree.set_document("/n", array())
    set_chunks(session, "/n", [0], b"new")
    one, two = session.fork(), session.fork()
    set_chunks(one, "/n", [0], b"one")
    set_chunks(two, "/n", [0], b"two")
    with pytest.warns(OverlapWarning, match=r"the later one wins: /n \[\[0\]\]\."):
        session.merge(one, two)
    assert session.get_chunk("/n", (0,)) == b"two"


def test_a_fork_clears_moves_and_deletes_what_it_began_with(session: Session) -> None:
    for path in ("/n", "/m", "/o"):
        session.tree.set_document(path, array())
        set_chunks(session, path, [0, 1], b"new")
    set_chunks(session, "/b", [5], b"session")
    fork = session.fork()
    fork.tree.delete_node("/m")
    fork.move("/o", "/p")
    for path in ("/n", "/b"):
        fork.tree.delete_chunks(path, np.array([[0], [1], [5]] if path == "/b" else [[0], [1]]))
    session.merge(pickle.loads(pickle.dumps(fork)))
    assert session.get_node("/m") is None
    assert session.get_node("/o") is None
    assert chunks_of(session, "/p") == {0: b"new", 1: b"new"}
    assert chunks_of(session, "/n") == {}
    assert chunks_of(session, "/b").keys() == {2}


def test_clearing_chunks_that_were_never_committed_is_no_change(
    repository: Repository, session: Session
) -> None:
    set_chunks(session, "/b", [5], b"session")
    fork = session.fork()
    fork.tree.clear_chunks("/b")
    session.merge(fork)
    after = session.commit("cleared")
    diff = repository.diff(from_branch="main~1", to_snapshot_id=after)
    assert sorted(map(list, diff.updated_chunks["/b"])) == [[0], [1], [2]]


def test_what_a_session_deletes_after_forking_stays_deleted(session: Session) -> None:
    session.tree.set_document("/n", array())
    fork = session.fork()
    set_chunks(fork, "/n", [0])
    session.tree.delete_node("/n")
    session.merge(fork)
    assert session.get_node("/n") is None
    assert not session.has_uncommitted_changes


def test_discarding_the_changes_of_a_fork_leaves_what_it_began_with(session: Session) -> None:
    set_chunks(session, "/b", [5], b"session")
    fork = session.fork()
    set_chunks(fork, "/b", [5, 6], b"fork")
    with pytest.raises(SessionStateError, match="all of its own changes"):
        fork.discard_changes("/b")
    fork.discard_changes()
    assert fork.get_chunk("/b", (5,)) == b"session"
    assert fork.get_chunk("/b", (6,)) is None
    session.merge(fork)
    assert session.get_chunk("/b", (5,)) == b"session"


def test_a_fork_of_uncommitted_changes_is_merged_where_they_are(
    repository: Repository, session: Session
) -> None:
    set_chunks(session, "/b", [5])
    fork = session.fork()
    set_chunks(fork, "/b", [6])
    with pytest.raises(InvalidInputError, match="merge it into the one that it came from"):
        repository.writable_session("main").merge(fork)
    session.discard_changes()
    with pytest.raises(InvalidInputError, match="after they were discarded"):
        session.merge(fork)


def test_only_forks_of_the_same_snapshot_are_merged(
    repository: Repository, session: Session
) -> None:
    other = repository.writable_session("main")
    set_chunks(other, "/b", [5])
    with pytest.raises(TypeError, match="Received 'Session'"):
        session.merge(other)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Received 'str'") as error:
        session.merge("x")  # type: ignore[arg-type]
    assert isinstance(error.value, InvalidInputError)
    assert error.value.kind == icefloe.ErrorKind.INVALID_TYPE
    stale = session.fork()
    session.merge()
    other.commit("moved on")
    session.rebase(ConflictDetector())
    set_chunks(stale, "/b", [6])
    with pytest.raises(InvalidInputError, match="cannot merge a fork of snapshot"):
        session.merge(stale)


def test_committing_without_merging_warns(session: Session) -> None:  # api-facts 5
    fork = session.fork()
    set_chunks(fork, "/b", [5])
    with (
        pytest.warns(UserWarning, match="no fork was merged back") as warned,
        pytest.raises(IcefloeError, match="cannot commit"),
    ):
        session.commit("x")
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="no fork was merged"), pytest.raises(IcefloeError):
        session.flush("x")
    session.merge(fork)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.commit("x")


async def test_the_async_commit_warns_too(session: Session) -> None:
    session.fork()
    with pytest.warns(UserWarning, match="no fork was merged"), pytest.raises(IcefloeError):
        await session.commit_async("x")


def test_forks_in_memory_stay_in_their_process() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    make_tree(repository)
    session = repository.writable_session("main")
    fork: ForkSession = pickle.loads(pickle.dumps(session.fork()))
    set_chunks(fork, "/b", [5])
    session.merge(fork)
    assert session.commit("x")
