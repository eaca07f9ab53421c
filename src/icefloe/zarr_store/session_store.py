"""What the codec pipeline needs to know of a store: that it is one of ours, and its session."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from zarr.abc.store import Store

if TYPE_CHECKING:
    from icefloe.session import Session


class SessionStore(Store):
    """A Zarr store whose chunks are those of a session."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """The session that this store shows."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise ReadOnlyStoreError unless this store can be written to."""
