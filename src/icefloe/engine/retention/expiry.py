"""Expires snapshots: cuts histories behind the oldest snapshot that is retained.

Nothing is deleted or altered: expired snapshots can be read until they are collected.
`engine/history/expired_parents.py` records the cuts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.engine.history.expired_parents import CachedCuts, Cuts
from icefloe.engine.history.walk import History
from icefloe.engine.retention.branch_moves import retry_after_collection
from icefloe.engine.retention.stored_objects import as_moment
from icefloe.errors import (
    ConflictError,
    InvalidInputError,
    InvalidTypeError,
    RefNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.formats.port import LiveTip
from icefloe.model import MAIN
from icefloe.model.ids import SnapshotId
from icefloe.model.record import Record
from icefloe.progress import track
from icefloe.storage.clock import storage_now
from icefloe.storage.concurrency import each_at_once, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.engine.context import Context
    from icefloe.model.snapshot import SnapshotStub

logger = logging.getLogger(__name__)

_PATTERN_CHARACTERS = set("*?[")


class ExpirationPolicy(Record, frozen=True):
    """Which snapshots of a history to retain: young ones, and the newest ones whatever their age.

    Examples:
        Keep thirty days of every branch, but the whole history of releases:

        >>> from datetime import timedelta
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> _ = repo.create_branch("release-1", repo.lookup_branch("main"))
        >>> month = icefloe.ExpirationPolicy(older_than=timedelta(days=30), keep_last=10)
        >>> repo.expire_snapshots(branches={"main": month, "release-*": None})
        set()
    """

    older_than: datetime | timedelta | None = None
    """Snapshots written before this moment, or longer ago than this, expire. None expires nothing
    by age, or everything but the newest ones if `keep_last` is given."""
    keep_last: int | None = None
    """How many of the newest snapshots to retain, whatever their age."""

    def check(self) -> None:
        """Raise InvalidInputError or InvalidTypeError for a `keep_last` that makes no sense."""
        if self.keep_last is not None and not isinstance(self.keep_last, int):
            raise InvalidTypeError(f"keep_last is an integer, found {self.keep_last!r}")
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidInputError(f"keep_last is 1 or more, found {self.keep_last}")


Policies = Mapping[str, ExpirationPolicy | None]
"""Policies by name of a branch or tag, or by pattern such as `release-*`; None retains all."""


class ExpiredSnapshots(Record, frozen=True):
    """What expires, or would expire."""

    expired: frozenset[SnapshotId]
    cuts: dict[SnapshotId, SnapshotId]
    """The oldest snapshots that are retained, with the first snapshot of their history, which
    becomes their parent."""
    branches: tuple[str, ...]
    """Branches to delete."""
    tags: tuple[str, ...] = ()
    """Tags to delete."""


class _Rule(Record, frozen=True):
    """A policy whose moment is by the storage's clock."""

    older_than: datetime | None
    keep_last: int

    def keeps(self, place: int, written_at: datetime) -> bool:
        if place < self.keep_last:
            return True
        return self.older_than is not None and written_at >= self.older_than


class _Entry(Record, frozen=True):
    parent: SnapshotId | None
    written_at: datetime


def expire(
    context: Context,
    default: ExpirationPolicy,
    *,
    branches: Policies,
    tags: Policies,
    delete_branches: bool,
    delete_tags: bool,
    dry_run: bool,
) -> ExpiredSnapshots:
    """Cut histories according to policies; returns what expired."""
    if not context.storage.capabilities.can_list:
        raise StorageError(f"{context.storage.location} cannot list objects, so nothing expires")
    default.check()
    _check_policies(branches, "branches", context.refs.branches)
    _check_policies(tags, "tags", context.refs.tags)
    kinds = {"branch": delete_branches, "tag": delete_tags}
    deletes = frozenset(kind for kind, is_deleted in kinds.items() if is_deleted)
    plan = _Planner(context, default, branches, tags, deletes).plan()
    return plan if dry_run else _carry_out(context, plan)


def _check_policies(
    policies: Mapping[Any, object], what: str, names: Callable[[], set[str]]
) -> None:
    """Refuse what is not a policy, and names that no reference has: they would protect nothing."""
    if not isinstance(policies, Mapping):
        raise InvalidTypeError(f"{what} gives policies by name, found {policies!r}")
    for name, policy in policies.items():
        if not isinstance(name, str) or not isinstance(policy, ExpirationPolicy | None):
            raise InvalidTypeError(
                f"{what} gives by name or pattern an ExpirationPolicy, or None to keep all; found "
                f"{name!r}: {policy!r}"
            )
        if policy is not None:
            policy.check()
    exact = [name for name in policies if not _PATTERN_CHARACTERS & set(name)]
    existing = names() if exact else set()
    for name in exact:
        if name not in existing:
            raise RefNotFoundError(
                f"ref not found `{name}`: a policy is for one of the {what} that there are "
                f"({', '.join(sorted(existing)) or 'none'}), or for a pattern such as `{name}*`",
                name,
            )


def _carry_out(context: Context, plan: ExpiredSnapshots) -> ExpiredSnapshots:
    """Write the cuts and delete branches; returns what was done. Branches that moved stay."""
    storage = context.storage
    if context.refs.expire(plan.cuts):
        context.files.forget()
    else:
        cuts = Cuts(storage)
        each_at_once(storage, lambda cut: cuts.add(*cut), plan.cuts.items())
    deleted = each_at_once(
        storage, lambda branch: _delete_branch(context, branch, plan.expired), plan.branches
    )
    for tag in plan.tags:
        with suppress(RefNotFoundError):  # somebody else deleted it
            context.refs.delete_tag(tag)
    moved = [name for name, is_gone in zip(plan.branches, deleted, strict=True) if not is_gone]
    reached: set[SnapshotId] = set()
    for branch in moved:
        logger.info("branch %r moved and is not deleted", branch)
        tip = context.refs.tip(branch)
        if isinstance(tip, LiveTip):
            reached.update(stub.id for stub in context.history.stubs(tip.snapshot_id))
    logger.info("expired %d snapshots in %s", len(plan.expired), context.storage.location)
    return ExpiredSnapshots(
        expired=plan.expired - reached,
        cuts=plan.cuts,
        branches=tuple(branch for branch in plan.branches if branch not in moved),
        tags=plan.tags,
    )


def _delete_branch(context: Context, branch: str, expired: frozenset[SnapshotId]) -> bool:
    """Delete a branch whose tip has expired; False if the branch has another tip by now."""
    refs = context.refs
    tip = refs.tip(branch)
    if not isinstance(tip, LiveTip) or tip.snapshot_id not in expired:
        return False
    try:
        retry_after_collection(refs, tip, lambda state: refs.advance(state, None))
    except ConflictError:
        return False
    return True


class _Ref(NamedTuple):
    """A branch or tag, and the rule for its history; None retains all of it."""

    name: str
    kind: str
    tip: SnapshotId
    rule: _Rule | None


class _Planner:
    def __init__(
        self,
        context: Context,
        default: ExpirationPolicy,
        branches: Policies,
        tags: Policies,
        deletes: frozenset[str],
    ) -> None:
        self._context = context
        self._history = History(context.files, context.refs, CachedCuts(context.storage))
        refs = context.refs.view()
        self._now, self._tips, self._targets, _ = together(
            context.storage,
            lambda: storage_now(context.storage),
            refs.tips,
            refs.tag_targets,
            self._history.cuts.all,
        )
        self._default = self._rule(default)
        self._branches = self._rules(branches)
        self._tags = self._rules(tags)
        self._deletes = deletes
        """Kinds of references that are deleted if their snapshots expire."""
        self._entries: dict[SnapshotId, _Entry] = {}
        self._kept: set[SnapshotId] = set()
        """Snapshots that some rule retains."""
        self._linked: set[SnapshotId] = set()
        """Snapshots that a history retains together with their parents: no cut may follow them."""

    def plan(self) -> ExpiredSnapshots:
        refs = list(self._refs())
        # Most of them name all of their ancestors.
        self._context.files.find_snapshots(list(dict.fromkeys(ref.tip for ref in refs)))
        for ref in refs:
            self._remember(ref.tip)
        dead = [ref for ref in refs if self._is_dead(ref)]
        lasts = {ref: self._keep(ref) for ref in refs if ref not in dead}
        released: set[SnapshotId] = set()
        old_tips: set[SnapshotId] = set()
        cuts: dict[SnapshotId, SnapshotId] = {}
        for ref, last in lasts.items():
            after = self._entries[last].parent
            if after is None or self._entries[after].parent is None:
                continue
            released.update(self._ancestors(after, released))
            if not self._keeps_tip(ref):
                old_tips.add(ref.tip)
            if last not in self._linked:
                cuts[last] = self._root(last)
        for ref in dead:
            released.update(self._ancestors(ref.tip, released))
        expired = frozenset((released - self._kept) | old_tips)
        branches, tags = (
            tuple(sorted(ref.name for ref in dead if ref.kind == kind))
            for kind in ("branch", "tag")
        )
        return ExpiredSnapshots(expired=expired, cuts=cuts, branches=branches, tags=tags)

    # --- references and their rules

    def _refs(self) -> Iterator[_Ref]:
        for name, tip in sorted(self._tips.items()):
            if isinstance(tip, LiveTip):
                yield _Ref(
                    name=name,
                    kind="branch",
                    tip=tip.snapshot_id,
                    rule=self._rule_of(name, self._branches),
                )
        for name, target in sorted(self._targets.items()):
            yield _Ref(name=name, kind="tag", tip=target, rule=self._rule_of(name, self._tags))

    def _rule(self, policy: ExpirationPolicy) -> _Rule:
        moment = policy.older_than
        if moment is None:
            keeps_all = policy.keep_last is None
            older_than = datetime.min.replace(tzinfo=UTC) if keeps_all else None
        else:
            older_than = as_moment(moment, self._now, "older_than")
        return _Rule(older_than, policy.keep_last or 0)

    def _rules(self, policies: Policies) -> dict[str, _Rule | None]:
        return {
            name: None if policy is None else self._rule(policy)
            for name, policy in policies.items()
        }

    def _rule_of(self, name: str, rules: Mapping[str, _Rule | None]) -> _Rule | None:
        if name in rules:
            return rules[name]
        for pattern, rule in rules.items():
            if fnmatchcase(name, pattern):
                return rule
        return self._default

    def _is_dead(self, ref: _Ref) -> bool:
        if ref.kind not in self._deletes or (ref.kind == "branch" and ref.name == MAIN):
            return False
        return self._entries[ref.tip].parent is not None and not self._keeps_tip(ref)

    def _keeps_tip(self, ref: _Ref) -> bool:
        return ref.rule is None or ref.rule.keeps(0, self._entries[ref.tip].written_at)

    # --- histories

    def _remember(self, tip: SnapshotId) -> None:
        """Read the ancestors of a snapshot, up to the first that is known already."""
        child: SnapshotStub | None = None
        for stub in track(self._history.stubs(tip), "snapshots"):
            if child is not None:
                self._entries[child.id] = _Entry(stub.id, child.written_at)
            if stub.id in self._entries:
                return
            child = stub
        if child is not None:
            self._entries[child.id] = _Entry(None, child.written_at)

    def _keep(self, ref: _Ref) -> SnapshotId:
        """Record what a rule retains of a history, from the tip on; returns the oldest of it."""
        last, place = ref.tip, 0
        if self._keeps_tip(ref):
            self._kept.add(ref.tip)
        while True:
            parent = self._entries[last].parent
            place += 1
            if parent is None:
                return last
            written_at = self._entries[parent].written_at
            if ref.rule is not None and not ref.rule.keeps(place, written_at):
                return last
            self._kept.add(parent)
            self._linked.add(last)
            last = parent

    def _ancestors(self, snapshot_id: SnapshotId, seen: set[SnapshotId]) -> list[SnapshotId]:
        """A snapshot and its ancestors without the first one, up to one that was seen."""
        ancestors = []
        place: SnapshotId | None = snapshot_id
        while place is not None and place not in seen:
            parent = self._entries[place].parent
            if parent is not None:
                ancestors.append(place)
            place = parent
        return ancestors

    def _root(self, snapshot_id: SnapshotId) -> SnapshotId:
        """The first snapshot of a history, or the given one where the first has no file.

        In repositories of the earliest layouts later snapshots only mention it.
        """
        place = snapshot_id
        while (parent := self._entries[place].parent) is not None:
            place = parent
        try:
            return self._context.files.read_snapshot(place).id
        except SnapshotNotFoundError:
            return snapshot_id
