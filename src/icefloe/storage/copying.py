"""Copying single objects between storages, without moving bytes where both are in one place."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from icefloe.storage.forwarding import ForwardingStorage

if TYPE_CHECKING:
    from icefloe.storage.port import Storage


class CopyMethod(StrEnum):
    """How an object was copied."""

    LINKED = "linked"
    """Both names refer to the same bytes on disk or in memory."""
    SERVER_SIDE = "server-side"
    """The store copied it."""
    TRANSFERRED = "transferred"
    """Its bytes were read and written."""


def copy_object(source: Storage, source_key: str, target: Storage, key: str) -> CopyMethod:
    """Write an object of one storage under a fresh name in another.

    Like `put`, it is durable after `sync` or a later `create`.
    """
    inner, outer = _innermost(source), _innermost(target)
    copy_from = getattr(outer, "copy_from", None)
    if copy_from is not None:
        method: CopyMethod | None = copy_from(inner, source_key, key)
        if method is not None:
            return method
    target.put(key, source.get(source_key))
    return CopyMethod.TRANSFERRED


def _innermost(storage: Storage) -> Storage:
    while isinstance(storage, ForwardingStorage):
        storage = storage.inner
    return storage
