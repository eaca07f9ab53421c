"""Conformance tests for generations of the format: inherit them and provide a fixture.

class TestMyGeneration(GenerationTests):
    @pytest.fixture
    def how(self):
        return {"generation": "mine"}
"""

# ruff: noqa: D102 (the names of tests say what they test)

from __future__ import annotations

import itertools
import json
import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from icefloe.changes.conflicts import BasicConflictSolver, ConflictDetector
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.manifests import ManifestConfig
from icefloe.config.preloading import ManifestPreload
from icefloe.config.repository import ChunkPackingConfig, RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import detect, format_for
from icefloe.repository import Repository
from icefloe.storage.access.stores import local_filesystem_store
from icefloe.storage.clock import storage_now
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.faults import WRITING, CrashError, Fault, FaultyStorage

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session
    from icefloe.storage.port import Storage

CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)

GROUP = b'{"zarr_format": 3,  "node_type":"group"}'
ODD_DOCUMENTS = (
    b'{"node_type":"group","zarr_format":3,"attributes":{"nan":NaN,"big":123456789012345678901}}',
    b'{\n "attributes" : {"\\u00fc": "\xc3\xbc", "x": 1e3} ,"zarr_format":3,"node_type":"group"}',
    b'{"zarr_format":3,"node_type":"group","attributes":{"long":"' + b"x" * 300 + b'"}}',
)


def array_document(shape: tuple[int, ...], chunks: tuple[int, ...], **changes: Any) -> bytes:
    """The zarr.json of an array of bytes."""
    document = {
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(document | changes, indent=2).encode()


ODD_ARRAYS = (
    array_document((), ()),
    array_document((0, 5), (1, 5), dimension_names=["x", None]),
    array_document((10,), (3,), data_type="float64", fill_value="NaN"),
    array_document((10,), (3,), data_type="complex64", fill_value=["-Infinity", 0.5]),
    array_document((10,), (3,), data_type="string", fill_value="ü"),
    array_document((10,), (3,), chunk_key_encoding={"name": "v2"}),
    array_document(
        (10,), (3,), data_type={"name": "numpy.datetime64", "configuration": {"unit": "s"}}
    ),
    array_document((2**33, 70_000), (4, 7), codecs=["bytes", {"name": "x", "configuration": {}}]),
    array_document(
        (6,),
        (2,),
        chunk_grid={
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[1, 2, 3]]},
        },
    ),
)


def make(storage: Storage, how: dict[str, Any], config: RepositoryConfig = CONFIG) -> Repository:
    """A repository with two arrays, an attribute file, packed and inline chunks, and a tag."""
    repo = Repository.create(storage, config, **how)
    session = repo.writable_session("main")
    session.tree.set_document("/", GROUP)
    session.tree.set_document("/g", ODD_DOCUMENTS[2])
    session.tree.set_document("/g/a", array_document((20, 20), (2, 10)))
    for place in range(10):
        session.tree.set_chunk("/g/a", (place, 1), bytes([place]) * (2 if place < 5 else 20))
    session.tree.set_document("/b", array_document((100,), (10,)))
    for place in range(0, 10, 3):
        session.tree.set_chunk("/b", (place,), b"%d" % place)
    repo.create_tag("first", session.commit("one", {"by": "a test", "n": 2**63}))
    return repo


def picture(storage: Storage) -> dict[str, Any]:
    """Everything that a new client can read from a repository."""
    repo = Repository.open(storage)
    contents: dict[str, Any] = {"config": repo.config}
    for name in sorted(repo.list_branches()):
        infos = list(repo.ancestry(branch=name))
        contents[name] = [
            (info.message, info.metadata, tree(repo.readonly_session(snapshot_id=info.id)))
            for info in infos
        ]
    for name in sorted(repo.list_tags()):
        contents[f"tag {name}"] = tree(repo.readonly_session(tag=name))
    return contents


def tree(session: Session) -> dict[str, Any]:
    """All documents and chunks of a session."""
    contents: dict[str, Any] = {}
    for path in ("/", *session.tree.node_paths("/")):
        node = session.get_node(path)
        if node is None:
            continue
        contents[path] = session.tree.document(path)
        if node.is_array:
            for place in session.tree.chunk_coords(path).tolist():
                contents[f"{path} {place}"] = session.get_chunk(path, tuple(place))
    return contents


def objects(storage: Storage) -> set[str]:
    """Keys of all objects."""
    return {info.key for info in storage.list()}


def copied(storage: Storage) -> MemoryStorage:
    """A copy of all objects in a new storage, so that nothing comes from a cache."""
    twin = MemoryStorage()
    for info in storage.list():
        twin.put(info.key, storage.get(info.key))
    return twin


class GenerationTests:
    """The tests; the fixture `how` returns the arguments of `Repository.create`."""

    @pytest.fixture
    def how(self) -> dict[str, Any]:
        raise NotImplementedError

    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()

    @pytest.fixture
    def repo(self, storage: Storage, how: dict[str, Any]) -> Repository:
        return make(storage, how)

    # --- creating

    def test_it_is_found_again(
        self, repo: Repository, storage: Storage, how: dict[str, Any]
    ) -> None:  # R3-28
        opened = Repository.open(storage)
        assert opened.generation == repo.generation == how.get("generation", "repository")
        assert opened.spec_version == repo.spec_version
        assert tree(opened.readonly_session("main")) == tree(repo.readonly_session("main"))
        assert opened.config.inline_chunk_threshold_bytes == 4
        if format_for(**how).keeps_attribute_files:
            assert opened.config.inline_attributes_threshold_bytes == 200
        with pytest.raises(AlreadyExistsError):
            Repository.create(storage, **how)
        again = Repository.open_or_create(storage, generation=repo.generation)
        assert again.lookup_branch("main") == repo.lookup_branch("main")

    def test_on_local_files(self, tmp_path: Path, how: dict[str, Any]) -> None:  # R3-05, R3-18
        storage = LocalStorage(str(tmp_path / "x"), "none")
        make(storage, how)
        other = MemoryStorage()
        make(other, how)
        assert picture(storage) == picture(other)

    def test_a_copy_in_another_process_sees_the_same(self, tmp_path: Path, how: Any) -> None:
        repo = make(LocalStorage(str(tmp_path / "x"), "none"), how)
        copy = pickle.loads(pickle.dumps(repo))
        assert tree(copy.readonly_session("main")) == tree(repo.readonly_session("main"))
        session = pickle.loads(pickle.dumps(repo.readonly_session("main")))
        assert tree(session) == tree(repo.readonly_session("main"))

    # --- documents and chunks

    def test_documents_come_back_byte_for_byte(self, repo: Repository, storage: Storage) -> None:
        # R0-48
        session = repo.writable_session("main")
        documents = {f"/odd/{number}": each for number, each in enumerate(ODD_DOCUMENTS)}
        documents |= {f"/odd/a{number}": each for number, each in enumerate(ODD_ARRAYS)}
        documents["/odd/ünïcode name"] = GROUP
        session.tree.set_document("/odd", GROUP)
        for path, document in documents.items():
            session.tree.set_document(path, document)
        session.commit("odd")
        reader = Repository.open(copied(storage)).readonly_session("main")
        for path, document in documents.items():
            assert reader.tree.document(path) == document

    def test_chunks_of_all_kinds(self, tmp_path: Path, how: dict[str, Any]) -> None:
        # R0-62, R3-08, R3-90, R1-03, R1-38
        (tmp_path / "file.bin").write_bytes(bytes(range(256)))
        prefix = f"file://{tmp_path}/"
        config = RepositoryConfig(inline_chunk_threshold_bytes=4)
        config.chunk_packing = ChunkPackingConfig(max_chunk_bytes=100)
        config.set_virtual_chunk_container(
            VirtualChunkContainer(prefix, local_filesystem_store(str(tmp_path)))
        )
        storage = MemoryStorage()
        repo = Repository.create(storage, config, {prefix: None}, **how)
        session = repo.writable_session("main")
        session.tree.set_document("/", GROUP)
        far = min(2**39, format_for(**how).max_chunks - 1)
        session.tree.set_document("/a", array_document((far + 1,), (1,)))
        session.tree.set_document("/s", array_document((), ()))
        expected = {
            (0,): b"inl",
            (1,): b"packed",
            (far,): b"also packed",
            (240,): b"large" * 100,
            (2287,): bytes(range(10, 30)),
        }
        for place, data in list(expected.items())[:-1]:
            session.tree.set_chunk("/a", place, data)
        session.tree.set_chunk("/s", (), b"scalar")
        session.store.set_virtual_ref("a/c/2287", f"{prefix}file.bin", offset=10, length=20)
        session.commit("one")
        reader = Repository.open(copied(storage), None, {prefix: None}).readonly_session("main")
        assert {place: reader.get_chunk("/a", place) for place in expected} == expected
        assert reader.get_chunk("/s", ()) == b"scalar"
        assert sorted(map(tuple, reader.tree.chunk_coords("/a").tolist())) == sorted(expected)
        assert reader.get_chunk("/a", (7,)) is None

    def test_any_hierarchy(self, how: dict[str, Any]) -> None:  # R0-01, R3-02, R1-02
        root = {"/": array_document((4,), (2,))}
        parents = ["/" + "/".join("abcdefghij"[:depth]) for depth in range(11)]
        deep = dict.fromkeys(parents, GROUP) | {f"{parents[-1]}/x": array_document((4,), (2,))}
        for documents in (root, deep):
            storage = MemoryStorage()
            session = Repository.create(storage, **how).writable_session("main")
            for path, document in documents.items():
                session.tree.set_document(path, document)
            *_, array = documents
            session.tree.set_chunk(array, (1,), b"12")
            session.commit("one")
            found = tree(Repository.open(copied(storage)).readonly_session("main"))
            assert found == documents | {f"{array} [1]": b"12"}

    def test_replaced_and_deleted_chunks(self, repo: Repository, storage: Storage) -> None:
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (3,), b"new")
        session.tree.delete_chunk("/b", (6,))
        session.tree.set_chunk("/b", (1,), b"x" * 50)
        session.commit("two")
        reader = Repository.open(copied(storage)).readonly_session("main")
        found = {
            int(place[0]): reader.get_chunk("/b", (int(place[0]),))
            for place in reader.tree.chunk_coords("/b").tolist()
        }
        assert found == {0: b"0", 1: b"x" * 50, 3: b"new", 9: b"9"}
        diff = repo.diff(from_branch="main~1", to_branch="main")
        assert diff.updated_chunks == {"/b": [[1], [3], [6]]}

    def test_attribute_files_are_linked(self, repo: Repository, storage: Storage) -> None:
        fmt = detect(storage)
        assert fmt is not None
        folder = fmt.layout.attributes(type(self)._any_id()).partition("/")[0]  # noqa: SLF001
        before = [info.key for info in storage.list(f"{folder}/")]
        assert len(before) == int(fmt.keeps_attribute_files)
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (2,), b"2")
        session.commit("chunks only")
        assert [info.key for info in storage.list(f"{folder}/")] == before
        reader = Repository.open(storage).readonly_session("main")
        assert reader.tree.document("/g") == ODD_DOCUMENTS[2]

    @staticmethod
    def _any_id() -> Any:
        from icefloe.model.ids import AttributesId

        return AttributesId.random()

    # --- nodes

    def test_a_rename_touches_the_snapshot_alone(self, repo: Repository, storage: Storage) -> None:
        # R3-09, R0-08
        if (repo.generation, repo.spec_version) == ("icechunk", 1):
            with pytest.raises(InvalidInputError, match=r"version 1 .* cannot record"):
                repo.writable_session("main").move("/g", "/h")
            return
        before = tree(repo.readonly_session("main"))
        was = objects(storage)
        session = repo.writable_session("main")
        ids = {path: session.get_node_id(path) for path in ("/g", "/g/a", "/b")}
        session.move("/g", "/h")
        session.move("/b", "/h/b")
        session.commit("moved")
        session = Repository.open(storage).writable_session("main")
        assert [session.get_node_id(path) for path in ("/h", "/h/a", "/h/b")] == list(ids.values())
        moved = {
            path.replace("/g", "/h").replace("/b", "/h/b"): value for path, value in before.items()
        }
        assert tree(session) == moved
        fmt = detect(storage)
        assert fmt is not None
        kinds = {name.kind for key in objects(storage) - was if (name := fmt.layout.parse(key))}
        assert kinds <= {"snapshot", "transaction-log"}
        diff = repo.diff(from_branch="main~1", to_branch="main")
        assert sorted(diff.moved_nodes) == [("/b", "/h/b"), ("/g", "/h")]

    def test_a_node_that_is_created_again_is_another(
        self, repo: Repository, storage: Storage
    ) -> None:
        first = repo.readonly_session("main").get_node_id("/b")
        session = repo.writable_session("main")
        session.tree.delete_node("/b")
        session.commit("gone")
        session = Repository.open(storage).writable_session("main")
        session.tree.set_document("/b", array_document((5,), (5,)))
        session.commit("again")
        reader = Repository.open(storage).readonly_session("main")
        assert reader.get_node_id("/b") != first
        assert len(reader.tree.chunk_coords("/b")) == 0
        assert repo.diff(from_tag="first", to_branch="main").deleted_arrays == {"/b"}

    # --- branches, tags, history

    def test_references(self, repo: Repository, storage: Storage) -> None:
        tip = repo.lookup_branch("main")
        first = list(repo.ancestry(branch="main"))[-1].id
        repo.create_branch("dev", first)
        assert repo.list_branches() == {"main", "dev"}
        repo.reset_branch("dev", tip, from_snapshot_id=first)
        assert Repository.open(storage).lookup_branch("dev") == tip
        repo.delete_branch("dev")
        assert Repository.open(storage).list_branches() == {"main"}
        repo.create_branch("dev", first)
        assert repo.lookup_branch("dev") == first
        with pytest.raises(AlreadyExistsError):
            repo.create_branch("dev", tip)
        with pytest.raises(AlreadyExistsError):
            repo.create_tag("first", first)
        assert repo.lookup_tag("first") == tip
        repo.create_tag("oldest", first)  # R3-102, R1-44
        assert Repository.open(copied(storage)).lookup_tag("oldest") == first
        for name in ("", ".", "..", "a/b", "\0", "x" * 300):
            with pytest.raises(InvalidInputError):
                repo.create_branch(name, first)
        with pytest.raises(InvalidInputError):
            repo.delete_branch("main")
        if not format_for(repo.generation, repo.spec_version).is_official:
            with pytest.raises(InvalidInputError):
                repo.delete_tag("first")
            return
        repo.delete_tag("first")
        assert Repository.open(storage).list_tags() == {"oldest"}
        with pytest.raises(RefNotFoundError):
            repo.lookup_tag("first")
        with pytest.raises(AlreadyExistsError):  # its name is used up
            repo.create_tag("first", first)

    @pytest.mark.parametrize("way", ["branch", "tag", "snapshot_id"])
    def test_reads_go_from_the_name_to_the_chunk(
        self, storage: Storage, how: dict[str, Any], way: str
    ) -> None:
        # R0-24, R3-24, R3-93, R3-95, R3-96, R3-97, R3-98, R1-07, R1-40, R1-41, R1-42
        config = RepositoryConfig(
            inline_chunk_threshold_bytes=4,
            inline_attributes_threshold_bytes=200,
            manifest=ManifestConfig(preload=ManifestPreload(max_manifests=0)),
        )
        made = make(storage, how, config)
        tip = made.lookup_branch("main")
        made.create_branch("dev", tip)
        session = made.writable_session("main")
        session.tree.set_chunk("/g/a", (9, 1), b"later")
        session.commit("two")
        faulty = FaultyStorage(storage)
        fmt = detect(storage)
        assert fmt is not None
        repo = Repository.open(faulty)
        faulty.trace.clear()
        name = {"branch": "dev", "tag": "first", "snapshot_id": tip}[way]
        session = repo.readonly_session(**{way: name})  # type: ignore[arg-type]
        assert session.get_chunk("/g/a", (9, 1)) == bytes([9]) * 20
        assert session.snapshot_id == tip
        kinds = [each and each.kind for each in (fmt.layout.parse(k) for _, k in faulty.trace)]
        steps = [kind for kind, _ in itertools.groupby(kinds)]
        assert steps == [None] * (way != "snapshot_id") + ["snapshot", "manifest", "chunk-file"]
        with pytest.raises(ReadOnlyError):
            session.tree.set_chunk("/g/a", (9, 1), b"x")
        if way != "branch":
            with pytest.raises(RefNotFoundError):
                repo.writable_session(name)

    def test_the_reference_is_written_last(self, storage: Storage, how: dict[str, Any]) -> None:
        # R0-25, R3-25, R3-38, R1-07, R1-16
        faulty = FaultyStorage(storage)
        repo = make(faulty, how)
        fmt = detect(storage)
        assert fmt is not None
        session = repo.writable_session("main")
        faulty.trace.clear()
        session.tree.set_chunk("/g/a", (9, 0), bytes(20))
        session.tree.set_document("/g", ODD_DOCUMENTS[2] + b" ")
        session.commit("two")
        names = [fmt.layout.parse(key) for _, key in faulty.writes()]
        steps = [
            each and str(each.kind)
            for each in names
            if each is None or each.kind != ObjectKind.TRANSACTION_LOG
        ]
        attributes = ["attributes"] * fmt.keeps_attribute_files
        # Where references are replaced, a copy of the old ones may come first.
        *before, last = [step for step, _ in itertools.groupby(steps)]
        assert before == ["chunk-file", "manifest", *attributes, "snapshot"]
        assert last is None
        verbs = [verb for verb, _ in faulty.writes()]
        assert verbs[-1] in {"create", "replace"}
        assert set(verbs[:-1]) <= {"put", "copy"}

    def test_all_states_of_a_branch_are_remembered(
        self, repo: Repository, storage: Storage
    ) -> None:
        one = repo.lookup_branch("main")
        repo.create_branch("dev", one)
        repo.delete_branch("dev")
        repo.create_branch("dev", one)
        fmt = detect(storage)
        assert fmt is not None
        log = list(fmt.make_refs(storage).reflog("dev"))
        targets = [tip.snapshot_id and str(tip.snapshot_id) for tip in log]
        if (repo.generation, repo.spec_version) == ("icechunk", 1):
            assert targets == [one]  # that version has no place for more
            return
        sequences = [tip.sequence for tip in log]
        assert sequences == sorted(set(sequences), reverse=True)
        assert targets == [one, None, one]

    def test_a_long_history(self, repo: Repository, storage: Storage) -> None:  # R3-100, R3-07
        ids = [repo.lookup_branch("main")]
        for value in range(25):
            session = repo.writable_session("main")
            session.tree.set_document("/", GROUP + b" " * value + b"\n")
            ids.append(session.commit(f"{value}", {"value": value}))
        opened = Repository.open(storage)
        infos = list(opened.ancestry(branch="main"))
        assert [info.id for info in infos[:-1]] == ids[::-1]
        assert infos[0].metadata == {"value": 24}
        assert infos[-2].metadata == {"by": "a test", "n": 2**63}
        times = [info.written_at for info in infos]
        assert times == sorted(times, reverse=True)
        assert opened.lookup_branch("main~25") == ids[0]
        as_of = opened.readonly_session("main", as_of=infos[5].written_at)
        assert as_of.snapshot_id == infos[5].id
        for value, snapshot_id in enumerate(ids[1:]):
            old = opened.readonly_session(snapshot_id=snapshot_id)
            assert old.tree.document("/") == GROUP + b" " * value + b"\n"

    # --- concurrent writers

    def test_one_of_two_commits_wins(self, repo: Repository) -> None:  # R3-37
        sessions = [repo.writable_session("main") for _ in range(2)]
        for number, session in enumerate(sessions):
            session.tree.set_chunk("/b", (number,), b"new")
        sessions[0].commit("first")
        with pytest.raises(ConflictError):
            sessions[1].commit("second")

    def test_both_changes_survive_a_rebase(self, repo: Repository, storage: Storage) -> None:
        # R3-26, R3-40, R3-101, R1-43, H-48
        mine, theirs = repo.writable_session("main"), repo.writable_session("main")
        for number, session in enumerate((theirs, mine)):
            session.tree.set_document(f"/new{number}", array_document((4,), (1,)))
            for place in range(4):
                session.tree.set_chunk(f"/new{number}", (place,), b"%d" % number * (1 + 9 * number))
            session.tree.set_chunk("/b", (number + 1,), b"new")
        theirs.commit("theirs")
        mine.commit("mine", rebase_with=ConflictDetector())
        reader = Repository.open(copied(storage)).readonly_session("main")
        assert reader.get_node_id("/new0") != reader.get_node_id("/new1")
        assert reader.get_chunk("/new0", (3,)) == b"0"
        assert reader.get_chunk("/new1", (3,)) == b"1" * 10
        assert [reader.get_chunk("/b", (place,)) for place in (1, 2)] == [b"new", b"new"]

    def test_conflicts_are_found(self, repo: Repository, storage: Storage) -> None:
        mine, theirs = repo.writable_session("main"), repo.writable_session("main")
        for session, data in ((theirs, b"T"), (mine, b"M")):
            session.tree.set_chunk("/b", (3,), data)
        theirs.tree.delete_node("/g/a")
        mine.tree.set_chunk("/g/a", (0, 0), b"M")
        theirs.tree.set_document("/g", GROUP)
        theirs.commit("theirs")
        with pytest.raises(RebaseFailedError) as caught:
            mine.rebase(ConflictDetector())
        found = {(c.conflict_type.name, c.path) for c in caught.value.conflicts}
        assert found == {("ChunkDoubleUpdate", "/b"), ("ChunksUpdatedInDeletedArray", "/g/a")}
        again = repo.writable_session("main")
        again.tree.set_chunk("/b", (3,), b"X")
        rival = repo.writable_session("main")
        rival.tree.set_chunk("/b", (3,), b"Y")
        rival.commit("rival")
        again.commit("ours", rebase_with=BasicConflictSolver())
        assert Repository.open(storage).readonly_session("main").get_chunk("/b", (3,)) == b"X"

    def test_forks_that_create_nodes_are_merged(self, repo: Repository, storage: Storage) -> None:
        session = repo.writable_session("main")
        forks = [session.fork() for _ in range(3)]
        for number, fork in enumerate(forks):
            fork.tree.set_document(f"/fork{number}", array_document((2,), (1,)))
            fork.tree.set_chunk(f"/fork{number}", (0,), b"%d" % number * 10)
        session.merge(*forks)
        session.commit("merged")
        reader = Repository.open(storage).readonly_session("main")
        ids = {reader.get_node_id(f"/fork{number}") for number in range(3)}
        assert len(ids) == 3
        for number in range(3):
            assert reader.get_chunk(f"/fork{number}", (0,)) == b"%d" % number * 10

    # --- other ways to commit

    def test_amend_flush_and_rewrite(self, repo: Repository, storage: Storage) -> None:
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (1,), b"1")
        two = session.commit("two")
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (2,), b"2")
        session.amend("two, amended")
        opened = Repository.open(storage)
        messages = [info.message for info in opened.ancestry(branch="main")]
        assert messages[:2] == ["two, amended", "one"]
        assert opened.diff(from_branch="main~1", to_branch="main").updated_chunks == {
            "/b": [[1], [2]]
        }
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (4,), b"4")
        loose = session.flush("nowhere")
        assert repo.readonly_session(snapshot_id=loose).get_chunk("/b", (4,)) == b"4"
        assert repo.readonly_session(snapshot_id=two).get_chunk("/b", (1,)) == b"1"
        before = tree(repo.readonly_session("main"))
        repo.rewrite_manifests("rewritten", branch="main")
        assert tree(Repository.open(storage).readonly_session("main")) == before
        assert repo.diff(from_branch="main~1", to_branch="main").is_empty()

    def test_manifests_are_split_and_linked(self, storage: Storage, how: dict[str, Any]) -> None:
        # R0-50, R0-53, R3-20, R3-82, R1-34, R4-01
        config = RepositoryConfig.default()
        config.manifest = split_every(10)
        repo = make(storage, how, config)
        session = repo.writable_session("main")
        session.tree.set_document("/big", array_document((100,), (1,)))
        for place in range(100):
            session.tree.set_chunk("/big", (place,), b"%d" % place)
        session.commit("big")
        fmt = detect(storage)
        assert fmt is not None
        node = repo.readonly_session("main").get_node("/big")
        assert node is not None
        assert len(node.manifests) == 10
        was = objects(storage)
        session = repo.writable_session("main")
        session.tree.set_chunk("/big", (55,), b"new")
        session.commit("one tile")
        new = {name.kind for key in objects(storage) - was if (name := fmt.layout.parse(key))}
        written = [
            key
            for key in objects(storage) - was
            if (name := fmt.layout.parse(key)) and name.kind == "manifest"
        ]
        assert len(written) == 1, new
        reader = Repository.open(copied(storage)).readonly_session("main")
        assert reader.get_chunk("/big", (55,)) == b"new"
        assert reader.get_chunk("/big", (99,)) == b"99"

    def test_large_tables(self, repo: Repository, storage: Storage) -> None:
        """More references than one block holds, dense and sparse."""
        # Manifests of MessagePack rows have no blocks, and are slow at this size.
        side = 50 if (repo.generation, repo.spec_version) == ("repository", 1) else 257
        session = repo.writable_session("main")
        session.tree.set_document("/v", array_document((side, side), (1, 1)))
        session.tree.set_document("/w", array_document((50, 700), (1, 1)))
        coords = np.indices((side, side)).reshape(2, -1).T
        sparse = np.indices((50, 60)).reshape(2, -1).T * np.array([1, 7])
        for path, places in (("/v", coords), ("/w", sparse)):
            session.tree.set_chunk_refs(path, virtual_refs(places))
        session.commit("many")
        reader = Repository.open(copied(storage)).readonly_session("main")
        for path, place, row in (
            ("/v", (0, 0), 0),
            ("/v", (side - 1, side - 1), side * side - 1),
            ("/w", (49, 350), 49 * 60 + 50),
        ):
            ref = reader.tree.locate(path, place)
            assert ref is not None
            assert ref.location == f"s3://bucket/file{row % 7}.nc"  # type: ignore[union-attr]
            assert (ref.offset, ref.length) == (row * 10, 10)  # type: ignore[union-attr]
        assert reader.tree.locate("/w", (49, 351)) is None
        for path, places in (("/v", coords), ("/w", sparse)):
            found = reader.tree.chunk_table(path)
            assert found is not None
            assert np.array_equal(found.index.coords(), places)
            assert np.array_equal(found.refs.offsets, np.arange(len(places)) * 10)

    # --- maintenance

    def test_expiry_collection_and_verification(self, repo: Repository, storage: Storage) -> None:
        for place in range(6):
            session = repo.writable_session("main")
            session.tree.set_chunk("/b", (0,), b"%d" % place * 30)
            session.commit(f"{place}")
        expected = tree(repo.readonly_session("main"))
        assert repo.verify(deep=True).is_clean
        expired = repo.expire_snapshots(keep_last=2)
        assert len(expired) == 4
        summary = repo.garbage_collect(storage_now(storage) + timedelta(days=1))
        assert summary.snapshots_deleted == 4
        assert summary.chunks_deleted == 4
        opened = Repository.open(storage)
        assert opened.verify(deep=True).is_clean
        assert tree(opened.readonly_session("main")) == expected
        messages = [info.message for info in opened.ancestry(branch="main")]
        assert messages[:2] == ["5", "4"]
        assert len(messages) == 3
        for snapshot_id in expired:
            with pytest.raises(SnapshotNotFoundError):
                opened.readonly_session(snapshot_id=snapshot_id)
        session = opened.writable_session("main")
        session.tree.set_chunk("/b", (9,), b"after")
        session.commit("after")
        assert Repository.open(storage).verify().is_clean
        assert tree(opened.readonly_session(tag="first"))["/g"] == ODD_DOCUMENTS[2]

    # --- crashes and damage

    def test_a_writer_that_dies_anywhere_harms_nothing(self, how: dict[str, Any]) -> None:
        # R0-05, R0-06, R3-06
        prepared = MemoryStorage()
        make(prepared, how)
        old = picture(prepared)

        def write(storage: Storage) -> None:
            session = Repository.open(storage).writable_session("main")
            session.tree.set_chunk("/b", (5,), b"packed bytes")
            session.tree.set_document("/g", ODD_DOCUMENTS[2] + b" ")
            session.tree.set_document("/new", array_document((5,), (5,)))
            session.commit("two")

        counted = FaultyStorage(copied(prepared))
        write(counted)
        new = picture(counted)
        assert new["main"][0][0] == "two"
        verbs = [verb for verb, _ in counted.writes()]
        for verb in WRITING:
            for nth in range(1, verbs.count(verb) + 1):
                for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                    inner = copied(prepared)
                    faulty = FaultyStorage(inner)
                    faulty.inject(fault, verb=verb, nth=nth)
                    with pytest.raises(CrashError):
                        write(faulty)
                    assert picture(inner) in (old, new)
                    write(inner)
                    assert len(picture(inner)["main"]) in {3, 4}

    def test_damage_is_reported_or_does_no_harm(self, repo: Repository, storage: Storage) -> None:
        assert repo.generation
        expected = picture(storage)
        chunks = detect(storage).layout.folder("chunk-file")  # type: ignore[union-attr, arg-type]
        for info in list(storage.list()):
            whole = storage.get(info.key)
            middle = len(whole) // 2
            flipped = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
            for data in (b"", whole[:middle], whole[:-1], b"\0" * len(whole), flipped):
                storage.put(info.key, data)
                try:
                    contents = picture(storage)
                except IcefloeError as error:
                    known = (FormatError, StorageError, SnapshotNotFoundError)
                    assert isinstance(error, known), (info.key, error)  # noqa: PT017
                else:
                    if not info.key.startswith((chunks, "state", "config", "r/", "refs/")):
                        assert contents == expected, info.key
            storage.put(info.key, whole)
        assert picture(storage) == expected


def split_every(size: int) -> Any:
    """A configuration that splits manifests after so many chunks along each dimension."""
    from icefloe.config.conditions import ManifestSplitCondition, ManifestSplitDimCondition
    from icefloe.config.manifests import ManifestConfig, ManifestSplittingConfig

    any_dimension = ManifestSplitDimCondition.Any()
    return ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {any_dimension: size}}
        )
    )


def virtual_refs(coords: Any) -> Any:
    """A table of virtual references: 7 files, 10 bytes each."""
    from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
    from icefloe.model.manifest import ArrayChunks

    count = len(coords)
    refs = ChunkRefs(
        np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
        (np.arange(count) % 7).astype(np.uint32),
        np.arange(count, dtype=np.uint64) * np.uint64(10),
        np.full(count, 10, dtype=np.uint64),
        np.zeros(count, dtype=np.uint32),
        ChunkRefs.file_column([]),
        Locations.of([(f"s3://bucket/file{number}.nc", None, None) for number in range(7)]),
        b"",
    )
    return ArrayChunks.from_sorted(coords.astype(np.uint64), refs)
