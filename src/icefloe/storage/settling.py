"""Conditional writes whose response may get lost: the outcome is settled by reading back.

Both functions call a `put` that makes exactly one attempt. Its errors mean:

- StorageUnreachableError, ForkedProcessError: nothing was sent;
- StoragePermissionError: refused; this attempt did not take effect and never will;
- AlreadyExistsError or ConflictError: the condition failed, perhaps because an earlier attempt of
  ours succeeded, or because the network delivered this one twice;
- any other StorageError: unknown; the write may have taken effect, or may do so later.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    ConflictError,
    ForkedProcessError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    StorageUnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.storage.port import BytesLike, ObjectVersion


def attempts(
    max_tries: int, initial_seconds: float, max_seconds: float, deadline_seconds: float
) -> Iterator[int]:
    """Count attempts, sleeping between them: exponential backoff, full jitter, and a deadline."""
    deadline = time.monotonic() + deadline_seconds
    for number in range(max_tries):
        if number:
            longest = min(max_seconds, initial_seconds * 2 ** (number - 1))
            pause = random.uniform(0, longest)
            if time.monotonic() + pause > deadline:
                return
            time.sleep(pause)
        yield number


class _Attempt(NamedTuple):
    """What is known after one attempt."""

    landed: bool = False
    version: ObjectVersion | None = None
    refusal: StoragePermissionError | None = None
    doubt: StorageError | None = None


def settle_create(
    key: str,
    data: BytesLike,
    *,
    put: Callable[[], ObjectVersion | None],
    read: Callable[[], bytes],
    tries: Iterable[int],
) -> None:
    """Create an object and return once it exists with `data`, whichever attempt wrote it.

    This is sound because objects made by `create` are never deleted or changed.
    """
    doubt: StorageError | None = None
    for _ in tries:
        attempt = _attempt(put, doubt)
        if attempt.landed:
            return
        doubt = doubt or attempt.doubt
        try:
            stored = read()
        except ObjectNotFoundError:  # safe to retry: same key, same bytes
            _give_up_if_refused(attempt, doubt)
            continue
        except StorageError as error:
            doubt = _still_in_doubt(attempt, doubt, error)
            continue
        if stored == data:
            return
        raise AlreadyExistsError(f"{key!r} exists already, with other content")
    raise _unknown(key) from doubt


def settle_replace(
    key: str,
    data: BytesLike,
    expected: ObjectVersion | None,
    *,
    put: Callable[[], ObjectVersion],
    read: Callable[[], tuple[bytes, ObjectVersion]],
    tries: Iterable[int],
) -> ObjectVersion:
    """Replace an object whose version is still `expected`; no other writer may write `data`."""
    doubt: StorageError | None = None
    for _ in tries:
        attempt = _attempt(put, doubt)
        if attempt.version is not None:
            return attempt.version
        doubt = doubt or attempt.doubt
        stored: bytes | None = None
        actual: ObjectVersion | None = None
        try:
            stored, actual = read()
        except ObjectNotFoundError:
            pass
        except StorageError as error:
            doubt = _still_in_doubt(attempt, doubt, error)
            continue
        if actual is not None and stored == data:
            return actual
        if actual == expected:
            _give_up_if_refused(attempt, doubt)
            continue
        if doubt is not None:
            break  # ours may have succeeded and been replaced by another writer since
        raise ConflictError(
            f"{key!r} changed since it was read: expected version {expected and expected.token}, "
            f"found {actual and actual.token}; read it again"
        )
    raise _unknown(key) from doubt


def _attempt(put: Callable[[], ObjectVersion | None], doubt: StorageError | None) -> _Attempt:
    """Make an attempt; raises its error if neither this nor an earlier one was sent."""
    try:
        return _Attempt(landed=True, version=put())
    except (StorageUnreachableError, ForkedProcessError):
        if doubt is None:
            raise
        return _Attempt()
    except StoragePermissionError as error:
        return _Attempt(refusal=error)
    except (AlreadyExistsError, ConflictError, ObjectNotFoundError):
        return _Attempt()
    except StorageError as error:
        return _Attempt(doubt=error)


def _still_in_doubt(
    attempt: _Attempt, doubt: StorageError | None, error: StorageError
) -> StorageError:
    """The attempt that stays in doubt when its outcome could not be read back.

    Even a failed condition proves nothing: the network may have delivered this attempt twice.
    """
    _give_up_if_refused(attempt, doubt)
    return doubt or error


def _give_up_if_refused(attempt: _Attempt, doubt: StorageError | None) -> None:
    """Raise if an attempt was refused, unless an earlier one may still take effect."""
    if attempt.refusal is not None and doubt is None:
        raise attempt.refusal


def _unknown(key: str) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"it cannot be known whether {key!r} was written: the storage gave no clear answer, nor "
        "could the object be read back; nothing was cleaned up, look again when the storage works",
        key,
    )
