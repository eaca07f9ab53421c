from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.ids import NodeId
from icefloe.model.nodes import NodeTable, make_node

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
