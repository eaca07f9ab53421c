"""The log: commits as lines beside the graph of their descent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.cli import wording
from icefloe.cli.views import Drawn
from icefloe.display import AncestryGraph
from icefloe.engine.history.newest import read_log_page
from icefloe.model import MAIN

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from icefloe.repository import Repository

_LANES = ("red", "green", "blue", "magenta", "cyan")


def read_log(repository: Repository, version: str | None, count: int) -> Drawn:
    """The newest commits of a version, or of all branches and tags; reads few snapshots."""
    session = repository.readonly_session(MAIN if version is None else None, snapshot_id=version)
    starts = None if version is None else [session.tree.snapshot.id]
    page = read_log_page(session.tree.context.history, count, starts)
    graph = AncestryGraph(page.entries)
    return Drawn(page.entries, lambda: _draw(graph, has_more=bool(page.rest)))


def _draw(graph: AncestryGraph, *, has_more: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    steps = list(graph.steps())
    widest = max((step.width for step in steps), default=1)
    for step in steps:
        line = _marks(["●" if i == step.place else "│" for i in range(step.width)], widest)
        line.append(f" {wording.short_id(step.row.id)}", style="magenta")
        line.append(f"  {wording.moment(step.row.written_at)}", style="dim")
        for branch in step.row.branches:
            line.append(f"  {wording.printable(branch)}", style="bold green")
        for tag in step.row.tags:
            line.append(f"  tag: {wording.printable(tag)}", style="bold magenta")
        line.append(f"  {wording.first_line(step.row.message)}")
        if step.row.merged_ids:
            merged = ", ".join(map(wording.short_id, step.row.merged_ids))
            line.append(f"  (merges {merged})", style="dim")
        lines.append(line)
        if step.ends is not None and step.joins is not None:
            lines.append(_joint(step.width, step.joins, step.ends))
    if has_more:
        lines.append(Text("… there are more: -n sets how many", style="dim"))
    # Lines are as long as they are: terminals break them, pipes do not.
    return Group(*lines)


def _joint(width: int, joins: int, ends: int) -> Text:
    """The line on which a lane ends and joins another one to its left."""
    from rich.text import Text

    text = Text()
    for lane in range(width):
        is_between = joins < lane < ends
        mark = {joins: "├", ends: "╯"}.get(lane, "┼" if is_between else "│")
        text.append(mark, style=_LANES[(ends if is_between else lane) % len(_LANES)])
        text.append("─" if joins <= lane < ends else " ", style=_LANES[ends % len(_LANES)])
    text.rstrip()
    return text


def _marks(marks: list[str], width: int) -> Text:
    from rich.text import Text

    text = Text()
    for lane, mark in enumerate(marks):
        text.append(f"{mark} ", style=_LANES[lane % len(_LANES)])
    text.append("  " * (width - len(marks)))
    return text
