"""The methods of a repository that keep it in order; what they do is in `icefloe.upkeep`."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from icefloe.config.plain_tree import to_plain
from icefloe.engine.async_twin import async_twin
from icefloe.engine.commit.commit_metadata import check_message, plain_metadata
from icefloe.engine.history.walk import Version, check_new_name
from icefloe.engine.inspection import describe_log, describe_manifest
from icefloe.engine.operations import (
    Operation,
    OperationLog,
    commits_newest_first,
    merged,
)
from icefloe.engine.retention.announcements import SnapshotLease, pinned
from icefloe.engine.retention.leases import DEFAULT_LIFETIME, Lease
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    RefNotFoundError,
)
from icefloe.formats.port import LiveTip
from icefloe.model.ids import ManifestId
from icefloe.storage.access.url import storage_from_url
from icefloe.storage.presence import is_there
from icefloe.storage.probe import ensure_conditional_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime, timedelta
    from os import PathLike

    from icefloe.engine.context import Context
    from icefloe.engine.retention.collection import GCSummary
    from icefloe.engine.retention.expiry import ExpirationPolicy
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage
    from icefloe.upkeep.compaction import CompactionSummary
    from icefloe.upkeep.findings import Problem, VerificationReport
    from icefloe.upkeep.migration import MigrationReport
    from icefloe.upkeep.sizes import ChunkFiles, ChunkStorageStats, SnapshotSize

_MANIFEST_BYTES = 512 * 1024 * 1024


class MaintainedRepository:
    """Leases, expiry, garbage collection, statistics and the log of operations."""

    _context: Context

    # --- leases

    def lease(
        self,
        *,
        holder: str | None = None,
        snapshot_ids: str | Iterable[str] = (),
        lifetime: timedelta = DEFAULT_LIFETIME,
    ) -> Lease:
        """A context manager that keeps garbage collection away from work that takes long.

        Until the block ends, nothing is collected that was written after it began, by anyone, nor
        the given snapshots and what they refer to. Writable sessions need none: they take a lease
        by themselves after five minutes. A lease is renewed by a thread; if this process dies, it
        lapses.

        Args:
            holder: Who holds it, for people; the host and process if not given.
            snapshot_ids: Snapshots (or branches, or tags) that are being read, one or many.
            lifetime: How long it holds after the process has died.
        """
        given = [snapshot_ids] if isinstance(snapshot_ids, str) else snapshot_ids
        found = [self._context.history.resolve(Version(snapshot_id=each)) for each in given]
        return SnapshotLease(
            self._context.storage,
            self._context.format.layout,
            found,
            holder=holder,
            lifetime=lifetime,
        )

    @contextlib.contextmanager
    def _pinned(self, snapshot_id: str) -> Iterator[tuple[SnapshotId, SnapshotLease]]:
        """A snapshot that is there, and what lets it stay while something is made to name it."""
        context = self._context
        found = context.history.resolve(Version(snapshot_id=snapshot_id))
        with pinned(context.storage, context.format.layout, found) as pin:
            yield found, pin

    # --- expiry and collection

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
        """Take old snapshots out of the history; collection deletes what only they refer to.

        Histories end, behind the oldest snapshot that is kept, with the first snapshot. What
        branches and tags point to stays. Expired snapshots can be read until they are collected.

        Args:
            older_than: Snapshots that were written before this moment expire; a timedelta means
                that long before now, by the storage's clock.
            delete_expired_branches: Delete branches whose tip expires; never `main`.
            delete_expired_tags: Not possible: tags stay for ever.
            keep_last: So many of the newest snapshots of each history stay, whatever their age.
            branches: Other policies for some branches, by name or pattern (`release-*`); None
                keeps the whole history.
            tags: The same for tags.
            dry_run: Only tell what would expire.
            job: Who does this, for the log of operations.

        Returns:
            Ids of the snapshots that expired. Tips that are old enough are among them, though
            they stay.
        """
        from icefloe.engine.retention.expiry import ExpirationPolicy, expire

        if delete_expired_tags:
            raise InvalidInputError(
                "tags cannot be deleted once created, so delete_expired_tags is not possible; "
                "name things that come and go by branches, and use delete_expired_branches"
            )
        if older_than is None and keep_last is None and not (branches or tags):
            raise InvalidInputError("say what expires: give older_than, keep_last or policies")
        ensure_conditional_writes(self._context.storage)
        with self._context.storage.using_reserve():
            plan = expire(
                self._context,
                ExpirationPolicy(older_than, keep_last),
                branches=branches or {},
                tags=tags or {},
                delete_branches=delete_expired_branches,
                dry_run=dry_run,
            )
        if not dry_run:
            details = {"snapshots": len(plan.expired), "branches_deleted": list(plan.branches)}
            self._note("expire_snapshots", details, job)
        return {str(snapshot_id) for snapshot_id in plan.expired}

    def garbage_collect(
        self,
        delete_object_older_than: datetime | timedelta,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_BYTES,
        max_concurrent_manifest_fetches: int = 500,
        job: str | None = None,
    ) -> GCSummary:
        """Delete objects that nothing refers to.

        Never deletes what a branch, a tag or a lease reaches, nor anything that is younger than
        the given moment. Sessions that are open for more than five minutes have a lease; those
        that are younger are safe if the moment is at least as long ago. A collection that dies
        harms nothing; the next one goes on.

        Args:
            delete_object_older_than: Only objects that were written before this moment are
                deleted, by the storage's clock; a timedelta means that long before now, and
                does not depend on the clock of this computer.
            dry_run: Only tell what would be deleted.
            max_snapshots_in_memory: How many snapshots are held at a time, at most.
            max_compressed_manifest_mem_bytes: How many bytes of manifests are read at a time.
            max_concurrent_manifest_fetches: How many manifests are read at a time.
            job: Who does this, for the log of operations.
        """
        from icefloe.engine.retention.collection import collect_garbage
        from icefloe.engine.retention.marking import Limits

        limits = Limits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        summary = collect_garbage(
            self._context, delete_object_older_than, dry_run=dry_run, limits=limits
        )
        if not dry_run:
            self._note("garbage_collect", _plain(summary), job)
        return summary

    # --- compaction

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
        """Move chunks of small and of sparsely used chunk files into well-ordered packs.

        One commit, which changes no byte of any chunk. Others may write at the same time: where
        they changed a chunk, theirs stays, and none of them has to rebase because of this.

        Args:
            message: Message of the commit.
            branch: Whose chunk files are looked at.
            to_branch: A new branch that starts with the commit, to look at it first; the commit
                goes to `branch` if not given.
            arrays: Look only at files that these arrays use: paths of arrays or groups, or
                patterns such as `/era5/t*`; all if not given.
            pack_bytes: Size of the new chunk files; as configured if not given.
            small_file_bytes: Files of at most so many bytes are joined; a quarter of a pack if not
                given.
            max_chunk_bytes: Files with larger chunks are never small; by default what is packed
                when it is written, or 1 MiB.
            min_live_share: Files of which the branch uses less than this share are written anew.
            dry_run: Only tell what would be done.
            metadata: Properties of the commit.
            job: Who does this, for the log of operations.
        """
        from icefloe.upkeep.compaction import CompactionOptions, compact_branch, message_of

        context = self._context
        settings = context.settings
        size = settings.pack_bytes if pack_bytes is None else pack_bytes
        # Who packs nothing while writing may well do it afterwards.
        largest = settings.packed_chunk_threshold_bytes or type(settings)().pack_bytes // 32
        options = CompactionOptions(
            size,
            size // 4 if small_file_bytes is None else small_file_bytes,
            largest if max_chunk_bytes is None else max_chunk_bytes,
            min_live_share,
        )
        said = message_of(check_message(message), plain_metadata(metadata or {}))
        tip = self._tip_to_compact(branch, to_branch)
        summary = compact_branch(
            context,
            tip,
            options,
            said,
            arrays=arrays,
            to_branch=to_branch,
            dry_run=dry_run,
        )
        if not dry_run:
            self._note("compact", {"branch": to_branch or branch, **_plain(summary)}, job)
        return summary

    def _tip_to_compact(self, branch: str, to_branch: str | None) -> LiveTip:
        refs = self._context.refs
        tip = refs.tip(branch)
        if not isinstance(tip, LiveTip):
            raise RefNotFoundError(f"ref not found `{branch}`", branch)
        if to_branch is not None:
            check_new_name(to_branch, "branch")
            if isinstance(refs.tip(to_branch), LiveTip):
                raise AlreadyExistsError(f"branch {to_branch!r} exists already")
        ensure_conditional_writes(self._context.storage)
        return tip

    # --- verification

    def verify(self, *, deep: bool = False) -> VerificationReport:
        """Look at everything that branches and tags reach, and report what is wrong.

        Every reference resolves, metadata files are those that are referred to, extents are
        disjoint and true, sequences have no gaps, logs tell what changed, chunk files are there and
        long enough. Objects that nothing reaches are
        listed. Nothing is changed. `print` the report, or take its `problems`.

        Args:
            deep: Also read the bytes of all chunks that have a checksum.
        """
        from icefloe.engine.retention.marking import Limits
        from icefloe.upkeep.verification import verify_repository

        return verify_repository(self._context, deep=deep, limits=Limits())

    def repair(
        self, report: VerificationReport | None = None, *, job: str | None = None
    ) -> list[Problem]:
        """Put right what can be put right without guessing; returns what was.

        Those are logs of commits, which are written anew by comparing snapshots, and gaps among the
        numbered entries of a branch: there, the entry before is repeated. Each problem of the
        report says whether it can be repaired, and if not, what is left to do.

        Args:
            report: What `verify` found; looked for now if not given.
            job: Who does this, for the log of operations.
        """
        from icefloe.upkeep.repair import repair_problems

        found = self.verify() if report is None else report
        repaired = repair_problems(self._context, found.problems)
        if repaired:
            self._note("repair", {"problems": [str(problem) for problem in repaired]}, job)
        return repaired

    # --- migration

    def migrate(
        self,
        target: Storage | str | PathLike[str],
        *,
        generation: str,
        spec_version: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> MigrationReport:
        """Copy this repository, with all of its history, to another generation of the format.

        Branches, tags, properties and the configuration come along, and every zarr.json stays as it
        is, byte for byte. Chunk files are linked or copied by the store itself where source and
        target share a disk or a bucket. One that was interrupted is started again and goes on.
        At the end every snapshot is compared with its original, and the target is verified.

        Args:
            target: An empty place: a storage, a URL or a path.
            generation: `repository`, `store` or `dataset`.
            spec_version: Version of that generation; the newest if not given.
            progress: Called with the name of a stage, and how much of how much of it is done.
        """
        from icefloe.upkeep.migration import migrate_repository

        return migrate_repository(
            self._context,
            storage_from_url(target),
            generation=generation,
            spec_version=spec_version,
            progress=progress,
        )

    # --- statistics

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> ChunkStorageStats:
        """Bytes of the chunks of all snapshots that branches and tags reach, by kind.

        What several references share counts once.
        """
        from icefloe.engine.retention.marking import Limits
        from icefloe.upkeep.sizes import repository_stats

        limits = Limits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        return repository_stats(self._context, limits)

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_BYTES,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Bytes of native chunks; the older name of a part of `chunk_storage_stats`."""
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
        """Bytes of the chunks that the whole history of each branch refers to.

        Branches share much, so the sum is more than what the repository takes.
        """
        from icefloe.engine.retention.marking import Limits
        from icefloe.upkeep.sizes import branch_stats

        return branch_stats(self._context, Limits())

    def array_storage_stats(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> dict[str, ChunkStorageStats]:
        """Bytes of the chunks of each array of one version."""
        from icefloe.upkeep.sizes import array_stats

        found = self._context.history.resolve(Version(branch, tag, snapshot_id))
        return array_stats(self._context, self._context.files.read_snapshot(found))

    def snapshot_storage_stats(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotSize]:
        """What each snapshot of a history holds, and what it added to its parent, newest first."""
        from icefloe.engine.retention.marking import Limits
        from icefloe.upkeep.sizes import snapshot_sizes

        found = self._context.history.resolve(Version(branch, tag, snapshot_id))
        return snapshot_sizes(self._context, found, Limits())

    def chunk_file_stats(self) -> ChunkFiles:
        """All chunk files that branches and tags reach, and how much of each is used.

        Bytes that nothing refers to are dead: they go when the whole file can go, or when
        `compact` has moved the rest elsewhere.
        """
        from icefloe.engine.retention.marking import Limits
        from icefloe.upkeep.sizes import chunk_files

        return chunk_files(self._context, Limits())

    # --- files

    def inspect_manifest(self, manifest_id: str, *, pretty: bool = True) -> str:
        """A manifest as JSON, for people: what it holds of each array."""
        found = ManifestId.from_text(manifest_id)
        context = self._context
        if not is_there(context.storage, context.format.layout.manifest(found)):
            raise NotFoundError(
                f"there is no manifest {found} in {context.storage.location}; "
                "list_manifest_files tells those of a snapshot"
            )
        return _json(describe_manifest(found, self._context.files.manifest(found, 0)), pretty)

    def inspect_transaction_log(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """What a commit changed as JSON, for people.

        Where that is found by comparing a snapshot with its parent, and the parent was collected,
        `is_known` is false and the rest is missing.
        """
        found = self._context.history.resolve(Version(snapshot_id=snapshot_id))
        return _json(describe_log(found, self._context.history.known_log(found)), pretty)

    def inspect_repo_info(self, *, pretty: bool = True) -> str:
        """The format, branches, tags and configuration of a repository as JSON, for people."""
        context = self._context
        refs = context.refs.view()
        tips = {name: refs.tip(name) for name in sorted(refs.branches())}
        info = {
            "location": context.storage.location,
            "generation": context.format.name,
            "spec_version": context.format.spec_version,
            "branches": {
                name: {"snapshot_id": str(tip.snapshot_id), "sequence": tip.sequence}
                for name, tip in tips.items()
                if tip is not None
            },
            "tags": {name: str(refs.tag(name)) for name in sorted(refs.tags())},
            "expired_behind": sorted(map(str, context.history.cuts.all())),
            "config": to_plain(context.config),
        }
        return _json(info, pretty)

    # --- the log of operations

    def operations(self) -> Iterator[Operation]:
        """What was done to the repository, newest first: commits, moves of references, maintenance.

        Commits have the time and the properties that their writers gave them; other operations,
        the time of the storage's clock and the job that did them.
        """
        commits = commits_newest_first(self._context.history)
        return merged(OperationLog(self._context.storage).newest_first(), commits)

    def _note(self, kind: str, details: dict[str, Any], job: str | None = None) -> None:
        OperationLog(self._context.storage).add(kind, details, job)

    expire_snapshots_async = async_twin(expire_snapshots)
    garbage_collect_async = async_twin(garbage_collect)
    compact_async = async_twin(compact)
    verify_async = async_twin(verify)
    repair_async = async_twin(repair)
    migrate_async = async_twin(migrate)
    chunk_storage_stats_async = async_twin(chunk_storage_stats)
    total_chunks_storage_async = async_twin(total_chunks_storage)
    branch_storage_stats_async = async_twin(branch_storage_stats)
    array_storage_stats_async = async_twin(array_storage_stats)
    chunk_file_stats_async = async_twin(chunk_file_stats)
    inspect_manifest_async = async_twin(inspect_manifest)
    inspect_transaction_log_async = async_twin(inspect_transaction_log)
    inspect_repo_info_async = async_twin(inspect_repo_info)


def _json(value: Any, pretty: bool) -> str:  # noqa: FBT001
    import msgspec

    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=2) if pretty else text).decode()


def _plain(value: Any) -> dict[str, Any]:
    import msgspec

    plain = msgspec.to_builtins(value, builtin_types=())
    assert isinstance(plain, dict)
    return plain
