import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model import manifest as manifest_module
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import ChunkFileId, NodeId
from icefloe.model.manifest import ArrayChunks
from tests.unit.model.manifests import whole_manifest

RANK = 2
coords = st.tuples(st.integers(0, 5), st.integers(0, 5))
sizes = st.integers(0, 2**32 - 1)
FILES = [ChunkFileId.random() for _ in range(3)]
models = st.dictionaries(coords, st.builds(InlineRef, st.binary(min_size=1, max_size=3)))


def chunks_of(model: dict[tuple[int, ...], ChunkRef]) -> ArrayChunks:
    return ArrayChunks.of(list(model), list(model.values()), RANK)


def as_dict(chunks: ArrayChunks | None) -> dict[tuple[int, ...], ChunkRef]:
    if chunks is None:
        return {}
    return dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True))


@given(st.lists(models.filter(bool), min_size=1, max_size=4))
def test_merge_lets_later_tables_win(parts: list[dict[tuple[int, ...], ChunkRef]]) -> None:
    expected: dict[tuple[int, ...], ChunkRef] = {}
    for part in parts:
        expected |= part
    assert as_dict(ArrayChunks.merge([chunks_of(part) for part in parts])) == expected


any_ref = st.one_of(
    st.builds(InlineRef, st.binary(min_size=1, max_size=3)),
    st.builds(NativeRef, st.sampled_from(FILES), sizes, sizes, sizes),
    st.builds(VirtualRef, st.sampled_from(["s3://a/1", "s3://a/2"]), sizes, sizes),
)


@given(
    st.one_of(
        st.dictionaries(coords, any_ref, min_size=1),
        st.lists(any_ref, min_size=36, max_size=36).map(
            lambda refs: {divmod(place, 6): ref for place, ref in enumerate(refs)}
        ),
    ),
    st.dictionaries(st.tuples(st.integers(0, 8), st.integers(0, 8)), any_ref, min_size=1),
)
def test_patching_rows_is_the_plain_merge(
    old: dict[tuple[int, ...], ChunkRef], later: dict[tuple[int, ...], ChunkRef]
) -> None:
    tables = [chunks_of(old), chunks_of(later)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "_MUCH_LARGER", 10_000)
        merged = ArrayChunks.merge(tables)
    patched = tables[0].patched(tables[1])
    assert patched.index == merged.index
    assert patched.index.is_dense == merged.index.is_dense
    assert patched.refs.tolist() == merged.refs.tolist()
    assert tables[0].refs.tolist() == chunks_of(old).refs.tolist()  # is left as it was


def test_a_small_table_is_patched_into_a_large_one() -> None:
    rows = [InlineRef(b"a")] * 50
    large = ArrayChunks.of([(row, 0) for row in range(50)], rows, RANK)
    small = ArrayChunks.of([(7, 0)], [InlineRef(b"b")], RANK)
    merged = ArrayChunks.merge([large, small])
    assert merged.index is large.index  # nothing was sorted or even copied
    assert merged.refs.get(7) == InlineRef(b"b")
    assert merged.refs.get(8) == InlineRef(b"a")


@given(models.filter(bool), st.sets(coords, min_size=1))
def test_without_drops_coordinates(
    model: dict[tuple[int, ...], ChunkRef], gone: set[tuple[int, ...]]
) -> None:
    left = chunks_of(model).without(ChunkIndex.from_tuples(list(gone), RANK))
    assert as_dict(left) == {c: r for c, r in model.items() if c not in gone}
    if left is not None:
        assert left.index == chunks_of(as_dict(left)).index  # its box is tight


@pytest.mark.parametrize("block_rows", [1, 3, 65_536])
@given(arrays=st.lists(models.filter(bool), min_size=1, max_size=4))
def test_lookups_in_blocks_of_any_size(
    block_rows: int, arrays: list[dict[tuple[int, ...], ChunkRef]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "MAX_BLOCK_ROWS", block_rows)
        ids = [NodeId(bytes([number]) * 8) for number in range(len(arrays))]
        pairs = list(zip(ids, map(chunks_of, arrays), strict=True))
        manifest = whole_manifest(pairs)
    assert manifest.num_refs == sum(map(len, arrays))
    for node_id, model in zip(ids, arrays, strict=True):
        assert as_dict(manifest.array(node_id)) == model
        for i in range(7):
            for j in range(7):
                assert manifest.find(node_id, (i, j)) == model.get((i, j))
    assert manifest.find(NodeId(b"absent.."), (0, 0)) is None
    assert manifest.array(NodeId(b"absent..")) is None


def test_wrong_number_of_coordinates_finds_nothing() -> None:
    node_id = NodeId.random()
    manifest = whole_manifest([(node_id, chunks_of({(0, 0): InlineRef(b"x")}))])
    assert manifest.find(node_id, (0,)) is None


def test_dense_arrays_store_no_positions() -> None:
    full: dict[tuple[int, ...], ChunkRef] = {
        (i, j): InlineRef(bytes([i, j])) for i in range(3) for j in range(2)
    }
    chunks = chunks_of(full)
    assert chunks.index.is_dense
    assert chunks.index.linear is None
    assert np.array_equal(chunks.index.positions(), np.arange(6))
