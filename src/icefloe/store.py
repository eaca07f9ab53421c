"""The Zarr store of a session: the names of the official package's module."""

from __future__ import annotations

from icefloe.zarr_store.store import (
    IcefloeStore,
)

IcechunkStore = IcefloeStore

__all__ = ["IcechunkStore", "IcefloeStore"]
