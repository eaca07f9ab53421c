"""The lines of the facts about the official formats (F8 in requirements.csv), one by one."""

from __future__ import annotations

import hashlib
import os
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarr.storage

import icefloe
from icefloe.errors import InvalidInputError, ReadOnlyError
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
from tests.endpoints.fixtures import fresh_prefix

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.endpoints.fixtures import S3Endpoint

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
ROUNDS = 50 if os.environ.get("ICEFLOE_TEST_PROFILE") == "deep" else 5
NEWER = pytest.mark.skipif(not IS_NEW, reason="official 1.x has no version 2 of the format")


def start(repo: Any, length: int = 8) -> str:
    """Commit an array of chunks of one number each."""
    session = repo.writable_session("main")
    zarr.group(session.store).create_array("x", shape=(length,), chunks=(1,), dtype="i8")
    return str(session.commit("start"))


def put(repo: Any, place: int, value: int, branch: str = "main") -> str:
    """Commit one number."""
    session = repo.writable_session(branch)
    zarr.open_group(session.store)["x"][place] = value
    return str(session.commit(f"{value} at {place}"))


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.endpoint
def test_virtual_chunks_in_a_bucket_with_each_kind_of_check(
    s3_endpoint: S3Endpoint, tmp_path: Path, spec_version: int
) -> None:
    """F8-01, F8-03: inline, native and virtual chunks in one manifest; etags and times."""
    values = np.random.default_rng(0).integers(0, 2**60, 300)
    values[:100] = 1  # compressed to few bytes: inline
    memory: Any = zarr.storage.MemoryStore()
    zarr.create_array(memory, name="x", shape=(300,), chunks=(100,), dtype="i8")[:] = values
    encoded = memory._store_dict["x/c/2"].to_bytes()
    prefix = fresh_prefix()
    files = s3_endpoint.storage(prefix)
    files.put("data.bin", b"head" + encoded)
    e_tag = f'"{hashlib.md5(files.get("data.bin")).hexdigest()}"'
    url = f"s3://{s3_endpoint.bucket}/{prefix}/"
    where: dict[str, Any] = {
        "region": s3_endpoint.region,
        "endpoint_url": s3_endpoint.endpoint_url,
        "allow_http": True,
        "s3_compatible": True,
        "force_path_style": True,
    }
    config = icechunk.RepositoryConfig.default()
    store = icechunk.s3_store(**where)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, store))
    keys: dict[str, Any] = {
        "access_key_id": s3_endpoint.access_key_id,
        "secret_access_key": s3_endpoint.secret_access_key,
    }
    theirs = icechunk.containers_credentials({url: icechunk.s3_credentials(**keys)})
    place = Place(tmp_path, s3_endpoint)
    repo = create_official(place, spec_version, config, authorize_virtual_chunk_access=theirs)
    if not IS_NEW:
        repo.save_config()
    checks = {
        "plain": None,
        "etag": e_tag,
        "unquoted": e_tag.strip('"'),
        "in_time": now() + timedelta(minutes=5),
        "changed": "another",
        "too_late": now() - timedelta(days=5),
    }

    def write(repo: Any) -> None:
        session = repo.writable_session("main")
        group = zarr.group(session.store, overwrite=True)
        for name, checksum in checks.items():
            array = group.create_array(name, shape=(300,), chunks=(100,), dtype="i8")
            array[:200] = values[:200]
            session.store.set_virtual_ref(
                f"{name}/c/2", f"{url}data.bin", offset=4, length=len(encoded), checksum=checksum
            )
        session.commit("virtual")

    def check(repo: Any, error: type[Exception]) -> None:
        group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
        for name in ("plain", "etag", "unquoted", "in_time"):
            assert np.array_equal(group[name][:], values), name
        for name in ("changed", "too_late"):
            assert np.array_equal(group[name][:200], values[:200])
            with pytest.raises(error):
                group[name][200:]

    ours = icefloe.containers_credentials({url: icefloe.s3_credentials(**keys)})
    # Who opens says where credentials may be sent; the repository alone cannot.
    trusted = icefloe.RepositoryConfig()
    container = icefloe.VirtualChunkContainer(url, icefloe.s3_store(**where))
    trusted.set_virtual_chunk_container(container)
    write(repo)
    for _ in range(2):
        mine: Any = icefloe.Repository.open(place.ours(), trusted, ours)
        check(mine, icefloe.IcefloeError)
        official = icechunk.Repository.open(place.theirs(), authorize_virtual_chunk_access=theirs)
        check(official, icechunk.IcechunkError)
        session = mine.readonly_session("main")
        assert len(session.get_node("/plain").manifests) == 1
        write(mine)
    untrusting = icefloe.Repository.open(place.ours(), None, ours)
    with pytest.raises(icefloe.VirtualChunkError, match="If you trust that"):
        tree(untrusting, branch="main")


def test_tags_whose_names_official_encodes_on_local_files(local_place: Place) -> None:
    """F8-05: version 1 has folders of references, and object_store encodes some characters."""
    theirs = create_official(local_place, 1)
    tip = start(theirs)
    names = {"v#1", "größe", "50%", "a b", "q?", "~x"}
    for name in names:
        theirs.create_tag(name, tip)
    ours = icefloe.Repository.open(local_place.ours())
    assert ours.list_tags() == names
    assert {ours.lookup_tag(name) for name in names} == {tip}
    theirs.delete_tag("größe")
    ours.delete_tag("v#1")
    assert ours.list_tags() == names - {"größe", "v#1"}
    with pytest.raises(icechunk.IcechunkError):
        theirs.lookup_tag("v#1")
    # Their listing has other names for some, so their collector would not keep what these point
    # to; ours does.
    for value in range(3):
        put(ours, 0, value)
    ours.reset_branch("main", "main~3")
    ours.garbage_collect(now() + timedelta(minutes=1))
    assert tree(ours, tag="q?")["x values"] == [0] * 8


@NEWER
def test_status_and_flags_that_official_set_are_obeyed(local_place: Place) -> None:
    """F8-06."""
    theirs = create_official(local_place, 2)
    tip = start(theirs)
    ours: Any = icefloe.Repository.open(local_place.ours())
    session = ours.writable_session("main")
    zarr.open_group(session.store)["x"][0] = 1
    status = icechunk.RepoStatus(icechunk.RepoAvailability.read_only, None, "under repair")
    theirs.set_status(status)
    for act in (
        lambda: session.commit("too late"),
        lambda: ours.create_tag("t", tip),
        lambda: ours.garbage_collect(timedelta(0)),
        lambda: ours.expire_snapshots(now()),
        lambda: ours.writable_session("main"),
    ):
        with pytest.raises(ReadOnlyError, match="under repair"):
            act()
    ours.set_status(icefloe.RepoStatus())
    session.commit("in time")
    theirs = icechunk.Repository.open(local_place.theirs())
    theirs.set_feature_flag("create_tag", setting=False)
    theirs.set_feature_flag("move_node", setting=False)
    with pytest.raises(InvalidInputError, match="create_tag"):
        ours.create_tag("t", tip)
    with pytest.raises(InvalidInputError, match="move_node"):
        icefloe.Repository.open(local_place.ours()).writable_session("main").move("/x", "/y")
    ours.set_feature_flag("delete_tag", False)
    flags = {flag.name: flag.enabled for flag in theirs.feature_flags()}
    assert flags == {flag.name: flag.enabled for flag in ours.feature_flags()}
    assert not any(flags.values())
    agree(local_place)


@NEWER
def test_both_write_one_log_of_updates_over_many_backups(local_place: Place) -> None:
    """F8-06, F8-10, F8-12: whose configuration stays byte for byte; no backup is ever deleted."""
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = 3
    theirs = create_official(local_place, 2, config)
    tip = start(theirs)
    ours: Any = icefloe.Repository.open(local_place.ours())
    for number in range(12):
        repo = (theirs, ours)[number % 2]
        repo.create_tag(f"t{number}", tip)
        if number % 3 == 0:
            put(repo, 0, number)

    kinds = update_kinds
    assert len(kinds(ours)) > 15
    assert kinds(ours) == kinds(icechunk.Repository.open(local_place.theirs()))
    backups = {info.key for info in local_place.ours().list("overwritten/")}
    ours.expire_snapshots(now())
    ours.garbage_collect(now() + timedelta(minutes=1))
    theirs = icechunk.Repository.open(local_place.theirs())
    assert backups <= {info.key for info in local_place.ours().list("overwritten/")}
    assert kinds(ours) == kinds(theirs)
    assert theirs.config.num_updates_per_repo_info_file == 3
    # A backup that somebody deleted ends the log, and hurts nothing else.
    place = local_place.ours()
    place.delete_many(sorted(info.key for info in place.list("overwritten/")))
    assert 0 < len(kinds(icefloe.Repository.open(place))) <= 4
    put(ours, 1, 1)
    agree(local_place)


def test_compacted_packs_are_read_and_kept_by_official(
    local_place: Place, spec_version: int
) -> None:
    """F8-09, F8-12."""
    ours = create_ours(local_place, spec_version)
    session = ours.writable_session("main")
    array = zarr.group(session.store).create_array("x", shape=(8000,), chunks=(1000,), dtype="i8")
    array[:] = np.random.default_rng(0).integers(0, 2**60, 8000)
    session.commit("packed")
    session = ours.writable_session("main")
    zarr.open_group(session.store)["x"][:5000] = np.random.default_rng(1).integers(0, 2**60, 5000)
    session.commit("most of it again")
    before = agree(local_place)
    ours.compact(branch="main")
    assert agree(local_place) == before
    theirs = icechunk.Repository.open(local_place.theirs())
    theirs.expire_snapshots(now())
    summary = theirs.garbage_collect(now() + timedelta(minutes=1))
    assert summary.chunks_deleted >= 1
    assert agree(local_place) == before
    assert verify_files(local_place.ours()) >= 3
    assert icefloe.Repository.open(local_place.ours()).verify(deep=True).is_clean


def test_collection_spares_what_is_young_and_what_is_not_its_own(
    local_place: Place, spec_version: int
) -> None:
    """F8-10."""
    theirs = create_official(local_place, spec_version)
    start(theirs)
    put(theirs, 0, 1)
    session = theirs.writable_session("main")
    array = zarr.open_group(session.store).create_array("y", shape=(900,), dtype="i8")
    array[:] = np.random.default_rng(0).integers(0, 2**60, 900)  # a chunk file, not committed
    place = local_place.ours()
    place.put("someone/else.txt", b"mine")
    before = {info.key for info in place.list()}
    ours = icefloe.Repository.open(place)
    ours.expire_snapshots(now() - timedelta(hours=1))
    ours.garbage_collect(timedelta(hours=1))
    left = {info.key for info in place.list()}
    assert before <= left
    session.commit("in time")
    agree(local_place)


@pytest.mark.endpoint
def test_references_that_one_makes_while_the_other_commits(
    tmp_path: Path, s3_endpoint: S3Endpoint, spec_version: int
) -> None:
    """F8-11: in version 2 all of it is one object that both replace."""
    place = Place(tmp_path, s3_endpoint)
    tip = start(create_ours(place, spec_version))
    failures: list[BaseException] = []

    def commit(repo: Any) -> None:
        for number in range(ROUNDS):
            put(repo, number % 8, number + 1)

    def refer(repo: Any, who: str) -> None:
        for number in range(ROUNDS):
            repo.create_tag(f"{who} {number}", tip)
            repo.create_branch(f"{who}-{number}", tip)

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    for committer in ("ours", "theirs"):
        ours = icefloe.Repository.open(place.ours())
        theirs = icechunk.Repository.open(place.theirs())
        repos = (ours, theirs) if committer == "ours" else (theirs, ours)
        works = (lambda: commit(repos[0]), lambda: refer(repos[1], f"beside {committer}"))  # noqa: B023
        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert not failures
    repo = icefloe.Repository.open(place.ours())
    assert len(repo.list_tags()) == 2 * ROUNDS
    assert len(repo.list_branches()) == 2 * ROUNDS + 1
    assert len(list(repo.ancestry(branch="main"))) == 2 * ROUNDS + 2
    theirs = icechunk.Repository.open(place.theirs())
    assert set(theirs.list_tags()) == repo.list_tags()
    assert set(theirs.list_branches()) == repo.list_branches()


@NEWER
def test_differences_over_amended_commits(local_place: Place) -> None:
    """F8-13."""
    theirs = create_official(local_place, 2)
    base = start(theirs)
    ours: Any = icefloe.Repository.open(local_place.ours())
    for number, (first, second) in enumerate([(ours, theirs), (theirs, ours), (ours, ours)]):
        put(first, number, 1)
        session = second.writable_session("main")
        zarr.open_group(session.store)["x"][number + 4] = 1
        session.amend(f"amended {number}")
        found = [
            {
                path: sorted(map(tuple, chunks))
                for path, chunks in repo.diff(
                    from_snapshot_id=base, to_branch="main"
                ).updated_chunks.items()
            }
            for repo in (ours, theirs)
        ]
        assert found[0] == found[1]
        places = sorted([(n,) for n in range(number + 1)] + [(n + 4,) for n in range(number + 1)])
        assert found[0] == {"/x": places}
        agree(local_place)


def test_configurations_that_we_save_are_read_by_official(
    local_place: Place, tmp_path: Path, spec_version: int
) -> None:
    """F8-14: official 1.x reads them too."""
    files = f"file://{tmp_path}/files/"
    (tmp_path / "files").mkdir()
    config = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=7,
        chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=9),
    )
    store = icefloe.local_filesystem_store(str(tmp_path / "files"))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(files, store))
    ours = icefloe.Repository.create(
        local_place.ours(), config, generation="icechunk", spec_version=spec_version
    )
    start(ours)
    theirs = icechunk.Repository.open(
        local_place.theirs(), authorize_virtual_chunk_access=access(files)
    )
    assert theirs.config.inline_chunk_threshold_bytes == 7
    assert list(theirs.config.virtual_chunk_containers) == [files]
    theirs.save_config()
    put(theirs, 0, 1)
    again = icefloe.Repository.open(local_place.ours())
    assert again.config.inline_chunk_threshold_bytes == 7
    again.save_config()
    put(again, 1, 1)
    agree(local_place)
