"""Whole arrays of small and of large chunks: through zarr, and by regions against tensorstore.

Through zarr every peer does `array[:] = values` and `array[:]`. By regions, icefloe does
`write_region` and `read_region`, tensorstore its own `write` and `read`; the official package takes
part through zarr, which is all it has.
"""

from __future__ import annotations

from typing import Any

from benchmarks import s3_server
from benchmarks.case import Case, Setting
from benchmarks.cases.tiny_chunks import s3_repository
from benchmarks.peers import VERSIONED, WITH_RUST, import_everything

DIRECT = (*VERSIONED, "tensorstore")
SMALL: dict[str, Any] = {"chunks": 200_000, "chunk_length": 256}
FEW_SMALL: dict[str, Any] = {"chunks": 2_000}
LARGE: dict[str, Any] = {"chunks": 1_024, "chunk_length": 1 << 18}
FEW_LARGE: dict[str, Any] = {"chunks": 16}


def field_values(setting: Setting) -> Any:
    """Something like a measured field: smooth, noisy in the last digits, partly compressible."""
    import numpy as np

    length = setting["chunks"] * setting["chunk_length"]
    noise = np.random.default_rng(20260115).integers(0, 256, size=length, dtype=np.uint8)
    values = np.arange(length, dtype=np.float32)
    values /= 5000
    np.sin(values, out=values)
    values *= 10
    values += noise / np.float32(64)
    return np.round(values + 15, 2, out=values)


def with_values(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    return setting, field_values(setting)


def only_imports(setting: Setting) -> Setting:
    import_everything(setting.peer)
    return setting


def new_array(store: Any, setting: Setting) -> Any:
    import zarr
    from zarr.codecs import ZstdCodec

    return zarr.create_array(
        store,
        name="array",
        shape=(setting["chunks"] * setting["chunk_length"],),
        chunks=(setting["chunk_length"],),
        dtype="float32",
        compressors=ZstdCodec(level=3) if setting["codec"] == "zstd" else None,
    )


def check(values: Any, setting: Setting) -> None:
    if values.shape != (setting["chunks"] * setting["chunk_length"],):
        raise AssertionError("read too little")


# --- through zarr


def write(state: tuple[Setting, Any], _: int) -> None:
    setting, values = state
    store, commit = setting.peer.begin(setting.peer.create(setting.folder))
    new_array(store, setting)[:] = values
    commit()


def written(setting: Setting) -> None:
    write(with_values(setting), 0)


def open_array(setting: Setting) -> Any:
    import zarr

    store = setting.peer.store_for_reading(setting.peer.open(setting.folder))
    return zarr.open_array(store, path="array", mode="r")


def read(setting: Setting, _: int) -> None:
    check(open_array(setting)[:], setting)


def with_open_array(setting: Setting) -> tuple[Setting, Any, list[int]]:
    import_everything(setting.peer)
    array = open_array(setting)
    check(array[: setting["chunk_length"]], Setting(setting.peer, setting.folder, one(setting)))
    return setting, array, places(setting)


def one(setting: Setting) -> dict[str, Any]:
    return {**setting.parameters, "chunks": 1}


def places(setting: Setting) -> list[int]:
    import numpy as np

    random = np.random.default_rng(1)
    found: list[int] = random.integers(0, setting["chunks"], setting["operations"]).tolist()
    return found


def read_one(state: tuple[Setting, Any, list[int]], number: int) -> None:
    setting, array, wanted = state
    start = wanted[number] * setting["chunk_length"]
    _ = array[start : start + setting["chunk_length"]]


# --- by regions


def tensorstore_array(setting: Setting, *, create: bool) -> Any:
    import tensorstore

    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if setting["codec"] == "zstd":
        codecs.append({"name": "zstd", "configuration": {"level": 3}})
    metadata = {
        "shape": [setting["chunks"] * setting["chunk_length"]],
        "data_type": "float32",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [setting["chunk_length"]]},
        },
        "codecs": codecs,
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(setting.folder / "array")},
        "metadata": metadata,
    }
    return tensorstore.open(spec, open=not create, create=create).result()


def write_region(state: tuple[Setting, Any], number: int) -> None:
    setting, values = state
    if setting.peer.distribution == "tensorstore":
        tensorstore_array(setting, create=True).write(values).result()
    elif setting.peer.distribution == "icefloe":
        store, commit = setting.peer.begin(setting.peer.create(setting.folder))
        new_array(store, setting)
        store.session.write_region("array", ..., values)
        commit()
    else:
        write(state, number)


def region_written(setting: Setting) -> None:
    write_region(with_values(setting), 0)


def read_region(setting: Setting, number: int) -> None:
    if setting.peer.distribution == "tensorstore":
        check(tensorstore_array(setting, create=False).read().result(), setting)
    elif setting.peer.distribution == "icefloe":
        session = setting.peer.open(setting.folder).readonly_session("main")
        check(session.read_region("array"), setting)
    else:
        read(setting, number)


def with_open_region(setting: Setting) -> tuple[Setting, Any, list[int]]:
    import_everything(setting.peer)
    if setting.peer.distribution == "tensorstore":
        return setting, tensorstore_array(setting, create=False), places(setting)
    if setting.peer.distribution == "icefloe":
        session = setting.peer.open(setting.folder).readonly_session("main")
        session.read_region("array", 0)
        return setting, session, places(setting)
    return with_open_array(setting)


def read_one_region(state: tuple[Setting, Any, list[int]], number: int) -> None:
    setting, opened, wanted = state
    start = wanted[number] * setting["chunk_length"]
    chosen = slice(start, start + setting["chunk_length"])
    if setting.peer.distribution == "tensorstore":
        opened[chosen].read().result()
    elif setting.peer.distribution == "icefloe":
        opened.read_region("array", chosen)
    else:
        read_one(state, number)


# --- S3 on loopback


def with_server(setting: Setting) -> tuple[Setting, Any, Any]:
    _, values = with_values(setting)
    return setting, values, s3_repository(setting, s3_server.start())


def write_s3(state: tuple[Setting, Any, Any], _: int) -> None:
    setting, values, (create, _) = state
    session = create().writable_session("main")
    new_array(session.store, setting)[:] = values
    session.commit("benchmark")


def with_server_and_chunks(setting: Setting) -> tuple[Setting, Any, Any]:
    state = with_server(setting)
    write_s3(state, 0)
    return state


def read_s3(state: tuple[Setting, Any, Any], _: int) -> None:
    import zarr

    setting, _, (_, reopen) = state
    store = reopen().readonly_session("main").store
    check(zarr.open_array(store, path="array", mode="r")[:], setting)


def pair(
    name: str, what: str, peers: tuple[str, ...], sizes: dict[str, Any], quick: dict[str, Any]
) -> list[Case]:
    """Writing and reading a whole array, in one of the two ways."""
    regions = name.startswith("region")
    return [
        Case(
            name=f"{name}-write-{sizes['codec']}",
            title=f"write {what}, codec {{codec}}, commit",
            peers=peers,
            run=write_region if regions else write,
            start=with_values,
            parameters=sizes,
            quick=quick,
        ),
        Case(
            name=f"{name}-read-{sizes['codec']}",
            title=f"read {what}, codec {{codec}}",
            peers=peers,
            run=read_region if regions else read,
            start=only_imports,
            prepare=region_written if regions else written,
            parameters=sizes,
            quick=quick,
        ),
    ]


CASES: list[Case] = []
for codec in ("none", "zstd"):
    small, large = {**SMALL, "codec": codec}, {**LARGE, "codec": codec}
    CASES += pair("small", "{chunks:,} × 1 KiB through zarr", WITH_RUST, small, FEW_SMALL)
    CASES += pair("region-small", "{chunks:,} × 1 KiB by regions", DIRECT, small, FEW_SMALL)
    CASES += pair("large", "{chunks:,} × 1 MiB through zarr", WITH_RUST, large, FEW_LARGE)
    CASES += pair("region-large", "{chunks:,} × 1 MiB by regions", DIRECT, large, FEW_LARGE)
    random = {**small, "chunks": 20_000, "operations": 1_000}
    few = {**FEW_SMALL, "operations": 100}
    CASES += [
        Case(
            name=f"small-random-{codec}",
            title="one random chunk of {chunks:,} × 1 KiB through zarr, codec {codec}",
            peers=WITH_RUST,
            run=read_one,
            start=with_open_array,
            prepare=written,
            parameters=random,
            quick=few,
        ),
        Case(
            name=f"region-random-{codec}",
            title="one random chunk of {chunks:,} × 1 KiB by regions, codec {codec}",
            peers=DIRECT,
            run=read_one_region,
            start=with_open_region,
            prepare=region_written,
            parameters=random,
            quick=few,
        ),
    ]

ON_S3 = {**SMALL, "chunks": 10_000, "codec": "none"}
CASES += [
    Case(
        name="small-s3-write",
        title="write {chunks:,} × 1 KiB through zarr to S3 on loopback, commit",
        peers=("icefloe", "icechunk"),
        run=write_s3,
        start=with_server,
        parameters=ON_S3,
        quick={"chunks": 200},
    ),
    Case(
        name="small-s3-read",
        title="read {chunks:,} × 1 KiB through zarr from S3 on loopback",
        peers=("icefloe", "icechunk"),
        run=read_s3,
        start=with_server_and_chunks,
        parameters=ON_S3,
        quick={"chunks": 200},
    ),
]
