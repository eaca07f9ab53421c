"""Ingest against a model: whatever the files and their order, the group is what numpy says.

Tasks run in this process, one after the other, by the functions that executors run: what Spark adds
is tested elsewhere.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import icefloe
from icefloe.errors import InconsistentFilesError, VirtualChunkError
from icefloe.ingest.driver import PlacedFile
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.read import read_file
from icefloe.spark import ingest
from icefloe.spark.engine import runner, tasks
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.ingest_tasks import (
    HeaderWork,
    ReferenceWork,
    read_headers,
    results_in,
    write_file_references,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILL = -5


def run_here(_: Any, work: Any, items: Sequence[Any], *, shared: Any = None, **__: Any) -> Any:
    """All tasks, in this process."""
    todo = [(number, cloudpickle.dumps(item)) for number, item in enumerate(items)]
    code = cloudpickle.dumps(work), cloudpickle.dumps(shared)
    batches = list(tasks.run_items(todo, *code, may_retry=False))
    rows = pa.Table.from_batches(batches, schema=tasks.SCHEMA)
    results = runner.Results(rows, len(items), 0.0)
    assert results.failures == []
    return results


@pytest.fixture(scope="module", autouse=True)
def _serially() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("engine.job", "jobs.ingesting"):
            patch.setattr(f"icefloe.spark.{name}.run_tasks", run_here)
            patch.setattr(f"icefloe.spark.{name}.parallelism", lambda _: 2)
        yield


def write_file(path: Path, times: list[int], xs: list[int], version: int, chunk: int) -> None:
    """Values tell where they are and which version of the file they are from."""
    with h5py.File(path, "w") as file:
        file["t"], file["x"] = np.array(times), np.array(xs)
        file["t"].make_scale("t")
        file["x"].make_scale("x")
        data = file.create_dataset(
            "v",
            data=values_of(times, xs, version),
            chunks=(min(chunk, len(times)), len(xs)),
            fillvalue=FILL,
            compression="gzip",
        )
        data.dims[0].attach_scale(file["t"])
        data.dims[1].attach_scale(file["x"])


def values_of(times: list[int], xs: list[int], version: int) -> np.ndarray[Any, Any]:
    return np.array(times)[:, None] * 1000 + np.array(xs)[None] * 10 + version


@st.composite
def archives(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Segments of time and of x, and the files of each run as numbers."""
    times = _cut(draw, 4)
    xs = _cut(draw, 2)
    count = len(times) * len(xs)
    order = draw(st.permutations(range(count)))
    runs = draw(st.integers(1, 3))
    cuts = sorted(draw(st.lists(st.integers(0, count), min_size=runs, max_size=runs)))
    parts = [list(order[a:b]) for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    again = draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True))
    return times, xs, [part for part in [*parts, again] if part]


def _cut(draw: st.DrawFn, most: int) -> list[list[int]]:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=most))
    starts = np.cumsum([0, *lengths])
    return [list(range(int(a), int(a) + n)) for a, n in zip(starts, lengths, strict=False)]


@settings(max_examples=settings.default.max_examples // 2 or 1)
@given(archives(), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["copy", "virtual"]))
def test_files_in_any_order_over_several_runs(
    archive: tuple[list[list[int]], list[list[int]], list[list[int]]],
    file_chunk: int,
    chunk: int,
    mode: Any,
) -> None:
    times, xs, runs = archive
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        repo = repository_in(folder)
        expected: dict[tuple[int, int], int] = {}
        versions: dict[int, int] = {}
        for run in runs:
            paths = []
            for number in run:
                t, x = times[number // len(xs)], xs[number % len(xs)]
                versions[number] = versions.get(number, 0) + 1
                path = folder / "data" / f"{number}.h5"
                write_file(path, t, x, versions[number], file_chunk)
                paths.append(str(path))
                expected |= {(a, b): a * 1000 + b * 10 + versions[number] for a in t for b in x}
            chunks = {"t": chunk, "x": 2}
            try:
                ingest(None, repo, paths, mode=mode, concat_dims=["t", "x"], chunks=chunks)
            except InconsistentFilesError:
                assert mode == "virtual"  # chunks may end elsewhere than files, and it says so
                return
            compare(repo, expected)


def test_tasks_that_write_manifests_make_the_same_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.spark.jobs.ingesting.LINK_ABOVE_CHUNKS", 0)
    sizes = {
        icefloe.ManifestSplitCondition.AnyArray(): {icefloe.ManifestSplitDimCondition.Any(): 4}
    }
    splitting = icefloe.ManifestSplittingConfig.from_dict(sizes)  # type: ignore[arg-type]
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(splitting=splitting))
    repo = repository_in(tmp_path, config)
    expected: dict[tuple[int, int], int] = {}
    for numbers in ((2, 0, 1), (4, 3), (1,), (6,)):  # new, appended, corrected, with a gap
        paths = []
        for number in numbers:
            path, version = tmp_path / "data" / f"{number}.h5", len(expected)
            times = list(range(number * 3, number * 3 + 3))
            write_file(path, times, [0, 1], version, 1)
            paths.append(str(path))
            expected |= {(t, x): t * 1000 + x * 10 + version for t in times for x in (0, 1)}
        ingest(None, repo, paths, concat_dims=["t"])
        compare(repo, expected)
    node = repo.readonly_session("main").get_node("/v")
    assert node is not None
    assert len(node.manifests) == 5


def repository_in(
    folder: Path, config: icefloe.RepositoryConfig | None = None
) -> icefloe.Repository:
    (folder / "data").mkdir()
    prefix = f"{(folder / 'data').as_uri()}/"
    config = config or icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(f"{folder}/data"))
    )
    return icefloe.Repository.create(
        str(folder / "repo"), config, authorize_virtual_chunk_access={prefix: None}
    )


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def compare(repo: icefloe.Repository, expected: dict[tuple[int, int], int]) -> None:
    import warnings

    store = repo.readonly_session("main").store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group: Any = zarr.open_group(store, mode="r")
        ts, xs, found = (group[name][...] for name in ("t", "x", "v"))
    assert ts.tolist() == sorted({t for t, _ in expected})
    assert xs.tolist() == sorted({x for _, x in expected})
    whole = np.full((len(ts), len(xs)), FILL)
    for (t, x), value in expected.items():
        whole[ts.tolist().index(t), xs.tolist().index(x)] = value
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("kept", [True, False])
def test_small_files_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    if not kept:
        monkeypatch.setattr("icefloe.spark.jobs.ingesting._MAX_PARSED_BYTES", 0)
    parsed = []

    def counted(url: str, *arguments: Any) -> Any:
        parsed.append(url)
        return read_file(url, *arguments)

    for module in ("icefloe.ingest.read", "icefloe.spark.jobs.ingest_tasks"):
        monkeypatch.setattr(f"{module}.read_file", counted)
    repo = repository_in(tmp_path)
    paths = [tmp_path / "data" / f"{number}.h5" for number in range(3)]
    for number, path in enumerate(paths):
        write_file(path, [2 * number, 2 * number + 1], [0, 1], 1, 1)
    ingest(None, repo, list(map(str, paths)), concat_dims=["t"])
    assert len(parsed) == (3 if kept else 6)
    compare(repo, {(t, x): t * 1000 + x * 10 + 1 for t in range(6) for x in range(2)})


@pytest.mark.parametrize("kept", [10_000, 0])
def test_a_file_that_changes_before_its_references_are_placed(tmp_path: Path, kept: int) -> None:
    session = repository_in(tmp_path).writable_session("main")
    path = tmp_path / "data" / "0.h5"
    write_file(path, [0], [0], 1, 1)
    spec = SessionSpec.of(session)
    options = IngestOptions.of()
    (read,) = read_headers(((path.as_uri(), None),), HeaderWork(spec, options, kept))
    (result,) = results_in(read.table)
    assert bool(result.parsed) == bool(kept)
    placed = PlacedFile(result.url, result.status, {}, result.parsed)
    shared = ReferenceWork(spec, options, {})
    assert list(write_file_references((placed,), shared)) == []
    write_file(path, [0, 1, 2], [0], 2, 1)
    with pytest.raises(VirtualChunkError, match="changed while it was ingested"):
        list(write_file_references((placed,), shared))
