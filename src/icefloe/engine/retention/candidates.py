"""What is in the storage, by kind and age: the objects that a collection might delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.engine.retention.id_sets import are_in, are_names, id_bytes, id_column
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import AttributesId, ChunkFileId, ManifestId, SnapshotId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import numpy.typing as npt

    from icefloe.formats.port import Layout
    from icefloe.storage.port import Storage

_ROWS_AT_ONCE = 65_536


class Objects(NamedTuple):
    """Objects of one kind as columns."""

    ids: npt.NDArray[np.bytes_]
    sizes: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    """When they were written, by the storage's clock: seconds since 1970."""

    def __len__(self) -> int:
        return len(self.ids)

    def outside(self, live: npt.NDArray[np.bytes_]) -> Objects:
        """Those whose ids are not among sorted ones."""
        rows = np.flatnonzero(~are_in(self.ids, live))
        return Objects(self.ids[rows], self.sizes[rows], self.times[rows])

    def among(self, chosen: npt.NDArray[np.bytes_]) -> Objects:
        """Those whose ids are among sorted ones."""
        rows = np.flatnonzero(are_in(self.ids, chosen))
        return Objects(self.ids[rows], self.sizes[rows], self.times[rows])

    def split(self, moment: datetime) -> tuple[Objects, Objects]:
        """Those that were written before a moment, and the others."""
        is_old = self.times < moment.timestamp()
        parts = [np.flatnonzero(is_old), np.flatnonzero(~is_old)]
        old, young = (Objects(self.ids[p], self.sizes[p], self.times[p]) for p in parts)
        return old, young

    def without_strangers(self, known: npt.NDArray[np.bytes_]) -> Objects:
        """Those that are named as we name them, and of the others those among sorted ids."""
        rows = np.flatnonzero(~are_names(self.ids) | are_in(self.ids, known))
        return Objects(self.ids[rows], self.sizes[rows], self.times[rows])

    def newest_first(self) -> Objects:
        """The same, in the order in which they can be deleted with harm to none that is left."""
        order = np.argsort(-self.times, kind="stable")
        return Objects(self.ids[order], self.sizes[order], self.times[order])

    def each_id(self) -> Iterator[bytes]:
        """The ids as Python values."""
        return map(id_bytes, self.ids.tolist())


def list_objects(storage: Storage, layout: Layout, kind: ObjectKind) -> Objects:
    """All objects of a kind. What cannot be one by its name is left out."""
    columns: list[Objects] = []
    ids: list[bytes] = []
    sizes: list[int] = []
    times: list[float] = []

    def flush() -> None:
        # Python objects are kept for one part of the listing only.
        columns.append(
            Objects(
                id_column(ids),
                np.array(sizes, dtype=np.int64),
                np.array(times, dtype=np.float64),
            )
        )
        ids.clear()
        sizes.clear()
        times.clear()

    for info in storage.list(layout.folder(kind)):
        name = layout.parse(info.key)
        if name is None or name.kind != kind:
            continue
        ids.append(name.id)
        sizes.append(info.size)
        times.append(info.last_modified.timestamp())
        if len(ids) == _ROWS_AT_ONCE:
            flush()
    flush()
    return Objects(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def key_maker(layout: Layout, kind: ObjectKind) -> Callable[[bytes], str]:
    """How the keys of a kind are made from ids."""
    makers: dict[ObjectKind, Callable[[bytes], str]] = {
        ObjectKind.SNAPSHOT: lambda data: layout.snapshot(SnapshotId(data)),
        ObjectKind.TRANSACTION_LOG: lambda data: layout.transaction_log(SnapshotId(data)),
        ObjectKind.MANIFEST: lambda data: layout.manifest(ManifestId(data)),
        ObjectKind.ATTRIBUTES: lambda data: layout.attributes(AttributesId(data)),
        ObjectKind.CHUNK_FILE: lambda data: layout.chunk_file(ChunkFileId(data)),
    }
    return makers[kind]
