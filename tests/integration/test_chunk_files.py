"""Chunk files hold what zarr's codecs made of a chunk, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
import zstandard
from zarr.codecs import ZstdCodec

import icefloe
from icefloe import Repository
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import detect
from icefloe.model.chunk_refs import NativeRef
from tests.formats import FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_chunk_files_hold_compressed_chunks(name: str) -> None:  # R0-23, R2-01
    storage = icefloe.in_memory_storage()
    repo = Repository.create(storage, **FORMATS[name])
    session = repo.writable_session("main")
    values = np.random.default_rng(0).integers(0, 9, (2, 60_000)).astype("<i4")
    array = zarr.create_array(
        session.store, shape=values.shape, chunks=(1, 60_000), dtype="<i4", compressors=ZstdCodec()
    )
    array[...] = values
    session.commit("compressed")
    fmt = detect(storage)
    assert fmt is not None
    reader = repo.readonly_session("main")
    total = 0
    for row in range(2):
        ref = reader.tree.locate("/", (row, 0))
        assert isinstance(ref, NativeRef)
        file = storage.get(fmt.layout.chunk_file(ref.file))
        data = file[ref.offset : ref.offset + ref.length]
        total += len(data)
        assert zstandard.ZstdDecompressor().decompress(data) == values[row].tobytes()
        assert len(data) < values[row].nbytes / 3
    sizes = [info.size for info in storage.list(fmt.layout.folder(ObjectKind.CHUNK_FILE))]
    assert sum(sizes) == total
