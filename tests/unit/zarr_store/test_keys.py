"""The grammar of store keys (api-facts 24, 32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding, V2ChunkKeyEncoding

from icefloe.errors import InvalidInputError
from icefloe.model.ids import NodeId
from icefloe.model.nodes import Node, make_node
from icefloe.zarr_store.keys import (
    chunk_coords,
    chunk_folder,
    chunk_keys,
    document_key,
    document_path,
    resolve,
)
from tests import documents

ENCODINGS = [("default", "/"), ("default", "."), ("v2", "/"), ("v2", ".")]


def array_document(rank: int = 2, encoding: str = "default", separator: str = "/") -> bytes:
    return documents.array_document([10] * rank, [1] * rank, encoding, separator)


class Tree:
    """Nodes by path, which is all that the grammar asks a session for."""

    def __init__(self, **documents: bytes) -> None:
        self.nodes = {
            path: make_node(NodeId.random(), path, document) for path, document in documents.items()
        }

    def get_node(self, path: str) -> Node | None:
        return self.nodes.get(path)


GROUP = b'{"zarr_format": 3, "node_type": "group"}'


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("zarr.json", "/"),
        ("/zarr.json", "/"),
        ("a/zarr.json", "/a"),
        ("/a/zarr.json", "/a"),
        ("a/b c/é/zarr.json", "/a/b c/é"),
        ("c/zarr.json", "/c"),
        ("a/c/zarr.json", "/a/c"),
        ("zarr.json/zarr.json", "/zarr.json"),
    ],
)
def test_documents(key: str, path: str) -> None:
    assert document_path(key) == path
    assert resolve(key, Tree()) == (path, None)
    assert document_path(document_key(path)) == path


@pytest.mark.parametrize(
    ("key", "path", "coords"),
    [
        ("c/0/1", "/", (0, 1)),
        ("a/c/0/1", "/a", (0, 1)),
        ("/a/c/0/1", "/a", (0, 1)),
        ("a/b/c/10/200/3000", "/a/b", (10, 200, 3000)),
        ("c", "/", ()),
        ("a/c", "/a", ()),
        ("abc/c/7", "/abc", (7,)),
        ("c/c/7", "/c", (7,)),
        ("a/c/c", "/a/c", ()),
        ("a/c/x/c", "/a/c/x", ()),
        ("c/0/c/1", "/c/0", (1,)),
    ],
)
def test_default_chunk_keys_are_known_by_their_form(
    key: str, path: str, coords: tuple[Any, ...]
) -> None:
    # Also without an array there: the session then says which node is missing.
    assert resolve(key, Tree()) == (path, coords)
    assert resolve(key, Tree(**{path: array_document(len(coords))})) == (path, coords)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "foo",
        "foo/bar",
        "foo/c/0.0",
        "a/0/0",
        "a/c/",
        "a/c/0/",
        "a/c/-1",
        "a/c/+1",
        "a/c/01",
        "a/c/1_0",
        "a/c/ 1",
        "a/c/٣",  # a decimal digit, but not an ASCII one
        "a/c/" + "9" * 5000,
        "a//zarr.json",
        "azarr.json",
        "a/zarr.json/",
        "ac/0",
    ],
)
def test_other_keys_are_refused(key: str) -> None:
    nodes = Tree(**{"/": GROUP, "/a": array_document(1)})
    with pytest.raises(InvalidInputError, match="invalid zarr key format"):
        resolve(key, nodes)


@pytest.mark.parametrize("name", [".zarray", ".zgroup", ".zattrs", ".zmetadata"])
def test_names_of_zarr_2_resolve_to_nothing(name: str) -> None:
    nodes = Tree(**{"/a": array_document(1)})
    assert resolve(name, nodes) is None
    assert resolve("a/" + name, nodes) is None


@pytest.mark.parametrize(("encoding", "separator"), ENCODINGS)
@pytest.mark.parametrize("path", ["/", "/a", "/a/c", "/c/0/x"])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_every_encoding_is_resolved_by_the_array_that_uses_it(
    encoding: str, separator: str, path: str, rank: int
) -> None:
    zarr_encoding = DefaultChunkKeyEncoding if encoding == "default" else V2ChunkKeyEncoding
    nodes = Tree(**{path: array_document(rank, encoding, separator)})
    coords = (1, 0, 12)[:rank]
    name = zarr_encoding(separator=separator).encode_chunk_key(coords)  # type: ignore[arg-type]
    key = name if path == "/" else f"{path[1:]}/{name}"
    array = nodes.get_node(path).array
    assert resolve(key, nodes) == (path, coords)
    assert chunk_coords(array, name) == coords
    rows = np.array([coords], dtype=np.uint64).reshape(1, rank)
    assert list(chunk_keys(path, array, rows)) == [key]


def test_an_array_is_not_reached_by_the_names_of_another_encoding() -> None:
    nodes = Tree(**{"/a": array_document(2, "v2", "."), "/b": array_document(2, "default", ".")})
    for key in ["a/c/0/0", "a/0/0", "a/c.0.0", "b/c/0/0", "b/0.0", "b/c", "a/0", "a/0.0.0"]:
        with pytest.raises(InvalidInputError, match="invalid zarr key format"):
            resolve(key, nodes)


def test_default_form_comes_first_and_then_the_longest_path() -> None:
    nodes = Tree(
        **{
            "/a": array_document(2, "default", "/"),
            "/a/c": array_document(1, "v2", "/"),
            "/x": array_document(2, "v2", "/"),
            "/x/0": array_document(1, "v2", "/"),
        }
    )
    assert resolve("a/c/0/1", nodes) == ("/a", (0, 1))
    # One index fits only the array that is called `c`.
    assert resolve("a/c/0", nodes) == ("/a/c", (0,))
    assert resolve("x/0/1", nodes) == ("/x/0", (1,))
    assert resolve("x/1/1", nodes) == ("/x", (1, 1))


def test_a_wrong_number_of_indices_is_left_to_the_session() -> None:
    nodes = Tree(**{"/a": array_document(2)})
    assert resolve("a/c/0", nodes) == ("/a", (0,))
    assert resolve("a/c/0/0/0", nodes) == ("/a", (0, 0, 0))
    assert resolve("a/c", nodes) == ("/a", ())


@pytest.mark.parametrize(
    ("encoding", "separator", "name", "expected"),
    [
        ("default", "/", "c", ()),
        ("default", "/", "c/1", (1,)),
        ("default", "/", "c/1/2", None),
        ("default", "/", "1", None),
        ("default", "/", "cc", None),
        ("default", ".", "c", None),
        ("v2", "/", "1", (1,)),
        ("v2", "/", "1/2", None),
        ("v2", "/", "c", None),
        ("v2", ".", "1", None),
    ],
)
def test_folders_of_chunks(
    encoding: str, separator: str, name: str, expected: tuple[Any, ...] | None
) -> None:
    array = make_node(NodeId.random(), "/a", array_document(2, encoding, separator)).array
    assert chunk_folder(array, name) == expected


segment = st.sampled_from(["a", "c", "0", "1", "cc", "zarr.json", "00", "", ".zarray", "c.0"])


@given(st.lists(segment, max_size=6).map("/".join), st.sampled_from(ENCODINGS), st.integers(0, 3))
def test_a_resolved_key_is_the_key_of_what_it_resolves_to(
    key: Any, encoding: Any, rank: int
) -> None:
    nodes = Tree(**{"/a": array_document(rank, *encoding), "/c": array_document(rank, *encoding)})
    try:
        target = resolve(key, nodes)
    except InvalidInputError:
        return
    if target is None:
        assert key.rpartition("/")[2].startswith(".z")
        return
    path, coords = target
    node = nodes.get_node(path)
    canonical = key.lstrip("/")
    if coords is None:
        assert document_key(path) == canonical
    elif node is not None and len(coords) == node.array.rank:
        rows = np.array([coords], dtype=np.uint64).reshape(1, rank)
        assert list(chunk_keys(path, node.array, rows)) == [canonical]
