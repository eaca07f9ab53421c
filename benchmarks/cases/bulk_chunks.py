"""Throughput: many chunks of 64 KiB through zarr, written and read in one assignment."""

from __future__ import annotations

from typing import Any

from benchmarks.case import Case, Setting
from benchmarks.peers import WITH_RUST, import_everything

CHUNK_LENGTH = 16384
"""float32 values: 64 KiB."""


def field_values(chunks: int) -> Any:
    """Something like a measured field: smooth, noisy in the last digits, partly compressible."""
    import numpy as np

    length = chunks * CHUNK_LENGTH
    noise = np.random.default_rng(20260115).integers(0, 256, size=length, dtype=np.uint8)
    smooth = 15 + 10 * np.sin(np.arange(length, dtype=np.float32) / 5000)
    return np.round(smooth + noise.astype(np.float32) / 64, 2)


def with_values(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    return setting, field_values(setting["chunks"])


def write(state: tuple[Setting, Any], _: int) -> None:
    import zarr
    from zarr.codecs import ZstdCodec

    setting, values = state
    store, commit = setting.peer.begin(setting.peer.create(setting.folder))
    array = zarr.create_array(
        store,
        name="array",
        shape=values.shape,
        chunks=(CHUNK_LENGTH,),
        dtype="float32",
        compressors=ZstdCodec(level=3) if setting["codec"] == "zstd" else None,
    )
    array[:] = values
    commit()


def written(setting: Setting) -> None:
    write(with_values(setting), 0)


def only_imports(setting: Setting) -> Setting:
    import_everything(setting.peer)
    return setting


def read(setting: Setting, _: int) -> None:
    import numpy as np
    import zarr

    store = setting.peer.store_for_reading(setting.peer.open(setting.folder))
    values = zarr.open_array(store, path="array", mode="r")[:]
    if np.shape(values) != (setting["chunks"] * CHUNK_LENGTH,):
        raise AssertionError("read too little")


CASES = [
    case
    for codec in ("none", "zstd")
    for case in (
        Case(
            name=f"write-64k-{codec}",
            title="write {chunks:,} × 64 KiB, codec {codec}",
            peers=WITH_RUST,
            run=write,
            start=with_values,
            parameters={"chunks": 4096, "codec": codec},
            quick={"chunks": 128},
        ),
        Case(
            name=f"read-64k-{codec}",
            title="read {chunks:,} × 64 KiB, codec {codec}",
            peers=WITH_RUST,
            run=read,
            start=only_imports,
            prepare=written,
            parameters={"chunks": 4096, "codec": codec},
            quick={"chunks": 128},
        ),
    )
]
