"""Copying virtual chunks into the repository, and asking after their sources."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import xarray as xr

from icefloe.errors import (
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    VirtualChunkError,
)
from icefloe.model.chunk_refs import ChunkKind
from icefloe.upkeep.materialize import VirtualChunkChoice, copy_virtual_chunks
from icefloe.virtual import reference_files
from tests.virtual.files import month_file, repository_for

if TYPE_CHECKING:
    from pathlib import Path

    import icefloe

pytestmark = [pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")]


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    """Three months of two variables, virtual."""
    repo = repository_for(tmp_path)
    session = repo.writable_session("main")
    files = [month_file(tmp_path / f"{m}.nc", m, variables=("t2m", "d2m")) for m in (1, 2, 3)]
    reference_files(session, files, commit="three months")
    return repo


def data_of(repo: icefloe.Repository) -> xr.Dataset:
    store = repo.readonly_session("main").store
    return xr.open_zarr(store, consolidated=False).load()


def counts(repo: icefloe.Repository, path: str) -> tuple[int, int]:
    session = repo.readonly_session("main")
    virtual = session.chunk_count(path, ChunkKind.VIRTUAL)
    return virtual, session.chunk_count(path) - virtual


def test_materialize_copies_bytes_as_they_are(repo: icefloe.Repository, tmp_path: Path) -> None:
    before = data_of(repo)
    old = repo.readonly_session("main")
    estimate = repo.materialize("main", dry_run=True)
    assert estimate.chunks == 24
    assert estimate.arrays == {"/t2m": 12, "/d2m": 12}
    assert counts(repo, "/t2m") == (12, 0)
    assert "24 virtual chunks of 2 arrays" in str(estimate)
    done = repo.materialize("main", message="all of it")
    assert (done.chunks, done.bytes) == (24, estimate.bytes)
    assert repo.lookup_branch("main") == done.snapshot_id
    assert counts(repo, "/t2m") == (0, 12)
    for place in ((0, 0, 0), (11, 0, 0)):
        new = repo.readonly_session("main").get_chunk("/t2m", place)
        assert new == old.get_chunk("/t2m", place)
    for file in tmp_path.glob("*.nc"):
        file.unlink()
    xr.testing.assert_identical(data_of(repo), before)
    assert repo.check_virtual_sources().sources == ()
    # Nothing is left to do: no further commit.
    assert repo.materialize("main").snapshot_id is None


def test_materialize_a_part(repo: icefloe.Repository, tmp_path: Path) -> None:
    before = data_of(repo)
    repo.materialize("main", arrays=["/t*"], region={"time": slice(1, 3)})
    assert counts(repo, "/t2m") == (10, 2)
    assert counts(repo, "/d2m") == (12, 0)
    repo.materialize("main", locations=[(tmp_path / "3.nc").as_uri()])
    assert counts(repo, "/t2m") == (6, 6)
    assert counts(repo, "/d2m") == (8, 4)
    repo.materialize("main", locations=tmp_path.as_uri(), arrays="d2m")
    assert counts(repo, "/d2m") == (0, 12)
    xr.testing.assert_identical(data_of(repo), before)
    with pytest.raises(InvalidInputError, match="no steps"):
        repo.materialize("main", region={"time": slice(0, 4, 2)})
    with pytest.raises(InvalidInputError, match=r"found 3 along 'time'"):
        repo.materialize("main", region={"time": 3})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match=r"a dimension 'member'; there are: lat, lon"):
        repo.materialize("main", region={"member": slice(0, 1)}, dry_run=True)
    with pytest.raises(NodeNotFoundError, match="'t2n'"):
        repo.materialize("main", arrays=["/t2m", "t2n"])
    with pytest.raises(ReadOnlyError):
        copy_virtual_chunks(repo.readonly_session("main").tree, VirtualChunkChoice())


def test_materialize_in_small_batches(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = data_of(repo)
    monkeypatch.setattr("icefloe.upkeep.materialize.BATCH_BYTES", 100)
    assert repo.materialize("main").chunks == 24
    xr.testing.assert_identical(data_of(repo), before)


def test_materialize_refuses_changed_sources(repo: icefloe.Repository, tmp_path: Path) -> None:
    os.utime(tmp_path / "2.nc", (2_000_000_000, 2_000_000_000))
    tip = repo.lookup_branch("main")
    with pytest.raises(VirtualChunkError, match=r"2\.nc"):
        repo.materialize("main")
    assert repo.lookup_branch("main") == tip


def test_sources_are_found_missing_changed_and_truncated(
    repo: icefloe.Repository, tmp_path: Path
) -> None:
    report = repo.check_virtual_sources()
    assert report.is_fine
    assert [source.chunks for source in report.sources] == [8, 8, 8]
    assert all(source.is_checked for source in report.sources)
    (tmp_path / "1.nc").unlink()
    os.utime(tmp_path / "2.nc", (2_000_000_000, 2_000_000_000))
    third = tmp_path / "3.nc"
    status = third.stat()
    os.truncate(third, 2000)
    os.utime(third, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = repo.check_virtual_sources()
    assert [source.problem for source in report.sources] == ["missing", "changed", "truncated"]
    text = str(report)
    assert "3 files of 24 virtual chunks: 3 problems" in text
    assert f"missing: {(tmp_path / '1.nc').as_uri()}" in text
    assert "/t2m" in text
    assert report.columns()["problem"] == ["missing", "changed", "truncated"]
    only = repo.check_virtual_sources(arrays=["d2m"])
    assert [source.chunks for source in only.sources] == [4, 4, 4]


def test_sources_that_may_not_be_read(repo: icefloe.Repository) -> None:
    stranger = repo.reopen(authorize_virtual_chunk_access={})
    report = stranger.check_virtual_sources()
    assert {source.problem for source in report.sources} == {"unreadable"}
    assert "authorize" in report.sources[0].explanation


def test_etags_notice_what_times_do_not(tmp_path: Path) -> None:
    repo = repository_for(tmp_path)
    path = month_file(tmp_path / "a.nc", 1)
    reference_files(repo.writable_session("main"), path, check="etag", commit="by etag")
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = repo.check_virtual_sources()
    assert [source.problem for source in report.sources] == ["changed"]
    unchecked = repository_for(tmp_path)
    reference_files(unchecked.writable_session("main"), path, check="none", commit="unchecked")
    os.utime(path, (2_000_000_000, 2_000_000_000))
    found = unchecked.check_virtual_sources()
    assert found.is_fine
    assert not found.sources[0].is_checked
