"""Commands that show the hierarchy: tree, ls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli import wording
from icefloe.cli.arguments import NodePath, Place, VersionOption
from icefloe.cli.command import HISTORY, command
from icefloe.cli.output import Output
from icefloe.cli.places import open_place
from icefloe.cli.views import Column, Drawn, Facts, Records, View
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from icefloe.model.nodes import Node
    from icefloe.zarr_store.session_port import SessionPort

Sizes = Annotated[bool, typer.Option("--sizes", "-s", help="Add up the bytes of chunks.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        tree,
        HISTORY,
        "icefloe tree ./weather",
        "icefloe tree era5 /surface --version v1 --sizes",
    )
    command(
        app,
        ls,
        HISTORY,
        "icefloe ls ./weather",
        "icefloe ls era5 /surface",
        "icefloe ls era5 /surface/t2m",
    )


def tree(
    out: Output,
    place: Place,
    path: NodePath = "/",
    version: VersionOption = MAIN,
    sizes: Sizes = False,
    depth: Annotated[
        int | None, typer.Option("--depth", "-d", min=1, help="How many levels.")
    ] = None,
) -> View:
    """Show groups and arrays as a tree, with shapes, data types and chunks."""
    from icefloe.model import paths

    session = open_place(place).readonly_session(snapshot_id=version)
    root = paths.canonical(path)
    below = [
        each
        for each in session.tree.node_paths(root)
        if each != root and (depth is None or _depth(each) - _depth(root) <= depth)
    ]
    with out.working("adding up sizes"):
        rows = [
            _described(session, existing_node(session, each), sizes=sizes)
            for each in [root, *below]
        ]
    return Drawn(rows, lambda: _draw(rows))


def ls(
    out: Output,
    place: Place,
    path: NodePath = "/",
    version: VersionOption = MAIN,
    sizes: Sizes = False,
) -> View:
    """List the members of a group, or describe an array with its attributes."""
    from icefloe.model import paths

    session = open_place(place).readonly_session(snapshot_id=version)
    node = existing_node(session, paths.canonical(path))
    if node.is_array:
        return _array_facts(session, node, sizes=sizes)
    members = [
        each
        for each in session.tree.node_paths(node.path)
        if each != node.path and _depth(each) == _depth(node.path) + 1
    ]
    with out.working("adding up sizes"):
        rows = [_described(session, existing_node(session, each), sizes=sizes) for each in members]
    return Records(rows, _COLUMNS if sizes else _COLUMNS[:-1], "an empty group")


_COLUMNS = (
    Column("name", "name", style="cyan"),
    Column("kind", "kind"),
    Column("data_type", "type", style="magenta"),
    Column("shape", "shape", lambda extents: "" if extents is None else wording.shape(extents)),
    Column("dimensions", "dimensions"),
    Column(
        "chunk_shape",
        "chunks of",
        lambda extents: "" if extents is None else wording.shape(extents),
    ),
    Column("chunks", "chunks", wording.number, right=True),
    Column("bytes", "size", wording.size, right=True),
)


def _described(session: SessionPort, node: Node, *, sizes: bool) -> dict[str, Any]:
    from icefloe.engine.inspection import describe_node

    described = describe_node(node)
    if sizes and node.is_array:
        described["bytes"] = session.chunk_bytes(node.path).total_bytes
    return described


def _array_facts(session: SessionPort, node: Node, *, sizes: bool) -> Facts:
    from icefloe.engine.port import parsed_document

    document = parsed_document(session.tree, node.path)
    data = _described(session, node, sizes=sizes) | {
        "fill_value": document.get("fill_value"),
        "codecs": document.get("codecs"),
        "attributes": document.get("attributes", {}),
    }
    return Facts(
        data,
        {
            "shape": wording.shape,
            "chunk_shape": wording.shape,
            "bytes": wording.size,
            "chunks": wording.number,
            "chunks_in_grid": wording.number,
            "codecs": lambda codecs: ", ".join(
                wording.printable(codec.get("name") if isinstance(codec, dict) else codec)
                for codec in codecs or ()
            ),
            "attributes": lambda items: "\n".join(
                f"{wording.printable(key)}: {wording.printable(value)}"
                for key, value in items.items()
            ),
        },
    )


def existing_node(session: SessionPort, path: str) -> Node:
    """The node at a path; raises NodeNotFoundError with names like it."""
    from icefloe.model.nodes import expect_node  # numpy, which the help need not load

    return expect_node(session.get_node(path), path, lambda: session.tree.node_paths("/"))


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _draw(rows: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.text import Text
    from rich.tree import Tree

    def label(row: dict[str, Any]) -> Text:
        name = wording.printable(row["name"] or "/")
        if row["kind"] == "group":
            return Text(name, style="bold")
        text = Text().append(name, style="cyan")
        dims = row["dimensions"] or [None] * len(row["shape"])
        extents = " × ".join(
            f"{wording.printable(dim)} {extent}" if dim else str(extent)
            for dim, extent in zip(dims, row["shape"], strict=True)
        )
        text.append(f"  {row['data_type']}", style="magenta")
        text.append(f"  {extents or 'scalar'}")
        grid = row["chunks_in_grid"]
        of = "" if grid is None else f" of {grid:,}"
        text.append(f"  {row['chunks']:,}{of} chunks", style="dim")
        if "bytes" in row:
            text.append(f"  {wording.size(row['bytes'])}", style="dim")
        return text

    top, *others = rows
    branches = {top["path"]: Tree(label(top), guide_style="dim")}
    for row in others:
        parent = row["path"].rpartition("/")[0] or "/"
        branches[row["path"]] = branches[parent].add(label(row))
    return branches[top["path"]]
