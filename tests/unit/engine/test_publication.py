"""The publication of a tree's changes by itself, on a storage that fails on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe.changes.conflicts import BasicConflictSolver, ConflictDetector, VersionSelection
from icefloe.engine.commit.publication import Publication, UnpublishedCommit
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    RebaseFailedError,
    SessionStateError,
    StorageError,
)
from icefloe.formats.port import LiveTip
from icefloe.testing.faults import Fault, FaultyStorage
from tests.documents import array, group

if TYPE_CHECKING:
    from icefloe.engine.context import Context


class Writer:
    """A tree with a publication, as a session has them."""

    def __init__(self, context: Context) -> None:
        tip = live_tip(context)
        snapshot = context.files.read_snapshot(tip.snapshot_id)
        self.tree = WorkingTree(context, snapshot, read_only=False)
        self.publication = Publication(self.tree, tip, {"by": "default"})

    def commit(self, text: str, solver: Any = None, tries: int = 10) -> Any:
        message = self.publication.message(text, None)
        if solver is None:
            return self.publication.commit(message)
        return self.publication.commit_or_rebase(message, solver, tries, show=lambda tree: tree)


def live_tip(context: Context) -> LiveTip:
    tip = context.refs.tip("main")
    assert isinstance(tip, LiveTip)
    return tip


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(icefloe.in_memory_storage())


@pytest.fixture
def context(storage: FaultyStorage) -> Context:
    context = icefloe.Repository.create(storage)._context
    writer = Writer(context)
    writer.tree.set_document("/", group())
    writer.tree.set_document("/a", array((10,)))
    writer.commit("first")
    return context


def test_what_is_written_is_not_visible_until_it_is_published(context: Context) -> None:
    writer = Writer(context)
    before = live_tip(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    unpublished = writer.publication.write(writer.publication.message("second", {"n": 2}))
    assert isinstance(unpublished, UnpublishedCommit)
    assert unpublished.tip == before == live_tip(context)
    assert unpublished.snapshot.parent_id == before.snapshot_id
    assert unpublished.snapshot.metadata["n"] == 2
    assert unpublished.snapshot.metadata["by"] == "default"
    assert not writer.tree.read_only
    writer.publication.publish(unpublished)
    assert live_tip(context).snapshot_id == unpublished.snapshot.id
    assert writer.tree.read_only
    assert writer.tree.changes.is_empty


def test_a_commit_can_only_replace_the_tip_that_it_was_written_for(context: Context) -> None:
    writer, rival = Writer(context), Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    unpublished = writer.publication.write(writer.publication.message("late", None))
    rival.tree.set_chunk("/a", (2,), b"2")
    published = rival.commit("early")
    with pytest.raises(ConflictError):
        writer.publication.publish(unpublished)
    assert live_tip(context).snapshot_id == published.id
    assert not writer.tree.read_only, "it may be rebased and committed again"
    assert writer.tree.get_chunk("/a", (1,)) == b"1"


def test_a_commit_follows_a_garbage_collection_that_republished_the_tip(context: Context) -> None:
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    first = writer.publication.write(writer.publication.message("before", None))
    assert context.refs.repeat([live_tip(context)]) == set()
    with pytest.raises(ConflictError):
        writer.publication.publish(first)
    snapshot = writer.commit("after")
    assert snapshot.id != first.snapshot.id, "what was written before may be gone: written again"
    assert live_tip(context).snapshot_id == snapshot.id


def test_a_flush_is_written_again_if_a_collection_came_between(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    before = live_tip(context).snapshot_id
    written = []
    write = Publication.write

    def with_a_collection(publication: Publication, message: Any) -> UnpublishedCommit:
        unpublished = write(publication, message)
        written.append(unpublished.snapshot.id)
        if len(written) == 1:
            context.refs.repeat([live_tip(context)])
        return unpublished

    monkeypatch.setattr(Publication, "write", with_a_collection)
    snapshot = writer.publication.flush(writer.publication.message("detached", None))
    assert [snapshot.id] == written[1:]
    assert live_tip(context).snapshot_id == before
    assert writer.tree.read_only


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_ANSWER])
def test_a_commit_that_failed_before_its_reference_can_be_tried_again(
    context: Context, storage: FaultyStorage, fault: Fault
) -> None:
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    storage.inject(fault, verb="put", key="snapshots/")
    with pytest.raises(StorageError):
        writer.commit("second")
    snapshot = writer.commit("second")
    assert live_tip(context).snapshot_id == snapshot.id


def test_a_commit_of_unknown_outcome_that_landed_is_not_made_twice(
    context: Context, storage: FaultyStorage
) -> None:
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    sequence = live_tip(context).sequence
    storage.inject(Fault.LOST_ANSWER, verb="create", key="refs/", times=99)
    # The first read, before anything is written, finds that the branch is still the same.
    storage.inject(Fault.ERROR, verb="get", key="refs/", nth=2, times=99)
    with pytest.raises(CommitStateUnknownError) as unknown:
        writer.commit("second")
    storage.revive()
    landed = live_tip(context)
    assert str(landed.snapshot_id) == unknown.value.snapshot_id
    for solver in (None, ConflictDetector(), BasicConflictSolver()):
        with pytest.raises(ConflictError, match="has landed"):
            writer.commit("second", solver)
    assert live_tip(context) == landed
    assert landed.sequence == sequence + 1


def test_a_rebase_moves_the_changes_onto_the_new_tip(context: Context) -> None:
    writer, rival = Writer(context), Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    rival.tree.set_chunk("/a", (2,), b"2")
    theirs = rival.commit("theirs")
    snapshot = writer.commit("ours", ConflictDetector())
    assert snapshot.parent_id == theirs.id
    assert [writer.tree.get_chunk("/a", (place,)) for place in (1, 2)] == [b"1", b"2"]


def test_a_rebase_that_fails_leaves_tree_and_tip_as_they_were(context: Context) -> None:
    writer, rival = Writer(context), Writer(context)
    writer.tree.set_chunk("/a", (1,), b"ours")
    rival.tree.set_chunk("/a", (1,), b"theirs")
    rival.commit("theirs")
    tip, base = writer.publication.tip, writer.tree.snapshot.id
    with pytest.raises(RebaseFailedError):
        writer.commit("ours", ConflictDetector())
    assert writer.publication.tip == tip
    assert writer.tree.snapshot.id == base
    assert writer.tree.get_chunk("/a", (1,)) == b"ours"
    solver = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    writer.commit("ours", solver)
    assert writer.tree.get_chunk("/a", (1,)) == b"ours"


@pytest.mark.parametrize("tries", [0, 1])
def test_no_more_rebases_than_allowed(
    context: Context, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    rebases = []
    rebase = Publication.rebase

    def noted(publication: Publication, solver: Any, show: Any) -> None:
        rebases.append(solver)
        rebase(publication, solver, show)
        rival = Writer(context)
        rival.tree.set_document(f"/r{len(rebases)}", group())
        rival.commit("again")

    monkeypatch.setattr(Publication, "rebase", noted)
    rival = Writer(context)
    rival.tree.set_document("/r", group())
    rival.commit("meanwhile")
    with pytest.raises(ConflictError):
        writer.commit("ours", ConflictDetector(), tries)
    assert len(rebases) == tries


def test_an_amended_commit_takes_the_place_of_the_tip(context: Context) -> None:
    before = context.files.read_snapshot(live_tip(context).snapshot_id)
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    snapshot = writer.publication.amend(writer.publication.message("first, mended", None))
    assert snapshot.parent_id == before.parent_id
    assert live_tip(context).snapshot_id == snapshot.id


def test_a_base_that_was_collected_cannot_be_flushed_upon(
    context: Context, storage: FaultyStorage
) -> None:
    writer = Writer(context)
    writer.tree.set_chunk("/a", (1,), b"1")
    tip = live_tip(context)
    storage.delete_many([context.format.layout.snapshot(tip.snapshot_id)])
    context.refs.repeat([tip])
    with pytest.raises(SessionStateError, match="was collected as garbage"):
        writer.publication.flush(writer.publication.message("detached", None))
