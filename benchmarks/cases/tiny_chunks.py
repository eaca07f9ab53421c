"""Many chunks of 1 KiB as batches: the engine under zarr and under the region API.

icefloe gets and gives whole batches here, with no zarr in between; that is the floor for the cases
that go through zarr. On S3 the official package takes part through zarr, which is all it has.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks import s3_server
from benchmarks.case import Case, Setting
from benchmarks.peers import import_everything

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 1024
ENGINE = ("icefloe", "icefloe-nosync")


def document(chunks: int) -> bytes:
    """The metadata of an array of so many chunks."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [chunks * CHUNK_BYTES],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK_BYTES]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {},
        }
    ).encode()


def batch(chunks: int) -> tuple[Any, Any]:
    """Coordinates and bytes of all chunks."""
    import numpy as np

    from icefloe.model.segments import Segments

    random = np.random.default_rng(20260115)
    data = random.integers(0, 256, size=chunks * CHUNK_BYTES, dtype=np.uint8).tobytes()
    offsets = np.arange(chunks, dtype=np.int64) * CHUNK_BYTES
    lengths = np.full(chunks, CHUNK_BYTES, dtype=np.int64)
    return np.arange(chunks)[:, None], Segments(data, offsets, lengths)


def with_batch(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    if not setting.parameters.get("checksums", True):
        from icefloe.objects import checksums

        checksums.IS_QUICK = False
    return setting, batch(setting["chunks"])


def write_to(repository: Any, coords: Any, segments: Any) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/array", document(len(coords)))
    session.write_chunks("/array", coords, segments)
    session.commit("tiny chunks")


def write(state: tuple[Setting, Any], _: int) -> None:
    setting, (coords, segments) = state
    write_to(setting.peer.create(setting.folder), coords, segments)


def written(setting: Setting) -> None:
    write(with_batch(setting), 0)


def only_imports(setting: Setting) -> Setting:
    import_everything(setting.peer)
    return setting


def read_from(repository: Any, chunks: int, *, verify: bool = False) -> None:
    import numpy as np

    session = repository.readonly_session("main")
    found = session.read_chunks("/array", np.arange(chunks)[:, None], verify=verify)
    total = sum(int(part.segments.lengths.sum()) for part in found)
    if total != chunks * CHUNK_BYTES:
        raise AssertionError("read too little")


def read(setting: Setting, _: int) -> None:
    verify = setting.parameters.get("verify", False)
    read_from(setting.peer.open(setting.folder), setting["chunks"], verify=verify)


def read_one(state: tuple[Any, list[int]], number: int) -> None:
    session, places = state
    if len(session.get_chunk("/array", (places[number],))) != CHUNK_BYTES:
        raise AssertionError("read too little")


def with_open_session(setting: Setting) -> tuple[Any, list[int]]:
    import numpy as np

    import_everything(setting.peer)
    session = setting.peer.open(setting.folder).readonly_session("main")
    session.get_chunk("/array", (0,))
    random = np.random.default_rng(1)
    return session, random.integers(0, setting["chunks"], setting["operations"]).tolist()


# --- S3 on loopback


def s3_repository(setting: Setting, url: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """How to create and how to open a repository on the server."""
    place: dict[str, Any] = {
        "bucket": s3_server.BUCKET,
        "prefix": setting.folder.name,
        "region": "us-east-1",
        "endpoint_url": url,
        "allow_http": True,
        "force_path_style": True,
        **s3_server.CREDENTIALS,
    }
    if setting.peer.distribution == "icefloe":
        import icefloe as library
    else:
        import icechunk as library  # type: ignore[no-redef]
    make = library.s3_storage
    return (
        lambda: library.Repository.create(make(**place)),
        lambda: library.Repository.open(make(**place)),
    )


def with_server(setting: Setting) -> tuple[Setting, Any, Any]:
    _, values = with_batch(setting)
    create, reopen = s3_repository(setting, s3_server.start())
    return setting, values, (create, reopen)


def write_s3(state: tuple[Setting, Any, Any], _: int) -> None:
    setting, (coords, segments), (create, _) = state
    repository = create()
    if setting.peer.distribution == "icefloe":
        write_to(repository, coords, segments)
        return
    import numpy as np
    import zarr

    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="array",
        shape=(len(coords) * CHUNK_BYTES,),
        chunks=(CHUNK_BYTES,),
        dtype="uint8",
        compressors=None,
    )
    array[:] = np.frombuffer(segments.data, dtype=np.uint8)
    session.commit("tiny chunks")


def with_server_and_chunks(setting: Setting) -> tuple[Setting, Any, Any]:
    state = with_server(setting)
    write_s3(state, 0)
    return state


def read_s3(state: tuple[Setting, Any, Any], _: int) -> None:
    setting, (coords, _), (_, reopen) = state
    if setting.peer.distribution == "icefloe":
        read_from(reopen(), len(coords))
        return
    import zarr

    store = reopen().readonly_session("main").store
    values: Any = zarr.open_array(store, path="array", mode="r")[:]
    if values.nbytes != len(coords) * CHUNK_BYTES:
        raise AssertionError("read too little")


MANY: dict[str, Any] = {"chunks": 200_000}
FEW: dict[str, Any] = {"chunks": 2_000}

CASES = [
    Case(
        name="tiny-chunks-write",
        title="write a batch of {chunks:,} × 1 KiB, commit",
        peers=ENGINE,
        run=write,
        start=with_batch,
        parameters=MANY,
        quick=FEW,
    ),
    Case(
        name="tiny-chunks-write-unchecked",
        title="the same without checksums ({chunks:,} × 1 KiB)",
        peers=ENGINE,
        run=write,
        start=with_batch,
        parameters={**MANY, "checksums": False},
        quick=FEW,
    ),
    Case(
        name="tiny-chunks-read",
        title="read a batch of {chunks:,} × 1 KiB",
        peers=ENGINE,
        run=read,
        start=only_imports,
        prepare=written,
        parameters=MANY,
        quick=FEW,
    ),
    Case(
        name="tiny-chunks-read-verified",
        title="the same, compared with checksums ({chunks:,} × 1 KiB)",
        peers=ENGINE,
        run=read,
        start=only_imports,
        prepare=written,
        parameters={**MANY, "verify": True},
        quick=FEW,
    ),
    Case(
        name="tiny-chunks-random",
        title="one random chunk of {chunks:,} × 1 KiB, by the session",
        peers=ENGINE,
        run=read_one,
        start=with_open_session,
        prepare=written,
        parameters={**MANY, "operations": 2_000},
        quick={**FEW, "operations": 100},
    ),
    Case(
        name="tiny-chunks-s3-write",
        title="write a batch of {chunks:,} × 1 KiB to S3 on loopback, commit",
        peers=("icefloe", "icechunk"),
        run=write_s3,
        start=with_server,
        parameters={"chunks": 10_000},
        quick={"chunks": 200},
    ),
    Case(
        name="tiny-chunks-s3-read",
        title="read a batch of {chunks:,} × 1 KiB from S3 on loopback",
        peers=("icefloe", "icechunk"),
        run=read_s3,
        start=with_server_and_chunks,
        parameters={"chunks": 10_000},
        quick={"chunks": 200},
    ),
]
