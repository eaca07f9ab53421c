"""Which blocks of a reduction must be computed again after its array has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.arrays.grid import whole
from icefloe.spark.engine.job import grid_of
from icefloe.spark.jobs.array_changes import ArrayChange, EarlierResult, ResultBoxes
from icefloe.spark.jobs.reduce import aggregation_of, reduction_of
from icefloe.spark.jobs.reduce_updates import _add, changed_boxes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.arrays.grid import Region
    from icefloe.spark.jobs.reduce import Reduction

LABELS = [7, 7, 8, 8, 9, 9]


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    with repo.transaction("main", message="inputs") as store:
        root = zarr.group(store)
        values = np.arange(36.0).reshape(6, 6)
        root.create_array("a", data=values, chunks=(2, 3), dimension_names=("time", "x"))
        root.create_array("labels", data=np.array(LABELS), dimension_names=("time",))
    return repo


def reduction(repo: icefloe.Repository, **options: Any) -> Reduction:
    how = aggregation_of("sum", skipna=None, q=None, ddof=0)
    options = {"dims": None, "by": None, "several_quantiles": False, "block_bytes": 64, **options}
    return reduction_of(repo.readonly_session("main"), "a", how, **options)


def publish(repo: icefloe.Repository, described: Reduction) -> str:
    """Write the result, computed as a whole, in chunks of one element; returns the snapshot."""
    with repo.transaction("main", message="result") as store:
        zarr.open_group(store).create_array(
            "result",
            data=described(whole(described.shape)),
            chunks=(1,) * len(described.shape),
            dimension_names=described.dims,
        )
    return repo.lookup_branch("main")


def change(repo: icefloe.Repository, act: Callable[[Any], None]) -> None:
    with repo.transaction("main", message="change") as store:
        act(zarr.open_group(store))


def changed(repo: icefloe.Repository, since: str, by: str | None, **options: Any) -> Any:
    """What must be computed again: the elements, and all values after that."""
    described = reduction(repo, by=by, **options)
    base = repo.readonly_session("main")
    before = base.read_region("/result")
    boxes = changed_boxes(repo, EarlierResult(since, since), base, described, "/result", by)
    if boxes is None:
        return None
    grid = msgspec.structs.replace(grid_of(base, "/result"), shape=described.shape)
    found = np.full(described.shape, np.nan)
    found[tuple(map(slice, before.shape))] = before
    computed: list[Region] = boxes.regions(grid)
    for region in computed:
        found[region] = described(region)
    np.testing.assert_array_equal(found, described(whole(described.shape)))
    return computed


def set_cell(root: Any) -> None:
    root["a"][2, 4] = -1


def append(label: int) -> Callable[[Any], None]:
    def act(root: Any) -> None:
        root["a"].resize((7, 6))
        root["labels"].resize((7,))
        root["a"][6], root["labels"][6] = 1, label

    return act


def relabel(root: Any) -> None:
    root["labels"][0] = 8


def write_again(root: Any) -> None:
    root["labels"][:] = LABELS


@pytest.mark.parametrize(
    ("act", "options", "expected"),
    [
        (set_cell, {"dims": "time"}, [(slice(3, 6),)]),
        (set_cell, {"dims": "x"}, [(slice(2, 4),)]),
        (set_cell, {"by": "labels"}, [(slice(1, 2), slice(3, 6))]),
        (set_cell, {"by": "labels", "dims": "x"}, [(slice(1, 2),)]),
        (append(9), {"by": "labels"}, [(slice(2, 3), slice(0, 6))]),
        (append(10), {"by": "labels"}, [(slice(3, 4), slice(0, 6))]),
        (append(9), {"dims": "x"}, [(slice(6, 7),)]),
        (append(1), {"by": "labels"}, None),  # which is the first group now
        (relabel, {"by": "labels"}, None),
        (write_again, {"by": "labels"}, []),
    ],
)
def test_only_blocks_that_depend_on_changed_elements_are_computed(
    repo: icefloe.Repository,
    act: Callable[[Any], None],
    options: dict[str, Any],
    expected: list[Region] | None,
) -> None:
    since = publish(repo, reduction(repo, **options))
    change(repo, act)
    assert changed(repo, since, **{"by": None, **options}) == expected


def test_a_changed_chunk_counts_for_the_groups_of_its_own_elements(
    repo: icefloe.Repository,
) -> None:
    described = reduction(repo, by="labels")
    rows = np.arange(6)
    lower, upper = (np.stack([rows + step, np.full(6, 3 * step)], 1) for step in (0, 1))
    boxes = ResultBoxes(described.shape)
    _add(boxes, ArrayChange((6, 6), lower, upper), described)
    assert sum(map(len, boxes._lower)) == 6
    [low], [high] = (np.concatenate(each)[None] for each in (boxes._lower, boxes._upper))
    assert sorted(map(tuple, np.c_[low, high].tolist())) == sorted(
        (label - 7, 0, label - 6, 3) for label in LABELS
    )
