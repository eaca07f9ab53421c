"""Jobs on Spark: against loops in one or two processes, and dask with the official package.

Starting Spark is not counted: whoever uses it has it running. Two loops at a time say how much two
cores of the machine are worth, which need not be twice as much as one.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.case import Case, Setting
from benchmarks.peers import LoopPeer, import_everything

SIDE = 256


def computed(region: Any) -> Any:
    """Values that take some work, as results of a model would."""
    import numpy as np

    rows = np.arange(region[0].start, region[0].stop, dtype=np.float64)
    grid = np.hypot(*np.ogrid[0:SIDE, 0:SIDE])
    values = np.sin(grid[None] / 40 + rows[:, None, None] / 10)
    for _ in range(4):
        values = np.cos(values * 3) + values / 2
    return np.round(values, 3).astype(np.float32)


def with_spark(setting: Setting) -> tuple[Setting, Any]:
    import_everything(setting.peer)
    spark = None
    cores = setting.parameters.get("cores", 2)
    if setting.peer.distribution == "icefloe" and not isinstance(setting.peer, LoopPeer):
        from icefloe.spark import local_session

        spark = local_session(cores)
        # The first Python task of a session pays for starting the workers.
        spark.range(0, cores, 1, cores).mapInArrow(lambda batches: batches, "id long").toArrow()
    return setting, spark


def fill(state: tuple[Setting, Any], _: int) -> None:
    setting, spark = state
    repo = setting.peer.create(setting.folder)
    steps, per_chunk = setting["steps"], setting["per_chunk"]
    from icefloe.spark import NewArray, write
    from icefloe.tables import zarr_arrays as arrays

    new = NewArray((steps, SIDE, SIDE), "f4", (per_chunk, SIDE, SIDE))
    if spark is not None:
        write(spark, repo, {"a": computed}, create={"a": new})
        return
    session = repo.writable_session("main")
    arrays.create(session, "/a", new)
    starts = range(0, steps, per_chunk)
    if setting["cores"] == 1:
        loop(session, starts, new)
    else:
        cores = setting["cores"]
        shares = [starts[number::cores] for number in range(cores)]
        session.commit("forks begin with what is committed")
        session = repo.writable_session("main")
        forks = [session.fork() for _ in shares]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores, mp_context=spawn) as processes:
            session.merge(*processes.map(loop, forks, shares, [new] * cores))
    session.commit("loop")


def loop(session: Any, starts: Any, new: Any) -> Any:
    """Compute and write the maps of some chunks."""
    for start in starts:
        stop = min(new.shape[0], start + new.chunks[0])
        region = (slice(start, stop), slice(0, SIDE), slice(0, SIDE))
        session.write_region("/a", region, computed(region))
    return session


def maps_written(setting: Setting) -> None:
    import numpy as np
    import zarr

    store, commit = setting.peer.begin(setting.peer.create(setting.folder))
    shape = (setting["steps"], SIDE, SIDE)
    array = zarr.create_array(store, name="a", shape=shape, chunks=(1, SIDE, SIDE), dtype="f4")
    noise = np.random.default_rng(1).integers(0, 64, size=shape).astype("f4")
    array[:] = noise
    commit()


def rechunk(state: tuple[Setting, Any], _: int) -> None:
    setting, spark = state
    repo = setting.peer.open(setting.folder)
    chunks = (setting["steps"], 32, 32)
    if setting.peer.distribution == "icefloe":
        from icefloe.spark import rechunk

        rechunk(spark, repo, "a", chunks, to="b")
        return
    import zarr
    from dask import array as dask_array

    da: Any = dask_array
    source = repo.readonly_session("main").store
    session = repo.writable_session("main")
    array = da.from_zarr(zarr.open_array(source, path="a", mode="r"))
    fork = session.fork()
    target = zarr.create_array(
        fork.store, name="b", shape=array.shape, chunks=chunks, dtype=array.dtype
    )
    from icechunk.dask import store_dask

    merged = store_dask(sources=[array.rechunk(chunks)], targets=[target])
    session.merge(merged)
    session.commit("rechunked")


CASES = [
    *(
        Case(
            name=f"fill-{cores}",
            title=f"compute and write {{steps:,}} maps on {name}",
            peers=("icefloe", "icefloe-loop"),
            run=fill,
            start=with_spark,
            parameters={"steps": 6000, "per_chunk": 20, "cores": cores},
            quick={"steps": 40},
            against=("icefloe-loop",),
            in_processes=True,
        )
        for cores, name in ((1, "one core"), (2, "two cores"))
    ),
    Case(
        name="rechunk-maps",
        title="rechunk {steps:,} maps to time series (Spark, dask)",
        peers=("icefloe", "icefloe-nosync", "icechunk"),
        run=rechunk,
        start=with_spark,
        prepare=maps_written,
        parameters={"steps": 2000},
        quick={"steps": 50},
        in_processes=True,
    ),
]
