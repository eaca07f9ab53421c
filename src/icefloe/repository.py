"""Repositories: where versioned data lives; creates and opens them, and makes sessions.

What repositories tell and do besides is in the classes that `Repository` builds on.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.conflicts import check_solver
from icefloe.config.repository import RepositoryConfig
from icefloe.config.serialization import to_json
from icefloe.engine.async_twin import async_function_twin, async_twin
from icefloe.engine.commit.commit_metadata import plain_metadata
from icefloe.engine.commit.publication import Publication
from icefloe.engine.commit.rewritten_manifests import rewrite_manifests
from icefloe.engine.commit.write import CommitMessage, Replaced, write_commit
from icefloe.engine.context import Context, VirtualAccess
from icefloe.engine.initialize import (
    check_absent,
    is_being_created,
    read_config,
    waits_for_creator,
    write_first_config,
    write_first_snapshot,
)
from icefloe.engine.preload import start_preload
from icefloe.engine.repository_branches import BranchedRepository
from icefloe.engine.retention.branch_moves import moved_from
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    RepositoryNotFoundError,
)
from icefloe.formats.registry import (
    DEFAULT_GENERATION,
    detect,
    detect_damaged,
    discover,
    format_for,
)
from icefloe.session import Session
from icefloe.storage.access.url import storage_from_url
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime
    from os import PathLike

    from icefloe.arrays.value_diff import ValueDiff
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.formats.port import LiveTip
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot
    from icefloe.storage.port import Storage
    from icefloe.upkeep.materialize import Materialized
    from icefloe.upkeep.virtual_sources import VirtualSourcesReport
    from icefloe.zarr_store.store import IcefloeStore

    AnyStorage = Storage | str | PathLike[str]

MAIN = "main"


def _place(storage: AnyStorage, config: RepositoryConfig | None) -> Storage:
    """The storage, used as the configuration of a caller says from the first request on."""
    place = storage_from_url(storage)
    settings = None if config is None else config.storage
    return place if settings is None else place.with_settings(settings)


class Repository(BranchedRepository):
    """A versioned Zarr hierarchy in a storage."""

    _show = Session

    def __init__(self, context: Context) -> None:
        """Use `create`, `open` or `open_or_create` instead."""
        self._context = context
        self._default_metadata: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<icefloe.Repository {self._context.storage.location}>"

    # --- coming into being

    @classmethod
    def create(
        cls,
        storage: AnyStorage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
        spec_version: int | None = None,
        *,
        check_clean_root: bool = True,
        generation: str = DEFAULT_GENERATION,
    ) -> Repository:
        """Create a repository; of several clients that try at once, one succeeds (R3-92).

        Args:
            storage: A storage, a URL or a path.
            config: Kept with the repository if given.
            authorize_virtual_chunk_access: Credentials, or None, by URL prefix of the virtual
                chunk containers that may be read.
            spec_version: Version of the generation's format to write.
            check_clean_root: Whether to refuse a place that has other objects.
            generation: The family of formats: `repository` (compact and fast), `store` (JSON) or
                `dataset` (manifests are Parquet tables).
        """
        place = _place(storage, config)
        fmt = format_for(generation, spec_version)
        ensure_conditional_writes(place)
        check_absent(place, fmt, check_clean_root=check_clean_root)
        access = VirtualAccess.given(authorize_virtual_chunk_access, config)
        context = Context(place, fmt, config or RepositoryConfig.default(), access)
        first = write_first_snapshot(context)
        write_first_config(fmt, place, config)
        context.refs.create_branch(MAIN, first)
        return cls(context)

    @classmethod
    def open(
        cls,
        storage: AnyStorage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
    ) -> Repository:
        """Open a repository; `config` is laid over the configuration that is kept with it."""
        place = _place(storage, config)
        found = discover(place)
        if found is None:
            raise _not_there(place)
        kept = read_config(found.format, place) or RepositoryConfig.default()
        merged = kept if config is None else kept.merge(config)
        access = VirtualAccess.given(authorize_virtual_chunk_access, config)
        return cls(Context(place, found.format, merged, access, found))

    @classmethod
    def open_for_repair(cls, storage: AnyStorage) -> Repository:
        """Open a repository whose branch main, newest snapshot or configuration is damaged.

        For `verify` and `repair`. What cannot be read raises FormatError, as ever: an earlier
        entry of a branch is never taken for its newest one.
        """
        place = storage_from_url(storage)
        fmt = detect_damaged(place)
        if fmt is None:
            raise _not_there(place)
        config = None
        with contextlib.suppress(FormatError):  # verify reports it
            config = read_config(fmt, place)
        access = VirtualAccess.given(None, None)
        return cls(Context(place, fmt, config or RepositoryConfig.default(), access))

    @classmethod
    def open_or_create(
        cls,
        storage: AnyStorage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
        create_version: int | None = None,
        *,
        generation: str = DEFAULT_GENERATION,
    ) -> Repository:
        """Open a repository, or create it if there is none; many clients may try at once.

        `create_version` and `generation` say in which format to create it.
        """
        place = _place(storage, config)
        for pause in waits_for_creator():
            if cls.exists(place):
                break
            try:
                return cls.create(
                    place,
                    config,
                    authorize_virtual_chunk_access,
                    create_version,
                    generation=generation,
                )
            except AlreadyExistsError:
                if not is_being_created(place, format_for(generation).layout):
                    raise
            time.sleep(pause)
        return cls.open(place, config, authorize_virtual_chunk_access)

    @staticmethod
    def exists(storage: AnyStorage) -> bool:
        """Whether there is a repository: its branch main says so (R1-10)."""
        return detect(storage_from_url(storage)) is not None

    @staticmethod
    def fetch_config(storage: AnyStorage) -> RepositoryConfig | None:
        """The configuration that is kept with a repository; None if none was ever saved."""
        place = storage_from_url(storage)
        fmt = detect(place)
        return None if fmt is None else read_config(fmt, place)

    @staticmethod
    def fetch_spec_version(storage: AnyStorage) -> int | None:
        """Version of the format that a repository is written in; None if there is none."""
        fmt = detect(storage_from_url(storage))
        return None if fmt is None else fmt.spec_version

    def save_config(self) -> None:
        """Keep the present configuration with the repository."""
        files = self._context.format.make_config_files(self._context.storage)
        kept, document = files.read(), to_json(self._context.config)
        if kept is None or kept[1] != document:
            files.write(None if kept is None else kept[0], document)

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: dict[str, Any] | None = None,
    ) -> Repository:
        """The same repository with other settings on top of the present ones."""
        context = self._context
        merged = context.config if config is None else context.config.merge(config)
        access = VirtualAccess.given(
            context.access.authorizations
            if authorize_virtual_chunk_access is None
            else authorize_virtual_chunk_access,
            config,
        )
        confirmed = access.confirmed_prefixes | context.access.confirmed_prefixes
        access = VirtualAccess(access.authorizations, confirmed)
        twin = Repository(Context(context.storage, context.format, merged, access))
        twin._default_metadata = dict(self._default_metadata)
        return twin

    # --- what it is

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration."""
        return self._context.config.copy()

    @property
    def storage(self) -> Storage:
        """Where the repository is."""
        return self._context.storage

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

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Properties that every commit through this object gets, unless it says otherwise."""
        self._default_metadata = plain_metadata(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """The properties that every commit through this object gets."""
        return plain_metadata(self._default_metadata)

    # --- sessions

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A view of one committed snapshot.

        Versions may be named as in git: `main~3`, `main@{2026-01-31}`.
        """
        found = self._resolve(branch, tag, snapshot_id, as_of)
        return Session(WorkingTree(self._context, self._open_snapshot(found)))

    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""
        ensure_conditional_writes(self._context.storage)
        tip = self._live_tip(branch)
        snapshot = self._open_snapshot(tip.snapshot_id)
        tree = WorkingTree(self._context, snapshot, read_only=False)
        return Session(tree, Publication(tree, tip, self._default_metadata))

    def _open_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Read a snapshot for a session; one that is new here has its manifests preloaded."""
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
        """A store whose changes are committed when the block ends well, and forgotten if not."""
        if rebase_with is not None:
            check_solver(rebase_with)
        session = self.writable_session(branch)
        yield session.store
        session.commit(message, metadata, rebase_with, rebase_tries)

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: Literal["new_commit", "amend"] = "new_commit",
    ) -> str:
        """Pack and split all manifests anew, as the present configuration says; one commit.

        The data stays the same, and there is a commit whether or not anything had to change.
        Raises ConflictError if the branch moved meanwhile.

        Args:
            message: Message of the commit.
            branch: Whose tip to rewrite.
            metadata: Properties of the commit.
            commit_method: Whether to add a commit or to replace the tip of the branch.

        Returns:
            The id of the new snapshot.
        """
        if commit_method not in {"new_commit", "amend"}:
            raise InvalidInputError(
                f"commit_method is 'new_commit' or 'amend', found {commit_method!r}"
            )
        said = CommitMessage.of(message, metadata, defaults=self._default_metadata)
        context = self._context
        ensure_conditional_writes(context.storage)
        rewrite = partial(self._rewrite_manifests, said=said, is_amended=commit_method == "amend")
        snapshot_id = moved_from(context.refs, self._live_tip(branch), rewrite)
        self._note("rewrite_manifests", {"branch": branch, "snapshot_id": snapshot_id})
        return snapshot_id

    def _rewrite_manifests(self, tip: LiveTip, said: CommitMessage, *, is_amended: bool) -> str:
        context = self._context
        base = context.files.read_snapshot(tip.snapshot_id)
        replaced = Replaced(*context.history.replaceable(base)) if is_amended else None
        rewritten = rewrite_manifests(context.files, base, context.settings)
        snapshot = write_commit(
            context.files,
            rewritten,
            ChangeSet(rewritten.nodes),
            said,
            context.settings,
            replaced=replaced,
        )
        context.refs.advance(tip, snapshot.id)
        return str(snapshot.id)

    # --- chunks of other files

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
            branch: Whose tip to change.
            arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.
            region: By dimension name, which elements to copy; chunks that have any of them are
                copied whole.
            locations: URL prefixes of folders, or URLs of files; chunks in others stay virtual.
            message: Message of the commit.
            metadata: Properties of the commit.
            dry_run: Count chunks and bytes, and copy nothing.
            rebase_with: What to do if the branch moves meanwhile.
        """
        from icefloe.upkeep.materialize import materialize

        if rebase_with is not None:
            check_solver(rebase_with)
        return materialize(
            self,
            branch,
            arrays=arrays,
            region=region,
            locations=locations,
            message=message,
            metadata=metadata,
            dry_run=dry_run,
            rebase_with=rebase_with,
        )

    def check_virtual_sources(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        arrays: str | Iterable[str] | None = None,
    ) -> VirtualSourcesReport:
        """Which files of virtual chunks are missing, changed or too short; none is read.

        Args:
            branch: The version to look at; `main` if none is named.
            tag: The same, by tag.
            snapshot_id: The same, by snapshot.
            arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.
        """
        from icefloe.upkeep.virtual_sources import check_virtual_sources

        if branch is None and tag is None and snapshot_id is None:
            branch = MAIN
        session = self.readonly_session(branch, tag=tag, snapshot_id=snapshot_id)
        return check_virtual_sources(session, arrays)

    # --- values

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
        """How many cells of each written array differ between two versions, and how much.

        Reads only chunks that were written in between, one at a time, of both versions.

        Args:
            from_branch: The first version.
            from_tag: The same, by tag.
            from_snapshot_id: The same, by snapshot.
            to_branch: The second version.
            to_tag: The same, by tag.
            to_snapshot_id: The same, by snapshot.
            arrays: Paths of arrays or groups to compare, or patterns such as `/era5/t*`; all by
                default.
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
        return compare_values(before.tree, after.tree, diff, arrays)

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
    rewrite_manifests_async = async_twin(rewrite_manifests)


def _not_there(place: Storage) -> RepositoryNotFoundError:
    return RepositoryNotFoundError(
        f"the repository doesn't exist: {place.location} has no branch {MAIN!r}; "
        "create it with Repository.create",
        place.location,
    )
