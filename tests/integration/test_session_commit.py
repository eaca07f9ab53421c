"""Sessions: what they show, what a commit publishes, and what is refused."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    ChunkType,
    ConflictError,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    Repository,
    SessionStateError,
)
from icefloe.engine.retention import uncommitted
from icefloe.testing.requests import FarStorage
from tests.documents import (
    array,
    chunks_of,
    commit_attribute,
    group,
    make_tree,
    node_paths,
    set_chunks,
)
from tests.formats import EVERY_FORMAT, FORMATS, folder, needs_moves

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session


@pytest.fixture(params=FORMATS)
def repository(request: pytest.FixtureRequest) -> Repository:
    made = Repository.create(icefloe.in_memory_storage(), **FORMATS[request.param])
    make_tree(made)
    return made


@pytest.fixture
def session(repository: Repository) -> Session:
    return repository.writable_session("main")


# --- what a session is


def test_a_writable_session(repository: Repository, session: Session) -> None:  # R3-36
    assert not session.read_only
    assert session.branch == "main"
    assert session.mode == "writable"
    assert session.snapshot_id == repository.lookup_branch("main")
    assert not session.has_uncommitted_changes
    assert "main" in repr(session)


def test_a_read_only_session(repository: Repository) -> None:
    session = repository.readonly_session("main")
    assert session.read_only
    assert session.branch is None
    assert session.mode == "readonly"
    assert not session.has_uncommitted_changes
    assert session.status().is_empty()
    session.discard_changes()


REFUSED_WRITES: dict[str, Callable[[Session], object]] = {
    "set_document": lambda s: s.tree.set_document("/x", group()),
    "delete_node": lambda s: s.tree.delete_node("/g"),
    "delete_chunks": lambda s: s.tree.clear_chunks("/b"),
    "move": lambda s: s.move("/b", "/c"),
    "set_chunk": lambda s: s.tree.set_chunk("/b", (0,), b"x"),
    "delete_chunk": lambda s: s.tree.delete_chunk("/b", (0,)),
    "shift_array": lambda s: s.shift_array("/b", [1]),
    "reindex_array": lambda s: s.reindex_array("/b", lambda index: index),
    "commit": lambda s: s.commit("x"),
    "amend": lambda s: s.amend("x"),
    "flush": lambda s: s.flush("x"),
    "rebase": lambda s: s.rebase(icefloe.ConflictDetector()),
    "merge": lambda s: s.merge(),
}


@pytest.mark.parametrize("name", REFUSED_WRITES)
def test_a_read_only_session_refuses(repository: Repository, name: str) -> None:  # R3-98
    keys = [info.key for info in repository.storage.list()]
    session = repository.readonly_session("main")
    with pytest.raises(ReadOnlyError, match="Read only sessions cannot modify"):
        REFUSED_WRITES[name](session)
    assert [info.key for info in repository.storage.list()] == keys


# --- committing


def test_a_commit_publishes_everything_at_once(repository: Repository, session: Session) -> None:
    # R0-04, R0-05, R3-06, R3-36, R1-03
    base = session.snapshot_id
    watcher = repository.readonly_session("main")
    session.tree.set_document("/n", array(colour="red"))
    set_chunks(session, "/n", [1, 3], b"data")
    session.tree.delete_node("/g")
    session.tree.delete_chunk("/b", (0,))
    assert session.has_uncommitted_changes
    assert node_paths(repository.readonly_session("main")) == ["/", "/b", "/g", "/g/a"]
    tip = session.commit("changes", {"k": [1, {"x": None}]})
    info = repository.lookup_snapshot(tip)
    assert (info.message, info.parent_id, info.metadata) == (
        "changes",
        base,
        {"k": [1, {"x": None}]},
    )
    for reader in (
        repository.readonly_session("main"),
        Repository.open(repository.storage).readonly_session("main"),
    ):
        assert node_paths(reader) == ["/", "/b", "/n"]
        assert reader.tree.document("/n") == array(colour="red")
        assert chunks_of(reader, "/n") == {1: b"data", 3: b"data"}
        assert chunks_of(reader, "/b") == {1: b"\x01", 2: b"\x01"}
    assert node_paths(watcher) == ["/", "/b", "/g", "/g/a"], "a reader sees one snapshot"


@pytest.mark.parametrize("how", ["commit", "flush", "amend"])
def test_afterwards_a_session_only_reads(session: Session, how: str) -> None:  # api-facts 16
    session.tree.set_document("/n", group())
    session.tree.set_chunk("/b", (5,), b"new")
    store = session.store
    tip = getattr(session, how)("done")
    assert session.read_only
    assert session.branch is None
    assert session.snapshot_id == tip
    assert not session.has_uncommitted_changes
    assert store.session is session
    assert session.get_chunk("/b", (5,)) == b"new"
    with pytest.raises(ReadOnlyError):
        session.tree.set_document("/m", group())
    with pytest.raises(ReadOnlyError):
        session.commit("again")


def test_flush_moves_no_branch(repository: Repository, session: Session) -> None:
    base = session.snapshot_id
    session.tree.set_document("/n", group())
    flushed = session.flush("aside", {"k": 1})
    assert repository.lookup_branch("main") == base
    info = repository.lookup_snapshot(flushed)
    assert (info.parent_id, info.message, info.metadata) == (base, "aside", {"k": 1})
    repository.reset_branch("main", flushed)
    assert "/n" in node_paths(repository.readonly_session("main"))


@pytest.mark.parametrize("how", ["commit", "flush", "amend"])
def test_nothing_to_commit(repository: Repository, session: Session, how: str) -> None:
    keys = [info.key for info in repository.storage.list()]
    with pytest.raises(SessionStateError, match="cannot commit, no changes made to the session"):
        getattr(session, how)("empty")
    assert not session.read_only
    assert [info.key for info in repository.storage.list()] == keys
    session.tree.set_document("/n", group())
    assert getattr(session, how)("something")


def test_an_empty_commit_can_be_asked_for(repository: Repository, session: Session) -> None:
    base = session.snapshot_id
    tip = session.commit("empty", allow_empty=True)
    assert repository.lookup_snapshot(tip).parent_id == base
    assert repository.diff(from_snapshot_id=base, to_snapshot_id=tip).is_empty()


def test_a_transaction_commits_when_the_block_ends_well(repository: Repository) -> None:
    with repository.transaction("main", message="in a block", metadata={"k": 1}) as store:
        zarr.open_group(store).create_group("n")
    info = next(repository.ancestry(branch="main"))
    assert (info.message, info.metadata) == ("in a block", {"k": 1})
    with (
        pytest.raises(SessionStateError, match="cannot commit, no changes"),
        repository.transaction("main", message="empty"),
    ):
        pass
    with (
        pytest.raises(ZeroDivisionError),
        repository.transaction("main", message="never") as store,
    ):
        zarr.open_group(store).attrs["x"] = 1 / 0
    assert repository.lookup_branch("main") == info.id


def test_default_metadata_is_laid_under_each_commit(repository: Repository) -> None:  # api-facts 22
    assert repository.default_commit_metadata() == {}
    repository.set_default_commit_metadata({"author": "me", "tool": {"v": 1}})
    session = repository.writable_session("main")
    repository.set_default_commit_metadata({"late": True})
    session.tree.set_document("/n", group())
    tip = session.commit("x", {"tool": 2})
    assert repository.lookup_snapshot(tip).metadata == {"author": "me", "tool": 2}
    assert repository.lookup_snapshot(commit_attribute(repository, 1)).metadata == {"late": True}
    assert Repository.open(repository.storage).default_commit_metadata() == {}
    with pytest.raises(TypeError, match="object cannot be cast"):
        repository.set_default_commit_metadata({"x": object()})


def test_bad_metadata_is_refused_and_the_session_goes_on(session: Session) -> None:
    session.tree.set_document("/n", group())
    for metadata in ({"a": object()}, {"a": {3}}, {1: 2}, [1]):
        with pytest.raises(TypeError) as error:
            session.commit("x", metadata)  # type: ignore[arg-type]
        assert isinstance(error.value, InvalidInputError)
    with pytest.raises(TypeError, match="a commit message is a string") as error:
        session.commit(5)  # type: ignore[arg-type]
    assert isinstance(error.value, InvalidInputError)
    assert session.has_uncommitted_changes
    assert session.commit("x", {"nan": float("nan"), "big": 2**64 - 1})


def test_metadata_survives_another_process(repository: Repository) -> None:
    metadata = {"text": "ü", "list": [1, -5, 1.5, None, True], "nested": {"a": {"b": "c"}}}
    session = repository.writable_session("main")
    session.tree.set_document("/n", group())
    tip = session.commit("", metadata)
    found = Repository.open(repository.storage).lookup_snapshot(tip)
    assert (found.message, found.metadata) == ("", metadata)


def test_amend_replaces_the_tip(repository: Repository, session: Session) -> None:
    base = session.snapshot_id
    session.tree.set_document("/n", array())
    set_chunks(session, "/n", [0])
    replaced = session.commit("typo", {"k": 1})
    session = repository.writable_session("main")
    set_chunks(session, "/n", [1])
    set_chunks(session, "/b", [7])
    tip = session.amend("right", {"k": 2})
    assert [info.id for info in repository.ancestry(branch="main")][:2] == [tip, base]
    info = repository.lookup_snapshot(tip)
    assert (info.message, info.metadata) == ("right", {"k": 2})
    assert info.written_at > repository.lookup_snapshot(replaced).written_at
    assert chunks_of(repository.readonly_session("main"), "/n") == {0: b"\x01", 1: b"\x01"}
    diff = repository.diff(from_snapshot_id=base, to_branch="main")
    assert diff.new_arrays == {"/n"}
    assert diff.updated_chunks == {"/b": [[7]], "/n": [[0], [1]]}
    assert repository.lookup_snapshot(replaced).message == "typo", "history is not rewritten"


def test_amend_can_change_the_message_alone(repository: Repository, session: Session) -> None:
    base = repository.lookup_snapshot(session.snapshot_id)
    tip = session.amend("other words", allow_empty=True)
    assert repository.lookup_snapshot(tip).parent_id == base.parent_id
    assert node_paths(session) == ["/", "/b", "/g", "/g/a"]


def test_the_first_snapshot_cannot_be_amended() -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    session = repository.writable_session("main")
    session.tree.set_document("/", group())
    with pytest.raises(SessionStateError, match="cannot be amended"):
        session.amend("x")
    assert session.commit("x")


# --- status


def test_status_names_what_changed(session: Session) -> None:  # api-facts 14, 17
    session.tree.set_document("/", group(q=1))
    session.tree.set_document("/g", group(z=2))
    session.tree.set_document("/n1", group())
    session.tree.set_document("/z", array((100,)))
    set_chunks(session, "/z", range(100))
    session.tree.delete_node("/g/a")
    session.tree.set_document("/g/a", array((5, 5), 5))
    session.tree.set_chunk("/g/a", (0, 0), b"x")
    status = session.status()
    assert status.new_groups == {"/n1"}
    assert status.new_arrays == {"/g/a", "/z"}
    assert status.deleted_arrays == {"/g/a"}
    assert status.updated_groups == {"/", "/g"}
    assert status.updated_chunks["/z"] == [[k] for k in range(100)]
    # What the official 1.1.21 prints for the same edits.
    assert repr(status) == (
        "Groups created:\n"
        "    /n1\n"
        "\n"
        "Arrays created:\n"
        "    /g/a\n"
        "    /z\n"
        "\n"
        "Group definitions updated:\n"
        "    /\n"
        "    /g\n"
        "\n"
        "Arrays deleted:\n"
        "    /g/a\n"
        "\n"
        "Chunks updated:\n"
        "    /g/a:\n"
        "        [0, 0]\n"
        "    /z:\n" + "".join(f"        [{k}]\n" for k in range(10)) + "        ... 90 more\n"
    )


def test_a_report_without_chunks_ends_with_an_empty_line(session: Session) -> None:
    session.tree.delete_node("/g")
    session.tree.set_document("/b", array(label=1))
    assert repr(session.status()) == (
        "Array definitions updated:\n    /b\n\n"
        "Groups deleted:\n    /g\n\n"
        "Arrays deleted:\n    /g/a\n\n"
    )


def test_exactly_ten_chunks_are_all_shown(session: Session) -> None:
    set_chunks(session, "/b", range(10))
    assert "more" not in repr(session.status())


def test_an_unchanged_session_has_an_empty_status(session: Session) -> None:
    assert repr(session.status()) == ""
    assert session.status().is_empty()


def test_a_node_that_was_created_and_deleted_leaves_nothing(session: Session) -> None:
    session.tree.set_document("/n", group())
    session.tree.set_document("/n/a", array())
    set_chunks(session, "/n/a", [0])
    session.tree.delete_node("/n")
    assert not session.has_uncommitted_changes
    assert session.status().is_empty()


def test_chunks_of_a_deleted_array_are_not_reported(session: Session) -> None:
    set_chunks(session, "/g/a", [0])
    session.tree.delete_node("/g")
    assert session.status().updated_chunks == {}


def test_the_same_document_again_is_no_change(session: Session) -> None:  # api-facts 17
    document = session.tree.document("/b")
    assert document is not None
    session.tree.set_document("/b", document)
    assert not session.has_uncommitted_changes
    session.tree.set_document("/b", document + b" ")
    assert session.has_uncommitted_changes


def test_deleting_an_absent_chunk_is_a_change(repository: Repository, session: Session) -> None:
    session.tree.delete_chunk("/b", (9,))
    assert session.has_uncommitted_changes
    assert session.status().updated_chunks == {"/b": [[9]]}
    session.commit("nothing to see")
    assert chunks_of(repository.readonly_session("main"), "/b").keys() == {0, 1, 2}


def test_discarding_is_seen_through_open_arrays(repository: Repository) -> None:  # api-facts 18
    session = repository.writable_session("main")
    opened = zarr.open_array(session.store, path="b")
    new = zarr.create_group(session.store, path="new")
    opened[:3] = 9
    assert opened[:4].tolist() == [9, 9, 9, 0]
    session.discard_changes()
    assert opened[:4].tolist() == [1, 1, 1, 0]
    assert not session.has_uncommitted_changes
    assert new.name == "/new"
    assert session.get_node("/new") is None
    opened[0] = 5
    session.commit("five")
    assert zarr.open_array(repository.readonly_session("main").store, path="b", mode="r")[0] == 5


def test_stores_are_views_of_one_session(session: Session) -> None:  # api-facts 18
    one, two = session.store, session.store
    assert one == two
    asyncio.run(one.set("n/zarr.json", one_buffer(group())))
    assert asyncio.run(two.exists("n/zarr.json"))
    two.session.commit("through the store")
    assert session.read_only


def one_buffer(data: bytes) -> zarr.core.buffer.Buffer:
    return zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data)


# --- chunks and moves


def test_where_chunks_are_kept(session: Session) -> None:
    session.tree.set_document("/n", array((10,), 1000))
    session.tree.set_document("/n", array((5000,), 1000))
    session.tree.set_chunk("/n", (0,), b"x" * 512)
    session.tree.set_chunk("/n", (1,), b"x" * 513)
    expected = [ChunkType.INLINE, ChunkType.NATIVE, ChunkType.UNINITIALIZED]
    assert [session.chunk_type("/n", [k]) for k in range(3)] == expected
    session.commit("x")
    assert [session.chunk_type("n/", (k,)) for k in range(3)] == expected
    with pytest.raises(NodeNotFoundError):
        session.chunk_type("/absent", [0])


async def test_chunk_coordinates_come_in_batches(session: Session) -> None:
    for size in (1, 3, 1000):
        found = [coords async for coords in session.chunk_coordinates("/g/a", size)]
        assert found == [(k,) for k in range(10)]
    session.tree.delete_chunk("/g/a", (4,))
    found = [coords async for coords in session.chunk_coordinates("/g/a")]
    assert found == [(k,) for k in range(10) if k != 4]
    assert [c async for c in session.chunk_coordinates("/g/a", batch_size=2)] == found


def test_a_move_keeps_ids_documents_and_chunks(repository: Repository, session: Session) -> None:
    needs_moves(repository)
    ids = {path: session.get_node_id(path) for path in ("/g", "/g/a")}
    session.move("/g", "/h")
    session.move("h/a", "renamed")
    session.commit("moved")
    reader = Repository.open(repository.storage).readonly_session("main")
    assert node_paths(reader) == ["/", "/b", "/h", "/renamed"]
    assert reader.get_node_id("/h") == ids["/g"]
    assert reader.get_node_id("/renamed") == ids["/g/a"]
    assert reader.tree.document("/renamed") == array()
    assert chunks_of(reader, "/renamed") == dict.fromkeys(range(10), b"\x01")
    with pytest.raises(NodeNotFoundError, match="/g/a"):
        reader.get_node_id("/g/a")


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/absent", "/x", NodeNotFoundError),
        ("/g", "/g", InvalidInputError),
        ("/g", "/g/inside", InvalidInputError),
        ("/", "/x", InvalidInputError),
        ("/b", "/", InvalidInputError),
        ("/b", "/g", icefloe.AlreadyExistsError),
        ("/b", "/absent/x", InvalidInputError),
        ("/b", "/g/a/x", InvalidInputError),
        ("/b", "/../x", InvalidInputError),
    ],
)
def test_impossible_moves(
    repository: Repository, session: Session, source: str, target: str, error: type
) -> None:
    needs_moves(repository)
    with pytest.raises(error):
        session.move(source, target)
    assert not session.has_uncommitted_changes


def test_a_move_there_and_back_is_no_change(repository: Repository, session: Session) -> None:
    needs_moves(repository)
    session.move("/g", "/h")
    assert session.status().moved_nodes == [("/g", "/h")]
    session.move("/h", "/g")
    assert not session.has_uncommitted_changes


def test_shift_array_moves_whole_chunks(repository: Repository) -> None:
    session = repository.writable_session("main")
    data = zarr.create_array(session.store, name="d", shape=(6, 4), chunks=(2, 2), dtype="i4")
    values = np.arange(24).reshape(6, 4)
    data[:] = values
    session.shift_array("/d", [1, 0])
    assert data[:2].tolist() == [[0] * 4] * 2, "vacated chunks read as the fill value"
    assert np.array_equal(data[2:], values[:4])
    session.shift_array("d", (-1, 0))
    assert np.array_equal(data[:4], values[:4])
    assert data[4:].tolist() == [[0] * 4] * 2
    with pytest.raises(InvalidInputError, match="2 dimensions"):
        session.shift_array("/d", [1])
    session.commit("shifted")
    found = zarr.open_array(repository.readonly_session("main").store, path="d", mode="r")
    assert np.array_equal(found[:4], values[:4])


def test_reindex_array_follows_a_function(repository: Repository) -> None:
    session = repository.writable_session("main")
    data = zarr.create_array(session.store, name="d", shape=(4,), chunks=(1,), dtype="i4")
    data[:] = [1, 2, 3, 4]
    session.reindex_array("/d", lambda index: (3 - index[0],))
    assert data[:].tolist() == [4, 3, 2, 1]
    session.reindex_array("/d", lambda index: None if index[0] == 0 else [index[0] - 1])
    assert data[:].tolist() == [3, 2, 1, 0]
    with pytest.raises(InvalidInputError, match="same index"):
        session.reindex_array("/d", lambda _: (0,))
    assert data[:].tolist() == [3, 2, 1, 0]


def test_chunks_that_stay_are_not_touched_by_a_rearrangement(repository: Repository) -> None:
    session = repository.writable_session("main")
    data = zarr.create_array(session.store, name="d", shape=(6,), chunks=(1,), dtype="i4")
    data[:4] = [1, 2, 3, 4]
    session.commit("four")
    late, other = (repository.writable_session("main") for _ in range(2))
    late.reindex_array("/d", lambda index: index if index[0] < 2 else (index[0] + 1,))
    assert late.status().updated_chunks == {"/d": [[2], [3], [4]]}
    zarr.open_array(other.store, path="d")[0] = 9
    other.commit("meanwhile")
    late.commit("one between", rebase_with=icefloe.ConflictDetector())
    found = zarr.open_array(repository.readonly_session("main").store, path="d", mode="r")
    assert found[:].tolist() == [9, 2, 0, 3, 4, 0]
    session = repository.writable_session("main")
    session.reindex_array("/d", lambda index: index)
    assert not session.has_uncommitted_changes


# --- pickling


def test_read_only_sessions_travel(repository: Repository) -> None:  # api-facts 19
    session = repository.readonly_session("main")
    arrived: Session = pickle.loads(pickle.dumps(session))
    assert arrived.read_only
    assert arrived.snapshot_id == session.snapshot_id
    assert chunks_of(arrived, "/b") == chunks_of(session, "/b")
    store = pickle.loads(pickle.dumps(session.store))
    assert zarr.open_array(store, path="b", mode="r")[:3].tolist() == [1, 1, 1]


def test_writable_sessions_do_not(session: Session) -> None:
    for thing in (session, session.store):
        with pytest.raises(ValueError, match="fork"):
            pickle.dumps(thing)
    session.tree.set_document("/n", group())
    session.commit("x")
    assert pickle.loads(pickle.dumps(session)).snapshot_id == session.snapshot_id


def test_pickling_was_replaced_by_forks(session: Session) -> None:
    with pytest.raises(RuntimeError, match="fork"):
        session.allow_pickling()


def test_no_warning_is_given_without_reason(session: Session) -> None:
    session.tree.set_document("/n", group())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.commit("x")


def test_errors_have_a_kind(session: Session) -> None:
    with pytest.raises(IcefloeError) as caught:
        session.commit("x")
    assert caught.value.kind == "session-state"
    with pytest.raises(KeyError) as missing:
        session.get_node_id("/absent")
    assert isinstance(missing.value, IcefloeError)
    assert missing.value.kind == icefloe.ErrorKind.NODE_NOT_FOUND


# --- another repository in place of the one that a session started on


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("with_rebase", [False, True], ids=["commit", "rebase"])
@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_a_commit_lands_in_no_other_repository(name: str, with_rebase: bool, is_far: bool) -> None:
    """Which has as many commits, so that the next entry of the branch is free there, too."""
    storage = icefloe.in_memory_storage()
    place = FarStorage(storage) if is_far else storage

    def make(message: str) -> Repository:
        repo = Repository.create(place, **EVERY_FORMAT[name])
        with repo.transaction("main", message=message) as store:
            zarr.create_array(store, name="a", shape=4, chunks=(2,), dtype="i4")[:] = 1
        return repo

    late = make("first").writable_session("main")
    zarr.open_array(late.store, path="a")[:] = 2
    storage.delete_many([info.key for info in storage.list("")])
    other = make("second")
    with pytest.raises(ConflictError):
        late.commit("late", rebase_with=icefloe.ConflictDetector() if with_rebase else None)
    assert other.lookup_snapshot(other.lookup_branch("main")).message == "second"
    assert zarr.open_array(other.readonly_session("main").store, path="a", mode="r")[0] == 1


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("way", ["commit", "rebase", "rebase first"])
@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_chunks_that_were_deleted_with_a_new_repository_are_not_committed(
    name: str, way: str, is_far: bool
) -> None:
    """Every repository has the same first snapshot, so that the branch looks as it did."""
    storage = icefloe.in_memory_storage()
    place = FarStorage(storage) if is_far else storage
    packing = icefloe.ChunkPackingConfig(max_chunk_bytes=0)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_packing=packing)

    def make() -> Repository:
        return Repository.create(place, config, **EVERY_FORMAT[name])

    late = make().writable_session("main")
    zarr.create_array(late.store, name="a", shape=4, chunks=(2,), dtype="i4")[:] = 2
    storage.delete_many([info.key for info in storage.list("")])
    other = make()
    if way != "commit":
        with other.transaction("main", message="second") as store:
            zarr.create_array(store, name="b", shape=4, chunks=(2,), dtype="i4")[:] = 1
    tip = other.lookup_branch("main")
    solver = None if way == "commit" else icefloe.ConflictDetector()
    with pytest.raises(SessionStateError, match=r"2 .*files that this session wrote"):
        late.rebase(solver) if way == "rebase first" else late.commit("late", rebase_with=solver)
    assert other.lookup_branch("main") == tip


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_many_chunks_that_were_deleted_are_missed_in_a_listing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncommitted, "_FEW_FILES", 3)
    storage = icefloe.in_memory_storage()
    packing = icefloe.ChunkPackingConfig(max_chunk_bytes=0)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_packing=packing)
    repo = Repository.create(storage, config, **EVERY_FORMAT[name])
    session = repo.writable_session("main")
    values = zarr.create_array(session.store, name="a", shape=8, chunks=(2,), dtype="i4")
    values[:] = 2
    files = [
        info for info in storage.list("") if info.key.startswith(folder("chunks", repo.generation))
    ]
    assert len(files) == 4
    data = storage.get(files[0].key)
    storage.delete_many([files[0].key])
    with pytest.raises(SessionStateError, match="1 files that this session wrote, such as"):
        session.commit("late")
    storage.put(files[0].key, data)
    session.commit("all are there")
