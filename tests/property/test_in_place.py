"""Writing a manifest in the place of another gives what packing all of its arrays anew gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.config import ManifestConfig, ManifestRule, ManifestSet
from icefloe.engine.commit.patched_manifests import InPlaceWriter
from icefloe.model.ids import SnapshotId
from tests.documents import array, group

if TYPE_CHECKING:
    from icefloe.model.manifest import ManifestFileInfo
    from icefloe.repository import Repository

NAMES = ["b", "c", "d", "time", "new"]
SPACE = st.integers(0, 5)
written_chunks = st.tuples(
    st.just("set"), st.sampled_from(NAMES), SPACE, st.binary(min_size=1, max_size=9)
)
edits = st.lists(
    st.one_of(
        written_chunks,
        written_chunks,
        written_chunks,
        st.tuples(st.just("delete"), st.sampled_from(NAMES), SPACE, st.just(b"")),
        st.tuples(st.just("resize"), st.sampled_from(NAMES), st.integers(6, 9), st.just(b"")),
        st.tuples(st.just("attributes"), st.sampled_from(NAMES), SPACE, st.just(b"")),
        st.tuples(st.just("remove"), st.sampled_from(NAMES), SPACE, st.just(b"")),
        st.tuples(st.just("clear"), st.sampled_from(NAMES), SPACE, st.just(b"")),
    ),
    max_size=3,
)
first_edits = st.one_of(st.just([]), edits)
second_edits = st.one_of(
    st.lists(
        st.tuples(st.just("set"), st.sampled_from(NAMES[:-1]), SPACE, st.just(b"y")),
        min_size=1,
        max_size=3,
    ),
    edits,
)
sets = st.one_of(
    st.builds(ManifestSet, name=st.just("s"), max_manifest_size=st.sampled_from([14, 40, 60])),
    st.builds(ManifestSet, name=st.just("s"), arrays_per_manifest=st.integers(2, 5)),
    st.builds(
        ManifestSet,
        name=st.just("s"),
        max_manifest_size=st.just(40),
        cardinality=st.just(1),
        overflow_to=st.just("default"),
    ),
)
rules = st.sampled_from(
    [
        [ManifestRule(target="s")],
        [ManifestRule(target="default", path=".*/time"), ManifestRule(target="s")],
        [ManifestRule(target="s", initialized_chunks=(0, 3))],
        [ManifestRule(target="s", metadata_chunks=(0, 7))],
    ]
)


def apply(session: icefloe.Session, todo: list[tuple[str, str, int, bytes]]) -> None:
    for what, name, number, data in todo:
        path = f"/{name}"
        node = session.get_node(path)
        if node is None:
            session.tree.set_document(path, array((6,)))
        if what == "set":
            session.tree.set_chunk(path, (number,), data)
        elif what == "delete":
            session.tree.delete_chunk(path, (number,))
        elif what == "resize":
            session.tree.set_document(path, array((number,)))
        elif what == "attributes":
            session.tree.set_document(path, array((9,), note=number))
        elif what == "clear":
            session.tree.clear_chunks(path)
        else:
            session.tree.delete_node(path)


def picture(repository: Repository) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bytes of all chunks, and which arrays share a manifest of which set."""
    session = repository.readonly_session("main")
    files = repository._context.files
    snapshot = files.read_snapshot(SnapshotId.parse(session.snapshot_id))
    chunks = {
        path: {
            tuple(place): session.get_chunk(path, tuple(place))
            for place in session.tree.chunk_coords(path).tolist()
        }
        for path in session.tree.node_paths("/")
    }
    set_of = {info.id: info.set_name for info in snapshot.manifests}
    size_of = {info.id: info.num_chunk_refs for info in snapshot.manifests}
    sharing = {
        node.path: [
            (
                set_of[ref.manifest_id],
                size_of[ref.manifest_id],
                ref.extents,
                ref.num_refs,
                sorted(
                    other.path
                    for other in snapshot.nodes
                    if any(r.manifest_id == ref.manifest_id for r in other.manifests)
                ),
            )
            for ref in node.manifests
        ]
        for node in snapshot.nodes
    }
    return chunks, sharing


@settings(max_examples=60, deadline=None)
@given(first_edits, second_edits, sets, rules, st.sampled_from([False, False, True]))
def test_a_manifest_in_place_is_the_manifest_packed_anew(
    first: list[Any], second: list[Any], one: ManifestSet, chosen: list[Any], changed: bool
) -> None:
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(sets=[one], rules=chosen))
    before = icefloe.RepositoryConfig() if changed else config
    real = InPlaceWriter.write
    written: list[ManifestFileInfo | None] = []

    def spy(self: InPlaceWriter, *given: Any) -> ManifestFileInfo | None:
        written.append(real(self, *given))
        return written[-1]

    pictures = []
    for write in (spy, lambda *_: None):
        storage = icefloe.in_memory_storage()
        session = icefloe.Repository.create(storage, config=before).writable_session("main")
        session.tree.set_document("/", group())
        for name in NAMES[:-1]:
            session.tree.set_document(f"/{name}", array((6,)))
            for place in (0, 1, 3):
                session.tree.set_chunk(f"/{name}", (place,), b"x")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InPlaceWriter, "write", lambda *_: None)
            apply(session, first)
            session.commit("base")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InPlaceWriter, "write", write)
            session = icefloe.Repository.open(storage, config=config).writable_session("main")
            apply(session, second)
            session.commit("edits", allow_empty=True)
        pictures.append(picture(icefloe.Repository.open(storage)))
    (ours, our_packing), (theirs, their_packing) = pictures
    assert ours == theirs
    in_place = [info for info in written if info is not None]
    event(f"{len(in_place)} in place")
    if in_place:
        touched = {f"/{name}" for _, name, *_ in second}
        for path in touched & our_packing.keys():
            assert our_packing[path] == their_packing[path]


def test_appending_to_one_of_many_arrays_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    real = InPlaceWriter.write
    monkeypatch.setattr(
        InPlaceWriter, "write", lambda *given: written.append(real(*given)) or written[-1]
    )
    storage = icefloe.in_memory_storage()
    session = icefloe.Repository.create(storage).writable_session("main")
    session.tree.set_document("/", group())
    for number in range(20):
        session.tree.set_document(f"/{number}", array((4,)))
        session.tree.set_chunk(f"/{number}", (1,), b"x")
        session.tree.set_chunk(f"/{number}", (3,), b"x")
    session.commit("all")
    assert written == []  # there is nothing yet to take the place of
    session = icefloe.Repository.open(storage).writable_session("main")
    session.tree.set_document("/7", array((5,)))
    session.tree.set_chunk("/7", (4,), b"appended")
    session.tree.set_document("/8", array((9,)))  # resized only
    session.commit("append")
    repository = icefloe.Repository.open(storage)
    snapshot = repository._context.files.read_snapshot(
        SnapshotId.parse(repository.lookup_branch("main"))
    )
    assert [info.id for info in snapshot.manifests] == [written[0].id]
    assert {ref.manifest_id for node in snapshot.nodes for ref in node.manifests} == {written[0].id}
    reader = repository.readonly_session("main")
    for number in range(20):
        places = [1, 3, 4] if number == 7 else [1, 3]
        assert reader.tree.chunk_coords(f"/{number}").ravel().tolist() == places
        assert reader.get_chunk(f"/{number}", (3,)) == b"x"
    assert reader.get_chunk("/7", (4,)) == b"appended"
    assert reader.get_node("/8").array.shape == (9,)
