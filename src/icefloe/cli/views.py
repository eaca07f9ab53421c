"""What commands return: data for programs, and how people see it.

Each view has `data`, which `--json` prints, and `render`, which makes a rich renderable of it. rich
is imported when something is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from icefloe.cli import wording
from icefloe.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

    from icefloe.engine.info import SnapshotInfo
    from icefloe.model.snapshot import SnapshotStub


class View(Protocol):
    """Something to show."""

    @property
    def data(self) -> Any:
        """Plain values for JSON."""

    @property
    def exit_code(self) -> ExitCode:
        """What the process ends with."""

    def render(self) -> RenderableType:
        """The same for people."""


@dataclass(frozen=True)
class Column:
    """A column of a table: which value of a row, its title, and how people read it."""

    key: str
    title: str
    form: Callable[[Any], str] = wording.plain
    style: str = ""
    right: bool = False
    """Whether numbers are aligned at their last digit."""


def commit_row(commit: SnapshotInfo | SnapshotStub) -> dict[str, Any]:
    """A commit as a row of a table with `commit_columns`."""
    return {"id": str(commit.id), "written_at": commit.written_at, "message": commit.message}


def commit_columns(id_title: str = "id", message_title: str = "message") -> tuple[Column, ...]:
    """The columns of tables of commits: id, time and the first line of the message."""
    return (
        Column(key="id", title=id_title, form=wording.short_id, style="magenta"),
        Column("written_at", "written"),
        Column("message", message_title, lambda text: wording.first_line(text or "")),
    )


@dataclass(frozen=True)
class Records:
    """Rows with the same keys: a table, or a JSON array of objects."""

    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[Column]
    empty: str = "nothing"
    """What people read instead of an empty table."""
    note: str = ""
    """A line below the table, even if it is empty."""
    exit_code: ExitCode = ExitCode.OK

    @property
    def data(self) -> Any:
        """All values of all rows, also those that the table does not show."""
        return list(self.rows)

    def render(self) -> RenderableType:
        """A table without lines between rows."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        note = Text(self.note, style="dim")
        if not self.rows:
            text = Text(self.empty, style="dim")
            return Group(text, note) if self.note else text
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in self.columns:
            table.add_column(
                column.title,
                style=column.style,
                justify="right" if column.right else "left",
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(Text(column.form(row.get(column.key))) for column in self.columns))
        return Group(table, note) if self.note else table


@dataclass(frozen=True)
class Facts:
    """Named values of one thing: lines of `name  value`, or a JSON object."""

    data: Mapping[str, Any]
    forms: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    exit_code: ExitCode = ExitCode.OK

    def render(self) -> RenderableType:
        """One line for each value; those that are missing are left out."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for name, value in self.data.items():
            text = self.forms.get(name, wording.plain)(value)
            if text and not (name == "dry_run" and value is False):  # what was done needs no word
                table.add_row(name.replace("_", " "), Text(text))
        return table


@dataclass(frozen=True)
class Done:
    """What was done, or would be: a sentence, or a JSON object."""

    sentence: str
    data: Mapping[str, Any]
    exit_code: ExitCode = ExitCode.OK

    def render(self) -> RenderableType:
        """The sentence."""
        from rich.text import Text

        return Text(self.sentence)


@dataclass(frozen=True)
class Sections:
    """Several views below each other; in JSON, an object of their data by name."""

    parts: Mapping[str, View]
    exit_code: ExitCode = ExitCode.OK

    @property
    def data(self) -> Any:
        """The data of each part."""
        return {name: part.data for name, part in self.parts.items()}

    def render(self) -> RenderableType:
        """The parts below their names."""
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = []
        for number, (name, part) in enumerate(self.parts.items()):
            if number:
                lines.append(Text())
            lines += [Text(name.replace("_", " "), style="bold underline"), part.render()]
        return Group(*lines)


@dataclass(frozen=True)
class Drawn:
    """Data with a drawing of its own, such as a tree."""

    data: Any
    draw: Callable[[], RenderableType]
    exit_code: ExitCode = ExitCode.OK

    def render(self) -> RenderableType:
        """The drawing."""
        return self.draw()
