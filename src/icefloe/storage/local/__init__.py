"""Storage in a folder of a local filesystem."""

from icefloe.storage.local.local_storage import Durability, LocalStorage

__all__ = ["Durability", "LocalStorage"]
