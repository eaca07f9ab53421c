"""Whether an object exists, and which names a folder has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import ObjectNotFoundError
from icefloe.storage.port import Naming

if TYPE_CHECKING:
    from icefloe.storage.port import Storage


def is_there(storage: Storage, key: str) -> bool:
    """Whether a storage has an object, by asking it: one request."""
    try:
        storage.head(key)
    except ObjectNotFoundError:
        return False
    return True


def names_in(storage: Storage, folder: str) -> list[str]:
    """Names of the immediate children of a folder; with empty folders, where that is cheaper."""
    return storage.names(folder) if isinstance(storage, Naming) else storage.list_dir(folder)


def has_any_in(storage: Storage, folder: str) -> bool:
    """Whether a folder has anything in it; an empty folder counts, where that is cheaper."""
    if isinstance(storage, Naming):
        return bool(storage.names(folder))
    return next(iter(storage.list(f"{folder}/")), None) is not None
