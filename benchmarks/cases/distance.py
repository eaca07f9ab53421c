"""Everything far away: an S3 bucket whose every answer is late by some milliseconds.

The bucket is in memory in a process of its own (`benchmarks/distant_bucket.py`), so what is
measured is the number of requests that wait for each other, and how much is under way at a time.
Times include starting a session, opening and committing; imports do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import distant_bucket, s3_server
from benchmarks.case import OFFICIAL, Case, Setting
from benchmarks.cases.manifests import format_of
from benchmarks.peers import GENERATIONS, import_everything

if TYPE_CHECKING:
    from collections.abc import Callable

PEERS = ("icefloe", *OFFICIAL)
EVERY_GENERATION = (*PEERS, *GENERATIONS)
DELAY_MS = 50
VARIABLES, CHUNKS_OF_EACH, COMMITS, BRANCHES = 10, 4, 32, 21


_STARTED: list[str] = []
"""The bucket of this process: each measurement has its own."""


class Place(NamedTuple):
    """A bucket, and how to create and open a repository in it."""

    setting: Setting
    create: Callable[[], Any]
    open: Callable[[], Any]
    url: str
    address: dict[str, Any]


def far_away(setting: Setting) -> Place:
    import_everything(setting.peer)
    if setting.peer.distribution == "icefloe":
        import icefloe as library
    else:
        import icechunk as library  # type: ignore[no-redef]
    url = distant_bucket.start(setting["delay_ms"])
    _STARTED.append(url)
    address: dict[str, Any] = {
        "bucket": s3_server.BUCKET,
        "prefix": setting.folder.name,
        "region": "us-east-1",
        "endpoint_url": url,
        "allow_http": True,
        "force_path_style": True,
        **s3_server.CREDENTIALS,
    }
    options = format_of(setting)
    return Place(
        setting,
        lambda: library.Repository.create(library.s3_storage(**address), **options),
        lambda: library.Repository.open(library.s3_storage(**address)),
        url,
        address,
    )


def requests(operations: int) -> dict[str, float]:
    """Requests of one operation since the last call, and how many were in progress at a time."""
    counts = distant_bucket.statistics(_STARTED[-1])
    return {
        "requests": counts["requests"] / operations,
        "requests_at_a_time": counts["most_at_once"],
    }


# --- operations on a small dataset


def dataset() -> Any:
    import numpy as np
    import xarray as xr

    values = np.arange(CHUNKS_OF_EACH * 1000, dtype="float64")
    return xr.Dataset({f"v{number}": ("x", values + number) for number in range(VARIABLES)})


def write_dataset(repository: Any) -> None:
    session = repository.writable_session("main")
    encoding = {f"v{number}": {"chunks": (1000,)} for number in range(VARIABLES)}
    dataset().to_zarr(session.store, zarr_format=3, consolidated=False, encoding=encoding)
    session.commit("dataset")


def change_one_chunk(repository: Any, number: int) -> None:
    import zarr

    session = repository.writable_session("main")
    zarr.open_array(session.store, path="v0")[:1000] = number + 1.0
    session.commit("one chunk")


def with_dataset(setting: Setting) -> Place:
    place = far_away(setting)
    write_dataset(place.create())
    return place


def with_history(setting: Setting) -> tuple[Place, Any]:
    place = with_dataset(setting)
    repository = place.open()
    for number in range(COMMITS - 2):
        change_one_chunk(repository, number)
    tip = repository.lookup_branch("main")
    for number in range(BRANCHES - 1):
        repository.create_branch(f"branch-{number}", tip)
    return place, place.open()


def create(place: Place, _: int) -> None:
    place.create()


def created(setting: Setting) -> Any:
    return far_away(setting).create()


def write_and_commit(repository: Any, _: int) -> None:
    write_dataset(repository)


def open_and_read_one(place: Place, _: int) -> None:
    import xarray as xr

    store = place.open().readonly_session("main").store
    opened = xr.open_zarr(store, consolidated=False, chunks=None)
    if float(opened["v3"].values[5]) != 8.0:
        raise AssertionError("read something else")


def open_and_read_all(place: Place, _: int) -> None:
    import xarray as xr

    store = place.open().readonly_session("main").store
    xr.open_zarr(store, consolidated=False, chunks=None).load()


def commit_one_chunk(state: tuple[Place, Any], number: int) -> None:
    change_one_chunk(state[1], number)


def read_history(state: tuple[Place, Any], _: int) -> None:
    if len(list(state[0].open().ancestry(branch="main"))) < COMMITS:
        raise AssertionError("read too little")


def list_branches(state: tuple[Place, Any], _: int) -> None:
    if len(state[1].list_branches()) != BRANCHES:
        raise AssertionError("listed something else")


def create_tag(state: tuple[Place, Any], number: int) -> None:
    repository = state[1]
    repository.create_tag(f"tag-{number}", repository.lookup_branch("main"))


# --- throughput


def values_of(setting: Setting) -> Any:
    import numpy as np

    length = setting["chunks"] * setting["chunk_bytes"] // 4
    random = np.random.default_rng(20260115)
    # Half of the bits are noise, so that compressors have something to do and something to gain.
    return random.integers(0, 2**16, size=length, dtype=np.uint32)


class Throughput(NamedTuple):
    """A place, an empty repository in it, and what to write."""

    place: Place
    repository: Any
    values: Any


def with_values(setting: Setting) -> Throughput:
    place = far_away(setting)
    return Throughput(place, place.create(), values_of(setting))


def write_through_zarr(state: Throughput, _: int) -> None:
    import zarr

    session = state.repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="array",
        shape=state.values.shape,
        chunks=(state.place.setting["chunk_bytes"] // 4,),
        dtype="uint32",
    )
    array[:] = state.values
    session.commit("values")


def write_through_xarray(state: Throughput, _: int) -> None:
    import xarray as xr

    session = state.repository.writable_session("main")
    chunk = state.place.setting["chunk_bytes"] // 4
    xr.Dataset({"array": ("x", state.values)}).to_zarr(
        session.store, zarr_format=3, consolidated=False, encoding={"array": {"chunks": (chunk,)}}
    )
    session.commit("values")


def with_written(setting: Setting) -> Throughput:
    state = with_values(setting)
    write_through_zarr(state, 0)
    return state


def read_through_zarr(state: Throughput, _: int) -> None:
    import zarr

    store = state.place.open().readonly_session("main").store
    values: Any = zarr.open_array(store, path="array", mode="r")[:]
    if values.nbytes != state.values.nbytes or values[-1] != state.values[-1]:
        raise AssertionError("read something else")


def read_through_xarray(state: Throughput, _: int) -> None:
    import xarray as xr

    store = state.place.open().readonly_session("main").store
    values = xr.open_zarr(store, consolidated=False, chunks=None)["array"].values
    if values.nbytes != state.values.nbytes or values[-1] != state.values[-1]:
        raise AssertionError("read something else")


class SparkThroughput(NamedTuple):
    """The same with what runs tasks: a Spark session, or None for dask's threads."""

    data: Throughput
    spark: Any


def with_tasks(setting: Setting) -> SparkThroughput:
    """Starting Spark and its workers is not counted: whoever uses it has it running."""
    from benchmarks.cases.spark_jobs import with_spark

    return SparkThroughput(with_values(setting), with_spark(setting)[1])


def with_tasks_and_values(setting: Setting) -> SparkThroughput:
    state = with_tasks(setting)
    write_through_zarr(state.data, 0)
    return state


def _noise(region: Any) -> Any:
    """Values of a region, made where they are written."""
    import numpy as np

    random = np.random.default_rng(region[0].start)
    return random.integers(0, 2**16, size=region[0].stop - region[0].start, dtype=np.uint32)


def write_by_tasks(state: SparkThroughput, _: int) -> None:
    data = state.data
    length, chunk = len(data.values), data.place.setting["chunk_bytes"] // 4
    if state.spark is not None:
        from icefloe.spark import NewArray, write

        new = NewArray((length,), "uint32", (chunk,))
        write(state.spark, data.repository, {"array": _noise}, create={"array": new})
        return
    import dask.array as da
    import zarr
    from icechunk.dask import store_dask

    session = data.repository.writable_session("main")
    fork = session.fork()
    target = zarr.create_array(
        fork.store, name="array", shape=(length,), chunks=(chunk,), dtype="uint32"
    )
    many: Any = da
    values = many.random.default_rng(1).integers(0, 2**16, size=length, chunks=chunk)
    session.merge(store_dask(sources=[values.astype("uint32")], targets=[target]))
    session.commit("values")


def mean_by_tasks(state: SparkThroughput, _: int) -> None:
    """Read all values; icefloe's job also commits what it found."""
    data = state.data
    if state.spark is not None:
        from icefloe.spark import reduce

        reduce(state.spark, data.place.open(), "array", "mean", "mean")
        return
    import dask.array as da

    many: Any = da
    store = data.place.open().readonly_session("main").store
    if not many.from_zarr(store, component="array").mean().compute():
        raise AssertionError("read something else")


def _operation(
    name: str,
    title: str,
    run: Callable[[Any, int], object],
    start: Callable[[Setting], Any],
    operations: int = 3,
) -> Case:
    return Case(
        name=f"distance-{name}",
        title=f"{title}, S3 {{delay_ms}} ms away",
        peers=EVERY_GENERATION,
        run=run,
        start=start,
        parameters={"delay_ms": DELAY_MS, "operations": operations},
        quick={"delay_ms": 5, "operations": 1},
        counts=requests,
    )


LARGE = {"chunks": 1024, "chunk_bytes": 2**20, "delay_ms": DELAY_MS}
SMALL = {"chunks": 5_000, "chunk_bytes": 2**14, "delay_ms": DELAY_MS}
"""The official package takes four minutes for 50,000."""


def _throughput(
    name: str, title: str, run: Callable[[Any, int], object], start: Callable[[Setting], Any]
) -> list[Case]:
    return [
        Case(
            name=f"distance-{name}-{size}",
            title=f"{title} {{chunks:,}} × {unit}, zstd, S3 {{delay_ms}} ms away",
            peers=PEERS,
            run=run,
            start=start,
            parameters=parameters,
            quick={"chunks": 20, "delay_ms": 5},
            counts=requests,
        )
        for size, unit, parameters in (("large", "1 MiB", LARGE), ("small", "16 KiB", SMALL))
    ]


CASES = [
    Case(
        name="distance-create",
        title="create a repository, S3 {delay_ms} ms away",
        peers=EVERY_GENERATION,
        run=create,
        start=far_away,
        parameters={"delay_ms": DELAY_MS},
        quick={"delay_ms": 5},
        counts=requests,
    ),
    Case(
        name="distance-write-dataset",
        title="write 10 variables of 4 chunks and commit, S3 {delay_ms} ms away",
        peers=EVERY_GENERATION,
        run=write_and_commit,
        start=created,
        parameters={"delay_ms": DELAY_MS},
        quick={"delay_ms": 5},
        counts=requests,
    ),
    _operation(
        "open-variable", "open, `open_zarr`, read one variable", open_and_read_one, with_dataset
    ),
    _operation(
        "open-dataset", "open, `open_zarr`, read all ten variables", open_and_read_all, with_dataset
    ),
    _operation(
        "change-chunk", "new session, change one chunk, commit", commit_one_chunk, with_history
    ),
    _operation("history", "open, read a history of 32 and more", read_history, with_history),
    _operation("branches", "list 21 branches", list_branches, with_history),
    _operation("tag", "create a tag", create_tag, with_history),
    *_throughput("zarr-write", "write through zarr", write_through_zarr, with_values),
    *_throughput("zarr-read", "read through zarr", read_through_zarr, with_written),
    *_throughput("xarray-write", "write through xarray", write_through_xarray, with_values),
    *_throughput("xarray-read", "read through xarray", read_through_xarray, with_written),
    *_throughput("tasks-write", "write on Spark, or on dask,", write_by_tasks, with_tasks),
    *_throughput(
        "tasks-read", "mean on Spark, or on dask, of", mean_by_tasks, with_tasks_and_values
    ),
]
