"""Shows every doctest of a docstring as code on the API pages (an extension of griffe).

griffe knows doctests in sections named `Examples:`; ours also stand in the text of a docstring.
"""

from __future__ import annotations

from typing import Any

import griffe


class ShowExamples(griffe.Extension):  # type: ignore[misc]
    """Puts a fence around doctests outside of sections."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The docstring with its doctests at the margin as code blocks."""
    lines: list[str] = []
    inside = False
    for line in text.replace("\nExample:\n", "\nExamples:\n").splitlines():
        if line.startswith(">>>") and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    if inside:
        lines.append("```")
    return "\n".join(lines)
