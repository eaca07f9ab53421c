"""Parallel writes with dask: forks travel to tasks, their changes come back as one commit."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.dask import session_merge_reduction, store_dask
from icefloe.distributed import extract_session, merge_sessions
from icefloe.xarray import to_icefloe
from tests.builders import new_repository, read_dataset

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULERS = ["synchronous", "threads", "processes"]


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return new_repository(tmp_path / "repository")


def read(repository: icefloe.Repository, name: str) -> Any:
    return zarr.open_array(repository.readonly_session("main").store, path=name, mode="r")[...]


def fork_with_arrays(session: icefloe.Session, **shapes: Any) -> tuple[Any, ...]:
    fork = session.fork()
    root = zarr.open_group(fork.store, mode="a")
    return fork, [
        root.create_array(name, shape=shape, chunks=tuple(2 for _ in shape) or "auto", dtype="f8")
        for name, shape in shapes.items()
    ]


@pytest.mark.parametrize(
    ("scheduler", "split_every"),
    [("synchronous", 2), ("threads", None), ("threads", 100), ("processes", 2)],
)
def test_store_dask(
    repository: icefloe.Repository, scheduler: str, split_every: int | None
) -> None:
    session = repository.writable_session("main")
    shapes = {"a": (9,), "b": (6, 7), "c": (4, 3, 5), "s": ()}
    _, targets = fork_with_arrays(session, **shapes)
    data = {name: np.random.default_rng(1).random(shape) for name, shape in shapes.items()}
    sources = [
        da.from_array(values, chunks=tuple(2 for _ in values.shape)) for values in data.values()
    ]
    merged = store_dask(
        sources=sources, targets=targets, split_every=split_every, scheduler=scheduler
    )
    assert isinstance(merged, icefloe.ForkSession)
    assert not session.has_uncommitted_changes
    session.merge(merged)
    session.commit("in parallel")
    for name, values in data.items():
        np.testing.assert_array_equal(read(repository, name), values)


def test_store_dask_regions(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    _, (target, other) = fork_with_arrays(session, a=(8, 8), b=(4,))
    merged = store_dask(
        sources=[da.ones((4, 4), chunks=2), da.full(4, 3.0, chunks=2)],
        targets=[target, other],
        regions=[(slice(2, 6), slice(4, 8)), None],
    )
    session.merge(merged)
    session.commit("regions")
    expected = np.zeros((8, 8))
    expected[2:6, 4:8] = 1
    np.testing.assert_array_equal(read(repository, "a"), expected)
    assert read(repository, "b").tolist() == [3.0] * 4


@pytest.mark.parametrize("name", ["compute", "return_stored", "load_stored"])
def test_store_dask_decides_when_to_compute(repository: icefloe.Repository, name: str) -> None:
    session = repository.writable_session("main")
    _, (target,) = fork_with_arrays(session, a=(4,))
    with pytest.raises(TypeError, match=name):
        store_dask(sources=[da.ones(4, chunks=2)], targets=[target], **{name: True})  # type: ignore[arg-type]


def test_session_merge_reduction_of_stored_arrays(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    _, targets = fork_with_arrays(session, a=(8,), b=(8,))
    stored = [
        da.store(
            da.full(8, number, chunks=2), target, compute=False, return_stored=True,
            load_stored=False, lock=False,
        )
        for number, target in enumerate(targets, start=1)
    ]  # fmt: skip
    session.merge(session_merge_reduction(stored[0], split_every=None))
    session.merge(session_merge_reduction(stored[1:], split_every=2))
    session.commit("two reductions")
    assert read(repository, "a").tolist() == [1.0] * 8
    assert read(repository, "b").tolist() == [2.0] * 8


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_to_icefloe_makes_one_commit(repository: icefloe.Repository, scheduler: str) -> None:
    rng = np.random.default_rng(3)
    dataset = xr.Dataset(
        {"x": (("t", "y"), rng.random((12, 8))), "z": ("t", rng.integers(0, 9, 12))},
        coords={"t": np.arange(12), "y": np.arange(8.0)},
    )
    session = repository.writable_session("main")
    to_icefloe(
        dataset.chunk({"t": 3, "y": 4}),
        session,
        chunkmanager_store_kwargs={"scheduler": scheduler},
        split_every=2,
    )
    assert session.has_uncommitted_changes
    session.commit("one commit")
    again = read_dataset(repository)
    xr.testing.assert_identical(again.load(), dataset)
    assert len(list(repository.ancestry(branch="main"))) == 2


def test_the_global_scheduler_is_used(repository: icefloe.Repository) -> None:
    dataset = xr.Dataset({"x": ("t", np.arange(12))}).chunk({"t": 3})
    session = repository.writable_session("main")
    with dask.config.set(scheduler="processes"):
        to_icefloe(dataset, session)
    session.commit("by processes")
    assert read(repository, "x").tolist() == list(range(12))


def test_appending_and_regions_by_processes(repository: icefloe.Repository) -> None:
    first = xr.Dataset({"x": ("t", np.arange(12))})
    session = repository.writable_session("main")
    to_icefloe(first, session, encoding={"x": {"chunks": (3,)}})
    session.commit("in memory")
    with dask.config.set(scheduler="processes"):
        session = repository.writable_session("main")
        to_icefloe((first + 100).chunk({"t": 3}), session, append_dim="t")
        session.commit("appended")
        session = repository.writable_session("main")
        to_icefloe(
            (first * 0).isel(t=slice(0, 6)).chunk({"t": 3}), session, region={"t": slice(6, 12)}
        )
        session.commit("a region")
    assert read(repository, "x").tolist() == [*range(6), *[0] * 6, *range(100, 112)]


def test_reading_with_processes(repository: icefloe.Repository) -> None:
    dataset = xr.Dataset({"x": (("t", "y"), np.random.default_rng(5).random((12, 8)))})
    session = repository.writable_session("main")
    to_icefloe(dataset, session, encoding={"x": {"chunks": (3, 4)}})
    session.commit("to read")
    lazy = read_dataset(repository)
    assert lazy.x.chunks == ((3, 3, 3, 3), (4, 4))
    with dask.config.set(scheduler="processes"):
        assert float(lazy.x.sum()) == pytest.approx(float(dataset.x.sum()))


def test_what_a_writable_session_shows_is_not_read_by_other_processes(
    repository: icefloe.Repository,
) -> None:
    session = repository.writable_session("main")
    to_icefloe(xr.Dataset({"x": ("t", np.arange(6.0))}), session, encoding={"x": {"chunks": (3,)}})
    session.commit("to read")
    session = repository.writable_session("main")
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(icefloe.IcefloeError, match="open with a read-only session"),
    ):
        to_icefloe(read_dataset(session) * 2, session, mode="w")
    assert not session.has_uncommitted_changes
    # Threads share the session, and each chunk is read from before the writes.
    with dask.config.set(scheduler="threads"):
        to_icefloe(read_dataset(session).roll(t=3), session, mode="r+")
    session.commit("rolled")
    with dask.config.set(scheduler="processes"):  # and as the message says
        session = repository.writable_session("main")
        to_icefloe(read_dataset(repository) * 2, session, mode="w")
    session.commit("doubled")
    assert read(repository, "x").tolist() == [6, 8, 10, 0, 2, 4]


def test_lazy_arrays_are_named_after_what_a_store_shows(repository: icefloe.Repository) -> None:
    def write(value: Any) -> Any:
        session = repository.writable_session("main")
        to_icefloe(xr.Dataset({"x": ("t", np.full(12, value))}), session, mode="w")
        return session.commit("to read")

    def name(session: Any) -> Any:
        return read_dataset(session).x.data.name

    first, second = write(1), write(2)
    names = [name(repository.readonly_session(snapshot_id=id)) for id in (first, second, first)]
    assert names[0] == names[2] != names[1]
    # What a writable session shows can change.
    writable = repository.writable_session("main")
    assert name(writable) != name(writable)


def test_an_error_in_a_task_leaves_the_session_clean(repository: icefloe.Repository) -> None:
    def fail(block: Any) -> None:
        raise ZeroDivisionError

    session = repository.writable_session("main")
    broken = da.ones(8, chunks=2).map_blocks(fail, dtype="f8", meta=np.empty(0))
    with pytest.raises(ZeroDivisionError):
        to_icefloe(xr.Dataset({"x": ("t", broken)}), session)
    assert not session.has_uncommitted_changes
    with pytest.warns(UserWarning, match="fork"), pytest.raises(icefloe.IcefloeError):
        session.commit("nothing was merged")


def test_forks_written_to_elsewhere(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork, (target,) = fork_with_arrays(session, a=(8,))
    copies = [pickle.loads(pickle.dumps(fork)) for _ in range(4)]
    for number, copy in enumerate(copies):
        array = zarr.open_array(copy.store, path="a")
        array[2 * number : 2 * number + 2] = number
    merged = merge_sessions(copies[:2], [[copies[2]], copies[3]])
    assert merged is copies[0]
    session.merge(merged)
    session.commit("by hand")
    assert read(repository, "a").tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert extract_session(target) is fork


def test_merging_a_session_into_itself_is_harmless(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork, (target,) = fork_with_arrays(session, a=(4,))
    target[:] = 1
    assert merge_sessions(fork, [fork, fork]) is fork
    session.merge(fork, fork)
    session.commit("once")
    assert read(repository, "a").tolist() == [1.0] * 4


def test_the_later_fork_wins(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    fork, _ = fork_with_arrays(session, a=(4,))
    first, second = (pickle.loads(pickle.dumps(fork)) for _ in range(2))
    zarr.open_array(first.store, path="a")[:] = 1
    zarr.open_array(second.store, path="a")[:] = 2
    with pytest.warns(icefloe.OverlapWarning, match="/a"):
        merged = merge_sessions(first, second)
    session.merge(merged)
    session.commit("both wrote")
    assert read(repository, "a").tolist() == [2.0] * 4


def test_only_forks_are_merged(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    with pytest.raises(TypeError, match="Received 'Session'"):
        merge_sessions(session)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Received 'str'"):
        merge_sessions([session.fork(), "fork"])
    with pytest.raises(ValueError, match="at least one"):
        merge_sessions()
    with pytest.raises(TypeError, match="IcefloeStore"):
        extract_session(zarr.create_array({}, shape=(1,), dtype="i4"))


def test_arrays_of_a_writable_session_do_not_travel(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i4")
    with pytest.raises(ValueError, match="fork"):
        pickle.dumps(array)
