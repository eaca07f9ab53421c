import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.chunk_refs import (
    ChunkRef,
    ChunkRefs,
    InlineRef,
    NativeRef,
    StringColumn,
    VirtualRef,
)
from icefloe.model.ids import ChunkFileId

file_ids = st.sampled_from([ChunkFileId(bytes([n]) * 12) for n in range(4)])
numbers = st.integers(0, 2**40)
chunk_refs: st.SearchStrategy[ChunkRef] = st.one_of(
    st.builds(InlineRef, st.binary(max_size=8)),
    st.builds(NativeRef, file_ids, numbers, numbers, st.integers(0, 2**32 - 1)),
    st.builds(
        VirtualRef,
        st.sampled_from(["s3://bucket/a", "s3://bucket/ü", "file:///x"]),
        numbers,
        numbers,
        st.sampled_from([None, "etag"]),
        st.sampled_from([None, 1_700_000_000]),
    ),
)
tables = st.lists(chunk_refs, max_size=12)


@given(tables)
def test_columns_hold_the_same_references(refs: list[ChunkRef]) -> None:
    assert ChunkRefs.of(refs).tolist() == refs


@given(st.lists(tables, min_size=1, max_size=4))
def test_concat_joins_tables(parts: list[list[ChunkRef]]) -> None:
    joined = ChunkRefs.concat([ChunkRefs.of(part) for part in parts])
    assert joined.tolist() == [ref for part in parts for ref in part]


@given(st.data())
def test_take_and_compact_keep_the_references(data: st.DataObject) -> None:
    refs = data.draw(st.lists(chunk_refs, min_size=1, max_size=12))
    rows = data.draw(st.lists(st.integers(0, len(refs) - 1)))
    taken = ChunkRefs.of(refs).take(np.array(rows, dtype=np.intp))
    expected = [refs[row] for row in rows]
    assert taken.tolist() == expected
    compact = taken.compact()
    assert compact.tolist() == expected
    assert len(compact.files) == len({r.file for r in expected if isinstance(r, NativeRef)})
    assert len(compact.inline) == sum(len(r.data) for r in expected if isinstance(r, InlineRef))


def test_compact_merges_files_that_several_tables_name() -> None:
    ref = NativeRef(ChunkFileId(b"x" * 12), 0, 5)
    joined = ChunkRefs.concat([ChunkRefs.of([ref]), ChunkRefs.of([ref])])
    assert len(joined.files) == 2
    assert len(joined.compact().files) == 1
    assert joined.compact().tolist() == [ref, ref]


@given(st.lists(st.text()), st.data())
def test_string_columns(strings: list[str], data: st.DataObject) -> None:
    column = StringColumn.of(strings)
    assert column.tolist() == strings
    assert StringColumn.concat([column, column]).tolist() == strings * 2
    if strings:
        rows = data.draw(st.lists(st.integers(0, len(strings) - 1)))
        taken = column.take(np.array(rows, dtype=np.intp))
        assert taken.tolist() == [strings[row] for row in rows]
