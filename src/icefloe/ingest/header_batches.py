"""Headers on their way from executors to the driver: what many files share travels once.

Documents and attributes are sent once by each task, large coordinates as digests; the driver asks
for the values of each distinct digest once. What it keeps of a file is small, whatever its history.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from icefloe.errors import VirtualChunkError
from icefloe.ingest.compare import MEANINGFUL
from icefloe.ingest.headers import FileHeader, VariableHeader, digest_of_values, time_attributes
from icefloe.ingest.parsed import NAMING_ATTRIBUTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import numpy.typing as npt

    from icefloe.ingest.read import HeaderResult

INLINE_BYTES = 4096
"""Values up to this size travel with the header of their file."""


Waiting = tuple[tuple[str, bytes], ...]
"""Variables of a file whose values are still to come, and their digests."""


class Digest(NamedTuple):
    """Replaces values that are not sent along."""

    digest: bytes
    num_bytes: int


class VariableRow(NamedTuple):
    """A variable of a file as it travels."""

    name: str
    document: bytes
    """Digest of the document, which is sent once."""
    chunk_count: int
    byte_count: int
    values: npt.NDArray[Any] | Digest | None


class HeaderBatch(NamedTuple):
    """The results of a task."""

    results: list[HeaderResult]
    """Without headers."""
    rows: list[tuple[str, bytes, list[VariableRow]] | None]
    """For each result its format, the digest of its attributes and its variables, if it has any."""
    shared: dict[bytes, Any]
    """Documents and attributes by digest."""


def pack(results: Sequence[HeaderResult]) -> bytes:
    """The results of a task, pickled."""
    shared: dict[bytes, Any] = {}

    def put(value: Any) -> bytes:
        digest = hashlib.sha256(msgspec.msgpack.encode(value, order="sorted")).digest()
        shared.setdefault(digest, value)
        return digest

    rows: list[tuple[str, bytes, list[VariableRow]] | None] = []
    for result in results:
        header = result.header
        if header is None:
            rows.append(None)
            continue
        variables = [
            VariableRow(
                name=name,
                document=put(each.document),
                chunk_count=each.chunk_count,
                byte_count=each.byte_count,
                values=_travelling(each.values),
            )
            for name, each in header.variables.items()
        ]
        rows.append((header.format, put(header.attributes), variables))
    bare = [result._replace(header=None) for result in results]
    return pickle.dumps(HeaderBatch(bare, rows, shared))


def _travelling(values: npt.NDArray[Any] | None) -> npt.NDArray[Any] | Digest | None:
    if values is None or (values.nbytes <= INLINE_BYTES and values.dtype.kind not in "TO"):
        return values
    if values.dtype.kind in "TO" and values.size * 64 <= INLINE_BYTES:
        return values
    return Digest(digest_of_values(values), values.nbytes)


class HeaderCollector:
    """Gathers the results of tasks, with one copy of what files share."""

    def __init__(self, used_attributes: Collection[str] = ()) -> None:
        """Gather results.

        Args:
            used_attributes: Attributes of files that are asked for by rules, and kept as they are.
        """
        self._documents = _Alike(MEANINGFUL | set(NAMING_ATTRIBUTES))
        self._attributes = _Alike({"coordinates", *used_attributes}, of_files=True)
        self._times: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
        self._variables: dict[Any, VariableHeader] = {}
        self._pending: dict[bytes, tuple[str, str, int]] = {}
        self._waiting: list[tuple[int, Waiting]] = []
        self._same_waiting: dict[Waiting, Waiting] = {}
        self.results: list[HeaderResult] = []

    def add(self, packed: bytes) -> None:
        """Take the results of a task that `pack` made."""
        batch: HeaderBatch = pickle.loads(packed)
        for result, row in zip(batch.results, batch.rows, strict=True):
            if row is None:
                self.results.append(result)
                continue
            header, waiting = self._header(result, row, batch.shared)
            if waiting:
                self._waiting.append((len(self.results), waiting))
            self.results.append(result._replace(header=header))

    def _header(
        self,
        result: HeaderResult,
        row: tuple[str, bytes, list[VariableRow]],
        shared: dict[bytes, Any],
    ) -> tuple[FileHeader, Waiting]:
        file_format, attributes, rows = row
        documents = {
            each.name: self._documents.of(
                (each.name, each.document), shared[each.document], each.name
            )
            for each in rows
        }
        kind = tuple(map(id, documents.values()))
        if kind not in self._times:
            self._times[kind] = time_attributes(documents)
        times, variables, waiting = self._times[kind], {}, {}
        for each in rows:
            values = None if isinstance(each.values, Digest) else each.values
            if isinstance(each.values, Digest):
                digest = each.values.digest
                self._pending.setdefault(digest, (result.url, each.name, each.values.num_bytes))
                waiting[each.name] = digest
            header = VariableHeader(
                document=documents[each.name],
                chunk_count=each.chunk_count,
                byte_count=each.byte_count,
                values=values,
                time_attributes=times.get(each.name, {}),
            )
            if values is None:
                key = (id(documents[each.name]), each.chunk_count, each.byte_count)
                header = self._variables.setdefault(key, header)
            variables[each.name] = header
        attributes_of_file = self._attributes.of((attributes,), shared[attributes], "")
        status = result.status
        names = tuple(waiting.items())
        shared_names = self._same_waiting.setdefault(names, names)
        return FileHeader(
            url=result.url,
            format=file_format,
            status=status,
            attributes=attributes_of_file,
            variables=variables,
        ), shared_names

    def pending(self, max_bytes: int) -> Iterable[list[tuple[str, str]]]:
        """Files and variables whose values are those of all like them, in batches of some bytes."""
        batch: list[tuple[str, str]] = []
        size = 0
        for url, name, num_bytes in self._pending.values():
            if batch and size + num_bytes > max_bytes:
                yield batch
                batch, size = [], 0
            batch.append((url, name))
            size += num_bytes
        if batch:
            yield batch

    def fill(self, read: Callable[[str, str], npt.NDArray[Any]]) -> list[HeaderResult]:
        """All results, once the values of `pending` can be read."""
        values: dict[bytes, npt.NDArray[Any]] = {}
        for digest, (url, name, _) in self._pending.items():
            loaded = read(url, name)
            if digest_of_values(loaded) != digest:
                raise VirtualChunkError(
                    f"{url} changed while it was ingested: {name!r} has other values than before"
                )
            values[digest] = loaded
        known: dict[Any, VariableHeader] = {}
        for number, waiting in self._waiting:
            header = self.results[number].header
            assert header is not None
            filled = {}
            for name, digest in waiting:
                bare = header.variables[name]
                key = (id(bare), digest)
                if key not in known:
                    known[key] = msgspec.structs.replace(bare, values=values[digest])
                filled[name] = known[key]
            changed = msgspec.structs.replace(header, variables={**header.variables, **filled})
            self.results[number] = self.results[number]._replace(header=changed)
        self._waiting.clear()
        return self.results


class _Alike:
    """One copy of dictionaries that are the same but for attributes of no consequence.

    Histories and times of creation differ in every file. All that matters of them is that they
    differ: so a mark replaces them, and files share one dictionary.
    """

    def __init__(self, meaningful: Collection[str], *, of_files: bool = False) -> None:
        self._meaningful = meaningful
        self._of_files = of_files
        self._first: dict[Any, dict[str, Any]] = {}
        self._known: dict[Any, dict[str, Any]] = {}
        self._by_digest: dict[Any, dict[str, Any]] = {}

    def of(self, digest: tuple[Any, ...], value: dict[str, Any], name: str) -> dict[str, Any]:
        """The dictionary to use for one that has this digest."""
        alike = self._by_digest.get(digest)
        if alike is None:
            alike = self._alike(value, name)
            if len(self._by_digest) < _MOST_DIGESTS:
                self._by_digest[digest] = alike
        return alike

    def _alike(self, value: dict[str, Any], name: str) -> dict[str, Any]:
        attributes = value if self._of_files else value.get("attributes") or {}
        rest = {} if self._of_files else {k: v for k, v in value.items() if k != "attributes"}
        fixed = {k: attributes[k] for k in attributes if k in self._meaningful}
        kind = (name, msgspec.msgpack.encode([rest, fixed], order="sorted"))
        first = self._first.setdefault(kind, attributes)
        differing = frozenset(k for k in {*first, *attributes} if first.get(k) != attributes.get(k))
        known = self._known.get((kind, differing))
        if known is None:
            marks = dict.fromkeys(differing, ANOTHER_VALUE)
            known = {**first, **marks}
            if not self._of_files:
                known = {**rest, "attributes": known}
            self._known[kind, differing] = known
        return known


ANOTHER_VALUE = "(another value in each file)"
"""Replaces the value of an attribute that differs from file to file."""
_MOST_DIGESTS = 4096
