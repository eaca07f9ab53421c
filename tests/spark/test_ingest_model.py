"""Ingest against a model: whatever the files and their order, the group is what numpy says.

Tasks run in this process, one after the other, by the functions that executors run: what Spark adds
is tested elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import icefloe
from icefloe.errors import InconsistentFilesError, InvalidInputError, VirtualChunkError
from icefloe.ingest import log
from icefloe.ingest.driver import FileToRead, PlacedFile, ingest_files
from icefloe.ingest.header_batches import HeaderCollector
from icefloe.ingest.log import IngestedFile, latest_of, record_ingested
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.quiet import quietly
from icefloe.ingest.read import read_file
from icefloe.objects.foreign import VirtualChunkResolver
from icefloe.spark import ingest
from icefloe.spark.engine import failures, runner, tasks
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.ingest_tasks import (
    HeaderWork,
    ReferenceWork,
    read_headers,
    read_values,
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
        patch.setattr("icefloe.spark.engine.job.run_tasks", run_here)
        for name in ("engine.job", "jobs.ingesting"):
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


class Part(NamedTuple):
    """A file of an archive in which files overlap, run the other way and are rounded."""

    start: int
    length: int
    is_reversed: bool
    rounding: float
    age: int


PARTS = st.builds(
    Part,
    st.integers(0, 8),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([0.0, 1e-7, -1e-7]),
    st.integers(1, 9),
)


@settings(max_examples=settings.default.max_examples)
@given(
    st.lists(st.lists(PARTS, min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from(["copy", "virtual"]),
    st.sampled_from(["first", "newest"]),
    st.integers(1, 3),
    st.booleans(),
)
def test_policies_go_together(
    runs: list[list[Part]], mode: Any, policy: Any, chunk: int, in_waves: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        if in_waves:
            patch.setattr("icefloe.spark.jobs.ingesting._FIRST_WAVE", 1)
            patch.setattr("icefloe.spark.jobs.ingesting._WAVE_BYTES", 1)
            patch.setattr("icefloe.ingest.header_batches.INLINE_BYTES", 0)
        folder = Path(name).resolve()
        repo = repository_in(folder)
        expected: dict[tuple[int, int], int] = {}
        options: dict[str, Any] = {"flipped": "reverse"} if mode == "copy" else {}
        for number, parts in enumerate(runs):
            files = [
                (folder / "data" / f"{number}-{row}.h5", part, 10 * number + row)
                for row, part in enumerate(parts)
            ]
            for path, part, version in files:
                times = list(range(part.start, part.start + part.length))
                turned = part.is_reversed and mode == "copy"
                write_file(path, times, [2, 1, 0] if turned else [0, 1, 2], version, 1)
                with h5py.File(path, "a") as file:
                    file["t"][...] = file["t"][...]
                    file.attrs["history"] = f"version {version}"
                    del file["t"]
                    file["t"] = np.array(times) + part.rounding
                    file["t"].make_scale("t")
                    file["v"].dims[0].attach_scale(file["t"])
                os.utime(path, (1_000_000_000 + part.age,) * 2)
            ingest(
                None,
                repo,
                [str(path) for path, _, _ in files],
                mode=mode,
                chunks={"t": chunk, "x": 2},
                concat_dims=["t"],
                duplicates=policy,
                tolerance=1e-3,
                **options,
            )
            # Those that are taken come last, and overwrite the others.
            ordered = (
                sorted(files, key=lambda each: each[0].name, reverse=True)
                if policy == "first"
                else sorted(files, key=lambda each: (each[1].age, each[0].name))
            )
            for _, part, version in ordered:
                for t in range(part.start, part.start + part.length):
                    expected |= {(t, x): t * 1000 + x * 10 + version for x in range(3)}
            compare(repo, expected)


@pytest.mark.parametrize("mode", ["virtual", "copy"])
def test_headers_in_waves_have_the_same_result_and_send_coordinates_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    monkeypatch.setattr("icefloe.spark.jobs.ingesting._FIRST_WAVE", 2)
    monkeypatch.setattr("icefloe.spark.jobs.ingesting._WAVE_BYTES", 1)
    monkeypatch.setattr("icefloe.ingest.header_batches.INLINE_BYTES", 64)
    asked: list[tuple[str, str]] = []

    def counted(spark: Any, work: Any, items: Sequence[Any], **named: Any) -> Any:
        if work is read_values:
            asked.extend(pair for batch in items for pair in batch)
        return run_here(spark, work, items, **named)

    monkeypatch.setattr("icefloe.spark.engine.job.run_tasks", counted)
    repo = repository_in(tmp_path)
    xs = list(range(20))
    for number in range(9):
        path = tmp_path / "data" / f"{number}.h5"
        write_file(path, [2 * number, 2 * number + 1], xs, 1, 1)
        with h5py.File(path, "a") as file:
            file.attrs["tracking_id"] = f"id {number}"
            file.attrs["title"] = "all"
            file["v"].attrs["history"] = f"made {number}"
            file["v"].attrs["units"] = "K"
    ingest(None, repo, f"{tmp_path}/data/", mode=mode, concat_dims=["t"])
    compare(repo, {(t, x): t * 1000 + x * 10 + 1 for t in range(18) for x in xs})
    assert [name for _, name in asked] == ["x"]
    with quietly():
        root: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
        assert dict(root.attrs) == {"title": "all"}
        assert dict(root["v"].attrs) == {"units": "K"}


def test_files_that_a_listing_tells_unchanged_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository_in(tmp_path)
    for number in range(3):
        write_file(tmp_path / "data" / f"{number}.h5", [number], [0], 1, 1)
    ingest(None, repo, f"{tmp_path}/data/", concat_dims=["t"])
    asked: list[str] = []
    status = VirtualChunkResolver.status

    def counted(self: Any, url: str) -> Any:
        asked.append(url)
        return status(self, url)

    monkeypatch.setattr(VirtualChunkResolver, "status", counted)
    write_file(tmp_path / "data" / "3.h5", [3], [0], 1, 1)
    done = ingest(None, repo, f"{tmp_path}/data/", concat_dims=["t"])
    assert (len(done.new), len(done.unchanged)) == (1, 3)
    # The header of the new file is read with what the listing told; then it must not have changed.
    assert [url.rpartition("/")[2] for url in asked] == ["3.h5"]


def test_entries_of_the_log_are_found_by_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.ingest.log._ROWS_PER_CHUNK", 4)
    session = repository_in(tmp_path).writable_session("main")
    for version in (1, 2):
        record_ingested(
            session,
            "/",
            (
                IngestedFile(f"file:///{n}", "hdf5", "copy", "ingested", "2026", size=version)
                for n in range(0, 20, version)
            ),
        )
    asked = [f"file:///{n}" for n in (3, 4, 99)]
    found = latest_of(session, "/", asked)
    assert {url: entry.size for url, entry in found.items()} == {asked[0]: 1, asked[1]: 2}
    decoded: list[int] = []
    real = log._decoded
    monkeypatch.setattr(
        log, "_decoded", lambda texts, path: decoded.append(len(texts)) or real(texts, path)
    )
    latest_of(session, "/", asked[:1])
    assert decoded == [1]
    # A table without keys, as older versions wrote it, is read whole, and gets them when it grows.
    session.tree.delete_node("/.ingested/keys")
    assert latest_of(session, "/", asked) == found
    record_ingested(session, "/", [IngestedFile("file:///99", "hdf5", "copy", "ingested", "2026")])
    assert latest_of(session, "/", asked).keys() == set(asked)
    decoded.clear()
    latest_of(session, "/", asked[:1])
    assert decoded == [1]


@pytest.mark.parametrize("mode", ["virtual", "copy"])
@pytest.mark.parametrize("moved", [False, True])
def test_an_ingest_goes_on_after_a_dead_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, moved: bool
) -> None:
    repo = repository_in(tmp_path)
    for number in range(7):
        write_file(tmp_path / "data" / f"{number}.h5", [2 * number, 2 * number + 1], [0], 1, 1)
    examined: list[str] = []
    rounds = []

    def dying(runner: Any, files: Any, options: Any) -> Any:
        rounds.append(len(files))
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return ingest_files(runner, files, options)

    def counted(spark: Any, work: Any, items: Sequence[Any], **named: Any) -> Any:
        if work is read_headers:
            examined.extend(file.url for batch in items for file in batch)
        return run_here(spark, work, items, **named)

    monkeypatch.setattr("icefloe.spark.jobs.ingesting.ingest_files", dying)
    monkeypatch.setattr("icefloe.spark.engine.job.run_tasks", counted)
    call: dict[str, Any] = {"mode": mode, "concat_dims": ["t"], "checkpoint_files": 2}
    tip = repo.lookup_branch("main")
    with pytest.raises(KeyboardInterrupt):
        ingest(None, repo, f"{tmp_path}/data/", message="seven files", **call)
    assert repo.lookup_branch("main") == tip  # nobody sees a part of it
    assert len(examined) == 4
    if moved:
        with repo.transaction("main", message="by others") as store:
            zarr.create_group(store, path="others")
    done = ingest(None, repo, f"{tmp_path}/data/", message="seven files", **call)
    assert len(examined) == len(set(examined)) == 7  # none is read twice
    assert (len(done.new), len(done.unchanged)) == (3, 4)
    compare(repo, {(t, 0): t * 1000 + 1 for t in range(14)})
    messages = [each.message for each in repo.ancestry(branch="main")][:-1]
    assert messages == ["seven files", *(["by others"] if moved else [])]
    assert done.snapshot_id == repo.lookup_branch("main")
    assert repo.list_branches() == {"main"}
    again = ingest(None, repo, f"{tmp_path}/data/", **call)
    assert again.snapshot_id is None
    assert repo.list_branches() == {"main"}
    with pytest.raises(InvalidInputError, match="do not go together"):
        ingest(None, repo, f"{tmp_path}/data/", txn_app_id="a", txn_version=1, **call)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("results are bigger than spark.driver.maxResultSize", "raise spark.driver.maxResultSize"),
        ("Serialized task 0:0 exceeds max allowed: 100 bytes", "raise spark.rpc.message.maxSize"),
        ("java.lang.OutOfMemoryError: Java heap space", "raise spark.driver.memory"),
        ("Container killed by YARN for exceeding memory limits", "spark.executor.memoryOverhead"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "install 'icefloe[spark]' there"),
    ],
)
def test_limits_of_spark_are_told_with_the_setting(text: str, setting: str) -> None:
    told = str(failures.lost("ingest", RuntimeError(text)))
    assert setting in told
    assert text in told


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
    ts = np.rint(ts).astype(int)
    if xs[0] > xs[-1]:  # of copies, whichever way the first file runs
        xs, found = xs[::-1], found[:, ::-1]
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

    def counted(url: str, *arguments: Any, **named: Any) -> Any:
        parsed.append(url)
        return read_file(url, *arguments, **named)

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
    file = FileToRead(path.as_uri(), None, None)
    (read,) = read_headers((file,), HeaderWork(spec, options, kept))
    collector = HeaderCollector()
    collector.add(read.table.column("result")[0].as_py())
    (result,) = collector.results
    assert bool(result.parsed) == bool(kept)
    placed = PlacedFile(result.url, result.status, {}, result.parsed)
    shared = ReferenceWork(spec, options, {})
    assert list(write_file_references((placed,), shared)) == []
    write_file(path, [0, 1, 2], [0], 2, 1)
    with pytest.raises(VirtualChunkError, match="changed while it was ingested"):
        list(write_file_references((placed,), shared))
