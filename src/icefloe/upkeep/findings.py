"""The problems that verification reports, as data and as text."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from icefloe.html_tables import Report

_SHOWN = 50


class ProblemKind(StrEnum):
    """What is wrong. New kinds are added at the end; existing ones never change."""

    REFERENCE = "reference"
    """A branch or tag cannot be read, has a gap, or points to nothing."""
    SNAPSHOT = "snapshot"
    """A snapshot is missing or damaged, or its history is."""
    NODE = "node"
    """An array or group is not what it should be."""
    MANIFEST = "manifest"
    """A manifest is missing or damaged, or not what the snapshot says."""
    EXTENTS = "extents"
    """Extents overlap, or are not those of the manifest."""
    ATTRIBUTES = "attributes"
    """An attribute file is missing or damaged."""
    TRANSACTION_LOG = "transaction-log"
    """A log is damaged, or does not record what changed."""
    CHUNK_FILE = "chunk-file"
    """A chunk file is missing or too short."""
    CHECKSUM = "checksum"
    """The bytes of a chunk are not those that were written."""
    CONFIGURATION = "configuration"
    """The configuration cannot be read."""
    NOTE = "note"
    """A small object under `maintenance/` is damaged."""


class Problem(msgspec.Struct, frozen=True):
    """A problem of a repository."""

    kind: ProblemKind
    message: str
    key: str = ""
    """The object at fault."""
    snapshot_id: str = ""
    path: str = ""
    """The array or group that is affected."""
    chunks: tuple[tuple[int, ...], ...] = ()
    """Some of the chunks that cannot be read."""
    repairable: bool = False
    """Whether `repair` can fix it without guessing."""

    def __str__(self) -> str:
        where = [self.path, f"chunks {list(map(list, self.chunks))}" if self.chunks else ""]
        where += [f"snapshot {self.snapshot_id}" if self.snapshot_id else "", self.key]
        text = ", ".join(part for part in where if part)
        can = " (repair can fix this)" if self.repairable else ""
        return f"{self.kind}: {self.message}{f' [{text}]' if text else ''}{can}"


class Orphans(msgspec.Struct, frozen=True):
    """Unreachable objects of a kind; they may belong to open sessions."""

    count: int = 0
    bytes: int = 0
    keys: tuple[str, ...] = ()
    """The first of them."""


class VerificationReport(Report, frozen=True):
    """What was checked and what is wrong; `print` it for a summary."""

    problems: tuple[Problem, ...]
    checked: dict[str, int]
    """How many of each kind of thing were checked."""
    orphans: dict[str, Orphans]
    """Unreachable objects, by kind."""
    deep: bool

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong. Orphans are not a problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in self.checked.items())
        lines = [f"checked{' with the bytes of chunks' if self.deep else ''}: {counts}"]
        for kind, orphans in self.orphans.items():
            if orphans.count:
                size = f"{orphans.count:,} ({orphans.bytes:,} bytes)"
                lines.append(f"orphans of kind {kind}: {size}, for garbage_collect to delete")
        lines += [str(problem) for problem in self.problems[:_SHOWN]]
        count = len(self.problems)
        if count > _SHOWN:
            lines.append(f"and {count - _SHOWN:,} more")
        total = {0: "no problems found", 1: "1 problem"}
        lines.append(total.get(count, f"{count:,} problems"))
        return "\n".join(lines)
