"""Failures of tasks, with the array, region and file that a task was working on."""

from __future__ import annotations

import re
import sys
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


_CAUSES = {
    r"spark\.driver\.maxResultSize": (
        "what its tasks return together is more than the driver accepts; raise "
        "spark.driver.maxResultSize (and spark.driver.memory, which must hold it), or let the "
        "job write less at a time"
    ),
    r"spark\.rpc\.message\.maxSize|exceeds max allowed": (
        "the work that one task gets is larger than a message of Spark; raise "
        "spark.rpc.message.maxSize (in MiB)"
    ),
    r"Java heap space|GC overhead limit exceeded": (
        "the Java process of the driver or of an executor has too little memory; raise "
        "spark.driver.memory or spark.executor.memory"
    ),
    r"Container killed|exit code 137|exit status: 137|memoryOverhead": (
        "an executor was killed because it took more memory than it may, mostly in Python; raise "
        "spark.executor.memoryOverhead, or give each task less: task_bytes"
    ),
    r"PYTHON_VERSION_MISMATCH|SRE module mismatch": (
        f"its workers run another Python than this process, which is {sys.version_info.major}."
        f"{sys.version_info.minor}; set PYSPARK_PYTHON to one of that version before the Spark "
        "session starts"
    ),
    r"No module named '(?:pyarrow|numpy|icefloe)'|icefloe is not installed in the Python": (
        "the Python of its workers has not the packages of this process; install "
        "'icefloe[spark]' there, or set PYSPARK_PYTHON to a Python that has it before the Spark "
        "session starts"
    ),
}
"""Causes as the errors of Spark name them, and what to do about each."""


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
    advice = _advice(str(error))
    return TaskFailedError(
        f"{label or 'the job'} failed in Spark, nothing was committed: {advice}{error}"
    )


def _advice(text: str) -> str:
    """Which setting of Spark to change, and why, if the cause is known."""
    for pattern, advice in _CAUSES.items():
        if re.search(pattern, text):
            return f"{advice}.\nSpark says: "
    return ""


def as_json(failure: Failure) -> str:
    """Encode a failure for a result row."""
    return msgspec.json.encode(failure).decode()


def from_json(text: str) -> Failure:
    """Decode a failure that `as_json` encoded."""
    return msgspec.json.decode(text, type=Failure)


def any_of(values: Any) -> list[Failure]:
    """Decode the failures in a column of result rows."""
    return [from_json(value) for value in values if value]
