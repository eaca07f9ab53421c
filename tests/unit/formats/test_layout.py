"""Keys of objects (H-24)."""

from __future__ import annotations

import pytest

from icefloe.formats.layout import BASE32_LAYOUT as LAYOUT
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.model.ids import AttributesId, ChunkFileId, ManifestId, SnapshotId

RAW = bytes(range(12))
TEXT = "000G40R40M30E209185G"  # R1-15


def test_keys() -> None:
    assert LAYOUT.snapshot(SnapshotId(RAW)) == f"snapshots/{TEXT}"
    assert LAYOUT.transaction_log(SnapshotId(RAW)) == f"transactions/{TEXT}"
    assert LAYOUT.manifest(ManifestId(RAW)) == f"manifests/{TEXT}"
    assert LAYOUT.attributes(AttributesId(RAW)) == f"attributes/{TEXT}"
    assert LAYOUT.chunk_file(ChunkFileId(RAW)) == f"chunks/{TEXT}"


@pytest.mark.parametrize("kind", list(ObjectKind))
def test_keys_are_parsed_back(kind: ObjectKind) -> None:
    name = LAYOUT.parse(LAYOUT.folder(kind) + TEXT)
    assert name == ObjectName(kind, SnapshotId(RAW))
    assert (
        type(name.id)
        is {
            ObjectKind.SNAPSHOT: SnapshotId,
            ObjectKind.TRANSACTION_LOG: SnapshotId,
            ObjectKind.MANIFEST: ManifestId,
            ObjectKind.ATTRIBUTES: AttributesId,
            ObjectKind.CHUNK_FILE: ChunkFileId,
        }[kind]
    )


@pytest.mark.parametrize(
    "key",
    [
        "refs/branch.main/ZZZZZZZZ.json",
        "config/ZZZZZZZZ.json",
        "config.yaml",
        f"chunks/{TEXT.lower()}",
        f"chunks/{TEXT}/x",
        f"chunks/{TEXT[:-1]}H",
        f"chunks/{TEXT}.tmp",
        f"other/{TEXT}",
        "chunks/",
        "chunks",
        "",
        TEXT,
    ],
)
def test_other_keys_name_nothing(key: str) -> None:
    assert LAYOUT.parse(key) is None
