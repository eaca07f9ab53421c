"""Zarr's own state machines on IcefloeStore: random edits, compared with a model."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import assume, note, settings
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from zarr.core.buffer import cpu
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine

import icefloe
from tests.documents import array_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.storage.port import Storage

# The machines draw data types that Zarr warns about because their names are not final.
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
ENCODINGS = {"a": ("default", "/"), "b": ("default", "."), "c": ("v2", "/"), "d": ("v2", ".")}


@pytest.fixture(params=["memory", "local", "store", "dataset", "icechunk"])
def make_repository(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Makes a new repository; each example of a machine needs one.

    In memory, on local files, and of the other generations of the format.
    """
    is_other = request.param in ("store", "dataset", "icechunk")
    how = {"generation": request.param} if is_other else {}

    def make() -> Any:
        storage: Storage
        if request.param != "local":
            storage = icefloe.in_memory_storage()
        else:
            storage = icefloe.local_filesystem_storage(str(tmp_path_factory.mktemp("repository")))
        # Half of the chunks that the machines write are inline, half in files.
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=40)
        return icefloe.Repository.create(storage, config, **how)

    # A machine costs many times what other property tests do.
    share = 16 if is_other else 5
    make.settings = settings(max_examples=max(1, settings.default.max_examples // share))  # type: ignore[attr-defined]
    return make


class HierarchyMachine(ZarrHierarchyStateMachine):
    """Arrays and groups, compared with Zarr's memory store; sometimes committed in between."""

    def __init__(self, repository: Any) -> None:
        self.repository = repository
        super().__init__(repository.writable_session("main").store)

    # An array's folder always has `c` (api-facts 28); the model's only with chunks.
    @precondition(lambda self: bool(self.all_groups))
    @rule(data=st.data())
    def check_list_dir(self, data: Any) -> None:
        path = self.draw_directory(data)
        expected = set(self._sync_iter(self.model.list_dir(path)))
        if path in self.all_arrays:
            expected.add("c")
        assert set(self._sync_iter(self.store.list_dir(path))) == expected

    @precondition(lambda self: self.store.session.has_uncommitted_changes)
    @rule()
    def commit_and_go_on(self) -> None:
        note("committing")
        self.store.session.commit("in between")  # type: ignore[attr-defined]
        self.store = self.repository.writable_session("main").store


class StoreMachine(ZarrStoreStateMachine):
    """Keys and values, compared with a dictionary.

    The machine of zarr uses any keys and any values. Here the keys are documents and chunks of
    arrays of all chunk key encodings that a session knows, and documents are valid.
    """

    def __init__(self, repository: Any) -> None:
        self.repository = repository
        super().__init__(repository.writable_session("main").store)

    @initialize()
    def init_store(self) -> None:
        self.store.clear()
        self.make_arrays()

    def make_arrays(self) -> None:
        for name, (encoding, separator) in ENCODINGS.items():
            self.put(f"{name}/zarr.json", described(encoding, separator, ""))

    def put(self, key: Any, data: Any) -> None:
        self.store.set(key, cpu.Buffer.from_bytes(data))
        self.model[key] = cpu.Buffer.from_bytes(data)

    def has_array(self, key: Any) -> Any:
        return f"{key[0]}/zarr.json" in self.model

    @rule(data=st.data())
    def set(self, data: Any) -> None:
        key = data.draw(CHUNK_KEYS)
        assume(self.has_array(key))
        self.put(key, data.draw(VALUES))

    @rule(name=st.sampled_from(sorted(ENCODINGS)), text=st.text(max_size=50))
    def set_document(self, name: Any, text: Any) -> None:
        self.put(f"{name}/zarr.json", described(*ENCODINGS[name], text))

    @rule(key=st.sampled_from(["zarr.json", "g/zarr.json", "a/g/zarr.json"]))
    def set_group(self, key: Any) -> None:
        self.put(key, GROUP)

    @rule(data=st.data())
    def get_invalid_zarr_keys(self, data: Any) -> None:
        key = data.draw(CHUNK_KEYS)
        assume(key not in self.model and self.has_array(key))
        assert self.store.get(key, self.prototype) is None

    @precondition(lambda self: len(self.model) > 0)
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.store.delete(key)
        # With a node's document goes all that is below it (api-facts 29).
        below = key.removesuffix("zarr.json") if key.endswith("zarr.json") else None
        for other in list(self.model):
            if other == key or (below is not None and other.startswith(below)):
                del self.model[other]

    @rule(data=st.data())
    def exists(self, data: Any) -> None:
        key = data.draw(CHUNK_KEYS)
        # Without an array, only chunk keys of the default encoding are keys at all.
        assume(self.has_array(key) or key[0] == "a")
        assert self.store.exists(key) == (key in self.model)

    @rule(where=st.sampled_from(["a", "b", "c", "d", "a/c", "a/c/0", "c/1", "a/g"]))
    def delete_dir(self, where: Any) -> None:
        self.store._sync(self.store.store.delete_dir(where))
        for key in list(self.model):
            if key.startswith(where + "/"):
                del self.model[key]

    @rule(where=st.sampled_from(["a", "b", "c", "d", "a/c", "a/c/0", "c/1", "a/g", "", "g"]))
    def is_empty_dir(self, where: Any) -> None:
        inside = any(key.startswith(where + "/") or not where for key in self.model)
        assert self.store.is_empty(where) != inside

    @precondition(lambda self: len(self.model) > 0)
    @rule(data=st.data())
    def getsize_prefix(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        node = key.split("/")[0]
        # A prefix is a node or a folder of chunks.
        assume(f"{node}/zarr.json" in self.model)
        expected = sum(len(v) for k, v in self.model.items() if k.startswith(node + "/"))
        assert self.store._sync(self.store.store.getsize_prefix(node)) == expected

    @precondition(lambda self: self.store.store.session.has_uncommitted_changes)
    @rule()
    def commit_and_go_on(self) -> None:
        self.store.store.session.commit("in between")  # type: ignore[attr-defined]
        self.store.store = self.repository.writable_session("main").store

    @precondition(lambda self: not self.store.store.session.has_uncommitted_changes)
    @rule()
    def fork_and_merge(self) -> None:
        session = self.store.store.session  # type: ignore[attr-defined]
        fork = session.fork()
        if self.repository.storage.capabilities.survives_pickle:
            fork = pickle.loads(pickle.dumps(fork))
        self.store.store = fork.store
        self.set_document("a", "by a fork")
        self.put("a/c/0/0", b"by a fork")
        self.store.store = session.store
        session.merge(fork)


def described(encoding: str, separator: str, text: str) -> bytes:
    return array_document([3, 2], [1, 1], encoding, separator, attributes={"text": text})


CHUNK_KEYS = st.builds(
    lambda name, i, j: (
        f"{name}/"
        + f"{'c' if name in 'ab' else ''}|{i}|{j}".strip("|").replace("|", ENCODINGS[name][1])
    ),
    st.sampled_from(sorted(ENCODINGS)),
    st.integers(0, 2),
    st.integers(0, 1),
)
VALUES = st.binary(max_size=100)


@pytest.fixture
def all_grids() -> Iterator[None]:
    """Newer versions of zarr draw rectilinear grids too if they are allowed."""
    name = "array.rectilinear_chunks"
    with zarr.config.set({name: True} if zarr.config.get(name, None) is not None else {}):
        yield


@pytest.mark.usefixtures("all_grids")
def test_hierarchy(make_repository: Callable[..., Any]) -> None:
    run_state_machine_as_test(
        lambda: HierarchyMachine(make_repository()),  # type: ignore[arg-type]
        settings=make_repository.settings,  # type: ignore[attr-defined]
    )


def test_store(make_repository: Callable[..., Any]) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(make_repository()),  # type: ignore[arg-type]
        settings=make_repository.settings,  # type: ignore[attr-defined]
    )
