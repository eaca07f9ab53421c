"""The objects of a repository by kind and age, and cutoffs by the storage's clock."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import compress, islice, pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.engine.retention.id_sets import are_in, are_names, as_ids, id_bytes, id_column
from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.formats.port import ObjectKind
from icefloe.model.bounded_text import described
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.moments import zone_advice
from icefloe.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from icefloe.formats.port import Layout
    from icefloe.storage.port import ObjectInfo, Storage

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 65_536
_SKEW = timedelta(minutes=1)
_TICK = timedelta(seconds=1)
"""Some storages count whole seconds."""


def as_moment(cutoff: object, now: datetime, what: str) -> datetime:
    """A cutoff that a user gave, as a moment of the storage's clock, which shows `now`.

    A timedelta is a time before now. A datetime was probably computed from the local clock: if that
    differs from the storage's, the earlier of the two possible meanings holds. A moment in the
    future means now.
    """
    if isinstance(cutoff, timedelta):
        if cutoff < timedelta(0):
            raise InvalidInputError(f"{what} is a time before now, found {cutoff}")
        return now - cutoff
    if not isinstance(cutoff, datetime) or cutoff.utcoffset() is None:
        raise InvalidTypeError(
            f"{what} is a datetime with a timezone, or a timedelta, found {described(cutoff)}"
            f"{zone_advice(cutoff)}"
        )
    ahead = datetime.now(UTC) - now
    moment = cutoff.astimezone(UTC)
    if abs(ahead) > _SKEW:
        logger.warning("the clock of this computer is %s ahead of the storage's", ahead)
        moment = min(moment, moment - ahead)
    return min(moment, now + _TICK)


class StoredObjects(NamedTuple):
    """Objects of one kind as columns."""

    ids: npt.NDArray[np.bytes_]
    sizes: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    """When they were written, by the storage's clock: seconds since 1970."""

    def __len__(self) -> int:
        return len(self.ids)

    def _rows(self, rows: npt.NDArray[np.intp]) -> StoredObjects:
        return StoredObjects(self.ids[rows], self.sizes[rows], self.times[rows])

    def outside(self, live: npt.NDArray[np.bytes_]) -> StoredObjects:
        """The objects whose ids are not among the sorted ids."""
        return self._rows(np.flatnonzero(~are_in(self.ids, live)))

    def among(self, chosen: npt.NDArray[np.bytes_]) -> StoredObjects:
        """The objects whose ids are among the sorted ids."""
        return self._rows(np.flatnonzero(are_in(self.ids, chosen)))

    def split(self, moment: datetime) -> tuple[StoredObjects, StoredObjects]:
        """The objects written before a moment, and the others."""
        is_old = self.times < moment.timestamp()
        return self._rows(np.flatnonzero(is_old)), self._rows(np.flatnonzero(~is_old))

    def without_strangers(self, known: npt.NDArray[np.bytes_]) -> StoredObjects:
        """The objects that icefloe named, and of the others those among the sorted `known` ids."""
        return self._rows(np.flatnonzero(~are_names(self.ids) | are_in(self.ids, known)))

    def newest_first(self) -> StoredObjects:
        """Newest first, so that deleting in this order never leaves a child without its parent."""
        return self._rows(np.argsort(-self.times, kind="stable"))

    def sizes_of(self, ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
        """Bytes of each of some objects; -1 for those that are not listed."""
        order = np.argsort(self.ids, kind="stable")
        listed = self.ids[order]
        sizes = np.full(len(ids), -1, dtype=np.int64)
        is_listed = are_in(ids, listed)
        sizes[is_listed] = self.sizes[order][np.searchsorted(listed, ids[is_listed])]
        return sizes

    def each_id(self) -> Iterator[bytes]:
        """Iterate over the ids as Python values."""
        return map(id_bytes, self.ids.tolist())


class ListedSizes:
    """Bytes of objects, asked for one at a time."""

    def __init__(self, objects: StoredObjects) -> None:
        """Sort the objects once."""
        order = np.argsort(objects.ids, kind="stable")
        self._ids = objects.ids[order]
        self._sizes = objects.sizes[order]

    def get(self, object_id: bytes) -> int | None:
        """Bytes of an object; None if it is not listed."""
        value = id_column([object_id])[0]
        row = int(np.searchsorted(self._ids, value))
        if row == len(self._ids) or self._ids[row] != value:
            return None
        return int(self._sizes[row])


class KeyRange(NamedTuple):
    """Keys after one, and up to and with another; an empty text is no limit."""

    after: str = ""
    last: str = ""


def key_ranges(layout: Layout, kind: ObjectKind, count: int) -> list[KeyRange]:
    """Ranges of about equally many objects of a kind, whose ids are random; all keys are in one."""
    make_key = key_maker(layout, kind)
    size = Identifier.SIZE
    numbers = [number * 256**size // count for number in range(1, count)]
    bounds = sorted({make_key(number.to_bytes(size, "big")) for number in numbers})
    return [KeyRange(*each) for each in pairwise(["", *bounds, ""])]


def list_objects(storage: Storage, layout: Layout, kind: ObjectKind) -> StoredObjects:
    """List all objects of a kind; skips keys that are not of its form."""
    columns = [_columns_of([], layout, kind), *list_in_parts(storage, layout, kind)]
    return StoredObjects(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def list_in_parts(
    storage: Storage, layout: Layout, kind: ObjectKind, within: KeyRange | None = None
) -> Iterator[StoredObjects]:
    """List the objects of a kind, or those in a range of keys, some at a time."""
    after, last = within or KeyRange()
    listing = iter(storage.list(layout.folder(kind), start_after=after))
    if last:
        listing = takewhile(lambda info: info.key <= last, listing)
    stage = ProgressStage("objects listed", None)
    # Python objects are held for one part of the listing only.
    while part := list(islice(listing, _ROWS_AT_ONCE)):
        stage.advance(len(part))
        yield _columns_of(part, layout, kind)


def _columns_of(listed: list[ObjectInfo], layout: Layout, kind: ObjectKind) -> StoredObjects:
    rows, is_ours = layout.parse_many(kind, [info.key for info in listed])
    ids = as_ids(rows)
    if not is_ours.all():
        # Names that another implementation chose, and files that are not objects of a repository.
        others = [
            (place, name.id)
            for place in np.flatnonzero(~is_ours).tolist()
            if (name := layout.parse(listed[place].key)) is not None and name.kind == kind
        ]
        if others:
            places, names = zip(*others, strict=True)
            column = id_column(names)
            ids = ids.astype(np.promote_types(ids.dtype, column.dtype))
            ids[list(places)] = column
            is_ours[list(places)] = True
    known = list(compress(listed, is_ours.tolist()))
    return StoredObjects(
        ids[is_ours],
        np.array([info.size for info in known], dtype=np.int64),
        np.array([info.last_modified.timestamp() for info in known], dtype=np.float64),
    )


def key_maker(layout: Layout, kind: ObjectKind) -> Callable[[bytes], str]:
    """A function that gives the key of an object of a kind by its id."""
    makers: dict[ObjectKind, Callable[[bytes], str]] = {
        ObjectKind.SNAPSHOT: lambda data: layout.snapshot(SnapshotId(data)),
        ObjectKind.TRANSACTION_LOG: lambda data: layout.transaction_log(SnapshotId(data)),
        ObjectKind.MANIFEST: lambda data: layout.manifest(ManifestId(data)),
        ObjectKind.ATTRIBUTES: lambda data: layout.attributes(AttributesId(data)),
        ObjectKind.CHUNK_FILE: lambda data: layout.chunk_file(ChunkFileId(data)),
    }
    return makers[kind]
