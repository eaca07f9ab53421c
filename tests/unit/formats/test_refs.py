"""Branches and tags on a storage."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    StorageError,
)
from icefloe.formats.port import DeletedTip, LiveTip
from icefloe.formats.repository.refs import parse_ref, ref_content, repository_refs
from icefloe.formats.sequence import MAX_SEQUENCE
from icefloe.model.ids import SnapshotId
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from tests.unit.formats.test_sequence import PickyStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.formats.sequence_refs import SequenceRefs
    from icefloe.storage.port import Storage

ONE, TWO, THREE = (SnapshotId(bytes([number]) * 12) for number in (1, 2, 3))
TWO_AND_A_HALF = SnapshotId(bytes(12))


@pytest.fixture(params=["memory", "probing", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage | PickyStorage:
    match request.param:
        case "memory":
            return MemoryStorage()
        case "probing":
            return PickyStorage(can_list=True, lists_in_pages=False)
        case _:
            return LocalStorage(str(tmp_path))


@pytest.fixture
def refs(storage: Storage | PickyStorage) -> SequenceRefs:
    refs = repository_refs(storage)
    refs.create_branch("main", ONE)
    return refs


def keys(storage: Any) -> list[str]:
    return [info.key for info in storage.list()]


def test_content_is_as_in_spec_001() -> None:  # R2-02
    snapshot_id = SnapshotId.parse("VY76P925PRY57WFEK410")  # R1-12 to R1-14
    assert ref_content(snapshot_id) == b'{"snapshot":"VY76P925PRY57WFEK410"}'
    assert snapshot_id == bytes.fromhex("df8e6b2445b63c53f1ee9902")
    assert parse_ref(b'{"snapshot":"VY76P925PRY57WFEK410"}', "k") == snapshot_id
    assert parse_ref(b' {"other": [1], "snapshot": "VY76P925PRY57WFEK410"}\n', "k") == snapshot_id
    assert parse_ref(ref_content(None), "k") is None


def test_files_of_a_branch(refs: SequenceRefs, storage: Storage | PickyStorage) -> None:
    # R3-39, R3-40, R1-17, R1-18, R1-20
    tip = refs.tip("main")
    assert tip == LiveTip("main", 0, ONE)
    assert refs.advance(tip, TWO) == LiveTip("main", 1, TWO)
    assert keys(storage) == ["refs/branch.main/ZZZZZZZY.json", "refs/branch.main/ZZZZZZZZ.json"]
    assert storage.get("refs/branch.main/ZZZZZZZY.json") == ref_content(TWO)
    assert refs.tip("main") == repository_refs(storage).tip("main") == LiveTip("main", 1, TWO)


def test_a_conflict_tells_where_the_branch_is_now(
    refs: SequenceRefs, storage: Storage | PickyStorage
) -> None:
    tip = refs.tip("main")
    others = repository_refs(storage)
    second = others.advance(others.tip("main"), TWO)
    others.advance(second, THREE)
    moved = f"branch 'main' moved: expected {ONE}, found {THREE}; rebase and try again"
    with pytest.raises(ConflictError, match=moved) as caught:
        refs.advance(tip, TWO_AND_A_HALF)
    assert caught.value.actual_parent == str(THREE)


@pytest.mark.parametrize("has_moved", [False, True])
def test_a_torn_branch_does_not_hide_the_others(
    refs: SequenceRefs,
    storage: Storage | PickyStorage,
    caplog: pytest.LogCaptureFixture,
    has_moved: bool,
) -> None:
    refs.create_branch("whole", ONE)
    tip = refs.create_branch("torn", ONE)
    if has_moved:
        refs.advance(tip, TWO)
    torn = next(key for key in keys(storage) if "branch.torn" in key)
    storage.delete_many([torn])
    storage.put(torn, b'{"snaps')
    again = repository_refs(storage)
    assert again.branches() == {"main", "torn", "whole"}
    # A branch's first state is not read, as nothing is deleted by it.
    assert ("branch 'torn' cannot be read" in caplog.text) == (
        has_moved or not storage.capabilities.lists_in_pages
    )
    assert again.tip("whole").snapshot_id == ONE
    with pytest.raises(FormatError, match="torn or damaged"):
        again.tip("torn")


def test_a_moved_branch_is_a_conflict(refs: SequenceRefs) -> None:  # R3-40, R1-17
    tip = refs.tip("main")
    refs.advance(tip, TWO)
    with pytest.raises(ConflictError) as caught:
        refs.advance(tip, THREE)
    assert caught.value.expected_parent == str(ONE)
    assert caught.value.actual_parent == str(TWO)
    assert refs.tip("main") == LiveTip("main", 1, TWO)


def test_our_own_landed_commit_is_no_conflict(refs: SequenceRefs) -> None:
    tip = refs.tip("main")
    refs.advance(tip, TWO)
    assert refs.advance(tip, TWO) == LiveTip("main", 1, TWO)  # H-49


def test_delete_and_create_again_continue_the_sequence(
    refs: SequenceRefs, storage: Storage | PickyStorage
) -> None:
    tip = refs.create_branch("feature", ONE)
    gone = refs.advance(tip, None)  # H-22
    assert gone == DeletedTip("feature", 1)
    deleted = storage.get("refs/branch.feature/ZZZZZZZY.json")
    assert b"".join(deleted.split()) == b'{"snapshot":null}'
    assert refs.tip("feature") == gone
    assert refs.branches() == {"main"}
    with pytest.raises(ConflictError) as caught:
        refs.advance(tip, TWO)
    assert caught.value.actual_parent is None
    again = refs.create_branch("feature", TWO)
    assert again == LiveTip("feature", 2, TWO)
    assert refs.branches() == {"main", "feature"}
    assert [state.snapshot_id for state in refs.reflog("feature")] == [TWO, None, ONE]


def test_main_cannot_be_deleted(refs: SequenceRefs) -> None:
    tip = refs.tip("main")
    with pytest.raises(InvalidInputError, match="main"):  # R3-29
        refs.advance(tip, None)
    assert refs.tip("main") == tip


def test_a_branch_is_created_once(refs: SequenceRefs) -> None:
    with pytest.raises(AlreadyExistsError):
        refs.create_branch("main", TWO)
    with pytest.raises(AlreadyExistsError):
        refs.create_branch("main", ONE)


def test_the_last_sequence_number(refs: SequenceRefs) -> None:
    with pytest.raises(InvalidInputError, match="sequence numbers"):  # R3-46
        refs.advance(LiveTip("main", MAX_SEQUENCE, ONE), TWO)


def test_what_never_existed(refs: SequenceRefs) -> None:
    assert refs.tip("nothing") is None
    assert refs.tag("nothing") is None
    assert list(refs.reflog("nothing")) == []
    for name in ("a/b", "", "a\0b"):
        assert refs.tip(name) is None
        assert refs.tag(name) is None


def test_tags(refs: SequenceRefs, storage: Storage | PickyStorage) -> None:
    refs.create_tag("it works!", TWO)
    content = storage.get("refs/tag.it works!/ref.json")
    assert b"".join(content.split()) == ref_content(TWO)  # R1-22
    for end in range(len(content)):  # no part of the file passes for the whole of it
        with pytest.raises(FormatError):
            parse_ref(content[:end], "key")
    assert refs.tag("it works!") == TWO
    assert refs.tags() == {"it works!"}
    for snapshot_id in (ONE, TWO):
        with pytest.raises(AlreadyExistsError):  # R1-24: also for the same snapshot
            refs.create_tag("it works!", snapshot_id)
    refs.create_branch("it works!", ONE)
    assert refs.branches() == {"main", "it works!"}


def test_tombstones_of_the_reference_implementation(
    refs: SequenceRefs, storage: Storage | PickyStorage
) -> None:
    refs.create_tag("deleted", ONE)
    storage.put("refs/tag.deleted/ref.json.deleted", b"")
    assert refs.tag("deleted") is None
    assert refs.tags() == set()
    with pytest.raises(AlreadyExistsError):
        refs.create_tag("deleted", TWO)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/", "new\nline", "nul\0", "\x7f", "\ud800", "x" * 252, "ü" * 126],
)
def test_bad_names_are_refused(refs: SequenceRefs, name: str) -> None:
    with pytest.raises(InvalidInputError):  # R1-19, R1-23, H-23
        refs.create_branch(name, ONE)
    with pytest.raises(InvalidInputError):
        refs.create_tag(name, ONE)


@pytest.mark.parametrize(
    "name", ["a b", "it works!", "ünïcode", "v1.0", "...", "-", "a\\b", "%2f", "x" * 248, "冰" * 82]
)
def test_unusual_names_work(refs: SequenceRefs, name: str) -> None:
    refs.create_branch(name, TWO)
    refs.create_tag(name, ONE)
    assert refs.tip(name) == LiveTip(name, 0, TWO)
    assert refs.tag(name) == ONE
    assert refs.branches() == {"main", name}
    assert refs.tags() == {name}


@pytest.mark.parametrize(
    ("one", "other"), [("Main-2", "main-2"), ("é", "e\u0301"), ("STRASSE", "straße")]
)
def test_names_that_some_storages_confuse_are_refused(
    refs: SequenceRefs, one: str, other: str
) -> None:
    refs.create_branch(one, ONE)
    refs.create_tag(one, ONE)
    with pytest.raises(AlreadyExistsError, match="case or accents"):  # H-25
        refs.create_branch(other, ONE)
    with pytest.raises(AlreadyExistsError, match="case or accents"):
        refs.create_tag(other, ONE)


@pytest.mark.parametrize("length", range(35))
def test_a_torn_reference_is_never_an_older_one(
    refs: SequenceRefs, storage: Storage | PickyStorage, length: int
) -> None:
    refs.advance(refs.tip("main"), TWO)
    key = "refs/branch.main/ZZZZZZZX.json"
    storage.put(key, ref_content(THREE)[:length])
    with pytest.raises(FormatError, match="torn or damaged") as caught:
        repository_refs(storage).tip("main")
    assert caught.value.key == key


@pytest.mark.parametrize(
    "content",
    [
        bytes(35),
        b"[]",
        b"null",
        b'{"snapshot":1}',
        b'{"snapshot":"short"}',
        b'{"snapshot":"VY76P925PRY57WFEK41U"}',
        b'{"Snapshot":"VY76P925PRY57WFEK410"}',
        b'{"snapshot":"VY76P925PRY57WFEK410"}}',
        b'{"snapshot":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_other_damage_is_found(
    refs: SequenceRefs, storage: Storage | PickyStorage, content: bytes
) -> None:
    storage.put("refs/tag.bad/ref.json", content)
    with pytest.raises(FormatError) as caught:
        refs.tag("bad")
    assert caught.value.key == "refs/tag.bad/ref.json"


def test_a_tag_names_a_snapshot(refs: SequenceRefs, storage: Storage | PickyStorage) -> None:
    storage.put("refs/tag.bad/ref.json", b'{"snapshot":null}')
    with pytest.raises(FormatError, match="found null"):
        refs.tag("bad")


def test_a_gap_in_the_sequence_is_reported(
    refs: SequenceRefs, storage: Storage | PickyStorage
) -> None:
    for snapshot_id in (TWO, THREE):
        refs.advance(refs.tip("main"), snapshot_id)
    storage.delete_many(["refs/branch.main/ZZZZZZZY.json"])
    if storage.capabilities.lists_in_pages:
        with pytest.raises(FormatError, match="gap"):
            list(refs.reflog("main"))


def test_one_of_many_wins(refs: SequenceRefs, storage: Storage | PickyStorage) -> None:
    tip = refs.tip("main")
    barrier = threading.Barrier(8)
    won: list[SnapshotId] = []

    def race(number: int) -> None:
        snapshot_id = SnapshotId(bytes([100 + number]) * 12)
        barrier.wait()
        try:
            repository_refs(storage).advance(tip, snapshot_id)
        except ConflictError:
            return
        won.append(snapshot_id)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1  # R3-31
    assert refs.tip("main") == LiveTip("main", 1, won[0])


def test_without_listing_only_enumeration_fails() -> None:
    storage = PickyStorage(can_list=False, lists_in_pages=False)
    storage.create("refs/branch.main/ZZZZZZZZ.json", ref_content(ONE))
    storage.create("refs/tag.v1/ref.json", ref_content(TWO))
    refs = repository_refs(storage)
    assert refs.tip("main") == LiveTip("main", 0, ONE)
    assert refs.tag("v1") == TWO
    for enumerate_all in (refs.branches, refs.tags):
        with pytest.raises(StorageError, match="cannot list"):
            enumerate_all()


def test_refs_travel_by_pickle(tmp_path: Path) -> None:
    refs = repository_refs(LocalStorage(str(tmp_path)))
    refs.create_branch("main", ONE)
    assert pickle.loads(pickle.dumps(refs)).tip("main") == LiveTip("main", 0, ONE)
