"""Manifests at scale: millions of virtual references, one chunk among them, thousands of arrays.

icefloe takes references as columns, and so does the newest official package. Its 1.1 has no such
call: its list is made before the clock starts. All commit, and read a chunk for real: its object
is a file on the local disk, in a virtual chunk container that the opener authorises.
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from benchmarks.case import OFFICIAL, Case, Setting
from benchmarks.peers import GENERATIONS, VERSIONED, import_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

EVERYONE = (*VERSIONED, *GENERATIONS)
AT_TEN_MILLION = ("icefloe", "icefloe-nosync", OFFICIAL[-1])
"""The others would take many minutes, or most of a small machine's memory."""
COORDINATES = 100
"""Length of the coordinate array next to the big one."""
NATIVE_BYTES = 600
"""Too many to be inline."""


# --- repositories with a virtual chunk container


def source_of(setting: Setting) -> Path:
    """Where the objects are that virtual references point to; outside of what is measured."""
    repository = setting.fixture or setting.folder
    folder = repository.with_name(f"{repository.name}-source")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def library(setting: Setting) -> Any:
    return importlib.import_module(setting.peer.modules[0])


def storage(setting: Setting) -> Any:
    made = library(setting).local_filesystem_storage
    if setting.peer.distribution == "icefloe":
        return made(setting.folder, durability=setting.peer.durability)
    return made(str(setting.folder))


def create(setting: Setting) -> Any:
    ours = library(setting)
    url = f"{source_of(setting).as_uri()}/"
    config = ours.RepositoryConfig.default()
    objects = ours.local_filesystem_store(str(source_of(setting)))
    config.set_virtual_chunk_container(ours.VirtualChunkContainer(url, objects))
    if setting.parameters.get("split"):
        config.manifest = ours.ManifestConfig(splitting=splitting(ours, setting["split"]))
    repository = ours.Repository.create(storage(setting), config=config, **format_of(setting))
    repository.save_config()
    return repository


def format_of(setting: Setting) -> dict[str, Any]:
    """Arguments of `create`: the format of the peer, or the one that the case asks for."""
    if setting.peer.distribution == "icefloe":
        generation = getattr(setting.peer, "generation", None)
        version = getattr(setting.peer, "spec_version", None)
        return {"generation": generation, "spec_version": version} if generation else {}
    if setting.peer.environment and "spec_version" in setting.parameters:  # 1.1 knows only its own
        return {"spec_version": setting["spec_version"]}
    return {}


def splitting(ours: Any, rows: int) -> Any:
    """So many rows of every array in a manifest."""
    return ours.ManifestSplittingConfig.from_dict(
        {ours.ManifestSplitCondition.AnyArray(): {ours.ManifestSplitDimCondition.Axis(0): rows}}
    )


def reopen(setting: Setting) -> Any:
    url = f"{source_of(setting).as_uri()}/"
    return library(setting).Repository.open(
        storage(setting), authorize_virtual_chunk_access={url: None}
    )


# --- references


def columns(setting: Setting) -> dict[str, Any]:
    """References into files as compressed chunks lie in them: end to end, of any length."""
    import numpy as np

    count, files = setting["references"], min(setting["files"], setting["references"])
    base = source_of(setting).as_uri()
    per_file = count // files
    lengths = np.random.default_rng(20260115).integers(55_000, 65_000, size=(files, per_file))
    offsets = np.cumsum(lengths, axis=1) - lengths + 8192
    return {
        "urls": [f"{base}/{object_name(number)}" for number in range(files)],
        "codes": np.repeat(np.arange(files), per_file),
        "offsets": offsets.ravel(),
        "lengths": lengths.ravel(),
        "grid": (files, per_file),
    }


def object_name(number: int) -> str:
    return f"year={number // 400}/model-output-{number:07}.nc"


def prepared_list(setting: Setting, given: dict[str, Any]) -> list[Any]:
    """What the official call takes."""
    specs = library(setting).VirtualChunkSpec
    urls, width = given["urls"], given["grid"][1]
    values = (given[name].tolist() for name in ("codes", "offsets", "lengths"))
    rows = zip(*values, strict=True)
    return [
        specs([code, row % width], urls[code], offset, length)
        for row, (code, offset, length) in enumerate(rows)
    ]


def with_references(setting: Setting) -> tuple[Any, dict[str, Any]]:
    import_everything(setting.peer)
    given = columns(setting)
    if setting.peer.distribution == "icefloe":
        return create(setting), given
    if hasattr(library(setting).IcechunkStore, "set_virtual_refs_arr"):
        given["each"] = [url for url in given["urls"] for _ in range(given["grid"][1])]
    else:
        given["list"] = prepared_list(setting, given)
    return create(setting), given


def commit_references(state: tuple[Any, dict[str, Any]], _: int) -> None:
    """A big array of virtual references, and a small one beside it."""
    import numpy as np
    import zarr

    repository, given = state
    session = repository.writable_session("main")
    zarr.create_array(
        session.store, name="big", shape=given["grid"], chunks=(1, 1), dtype="uint8", filters=None
    )
    times = zarr.create_array(
        session.store, name="time", shape=(COORDINATES,), chunks=(COORDINATES,), dtype="int64"
    )
    times[:] = np.arange(COORDINATES)
    if "list" in given:
        refused = session.store.set_virtual_refs("big", given["list"])
    elif "each" in given:
        columns = (given[name].astype("uint64") for name in ("offsets", "lengths"))
        refused = session.store.set_virtual_refs_arr("big", given["grid"], given["each"], *columns)
    else:
        refused = session.set_virtual_refs(
            "/big",
            shape=given["grid"],
            locations=given["urls"],
            location_codes=given["codes"],
            offsets=given["offsets"],
            lengths=given["lengths"],
        )
    if refused:
        raise AssertionError(f"{len(refused)} references were refused")
    session.commit("references")


def with_list(setting: Setting) -> tuple[Any, dict[str, Any]]:
    """A list of specs for all peers, made before: what VirtualiZarr and most users pass."""
    import_everything(setting.peer)
    given = columns(setting)
    given["list"] = prepared_list(setting, given)
    return create(setting), given


# --- one chunk among many


def committed(setting: Setting) -> None:
    state = with_references(setting)
    commit_references(state, 0)
    given = state[1]
    row = chosen_row(setting)
    place = source_of(setting) / object_name(int(given["codes"][row]))
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        file.seek(int(given["offsets"][row]))
        file.write(b"\x07" * int(given["lengths"][row]))
    (source_of(setting) / "expected.json").write_text(json.dumps(int(given["lengths"][row])))


def chosen_row(setting: Setting) -> int:
    """A chunk somewhere behind the middle."""
    return int(setting["references"] * 0.61)


def chosen_key(setting: Setting) -> str:
    files = min(setting["files"], setting["references"])
    return "big/c/{}/{}".format(*divmod(chosen_row(setting), setting["references"] // files))


def only_imports(setting: Setting) -> Setting:
    import_everything(setting.peer)
    return setting


def read_one_chunk(setting: Setting, _: int) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    store = reopen(setting).readonly_session("main").store
    data = sync(store.get(chosen_key(setting), default_buffer_prototype()))
    expected = json.loads((source_of(setting) / "expected.json").read_text())
    if data is None or data.to_bytes() != b"\x07" * expected:
        raise AssertionError("read something else")


def read_coordinates(setting: Setting, _: int) -> None:
    import numpy as np
    import zarr

    store = reopen(setting).readonly_session("main").store
    if np.sum(zarr.open_array(store, path="time", mode="r")[:]) != COORDINATES * 99 // 2:
        raise AssertionError("read something else")


def reopened(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    return setting, reopen(setting)


def commit_one_chunk(state: tuple[Setting, Any], _: int) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    setting, repository = state
    session = repository.writable_session("main")
    data = default_buffer_prototype().buffer.from_bytes(b"\x01")
    sync(session.store.set(chosen_key(setting), data))
    session.commit("one chunk")


# --- native references, and thousands of arrays


def array_document(shape: int) -> bytes:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [shape],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {"units": "K", "long_name": "temperature at a station"},
    }
    return json.dumps(document).encode()


GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def session_with(setting: Setting, objects: Iterable[tuple[str, bytes]]) -> Any:
    """A session to which objects were written as zarr would."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    import_everything(setting.peer)
    session = setting.peer.create(setting.folder).writable_session("main")
    make = default_buffer_prototype().buffer.from_bytes

    async def write() -> None:
        for key, data in objects:
            await session.store.set(key, make(data))

    sync(write())
    return session


def with_native_chunks(setting: Setting) -> tuple[Setting, list[tuple[str, bytes]]]:
    import_everything(setting.peer)
    count = setting["references"]
    objects = [("zarr.json", GROUP), ("big/zarr.json", array_document(count))]
    objects += [(f"big/c/{row}", row.to_bytes(NATIVE_BYTES, "big")) for row in range(count)]
    return setting, objects


def commit_native(state: tuple[Setting, list[tuple[str, bytes]]], _: int) -> None:
    session_with(*state).commit("native chunks")


def with_small_arrays(setting: Setting) -> Any:
    objects = [("zarr.json", GROUP)]
    document = array_document(4)
    for number in range(setting["arrays"]):
        objects.append((f"station-{number:05}/zarr.json", document))
        objects += [(f"station-{number:05}/c/{row}", bytes([row])) for row in range(4)]
    return session_with(setting, objects)


def commit(session: Any, _: int) -> None:
    session.commit("all of it")


def small_arrays_committed(setting: Setting) -> None:
    commit(with_small_arrays(setting), 0)


def open_and_read_small_array(setting: Setting, _: int) -> None:
    import numpy as np
    import zarr

    store = setting.peer.store_for_reading(setting.peer.open(setting.folder))
    path = f"station-{setting['arrays'] // 2:05}"
    if np.any(zarr.open_array(store, path=path, mode="r")[:] != np.arange(4)):
        raise AssertionError("read something else")


def small_arrays_reopened(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    return setting, setting.peer.open(setting.folder)


def commit_to_small_array(state: tuple[Setting, Any], _: int) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    setting, repository = state
    session = repository.writable_session("main")
    data = default_buffer_prototype().buffer.from_bytes(b"\x09")
    sync(session.store.set(f"station-{setting['arrays'] // 2:05}/c/1", data))
    session.commit("one chunk")


# --- the cases


def at_sizes(
    name: str,
    title: str,
    run: Callable[[Any, int], object],
    start: Callable[[Setting], Any],
    prepare: Callable[[Setting], object] | None = None,
) -> list[Case]:
    """A case at growing numbers of references."""
    return [
        Case(
            name=f"{name}-1e{exponent}",
            title=title,
            peers=EVERYONE if exponent <= 6 else AT_TEN_MILLION,
            run=run,
            start=start,
            prepare=prepare,
            parameters={"references": 10**exponent, "files": 10_000, "growth": name},
            quick={"references": 10 ** (exponent - 2), "files": 100},
        )
        for exponent in (5, 6, 7)
    ]


CASES = [
    *at_sizes(
        "refs-commit",
        "set and commit {references:,} virtual references in {files:,} files",
        commit_references,
        with_references,
    ),
    Case(
        name="refs-commit-scattered",
        title="set and commit {references:,} virtual references, one per file",
        peers=EVERYONE,
        run=commit_references,
        start=with_references,
        parameters={"references": 10**6, "files": 10**6},
        quick={"references": 2000, "files": 2000},
    ),
    Case(
        name="refs-commit-list",
        title="set and commit {references:,} virtual references in {files:,} files, as a list",
        peers=EVERYONE,
        run=commit_references,
        start=with_list,
        parameters={"references": 10**6, "files": 10_000},
        quick={"references": 2000, "files": 20},
    ),
    Case(
        name="refs-commit-native",
        title="write {references:,} chunks one by one, commit",
        peers=EVERYONE,
        run=commit_native,
        start=with_native_chunks,
        parameters={"references": 50_000},
        quick={"references": 500},
    ),
    *at_sizes(
        "refs-read-chunk",
        "open, read one chunk of {references:,} virtual ones",
        read_one_chunk,
        only_imports,
        committed,
    ),
    *at_sizes(
        "refs-read-coordinate",
        "open, read a small array next to {references:,} references",
        read_coordinates,
        only_imports,
        committed,
    ),
    *at_sizes(
        "refs-change-chunk",
        "change and commit one chunk of {references:,}",
        commit_one_chunk,
        reopened,
        committed,
    ),
    Case(
        name="small-arrays-commit",
        title="commit {arrays:,} arrays of 4 chunks that were written before",
        peers=EVERYONE,
        run=commit,
        start=with_small_arrays,
        parameters={"arrays": 5760},
        quick={"arrays": 50},
    ),
    Case(
        name="small-arrays-change",
        title="change and commit one chunk of {arrays:,} arrays of 4 chunks",
        peers=EVERYONE,
        run=commit_to_small_array,
        start=small_arrays_reopened,
        prepare=small_arrays_committed,
        parameters={"arrays": 5760},
        quick={"arrays": 50},
    ),
    Case(
        name="small-arrays-open",
        title="open {arrays:,} arrays of 4 chunks, read one",
        peers=EVERYONE,
        run=open_and_read_small_array,
        start=only_imports,
        prepare=small_arrays_committed,
        parameters={"arrays": 5760},
        quick={"arrays": 50},
    ),
]
