"""Makes commands of functions: common options, examples in the help, errors as exit codes.

A command is a function that takes an `Output` and its arguments, and returns a view:

    def log(out: Output, place: Place) -> View: ...

    command(app, log, HISTORY, "icefloe log era5")
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.exit_codes import ExitCode, exit_code_of
from icefloe.cli.help import ReadableCommand, ReadableGroup
from icefloe.cli.output import NotConfirmedError, Output, to_json
from icefloe.cli.streams import forget, write_json
from icefloe.cli.wording import printable
from icefloe.errors import ErrorKind, IcefloeError, RebaseFailedError, RepositoryNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.cli.views import View

START = "Start"
HISTORY = "History and content"
BRANCHES = "Branches, tags and merging"
UPKEEP = "Retention and upkeep"
DATA = "Data in and out"

_SHOWN_CONFLICTS = 20
_OF_PYTHON = {
    "create_branch makes one beside": "there are",
    "; open it with Repository.open": "",
    "Repository.create": "`icefloe init`",
    "Choose one with the option dims or variables": "Choose one with --variable",
    "migrate to an empty place": "choose an empty place",
}
"""Advice of the library to programmers, and what people at a terminal read instead."""
_PASS_TAG = re.compile(r"there is a tag of that name: pass tag=.*")
_COMMON: tuple[tuple[str, Any], ...] = (
    ("as_json", Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]),
    ("quiet", Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]),
    (
        "debug",
        Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and logs.")],
    ),
)


def command(
    app: typer.Typer,
    function: Callable[..., View | None],
    panel: str,
    *examples: str,
    name: str | None = None,
) -> None:
    """Register a function as a command of an app.

    Args:
        app: The app, or the group of a family such as `branch`.
        function: What it runs: takes an output and the arguments of the command line.
        panel: The heading under which `--help` lists it.
        examples: Command lines for its help, all of which a test runs or parses.
        name: Name of the command; that of the function if not given.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for option, kind in _COMMON
    ]

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        debug = arguments.pop("debug")
        out = Output(as_json=arguments.pop("as_json"), quiet=arguments.pop("quiet"))
        raise typer.Exit(_run(out, functools.partial(function, out, **arguments), debug=debug))

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + common
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__  # its signature has an argument that is not one of the command line
    app.command(
        name,
        cls=ReadableCommand,
        rich_help_panel=panel,
        epilog=_as_epilog(examples),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(run)


def group(text: str, *examples: str) -> typer.Typer:
    """Make a group of commands such as `branch`, with its help and examples for it."""
    return typer.Typer(
        cls=ReadableGroup, no_args_is_help=True, help=text, epilog=_as_epilog(examples)
    )


def _as_epilog(examples: Sequence[str]) -> str:
    return "\n\n".join(["Examples:", *examples])


def _run(out: Output, function: Callable[[], View | None], *, debug: bool) -> ExitCode:
    _prepare_logs(debug=debug)
    try:
        view = function()
        return ExitCode.OK if view is None else _show(out, view)
    except BrokenPipeError as error:
        return report_unwritable(error)
    except KeyboardInterrupt:
        return _fail(out, "interrupted", "interrupted", ExitCode.INTERRUPTED)
    except NotConfirmedError as error:
        return _fail(out, str(error), "not-confirmed", ExitCode.NOT_CONFIRMED)
    except IcefloeError as error:
        if debug:
            traceback.print_exc()
        return _fail(out, _sentence(error), error.kind, exit_code_of(error))
    except MemoryError as error:
        sentence = f"there is not enough memory: {error}" if str(error) else "out of memory"
        return _fail(out, f"{sentence}; choose less", "out-of-memory", ExitCode.STORAGE)
    except Exception as error:  # noqa: BLE001 (the last resort: no traceback unasked)
        if debug:
            traceback.print_exc()
        sentence = f"unexpected {type(error).__name__}: {error} (--debug shows where)"
        return _fail(out, sentence, "internal", ExitCode.INTERNAL)


def _prepare_logs(*, debug: bool) -> None:
    """Show warnings, but those of storages only with --debug: an error is one sentence.

    A host that cannot be reached would cause one for each object that is left behind.
    """
    logs = logging.getLogger("icefloe.storage")
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    elif not any(isinstance(each, logging.NullHandler) for each in logs.handlers):
        logs.addHandler(logging.NullHandler())


def _show(out: Output, view: View) -> ExitCode:
    try:
        code = out.show(view)
        sys.stdout.flush()
    except OSError as error:
        return report_unwritable(error)
    return code


def report_unwritable(error: OSError) -> ExitCode:
    """Say that standard output cannot be written, unless its reader has seen enough."""
    forget(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return ExitCode.OK
    sentence = f"standard output cannot be written: {error.strerror}"
    return _fail(Output(), sentence, ErrorKind.STORAGE, ExitCode.STORAGE)


UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for wrong arguments; newer versions have a click of their own."""


def report_usage(error: Any, *, as_json: bool) -> ExitCode:
    """Say in one sentence which argument is wrong, or show the help if there was none."""
    message, context = error.format_message(), error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{message}\n" if message else "")
        return ExitCode.USAGE
    path = context.command_path if context is not None else "icefloe"
    told = " ".join(message.split())
    sentence = f"{told}{'' if told.endswith(('.', '?')) else '.'} See `{path} --help`."
    return _fail(Output(as_json=as_json), sentence, ErrorKind.INVALID_INPUT, ExitCode.USAGE)


def _sentence(error: IcefloeError) -> str:
    if isinstance(error, RepositoryNotFoundError):
        reason = error.message.removeprefix("the repository doesn't exist: ")
        return f"there is no repository: {_to_people(reason)}"
    lines = [_to_people(error.message)]
    if isinstance(error, RebaseFailedError) and len(error.conflicts) > 1:
        lines += [f"  {conflict}" for conflict in error.conflicts[:_SHOWN_CONFLICTS]]
        more = len(error.conflicts) - _SHOWN_CONFLICTS
        lines += [f"  and {more} more"] if more > 0 else []
    return "\n".join(lines)


def _to_people(message: str) -> str:
    for python, words in _OF_PYTHON.items():
        message = message.replace(python, words)
    return _PASS_TAG.sub("there is a tag of that name, and this needs a branch", message)


def _fail(out: Output, sentence: str, kind: str, code: ExitCode) -> ExitCode:
    """Report an error on standard error; programs find the same on standard output."""
    lines = [printable(line) for line in sentence.splitlines()] or ["failed"]
    if out.as_json:
        body = {"kind": str(kind), "message": "\n".join(lines), "exit_code": int(code)}
        with contextlib.suppress(OSError):  # standard error has it, and the exit code
            write_json(to_json({"error": body}))
            sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.write("icefloe: " + "\n".join(lines) + "\n")
        sys.stderr.flush()
    return code
