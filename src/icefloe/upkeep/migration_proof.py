"""Proves that a copied snapshot equals its original: nodes, documents, properties and chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.changes.compare import compare_chunks
from icefloe.errors import FormatError
from icefloe.model.manifest import ArrayChunks
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles


class CopyProof:
    """Compares snapshots; manifests that were found to be equal are not read again."""

    def __init__(
        self,
        source: MetadataFiles,
        target: MetadataFiles,
        as_copied: Callable[[ChunkRefs], ChunkRefs],
    ) -> None:
        """Take both sides, and how references of the source are told in the target."""
        self._source = source
        self._target = target
        self._as_copied = as_copied
        self._equal: set[tuple[object, object]] = set()

    def compare(self, original: Snapshot, copy: Snapshot) -> None:
        """Raise FormatError unless a copy is equal to its original."""
        if list(original.nodes.paths) != list(copy.nodes.paths):
            raise self._unequal(original, "other nodes")
        said = (original.message, original.written_at, original.public_metadata())
        if said != (copy.message, copy.written_at, copy.public_metadata()):
            raise self._unequal(original, "another message, time or other properties")
        old_chunks = SnapshotChunks(self._source, original)
        new_chunks = SnapshotChunks(self._target, copy)
        for old, new in zip(original.nodes, copy.nodes, strict=True):
            seen = (old.manifests, new.manifests)
            whole = self._source.document(old, original)
            if whole != self._target.document(new, copy):
                raise self._unequal(original, f"another document of {old.path}")
            if not old.is_array or not new.is_array or seen in self._equal:
                continue
            table = old_chunks.table(old)
            if table is not None:
                table = ArrayChunks(table.index, self._as_copied(table.refs))
            index = compare_chunks(table, new_chunks.table(new))
            if index is not None:
                raise self._unequal(original, f"{len(index)} other chunks of {old.path}")
            self._equal.add(seen)

    def _unequal(self, snapshot: Snapshot, what: str) -> FormatError:
        return FormatError(
            f"the copy of snapshot {snapshot.id} in {self._target.storage.location} has {what}; "
            "remove the copy and migrate again"
        )
