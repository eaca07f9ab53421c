"""Keys of a listing are taken apart together as each of them alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import GENERATIONS
from icefloe.model.ids import ChunkFileId, ManifestId, SnapshotId

IDS = st.binary(min_size=12, max_size=12) | st.binary(min_size=16, max_size=16)
STRAYS = st.sampled_from(
    [
        "",
        "x",
        "ünicode",
        "0" * 20,
        "0" * 19 + "1",
        "0" * 19 + "G",
        "o" * 20,
        "0" * 26 + ".json",
        "A" * 26,
        "0" * 20 + ".parquet",
        "sub/" + "0" * 20,
        "0" * 20 + ".json",
        "0" * 300,
    ]
)


@pytest.mark.parametrize("generation", GENERATIONS)
@given(st.data())
def test_many_keys_are_parsed_as_each_alone(generation: str, data: st.DataObject) -> None:
    layout = GENERATIONS[generation].layout
    kind, make = data.draw(
        st.sampled_from(
            [
                (ObjectKind.CHUNK_FILE, lambda octets: layout.chunk_file(ChunkFileId(octets))),
                (ObjectKind.MANIFEST, lambda octets: layout.manifest(ManifestId(octets))),
                (ObjectKind.SNAPSHOT, lambda octets: layout.snapshot(SnapshotId(octets))),
            ]
        )
    )
    names = IDS.map(make) | STRAYS.map(lambda name: layout.folder(kind) + name)
    keys = data.draw(st.lists(names, max_size=6))
    ids, is_ours = layout.parse_many(kind, keys)
    assert len(ids) == len(is_ours) == len(keys)
    for key, row, ours in zip(keys, ids, is_ours.tolist(), strict=True):
        alone = layout.parse(key)
        if ours:
            assert alone is not None
            assert (alone.kind, bytes(alone.id)) == (kind, row.tobytes())
        elif all(map(str.isascii, keys)):
            assert alone is None or len(alone.id) > 12
