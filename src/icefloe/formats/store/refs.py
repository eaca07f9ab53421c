"""Names and contents of the references of a store (R3-29 to R3-49)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.sequence_refs import MAX_NAME_BYTES, SequenceRefs, check_ref_name
from icefloe.formats.store.layout import REFS_FOLDER
from icefloe.formats.store.object_ids import ObjectId, from_numbers, numbers
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import FileSum

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip
    from icefloe.storage.port import Storage

_EXTENSION = ".json"
DELETED = "deleted"
"""The property that marks a branch as deleted (H-22)."""
FILE = "icefloe"
"""The property that has size and CRC-32C of the snapshot's file."""


class SnapshotFile(msgspec.Struct):
    """Size and CRC-32C of a snapshot file."""

    size: Annotated[int, msgspec.Meta(ge=0)]
    checksum: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class RefData(msgspec.Struct):
    """Content of a reference (R3-32); members that we do not know are ignored."""

    properties: dict[str, Any]
    snapshot: ObjectId
    timestamp: datetime


_decoder = msgspec.json.Decoder(RefData)


def ref_content(
    snapshot_id: SnapshotId | None, before: SnapshotId | None, file: FileSum | None = None
) -> bytes:
    """Content of a reference. A deleted branch still names where it was last."""
    target = snapshot_id or before or SnapshotId(bytes(SnapshotId.SIZE))
    properties: dict[str, Any] = {DELETED: True} if snapshot_id is None else {}
    if file is not None:
        properties[FILE] = SnapshotFile(file.size_bytes, file.checksum)
    return msgspec.json.encode(RefData(properties, numbers(target), datetime.now(UTC)))


def parse_ref(data: bytes, key: str) -> SnapshotId | None:
    """The snapshot that a reference names; None if it says that the branch is deleted.

    A torn file is an error and never an older state: its commit may have been
    acknowledged.
    """
    try:
        ref = _decoder.decode(data)
        snapshot_id = from_numbers(SnapshotId, ref.snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidInputError) as error:
        raise FormatError(
            f"{key}: expected a reference with 'properties', 'snapshot' (16 integers) and "
            f"'timestamp', found {len(data)} bytes {data[:48]!r} ({error}); the file is torn or "
            "damaged, and what it pointed to must be restored by hand",
            key,
        ) from None
    return None if ref.properties.get(DELETED) is True else snapshot_id


class StoreRefNames:
    """References as `r/<branch>/<sequence>.json` and `r/<tag>.json`."""

    folder = REFS_FOLDER
    branches_prefix = f"{REFS_FOLDER}/"

    def check(self, name: str, what: Literal["branch", "tag"]) -> None:
        """Raise InvalidInputError unless a reference of that name may be created."""
        check_ref_name(name, what, MAX_NAME_BYTES - len(_EXTENSION))
        if name.casefold().endswith(_EXTENSION):
            # H-23: tags and branches share a folder, and only their files' names end so.
            raise InvalidInputError(f"a {what} name does not end in '.json' in a store: {name!r}")

    def branch_folder(self, branch: str) -> str:
        """The folder of a branch's sequence files."""
        return f"{REFS_FOLDER}/{branch}"

    def tag_key(self, tag: str) -> str:
        """Key of a tag."""
        return f"{REFS_FOLDER}/{tag}{_EXTENSION}"

    def tombstone_key(self, tag: str) -> None:
        """Tags cannot be deleted (R3-49)."""
        del tag

    def branch_of(self, entry: str) -> str | None:
        """The branch that an entry of the folder belongs to."""
        return None if entry.endswith(_EXTENSION) else entry

    def tag_of(self, entry: str) -> str | None:
        """The tag that an entry of the folder belongs to."""
        return entry.removesuffix(_EXTENSION) if entry.endswith(_EXTENSION) else None

    def list_tags(self, storage: Storage) -> set[str]:
        """Names of all tags."""
        names = map(self.tag_of, storage.list_dir(REFS_FOLDER))
        return {name for name in names if name}

    def content(
        self, snapshot_id: SnapshotId | None, before: SnapshotId | None, file: FileSum | None
    ) -> bytes:
        """What the file of a reference says; None is a deleted branch, which was at `before`."""
        return ref_content(snapshot_id, before, file)

    def is_live(self, size: int) -> bool:
        """Properties, times and ids have no fixed lengths."""
        del size
        return False

    def snapshot_file(self, data: bytes, key: str) -> FileSum | None:
        """What such a file, which was parsed before, remembers of the snapshot's file."""
        del key
        held = _decoder.decode(data).properties.get(FILE)
        try:
            found = msgspec.convert(held, SnapshotFile)
        except msgspec.ValidationError:
            return None  # properties belong to everybody
        return FileSum(found.size, found.checksum)

    def parse(self, data: bytes, key: str) -> SnapshotId | None:
        """Read such a file; raises FormatError. None is a deleted branch."""
        return parse_ref(data, key)


def store_refs(storage: Storage, seen: BranchTip | None = None) -> SequenceRefs:
    """Branches and tags of a store; `seen` says where to look for a branch first."""
    return SequenceRefs(storage, StoreRefNames(), seen)
