"""Failures of tasks, with the array, region and file that a task was working on."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.arrays.error_context import error_context
from icefloe.errors import (
    ForkedProcessError,
    IcefloeError,
    StorageError,
    StoragePermissionError,
    TaskFailedError,
)
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK = "ICEFLOE-FAILURE"
_SHOWN = 10
_PERMANENT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    UnicodeError,
    ValueError,
)
"""Built-in errors that a retry does not help against."""


class Failure(Record, frozen=True):
    """Why one work item failed."""

    task: int
    error: str
    """Name of the exception's class."""
    message: str
    array: str = ""
    region: str = ""
    source: str = ""
    """The file or URL that was being read."""
    trace: str = ""

    def __str__(self) -> str:
        named = {"array": self.array, "region": self.region, "source": self.source}
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        return f"task {self.task}{f' ({where})' if where else ''}: {self.error}: {self.message}"


def describe(task: int, error: Exception) -> Failure:
    """Describe an error that a task raised."""
    trace = "".join(traceback.format_exception(error))
    return Failure(task, type(error).__name__, str(error), trace=trace, **error_context(error))


def is_permanent(error: Exception) -> bool:
    """Whether the error would occur again if the task was retried."""
    if isinstance(error, StorageError):
        return isinstance(error, StoragePermissionError | ForkedProcessError)
    return isinstance(error, (IcefloeError, *_PERMANENT))


class RetryableTaskError(Exception):
    """Makes Spark retry a task; its text contains the failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure}\n{_MARK} {as_json(failure)}")


def from_text(text: str) -> Failure | None:
    """Find the failure in the text of an exception of Spark, if there is one."""
    for line in reversed(re.findall(rf"{_MARK} (\{{.*\}})", text)):
        try:
            return msgspec.json.decode(line, type=Failure)
        except msgspec.DecodeError:
            continue
    return None


def failed(label: str, failures: Sequence[Failure], total: int) -> TaskFailedError:
    """Make the error of a job whose tasks failed."""
    shown = "\n".join(f"  {failure}" for failure in failures[:_SHOWN])
    more = f"\n  and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    return TaskFailedError(
        f"{label or 'the job'} failed in {len(failures)} of {total} work items, nothing was "
        f"committed:\n{shown}{more}",
        failures,
    )


def lost(label: str, error: BaseException) -> TaskFailedError:
    """Make the error of a job that Spark aborted."""
    failure = from_text(str(error))
    if failure is not None:
        return failed(label, [failure], 1)
    return TaskFailedError(f"{label or 'the job'} failed in Spark, nothing was committed: {error}")


def as_json(failure: Failure) -> str:
    """Encode a failure for a result row."""
    return msgspec.json.encode(failure).decode()


def from_json(text: str) -> Failure:
    """Decode a failure that `as_json` encoded."""
    return msgspec.json.decode(text, type=Failure)


def any_of(values: Any) -> list[Failure]:
    """Decode the failures in a column of result rows."""
    return [from_json(value) for value in values if value]
