"""Checks that the files of uncommitted changes survived a garbage collection.

A session asks for this when a collection re-published its branch (G7 in `collection.py`) or when
its lease lapsed. No clock of the writer decides anything: its machine may have been paused, and its
clock with it. Announcements are read first: a collection that announces later re-publishes the
branch after that, and the commit notices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.engine.retention.announcements import running_collections
from icefloe.errors import FormatError, ObjectNotFoundError, SessionStateError
from icefloe.formats.port import ObjectKind
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import ChunkFileId
from icefloe.objects.snapshot_chunks import linked_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.engine.context import Context
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.ids import ManifestId
    from icefloe.model.nodes import ArrayNode
    from icefloe.storage.port import ObjectInfo, Storage

_FEW_FILES = 100
"""More are looked for in a listing first, which has a thousand in one answer."""


def check_own_files(context: Context, changes: ChangeSet) -> None:
    """Raise SessionStateError unless the files of uncommitted changes exist and will stay."""
    cutoff = max(
        (each.cutoff_seconds for each in running_collections(context.storage)), default=None
    )
    manifests = _linked_manifests(context, changes)
    _raise_of_old(_check(context, manifests, "manifests", cutoff), "manifests")  # read next
    files = _chunk_files(context, changes)
    old = _check(context, list(files), "chunk files", cutoff)
    if old:
        in_base = _of_base(context, changes, {files[key] for key in old})
        _raise_of_old([key for key in old if files[key] not in in_base], "chunk files")


def written_files(context: Context, changes: ChangeSet) -> list[str]:
    """Keys of the chunk files and manifests that changes refer to and that are written already."""
    ids = {
        each
        for edits in changes.chunks.values()
        for refs in edits.written()
        for each in _files_of(refs)
    }
    files = [context.format.layout.chunk_file(ChunkFileId(each)) for each in sorted(ids)]
    return [*_linked_manifests(context, changes), *files]


def check_still_there(context: Context, keys: Sequence[str]) -> None:
    """Raise SessionStateError if files that a session wrote are gone with their repository."""
    if len(keys) > _FEW_FILES:
        kinds = (ObjectKind.MANIFEST, ObjectKind.CHUNK_FILE)
        folders = dict.fromkeys(map(context.format.layout.folder, kinds))
        listed = {info.key for folder in folders for info in context.storage.list(folder)}
        keys = [key for key in keys if key not in listed]  # a listing may be out of date
    _existing(
        context,
        keys,
        "files",
        "are gone: the repository was deleted and created again meanwhile; open it and write them "
        "again in a new session",
    )


def _check(context: Context, keys: list[str], what: str, cutoff: float | None) -> list[str]:
    """Raise SessionStateError if files are gone; returns those older than the cutoff."""
    infos = _existing(
        context,
        keys,
        what,
        "were collected as garbage: the session was suspended or cut off for longer than its "
        "lease held, or than garbage is kept; write them again in a new session",
    )
    if cutoff is None:
        return []
    return [info.key for info in infos if info.last_modified.timestamp() < cutoff]


def _existing(context: Context, keys: Sequence[str], what: str, why: str) -> list[ObjectInfo]:
    """Information on files, which all exist; raises SessionStateError with `why` if not."""
    infos = context.files.in_parallel(lambda key: _info(context.storage, key), keys)
    lost = [key for key, info in zip(keys, infos, strict=True) if info is None]
    if lost:
        raise SessionStateError(
            f"{len(lost)} {what} that this session wrote, such as {lost[0]}, {why}"
        )
    return [info for info in infos if info is not None]


def _raise_of_old(old: list[str], what: str) -> None:
    if old:
        raise SessionStateError(
            f"{len(old)} {what} that this session wrote, such as {old[0]}, are so old that a "
            "garbage collection that runs at this moment may delete them; commit again when it "
            "is over, and take a lease for work that takes long"
        )


def _linked_manifests(context: Context, changes: ChangeSet) -> list[str]:
    tiles = [tile for each in changes.linked.values() for tile in each]
    return [context.format.layout.manifest(tile.info.id) for tile in tiles]


def _chunk_files(context: Context, changes: ChangeSet) -> dict[str, bytes]:
    """Ids of the chunk files that changes refer to, by key."""
    file_ids: set[bytes] = set()
    for refs in _own_refs(context, changes):
        file_ids |= _files_of(refs)
    return {context.format.layout.chunk_file(ChunkFileId(each)): each for each in sorted(file_ids)}


def _files_of(refs: ChunkRefs) -> set[bytes]:
    native = np.flatnonzero(refs.kinds == ChunkKind.NATIVE)
    used = refs.files[np.unique(refs.sources[native])]
    return {ChunkFileId(row.tobytes()) for row in used}


def _of_base(context: Context, changes: ChangeSet, candidates: set[bytes]) -> set[bytes]:
    """The candidates that the edited arrays also use in the base: no collection deletes those.

    These are files of chunks that only moved, and what linked manifests took over.
    """
    used: set[bytes] = set()
    for node, manifest_id in _base_manifests(changes):
        if used >= candidates:
            break
        try:
            chunks = context.files.manifest(manifest_id, 0).array(node.id, node.array.rank)
        except FormatError:
            break  # the base itself is being collected
        if chunks is not None:
            used |= _files_of(chunks.refs) & candidates
    return used


def _base_manifests(changes: ChangeSet) -> Iterator[tuple[ArrayNode, ManifestId]]:
    """Manifests of the base that may hold references of edited arrays, each once."""
    for node_id in changes.chunks.keys() | changes.linked.keys():
        node = changes.base.array_by_id(node_id)
        if node is None:
            continue
        manifests = [each for tile in changes.linked.get(node_id, ()) for each in tile.replaced]
        if node_id in changes.chunks:
            manifests += [ref.manifest_id for ref in node.manifests]
        for manifest_id in dict.fromkeys(manifests):
            yield node, manifest_id


def _own_refs(context: Context, changes: ChangeSet) -> Iterator[ChunkRefs]:
    for edits in changes.chunks.values():
        own = edits.apply(None)
        if own is not None:
            yield own.refs
    for node_id, tiles in changes.linked.items():
        node = changes.array_by_id(node_id)
        if node is not None:
            for tile in tiles:
                yield linked_chunks(context.files, node, tile).refs


def _info(storage: Storage, key: str) -> ObjectInfo | None:
    try:
        return storage.head(key)
    except ObjectNotFoundError:
        return None
