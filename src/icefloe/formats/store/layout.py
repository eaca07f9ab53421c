"""Where each object of a store is (R3-27): files are named by ids of 16 bytes (H-24)."""

from __future__ import annotations

from icefloe.formats.layout import FolderLayout
from icefloe.formats.port import ObjectKind
from icefloe.formats.store.object_ids import file_name
from icefloe.model.ids import ChunkFileId, Identifier

REFS_FOLDER = "r"
_EXTENSION = ".json"


def _file_name(identifier: Identifier) -> str:
    name = file_name(identifier)
    return name if isinstance(identifier, ChunkFileId) else f"{name}{_EXTENSION}"


def _parse(kind: type[Identifier], name: str) -> Identifier:
    return kind.parse(name if kind is ChunkFileId else name.removesuffix(_EXTENSION))


LAYOUT = FolderLayout(
    folders={
        ObjectKind.SNAPSHOT: "s",
        ObjectKind.TRANSACTION_LOG: "t",
        ObjectKind.MANIFEST: "m",
        ObjectKind.ATTRIBUTES: "a",
        ObjectKind.CHUNK_FILE: "c",
    },
    file_name=_file_name,
    parse_name=_parse,
)
