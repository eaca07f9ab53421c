"""What the engine has beyond the official package, on repositories that both packages write."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from tests.conformance.official.packages import (
    IS_NEW,
    Place,
    access,
    agree,
    create_official,
    icechunk,
    tree,
    verify_files,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Virtual:
    """A repository of the official package with virtual, native and inline chunks."""

    def __init__(self, place: Place, folder: Path, spec_version: int) -> None:
        self.place = place
        self.data = np.arange(40, dtype="i8")
        (folder / "files").mkdir()
        (folder / "files" / "data.bin").write_bytes(self.data.tobytes())
        self.prefix = f"file://{folder}/files/"
        self.config = icechunk.RepositoryConfig.default()
        store = icechunk.local_filesystem_store(str(folder / "files"))
        self.config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(self.prefix, store))
        self.theirs = create_official(
            place, spec_version, self.config, authorize_virtual_chunk_access=access(self.prefix)
        )
        session = self.theirs.writable_session("main")
        group = zarr.group(session.store)
        group.create_array(
            "v", shape=(40,), chunks=(10,), dtype="i8", compressors=None, filters=None
        )
        for number in range(4):
            self.refer(session, number, number)
        group.create_array("n", shape=(400,), chunks=(100,), dtype="i8")[:] = np.random.default_rng(
            0
        ).integers(0, 2**60, 400)
        group.create_array("i", shape=(4,), chunks=(1,), dtype="i1")[:] = 1
        self.start = session.commit("by the official package")

    def refer(self, session: Any, number: int, to: int) -> None:
        session.store.set_virtual_ref(
            f"v/c/{number}", f"{self.prefix}data.bin", offset=80 * to, length=80
        )

    def ours(self) -> Any:
        return icefloe.Repository.open(self.place.ours(), None, {self.prefix: None})

    def official(self) -> Any:
        return icechunk.Repository.open(
            self.place.theirs(), authorize_virtual_chunk_access=access(self.prefix)
        )

    def agree(self) -> dict[str, Any]:
        """What both see of every branch and tag."""
        ours, theirs = self.ours(), self.official()
        refs = [{"branch": name} for name in sorted(theirs.list_branches())]
        refs += [{"tag": name} for name in sorted(theirs.list_tags())]
        assert set(ours.list_branches()) == set(theirs.list_branches())
        assert set(ours.list_tags()) == set(theirs.list_tags())
        found = {}
        for ref in refs:
            [name] = ref.values()
            found[name] = tree(ours, **ref)
            assert found[name] == tree(theirs, **ref)
            ids = [[info.id for info in repo.ancestry(**ref)] for repo in (ours, theirs)]
            assert ids[0] == ids[1]
        return found


@pytest.fixture
def virtual(local_place: Place, tmp_path: Path, spec_version: int) -> Virtual:
    return Virtual(local_place, tmp_path, spec_version)


def test_branches_of_both_packages_are_merged(virtual: Virtual) -> None:
    ours, theirs = virtual.ours(), virtual.theirs
    theirs.create_branch("dev", virtual.start)
    session = theirs.writable_session("dev")
    virtual.refer(session, 0, 3)
    zarr.open_group(session.store)["n"][:100] = 7
    session.commit("theirs: virtual and native")
    session = ours.writable_session("main")
    virtual.refer(session, 1, 0)
    zarr.open_group(session.store)["i"][0] = 9
    session.commit("ours: virtual and inline")
    ours.merge("dev", "main")
    merged = virtual.agree()["main"]
    assert merged["v values"][:20] == [*range(30, 40), *range(10)]
    assert merged["n values"][:100] == [7] * 100
    assert merged["i values"] == [9, 1, 1, 1]
    # A commit of the official package on the merge, picked and reverted elsewhere.
    theirs = virtual.official()
    session = theirs.writable_session("main")
    zarr.open_group(session.store)["i"][3] = 5
    virtual.refer(session, 2, 0)
    picked = session.commit("to be picked")
    ours.cherry_pick(picked, branch="dev")
    assert virtual.agree()["dev"]["i values"] == [1, 1, 1, 5]
    ours.revert(picked, branch="main")
    assert virtual.agree()["main"] == merged
    infos = list(theirs.ancestry(branch="main"))
    ours.squash("main", virtual.start, message="all of it")
    assert virtual.agree()["main"] == merged
    assert len(list(ours.ancestry(branch="main"))) < len(infos)
    assert ours.verify(deep=True).is_clean
    assert verify_files(virtual.place.ours()) > 5


def test_statistics_and_blame_of_both_packages(virtual: Virtual) -> None:
    ours = virtual.ours()
    session = virtual.theirs.writable_session("main")
    zarr.open_group(session.store)["n"][:100] = 7
    later = session.commit("later")
    for path, wrote in (("/n", [later, *[virtual.start] * 3]), ("/v", [virtual.start] * 4)):
        blame = ours.blame(path, branch="main")
        assert [blame.snapshot_id(number) for number in range(4)] == wrote
    stats = ours.chunk_storage_stats()
    assert stats.virtual_bytes == 320
    official = virtual.official().chunk_storage_stats()
    assert (stats.native_bytes, stats.inlined_bytes) == (
        official.native_bytes,
        official.inlined_bytes,
    )


@pytest.mark.parametrize("generation", ["repository", "store", "dataset", "icechunk"])
def test_migrations_there_and_back(
    virtual: Virtual, tmp_path: Path, generation: str, spec_version: int
) -> None:
    virtual.theirs.create_tag("v1", virtual.start)
    session = virtual.theirs.writable_session("main")
    zarr.open_group(session.store)["i"][0] = 3
    session.commit("second", metadata={"a": [1, None]})
    before = virtual.agree()
    between = icefloe.local_filesystem_storage(str(tmp_path / "between"))
    more: dict[str, Any] = {}
    if generation == "icechunk":
        more = {"spec_version": 3 - spec_version}
    virtual.ours().migrate(between, generation=generation, **more)
    moved: Any = icefloe.Repository.open(between, None, {virtual.prefix: None})
    assert tree(moved, branch="main") == before["main"]
    back = Place(tmp_path / "back", None)
    moved.migrate(back.ours(), generation="icechunk", spec_version=spec_version)
    theirs = icechunk.Repository.open(
        back.theirs(), authorize_virtual_chunk_access=access(virtual.prefix)
    )
    assert tree(theirs, branch="main") == before["main"]
    assert tree(theirs, tag="v1") == before["v1"]
    infos = list(theirs.ancestry(branch="main"))
    assert [info.message for info in infos[:-1]] == ["second", "by the official package"]
    assert infos[0].metadata["a"] == [1, None]
    session = theirs.writable_session("main")
    zarr.open_group(session.store)["i"][1] = 4
    session.commit("third")
    assert verify_files(back.ours()) >= 4


def test_what_official_expired_we_collect(virtual: Virtual) -> None:
    theirs = virtual.theirs
    for number in range(5):
        session = (theirs if number % 2 else virtual.ours()).writable_session("main")
        zarr.open_group(session.store)["n"][:] = number
        session.commit(f"{number}")
    before = virtual.agree()
    moment = list(theirs.ancestry(branch="main"))[1].written_at
    theirs.expire_snapshots(moment)
    ours = virtual.ours()
    summary = ours.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    assert summary.snapshots_deleted == 4
    assert virtual.agree() == before
    assert len(list(ours.ancestry(branch="main"))) == 3
    # And the other way round, on top of it.
    for number in range(3):
        session = virtual.official().writable_session("main")
        zarr.open_group(session.store)["n"][:] = number
        session.commit(f"again {number}")
    ours = virtual.ours()
    ours.expire_snapshots(keep_last=1)
    theirs = virtual.official()
    theirs.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    assert [info.message for info in virtual.official().ancestry(branch="main")] == [
        "again 2",
        "Repository initialized",
    ]
    virtual.agree()
    assert virtual.ours().verify(deep=True).is_clean


@pytest.mark.skipif(not IS_NEW, reason="version 1 has no moves")
def test_sessions_are_rebased_over_moves(local_place: Place, tmp_path: Path) -> None:
    virtual = Virtual(local_place, tmp_path, 2)
    ours = virtual.ours()
    mine = ours.writable_session("main")
    zarr.open_group(mine.store)["i"][0] = 5
    virtual.refer(mine, 0, 2)
    theirs = virtual.theirs.rearrange_session("main")
    theirs.move("/n", "/renamed")
    theirs.commit("moved by the official package")
    mine.commit("ours, rebased", rebase_with=icefloe.ConflictDetector())
    found = virtual.agree()["main"]
    assert found["i values"][0] == 5
    assert "renamed" in found
    assert found["v values"][:10] == list(range(20, 30))
    # Writing to an array that the other side moved: the chunks follow it, or it is a conflict.
    mine = ours.writable_session("main")
    zarr.open_group(mine.store)["renamed"][:100] = 1
    theirs = virtual.official().rearrange_session("main")
    theirs.move("/renamed", "/again")
    theirs.commit("moved once more")
    try:
        mine.commit("chunks", rebase_with=icefloe.ConflictDetector())
    except icefloe.RebaseFailedError:
        virtual.agree()
    else:
        assert virtual.agree()["main"]["again values"][:100] == [1] * 100
    session = ours.writable_session("main")
    session.move("/i", "/j")
    session.commit("moved by us")
    assert virtual.agree()["main"]["j values"][0] == 5


def test_large_attributes_and_growing_arrays(local_place: Place, spec_version: int) -> None:
    theirs = create_official(local_place, spec_version)
    ours: Any = icefloe.Repository.open(local_place.ours())
    times = np.datetime64("2000-01-01") + np.arange(24)

    def part(number: int) -> xr.Dataset:
        days = times[number * 4 : (number + 1) * 4].astype("datetime64[ns]")
        values = np.full((4, 3), number, dtype="f4")
        return xr.Dataset({"t": (("time", "x"), values)}, {"time": days})

    for number in range(6):
        session = (ours, theirs)[number % 2].writable_session("main")
        if number == 0:
            encoding: dict[str, Any] = {"time": {"units": "hours since 1999-01-01"}}
            part(0).to_zarr(session.store, encoding=encoding, consolidated=False, zarr_format=3)
        else:
            part(number).to_zarr(session.store, append_dim="time", consolidated=False)
        group = zarr.open_group(session.store)
        group["t"].attrs[f"history {number}"] = f"{number}" * 100_000
        session.commit(f"appended {number}")
    trees = agree(local_place)
    assert np.array_equal(np.array(trees["main"]["t values"])[:, 0], np.repeat(np.arange(6.0), 4))
    assert {f"history {number}" for number in range(6)} <= trees["main"]["t"].keys()
    found = xr.open_zarr(theirs.readonly_session("main").store, consolidated=False)
    assert np.array_equal(found.time.values.astype("datetime64[D]"), times)


def test_expired_branches_and_tags_are_those_that_official_deletes(
    local_place: Place, tmp_path: Path, spec_version: int
) -> None:
    # F8-10
    theirs = create_official(local_place, spec_version)
    tips = []
    for number in range(6):
        session = theirs.writable_session("main")
        zarr.group(session.store).attrs["number"] = number
        tips.append(session.commit(f"{number}"))
    for number in (0, 2, 4):
        theirs.create_tag(f"t{number}", tips[number])
        theirs.create_branch(f"b{number}", tips[number])
    cutoff = list(theirs.ancestry(branch="main"))[2].written_at
    other = Place(tmp_path / "other", None)
    shutil.copytree(tmp_path / "repo", tmp_path / "other" / "repo")
    options = {"delete_expired_branches": True, "delete_expired_tags": True}
    theirs.expire_snapshots(cutoff, **options)
    ours: Any = icefloe.Repository.open(other.ours())
    dry = ours.expire_snapshots(cutoff, dry_run=True, **options)
    assert ours.list_tags() == {"t0", "t2", "t4"}
    assert ours.expire_snapshots(cutoff, **options) == dry
    expected = icechunk.Repository.open(local_place.theirs())
    for repo in (icefloe.Repository.open(other.ours()), icechunk.Repository.open(other.theirs())):
        assert set(repo.list_tags()) == set(expected.list_tags()) == {"t4"}
        assert set(repo.list_branches()) == set(expected.list_branches()) == {"main", "b4"}
        assert [info.id for info in repo.ancestry(branch="main")] == [
            info.id for info in expected.ancestry(branch="main")
        ]
    with pytest.raises(icefloe.AlreadyExistsError):
        ours.create_tag("t0", tips[5])
    ours.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    agree(other)
