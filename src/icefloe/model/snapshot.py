"""Snapshots: the whole schema of a repository at one commit, and where its data is."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.model.ids import AttributesId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.nodes import NodeTable
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_MESSAGE = "Repository initialized"
INTERNAL_PREFIX = "__icefloe."
"""Metadata keys that start so are ours and not shown to users."""
MERGED_KEY = f"{INTERNAL_PREFIX}merged"
"""In the metadata of a snapshot: the tip that it merged, so that the next merge starts there.

A list of them if it took the place of several merges."""
MERGED_LINE = f"{INTERNAL_PREFIX}merged-line"
"""The commits that came along with them. Some may be on other branches when those tips are gone."""
MAX_MERGED_LINE = 1000
"""The newest ones are enough: where branches part is seldom long ago."""
MOVED_CHUNKS = f"{INTERNAL_PREFIX}moved-chunks"
"""Commits with this property moved chunks without changing a byte of them."""


class SnapshotStub(Record, frozen=True):
    """An ancestor as later snapshots remember it (spec 001: SnapshotMetadata)."""

    id: SnapshotId
    written_at: datetime
    message: str


class ListedCommit(Record, frozen=True, eq=False):
    """A commit as a list of all of them describes it, in formats that have one."""

    id: SnapshotId
    parent_id: SnapshotId | None
    written_at: datetime
    message: str
    metadata: dict[str, Any]


class FileSum(Record, frozen=True):
    """Size and checksum of a file, recorded where it is referred to; 0 if unknown."""

    size_bytes: int = 0
    checksum: int = 0
    """CRC-32C of all its bytes."""


class AttributesFileInfo(Record, frozen=True):
    """An attribute file as a snapshot lists it."""

    id: AttributesId
    size_bytes: int = 0
    checksum: int = 0
    """CRC-32C of the file; 0 when none was recorded."""


class Snapshot(Record, frozen=True, eq=False):
    """One committed state."""

    id: SnapshotId
    parent_id: SnapshotId | None
    written_at: datetime
    started_at: datetime
    message: str
    metadata: dict[str, Any]
    """Properties that the committer gave."""
    total_parents: int
    """Number of ancestors."""
    history: tuple[SnapshotStub, ...]
    """Ancestors, newest first, starting with the parent; older ones may be left out (H-15)."""
    manifests: tuple[ManifestFileInfo, ...]
    """Every manifest that some node points to (R1-29)."""
    attribute_files: tuple[AttributesFileInfo, ...]
    nodes: NodeTable
    log_file: FileSum | None = None
    """The transaction log of the commit; None where there is none or nobody recorded it."""
    parent_file: FileSum | None = None
    """The file of the parent; None where nobody recorded it."""
    own_file: FileSum | None = None
    """The file that this was read from or written to. It is not part of what is stored."""

    def stub(self) -> SnapshotStub:
        """This snapshot as its descendants remember it."""
        return SnapshotStub(self.id, self.written_at, self.message)

    def merged_ids(self) -> tuple[SnapshotId, ...]:
        """The tips of other branches that it merged, the newest merge first."""
        return self._ids(MERGED_KEY)

    def merged_line(self) -> tuple[SnapshotId, ...]:
        """The commits that these tips brought along, newest first."""
        return self._ids(MERGED_LINE)

    def _ids(self, key: str) -> tuple[SnapshotId, ...]:
        found = self.metadata.get(key)
        texts = found if isinstance(found, list) else [found]
        return tuple(filter(None, map(_parsed, texts)))

    def public_metadata(self) -> dict[str, Any]:
        """The properties that users see."""
        return public_properties(self.metadata)


def public_properties(metadata: dict[str, Any]) -> dict[str, Any]:
    """The properties of a commit that users see."""
    return {k: v for k, v in metadata.items() if not k.startswith(INTERNAL_PREFIX)}


def _parsed(text: object) -> SnapshotId | None:
    """An id found in metadata; None if it is not valid."""
    try:
        return SnapshotId.from_text(text) if isinstance(text, str) else None
    except InvalidInputError:
        return None


def merged_mark(merged: Iterable[SnapshotId], line: Iterable[SnapshotId]) -> dict[str, Any]:
    """Metadata with the tips that a snapshot merged, and their commits, newest first."""
    tips = list(dict.fromkeys(map(str, merged)))
    commits = list(dict.fromkeys(map(str, line)))[:MAX_MERGED_LINE]
    mark: dict[str, Any] = {}
    if tips:
        mark[MERGED_KEY] = tips[0] if len(tips) == 1 else tips
    if commits:
        mark[MERGED_LINE] = commits
    return mark
