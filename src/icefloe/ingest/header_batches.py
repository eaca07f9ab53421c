"""Headers on their way from executors to the driver: what many files share travels once.

Documents and attributes are sent once by each task, large coordinates as digests; the driver asks
for the values of each distinct digest once. What it keeps of a file is small, whatever its history.
"""

from __future__ import annotations

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
Changes = tuple[dict[str, Any], tuple[str, ...]]
"""Attributes that are others than those of a base, and names of those that are not there."""
Layout = tuple[tuple[str, int, int, int], ...]
"""Name, number of the base, chunks and bytes of each variable; most files of a task share one."""


class Digest(NamedTuple):
    """Replaces values that are not sent along."""

    digest: bytes
    num_bytes: int


class Base(NamedTuple):
    """A document of a variable, or attributes of a file; others are sent as differences from it."""

    name: str
    """Of the variable; empty for the attributes of a file."""
    rest: dict[str, Any]
    """The document without attributes."""
    attributes: dict[str, Any]


class HeaderBatch(NamedTuple):
    """The results of a task."""

    results: list[HeaderResult]
    """Without headers."""
    rows: list[tuple[Any, ...] | None]
    """For each result with a header: its format, base and changes of its attributes, its layout,
    and of each variable the changes and the values."""
    bases: list[Base]


def pack(results: Sequence[HeaderResult]) -> bytes:
    """The results of a task, pickled."""
    bases = _Bases()
    layouts: dict[Layout, Layout] = {}
    digests: dict[Digest, Digest] = {}
    rows: list[tuple[Any, ...] | None] = []
    for result in results:
        header = result.header
        if header is None:
            rows.append(None)
            continue
        layout, changes, values = [], [], []
        for name, each in header.variables.items():
            number, changed = bases.put(name, each.document)
            layout.append((name, number, each.chunk_count, each.byte_count))
            changes.append(changed)
            value = _travelling(each.values)
            values.append(digests.setdefault(value, value) if isinstance(value, Digest) else value)
        # What is one object here is pickled once.
        shared = layouts.setdefault(tuple(layout), tuple(layout))
        number, changed = bases.put("", {"attributes": header.attributes})
        rows.append((header.format, number, changed, shared, changes, values))
    bare = [result._replace(header=None) for result in results]
    return pickle.dumps(HeaderBatch(bare, rows, bases.listed))


class _Bases:
    """Finds for each document one that it differs from in attributes only, or makes it one."""

    def __init__(self) -> None:
        self.listed: list[Base] = []
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._last: Changes | None = None

    def put(self, name: str, document: dict[str, Any]) -> tuple[int, Changes | None]:
        rest = {key: value for key, value in document.items() if key != "attributes"}
        attributes = document.get("attributes") or {}
        number = self._numbers.setdefault((name, _encoded(rest)), len(self.listed))
        if number == len(self.listed):
            self.listed.append(Base(name, rest, attributes))
            return number, None
        return number, self._changes(self.listed[number].attributes, attributes)

    def _changes(self, base: dict[str, Any], attributes: dict[str, Any]) -> Changes | None:
        changed = {k: v for k, v in attributes.items() if k not in base or not _same(base[k], v)}
        removed = tuple([key for key in base if key not in attributes])
        if not changed and not removed:
            return None
        if self._last != (changed, removed):  # often those of the variable before
            self._last = (changed, removed)
        return self._last


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same in a document, where 1 and 1.0 are not."""
    if type(one) is str or type(one) is int:
        return type(one) is type(other) and one == other
    return _encoded(one) == _encoded(other)


def _encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, order="sorted")


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
        known = [
            (self._documents if base.name else self._attributes).kind_of(base)
            for base in batch.bases
        ]
        for result, row in zip(batch.results, batch.rows, strict=True):
            if row is None:
                self.results.append(result)
                continue
            header, waiting = self._header(result, row, known)
            if waiting:
                self._waiting.append((len(self.results), waiting))
            self.results.append(result._replace(header=header))

    def _header(
        self, result: HeaderResult, row: tuple[Any, ...], known: Sequence[_Kind]
    ) -> tuple[FileHeader, Waiting]:
        file_format, attributes, changed, layout, changes, values = row
        documents = [
            self._documents.of(known[number], change)
            for (_, number, _, _), change in zip(layout, changes, strict=True)
        ]
        kind = tuple(map(id, documents))
        if kind not in self._times:
            names = [name for name, _, _, _ in layout]
            self._times[kind] = time_attributes(dict(zip(names, documents, strict=True)))
        times, variables, waiting = self._times[kind], {}, []
        for (name, _, chunks, num_bytes), document, value in zip(
            layout, documents, values, strict=True
        ):
            is_digest = isinstance(value, Digest)
            if is_digest:
                self._pending.setdefault(value.digest, (result.url, name, value.num_bytes))
                waiting.append((name, value.digest))
            key = (id(document), chunks, num_bytes)
            header = self._variables.get(key) if is_digest or value is None else None
            if header is None:
                header = VariableHeader(
                    document=document,
                    chunk_count=chunks,
                    byte_count=num_bytes,
                    values=None if is_digest else value,
                    time_attributes=times.get(name, {}),
                )
                if header.values is None:
                    self._variables[key] = header
            variables[name] = header
        shared_names = tuple(waiting)
        return FileHeader(
            url=result.url,
            format=file_format,
            status=result.status,
            attributes=self._attributes.of(known[attributes], changed),
            variables=variables,
        ), self._same_waiting.setdefault(shared_names, shared_names)

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


class _Kind(NamedTuple):
    """Dictionaries that are the same but for attributes of no consequence."""

    base: Base
    first: dict[str, Any]
    """The attributes of the first of them."""
    differing: frozenset[str]
    """The attributes of the base that differ from them."""
    known: dict[frozenset[str], dict[str, Any]]
    """The dictionary to use, by the attributes that differ."""


class _Alike:
    """One copy of dictionaries that are the same but for attributes of no consequence.

    Histories and times of creation differ in every file. All that matters of them is that they
    differ: so a mark replaces them, and files share one dictionary.
    """

    def __init__(self, meaningful: Collection[str], *, of_files: bool = False) -> None:
        self._meaningful = frozenset(meaningful)
        self._of_files = of_files
        self._kinds: dict[bytes, tuple[dict[str, Any], dict[frozenset[str], dict[str, Any]]]] = {}

    def kind_of(self, base: Base) -> _Kind:
        """The kind that a dictionary is of."""
        fixed = {k: v for k, v in base.attributes.items() if k in self._meaningful}
        key = _encoded([base.name, base.rest, fixed])
        first, known = self._kinds.setdefault(key, (base.attributes, {}))
        names = {*first, *base.attributes}
        differing = frozenset(k for k in names if first.get(k) != base.attributes.get(k))
        return _Kind(base=base, first=first, differing=differing, known=known)

    def of(self, kind: _Kind, changes: Changes | None) -> dict[str, Any]:
        """The dictionary to use for one that differs from the base of a kind in some ways."""
        differing = kind.differing
        if changes is not None:
            changed, removed = changes
            if not self._meaningful.isdisjoint(changed) or not self._meaningful.isdisjoint(removed):
                rest = {k: v for k, v in kind.base.attributes.items() if k not in removed}
                other = kind.base._replace(attributes={**rest, **changed})
                return self.of(self.kind_of(other), None)
            first = kind.first
            same = {k for k, v in changed.items() if first.get(k) == v}
            same |= {k for k in removed if first.get(k) is None}
            differing = differing.union(changed, removed).difference(same)
        known = kind.known.get(differing)
        if known is None:
            known = {**kind.first, **dict.fromkeys(differing, ANOTHER_VALUE)}
            if not self._of_files:
                known = {**kind.base.rest, "attributes": known}
            kind.known[differing] = known
        return known


ANOTHER_VALUE = "(another value in each file)"
"""Replaces the value of an attribute that differs from file to file."""
