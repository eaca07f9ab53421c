"""Chunk references as Arrow tables and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.spark.engine.chunk_tables import WrittenChunks, from_table, to_table
from icefloe.spark.engine.tasks import pack, unpack

native = st.builds(
    NativeRef,
    st.integers(0, 3).map(lambda n: ChunkFileId(bytes([n]) * 12)),
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.integers(0, 2**32 - 1),
)
virtual = st.builds(
    VirtualRef,
    st.sampled_from(["s3://b/a", "s3://b/ü", "file:///x"]),
    st.integers(0, 2**40),
    st.integers(1, 2**40),
    st.sampled_from([None, '"e"']),
    st.sampled_from([None, 1_700_000_000]),
)
inline = st.builds(InlineRef, st.binary(max_size=9))


@st.composite
def written(draw: Any) -> Any:
    rank = draw(st.integers(0, 3))
    coords = st.tuples(*[st.integers(0, 5)] * rank)
    refs = st.one_of(native, virtual, inline)
    chosen = draw(st.dictionaries(coords, st.one_of(refs, st.none()), max_size=12))
    kept = {c: r for c, r in chosen.items() if r is not None}
    gone = [c for c, r in chosen.items() if r is None]
    return (
        rank,
        kept,
        WrittenChunks(
            ArrayChunks.of(list(kept), list(kept.values()), rank) if kept else None,
            ChunkIndex.from_tuples(gone, rank) if gone else None,
        ),
        set(gone),
    )


@given(written())
def test_references_come_back_as_they_were(example: Any) -> None:
    rank, kept, given_chunks, gone = example
    back = from_table(unpack(pack(to_table(given_chunks))), rank)
    found = {}
    if back.chunks is not None:
        found = dict(zip(back.chunks.index.tuples(), back.chunks.refs.tolist(), strict=True))
    assert found == kept
    assert (set() if back.deleted is None else set(back.deleted.tuples())) == gone
    assert back.num_chunks == len(kept) + len(gone)
    assert len(back.coords(rank)) == back.num_chunks


def test_a_part_of_a_batch_is_read_like_a_whole_one() -> None:
    refs: list[ChunkRef] = [InlineRef(b"abc"), InlineRef(b"de"), VirtualRef("s3://b/x", 1, 2)]
    chunks = ArrayChunks.of([(0,), (1,), (2,)], refs, 1)
    part = to_table(WrittenChunks(chunks, None)).slice(1)
    back = from_table(part, 1).chunks
    assert back is not None
    assert back.refs.tolist() == refs[1:]
    assert np.array_equal(back.index.coords(), [[1], [2]])
