"""Reductions by parts equal xarray's on the whole."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from icefloe.errors import InvalidInputError
from icefloe.spark.jobs.aggregation import HOWS, SKETCH_POINTS, Aggregation, finish, merge, partial

floats = npst.arrays(
    st.sampled_from(["f4", "f8"]),
    st.tuples(st.integers(1, 9), st.integers(1, 3)),
    elements=st.one_of(st.just(float("nan")), st.integers(-50, 50).map(float)),
)
integers = npst.arrays(
    st.sampled_from(["i2", "i4", "u1"]),
    st.tuples(st.integers(1, 9), st.integers(1, 3)),
    elements=st.integers(0, 90),
)


def in_parts(aggregation: Any, values: Any, labels: Any, num_groups: Any, cuts: Any) -> Any:
    state = None
    bounds = sorted({0, len(values), *(cut % len(values) for cut in cuts)})
    for low, high in itertools.pairwise(bounds):
        part = None if labels is None else labels[low:high]
        fresh = partial(aggregation, values[low:high], (0,), part, num_groups, low)
        state = fresh if state is None else merge(aggregation, state, fresh)
    return finish(aggregation, state, values.dtype)


def with_xarray(aggregation: Any, values: Any, labels: Any) -> Any:
    array = xr.DataArray(values, dims=("t", "x"), coords={"t": np.arange(len(values))})
    how = aggregation.how
    given = {} if how == "count" else {"skipna": aggregation.skipna}
    if how in ("std", "var"):
        given["ddof"] = aggregation.ddof
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "quantile":
            given["q"] = list(aggregation.quantiles)
        grouped = array.groupby(xr.DataArray(labels, dims="t", name="g"))
        return getattr(grouped, how)(**given)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=settings.default.max_examples // 4)  # xarray's groupby is slow
@given(
    values=st.one_of(floats, integers),
    cuts=st.lists(st.integers(0, 20), max_size=3),
    labels=st.lists(st.integers(0, 2), min_size=9, max_size=9),
    skipna=st.sampled_from([None, True, False]),
)
def test_parts_give_what_xarray_gives(
    how: str, values: Any, cuts: Any, labels: Any, skipna: Any
) -> None:
    if how in ("first", "last") and skipna is False:
        skipna = None  # xarray means the same, and says so only in newer versions
    aggregation = Aggregation(how, skipna, (0.0, 0.3, 1.0) if how == "quantile" else ())
    labels = np.array(labels[: len(values)])
    present, codes = np.unique(labels, return_inverse=True)
    found = in_parts(aggregation, values, codes, len(present), cuts)
    expected = with_xarray(aggregation, values, labels)
    if how == "quantile":
        expected = expected.transpose("quantile", "g", "x")
    elif "g" in expected.dims:
        expected = expected.transpose("g", "x")
    np.testing.assert_allclose(found, expected.values, rtol=1e-5, atol=1e-6)
    assert found.dtype == aggregation.result_dtype(values.dtype)
    if how not in ("quantile",):
        assert found.dtype == expected.dtype


def test_a_sketch_of_many_values_is_close() -> None:
    values = np.random.default_rng(4).normal(size=(20_000, 3))
    aggregation = Aggregation("quantile", None, (0.0, 0.05, 0.5, 0.9, 1.0))
    found = in_parts(aggregation, values, None, 1, range(0, 20_000, 1000))[:, 0]
    ranks = [(values <= row).mean(axis=0) for row in found]
    for quantile, rank in zip(aggregation.quantiles, ranks, strict=True):
        np.testing.assert_allclose(rank, quantile, atol=3 / SKETCH_POINTS)
    np.testing.assert_array_equal(found[0], values.min(axis=0))
    np.testing.assert_array_equal(found[-1], values.max(axis=0))


def test_several_dimensions_vanish_together() -> None:
    values = np.random.default_rng(5).normal(size=(4, 5, 6))
    labels = np.arange(20).reshape(4, 5) % 3
    mean = Aggregation("mean")
    found = finish(mean, partial(mean, values.transpose(0, 2, 1), (0, 2), labels, 3), values.dtype)
    for number in range(3):
        np.testing.assert_allclose(found[number], values[labels == number].mean(axis=0))


@pytest.mark.parametrize(
    "wrong",
    [
        Aggregation("median"),
        Aggregation("mean", None, (0.5,)),
        Aggregation("quantile", None, (2.0,)),
    ],
)
def test_nonsense_is_refused(wrong: Aggregation) -> None:
    with pytest.raises(InvalidInputError):
        wrong.check()
