"""Commands that only read: what they print for people and for programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr
import zarr

from icefloe import Repository
from tests.builders import read_array

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import CommandLine


def test_the_log_draws_branches_tags_and_merges(icefloe: CommandLine, weather: Path) -> None:
    lines = icefloe.run("log", weather, "--all").splitlines()
    assert [line.split("  ")[-1] for line in lines if "●" in line][2:] == [
        "Write February",
        "Correct the calibration",
        "Write January",
        "Set up the grid",
        "Repository initialized",
    ]
    assert lines[0].startswith("●  ")
    assert "  draft  Write March" in lines[0]
    assert "(merges " in lines[1]
    assert lines[3].startswith("│ ● ")
    assert lines[4] == "├─╯"
    assert "tag: v1" in lines[5]


def test_the_log_of_a_version_has_only_its_ancestors(icefloe: CommandLine, weather: Path) -> None:
    commits = icefloe.json("log", weather, "fix")
    assert [commit["message"] for commit in commits] == [
        "Correct the calibration",
        "Write January",
        "Set up the grid",
        "Repository initialized",
    ]
    assert commits[0]["parent_id"] == commits[1]["id"]
    assert commits[1]["tags"] == ["v1"]


def test_the_log_says_that_there_is_more(icefloe: CommandLine, weather: Path) -> None:
    assert len(icefloe.json("log", weather, "-n", 2)) == 2
    assert "there are more" in icefloe.run("log", weather, "-n", 2)
    assert "there are more" not in icefloe.run("log", weather, "-n", 7)


def test_short_ids_and_steps_name_versions(icefloe: CommandLine, weather: Path) -> None:
    full = Repository.open(weather).lookup_branch("fix")
    for name in (full, full[:8], full[:4], "fix", f"{full[:8]}~0"):
        assert icefloe.json("show", weather, name)["commit"]["id"] == full
    assert icefloe.json("show", weather, f"{full[:5]}~1")["commit"]["message"] == "Write January"
    assert "invalid snapshot id" in icefloe.run("show", weather, "ZZZZZ", code=3)


def test_show_tells_what_a_commit_changed(icefloe: CommandLine, weather: Path) -> None:
    shown = icefloe.json("show", weather, "v1")
    assert shown["commit"]["properties"] == {"run": 1}
    assert shown["changes"] == [
        {"change": "written", "kind": "array", "path": "/surface/t2m", "chunks": 1},
        {"change": "written", "kind": "array", "path": "/wind", "chunks": 4},
    ]
    text = icefloe.run("show", weather, "v1")
    assert "run = 1" in text
    assert "Write January" in text


def test_the_first_commit_can_be_shown(icefloe: CommandLine, weather: Path) -> None:
    assert "Repository initialized" in icefloe.run("show", weather, "main~4")


def test_status_counts_commits_beside_main(icefloe: CommandLine, weather: Path) -> None:
    rows = icefloe.json("status", weather)["branches"]
    assert [(row["branch"], row["ahead"], row["behind"]) for row in rows] == [
        ("main", 0, 0),
        ("draft", 1, 0),
        ("fix", 1, 2),
    ]
    text = icefloe.run("status", weather)
    assert "no active leases" in text
    assert "create_branch" in text


def test_status_names_who_holds_a_lease(icefloe: CommandLine, changed: Path) -> None:
    with Repository.open(changed).lease(holder="nightly export"):
        assert icefloe.json("status", changed)["leases"][0]["holder"] == "nightly export"


def test_the_tree_has_shapes_types_and_chunks(icefloe: CommandLine, weather: Path) -> None:
    lines = icefloe.run("tree", weather).splitlines()
    assert "│   └── t2m  float32  time 6 × lat 4  2 of 3 chunks" in lines
    assert icefloe.run("tree", weather, "--depth", 1).count("\n") == 5
    sizes = {row["path"]: row.get("bytes") for row in icefloe.json("tree", weather, "--sizes")}
    stats = Repository.open(weather).array_storage_stats("main")
    assert sizes["/wind"] == stats["/wind"].total_bytes > 0
    assert sizes["/surface"] is None


def test_a_group_is_listed_and_an_array_described(icefloe: CommandLine, weather: Path) -> None:
    assert [row["name"] for row in icefloe.json("ls", weather)] == [
        "lat",
        "surface",
        "time",
        "wind",
    ]
    assert [row["name"] for row in icefloe.json("ls", weather, "surface")] == ["t2m"]
    array = icefloe.json("ls", weather, "/surface/t2m", "--version", "v1")
    assert array["attributes"] == {"units": "K"}
    assert array["chunks"] == 1
    assert "units: K" in icefloe.run("ls", weather, "/surface/t2m")
    assert "no array or group at /nothing" in icefloe.run("ls", weather, "nothing", code=3)


def test_diff_lists_what_changed(icefloe: CommandLine, weather: Path) -> None:
    assert icefloe.json("diff", weather, "v1") == [
        {"change": "written", "kind": "array", "path": "/surface/t2m", "chunks": 2}
    ]
    assert icefloe.json("diff", weather, "main~3", "main")[0]["path"] == "/surface/t2m"
    [array] = icefloe.json("diff", weather, "v1", "main", "--values")
    assert (array["changed_cells"], array["largest_difference"]) == (16, 282.0)


def test_diff_ends_with_1_on_request(icefloe: CommandLine, weather: Path) -> None:
    icefloe.run("diff", weather, "v1", "main", "--exit-code", code=1)
    assert icefloe.run("diff", weather, "main", "main", "--exit-code") == "no differences\n"
    icefloe.run("diff", weather, "v1", "main", "--exit-code", "--values", code=1)


def test_moved_and_created_nodes_are_changes(icefloe: CommandLine, changed: Path) -> None:
    session = Repository.open(changed).writable_session("main")
    session.move("/wind", "/surface/wind")
    zarr.create_group(session.store, path="new")
    session.commit("move")
    rows = icefloe.json("diff", changed, "main~1", "main")
    assert {(row["change"], row["path"], row.get("moved_to")) for row in rows} == {
        ("moved", "/wind", "/surface/wind"),
        ("created", "/new", None),
    }
    assert "/surface/wind" in icefloe.run("diff", changed, "main~1", "main")


def test_blame_counts_chunks_by_commit(icefloe: CommandLine, weather: Path) -> None:
    rows = icefloe.json("blame", weather, "/surface/t2m")
    assert [(row["chunks"], row["message"]) for row in rows] == [
        (1, "Merge the calibration"),
        (1, "Write February"),
    ]
    assert [row["chunk"] for row in icefloe.json("blame", weather, "surface/t2m", "--chunks")] == [
        [0, 0],
        [1, 0],
    ]
    assert "is a group" in icefloe.run("blame", weather, "/surface", code=3)


def test_branches_and_tags_are_listed(icefloe: CommandLine, weather: Path) -> None:
    assert [row["name"] for row in icefloe.json("branch", "list", weather)] == [
        "draft",
        "fix",
        "main",
    ]
    [tag] = icefloe.json("tag", "list", weather)
    assert (tag["name"], tag["message"]) == ("v1", "Write January")


def test_stats_add_up_bytes(icefloe: CommandLine, weather: Path) -> None:
    sizes = icefloe.json("stats", weather)
    repository = Repository.open(weather)
    assert sizes["summary"]["total_bytes"] == repository.chunk_storage_stats().total_bytes
    assert {row["branch"] for row in sizes["branches"]} == {"main", "fix", "draft"}
    assert {row["array"] for row in sizes["arrays"]} >= {"/wind", "/surface/t2m"}
    history = icefloe.json("stats", weather, "--history")
    assert [row["message"] for row in history][-1] == "Repository initialized"
    sizes = list(repository.snapshot_storage_stats("main"))
    assert [row["added_bytes"] for row in history] == [size.added.total_bytes for size in sizes]


def test_verify_finds_nothing_wrong_and_something_wrong(
    icefloe: CommandLine, weather: Path, changed: Path
) -> None:
    assert "no problems found" in icefloe.run("verify", weather, "--deep")
    snapshot_id = Repository.open(changed).lookup_branch("main")
    [log] = changed.rglob(f"transactions/{snapshot_id}*")
    log.write_bytes(b"damaged")
    report = icefloe.json("verify", changed, code=1)
    assert report["problems"][0]["kind"] == "transaction-log"
    assert "1 problem" in icefloe.run("verify", changed, code=1)
    assert icefloe.json("repair", changed, "--dry-run")[0]["repairable"] is True
    icefloe.run("repair", changed, code=7)
    icefloe.run("repair", changed, "--yes")
    assert icefloe.run("repair", changed) == "nothing to repair\n"


def test_export_makes_a_plain_zarr_store(
    icefloe: CommandLine, weather: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plain"
    report = icefloe.json("export", weather, target, "--version", "draft")
    assert (report["arrays"], report["groups"], report["chunks"]) == (4, 2, 9)
    exported = zarr.open_group(target, mode="r")
    for path in ("lat", "time", "wind", "surface/t2m"):
        expected = read_array(Repository.open(weather), path, branch="draft")
        np.testing.assert_array_equal(exported[path][...], expected)
    assert exported["surface/t2m"].attrs["units"] == "K"
    assert "export to an empty place" in icefloe.run("export", weather, target, code=4)


def test_export_of_a_group_makes_it_the_root(
    icefloe: CommandLine, weather: Path, tmp_path: Path
) -> None:
    icefloe.run("export", weather, tmp_path / "part", "--group", "/surface")
    assert sorted(zarr.open_group(tmp_path / "part", mode="r")) == ["t2m"]
    icefloe.run("export", weather, tmp_path / "array", "--group", "/wind")
    assert zarr.open_array(tmp_path / "array", mode="r").shape == (6, 4)
    assert "no array or group" in icefloe.run(
        "export", weather, tmp_path / "none", "-g", "/none", code=3
    )


def test_export_writes_netcdf(icefloe: CommandLine, weather: Path, tmp_path: Path) -> None:
    target = tmp_path / "weather.nc"
    icefloe.run("export", weather, target)
    with xr.open_dataset(target) as dataset:
        np.testing.assert_array_equal(dataset["wind"], np.arange(24).reshape(6, 4))
    assert [path.name for path in tmp_path.glob("*weather*")] == ["weather.nc"]
    assert "exists already" in icefloe.run("export", weather, target, code=4)


def test_sql_queries_arrays(icefloe: CommandLine, weather: Path) -> None:
    rows = icefloe.json(
        "sql",
        weather,
        "select time, sum(wind) as total from data group by time order by time",
        "--variable",
        "wind",
        "--where",
        "time >= 40",
    )
    assert rows == [{"time": 40.0, "total": 70}, {"time": 50.0, "total": 86}]
    twice = "select a.time, b.time from data a join data b on b.wind = a.wind + 4 where a.wind = 20"
    assert icefloe.json("sql", weather, twice.replace("20", "0"), "--variable", "wind") == [
        {"time": 0.0, "time_1": 10.0}
    ]
    assert icefloe.json("sql", weather, twice, "--variable", "wind") == []
    cut = icefloe.run(
        "sql", weather, "select wind from data", "--variable", "wind", "--max-rows", 2
    )
    assert "the first 2 rows" in cut
    assert "the query failed" in icefloe.run(
        "sql", weather, "select nothing from data", "--variable", "wind", code=2
    )


def test_sql_shows_times_as_they_are_stored(
    icefloe: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        repository = Repository.create(tmp_path / "times")
        with repository.transaction("main", message="times") as store:
            values = np.array(["2020-01-01T12:30:15.250", "NaT"], dtype="M8[ns]")
            array = zarr.create_array(store, name="t", shape=(2,), chunks=(2,), dtype="M8[ns]")
            array[:] = values
        text = icefloe.run("sql", tmp_path / "times", "select t from data order by dim_0")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text.splitlines()[1:] == ["2020-01-01 12:30:15.250000", ""]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "the query is empty: write for example 'select * from data'"),
        (" ;\n", "the query is empty"),
        ("select now()", "pip install pytz, or cast them in the query, as in now()::timestamp"),
        ("select * from read_csv('/etc/hostname')", "reads the table data and nothing else"),
        ("copy data to 'stolen.csv'", "reads the table data and nothing else"),
        ("load 'code.duckdb_extension'", "reads the table data and nothing else"),
        ("install httpfs", "reads the table data and nothing else"),
        ("attach 'other.db'", "reads the table data and nothing else"),
        ("set enable_external_access = true", "the configuration has been locked"),
    ],
)
def test_a_query_reads_its_table_and_nothing_else(
    icefloe: CommandLine, weather: Path, query: str, message: str
) -> None:  # invariant 9
    error = icefloe.run("sql", weather, query, "--variable", "wind", code=2)
    assert message in error
    assert error.count("\n") == 1


def test_a_table_of_a_dimension_beyond_memory_is_refused(
    icefloe: CommandLine, tmp_path: Path
) -> None:
    repository = Repository.create(tmp_path / "long")
    with repository.transaction("main", message="long") as store:
        zarr.create_array(store, name="a", shape=(10**12,), chunks=(1000,), dtype="i1")
    error = icefloe.run("sql", tmp_path / "long", "select count(*) from data", code=2)
    assert "the dimension 'dim_0' has 1,000,000,000,000 positions" in error


@pytest.mark.parametrize(
    ("group", "message", "code"),
    [
        ("/", "needs names of dimensions, and /a, /b, /c and 1 more have none: export to Zarr", 2),
        ("/nothing", "there is no array or group at /nothing", 3),
        ("/a", "/a is an array, and NetCDF files have groups of arrays: export /", 2),
    ],
)
def test_an_export_that_netcdf_cannot_hold_says_why(
    icefloe: CommandLine, tmp_path: Path, group: str, message: str, code: int
) -> None:
    repository = Repository.create(tmp_path / "nameless")
    with repository.transaction("main", message="no names") as store:
        root = zarr.create_group(store)
        for name in "abcd":
            root.create_array(name, shape=(2,), dtype="i1")
        root.create_array("scalar", shape=(), dtype="i1")
    words = ("export", tmp_path / "nameless", tmp_path / "out.nc", "--group", group)
    assert message in icefloe.run(*words, code=code)
    assert not list(tmp_path.glob("*out*"))


def test_open_describes_a_repository_without_a_terminal(
    icefloe: CommandLine, weather: Path
) -> None:
    described = icefloe.json("open", weather, "v1")
    assert described["generation"] == "repository"
    assert "needs a terminal" in icefloe.run("open", weather, code=2)


@pytest.mark.parametrize("message", ["[red]not markup[/red] :smile:", "\x1b[2J\x07forged\rline"])
def test_messages_are_printed_as_they_are_and_move_no_cursor(
    icefloe: CommandLine, tmp_path: Path, message: str
) -> None:
    repository = Repository.create(tmp_path / "hostile")
    with repository.transaction("main", message=message) as store:
        zarr.create_group(store)
    for command in ("log", "show", "status"):
        text = icefloe.run(command, tmp_path / "hostile")
        assert not set(text) & {"\x1b", "\x07", "\r"}
        assert message.splitlines()[0].encode("unicode_escape").decode() in text
