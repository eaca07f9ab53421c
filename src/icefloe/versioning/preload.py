"""Fetches chosen manifests in the background as soon as a session starts (R4-17, R4-38)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.ids import ManifestId
    from icefloe.model.snapshot import Snapshot
    from icefloe.versioning.context import Context

logger = logging.getLogger(__name__)


def start_preload(context: Context, snapshot: Snapshot) -> threading.Thread | None:
    """Begin to fetch what the configuration wants of a snapshot, without waiting for it.

    Returns the thread that does it, if there is anything to do.
    """
    if context.settings.preload.wants_nothing or not snapshot.manifests:
        return None
    thread = threading.Thread(
        target=_preload, args=(context, snapshot), name="icefloe-preload", daemon=True
    )
    thread.start()
    return thread


def _preload(context: Context, snapshot: Snapshot) -> None:
    infos = {info.id: info for info in snapshot.manifests}
    try:
        chosen = context.settings.preload.chosen(
            ((path, _manifests_of(snapshot, path)) for path in snapshot.nodes.paths),
            lambda manifest_id: infos[manifest_id].num_chunk_refs,
        )
        for manifest_id in chosen:
            info = infos[manifest_id]
            context.files.manifest(manifest_id, info.size_bytes).load_all()
            logger.debug("preloaded manifest %s: %d references", info.id, info.num_chunk_refs)
    except Exception as error:  # noqa: BLE001 (H-41: a preload never fails a session)
        logger.info("could not preload manifests of snapshot %s: %s", snapshot.id, error)


def _manifests_of(snapshot: Snapshot, path: str) -> Iterator[ManifestId]:
    """Manifests of the array at a path; the node is read only if somebody asks for them."""
    node = snapshot.nodes.get(path)
    if node is not None:
        yield from (ref.manifest_id for ref in node.manifests)
