"""Standard streams that take any text, even if they are closed, full or not in UTF-8."""

from __future__ import annotations

import codecs
import os
import re
import sys
from pathlib import Path
from typing import Any

_PLAIN_MARKS = str.maketrans("●│├└╰╯╭╮─━×→…", "*||``/,.--x>.")
_ERRORS = "icefloe.plain-marks"
_OPEN_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def prepare_streams() -> None:
    """Replace streams that are closed, and let the others take characters that they lack."""
    codecs.register_error(_ERRORS, _plain_marks)
    for name, mode in _OPEN_MODES.items():
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this process
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open until the end)
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_ERRORS)


def _plain_marks(error: UnicodeError) -> tuple[str | bytes, int]:
    """Lines of graphs and trees in ASCII, other characters as escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN_MARKS)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def write_json(text: str) -> None:
    """Write a line of JSON to standard output, with escapes if its encoding is not UTF-8."""
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        text = re.sub(r"[^\x00-\x7f]", _escape, text)
    sys.stdout.write(f"{text}\n")


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def forget(stream: Any) -> None:
    """Let nothing more be written to a stream, so that Python does not complain when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
