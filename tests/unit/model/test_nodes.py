from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.chunk_index import Box
from icefloe.model.ids import AttributesId, ManifestId, NodeId
from icefloe.model.node_columns import NodeColumns
from icefloe.model.nodes import (
    AttributesRef,
    ManifestRef,
    Node,
    NodeTable,
    make_node,
    make_stored_node,
)
from tests.documents import array

GROUP = b'{"zarr_format":3,"node_type":"group"}'
segments = st.sampled_from(["a", "a-b", "a0", "b", "ü", "A"])
node_paths = st.lists(segments, min_size=1, max_size=3).map(lambda s: "/" + "/".join(s))


@given(st.sets(st.one_of(st.just("/"), node_paths), max_size=25), node_paths)
def test_a_table_agrees_with_a_set_of_paths(paths: set[str], probe: str) -> None:
    table = NodeTable.of(make_node(NodeId.random(), path, GROUP) for path in paths)
    assert [node.path for node in table] == sorted(paths)
    for start in (probe, "/"):
        prefix = "/" if start == "/" else start + "/"
        below = sorted(p for p in paths if p.startswith(prefix) and p != start)
        assert [n.path for n in table.below(start)] == below
        assert list(table.paths_below(start)) == below
    found = table.get(probe)
    assert (found is not None) == (probe in paths)
    if found is not None:
        assert table.by_id(found.id) is found
    assert table.by_id(NodeId.random()) is None


MANIFESTS = [ManifestId.random() for _ in range(4)]
boxes = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(
    lambda pair: Box((pair[0],), (pair[0] + pair[1],))
)
references = st.builds(ManifestRef, st.sampled_from(MANIFESTS), boxes, st.integers(1, 9))


@st.composite
def stored_nodes(draw: st.DrawFn, path: str) -> Node:
    """A group, or an array of rank 1 with manifests; some have their attributes elsewhere."""
    if draw(st.booleans()):
        return make_node(NodeId.random(), path, GROUP)
    document = array((90,))
    refs = tuple(draw(st.lists(references, max_size=3)))
    node = make_node(NodeId.random(), path, document).evolve(manifests=refs)
    if draw(st.booleans()):
        # Where the attributes would be; with them the document is as before.
        at = document.index(b"{}")
        cut = document[:at] + document[at + 2 :]
        ref = AttributesRef(AttributesId.random(), draw(st.integers(0, 5)), at)
        node = node.evolve(document=cut, attributes=ref)
    return node


@given(st.data())
def test_a_spliced_table_is_the_table_of_all_nodes(data: st.DataObject) -> None:
    # R4-53, R4-79: manifests of nodes, nodes of manifests

    def some(paths: set[str]) -> dict[str, Node]:
        return {path: data.draw(stored_nodes(path)) for path in sorted(paths)}

    before = some(data.draw(st.sets(node_paths, max_size=8)))
    columns = NodeColumns.of([before[path] for path in sorted(before)])
    table = NodeTable.from_columns(columns, make_stored_node)
    if data.draw(st.booleans()):
        list(table)  # what was decoded is carried over
    for _ in range(2):  # also once more on top
        gone = data.draw(st.sets(st.sampled_from(sorted(before)))) if before else set()
        added = some(data.draw(st.sets(node_paths, max_size=5)))
        table = table.spliced({**dict.fromkeys(gone), **added})
        before = {p: n for p, n in before.items() if p not in gone} | added
        expected = [before[path] for path in sorted(before)]
        assert list(table) == expected
        assert list(table.paths) == [node.path for node in expected]
        assert list(table.node_ids()) == [node.id for node in expected]
        # Also what lies in the columns, which is what a snapshot is written from.
        again = NodeTable.from_columns(table.columns(), make_stored_node)
        assert list(again) == expected
        refs = table.columns().refs
        for manifest in MANIFESTS:
            users = [n.id for n in expected if any(r.manifest_id == manifest for r in n.manifests)]
            assert table.users_of(manifest) == users
            assert (manifest in refs.used_manifests()) == bool(users)
