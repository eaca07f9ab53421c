"""Attributes that lie in a file of their own, in all that compares, merges and moves metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

from icefloe import (
    AppendSolver,
    BasicConflictSolver,
    ConflictDetector,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    in_memory_storage,
)
from icefloe.formats.registry import format_for
from icefloe.storage.forwarding import ForwardingStorage
from tests.builders import commit_edit, in_turn
from tests.documents import array, chunks_of, group, set_chunks
from tests.formats import FORMATS, folder_in, needs_moves

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.session import Session, TreeSession

    Edit = Callable[[TreeSession], object]

THRESHOLD = 100
IN_FILES = RepositoryConfig(inline_attributes_threshold_bytes=THRESHOLD)
INLINE = RepositoryConfig(inline_attributes_threshold_bytes=1 << 20)
LONG = {"history": "x" * 200, "units": "K"}


@pytest.fixture(params=FORMATS)
def repository(request: pytest.FixtureRequest) -> Repository:
    """A group and an array of ten chunks, of which three exist; both with long attributes."""
    repository = Repository.create(in_memory_storage(), IN_FILES, **FORMATS[request.param])
    commit(repository, "main", start)
    repository.create_branch("work", repository.lookup_branch("main"))
    assert is_in_a_file(repository, "/g/a") == keeps_attribute_files(repository)
    return repository


def start(session: TreeSession) -> None:
    session.tree.set_document("/", group())
    session.tree.set_document("/g", group(**LONG))
    session.tree.set_document("/g/a", named_array(10, **LONG))
    set_chunks(session, "/g/a", range(3))


def named_array(length: int, **attributes: Any) -> bytes:
    document = json.loads(array((length,), **attributes))
    return json.dumps(document | {"dimension_names": ["time"]}).encode()


def commit(repository: Repository, branch: str, edit: Callable[[Session], object]) -> str:
    return commit_edit(repository, edit, branch, f"edit of {branch}")


def is_in_a_file(repository: Repository, path: str, branch: str = "main") -> bool:
    node = repository.readonly_session(branch).get_node(path)
    assert node is not None
    return node.attributes is not None


def keeps_attribute_files(repository: Repository) -> bool:
    """Whether the format has a place for them; the official one keeps attributes in snapshots."""
    return format_for(repository.generation).keeps_attribute_files


def content(repository: Repository, path: str = "/g/a", branch: str = "main") -> dict[str, Any]:
    document = repository.readonly_session(branch).tree.document(path)
    assert document is not None
    parsed: dict[str, Any] = json.loads(document)
    return parsed


def chunks(repository: Repository, path: str = "/g/a") -> dict[int, bytes]:
    return chunks_of(repository.readonly_session("main"), path)


def put(*places: int, value: bytes = b"\x07") -> Edit:
    return lambda session: set_chunks(session, "/g/a", places, value)


def document(length: int = 10, **attributes: Any) -> Edit:
    changed = {**LONG, **attributes}
    return lambda session: session.tree.set_document("/g/a", named_array(length, **changed))


# --- one side wrote chunks, the other changed metadata

CHANGES = {
    "attributes": (document(units="m"), 10, "m"),
    "short attributes": (
        lambda session: session.tree.set_document("/g/a", named_array(10, units="m")),
        10,
        "m",
    ),
    "longer": (document(12), 12, "K"),
    "shorter": (document(5), 5, "K"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rebase_of_metadata_over_their_chunks(repository: Repository, change: str) -> None:
    edit, length, units = CHANGES[change]
    session = repository.writable_session("main")
    edit(session)
    commit(repository, "main", put(4))
    session.rebase(ConflictDetector())
    session.commit("ours")
    check_both(repository, length, units)


@pytest.mark.parametrize("change", CHANGES)
def test_a_merge_of_metadata_over_their_chunks(repository: Repository, change: str) -> None:
    edit, length, units = CHANGES[change]
    commit(repository, "work", edit)
    commit(repository, "main", put(4))
    repository.merge("work", "main")
    check_both(repository, length, units)


@pytest.mark.parametrize("change", ["attributes", "short attributes"])
def test_a_merge_of_chunks_over_their_attributes(repository: Repository, change: str) -> None:
    commit(repository, "work", put(4))
    commit(repository, "main", CHANGES[change][0])
    repository.merge("work", "main")
    check_both(repository, 10, "m")


@pytest.mark.parametrize("change", CHANGES)
def test_a_revert_of_metadata_leaves_later_chunks(repository: Repository, change: str) -> None:
    changed = commit(repository, "main", CHANGES[change][0])
    commit(repository, "main", put(4))
    repository.revert(changed, branch="main")
    check_both(repository, 10, "K")


def test_our_shorter_shape_hides_their_chunks(repository: Repository) -> None:
    session = repository.writable_session("main")
    document(4)(session)
    commit(repository, "main", put(8))
    with pytest.raises(RebaseFailedError, match=r"ChunksUpdatedInUpdatedArray, chunks \[\[8\]\]"):
        session.rebase(BasicConflictSolver())


def check_both(repository: Repository, length: int, units: str) -> None:
    found = content(repository)
    assert (found["shape"], found["attributes"]["units"]) == ([length], units)
    assert chunks(repository) == {0: b"\x01", 1: b"\x01", 2: b"\x01", 4: b"\x07"}
    assert repository.verify(deep=True).is_clean


# --- writers with different thresholds


def opened(repository: Repository, config: RepositoryConfig) -> Repository:
    return Repository.open(repository.storage, config)


@pytest.fixture(params=FORMATS)
def inline(request: pytest.FixtureRequest) -> Repository:
    """The same arrays, with all attributes in the snapshot."""
    repository = Repository.create(in_memory_storage(), INLINE, **FORMATS[request.param])
    commit(repository, "main", start)
    repository.create_branch("work", repository.lookup_branch("main"))
    assert not is_in_a_file(repository, "/g/a")
    return repository


def test_attributes_that_move_to_a_file_are_no_change(inline: Repository) -> None:
    before = inline.lookup_branch("main")
    after = commit(opened(inline, IN_FILES), "main", put(4))
    assert is_in_a_file(inline, "/g/a") == keeps_attribute_files(inline)
    diff = inline.diff(from_snapshot_id=before, to_snapshot_id=after)
    assert (diff.updated_arrays, diff.updated_groups) == (set(), set())
    assert {path: list(found) for path, found in diff.updated_chunks.items()} == {"/g/a": [[4]]}
    assert inline.verify(deep=True).is_clean


def test_a_writer_with_another_threshold_is_no_conflict(inline: Repository) -> None:
    session = inline.writable_session("main")
    set_chunks(session, "/g/a", [5], b"\x05")
    commit(opened(inline, IN_FILES), "main", put(4))
    session.rebase(ConflictDetector())
    session.commit("ours")
    assert chunks(inline).keys() == {0, 1, 2, 4, 5}
    assert inline.verify(deep=True).is_clean


@pytest.mark.parametrize("spelling", ["respelled", "in other order"])
def test_the_same_metadata_spelled_otherwise_is_no_change(
    inline: Repository, spelling: str
) -> None:
    before = inline.lookup_branch("main")
    parsed = content(inline)
    if spelling == "in other order":
        parsed = dict(reversed(parsed.items()))
        parsed["attributes"] = dict(reversed(parsed["attributes"].items()))
    text = json.dumps(parsed, indent=3).encode()

    def respell(session: TreeSession) -> None:
        session.tree.set_document("/g/a", text)
        set_chunks(session, "/g/a", [4], b"\x07")

    after = commit(opened(inline, IN_FILES), "main", respell)
    assert inline.readonly_session("main").tree.document("/g/a") == text  # byte for byte
    reverse = inline.diff(from_snapshot_id=after, to_snapshot_id=before)  # by comparison
    assert reverse.updated_arrays == set()
    commit(inline, "work", put(5))
    inline.merge("work", "main")
    assert chunks(inline).keys() == {0, 1, 2, 4, 5}
    assert inline.verify(deep=True).is_clean


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1", "1.0"),
        ("1", "true"),
        ("0", "null"),
        ("0.0", "-0.0"),
        ("NaN", "null"),
        ("NaN", '"NaN"'),
        ("[1, 2]", "[2, 1]"),
        ("9007199254740993", "9007199254740992"),
    ],
)
def test_other_values_are_a_change(inline: Repository, old: str, new: str) -> None:
    for value in (old, new):
        text = named_array(10, **LONG, value="?").replace(b'"?"', value.encode())
        writer = opened(inline, IN_FILES)
        snapshot = commit(
            writer,
            "main",
            lambda session, d=text: session.tree.set_document("/g/a", d),  # type: ignore[misc]
        )
    (before,) = [info.id for info in inline.ancestry(branch="main")][1:2]
    for one, other in ((before, snapshot), (snapshot, before)):
        diff = inline.diff(from_snapshot_id=one, to_snapshot_id=other)
        assert diff.updated_arrays == {"/g/a"}
    commit(opened(inline, INLINE), "main", put(4))
    assert inline.verify(deep=True).is_clean


def test_a_repair_leaves_logs_of_such_commits_alone(inline: Repository) -> None:
    snapshot = commit(opened(inline, IN_FILES), "main", put(4))
    assert inline.repair() == []
    (parent,) = [info.id for info in inline.ancestry(snapshot_id=snapshot)][1:2]
    diff = inline.diff(from_snapshot_id=parent, to_snapshot_id=snapshot)
    assert diff.updated_arrays == set()


# --- everything else that handles metadata


def test_appends_follow_each_other(repository: Repository) -> None:
    session = repository.writable_session("main")
    in_turn(document(12, history="y" * 300), put(10, 11, value=b"\x02"))(session)
    commit(repository, "main", in_turn(document(11, units="m"), put(10, value=b"\x03")))
    session.rebase(AppendSolver("time"))
    session.commit("ours behind theirs")
    found = content(repository)
    assert found["shape"] == [13]
    assert found["attributes"] == {"history": "y" * 300, "units": "m"}
    assert {place: chunks(repository)[place][0] for place in (10, 11, 12)} == {10: 3, 11: 2, 12: 2}
    assert repository.verify(deep=True).is_clean


def test_attributes_of_both_sides_are_merged_by_key(repository: Repository) -> None:
    commit(repository, "work", document(units="m"))
    commit(repository, "main", document(history="y" * 300))
    repository.merge("work", "main")
    assert content(repository)["attributes"] == {"history": "y" * 300, "units": "m"}
    commit(repository, "work", document(units="cm"))
    commit(repository, "main", document(units="km"))
    with pytest.raises(RebaseFailedError, match="ZarrMetadataDoubleUpdate"):
        repository.merge("work", "main")


def test_groups_that_both_created_are_one(repository: Repository) -> None:
    session = repository.writable_session("main")
    respelled = json.dumps(json.loads(group(**LONG)), indent=1).encode()
    session.tree.set_document("/new", respelled)
    session.tree.set_document("/new/b", array())
    commit(repository, "main", lambda other: other.tree.set_document("/new", group(**LONG)))
    session.rebase(ConflictDetector())
    session.commit("ours")
    assert content(repository, "/new")["attributes"] == LONG
    assert repository.verify(deep=True).is_clean


def test_moves_take_attributes_along(repository: Repository) -> None:
    needs_moves(repository)
    session = repository.writable_session("main")
    session.move("/g", "/h")
    commit(repository, "main", in_turn(document(units="m"), put(4)))
    session.rebase(ConflictDetector())
    moved = session.commit("moved")
    assert content(repository, "/h/a")["attributes"]["units"] == "m"
    assert content(repository, "/h")["attributes"] == LONG
    repository.revert(moved, branch="main")
    assert content(repository)["attributes"]["units"] == "m"
    assert repository.verify(deep=True).is_clean


def test_a_deleted_array_comes_back_with_its_attributes(repository: Repository) -> None:
    deleted = commit(repository, "main", lambda session: session.tree.delete_node("/g"))
    repository.revert(deleted, branch="main")
    assert content(repository)["attributes"] == content(repository, "/g")["attributes"] == LONG
    commit(repository, "work", document(units="m"))
    commit(repository, "main", put(4))
    repository.merge("work", "main")
    check_both(repository, 10, "m")


def test_picks_squashes_amends_and_moves_of_branches(repository: Repository) -> None:
    start = repository.lookup_branch("main")
    picked = commit(repository, "work", in_turn(document(12, units="m"), put(4)))
    commit(repository, "main", put(5))
    repository.cherry_pick(picked, branch="main")
    assert content(repository)["shape"] == [12]
    assert repository.merge("work", "main") is not None
    repository.squash("main", start, message="one commit")
    diff = repository.diff(from_snapshot_id=start, to_branch="main")
    assert diff.updated_arrays == {"/g/a"}
    session = repository.writable_session("main")
    document(12, units="cm")(session)
    session.amend("one commit, amended")
    assert content(repository)["attributes"]["units"] == "cm"
    repository.create_branch("next", repository.lookup_branch("main"))
    commit(repository, "next", document(12, units="km"))
    repository.publish("next", "main")
    assert content(repository)["attributes"]["units"] == "km"
    assert chunks(repository).keys() == {0, 1, 2, 4, 5}
    assert repository.verify(deep=True).is_clean


def test_differences_of_values_and_blame(repository: Repository) -> None:
    start = repository.lookup_branch("main")
    after = commit(repository, "main", in_turn(document(units="m"), put(1)))
    (found,) = repository.diff_values(from_snapshot_id=start, to_snapshot_id=after)
    assert (found.path, found.changed_cells) == ("/g/a", 1)
    blame = repository.blame("/g/a", branch="main")
    assert [blame.snapshot_id(place) for place in range(3)] == [start, after, start]


def test_compaction_and_statistics(repository: Repository) -> None:
    for place in range(3, 6):
        commit(repository, "main", put(place))
    before = repository.lookup_branch("main")
    repository.compact(branch="main", small_file_bytes=100, min_live_share=1)
    assert content(repository)["attributes"] == LONG
    after = repository.lookup_branch("main")
    if after != before:
        diff = repository.diff(from_snapshot_id=before, to_snapshot_id=after)
        assert (diff.updated_arrays, diff.updated_chunks) == (set(), {})
    assert repository.array_storage_stats("main").keys() == {"/g/a"}
    assert repository.verify(deep=True).is_clean


@pytest.mark.parametrize("generation", ["repository", "store", "dataset"])
def test_a_migrated_repository_merges_as_before(repository: Repository, generation: str) -> None:
    commit(repository, "work", document(12, units="m"))
    commit(repository, "main", put(4))
    target = in_memory_storage()
    repository.migrate(target, generation=generation)
    copy = Repository.open(target, INLINE)
    copy.merge("work", "main")
    check_both(copy, 12, "m")


def test_forks_are_merged_key_by_key(repository: Repository) -> None:
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    document(units="m")(forks[0])
    document(history="y" * 300)(forks[1])
    put(4)(forks[2])
    session.merge(*forks)
    session.commit("merged")
    assert content(repository)["attributes"] == {"history": "y" * 300, "units": "m"}
    assert chunks(repository).keys() == {0, 1, 2, 4}
    assert repository.verify(deep=True).is_clean


def test_zarr_sees_whole_documents(repository: Repository) -> None:
    store = repository.readonly_session("main").store
    root = zarr.open_group(store, mode="r", use_consolidated=False)
    assert dict(root["g/a"].attrs) == dict(root["g"].attrs) == LONG
    size = len(content(repository, "/g/a")["attributes"]["history"])
    assert sync(store.getsize("g/a/zarr.json")) > size
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="g/a").resize((12,))
    session.commit("resized")
    assert content(repository)["attributes"] == LONG
    assert repository.verify(deep=True).is_clean


def test_regions_are_read_without_their_attributes(repository: Repository) -> None:
    read: list[str] = []

    class Watched(ForwardingStorage):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            read.append(key)
            return super().get(key, start, length)

    repository._context.files.forget()
    reader = Repository.open(Watched(repository.storage)).readonly_session("main")
    assert np.asarray(reader.read_region("/g/a", (slice(0, 4),))).tolist() == [1, 1, 1, 0]
    prefix = folder_in(repository.storage, "attributes")
    assert not [key for key in read if key.startswith(prefix)]
    reader.tree.document("/g/a")
    has_read = any(key.startswith(prefix) for key in read)
    assert has_read == keeps_attribute_files(repository)
