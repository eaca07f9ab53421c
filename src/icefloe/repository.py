"""The repository: creates and opens versioned Zarr hierarchies, and everything done with them.

A facade: each method hands over to a function that takes the repository's `Context`, in
`icefloe.engine` (history, branches, retention), `icefloe.upkeep` or `icefloe.arrays`. What few
programs need is imported when it is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from typing import TYPE_CHECKING, Any, Literal

from icefloe.config.repository import RepositoryConfig
from icefloe.engine.async_twin import async_function_twin, async_twin
from icefloe.engine.context import Context, VirtualAccess
from icefloe.engine.history.walk import Revision
from icefloe.engine.initialize import read_config, with_config
from icefloe.engine.preload import start_preload
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    InvalidTypeError,
)
from icefloe.formats.port import SelfDescription
from icefloe.formats.registry import (
    DEFAULT_GENERATION,
    detect,
    detect_damaged,
    discover,
    format_for,
)
from icefloe.model import MAIN
from icefloe.session import NotAStore, Session
from icefloe.storage.access.url import storage_from_url
from icefloe.storage.concurrency import together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
    from datetime import datetime, timedelta
    from os import PathLike

    from obstore.store import ObjectStore

    from icefloe.arrays.value_diff import ValueDiff
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.display import AncestryGraph
    from icefloe.engine.branches.commits import Committer
    from icefloe.engine.history.blame import Blame
    from icefloe.engine.info import Ancestry, Diff, ManifestFileInfo, SnapshotInfo
    from icefloe.engine.operation_log import Operation
    from icefloe.engine.retention.collection import GCSummary
    from icefloe.engine.retention.expiry import ExpirationPolicy
    from icefloe.engine.retention.leases import Lease
    from icefloe.formats.port import Generation, LiveTip, Refs
    from icefloe.formats.registry import Discovery
    from icefloe.model.ids import SnapshotId
    from icefloe.model.repo_updates import FeatureFlag, RepoStatus, Update
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.attribution import Attribution
    from icefloe.storage.port import Storage
    from icefloe.storage.settings import StorageSettings
    from icefloe.upkeep.compaction import CompactionSummary
    from icefloe.upkeep.findings import Problem, VerificationReport
    from icefloe.upkeep.materialize import Materialized
    from icefloe.upkeep.migration import MigrationReport
    from icefloe.upkeep.sizes import ChunkFileUsage, ChunkStorageStats, SnapshotSize
    from icefloe.upkeep.virtual_sources import VirtualSourcesReport
    from icefloe.zarr_store.store import IcefloeStore

    AnyStorage = Storage | str | PathLike[str] | ObjectStore

_MANIFEST_BYTES = 512 * 1024 * 1024


class Repository:
    """A Zarr hierarchy under version control, in a storage: commits, branches, tags, merges.

    Examples:
        >>> import icefloe, zarr
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> session = repo.writable_session("main")
        >>> array = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="i4")
        >>> array[:] = [1, 2, 3, 4]
        >>> first = session.commit("first values")
        >>> with repo.transaction("main", message="correct a value") as store:
        ...     zarr.open_array(store, path="t")[0] = 10
        >>> [commit.message for commit in repo.ancestry(branch="main")]
        ['correct a value', 'first values', 'Repository initialized']
        >>> old = repo.readonly_session("main~1")
        >>> zarr.open_array(old.store, path="t", mode="r")[:].tolist()
        [1, 2, 3, 4]

    Methods by task:

    - **create and open**: `create`, `open`, `open_or_create`, `exists`, `reopen`, `open_for_repair`
    - **read and write**: `readonly_session`, `writable_session` (then `Session.commit`),
      `transaction`
    - **history**: `ancestry`, `ancestry_graph`, `diff`, `diff_values`, `blame`, `lookup_snapshot`,
      `operations`
    - **branches and tags**: `create_branch`, `list_branches`, `lookup_branch`, `reset_branch`,
      `delete_branch`, `create_tag`, `list_tags`, `lookup_tag`
    - **merging**: `merge`, `cherry_pick`, `revert`, `squash`, `publish`
    - **version 2 of `icechunk`**: `ops_log`, `status`, `set_status`, `metadata`, `set_metadata`,
      `update_metadata`, `feature_flags`, `set_feature_flag`, `delete_tag`
    - **retention**: `expire_snapshots`, `garbage_collect`, `lease`
    - **upkeep**: `verify`, `repair`, `compact`, `rewrite_manifests`, `migrate`
    - **sizes**: `chunk_storage_stats`, `branch_storage_stats`, `array_storage_stats`,
      `snapshot_storage_stats`, `chunk_file_stats`
    - **virtual chunks**: `check_virtual_sources`, `materialize`
    - **inspect files**: `inspect_repo_info`, `inspect_snapshot`, `inspect_manifest`,
      `inspect_transaction_log`, `list_manifest_files`

    Wherever a method takes a branch, a tag or a snapshot id, the name may end in steps as in git:
    `main~3`, `main@{2026-01-31}`. Most methods have a form that ends in `_async`.
    """

    supports_consolidated_metadata = NotAStore('`repo.readonly_session("main").store`')

    def __init__(self, context: Context, attribution: Attribution | None = None) -> None:
        """Use `create`, `open` or `open_or_create` instead."""
        self._context = context
        self._attribution = attribution
        self._default_metadata: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<icefloe.Repository {self._context.storage.location}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook: where it is, and its newest commits."""
        from icefloe.notebook import repository_html

        return repository_html(self._context)

    # --- create and open

    @classmethod
    def create(
        cls,
        storage: AnyStorage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
        spec_version: int | None = None,
        *,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        generation: str = DEFAULT_GENERATION,
    ) -> Repository:
        """Create a repository; if several clients try at the same time, one succeeds.

        Args:
            storage: A storage, a URL or a path.
            config: Stored with the repository if given.
            authorize_virtual_chunk_access: Credentials, or None, by URL prefix of the virtual
                chunk containers that may be read.
            spec_version: Version of the generation's format to write.
            check_clean_root: Whether to raise an error if the location has other objects.
            attribution: Labels for requests to an object store.
            generation: The family of formats: `repository` (compact and fast), `store` (JSON),
                `dataset` (manifests are Parquet tables) or `icechunk` (the official package's
                format).

        Raises:
            AlreadyExistsError: If the location has a repository or other objects.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.list_branches()
            {'main'}
        """
        from icefloe.engine.initialize import begin_repository, publish_first

        location = _with_settings(storage, config, attribution)
        fmt = format_for(generation, spec_version)
        access = VirtualAccess.from_arguments(authorize_virtual_chunk_access, config)
        context = Context(location, fmt, config or RepositoryConfig.default(), access)
        begun = begin_repository(context, check_clean_root=check_clean_root)
        together(
            location,
            lambda: publish_first(context, begun.first, config, has_config=begun.has_config),
            begun.clean_up,
        )
        return cls(context, attribution)

    @classmethod
    def open(
        cls,
        storage: AnyStorage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
        *,
        attribution: Attribution | None = None,
    ) -> Repository:
        """Open a repository.

        Args:
            storage: A storage, a URL or a path.
            config: Overrides parts of the configuration that is stored with the repository.
            authorize_virtual_chunk_access: Credentials, or None, by URL prefix of the virtual
                chunk containers that may be read.
            attribution: Labels for requests to an object store.

        Raises:
            RepositoryNotFoundError: If there is none.

        Examples:
            >>> import icefloe
            >>> storage = icefloe.in_memory_storage()
            >>> _ = icefloe.Repository.create(storage)
            >>> icefloe.Repository.open(storage).list_branches()
            {'main'}
        """
        location = _with_settings(storage, config, attribution)
        try:
            discovered, config_found = with_config(
                location, lambda: discover(location), _format_of, _refs_of
            )
        except FormatError as error:
            from icefloe.engine.not_a_repository import damaged_or_a_website

            raise damaged_or_a_website(location, error) from error
        if discovered is None:
            from icefloe.engine.not_a_repository import not_a_repository

            raise not_a_repository(location)
        stored = config_found or RepositoryConfig.default()
        merged = stored if config is None else stored.merge(config)
        access = VirtualAccess.from_arguments(authorize_virtual_chunk_access, config)
        context = Context(location, discovered.format, merged, access, discovered)
        return cls(context, attribution)

    @classmethod
    def open_or_create(
        cls,
        storage: AnyStorage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
        create_version: int | None = None,
        *,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        generation: str = DEFAULT_GENERATION,
    ) -> Repository:
        """Open a repository, or create it if there is none; many clients may try at once.

        Args:
            storage: See `create`.
            config: See `create`.
            authorize_virtual_chunk_access: See `create`.
            create_version: Version of the generation's format, if it is created.
            check_clean_root: See `create`.
            attribution: See `create`.
            generation: The family of formats, if it is created.

        Examples:
            >>> import icefloe
            >>> storage = icefloe.in_memory_storage()
            >>> first = icefloe.Repository.open_or_create(storage)
            >>> again = icefloe.Repository.open_or_create(storage)
            >>> first.lookup_branch("main") == again.lookup_branch("main")
            True
        """
        from icefloe.engine.initialize import is_being_created, waits_for_creator

        location = _with_settings(storage, config, attribution)
        for pause in waits_for_creator():
            if cls.exists(location):
                break
            try:
                return cls.create(
                    location,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    check_clean_root=check_clean_root,
                    attribution=attribution,
                    generation=generation,
                )
            except AlreadyExistsError:
                if not is_being_created(location, format_for(generation).layout):
                    raise
            time.sleep(pause)
        return cls.open(location, config, authorize_virtual_chunk_access, attribution=attribution)

    @classmethod
    def open_for_repair(cls, storage: AnyStorage) -> Repository:
        """Open a repository whose branch main, newest snapshot or configuration is damaged.

        For `verify` and `repair`. Reading a damaged object still raises FormatError: icefloe never
        uses an earlier entry of a branch in place of a damaged newest one.
        """
        location = storage_from_url(storage)
        fmt = detect_damaged(location)
        if fmt is None:
            from icefloe.engine.not_a_repository import not_a_repository

            raise not_a_repository(location)
        config = None
        with contextlib.suppress(FormatError):  # verify reports it
            config = read_config(fmt, location)
        access = VirtualAccess.from_arguments(None, None)
        return cls(Context(location, fmt, config or RepositoryConfig.default(), access))

    @staticmethod
    def exists(storage: AnyStorage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether a location has a repository, that is, a branch `main`.

        Args:
            storage: A storage, a URL or a path.
            storage_settings: Settings for requests; by default those of the storage.

        Returns:
            True if there is one, of any generation of the format.

        Examples:
            >>> import icefloe
            >>> icefloe.Repository.exists(icefloe.in_memory_storage())
            False
        """
        return detect(_place(storage, storage_settings)) is not None

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
    ) -> Repository:
        """The same repository, with a configuration that is merged over the current one."""
        context = self._context
        merged = context.config if config is None else context.config.merge(config)
        access = VirtualAccess.from_arguments(
            context.access.authorizations
            if authorize_virtual_chunk_access is None
            else authorize_virtual_chunk_access,
            config,
        )
        confirmed = access.confirmed_prefixes | context.access.confirmed_prefixes
        access = VirtualAccess(access.authorizations, confirmed)
        twin = Repository(
            Context(context.storage, context.format, merged, access), self._attribution
        )
        twin._default_metadata = dict(self._default_metadata)
        return twin

    # --- sessions and commits

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A session that shows one committed snapshot, named by branch, tag or snapshot id.

        Args:
            branch: A branch; names may end in steps as in git: `main~3`, `main@{2026-01-31}`.
            tag: A tag.
            snapshot_id: The id of a snapshot.
            as_of: Together with a branch: its newest snapshot written up to this moment.

        Returns:
            A session whose store reads that snapshot, whatever others commit meanwhile.

        Raises:
            RefNotFoundError: If there is no such branch or tag.
            SnapshotNotFoundError: If there is no such snapshot.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="a title") as store:
            ...     group = zarr.create_group(store, attributes={"title": "example"})
            >>> session = repo.readonly_session("main")
            >>> zarr.open_group(session.store, mode="r").attrs["title"]
            'example'
            >>> repo.readonly_session("main~1").get_node("/") is None  # one commit before
            True
        """
        target = self._context.history.resolve(Revision(branch, tag, snapshot_id), as_of)
        return Session(WorkingTree(self._context, self._open_snapshot(target)))

    def writable_session(self, branch: str) -> Session:
        """A session whose changes `Session.commit` publishes on a branch.

        Args:
            branch: The branch to work on; the session starts at its newest snapshot.

        Returns:
            A writable session. Others see its changes only after the commit.

        Raises:
            RefNotFoundError: If there is no such branch.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> session = repo.writable_session("main")
            >>> array = zarr.create_array(session.store, name="t", shape=4, chunks=2, dtype="i4")
            >>> array[:] = 7
            >>> snapshot_id = session.commit("sevens")
        """
        from icefloe.engine.commit.publication import Publication
        from icefloe.storage.probe import ensure_conditional_writes

        storage = self._context.storage
        _, (tip, snapshot) = together(
            storage, lambda: ensure_conditional_writes(storage), lambda: self._open_tip(branch)
        )
        self._context.refs.check_writable(tip)
        tree = WorkingTree(self._context, snapshot, read_only=False)
        return Session(tree, Publication(tree, tip, self._default_metadata))

    def _open_tip(self, branch: str) -> tuple[LiveTip, Snapshot]:
        from icefloe.engine.branches import refs

        tip = refs.live_tip(self._context.refs, branch)
        return tip, self._open_snapshot(tip.snapshot_id)

    def _open_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Read a snapshot for a session; one that is not cached has its manifests preloaded."""
        files = self._context.files
        is_new = not files.has_snapshot(snapshot_id)
        snapshot = files.read_snapshot(snapshot_id)
        if is_new:
            start_preload(self._context, snapshot)
        return snapshot

    def rearrange_session(self, branch: str) -> Session:
        """The same as `writable_session`: every writable session can move nodes."""
        return self.writable_session(branch)

    @contextlib.contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
    ) -> Iterator[IcefloeStore]:
        """A store whose changes are committed when the block ends, and discarded if it raises.

        Args:
            branch: The branch to commit to.
            message: Message of the commit.
            metadata: Properties of the commit.
            rebase_with: Resolves conflicts if the branch moves in the meantime.
            rebase_tries: How often to rebase.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="a group") as store:
            ...     _ = zarr.create_group(store)
        """
        from icefloe.changes.conflicts import check_solver

        if rebase_with is not None:
            check_solver(rebase_with)
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with, rebase_tries)

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Set properties that every commit through this object gets, unless it overrides them."""
        from icefloe.engine.commit.commit_metadata import plain_metadata

        self._default_metadata = plain_metadata(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """The properties that every commit through this object gets."""
        from icefloe.engine.commit.commit_metadata import plain_metadata

        return plain_metadata(self._default_metadata)

    # --- configuration and properties

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration."""
        return self._context.config.copy()

    @property
    def context(self) -> Context:
        """The repository as the engine sees it, for code that is built on top of repositories.

        It may change with any version.
        """
        return self._context

    @property
    def storage(self) -> Storage:
        """The storage that the repository is in."""
        return self._context.storage

    @property
    def attribution(self) -> Attribution | None:
        """The labels of its requests to an object store, as passed when it was opened."""
        return self._attribution

    @property
    def spec_version(self) -> int:
        """Version of the format that commits are written in."""
        return self._context.format.spec_version

    @property
    def generation(self) -> str:
        """The family of formats that the repository belongs to."""
        return self._context.format.name

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """URL prefixes of the virtual chunk containers that may be read."""
        return set(self._context.access.authorizations)

    def save_config(self) -> None:
        """Store the current configuration with the repository."""
        from icefloe.engine.initialize import write_config

        write_config(self._context.format, self._context.storage, self._context.config)

    @staticmethod
    def fetch_config(storage: AnyStorage) -> RepositoryConfig | None:
        """The configuration stored with a repository; None if none was ever saved."""
        location = storage_from_url(storage)
        return with_config(location, lambda: detect(location), lambda fmt: fmt)[1]

    @staticmethod
    def fetch_spec_version(
        storage: AnyStorage, storage_settings: StorageSettings | None = None
    ) -> int | None:
        """Version of the format that a repository is written in; None if there is none."""
        fmt = detect(_place(storage, storage_settings))
        return None if fmt is None else fmt.spec_version

    # --- history

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Describe a snapshot by its id."""
        from icefloe.engine.info import SnapshotInfo

        return SnapshotInfo.of(self._context.history.with_shown_parent(self._read(snapshot_id)))

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Ancestry:
        """A snapshot and its ancestors, newest first; works with `for` and with `async for`.

        Args:
            branch: A branch, optionally with steps back: `main~3`.
            tag: A tag.
            snapshot_id: The id of a snapshot. Pass exactly one of the three.

        Returns:
            An iterator of `SnapshotInfo`: id, parent, message, time, metadata, manifests.

        Raises:
            RefNotFoundError: If there is no such branch or tag.
            SnapshotNotFoundError: If there is no such snapshot.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> [commit.message for commit in repo.ancestry(branch="main")]
            ['Repository initialized']
        """
        from icefloe.engine.info import Ancestry

        history, storage = self._context.history, self._context.storage
        # Otherwise the first step lists cuts, where it does not wait for them.
        is_late = self._context.refs.lists_snapshots or storage.capabilities.reads_are_immediate
        start, cuts = together(
            storage,
            lambda: history.resolve(Revision(branch, tag, snapshot_id)),
            lambda: None if is_late else history.cuts.all(),
        )
        # To find a branch or tag, its list of commits was read a moment ago, if there is one.
        return Ancestry(history, start, reread=snapshot_id is not None, known_cuts=cuts)

    async_ancestry = ancestry

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
        merges: bool = True,
    ) -> AncestryGraph:
        """All branches and tags with their history, as a graph to print or display.

        Args:
            branch: Only the history of this branch.
            tag: Only that of this tag.
            snapshot_id: Only that of this snapshot.
            plain: Whether to draw without colours.
            merges: Whether to show merges, which requires reading every snapshot; without them a
                few snapshots are enough for a long history.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> print(repo.ancestry_graph())  # doctest: +ELLIPSIS
            *  1CECHNKREP0F1RSTCMT0 (main) ... Repository initialized
        """
        from icefloe.display import AncestryGraph

        history = self._context.history
        start = None
        if (branch, tag, snapshot_id) != (None, None, None):
            start = history.resolve(Revision(branch, tag, snapshot_id))
        return AncestryGraph.of(history, merges=merges, start=start, plain=plain)

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """Which nodes and chunks changed between two snapshots that have a common ancestor.

        Args:
            from_branch: The first snapshot, by branch.
            from_tag: The same, by tag.
            from_snapshot_id: The same, by id.
            to_branch: The second snapshot, by branch.
            to_tag: The same, by tag.
            to_snapshot_id: The same, by id.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="an array") as store:
            ...     array = zarr.create_array(store, name="t", shape=4, chunks=2, dtype="i4")
            >>> with repo.transaction("main", message="two values") as store:
            ...     zarr.open_array(store, path="t")[2:] = [3, 4]
            >>> repo.diff(from_branch="main~1", to_branch="main").updated_chunks
            {'/t': [[1]]}
        """
        older = Revision(from_branch, from_tag, from_snapshot_id)
        newer = Revision(to_branch, to_tag, to_snapshot_id)
        older.check("from_branch, from_tag, or from_snapshot_id")
        newer.check("to_branch, to_tag, or to_snapshot_id")
        history = self._context.history
        before, after = together(
            self._context.storage,
            lambda: history.resolve(older),
            lambda: history.resolve(newer),
        )
        return history.diff(before, after)

    def diff_values(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
        arrays: str | Iterable[str] | None = None,
    ) -> ValueDiff:
        """How many cells of each written array differ between two snapshots, and by how much.

        Reads only chunks that were written in between, one at a time, of both snapshots.

        Args:
            from_branch: The first snapshot, by branch.
            from_tag: The same, by tag.
            from_snapshot_id: The same, by id.
            to_branch: The second snapshot, by branch.
            to_tag: The same, by tag.
            to_snapshot_id: The same, by id.
            arrays: Paths of arrays or groups to compare, or patterns such as `/era5/t*`; all by
                default.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="zeros") as store:
            ...     array = zarr.create_array(store, name="t", shape=4, chunks=2, dtype="f4")
            >>> with repo.transaction("main", message="correct a value") as store:
            ...     zarr.open_array(store, path="t")[3] = 1.5
            >>> repo.diff_values(from_branch="main~1", to_branch="main")
            /t: 1 cells changed, by up to 1.5 at [3]
        """
        from icefloe.arrays.value_diff import compare_values

        diff = self.diff(
            from_branch=from_branch,
            from_tag=from_tag,
            from_snapshot_id=from_snapshot_id,
            to_branch=to_branch,
            to_tag=to_tag,
            to_snapshot_id=to_snapshot_id,
        )
        before = self.readonly_session(from_branch, tag=from_tag, snapshot_id=from_snapshot_id)
        after = self.readonly_session(to_branch, tag=to_tag, snapshot_id=to_snapshot_id)
        with _long_call("compare values"):
            return compare_values(before.tree, after.tree, diff, arrays)

    def blame(
        self,
        path: str,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Blame:
        """Which commit last wrote each chunk of an array, as columns.

        Args:
            path: The path of an array.
            branch: A branch, optionally with steps back: `main~3`.
            tag: A tag.
            snapshot_id: The id of a snapshot. Pass exactly one of the three.

        Returns:
            The coordinates of the chunks and the commits that wrote them, as columns.

        Raises:
            NodeNotFoundError: If there is no such array in that version.

        Examples:
            >>> import icefloe, zarr, numpy as np
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="first") as store:
            ...     array = zarr.create_array(store, name="t", data=np.arange(4), chunks=2)
            >>> with repo.transaction("main", message="a correction") as store:
            ...     zarr.open_array(store, path="t")[3] = 40
            >>> blame = repo.blame("t", branch="main")
            >>> [repo.lookup_snapshot(blame.snapshot_id(chunk)).message for chunk in (0, 1)]
            ['first', 'a correction']
        """
        from icefloe.engine.history.blame import blame

        history = self._context.history
        return blame(history, history.resolve(Revision(branch, tag, snapshot_id)), path)

    def operations(self) -> Iterator[Operation]:
        """The operations on the repository, newest first: commits, branch moves, maintenance.

        Commits have the time and the properties that their writers set; other operations have the
        time of the storage's clock and the job that did them.
        """
        from icefloe.engine.operation_log import operations

        return operations(self._context.storage, self._context.history)

    # --- status, metadata and feature flags

    def ops_log(self) -> Iterator[Update]:
        """The updates that version 2 of `icechunk` records, by any package, newest first.

        `operations` is the log of the other generations.

        Examples:
            >>> import icefloe
            >>> storage = icefloe.in_memory_storage()
            >>> repo = icefloe.Repository.create(storage, generation="icechunk")
            >>> repo.create_tag("v1", repo.lookup_branch("main"))
            >>> [update.kind for update in repo.ops_log()]
            [TagCreated(name='v1'), RepoInitialized()]
        """
        return self._self_description("a log of updates").updates()

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """Like `ops_log`, for `async for`."""
        updates = await asyncio.to_thread(self.ops_log)
        while (update := await asyncio.to_thread(next, updates, None)) is not None:
            yield update

    @property
    def status(self) -> RepoStatus:
        """Whether the repository is writable, and the reason if not: see `set_status`."""
        return self.get_status()

    def get_status(self) -> RepoStatus:
        """Whether the repository is writable, and the reason if not."""
        return self._self_description("a status").status()

    def set_status(self, status: RepoStatus) -> None:
        """Make a repository of version 2 of `icechunk` read-only for everybody, or writable.

        Examples:
            >>> import icefloe
            >>> storage = icefloe.in_memory_storage()
            >>> repo = icefloe.Repository.create(storage, generation="icechunk")
            >>> repo.set_status(
            ...     icefloe.RepoStatus(icefloe.RepoAvailability.read_only, None, "moving house")
            ... )
            >>> repo.writable_session("main")
            Traceback (most recent call last):
            ...
            icefloe.errors.ReadOnlyError: the repository was made read-only: moving house; \
Repository.set_status makes it writable again
        """
        self._self_description("a status").set_status(status)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository: see `set_metadata`."""
        return self.get_metadata()

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of the repository."""
        return self._self_description("metadata of its own").metadata()

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata of a repository of version 2 of `icechunk`."""
        from icefloe.engine.commit.commit_metadata import plain_metadata

        new = plain_metadata(metadata)
        self._self_description("metadata of its own").set_metadata(lambda _: new)

    def update_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Add to the metadata of the repository; returns all of it.

        Examples:
            >>> import icefloe
            >>> storage = icefloe.in_memory_storage()
            >>> repo = icefloe.Repository.create(storage, generation="icechunk")
            >>> repo.set_metadata({"owner": "ocean group"})
            >>> repo.update_metadata({"doi": "10.5072/floe"})
            {'owner': 'ocean group', 'doi': '10.5072/floe'}
        """
        from icefloe.engine.commit.commit_metadata import plain_metadata

        new = plain_metadata(metadata)
        return self._self_description("metadata of its own").set_metadata(
            lambda present: {**present, **new}
        )

    def feature_flags(self) -> list[FeatureFlag]:
        """The operations that a repository of version 2 of `icechunk` allows or forbids.

        Examples:
            >>> import icefloe
            >>> storage = icefloe.in_memory_storage()
            >>> repo = icefloe.Repository.create(storage, generation="icechunk")
            >>> repo.set_feature_flag("delete_tag", False)
            >>> [(flag.name, flag.enabled) for flag in repo.feature_flags()]
            [('move_node', True), ('create_tag', True), ('delete_tag', False)]
        """
        return self._self_description("feature flags").feature_flags()

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """The feature flags that are on."""
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """The feature flags that are off."""
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001 (as known)
        """Turn a feature flag on or off; None restores its default."""
        self._self_description("feature flags").set_feature_flag(name, setting)

    def _self_description(self, what: str) -> SelfDescription:
        """The references, if they describe the repository; raises InvalidInputError if not."""
        references = self._context.refs
        if not isinstance(references, SelfDescription):
            raise InvalidInputError(
                f"a repository of the generation {self.generation!r}, version {self.spec_version}, "
                f"has no {what.removeprefix('a ')}: version 2 of 'icechunk' has; `migrate` copies "
                "a repository there"
            )
        return references

    # --- branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot.

        Args:
            branch: The name of the new branch.
            snapshot_id: Where it starts; `lookup_branch` gives the tip of another branch.

        Raises:
            AlreadyExistsError: If there is a branch of that name.
            SnapshotNotFoundError: If there is no such snapshot.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_branch("experiment", repo.lookup_branch("main"))
            >>> sorted(repo.list_branches())
            ['experiment', 'main']
        """
        from icefloe.engine.branches import refs

        refs.create_branch(self._context, branch, snapshot_id)

    def list_branches(self) -> set[str]:
        """Names of all branches.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.list_branches()
            {'main'}
        """
        return self._context.refs.branches()

    def lookup_branch(self, branch: str) -> str:
        """Id of the snapshot at the tip of a branch.

        Args:
            branch: A branch, optionally with steps back: `main~1`, `main@{2026-01-31}`.

        Returns:
            The id of the snapshot.

        Raises:
            RefNotFoundError: If there is no such branch.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.lookup_branch("main")
            '1CECHNKREP0F1RSTCMT0'
        """
        return str(self._context.history.resolve(Revision(branch=branch)))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Point a branch to another snapshot, as the next entry of its sequence.

        Args:
            branch: The branch.
            snapshot_id: The snapshot to point to.
            from_snapshot_id: The snapshot that it must point to now; not checked by default.

        Raises:
            ConflictError: If it points to another snapshot, or moved in the meantime.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="a mistake") as store:
            ...     _ = zarr.create_group(store, path="a")
            >>> repo.reset_branch("main", repo.lookup_branch("main~1"))
            >>> [commit.message for commit in repo.ancestry(branch="main")]
            ['Repository initialized']
        """
        from icefloe.engine.branches import refs

        refs.reset_branch(self._context, branch, snapshot_id, from_snapshot_id)

    def delete_branch(self, branch: str, *, from_snapshot_id: str | None = None) -> None:
        """Delete a branch other than `main`. Its snapshots stay until garbage collection.

        Args:
            branch: The name of the branch.
            from_snapshot_id: Delete it only if it points to this snapshot, so that no concurrent
                commit is lost.

        Raises:
            RefNotFoundError: If there is no such branch.
            ConflictError: If it does not point to `from_snapshot_id`.
            InvalidInputError: If it is `main`.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_branch("experiment", repo.lookup_branch("main"))
            >>> repo.delete_branch("experiment")
            >>> repo.list_branches()
            {'main'}
        """
        from icefloe.engine.branches import refs

        refs.delete_branch(self._context, branch, from_snapshot_id)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Create a tag for a snapshot; it cannot be moved.

        Args:
            tag: The name of the new tag.
            snapshot_id: The snapshot to name.

        Raises:
            AlreadyExistsError: If a tag of that name exists or existed.
            SnapshotNotFoundError: If there is no such snapshot.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_tag("v1", repo.lookup_branch("main"))
            >>> repo.lookup_tag("v1") == repo.lookup_branch("main")
            True
        """
        from icefloe.engine.branches import refs

        refs.create_tag(self._context, tag, snapshot_id)

    def list_tags(self) -> set[str]:
        """Names of all tags.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_tag("v1", repo.lookup_branch("main"))
            >>> repo.list_tags()
            {'v1'}
        """
        return self._context.refs.tags()

    def lookup_tag(self, tag: str) -> str:
        """Id of the snapshot that a tag names.

        Args:
            tag: The name of the tag.

        Returns:
            The id of the snapshot.

        Raises:
            RefNotFoundError: If there is no such tag.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_tag("v1", repo.lookup_branch("main"))
            >>> repo.lookup_tag("v1") == repo.lookup_branch("main")
            True
        """
        return str(self._context.history.resolve(Revision(tag=tag)))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag of a repository of the generation `icechunk`; its name cannot be reused.

        Other generations raise an error: their specification says that tags cannot be deleted once
        created.
        """
        from icefloe.engine.branches import refs

        refs.delete_tag(self._context, tag)

    # --- merging

    def merge(
        self,
        from_branch: str,
        into_branch: str,
        *,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
        fast_forward: bool = True,
    ) -> str:
        """Merge a branch into another: a three-way merge as one commit.

        Compares the changes since the branches diverged chunk by chunk, metadata key by key and
        attribute by attribute. If `into_branch` has no new commits, it is moved forward instead.
        Merges are recorded, so a later merge includes only what is new.

        Args:
            from_branch: The branch whose changes to merge.
            into_branch: The branch that moves.
            message: Message of the commit.
            metadata: Properties of the commit.
            solver: Resolves conflicts, with `from_branch` as ours; MergeSolver() if not given,
                which merges metadata and reports chunks that both wrote.
            fast_forward: Whether to move the branch without a commit where that is enough.

        Returns:
            The id of the snapshot that `into_branch` points to afterwards.

        Raises:
            RebaseFailedError: If conflicts remain; then nothing was changed.
            SnapshotNotFoundError: If the last common commit has expired and was deleted.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_branch("work", repo.lookup_branch("main"))
            >>> for branch in ("main", "work"):
            ...     with repo.transaction(branch, message=f"on {branch}") as store:
            ...         _ = zarr.create_group(store, path=branch)
            >>> merged = repo.merge("work", "main")
            >>> sorted(zarr.open_group(repo.readonly_session("main").store, mode="r"))
            ['main', 'work']
        """
        from icefloe.engine.branches import merge

        return merge.merge(
            self._committer(solver),
            from_branch,
            into_branch,
            message=message,
            metadata=metadata,
            solver=solver,
            fast_forward=fast_forward,
        )

    def cherry_pick(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
    ) -> str:
        """Apply the changes of a commit to another branch; returns the id of the tip.

        Args:
            snapshot_id: The commit whose changes to apply.
            branch: The branch that gets them.
            message: Message of the new commit; that of the original by default.
            metadata: Properties of the new commit.
            solver: Resolves conflicts; by default they raise an error.

        Returns:
            The id of the branch's new tip.

        Raises:
            RebaseFailedError: If the branch changed the same chunks or metadata.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_branch("work", repo.lookup_branch("main"))
            >>> with repo.transaction("work", message="a group") as store:
            ...     group = zarr.create_group(store, path="a")
            >>> picked = repo.cherry_pick(repo.lookup_branch("work"), branch="main")
            >>> sorted(zarr.open_group(repo.readonly_session("main").store, mode="r"))
            ['a']
        """
        from icefloe.engine.branches import merge

        return merge.cherry_pick(
            self._committer(solver),
            self._read(snapshot_id).id,
            branch,
            message=message,
            metadata=metadata,
            solver=solver,
        )

    def revert(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
    ) -> str:
        """Undo the changes of a commit by a new commit on a branch; returns the id of the tip.

        Chunks that it replaced are restored; later changes of other chunks stay.

        Args:
            snapshot_id: The commit to undo.
            branch: The branch that has it.
            message: Message of the new commit.
            metadata: Properties of the new commit.
            solver: Resolves conflicts with later commits; by default they raise an error.

        Returns:
            The id of the branch's new tip.

        Raises:
            RebaseFailedError: If later commits changed the same chunks or metadata; nothing was
                changed.

        Examples:
            >>> import icefloe, zarr, numpy as np
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="values") as store:
            ...     array = zarr.create_array(store, name="t", data=np.arange(4), chunks=2)
            >>> with repo.transaction("main", message="a mistake") as store:
            ...     zarr.open_array(store, path="t")[:2] = 99
            >>> tip = repo.revert(repo.lookup_branch("main"), branch="main")
            >>> repo.readonly_session("main").read_region("t").tolist()
            [0, 1, 2, 3]
        """
        from icefloe.engine.branches import merge

        return merge.revert(
            self._committer(solver),
            self._read(snapshot_id).id,
            branch,
            message=message,
            metadata=metadata,
            solver=solver,
        )

    def squash(
        self,
        branch: str,
        since_snapshot_id: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Replace all commits of a branch after a snapshot by one.

        Other branches and tags keep the individual commits.

        Args:
            branch: The branch.
            since_snapshot_id: The last commit that is not squashed.
            message: Message of the new commit.
            metadata: Properties of the new commit.

        Returns:
            The id of the new commit.

        Raises:
            ConflictError: If the branch moved in the meantime.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> for name in ("a", "b"):
            ...     with repo.transaction("main", message=name) as store:
            ...         _ = zarr.create_group(store, path=name)
            >>> squashed = repo.squash("main", repo.lookup_branch("main~2"), message="both")
            >>> [commit.message for commit in repo.ancestry(branch="main")]
            ['both', 'Repository initialized']
        """
        from icefloe.engine.branches import commits

        since = self._read(since_snapshot_id).id
        return commits.squash(self._committer(), branch, since, message=message, metadata=metadata)

    def publish(self, from_branch: str, to_branch: str) -> str:
        """Move a branch forward to the tip of another that descends from its own.

        The last step of write, audit, publish: write on a branch, inspect it, then publish it.

        Args:
            from_branch: The branch with the new commits.
            to_branch: The branch to move forward, such as `main`.

        Returns:
            The id of the snapshot that both point to afterwards.

        Raises:
            ConflictError: If the branch has commits that the other does not have.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.create_branch("incoming", repo.lookup_branch("main"))
            >>> with repo.transaction("incoming", message="new data") as store:
            ...     _ = zarr.create_group(store, path="a")
            >>> repo.publish("incoming", "main") == repo.lookup_branch("incoming")
            True
        """
        from icefloe.engine.branches import commits

        return commits.fast_forward(self._context, from_branch, to_branch)

    # --- retention

    def expire_snapshots(
        self,
        older_than: datetime | timedelta | None = None,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        keep_last: int | None = None,
        branches: Mapping[str, ExpirationPolicy | None] | None = None,
        tags: Mapping[str, ExpirationPolicy | None] | None = None,
        dry_run: bool = False,
        job: str | None = None,
    ) -> set[str]:
        """Remove old snapshots from the history; `garbage_collect` then deletes what only they use.

        The first snapshot becomes the parent of the oldest retained snapshot. Snapshots that
        branches and tags point to stay. Expired snapshots can be read until they are collected.

        Args:
            older_than: Snapshots that were written before this moment expire; a timedelta means
                that long before now, by the storage's clock.
            delete_expired_branches: Delete branches whose tip expires; never `main`.
            delete_expired_tags: Delete tags whose snapshot expires; their names cannot be reused.
                Only in the generation `icechunk`: tags of the others are permanent.
            keep_last: How many of the newest snapshots of each history to retain at any age.
            branches: Other policies for some branches, by name or pattern (`release-*`); None
                retains the complete history.
            tags: The same for tags.
            dry_run: Only report what would expire.
            job: Name of the job, for the log of operations.

        Returns:
            Ids of the snapshots that expired, including tips that are old enough, although these
            stay.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> for number in range(5):
            ...     with repo.transaction("main", message=f"commit {number}") as store:
            ...         group = zarr.create_group(store, path=f"g{number}")
            >>> expired = repo.expire_snapshots(keep_last=2)
            >>> [commit.message for commit in repo.ancestry(branch="main")]
            ['commit 4', 'commit 3', 'Repository initialized']
        """
        from icefloe.engine.retention.expiry import ExpirationPolicy, expire
        from icefloe.storage.probe import ensure_conditional_writes

        if delete_expired_tags and not self._context.format.is_official:
            raise InvalidInputError(
                "tags cannot be deleted once created, so delete_expired_tags is not possible in a "
                f"repository of the generation {self.generation!r}; "
                "name things that come and go by branches, and use delete_expired_branches"
            )
        if older_than is None and keep_last is None and not (branches or tags):
            raise InvalidInputError("say what expires: pass older_than, keep_last or policies")
        ensure_conditional_writes(self._context.storage)
        with _long_call("expire"), self._context.storage.using_reserve():
            done = expire(
                self._context,
                ExpirationPolicy(older_than, keep_last),
                branches=branches or {},
                tags=tags or {},
                delete_branches=delete_expired_branches,
                delete_tags=delete_expired_tags,
                dry_run=dry_run,
            )
        if not dry_run:
            details: dict[str, Any] = {
                "snapshots": len(done.expired),
                "branches_deleted": list(done.branches),
            }
            if done.tags:
                details["tags_deleted"] = list(done.tags)
            self._log("expire_snapshots", details, job)
        return {str(snapshot_id) for snapshot_id in done.expired}

    def garbage_collect(
        self,
        delete_object_older_than: datetime | timedelta,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_BYTES,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_requests: int = 64,
        written_since: datetime | timedelta | None = None,
        job: str | None = None,
        max_concurrent_deletes: int | None = None,
        max_concurrent_listings: int | None = None,
    ) -> GCSummary:
        """Delete objects that nothing refers to.

        Never deletes what a branch, a tag or a lease reaches, nor anything younger than the given
        time. Sessions that are open for more than five minutes have a lease; younger ones are safe
        if the time is at least that long ago. A collection that dies does no harm; the next one
        finishes its work.

        Args:
            delete_object_older_than: Only objects that were written before this time are deleted,
                by the storage's clock; a timedelta means that long before now, and does not depend
                on the clock of this computer.
            dry_run: Only report what would be deleted.
            max_snapshots_in_memory: How many snapshots to hold in memory at a time.
            max_compressed_manifest_mem_bytes: How many bytes of manifests to read at a time.
            max_concurrent_manifest_fetches: How many manifests to read at a time.
            max_concurrent_requests: How many other requests to send at a time: listings, reads of
                references and snapshots, deletions.
            written_since: Only objects that were written since this time are deleted, and snapshots
                and manifests that are more than a day older are not read; a timedelta means that
                long before now. For frequent collections after recent failures.
            job: Name of the job, for the log of operations.
            max_concurrent_deletes: Lowers `max_concurrent_requests`.
            max_concurrent_listings: Lowers `max_concurrent_requests`.

        Examples:
            >>> import icefloe
            >>> from datetime import timedelta
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.garbage_collect(timedelta(days=7), dry_run=True).chunks_deleted
            0
        """
        from icefloe.engine.retention.collection import collect_garbage
        from icefloe.engine.retention.marking import MemoryLimits

        limits = MemoryLimits(
            snapshots=max_snapshots_in_memory,
            manifest_bytes=max_compressed_manifest_mem_bytes,
            manifest_fetches=max_concurrent_manifest_fetches,
            requests=min(
                limit
                for limit in (
                    max_concurrent_requests,
                    max_concurrent_deletes,
                    max_concurrent_listings,
                )
                if limit is not None
            ),
        )
        with _long_call("collect garbage"):
            summary = collect_garbage(
                self._context,
                delete_object_older_than,
                written_since=written_since,
                dry_run=dry_run,
                limits=limits,
            )
        if not dry_run:
            self._log("garbage_collect", _plain(summary), job)
        return summary

    def lease(
        self,
        *,
        holder: str | None = None,
        snapshot_ids: str | Iterable[str] = (),
        lifetime: timedelta | None = None,
    ) -> Lease:
        """A context manager that protects long work from garbage collection.

        Until the block ends, garbage collection deletes nothing that anyone wrote after it began,
        nor the given snapshots and what they refer to. Writable sessions take a lease automatically
        after five minutes. A background thread renews the lease; if this process dies, it expires.

        Args:
            holder: A name of the holder, shown to people; the host and process if not given.
            snapshot_ids: Snapshots (or branches, or tags) that are being read, one or many.
            lifetime: How long it stays valid after the process has died; an hour if not given.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.lease(holder="nightly export", snapshot_ids="main"):
            ...     session = repo.readonly_session("main")
        """
        from icefloe.engine.retention.leases import DEFAULT_LIFETIME
        from icefloe.engine.retention.pins import SnapshotLease

        names = [snapshot_ids] if isinstance(snapshot_ids, str) else snapshot_ids
        resolve = self._context.history.resolve
        return SnapshotLease(
            self._context.storage,
            self._context.format.layout,
            [resolve(Revision(snapshot_id=name)) for name in names],
            holder=holder,
            lifetime=DEFAULT_LIFETIME if lifetime is None else lifetime,
        )

    # --- upkeep

    def verify(self, *, deep: bool = False) -> VerificationReport:
        """Check everything that branches and tags reach, and report problems; changes nothing.

        Checks that every reference resolves, metadata files match their recorded checksums, extents
        are disjoint and correct, sequences have no gaps, logs record all changes, and chunk files
        exist and are long enough. Lists unreachable objects. `print` the report, or use its
        `problems`.

        Args:
            deep: Also read the bytes of all chunks that have a checksum.

        Examples:
            >>> import icefloe
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> repo.verify().is_clean
            True
        """
        from icefloe.upkeep.verification import verify_repository

        with _long_call("verify"):
            return verify_repository(self._context, deep=deep)

    def repair(
        self, report: VerificationReport | None = None, *, job: str | None = None
    ) -> list[Problem]:
        """Repair what can be repaired without guessing; returns the repaired problems.

        These are transaction logs, which are recreated by comparing snapshots, and gaps among the
        numbered entries of a branch, which are filled with the previous entry. Each problem in the
        report states whether it can be repaired, and if not, what to do.

        Args:
            report: The result of `verify`, which is called if not given.
            job: Name of the job, for the log of operations.
        """
        from icefloe.upkeep.repair import repair_problems

        problems = (self.verify() if report is None else report).problems
        repaired = repair_problems(self._context, problems)
        if repaired:
            self._log("repair", {"problems": [str(problem) for problem in repaired]}, job)
        return repaired

    def compact(
        self,
        message: str = "compact chunk files",
        *,
        branch: str,
        to_branch: str | None = None,
        arrays: str | Iterable[str] | None = None,
        pack_bytes: int | None = None,
        small_file_bytes: int | None = None,
        max_chunk_bytes: int | None = None,
        min_live_share: float = 0.5,
        dry_run: bool = False,
        metadata: dict[str, Any] | None = None,
        job: str | None = None,
    ) -> CompactionSummary:
        """Move chunks of small and sparsely used chunk files into well-ordered packs.

        Makes one commit, which changes no byte of any chunk. Other sessions may write at the same
        time: they keep their changes, and need not rebase because of it.

        Args:
            message: Message of the commit.
            branch: The branch whose chunk files to compact.
            to_branch: A new branch for the commit, to inspect it first; the commit goes to
                `branch` if not given.
            arrays: Consider only files that these arrays use: paths of arrays or groups, or
                patterns such as `/era5/t*`; all if not given.
            pack_bytes: Size of the new chunk files; as configured if not given.
            small_file_bytes: Files up to this size are joined; a quarter of a pack if not given.
            max_chunk_bytes: Files with larger chunks are never small; by default what is packed
                when it is written, or 1 MiB.
            min_live_share: Files of which the branch uses less than this share are rewritten.
            dry_run: Only report what would be done.
            metadata: Properties of the commit.
            job: Name of the job, for the log of operations.

        Examples:
            >>> import icefloe, zarr, numpy as np
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> for number in range(3):
            ...     with repo.transaction("main", message=f"part {number}") as store:
            ...         array = zarr.create_array(store, name=f"a{number}", data=np.arange(1000))
            >>> summary = repo.compact(branch="main")
            >>> summary.old_files, summary.new_files
            (3, 1)
        """
        from icefloe.upkeep.compaction import CompactionOptions, compact_branch

        options = CompactionOptions.of(
            self._context.settings,
            pack_bytes=pack_bytes,
            small_file_bytes=small_file_bytes,
            max_chunk_bytes=max_chunk_bytes,
            min_live_share=min_live_share,
        )
        with _long_call("compact"):
            summary = compact_branch(
                self._context,
                branch,
                options,
                message=message,
                metadata=metadata,
                arrays=arrays,
                to_branch=to_branch,
                dry_run=dry_run,
            )
        if not dry_run:
            self._log("compact", {"branch": to_branch or branch, **_plain(summary)}, job)
        return summary

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: Literal["new_commit", "amend"] = "new_commit",
    ) -> str:
        """Pack and split all manifests again by the current configuration, in one commit.

        The data stays the same; a commit is made even if nothing changes.

        Args:
            message: Message of the commit.
            branch: The branch to rewrite.
            metadata: Properties of the commit.
            commit_method: Whether to add a commit or to replace the tip of the branch.

        Returns:
            The id of the new snapshot.

        Raises:
            ConflictError: If the branch moved in the meantime.
        """
        from icefloe.engine.branches import commits

        with _long_call("rewrite manifests"):
            return commits.commit_rewritten_manifests(
                self._committer(),
                branch,
                message=message,
                metadata=metadata,
                commit_method=commit_method,
            )

    def migrate(
        self,
        target: AnyStorage,
        *,
        generation: str,
        spec_version: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> MigrationReport:
        """Copy this repository, with all of its history, to another generation of the format.

        Copies branches, tags, properties and the configuration, and every zarr.json byte for byte.
        If source and target share a disk or a bucket, chunk files are hard-linked or copied by the
        server. If a migration is interrupted, call it again to resume. At the end every snapshot is
        compared with its original, and the target is verified.

        Args:
            target: An empty location: a storage, a URL or a path.
            generation: `repository`, `store`, `dataset` or `icechunk`.
            spec_version: Version of that generation; the newest if not given.
            progress: Called with the name of a stage, the finished and the total amount; by default
                a bar is shown in terminals and notebooks.
        """
        from icefloe.progress import stage_listener
        from icefloe.upkeep.migration import migrate_repository

        shown = _long_call("migrate") if progress is None else contextlib.nullcontext()
        with shown:
            return migrate_repository(
                self._context,
                storage_from_url(target),
                generation=generation,
                spec_version=spec_version,
                progress=progress or stage_listener(),
            )

    # --- virtual chunks

    def materialize(
        self,
        branch: str,
        *,
        arrays: str | Iterable[str] | None = None,
        region: Mapping[str, slice] | None = None,
        locations: str | Iterable[str] | None = None,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        dry_run: bool = False,
        rebase_with: ConflictSolver | None = None,
    ) -> Materialized:
        """Copy chosen virtual chunks into the repository, byte for byte, as one commit.

        Args:
            branch: The branch to change.
            arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.
            region: The elements to copy, by dimension name; chunks that contain any of them are
                copied completely.
            locations: URL prefixes of folders, or URLs of files; chunks in others stay virtual.
            message: Message of the commit.
            metadata: Properties of the commit.
            dry_run: Count chunks and bytes, and copy nothing.
            rebase_with: Resolves conflicts if the branch moves in the meantime.
        """
        from icefloe.changes.conflicts import check_solver
        from icefloe.upkeep.materialize import VirtualChunkChoice, copy_virtual_chunks

        if rebase_with is not None:
            check_solver(rebase_with)
        choice = VirtualChunkChoice(arrays, region, locations)
        session = self.readonly_session(branch) if dry_run else self.writable_session(branch)
        with _long_call("materialize"):
            copied = copy_virtual_chunks(session.tree, choice, dry_run=dry_run)
        if dry_run or not copied.chunks:
            return copied
        text = message or f"Copy {copied.chunks} virtual chunks into the repository"
        return copied.committed_as(session.commit(text, metadata, rebase_with))

    def check_virtual_sources(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        arrays: str | Iterable[str] | None = None,
    ) -> VirtualSourcesReport:
        """Find virtual chunks whose files are missing, changed or too short; reads no file.

        Args:
            branch: The snapshot to check, by branch; `main` if none is named.
            tag: The same, by tag.
            snapshot_id: The same, by id.
            arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.
        """
        from icefloe.upkeep.virtual_sources import check_virtual_sources

        if branch is None and tag is None and snapshot_id is None:
            branch = MAIN
        session = self.readonly_session(branch, tag=tag, snapshot_id=snapshot_id)
        with _long_call("check virtual sources"):
            return check_virtual_sources(session.tree, arrays)

    # --- sizes

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """Bytes of the chunks of all snapshots that branches and tags reach, by kind.

        Shared chunks count once. The arguments are those of `garbage_collect`.

        Examples:
            >>> import icefloe, zarr
            >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
            >>> with repo.transaction("main", message="a megabyte") as store:
            ...     array = zarr.create_array(
            ...         store, name="t", shape=2**20, chunks=2**20, dtype="u1", compressors=None
            ...     )
            ...     array[:] = 7
            >>> repo.chunk_storage_stats().native_bytes
            1048576
        """
        from icefloe.engine.retention.marking import MemoryLimits
        from icefloe.upkeep.sizes import repository_stats

        limits = MemoryLimits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        with _long_call("add up sizes"):
            return repository_stats(self._context, limits)

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Bytes of native chunks; deprecated in favour of `chunk_storage_stats`."""
        warnings.warn(
            "total_chunks_storage is deprecated: use chunk_storage_stats().native_bytes",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.chunk_storage_stats(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        ).native_bytes

    def branch_storage_stats(self) -> dict[str, ChunkStorageStats]:
        """Bytes of the chunks that the complete history of each branch refers to.

        Branches share chunks, so the sum exceeds the size of the repository.
        """
        from icefloe.upkeep.sizes import branch_stats

        with _long_call("add up sizes"):
            return branch_stats(self._context)

    def array_storage_stats(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> dict[str, ChunkStorageStats]:
        """Bytes of the chunks of each array of one snapshot."""
        from icefloe.upkeep.sizes import array_stats

        target = self._context.history.resolve(Revision(branch, tag, snapshot_id))
        with _long_call("add up sizes"):
            return array_stats(self._context, self._context.files.read_snapshot(target))

    def snapshot_storage_stats(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotSize]:
        """The size of each snapshot of a history, and what it added to its parent, newest first."""
        from icefloe.upkeep.sizes import snapshot_sizes

        target = self._context.history.resolve(Revision(branch, tag, snapshot_id))
        return snapshot_sizes(self._context, target)

    def chunk_file_stats(self) -> ChunkFileUsage:
        """All chunk files that branches and tags reach, and how much of each is used.

        Bytes that nothing refers to are dead. They are freed when the complete file can be deleted,
        or when `compact` has moved the rest.
        """
        from icefloe.upkeep.sizes import chunk_file_usage

        with _long_call("add up sizes"):
            return chunk_file_usage(self._context)

    # --- files

    def inspect_snapshot(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """A snapshot as JSON, for people."""
        from icefloe.engine.inspection import describe_snapshot, to_json

        return to_json(describe_snapshot(self._read(snapshot_id)), pretty=pretty)

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifests that a snapshot refers to."""
        return self.lookup_snapshot(snapshot_id).manifests

    def inspect_manifest(self, manifest_id: str, *, pretty: bool = True) -> str:
        """A manifest as JSON, for people: its references of each array."""
        from icefloe.engine.inspection import describe_manifest, to_json
        from icefloe.model.ids import ManifestId

        description = describe_manifest(self._context, ManifestId.from_text(manifest_id))
        return to_json(description, pretty=pretty)

    def inspect_transaction_log(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """The changes of a commit as JSON, for people.

        If this requires comparing the snapshot with its parent, and the parent was deleted,
        `is_known` is false and the rest is missing.
        """
        from icefloe.engine.inspection import describe_log, to_json

        history = self._context.history
        target = history.resolve(Revision(snapshot_id=snapshot_id))
        return to_json(describe_log(target, history.own_log(target)), pretty=pretty)

    def inspect_repo_info(self, *, pretty: bool = True) -> str:
        """The format, branches, tags and configuration of a repository as JSON, for people."""
        from icefloe.engine.inspection import describe_repository, to_json

        return to_json(describe_repository(self._context), pretty=pretty)

    # --- shared by the methods above

    def _read(self, snapshot_id: str) -> Snapshot:
        """Read a snapshot by id or other name; raises SnapshotNotFoundError."""
        target = self._context.history.resolve(Revision(snapshot_id=snapshot_id))
        return self._context.files.read_snapshot(target)

    def _committer(self, solver: ConflictSolver | None = None) -> Committer:
        from icefloe.changes.conflicts import check_solver
        from icefloe.engine.branches.commits import Committer

        if solver is not None:
            check_solver(solver)
        return Committer(self._context, self._default_metadata, Session)

    def _log(self, kind: str, details: dict[str, Any], job: str | None) -> None:
        from icefloe.engine.operation_log import OperationLog

        OperationLog(self._context.storage).add_later(kind, details, job)

    # --- async forms

    create_async = classmethod(async_function_twin(create.__func__))  # type: ignore[attr-defined]
    open_async = classmethod(async_function_twin(open.__func__))  # type: ignore[attr-defined]
    open_or_create_async = classmethod(async_function_twin(open_or_create.__func__))  # type: ignore[attr-defined]
    exists_async = staticmethod(async_function_twin(exists))
    fetch_config_async = staticmethod(async_function_twin(fetch_config))
    fetch_spec_version_async = staticmethod(async_function_twin(fetch_spec_version))
    save_config_async = async_twin(save_config)
    reopen_async = async_twin(reopen)
    readonly_session_async = async_twin(readonly_session)
    writable_session_async = async_twin(writable_session)
    rearrange_session_async = async_twin(rearrange_session)
    lookup_snapshot_async = async_twin(lookup_snapshot)
    ancestry_graph_async = async_twin(ancestry_graph)
    diff_async = async_twin(diff)
    get_status_async = async_twin(get_status)
    set_status_async = async_twin(set_status)
    get_metadata_async = async_twin(get_metadata)
    set_metadata_async = async_twin(set_metadata)
    update_metadata_async = async_twin(update_metadata)
    feature_flags_async = async_twin(feature_flags)
    enabled_feature_flags_async = async_twin(enabled_feature_flags)
    disabled_feature_flags_async = async_twin(disabled_feature_flags)
    set_feature_flag_async = async_twin(set_feature_flag)
    create_branch_async = async_twin(create_branch)
    list_branches_async = async_twin(list_branches)
    lookup_branch_async = async_twin(lookup_branch)
    reset_branch_async = async_twin(reset_branch)
    delete_branch_async = async_twin(delete_branch)
    create_tag_async = async_twin(create_tag)
    list_tags_async = async_twin(list_tags)
    lookup_tag_async = async_twin(lookup_tag)
    delete_tag_async = async_twin(delete_tag)
    expire_snapshots_async = async_twin(expire_snapshots)
    garbage_collect_async = async_twin(garbage_collect)
    verify_async = async_twin(verify)
    repair_async = async_twin(repair)
    compact_async = async_twin(compact)
    rewrite_manifests_async = async_twin(rewrite_manifests)
    migrate_async = async_twin(migrate)
    chunk_storage_stats_async = async_twin(chunk_storage_stats)
    total_chunks_storage_async = async_twin(total_chunks_storage)
    branch_storage_stats_async = async_twin(branch_storage_stats)
    array_storage_stats_async = async_twin(array_storage_stats)
    chunk_file_stats_async = async_twin(chunk_file_stats)
    inspect_snapshot_async = async_twin(inspect_snapshot)
    list_manifest_files_async = async_twin(list_manifest_files)
    inspect_manifest_async = async_twin(inspect_manifest)
    inspect_transaction_log_async = async_twin(inspect_transaction_log)
    inspect_repo_info_async = async_twin(inspect_repo_info)


def _with_settings(
    storage: AnyStorage, config: RepositoryConfig | None, attribution: Attribution | None = None
) -> Storage:
    """The storage with the storage settings of a caller's configuration from the first request."""
    if config is not None and not isinstance(config, RepositoryConfig):
        raise InvalidTypeError(
            f"config is a RepositoryConfig, found a {type(config).__name__}: create one with "
            "RepositoryConfig(...) or RepositoryConfig.default()"
        )
    location = _place(storage, None if config is None else config.storage)
    if attribution is None:
        return location
    from icefloe.storage.object_store import ObjectStorage

    if isinstance(location, ObjectStorage):
        return location.with_user_agent(attribution.user_agent())
    return location  # no requests are sent


def _place(storage: AnyStorage, settings: StorageSettings | None) -> Storage:
    location = storage_from_url(storage)
    return location if settings is None else location.with_settings(settings)


def _format_of(discovered: Discovery | None) -> Generation | None:
    return None if discovered is None else discovered.format


def _refs_of(discovered: Discovery | None) -> Refs | None:
    return None if discovered is None else discovered.refs


def _plain(summary: object) -> dict[str, Any]:
    """A summary as plain values, for the log of operations."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(summary, builtin_types=())
    return plain


def _long_call(label: str) -> contextlib.AbstractContextManager[None]:
    """Show progress; readers, which have no long calls, do not load the module for it."""
    from icefloe.progress import long_call

    return long_call(label)
