import numpy as np
import pytest
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
from icefloe.model.ids import ChunkFileId, NodeId
from icefloe.model.manifest import ArrayChunks
from tests.unit.model.manifests import whole_manifest

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


def test_parts_of_one_table_share_its_dictionaries_when_they_are_joined() -> None:
    refs = [NativeRef(ChunkFileId(bytes([n]) * 12), 0, 5) for n in range(4)]
    table = ChunkRefs.of([*refs, InlineRef(b"abc")])
    joined = ChunkRefs.concat([table.slice(3, 5), table.slice(0, 3), ChunkRefs.of(refs[:1])])
    assert joined.tolist() == [refs[3], InlineRef(b"abc"), *refs[:3], refs[0]]
    assert len(joined.files) == 5
    assert joined.inline == b"abc"


def test_dictionaries_do_not_grow_with_what_was_replaced() -> None:
    first, second = NodeId(b"a" * 8), NodeId(b"b" * 8)
    parts = [(node, ArrayChunks.of([(0,)], [InlineRef(b"x")], 1)) for node in (first, second)]
    for number in range(300):
        manifest = whole_manifest(parts)
        refs = [NativeRef(ChunkFileId(number.to_bytes(12, "big")), 0, 5)]
        old = [manifest.array(first), manifest.array(second)]
        assert old[0] is not None
        assert old[1] is not None
        parts = [
            (first, ArrayChunks.merge([old[0], ArrayChunks.of([(0,)], refs, 1)])),
            (second, old[1]),
        ]
    assert parts[0][1].refs.tolist() == refs
    assert len(parts[0][1].refs.files) < 100


@given(st.lists(st.text()), st.data())
def test_string_columns(strings: list[str], data: st.DataObject) -> None:
    column = StringColumn.of(strings)
    assert column.tolist() == strings
    assert StringColumn.concat([column, column]).tolist() == strings * 2
    if strings:
        rows = data.draw(st.lists(st.integers(0, len(strings) - 1)))
        taken = column.take(np.array(rows, dtype=np.intp))
        assert taken.tolist() == [strings[row] for row in rows]
    for text in (*strings, "", "a"):
        rows_with = [row for row, each in enumerate(strings) if each == text]
        assert column.rows_with(text).tolist() == rows_with


def test_a_file_that_is_listed_twice_is_listed_once() -> None:
    one, other = ChunkFileId(b"1" * 12), ChunkFileId(b"2" * 12)
    parts = [
        ChunkRefs.of([NativeRef(one, 0, 5), NativeRef(other, 5, 5), InlineRef(b"inline")]),
        ChunkRefs.of([NativeRef(other, 0, 5), NativeRef(other, 9, 5), NativeRef(one, 7, 5)]),
        ChunkRefs.of([InlineRef(b"more")]),
    ]
    joined = ChunkRefs.concat(parts)
    assert len(joined.files) == 4
    # Three of seven rows per file or more: packs.
    longer = ChunkRefs.concat([joined, ChunkRefs.of([InlineRef(b"x"), InlineRef(b"y")])])
    assert longer.has_packs
    distinct = longer.with_distinct_files()
    assert len(distinct.files) == 2
    assert distinct.tolist() == longer.tolist()
    assert distinct.with_distinct_files() is distinct


@pytest.mark.parametrize("shuffled", [0, 1, 300])
def test_rows_of_strings_are_taken_whether_or_not_they_are_neighbours(shuffled: int) -> None:
    texts = [f"{number} ü" * (number % 4) for number in range(1000)]
    rows = np.arange(1000)
    rows[:shuffled] = rows[:shuffled][::-1]
    # One is put in between, as a commit does, one is left out and one is there twice.
    rows = np.concatenate([rows[:500], [999], rows[500:700], rows[701:], [3]])
    assert StringColumn.of(texts).take(rows).tolist() == [texts[row] for row in rows]
