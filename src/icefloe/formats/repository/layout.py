"""Where each object of a repository is (R1-08): files are named by ids in base 32 (H-24)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.layout import FolderLayout
from icefloe.formats.port import ObjectKind

if TYPE_CHECKING:
    from icefloe.model.ids import Identifier

REFS_FOLDER = "refs"


def _name(identifier: Identifier) -> str:
    return str(identifier)


def _parse(kind: type[Identifier], name: str) -> Identifier:
    return kind.parse(name)


LAYOUT = FolderLayout(
    folders={
        ObjectKind.SNAPSHOT: "snapshots",
        ObjectKind.TRANSACTION_LOG: "transactions",
        ObjectKind.MANIFEST: "manifests",
        ObjectKind.ATTRIBUTES: "attributes",
        ObjectKind.CHUNK_FILE: "chunks",
    },
    file_name=_name,
    parse_name=_parse,
)
