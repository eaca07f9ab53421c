"""`icefloe.tables.scan`: what users of Arrow, DuckDB and Polars get."""

from __future__ import annotations

import doctest
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import zarr

import icefloe
import icefloe.tables
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.tables import table_scan
from icefloe.tables.summarize import Summaries, WrittenStatistics

if TYPE_CHECKING:
    from pathlib import Path

TIMES, CELLS, CHUNK = 12, 10, 3


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """The variable v over times and cells, in chunks of 3 times, ascending over all cells."""
    made = icefloe.Repository.create(tmp_path / "repo")
    session = made.writable_session("main")
    group = zarr.create_group(session.store)

    def add(name: str, values: np.ndarray, dims: list[str], chunks: tuple[int, ...]) -> None:
        array = group.create_array(
            name, shape=values.shape, chunks=chunks, dtype=values.dtype, dimension_names=dims
        )
        array[...] = values

    add("t", np.arange(TIMES), ["t"], (TIMES,))
    values = np.arange(TIMES * CELLS, dtype="f8").reshape(TIMES, CELLS)
    add("v", values, ["t", "x"], (CHUNK, CELLS))
    session.commit("values")
    return made


def test_the_table_has_dimensions_then_variables(repo: icefloe.Repository) -> None:
    scan = icefloe.tables.scan(repo)
    assert scan.schema == pa.schema([("t", pa.int64()), ("x", pa.int64()), ("v", pa.float64())])
    table = scan.to_table()
    assert table.schema == scan.schema
    assert table.column("v").to_pylist() == list(range(TIMES * CELLS))
    assert scan.to_table() == table  # a scan can be read again


def test_sessions_repositories_and_urls_are_sources(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    session.write_region("/v", (slice(0, 1), slice(0, 1)), np.array([[-1.0]]))
    assert icefloe.tables.scan(session, isel={"t": 0, "x": 0}).to_table()["v"].to_pylist() == [-1.0]
    for source in (repo, repo.storage.location.removeprefix("file://")):
        first = icefloe.tables.scan(source, isel={"t": 0, "x": 0})
        assert first.to_table()["v"].to_pylist() == [0.0]


def test_versions_are_selected_of_repositories_only(repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")
    session = repo.writable_session("main")
    session.write_region("/v", ..., np.zeros((TIMES, CELLS)))
    session.commit("zeros")
    repo.create_tag("start", before)
    assert icefloe.tables.scan(repo).to_table()["v"].to_pylist()[-1] == 0
    versions: list[dict[str, Any]] = [{"snapshot_id": before}, {"tag": "start"}]
    for version in versions:
        assert icefloe.tables.scan(repo, **version).to_table()["v"].to_pylist()[-1] == 119
    changed = icefloe.tables.scan(repo, changed_since=before)
    assert changed.num_chunks == TIMES // CHUNK
    with pytest.raises(InvalidInputError, match="a session is on a snapshot already"):
        icefloe.tables.scan(session, tag="start")


def test_batches_are_bounded_and_read_when_asked_for(repo: icefloe.Repository) -> None:
    scan = icefloe.tables.scan(repo, batch_rows=7)
    batches = scan.to_batches()
    assert next(batches).num_rows <= 7
    assert max(batch.num_rows for batch in batches) <= 7
    reader = scan.to_reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert sum(batch.num_rows for batch in reader) == TIMES * CELLS


def test_conditions_leave_out_chunks_by_coordinates_and_statistics(
    repo: icefloe.Repository,
) -> None:
    assert icefloe.tables.scan(repo).num_chunks == 4
    few = icefloe.tables.scan(repo, where="t >= 9")
    assert few.num_chunks == 1
    assert few.to_table().num_rows == 3 * CELLS
    high = icefloe.tables.scan(repo, where="v >= 115")
    assert high.num_chunks == 4  # nothing is known about v
    session = repo.writable_session("main")
    summaries = Summaries(session, ["/v"])
    summaries.add_chunks("/v", session.tree.chunk_coords("/v"))
    statistics = WrittenStatistics(session)
    statistics.add_own(summaries)
    statistics.write()
    session.commit("statistics")
    pruned = icefloe.tables.scan(repo, where="v >= 115")
    assert pruned.num_chunks == 1
    assert pruned.to_table() == high.to_table()


def test_columns_of_the_condition_need_not_be_returned(repo: icefloe.Repository) -> None:
    scan = icefloe.tables.scan(repo, columns="t", where="v = 37")
    assert scan.to_table().to_pylist() == [{"t": 3}]


def test_a_scan_without_cells_has_its_schema(repo: icefloe.Repository) -> None:
    scan = icefloe.tables.scan(repo, where="t > 100")
    assert scan.num_chunks == 0
    assert scan.to_table().schema == scan.schema
    assert pl.DataFrame(scan).schema == {"t": pl.Int64, "x": pl.Int64, "v": pl.Float64}


def test_duckdb_polars_and_arrow_take_it(repo: icefloe.Repository) -> None:
    scan = icefloe.tables.scan(repo, where="t < 6")
    expected = scan.to_table()
    assert pa.table(scan) == expected
    assert pl.DataFrame(scan).equals(pl.DataFrame(expected))
    streamed = pl.from_arrow(scan.to_reader())
    assert isinstance(streamed, pl.DataFrame)
    assert streamed.equals(pl.DataFrame(expected))
    sums = duckdb.from_arrow(scan.to_reader()).aggregate("sum(v), count(*)").fetchall()
    assert sums == [(sum(range(60)), 60)]


def test_chunks_are_rows_if_asked_for(repo: icefloe.Repository) -> None:
    rows = icefloe.tables.scan(repo, layout="chunks").to_table().to_pylist()
    assert [row["chunk"] for row in rows] == [[start, 0] for start in range(0, TIMES, CHUNK)]
    assert rows[1]["v"] == list(range(30, 60))
    with pytest.raises(InvalidInputError, match="layout is 'cells' or 'chunks'"):
        icefloe.tables.scan(repo, layout="lines")


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"group": "nope"}, NodeNotFoundError, "group /nope does not exist"),
        ({"columns": ["w"]}, InvalidInputError, "no column 'w'"),
        ({"where": "abs(v) > 1"}, InvalidInputError, "cannot read"),
        ({"where": "w > 1"}, InvalidInputError, "names 'w'"),
        ({"sel": {"t": 99}}, InvalidInputError, "has no value 99"),
        ({"branch": "a", "tag": "b"}, InvalidInputError, "name one version"),
    ],
)
def test_mistakes_are_named_before_anything_is_read(
    repo: icefloe.Repository, arguments: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        icefloe.tables.scan(repo, **arguments)


def test_the_example_of_the_docstring() -> None:
    known = {"icefloe": icefloe}
    (example,) = doctest.DocTestFinder(recurse=False).find(table_scan.scan, "scan", globs=known)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 5
    assert result.failed == 0


def test_importing_the_package_loads_no_arrow() -> None:
    program = (
        "import sys, icefloe.tables; assert 'pyarrow' not in sys.modules; "
        "icefloe.tables.scan; assert 'pyarrow' in sys.modules; assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'scans'"):
        getattr(icefloe.tables, "scans")  # noqa: B009 (mypy knows that it is not there)
