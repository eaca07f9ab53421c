"""What notebooks show of repositories and sessions: facts, the newest commits, the tree."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from icefloe.display import AncestryGraph
from icefloe.engine.history.newest import read_log_page
from icefloe.errors import IcefloeError
from icefloe.html_tables import Markup, chunk_map, html_table
from icefloe.model import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.engine.context import Context
    from icefloe.engine.tree.working_tree import WorkingTree

_COMMITS = 10
_NODES = 40
_MAPPED_CHUNKS = 100_000
"""Arrays of more chunks are shown without a map, which would read all of their manifests."""


def repository_html(context: Context) -> str:
    """A repository: where it is, and the graph of its newest commits with branches and tags."""
    facts = html_table(
        "Repository",
        [
            ("place", context.storage.location),
            ("format", f"{context.format.name}, version {context.format.spec_version}"),
        ],
    )
    try:
        page = read_log_page(context.history, _COMMITS)
    except IcefloeError as error:  # a repr never fails
        return facts + html_table("history", [("cannot be read", error)])
    graph = AncestryGraph(page.entries)
    more = " (the newest)" if page.rest else ""
    return f"{facts}<strong>commits{more}</strong>{graph._repr_html_()}"


def session_html(tree: WorkingTree, title: str) -> str:
    """A session: what it shows, and its tree with shapes and maps of chunks."""
    facts = html_table(
        title,
        [
            ("snapshot", tree.snapshot.id),
            ("uncommitted changes", "no" if tree.changes.is_empty else "yes"),
        ],
    )
    try:
        rows = list(_node_rows(tree))
    except IcefloeError as error:  # a repr never fails
        rows = [("cannot be read", str(error), "", "", Markup(""))]
    count = len(tree.node_paths(paths.ROOT))
    more = f" (the first {_NODES} of {count:,})" if count > _NODES else ""
    return facts + html_table(
        f"nodes{more}", rows, ("path", "shape", "data type", "chunks", "which are there")
    )


def _node_rows(tree: WorkingTree) -> Iterator[tuple[str, object, object, object, Markup]]:
    for path in islice(tree.node_paths(paths.ROOT), _NODES):
        node = tree.get_node(path)
        if node is None or not node.is_array:
            yield path, "group", "", "", Markup("")
            continue
        reader = tree.array_reader(path)
        count = reader.count(None)
        grid = node.array.grid_shape
        drawn = Markup("")
        if grid is not None and count <= _MAPPED_CHUNKS:
            drawn = chunk_map(tree.chunk_coords(path), grid)
        yield path, " × ".join(map(str, node.array.shape)), node.array.data_type, count, drawn
