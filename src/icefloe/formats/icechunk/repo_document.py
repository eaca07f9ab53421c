"""The `repo` file of version 2 as a value: references, snapshots, status and the log of operations.

It is the only object of such a repository that is ever replaced. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.formats.container import bad_file
from icefloe.formats.icechunk.builder import OFFSET, Builder
from icefloe.formats.icechunk.container import FlatFileType, make_file, open_file
from icefloe.formats.icechunk.layout import REPO_KEY
from icefloe.formats.icechunk.listed_snapshots import ID_TYPE, ListedSnapshots, MetadataItems
from icefloe.formats.icechunk.tables import Body
from icefloe.formats.icechunk.update_columns import UpdateColumns, read_status, write_status
from icefloe.model import MAIN
from icefloe.model.ids import SnapshotId
from icefloe.model.record import Record
from icefloe.model.repo_updates import RepoStatus

if TYPE_CHECKING:
    from icefloe.formats.icechunk.tables import Tables
    from icefloe.model.repo_updates import UpdateKind

SPEC_VERSION = 2
_LAST_TIME = 2**64 - 1
_MAX_LEVEL = 1
"""Of the compression: every commit writes the file again, and most of it is random ids.

Level 3 takes twice the time to save three hundredths.
"""
_MIN_REF_FIELDS: dict[int, str | tuple[str, int]] = {0: OFFSET, 1: "<u4"}


class RepoDocument(Record, frozen=True, eq=False, kw_only=True):
    """One state of a repository."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    deleted_tags: frozenset[str]
    """Names that no tag may have again."""
    snapshots: ListedSnapshots
    status: RepoStatus
    metadata: MetadataItems | None
    updates: UpdateColumns
    before_updates: str | None
    """The backup in which the log of operations continues."""
    config: bytes | None
    """The configuration as FlexBuffers, passed on as it is unless it is changed."""
    enabled_flags: tuple[int, ...] | None
    disabled_flags: tuple[int, ...] | None

    @classmethod
    def parse(cls, data: bytes, key: str = REPO_KEY) -> RepoDocument:
        """Read a `repo` file, or a backup of one; raises FormatError."""
        body = Body(open_file(data, FlatFileType.REPO, key).body, key)
        root = body.root()
        version = int(root.numbers(0, "u1")[0])
        if version != SPEC_VERSION:
            raise body.bad(
                f"it says that the repository has spec version {version}, expected {SPEC_VERSION}; "
                "a newer icefloe may know it"
            )
        snapshots = ListedSnapshots.read(root.vectors(4, 4, "the list of snapshots").tables())
        branches = _read_refs(root, 2, "branches", snapshots)
        if MAIN not in branches:
            raise body.bad(f"there is no branch {MAIN!r}, which every repository has")
        metadata = root.vectors(6, 4)
        has_metadata = bool(metadata.is_there[0])
        before = root.slices(8)
        return cls(
            branches=branches,
            tags=_read_refs(root, 1, "tags", snapshots),
            deleted_tags=frozenset(root.vectors(3, 4, "deleted tags").strings().texts()),
            snapshots=snapshots,
            status=read_status(root.tables(5, "the status"))[0],
            metadata=MetadataItems.read(metadata.tables()) if has_metadata else None,
            updates=UpdateColumns.read(root.vectors(7, 4, "the log of operations").tables()),
            before_updates=before.texts()[0] if before.is_there[0] else None,
            config=root.slices(9).at(0),
            enabled_flags=_read_flags(root, 10),
            disabled_flags=_read_flags(root, 11),
        )

    def encode(self, level: int) -> bytes:
        """The bytes of the file."""
        builder = Builder()
        fields: dict[int, str | tuple[str, int]] = {0: "u1"}
        fields |= dict.fromkeys((1, 2, 3, 4, 5, 7), OFFSET)
        optional = {
            6: self.metadata,
            8: self.before_updates,
            9: self.config,
            10: self.enabled_flags,
            11: self.disabled_flags,
        }
        fields |= {slot: OFFSET for slot, value in optional.items() if value is not None}
        root = builder.tables(1, fields)
        root.put(0, SPEC_VERSION)
        root.point(1, self._write_refs(builder, self.tags))
        root.point(2, self._write_refs(builder, self.branches))
        deleted = sorted(self.deleted_tags, key=str.encode)
        names = builder.offsets([len(deleted)])
        names.point(builder.texts(deleted))
        root.point(3, names.vectors)
        root.point(4, self.snapshots.write(builder))
        root.point(5, write_status(builder, [self.status]))
        root.point(7, self.updates.write(builder))
        if self.metadata is not None:
            root.point(6, self.metadata.write(builder, [len(self.metadata.names)]))
        if self.before_updates is not None:
            root.point(8, builder.texts([self.before_updates]))
        if self.config is not None:
            root.point(9, builder.blobs([self.config]))
        for slot, flags in ((10, self.enabled_flags), (11, self.disabled_flags)):
            if flags is not None:
                items = np.array(sorted(flags), dtype="<u2")
                root.point(slot, builder.vectors([len(items)], items))
        body = builder.finish(int(root.positions[0]))
        return make_file(SPEC_VERSION, FlatFileType.REPO, body, min(level, _MAX_LEVEL)).data

    def _write_refs(self, builder: Builder, refs: Mapping[str, SnapshotId]) -> int:
        names = sorted(refs, key=str.encode)
        vector = builder.offsets([len(names)])
        if names:
            tables = builder.tables(len(names), _MIN_REF_FIELDS)
            vector.point(tables.positions)
            wanted = np.array([bytes(refs[name]) for name in names], dtype=ID_TYPE)
            tables.put(1, np.searchsorted(self.snapshots.ids, wanted))
            tables.point(0, builder.texts(names))
        return int(vector.vectors[0])

    # --- successors

    def updated(
        self, kind: UpdateKind, now: int, backup: str, limit: int, **changes: Any
    ) -> RepoDocument:
        """The next state, with some fields changed and the update that says so.

        Args:
            kind: What is done.
            now: The time in microseconds since 1970; the update is later than the one before.
            backup: The name that the present file gets as a backup.
            limit: How many updates the file may list.
            changes: Fields with their new values.
        """
        at = max(now, self.updates.newest_at() + 1)
        if at > _LAST_TIME:
            raise bad_file(REPO_KEY, "no time is later than that of its newest update")
        updates, older = self.updates.with_update(kind, at, backup).cut(limit)
        before = self.before_updates if older is None else older
        return msgspec.structs.replace(self, updates=updates, before_updates=before, **changes)

    @classmethod
    def first(
        cls, snapshots: ListedSnapshots, updates: UpdateColumns, **fields: Any
    ) -> RepoDocument:
        """The state of a new repository."""
        defaults: dict[str, Any] = {
            "branches": {},
            "tags": {},
            "deleted_tags": frozenset(),
            "status": RepoStatus(),
            "metadata": None,
            "before_updates": None,
            "config": None,
            "enabled_flags": None,
            "disabled_flags": None,
        }
        return cls(snapshots=snapshots, updates=updates, **(defaults | fields))


def _read_refs(
    root: Tables, slot: int, what: str, snapshots: ListedSnapshots
) -> dict[str, SnapshotId]:
    tables = root.vectors(slot, 4, what).tables()
    names = tables.slices(0, f"a name of the {what}").texts()
    rows = tables.numbers(1, "<u4")
    if len(rows) and int(rows.max()) >= len(snapshots):
        raise root.body.bad(f"one of the {what} points to a snapshot that is not listed")
    refs = {name: snapshots.id_at(row) for name, row in zip(names, rows.tolist(), strict=True)}
    if len(refs) != len(names):
        raise root.body.bad(f"two of the {what} have one name")
    return refs


def _read_flags(root: Tables, slot: int) -> tuple[int, ...] | None:
    vectors = root.vectors(slot, 2)
    return tuple(vectors.values("<u2").tolist()) if vectors.is_there[0] else None
