"""Caches of a worker process: open repositories, so that tasks after the first find them warm.

Spark keeps its Python workers for a while and gives them one task after the other.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.session import ForkSession, Session

if TYPE_CHECKING:
    from collections.abc import Callable

_main = getattr(sys.modules.get("__main__"), "__spec__", None)
if _main is not None and _main.name.startswith("pyspark."):
    # Zarr says so in every worker process of chunks that NetCDF files compressed; nothing follows.
    # Filters of the user's own process are the user's.
    warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3")

_CONTEXTS = 4
_VALUES = 16
_LARGEST_VALUE_BYTES = 64 * 1024 * 1024


class SessionSpec(Record, frozen=True):
    """What another process needs to open the same session; small, and without secrets of ours.

    How credentials travel is the storage's business: name where they come from (environment,
    instance role, a function that can be pickled) rather than giving them.
    """

    context: bytes
    snapshot_id: str
    state: bytes = b""
    """What makes it a writable part; empty for a read-only session."""

    def __repr__(self) -> str:
        # Never the pickles: a storage that was given credentials has them in its own.
        return f"SessionSpec({self.snapshot_id}, writable={bool(self.state)})"

    @classmethod
    def of(cls, session: Session) -> SessionSpec:
        """Describe a session: a writable one by a part of it, see `Session.part`."""
        part = session if session.read_only else ForkSession.part_of(session)
        state: dict[str, Any] = part.__getstate__()
        context = state.pop("context")
        if not context.storage.capabilities.survives_pickle:
            raise InvalidInputError(
                f"workers cannot see the repository at {context.storage.location}, which is in "
                "the memory of this process; use a storage that they reach, such as "
                "local_filesystem_storage on one machine or s3_storage"
            )
        snapshot_id = str(state["snapshot_id"])
        kept = b"" if session.read_only else pickle.dumps(state)
        return cls(pickle.dumps(context), snapshot_id, kept)

    def open(self) -> Session:
        """A read-only session, on the caches of this process."""
        session = Session.__new__(Session)
        snapshot_id = _snapshot_id(self.snapshot_id)
        session.__setstate__(
            {"context": unpickled_context(self.context), "snapshot_id": snapshot_id}
        )
        return session

    def open_part(self) -> ForkSession:
        """A new writable part, on the caches of this process."""
        part = ForkSession.__new__(ForkSession)
        part.__setstate__({**pickle.loads(self.state), "context": unpickled_context(self.context)})
        return part


def _snapshot_id(text: str) -> Any:
    from icefloe.model.ids import SnapshotId

    return SnapshotId.from_text(text)


class _Recent:
    """The last few values by the digest of their pickled form."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[bytes, Any] = OrderedDict()

    def get(self, pickled: bytes, make: Callable[[bytes], Any]) -> Any:
        key = hashlib.sha256(pickled).digest()
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make(pickled)
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return value


_contexts = _Recent(_CONTEXTS)
_values = _Recent(_VALUES)


def unpickled_context(pickled: bytes) -> Any:
    """An open repository, with its storage client and cached manifests."""
    return _contexts.get(pickled, pickle.loads)


def unpickled(pickled: bytes) -> Any:
    """A value that all items of a job share; treat it as immutable."""
    if len(pickled) > _LARGEST_VALUE_BYTES:
        return pickle.loads(pickled)
    return _values.get(pickled, pickle.loads)
