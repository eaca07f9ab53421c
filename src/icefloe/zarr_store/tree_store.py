"""What the codec pipeline needs of a store: that it is icefloe's, and its tree."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from zarr.abc.store import Store

if TYPE_CHECKING:
    from icefloe.engine.port import Tree


class TreeStore(Store):
    """A Zarr store whose chunks are those of a working tree."""

    @property
    @abstractmethod
    def tree(self) -> Tree:
        """The tree that this store shows."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise ReadOnlyStoreError unless this store can be written to."""
