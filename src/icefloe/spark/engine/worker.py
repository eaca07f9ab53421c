"""Sessions in worker processes: how they get there, and what is kept open from task to task.

Spark keeps its Python workers for a while and gives them one task after the other, so tasks after
the first find repositories open and manifests cached.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.session import ForkSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.engine.context import Context
    from icefloe.session import Session

_CONTEXTS = 4
_VALUES = 16
_LARGEST_VALUE_BYTES = 64 * 1024 * 1024


class SessionSpec(Record, frozen=True):
    """A session as a small value that other processes open; without secrets.

    How credentials travel is up to the storage: say where they come from (environment, instance
    role, a function that can be pickled) rather than passing them.
    """

    context: bytes
    """The repository, pickled; see `unpickled_context`."""
    session: bytes
    """The session, pickled without its repository."""
    snapshot_id: str
    is_writable: bool

    def __repr__(self) -> str:
        # Never the pickles: the pickle of a storage contains the credentials that it was given.
        return f"SessionSpec({self.snapshot_id}, writable={self.is_writable})"

    @classmethod
    def of(cls, session: Session) -> SessionSpec:
        """Describe a read-only session, or a part of a writable one (`ForkSession.part_of`)."""
        context = session.tree.context
        pickled = pickled_context(context)
        buffer = io.BytesIO()
        part = session if session.read_only else ForkSession.part_of(session)
        _SessionPickler(buffer, context).dump(part)
        return cls(
            context=pickled,
            session=buffer.getvalue(),
            snapshot_id=session.snapshot_id,
            is_writable=not session.read_only,
        )

    def open(self) -> Session:
        """Open the read-only session, with the caches of this process."""
        session: Session = self._unpickled()
        return session

    def open_part(self) -> ForkSession:
        """Open a new writable part of the session, with the caches of this process."""
        part: ForkSession = self._unpickled()
        return part

    def _unpickled(self) -> Any:
        return _SessionUnpickler(self.session, unpickled_context(self.context)).load()


class _SessionPickler(pickle.Pickler):
    """Leaves the repository out of the pickle of a session.

    All sessions of a job share one repository. A worker process unpickles and caches it once,
    instead of once for each session and task.
    """

    def __init__(self, file: io.BytesIO, context: Context) -> None:
        super().__init__(file)
        self._context = context

    def persistent_id(self, value: Any) -> str | None:
        """Name what is not pickled."""
        return "context" if value is self._context else None


class _SessionUnpickler(pickle.Unpickler):
    """Puts a repository where `_SessionPickler` left one out."""

    def __init__(self, pickled: bytes, context: Context) -> None:
        super().__init__(io.BytesIO(pickled))
        self._context = context

    def persistent_load(self, _name: Any) -> Context:
        """Return the repository."""
        return self._context


class _Recent:
    """The values used last, by the digest of their pickled form."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[bytes, Any] = OrderedDict()

    def get(self, pickled: bytes, load: Callable[[bytes], Any]) -> Any:
        key = hashlib.sha256(pickled).digest()
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = load(pickled)
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return value


_contexts = _Recent(_CONTEXTS)
_values = _Recent(_VALUES)


def pickled_context(context: Context) -> bytes:
    """Pickle a repository for workers; raises InvalidInputError if they cannot reach it."""
    if not context.storage.capabilities.survives_pickle:
        raise InvalidInputError(
            f"workers cannot see the repository at {context.storage.location}, which is in "
            "the memory of this process; use a storage that they reach, such as "
            "local_filesystem_storage on one machine or s3_storage"
        )
    return pickle.dumps(context)


def unpickled_context(pickled: bytes) -> Any:
    """Open a repository, or return it with its storage client and caches if it is open."""
    return _contexts.get(pickled, pickle.loads)


def unpickled(pickled: bytes) -> Any:
    """Unpickle a value that tasks share, once per process; treat it as immutable."""
    if len(pickled) > _LARGEST_VALUE_BYTES:
        return pickle.loads(pickled)
    return _values.get(pickled, pickle.loads)


def ignore_codec_warnings() -> None:
    """In a worker process of Spark, ignore zarr's warnings about codecs of NetCDF files.

    Zarr warns in every new process, where nobody can do anything about it. The filters of other
    processes belong to the user, and stay.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3")
