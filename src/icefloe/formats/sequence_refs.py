"""Branches as sequence files and tags as single files, created once and never altered.

A generation defines their keys and content (`RefNames`).
"""

from __future__ import annotations

import contextlib
import logging
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    InvalidTypeError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.formats.authorship import signed
from icefloe.formats.port import (
    BranchState,
    BranchTip,
    DeletedTip,
    LiveTip,
    RefDefaults,
    branch_moved,
    branch_tip,
)
from icefloe.formats.sequence import SequenceFolder, parse_sequence_name
from icefloe.model import MAIN
from icefloe.storage.concurrency import AT_ONCE, each_at_once, together
from icefloe.storage.keys import check_key
from icefloe.storage.presence import is_there, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import FileSum, Snapshot
    from icefloe.storage.port import ObjectInfo, Storage

logger = logging.getLogger(__name__)

MAX_NAME_BYTES = 255
"""What a file system takes as a name."""


def check_ref_name(name: str, what: str, longest: int) -> None:
    """Raise InvalidInputError unless a branch or tag of that name may be created (H-23)."""
    if not name or name in {".", ".."} or "/" in name:
        raise InvalidInputError(f"a {what} name is not empty, '.' or '..' and has no '/': {name!r}")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
        raise InvalidInputError(f"a {what} name has no control characters: {name!r}")
    size = len(name.encode("utf-8"))
    if size > longest:
        raise InvalidInputError(f"a {what} name has at most {longest} bytes, found {size}")


def refuse_tag_deletion(name: str) -> NoReturn:
    """Raise InvalidInputError where the specification says that tags are permanent (R1-25)."""
    raise InvalidInputError(
        f"tags cannot be deleted once created: {name!r} stays; create another tag instead"
    )


def _is_readable(name: object, names: RefNames) -> bool:
    """Whether some reference may have that name."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"a branch or tag is named by a string, found {name!r}")
    if not name or "/" in name:
        return False
    try:
        check_key(names.branch_folder(name))
    except InvalidInputError:
        return False
    return True


def folded(name: str) -> str:
    """The common form of names that a file system may take for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def twins_of(name: str, others: Collection[str]) -> list[str]:
    """Which of some other names a file system may take for a name (H-25); none has a slash."""
    if not others:
        return []
    # All in one call: a slash takes no accents, so nothing changes across the names.
    forms = folded("/".join(others)).split("/")
    form = folded(name)
    pairs = zip(others, forms, strict=True)
    return [other for other, its_form in pairs if its_form == form and other != name]


def without_twins(names: Collection[str], others: Collection[str]) -> set[str]:
    """Those of some new names that no file system takes for another of them, or for one of others.

    One look at each name, where `twins_of` looks at all others for each.
    """
    forms = Counter(map(folded, {*names, *others}))
    return {name for name in names if name not in others and forms[folded(name)] == 1}


_LOOK_BACK = 100
_FIRST_PAGE = 1000
_MANY_FILES = 30
"""With more files of each branch, all files are not listed to find the newest ones."""


def _read_ahead(
    storage: Storage, read: Callable[[int], bytes | None], numbers: Sequence[int]
) -> Iterator[tuple[int, bytes | None]]:
    """Files by their numbers, many at the same time where each would be waited for."""
    at_once = 1 if storage.capabilities.reads_are_immediate else AT_ONCE
    for start in range(0, len(numbers), at_once):
        batch = numbers[start : start + at_once]
        yield from zip(batch, each_at_once(storage, read, batch), strict=True)


class RefNames(Protocol):
    """The keys and the content of references, in one generation of the format."""

    folder: str
    """The folder of all references, without a slash at its end."""
    branches_prefix: str
    """The prefix of the keys of all files of branches."""

    def check(self, name: str, what: Literal["branch", "tag"]) -> None:
        """Raise InvalidInputError unless a reference of that name may be created."""

    def branch_folder(self, branch: str) -> str:
        """The folder of a branch's sequence files."""

    def tag_key(self, tag: str) -> str:
        """Key of a tag."""

    def tombstone_key(self, tag: str) -> str | None:
        """Key of a file that marks a tag as deleted, if some implementation writes them."""

    def branch_of(self, entry: str) -> str | None:
        """The branch that an entry of the folder belongs to."""

    def tag_of(self, entry: str) -> str | None:
        """The tag that an entry of the folder belongs to."""

    def list_tags(self, storage: Storage) -> set[str]:
        """Names of all tags that are not deleted."""

    def content(
        self, snapshot_id: SnapshotId | None, before: SnapshotId | None, file: FileSum | None
    ) -> bytes:
        """What the file of a reference says; None is a deleted branch, which was at `before`.

        `file` is what is known of the snapshot's file; some references record it.
        """

    def is_live(self, size: int) -> bool:
        """Whether a file of that size, unless it is damaged, is not that of a deleted branch."""

    def snapshot_file(self, data: bytes, key: str) -> FileSum | None:
        """What such a file remembers of the snapshot's file."""

    def parse(self, data: bytes, key: str) -> SnapshotId | None:
        """Read such a file; raises FormatError. None is a deleted branch."""


class SequenceRefs(RefDefaults):
    """Branches and tags of a repository in a storage."""

    records_moves = True

    numbers_moves = True

    def __init__(self, storage: Storage, names: RefNames, seen: BranchTip | None = None) -> None:
        """Take where the repository is, and where a branch was seen to point."""
        self._storage = storage
        self._names = names
        self._folders: dict[str, SequenceFolder] = {}
        self._find: Callable[[SnapshotId], FileSum | None] | None = None
        self._remembered: dict[SnapshotId, FileSum] = {}
        if seen is not None:
            self.start_at(seen)

    def __getstate__(self) -> tuple[Storage, RefNames]:
        return self._storage, self._names

    def __setstate__(self, state: tuple[Storage, RefNames]) -> None:
        storage, names = state
        self.__init__(storage, names)  # type: ignore[misc]

    def view(self) -> SequenceRefs:
        """The same references: each has a file of its own."""
        return self

    # --- branches

    def start_at(self, tip: BranchTip) -> None:
        """Look for the newest state of a branch from here on; that it is too new does no harm."""
        self._folder(tip.branch).start_at(tip.sequence)

    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""
        return self._tip(branch) if _is_readable(branch, self._names) else None

    def find_tip(self, branch: str) -> Callable[[], BranchTip | None]:
        """Find the newest state of a branch by its number; returns how to read what it says."""
        if not _is_readable(branch, self._names):
            return lambda: None
        read = self._folder(branch).find_newest()

        def parse() -> BranchTip | None:
            newest = read()
            return None if newest is None else self._parsed_tip(branch, *newest)

        return parse

    def _tip(self, branch: str, guess: int | None = None) -> BranchTip | None:
        newest = self._folder(branch).newest(guess)
        return None if newest is None else self._parsed_tip(branch, *newest)

    def _parsed_tip(self, branch: str, sequence: int, data: bytes) -> BranchTip:
        folder = self._folder(branch)
        try:
            return branch_tip(branch, sequence, self._parse(data, folder.key(sequence)))
        except FormatError as error:
            last = self._last_good(folder, sequence)
            raise FormatError(
                f"{error}; {last}; Repository.open_for_repair(...).verify() says what to do",
                folder.key(sequence),
            ) from None

    def _last_good(self, folder: SequenceFolder, sequence: int) -> str:
        """Which state before one that is damaged can be read, for people."""
        for number in range(sequence - 1, max(-1, sequence - _LOOK_BACK), -1):
            with contextlib.suppress(FormatError):
                data = folder.read(number)
                if data is not None:
                    target = self._names.parse(data, folder.key(number))
                    return f"the last good entry before it is number {number} (snapshot {target})"
        return "no good entry was found before it"

    def check_same_repository(self, tip: LiveTip) -> None:
        """Raise ConflictError if the entry of a tip has changed.

        Entries are never altered, so another one means another repository. Its next entry may be
        free, too: a commit there would hide all that it has behind a history that it lacks.
        """
        folder = self._folder(tip.branch)
        key = folder.key(tip.sequence)
        data = folder.read(tip.sequence)
        actual = None if data is None else self._parse(data, key)
        if data is None or actual != tip.snapshot_id:
            folder.forget()
            found = "is gone" if data is None else f"points to {actual or 'nothing'}"
            raise ConflictError(
                f"the repository was deleted or replaced by another one: entry {key} pointed to "
                f"snapshot {tip.snapshot_id} and {found}; open the repository and write again",
                str(tip.snapshot_id),
                None if actual is None else str(actual),
            )

    def publish(self, tip: LiveTip, snapshot: Snapshot) -> BranchTip:
        """Publish a commit that was just written as the next state of a branch, like `advance`."""
        return self.advance(tip, snapshot.id)

    def advance(self, tip: BranchTip, snapshot_id: SnapshotId | None) -> BranchTip:
        """Publish the next state of a branch: atomic, durable, settled.

        Raises ConflictError if the branch has moved past `tip`.
        """
        if snapshot_id is None and tip.branch == MAIN:
            raise InvalidInputError("every repository has a branch 'main': it cannot be deleted")
        content = self._content(snapshot_id, tip.snapshot_id)
        # The snapshot of a commit is unlike any other; a branch may be deleted by two clients.
        self._publish(tip, signed(content) if snapshot_id is None else content)
        return branch_tip(tip.branch, tip.sequence + 1, snapshot_id)

    def _publish(self, tip: BranchTip, content: bytes) -> None:
        """Create the entry after a tip; raises ConflictError if there is one."""
        folder = self._folder(tip.branch)
        sequence = tip.sequence + 1
        try:
            folder.create(sequence, content)
        except AlreadyExistsError:
            folder.start_at(sequence)
            # It may have moved on further, and callers want to know where to.
            newest = self._tip(tip.branch, sequence)
            actual = None if newest is None else newest.snapshot_id
            raise branch_moved(tip, actual) from None

    def repeat(self, tips: Collection[LiveTip]) -> set[str]:
        """Publish for each branch one more state for the snapshot that it has.

        Returns the branches that have moved past their `tips`, to which nothing was done.
        """

        def has_moved(tip: LiveTip) -> bool:
            try:
                self.advance(tip, tip.snapshot_id)
            except ConflictError:
                return True
            return False

        moved = each_at_once(self._storage, has_moved, tips)
        return {tip.branch for tip, is_ahead in zip(tips, moved, strict=True) if is_ahead}

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> LiveTip:
        """Create a branch, or continue the sequence of a deleted one.

        Raises AlreadyExistsError, InvalidInputError for a bad name.
        """
        return self.prepare_branch(branch)(snapshot_id)

    def prepare_branch(self, branch: str) -> Callable[[SnapshotId], LiveTip]:
        """Check that a branch may be created; returns how to do so.

        Raises AlreadyExistsError, InvalidInputError for a bad name.
        """
        self._names.check(branch, "branch")
        tip, others = together(self._storage, lambda: self.tip(branch), self._any_entries)
        if isinstance(tip, LiveTip):
            raise AlreadyExistsError(f"branch {branch!r} exists already")
        if tip is None:
            self._refuse_twins(branch, "branch", map(self._names.branch_of, others))

        def create(snapshot_id: SnapshotId) -> LiveTip:
            before = DeletedTip(branch, -1) if tip is None else tip
            try:
                self._publish(before, signed(self._content(snapshot_id, None)))
            except ConflictError:
                raise AlreadyExistsError(f"branch {branch!r} exists already") from None
            return LiveTip(branch, before.sequence + 1, snapshot_id)

        return create

    def create_main(self, snapshot_id: SnapshotId) -> None:
        """Publish a new repository by its branch `main`; raises AlreadyExistsError."""
        try:
            self._folder(MAIN).create(0, signed(self._content(snapshot_id, None)))
        except AlreadyExistsError:
            raise AlreadyExistsError(f"branch {MAIN!r} exists already") from None

    def branches(self) -> set[str]:
        """Names of the branches that exist.

        One whose newest reference is damaged is included: using it raises an error.
        """
        listed = self._newest_listed()
        if listed is None:
            return self._live(self._branch_names(), self.tip)
        # Most files tell by their size that they name a snapshot.
        # Nothing is deleted by the first file of a branch.
        live = {
            branch
            for branch, (number, info) in listed.items()
            if number == 0 or self._names.is_live(info.size)
        }
        others = listed.keys() - live
        return live | self._live(others, lambda branch: self._read_tip(branch, *listed[branch]))

    def _live(self, branches: Collection[str], find: Callable[[str], BranchTip | None]) -> set[str]:
        """Those of some branches that are not deleted, or cannot be read."""

        def is_live(branch: str) -> bool:
            try:
                return isinstance(find(branch), LiveTip)
            except FormatError as error:
                logger.warning("branch %r cannot be read: %s", branch, error)
                return True

        live = each_at_once(self._storage, is_live, branches)
        return {branch for branch, is_there in zip(branches, live, strict=True) if is_there}

    def tips(self) -> dict[str, BranchTip]:
        """Newest states of all branches, by one listing and as many reads at a time."""
        listed = self._newest_listed()
        if listed is None:
            names = self._branch_names()
            tips = each_at_once(self._storage, self.tip, names)
        else:
            names = list(listed)
            tips = each_at_once(
                self._storage, lambda branch: self._read_tip(branch, *listed[branch]), names
            )
        pairs = zip(names, tips, strict=True)
        return {branch: tip for branch, tip in pairs if tip is not None}

    def _read_tip(self, branch: str, sequence: int, info: ObjectInfo) -> BranchTip:
        folder = self._folder(branch)
        folder.start_at(sequence)
        return self._parsed_tip(branch, sequence, folder.read_listed(sequence, info))

    def newest_numbers(self) -> dict[str, int]:
        """Numbers of the newest states of all branches by their names, which gaps do not hide."""
        listed = self._newest_listed()
        if listed is not None:
            return {branch: sequence for branch, (sequence, _) in listed.items()}
        names = self._branch_names()
        numbers = each_at_once(self._storage, lambda each: self._folder(each).highest(), names)
        pairs = zip(names, numbers, strict=True)
        return {branch: number for branch, number in pairs if number is not None}

    def _newest_listed(self) -> dict[str, tuple[int, ObjectInfo]] | None:
        """The newest file of each branch, by one listing of all files.

        None where folders are listed sooner one by one: on local disks, and if there are few
        branches with many files each.
        """
        self._require_listing()
        if not self._storage.capabilities.lists_in_pages:
            return None
        newest: dict[str, tuple[int, ObjectInfo]] = {}
        start = f"{self._names.folder}/"
        for number, info in enumerate(self._storage.list(self._names.branches_prefix)):
            if number >= _FIRST_PAGE and number > _MANY_FILES * len(newest):
                return None
            entry, _, file = info.key[len(start) :].partition("/")
            branch = self._names.branch_of(entry)
            if branch is None or branch in newest:
                continue
            sequence = parse_sequence_name(file)
            if sequence is not None:  # the newest sorts first
                newest[branch] = sequence, info
        return newest

    def remember(
        self,
        find: Callable[[SnapshotId], FileSum | None],
        written: Callable[[], Snapshot | None],
    ) -> None:
        """Take what knows the files of snapshots, for references that record them."""
        del written
        self._find = find

    def snapshot_files(self) -> Mapping[SnapshotId, FileSum]:
        """What the references that were read remember of the files of snapshots."""
        return self._remembered

    def _content(self, snapshot_id: SnapshotId | None, before: SnapshotId | None) -> bytes:
        known = None if self._find is None or snapshot_id is None else self._find(snapshot_id)
        return self._names.content(snapshot_id, before, known)

    def _parse(self, data: bytes, key: str) -> SnapshotId | None:
        snapshot_id = self._names.parse(data, key)
        file = None if snapshot_id is None else self._names.snapshot_file(data, key)
        if snapshot_id is not None and file is not None:
            self._remembered[snapshot_id] = file
        return snapshot_id

    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """All states of a branch, newest first."""
        tip = self.tip(branch)
        if tip is None:
            return
        yield tip
        for sequence in range(tip.sequence - 1, -1, -1):
            yield self._entry(branch, sequence)

    def entries(self, tip: BranchTip, down_to: int) -> list[BranchTip]:
        """The states of a branch from `tip` down to one of a number, read at the same time."""
        earlier = range(tip.sequence - 1, down_to - 1, -1)
        return [
            tip,
            *each_at_once(self._storage, lambda each: self._entry(tip.branch, each), earlier),
        ]

    def _entry(self, branch: str, sequence: int) -> BranchTip:
        folder = self._folder(branch)
        data, key = folder.read(sequence), folder.key(sequence)
        if data is None:
            raise FormatError(f"{key} is missing: the sequence of {branch!r} has a gap", key)
        return branch_tip(branch, sequence, self._parse(data, key))

    def states(self, branch: str) -> Iterator[BranchState]:
        """All states of a branch as they are found, newest first; needs a storage that lists."""
        folder = self._folder(branch)
        highest = folder.highest()
        numbers = range(-1 if highest is None else highest, -1, -1)
        for sequence, data in _read_ahead(self._storage, folder.read, numbers):
            key = folder.key(sequence)
            if data is None:
                fault = f"{key} is missing: the sequence of {branch!r} has a gap"
                yield BranchState(
                    sequence=sequence, key=key, tip=None, fault=fault, is_missing=True
                )
                continue
            try:
                tip = branch_tip(branch, sequence, self._parse(data, key))
            except FormatError as error:
                yield BranchState(sequence=sequence, key=key, tip=None, fault=str(error))
            else:
                yield BranchState(sequence, key, tip)

    def fill_gap(self, missing: BranchState, before: SnapshotId | None) -> bool:
        """Put a state that repeats another one where one is missing; False if it is there now."""
        try:
            self._storage.create(missing.key, self._content(before, None))
        except AlreadyExistsError:
            return False
        return True

    def _folder(self, branch: str) -> SequenceFolder:
        folder = self._folders.get(branch)
        if folder is None:
            folder = SequenceFolder(self._storage, self._names.branch_folder(branch))
            self._folders[branch] = folder
        return folder

    # --- tags

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot that a tag names."""
        if not _is_readable(name, self._names):
            return None
        key = self._names.tag_key(name)
        data, is_deleted = together(
            self._storage, lambda: self._get(key), lambda: self._is_deleted_tag(name)
        )
        return None if data is None or is_deleted else self._tag_target(key, data)

    def _get(self, key: str) -> bytes | None:
        try:
            return self._storage.get(key)
        except ObjectNotFoundError:
            return None

    def _is_deleted_tag(self, name: str) -> bool:
        tombstone = self._names.tombstone_key(name)
        return tombstone is not None and is_there(self._storage, tombstone)

    def _tag_target(self, key: str, data: bytes) -> SnapshotId:
        snapshot_id = self._parse(data, key)
        if snapshot_id is None:
            raise FormatError(f"{key}: a tag names a snapshot, found null", key)
        return snapshot_id

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> Callable[[], None]:
        """Create a tag. Raises AlreadyExistsError, InvalidInputError for a bad name.

        Returns how to undo it: only for a caller that finds that the snapshot is gone.
        """
        return self.prepare_tag(name)(snapshot_id)

    def prepare_tag(self, name: str) -> Callable[[SnapshotId], Callable[[], None]]:
        """Check that a tag may be created; returns how to do so.

        Raises AlreadyExistsError, InvalidInputError for a bad name.
        """
        self._names.check(name, "tag")
        taken = f"tag {name!r} exists already, or did once; tags never change"
        key = self._names.tag_key(name)
        is_taken, others = together(
            self._storage, lambda: is_there(self._storage, key), self._any_entries
        )
        if is_taken:
            raise AlreadyExistsError(taken)
        self._refuse_twins(name, "tag", map(self._names.tag_of, others))

        def create(snapshot_id: SnapshotId) -> Callable[[], None]:
            content = signed(self._content(snapshot_id, None))
            try:
                self._storage.create(key, content)
            except AlreadyExistsError:
                raise AlreadyExistsError(taken) from None
            return lambda: undo(content)

        def undo(content: bytes) -> None:
            # A file with these bytes is ours, and nobody else deletes or replaces it.
            if self._get(key) == content:
                self._storage.delete_many([key])

        return create

    def delete_tag(self, name: str) -> None:
        """Refuse: the specification says that tags cannot be deleted once created (R1-25)."""
        refuse_tag_deletion(name)

    def tags(self) -> set[str]:
        """Names of all tags."""
        self._require_listing()
        return self._names.list_tags(self._storage)

    def tag_targets(self) -> dict[str, SnapshotId]:
        """The snapshots that all tags name."""

        def target(name: str) -> SnapshotId | None:
            key = self._names.tag_key(name)
            data = self._get(key)
            return None if data is None else self._tag_target(key, data)

        names = sorted(self.tags())
        targets = each_at_once(self._storage, target, names)
        pairs = zip(names, targets, strict=True)
        return {name: snapshot_id for name, snapshot_id in pairs if snapshot_id is not None}

    # --- both

    def check_names(self, branches: Collection[str], tags: Collection[str]) -> None:
        """Raise InvalidInputError unless all of these names could be given, side by side."""
        for branch in branches:
            self._names.check(branch, "branch")
        for tag in tags:
            self._names.check(tag, "tag")

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
        entries = self._any_entries() if tags or branches.keys() - {MAIN} else []
        new_tags = without_twins(tags, set(filter(None, map(self._names.tag_of, entries))))
        each_at_once(
            self._storage,
            lambda tag: self._storage.create(
                self._names.tag_key(tag), signed(self._content(tags[tag], None))
            ),
            new_tags,
        )
        for tag in tags.keys() - new_tags:  # an earlier try left it, or one that is hard to tell
            if self.tag(tag) != tags[tag]:
                self.create_tag(tag, tags[tag])
        there = set(filter(None, map(self._names.branch_of, entries)))
        new_branches = without_twins(branches.keys(), there) - {MAIN}
        each_at_once(
            self._storage,
            lambda branch: self._folder(branch).create(
                0, signed(self._content(branches[branch], None))
            ),
            new_branches,
        )
        for branch in sorted(branches.keys() - new_branches, key=lambda name: name == MAIN):
            tip = self.tip(branch)
            if tip is None or tip.snapshot_id != branches[branch]:
                self.create_branch(branch, branches[branch])

    def _branch_names(self) -> list[str]:
        names = map(self._names.branch_of, self._entries())
        return [name for name in names if name is not None]

    def _entries(self) -> list[str]:
        self._require_listing()
        return self._storage.list_dir(self._names.folder)

    def _any_entries(self) -> list[str]:
        """The same, where that is cheaper with empty folders among them."""
        self._require_listing()
        return names_in(self._storage, self._names.folder)

    def _require_listing(self) -> None:
        if not self._storage.capabilities.can_list:
            raise StorageError(
                f"{self._storage.location} cannot list objects, so branches and tags cannot be "
                "enumerated; name the one that you want"
            )

    def _refuse_twins(
        self, name: str, what: Literal["branch", "tag"], others: Iterable[str | None]
    ) -> None:
        """Refuse a name that some file systems could not tell from an existing one (H-25)."""
        for other in twins_of(name, [each for each in others if each is not None]):
            if self._is_used(other, what):
                raise AlreadyExistsError(
                    f"{what} {other!r} exists already; {name!r} differs from it "
                    "only in case or accents, which not every storage can tell apart"
                )

    def _is_used(self, name: str, what: Literal["branch", "tag"]) -> bool:
        """Whether a reference has or had a name."""
        if what == "branch":
            entries = self._storage.list(f"{self._names.branch_folder(name)}/", limit=1)
            return next(iter(entries), None) is not None
        keys = (self._names.tag_key(name), self._names.tombstone_key(name))
        return any(key is not None and is_there(self._storage, key) for key in keys)
