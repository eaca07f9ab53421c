"""The state file of a dataset as a value, and its next value after a change.

No I/O here. Members that we do not know are kept.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.dataset.layout import STATE_KEY, file_of
from icefloe.formats.dataset.snapshot_list import NO_SNAPSHOTS, ListedFiles, SnapshotList
from icefloe.formats.port import BranchTip, DeletedTip, LiveTip, branch_tip
from icefloe.model import MAIN
from icefloe.model.ids import SnapshotId
from icefloe.model.snapshot import INTERNAL_PREFIX, SnapshotStub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from icefloe.model.snapshot import FileSum, Snapshot

RefType = Literal["branch", "tag"]
FOREIGN = f"{INTERNAL_PREFIX}foreign"
"""The property of a snapshot of which only the rows are known; the state file knows the rest."""
_MAX_LOG = 1000
"""Moves of a branch that are listed; of older ones, only their number is known."""
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_encoder = msgspec.json.Encoder()


class _Reference(msgspec.Struct):
    name: str
    id: _Text = msgspec.field(name="snapshot-id")
    type: RefType


class _Extension(msgspec.Struct):
    branches: dict[str, list[tuple[int, str | None]]] = {}
    trimmed: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    schema: Literal["wide"] | None = None


class _StateFile(msgspec.Struct):
    """What the JSON Schema of the state file says (H-01), but for the list of snapshots."""

    id: _Text
    generation: Annotated[int, msgspec.Meta(ge=0)]
    store_root: str | None = None
    refs: dict[str, _Reference] | None = None
    icefloe: _Extension = msgspec.field(default_factory=_Extension)


class SnapshotFacts(msgspec.Struct, frozen=True):
    """A snapshot as the state file lists it."""

    id: SnapshotId
    parent_id: SnapshotId | None
    timestamp_ms: int
    properties: dict[str, Any]
    message: str


def _bad(reason: str) -> FormatError:
    return FormatError(f"{STATE_KEY}: {reason}", STATE_KEY)


class State:
    """One state of a dataset; immutable."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Check a document; raises FormatError if it is no state file.

        Args:
            document: The members of the file. That of the snapshots is a `SnapshotList`.
        """
        try:
            checked = msgspec.convert({**document, "snapshots": None}, _StateFile)
        except msgspec.ValidationError as error:
            raise _bad(f"not what its JSON Schema says: {error}") from None
        self._document = document
        self.dataset_id = checked.id
        self.generation = checked.generation
        self.store_root = (checked.store_root or "").strip()
        """Where the data are; empty if they are beside the state file."""
        self._refs = checked.refs or {}
        self._logs = checked.icefloe.branches
        self._trimmed = checked.icefloe.trimmed
        self.is_wide = checked.icefloe.schema == "wide"
        """Whether structure files have the wide schema from now on."""
        self._listed: SnapshotList = document["snapshots"]
        self._check()

    def _check(self) -> None:
        for name, ref in self._refs.items():
            if ref.name != name:
                raise _bad(f"the reference under {name!r} says that it is {ref.name!r}")

    @classmethod
    def parse(cls, data: bytes, known: State | None = None) -> State:
        """Read a state file; raises FormatError.

        Args:
            data: Its content.
            known: A state that was read before: what both list is not parsed again.
        """
        try:
            members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            listed = bytes(members.get("snapshots", b"null"))
            snapshots = (NO_SNAPSHOTS if known is None else known.snapshots).reread(listed)
            document = {
                name: snapshots if name == "snapshots" else msgspec.json.decode(raw)
                for name, raw in members.items()
            }
        except msgspec.ValidationError as error:
            raise _bad(f"not what its JSON Schema says: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _bad(f"not JSON, or torn: {error}") from None
        return cls(document)

    @classmethod
    def first(cls, store_root: str = "") -> State:
        """The state of a dataset before its first snapshot is listed (H-09)."""
        document: dict[str, Any] = {"id": str(uuid.uuid4()), "generation": 0}
        if store_root:
            document["store_root"] = store_root
        members = {"snapshots": NO_SNAPSHOTS, "refs": {}, "icefloe": {"branches": {}}}
        return cls({**document, **members})

    def encode(self) -> bytes:
        """The bytes of the state file, a line for each snapshot and reference."""
        parts: list[bytes] = []
        for name, value in self._document.items():
            if isinstance(value, SnapshotList):
                text = value.text
            elif name == "refs" and value:
                text = _one_per_line(value)
            else:
                text = msgspec.json.encode(value)
            parts += (b",\n" if parts else b"{\n", msgspec.json.encode(name), b": ", text)
        return b"".join([*parts, b"\n}\n"])  # once: most of it is one long text

    # --- queries

    @property
    def snapshots(self) -> SnapshotList:
        """All snapshots that are listed."""
        return self._listed

    def tip(self, branch: str) -> BranchTip | None:
        """Where a branch points, and how often it moved."""
        ref = self._refs.get(branch)
        log = self._logs.get(branch, [])
        moves = self._trimmed.get(branch, 0) + len(log)
        if ref is None or ref.type != "branch":
            return DeletedTip(branch, moves - 1) if log else None
        known = log[-1][1] if log else None
        # A writer that keeps no log moved the branch: that counts as one move.
        sequence = moves - 1 if known == ref.id else moves
        return LiveTip(branch, sequence, self._id(ref.id))

    def latest(self) -> LiveTip | None:
        """What a dataset without references shows: the snapshot that was listed last (H-11)."""
        if self._refs or not self._listed:
            return None
        return LiveTip(MAIN, 0, self._id(self._listed.newest()))

    def names(self, kind: RefType) -> set[str]:
        """Names of all branches or tags."""
        return {name for name, ref in self._refs.items() if ref.type == kind}

    def tips(self) -> dict[str, BranchTip]:
        """Where all branches point."""
        latest = self.latest()
        if latest is not None:
            return {latest.branch: latest}
        tips = {name: self.tip(name) for name in self.names("branch")}
        return {name: tip for name, tip in tips.items() if tip is not None}

    def tag_targets(self) -> dict[str, SnapshotId]:
        """The snapshots that all tags name."""
        return {name: self._id(ref.id) for name, ref in self._refs.items() if ref.type == "tag"}

    def all_names(self) -> set[str]:
        """Names of all references: branches and tags share them (R0-42)."""
        return set(self._refs)

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot that a tag names."""
        ref = self._refs.get(name)
        return None if ref is None or ref.type != "tag" else self._id(ref.id)

    def log(self, branch: str) -> list[BranchTip]:
        """The states of a branch that are still listed, newest first."""
        first = self._trimmed.get(branch, 0)
        tips = [
            branch_tip(branch, place, None if target is None else self._past_id(target))
            for place, (_, target) in enumerate(self._logs.get(branch, []), first)
        ]
        unlogged = self._unlogged(branch)
        if unlogged is not None:
            tips.append(unlogged)
        return tips[::-1]

    def _unlogged(self, branch: str) -> BranchTip | None:
        """Where a branch points, if its log does not say so: the last writer keeps no log."""
        latest = self.latest()
        tip = latest if latest is not None and latest.branch == branch else self.tip(branch)
        moves = self._logs.get(branch, [])
        if tip is None or not moves:
            return tip
        last = self._trimmed.get(branch, 0) + len(moves) - 1
        target = moves[-1][1]
        known = branch_tip(branch, last, None if target is None else self._past_id(target))
        return None if known == tip else tip

    def lists(self, snapshot_id: SnapshotId) -> bool:
        """Whether a snapshot is listed."""
        return snapshot_id in self._listed

    def find(self, text: str) -> SnapshotId | None:
        """The snapshot that is listed by an id, or whose structure file is named by it."""
        try:
            named = SnapshotId.from_text(text)
        except InvalidInputError:
            named = None
        is_listed = named is not None and named in self._listed
        return self._listed.id_of(text) or (named if is_listed else None)

    def _id(self, text: str) -> SnapshotId:
        """The snapshot of an id; icefloe's own ids need not be listed."""
        snapshot_id = self._listed.id_of(text)
        if snapshot_id is None:
            try:
                return SnapshotId.parse(text)
            except InvalidInputError:
                raise _bad(f"snapshot {text!r} is referred to, but not listed") from None
        return snapshot_id

    def _past_id(self, text: str) -> SnapshotId:
        """The same of a snapshot that another program may have taken from the list."""
        return self._listed.id_of(text) or SnapshotId.from_text(text)

    def _text(self, snapshot_id: SnapshotId) -> str:
        return self._listed.text_of(snapshot_id) or str(snapshot_id)

    def snapshot_ids(self) -> list[SnapshotId]:
        """All listed snapshots, in the order in which they came."""
        return list(self._listed)

    @cached_property
    def snapshot_files(self) -> Mapping[SnapshotId, FileSum]:
        """Size and CRC-32C of the structure files of which they are recorded."""
        return ListedFiles(self._listed)

    def facts(self, snapshot_id: SnapshotId) -> SnapshotFacts | None:
        """Parent, time, message and properties of a snapshot."""
        entry = self._listed.entry(self._text(snapshot_id))
        if entry is None:
            return None
        parent = None if entry.parent is None else self._past_id(entry.parent)
        return SnapshotFacts(
            id=snapshot_id,
            parent_id=parent,
            timestamp_ms=entry.timestamp,
            properties=entry.properties or {},
            message=entry.message,
        )

    def completed(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot that another program wrote, with its entry here."""
        facts = self.facts(snapshot.id)
        if facts is None:
            return snapshot
        history: list[SnapshotStub] = []
        parent = facts.parent_id
        while parent is not None and (above := self.facts(parent)) is not None:
            history.append(SnapshotStub(parent, _moment(above.timestamp_ms), above.message))
            parent = above.parent_id
            if len(history) > len(self._listed):
                break
        written = _moment(facts.timestamp_ms)
        return msgspec.structs.replace(
            snapshot,
            parent_id=history[0].id if history else None,
            written_at=written,
            started_at=written,
            message=facts.message,
            metadata=facts.properties,
            total_parents=len(history),
            history=tuple(history),
        )

    # --- changes

    def with_refs(
        self,
        targets: Mapping[str, SnapshotId | None],
        kind: RefType,
        snapshots: Sequence[Snapshot] = (),
        *,
        is_wide: bool = False,
    ) -> State:
        """The next state, with references of one kind set or removed, and snapshots listed (R0-32).

        `is_wide` means that one of these has a structure file of the wide schema. All others have
        it from then on: every branch gets an entry, so that a writer that is about to publish a
        file of the narrow schema notices and writes it again.
        """
        generation = self.generation + 1 if self._listed else self.generation
        refs = dict(self._document.get("refs") or {})
        for name, target in targets.items():
            if target is None:
                refs.pop(name, None)
            else:
                refs[name] = {"name": name, "snapshot-id": self._text(target), "type": kind}
        document = self._next(generation, snapshots)
        document["refs"] = refs
        moved = dict(targets) if kind == "branch" else {}
        if is_wide and not self.is_wide:
            document["icefloe"] = {**document.get("icefloe", {}), "schema": "wide"}
            moved = {**self._tips(), **moved}
        return self._with_entries(document, moved)

    def _tips(self) -> dict[str, SnapshotId | None]:
        return {name: self._id(self._refs[name].id) for name in self.names("branch")}

    def _with_entries(
        self, document: dict[str, Any], moved: Mapping[str, SnapshotId | None]
    ) -> State:
        """A state with one more entry in the logs of some branches."""
        if moved:
            extension = dict(document.get("icefloe") or {})
            logs = dict(extension.get("branches") or {})
            for name, target in moved.items():
                known = logs.get(name, [])
                unlogged = self._unlogged(name)
                missing = (
                    [[self.generation, self._text(unlogged.snapshot_id)]]
                    if unlogged is not None and unlogged.snapshot_id is not None
                    else []
                )
                entry = [document["generation"], None if target is None else self._text(target)]
                logs[name] = [*known, *missing, entry]
            document["icefloe"] = {**extension, "branches": logs}
        return State(_with_trimmed_logs(document, lambda log: len(log) - _MAX_LOG, moved))

    def without_snapshots(self, gone: set[SnapshotId]) -> State:
        """The next state, in which some snapshots are not listed any more (H-12)."""
        # What a branch or tag points to stays listed.
        names = {self._text(each) for each in gone} - {ref.id for ref in self._refs.values()}
        document = self._next(self.generation + 1, ())
        listed = self._listed.documents()
        kept = [entry for entry in listed if entry["snapshot-id"] not in names]
        for place, entry in enumerate(kept):
            if entry.get("parent-snapshot-id") in names:
                kept[place] = {**entry, "parent-snapshot-id": None}
        document["snapshots"] = NO_SNAPSHOTS.appended(kept)
        return State(
            _with_trimmed_logs(
                document,
                lambda log: max(
                    (n for n, (_, each) in enumerate(log, 1) if each in names), default=0
                ),
                self._logs,
            )
        )

    def _next(self, generation: int, snapshots: Sequence[Snapshot]) -> dict[str, Any]:
        new = [
            _entry(snapshot, None if snapshot.parent_id is None else self._text(snapshot.parent_id))
            for snapshot in snapshots
            if not self.lists(snapshot.id)
        ]
        return {
            **self._document,
            "generation": generation,
            "snapshots": self._listed.appended(new),
        }


def _moment(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def _with_trimmed_logs(
    document: dict[str, Any], count_of: Callable[[list[Any]], int], branches: Iterable[str]
) -> dict[str, Any]:
    """A state file without the oldest entries of some branches, as many as `count_of` says.

    How many were dropped is recorded, because the number of its moves distinguishes a branch that
    moved away and back from one that never moved. The newest entry stays.
    """
    extension = document.get("icefloe") or {}
    logs: dict[str, list[Any]] = dict(extension.get("branches") or {})
    trimmed: dict[str, int] = dict(extension.get("trimmed") or {})
    for name in branches:
        log = logs[name]
        count = min(count_of(log), len(log) - 1)
        if count > 0:
            logs[name] = log[count:]
            trimmed[name] = trimmed.get(name, 0) + count
    if not trimmed:
        return document
    return {**document, "icefloe": {**extension, "branches": logs, "trimmed": trimmed}}


def _entry(snapshot: Snapshot, parent: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "snapshot-id": str(snapshot.id),
        "parent-snapshot-id": parent,
        "timestamp-ms": int(snapshot.written_at.timestamp() * 1000),
        "structure-file": file_of(snapshot.id),
        "message": snapshot.message,
    }
    if snapshot.own_file is not None:
        entry["structure-size"] = snapshot.own_file.size_bytes
        entry["structure-checksum"] = snapshot.own_file.checksum
    properties = snapshot.public_metadata()
    properties.pop("__root", None)
    return {**entry, "properties": properties} if properties else entry


def _one_per_line(value: Mapping[str, Any]) -> bytes:
    # All names in one call, and all values: there may be thousands.
    names = _encoder.encode_lines(list(value)).split(b"\n")
    values = _encoder.encode_lines(list(value.values())).split(b"\n")
    lines = map(b": ".join, zip(names[:-1], values[:-1], strict=True))
    return b"{\n " + b",\n ".join(lines) + b"\n}"
