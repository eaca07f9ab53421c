"""Names and contents of the references of a repository (R1-10 to R1-25)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.authorship import SIGNATURE_BYTES
from icefloe.formats.sequence_refs import MAX_NAME_BYTES, SequenceRefs, check_ref_name
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId

if TYPE_CHECKING:
    from icefloe.formats.port import BranchTip
    from icefloe.model.snapshot import FileSum
    from icefloe.storage.port import Storage

_FOLDER = "refs"
_PREFIXES = {"branch": "branch.", "tag": "tag."}
_TAG_FILE = "ref.json"
_TAG_TOMBSTONE = "ref.json.deleted"


class _RefFile(msgspec.Struct):
    """Content of a reference (R1-12); members that we do not know are ignored."""

    snapshot: str | None


_decoder = msgspec.json.Decoder(_RefFile)


def ref_content(snapshot_id: SnapshotId | None) -> bytes:
    """Content of a reference, byte for byte as in spec 001; None is a deleted branch."""
    return (
        b'{"snapshot":null}'
        if snapshot_id is None
        else b'{"snapshot":"%b"}' % str(snapshot_id).encode("ascii")
    )


def parse_ref(data: bytes, key: str) -> SnapshotId | None:
    """The snapshot that a reference names; None if it says that the branch is deleted.

    A torn file is an error and never an older state: its commit may have been
    acknowledged.
    """
    try:
        text = _decoder.decode(data).snapshot
        return None if text is None else SnapshotId.parse(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidInputError) as error:
        raise FormatError(
            f'{key}: expected a reference such as {{"snapshot":"VY76P925PRY57WFEK410"}}, found '
            f"{len(data)} bytes {data[:48]!r} ({error}); the file is torn or damaged, and what it "
            "pointed to must be restored by hand",
            key,
        ) from None


_LIVE_SIZES = {len(ref_content(FIRST_SNAPSHOT_ID)) + each for each in (0, SIGNATURE_BYTES)}


class RepositoryRefNames:
    """References as `refs/branch.<name>/<sequence>.json` and `refs/tag.<name>/ref.json`."""

    folder = _FOLDER
    branches_prefix = f"{_FOLDER}/branch."

    def check(self, name: str, what: Literal["branch", "tag"]) -> None:
        """Raise InvalidInputError unless a reference of that name may be created."""
        check_ref_name(name, what, MAX_NAME_BYTES - len(_PREFIXES[what]))

    def branch_folder(self, branch: str) -> str:
        """The folder of a branch's sequence files."""
        return f"{_FOLDER}/branch.{branch}"

    def tag_key(self, tag: str) -> str:
        """Key of a tag."""
        return f"{_FOLDER}/tag.{tag}/{_TAG_FILE}"

    def tombstone_key(self, tag: str) -> str:
        """Key of a file by which the reference implementation marks a tag as deleted."""
        return f"{_FOLDER}/tag.{tag}/{_TAG_TOMBSTONE}"

    def branch_of(self, entry: str) -> str | None:
        """The branch that an entry of the folder belongs to."""
        return entry.removeprefix("branch.") if entry.startswith("branch.") else None

    def tag_of(self, entry: str) -> str | None:
        """The tag that an entry of the folder belongs to."""
        return entry.removeprefix("tag.") if entry.startswith("tag.") else None

    def list_tags(self, storage: Storage) -> set[str]:
        """Names of all tags that are not deleted."""
        prefix = f"{_FOLDER}/tag."
        names, deleted = set(), set()
        for info in storage.list(prefix):
            name, _, file = info.key[len(prefix) :].partition("/")
            if file == _TAG_FILE:
                names.add(name)
            elif file == _TAG_TOMBSTONE:
                deleted.add(name)
        return names - deleted

    def content(
        self, snapshot_id: SnapshotId | None, before: SnapshotId | None, file: FileSum | None
    ) -> bytes:
        """What the file of a reference says; None is a deleted branch."""
        del before, file
        return ref_content(snapshot_id)

    def is_live(self, size: int) -> bool:
        """Whether a file is as long as one that names a snapshot, signed or not.

        Files that are cut short, or were written by others, have other sizes.
        """
        return size in _LIVE_SIZES

    def snapshot_file(self, data: bytes, key: str) -> FileSum | None:
        """Nothing: these files have a single member (R1-12). Snapshots hold their own ids."""
        del data, key
        return None

    def parse(self, data: bytes, key: str) -> SnapshotId | None:
        """Read such a file; raises FormatError. None is a deleted branch."""
        return parse_ref(data, key)


def repository_refs(storage: Storage, seen: BranchTip | None = None) -> SequenceRefs:
    """Branches and tags of a repository; `seen` says where to look for a branch first."""
    return SequenceRefs(storage, RepositoryRefNames(), seen)
