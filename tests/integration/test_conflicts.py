"""What becomes of our changes when others have committed first.

The expectations of CASES were measured with the official package, 1.1.21; `theirs` is already
committed, `ours` is rebased on it. Where that package damages data, the comment says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import icefloe
from icefloe import (
    AlreadyExistsError,
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictError,
    ConflictSolver,
    ConflictType,
    IcefloeError,
    InvalidInputError,
    MergedDocument,
    RebaseFailedError,
    Repository,
    VersionSelection,
)
from tests.builders import in_turn
from tests.documents import array, chunks_of, group, make_tree, node_paths, set_chunks
from tests.formats import GENERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.changes.conflicts import Sides
    from icefloe.session import Session

    Edit = Callable[[Session], object]

Found = list[tuple[str, str, list[list[int]] | None]]

CHUNK_DOUBLE_UPDATE: Found = [("ChunkDoubleUpdate", "/b", [[0]])]


def write(path: str, *places: int, data: bytes = b"\x07") -> Edit:
    return lambda session: set_chunks(session, path, places, data)


def document(path: str, content: bytes) -> Edit:
    return lambda session: session.tree.set_document(path, content)


def delete(path: str) -> Edit:
    return lambda session: session.tree.delete_node(path)


def move(source: str, target: str) -> Edit:
    return lambda session: session.move(source, target)


def replace(path: str, content: bytes) -> Edit:
    return in_turn(delete(path), document(path, content))


def clear(path: str) -> Edit:
    return lambda session: session.tree.clear_chunks(path)


class Case(NamedTuple):
    name: str
    theirs: Edit
    ours: Edit
    detected: Found
    """What ConflictDetector reports; nothing if the rebase works."""
    basic: bool
    """Whether BasicConflictSolver() resolves it."""


CASES = [
    # The matrix.
    Case("other chunk", write("/b", 0), write("/b", 1), [], True),
    Case("same chunk", write("/b", 0), write("/b", 0), CHUNK_DOUBLE_UPDATE, True),
    Case(
        "same chunk, one deletes it",
        write("/b", 0),
        lambda session: session.tree.delete_chunk("/b", (0,)),
        CHUNK_DOUBLE_UPDATE,
        True,
    ),
    # Groups that both created for what is below them are one: see
    # 0030-equal-new-groups-do-not-conflict.md. The official package reports
    # NewNodeConflictsWithExistingNode, and two jobs cannot fill an empty repository.
    Case(
        "same new group",
        in_turn(document("/n", group()), document("/n/a", array())),
        in_turn(document("/n", group()), document("/n/b", array())),
        [],
        True,
    ),
    Case(
        "same new group with the same attributes, spelled otherwise",
        document("/n", group(x=1, y=2)),
        in_turn(
            document("/n", json.dumps(json.loads(group(y=2, x=1)), indent=4).encode()),
            write("/b", 1),
        ),
        [],
        True,
    ),
    Case(
        "new group with attributes, new group without",
        document("/n", group(x=1)),
        in_turn(document("/n", group()), document("/n/b", array())),
        [],
        True,
    ),
    Case(
        "new group without attributes, new group with",
        document("/n", group()),
        document("/n", group(x=1)),
        [],
        True,
    ),
    Case(
        "new groups with different attributes",
        document("/n", group(x=1)),
        document("/n", group(y=1)),
        [("NewNodeConflictsWithExistingNode", "/n", None)],
        False,
    ),
    Case(
        "same new array",
        document("/n", array()),
        document("/n", array()),
        [("NewNodeConflictsWithExistingNode", "/n", None)],
        False,
    ),
    Case(
        "move group to where we create one",
        move("/g", "/n"),
        in_turn(document("/n", group()), document("/n/b", array())),
        [("NewNodeConflictsWithExistingNode", "/n", None)],
        False,
    ),
    Case(
        "new array, new group",
        document("/n", array()),
        document("/n", group()),
        [("NewNodeConflictsWithExistingNode", "/n", None)],
        False,
    ),
    Case(
        "new array, new node below it",
        document("/n", array()),
        document("/n/m", group()),
        [("NewNodeInInvalidGroup", "/n", None)],
        False,
    ),
    Case(
        "new array, new nodes far below it",
        document("/n", array()),
        in_turn(document("/n/m", group()), document("/n/m/k", array())),
        [("NewNodeInInvalidGroup", "/n", None), ("NewNodeInInvalidGroup", "/n", None)],
        False,
    ),
    Case(
        "new group, new node below it", document("/n", group()), document("/n/m", group()), [], True
    ),
    # The official package accepts these: what was written is hidden, or read as something else.
    Case(
        "chunks outside of our smaller shape",
        write("/b", 0, 5, 6),
        document("/b", array((5,))),
        [("ChunksUpdatedInUpdatedArray", "/b", [[5], [6]])],
        False,
    ),
    Case(
        "chunks of another shape than ours",
        write("/b", 0),
        document("/b", array(chunk=2)),
        [("ChunksUpdatedInUpdatedArray", "/b", [[0]])],
        False,
    ),
    Case("chunks within our smaller shape", write("/b", 0), document("/b", array((5,))), [], True),
    Case("delete group, new node in it", delete("/g"), document("/g/n", group()), [], True),
    Case("new node in group, delete it", document("/g/n", group()), delete("/g"), [], True),
    Case(
        "new nodes in a new group in a group, delete it",
        in_turn(document("/g/n", group()), document("/g/n/m", array())),
        delete("/g"),
        [],
        True,
    ),
    Case(
        "delete group, new node in a group in it",
        delete("/g"),
        in_turn(document("/g/n", group()), document("/g/n/m", array())),
        [],
        True,
    ),
    Case(
        "new node in group, replace it",
        document("/g/n", group()),
        replace("/g", group(x=1)),
        [],
        True,
    ),
    Case(
        "delete array, write to it",
        delete("/b"),
        write("/b", 0),
        [("ChunksUpdatedInDeletedArray", "/b", None)],
        False,
    ),
    Case(
        "write to array, delete it",
        write("/b", 0),
        delete("/b"),
        [("DeleteOfUpdatedArray", "/b", None)],
        True,
    ),
    Case(
        "change array, delete it",
        document("/b", array(x=1)),
        delete("/b"),
        [("DeleteOfUpdatedArray", "/b", None)],
        True,
    ),
    Case(
        "change group, delete it",
        document("/g", group(x=1)),
        delete("/g"),
        [("DeleteOfUpdatedGroup", "/g", None)],
        True,
    ),
    Case(
        "change array twice",
        document("/b", array(x=1)),
        document("/b", array(y=1)),
        [("ZarrMetadataDoubleUpdate", "/b", None)],
        False,
    ),
    Case(
        "change group twice",
        document("/g", group(x=1)),
        document("/g", group(y=1)),
        [("ZarrMetadataDoubleUpdate", "/g", None)],
        False,
    ),
    Case(
        "delete array, change it",
        delete("/b"),
        document("/b", array(x=1)),
        [("ZarrMetadataUpdateOfDeletedArray", "/b", None)],
        False,
    ),
    Case(
        "delete group, change it",
        delete("/g"),
        document("/g", group(x=1)),
        [("ZarrMetadataUpdateOfDeletedGroup", "/g", None)],
        False,
    ),
    Case(
        "change array, write to it",
        document("/b", array(x=1)),
        write("/b", 0),
        [("ChunksUpdatedInUpdatedArray", "/b", None)],
        False,
    ),
    Case("write to array, change it", write("/b", 0), document("/b", array(x=1)), [], True),
    Case("delete array twice", delete("/b"), delete("/b"), [], True),
    Case("delete group twice", delete("/g"), delete("/g"), [], True),
    # Around the matrix.
    Case(
        "change and write, write",
        in_turn(document("/b", array(x=1)), write("/b", 0)),
        write("/b", 0),
        [("ChunksUpdatedInUpdatedArray", "/b", None), *CHUNK_DOUBLE_UPDATE],
        False,
    ),
    Case(
        "replace array, write to it",
        replace("/b", array()),
        write("/b", 0),
        [("ChunksUpdatedInDeletedArray", "/b", None)],
        False,
    ),
    Case("delete array, replace it", delete("/b"), replace("/b", array()), [], True),
    Case("replace array, delete it", replace("/b", array()), delete("/b"), [], True),
    Case(
        # The official package accepts this and has two nodes at one path afterwards.
        "replace array twice",
        replace("/b", array()),
        replace("/b", array()),
        [("NewNodeConflictsWithExistingNode", "/b", None)],
        False,
    ),
    Case(
        "replace group by array, new node below it",
        replace("/g", array()),
        document("/g/n", group()),
        [("NewNodeInInvalidGroup", "/g", None)],
        False,
    ),
    Case(
        "new node in a group, replace it by an array",
        document("/g/n", group()),
        replace("/g", array()),
        [("NewNodeInInvalidGroup", "/g", None)],
        False,
    ),
    Case(
        "replace a node in a group, replace the group by an array",
        replace("/g/a", array()),
        replace("/g", array()),
        [("NewNodeInInvalidGroup", "/g", None)],
        False,
    ),
    Case(
        "new node in a group, move an array to its place",
        document("/g/n", group()),
        in_turn(delete("/g"), move("/b", "/g")),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
    Case(
        "new node in a group, replace it by a group",
        document("/g/n", group()),
        replace("/g", group(x=1)),
        [],
        True,
    ),
    Case("new chunk, delete all chunks", write("/b", 7), clear("/b"), [], True),
    Case("same chunk, delete all chunks", write("/b", 0), clear("/b"), CHUNK_DOUBLE_UPDATE, True),
    Case("other nodes", document("/n", group()), write("/b", 0), [], True),
    # Moves, which the official 1.x does not have. Edits go by id and follow their node.
    Case("move array, write to it", move("/b", "/c"), write("/b", 0), [], True),
    Case("write to array, move it", write("/b", 0), move("/b", "/c"), [], True),
    Case("move group, write in it", move("/g", "/h"), write("/g/a", 0), [], True),
    Case("change array, move it", document("/b", array(x=1)), move("/b", "/c"), [], True),
    Case("move array, change it", move("/b", "/c"), document("/b", array(x=1)), [], True),
    Case("move group, rename array out of it", move("/g", "/h"), move("/g/a", "/a"), [], True),
    Case("move group, delete array in it", move("/g", "/h"), delete("/g/a"), [], True),
    Case(
        "swap",
        write("/b", 0),
        in_turn(move("/b", "/t"), move("/g", "/b"), move("/t", "/g")),
        [],
        True,
    ),
    Case(
        "move array twice",
        move("/b", "/c"),
        move("/b", "/d"),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
    Case(
        "move to a taken place",
        document("/c", group()),
        move("/b", "/c"),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
    Case(
        "new node at a taken place",
        move("/b", "/c"),
        document("/c", group()),
        [("NewNodeConflictsWithExistingNode", "/c", None)],
        False,
    ),
    Case(
        "new node below a moved array",
        move("/b", "/g/c"),
        document("/g/c/n", group()),
        [("NewNodeInInvalidGroup", "/g/c", None)],
        False,
    ),
    Case(
        "delete array, move it",
        delete("/b"),
        move("/b", "/c"),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
    Case(
        "move array, delete it",
        move("/b", "/c"),
        delete("/b"),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
    Case(
        "new node in a group that we move",
        document("/g/n", group()),
        move("/g", "/h"),
        [("MoveOfChangedNode", "/g/n", None)],
        False,
    ),
    Case(
        "move a node into a group that we move",
        move("/b", "/g/b"),
        move("/g", "/h"),
        [("MoveOfChangedNode", "/g/b", None)],
        False,
    ),
    Case(
        "move group, new node in it",
        move("/g", "/h"),
        document("/g/n", group()),
        [("MoveOfChangedNode", "/g/n", None)],
        False,
    ),
    Case(
        "move group, move a node into it",
        move("/g", "/h"),
        move("/b", "/g/b"),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
    Case(
        "move group, rename a node in it",
        move("/g", "/h"),
        move("/g/a", "/g/c"),
        [("MoveOfChangedNode", "/g/a", None)],
        False,
    ),
    Case(
        "delete group, move a node into it",
        delete("/g"),
        move("/b", "/g/b"),
        [("MoveOfChangedNode", "/b", None)],
        False,
    ),
]


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest) -> Repository:
    made = Repository.create(icefloe.in_memory_storage(), generation=request.param)
    make_tree(made)
    return made


def collide(repository: Repository, theirs: Edit, ours: Edit) -> tuple[Session, str]:
    """Our session with its changes, and the commit of the others."""
    session = repository.writable_session("main")
    ours(session)
    other = repository.writable_session("main")
    theirs(other)
    return session, other.commit("theirs")


def reported(error: RebaseFailedError) -> Found:
    return [(c.conflict_type.name, c.path, c.conflicted_chunks) for c in error.conflicts]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_detector_reports_and_changes_nothing(repository: Repository, case: Case) -> None:
    session, theirs = collide(repository, case.theirs, case.ours)
    base, before = session.snapshot_id, repr(session.status())
    nodes = {path: session.get_node_id(path) for path in node_paths(session)}
    if not case.detected:
        session.rebase(ConflictDetector())
        assert session.snapshot_id == theirs
        tip = session.commit("ours")
        assert repository.lookup_snapshot(tip).parent_id == theirs
        check_sound(repository)
        return
    with pytest.raises(RebaseFailedError) as caught:
        session.rebase(ConflictDetector())
    assert reported(caught.value) == case.detected
    assert caught.value.snapshot == theirs
    for kind, path, _ in case.detected:
        assert f"{path}: {kind}" in str(caught.value)
    assert (session.snapshot_id, repr(session.status())) == (base, before)
    assert {path: session.get_node_id(path) for path in node_paths(session)} == nodes
    assert not session.read_only
    with pytest.raises(RebaseFailedError) as again:
        session.commit("ours", rebase_with=ConflictDetector())
    assert reported(again.value) == case.detected
    assert repository.lookup_branch("main") == theirs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_basic_solver_resolves_the_obvious(repository: Repository, case: Case) -> None:
    session, theirs = collide(repository, case.theirs, case.ours)
    if case.basic:
        tip = session.commit("ours", rebase_with=BasicConflictSolver())
        assert repository.lookup_snapshot(tip).parent_id == theirs
        check_sound(repository)
    else:
        with pytest.raises(RebaseFailedError) as caught:
            session.commit("ours", rebase_with=BasicConflictSolver())
        assert reported(caught.value) == case.detected
        assert repository.lookup_branch("main") == theirs


def check_sound(repository: Repository) -> None:
    """Every node at one path and in a group, manifests used and listed, chunks readable."""
    reader = Repository.open(repository.storage).readonly_session("main")
    paths = node_paths(reader)
    assert len(paths) == len(set(paths))
    assert len({reader.get_node_id(path) for path in paths}) == len(paths)
    used: set[Any] = set()
    for path in paths:
        node = reader.get_node(path)
        assert node is not None
        parent = reader.get_node(path.rpartition("/")[0] or "/")
        assert parent is not None, f"{path} is in no group"
        used.update(str(ref.manifest_id) for ref in node.manifests)
        if node.is_array:
            chunks_of(reader, path)
    listed = repository.lookup_snapshot(reader.snapshot_id).manifests
    assert {manifest.id for manifest in listed} == used


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(VersionSelection.UseOurs, b"ours"), (VersionSelection.UseTheirs, b"theirs")],
)
def test_whose_chunks_win(
    repository: Repository, choice: VersionSelection, expected: bytes
) -> None:
    session, _ = collide(
        repository, write("/b", 0, 5, data=b"theirs"), write("/b", 0, 6, data=b"ours")
    )
    session.rebase(BasicConflictSolver(on_chunk_conflict=choice))
    session.commit("merged")
    found = chunks_of(repository.readonly_session("main"), "/b")
    assert found == {0: expected, 1: b"\x01", 2: b"\x01", 5: b"theirs", 6: b"ours"}


def test_chunk_conflicts_can_fail(repository: Repository) -> None:
    session, _ = collide(repository, write("/b", 2, 1, 0), write("/b", 0, 2, 9))
    with pytest.raises(RebaseFailedError) as caught:
        session.rebase(BasicConflictSolver(on_chunk_conflict=VersionSelection.Fail))
    assert reported(caught.value) == [("ChunkDoubleUpdate", "/b", [[0], [2]])]


def test_their_version_of_chunks_wins_over_our_deleting_all(repository: Repository) -> None:
    session, _ = collide(repository, write("/b", 0, 7, data=b"theirs"), clear("/b"))
    session.rebase(BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs))
    assert chunks_of(session, "/b") == {0: b"theirs", 7: b"theirs"}


@pytest.mark.parametrize(
    ("theirs", "ours", "flag"),
    [
        (write("/b", 0), delete("/b"), "fail_on_delete_of_updated_array"),
        (document("/g", group(x=1)), delete("/g"), "fail_on_delete_of_updated_group"),
    ],
)
def test_deleting_what_others_changed_can_fail(
    repository: Repository, theirs: Edit, ours: Edit, flag: str
) -> None:
    session, _ = collide(repository, theirs, ours)
    with pytest.raises(RebaseFailedError):
        session.rebase(BasicConflictSolver(**{flag: True}))  # type: ignore[arg-type]
    session.rebase(BasicConflictSolver())
    assert session.commit("deleted")


def test_conflicts_come_in_a_fixed_order(repository: Repository) -> None:  # api-facts 43
    def prepare(session: Session) -> None:
        for name in "cdef":
            session.tree.set_document(f"/{name}", array())
            session.tree.set_document(f"/g{name}", group())

    prepared = repository.writable_session("main")
    prepare(prepared)
    prepared.commit("prepared")

    def theirs(session: Session) -> None:
        for name in "fe":
            session.tree.set_document(f"/{name}", array(x=1))
            set_chunks(session, f"/{name}", [2, 3])
        session.tree.set_document("/gf", group(x=1))
        session.tree.set_document("/gc", group(x=1))
        set_chunks(session, "/d", [0])
        session.tree.delete_node("/b")
        session.tree.delete_node("/gd")
        session.tree.set_document("/nn", group())
        session.tree.set_document("/zz", array())

    def ours(session: Session) -> None:
        for name in "ef":
            session.tree.set_document(f"/{name}", array(y=1))
            set_chunks(session, f"/{name}", [3, 4])
        session.tree.set_document("/gf", group(y=1))
        session.tree.delete_node("/gc")
        session.tree.delete_node("/d")
        session.tree.set_document("/b", array(y=1))
        set_chunks(session, "/b", [1])
        session.tree.set_document("/gd", group(y=1))
        session.tree.set_document("/nn", array())
        session.tree.set_document("/zz/k", group())

    session, _ = collide(repository, theirs, ours)
    with pytest.raises(RebaseFailedError) as caught:
        session.rebase(ConflictDetector())
    assert reported(caught.value) == [
        ("NewNodeConflictsWithExistingNode", "/nn", None),
        ("NewNodeInInvalidGroup", "/zz", None),
        ("ZarrMetadataDoubleUpdate", "/e", None),
        ("ZarrMetadataDoubleUpdate", "/f", None),
        ("ZarrMetadataDoubleUpdate", "/gf", None),
        ("ZarrMetadataUpdateOfDeletedArray", "/b", None),
        ("ZarrMetadataUpdateOfDeletedGroup", "/gd", None),
        ("ChunksUpdatedInDeletedArray", "/b", None),
        ("ChunksUpdatedInUpdatedArray", "/e", None),
        ("ChunksUpdatedInUpdatedArray", "/f", None),
        ("ChunkDoubleUpdate", "/e", [[3]]),
        ("ChunkDoubleUpdate", "/f", [[3]]),
        ("DeleteOfUpdatedArray", "/d", None),
        ("DeleteOfUpdatedGroup", "/gc", None),
    ]


# --- rebasing and committing


def test_without_a_solver_a_moved_branch_is_a_conflict(repository: Repository) -> None:
    # R3-26, H-48
    session, theirs = collide(repository, write("/b", 5), write("/b", 6))
    base = session.snapshot_id
    ways: list[dict[str, Any]] = [{}, {"rebase_with": ConflictDetector(), "rebase_tries": 0}]
    for arguments in ways:
        with pytest.raises(ConflictError) as caught:
            session.commit("ours", **arguments)
        assert not isinstance(caught.value, RebaseFailedError)
        assert (caught.value.expected_parent, caught.value.actual_parent) == (base, theirs)
        assert session.snapshot_id == base
        assert session.has_uncommitted_changes
    session.commit("ours", rebase_with=ConflictDetector(), rebase_tries=1)
    assert chunks_of(repository.readonly_session("main"), "/b").keys() == {0, 1, 2, 5, 6}


def test_a_group_stays_while_something_is_in_it(repository: Repository) -> None:
    """As a folder in git; with its attributes, if it was not deleted before."""
    for path in ("/kept", "/made"):
        session = repository.writable_session("main")
        session.tree.set_document(path, group(x=1))
        session.tree.set_document(f"{path}/old", array())
        session.commit("a group")
    session, _ = collide(repository, document("/kept/n", array()), delete("/kept"))
    session.commit("delete", rebase_with=ConflictDetector())
    session, _ = collide(repository, delete("/made"), document("/made/n", array()))
    session.commit("put into it", rebase_with=ConflictDetector())
    reader = repository.readonly_session("main")
    below = [path for path in node_paths(reader) if path.startswith(("/kept", "/made"))]
    assert below == ["/kept", "/kept/n", "/made", "/made/n"]
    documents = [json.loads(reader.tree.document(path) or b"{}") for path in ("/kept", "/made")]
    assert [found.get("attributes", {}) for found in documents] == [{"x": 1}, {}]


def test_a_revert_leaves_the_group_of_what_came_later(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/later", group(x=1))
    made = session.commit("a group")
    session = repository.writable_session("main")
    session.tree.set_document("/later/n", array())
    session.commit("an array in it")
    repository.revert(made, branch="main")
    check_sound(repository)


def test_rebasing_goes_over_many_commits(repository: Repository) -> None:
    session = repository.writable_session("main")
    set_chunks(session, "/b", [9])
    for place in range(3, 8):
        other = repository.writable_session("main")
        set_chunks(other, "/b", [place])
        other.commit("theirs")
    session.commit("ours", rebase_with=ConflictDetector())
    assert chunks_of(repository.readonly_session("main"), "/b").keys() == {*range(8), 9}


def test_a_node_that_they_made_and_removed_is_no_conflict(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/n", group())
    for edit in (document("/n", array()), delete("/n")):
        other = repository.writable_session("main")
        edit(other)
        other.commit("theirs")
    session.commit("ours", rebase_with=ConflictDetector())
    assert "/n" in node_paths(repository.readonly_session("main"))


def test_rebasing_without_need_does_nothing(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.rebase(ConflictDetector())
    set_chunks(session, "/b", [5])
    session.rebase(ConflictDetector())
    assert session.status().updated_chunks == {"/b": [[5]]}


def test_a_session_without_changes_is_rebased(repository: Repository) -> None:
    session, theirs = collide(repository, write("/b", 5), lambda _: None)
    session.rebase(ConflictDetector())
    assert session.snapshot_id == theirs
    assert session.get_chunk("/b", (5,)) == b"\x07"


def test_moves_take_along_what_others_did(repository: Repository) -> None:
    session, _ = collide(
        repository,
        in_turn(write("/g/a", 3, data=b"theirs"), document("/g", group(x=1))),
        in_turn(move("/g", "/h"), write("/h/a", 4, data=b"ours")),
    )
    session.commit("ours", rebase_with=ConflictDetector())
    reader = repository.readonly_session("main")
    assert node_paths(reader) == ["/", "/b", "/h", "/h/a"]
    assert reader.tree.document("/h") == group(x=1)
    assert reader.get_chunk("/h/a", (3,)) == b"theirs"
    assert reader.get_chunk("/h/a", (4,)) == b"ours"


def test_their_moves_take_along_what_we_did(repository: Repository) -> None:
    session, _ = collide(
        repository,
        in_turn(move("/g", "/h"), move("/b", "/h/b")),
        in_turn(write("/g/a", 4, data=b"ours"), document("/b", array(y=1)), delete("/g/a")),
    )
    session.commit("ours", rebase_with=ConflictDetector())
    reader = repository.readonly_session("main")
    assert node_paths(reader) == ["/", "/h", "/h/b"]
    assert reader.tree.document("/h/b") == array(y=1)


class Always(ConflictSolver):
    """A rule of a user's own."""

    def __init__(self, choice: VersionSelection) -> None:
        self.choice = choice
        self.asked: list[Conflict] = []

    def solve(self, conflict: Conflict) -> VersionSelection:
        self.asked.append(conflict)
        return self.choice


OURS_CAN_WIN = {
    "ChunkDoubleUpdate",
    "ZarrMetadataDoubleUpdate",
    "ChunksUpdatedInUpdatedArray",
    "DeleteOfUpdatedArray",
    "DeleteOfUpdatedGroup",
}


THEIRS_CAN_WIN = {
    "ChunkDoubleUpdate",
    "ZarrMetadataDoubleUpdate",
    "ZarrMetadataUpdateOfDeletedArray",
    "ZarrMetadataUpdateOfDeletedGroup",
    "ChunksUpdatedInDeletedArray",
    "DeleteOfUpdatedArray",
    "DeleteOfUpdatedGroup",
}


@pytest.mark.parametrize("choice", [VersionSelection.UseOurs, VersionSelection.UseTheirs])
@pytest.mark.parametrize("case", [c for c in CASES if c.detected], ids=lambda case: case.name)
def test_a_solver_of_ones_own_cannot_do_the_impossible(
    repository: Repository, case: Case, choice: VersionSelection
) -> None:
    session, theirs = collide(repository, case.theirs, case.ours)
    kinds = {kind for kind, _, _ in case.detected}
    solver = Always(choice)
    possible = OURS_CAN_WIN if choice is VersionSelection.UseOurs else THEIRS_CAN_WIN
    if kinds <= possible:
        session.commit("ours", rebase_with=solver)
        check_sound(repository)
    else:
        with pytest.raises(RebaseFailedError) as caught:
            session.commit("ours", rebase_with=solver)
        assert reported(caught.value) == case.detected
        for kind in kinds:
            assert (f": {kind}" in str(caught.value)) == (kind not in possible)
        assert repository.lookup_branch("main") == theirs
    assert [c.conflict_type for c in solver.asked] == [ConflictType[k] for k, _, _ in case.detected]


def test_our_changes_of_what_they_deleted_can_be_dropped(repository: Repository) -> None:
    ours = in_turn(write("/b", 0, 1), document("/b", array(y=1)), document("/g", group(y=1)))
    session, _ = collide(repository, delete("/b"), ours)
    session.commit("ours", rebase_with=Always(VersionSelection.UseTheirs))
    reader = repository.readonly_session("main")
    assert node_paths(reader) == ["/", "/g", "/g/a"]
    assert reader.tree.document("/g") == group(y=1), "what is no conflict is kept"
    check_sound(repository)


@pytest.mark.parametrize("theirs", [write("/g/a", 3), document("/g/a", array(x=1))])
def test_our_delete_of_what_they_changed_can_be_dropped(
    repository: Repository, theirs: Edit
) -> None:
    """The group that we deleted with it stays, too, as it was."""
    before = repository.readonly_session("main").tree.document("/g")
    session, tip = collide(repository, theirs, in_turn(delete("/g"), delete("/b")))
    session.commit("ours", rebase_with=Always(VersionSelection.UseTheirs))
    reader = repository.readonly_session("main")
    assert node_paths(reader) == ["/", "/g", "/g/a"]
    assert reader.tree.document("/g") == before
    diff = repository.diff(from_snapshot_id=tip, to_branch="main")
    assert (diff.deleted_arrays, diff.updated_chunks) == ({"/b"}, {})
    check_sound(repository)


def test_a_group_that_they_changed_stays_with_all_that_is_in_it(repository: Repository) -> None:
    session, tip = collide(repository, document("/g", group(x=1)), delete("/g"))
    session.commit("ours", rebase_with=Always(VersionSelection.UseTheirs))
    assert repository.diff(from_snapshot_id=tip, to_branch="main").is_empty()
    check_sound(repository)


@pytest.mark.parametrize(
    "ours",
    [
        replace("/g/a", array(y=1)),
        replace("/g", array()),
        in_turn(delete("/g/a"), move("/b", "/g/a")),
        in_turn(delete("/g/a"), move("/g", "/h")),
    ],
    ids=["created anew", "another node above", "moved there", "moved above"],
)
def test_a_delete_with_something_in_its_place_is_not_dropped(
    repository: Repository, ours: Edit
) -> None:
    session, theirs = collide(repository, write("/g/a", 3), ours)
    with pytest.raises(RebaseFailedError, match="/g/a: DeleteOfUpdatedArray"):
        session.commit("ours", rebase_with=Always(VersionSelection.UseTheirs))
    assert repository.lookup_branch("main") == theirs
    session.commit("ours", rebase_with=Always(VersionSelection.UseOurs))
    check_sound(repository)


def test_our_document_can_win(repository: Repository) -> None:
    session, _ = collide(repository, document("/b", array(x=1)), document("/b", array(y=1)))
    session.commit("ours", rebase_with=Always(VersionSelection.UseOurs))
    assert repository.readonly_session("main").tree.document("/b") == array(y=1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (group(), AlreadyExistsError),
        (array(shape=[2, 2]), InvalidInputError),
        (b"no document", InvalidInputError),
    ],
    ids=["another kind", "another rank", "nothing"],
)
def test_an_answer_is_a_document_for_the_node(
    repository: Repository, answer: bytes, error: type[IcefloeError]
) -> None:
    class Answers(ConflictSolver):
        def resolve(self, conflict: Conflict, sides: Sides) -> MergedDocument:
            return MergedDocument(answer)

    session, theirs = collide(repository, document("/b", array(x=1)), document("/b", array(y=1)))
    with pytest.raises(error, match="/b"):
        session.commit("ours", rebase_with=Answers())
    assert repository.lookup_branch("main") == theirs
    session.commit("still there", rebase_with=Always(VersionSelection.UseOurs))
