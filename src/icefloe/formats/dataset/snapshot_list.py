"""The snapshots that a state file lists, in the order in which they came.

Spec 000 has all of them in the state file, so that every commit reads and writes the whole list.
What can be avoided is work for each of them: the text of the list stays as it was read, a commit
appends to it, and of a list that begins with one that is known only the rest is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.dataset.layout import STATE_KEY, file_of, id_of_file
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.model.snapshot import FileSum

if TYPE_CHECKING:
    from collections.abc import Sequence

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_OWN_LENGTH = len(str(FIRST_SNAPSHOT_ID))
_OWN_LETTERS = dict.fromkeys(map(ord, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"))
_EXTENSION = file_of(FIRST_SNAPSHOT_ID).removeprefix(str(FIRST_SNAPSHOT_ID))


class SnapshotEntry(msgspec.Struct):
    """One snapshot as the state file has it."""

    id: _Text = msgspec.field(name="snapshot-id")
    timestamp: int = msgspec.field(name="timestamp-ms")
    file: _Text = msgspec.field(name="structure-file")
    parent: str | None = msgspec.field(name="parent-snapshot-id", default=None)
    properties: dict[str, Any] | None = None
    message: str = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="structure-size", default=0)
    checksum: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = msgspec.field(
        name="structure-checksum", default=0
    )


_decoder = msgspec.json.Decoder(list[SnapshotEntry])


class SnapshotList:
    """Listed snapshots; immutable."""

    def __init__(
        self, text: bytes, entries: dict[str, SnapshotEntry], foreign: dict[str, SnapshotId]
    ) -> None:
        """Take the JSON text of the list, its entries by id, and the ids that are not their own."""
        self.text = text
        self._entries = entries
        self._foreign = foreign
        """Snapshots whose structure files have other names than icefloe gives them."""
        self._foreign_texts = {each: name for name, each in foreign.items()}
        files = {entry.file for entry in entries.values()} if foreign else entries.keys()
        if len(files) != len(entries) or len(self._foreign_texts) != len(foreign):
            _refuse("two snapshots have one structure file")

    def reread(self, text: bytes) -> SnapshotList:
        """What the JSON text of a list says; raises FormatError, or msgspec's ValidationError.

        Where it begins with this list, as it does after a commit, only what follows is parsed.
        """
        start = _open_end(self.text)
        if self._entries and text.startswith(start):
            rest = text[len(start) :].lstrip()
            more = _decoder.decode(b"[" + rest[1:]) if rest[:1] == b"," else []
            if more or rest == b"]":
                return self._with(text, more)
        return NO_SNAPSHOTS._with(text, _decoder.decode(text))

    def appended(self, entries: Sequence[Mapping[str, Any]]) -> SnapshotList:
        """The list with more entries at its end, a line for each."""
        if not entries:
            return self
        lines = b",\n ".join(map(msgspec.json.encode, entries))
        start = _open_end(self.text)
        text = start + (b",\n " if self._entries else b"\n ") + lines + b"\n]"
        return self._with(text, msgspec.convert(entries, list[SnapshotEntry]))

    def _with(self, text: bytes, more: list[SnapshotEntry]) -> SnapshotList:
        entries = {**self._entries, **{entry.id: entry for entry in more}}
        if len(entries) != len(self._entries) + len(more):
            _refuse("two snapshots have one id")
        return SnapshotList(text, entries, {**self._foreign, **_foreign_ids(more)})

    # --- what it says

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SnapshotId]:
        """In the order in which they came."""
        return (self._foreign.get(text) or SnapshotId.from_text(text) for text in self._entries)

    def __contains__(self, snapshot_id: SnapshotId) -> bool:
        return self.text_of(snapshot_id) is not None

    def newest(self) -> str:
        """The id of the last one."""
        return next(reversed(self._entries))

    def id_of(self, text: str) -> SnapshotId | None:
        """The snapshot that is listed by an id."""
        if text not in self._entries:
            return None
        return self._foreign.get(text) or SnapshotId.from_text(text)

    def text_of(self, snapshot_id: SnapshotId) -> str | None:
        """The id by which a snapshot is listed."""
        if snapshot_id in self._foreign_texts:
            return self._foreign_texts[snapshot_id]
        text = str(snapshot_id)
        return text if text in self._entries and text not in self._foreign else None

    def entry(self, text: str) -> SnapshotEntry | None:
        """The entry of the snapshot with an id."""
        return self._entries.get(text)

    def documents(self) -> list[dict[str, Any]]:
        """The entries as in the JSON."""
        return msgspec.json.decode(self.text, type=list[dict[str, Any]])


class ListedFiles(Mapping[SnapshotId, FileSum]):
    """Size and CRC-32C of the structure files of which a list has them; looked up one by one."""

    def __init__(self, snapshots: SnapshotList) -> None:
        """Take the list."""
        self._snapshots = snapshots

    def __getitem__(self, snapshot_id: SnapshotId) -> FileSum:
        text = self._snapshots.text_of(snapshot_id)
        entry = None if text is None else self._snapshots.entry(text)
        if entry is None or not (entry.size or entry.checksum):
            raise KeyError(snapshot_id)
        return FileSum(entry.size, entry.checksum)

    def __iter__(self) -> Iterator[SnapshotId]:
        return (each for each in self._snapshots if self.get(each) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


NO_SNAPSHOTS = SnapshotList(b"[]", {}, {})


def _open_end(text: bytes) -> bytes:
    """The text of a list without the bracket at its end."""
    return text[: text.rindex(b"]")].rstrip()


def _foreign_ids(entries: list[SnapshotEntry]) -> dict[str, SnapshotId]:
    """The ids of entries that icefloe did not write; raises FormatError for a bad file name."""
    odd = [
        entry
        for entry in entries
        if len(entry.id) != _OWN_LENGTH or entry.file != entry.id + _EXTENSION
    ]
    if "".join([entry.id for entry in entries]).translate(_OWN_LETTERS):
        odd = entries
    return {entry.id: _id_of(entry) for entry in odd}


def _id_of(entry: SnapshotEntry) -> SnapshotId:
    """The id of a snapshot inside of icefloe: that of its structure file."""
    try:
        return id_of_file(SnapshotId, entry.file)
    except InvalidInputError as error:
        _refuse(f"the structure file of snapshot {entry.id!r}: {error}")


def _refuse(reason: str) -> NoReturn:
    raise FormatError(f"{STATE_KEY}: {reason}", STATE_KEY)
