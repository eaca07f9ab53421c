"""Exit codes of the command line: what went wrong, for scripts."""

from __future__ import annotations

from enum import IntEnum

from icefloe import errors


class ExitCode(IntEnum):
    """Codes that the command line ends with. New ones are added; none changes."""

    OK = 0
    """It worked."""
    PROBLEMS = 1
    """It worked, and the answer is no: `verify` found problems, `diff --exit-code` differences."""
    USAGE = 2
    """An option, an argument, the configuration file or the input is not valid."""
    NOT_FOUND = 3
    """There is no such repository, branch, tag, snapshot, array or group."""
    CONFLICT = 4
    """A branch moved, changes contradict each other, or the name or location is taken."""
    STORAGE = 5
    """The storage failed: network, permissions, disk; or a file of virtual chunks did."""
    DAMAGED = 6
    """Stored data is damaged."""
    NOT_CONFIRMED = 7
    """Not confirmed: the answer was no, or there was no terminal to ask."""
    INTERNAL = 70
    """An internal error: please report it, with the output of `--debug`."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""


_BY_ERROR: tuple[tuple[type[Exception], ExitCode], ...] = (
    (errors.NotFoundError, ExitCode.NOT_FOUND),
    (errors.AlreadyExistsError, ExitCode.CONFLICT),
    (errors.ConflictError, ExitCode.CONFLICT),
    (errors.FormatError, ExitCode.DAMAGED),
    (errors.StorageError, ExitCode.STORAGE),
    (errors.VirtualChunkError, ExitCode.STORAGE),
    (errors.TaskFailedError, ExitCode.STORAGE),
    (errors.IcefloeError, ExitCode.USAGE),
)


def exit_code_of(error: errors.IcefloeError) -> ExitCode:
    """The exit code for an error of the library."""
    return next(code for kind, code in _BY_ERROR if isinstance(error, kind))
