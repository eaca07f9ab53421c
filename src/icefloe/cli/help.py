"""Help in colours that can be read on dark and on light backgrounds."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class ReadableCommand(TyperCommand):
    """A command whose help is readable on any background."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _avoid_pale_colours()
        super().format_help(ctx, formatter)


class ReadableGroup(TyperGroup):
    """A group of commands whose help is readable on any background."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _avoid_pale_colours()
        super().format_help(ctx, formatter)


def _avoid_pale_colours() -> None:
    """Replace yellow, which vanishes on white, and colours that are dimmed besides.

    Typer has no setting for it; these are the names of its styles, and any may be missing.
    """
    from typer import rich_utils

    for name, style in vars(rich_utils).copy().items():
        if name.startswith("STYLE_") and isinstance(style, str):
            readable = style.replace("yellow", "magenta")
            setattr(rich_utils, name, readable.removeprefix("dim "))
