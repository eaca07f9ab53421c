"""Pipelines that compute only what depends on changed inputs: values equal those of all of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.spark import publish, run_pipeline
from icefloe.spark.publishing import pipeline_run
from icefloe.tables import scan
from tests.builders import read_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icefloe.spark import PipelineReport

FILE = """
name: derived
target: {repository: target}
steps:
  - {do: copy, source: source, group: in, statistics: [a]}
  - {do: map_blocks, function: add, inputs: [in/a, in/w], output: out/sum}
  - {do: map_blocks, function: double, inputs: own, output: out/own}
  - {do: reduce, array: in/a, how: mean, dims: time, output: out/mean}
  - {do: reduce, array: in/a, how: max, dims: x, output: out/high}
  - {do: reduce, array: in/a, how: sum, by: labels, output: out/by_label, chunks: {labels: 1}}
"""
FUNCTIONS: dict[str, Any] = {"add": lambda a, w: a + w, "double": lambda own: own * 2}


class Derived:
    """A source, and a target whose arrays are derived from it by a pipeline."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        folder.mkdir()
        (folder / "pipeline.yaml").write_text(FILE)
        self.source = icefloe.Repository.create(str(folder / "source"))
        self.target = icefloe.Repository.create(str(folder / "target"))
        with self.source.transaction("main", message="arrays") as store:
            root = zarr.group(store, attributes={"title": "source"})
            self.create(root, "a", np.arange(36.0).reshape(6, 6), (2, 3), ("time", "x"))
            self.create(root, "w", np.arange(6.0), (4,), ("x",))
            self.create(root, "time", np.arange(6), (2,), ("time",))
            self.create(root, "labels", np.array([7, 7, 8, 8, 9, 9]), (6,), ("time",))
        with self.target.transaction("main", message="own array") as store:
            self.create(zarr.group(store), "own", np.arange(8.0), (2,), ("y",))

    @staticmethod
    def create(
        root: Any, name: str, values: Any, chunks: tuple[int, ...], dims: Any, **more: Any
    ) -> Any:
        array = root.create_array(
            name, shape=values.shape, chunks=chunks, dtype=values.dtype, dimension_names=dims,
            overwrite=True, **more,
        )  # fmt: skip
        array[:] = values
        return array

    def change(self, act: Callable[[Any, Random], None], random: Random) -> None:
        session = self.source.writable_session("main")
        act(zarr.open_group(session.store), random)
        session.commit(act.__name__, allow_empty=True)

    def change_own(self, random: Random) -> None:
        with self.target.transaction("main", message="own") as store:
            zarr.open_group(store)["own"][random.randrange(8)] = random.random()

    def run(self) -> PipelineReport:
        report = run_pipeline(self.spark, self.folder / "pipeline.yaml", functions=FUNCTIONS)
        assert report.status in ("published", "up to date"), str(report)
        return report

    def details(self) -> list[str]:
        return [each.detail for each in self.run().steps]

    def check(self) -> None:
        """Compare all arrays with what the source has, and what numpy computes."""
        source: Any = zarr.open_group(self.source.readonly_session("main").store, mode="r")
        target: Any = zarr.open_group(self.target.readonly_session("main").store, mode="r")
        for name, array in source.arrays():
            copied = target[f"in/{name}"]
            np.testing.assert_array_equal(copied[...], array[...], name)
            assert copied.metadata.to_dict() == array.metadata.to_dict()
        assert dict(target["in"].attrs) == dict(source.attrs)
        a = source["a"][...]
        labels = source["labels"][...]
        expected = {
            "sum": a + source["w"][...],
            "own": target["own"][...] * 2,
            "mean": a.mean(0),
            "high": a.max(1),
            "by_label": np.array([a[labels == each].sum(0) for each in np.unique(labels)]),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(target[f"out/{name}"][...], values, err_msg=name)
        np.testing.assert_array_equal(target["out/labels"][...], np.unique(labels))
        np.testing.assert_array_equal(target["out/time"][...], source["time"][...])
        for name in ("sum", "mean", "high"):
            assert dict(target[f"out/{name}"].attrs) == dict(source["a"].attrs)
        # Chunks are left out by statistics, which must be those of the copy.
        limit = float(np.median(a))
        session = self.target.readonly_session("main")
        rows = scan(session, group="in", columns=["a"], variables=["a"], where=f"a > {limit}")
        assert rows.to_table().num_rows == (a > limit).sum()


# --- what may happen to the source


def edit(root: Any, random: Random) -> None:
    rows, columns = root["a"].shape
    root["a"][random.randrange(rows), random.randrange(columns)] = random.random()


def edit_corners(root: Any, random: Random) -> None:
    root["a"][0, 0], root["a"][-1, -1] = random.random(), random.random()


def append(root: Any, random: Random) -> None:
    rows = random.randint(1, 3)
    for name in ("a", "time", "labels"):
        before = root[name].shape[0]
        root[name].resize((before + rows, *root[name].shape[1:]))
        root[name][before:] = 9 if name == "labels" else before + random.random()


def new_label(root: Any, random: Random) -> None:
    append(root, random)
    root["labels"][-1] = 10 + random.randrange(3)


def relabel(root: Any, random: Random) -> None:
    root["labels"][random.randrange(root["labels"].shape[0])] = 6 + random.randrange(3)


def shorten(root: Any, _: Random) -> None:
    for name in ("a", "time", "labels"):
        root[name].resize((max(2, root[name].shape[0] - 3), *root[name].shape[1:]))


def shorten_and_append(root: Any, random: Random) -> None:
    rows = root["a"].shape[0]
    shorten(root, random)
    for name in ("a", "time", "labels"):
        root[name].resize((rows, *root[name].shape[1:]))
    root["labels"][:] = 7


def set_attributes(root: Any, random: Random) -> None:
    root["a"].attrs["units"] = random.choice(["K", "degC", "m"])
    root.attrs["title"] = random.choice(["one", "two"])


def set_weights(root: Any, random: Random) -> None:
    root["w"][random.randrange(6)] = random.random()


def change_fill_value(root: Any, random: Random) -> None:
    values = root["a"][...]
    value = float(random.randrange(100))
    array = Derived.create(root, "a", values, (2, 3), ("time", "x"), fill_value=value)
    array.attrs["filled"] = value


def delete_chunk(root: Any, _: Random) -> None:
    zarr.core.sync.sync(root.store.delete("a/c/0/1"))


def rechunk(root: Any, random: Random) -> None:
    chunks = (random.randint(1, 4), random.randint(2, 6))
    Derived.create(root, "a", root["a"][...], chunks, ("time", "x"))


def add_array(root: Any, random: Random) -> None:
    Derived.create(root, "extra", np.array([random.random()]), (1,), ("z",))


def delete_array(root: Any, _: Random) -> None:
    if "extra" in root:
        del root["extra"]


CHANGES = [
    edit, edit_corners, append, new_label, relabel, shorten, shorten_and_append, set_attributes,
    set_weights, change_fill_value, delete_chunk, rechunk, add_array, delete_array,
]  # fmt: skip


# Each example runs the pipeline several times.
@settings(
    max_examples=max(1, settings.default.max_examples // 20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    order=st.permutations([*CHANGES, "own", "rebase", "expire", "reset"]),
    random=st.randoms(use_true_random=False),
)
def test_updates_equal_a_full_computation(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    order: list[Any],
    random: Random,
) -> None:
    derived = Derived(spark, tmp_path_factory.mktemp("derived") / "here")
    derived.run()
    derived.check()
    while order:
        together, order = order[:3], order[3:]
        for act in together:
            if act == "own":
                derived.change_own(random)
            elif act == "reset":
                earlier = list(derived.source.ancestry(branch="main"))[-2].id
                derived.source.reset_branch("main", earlier)
            elif act == "expire":
                forget_history(derived.source)
            elif act != "rebase":
                derived.change(act, random)
        if "rebase" in together:
            run_while_somebody_commits(derived, random)
        derived.run()
        derived.check()
    assert derived.run().status == "up to date"


def forget_history(repo: icefloe.Repository) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    repo.expire_snapshots(later)
    repo.garbage_collect(later)


def run_while_somebody_commits(derived: Derived, random: Random) -> None:
    """Somebody changes an input of the target between its steps and its publication."""

    def late(*arguments: Any, **options: Any) -> Any:
        derived.change_own(random)
        return publish(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_run, "publish", late)
        derived.change_own(random)
        derived.run()


def test_only_blocks_with_changed_inputs_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    derived = Derived(spark, tmp_path / "here")
    derived.run()

    def one_cell(root: Any, _: Random) -> None:
        root["a"][2, 4] = -1

    derived.change(one_cell, Random(0))
    changed = ", where inputs have changed"
    # Reductions count the chunks that they read: of one block of the result each.
    assert derived.details() == [
        f"1 chunks{changed}", f"1 chunks{changed}", "up to date",
        f"3 chunks{changed}", f"2 chunks{changed}", f"1 chunks{changed}",
    ]  # fmt: skip
    derived.check()
    derived.change_own(Random(1))
    assert derived.details() == ["up to date"] * 2 + [f"1 chunks{changed}"] + ["up to date"] * 3
    assert read_array(derived.target, "out/own", branch="main").shape == (8,)
