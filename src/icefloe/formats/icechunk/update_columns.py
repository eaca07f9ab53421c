"""The newest updates in a `repo` file as columns: what was done to the repository, newest first.

There may be thousands of them, and each commit writes all of them again with one more in front.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.formats.icechunk.builder import OFFSET
from icefloe.formats.icechunk.listed_snapshots import ID_TYPE, microseconds, moment_of
from icefloe.formats.icechunk.tables import distinct
from icefloe.model.chunk_refs import StringColumn
from icefloe.model.ids import SnapshotId
from icefloe.model.record import Record
from icefloe.model.repo_updates import RepoAvailability, RepoStatus, Update, UpdateType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.formats.icechunk.builder import Builder
    from icefloe.formats.icechunk.tables import Tables
    from icefloe.model.repo_updates import UpdateKind

_STATUS_CHANGED = 16
_NEWEST = 64
"""So many updates are looked at before all of them: most branches moved lately."""


class _Fields(NamedTuple):
    """Where the table of a kind of update has what; None for what it does not have."""

    name: int | None = None
    previous: int | None = None
    new: int | None = None
    numbers: tuple[str, ...] = ()
    """Types of the numbers in the first slots."""


_KINDS: dict[int, tuple[type[Any], _Fields]] = {
    1: (UpdateType.RepoInitialized, _Fields()),
    2: (UpdateType.RepoMigrated, _Fields(numbers=("u1", "u1"))),
    3: (UpdateType.ConfigChanged, _Fields()),
    4: (UpdateType.MetadataChanged, _Fields()),
    5: (UpdateType.TagCreated, _Fields(name=0)),
    6: (UpdateType.TagDeleted, _Fields(name=0, previous=1)),
    7: (UpdateType.BranchCreated, _Fields(name=0)),
    8: (UpdateType.BranchDeleted, _Fields(name=0, previous=1)),
    9: (UpdateType.BranchReset, _Fields(name=0, previous=1)),
    10: (UpdateType.NewCommit, _Fields(name=0, new=1)),
    11: (UpdateType.CommitAmended, _Fields(name=0, previous=1, new=2)),
    12: (UpdateType.NewDetachedSnapshot, _Fields(new=0)),
    13: (UpdateType.GCRan, _Fields()),
    14: (UpdateType.ExpirationRan, _Fields()),
    15: (UpdateType.FeatureFlagChanged, _Fields(numbers=("<u2", "u1", "u1"))),
    _STATUS_CHANGED: (UpdateType.RepoStatusChanged, _Fields()),
}
"""By their number in files. A number that is not here makes official readers fail."""
_NUMBERS = {kind: number for number, (kind, _) in _KINDS.items()}
_REACH = np.zeros(256, dtype=np.uint8)
"""How many branches a kind of update concerns: none, one, or all of them (2)."""
_REACH[[7, 8, 9, 10, 11]] = 1
# A collection announces itself to all branches, so that commits in progress look for their files.
_REACH[13] = 2


def read_status(tables: Tables) -> list[RepoStatus]:
    """Read tables of statuses."""
    reasons = tables.slices(2)
    texts = reasons.texts()
    there = reasons.is_there.tolist()
    values = zip(
        tables.numbers(0, "u1").tolist(),
        tables.numbers(1, "<u8").tolist(),
        texts,
        there,
        strict=True,
    )
    return [
        RepoStatus(
            # Anything but 0 forbids writing; there is one such status so far.
            RepoAvailability.online if availability == 0 else RepoAvailability.read_only,
            moment_of(set_at),
            reason if is_there else None,
        )
        for availability, set_at, reason, is_there in values
    ]


def write_status(builder: Builder, statuses: list[RepoStatus]) -> npt.NDArray[np.int64]:
    """Add tables of statuses to a body; returns where each is."""
    has_reason = np.array([each.limited_availability_reason is not None for each in statuses])
    tables = builder.tables(
        len(statuses), {0: "u1", 1: "<u8", 2: OFFSET}, {2: ~has_reason.astype(np.bool_)}
    )
    tables.put(0, [int(each.availability) for each in statuses])
    tables.put(1, [0 if each.set_at is None else microseconds(each.set_at) for each in statuses])
    reasons = [each.limited_availability_reason for each in statuses]
    rows = np.flatnonzero(has_reason)
    if len(rows):
        texts = builder.texts([each for each in reasons if each is not None])
        tables.point(2, texts, rows)
    return tables.positions


class UpdateColumns(Record, frozen=True, eq=False):
    """Updates of a repository, newest first."""

    kinds: npt.NDArray[np.uint8]
    updated_at: npt.NDArray[np.uint64]
    """Microseconds since 1970."""
    backups: StringColumn
    """Empty where there is none."""
    names: StringColumn
    """Of branches and tags."""
    previous: npt.NDArray[np.bytes_]
    new: npt.NDArray[np.bytes_]
    numbers: npt.NDArray[np.uint16]
    """Three for each update."""
    statuses: dict[int, RepoStatus]
    """By row, for the few that changed the status."""

    @classmethod
    def read(cls, tables: Tables) -> UpdateColumns:
        """Read tables of updates; raises FormatError."""
        count = len(tables)
        if count == 0:
            raise tables.body.bad("the log of operations is empty")
        kinds = tables.numbers(0, "u1")
        bodies = tables.tables(1, "what an update did")
        names = StringColumn.of([])
        name_rows = np.empty(0, dtype=np.int64)
        previous, new = (np.zeros(count, dtype=ID_TYPE) for _ in range(2))
        numbers = np.zeros((count, 3), dtype=np.uint16)
        statuses: dict[int, RepoStatus] = {}
        for kind in distinct(kinds).tolist():
            if kind not in _KINDS:
                continue  # of a newer release: it is shown as unknown, and cannot be written again
            rows = np.flatnonzero(kinds == kind)
            of_kind = bodies.take(rows)
            fields = _KINDS[kind][1]
            if fields.name is not None:
                column = of_kind.slices(fields.name, "a name in an update").column()
                names = StringColumn.concat([names, column])
                name_rows = np.concatenate([name_rows, rows])
            for slot, column_of_ids in ((fields.previous, previous), (fields.new, new)):
                if slot is not None:
                    ids = of_kind.ids(slot, 12, "a snapshot in an update")
                    column_of_ids[rows] = np.ascontiguousarray(ids).view(ID_TYPE).ravel()
            for slot, dtype in enumerate(fields.numbers):
                numbers[rows, slot] = of_kind.numbers(slot, dtype)
            if kind == _STATUS_CHANGED:
                found = read_status(of_kind.tables(0, "the status in an update"))
                statuses.update(zip(rows.tolist(), found, strict=True))
        return cls(
            kinds=kinds,
            updated_at=tables.numbers(2, "<u8"),
            backups=tables.slices(3).column(),
            names=_spread(names, name_rows, count),
            previous=previous,
            new=new,
            numbers=numbers,
            statuses=statuses,
        )

    def write(self, builder: Builder) -> int:
        """Add the updates to a body; returns where their vector is."""
        unknown = sorted(set(self.kinds.tolist()) - _KINDS.keys())
        if unknown:
            raise InvalidInputError(
                f"the log of operations has an update of kind {unknown[0]}, which this version of "
                "icefloe does not know and would have to drop: use a newer icefloe to write here"
            )
        vector = builder.offsets([len(self)])
        has_backup = self.backups.ends > self.backups.starts()
        tables = builder.tables(
            len(self), {0: "u1", 1: OFFSET, 2: "<u8", 3: OFFSET}, {3: ~has_backup}
        )
        vector.point(tables.positions)
        tables.put(0, self.kinds)
        tables.put(2, self.updated_at)
        rows = np.flatnonzero(has_backup)
        if len(rows):
            tables.point(3, builder.slices(self.backups.data, self.backups.ends)[rows], rows)
        for kind in distinct(self.kinds).tolist():
            rows = np.flatnonzero(self.kinds == kind)
            tables.point(1, self._write_kind(builder, kind, rows), rows)
        return int(vector.vectors[0])

    def _write_kind(
        self, builder: Builder, kind: int, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        fields = _KINDS[kind][1]
        slots: dict[int, str | tuple[str, int]] = dict(enumerate(fields.numbers))
        if fields.name is not None:
            slots[fields.name] = OFFSET
        ids = {fields.previous: self.previous, fields.new: self.new}
        slots.update({slot: "V12" for slot in ids if slot is not None})
        if kind == _STATUS_CHANGED:
            slots[0] = OFFSET
        tables = builder.tables(len(rows), slots)
        for slot in range(len(fields.numbers)):
            tables.put(slot, self.numbers[rows, slot])
        for each, column in ids.items():
            if each is not None:
                tables.put(each, column[rows].view("V12"))
        if fields.name is not None:
            names = self.names.take(rows)
            tables.point(fields.name, builder.slices(names.data, names.ends))
        if kind == _STATUS_CHANGED:
            statuses = [self.statuses[row] for row in rows.tolist()]
            tables.point(0, write_status(builder, statuses))
        return tables.positions

    # --- questions

    def __len__(self) -> int:
        return len(self.kinds)

    def newest_at(self) -> int:
        """When the newest update was made, in microseconds since 1970."""
        return int(self.updated_at[0])

    def oldest_at(self) -> int:
        """When the oldest update that is listed was made."""
        return int(self.updated_at[-1])

    def backup(self, row: int) -> str | None:
        """The copy of the file in which an update is the newest one."""
        return self.backups[row] or None

    def update(self, row: int) -> Update:
        """One of them as a value."""
        kind = int(self.kinds[row])
        values: list[Any] = []
        if kind in _KINDS:
            made, fields = _KINDS[kind]
            if fields.name is not None:
                values.append(self.names[row])
            ids = {fields.previous: self.previous, fields.new: self.new}
            slots = [slot for slot in ids if slot is not None]
            values += [str(_as_id(ids[slot][row])) for slot in sorted(slots)]
            values += self.numbers[row, : len(fields.numbers)].tolist()
            if kind == _STATUS_CHANGED:
                values.append(self.statuses[row])
            if made is UpdateType.FeatureFlagChanged:
                flag, value, is_set = values
                values = [flag, bool(value) if is_set else None]
            entry = made(*values)
        else:
            entry = UpdateType.UnknownUpdate(kind)
        return Update(entry, moment_of(int(self.updated_at[row])), self.backup(row))

    def moves(self, branch: str) -> Iterator[tuple[int, Update]]:
        """The updates that concern a branch, newest first, with their times as files have them."""
        for row in self._rows_of(branch):
            yield int(self.updated_at[row]), self.update(row)

    def _rows_of(self, branch: str, stop: int | None = None) -> list[int]:
        """The updates among the newest, or among all, that concern a branch."""
        reach = _REACH[self.kinds[:stop]]
        concerned = reach > 1
        names = self.names if stop is None else self.names.slice(0, len(reach))
        named = names.rows_with(branch)
        concerned[named] |= reach[named] > 0
        rows: list[int] = np.flatnonzero(concerned).tolist()
        return rows

    def last_move(self, branch: str) -> int | None:
        """When the newest of these was made; None if none is listed."""
        rows = self._rows_of(branch, _NEWEST) or self._rows_of(branch)
        return int(self.updated_at[rows[0]]) if rows else None

    # --- successors

    def with_update(self, kind: UpdateKind, at: int, backup: str) -> UpdateColumns:
        """One more in front; the one that was the newest so far is kept in a backup."""
        first = UpdateColumns.of(kind, at)
        older = self.backups.slice(1, len(self))
        return UpdateColumns(
            kinds=np.concatenate([first.kinds, self.kinds]),
            updated_at=np.concatenate([first.updated_at, self.updated_at]),
            backups=StringColumn.concat([StringColumn.of(["", backup]), older]),
            names=StringColumn.concat([first.names, self.names]),
            previous=np.concatenate([first.previous, self.previous]),
            new=np.concatenate([first.new, self.new]),
            numbers=np.concatenate([first.numbers, self.numbers]),
            statuses=first.statuses | {row + 1: status for row, status in self.statuses.items()},
        )

    def cut(self, limit: int) -> tuple[UpdateColumns, str | None]:
        """The newest ones, and the backup that has those that were cut; None if none were.

        Updates without a backup cannot be found again, so they are never cut.
        """
        keep = max(limit, 1)
        while keep < len(self) and self.backup(keep) is None:
            keep += 1
        if keep >= len(self):
            return self, None
        shorter = UpdateColumns(
            kinds=self.kinds[:keep],
            updated_at=self.updated_at[:keep],
            backups=self.backups.slice(0, keep),
            names=self.names.slice(0, keep),
            previous=self.previous[:keep],
            new=self.new[:keep],
            numbers=self.numbers[:keep],
            statuses={row: status for row, status in self.statuses.items() if row < keep},
        )
        return shorter, self.backup(keep)

    @classmethod
    def of(cls, kind: UpdateKind, at: int) -> UpdateColumns:
        """A single update."""
        number = _NUMBERS[type(kind)]
        fields = _KINDS[number][1]
        members: dict[str, Any] = msgspec.structs.asdict(kind)
        name = str(members.get("name", members.get("branch", "")))
        numbers = np.zeros((1, 3), dtype=np.uint16)
        if isinstance(kind, UpdateType.FeatureFlagChanged):
            numbers[0] = (kind.id, bool(kind.new_value), kind.new_value is not None)
        elif fields.numbers:
            numbers[0, : len(fields.numbers)] = list(members.values())
        return cls(
            kinds=np.array([number], dtype=np.uint8),
            updated_at=np.array([at], dtype=np.uint64),
            backups=StringColumn.of([""]),
            names=StringColumn.of([name]),
            previous=_ids(members.get("previous_snap_id")),
            new=_ids(members.get("new_snap_id")),
            numbers=numbers,
            statuses={0: kind.status} if isinstance(kind, UpdateType.RepoStatusChanged) else {},
        )


def _ids(text: str | None) -> npt.NDArray[np.bytes_]:
    return np.array([b"" if text is None else bytes(SnapshotId.parse(text))], dtype=ID_TYPE)


def _as_id(value: bytes) -> SnapshotId:
    return SnapshotId(bytes(value).ljust(SnapshotId.SIZE, b"\0"))


def _spread(texts: StringColumn, rows: npt.NDArray[np.int64], count: int) -> StringColumn:
    """Texts of some rows as a column of all rows; empty for the others."""
    places = np.full(count, len(texts), dtype=np.int64)
    places[rows] = np.arange(len(texts))
    return StringColumn.concat([texts, StringColumn.of([""])]).take(places)
