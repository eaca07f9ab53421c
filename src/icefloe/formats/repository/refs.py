"""Branches as sequence files and tags as single files (R1-10 to R1-25)."""

from __future__ import annotations

import logging
import unicodedata
from typing import TYPE_CHECKING

import msgspec

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.formats.port import BranchTip
from icefloe.formats.repository.layout import REFS_FOLDER
from icefloe.formats.repository.sequence import SequenceFolder
from icefloe.model.ids import SnapshotId
from icefloe.storage.keys import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

MAIN = "main"
_BRANCH = "branch."
_TAG = "tag."
_TAG_FILE = "ref.json"
_TAG_TOMBSTONE = "ref.json.deleted"
_MAX_FOLDER_BYTES = 255
"""What a file system takes as a name: a branch or tag name with its prefix."""


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

    A torn file is an error and never an older state: the commit that it stands for may have been
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


def check_ref_name(name: str, kind: str = _BRANCH) -> None:
    """Raise InvalidInputError unless a branch or tag of that name may be created (H-23)."""
    what = kind.removesuffix(".")
    if not name or name in {".", ".."} or "/" in name:
        raise InvalidInputError(f"a {what} name is not empty, '.' or '..' and has no '/': {name!r}")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
        raise InvalidInputError(f"a {what} name has no control characters: {name!r}")
    size = len(name.encode("utf-8"))
    if size + len(kind) > _MAX_FOLDER_BYTES:
        longest = _MAX_FOLDER_BYTES - len(kind)
        raise InvalidInputError(f"a {what} name has at most {longest} bytes, found {size}")


def _is_readable(name: str) -> bool:
    """Whether some reference may have that name."""
    if not name or "/" in name:
        return False
    try:
        check_key(f"{REFS_FOLDER}/{_BRANCH}{name}")
    except InvalidInputError:
        return False
    return True


def _folded(name: str) -> str:
    """What names have in common that a file system may take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


class SequenceRefs:
    """Branches and tags of a repository in a storage."""

    def __init__(self, storage: Storage, seen: BranchTip | None = None) -> None:
        """Take where the repository is, and where a branch was seen to stand."""
        self._storage = storage
        self._folders: dict[str, SequenceFolder] = {}
        if seen is not None:
            self._folder(seen.branch).start_at(seen.sequence)

    def __getstate__(self) -> Storage:
        return self._storage

    def __setstate__(self, storage: Storage) -> None:
        self._storage = storage
        self._folders = {}

    # --- branches

    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""
        if not _is_readable(branch):
            return None
        folder = self._folder(branch)
        newest = folder.newest()
        if newest is None:
            return None
        sequence, data = newest
        return BranchTip(branch, sequence, parse_ref(data, folder.key(sequence)))

    def advance(self, tip: BranchTip, snapshot_id: SnapshotId | None) -> BranchTip:
        """Publish the next state of a branch: atomic, durable, settled.

        Raises ConflictError if the branch has moved past `tip`.
        """
        if snapshot_id is None and tip.branch == MAIN:
            raise InvalidInputError("every repository has a branch 'main': it cannot be deleted")
        folder = self._folder(tip.branch)
        sequence = tip.sequence + 1
        try:
            folder.create(sequence, ref_content(snapshot_id))
        except AlreadyExistsError:
            folder.start_at(sequence)
            # It may have moved on further, and callers want to know where to.
            newest = self.tip(tip.branch)
            actual = None if newest is None else newest.snapshot_id
            reached = sequence if newest is None else newest.sequence
            raise ConflictError(
                f"branch {tip.branch!r} moved: expected {tip.snapshot_id} (sequence "
                f"{tip.sequence}), but it went on to {actual or 'deleted'} (sequence {reached}); "
                "rebase and try again",
                None if tip.snapshot_id is None else str(tip.snapshot_id),
                None if actual is None else str(actual),
            ) from None
        return BranchTip(tip.branch, sequence, snapshot_id)

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> BranchTip:
        """Create a branch, or continue the sequence of a deleted one.

        Raises AlreadyExistsError, InvalidInputError for a bad name.
        """
        check_ref_name(branch, _BRANCH)
        tip = self.tip(branch)
        if tip is not None:
            if tip.snapshot_id is not None:
                raise AlreadyExistsError(f"branch {branch!r} exists already")
            try:
                return self.advance(tip, snapshot_id)
            except ConflictError:
                raise AlreadyExistsError(f"branch {branch!r} exists already") from None
        self._refuse_twins(branch, _BRANCH)
        try:
            self._folder(branch).create(0, ref_content(snapshot_id))
        except AlreadyExistsError:
            raise AlreadyExistsError(f"branch {branch!r} exists already") from None
        return BranchTip(branch, 0, snapshot_id)

    def branches(self) -> set[str]:
        """Names of the branches that exist.

        One whose newest reference is damaged is among them: whoever uses it is told.
        """
        found = set()
        for branch in self._names(_BRANCH):
            try:
                tip = self.tip(branch)
            except FormatError as error:
                logger.warning("branch %r cannot be read: %s", branch, error)
                found.add(branch)
                continue
            if tip is not None and tip.snapshot_id is not None:
                found.add(branch)
        return found

    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """All states of a branch, newest first."""
        tip = self.tip(branch)
        if tip is None:
            return
        yield tip
        folder = self._folder(branch)
        for sequence in range(tip.sequence - 1, -1, -1):
            data = folder.read(sequence)
            key = folder.key(sequence)
            if data is None:
                raise FormatError(f"{key} is missing: the sequence of {branch!r} has a gap", key)
            yield BranchTip(branch, sequence, parse_ref(data, key))

    def _folder(self, branch: str) -> SequenceFolder:
        folder = self._folders.get(branch)
        if folder is None:
            folder = SequenceFolder(self._storage, f"{REFS_FOLDER}/{_BRANCH}{branch}")
            self._folders[branch] = folder
        return folder

    # --- tags

    def tag(self, name: str) -> SnapshotId | None:
        """What a tag points to."""
        if not _is_readable(name):
            return None
        key = _tag_key(name)
        try:
            data = self._storage.get(key)
        except ObjectNotFoundError:
            return None
        if self._exists(_tag_key(name, _TAG_TOMBSTONE)):
            return None
        snapshot_id = parse_ref(data, key)
        if snapshot_id is None:
            raise FormatError(f"{key}: a tag names a snapshot, found null", key)
        return snapshot_id

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> None:
        """Create a tag. Raises AlreadyExistsError, InvalidInputError for a bad name."""
        check_ref_name(name, _TAG)
        taken = f"tag {name!r} exists already, or did once; tags never change"
        key = _tag_key(name)
        # Creating finds equal bytes a success, so a tag that has them already must be seen first.
        if self._exists(key):
            raise AlreadyExistsError(taken)
        self._refuse_twins(name, _TAG)
        try:
            self._storage.create(key, ref_content(snapshot_id))
        except AlreadyExistsError:
            raise AlreadyExistsError(taken) from None

    def tags(self) -> set[str]:
        """Names of all tags."""
        self._require_listing()
        prefix = f"{REFS_FOLDER}/{_TAG}"
        found, deleted = set(), set()
        for info in self._storage.list(prefix):
            name, _, file = info.key[len(prefix) :].partition("/")
            if file == _TAG_FILE:
                found.add(name)
            elif file == _TAG_TOMBSTONE:
                deleted.add(name)
        return found - deleted

    # --- both

    def _exists(self, key: str) -> bool:
        try:
            self._storage.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _names(self, kind: str) -> list[str]:
        self._require_listing()
        folders = self._storage.list_dir(REFS_FOLDER)
        return [folder[len(kind) :] for folder in folders if folder.startswith(kind)]

    def _require_listing(self) -> None:
        if not self._storage.capabilities.can_list:
            raise StorageError(
                f"{self._storage.location} cannot list objects, so branches and tags cannot be "
                "enumerated; name the one that you want"
            )

    def _refuse_twins(self, name: str, kind: str) -> None:
        """Refuse a name that some file systems could not tell from an existing one (H-25)."""
        folded = _folded(name)
        for other in self._names(kind):
            if other != name and _folded(other) == folded:
                raise AlreadyExistsError(
                    f"{kind.removesuffix('.')} {other!r} exists already; {name!r} differs from it "
                    "only in case or accents, which not every storage can tell apart"
                )


def _tag_key(name: str, file: str = _TAG_FILE) -> str:
    return f"{REFS_FOLDER}/{_TAG}{name}/{file}"
