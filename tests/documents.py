"""Zarr documents and small trees for tests that need no zarr, and the schemas of documents."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.repository import Repository
    from icefloe.session import TreeSession


def group(**attributes: Any) -> bytes:
    """The document of a group."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(document).encode()


def array(shape: Sequence[int] = (10,), chunk: int = 1, **attributes: Any) -> bytes:
    """The document of an array of bytes, with chunks of `chunk` elements along each dimension."""
    return array_document(shape, [chunk] * len(shape), attributes=attributes)


def array_document(
    shape: Sequence[int],
    chunks: Sequence[int],
    encoding: str = "default",
    separator: str = "/",
    **members: Any,
) -> bytes:
    """The document of an array of bytes with some members replaced, or left out if `...`."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": encoding, "configuration": {"separator": separator}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        **members,
    }
    return json.dumps({name: each for name, each in document.items() if each is not ...}).encode()


def set_chunks(
    session: TreeSession, path: str, places: Sequence[int], data: bytes = b"\x01"
) -> None:
    """Write chunks of an array of one dimension."""
    for place in places:
        session.tree.set_chunk(path, (place,), data)


def make_tree(repository: Repository) -> str:
    """Commit a group `/g` with an array `/g/a` of ten chunks, and an array `/b` of three."""
    session = repository.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/g", group())
    session.tree.set_document("/g/a", array())
    set_chunks(session, "/g/a", range(10))
    session.tree.set_document("/b", array())
    set_chunks(session, "/b", range(3))
    return session.commit("tree")


def commit_attribute(repository: Repository, value: Any, branch: str = "main") -> str:
    """A commit that changes an attribute of the root group."""
    session = repository.writable_session(branch)
    session.tree.set_document("/", group(value=value))
    return session.commit(f"value {value}")


def node_paths(session: TreeSession) -> list[str]:
    """All nodes that a session shows."""
    return [
        path for path in ("/", *session.tree.node_paths("/")) if session.get_node(path) is not None
    ]


def chunks_of(session: TreeSession, path: str) -> dict[int, bytes]:
    """The initialised chunks of an array of one dimension."""
    places = session.tree.chunk_coords(path).tolist()
    return {row[0]: session.get_chunk(path, tuple(row)) or b"" for row in places}


def json_schema(generation: str, name: str) -> dict[str, Any]:
    """A JSON Schema of a specification, which the package includes verbatim."""
    folder = resources.files(f"icefloe.formats.{generation}") / "schemas"
    schema: dict[str, Any] = json.loads((folder / f"{name}.schema.json").read_bytes())
    return schema
