"""Names of files as ids and back, one to one: each file has one id, and each id one file.

Files that icefloe wrote are named by their ids in base 32. Spec 000 leaves names free, so a file of
another implementation may have any. The id of such a file is its name, without the extension that
ours have too. A file without that extension has its whole name as its id, behind a slash.
"""

from __future__ import annotations

from typing import TypeVar

from icefloe.model.ids import ChunkFileId, Identifier

_Id = TypeVar("_Id", bound=Identifier)

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
