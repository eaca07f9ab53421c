"""Tables about a repository, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.ingest.log import IngestedFile, record_ingested
from icefloe.tables.metadata_tables import METADATA_TABLES, metadata_table, read_metadata_table
from icefloe.tables.versions import SnapshotSelector


@pytest.fixture(scope="module")
def repo() -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("v", shape=(4,), chunks=(2,), dtype="i4", attributes={"units": "m"})[...] = 1
    first = session.commit("one", {"author": "me"})
    repo.create_branch("dev", first)
    session = repo.writable_session("dev")
    zarr.open_array(session.store, path="v", mode="r+")[0] = 7
    row = IngestedFile("s3://b/f.nc", "netcdf4", "virtual", "ingested", "2024-01-01T00:00:00Z")
    record_ingested(session, "/", [row])
    session.commit("two")
    repo.create_tag("v1", first)
    return repo


def rows(repo: icefloe.Repository, what: str, **version: Any) -> list[Any]:
    batches = list(read_metadata_table(repo, SnapshotSelector(**version), what))
    for batch in batches:
        assert batch.schema == METADATA_TABLES[what].schema
    return [row for batch in batches for row in batch.to_pylist()]


def test_snapshots_of_a_version_or_of_all(repo: icefloe.Repository) -> None:
    assert [r["message"] for r in rows(repo, "snapshots", branch="main")] == [
        "one", "Repository initialized",
    ]  # fmt: skip
    every = rows(repo, "snapshots")
    assert [r["message"] for r in every] == ["two", "one", "Repository initialized"]
    assert every[1]["metadata"] == [("author", "me")]


def test_refs_and_history(repo: icefloe.Repository) -> None:
    found = {(r["name"], r["type"]) for r in rows(repo, "refs")}
    assert found == {("main", "branch"), ("dev", "branch"), ("v1", "tag")}
    assert [r["steps_back"] for r in rows(repo, "history", branch="dev")] == [0, 1, 2]
    assert len(rows(repo, "history", tag="v1")) == 2


def test_nodes_chunks_and_files(repo: icefloe.Repository) -> None:
    nodes = {r["path"]: r for r in rows(repo, "nodes", branch="main")}
    assert nodes["/v"]["shape"] == [4]
    assert nodes["/v"]["attributes"] == '{"units": "m"}'
    chunks = rows(repo, "chunks", branch="main")
    assert [(c["path"], c["coordinates"]) for c in chunks] == [("/v", [0]), ("/v", [1])]
    assert {r["kind"] for r in rows(repo, "files", branch="main")} >= {"snapshot", "manifest"}
    (manifest,) = rows(repo, "manifests", branch="main")
    assert manifest["arrays"] == ["/v"]


def test_transactions(repo: icefloe.Repository) -> None:
    found = {
        (r["change"], r["path"], r["chunks"]) for r in rows(repo, "transactions", branch="dev")
    }
    assert {("new_array", "/v", None), ("updated_chunk", "/v", 1)} <= found


def test_ingested_files(repo: icefloe.Repository) -> None:
    (row,) = rows(repo, "ingested_files", branch="dev")
    assert (row["url"], row["mode"], row["is_current"]) == ("s3://b/f.nc", "virtual", True)
    assert rows(repo, "ingested_files", branch="main") == []


def test_nothing_else(repo: icefloe.Repository) -> None:
    assert rows(repo, "virtual_sources", branch="dev") == []
    assert rows(repo, "statistics", branch="dev") == []
    with pytest.raises(InvalidInputError, match="inspect is one of"):
        metadata_table("everything")
