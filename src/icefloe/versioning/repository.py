"""Repositories: where versioned data lives; makes sessions, moves references, tells history."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from icefloe.changes.change_set import ChangeSet
from icefloe.config.files import from_json, from_yaml, to_json
from icefloe.config.repository import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    RepositoryNotFoundError,
)
from icefloe.formats.registry import detect, discover, format_for
from icefloe.model.ids import FIRST_SNAPSHOT_ID
from icefloe.storage.probe import PROBE_FOLDER, ensure_conditional_writes
from icefloe.storage.url import storage_from_url
from icefloe.versioning.async_twin import async_function_twin, async_twin
from icefloe.versioning.blame import Blame, blame
from icefloe.versioning.branch_work import BranchWork
from icefloe.versioning.commit import CommitMessage, write_commit
from icefloe.versioning.commit_metadata import check_message, plain_metadata
from icefloe.versioning.context import Context, VirtualAccess
from icefloe.versioning.graph import AncestryGraph
from icefloe.versioning.history import Version
from icefloe.versioning.info import Diff, ManifestFileInfo, SnapshotInfo
from icefloe.versioning.initialize import (
    is_being_created,
    waits_for_creator,
    write_first_snapshot,
)
from icefloe.versioning.inspection import describe_snapshot
from icefloe.versioning.maintained import MaintainedRepository
from icefloe.versioning.manifest_rewriter import rewrite_manifests
from icefloe.versioning.preload import start_preload
from icefloe.versioning.session import Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from os import PathLike

    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.formats.port import BranchTip
    from icefloe.formats.registry import Format
    from icefloe.maintenance.materialize import Materialized
    from icefloe.maintenance.virtual_sources import VirtualSourcesReport
    from icefloe.model.ids import SnapshotId
    from icefloe.model.snapshot import Snapshot
    from icefloe.regions.value_diff import ValueDiff
    from icefloe.storage.port import Storage
    from icefloe.zarr_store.store import IcefloeStore

    AnyStorage = Storage | str | PathLike[str]

MAIN = "main"
DEFAULT_GENERATION = "repository"


class Repository(MaintainedRepository):
    """A versioned Zarr hierarchy in a storage."""

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
        place = storage_from_url(storage)
        fmt = format_for(generation, spec_version)
        ensure_conditional_writes(place)
        _check_absent(place, fmt, check_clean_root=check_clean_root)
        access = VirtualAccess.given(authorize_virtual_chunk_access, config)
        context = Context(place, fmt, config or RepositoryConfig.default(), access)
        first = write_first_snapshot(context)
        _write_first_config(fmt, place, config)
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
        place = storage_from_url(storage)
        found = discover(place)
        if found is None:
            raise RepositoryNotFoundError(
                f"the repository doesn't exist: {place.location} has no branch {MAIN!r}; "
                "create it with Repository.create",
                place.location,
            )
        kept = _read_config(found.format, place) or RepositoryConfig.default()
        merged = kept if config is None else kept.merge(config)
        access = VirtualAccess.given(authorize_virtual_chunk_access, config)
        return cls(Context(place, found.format, merged, access, found))

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
        place = storage_from_url(storage)
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
        return None if fmt is None else _read_config(fmt, place)

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
        return Session(self._context, self._open_snapshot(found))

    def writable_session(self, branch: str) -> Session:
        """A session whose changes can be committed to a branch."""
        ensure_conditional_writes(self._context.storage)
        tip = self._live_tip(branch)
        assert tip.snapshot_id is not None
        snapshot = self._open_snapshot(tip.snapshot_id)
        return Session(self._context, snapshot, tip, self._default_metadata)

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
        given = {} if metadata is None else plain_metadata(metadata)
        said = CommitMessage(
            check_message(message), {**self._default_metadata, **given}, datetime.now(UTC)
        )
        context = self._context
        ensure_conditional_writes(context.storage)
        tip = self._live_tip(branch)
        assert tip.snapshot_id is not None
        base = context.files.read_snapshot(tip.snapshot_id)
        parent, replaced = None, None
        if commit_method == "amend":
            parent, replaced = context.history.replaceable(base)
        rewritten = rewrite_manifests(context.files, base, context.settings)
        snapshot = write_commit(
            context.files,
            rewritten,
            ChangeSet(rewritten.nodes),
            said,
            context.settings,
            parent=parent,
            replaced=replaced,
        )
        context.refs.advance(tip, snapshot.id)
        self._note("rewrite_manifests", {"branch": branch, "snapshot_id": str(snapshot.id)})
        return str(snapshot.id)

    # --- work on branches

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
        """Bring what a branch has into another: a three-way merge as one commit.

        What differs since the two parted is compared chunk by chunk, key by key of the metadata
        and attribute by attribute. If the other branch has no commits of its own, it is moved
        forward instead. What was merged is remembered, so a later merge takes only what is new.

        Args:
            from_branch: Whose changes to take.
            into_branch: The branch that moves.
            message: Message of the commit.
            metadata: Properties of the commit.
            solver: Decides conflicts, with `from_branch` as ours; MergeSolver() if not given,
                which merges metadata and leaves chunks that both wrote to you.
            fast_forward: Whether to move the branch without a commit where that is enough.

        Returns:
            The id of the snapshot that `into_branch` points to then.

        Raises:
            RebaseFailedError: If conflicts are left; nothing was changed then.
        """
        work = self._branch_work()
        return work.merge(
            from_branch, into_branch, message, metadata, solver, fast_forward=fast_forward
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
        """Commit on a branch what one commit elsewhere changed; returns the tip's id."""
        picked = self._existing(snapshot_id)
        return self._branch_work().cherry_pick(picked, branch, message, metadata, solver)

    def revert(
        self,
        snapshot_id: str,
        *,
        branch: str,
        message: str | None = None,
        metadata: dict[str, Any] | None = None,
        solver: ConflictSolver | None = None,
    ) -> str:
        """Commit on a branch the opposite of what one commit changed; returns the tip's id.

        The chunks that it replaced come back as they were; later changes of other chunks stay.
        """
        undone = self._existing(snapshot_id)
        return self._branch_work().revert(undone, branch, message, metadata, solver)

    def squash(
        self,
        branch: str,
        since_snapshot_id: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Make one commit of all commits of a branch after a snapshot; returns its id.

        Other branches and tags keep the single commits. Raises ConflictError if the branch moved.
        """
        since = self._existing(since_snapshot_id)
        return self._branch_work().squash(branch, since, message, metadata)

    def publish(self, from_branch: str, to_branch: str) -> str:
        """Move a branch forward to the tip of another, whose commits follow its own.

        The last step of write, audit, publish: write on a branch, look at it, then publish it.
        Raises ConflictError if the branch has commits that the other does not have.
        """
        return self._branch_work().publish(from_branch, to_branch)

    def _branch_work(self) -> BranchWork:
        return BranchWork(self._context, self._default_metadata)

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
        from icefloe.maintenance.materialize import materialize

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
        from icefloe.maintenance.virtual_sources import check_virtual_sources

        if branch is None and tag is None and snapshot_id is None:
            branch = MAIN
        session = self.readonly_session(branch, tag=tag, snapshot_id=snapshot_id)
        return check_virtual_sources(session, arrays)

    def _live_tip(self, branch: str) -> BranchTip:
        """Where an existing branch stands; raises RefNotFoundError."""
        tip = self._context.refs.tip(branch)
        if tip is None or tip.snapshot_id is None:
            raise RefNotFoundError(
                f"ref not found `{branch}`: there is no such branch; create it with create_branch",
                branch,
            )
        return tip

    # --- branches and tags

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot."""
        ensure_conditional_writes(self._context.storage)
        with self._pinned(snapshot_id) as target:
            self._context.refs.create_branch(branch, target)
        self._note("create_branch", {"branch": branch, "snapshot_id": str(target)})

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return self._context.refs.branches()

    def lookup_branch(self, branch: str) -> str:
        """Id of the snapshot at the tip of a branch."""
        return str(self._context.history.resolve(Version(branch=branch)))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Let a branch point to another snapshot, as one more entry of its sequence (H-22)."""
        tip = self._context.refs.tip(branch)
        if tip is None or tip.snapshot_id is None:
            raise RefNotFoundError(f"ref not found `{branch}`", branch)
        if from_snapshot_id is not None and tip.snapshot_id != self._resolve(
            snapshot_id=from_snapshot_id
        ):
            raise ConflictError(
                f"branch update conflict: {branch!r} is at {tip.snapshot_id}, "
                f"expected {from_snapshot_id}",
                from_snapshot_id,
                str(tip.snapshot_id),
            )
        with self._pinned(snapshot_id) as target:
            self._context.refs.advance(tip, target)
        moved = {"branch": branch, "from": str(tip.snapshot_id), "to": str(target)}
        self._note("reset_branch", moved)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; `main` stays. The snapshots stay until garbage is collected."""
        if branch == MAIN:
            raise InvalidInputError("main branch cannot be deleted")
        tip = self._context.refs.tip(branch)
        if tip is None or tip.snapshot_id is None:
            raise RefNotFoundError(f"ref not found `{branch}`", branch)
        self._context.refs.advance(tip, None)
        self._note("delete_branch", {"branch": branch, "snapshot_id": str(tip.snapshot_id)})

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Give a snapshot a name for ever."""
        ensure_conditional_writes(self._context.storage)
        with self._pinned(snapshot_id) as target:
            self._context.refs.create_tag(tag, target)
        self._note("create_tag", {"tag": tag, "snapshot_id": str(target)})

    def list_tags(self) -> set[str]:
        """Names of all tags."""
        return self._context.refs.tags()

    def lookup_tag(self, tag: str) -> str:
        """Id of the snapshot that a tag names."""
        return str(self._context.history.resolve(Version(tag=tag)))

    def delete_tag(self, tag: str) -> None:
        """Refuse: the specification says that tags cannot be deleted once created (R1-25)."""
        if self._context.refs.tag(tag) is None:
            raise RefNotFoundError(f"ref not found `{tag}`", tag)
        raise InvalidInputError(
            f"tags cannot be deleted once created: {tag!r} stays; create another tag instead"
        )

    # --- history

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """A snapshot by its id."""
        snapshot = self._context.files.read_snapshot(self._existing(snapshot_id))
        return SnapshotInfo.of(self._context.history.with_shown_parent(snapshot))

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Ancestry:
        """A snapshot and its ancestors, newest first; works with `for` and with `async for`."""
        return Ancestry(self._context, self._resolve(branch, tag, snapshot_id))

    async_ancestry = ancestry

    def ancestry_graph(self) -> AncestryGraph:
        """All branches and tags with their history, to look at."""
        return AncestryGraph.of(self._context.history)

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
        """What changed from one snapshot to another that has a common ancestor with it."""
        Version(from_branch, from_tag, from_snapshot_id).check(
            "from_branch, from_tag, or from_snapshot_id"
        )
        Version(to_branch, to_tag, to_snapshot_id).check("to_branch, to_tag, or to_snapshot_id")
        older = self._resolve(from_branch, from_tag, from_snapshot_id)
        newer = self._resolve(to_branch, to_tag, to_snapshot_id)
        return self._context.history.diff(older, newer)

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
        from icefloe.regions.value_diff import compare_values

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
        return compare_values(before, after, diff, arrays)

    def blame(
        self,
        path: str,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Blame:
        """Which commit last wrote each chunk of an array, as columns."""
        return blame(self._context.history, self._resolve(branch, tag, snapshot_id), path)

    def inspect_snapshot(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """A snapshot as JSON, for people."""
        snapshot = self._context.files.read_snapshot(self._existing(snapshot_id))
        text = msgspec.json.encode(describe_snapshot(snapshot))
        return (msgspec.json.format(text, indent=2) if pretty else text).decode()

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifests that a snapshot refers to."""
        return self.lookup_snapshot(snapshot_id).manifests

    def _resolve(
        self,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> SnapshotId:
        return self._context.history.resolve(Version(branch, tag, snapshot_id), as_of)

    def _existing(self, snapshot_id: str) -> SnapshotId:
        """The id of a snapshot that is really there; raises SnapshotNotFoundError."""
        found = self._resolve(snapshot_id=snapshot_id)
        return self._context.files.read_snapshot(found).id

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
    create_branch_async = async_twin(create_branch)
    list_branches_async = async_twin(list_branches)
    lookup_branch_async = async_twin(lookup_branch)
    reset_branch_async = async_twin(reset_branch)
    delete_branch_async = async_twin(delete_branch)
    create_tag_async = async_twin(create_tag)
    list_tags_async = async_twin(list_tags)
    lookup_tag_async = async_twin(lookup_tag)
    delete_tag_async = async_twin(delete_tag)
    lookup_snapshot_async = async_twin(lookup_snapshot)
    ancestry_graph_async = async_twin(ancestry_graph)
    diff_async = async_twin(diff)
    inspect_snapshot_async = async_twin(inspect_snapshot)
    list_manifest_files_async = async_twin(list_manifest_files)
    rewrite_manifests_async = async_twin(rewrite_manifests)


class Ancestry:
    """Snapshots of a history, newest first, for `for`, `next`, `async for` and `anext`."""

    def __init__(self, context: Context, snapshot_id: SnapshotId) -> None:
        """Start at a snapshot; that it is missing shows here, not at the first step."""
        context.files.read_snapshot(snapshot_id)
        self._snapshots = context.history.ancestry(snapshot_id)

    def __iter__(self) -> Iterator[SnapshotInfo]:
        return self

    def __next__(self) -> SnapshotInfo:
        return SnapshotInfo.of(next(self._snapshots))

    def __aiter__(self) -> AsyncIterator[SnapshotInfo]:
        return self

    async def __anext__(self) -> SnapshotInfo:
        snapshot = await _next_in_thread(self._snapshots)
        if snapshot is None:
            raise StopAsyncIteration
        return SnapshotInfo.of(snapshot)


async def _next_in_thread(iterator: Iterator[Any]) -> Any:
    import asyncio

    return await asyncio.to_thread(next, iterator, None)


def _check_absent(storage: Storage, fmt: Format, *, check_clean_root: bool) -> None:
    """Raise AlreadyExistsError if there is a repository, or anything that is not its beginning."""
    if detect(storage) is not None:
        raise AlreadyExistsError(
            f"a repository exists already at {storage.location}: repositories can only be created "
            "in clean prefixes; open it with Repository.open"
        )
    if not check_clean_root:
        return
    started = fmt.layout.snapshot(FIRST_SNAPSHOT_ID)
    configs = fmt.make_config_files(storage)
    for info in storage.list():
        # What a client leaves that died while it created a repository is no obstacle.
        left = info.key == started or configs.owns(info.key)
        if not left and not info.key.startswith(f"{PROBE_FOLDER}/"):
            raise AlreadyExistsError(
                f"repositories can only be created in clean prefixes: {storage.location} has "
                f"{info.key!r}; choose an empty place"
            )


def _write_first_config(fmt: Format, storage: Storage, config: RepositoryConfig | None) -> None:
    """Keep the configuration, if any, also in place of one that a client left which died."""
    files = fmt.make_config_files(storage)
    left = files.read()
    if config is None and left is None:
        return
    data = to_json(config or RepositoryConfig.default())
    if left is None or left[1] != data:
        files.write(None if left is None else left[0], data)


def _read_config(fmt: Format, storage: Storage) -> RepositoryConfig | None:
    files = fmt.make_config_files(storage)
    kept = files.read()
    if kept is not None:
        return from_json(kept[1], key=files.key(kept[0]))
    legacy = files.read_legacy()
    return None if legacy is None else from_yaml(legacy, key="config.yaml")
