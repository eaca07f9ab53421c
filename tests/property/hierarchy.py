"""A Zarr hierarchy as plain values: what a session shows, read through zarr and through listing."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarr.errors
from zarr.core.buffer import default_buffer_prototype

if TYPE_CHECKING:
    from icefloe.session import Session

FILL = 0
DTYPE = np.dtype("u1")

Coords = tuple[int, ...]
Tree = dict[str, "ModelNode"]


@dataclass
class ModelNode:
    """A group, or an array of bytes without compression."""

    attributes: dict[str, Any] = field(default_factory=dict)
    shape: Coords | None = None
    """None for a group."""
    chunk_shape: Coords = ()
    chunks: dict[Coords, bytes] = field(default_factory=dict)
    identity: int = field(default=0, compare=False)
    """Stays when the node is moved."""

    @property
    def is_array(self) -> bool:
        return self.shape is not None

    @property
    def grid(self) -> Coords:
        assert self.shape is not None
        return tuple(-(-s // c) for s, c in zip(self.shape, self.chunk_shape, strict=True))

    def coords(self) -> list[Coords]:
        return list(itertools.product(*map(range, self.grid)))

    def chunk_of(self, value: int) -> bytes:
        return bytes([value]) * int(np.prod(self.chunk_shape))

    def dense(self) -> np.ndarray:
        """All values, as an array that covers whole chunks and is cut to the shape."""
        assert self.shape is not None
        extent = [g * c for g, c in zip(self.grid, self.chunk_shape, strict=True)]
        values = np.full(extent, FILL, DTYPE)
        for coords, data in self.chunks.items():
            values[self.region(coords)] = np.frombuffer(data, DTYPE).reshape(self.chunk_shape)
        return values[tuple(map(slice, self.shape))]

    def region(self, coords: Coords) -> tuple[slice, ...]:
        return tuple(
            slice(i * c, (i + 1) * c) for i, c in zip(coords, self.chunk_shape, strict=True)
        )

    def resize(self, shape: Coords) -> None:
        self.shape = shape
        inside = set(self.coords())
        self.chunks = {coords: data for coords, data in self.chunks.items() if coords in inside}


def copied(tree: Tree) -> Tree:
    return copy.deepcopy(tree)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def below(tree: Tree, path: str) -> list[str]:
    """The path itself and all below it, sorted."""
    prefix = "/" if path == "/" else f"{path}/"
    return sorted(p for p in tree if p == path or p.startswith(prefix))


def expected_keys(tree: Tree) -> set[str]:
    """All keys that a store of this hierarchy has."""
    keys = set()
    for path, node in tree.items():
        prefix = path.strip("/") + "/" if path != "/" else ""
        keys.add(f"{prefix}zarr.json")
        keys.update(chunk_key(path, coords) for coords in node.chunks)
    return keys


def expected_names(tree: Tree, path: str) -> set[str]:
    """What listing the folder of a node gives."""
    names = {name_of(p) for p in tree if p != "/" and p != path and parent_of(p) == path}
    return names | {"zarr.json"} | ({"c"} if tree[path].is_array else set())


def observe(session: Session) -> Tree:
    """All that a session shows: nodes and chunks by listing, everything else through zarr."""
    store = session.store
    keys = list(store.list())
    assert len(keys) == len(set(keys)), "a key was listed twice"
    tree: Tree = {}
    chunk_keys: list[tuple[str, Coords]] = []
    for key in keys:
        head, slash, last = key.rpartition("/")
        if last == "zarr.json":
            tree[f"/{head}" if slash else "/"] = ModelNode()
        elif last == "c":
            chunk_keys.append((f"/{head}", ()))
        else:
            array, _, text = f"/{key}".rpartition("/c/")
            chunk_keys.append((array, tuple(map(int, text.split("/")))))
    for path, node in tree.items():
        found = zarr.open(store, path=path.strip("/"), mode="r")
        node.attributes = dict(found.attrs)
        if isinstance(found, zarr.Array):
            node.shape, node.chunk_shape = found.shape, found.chunks
    prototype = default_buffer_prototype()
    for path, coords in chunk_keys:
        key = chunk_key(path, coords)
        data = store.get_sync(key, prototype=prototype)
        assert data is not None, f"{key} is listed, but has no value"
        tree[path].chunks[coords] = data.to_bytes()
    for path, node in tree.items():
        if node.is_array:
            values = zarr.open_array(store, path=path.strip("/"), mode="r")[...]
            np.testing.assert_array_equal(values, node.dense(), err_msg=path)
    return tree


def check_shows(session: Session, expected: Tree) -> None:
    """Assert that a session shows exactly a hierarchy, however it is looked at."""
    assert observe(session) == expected
    store = session.store
    for path in expected:
        assert set(store.list_dir(path.strip("/"))) == expected_names(expected, path), path
    assert set(store.list()) == expected_keys(expected)
    if not expected:
        with pytest.raises(zarr.errors.GroupNotFoundError):
            zarr.open_group(store, mode="r")
        return
    members = zarr.open_group(store, mode="r").members(max_depth=None)
    kinds = {name: isinstance(item, zarr.Array) for name, item in members}
    assert kinds == {p.strip("/"): n.is_array for p, n in expected.items() if p != "/"}


# --- the same edit on a session, through zarr or its keys


def create_group(session: Session, path: str, attributes: dict[str, Any]) -> None:
    zarr.create_group(session.store, path=path.strip("/"), attributes=attributes)


def create_array(session: Session, path: str, node: ModelNode) -> None:
    zarr.create_array(
        session.store,
        name=path.strip("/"),
        shape=node.shape,
        chunks=node.chunk_shape,
        dtype=DTYPE,
        fill_value=FILL,
        compressors=None,
        filters=None,
        attributes=node.attributes,
    )


def chunk_key(path: str, coords: Coords) -> str:
    return "/".join([path.strip("/"), "c", *map(str, coords)])


def set_raw(session: Session, path: str, coords: Coords, data: bytes) -> None:
    buffer = default_buffer_prototype().buffer.from_bytes(data)
    session.store.set_sync(chunk_key(path, coords), buffer)


def open_array(session: Session, path: str) -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path.strip("/"), mode="r+")


def delete_node(session: Session, path: str) -> None:
    del zarr.open_group(session.store, mode="r+")[path.strip("/")]


def set_attributes(session: Session, path: str, attributes: dict[str, Any]) -> None:
    zarr.open(session.store, path=path.strip("/"), mode="r+").attrs.put(attributes)
