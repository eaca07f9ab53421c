"""The interface of a generation of the format: keys, bytes, references.

No I/O here but in `Refs`, which moves references through a storage.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import msgspec

from icefloe.errors import ConflictError, FormatError, InvalidInputError
from icefloe.model.ids import Identifier, NodeId, SnapshotId
from icefloe.model.record import Record
from icefloe.model.snapshot import INTERNAL_PREFIX, Snapshot
from icefloe.storage.port import Storage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from icefloe.model.ids import AttributesId, ChunkFileId, ManifestId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.repo_updates import FeatureFlag, RepoStatus, Update
    from icefloe.model.snapshot import FileSum, ListedCommit, SnapshotStub
    from icefloe.model.transaction_log import TransactionLog


DEFAULT_LEVEL = 3
"""The level of zstd at which files are compressed if nobody sets another one."""


class ObjectKind(StrEnum):
    """Kinds of objects that are named by an id."""

    SNAPSHOT = "snapshot"
    TRANSACTION_LOG = "transaction-log"
    MANIFEST = "manifest"
    ATTRIBUTES = "attributes"
    CHUNK_FILE = "chunk-file"


class ObjectName(Record, frozen=True):
    """What a key names; a transaction log has the id of its snapshot."""

    kind: ObjectKind
    id: Identifier


class Layout(Protocol):
    """Where each object is stored: keys relative to the root of the storage."""

    def snapshot(self, snapshot_id: SnapshotId) -> str:
        """Key of a snapshot file."""

    def transaction_log(self, snapshot_id: SnapshotId) -> str:
        """Key of the log of the commit that made a snapshot."""

    def manifest(self, manifest_id: ManifestId) -> str:
        """Key of a manifest file."""

    def attributes(self, attributes_id: AttributesId) -> str:
        """Key of an attribute file."""

    def chunk_file(self, file_id: ChunkFileId) -> str:
        """Key of a chunk file."""

    def folder(self, kind: ObjectKind) -> str:
        """What the keys of all objects of a kind start with, and no others do."""

    def parse(self, key: str) -> ObjectName | None:
        """What a key names; None unless it is the key that we would give that object."""

    def parse_many(
        self, kind: ObjectKind, keys: Sequence[str]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """The ids (n, bytes) of keys of one kind, and which of them are right.

        Only keys of the form that icefloe writes are; the others are for `parse`.
        """


class EncodedFile(Record, frozen=True):
    """A file ready to be written, with its information as object metadata (R2-14)."""

    data: bytes
    attributes: dict[str, str]


class NeedsMore(Record, frozen=True):
    """Answer of a decoder that must see the first `length` bytes of the file.

    The last ones, in a generation whose index is at the end.
    """

    length: int


class Codec(Protocol):
    """Values to bytes and back. `key` names the object in errors.

    Decoders accept every layout of the generation that they know, whatever this codec writes, and
    raise FormatError for anything else.
    """

    @property
    def spec_version(self) -> int:
        """Version of the bodies that this codec writes."""

    @property
    def writes_columns(self) -> bool:
        """Whether `encode_manifest` needs neither parts nor numbers if it has `arranged`."""

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedFile:
        """Bytes of a snapshot file."""

    def decode_snapshot(self, data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
        """Read a snapshot file that was found under the name of `snapshot_id`."""

    def spec_version_of(self, data: bytes, key: str) -> int:
        """Version of the layout of a snapshot file; 0 for layouts that are only read."""

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]] | None = None,
        numbers: Mapping[NodeId, int] | None = None,
        *,
        manifest_id: ManifestId | None = None,
    ) -> EncodedFile:
        """Bytes of a manifest file of at least one reference.

        `arranged` is what `lay_out` made of the parts, where it is at hand. `numbers` are those of
        `other_numbers`, which matter where files have numbers of nodes beside their ids. The file
        will be named by `manifest_id`, which some formats repeat inside of it.
        """

    def decode_manifest_index(
        self, prefix: bytes, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read the index from the first bytes of a manifest file of `size` bytes.

        From the last ones, in a generation whose index is at the end.
        """

    def decode_block(
        self, index: ManifestIndex, number: int, data: bytes, key: str
    ) -> ManifestBlock:
        """Read one block from the bytes that the index's span names."""

    def encode_attributes(self, rows: Sequence[bytes]) -> EncodedFile:
        """Bytes of an attribute file: one JSON object per row, verbatim."""

    def decode_attributes(self, data: bytes, key: str) -> list[bytes]:
        """Read an attribute file."""

    def encode_transaction_log(
        self, log: TransactionLog, snapshot: Snapshot | None = None
    ) -> EncodedFile:
        """Bytes of the transaction log of a snapshot, whose id and nodes some formats repeat."""

    def decode_transaction_log(self, data: bytes, key: str) -> TransactionLog:
        """Read a transaction log."""


class LiveTip(Record, frozen=True):
    """The newest state of a branch that exists: what a commit expects to find unchanged."""

    branch: str
    sequence: int
    snapshot_id: SnapshotId


class DeletedTip(Record, frozen=True):
    """The newest state of a deleted branch, whose sequence continues if it is created again."""

    branch: str
    sequence: int
    snapshot_id: ClassVar[None] = None


BranchTip = LiveTip | DeletedTip
"""Where a branch points."""


def branch_tip(branch: str, sequence: int, snapshot_id: SnapshotId | None) -> BranchTip:
    """Make the tip of a branch; without a snapshot, of one that was deleted."""
    if snapshot_id is None:
        return DeletedTip(branch, sequence)
    return LiveTip(branch, sequence, snapshot_id)


def branch_moved(tip: BranchTip, actual: SnapshotId | str | None) -> ConflictError:
    """The error for a branch that is not at the tip that a change of it was based on."""
    expected = None if tip.snapshot_id is None else str(tip.snapshot_id)
    return ConflictError(
        f"branch {tip.branch!r} moved: expected {expected or 'deleted'}, found "
        f"{actual or 'deleted'}; rebase and try again, or commit with "
        "rebase_with=ConflictDetector(), which does both",
        expected,
        None if actual is None else str(actual),
    )


class BranchState(Record, frozen=True):
    """A state of a branch as it is found, which may be only its number."""

    sequence: int
    key: str
    tip: BranchTip | None
    """None if it is missing or damaged."""
    fault: str = ""
    """What is wrong with it."""
    is_missing: bool = False


class Refs(Protocol):
    """Branches and tags of a repository in a storage."""

    numbers_moves: bool
    """Whether the sequence of a branch grows by one with each state; else by any number."""

    records_moves: bool
    """Whether a commit can record that nodes moved."""

    lists_snapshots: bool
    """Whether a reference is only moved to a snapshot that is listed in the same file, from which a
    garbage collection takes it before it deletes anything. Nobody needs to pin it then."""

    def view(self) -> Refs:
        """The same references for a caller that reads many of them.

        Where one file has all of them, it is read once, when the view is first used.
        """

    def start_at(self, tip: BranchTip) -> None:
        """Look for the newest state of a branch from here on; that it is too new does no harm."""

    def tip(self, branch: str) -> BranchTip | None:
        """Newest state of a branch; None if it never existed."""

    def find_tip(self, branch: str) -> Callable[[], BranchTip | None]:
        """Find the newest state of a branch; returns how to read what it says."""

    def check_writable(self, tip: LiveTip) -> None:
        """Raise ReadOnlyError if the repository says that it must not be changed.

        Logs a warning if another package, which takes no lock here, made the newest commit.
        """

    def check_same_repository(self, tip: LiveTip) -> None:
        """Raise ConflictError if publishing after a tip does not notice that it is gone.

        That is so if the repository was deleted, and perhaps created again, since the tip was read.
        """

    def check_move(self) -> None:
        """Raise InvalidInputError if a commit cannot move nodes in this repository."""

    def publish(self, tip: LiveTip, snapshot: Snapshot) -> BranchTip:
        """Publish a commit that was just written as the next state of a branch, like `advance`."""

    def advance(self, tip: BranchTip, snapshot_id: SnapshotId | None) -> BranchTip:
        """Publish the next state of a branch: atomic, durable, settled.

        The snapshot is one that was published before; None deletes the branch. Raises
        ConflictError if the branch has moved past `tip`.
        """

    def list_detached(self, snapshot: Snapshot) -> None:
        """Add a snapshot that no branch points to yet to what lists them, if something does."""

    def repeat(self, tips: Collection[LiveTip]) -> set[str]:
        """Publish for each branch one more state for the snapshot that it has.

        Returns the branches that have moved past their `tips`, to which nothing was done.
        """

    def create_branch(self, branch: str, snapshot_id: SnapshotId) -> LiveTip:
        """Create a branch, or continue the sequence of a deleted one.

        Of several clients that create one branch, exactly one succeeds. Raises
        AlreadyExistsError, InvalidInputError for a bad name.
        """

    def prepare_branch(self, branch: str) -> Callable[[SnapshotId], LiveTip]:
        """Read what creating a branch depends on; returns how to create it.

        Raises AlreadyExistsError, InvalidInputError for a bad name, now or then.
        """

    def prepare_tag(self, name: str) -> Callable[[SnapshotId], Callable[[], None]]:
        """The same for a tag."""

    def create_main(self, snapshot_id: SnapshotId) -> None:
        """Publish a new repository by its branch `main`; raises AlreadyExistsError.

        For a location that had none a moment ago: it takes one request.
        """

    def branches(self) -> set[str]:
        """Names of the branches that exist."""

    def tips(self) -> dict[str, BranchTip]:
        """Newest states of all branches, some of which may be deleted.

        Where each has files of its own: by one listing, and as many reads at a time.
        """

    def newest_numbers(self) -> dict[str, int]:
        """Numbers of the newest states of all branches as they are listed: gaps hide none."""

    def tag_targets(self) -> dict[str, SnapshotId]:
        """The snapshots that all tags name."""

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot that a tag names."""

    def create_tag(self, name: str, snapshot_id: SnapshotId) -> Callable[[], None]:
        """Create a tag. Raises AlreadyExistsError, InvalidInputError for a bad name.

        Of several clients that create one tag, on one snapshot or on several, exactly one
        succeeds. Returns how to undo it: only for a caller that finds that the snapshot is gone.
        """

    def delete_tag(self, name: str) -> None:
        """Delete a tag that exists; raises InvalidInputError where tags are permanent."""

    def tags(self) -> set[str]:
        """Names of all tags."""

    def check_names(self, branches: Collection[str], tags: Collection[str]) -> None:
        """Raise InvalidInputError unless all of these names could be given, side by side."""

    def create_all(
        self,
        branches: Mapping[str, SnapshotId],
        tags: Mapping[str, SnapshotId],
        snapshots: Iterable[Snapshot] = (),
        config: bytes | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Publish a repository with its branches and tags, all at once.

        Those that are there already, as an earlier try left them, are no obstacle unless the
        repository `is_new`: one of many creators succeeds. `snapshots`
        are all snapshots of the repository, parents first, for what lists them; `config` is the
        JSON of the configuration, for references that it is kept with.
        """

    def forget(
        self, snapshots: Collection[SnapshotId], reached: Collection[SnapshotId] = ()
    ) -> None:
        """Take snapshots that are about to be deleted from what lists them, if something does.

        `reached` are those that stay. Raises ConflictError if another one turned up that descends
        from one of those to delete.
        """

    def inform(self, codec: Codec) -> None:
        """Let a codec know what references know of the files that it has to write alike."""

    def reflog(self, branch: str) -> Iterator[BranchTip]:
        """The states of a branch, newest first; some formats list only the last ones."""

    def entries(self, tip: BranchTip, down_to: int) -> list[BranchTip]:
        """The states of a branch from `tip` down to one of a number, read at the same time.

        Fewer if some are not listed any more.
        """

    def snapshot_id(self, text: str) -> SnapshotId | None:
        """The snapshot that a text names, which need not exist; None if it can name none."""

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """Add what the file of a snapshot does not say, but references do."""

    def lineage(
        self, snapshot_id: SnapshotId, *, with_expired: bool = False
    ) -> Iterator[SnapshotStub] | None:
        """A snapshot and its ancestors, newest first; None where files alone know them.

        Those that expired are left out unless they are asked for; then some may be collected.
        """

    def listed_history(
        self, snapshot_id: SnapshotId, *, reread: bool = False
    ) -> Iterator[ListedCommit] | None:
        """Like `lineage` with all that a history shows, from one list.

        The one that was read last if it has the snapshot, unless it must be `reread`.
        """

    def earlier_logs(self, snapshot_id: SnapshotId) -> Sequence[SnapshotId] | None:
        """The snapshots, oldest first, whose logs belong to the changes that a commit made.

        They lay between the commit and its parent, and expired. Their logs are kept. None if that
        is not recorded: only the snapshots themselves tell whether there were any.
        """

    def expire(self, cuts: Mapping[SnapshotId, SnapshotId]) -> bool:
        """Give the oldest snapshots that are retained the parents that they have after expiry.

        False if that is recorded in objects beside the snapshots instead.
        """

    def listed_snapshots(self) -> Collection[SnapshotId]:
        """The snapshots that something lists besides references; empty where nothing does."""

    def snapshot_files(self) -> Mapping[SnapshotId, FileSum]:
        """What references remember of the files of snapshots, if they record it.

        Snapshots listed in separate files are included as far as these were read.
        """

    def remember(
        self,
        find: Callable[[SnapshotId], FileSum | None],
        written: Callable[[], Snapshot | None],
    ) -> None:
        """Take what knows the files of snapshots, and the one that was written last.

        For references that are published from now on and say something of their files.
        """

    def states(self, branch: str) -> Iterator[BranchState]:
        """The same as they are found, with those that are missing or damaged among them."""

    def fill_gap(self, missing: BranchState, before: SnapshotId | None) -> bool:
        """Put a state that repeats another one where one is missing; False if it is there now."""


class RefDefaults:
    """Answers of `Refs` that hold unless a format has more to say; they need nothing of it."""

    lists_snapshots: bool = False

    def start_at(self, tip: BranchTip) -> None:
        """Nothing to remember."""

    def check_writable(self, tip: LiveTip) -> None:
        """Every repository can be written to."""

    def check_same_repository(self, tip: LiveTip) -> None:
        """Publishing replaces one file, and compares the tip in it."""

    def check_move(self) -> None:
        """Every commit can move nodes."""

    def list_detached(self, snapshot: Snapshot) -> None:
        """Nothing lists snapshots."""

    def forget(
        self, snapshots: Collection[SnapshotId], reached: Collection[SnapshotId] = ()
    ) -> None:
        """Nothing lists snapshots."""

    def listed_snapshots(self) -> Collection[SnapshotId]:
        """Nothing lists snapshots."""
        return ()

    def inform(self, codec: Codec) -> None:
        """References have nothing that a codec needs."""

    def remember(
        self,
        find: Callable[[SnapshotId], FileSum | None],
        written: Callable[[], Snapshot | None],
    ) -> None:
        """References say nothing of the files of snapshots."""

    def snapshot_files(self) -> Mapping[SnapshotId, FileSum]:
        """References say nothing of the files of snapshots."""
        return {}

    def snapshot_id(self, text: str) -> SnapshotId | None:
        """The snapshot that a text names; None if it is not the text form of an id."""
        try:
            return SnapshotId.parse(text)
        except InvalidInputError:
            return None

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The file of a snapshot says everything."""
        return snapshot

    def lineage(
        self,
        snapshot_id: SnapshotId,  # noqa: ARG002
        *,
        with_expired: bool = False,  # noqa: ARG002
    ) -> Iterator[SnapshotStub] | None:
        """Only the files of snapshots know their ancestors."""
        return None

    def listed_history(
        self,
        snapshot_id: SnapshotId,  # noqa: ARG002
        *,
        reread: bool = False,  # noqa: ARG002
    ) -> Iterator[ListedCommit] | None:
        """Nothing lists commits."""
        return None

    def earlier_logs(self, snapshot_id: SnapshotId) -> Sequence[SnapshotId] | None:  # noqa: ARG002
        """Nothing: a commit's own log has all of its changes."""
        return ()

    def expire(self, cuts: Mapping[SnapshotId, SnapshotId]) -> bool:  # noqa: ARG002
        """Objects beside the snapshots say where histories end."""
        return False

    def fill_gap(self, missing: BranchState, before: SnapshotId | None) -> bool:  # noqa: ARG002
        """There are no gaps: a branch has one state, or one file has all of them."""
        return False


@runtime_checkable
class SelfDescription(Protocol):
    """References that also describe the repository: version 2 of `icechunk`."""

    def updates(self) -> Iterator[Update]:
        """The log of operations, newest first, as far as it is stored."""

    def status(self) -> RepoStatus:
        """Whether the repository may be changed."""

    def set_status(self, status: RepoStatus) -> None:
        """Set whether the repository may be changed; the only change that is always allowed."""

    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository."""

    def set_metadata(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Change the metadata of the repository; returns what it is then."""

    def feature_flags(self) -> list[FeatureFlag]:
        """The feature flags that there are, with their settings."""

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Set a feature flag; None restores the default."""


class ConfigHistory(Protocol):
    """The configuration of a repository in a storage: documents that are numbered from 0."""

    is_with_refs: bool
    """Whether it is kept together with the references, and is first written by `create_all`."""

    def read(self) -> tuple[int, bytes] | None:
        """Number and JSON of the newest configuration; None if none was ever written."""

    def read_with(self, refs: Refs) -> tuple[int, bytes] | None:
        """The same; where it is kept together with the references, what these read last."""

    def write(self, expected_sequence: int | None, data: bytes) -> int:
        """Write the next configuration; returns its number.

        Raises ConflictError unless `expected_sequence` is still the newest (None: there is none).
        """

    def key(self, sequence: int) -> str:
        """Key of the document of a number."""

    def owns(self, key: str) -> bool:
        """Whether a key is that of such a document."""

    def read_legacy(self) -> bytes | None:
        """A configuration in YAML that another implementation left, if there is one."""


class NodeNumbering(StrEnum):
    """How a new node gets its number, which it keeps for life."""

    RANDOM = "random"
    """4 random bytes, behind 4 zeros."""
    SEQUENTIAL = "sequential"
    """The next number that no node of the history had, and 4 random bytes behind it: the number
    fits narrow columns, and nodes of different branches that have one number are still two."""


MAX_NODE_NUMBER = 2**32 - 1


def numbered_id(number: int, rest: bytes = bytes(4)) -> NodeId:
    """The id of a node with a number in front; ids sort as their numbers do."""
    return NodeId(number.to_bytes(4, "big") + rest)


def prefix_number(node_id: NodeId) -> int:
    """The number in front of a node id."""
    return int.from_bytes(node_id[:4], "big")


NODE_NUMBERS = f"{INTERNAL_PREFIX}node_numbers"
"""The property of a snapshot with the nodes whose numbers differ from their ids."""


def other_numbers(snapshot: Snapshot) -> dict[NodeId, int]:
    """The nodes whose numbers are not those in front of their ids.

    They came from another branch, when another node had the number here.
    """
    kept = snapshot.metadata.get(NODE_NUMBERS, {})
    try:
        numbers = {NodeId.parse(node_id): int(number) for node_id, number in kept.items()}
    except (InvalidInputError, AttributeError, TypeError, ValueError) as error:
        raise FormatError(f"snapshot {snapshot.id} has damaged numbers of nodes: {error}") from None
    wrong = [number for number in numbers.values() if not 0 <= number <= MAX_NODE_NUMBER]
    if wrong:
        raise FormatError(f"snapshot {snapshot.id} has a node of number {wrong[0]}")
    return numbers


class Generation(Record, frozen=True, kw_only=True, dict=True):
    """A generation of the format at one of its spec versions, as the engine sees it.

    The value itself is the generation at its newest version; `at` gives the others.
    """

    name: str
    """The name, for users."""
    spec_versions: tuple[int, ...]
    """Versions of the files that can be written, the newest last."""
    spec_version: int
    """Version of the files that are written."""
    level: int = DEFAULT_LEVEL
    """Of the compression by zstd, where files are compressed."""
    layout: Layout
    make_codec: Callable[[int, int], Codec]
    """Makes a codec that writes a spec version at a level of compression, and reads all."""
    open_refs: Callable[[int, Storage, BranchTip | None], Refs]
    """Opens the branches and tags of a spec version in a storage; a tip says where to look for a
    branch first."""
    open_config: Callable[[int, Storage], ConfigHistory]
    """Opens the configuration of a spec version in a storage."""
    keeps_logs: bool = False
    """Whether commits write transaction logs; where not, snapshots are compared instead."""
    node_numbering: NodeNumbering | None = None
    """How nodes get the numbers of 4 bytes that are their ids; None if ids have 8 bytes."""
    swaps_references: bool = False
    """Whether references move by replacing one file, so that storages must swap atomically."""
    index_at_end: bool = False
    """Whether the index of a manifest is at the end of its file, not at its beginning."""
    keeps_checksums: bool = True
    """Whether the format has checksums of chunks and of metadata files."""
    keeps_attribute_files: bool = True
    """Whether large attributes can have files of their own; else they stay in documents."""
    keeps_empty_chunks: bool = True
    """Whether chunks of no bytes can be written; those that exist are read and kept in any case."""
    max_chunks: int = 2**63 - 1
    """Chunks that an array may have along a dimension."""
    keeps_manifest_sets: bool = True
    """Whether several arrays can share a manifest, and manifests remember what set they are of."""
    refs_tell_version: bool = False
    """Whether a repository has the spec version of its references, whatever files it has."""
    is_official: bool = False
    """Whether the official package writes here too, which ignores icefloe's leases."""

    @property
    def replaces_snapshots(self) -> bool:
        """Whether expiry writes the files of snapshots again, with other parents."""
        return self.is_official and self.spec_version == 1

    @cached_property
    def codec(self) -> Codec:
        """The codec of this version and level; it may reuse earlier results."""
        return self.make_codec(self.spec_version, self.level)

    def make_refs(self, storage: Storage, seen: BranchTip | None = None) -> Refs:
        """Open the branches and tags in a storage; `seen` says where to look for a branch first."""
        return self.open_refs(self.spec_version, storage, seen)

    def make_config(self, storage: Storage) -> ConfigHistory:
        """Open the configuration in a storage."""
        return self.open_config(self.spec_version, storage)

    def at(self, spec_version: int | None = None, level: int | None = None) -> Generation:
        """The same generation with another spec version or compression, and a codec of its own.

        Raises InvalidInputError for a spec version that the generation does not have.
        """
        version = self.spec_version if spec_version is None else spec_version
        if version not in self.spec_versions:
            versions = " and ".join(map(str, self.spec_versions))
            raise InvalidInputError(
                f"the spec versions of the {self.name} generation are {versions}, found {version}"
            )
        return msgspec.structs.replace(
            self, spec_version=version, level=self.level if level is None else level
        )
