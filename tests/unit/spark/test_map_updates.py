"""Which blocks of a result must be computed again after its inputs have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.arrays.grid import whole
from icefloe.spark.engine.job import grid_of
from icefloe.spark.jobs.array_changes import EarlierResult
from icefloe.spark.jobs.inputs import InputArray, copy_coordinates
from icefloe.spark.jobs.map_blocks import block_function
from icefloe.spark.jobs.map_updates import changed_boxes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.arrays.grid import Region
    from icefloe.spark.jobs.map_blocks import BlockFunction

CHUNKS = (2, 3)


def smooth(block: Any, *_: Any) -> Any:
    """A mean with the neighbours along time, which blocks have as overlap."""
    return (np.roll(block, 1, axis=0) + block + np.roll(block, -1, axis=0)) / 3


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    with repo.transaction("main", message="inputs") as store:
        root = zarr.group(store)
        for name, shape, dims in (
            ("a", (5, 6), ("time", "x")),
            ("weight", (6,), ("x",)),
            ("once", (1, 6), ("time", "x")),
            ("time", (5,), ("time",)),
        ):
            chunks = CHUNKS if len(shape) == 2 else (8,)
            new = root.create_array(
                name, shape=shape, chunks=chunks, dtype="f8", dimension_names=dims
            )
            new[:] = np.arange(np.prod(shape)).reshape(shape)
    return repo


def calculation(
    repo: icefloe.Repository, *inputs: str, function: Any = None, **options: Any
) -> BlockFunction:
    base = repo.readonly_session("main")
    options = {"dims": None, "overlap": None, "boundary": "none", "blocks": "numpy", **options}
    return block_function(base, function or (lambda *blocks: sum(blocks)), inputs, **options)


def publish(repo: icefloe.Repository, described: BlockFunction) -> str:
    """Write the result, computed as a whole; returns the snapshot."""
    with repo.transaction("main", message="result") as store:
        new = zarr.group(store).create_array(
            "result",
            shape=described.shape,
            chunks=CHUNKS,
            dtype="f8",
            dimension_names=described.dims,
            overwrite=True,
        )
        new[:] = described(whole(described.shape))
    return repo.lookup_branch("main")


def change(repo: icefloe.Repository, act: Callable[[Any], None]) -> None:
    with repo.transaction("main", message="change") as store:
        act(zarr.open_group(store))


def changed(repo: icefloe.Repository, since: str, described: BlockFunction) -> list[Region] | None:
    base = repo.readonly_session("main")
    boxes = changed_boxes(repo, EarlierResult(since, since), base, described, "/result")
    if boxes is None:
        return None
    grid = msgspec.structs.replace(grid_of(base, "/result"), shape=described.shape)
    return boxes.regions(grid)


def append(rows: int) -> Callable[[Any], None]:
    def act(root: Any) -> None:
        for name in ("a", "time"):
            array = root[name]
            before = array.shape[0]
            array.resize((before + rows, *array.shape[1:]))
            array[before:] = 100 + np.arange(rows * np.prod(array.shape[1:])).reshape(
                rows, *array.shape[1:]
            )

    return act


def set_cells(name: str, *where: Any) -> Callable[[Any], None]:
    def act(root: Any) -> None:
        root[name][where] = -1

    return act


def set_corners(root: Any) -> None:
    root["a"][0, 0] = root["a"][4, 5] = -1


@pytest.mark.parametrize(
    ("act", "inputs", "overlap", "expected"),
    [
        (append(2), ["a"], None, (slice(4, 7), slice(0, 6))),
        (append(2), ["a"], {"time": 1}, (slice(2, 7), slice(0, 6))),
        (append(2), ["a", "weight"], None, (slice(4, 7), slice(0, 6))),
        (append(1), ["a", "once"], None, (slice(4, 6), slice(0, 6))),
        (set_cells("a", 2, 4), ["a"], None, (slice(2, 4), slice(3, 6))),
        (set_cells("a", 2, 4), ["a"], {"time": 1}, (slice(0, 5), slice(3, 6))),
        (set_cells("weight", 4), ["a", "weight"], None, (slice(0, 5), slice(0, 6))),
        (set_cells("once", 0, 4), ["a", "once"], None, (slice(0, 5), slice(3, 6))),
        (set_cells("time", 0), ["a"], None, None),
        (set_corners, ["a"], None, [(slice(0, 2), slice(0, 3)), (slice(4, 5), slice(3, 6))]),
    ],
)
def test_what_is_outside_of_the_changed_region_stays(
    repo: icefloe.Repository,
    act: Callable[[Any], None],
    inputs: list[str],
    overlap: dict[str, int] | None,
    expected: Region | list[Region] | None,
) -> None:
    function = smooth if overlap else None
    since = publish(repo, calculation(repo, *inputs, function=function, overlap=overlap))
    before = repo.readonly_session("main").read_region("/result")
    change(repo, act)
    described = calculation(repo, *inputs, function=function, overlap=overlap)
    regions = changed(repo, since, described)
    assert regions is not None
    if isinstance(expected, tuple):
        expected = [expected]
    assert regions == (expected or [])
    wanted = described(whole(described.shape))
    found = np.full(described.shape, np.nan)
    found[tuple(map(slice, before.shape))] = before
    for region in regions:
        found[region] = described(region)
    if overlap is None:  # at the ends of blocks without neighbours, `roll` is another function
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_array_equal(found[1:-1], wanted[1:-1])


def test_a_result_that_was_made_longer_meanwhile(repo: icefloe.Repository) -> None:
    since = publish(repo, calculation(repo, "a"))

    def act(root: Any) -> None:
        append(2)(root)
        root["result"].resize((7, 6))

    change(repo, act)
    assert changed(repo, since, calculation(repo, "a")) == [(slice(4, 7), slice(0, 6))]
    change(repo, lambda root: root["result"].attrs.update(units="K"))
    assert changed(repo, since, calculation(repo, "a")) is None


def rename(root: Any) -> None:
    root["a"].attrs["units"] = "K"


def replace(root: Any) -> None:
    values = root["a"][:]
    root.create_array(
        "a", shape=(5, 6), chunks=CHUNKS, dtype="f8", dimension_names=("time", "x"), overwrite=True
    )[:] = values


def shrink(root: Any) -> None:
    root["a"].resize((4, 6))


def lengthen(root: Any) -> None:
    append(1)(root)
    root["once"].resize((6, 6))


@pytest.mark.parametrize("act", [rename, replace, shrink, lengthen, set_cells("result", 0, 0)])
def test_other_changes_are_not_a_region(
    repo: icefloe.Repository, act: Callable[[Any], None]
) -> None:
    since = publish(repo, calculation(repo, "a", "once"))
    change(repo, act)
    assert changed(repo, since, calculation(repo, "a", "once")) is None


def test_functions_that_see_labels_depend_on_them(repo: icefloe.Repository) -> None:
    since = publish(repo, calculation(repo, "a"))
    change(repo, append(2))
    described = calculation(repo, "a", blocks="xarray")
    assert changed(repo, since, described) == [(slice(4, 7), slice(0, 6))]
    change(repo, set_cells("time", 0))
    assert changed(repo, since, calculation(repo, "a", blocks="xarray")) is None


def test_coordinates_beside_a_result_grow_with_it(repo: icefloe.Repository) -> None:
    def with_result(root: Any, rows: int) -> None:
        root.create_array(
            "far/result", shape=(rows, 6), chunks=CHUNKS, dtype="f8",
            dimension_names=("time", "x"), overwrite=True,
        )  # fmt: skip

    for rows in (5, 7):
        if rows == 7:
            change(repo, append(2))
        base, session = repo.readonly_session("main"), repo.writable_session("main")
        with_result(zarr.open_group(session.store), rows)
        inputs = [InputArray.of(base, "a")]
        copy_coordinates(base, session, inputs, ("time", "x"), "/far/result")
        session.commit("result")
        np.testing.assert_array_equal(
            repo.readonly_session("main").read_region("/far/time"), base.read_region("/time")
        )


def test_a_coordinate_of_another_branch_is_not_the_one_beside_the_result(
    repo: icefloe.Repository,
) -> None:
    repo.create_branch("dev", repo.lookup_branch("main"))
    with repo.transaction("dev", message="two more") as store:
        append(2)(zarr.open_group(store))
    base, session = repo.readonly_session("dev"), repo.writable_session("main")
    zarr.open_group(session.store).create_array(
        "result", shape=(7, 6), chunks=CHUNKS, dtype="f8", dimension_names=("time", "x")
    )
    copy_coordinates(base, session, [InputArray.of(base, "a")], ("time", "x"), "/result")
    np.testing.assert_array_equal(session.read_region("/time"), base.read_region("/time"))
