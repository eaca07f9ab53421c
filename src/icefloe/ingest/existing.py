"""What a group of the repository holds already, in the form of a file's header."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.apply import child
from icefloe.ingest.axes import EXISTING
from icefloe.ingest.headers import FileHeader, VariableHeader, time_attributes
from icefloe.ingest.quiet import quietly
from icefloe.model.chunk_refs import ChunkKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.session import Session

MAX_REWRITTEN_BYTES = 8 * 1024 * 1024
"""Stored variables up to this size are written anew where files come between others."""


def existing_header(session: Session, group: str) -> FileHeader | None:
    """The header of a group; None if it does not exist or has no arrays."""
    node = session.get_node(group)
    if node is None:
        return None
    if node.is_array:
        raise InvalidInputError(f"{group} is an array; expected a group, or nothing")
    documents = _documents(session, group)
    if not documents:
        return None
    times = time_attributes(documents)
    variables = {
        name: VariableHeader(
            document,
            session.chunk_count(child(group, name)),
            0,
            _values(session, group, name, document),
            times.get(name, {}),
        )
        for name, document in documents.items()
    }
    found = session.tree.document(group)
    attributes = json.loads(found).get("attributes") or {} if found is not None else {}
    return FileHeader(EXISTING, "icefloe", None, attributes, variables)


def _documents(session: Session, group: str) -> dict[str, dict[str, Any]]:
    found = {}
    for path in session.tree.node_paths(group):
        name = path[len(group.rstrip("/")) + 1 :]
        node = session.get_node(path)
        if node is not None and node.is_array and "/" not in name:
            document = session.tree.document(path)
            assert document is not None
            found[name] = json.loads(document)
    return found


def _values(
    session: Session, group: str, name: str, document: dict[str, Any]
) -> npt.NDArray[Any] | None:
    """Values of coordinates, and of what is small and stored in the repository itself."""
    import zarr

    path = child(group, name)
    shape = document["shape"]
    is_coordinate = list(document.get("dimension_names") or []) == [name]
    if not is_coordinate and prod(shape) * 8 > MAX_REWRITTEN_BYTES:
        return None
    if not is_coordinate and session.chunk_count(path, ChunkKind.VIRTUAL):
        return None
    with quietly():
        array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
        return np.asarray(array[...])
