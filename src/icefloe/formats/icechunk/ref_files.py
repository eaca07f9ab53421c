"""Branches and tags of version 1: a small JSON file for each, which a branch replaces as it moves.

Official writers replace the file of a branch under the condition that nobody else did, and so does
this. A deleted tag has a second file that says so; its name cannot be given again.

A file may have a member that official writers do not know: how often a garbage collection of
icefloe announced itself on the branch. It makes icefloe's commits in progress look whether
their files are still there (G7).
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, unquote

import msgspec

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    InvalidTypeError,
    ObjectNotFoundError,
    RefNotFoundError,
    StorageError,
)
from icefloe.formats.authorship import signed
from icefloe.formats.icechunk.layout import LAYOUT, REFS_FOLDER
from icefloe.formats.icechunk.official_refs import OfficialRefs
from icefloe.formats.icechunk.other_writers import UnlockedWriters
from icefloe.formats.port import BranchState, DeletedTip, LiveTip, branch_moved
from icefloe.formats.sequence_refs import MAX_NAME_BYTES, check_ref_name, twins_of, without_twins
from icefloe.model import MAIN
from icefloe.model.ids import SnapshotId
from icefloe.storage.concurrency import each_at_once
from icefloe.storage.keys import check_key
from icefloe.storage.presence import is_there, names_in
from icefloe.storage.probe import ensure_conditional_replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from icefloe.formats.port import BranchTip, Codec
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.port import ObjectVersion, Storage

    RefType = Literal["branch", "tag"]

logger = logging.getLogger(__name__)

_REF_FILE = "ref.json"
_TOMBSTONE = "ref.json.deleted"
_MAX_TRIES = 100
_VERBATIM = " !$&'()+,-.:;=@_"
"""Besides letters and digits: what all official storages write as it is. Some encode the others,
and then cannot list what they wrote."""


class _RefFile(msgspec.Struct):
    """Content of a reference; members that we do not know are ignored."""

    snapshot: str
    icefloe_collections: int = 0


_decoder = msgspec.json.Decoder(_RefFile)


class RefFiles(OfficialRefs):
    """Branches and tags of a repository in a storage."""

    records_moves = False

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage
        self._codec: Codec | None = None
        self._others = UnlockedWriters(storage)

    def view(self) -> RefFiles:
        """The same references: each has a file of its own."""
        return self

    # --- reading

    def tip(self, branch: str) -> LiveTip | None:
        """Where a branch points; None if there is none."""
        found = self._find("branch", branch)
        return None if found is None else self._tip(branch, *found)

    def _tip(self, branch: str, key: str, data: bytes) -> LiveTip:
        target, collections = _parse(data, key)
        return LiveTip(branch, collections, target)

    def branches(self) -> set[str]:
        """Names of the branches that exist."""
        return set(self._names("branch", {_REF_FILE}))

    def tag(self, name: str) -> SnapshotId | None:
        """What a tag points to."""
        found = self._find("tag", name)
        if found is None or is_there(self._storage, _tombstone_of(found[0])):
            return None
        return _parse(found[1], found[0])[0]

    def tags(self) -> set[str]:
        """Names of all tags that are not deleted."""
        return {
            name
            for name, files in self._names("tag", {_REF_FILE, _TOMBSTONE}).items()
            if files == {_REF_FILE}
        }

    def _find(self, what: RefType, name: str) -> tuple[str, bytes] | None:
        """The key and the content of a reference, under either form of its name."""
        for key in _keys(what, name):
            with contextlib.suppress(ObjectNotFoundError):
                return key, self._storage.get(key)
        return None

    def _names(self, what: RefType, files: set[str]) -> dict[str, set[str]]:
        """The references that have some files, by name, with those that each has."""
        if not self._storage.capabilities.can_list:
            raise StorageError(
                f"{self._storage.location} cannot list objects, so branches and tags cannot be "
                "enumerated; name the one that you want"
            )
        names: dict[str, set[str]] = {}
        prefix = f"{REFS_FOLDER}/{what}."
        for info in self._storage.list(prefix):
            encoded, _, file = info.key[len(prefix) :].partition("/")
            if file in files:
                names.setdefault(_decoded(encoded), set()).add(file)
        return names

    def tips(self) -> dict[str, BranchTip]:
        """Newest states of all branches, read at the same time."""
        names = sorted(self.branches())
        tips = each_at_once(self._storage, self.tip, names)
        return {name: tip for name, tip in zip(names, tips, strict=True) if tip is not None}

    def tag_targets(self) -> dict[str, SnapshotId]:
        """What all tags point to, read at the same time."""
        names = sorted(self.tags())
        targets = each_at_once(self._storage, self.tag, names)
        return {name: target for name, target in zip(names, targets, strict=True) if target}

    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """The present state: earlier ones are not kept."""
        tip = self.tip(branch)
        if tip is not None:
            yield tip

    def states(self, branch: str) -> Iterator[BranchState]:
        """The present state as it is found."""
        file = self._find("branch", branch)
        if file is None:
            return
        try:
            tip = self._tip(branch, *file)
        except FormatError as error:
            yield BranchState(sequence=0, key=file[0], tip=None, fault=str(error))
        else:
            yield BranchState(tip.sequence, file[0], tip)

    def earlier_logs(self, snapshot_id: SnapshotId) -> Sequence[SnapshotId] | None:  # noqa: ARG002
        """Nobody knows: expiry forgets them."""
        return None

    def expire(self, cuts: Mapping[SnapshotId, SnapshotId]) -> bool:
        """Write the files of snapshots again with the parents that they have after expiry.

        This is how official writers do it. Whoever reads such a file meanwhile finds one or the
        other, and both are right.
        """
        assert self._codec is not None
        self._others.warn(self._newest)
        for snapshot_id, parent_id in cuts.items():
            key = LAYOUT.snapshot(snapshot_id)
            data, version = self._storage.get_with_version(key)
            snapshot = self._codec.decode_snapshot(data, snapshot_id, key)
            if snapshot.parent_id in {None, parent_id} or snapshot_id == parent_id:
                continue
            shorter = msgspec.structs.replace(snapshot, parent_id=parent_id)
            self._storage.replace(key, self._codec.encode_snapshot(shorter).data, version)
        return True

    def inform(self, codec: Codec) -> None:
        """Take the codec of snapshots, which expiry writes again."""
        self._codec = codec

    # --- moving

    def check_writable(self, tip: LiveTip) -> None:
        """Warn of other writers; version 1 has no status."""
        self._others.warn(tip.snapshot_id)

    def check_move(self) -> None:
        """Raise InvalidInputError: version 1 has no place for moves."""
        raise InvalidInputError(
            "version 1 of the icechunk format cannot record that a node was moved: copy it, or "
            "bring the repository to version 2 with the icechunk package"
        )

    def publish(self, tip: LiveTip, snapshot: Snapshot) -> BranchTip:
        """Publish a commit that was just written as the next state of a branch, like `advance`."""
        return self.advance(tip, snapshot.id)

    def advance(self, tip: BranchTip, snapshot_id: SnapshotId | None) -> BranchTip:
        """Publish the next state of a branch: atomic, durable, settled.

        Raises ConflictError if the branch has moved past `tip`. A branch is deleted as official
        writers do it: what somebody commits at the very same moment is lost with it.
        """
        if snapshot_id is None:
            return self._delete(tip)
        self._swap(tip, tip.sequence, snapshot_id)
        return LiveTip(tip.branch, tip.sequence, snapshot_id)

    def _newest(self) -> SnapshotId | None:
        """The tip of `main`: nothing lists what was committed last."""
        tip = self.tip(MAIN)
        return None if tip is None else tip.snapshot_id

    def _delete(self, tip: BranchTip) -> DeletedTip:
        if tip.branch == MAIN:
            raise InvalidInputError("every repository has a branch 'main': it cannot be deleted")
        key, _ = self._unmoved(tip)
        self._others.warn(self._newest)
        self._storage.delete_many([key])
        return DeletedTip(tip.branch, tip.sequence)

    def _swap(self, tip: BranchTip, collections: int, snapshot_id: SnapshotId) -> None:
        """Replace the file of a branch that is at `tip`; raises ConflictError if it moved."""
        ensure_conditional_replace(self._storage)
        self._others.warn(tip.snapshot_id)
        content = _content(snapshot_id, collections)
        for _ in range(_MAX_TRIES):
            key, version = self._unmoved(tip)
            try:
                self._storage.replace(key, content, version)
            except ConflictError:
                continue  # who was quicker is found by the comparison
            return
        raise ConflictError(f"branch {tip.branch!r} was replaced by others {_MAX_TRIES} times")

    def _unmoved(self, tip: BranchTip) -> tuple[str, ObjectVersion]:
        """The key and the version of the file of a branch, which must be where it was."""
        actual = None
        for key in _keys("branch", tip.branch):
            try:
                data, version = self._storage.get_with_version(key)
            except ObjectNotFoundError:
                continue
            found = self._tip(tip.branch, key, data)
            if found == tip:
                return key, version
            actual = str(found.snapshot_id)
            break
        raise branch_moved(tip, actual)

    def repeat(self, tips: Collection[LiveTip]) -> set[str]:
        """Publish for each branch one more state for the snapshot that it has.

        Returns the branches that have moved past their `tips`, to which nothing was done.
        """
        moved = set()
        for tip in tips:
            try:
                self._swap(tip, tip.sequence + 1, tip.snapshot_id)
            except ConflictError:
                moved.add(tip.branch)
        return moved

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> LiveTip:
        """Create a branch. Raises AlreadyExistsError, InvalidInputError for a bad name."""
        _check_name(branch, "branch")
        taken = f"branch {branch!r} exists already"
        if branch != MAIN:
            self._refuse_twins(branch, "branch", taken)
        self._others.warn(self._newest)
        try:
            self._storage.create(_key("branch", branch), signed(_content(snapshot_id, 0)))
        except AlreadyExistsError:
            raise AlreadyExistsError(taken) from None
        return LiveTip(branch, 0, snapshot_id)

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> Callable[[], None]:
        """Create a tag. Raises AlreadyExistsError, InvalidInputError for a bad name.

        Returns how to undo it: only for a caller that finds that the snapshot is gone.
        """
        _check_name(name, "tag")
        taken = f"tag {name!r} exists already, or did once; tags never change"
        self._refuse_twins(name, "tag", taken)
        self._others.warn(self._newest)
        key, content = _key("tag", name), signed(_content(snapshot_id, 0))
        try:
            self._storage.create(key, content)
        except AlreadyExistsError:
            raise AlreadyExistsError(taken) from None

        def undo() -> None:
            # A file with these bytes is ours, and nobody else deletes or replaces it.
            with contextlib.suppress(ObjectNotFoundError):
                if self._storage.get(key) == content:
                    self._storage.delete_many([key])

        return undo

    def delete_tag(self, name: str) -> None:
        """Mark a tag as deleted; its name cannot be given again."""
        stored = self._find("tag", name)
        if stored is None:
            raise RefNotFoundError(f"ref not found `{name}`", name)
        self._others.warn(self._newest)
        try:
            self._storage.create(_tombstone_of(stored[0]), b"")
        except AlreadyExistsError:
            raise RefNotFoundError(f"ref not found `{name}`: it was deleted", name) from None

    def check_names(self, branches: Collection[str], tags: Collection[str]) -> None:
        """Raise InvalidInputError unless all of these names could be given, side by side."""
        for branch in branches:
            _check_name(branch, "branch")
        for tag in tags:
            _check_name(tag, "tag")

    def create_all(
        self,
        branches: Mapping[str, SnapshotId],
        tags: Mapping[str, SnapshotId],
        snapshots: Iterable[Snapshot] = (),
        config: bytes | None = None,
        *,
        is_new: bool = False,  # noqa: ARG002 (one that is there is another's)
    ) -> None:
        """Publish a repository with its branches and tags, `main` last."""
        del snapshots, config
        self.check_names(branches, tags)
        new_tags = self._create_new("tag", tags)
        for tag in tags.keys() - new_tags:  # an earlier try left it, or one that is hard to tell
            if self.tag(tag) != tags[tag]:
                self.create_tag(tag, tags[tag])
        new_branches = self._create_new(
            "branch", {name: target for name, target in branches.items() if name != MAIN}
        )
        for branch in sorted(branches.keys() - new_branches, key=lambda name: name == MAIN):
            tip = self.tip(branch)
            if tip is None or tip.snapshot_id != branches[branch]:
                self.create_branch(branch, branches[branch])

    def _create_new(self, what: RefType, targets: Mapping[str, SnapshotId]) -> set[str]:
        """Create those of some references whose names are free; returns these names."""
        if not targets or not self._storage.capabilities.can_list:
            return set()
        new = without_twins(targets.keys(), {*self._names(what, {_REF_FILE}), MAIN})
        each_at_once(
            self._storage,
            lambda name: self._storage.create(_key(what, name), signed(_content(targets[name], 0))),
            new,
        )
        return new

    def _refuse_twins(self, name: str, what: RefType, taken: str) -> None:
        """Refuse a name that is taken, or that some file systems could not tell from one (H-25)."""
        if not self._storage.capabilities.can_list:
            return
        prefix = f"{what}."
        entries = [
            entry.removeprefix(prefix)
            for entry in names_in(self._storage, REFS_FOLDER)
            if entry.startswith(prefix)
        ]
        others = [_decoded(entry) if "%" in entry else entry for entry in entries]
        if name in others and self._find(what, name):
            raise AlreadyExistsError(taken)
        for other in twins_of(name, others):
            if self._find(what, other):  # a deleted branch may leave an empty folder
                raise AlreadyExistsError(
                    f"{what} {other!r} exists already; {name!r} differs from it only in case or "
                    "accents, which not every storage can tell apart"
                )


def _content(snapshot_id: SnapshotId, collections: int) -> bytes:
    """What the file of a reference says, as official writers write it."""
    text = f'{{"snapshot":"{snapshot_id}"'
    if collections:
        text += f',"icefloe_collections":{collections}'
    return (text + "}").encode("ascii")


def _parse(data: bytes, key: str) -> tuple[SnapshotId, int]:
    """The snapshot that a reference names, and how many collections it has seen."""
    try:
        content = _decoder.decode(data)
        return SnapshotId.parse(content.snapshot), content.icefloe_collections
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidInputError) as error:
        raise FormatError(
            f'{key}: expected a reference such as {{"snapshot":"VY76P925PRY57WFEK410"}}, found '
            f"{len(data)} bytes {data[:48]!r} ({error}); the file is torn or damaged, and what it "
            "pointed to must be restored by hand",
            key,
        ) from None


def _check_name(name: str, what: RefType) -> None:
    check_ref_name(name, what, MAX_NAME_BYTES - len("branch."))
    strange = sorted(set(_strange_characters(name)))
    if strange:
        raise InvalidInputError(
            f"a {what} name in version 1 of the icechunk format has letters and digits of ASCII "
            f"and {_VERBATIM!r}, because official readers do not list others everywhere; found "
            f"{''.join(strange)!r} in {name!r}"
        )


def _strange_characters(name: str) -> Iterator[str]:
    return (each for each in name if not (each.isascii() and each.isalnum()) | (each in _VERBATIM))


def _keys(what: RefType, name: object) -> list[str]:
    """Where the file of a reference may be: under its name, or as some storages encode it."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"a branch or tag is named by a string, found {name!r}")
    if not name or "/" in name:
        return []
    with contextlib.suppress(InvalidInputError, UnicodeEncodeError):
        keys = [check_key(_key(what, name))]
        if next(_strange_characters(name), None) is not None:
            keys.append(_key(what, _encoded(name)))
        return keys
    return []


def _key(what: RefType, name: str) -> str:
    return f"{REFS_FOLDER}/{what}.{name}/{_REF_FILE}"


def _tombstone_of(key: str) -> str:
    return key.removesuffix(_REF_FILE) + _TOMBSTONE


def _encoded(name: str) -> str:
    """A name as some official storages write it; `quote` leaves tildes alone, and they do not."""
    return quote(name, safe=_VERBATIM).replace("~", "%7E")


def _decoded(text: str) -> str:
    """The name that a storage may have encoded; the text itself if it is no such encoding."""
    name = unquote(text) if "%" in text else text
    return name if _encoded(name) == text else text
