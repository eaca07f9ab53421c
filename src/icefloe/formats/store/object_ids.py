"""Ids as spec 003 writes them: 16 bytes as a list of integers, and 4 bytes for a node."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.port import MAX_NODE_NUMBER
from icefloe.model.ids import Identifier, NodeId, encode_base32

OBJECT_ID_SIZE = 16

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
ObjectId = Annotated[list[Byte], msgspec.Meta(min_length=OBJECT_ID_SIZE, max_length=OBJECT_ID_SIZE)]

_Id = TypeVar("_Id", bound=Identifier)


def wide(identifier: bytes) -> bytes:
    """The 16 bytes of an id: ours have 12, and zeros follow."""
    return identifier.ljust(OBJECT_ID_SIZE, b"\0")


def numbers(identifier: bytes) -> list[int]:
    """An id as the list of integers that files hold (R3-71)."""
    return list(wide(identifier))


def from_numbers(kind: type[_Id], values: list[int]) -> _Id:
    """Read such a list."""
    return kind(bytes(values))


def file_name(identifier: bytes) -> str:
    """The name of an object's file without its extension: 26 characters (H-24)."""
    return encode_base32(wide(identifier))


def node_number(node_id: NodeId) -> int:
    """A node id as a number; raises InvalidInputError for what does not fit (R3-70)."""
    number = int.from_bytes(node_id, "big")
    if number > MAX_NODE_NUMBER:
        raise InvalidInputError(
            f"nodes are numbered up to {MAX_NODE_NUMBER} in this generation, found {node_id}; "
            "give the nodes of a change set their numbers before it is written"
        )
    return number


def node_id(number: int) -> NodeId:
    """The id of a numbered node."""
    return NodeId(number.to_bytes(NodeId.SIZE, "big"))
