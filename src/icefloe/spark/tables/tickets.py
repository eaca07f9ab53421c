"""What a Spark process needs to open what the driver means: a repository, a snapshot or a scan."""

from __future__ import annotations

import functools
import pickle
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record
from icefloe.repository import Repository
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables.change_data import CHANGE_TYPE, SNAPSHOT, ChangeScan, check_change_request
from icefloe.tables.metadata_tables import read_metadata_table
from icefloe.tables.schema import read_variables
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan
from icefloe.tables.versions import SnapshotSelector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from icefloe.zarr_store.session_port import SessionPort

_MAX_OPEN = 16
_MAX_SCANS = 8


class RepositoryLocation(Record, frozen=True):
    """The URL of a repository. Credentials come from the environment or from a provider."""

    url: str
    provider: bytes | None = None
    """A pickled function that the driver registered: it opens a storage or repository by URL.

    Never made from text: options only choose among registered names, see `registered`.
    """
    virtual: tuple[str, ...] = ()
    """URL prefixes of virtual chunks that may be read, with the environment's credentials."""

    def open(self) -> Repository:
        """The repository; opened once in each process."""
        return _open(self)


@functools.lru_cache(maxsize=_MAX_OPEN)
def _open(location: RepositoryLocation) -> Repository:
    allowed: dict[str, None] | None = dict.fromkeys(location.virtual) or None
    if location.provider is None:
        return Repository.open(location.url, authorize_virtual_chunk_access=allowed)
    opened = pickle.loads(location.provider)(location.url)
    if isinstance(opened, Repository):
        return opened
    return Repository.open(opened, authorize_virtual_chunk_access=allowed)


def registered(name: str | None, providers: Mapping[str, bytes]) -> bytes | None:
    """The storage provider that was registered under a name; None if none is named."""
    if name is None:
        return None
    if name not in providers:
        known = ", ".join(map(repr, sorted(providers))) or "none"
        raise InvalidInputError(
            f"no storage provider {name!r} is registered in this Spark session (registered: "
            f"{known}); the driver registers one by icefloe.spark.register_storage_provider(spark, "
            "name, function). A provider is not imported by name"
        )
    return providers[name]


def url_with(url: str, settings: dict[str, str]) -> str:
    """A URL with settings of its storage added behind `?`."""
    if not settings:
        return url
    try:
        return url + ("&" if "?" in url else "?") + urlencode(settings)
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"settings of a storage are Unicode text, found {shortened(repr(settings))}"
        ) from None


class PinnedSnapshot(Record, frozen=True):
    """One snapshot of a repository."""

    location: RepositoryLocation
    snapshot_id: str

    def open(self) -> SessionPort:
        """The session of this process."""
        return _pinned(self)


@functools.lru_cache(maxsize=_MAX_OPEN)
def _pinned(pinned: PinnedSnapshot) -> SessionPort:
    return pinned.location.open().readonly_session(snapshot_id=pinned.snapshot_id)


class ScanTicket(Record, frozen=True):
    """A scan that is planned again in each process that reads some of its blocks."""

    session: SessionSpec | PinnedSnapshot
    request: ScanRequest
    key: str
    """Names the scan in the caches of processes."""

    @classmethod
    def of(cls, session: SessionSpec | PinnedSnapshot, request: ScanRequest) -> ScanTicket:
        """A ticket of a new scan."""
        return cls(session, request, secrets.token_hex(8))

    def scan(self) -> Scan:
        """The scan of this process; planned once."""
        scan = _scans.pop(self.key, None)
        if scan is None:
            scan = Scan(self.session.open(), self.request)
        _scans[self.key] = scan
        while len(_scans) > _MAX_SCANS:
            _scans.popitem(last=False)
        return scan


class ChangeTicket(Record, frozen=True):
    """The changes of a table between two snapshots."""

    before: ScanTicket | None
    """None before the table was there."""
    after: ScanTicket

    @classmethod
    def of(
        cls, location: RepositoryLocation, start: str | None, end: str, request: ScanRequest
    ) -> ChangeTicket:
        """A ticket for the changes after one snapshot, up to another."""
        check_change_request(request)
        whole = msgspec.structs.replace(request, columns=None, changed_since=None)
        after = ScanTicket.of(PinnedSnapshot(location, end), whole)
        if start is None:
            return cls(None, after)
        earlier = PinnedSnapshot(location, start)
        session = earlier.open()
        # Variables may be newer than that, and so may the table.
        known = read_variables(session, request.group) if session.get_node(request.group) else {}
        data = {name for name, each in known.items() if each.dims != (name,)}
        if request.variables is not None:
            data &= set(request.variables)
            names = tuple(name for name in request.variables if name in data)
            whole = msgspec.structs.replace(whole, variables=names)
        return cls(ScanTicket.of(earlier, whole) if data else None, after)

    def scan(self, columns: Sequence[str] | None = None) -> ChangeScan:
        """The scan of this process; of all columns by default."""
        after = self.after.scan()
        own = (CHANGE_TYPE, SNAPSHOT)
        names = after.plan.columns if columns is None else [c for c in columns if c not in own]
        return ChangeScan(None if self.before is None else self.before.scan(), after, names)


_scans: OrderedDict[str, Scan] = OrderedDict()
"""The scans of this process, the least recently used first."""


class MetadataTicket(Record, frozen=True):
    """A metadata table of a repository."""

    location: RepositoryLocation
    selector: SnapshotSelector
    name: str

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches of the table."""
        return read_metadata_table(self.location.open(), self.selector, self.name)
