"""Whether an object is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from icefloe.storage.port import Storage


def is_there(storage: Storage, key: str) -> bool:
    """Whether a storage has an object, by asking it: one request."""
    try:
        storage.head(key)
    except ObjectNotFoundError:
        return False
    return True
