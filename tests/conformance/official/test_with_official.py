"""Repositories that both packages use: whatever one of them does, the other one sees."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.errors import AlreadyExistsError, ConflictError, IcefloeError
from tests.conformance.official.packages import (
    IS_NEW,
    Place,
    access,
    agree,
    create_official,
    create_ours,
    icechunk,
    tree,
    update_kinds,
    verify_files,
)
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from pathlib import Path

    from tests.endpoints.fixtures import S3Endpoint

# The official package warns of local files in its log, and of repositories that it did not close.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
METADATA: dict[str, Any] = {
    "text": "größe",
    "number": 2**40,
    "negative": -5,
    "float": 1.5,
    "flag": True,
    "nothing": None,
    "list": [1, "a", [None], {}],
    "map": {"a": {"b": [0.1, 1e300]}},
}


def fill(session: Any) -> None:
    """Arrays of all sorts: inline and native chunks, scalar, empty, odd names, attributes."""
    root = zarr.group(session.store, overwrite=True)
    root.attrs["title"] = "everything"
    values = np.random.default_rng(1).random((20, 30))
    array = root.create_array(
        "a", shape=(20, 30), chunks=(5, 7), dtype="f8", dimension_names=["y", None]
    )
    array[:] = values
    array.attrs["units"] = "K"
    large = root.create_group("g/sub").create_array("b", shape=(9000,), chunks=(1000,), dtype="i4")
    large[1000:8000] = np.random.default_rng(2).integers(0, 10**9, 7000)
    root.create_array("scalar", shape=(), dtype="i8")[...] = 7
    root.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="i8")
    root.create_array("größe", shape=(2,), chunks=(1,), dtype="i1")[:] = 1
    root.create_array("deep", shape=(1,) * 7, chunks=(1,) * 7, dtype="i1")[...] = 3


def change(session: Any) -> None:
    root = zarr.open_group(session.store)
    root["a"][0:5] = 1
    root["a"].attrs["units"] = "°C"
    root["g/sub/b"].resize((10_000,))
    del root["größe"]


def work(repo: Any) -> None:
    """Commits, branches and tags, by either package."""
    session = repo.writable_session("main")
    fill(session)
    first = session.commit("first", metadata=METADATA)
    session = repo.writable_session("main")
    change(session)
    second = session.commit("second")
    repo.create_branch("dev", first)
    repo.create_branch("gone", first)
    repo.delete_branch("gone")
    repo.create_tag("v1", second)
    repo.create_tag("deleted", first)
    repo.delete_tag("deleted")
    session = repo.writable_session("dev")
    zarr.open_group(session.store)["a"][10:] = -1
    session.commit("on dev")


@pytest.mark.endpoint
def test_we_read_what_official_wrote(place: Place, spec_version: int) -> None:
    # F8-01, F8-03
    work(create_official(place, spec_version))
    trees = agree(place)
    assert set(trees) == {"main", "dev", "tag v1"}
    ours: Any = icefloe.Repository.open(place.ours())
    assert (ours.generation, ours.spec_version) == ("icechunk", spec_version)
    infos = list(ours.ancestry(branch="main"))
    assert infos[1].metadata == METADATA
    diff = ours.diff(from_snapshot_id=infos[1].id, to_branch="main")
    theirs = icechunk.Repository.open(place.theirs())
    official = theirs.diff(from_snapshot_id=infos[1].id, to_branch="main")
    for field in ("new_arrays", "deleted_arrays", "updated_arrays", "new_groups"):
        assert set(getattr(diff, field)) == set(getattr(official, field)), field
    assert {p: sorted(map(tuple, c)) for p, c in diff.updated_chunks.items()} == {
        p: sorted(map(tuple, c)) for p, c in official.updated_chunks.items()
    }
    assert ours.verify(deep=True).is_clean
    with pytest.raises(AlreadyExistsError):
        ours.create_tag("deleted", infos[0].id)


@pytest.mark.endpoint
def test_official_reads_what_we_wrote(place: Place, spec_version: int) -> None:
    # F8-08, F8-12, F8-14
    ours = create_ours(place, spec_version)
    work(ours)
    assert verify_files(place.ours()) > 5
    trees = agree(place)
    assert set(trees) == {"main", "dev", "tag v1"}
    theirs = icechunk.Repository.open(place.theirs())
    infos = list(theirs.ancestry(branch="main"))
    assert infos[1].metadata == METADATA
    official = theirs.diff(from_snapshot_id=infos[1].id, to_branch="main")
    diff = ours.diff(from_snapshot_id=infos[1].id, to_branch="main")
    assert {p: sorted(map(tuple, c)) for p, c in diff.updated_chunks.items()} == {
        p: sorted(map(tuple, c)) for p, c in official.updated_chunks.items()
    }
    with pytest.raises(icechunk.IcechunkError):
        theirs.create_tag("deleted", infos[0].id)


class _Rounds:
    """Changes that the packages make in turn."""

    def __init__(self, place: Place, spec_version: int) -> None:
        self.place = place
        self.can_move = spec_version == 2
        self.rng = random.Random(spec_version)
        self.names: set[str] = set()

    def play(self, number: int, repo: Any, *, is_ours: bool) -> None:
        branch = self.rng.choice(sorted(repo.list_branches()))
        session = repo.writable_session(branch)
        group = zarr.open_group(session.store)
        group["shared"][number % 8] = number
        name = f"array{number}"
        array = group.create_array(name, shape=(30,), chunks=(4,), dtype="i8")
        array[: 3 * number] = number
        old = [each for each in group.array_keys() if each not in {"shared", name}]
        if len(old) > 3:
            del group[sorted(old)[0]]
        tip = session.commit(f"round {number}", metadata={"number": number})
        if number % 3 == 0:
            repo.create_branch(f"b{number}", tip)
        if number % 4 == 1:
            repo.create_tag(f"t{number}", tip)
        if number % 8 == 5:
            repo.delete_tag(f"t{number - 4}")
        if number % 6 == 5:
            repo.delete_branch(f"b{number - 2}")
        if self.can_move and number % 3 == 2:
            self._move(repo, name, is_ours=is_ours, branch=branch)

    def _move(self, repo: Any, name: str, *, is_ours: bool, branch: str) -> None:
        if branch not in repo.list_branches():
            return
        session = repo.writable_session(branch) if is_ours else repo.rearrange_session(branch)
        session.move(f"/{name}", f"/moved-{name}")
        session.commit(f"moved {name}")


@pytest.mark.endpoint
def test_the_packages_take_turns(
    place: Place, request: pytest.FixtureRequest, spec_version: int
) -> None:
    # F8-08, F8-12, F8-14: ten rounds each way
    on_s3 = "s3" in request.node.callspec.params.values()
    repo = (create_official if on_s3 else create_ours)(place, spec_version)
    session = repo.writable_session("main")
    zarr.group(session.store).create_array("shared", shape=(8,), chunks=(1,), dtype="i8")
    session.commit("start")
    rounds = _Rounds(place, spec_version)
    for number in range(1, 21):
        is_ours = bool(number % 2)
        repo = (
            icefloe.Repository.open(place.ours())
            if is_ours
            else icechunk.Repository.open(place.theirs())
        )
        rounds.play(number, repo, is_ours=is_ours)
        agree(place)
    assert verify_files(place.ours()) > 10
    assert icefloe.Repository.open(place.ours()).verify(deep=True).is_clean


@pytest.mark.endpoint
def test_racing_commits_on_s3_lose_nothing(
    tmp_path: Path, s3_endpoint: S3Endpoint, spec_version: int
) -> None:
    # F8-11
    place = Place(tmp_path, s3_endpoint)
    session = create_ours(place, spec_version).writable_session("main")
    zarr.group(session.store).create_array("x", shape=(100,), chunks=(1,), dtype="i8")
    session.commit("start")
    rounds = 50 if IS_DEEP else 10
    conflicts = {"ours": 0, "theirs": 0}
    failures: list[BaseException] = []

    def race(who: str) -> None:
        try:
            repo: Any = (
                icefloe.Repository.open(place.ours())
                if who == "ours"
                else icechunk.Repository.open(place.theirs())
            )
            for number in range(rounds):
                while True:
                    session = repo.writable_session("main")
                    slot = 2 * number + (who == "ours")
                    zarr.open_group(session.store)["x"][slot] = number + 1
                    try:
                        session.commit(f"{who} {number}")
                    except (ConflictError, icechunk.ConflictError):
                        conflicts[who] += 1
                    else:
                        break
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=race, args=(who,)) for who in conflicts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not failures
    agree(place)
    repo = icefloe.Repository.open(place.ours())
    messages = {info.message for info in repo.ancestry(branch="main")}
    expected = {f"{who} {number}" for who in conflicts for number in range(rounds)}
    assert expected <= messages
    values = tree(repo, branch="main")["x values"]
    assert values[: 2 * rounds] == [n // 2 + 1 for n in range(2 * rounds)]


def test_official_collection_keeps_packs_that_are_used(
    local_place: Place, spec_version: int
) -> None:
    # F8-09
    place = local_place
    ours = create_ours(place, spec_version)
    session = ours.writable_session("main")
    array = zarr.group(session.store).create_array("x", shape=(8000,), chunks=(1000,), dtype="i8")
    array[:] = np.random.default_rng(0).integers(0, 2**60, 8000)
    session.commit("packed")
    storage = place.ours()
    assert len(list(storage.list("chunks/"))) == 1
    expected = tree(ours, branch="main")["x values"]
    theirs = icechunk.Repository.open(place.theirs())
    for number in range(8):
        # One chunk after the other is replaced: the pack stays until none of it is used.
        session = theirs.writable_session("main")
        zarr.open_group(session.store)["x"][1000 * number : 1000 * (number + 1)] = number
        expected[1000 * number : 1000 * (number + 1)] = [number] * 1000
        session.commit(f"{number}")
        now = datetime.now(UTC)
        theirs.expire_snapshots(now)
        theirs.garbage_collect(now + timedelta(minutes=1))
        assert tree(theirs, branch="main")["x values"] == expected
        assert agree(place)["main"]["x values"] == expected
    packs = [info for info in storage.list("chunks/") if info.size > 20_000]
    assert not packs


def test_our_expiry_and_collection_leave_official_all_that_is_reachable(
    local_place: Place, spec_version: int
) -> None:
    # F8-10
    place = local_place
    theirs = create_official(place, spec_version)
    work(theirs)
    ours: Any = icefloe.Repository.open(place.ours())
    for number in range(4):
        session = (ours if number % 2 else theirs).writable_session("main")
        zarr.open_group(session.store)["g/sub/b"][number * 1000 : (number + 1) * 1000] = number
        session.commit(f"{number}")
    before = agree(place)
    ours.expire_snapshots(keep_last=2)
    ours.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    after = agree(place)
    assert after == before
    theirs = icechunk.Repository.open(place.theirs())
    infos = list(theirs.ancestry(branch="main"))
    assert len(infos) == 3
    diff = theirs.diff(from_snapshot_id=infos[1].id, to_branch="main")
    assert "/g/sub/b" in diff.updated_chunks
    if IS_NEW and spec_version == 2:
        if not icechunk.__version__.startswith("2.0."):
            # Over the edge of what has expired, too: 2.1 and later look for the logs in `repo`.
            diff = theirs.diff(from_snapshot_id=infos[2].id, to_snapshot_id=infos[1].id)
            assert "/a" in diff.new_arrays
        kinds = update_kinds(theirs)
        assert "GCRan" in kinds[0]
        assert any("ExpirationRan" in kind for kind in kinds)
    session = theirs.writable_session("main")
    zarr.open_group(session.store)["a"][0] = 5
    session.commit("after")
    theirs.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    agree(place)
    assert icefloe.Repository.open(place.ours()).verify(deep=True).is_clean


def test_conflicts_and_rebases_across_packages(local_place: Place, spec_version: int) -> None:
    # F8-13
    place = local_place
    ours = create_ours(place, spec_version)
    session = ours.writable_session("main")
    zarr.group(session.store).create_array("x", shape=(8,), chunks=(1,), dtype="i8")
    session.commit("start")
    theirs = icechunk.Repository.open(place.theirs())
    mine, other = ours.writable_session("main"), theirs.writable_session("main")
    zarr.open_group(mine.store)["x"][0] = 1
    zarr.open_group(other.store)["x"][1] = 2
    other.commit("theirs")
    with pytest.raises(ConflictError):
        mine.commit("ours")
    mine.commit("ours", rebase_with=icefloe.ConflictDetector())
    assert tree(ours, branch="main")["x values"][:2] == [1, 2]
    mine, other = ours.writable_session("main"), theirs.writable_session("main")
    zarr.open_group(mine.store)["x"][2] = 3
    zarr.open_group(other.store)["x"][3] = 4
    mine.commit("ours again")
    with pytest.raises(icechunk.ConflictError):
        other.commit("theirs again")
    other.rebase(icechunk.ConflictDetector())
    other.commit("theirs again")
    assert agree(place)["main"]["x values"][:4] == [1, 2, 3, 4]
    mine, other = ours.writable_session("main"), theirs.writable_session("main")
    zarr.open_group(mine.store)["x"][0] = 5
    zarr.open_group(other.store)["x"][0] = 6
    other.commit("theirs wins")
    with pytest.raises(icefloe.RebaseFailedError):
        mine.rebase(icefloe.ConflictDetector())


def test_virtual_chunks_with_each_kind_of_check(
    local_place: Place, tmp_path: Path, spec_version: int
) -> None:
    # F8-01, F8-03
    place = local_place
    data = np.arange(3000, dtype="i8")
    (tmp_path / "files").mkdir()
    source = tmp_path / "files" / "data.bin"
    source.write_bytes(data.tobytes())
    prefix = f"file://{tmp_path}/files/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(tmp_path / "files"))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    theirs = create_official(
        place, spec_version, config, authorize_virtual_chunk_access=access(prefix)
    )
    session = theirs.writable_session("main")
    group = zarr.group(session.store)
    later = datetime.now(UTC) + timedelta(minutes=5)
    earlier = datetime.now(UTC) - timedelta(days=5)
    checks = {"plain": None, "in time": later, "too late": earlier, "etag": "another"}
    for name, checksum in checks.items():
        group.create_array(
            name, shape=(3000,), chunks=(1000,), dtype="i8", compressors=None, filters=None
        )
        for number in range(3):
            session.store.set_virtual_ref(
                f"{name}/c/{number}",
                f"{prefix}data.bin",
                offset=8000 * number,
                length=8000,
                checksum=checksum,
            )
    many = group.create_array(
        "many", shape=(1500,), chunks=(1,), dtype="i8", compressors=None, filters=None
    )
    del many
    specs = [icechunk.VirtualChunkSpec([n], f"{prefix}data.bin", 8 * n, 8) for n in range(1500)]
    session.store.set_virtual_refs("many", specs)
    session.commit("virtual")
    ours: Any = icefloe.Repository.open(place.ours(), None, {prefix: None})
    found: Any = zarr.open_group(ours.readonly_session("main").store, mode="r")
    for name in ("plain", "in time"):
        assert np.array_equal(found[name][:], data)
    assert np.array_equal(found["many"][:], data[:1500])
    for name in ("too late", "etag"):
        with pytest.raises(IcefloeError):
            found[name][:]
    # And the other way round: what we write down, the official package checks.
    session = ours.writable_session("main")
    group = zarr.open_group(session.store)
    group["plain"][0:1000] = 0
    session.store.set_virtual_ref(
        "plain/c/1", f"{prefix}data.bin", offset=0, length=8000, checksum=later
    )
    session.store.set_virtual_ref(
        "plain/c/2", f"{prefix}data.bin", offset=0, length=8000, checksum=earlier
    )
    session.commit("ours")
    theirs = icechunk.Repository.open(place.theirs(), authorize_virtual_chunk_access=access(prefix))
    official: Any = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    assert np.array_equal(official["plain"][:2000], [*[0] * 1000, *data[:1000]])
    assert np.array_equal(official["many"][:], data[:1500])
    with pytest.raises(icechunk.IcechunkError):
        official["plain"][2000:]


def test_manifests_that_official_split(local_place: Place, spec_version: int) -> None:
    # F8-03
    place = local_place
    config = icechunk.RepositoryConfig.default()
    sizes = {icechunk.ManifestSplitDimCondition.Any(): 3}
    splitting = icechunk.ManifestSplittingConfig.from_dict(
        {icechunk.ManifestSplitCondition.AnyArray(): sizes}
    )
    config.manifest = icechunk.ManifestConfig(splitting=splitting)
    theirs = create_official(place, spec_version, config)
    theirs.save_config()
    session = theirs.writable_session("main")
    array = zarr.group(session.store).create_array("x", shape=(10, 10), chunks=(1, 1), dtype="i4")
    array[:] = np.arange(100).reshape(10, 10)
    session.commit("split")
    ours: Any = icefloe.Repository.open(place.ours())
    node = ours.readonly_session("main").get_node("/x")
    assert len(node.manifests) == 16
    before = {info.key for info in place.ours().list("manifests/")}
    session = ours.writable_session("main")
    zarr.open_group(session.store)["x"][5, 5] = -1
    session.commit("one tile")
    # The rules are stored with the repository, and we split as they say.
    assert len({info.key for info in place.ours().list("manifests/")} - before) == 1
    agree(place)


def test_arrays_that_official_made_smaller_are_no_problem(
    local_place: Place, spec_version: int
) -> None:
    # F8-01: official 1.x does not list the chunks that are gone then.
    theirs = create_official(local_place, spec_version)
    session = theirs.writable_session("main")
    zarr.group(session.store).create_array("x", shape=(10,), chunks=(2,), dtype="i8")[:] = 1
    session.commit("long")
    ours: Any = icefloe.Repository.open(local_place.ours())
    mine = ours.writable_session("main")
    zarr.open_group(mine.store)["x"][9] = 5
    session = theirs.writable_session("main")
    zarr.open_group(session.store)["x"].resize((4,))
    session.commit("short")
    with pytest.raises(icefloe.RebaseFailedError):
        mine.commit("outside", rebase_with=icefloe.ConflictDetector())
    session = theirs.writable_session("main")
    zarr.open_group(session.store)["x"].resize((10,))
    session.commit("long again")
    report = ours.verify(deep=True)
    assert report.is_clean, str(report)
    assert agree(local_place)["main"]["x values"] == [1] * 4 + [0] * 6


def test_both_drop_chunks_outside_of_a_smaller_document_when_they_commit(
    local_place: Place, spec_version: int
) -> None:
    """A document deletes no chunks, unlike zarr's resize; the array grows again later."""
    theirs = create_official(local_place, spec_version)
    ours: Any = icefloe.Repository.open(local_place.ours())
    session = theirs.writable_session("main")
    group = zarr.group(session.store)
    for name in ("by_us", "by_them"):
        group.create_array(name, shape=(10,), chunks=(2,), dtype="i8")[:] = 1
    session.commit("long")

    prototype = default_buffer_prototype()

    def set_length(session: Any, name: str, length: int) -> None:
        key = f"{name}/zarr.json"
        document = json.loads(asyncio.run(session.store.get(key, prototype)).to_bytes())
        changed = json.dumps(document | {"shape": [length]}).encode()
        asyncio.run(session.store.set(key, prototype.buffer.from_bytes(changed)))

    for repo, name in ((ours, "by_us"), (theirs, "by_them")):
        session = repo.writable_session("main")
        set_length(session, name, 4)
        # Before the commit, chunks outside are hidden only.
        set_length(session, name, 10)
        assert zarr.open_group(session.store, mode="r")[name][:].tolist() == [1] * 10
        set_length(session, name, 4)
        session.commit("short")
        reader = ours.readonly_session("main")
        assert reader.chunk_count(f"/{name}") == 2
    for name in ("by_us", "by_them"):
        session = theirs.writable_session("main")
        set_length(session, name, 10)
        session.commit("long again")
    state = agree(local_place)["main"]
    assert state["by_us values"] == state["by_them values"] == [1] * 4 + [0] * 6
    assert ours.verify(deep=True).is_clean


def test_commits_on_split_manifests_are_compared_and_rebased_over(
    local_place: Place, spec_version: int
) -> None:
    # F8-03, F8-13: official 1.x lists the changed chunks of split arrays in no order.
    config = icechunk.RepositoryConfig.default()
    sizes = {icechunk.ManifestSplitDimCondition.Any(): 1}
    splitting = icechunk.ManifestSplittingConfig.from_dict(
        {icechunk.ManifestSplitCondition.AnyArray(): sizes}
    )
    config.manifest = icechunk.ManifestConfig(splitting=splitting)
    theirs = create_official(local_place, spec_version, config)
    theirs.save_config()
    session = theirs.writable_session("main")
    zarr.group(session.store).create_array("x", shape=(3, 12), chunks=(1, 2), dtype="i4")[:] = 1
    first = session.commit("split")
    ours: Any = icefloe.Repository.open(local_place.ours())
    mine = ours.writable_session("main")
    zarr.open_group(mine.store)["x"][0, 0] = 5
    clashing = ours.writable_session("main")
    zarr.open_group(clashing.store)["x"][2, 11] = 5
    session = theirs.writable_session("main")
    zarr.open_group(session.store)["x"][1:] = 2
    session.commit("two of three rows")
    expected = [(row, chunk) for row in (1, 2) for chunk in range(6)]
    for repo in (ours, theirs):
        diff = repo.diff(from_snapshot_id=first, to_branch="main")
        assert sorted(map(tuple, diff.updated_chunks["/x"])) == expected
    mine.commit("rebased", rebase_with=icefloe.ConflictDetector())
    with pytest.raises(icefloe.RebaseFailedError):
        clashing.commit("too late", rebase_with=icefloe.ConflictDetector())
    values = np.array(agree(local_place)["main"]["x values"])
    assert values[0, 0] == 5
    assert (values[1:] == 2).all()
    assert ours.verify(deep=True).is_clean


@pytest.mark.skipif(not IS_NEW, reason="versions before 2 cannot upgrade a repository")
def test_repositories_that_were_upgraded_hold_files_of_both_versions(local_place: Place) -> None:
    # F8-04
    place = local_place
    ours = create_ours(place, 1)
    work(ours)
    before = agree(place)
    theirs = icechunk.Repository.open(place.theirs())
    icechunk.upgrade_icechunk_repository(theirs, dry_run=False, delete_unused_v1_files=False)
    assert agree(place) == before
    opened = icefloe.Repository.open(place.ours())
    assert opened.spec_version == 2
    session = opened.writable_session("main")
    zarr.open_group(session.store)["a"][0] = 9
    session.commit("after the upgrade")
    agree(place)
    versions = {place.ours().get(i.key)[36] for i in place.ours().list("snapshots/")}
    assert versions == {1, 2}
    assert opened.verify(deep=True).is_clean


@pytest.mark.skipif(not IS_NEW, reason="amend and flush came with version 2")
def test_amended_flushed_and_empty_commits(local_place: Place) -> None:
    # F8-13
    place = local_place
    theirs = create_official(place, 2)
    session = theirs.writable_session("main")
    zarr.group(session.store).create_array("x", shape=(8,), chunks=(1,), dtype="i8")
    session.commit("start")
    for number, repo in enumerate((theirs, icefloe.Repository.open(place.ours()), theirs)):
        session = repo.writable_session("main")
        zarr.open_group(session.store)["x"][number] = 1
        session.amend(f"amended {number}")
        repo.writable_session("main").commit(f"empty {number}", allow_empty=True)
        session = repo.writable_session("main")
        zarr.open_group(session.store)["x"][7] = number
        loose = session.flush("nowhere")
        agree(place)
        other = (
            icefloe.Repository.open(place.ours())
            if repo is theirs
            else icechunk.Repository.open(place.theirs())
        )
        assert tree(other, snapshot_id=loose)["x values"][7] == number
