"""Write docs/reference/cli.md from the commands themselves: `make cli` after a change of one.

scripts/write_cli_reference.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer.main

from icefloe.cli.app import make_app
from icefloe.cli.exit_codes import ExitCode

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
INTRODUCTION = """\
# Command line reference

Written by `make cli` from the commands themselves. For tasks, see
[the command line](../how-to/command-line.md). Every command also takes `--json` (print JSON, for
programs), `--quiet` (print nothing but errors), `--debug` (show the traceback of an error) and
`--help`.

"""
COMMON = {"as_json", "quiet", "debug", "help"}


def members(group: Any) -> list[tuple[str, Any]]:
    return sorted(group.commands.items())


def described(words: str, command: Any) -> str:
    lines = [f"## `{words}`", "", inspect.cleandoc(command.help or ""), ""]
    parameters = [each for each in command.params if each.name not in COMMON]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    names = [each.metavar or each.name.upper() for each in arguments]
    shown = [
        name if each.required else f"[{name}]" for name, each in zip(names, arguments, strict=True)
    ]
    lines += ["```text", " ".join([words, *shown, "[OPTIONS]"]), "```", ""]
    rows = [(f"`{name}`", each) for name, each in zip(names, arguments, strict=True)] + [
        (", ".join(f"`{option}`" for option in (*each.opts, *each.secondary_opts)), each)
        for each in parameters
        if each.param_type_name == "option"
    ]
    if rows:
        lines += ["| | |", "|--|--|"]
        lines += [f"| {name} | {meaning(each)} |" for name, each in rows]
        lines.append("")
    _, *examples = (command.epilog or "").split("\n\n")
    if examples:
        lines += ["```sh", *examples, "```", ""]
    return "\n".join(lines)


def meaning(parameter: Any) -> str:
    text = (parameter.help or "").replace("|", "\\|")
    default = parameter.default
    is_plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    if parameter.required and parameter.param_type_name == "option":
        return f"{text} Required."
    return f"{text} Default: `{default}`." if is_plain else text


def exit_codes() -> str:
    source = inspect.getsource(ExitCode)
    lines = ["## Exit codes", "", "| code | meaning |", "|--|--|"]
    for code in ExitCode:
        after = source.split(f"    {code.name} = {code.value}\n", 1)[1]
        lines.append(f"| {code.value} | {after.split(chr(34) * 3)[1]} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    root = typer.main.get_command(make_app())
    parts = []
    for name, command in members(root):
        if hasattr(command, "commands"):
            parts += [described(f"icefloe {name} {sub}", each) for sub, each in members(command)]
        else:
            parts.append(described(f"icefloe {name}", command))
    return INTRODUCTION + "\n".join(parts) + "\n" + exit_codes()


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page())
    PAGE.write_text(page())
