"""The status, feature flags and log of updates of a repository of icechunk's version 2."""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum

from icefloe.model.record import Record


class RepoAvailability(IntEnum):
    """Whether a repository may be changed."""

    online = 0
    read_only = 1


class RepoStatus(Record, frozen=True):
    """Whether a repository is writable, since when, and the reason if not.

    Examples:
        >>> import icefloe
        >>> status = icefloe.RepoStatus(
        ...     icefloe.RepoAvailability.read_only, limited_availability_reason="moving house"
        ... )
        >>> status.limited_availability_reason
        'moving house'
    """

    availability: RepoAvailability = RepoAvailability.online
    set_at: datetime | None = None
    """When it was set; now, for a status that is about to be set."""
    limited_availability_reason: str | None = None


class FeatureFlag(Record, frozen=True):
    """An operation that a repository allows or forbids."""

    id: int
    name: str
    default_enabled: bool
    setting: bool | None
    """The setting; None if the default applies."""

    @property
    def enabled(self) -> bool:
        """Whether it is allowed."""
        return self.default_enabled if self.setting is None else self.setting


class UpdateType:
    """The kinds of updates of a repository, each with its details."""

    class RepoInitialized(Record, frozen=True):
        """The repository was created."""

    class RepoMigrated(Record, frozen=True):
        """The repository got another version of its format."""

        from_version: int
        to_version: int

    class ConfigChanged(Record, frozen=True):
        """The configuration was saved."""

    class MetadataChanged(Record, frozen=True):
        """The metadata of the repository was set."""

    class TagCreated(Record, frozen=True):
        """A tag was created."""

        name: str

    class TagDeleted(Record, frozen=True):
        """A tag was deleted."""

        name: str
        previous_snap_id: str

    class BranchCreated(Record, frozen=True):
        """A branch was created."""

        name: str

    class BranchDeleted(Record, frozen=True):
        """A branch was deleted."""

        name: str
        previous_snap_id: str

    class BranchReset(Record, frozen=True):
        """A branch was made to point to another snapshot."""

        name: str
        previous_snap_id: str

    class NewCommit(Record, frozen=True):
        """A commit was published on a branch."""

        branch: str
        new_snap_id: str

    class CommitAmended(Record, frozen=True):
        """The newest commit of a branch was replaced."""

        branch: str
        previous_snap_id: str
        new_snap_id: str

    class NewDetachedSnapshot(Record, frozen=True):
        """A snapshot was written that no branch points to."""

        new_snap_id: str

    class GCRan(Record, frozen=True):
        """Garbage was collected."""

    class ExpirationRan(Record, frozen=True):
        """Snapshots were expired."""

    class FeatureFlagChanged(Record, frozen=True):
        """A feature flag was set, or its setting was removed."""

        id: int
        new_value: bool | None

    class RepoStatusChanged(Record, frozen=True):
        """The status of the repository was set."""

        status: RepoStatus

    class UnknownUpdate(Record, frozen=True):
        """An update that only a newer release knows."""

        number: int


UpdateKind = (
    UpdateType.RepoInitialized
    | UpdateType.RepoMigrated
    | UpdateType.ConfigChanged
    | UpdateType.MetadataChanged
    | UpdateType.TagCreated
    | UpdateType.TagDeleted
    | UpdateType.BranchCreated
    | UpdateType.BranchDeleted
    | UpdateType.BranchReset
    | UpdateType.NewCommit
    | UpdateType.CommitAmended
    | UpdateType.NewDetachedSnapshot
    | UpdateType.GCRan
    | UpdateType.ExpirationRan
    | UpdateType.FeatureFlagChanged
    | UpdateType.RepoStatusChanged
    | UpdateType.UnknownUpdate
)
"""Any kind of update."""


class Update(Record, frozen=True):
    """An update of a repository: an entry of `Repository.ops_log`."""

    kind: UpdateKind
    updated_at: datetime
    backup_path: str | None = None
    """The copy of the `repo` file, below `overwritten/`, in which this is the newest update."""
