"""The error tree: every error that icefloe raises on purpose, grouped by what a handler would do.

IcefloeError                     .kind: a stable, append-only code; .message
├── NotFoundError (KeyError)     ask for something else
│   ├── NodeNotFoundError        .path
│   ├── SnapshotNotFoundError    .snapshot_id
│   ├── RefNotFoundError         .name
│   ├── RepositoryNotFoundError  .location
│   ├── ObjectNotFoundError      .key   (a storage has no such object)
│   └── StoreKeyNotFoundError (FileNotFoundError)  .key   (a Zarr store has no such value)
├── AlreadyExistsError           choose another name, or use the existing one
├── ConflictError                .expected_parent .actual_parent: rebase and try again
│   └── RebaseFailedError        .snapshot .conflicts: a person must decide
├── ReadOnlyError                open a writable session
│   └── ReadOnlyStoreError (ValueError)  the same, as Zarr expects it of a store
├── InvalidInputError (ValueError)  correct the argument
│   ├── InvalidTypeError (TypeError)  the same: it is of a kind that is not taken
│   ├── InconsistentFilesError   .differences: files do not fit together
│   └── BrokenFilesError         .files: files cannot be read
├── SessionStateError            the session cannot do that now
│   └── ForkSessionError (TypeError)  nor ever: it is a fork, to be merged back
├── FormatError                  bytes in storage are not what they should be: .key
│   └── DamagedChunkError        .key .array .chunk .snapshot: restore the file, or the chunk
├── StorageError                 the storage failed: network, permissions, disk
│   ├── StoragePermissionError
│   ├── StorageUnreachableError  .location: nothing was sent; check the address and the network
│   ├── UnsafeStorageError       the store ignores conditional writes; icefloe refuses it
│   ├── ForkedProcessError       a client that does not survive fork() was used after one
│   └── CommitStateUnknownError  .key .snapshot_id: it may have landed; nothing was cleaned up
├── VirtualChunkError            a virtual chunk cannot be read: missing, changed or not authorised
├── MissingPackageError (ModuleNotFoundError)  .name: install the extra that the message names
└── TaskFailedError              .failures: parts of a distributed job failed; nothing was committed
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class ErrorKind(StrEnum):
    """Stable codes of errors, for programs. New ones are added at the end; none changes."""

    OTHER = "other"
    NOT_FOUND = "not-found"
    NODE_NOT_FOUND = "node-not-found"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    REF_NOT_FOUND = "ref-not-found"
    REPOSITORY_NOT_FOUND = "repository-not-found"
    OBJECT_NOT_FOUND = "object-not-found"
    ALREADY_EXISTS = "already-exists"
    CONFLICT = "conflict"
    REBASE_FAILED = "rebase-failed"
    READ_ONLY = "read-only"
    INVALID_INPUT = "invalid-input"
    SESSION_STATE = "session-state"
    FORMAT = "format"
    STORAGE = "storage"
    STORAGE_PERMISSION = "storage-permission"
    UNSAFE_STORAGE = "unsafe-storage"
    FORKED_PROCESS = "forked-process"
    COMMIT_STATE_UNKNOWN = "commit-state-unknown"
    VIRTUAL_CHUNK = "virtual-chunk"
    STORE_KEY_NOT_FOUND = "store-key-not-found"
    READ_ONLY_STORE = "read-only-store"
    DAMAGED_CHUNK = "damaged-chunk"
    INCONSISTENT_FILES = "inconsistent-files"
    TASK_FAILED = "task-failed"
    BROKEN_FILES = "broken-files"
    INVALID_TYPE = "invalid-type"
    FORK_SESSION = "fork-session"
    STORAGE_UNREACHABLE = "storage-unreachable"
    MISSING_PACKAGE = "missing-package"


_LONGEST, _BEGINNING, _END = 4_000, 3_000, 800
"""Characters of a message: the problem is at its beginning, what to do at its end."""


class IcefloeError(Exception):
    """Root of all errors of icefloe."""

    kind: ErrorKind = ErrorKind.OTHER

    def __init__(self, message: str, *fields: Any) -> None:
        # A name or value in it may be of any length: names come from storage, values from callers.
        if len(message) > _LONGEST:
            message = f"{message[:_BEGINNING]} […] {message[-_END:]}"
        # All arguments go to Exception so that errors survive pickling, e.g. from Spark workers.
        super().__init__(message, *fields)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}(message={self.message!r})"


class NotFoundError(IcefloeError, KeyError):
    """The requested object does not exist."""

    kind = ErrorKind.NOT_FOUND


class NodeNotFoundError(NotFoundError):
    """No array or group at a path."""

    kind = ErrorKind.NODE_NOT_FOUND

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message, path)
        self.path = path


class SnapshotNotFoundError(NotFoundError):
    """No snapshot with an id."""

    kind = ErrorKind.SNAPSHOT_NOT_FOUND

    def __init__(self, message: str, snapshot_id: str = "") -> None:
        super().__init__(message, snapshot_id)
        self.snapshot_id = snapshot_id


class RefNotFoundError(NotFoundError):
    """No branch or tag of a name."""

    kind = ErrorKind.REF_NOT_FOUND

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message, name)
        self.name = name


class RepositoryNotFoundError(NotFoundError):
    """No repository at a location."""

    kind = ErrorKind.REPOSITORY_NOT_FOUND

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message, location)
        self.location = location


class ObjectNotFoundError(NotFoundError):
    """A storage has no object under a key."""

    kind = ErrorKind.OBJECT_NOT_FOUND

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message, key)
        self.key = key


class StoreKeyNotFoundError(NotFoundError, FileNotFoundError):
    """A Zarr store has no value under a key; also the built-in error that Zarr asks for."""

    kind = ErrorKind.STORE_KEY_NOT_FOUND

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message, key)
        self.key = key


class AlreadyExistsError(IcefloeError):
    """The name is already in use."""

    kind = ErrorKind.ALREADY_EXISTS


class ConflictError(IcefloeError):
    """The branch moved since the session started."""

    kind = ErrorKind.CONFLICT

    def __init__(
        self,
        message: str,
        expected_parent: str | None = None,
        actual_parent: str | None = None,
    ) -> None:
        super().__init__(message, expected_parent, actual_parent)
        self.expected_parent = expected_parent
        self.actual_parent = actual_parent


class RebaseFailedError(ConflictError):
    """Conflicts that the solver could not resolve; the session is unchanged."""

    kind = ErrorKind.REBASE_FAILED

    def __init__(self, message: str, snapshot: str = "", conflicts: Sequence[Any] = ()) -> None:
        IcefloeError.__init__(self, message, snapshot, conflicts)
        self.expected_parent = None
        self.actual_parent = snapshot
        self.snapshot = snapshot
        self.conflicts = list(conflicts)


class ReadOnlyError(IcefloeError):
    """A write through a read-only object."""

    kind = ErrorKind.READ_ONLY


class ReadOnlyStoreError(ReadOnlyError, ValueError):
    """A write through a read-only Zarr store; also the built-in error that Zarr raises."""

    kind = ErrorKind.READ_ONLY_STORE


class InvalidInputError(IcefloeError, ValueError):
    """An argument is wrong."""

    kind = ErrorKind.INVALID_INPUT


class InvalidTypeError(InvalidInputError, TypeError):
    """An argument has the wrong type; also the built-in error for it."""

    kind = ErrorKind.INVALID_TYPE


class InconsistentFilesError(InvalidInputError):
    """Files cannot be combined into one group; nothing was written."""

    kind = ErrorKind.INCONSISTENT_FILES

    def __init__(self, message: str, differences: Sequence[Any] = ()) -> None:
        super().__init__(message, differences)
        self.differences = list(differences)


class BrokenFilesError(InvalidInputError):
    """Files that were to be ingested cannot be read; nothing was committed."""

    kind = ErrorKind.BROKEN_FILES

    def __init__(self, message: str, files: Sequence[Any] = ()) -> None:
        super().__init__(message, files)
        self.files = list(files)


class SessionStateError(IcefloeError):
    """The operation is not possible in the current state of the session."""

    kind = ErrorKind.SESSION_STATE


class ForkSessionError(SessionStateError, TypeError):
    """An operation that a fork does not support, only its session; also a TypeError."""

    kind = ErrorKind.FORK_SESSION


class FormatError(IcefloeError):
    """An object in the storage is damaged or not in the expected format."""

    kind = ErrorKind.FORMAT

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message, key)
        self.key = key


class DamagedChunkError(FormatError):
    """The file of a chunk is missing, too short, or contains other bytes than were written."""

    kind = ErrorKind.DAMAGED_CHUNK

    def __init__(
        self,
        message: str,
        key: str = "",
        array: str = "",
        chunk: tuple[int, ...] = (),
        snapshot: str = "",
    ) -> None:
        IcefloeError.__init__(self, message, key, array, chunk, snapshot)
        self.key = key
        self.array = array
        self.chunk = chunk
        self.snapshot = snapshot


class StorageError(IcefloeError):
    """The storage failed: network, permissions, disk."""

    kind = ErrorKind.STORAGE


class StoragePermissionError(StorageError):
    """The storage refused the credentials, or they do not allow the operation."""

    kind = ErrorKind.STORAGE_PERMISSION


class StorageUnreachableError(StorageError):
    """No connection to the storage could be made, so that nothing was sent there."""

    kind = ErrorKind.STORAGE_UNREACHABLE

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message, location)
        self.location = location


class UnsafeStorageError(StorageError):
    """The storage ignores conditional writes, so commits on it would overwrite each other."""

    kind = ErrorKind.UNSAFE_STORAGE


class ForkedProcessError(StorageError):
    """An object-store client was used in a forked child of the process that made it."""

    kind = ErrorKind.FORKED_PROCESS


class CommitStateUnknownError(StorageError):
    """The outcome of a conditional write is unknown: it may have succeeded. Nothing was cleaned up.

    You can commit the session again: if the first attempt succeeded, this raises ConflictError.
    """

    kind = ErrorKind.COMMIT_STATE_UNKNOWN

    def __init__(self, message: str, key: str = "", snapshot_id: str = "") -> None:
        super().__init__(message, key, snapshot_id)
        self.key = key
        self.snapshot_id = snapshot_id


class VirtualChunkError(IcefloeError):
    """A virtual chunk cannot be read: missing, changed or not authorised."""

    kind = ErrorKind.VIRTUAL_CHUNK


class MissingPackageError(IcefloeError, ModuleNotFoundError):
    """A required package is not installed; also the built-in error."""

    kind = ErrorKind.MISSING_PACKAGE

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message, name)
        self.name = name


class TaskFailedError(IcefloeError):
    """Tasks of a distributed job failed; the job committed nothing."""

    kind = ErrorKind.TASK_FAILED

    def __init__(self, message: str, failures: Sequence[Any] = ()) -> None:
        super().__init__(message, failures)
        self.failures = list(failures)
