"""The engine of xarray: repositories by URL, at any version, with and without `engine=`."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError, InvalidTypeError, RepositoryNotFoundError
from icefloe.xarray import to_icefloe
from tests.builders import new_repository
from tests.formats import how

if TYPE_CHECKING:
    from pathlib import Path


def commit(repository: icefloe.Repository, value: float, group: str | None = None) -> str:
    session = repository.writable_session("main")
    data = xr.Dataset(
        {"rain": (("time", "x"), np.full((2, 3), value))},
        coords={"time": ("time", np.array(["2026-01-01", "2026-01-02"], "M8[ns]"))},
    )
    to_icefloe(data, session, mode="w", group=group)
    return session.commit(f"rain is {value}")


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return new_repository(tmp_path / "weather")


def opened_with_engine(place: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(place, engine="icefloe", **options)


def rain_in(place: Any, **options: Any) -> float:
    opened = opened_with_engine(place, **options)
    assert opened.time.dtype.kind == "M"
    return float(opened.rain.mean())


def test_versions_are_chosen_by_name(repository: icefloe.Repository, tmp_path: Path) -> None:
    first = commit(repository, 1.0)
    between = datetime.now(UTC)
    commit(repository, 2.0)
    repository.create_tag("v1", first)
    repository.create_branch("old", first)
    place = str(tmp_path / "weather")
    assert rain_in(place) == 2.0
    assert rain_in(tmp_path / "weather", branch="main") == 2.0
    assert rain_in(f"file://{place}", branch="main~1") == 1.0
    assert rain_in(place, branch="old") == 1.0
    assert rain_in(place, tag="v1") == 1.0
    assert rain_in(place, snapshot_id=first) == 1.0
    assert rain_in(place, branch="main", as_of=between) == 1.0


def test_what_users_hold_opens_too(repository: icefloe.Repository) -> None:
    commit(repository, 3.0)
    session = repository.readonly_session("main")
    for holder in (repository, repository.storage, session, session.store):
        assert rain_in(holder) == 3.0
    assert rain_in(repository, branch="main") == 3.0
    with pytest.raises(InvalidInputError, match="a Session shows one version already"):
        rain_in(session, branch="main")


def test_uncommitted_changes_of_a_session_are_seen(repository: icefloe.Repository) -> None:
    commit(repository, 3.0)
    session = repository.writable_session("main")
    to_icefloe(xr.Dataset({"snow": ("x", [1.0])}), session, group="new")
    assert float(opened_with_engine(session, group="new").snow[0]) == 1.0


def test_groups_open_alone_and_as_a_tree(repository: icefloe.Repository, tmp_path: Path) -> None:
    commit(repository, 1.0)
    commit(repository, 2.0, group="daily/raw")
    place = str(tmp_path / "weather")
    assert rain_in(place, group="daily/raw") == 2.0
    tree = xr.open_datatree(place, engine="icefloe", branch="main")
    assert float(tree["/daily/raw"]["rain"].mean()) == 2.0
    assert float(tree["rain"].mean()) == 1.0
    below = xr.open_datatree(place, engine="icefloe", group="daily")
    assert set(below.children) == {"raw"}
    assert set(xr.open_groups(place, engine="icefloe")) == {"/", "/daily", "/daily/raw"}


def test_chunks_are_lazy_and_sessions_name_their_tasks(repository: icefloe.Repository) -> None:
    commit(repository, 1.0)
    before = opened_with_engine(repository.readonly_session("main"), chunks={})
    commit(repository, 4.0)
    after = opened_with_engine(repository.readonly_session("main"), chunks={})
    assert before.rain.chunks is not None
    assert float((after.rain - before.rain).mean().compute()) == 3.0


def test_a_folder_with_a_repository_needs_no_engine(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    commit(repository, 5.0)
    assert float(xr.open_dataset(tmp_path / "weather").rain.mean()) == 5.0
    assert float(xr.open_dataset(str(tmp_path / "weather")).rain.mean()) == 5.0
    assert float(xr.open_datatree(tmp_path / "weather")["rain"].mean()) == 5.0
    session: Any = repository.readonly_session("main")
    assert float(xr.open_dataset(session).rain.mean()) == 5.0


def test_other_places_are_left_to_other_engines(tmp_path: Path) -> None:
    engine = xr.backends.list_engines()["icefloe"]
    (tmp_path / "a.nc").write_bytes(b"CDF\x01")
    (tmp_path / "folder").mkdir()
    xr.Dataset({"a": ("x", [1])}).to_zarr(tmp_path / "plain.zarr", consolidated=False)
    for other in (tmp_path / "a.nc", tmp_path / "folder", tmp_path / "plain.zarr", tmp_path / "no"):
        assert not engine.guess_can_open(other)
    assert not engine.guess_can_open("https://localhost:1/data")
    assert not engine.guess_can_open(b"CDF\x01")
    assert not engine.guess_can_open({"a": 1})  # type: ignore[arg-type]


def test_a_missing_repository_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFoundError):
        xr.open_dataset(tmp_path / "none", engine="icefloe")


def test_open_zarr_says_what_to_pass(repository: icefloe.Repository) -> None:
    commit(repository, 1.0)
    session = repository.readonly_session("main")
    with pytest.raises(InvalidTypeError, match=r"found a Session: pass `session\.store`"):
        xr.open_zarr(session)
    with pytest.raises(InvalidTypeError, match=r'pass `repo\.readonly_session\("main"\)\.store`'):
        xr.open_zarr(repository)
    with pytest.raises(InvalidTypeError, match="found a ForkSession"):
        xr.open_zarr(repository.writable_session("main").fork(), consolidated=False)


def test_memory_is_a_place(request: pytest.FixtureRequest) -> None:
    place = f"memory://{request.node.name}"
    repository = icefloe.Repository.create(place, **how())
    commit(repository, 6.0)
    assert rain_in(place) == 6.0


def test_looking_for_engines_imports_little() -> None:
    code = (
        "import sys, xarray; xarray.backends.list_engines(); "
        "print([name for name in sys.modules if name.startswith('icefloe.')])"
    )
    names = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert "icefloe.xarray_engine" in names
    assert "icefloe.repository" not in names
    assert "icefloe.session" not in names


@pytest.mark.parametrize("open_it", [xr.open_dataset, xr.open_datatree])
def test_a_group_that_does_not_exist_is_told_with_names_like_it(open_it: Any) -> None:
    repo = new_repository()
    with pytest.raises(icefloe.NodeNotFoundError, match="nothing was written to this version yet"):
        open_it(repo, engine="icefloe")
    with repo.transaction("main", message="a group") as store:
        zarr.create_group(store, path="surface").create_array("t2m", shape=(2,), dtype="f4")
    with pytest.raises(icefloe.NodeNotFoundError, match=r"/surfce does not.*mean '/surface'\?"):
        open_it(repo, engine="icefloe", group="surfce")
    with pytest.raises(
        icefloe.NodeNotFoundError, match="array, not a group: open group='/surface'"
    ):
        open_it(repo, engine="icefloe", group="/surface/t2m")
