"""Sessions: a working tree on a branch, with all that users do with it; forks and merges."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.fork_overlaps import merge_metadata, same_chunks
from icefloe.changes.linked import any_overlap
from icefloe.changes.needed_groups import fill_groups
from icefloe.engine.async_twin import async_twin
from icefloe.engine.commit.manifests import write_tiles
from icefloe.engine.commit.publication import CommittedTree
from icefloe.engine.commit.unlinking import unlink_common
from icefloe.engine.commit.write import touched_chunks
from icefloe.engine.info import Diff
from icefloe.engine.retention.uncommitted import check_own_files
from icefloe.errors import ForkSessionError, InvalidInputError, InvalidTypeError
from icefloe.model.ids import ChunkFileId
from icefloe.model.nodes import NodeTable
from icefloe.packing.splits import possible_split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.linked import LinkedTile
    from icefloe.config.repository import RepositoryConfig
    from icefloe.engine.context import Context
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.packing.splits import Split
    from icefloe.zarr_store.store import IcefloeStore


class OverlapWarning(UserWarning):
    """Two forks of a session wrote the same chunk, or changed the same of a node."""


class Session(CommittedTree):
    """A view of one snapshot; a writable one collects changes until it is committed.

    Threads and event loops may share a session.
    """

    def __repr__(self) -> str:
        where = f"branch {self.branch!r}" if self.branch is not None else "read-only"
        return f"<icefloe.{type(self).__name__} {where} at {self.snapshot_id}>"

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise InvalidInputError(
                "a writable session cannot be pickled; use fork() and merge() to write from "
                "several processes"
            )
        return {"context": self._context, "snapshot_id": self._snapshot.id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        self.__init__(context, context.files.read_snapshot(state["snapshot_id"]))  # type: ignore[misc]

    # --- what it is

    @property
    def read_only(self) -> bool:
        """Whether the session only reads."""
        return self._tip is None

    @property
    def mode(self) -> str:
        """`readonly` or `writable`; a writable session also moves nodes."""
        return "readonly" if self.read_only else "writable"

    @property
    def snapshot_id(self) -> str:
        """The snapshot that the session shows or is based on."""
        return str(self._snapshot.id)

    @property
    def branch(self) -> str | None:
        """The branch that a commit goes to; None when read-only."""
        return None if self._tip is None else self._tip.branch

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether there is something to commit."""
        return not self._changes.is_empty

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration."""
        return self._context.config.copy()

    @property
    def store(self) -> IcefloeStore:
        """A Zarr store on this session; all of them share its state."""
        from icefloe.zarr_store.store import IcefloeStore

        return IcefloeStore(self)

    # --- regions

    def read_region(
        self,
        path: str,
        selection: Any = ...,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Read a box of an array, without an object for each chunk.

        Gives the values that Zarr gives, for any codec and data type.

        Args:
            path: Path of the array.
            selection: Integers, slices (also with steps) and an ellipsis, as numpy takes them.
            out: An array to read into; a new one if not given.

        Returns:
            The values, always as an array: one without axes if integers select all axes.
        """
        from icefloe.arrays.transfer import read_region

        return read_region(self, path, selection, out)

    def write_region(
        self,
        path: str,
        selection: Any,
        values: npt.ArrayLike,
        *,
        write_empty_chunks: bool | None = None,
    ) -> None:
        """Write a box of an array, without an object for each chunk.

        Chunks that the selection covers in part are read first. Two writers of parts of one
        chunk must not write at the same time: one of them would undo what the other did.

        Args:
            path: Path of the array.
            selection: Integers, slices (also with steps) and an ellipsis, as numpy takes them.
            values: What to write; numpy's rules of broadcasting hold.
            write_empty_chunks: Whether to keep chunks that only have the fill value, instead of
                deleting them; as Zarr's setting `array.write_empty_chunks` says if not given.
        """
        from icefloe.arrays.transfer import write_region

        write_region(self, path, selection, values, write_empty_chunks=write_empty_chunks)

    read_region_async = async_twin(read_region)
    write_region_async = async_twin(write_region)

    def status(self) -> Diff:
        """What the session changed so far."""
        with self._lock:
            log = self._changes.log(touched_chunks(self._changes, self._view.chunks))
            after = NodeTable.of(self._changes.all_nodes())
            return Diff(log, self._snapshot.nodes, after)

    @staticmethod
    def _looking_at(context: Context, snapshot: Snapshot, changes: ChangeSet | None) -> Session:
        """A read-only session on a snapshot, with changes laid over it if given."""
        return looking_at(context, snapshot, changes)

    # --- cooperating writers

    def fork(self) -> ForkSession:
        """A copy for another process or thread, whose changes are merged back before the commit.

        Fork before you write: a fork does not see uncommitted changes.
        """
        with self._lock:
            if self.read_only:
                raise InvalidInputError(
                    "a read-only session is not forked; it can be pickled and shared as it is"
                )
            if not self._changes.is_empty:
                raise InvalidInputError(
                    "cannot fork a session with uncommitted changes. Please commit first, or fork "
                    "before you write"
                )
            self._unmerged_forks = True
            return ForkSession(self._context, self._snapshot, self._tip, self._default_metadata)

    def part(self) -> ForkSession:
        """A fork for the tasks of one job, which sees the nodes that this session made or changed.

        It does not see uncommitted chunks. What its copies write comes back as columns, by
        `ForkSession.written` and `set_chunk_refs`, instead of by `merge`.
        """
        with self._lock:
            self._check_writable()
            part = ForkSession(self._context, self._snapshot, self._tip, self._default_metadata)
            nodes = self._changes.copy()
            nodes.linked = {}
            nodes.chunks = {
                node_id: _only_cleared(edits)
                for node_id, edits in nodes.chunks.items()
                if edits.cleared
            }
            part._show(self._snapshot, nodes)  # noqa: SLF001
            return part

    def can_link(self, path: str) -> bool:
        """Whether manifests of an array can be written before the commit, for `link_tiles`.

        Not those of a new one where only the commit knows the ids of new nodes, as in the
        generations `store` and `dataset`: the manifests would name another node.
        """
        with self._lock:
            node = self._view.array(path)
            numbered_later = self._context.format.node_numbering is not None
            return not (numbered_later and node.id in self._changes.new)

    def link_tiles(self, path: str, tiles: Sequence[LinkedTile]) -> None:
        """Take over tiles of an array whose manifests parts of this session have written.

        Until the commit, reads do not show them.
        """
        with self._lock:
            self._check_writable()
            node = self._view.array(path)
            if not self.can_link(path):
                raise InvalidInputError(
                    f"manifests were written for {path}, a new array whose id is given by the "
                    "commit; give its references to set_chunk_refs, or commit it first"
                )
            known = self._changes.linked.setdefault(node.id, [])
            together = sorted([*known, *tiles], key=lambda tile: tile.extents.lower)
            if together and any_overlap([tile.reach for tile in together]):
                raise InvalidInputError(f"two manifests were written for one tile of {path}")
            self._changes.linked[node.id] = together

    def merge(self, *others: ForkSession) -> None:
        """Take over the changes of forks.

        Where two wrote one chunk, the later one wins, and an OverlapWarning says which chunks:
        most often tasks were not cut along chunks, and one overwrote what the other wrote. The
        metadata of a node that two changed is merged key by key; contradictions are told, too.
        """
        for other in others:
            if not isinstance(other, ForkSession):
                raise InvalidTypeError(
                    f"only forks can be merged; Received {type(other).__name__!r}. "
                    "Use fork() to make one"
                )
        # Each fork is copied under its own lock before ours is taken: two sessions that merge each
        # other do not wait for each other.
        parts = [(other, other._portable_changes()) for other in others if other is not self]  # noqa: SLF001
        with self._lock:
            self._check_writable()
            merged = self._portable_changes()
            for other, changes in parts:
                if other.snapshot_id != self.snapshot_id:
                    raise InvalidInputError(
                        f"cannot merge a fork of snapshot {other.snapshot_id} into a session on "
                        f"{self.snapshot_id}"
                    )
                if other._tip != self._tip:  # noqa: SLF001
                    # A collection may lie between the two places, which our commit does not see.
                    check_own_files(self._context, changes)
                unlink_common(self._context.files, merged, changes)
                _warn_of_overlap(merged, changes, self._base_document)
                merged.absorb(changes)
                fill_groups(merged)
            if parts:
                self._show(self._snapshot, merged)
            self._unmerged_forks = False

    def _base_document(self, node: Node) -> bytes:
        return self._context.files.document(node, self._snapshot)

    merge_async = async_twin(merge)

    def allow_pickling(self) -> None:
        """Removed from the official API; use fork and merge."""
        raise RuntimeError("allow_pickling() does not exist any more: use fork() and merge()")


class ForkSession(Session):
    """A part of a session's work: it can be pickled and written to, and is merged back."""

    _is_leased = False  # the session that it came from has a lease for both

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            self._packs.write_all()
            self._context.storage.sync()
            return {
                "context": self._context,
                "snapshot_id": self._snapshot.id,
                "tip": self._tip,
                "changes": self._changes.copy(),
                "metadata": self._default_metadata,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        snapshot = context.files.read_snapshot(state["snapshot_id"])
        Session.__init__(self, context, snapshot, state["tip"], state["metadata"])
        changes: ChangeSet = state["changes"]
        changes.rebase(snapshot.nodes)
        self._show(snapshot, changes)

    def written(self) -> dict[str, tuple[ArrayChunks | None, ChunkIndex | None]]:
        """References of the chunks that were written, and which ones were deleted, by array."""
        with self._lock:
            self._packs.write_all()
            self._context.storage.sync()
            found = {}
            for node_id, edits in self._changes.chunks.items():
                node = self._changes.by_id(node_id)
                if node is not None and not edits.is_empty:
                    found[node.path] = edits.own()
            return found

    def put_object(self, data: bytes) -> ChunkFileId:
        """Put bytes into an object that nothing refers to, for tasks that come after this one."""
        place = ChunkFileId.random()
        self._context.storage.put(self._context.format.layout.chunk_file(place), data)
        return place

    def get_object(self, place: ChunkFileId) -> bytes:
        """What another part gave to `put_object`."""
        return self._context.storage.get(self._context.format.layout.chunk_file(place))

    def written_tiles(self, path: str, split: Split | None = None) -> list[LinkedTile] | None:
        """Write the manifests of the parts of an array that were edited, for `link_tiles`.

        Args:
            path: The array.
            split: How it is split; by default, as if it had all chunks of its grid.

        Returns:
            None if they must be written with the rest of the array (see `write_tiles`), or by the
            commit (see `can_link`).
        """
        with self._lock:
            if not self.can_link(path):
                return None
            node = self._view.array(path)
            split = split or possible_split(node, self._context.settings)
            if split is None:
                return None
            self._packs.write_all()
            edits = self._changes.edits(node)
            tiles = write_tiles(
                self._context.files, self._snapshot, self._view.chunks, node, edits, split
            )
            self._context.storage.sync()
            return tiles

    def fork(self) -> ForkSession:
        """A fork of a fork; only while it has no changes."""
        child = super().fork()
        self._unmerged_forks = False
        return child

    def commit(self, *_: Any, **__: Any) -> str:
        """Refuse: the session that was forked commits."""
        raise ForkSessionError(
            "Cannot commit a fork of a Session. Merge it into the session it came from"
        )

    def flush(self, *_: Any, **__: Any) -> str:
        """Refuse: the session that was forked flushes."""
        raise ForkSessionError(
            "Cannot flush a fork of a Session. Merge it into the session it came from"
        )

    def amend(self, *_: Any, **__: Any) -> str:
        """Refuse: the session that was forked amends."""
        raise ForkSessionError(
            "Cannot amend a fork of a Session. Merge it into the session it came from"
        )


def _warn_of_overlap(
    ours: ChangeSet, later: ChangeSet, document_of: Callable[[Node], bytes]
) -> None:
    chunks, metadata = same_chunks(ours, later), merge_metadata(ours, later, document_of)
    if chunks:
        warnings.warn(
            f"forks wrote the same chunks, and the later one wins: {'; '.join(chunks)}. "
            "Cut the work along chunks so that no two tasks write one",
            OverlapWarning,
            stacklevel=3,
        )
    if metadata:
        warnings.warn(
            f"forks changed the same nodes, and the later one wins: {'; '.join(metadata)}. Resize, "
            "move and delete before you fork, or after the forks are merged",
            OverlapWarning,
            stacklevel=3,
        )


def _only_cleared(edits: ChunkEdits) -> ChunkEdits:
    """Of some edits, only that all chunks of the base are gone."""
    cleared = ChunkEdits(edits.rank)
    cleared.cleared = True
    return cleared


def looking_at(context: Context, snapshot: Snapshot, changes: ChangeSet | None) -> Session:
    """A read-only session on a snapshot, with changes laid over it if given."""
    session = Session(context, snapshot)
    if changes is not None:
        session._show(snapshot, changes)  # noqa: SLF001
    return session
