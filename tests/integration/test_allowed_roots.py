"""State files that lead to their data: only to places that the caller allows (R0-33, R0-44)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import Repository
from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError
from tests.documents import make_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """The folder of a state file whose data are in a folder beside it, with a space in its name."""
    both = icefloe.split_storage(
        state=str(tmp_path / "catalog"), data=str(tmp_path / "all data" / "one")
    )
    make_tree(Repository.create(both, generation="dataset"))
    return tmp_path / "catalog"


def lead_to(catalog: Path, root: object) -> None:
    path = catalog / "state.json"
    state = json.loads(path.read_text())
    state["store_root"] = root
    path.write_text(json.dumps(state))


def url(path: Path) -> str:
    return icefloe.local_filesystem_storage(path).location


@pytest.mark.parametrize("below", ["all data/one", "all data", "."])
@pytest.mark.parametrize("is_url", [True, False])
def test_an_allowed_root_is_followed(catalog: Path, below: str, is_url: bool) -> None:  # R0-33
    place = (catalog.parent / below).resolve()
    allowed = url(place) if is_url else str(place)
    storage = icefloe.split_storage(state=str(catalog), allowed_roots=["s3://elsewhere", allowed])
    repo = Repository.open(storage)
    assert repo.readonly_session("main").get_chunk("/b", (0,)) == b"\1"
    session = repo.writable_session("main")
    session.tree.set_chunk("/b", (0,), b"\2")
    session.commit("goes there too")
    assert not (catalog / "s").exists()


def test_a_storage_is_an_allowed_root(catalog: Path) -> None:
    data = icefloe.local_filesystem_storage(catalog.parent / "all data" / "one")
    other = icefloe.local_filesystem_storage(catalog.parent)
    storage = icefloe.split_storage(state=str(catalog), allowed_roots=[other, data])
    assert storage.inner is data
    with pytest.raises(InvalidInputError, match="allowed_roots"):
        icefloe.split_storage(state=str(catalog), allowed_roots=[other])


@pytest.mark.parametrize("allowed", [[], ["all dat"], ["all data/one/more"], ["catalog"]])
def test_other_roots_are_refused(catalog: Path, allowed: list[str]) -> None:
    places = [url(catalog.parent / each) for each in allowed]
    with pytest.raises(InvalidInputError, match=r"leads to .*add it to allowed_roots"):
        icefloe.split_storage(state=str(catalog), allowed_roots=places)


@pytest.mark.parametrize(
    "detour",
    [
        *("/../secret", "/x/../../secret", "/%2e%2e/secret", "/.", "//secret"),
        *("?durability=none", "#x", "/a\\..\\..", "/a\nb", "x"),
    ],
)
def test_a_root_that_leaves_the_allowed_place_is_refused(catalog: Path, detour: str) -> None:
    place = url(catalog.parent / "data")
    lead_to(catalog, place + detour)
    with pytest.raises(InvalidInputError, match="allowed_roots"):
        icefloe.split_storage(state=str(catalog), allowed_roots=[place])


def test_a_root_is_never_followed_by_itself(catalog: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"split_storage.*allowed_roots"):
        Repository.open(str(catalog))


def test_a_root_that_is_the_same_folder_needs_no_permission(tmp_path: Path) -> None:
    make_tree(Repository.create(str(tmp_path), generation="dataset"))
    lead_to(tmp_path, url(tmp_path) + "/")
    reader = Repository.open(str(tmp_path)).readonly_session("main")
    assert reader.get_chunk("/b", (0,)) == b"\1"


@pytest.mark.parametrize("root", [None, "", "  "])
def test_a_state_file_beside_its_data_leads_nowhere(catalog: Path, root: str | None) -> None:
    lead_to(catalog, root)
    with pytest.raises(InvalidInputError, match="no store_root"):
        icefloe.split_storage(state=str(catalog), allowed_roots=[str(catalog.parent)])


def test_a_damaged_or_missing_state_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        icefloe.split_storage(state=str(tmp_path), allowed_roots=[str(tmp_path)])
    for text in ("{", "[]", '{"store_root": 1}'):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(FormatError, match=r"state\.json"):
            icefloe.split_storage(state=str(tmp_path), allowed_roots=[str(tmp_path)])
