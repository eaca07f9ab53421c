"""The time by a storage's clock: ages of objects never depend on the local clock."""

from __future__ import annotations

import contextlib
import logging
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.errors import IcefloeError, ObjectNotFoundError
from icefloe.storage.workers import do_later

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

_logger = logging.getLogger(__name__)

CLOCK_FOLDER = "maintenance/clock"
"""Where objects are written whose age is their only purpose."""
_MAX_TRIES = 2


def storage_now(storage: Storage) -> datetime:
    """The time by the storage's clock: that of an object written for this purpose.

    Some storages count whole seconds; then this is the beginning of the present one. Nobody waits
    until the object is deleted.
    """
    for _ in range(_MAX_TRIES):
        # If it is paused between the two requests, a collection may delete its object.
        with contextlib.suppress(ObjectNotFoundError):
            return _time_of_new_object(storage)
    return _time_of_new_object(storage)


def _time_of_new_object(storage: Storage) -> datetime:
    key = f"{CLOCK_FOLDER}/{secrets.token_hex(12)}"

    def delete() -> None:
        try:
            storage.delete_many([key])
        except IcefloeError as error:
            _logger.warning("%s was left behind in %s: %s", key, storage.location, error)

    storage.put(key, b"")
    try:
        return storage.head(key).last_modified.astimezone(UTC)
    finally:
        do_later(storage, delete)
