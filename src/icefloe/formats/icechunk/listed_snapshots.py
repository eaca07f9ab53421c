"""The snapshots that the `repo` file of version 2 lists, as columns.

The list is written again at every commit and may be long: nothing here makes an object for each
snapshot. Values of metadata stay as they are stored until somebody asks for those of one snapshot.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.formats.icechunk import flexbuffers
from icefloe.formats.icechunk.builder import OFFSET
from icefloe.model.chunk_refs import StringColumn
from icefloe.model.ids import SnapshotId
from icefloe.model.record import Record
from icefloe.model.snapshot import ListedCommit, SnapshotStub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icefloe.formats.icechunk.builder import Builder
    from icefloe.formats.icechunk.tables import Tables
    from icefloe.model.snapshot import Snapshot

    Ids = npt.NDArray[np.bytes_]
    Rows = npt.NDArray[np.int64]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_MOMENT = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_SOME_ANCESTORS = 64
ID_TYPE = "S12"
"""Ids as numpy compares them, byte by byte. It hides zeros at the end, which `id_at` puts back."""


def microseconds(moment: datetime) -> int:
    """A moment as files have it: microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_of(value: int) -> datetime:
    """Undo `microseconds`; a time that no clock shows becomes the last one that Python has."""
    return _EPOCH + _MICROSECOND * min(int(value), _LAST_MOMENT)


def _inserted(
    column: npt.NDArray[Any], row: int, values: Sequence[int] | npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """A column with some values before a row."""
    between = np.asarray(values, dtype=column.dtype)
    return np.concatenate([column[:row], between, column[row:]])


class Ragged(NamedTuple):
    """Parts of rows: how many each row has, and the parts end to end."""

    counts: Rows
    parts: npt.NDArray[Any]
    """Numbers of parts, or the parts themselves."""

    def take(self, rows: Rows) -> Ragged:
        """Chosen rows with their parts."""
        counts = self.counts[rows]
        starts = np.cumsum(self.counts) - self.counts
        shifts = np.repeat(starts[rows] - (np.cumsum(counts) - counts), counts)
        return Ragged(counts, self.parts[shifts + np.arange(len(shifts))])

    def at(self, row: int) -> npt.NDArray[Any]:
        """The parts of one row."""
        start = int(self.counts[:row].sum())
        return self.parts[start : start + int(self.counts[row])]

    def with_row(self, row: int, parts: npt.NDArray[Any]) -> Ragged:
        """One more row before a row."""
        start = int(self.counts[:row].sum())
        return Ragged(
            _inserted(self.counts, row, [len(parts)]), _inserted(self.parts, start, parts)
        )


class MetadataItems(Record, frozen=True, eq=False):
    """Names and stored values of metadata."""

    names: StringColumn
    values: StringColumn
    """The bytes of FlexBuffers, whatever they are."""

    @classmethod
    def read(cls, tables: Tables) -> MetadataItems:
        """Read items of metadata."""
        names = tables.slices(0, "the name of an item of metadata").column()
        data, ends = tables.slices(1, "the value of an item of metadata").joined()
        return cls(names, StringColumn(data, ends.astype(np.uint64)))

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> MetadataItems:
        """Encode metadata, sorted by the bytes of the names."""
        names = sorted(metadata, key=str.encode)
        values = [flexbuffers.encode(metadata[name]) for name in names]
        ends = np.cumsum([len(value) for value in values], dtype=np.uint64)
        return cls(StringColumn.of(names), StringColumn(b"".join(values), ends))

    def write(self, builder: Builder, counts: Sequence[int] | Rows) -> npt.NDArray[np.int64]:
        """Add vectors of items to a body; returns where each is."""
        vectors = builder.offsets(counts)
        if len(self.names):
            items = builder.tables(len(self.names), {0: OFFSET, 1: OFFSET})
            vectors.point(items.positions)
            items.point(0, builder.slices(self.names.data, self.names.ends))
            items.point(1, builder.slices(self.values.data, self.values.ends))
        return vectors.vectors

    def decode(self, what: str, rows: Iterable[int] | None = None) -> dict[str, Any]:
        """Some items as values, or all of them; raises FormatError."""
        chosen = range(len(self.names)) if rows is None else rows
        return {
            self.names[row]: flexbuffers.decode(
                self.values.slice(row, row + 1).data, f"{what}, {self.names[row]!r}"
            )
            for row in chosen
        }


class ListedSnapshots(Record, frozen=True, eq=False):
    """The snapshots of a repository, sorted by id."""

    ids: Ids
    parents: Rows
    """The row of each parent; -1 where there is none."""
    flushed_at: npt.NDArray[np.uint64]
    """Microseconds since 1970."""
    messages: StringColumn
    items: Ragged
    """Which rows of `metadata` belong to each snapshot."""
    metadata: MetadataItems
    pruned: Ragged
    """The ids of ancestors that expired, whose logs count to the one of each snapshot."""

    @classmethod
    def read(cls, tables: Tables) -> ListedSnapshots:
        """Read the tables of the list; raises FormatError."""
        body = tables.body
        rows = tables.ids(0, 12, "the id of a snapshot")
        ids = np.ascontiguousarray(rows).view(ID_TYPE).ravel()
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            raise body.bad("snapshots are not sorted by id, or one is listed twice")
        parents = tables.numbers(1, "<i4").astype(np.int64)
        if len(parents) and not (int(parents.min()) >= -1 and int(parents.max()) < len(parents)):
            raise body.bad("the parent of a snapshot is not listed")
        items = tables.vectors(4, 4)
        pruned = tables.vectors(5, 12)
        metadata = MetadataItems.read(items.tables())
        return cls(
            ids=ids,
            parents=parents,
            flushed_at=tables.numbers(2, "<u8"),
            messages=tables.slices(3, "the message of a snapshot").column(),
            items=Ragged(items.counts, np.arange(len(metadata.names))),
            metadata=metadata,
            pruned=Ragged(pruned.counts, pruned.values("V12").view(ID_TYPE)),
        )

    def write(self, builder: Builder) -> int:
        """Add the list to a body; returns where its vector is."""
        vector = builder.offsets([len(self)])
        has_pruned = self.pruned.counts > 0
        has_items = self.items.counts > 0
        fields = {0: "V12", 1: "<i4", 2: "<u8", 3: OFFSET}
        absent = {}
        for slot, is_there in ((4, has_items), (5, has_pruned)):
            if is_there.any():
                fields[slot] = OFFSET
                if not is_there.all():
                    absent[slot] = ~is_there
        tables = builder.tables(len(self), fields, absent)
        vector.point(tables.positions)
        tables.put(0, self.ids.view("V12"))
        tables.put(1, self.parents)
        tables.put(2, self.flushed_at)
        tables.point(3, builder.slices(self.messages.data, self.messages.ends))
        if has_pruned.any():
            rows = np.flatnonzero(has_pruned)
            places = builder.vectors(self.pruned.counts[rows], self.pruned.parts.view("V12"))
            tables.point(5, places, rows)
        if has_items.any():
            rows = np.flatnonzero(has_items)
            tables.point(4, self._ordered_items().write(builder, self.items.counts[rows]), rows)
        return int(vector.vectors[0])

    def _ordered_items(self) -> MetadataItems:
        """The metadata in the order of the snapshots."""
        order = self.items.parts
        if len(order) == len(self.metadata.names) and (order == np.arange(len(order))).all():
            return self.metadata
        return MetadataItems(self.metadata.names.take(order), self.metadata.values.take(order))

    # --- questions

    def __len__(self) -> int:
        return len(self.ids)

    def id_at(self, row: int) -> SnapshotId:
        """The id of a row."""
        return SnapshotId(bytes(self.ids[row]).ljust(SnapshotId.SIZE, b"\0"))

    def find(self, snapshot_id: SnapshotId) -> int | None:
        """The row of a snapshot; None if it is not listed."""
        if len(snapshot_id) != SnapshotId.SIZE:
            return None
        wanted = np.array([bytes(snapshot_id)], dtype=ID_TYPE)
        row = int(np.searchsorted(self.ids, wanted)[0])
        return row if row < len(self.ids) and self.ids[row] == wanted[0] else None

    def parent_id(self, row: int) -> SnapshotId | None:
        """The parent of a row."""
        parent = int(self.parents[row])
        return None if parent < 0 else self.id_at(parent)

    def lineage(self, row: int) -> Iterator[int]:
        """The rows of a snapshot and its ancestors, newest first; ends before a cycle."""
        parents: Rows | list[int] = self.parents
        for number in range(len(self.ids)):
            yield row
            if number == _SOME_ANCESTORS:
                parents = self.parents.tolist()  # quicker for many, but not for a few
            row = int(parents[row])
            if row < 0:
                return

    def depth(self, row: int) -> int:
        """How many ancestors a row has; every commit asks, so no generator walks through them."""
        parents: list[int] = self.parents.tolist()
        for number in range(len(parents)):
            row = parents[row]
            if row < 0:
                return number
        return len(parents) - 1

    def newest(self) -> SnapshotId | None:
        """The snapshot that was written last; None if none is listed."""
        return self.id_at(int(self.flushed_at.argmax())) if len(self) else None

    def root(self, row: int) -> int:
        """The first ancestor of a row."""
        *_, last = self.lineage(row)
        return last

    def stub(self, row: int) -> SnapshotStub:
        """A snapshot as its descendants remember it."""
        return SnapshotStub(
            self.id_at(row), moment_of(int(self.flushed_at[row])), self.messages[row]
        )

    def commit(self, row: int) -> ListedCommit:
        """All that the list says of a snapshot, as a history shows it; raises FormatError."""
        stub = self.stub(row)
        items: list[int] = self.items.at(row).tolist()
        metadata = self.metadata.decode(f"the listed metadata of snapshot {stub.id}", items)
        return ListedCommit(
            id=stub.id,
            parent_id=self.parent_id(row),
            written_at=stub.written_at,
            message=stub.message,
            metadata=metadata,
        )

    def pruned_ids(self, row: int) -> list[SnapshotId]:
        """The snapshots whose logs come before the log of a row, oldest first."""
        return [
            SnapshotId(bytes(each).ljust(SnapshotId.SIZE, b"\0")) for each in self.pruned.at(row)
        ]

    def parent_among(self, row: int, choice: npt.NDArray[np.bool_]) -> tuple[int, list[SnapshotId]]:
        """The nearest ancestor of a row that is among some rows; -1 if there is none.

        Also returns the snapshots whose logs belong to the row if that is its parent: all between
        the two, oldest first, each after those that belonged to it before.
        """
        between: list[int] = []
        for ancestor in list(self.lineage(row))[1:]:
            if choice[ancestor]:
                break
            between.append(ancestor)
        else:
            ancestor = -1
        pruned: list[SnapshotId] = []
        for each in reversed(between):
            pruned += [*self.pruned_ids(each), self.id_at(each)]
        return ancestor, [*pruned, *self.pruned_ids(row)]

    # --- successors

    def with_snapshot(
        self, snapshot: Snapshot, pruned: Sequence[SnapshotId] = ()
    ) -> ListedSnapshots:
        """The list with one more snapshot, whose parent is listed or None."""
        parent = None if snapshot.parent_id is None else self.find(snapshot.parent_id)
        ids = np.array([bytes(snapshot.id)], dtype=ID_TYPE)
        row = int(np.searchsorted(self.ids, ids)[0])
        parents = _inserted(self.parents, row, [-1 if parent is None else parent])
        parents[parents >= row] += 1
        new = MetadataItems.of(snapshot.metadata)
        return ListedSnapshots(
            ids=_inserted(self.ids, row, ids),
            parents=parents,
            flushed_at=_inserted(self.flushed_at, row, [microseconds(snapshot.written_at)]),
            messages=StringColumn.concat(
                [
                    self.messages.slice(0, row),
                    StringColumn.of([snapshot.message]),
                    self.messages.slice(row, len(self)),
                ]
            ),
            items=self.items.with_row(row, np.arange(len(new.names)) + len(self.metadata.names)),
            metadata=MetadataItems(
                StringColumn.concat([self.metadata.names, new.names]),
                StringColumn.concat([self.metadata.values, new.values]),
            ),
            pruned=self.pruned.with_row(
                row, np.array([bytes(each) for each in pruned], dtype=ID_TYPE)
            ),
        )

    def take(self, rows: Rows) -> ListedSnapshots:
        """Some rows, or all of them in another order; none may have a parent that is left out."""
        places = np.full(len(self.ids) + 1, -1, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        return ListedSnapshots(
            ids=self.ids[rows],
            parents=places[self.parents[rows]],
            flushed_at=self.flushed_at[rows],
            messages=self.messages.take(rows),
            items=self.items.take(rows),
            metadata=self.metadata,
            pruned=self.pruned.take(rows),
        )

    def with_parents(
        self, parents: Mapping[int, tuple[int, Sequence[SnapshotId]]]
    ) -> ListedSnapshots:
        """The list where some rows have other parents, and other pruned logs."""
        columns = self.parents.copy()
        lists = {}
        for row, (parent, pruned) in parents.items():
            columns[row] = parent
            lists[row] = np.array([bytes(each) for each in pruned], dtype=ID_TYPE)
        parts = [lists[row] if row in lists else self.pruned.at(row) for row in range(len(self))]
        counts = np.array([len(part) for part in parts], dtype=np.int64)
        return msgspec.structs.replace(
            self, parents=columns, pruned=Ragged(counts, np.concatenate(parts))
        )

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot]) -> ListedSnapshots:
        """A list of snapshots whose parents are among them, or absent."""
        ordered = sorted(snapshots, key=lambda each: each.id)
        rows: dict[SnapshotId | None, int] = {each.id: row for row, each in enumerate(ordered)}
        items = [MetadataItems.of(each.metadata) for each in ordered]
        counts = np.array([len(each.names) for each in items], dtype=np.int64)
        texts = StringColumn.of([])
        no_ids: Ids = np.empty(0, dtype=ID_TYPE)
        return cls(
            ids=np.array([bytes(each.id) for each in ordered], dtype=ID_TYPE),
            parents=np.array([rows.get(each.parent_id, -1) for each in ordered], dtype=np.int64),
            flushed_at=np.array(
                [microseconds(each.written_at) for each in ordered], dtype=np.uint64
            ),
            messages=StringColumn.of([each.message for each in ordered]),
            items=Ragged(counts, np.arange(int(counts.sum()))),
            metadata=MetadataItems(
                StringColumn.concat([texts, *(each.names for each in items)]),
                StringColumn.concat([texts, *(each.values for each in items)]),
            ),
            pruned=Ragged(np.zeros(len(ordered), dtype=np.int64), no_ids),
        )
