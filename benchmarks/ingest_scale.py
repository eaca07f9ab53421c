"""What the driver of an ingest holds and how long it takes, by the number of files.

Runs all that the driver does, with headers as executors send them, but without files and without
Spark: `python -m benchmarks.ingest_scale 20000 50000 100000`. Each number runs in a process of its
own; two of them give what one more file costs, and so the size of driver that a million needs.

`python -m benchmarks.ingest_scale --spark 2000` ingests so many real files on a local Spark, in
four rounds that are committed, and tells what the driver held after each of them.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FILES_PER_TASK = 64
ROUNDS = 4
MARKER = 123456789.0
"""The time in the file that all others are made of."""
SHAPE = (360, 440)
"""Of two-dimensional coordinates: 1.2 MiB of each in every file."""


def measure(files: int) -> dict[str, float]:
    """Peak memory above that of an idle driver, in bytes, and seconds by step."""
    import icefloe
    from icefloe.ingest import header_batches
    from icefloe.ingest.driver import FileSurvey, _placed_files, ingested_file
    from icefloe.ingest.header_batches import HeaderCollector, pack
    from icefloe.ingest.headers import digest_of_values
    from icefloe.ingest.log import latest_of, record_ingested
    from icefloe.ingest.options import IngestOptions
    from icefloe.ingest.planner import plan_files

    options = IngestOptions.of()
    grid = np.linspace(0.0, 1.0, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    # Executors make the digests.
    digest = digest_of_values(grid)
    vars(header_batches)["digest_of_values"] = lambda _: digest
    batches = (
        pack([_result(number, grid) for number in range(start, min(files, start + FILES_PER_TASK))])
        for start in range(0, files, FILES_PER_TASK)
    )
    session = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")
    idle = _peak_bytes()
    seconds: dict[str, float] = {"headers": 0.0}
    collector = HeaderCollector()
    sent = 0
    for batch in batches:
        sent += len(batch)
        started = time.perf_counter()
        collector.add(batch)
        seconds["headers"] += time.perf_counter() - started
    results = collector.fill(lambda *_: grid)
    started = time.perf_counter()
    survey = FileSurvey({}, [result.header for result in results if result.header is not None])
    plan = plan_files(survey.headers)
    plan.check()
    seconds["plan"] = time.perf_counter() - started
    started = time.perf_counter()
    placed = _placed_files(plan, survey)
    tasks = [pickle.dumps(placed[at : at + FILES_PER_TASK]) for at in range(0, len(placed), 64)]
    seconds["tasks"] = time.perf_counter() - started
    started = time.perf_counter()
    record_ingested(session, "/", (ingested_file(each, plan, options) for each in survey.headers))
    seconds["log"] = time.perf_counter() - started
    started = time.perf_counter()
    latest_of(session, "/", [survey.headers[files // 2].url])
    seconds["one entry of the log"] = time.perf_counter() - started
    return {
        "files": files,
        "bytes": _peak_bytes() - idle,
        "sent": sent,
        "tasks": float(len(tasks)),
        **{f"seconds {name}": value for name, value in seconds.items()},
    }


def _result(number: int, grid: np.ndarray[Any, Any]) -> Any:
    """The header of a file of a model: two variables, time, and two-dimensional coordinates."""
    from icefloe.ingest.headers import FileHeader, VariableHeader
    from icefloe.ingest.read import HeaderResult
    from icefloe.objects.foreign.source import SourceStatus

    url = f"s3://archive/model/historical/r1i1p1f1/{number // 1000:06d}/file_{number:09d}.nc"
    status = SourceStatus(100_000_000, f'"{number:032x}"', 1_700_000_000 + number)
    attributes = {"title": "a model", "history": f"made {number}", "tracking_id": f"{number:036d}"}
    variables = {
        "time": VariableHeader(_document([1], ["time"], number), 1, 8, np.array([number])),
        "lat": VariableHeader(_document(SHAPE, ["y", "x"], number), 1, grid.nbytes, grid),
        "lon": VariableHeader(_document(SHAPE, ["y", "x"], number), 1, grid.nbytes, grid),
        "t2m": VariableHeader(_document([1, *SHAPE], ["time", "y", "x"], number), 100, 50_000_000),
        "pr": VariableHeader(_document([1, *SHAPE], ["time", "y", "x"], number), 100, 50_000_000),
    }
    return HeaderResult(url, "read", status, FileHeader(url, "hdf5", status, attributes, variables))


def _document(shape: Any, dims: list[str], number: int) -> dict[str, Any]:
    chunks = [1, 36, 44] if len(shape) == 3 else list(shape)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 3}}],
        "attributes": {"units": "1", "history": f"made {number}"},
        "dimension_names": dims,
    }


# --- with files and Spark


def ingest_on_spark(files: int) -> None:
    """Ingest small files by reference in rounds, and print a line for each of them."""
    import icefloe
    from icefloe.spark import add_listener, ingest, local_session

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        _make_files(data, files)
        prefix = f"{data.as_uri()}/"
        config = icefloe.RepositoryConfig()
        store = icefloe.local_filesystem_store(str(data))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
        repo = icefloe.Repository.create(
            str(Path(folder) / "repo"), config, authorize_virtual_chunk_access={prefix: None}
        )
        spark = local_session(2, memory="1g")
        spark.range(1).count()
        idle, started = _peak_bytes(), time.perf_counter()
        rows: list[dict[str, float]] = []

        def note(event: Any) -> None:
            rows.append(
                {
                    "files": event.summary.files,
                    "bytes": _peak_bytes() - idle,
                    "seconds": round(time.perf_counter() - started, 1),
                    "task seconds": event.summary.task_seconds,
                }
            )
            sys.stdout.write(f"{json.dumps(rows[-1])}\n")

        add_listener(note)
        report = ingest(spark, repo, prefix, checkpoint_files=-(-files // ROUNDS), progress=False)
        spark.stop()
    sys.stdout.write(
        f"{len(report.new)} files, {report.job.chunks} chunks; the driver held "
        f"{rows[0]['bytes'] / 2**20:.0f} MiB after the first round and "
        f"{rows[-1]['bytes'] / 2**20:.0f} MiB after the last\n"
    )


def _make_files(folder: Path, count: int) -> None:
    """Files of NetCDF 3 with a time, a latitude and two variables, that differ in the time."""
    import xarray as xr

    folder.mkdir()
    dims = ("time", "lat", "lon")
    values = np.zeros((1, 8, 16), "f4")
    sample = xr.Dataset(
        {"t2m": (dims, values), "pr": (dims, values)},
        {"time": [MARKER], "lat": np.linspace(-90, 90, 8), "lon": np.arange(16.0)},
    )
    path = folder / "sample.nc"
    sample.to_netcdf(path, format="NETCDF3_64BIT", engine="scipy")
    content, marker = path.read_bytes(), np.array(MARKER, ">f8").tobytes()
    if content.count(marker) != 1:
        raise AssertionError("the time of the sample must be in the file once")
    path.unlink()
    for number in range(count):
        moment = np.array(float(number), ">f8").tobytes()
        (folder / f"{number:07d}.nc").write_bytes(content.replace(marker, moment))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(counts: list[int]) -> None:
    """Measure some numbers of files, and tell what one more costs."""
    rows = []
    for count in counts:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (count,)))
        sys.stdout.write(f"{json.dumps(rows[-1])}\n")
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        more = last["files"] - first["files"]
        each = (last["bytes"] - first["bytes"]) / more
        slow = sum(last[k] - first[k] for k in last if k.startswith("seconds")) / more
        sys.stdout.write(
            f"one more file: {each:.0f} bytes, {slow * 1e6:.0f} µs; "
            f"a million files: {each * 1e6 / 2**30:.2f} GiB, {slow * 1e6 / 60:.1f} minutes\n"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--spark"]:
        ingest_on_spark(int(sys.argv[2]))
    else:
        main([int(each) for each in sys.argv[1:]] or [20_000, 50_000])
