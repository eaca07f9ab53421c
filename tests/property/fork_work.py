"""Edits as plain values, and a fork that makes them, perhaps in another process."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from zarr.core.sync import sync

from tests.property import hierarchy

if TYPE_CHECKING:
    from icefloe.session import Session

Edit = tuple[Any, ...]


def apply(session: Session, edit: Edit) -> None:
    match edit:
        case ("write", path, coords, data):
            hierarchy.set_raw(session, path, coords, data)
        case ("delete chunk", path, coords):
            session.store.delete_sync(hierarchy.chunk_key(path, coords))
        case ("clear", path):
            sync(session.store.delete_dir(f"{path.strip('/')}/c"))
        case ("attributes", path, attributes):
            hierarchy.set_attributes(session, path, attributes)
        case ("resize", path, shape):
            hierarchy.open_array(session, path).resize(shape)
        case ("array", path, shape, chunk_shape, attributes):
            node = hierarchy.ModelNode(attributes, shape, chunk_shape)
            hierarchy.create_array(session, path, node)
        case ("group", path):
            hierarchy.create_group(session, path, {})
        case ("delete", path):
            hierarchy.delete_node(session, path)
        case ("move", source, target):
            session.move(source, target)
        case _:
            raise ValueError(f"no such edit: {edit!r}")


def work(fork: bytes, edits: list[Edit]) -> bytes:
    """Make edits with a pickled fork; returns it pickled."""
    session = pickle.loads(fork)
    for edit in edits:
        apply(session, edit)
    return pickle.dumps(session)
