"""Manifests of a store as JSON that is valid by the schema of spec 003 (R3-82 to R3-89).

A chunk's key is `<node>/<i>/<j>/…` in decimal (H-14). Members that the schema does not know are
ours: `checksum` of a native chunk, `etag` and `last_modified` of a virtual one.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file
from icefloe.formats.nodes import MAX_RANK
from icefloe.formats.store.object_ids import (
    OBJECT_ID_SIZE,
    Byte,
    node_id,
    node_number,
    numbers,
)
from icefloe.formats.store.text_files import decode, decode_json, encode, json_object, lines_object
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks, ManifestIndex, lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.errors import FormatError
    from icefloe.model.ids import NodeId

_Size = Annotated[int, msgspec.Meta(ge=0)]
_MAX_NUMBER = 2**64 - 1
_KEY = re.compile(r"(?:0|[1-9][0-9]{0,18})(?:/(?:0|[1-9][0-9]{0,18}))*")
_LINES_AT_ONCE = 8192
_MAX_COORDINATE = 2**63 - 2


class _Native(msgspec.Struct, omit_defaults=True, gc=False):
    id: msgspec.Raw
    offset: _Size
    length: _Size
    checksum: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0


class _Virtual(msgspec.Struct, omit_defaults=True, gc=False):
    location: str
    offset: _Size
    length: _Size
    etag: str | None = None
    last_modified: int | None = None


class _Payload(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Exactly one of these is set (R3-89)."""

    Inline: list[Byte] | None = None
    Virtual: _Virtual | None = None
    Ref: _Native | None = None


class _Manifest(msgspec.Struct):
    chunks: dict[str, _Payload]


# Not strict: in JSON Schema 1.0 is an integer, too.
_decoder = msgspec.json.Decoder(_Manifest, strict=False)
_id_decoder = msgspec.json.Decoder(list[Byte], strict=False)


# --- writing


def encode_manifest(parts: Sequence[tuple[NodeId, ArrayChunks]]) -> bytes:
    """The bytes of a manifest file of at least one reference: a line for each."""
    ordered = sorted(parts, key=lambda part: part[0])
    if not sum(len(chunks) for _, chunks in ordered):
        raise InvalidInputError("a manifest has at least one reference; leave out empty ones")
    lines = [line for node, chunks in ordered for line in _lines(node, chunks)]
    return json_object({"chunks": lines_object(lines)})


def _lines(node: NodeId, chunks: ArrayChunks) -> Iterator[bytes]:
    """Members of the object of chunks, some lines at a time, in the order of the grid."""
    pattern = "/".join([str(node_number(node)), *(["%d"] * chunks.index.rank)])
    name = f'"{pattern}":'.encode("ascii")
    coords = chunks.index.coords()
    kinds = np.unique(chunks.refs.kinds).tolist()
    for start in range(0, len(chunks), _LINES_AT_ONCE):
        places = coords[start : start + _LINES_AT_ONCE]
        refs = chunks.refs.slice(start, start + len(places))
        columns = [places[:, axis].tolist() for axis in range(places.shape[1])]
        if kinds in ([ChunkKind.NATIVE], [ChunkKind.VIRTUAL]):
            make = _native if kinds == [ChunkKind.NATIVE] else _virtual
            yield _filled(name + _EXTERNAL, [*columns, *make(refs, np.arange(len(refs)))])
        else:
            only_inline = kinds == [ChunkKind.INLINE]
            made = _inline(refs, np.arange(len(refs))) if only_inline else _payloads(refs)
            yield _filled(name + b"%b", [*columns, made])


def _filled(template: bytes, columns: list[list[Any]]) -> bytes:
    """A template with each row of some columns, all in one go."""
    count, width = len(columns[0]), len(columns)
    values: list[Any] = [None] * (count * width)
    for place, column in enumerate(columns):
        values[place::width] = column
    return (template + (b",\n" + template) * (count - 1)) % tuple(values)


def _payloads(refs: ChunkRefs) -> list[bytes]:
    """JSON of each reference, of whatever kind."""
    payloads: list[bytes] = [b""] * len(refs)
    left = len(refs)
    for kind in (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE):
        rows = np.flatnonzero(refs.kinds == kind)
        left -= len(rows)
        if kind is ChunkKind.INLINE:
            made = _inline(refs, rows)
        else:
            columns = (_native if kind is ChunkKind.NATIVE else _virtual)(refs, rows)
            made = [_EXTERNAL % row for row in zip(*columns, strict=True)]
        for row, payload in zip(rows.tolist(), made, strict=True):
            payloads[row] = payload
    if left:
        raise InvalidInputError("a manifest holds native, virtual and inline references only")
    return payloads


_EXTERNAL = b'%b%d,"length":%d%b'
_Columns = tuple[list[bytes], list[int], list[int], list[bytes]]
"""The text before the offset, the offset, the length, and the text after it."""


def _native(refs: ChunkRefs, rows: npt.NDArray[np.intp]) -> _Columns:
    sources = refs.sources[rows]
    heads = {
        source: b'{"Ref":{"id":%b,"offset":' % encode(numbers(refs.files[source].tobytes()))
        for source in np.unique(sources).tolist()
    }
    tails = [
        b',"checksum":%d}}' % checksum if checksum else b"}}"
        for checksum in refs.checksums[rows].tolist()
    ]
    offsets, lengths = refs.offsets[rows].tolist(), refs.lengths[rows].tolist()
    return [heads[source] for source in sources.tolist()], offsets, lengths, tails


def _virtual(refs: ChunkRefs, rows: npt.NDArray[np.intp]) -> _Columns:
    sources = refs.sources[rows]
    locations = refs.locations
    heads: dict[int, bytes] = {}
    tails: dict[int, bytes] = {}
    for source in np.unique(sources).tolist():
        heads[source] = b'{"Virtual":{"location":%b,"offset":' % encode(locations.urls[source])
        etag, modified = locations.etags[source], int(locations.modified[source])
        tails[source] = (
            (b',"etag":%b' % encode(etag) if etag else b"")
            + (b',"last_modified":%d' % modified if modified else b"")
            + b"}}"
        )
    listed = sources.tolist()
    offsets, lengths = refs.offsets[rows].tolist(), refs.lengths[rows].tolist()
    return [heads[each] for each in listed], offsets, lengths, [tails[each] for each in listed]


def _inline(refs: ChunkRefs, rows: npt.NDArray[np.intp]) -> list[bytes]:
    starts, lengths = refs.offsets[rows].tolist(), refs.lengths[rows].tolist()
    return [
        b'{"Inline":%b}' % encode(list(refs.inline[start : start + length]))
        for start, length in zip(starts, lengths, strict=True)
    ]


# --- reading


def decode_manifest(data: bytes, key: str) -> ManifestIndex:
    """Read a whole manifest file; its blocks stay in memory."""
    chunks = decode(_decoder, data, key).chunks
    refs = _References(list(chunks.values()), key).columns()
    parts = []
    for node, rows, coords in _arrays(list(chunks), key):
        own = refs if len(rows) == len(refs) else refs.take(rows).compact()
        try:
            parts.append((node_id(node), ArrayChunks.from_columns(coords, own)))
        except (InvalidInputError, OverflowError) as error:
            raise bad_file(key, str(error)) from None
    index, blocks = lay_out(parts)
    return msgspec.structs.replace(index, resident=tuple(blocks))


def _arrays(
    keys: list[str], key: str
) -> Iterator[tuple[int, npt.NDArray[np.intp], npt.NDArray[np.uint64]]]:
    """Nodes with the rows and coordinates of their chunks; one may have chunks of two ranks."""
    if not keys:
        return
    # A number may be written in many ways; each chunk has one key.
    if None in map(_KEY.fullmatch, keys):
        wrong = next(text for text in keys if _KEY.fullmatch(text) is None)
        raise bad_file(key, f"expected a key such as '7/0/12' for a chunk, found {wrong[:60]!r}")
    lengths = np.array([text.count("/") + 1 for text in keys])
    values = np.array(list(map(int, "/".join(keys).split("/"))), dtype=np.uint64)
    starts = np.cumsum(lengths) - lengths
    nodes = values[starts]
    if nodes.max() >= 2**32 or values.max() > _MAX_COORDINATE or lengths.max() > MAX_RANK + 1:
        raise bad_file(key, "a node or coordinate is out of range")
    groups = nodes * np.uint64(MAX_RANK + 1) + (lengths - 1).astype(np.uint64)
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    for group, rows in zip(found.tolist(), np.split(order, first[1:]), strict=True):
        node, rank = divmod(group, MAX_RANK + 1)
        places = starts[rows, np.newaxis] + np.arange(1, rank + 1)
        yield node, rows, values[places]


class _References:
    """Payloads of a manifest on their way to columns."""

    def __init__(self, payloads: list[_Payload], key: str) -> None:
        self._key = key
        self._payloads = payloads
        count = len(payloads)
        self._kinds = np.zeros(count, dtype=np.uint8)
        self._sources = np.zeros(count, dtype=np.uint32)
        self._offsets = np.zeros(count, dtype=np.uint64)
        self._lengths = np.zeros(count, dtype=np.uint64)
        self._checksums = np.zeros(count, dtype=np.uint32)

    def columns(self) -> ChunkRefs:
        """All references; raises FormatError for an invalid one."""
        try:
            files, locations, inline = self._native(), self._virtual(), self._inline()
        except OverflowError:
            raise bad_file(self._key, "an offset or length is beyond 2**64") from None
        if not self._kinds.all():
            raise self._not_one()
        over = np.flatnonzero(self._offsets > np.uint64(_MAX_NUMBER) - self._lengths)
        if len(over):
            offset, length = int(self._offsets[over[0]]), int(self._lengths[over[0]])
            raise bad_file(self._key, f"a chunk of {length} bytes at {offset} is beyond 2**64")
        return ChunkRefs(
            kinds=self._kinds,
            sources=self._sources,
            offsets=self._offsets,
            lengths=self._lengths,
            checksums=self._checksums,
            files=files,
            locations=locations,
            inline=inline,
        )

    def _rows(self, kind: ChunkKind, rows: list[int]) -> npt.NDArray[np.intp]:
        found = np.array(rows, dtype=np.intp)
        if self._kinds[found].any():
            raise self._not_one()
        self._kinds[found] = kind
        return found

    def _not_one(self) -> FormatError:
        return bad_file(self._key, "a chunk is exactly one of 'Inline', 'Virtual' and 'Ref'")

    def _native(self) -> npt.NDArray[np.uint8]:
        natives = [(row, p.Ref) for row, p in enumerate(self._payloads) if p.Ref is not None]
        rows = self._rows(ChunkKind.NATIVE, [row for row, _ in natives])
        files: dict[bytes, int] = {}
        self._sources[rows] = [files.setdefault(bytes(ref.id), len(files)) for _, ref in natives]
        self._offsets[rows] = np.array([ref.offset for _, ref in natives], dtype=np.uint64)
        self._lengths[rows] = np.array([ref.length for _, ref in natives], dtype=np.uint64)
        self._checksums[rows] = [ref.checksum for _, ref in natives]
        return self._file_ids(list(files))

    def _virtual(self) -> Locations:
        virtuals = [
            (row, p.Virtual) for row, p in enumerate(self._payloads) if p.Virtual is not None
        ]
        rows = self._rows(ChunkKind.VIRTUAL, [row for row, _ in virtuals])
        places: dict[tuple[str, str | None, int | None], int] = {}
        self._sources[rows] = [
            places.setdefault((ref.location, ref.etag, ref.last_modified), len(places))
            for _, ref in virtuals
        ]
        self._offsets[rows] = np.array([ref.offset for _, ref in virtuals], dtype=np.uint64)
        self._lengths[rows] = np.array([ref.length for _, ref in virtuals], dtype=np.uint64)
        return Locations.of(list(places))

    def _inline(self) -> bytes:
        found = [(row, p.Inline) for row, p in enumerate(self._payloads) if p.Inline is not None]
        rows = self._rows(ChunkKind.INLINE, [row for row, _ in found])
        data = [bytes(octets) for _, octets in found]
        lengths = np.array(list(map(len, data)), dtype=np.uint64)
        self._offsets[rows] = np.cumsum(lengths, dtype=np.uint64) - lengths
        self._lengths[rows] = lengths
        return b"".join(data)

    def _file_ids(self, texts: list[bytes]) -> npt.NDArray[np.uint8]:
        """All ids at once: there may be as many as chunks."""
        if any(text.count(b",") != OBJECT_ID_SIZE - 1 for text in texts):
            raise bad_file(self._key, f"an id has {OBJECT_ID_SIZE} integers")
        joined = b"[" + b",".join([text[1:-1] for text in texts]) + b"]"
        octets = bytes(decode_json(_id_decoder, joined, self._key))
        ids = np.frombuffer(octets, dtype=np.uint8).reshape(len(texts), OBJECT_ID_SIZE)
        # Ours have 12 bytes, which zeros follow.
        size = ChunkFileId.SIZE
        return ids if ids[:, size:].any() else np.ascontiguousarray(ids[:, :size])


def encode_attributes(rows: Sequence[bytes]) -> bytes:
    """The bytes of an attribute file: an array with one object per row, verbatim (H-07).

    The last element is a checksum of the lines before it.
    """
    body = b"[\n" + b",\n".join(rows)
    return body + _attributes_tail(body)


def _attributes_tail(body: bytes) -> bytes:
    return b',\n"crc32:%08x"]\n' % zlib.crc32(body)


_rows_decoder: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def decode_attributes(data: bytes, key: str) -> list[bytes]:
    """Read an attribute file."""
    rows = [bytes(row) for row in decode_json(_rows_decoder, data, key)]
    if rows and rows[-1].startswith(b'"crc32:'):
        tail = b",\n" + rows.pop() + b"]\n"
        # Another program may have laid the file out in its own way. Damage does not do that: no
        # flipped bit turns white space into other white space.
        if data.endswith(tail) and tail != _attributes_tail(data[: -len(tail)]):
            raise bad_file(key, "the checksum does not match: the file is damaged")
    if not all(row.startswith(b"{") for row in rows):
        raise bad_file(key, "an attribute file is a list of objects")
    return rows
