"""What does not fit together between files, as data and as a report that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_FILES = 3


class Difference(Record, frozen=True):
    """One thing that is not the same in all files."""

    variable: str
    """The variable or dimension; empty for the file as a whole."""
    what: str
    """Which property: `data type`, `chunks`, `codecs`, `attribute units`, …"""
    found: tuple[tuple[str, tuple[str, ...]], ...]
    """Each value of the property, and the files that have it."""
    is_error: bool = True
    """Whether the files cannot be combined because of it. Otherwise it is a remark."""
    hint: str = ""
    """What can be done about it."""

    def __str__(self) -> str:
        lines = [f"{self.variable or 'files'}: {self.what}"]
        lines += [f"    {value}: {_files(files)}" for value, files in self.found]
        if self.hint:
            lines.append(f"    → {self.hint}")
        return "\n".join(lines)


def _files(files: Sequence[str]) -> str:
    shown = ", ".join(files[:_SHOWN_FILES])
    if len(files) > _SHOWN_FILES:
        shown += f" and {len(files) - _SHOWN_FILES} more"
    return shown


def report(differences: Sequence[Difference]) -> str:
    """All differences as text, what must be solved first."""
    ordered = sorted(differences, key=lambda each: not each.is_error)
    return "\n".join(str(each) for each in ordered)
