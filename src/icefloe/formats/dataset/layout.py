"""Where each object of a dataset is (R0-45), and the names of its files.

Files that icefloe wrote are named by their ids in base 32 (H-24). Spec 000 leaves names free, so a
file of another implementation may have any. The id of such a file is its name, without the
extension that ours have too; a file without that extension has its whole name as its id, behind a
slash. So each file has one id, and each id one file.
"""

from __future__ import annotations

from typing import TypeVar

from icefloe.formats.layout import FolderLayout
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import ChunkFileId, Identifier

_Id = TypeVar("_Id", bound=Identifier)

STATE_KEY = "state.json"
_EXTENSION = ".parquet"


def id_of_file(kind: type[_Id], name: str) -> _Id:
    """The id of a file; raises InvalidInputError for a name that leads out of its folder."""
    if kind is ChunkFileId:
        return kind.from_text(name) if name[:1] != "/" else kind.named("")
    stem = name.removesuffix(_EXTENSION)
    return kind.from_text(stem) if stem not in ("", name) else kind.named(f"/{name}")


def file_of(identifier: Identifier) -> str:
    """The name of the file of an id, in its folder."""
    text = str(identifier)
    if isinstance(identifier, ChunkFileId):
        return text
    return text[1:] if text.startswith("/") else f"{text}{_EXTENSION}"


LAYOUT = FolderLayout(
    folders={
        ObjectKind.SNAPSHOT: "s",
        ObjectKind.TRANSACTION_LOG: "t",
        ObjectKind.MANIFEST: "i",
        ObjectKind.ATTRIBUTES: "a",
        ObjectKind.CHUNK_FILE: "c",
    },
    file_name=file_of,
    parse_name=id_of_file,
)
