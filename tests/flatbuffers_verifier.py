"""Checks FlatBuffers files of official Icechunk with nothing of the code that wrote them.

Tables are described here once more, from the format's documentation; every table is walked one by
one, as a reader in another language would. Used on every file that tests write.
"""

from __future__ import annotations

import struct
from typing import Any

import zstandard

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
SNAPSHOT, MANIFEST, LOG, REPO = 1, 2, 4, 6


class VerificationError(AssertionError):
    """A file is not as the format wants it."""


def _scalar(size: int) -> tuple[str, int]:
    return ("scalar", size)


def _id(size: int) -> tuple[str, int]:
    return ("struct", size)


U8, U16, U32, U64 = map(_scalar, (1, 2, 4, 8))
ID12, ID8 = _id(12), _id(8)
STRING = ("string",)
BYTES = ("items", 1, 1)


def items(size: int, align: int) -> tuple[Any, ...]:
    return ("items", size, align)


def table(name: str) -> tuple[str, str]:
    return ("table", name)


def tables(name: str) -> tuple[str, str]:
    return ("tables", name)


STRINGS = ("strings",)
UNION = ("union",)

# Name: slots (type, whether it must be there, versions that have it).
TABLES: dict[str, dict[int, tuple[Any, bool]]] = {
    "Snapshot": {
        0: (ID12, True),
        1: (ID12, False),
        2: (tables("Node"), True),
        3: (U64, False),
        4: (STRING, True),
        5: (tables("MetadataItem"), True),
        6: (items(32, 8), True),
        7: (tables("ManifestFile"), False),
    },
    "ManifestFile": {0: (ID12, True), 1: (U64, False), 2: (U32, False)},
    "MetadataItem": {0: (STRING, True), 1: (BYTES, True)},
    "Node": {
        0: (ID8, True),
        1: (STRING, True),
        2: (BYTES, True),
        3: (U8, True),
        4: (("union", {1: "Array", 2: "Group"}), True),
    },
    "Group": {},
    "Array": {
        0: (items(16, 8), True),
        1: (tables("DimensionName"), False),
        2: (tables("ManifestRef"), True),
        3: (tables("DimensionShape"), False),
    },
    "DimensionName": {0: (STRING, False)},
    "DimensionShape": {0: (U64, False), 1: (U32, False)},
    "ManifestRef": {0: (ID12, True), 1: (items(8, 4), True)},
    "Manifest": {
        0: (ID12, True),
        1: (tables("ArrayManifest"), True),
        2: (BYTES, False),
        3: (U8, False),
    },
    "ArrayManifest": {0: (ID8, True), 1: (tables("ChunkRef"), True)},
    "ChunkRef": {
        0: (items(4, 4), True),
        1: (BYTES, False),
        2: (U64, False),
        3: (U64, False),
        4: (ID12, False),
        5: (STRING, False),
        6: (STRING, False),
        7: (U32, False),
        8: (BYTES, False),
    },
    "Log": {
        0: (ID12, True),
        **{slot: (items(8, 1), True) for slot in range(1, 7)},
        7: (tables("ArrayChunks"), True),
        8: (tables("Move"), False),
    },
    "ArrayChunks": {0: (ID8, True), 1: (tables("ChunkIndices"), True)},
    "ChunkIndices": {0: (items(4, 4), True)},
    "Move": {0: (STRING, True), 1: (STRING, True), 2: (ID8, True), 3: (U8, True)},
    "Repo": {
        0: (U8, False),
        1: (tables("Ref"), True),
        2: (tables("Ref"), True),
        3: (STRINGS, True),
        4: (tables("SnapshotInfo"), True),
        5: (table("Status"), True),
        6: (tables("MetadataItem"), False),
        7: (tables("Update"), True),
        8: (STRING, False),
        9: (BYTES, False),
        10: (items(2, 2), False),
        11: (items(2, 2), False),
    },
    "Ref": {0: (STRING, True), 1: (U32, False)},
    "SnapshotInfo": {
        0: (ID12, True),
        1: (U32, False),
        2: (U64, False),
        3: (STRING, True),
        4: (tables("MetadataItem"), False),
        5: (items(12, 1), False),
    },
    "Status": {0: (U8, False), 1: (U64, False), 2: (STRING, False)},
    "Update": {
        0: (U8, True),
        1: (
            (
                "union",
                dict(enumerate(("", *(f"U{n}" for n in range(1, 17))))),
            ),
            True,
        ),
        2: (U64, True),
        3: (STRING, False),
    },
    **{f"U{n}": {} for n in (1, 3, 4, 13, 14)},
    "U2": {0: (U8, False), 1: (U8, False)},
    **{f"U{n}": {0: (STRING, True)} for n in (5, 7)},
    **{f"U{n}": {0: (STRING, True), 1: (ID12, True)} for n in (6, 8, 9, 10)},
    "U11": {0: (STRING, True), 1: (ID12, True), 2: (ID12, True)},
    "U12": {0: (ID12, True)},
    "U15": {0: (U16, False), 1: (U8, False), 2: (U8, False)},
    "U16": {0: (table("Status"), True)},
}
ROOTS = {SNAPSHOT: "Snapshot", MANIFEST: "Manifest", LOG: "Log", REPO: "Repo"}
SORTED = {
    ("Snapshot", 2): 1,
    ("Snapshot", 5): 0,
    ("Snapshot", 7): 0,
    ("Manifest", 1): 0,
    ("ArrayManifest", 1): 0,
    ("Log", 7): 0,
    ("ArrayChunks", 1): 0,
    ("Repo", 1): 0,
    ("Repo", 2): 0,
    ("Repo", 4): 0,
}
"""Vectors of tables that readers search: the slot by which they ascend."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise VerificationError(message)


class Verifier:
    """Walks through one body; returns all tables as dicts."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def number(self, at: int, size: int, align: int | None = None) -> int:
        check(0 <= at <= len(self.body) - size, f"{at} is outside of the body")
        check(at % (align or size) == 0, f"{at} is not aligned to {align or size}")
        return int.from_bytes(self.body[at : at + size], "little")

    def root(self, name: str) -> dict[int, Any]:
        check(self.body[4:8] == b"Ichk", "the identifier is missing")
        return self.table(self.number(0, 4), name)

    def table(self, at: int, name: str) -> dict[int, Any]:
        self.number(at, 4)
        vtable = at - struct.unpack_from("<i", self.body, at)[0]
        size, table_size = self.number(vtable, 2), self.number(vtable + 2, 2)
        check(size >= 4 and size % 2 == 0, f"{name}: a vtable of {size} bytes")
        check(vtable + size <= len(self.body), f"{name}: the vtable is outside of the body")
        check(at + table_size <= len(self.body), f"{name}: the table is outside of the body")
        slots = [self.number(vtable + place, 2) for place in range(4, size, 2)]
        known = TABLES[name]
        check(all(slot in known for slot, place in enumerate(slots) if place), f"{name}: {slots}")
        found: dict[int, Any] = {}
        for slot, (kind, required) in known.items():
            place = slots[slot] if slot < len(slots) else 0
            check(place or not required, f"{name}: slot {slot} is missing")
            if place:
                width = kind[1] if kind[0] in {"scalar", "struct"} else 4
                check(4 <= place <= table_size - width, f"{name}: slot {slot} is outside")
                found[slot] = self.field(at + place, kind, found, f"{name}.{slot}")
        for (owner, slot), by in SORTED.items():
            if owner == name and slot in found:
                keys = [each[by] for each in found[slot]]
                check(keys == sorted(keys), f"{name}.{slot} is not in order")
                check(len(set(map(repr, keys))) == len(keys), f"{name}.{slot} repeats something")
        return found

    def field(self, at: int, kind: Any, found: dict[int, Any], name: str) -> Any:
        if kind[0] == "scalar":
            return self.number(at, kind[1])
        if kind[0] == "struct":
            check(at + kind[1] <= len(self.body), f"{name} is outside of the body")
            return self.body[at : at + kind[1]]
        target = at + self.number(at, 4)
        check(target > at, f"{name} leads nowhere")
        if kind[0] == "table":
            return self.table(target, kind[1])
        if kind[0] == "union":
            choices = kind[1]
            # The number is in the slot before.
            number = list(found.values())[-1]
            check(choices.get(number), f"{name}: there is no kind {number}")
            return choices[number], self.table(target, choices[number])
        count = self.number(target, 4)
        if kind[0] == "string":
            return self.string(target)
        if kind[0] == "items":
            check(count == 0 or (target + 4) % kind[2] == 0, f"{name}: items are not aligned")
            end = target + 4 + count * kind[1]
            check(end <= len(self.body), f"{name} is outside of the body")
            data = self.body[target + 4 : end]
            if kind[1] == 4:
                return struct.unpack(f"<{count}I", data)
            if kind[1] == 8 and kind[2] == 1:
                ids = [data[place : place + 8] for place in range(0, len(data), 8)]
                check(ids == sorted(set(ids)), f"{name} is not in order")
            return data
        places = [target + 4 + 4 * number for number in range(count)]
        targets = [place + self.number(place, 4) for place in places]
        if kind[0] == "strings":
            return [self.string(each) for each in targets]
        return [self.table(each, kind[1]) for each in targets]

    def string(self, at: int) -> bytes:
        length = self.number(at, 4)
        end = at + 4 + length
        check(end < len(self.body), "a string is outside of the body")
        check(self.body[end] == 0, "a string has no zero behind it")
        text = self.body[at + 4 : end]
        text.decode("utf-8")
        return text


def verify_file(data: bytes, file_type: int, version: int) -> dict[int, Any]:
    """Check a whole file; returns its root table."""
    check(data[:12] == MAGIC, "the magic bytes are missing")
    check(data[12:36].decode("utf-8").startswith("icefloe-"), "who wrote it?")
    check(data[36] == version, f"version {data[36]}, expected {version}")
    check(data[37] == file_type, f"type {data[37]}, expected {file_type}")
    check(data[38] == 1, "official readers want zstd")
    frame = data[39:]
    size = zstandard.frame_content_size(frame)
    check(size > 0, "the frame does not state its size")
    stream = zstandard.ZstdDecompressor().decompressobj()
    body = stream.decompress(frame)
    check(stream.eof and not stream.unused_data, "there is more than one frame")
    check(len(body) == size, "the frame has another size than it states")
    root = Verifier(body).root(ROOTS[file_type])
    _check_version(root, file_type, version)
    return root


def _check_version(root: dict[int, Any], file_type: int, version: int) -> None:
    if file_type == SNAPSHOT:
        check((7 in root) == (version == 2), "slot 7 belongs to version 2")
        check(version == 1 or 1 not in root, "parents of version 2 are in `repo`")
        check(version == 1 or not root[6], "manifests of version 2 are in slot 7")
        listed = {root[6][at : at + 12] for at in range(0, len(root[6]), 32)}
        if version == 2:
            listed = {each[0] for each in root[7]}
        for node in root[2]:
            kind, data = node[4]
            if kind == "Array":
                check((3 in data) == (version == 2), "shapes of version 2 are in slot 3")
                check(all(ref[0] in listed for ref in data[2]), "a manifest is not listed")
    if file_type == MANIFEST:
        check(version == 1 or root.get(3) == 0, "locations are not compressed")
        for array in root[1]:
            check(array[1], "an array without references")
            for ref in array[1]:
                kinds = [slot in ref for slot in (4, 5, 1)]
                check(sum(kinds) == 1, f"a reference of {kinds} kinds")
                check(1 in ref or ref.get(3, 0) > 0, "a reference without bytes")
    if file_type == LOG:
        check((8 in root) == (version == 2), "slot 8 belongs to version 2")
        targets = [move[1].decode().split("/") for move in root.get(8, ())]
        check(targets == sorted(targets), "moves are not in order")
