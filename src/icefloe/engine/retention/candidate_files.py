"""The chunk files that a garbage collection may delete: the port for how, and the local way.

Of all other objects there are few, and `collection.py` handles them as columns in memory. Of chunk
files there may be hundreds of millions, so how they are listed, marked, subtracted and deleted is
left to a `ChunkFileLister`: in this process here, on the executors of a cluster in `icefloe.spark`.
The protocol, G1 to G7, is the same.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from icefloe.engine.retention.id_sets import are_names
from icefloe.engine.retention.stored_objects import StoredObjects, key_maker, list_objects
from icefloe.formats.port import ObjectKind
from icefloe.progress import ProgressStage
from icefloe.storage.concurrency import each_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    import numpy as np
    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.marking import Marks
    from icefloe.storage.port import Storage

BATCH = 1000
"""How many objects are deleted by one request."""


class Fence(Protocol):
    """Ends a collection whose lease has lapsed."""

    def check(self) -> datetime:
        """Until when, by the storage's clock, objects may be deleted; raises if the lease lapsed.

        Raises:
            SessionStateError: The lease of the collection has lapsed.
        """


class FileTotals(NamedTuple):
    """How many files there are, and their size."""

    files: int
    size_bytes: int
    strangers: int
    """How many of them have names that icefloe did not choose."""


class CandidateFiles(Protocol):
    """Chunk files that may be garbage. Nothing changes it: methods return a part of it."""

    def totals(self) -> FileTotals:
        """How many they are."""

    def some_keys(self, count: int) -> list[str]:
        """Keys of a few of them, or of all if there are not more."""

    def older_than(self, moment: datetime) -> CandidateFiles:
        """Those that were written before a moment."""

    def written_since(self, moment: datetime) -> CandidateFiles:
        """Those that were written at a moment or later."""

    def unreached(
        self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None
    ) -> CandidateFiles:
        """Those that no marked manifest refers to, or none of those with some (sorted) ids."""

    def without_strangers(self, going: Marks, manifests: npt.NDArray[np.bytes_]) -> CandidateFiles:
        """Those that icefloe named, and of the others those that some manifests refer to."""

    def delete(self, others: Iterator[list[str]], fence: Fence) -> None:
        """Delete other objects, given as batches of keys, and then all of these.

        The fence is checked again and again: see `Fence.check`.
        """


class ChunkFileLister(Protocol):
    """Lists the chunk files of a repository."""

    def list_files(self) -> CandidateFiles:
        """List all of them, now: what is written later is not among them (G1)."""


class LocalFileLister:
    """Lists chunk files in this process."""

    def __init__(self, context: Context, requests: int) -> None:
        """Take how many requests may be sent at a time."""
        self._context = context
        self._requests = requests

    def list_files(self) -> LocalFiles:
        """List all chunk files into memory."""
        context = self._context
        listed = list_objects(context.storage, context.format.layout, ObjectKind.CHUNK_FILE)
        return LocalFiles(context, self._requests, listed)


class LocalFiles:
    """Chunk files as columns in memory."""

    def __init__(self, context: Context, requests: int, objects: StoredObjects) -> None:
        """Take the files, and how many requests may be sent at a time."""
        self._context = context
        self._requests = requests
        self.objects = objects
        """The files themselves."""

    def _part(self, objects: StoredObjects) -> LocalFiles:
        return LocalFiles(self._context, self._requests, objects)

    def totals(self) -> FileTotals:
        """How many they are."""
        objects = self.objects
        strangers = int(are_names(objects.ids).sum())
        return FileTotals(len(objects), int(objects.sizes.sum()), strangers)

    def some_keys(self, count: int) -> list[str]:
        """Keys of the first of them."""
        key_of = key_maker(self._context.format.layout, ObjectKind.CHUNK_FILE)
        return list(map(key_of, islice(self.objects.each_id(), count)))

    def older_than(self, moment: datetime) -> LocalFiles:
        """Those that were written before a moment."""
        return self._part(self.objects.split(moment)[0])

    def written_since(self, moment: datetime) -> LocalFiles:
        """Those that were written at a moment or later."""
        return self._part(self.objects.split(moment)[1])

    def unreached(
        self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None
    ) -> LocalFiles:
        """Those that no marked manifest refers to."""
        if not len(self.objects):
            return self  # manifests are read only if a chunk file depends on them
        return self._part(self.objects.outside(marks.chunk_file_ids(manifests)))

    def without_strangers(self, going: Marks, manifests: npt.NDArray[np.bytes_]) -> LocalFiles:
        """Those that icefloe named, and of the others those that some manifests refer to."""
        return self._part(self.objects.without_strangers(going.chunk_file_ids(manifests)))

    def delete(self, others: Iterator[list[str]], fence: Fence) -> None:
        """Delete other objects and then all of these, several batches at a time."""
        own = key_batches(self._context, ObjectKind.CHUNK_FILE, self.objects)
        delete_batches(self._context.storage, chain(others, own), self._requests, fence)


def delete_batches(
    storage: Storage, batches: Iterator[list[str]], requests: int, fence: Fence
) -> None:
    """Delete objects, given as batches of keys, several batches at a time."""
    stage = ProgressStage("objects deleted", None)
    while window := list(islice(batches, requests)):
        fence.check()
        each_at_once(storage, storage.delete_many, window, requests)
        stage.advance(sum(map(len, window)))


def key_batches(context: Context, kind: ObjectKind, objects: StoredObjects) -> Iterator[list[str]]:
    """The keys of objects, as many at a time as one request deletes."""
    key_of = key_maker(context.format.layout, kind)
    ids = objects.each_id()
    while batch := [key_of(data) for data in islice(ids, BATCH)]:
        yield batch
