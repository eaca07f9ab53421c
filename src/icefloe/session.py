"""Sessions and forks: what users call to read, write, commit and cooperate.

`Session` is a working tree (`engine/tree`) and a way into a branch (`engine/commit`);
`ForkSession` is a working tree that is merged back. These two packages do the work.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from typing import TYPE_CHECKING, Any

from icefloe.engine.async_twin import async_twin
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import (
    ForkSessionError,
    InvalidInputError,
    InvalidTypeError,
    SessionStateError,
)
from icefloe.lazy_names import collector_paused
from icefloe.model import paths
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.chunk_refs import ChunkKind, InlineRef, NativeRef, PendingRef, VirtualRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.changes.fork_changes import Inherited
    from icefloe.config.repository import RepositoryConfig
    from icefloe.engine.commit.forks import ForkedChanges
    from icefloe.engine.commit.publication import Publication
    from icefloe.engine.context import Context
    from icefloe.engine.info import Diff
    from icefloe.engine.tree.chunk_batches import ChunkBatch, ChunkBytes
    from icefloe.formats.port import LiveTip
    from icefloe.model.nodes import Node
    from icefloe.model.segments import FoundChunks, Segments
    from icefloe.model.session_mode import SessionMode
    from icefloe.model.virtual_spec import VirtualChunkSpec
    from icefloe.zarr_store.store import IcefloeStore

__all__ = ["ForkSession", "NotAStore", "Session", "TreeSession"]


class NotAStore:
    """An attribute that xarray reads of stores: raises an error that names what to pass instead.

    Without it, `xr.open_zarr(session)` raises zarr's "Unsupported type for store_like".
    """

    def __init__(self, advice: str) -> None:
        """Take what to write instead, as code."""
        self._advice = advice

    def __get__(self, instance: object, owner: type) -> NotAStore:
        """Raise where an instance is taken for a store."""
        if instance is None:
            return self
        raise InvalidTypeError(
            f"xarray and zarr open stores, found a {owner.__name__}: pass {self._advice}, or use "
            'xr.open_dataset(..., engine="icefloe")'
        )


class TreeSession:
    """Arrays, groups and chunks of a working tree, as users read and write them.

    The common base of sessions and forks.
    """

    supports_consolidated_metadata = NotAStore("`session.store`")

    def __init__(self, tree: WorkingTree) -> None:
        """Show a tree."""
        self.tree = tree
        """The engine's port: nodes, chunks and references, one or many at a time. For code that
        is built on top of sessions; it may change with any version."""

    def _repr_html_(self) -> str:
        """Show it in a notebook: its tree, with shapes and which chunks are there."""
        from icefloe.notebook import session_html

        return session_html(self.tree, f"{type(self).__name__}, {self.mode}")

    # --- what it is

    @property
    def read_only(self) -> bool:
        """Whether the session only reads."""
        return self.tree.read_only

    @property
    def mode(self) -> SessionMode:
        """`readonly` or `writable`; a writable session can also move nodes."""
        from icefloe.model.session_mode import SessionMode

        return SessionMode.readonly if self.read_only else SessionMode.writable

    @property
    def snapshot_id(self) -> str:
        """The snapshot that the session shows or is based on."""
        return str(self.tree.snapshot.id)

    @property
    def has_uncommitted_changes(self) -> bool:
        """Whether the session has uncommitted changes."""
        return not self.tree.changes.is_empty

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the repository's configuration."""
        return self.tree.context.config.copy()

    @property
    def store(self) -> IcefloeStore:
        """A Zarr store on this session; all of its stores share its state.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> array = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="i4")
            >>> array[:] = 7
            >>> zarr.open_group(session.store)["t"][:].tolist()
            [7, 7, 7, 7]
        """
        with collector_paused():
            from icefloe.zarr_store.store import IcefloeStore

        return IcefloeStore(self)

    @property
    def verify_chunks(self) -> bool:
        """Whether chunks are compared with their checksums when they are read.

        The initial value is that of the configuration; you can set it.
        """
        return self.tree.verify_chunks

    @verify_chunks.setter
    def verify_chunks(self, value: bool) -> None:
        self.tree.verify_chunks = value

    def status(self) -> Diff:
        """The uncommitted changes of the session.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> group = zarr.create_group(session.store, path="a")
            >>> sorted(session.status().new_groups)
            ['/', '/a']
        """
        from icefloe.engine.commit.write import uncommitted_diff

        return uncommitted_diff(self.tree)

    def allow_pickling(self) -> None:
        """Removed from the official API; use fork and merge."""
        raise RuntimeError("allow_pickling() does not exist any more: use fork() and merge()")

    # --- nodes

    def get_node(self, path: str) -> Node | None:
        """The array or group at a path, with its manifests; None if there is none."""
        return self.tree.get_node(paths.canonical(path))

    def get_node_id(self, path: str) -> str:
        """The id of a node, which stays the same when the node is moved."""
        return self.tree.get_node_id(paths.canonical(path))

    def move(self, from_path: str, to_path: str) -> None:
        """Move an array or group to another path; no data is written."""
        self.tree.move(paths.canonical(from_path), paths.canonical(to_path))

    get_node_id_async = async_twin(get_node_id)
    move_async = async_twin(move)

    # --- regions of arrays

    def read_region(
        self,
        path: str,
        selection: Any = ...,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Read a box of an array, without an object for each chunk.

        Returns the same values as Zarr, for any codec and data type.

        Args:
            path: Path of the array.
            selection: Integers, slices (optionally with steps) and an ellipsis, as in numpy.
            out: An array to read into; a new one if not given.

        Returns:
            The values, always as an array: one without axes if integers select all axes.

        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> a = zarr.create_array(session.store, name="a", shape=(4,), dtype="i4", fill_value=0)
        >>> session.write_region("a", slice(1, 3), 7)
        >>> session.read_region("a").tolist()
        [0, 7, 7, 0]
        """
        from icefloe.arrays.transfer import read_region

        return read_region(self.tree, path, selection, out)

    def write_region(
        self,
        path: str,
        selection: Any,
        values: npt.ArrayLike,
        *,
        write_empty_chunks: bool | None = None,
    ) -> None:
        """Write a box of an array, without an object for each chunk.

        Chunks that the selection covers in part are read first. Do not write to parts of the same
        chunk concurrently: one writer would overwrite the other's changes.

        Args:
            path: Path of the array.
            selection: Integers, slices (optionally with steps) and an ellipsis, as in numpy.
            values: The values to write; they are broadcast as in numpy.
            write_empty_chunks: Whether to keep chunks that only have the fill value, instead of
                deleting them; by default, the value of Zarr's setting `array.write_empty_chunks`.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> array = zarr.create_array(
            ...     session.store, name="a", shape=(2, 4), chunks=(1, 2), dtype="i4"
            ... )
            >>> session.write_region("a", (1, slice(None, None, 2)), [5, 6])
            >>> session.read_region("a").tolist()
            [[0, 0, 0, 0], [5, 0, 6, 0]]
        """
        from icefloe.arrays.transfer import write_region

        write_region(self.tree, path, selection, values, write_empty_chunks=write_empty_chunks)

    read_region_async = async_twin(read_region)
    write_region_async = async_twin(write_region)

    # --- chunks

    def get_chunk(
        self,
        path: str,
        coords: tuple[int, ...],
        byte_range: ByteRange = WHOLE,
        *,
        verify: bool | None = None,
    ) -> bytes | None:
        """Read the stored bytes of a chunk, or a part of them; None if it is not initialised.

        `verify` determines whether the complete chunk is compared with its checksum; the default is
        `verify_chunks`.
        """
        return self.tree.get_chunk(paths.canonical(path), coords, byte_range, verify=verify)

    def read_chunks(
        self, path: str, coords: npt.NDArray[np.integer], *, verify: bool | None = None
    ) -> Iterator[FoundChunks]:
        """Read the stored bytes of many chunks; those in no group are not initialised.

        Neighbouring chunks of a file are fetched together, with several concurrent requests. Groups
        are returned in any order. Segments are views of the fetched bytes, not copies. Fetching
        pauses while the caller processes groups slowly.

        Args:
            path: Path of an array.
            coords: Coordinates of the chunks, (n, rank), without duplicates; those outside the grid
                are not initialised.
            verify: Whether to compare the bytes with their checksums; the default is
                `verify_chunks`.
        """
        return self.tree.read_chunks(paths.canonical(path), coords, verify=verify)

    def write_chunks(self, path: str, coords: npt.NDArray[np.integer], segments: Segments) -> None:
        """Write the stored bytes of many chunks; segment `i` is the chunk at `coords[i]`.

        Small chunks are buffered for a pack; full packs and large chunks are written immediately,
        several at a time, and the call returns when they are on the storage. If it fails, none of
        the chunks is set, and you can try again.
        """
        self.tree.write_chunks(paths.canonical(path), coords, segments)

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """Coordinates of all initialised chunks, one by one."""
        from icefloe.engine.tree.chunk_batches import WINDOW_REFS

        reader = self.tree.array_reader(paths.canonical(array_path))
        tables = reader.tables(max(batch_size, WINDOW_REFS))
        while (table := await asyncio.to_thread(next, tables, None)) is not None:
            coords = table.index.coords()
            for start in range(0, len(coords), batch_size):
                batch = coords[start : start + batch_size]
                # By columns, so that the rows are tuples at once.
                rows = zip(*batch.T.tolist(), strict=True) if batch.shape[1] else [()] * len(batch)
                for row in rows:
                    yield row

    def chunk_batches(self, array_path: str, batch_size: int = 100_000) -> Iterator[ChunkBatch]:
        """All chunk references of an array as columns, batch by batch.

        Reads some manifests at a time: memory depends on `batch_size`, not on the size of the
        array. It shows the state of the session at the time of the call, whatever is written
        meanwhile. The chunks of a small array are in row-major order; those of an array with
        several manifests are ordered by manifest.
        """
        containers = self.tree.settings.virtual_chunk_containers
        return self.tree.array_reader(paths.canonical(array_path)).batches(batch_size, containers)

    def chunk_count(self, array_path: str, kind: ChunkKind | None = None) -> int:
        """Number of initialised chunks of an array, of one kind or of all.

        Counting all kinds reads only manifests that uncommitted changes affect.
        """
        return self.tree.array_reader(paths.canonical(array_path)).count(kind)

    def chunk_bytes(self, array_path: str) -> ChunkBytes:
        """Number of bytes of all chunks of an array, by where they are stored."""
        return self.tree.array_reader(paths.canonical(array_path)).bytes()

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkKind:
        """Where a chunk is stored."""
        match self.tree.locate(paths.canonical(array_path), tuple(chunk_coordinates)):
            case PendingRef() | NativeRef():
                return ChunkKind.NATIVE
            case InlineRef():
                return ChunkKind.INLINE
            case VirtualRef():
                return ChunkKind.VIRTUAL
            case None:
                return ChunkKind.UNINITIALIZED

    chunk_type_async = async_twin(chunk_type)

    def shift_array(self, array_path: str, chunk_offset: Sequence[int]) -> None:
        """Shift all chunks of an array by whole chunks; those that leave the grid are dropped.

        Vacated chunks read as the fill value.
        """
        from icefloe.engine.tree.rearranging import shifted_by

        path = paths.canonical(array_path)
        self.tree.rearrange_chunks(path, shifted_by(chunk_offset, path))

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[tuple[int, ...]], Sequence[int] | None],
        backward: Callable[[tuple[int, ...]], Sequence[int] | None] | None = None,  # noqa: ARG002
    ) -> None:
        """Give each chunk the index that `forward` returns for it; None drops the chunk.

        Vacated chunks read as the fill value, so `backward`, with which the official package clears
        them, is accepted but not needed.
        """
        from icefloe.engine.tree.rearranging import reindexed_by

        self.tree.rearrange_chunks(paths.canonical(array_path), reindexed_by(forward))

    # --- virtual chunks

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec] | object | None = None,
        *,
        coords: npt.ArrayLike | None = None,
        start: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        locations: Any = None,
        location_codes: npt.ArrayLike | None = None,
        offsets: Any = None,
        lengths: Any = None,
        etags: Any = None,
        last_modified: Any = None,
        validate_containers: bool = True,
    ) -> list[tuple[int, ...]] | None:
        """Set many virtual chunks of an array: ranges of objects outside the repository.

        Pass a list of VirtualChunkSpec, or columns, or an Arrow table (any object with the Arrow
        PyCapsule interface) whose columns have the names of the arguments below. If coordinates
        repeat, the later row wins. If anything is invalid, nothing is set.

        Args:
            array_path: Path of the array.
            chunks: A list of VirtualChunkSpec, or an Arrow table.
            coords: Coordinates of the chunks, (n, rank); in a table, lists.
            start: Instead of `coords`: first chunk of a box that the rows fill in row-major order;
                zeros if not given.
            shape: Number of chunks of that box along each dimension. An empty location skips a
                chunk.
            locations: URLs of the objects: a list, a numpy or Arrow array (also
                dictionary-encoded), or one URL for all chunks.
            location_codes: For each chunk the number of its location; then `locations`, `etags`
                and `last_modified` have an entry for each distinct object instead.
            offsets: Offsets of the chunks in the objects, in bytes; one number applies to all.
            lengths: Lengths of the chunks, in bytes; one number applies to all.
            etags: Etags of the objects; None or empty where unknown, one applies to all.
            last_modified: Times since which the objects must not have changed: datetimes with a
                timezone, datetime64 or Arrow timestamps in UTC, or seconds since 1970; one applies
                to all.
            validate_containers: Skip locations that are in no virtual chunk container of the
                repository's configuration.

        Returns:
            The coordinates of chunks that were skipped because no container has their location;
            None if there are none.

        Examples:
            >>> import icefloe, zarr
            >>> config = icefloe.RepositoryConfig.default()
            >>> store = icefloe.s3_store(region="eu-west-1")
            >>> container = icefloe.VirtualChunkContainer("s3://data/", store)
            >>> config.set_virtual_chunk_container(container)
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage(), config)
            >>> session = repo.writable_session("main")
            >>> array = zarr.create_array(
            ...     session.store, name="a", shape=4, chunks=2, dtype="i4", compressors=None
            ... )
            >>> session.set_virtual_refs(
            ...     "a", coords=[[0], [1]], locations="s3://data/a.bin", offsets=[0, 8], lengths=8
            ... )
            >>> session.all_virtual_chunk_locations()
            ['s3://data/a.bin', 's3://data/a.bin']
        """
        from icefloe.engine.user_references import user_references

        path = paths.canonical(array_path)
        self.tree.check_writable()
        columns = {
            "coords": coords,
            "start": start,
            "shape": shape,
            "locations": locations,
            "location_codes": location_codes,
            "offsets": offsets,
            "lengths": lengths,
            "etags": etags,
            "last_modified": last_modified,
        }
        table, refused = user_references(
            chunks,
            columns,
            self.tree.get_array(path),
            self.tree.virtual_sources,
            validate_containers=validate_containers,
        )
        if table is not None:
            self.tree.set_chunk_refs(path, table)
        return refused or None

    def all_virtual_chunk_locations(self) -> list[str]:
        """URLs of all virtual chunks, one for each, array by array."""
        readers = map(self.tree.array_reader, self.tree.array_paths())
        return [url for reader in readers for urls in reader.virtual_locations() for url in urls]

    set_virtual_refs_async = async_twin(set_virtual_refs)
    all_virtual_chunk_locations_async = async_twin(all_virtual_chunk_locations)


class Session(TreeSession):
    """A view of one snapshot of a repository; a writable one collects changes to commit.

    `repository.readonly_session(...)` and `repository.writable_session(branch)` make sessions.

    - `store` is the session as a Zarr store: zarr, xarray and dask read and write through it.
    - `commit(message)` publishes all changes as the next snapshot of the branch, all or nothing.
      Afterwards the session is read-only, and shows the new snapshot.
    - `discard_changes()` drops them instead. `status()` lists them.
    - `fork()` and `merge()` let other processes write parts of one commit.

    Nobody else sees changes before they are committed. If another session has committed to the
    branch in the meantime, `commit` raises ConflictError; `rebase` the session and commit again, or
    let `commit(..., rebase_with=solver)` do both. Threads and event loops may share a session.

    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> group = zarr.create_group(session.store, attributes={"title": "example"})
    >>> session.has_uncommitted_changes
    True
    >>> snapshot_id = session.commit("first")
    >>> session.read_only, snapshot_id == repo.lookup_branch("main")
    (True, True)
    >>> zarr.open_group(repo.readonly_session("main").store, mode="r").attrs["title"]
    'example'
    """

    def __init__(self, tree: WorkingTree, publication: Publication | None = None) -> None:
        """Show a tree; with a publication, its changes can be committed."""
        super().__init__(tree)
        self.publication = publication
        """How changes get into the branch; None once the session is read-only."""
        self._has_unmerged_forks = False

    def __repr__(self) -> str:
        where = f"branch {self.branch!r}" if self.branch is not None else "read-only"
        return f"<icefloe.Session {where} at {self.snapshot_id}>"

    def __getstate__(self) -> dict[str, Any]:
        if not self.read_only:
            raise InvalidInputError(
                "a writable session cannot be pickled for other processes: open with a read-only "
                "session, repo.readonly_session(...), what they read, and use fork() and merge() "
                "to write from them"
            )
        return {"context": self.tree.context, "snapshot_id": self.tree.snapshot.id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        snapshot = context.files.read_snapshot(state["snapshot_id"])
        self.__init__(WorkingTree(context, snapshot))  # type: ignore[misc]

    @property
    def branch(self) -> str | None:
        """The branch that a commit goes to; None when read-only."""
        publication = self.publication
        return None if publication is None else publication.tip.branch

    # --- committing

    def discard_changes(self, path: str | None = None) -> None:
        """Discard all uncommitted changes, if there are any.

        With a path, only those of the node at that path and of its children; moves are kept.

        Args:
            path: Path of a node; the root by default.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> _ = zarr.create_group(session.store, path="a")
            >>> session.discard_changes()
            >>> session.has_uncommitted_changes
            False
        """
        with self.tree.lock:
            if path is not None:
                self.tree.discard(paths.canonical(path))
            elif self.publication is not None:
                self.tree.fork_points.clear()
                self.publication.discard_changes()

    def commit(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
        *,
        allow_empty: bool = False,
    ) -> str:
        """Publish the changes as the next snapshot of the branch, all or nothing.

        Afterwards the session is read-only.

        After CommitStateUnknownError (the outcome is unknown) it may be called again: if the first
        attempt succeeded, the second raises ConflictError, whatever the solver.

        Args:
            message: The message of the commit.
            metadata: Properties of the commit, as values that JSON can represent.
            rebase_with: Resolves conflicts if the branch has moved: the changes are rebased, and
                the commit is retried. The default is `RepositoryConfig.rebase_with`.
            rebase_tries: How often to rebase at most.
            allow_empty: Whether to commit without changes.

        Returns:
            The id of the new snapshot.

        Raises:
            ConflictError: The branch has moved, and there is no solver.
            RebaseFailedError: There are conflicts that the solver does not resolve.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> group = zarr.create_group(session.store, path="results")
            >>> snapshot_id = session.commit("results", metadata={"author": "me"})
            >>> repo.lookup_snapshot(snapshot_id).message
            'results'
        """
        from icefloe.changes.conflicts import check_solver

        default = self.tree.settings.rebase_with
        if rebase_with is not None:
            check_solver(rebase_with)
        elif default is not None:
            from icefloe.changes.solvers import configured_solver

            rebase_with = configured_solver(default)
        with self.tree.lock:
            publication = self._committable(allow_empty=allow_empty)
            said = publication.message(message, metadata)
            if rebase_with is None:
                snapshot = publication.commit(said)
            else:
                snapshot = publication.commit_or_rebase(said, rebase_with, rebase_tries, Session)
            self._end()
            return str(snapshot.id)

    def flush(self, message: str, metadata: dict[str, Any] | None = None) -> str:
        """Write the changes as a snapshot that no branch points to; returns its id."""
        with self.tree.lock:
            publication = self._committable(allow_empty=False)
            snapshot = publication.flush(publication.message(message, metadata))
            self._end()
            return str(snapshot.id)

    def amend(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        *,
        allow_empty: bool = False,
    ) -> str:
        """Replace the newest commit of the branch by one that also has these changes.

        Args:
            message: Message of the commit that replaces the newest one.
            metadata: Properties of the commit.
            allow_empty: Whether to amend without changes, to correct a message.

        Returns:
            The id of the new commit.

        Raises:
            ConflictError: If the branch moved since the session started.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="a gruop") as store:
            ...     _ = zarr.create_group(store, path="a")
            >>> session = repo.writable_session("main")
            >>> amended = session.amend("a group", allow_empty=True)
            >>> [commit.message for commit in repo.ancestry(branch="main")]
            ['a group', 'Repository initialized']
        """
        with self.tree.lock:
            publication = self._committable(allow_empty=allow_empty)
            snapshot = publication.amend(publication.message(message, metadata))
            self._end()
            return str(snapshot.id)

    def rebase(self, solver: ConflictSolver) -> None:
        """Replay the changes on the newest snapshot of the branch.

        Args:
            solver: Resolves conflicts: `ConflictDetector` none, `BasicConflictSolver` by rules.

        Raises:
            RebaseFailedError: If conflicts remain; the session is unchanged.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> ours, theirs = repo.writable_session("main"), repo.writable_session("main")
            >>> for session, path in ((ours, "a"), (theirs, "b")):
            ...     group = zarr.create_group(session.store, path=path)
            >>> first = theirs.commit("b")
            >>> ours.rebase(icefloe.ConflictDetector())
            >>> second = ours.commit("a")
        """
        from icefloe.changes.conflicts import check_solver

        check_solver(solver)
        with self.tree.lock:
            self._writable().rebase(solver, Session)

    commit_async = async_twin(commit)
    flush_async = async_twin(flush)
    amend_async = async_twin(amend)
    rebase_async = async_twin(rebase)

    def _writable(self) -> Publication:
        self.tree.check_writable()
        assert self.publication is not None
        return self.publication

    def _committable(self, *, allow_empty: bool) -> Publication:
        publication = self._writable()
        if self._has_unmerged_forks:
            warnings.warn(
                "this session was forked and no fork was merged back: changes of forks that are "
                "not merged are not committed",
                UserWarning,
                stacklevel=3,
            )
        if not self.has_uncommitted_changes and not allow_empty:
            raise SessionStateError(
                "cannot commit, no changes made to the session; write something first, or pass "
                "allow_empty=True"
            )
        return publication

    def _end(self) -> None:
        self.publication = None
        self._has_unmerged_forks = False

    # --- cooperating writers

    def fork(self) -> ForkSession:
        """A copy for another process or thread, whose changes are merged back before the commit.

        A fork starts with the uncommitted changes of the session, which are part of its pickle:
        commit or fork first if they are large. Merging includes only the changes of the fork
        itself.

        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> fork = session.fork()
        >>> group = zarr.create_group(fork.store, path="from/a/task")
        >>> session.merge(fork)
        >>> _ = session.commit("what a task wrote")
        """
        with self.tree.lock:
            if self.read_only:
                raise InvalidInputError(
                    "a read-only session is not forked; it can be pickled and shared as it is"
                )
            publication = self._writable()
            fork = _new_fork(self.tree, publication.tip, publication.default_metadata)
            self._has_unmerged_forks = True
            return fork

    def merge(self, *others: ForkSession) -> None:
        """Merge the changes of forks into this session.

        If two forks wrote the same chunk, the later one wins, and an OverlapWarning lists the
        chunks: usually the tasks were not aligned with chunks, and one overwrote the other's
        values. The metadata of a node that two forks changed is merged key by key; contradictions
        are listed, too.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> forks = [session.fork(), session.fork()]
            >>> for number, fork in enumerate(forks):  # in other threads or processes
            ...     group = zarr.create_group(fork.store, path=f"part{number}")
            >>> session.merge(*forks)
            >>> snapshot_id = session.commit("two parts")
        """
        from icefloe.engine.commit.forks import merge_forks

        forks = _changes_of(others)
        with self.tree.lock:
            merge_forks(self.tree, self._writable().tip, forks, stacklevel=2)
            self._has_unmerged_forks = False

    merge_async = async_twin(merge)


class ForkSession(TreeSession):
    """A writable copy of a session, for another thread or process.

    It can be pickled, written to, and merged: into the session that it came from, which then
    commits, or into another fork of it. It cannot commit.

    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repo.writable_session("main")
    >>> forks = [session.fork(), session.fork()]
    >>> for number, fork in enumerate(forks):  # in other threads or processes
    ...     group = zarr.create_group(fork.store, path=f"part{number}")
    >>> session.merge(*forks)
    >>> sorted(session.status().new_groups)
    ['/', '/part0', '/part1']
    """

    def __init__(
        self,
        tree: WorkingTree,
        tip: LiveTip,
        default_metadata: dict[str, Any] | None = None,
        inherited: Inherited | None = None,
    ) -> None:
        """Take a tree, and the tip of the branch that it will be committed to.

        Args:
            tree: The changes so far, over the snapshot of the session.
            tip: The tip.
            default_metadata: Properties of the commit.
            inherited: The changes that came from the session; None if it had none.
        """
        super().__init__(tree)
        self._inherited = inherited
        if inherited is not None:
            tree.fork_points.add(inherited.origin)
        self.tip = tip
        self.default_metadata = dict(default_metadata or {})

    @classmethod
    def part_of(cls, session: Session | ForkSession) -> ForkSession:
        """A fork for the tasks of one job, which sees the nodes that a session made or changed.

        It does not see uncommitted chunks. The chunks that its copies write are returned as
        columns, by `tree.written_chunks` and `tree.set_chunk_refs`, instead of by `merge`.
        """
        tree = session.tree
        with tree.lock:
            tree.check_writable()
            origin = session if isinstance(session, ForkSession) else session.publication
            assert origin is not None
            changes = tree.node_changes()
            part = WorkingTree(tree.context, tree.snapshot, changes, read_only=False)
            return cls(part, origin.tip, origin.default_metadata)

    def __repr__(self) -> str:
        return f"<icefloe.ForkSession branch {self.branch!r} at {self.snapshot_id}>"

    def __getstate__(self) -> dict[str, Any]:
        with self.tree.lock:
            self.tree.make_durable()
            return {
                "context": self.tree.context,
                "snapshot_id": self.tree.snapshot.id,
                "tip": self.tip,
                "changes": self.tree.changes.copy(),
                "metadata": self.default_metadata,
                "inherited": self._inherited,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        context: Context = state["context"]
        snapshot = context.files.read_snapshot(state["snapshot_id"])
        changes: ChangeSet = state["changes"]
        changes.rebase(snapshot.nodes)
        inherited: Inherited | None = state["inherited"]
        if inherited is not None:
            inherited.changes.rebase(snapshot.nodes)
        tree = WorkingTree(context, snapshot, changes, read_only=False)
        self.__init__(tree, state["tip"], state["metadata"], inherited)  # type: ignore[misc]

    @property
    def branch(self) -> str:
        """The branch that the session it came from commits to."""
        return self.tip.branch

    def discard_changes(self, path: str | None = None) -> None:
        """Discard all changes of this fork, or those of a node and of its children.

        The changes that the fork inherited stay.
        """
        with self.tree.lock:
            began_with = None if self._inherited is None else self._inherited.changes.copy()
            if path is None:
                self.tree.show(self.tree.snapshot, began_with)
            elif began_with is None:
                self.tree.discard(paths.canonical(path))
            else:
                raise SessionStateError(
                    "a fork of a session with uncommitted changes discards all of its own changes "
                    "or none: leave out the path"
                )

    def forked_changes(self) -> ForkedChanges:
        """The changes that `merge` includes."""
        from icefloe.engine.commit.forks import ForkedChanges

        with self.tree.lock:
            edits = self.tree.changes.chunks
            return ForkedChanges(
                base_id=self.tree.snapshot.id,
                tip=self.tip,
                cleared=frozenset(key for key, each in edits.items() if each.cleared),
                changes=self.tree.portable_changes(),
                inherited=self._inherited,
            )

    def fork(self) -> ForkSession:
        """A fork of a fork, to be merged into this one."""
        with self.tree.lock:
            return _new_fork(self.tree, self.tip, self.default_metadata)

    def merge(self, *others: ForkSession) -> None:
        """Merge the changes of other forks into this one; see `Session.merge`."""
        from icefloe.engine.commit.forks import merge_forks

        forks = _changes_of(tuple(other for other in others if other is not self))
        with self.tree.lock:
            merge_forks(self.tree, self.tip, forks, stacklevel=2)

    merge_async = async_twin(merge)

    # --- what only the session can do

    def commit(self, *_: Any, **__: Any) -> str:
        """Raise an error: the session that was forked commits."""
        raise _not_for_forks("commit")

    def flush(self, *_: Any, **__: Any) -> str:
        """Raise an error: the session that was forked flushes."""
        raise _not_for_forks("flush")

    def amend(self, *_: Any, **__: Any) -> str:
        """Raise an error: the session that was forked amends."""
        raise _not_for_forks("amend")

    def rebase(self, solver: ConflictSolver) -> None:  # noqa: ARG002
        """Raise an error: a fork that is based on another snapshot could no longer be merged."""
        raise _not_for_forks("rebase")

    commit_async = async_twin(commit)
    flush_async = async_twin(flush)
    amend_async = async_twin(amend)
    rebase_async = async_twin(rebase)


def _not_for_forks(verb: str) -> ForkSessionError:
    return ForkSessionError(
        f"Cannot {verb} a fork of a Session. Merge it into the session it came from"
    )


def _new_fork(tree: WorkingTree, tip: LiveTip, metadata: dict[str, Any]) -> ForkSession:
    if tree.changes.is_empty:
        fresh = WorkingTree(tree.context, tree.snapshot, read_only=False)
        return ForkSession(fresh, tip, metadata)
    from icefloe.changes.fork_changes import Inherited

    if tree.changes.linked:
        raise InvalidInputError(
            "cannot fork a session into which a job linked manifests. Please commit first"
        )
    tree.make_durable()
    inherited = Inherited(tree.portable_changes(), uuid.uuid4().hex)
    tree.fork_points.add(inherited.origin)
    copy = WorkingTree(tree.context, tree.snapshot, tree.changes.copy(), read_only=False)
    return ForkSession(copy, tip, metadata, inherited)


def _changes_of(forks: Sequence[ForkSession]) -> list[ForkedChanges]:
    """The changes of forks, each copied under its own lock.

    Before the lock of the session that merges them is taken: two that merge each other do not
    wait for each other.
    """
    for fork in forks:
        if not isinstance(fork, ForkSession):
            raise InvalidTypeError(
                f"only forks can be merged; Received {type(fork).__name__!r}. "
                "Use fork() to make one"
            )
    return [fork.forked_changes() for fork in forks]
