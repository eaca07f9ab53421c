"""Manifests of a store as JSON that is valid by the schema of spec 003 (R3-82 to R3-89).

A chunk's key is `<node>/<i>/<j>/…` in decimal (H-14). Members that the schema does not know are
ours: `checksum` of a native chunk, `etag` and `last_modified` of a virtual one.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file
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

    from icefloe.model.ids import NodeId

_Size = Annotated[int, msgspec.Meta(ge=0)]
_MAX_NUMBER = 2**64 - 1
_KEY = re.compile(r"(?:0|[1-9][0-9]{0,18})(?:/(?:0|[1-9][0-9]{0,18}))*")
_MAX_RANK = 64
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
    lines: list[tuple[bytes, bytes]] = []
    for node, chunks in ordered:
        lines += zip(_keys(node, chunks), map(encode, _payloads(chunks.refs)), strict=True)
    return json_object({"chunks": lines_object(lines)})


def _keys(node: NodeId, chunks: ArrayChunks) -> list[bytes]:
    pattern = "/".join([str(node_number(node)), *(["%d"] * chunks.index.rank)])
    template = f'"{pattern}"'.encode("ascii")
    return [template % coords for coords in chunks.index.tuples()]


def _payloads(refs: ChunkRefs) -> Iterator[_Payload]:
    columns = (refs.kinds, refs.sources, refs.offsets, refs.lengths, refs.checksums)
    files = [row.tobytes() for row in refs.files]
    names: dict[int, msgspec.Raw] = {}
    native, virtual, inline = ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE
    for kind, source, offset, length, checksum in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if kind == native:
            name = names.get(source)
            if name is None:
                name = names[source] = msgspec.Raw(encode(numbers(files[source])))
            yield _Payload(Ref=_Native(name, offset, length, checksum))
        elif kind == virtual:
            locations = refs.locations
            yield _Payload(
                Virtual=_Virtual(
                    locations.urls[source],
                    offset,
                    length,
                    locations.etags[source] or None,
                    int(locations.modified[source]) or None,
                )
            )
        elif kind == inline:
            yield _Payload(Inline=list(refs.inline[offset : offset + length]))
        else:
            raise InvalidInputError("a manifest holds native, virtual and inline references only")


# --- reading


def decode_manifest(data: bytes, key: str) -> ManifestIndex:
    """Read a whole manifest file; its blocks stay in memory."""
    chunks = decode(_decoder, data, key).chunks
    places: dict[tuple[int, int], _Rows] = {}
    coords = _coordinates(list(chunks), key)
    for (node, *place), payload in zip(coords, chunks.values(), strict=True):
        group = (node, len(place))
        rows = places.get(group)
        if rows is None:
            rows = places[group] = _Rows(key)
        rows.add(place, payload)
    parts = [(node_id(node), rows.table(rank)) for (node, rank), rows in sorted(places.items())]
    index, blocks = lay_out(parts)
    return msgspec.structs.replace(index, resident=tuple(blocks))


def _coordinates(keys: list[str], key: str) -> Iterator[list[int]]:
    for text in keys:
        # A number may be written in many ways; each chunk has one key.
        if _KEY.fullmatch(text) is None:
            raise bad_file(key, f"expected a key such as '7/0/12' for a chunk, found {text[:60]!r}")
        values = list(map(int, text.split("/")))
        if values[0] >= 2**32 or max(values) > _MAX_COORDINATE or len(values) > _MAX_RANK + 1:
            raise bad_file(key, f"a node or coordinate is out of range in {text[:60]!r}")
        yield values


class _Rows:
    """References of one array on their way to columns."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._coords: list[list[int]] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._files: dict[bytes, int] = {}
        self._locations: dict[tuple[str, str | None, int | None], int] = {}
        self._inline: list[bytes] = []
        self._inline_end = 0

    def add(self, coords: list[int], payload: _Payload) -> None:
        """Add one reference."""
        self._coords.append(coords)
        native, virtual, inline = payload.Ref, payload.Virtual, payload.Inline
        if (native is not None) + (virtual is not None) + (inline is not None) != 1:
            raise bad_file(self._key, "a chunk is exactly one of 'Inline', 'Virtual' and 'Ref'")
        if native is not None:
            source = self._files.setdefault(bytes(native.id), len(self._files))
            self._add(ChunkKind.NATIVE, source, native.offset, native.length, native.checksum)
        elif virtual is not None:
            entry = (virtual.location, virtual.etag, virtual.last_modified)
            source = self._locations.setdefault(entry, len(self._locations))
            self._add(ChunkKind.VIRTUAL, source, virtual.offset, virtual.length, 0)
        elif inline is not None:
            self._add(ChunkKind.INLINE, 0, self._inline_end, len(inline), 0)
            self._inline.append(bytes(inline))
            self._inline_end += len(inline)

    def _add(self, kind: int, source: int, offset: int, length: int, checksum: int) -> None:
        if offset + length > _MAX_NUMBER:
            raise bad_file(self._key, f"a chunk of {length} bytes at {offset} is beyond 2**64")
        self._rows.append((int(kind), source, offset, length, checksum))

    def table(self, rank: int) -> ArrayChunks:
        """The columns."""
        kinds, sources, offsets, lengths, checksums = zip(*self._rows, strict=True)
        refs = ChunkRefs(
            np.array(kinds, dtype=np.uint8),
            np.array(sources, dtype=np.uint32),
            np.array(offsets, dtype=np.uint64),
            np.array(lengths, dtype=np.uint64),
            np.array(checksums, dtype=np.uint32),
            self._file_ids(),
            Locations.of(list(self._locations)),
            b"".join(self._inline),
        )
        coords = np.array(self._coords, dtype=np.uint64).reshape(len(self._rows), rank)
        try:
            return ArrayChunks.from_columns(coords, refs)
        except (InvalidInputError, OverflowError) as error:
            raise bad_file(self._key, str(error)) from None

    def _file_ids(self) -> npt.NDArray[np.uint8]:
        """All ids at once: there may be as many as chunks."""
        texts = list(self._files)
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
    return body + b',\n"crc32:%08x"]\n' % zlib.crc32(body)


_rows_decoder: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def decode_attributes(data: bytes, key: str) -> list[bytes]:
    """Read an attribute file."""
    rows = [bytes(row) for row in decode_json(_rows_decoder, data, key)]
    if rows and rows[-1].startswith(b'"crc32:'):
        mark = rows.pop()
        body = data[: data.rindex(b",\n" + mark)]
        if mark != b'"crc32:%08x"' % zlib.crc32(body):
            raise bad_file(key, "the checksum does not match: the file is damaged")
    if not all(row.startswith(b"{") for row in rows):
        raise bad_file(key, "an attribute file is a list of objects")
    return rows
