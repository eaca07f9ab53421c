"""Which format a repository has."""

from __future__ import annotations

import pickle

import pytest

import icefloe
from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.registry import detect, format_for
from icefloe.storage.memory import MemoryStorage
from scripts import make_golden


def repository_with(data: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    fmt = format_for()
    storage.put(fmt.layout.snapshot(make_golden.SNAPSHOT_ID), data)
    fmt.make_refs(storage).create_branch("main", make_golden.SNAPSHOT_ID)
    return storage


def test_the_default_is_spec_version_2() -> None:
    assert format_for() == format_for("repository", 2)
    assert format_for().codec.spec_version == format_for().spec_version == 2


@pytest.mark.parametrize(("generation", "version"), [("other", 2), ("repository", 3)])
def test_unknown_formats_are_refused(generation: str, version: int) -> None:
    with pytest.raises(InvalidInputError):
        format_for(generation, version)


@pytest.mark.parametrize("version", [1, 2])
def test_a_repository_is_written_as_its_newest_snapshot_is(version: int) -> None:
    fmt = format_for(spec_version=version)
    storage = repository_with(fmt.codec.encode_snapshot(make_golden.snapshot()).data)
    assert detect(storage) == fmt


@pytest.mark.parametrize("layout", make_golden.OLD_LAYOUTS, ids=lambda layout: layout.name)
def test_old_repositories_go_on_in_spec_version_1(layout: make_golden.OldLayout) -> None:
    storage = repository_with(make_golden.OldEncoder(layout).snapshot())
    assert detect(storage) == format_for(spec_version=1)


def test_an_empty_storage_has_no_repository() -> None:
    storage = MemoryStorage()
    storage.put("some/other/file", b"")
    storage.put("refs/branch.other/ZZZZZZZZ.json", b'{"snapshot":"VY76P925PRY57WFEK410"}')
    assert detect(storage) is None  # R1-10


@pytest.mark.parametrize("key", ["refs/branch.main/ref.json", "repo"])
def test_damaged_references_of_the_official_package_are_named(key: str) -> None:
    storage = MemoryStorage()
    storage.put(key, b"anything")
    with pytest.raises(FormatError) as caught:
        detect(storage)
    assert caught.value.key == key


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("other", ["repository", "store", "dataset"])
def test_two_generations_in_one_place_are_refused_with_their_names(
    version: int, other: str
) -> None:
    # F8-17
    storage = MemoryStorage()
    icefloe.Repository.create(storage, generation=other)
    icechunk = MemoryStorage()
    icefloe.Repository.create(icechunk, generation="icechunk", spec_version=version)
    for info in icechunk.list():
        storage.put(info.key, icechunk.get(info.key))
    with pytest.raises(FormatError, match=f"'icechunk' and '{other}'"):
        icefloe.Repository.open(storage)


def test_an_unfinished_migration_has_the_newer_version() -> None:
    # F8-04
    storage = MemoryStorage()
    icefloe.Repository.create(storage, generation="icechunk", spec_version=2)
    storage.put("refs/branch.main/ref.json", b'{"snapshot":"VY76P925PRY57WFEK410"}')
    found = detect(storage)
    assert found is not None
    assert (found.name, found.spec_version) == ("icechunk", 2)


def test_a_missing_tip_is_reported() -> None:
    storage = repository_with(b"")
    key = format_for().layout.snapshot(make_golden.SNAPSHOT_ID)
    storage.delete_many([key])
    with pytest.raises(FormatError, match="missing") as caught:
        detect(storage)
    assert caught.value.key == key


@pytest.mark.parametrize("length", [0, 5, 20, 26, 38])
def test_a_torn_tip_is_reported(length: int) -> None:
    data = format_for().codec.encode_snapshot(make_golden.snapshot()).data
    storage = repository_with(data[:length])
    if length < 27:
        with pytest.raises(FormatError, match="truncated"):
            detect(storage)
    else:
        assert detect(storage) == format_for()


def test_a_deleted_main_is_reported() -> None:
    storage = MemoryStorage()
    storage.put("refs/branch.main/ZZZZZZZZ.json", b'{"snapshot":null}')
    with pytest.raises(FormatError, match="main"):
        detect(storage)


def test_formats_travel_by_pickle() -> None:
    fmt = format_for(spec_version=1)
    copy = pickle.loads(pickle.dumps(fmt))
    assert copy == fmt
