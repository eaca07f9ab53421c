"""Fetches chosen manifests in the background as soon as a session starts (R4-17, R4-38)."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from icefloe.objects.expected import Referrer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.engine.context import Context
    from icefloe.model.ids import ManifestId
    from icefloe.model.snapshot import Snapshot

logger = logging.getLogger(__name__)


_FEW_NODES = 100
"""So many nodes are looked through sooner than a thread is started that may find nothing to do."""
_FEW_NODES_BY_ENDING = 10_000


def start_preload(context: Context, snapshot: Snapshot) -> threading.Thread | None:
    """Begin to fetch what the configuration wants of a snapshot, without waiting for it.

    Returns the thread that does it, if there is anything to do.
    """
    if context.settings.preload.wants_nothing or not snapshot.manifests:
        return None
    few = _FEW_NODES_BY_ENDING if context.settings.preload.is_quick else _FEW_NODES
    chosen = _chosen(context, snapshot) if len(snapshot.nodes) <= few else None
    if chosen == []:
        return None
    thread = threading.Thread(
        target=_preload, args=(context, snapshot, chosen), name="icefloe-preload", daemon=True
    )
    thread.start()
    return thread


def _preload(context: Context, snapshot: Snapshot, chosen: list[ManifestId] | None) -> None:
    infos = {info.id: info for info in snapshot.manifests}
    try:
        for manifest_id in _chosen(context, snapshot) if chosen is None else chosen:
            info = infos[manifest_id]
            context.files.manifest(
                manifest_id, info.size_bytes, info.checksum, Referrer(snapshot.id)
            ).load_all()
            logger.debug("preloaded manifest %s: %d references", info.id, info.num_chunk_refs)
    except Exception as error:  # noqa: BLE001 (H-41: a preload never fails a session)
        logger.info("could not preload manifests of snapshot %s: %s", snapshot.id, error)


def _chosen(context: Context, snapshot: Snapshot) -> list[ManifestId]:
    """The manifests that the configuration wants; none if the snapshot cannot be understood."""
    sizes = {info.id: info.num_chunk_refs for info in snapshot.manifests}
    try:
        return context.settings.preload.chosen(
            snapshot.nodes.paths, partial(_manifests_of, snapshot), sizes.__getitem__
        )
    except Exception as error:  # noqa: BLE001 (H-41: a preload never fails a session)
        logger.info("could not preload manifests of snapshot %s: %s", snapshot.id, error)
        return []


def _manifests_of(snapshot: Snapshot, path: str) -> Iterator[ManifestId]:
    """Manifests of the array at a path; the node is read only if somebody asks for them."""
    node = snapshot.nodes.get(path)
    if node is not None:
        yield from (ref.manifest_id for ref in node.manifests)
