"""Aggregate functions as partial states of blocks that can be merged. No I/O, no Spark.

A state is a dictionary of arrays of shape (groups, *kept), where `kept` are the dimensions that are
not reduced. States of parts of the reduced elements merge in any order; `first` and `last` keep the
place of their element for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

State: TypeAlias = dict[str, "npt.NDArray[Any]"]

HOWS = ("sum", "mean", "min", "max", "count", "std", "var", "first", "last", "quantile")
SKETCH_POINTS = 200
"""Points of a quantile sketch per cell; quantiles of no more values than this are exact."""


class Aggregation(Record, frozen=True):
    """An aggregate function and its parameters.

    Attributes:
        how: One of `HOWS`.
        skipna: Whether missing values (NaN) are skipped; None: for floats, as in xarray.
        quantiles: The quantiles to compute, between 0 and 1, for `quantile`.
        ddof: Delta degrees of freedom, for `std` and `var`.
    """

    how: str
    skipna: bool | None = None
    quantiles: tuple[float, ...] = ()
    ddof: int = 0

    def check(self) -> None:
        """Raise InvalidInputError for parameters that make no sense."""
        if self.how not in HOWS:
            raise InvalidInputError(f"a reduction is one of {', '.join(HOWS)}; found {self.how!r}")
        if (self.how == "quantile") != bool(self.quantiles):
            raise InvalidInputError("quantiles are given with how='quantile', and only then")
        if any(not 0 <= q <= 1 for q in self.quantiles):
            raise InvalidInputError(f"quantiles are between 0 and 1: {self.quantiles}")

    def skips(self, dtype: np.dtype[Any]) -> bool:
        """Whether missing values of a data type are skipped."""
        has_nan = dtype.kind in "fc"
        return has_nan if self.skipna is None else self.skipna and has_nan

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the data type of the result, which is that of xarray."""
        if self.how == "count":
            return np.dtype("i8")
        if self.how in ("min", "max", "first", "last"):
            return dtype
        if self.how == "sum":
            if dtype.kind in "bi":
                return np.dtype("i8")
            return np.dtype("u8") if dtype.kind == "u" else dtype
        if self.how == "quantile":
            return np.dtype("f8")
        return dtype if dtype.kind in "fc" else np.dtype("f8")


def partial(
    aggregation: Aggregation,
    values: npt.NDArray[Any],
    axes: Sequence[int],
    groups: npt.NDArray[np.intp] | None,
    num_groups: int,
    start: int = 0,
) -> State:
    """Compute the state of one block.

    Args:
        aggregation: What to compute.
        values: The block.
        axes: The axes to reduce.
        groups: The number of the group of each element along the reduced axes; negative: in no
            group. None: all are in one group.
        num_groups: The number of groups.
        start: The place of the block among the reduced elements, for `first` and `last`.
    """
    moved = np.moveaxis(values, tuple(axes), range(len(axes)))
    kept = moved.shape[len(axes) :]
    flat = moved.reshape(-1, *kept)
    if groups is None:
        return _stacked([_state(aggregation, flat, start, np.arange(len(flat)))], aggregation)
    labels = groups.reshape(-1)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(num_groups + 1))
    states = []
    for number in range(num_groups):
        rows = order[bounds[number] : bounds[number + 1]]
        states.append(_state(aggregation, flat[rows], start, rows))
    return _stacked(states, aggregation)


def _stacked(states: Sequence[State], aggregation: Aggregation) -> State:
    if aggregation.how != "quantile":
        return {name: np.stack([state[name] for state in states]) for name in states[0]}
    width = max(state["points"].shape[0] for state in states)
    return {
        name: np.stack([_widened(state[name], width, fill) for state in states])
        for name, fill in (("points", np.nan), ("weights", 0.0))
    }


def _widened(values: npt.NDArray[Any], width: int, fill: float) -> npt.NDArray[Any]:
    missing = [(0, width - values.shape[0])] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, missing, constant_values=fill)


def _state(
    aggregation: Aggregation, flat: npt.NDArray[Any], start: int, rows: npt.NDArray[np.intp]
) -> State:
    """Compute the state of elements (n, *kept) of one group."""
    skips = aggregation.skips(flat.dtype)
    valid = ~np.isnan(flat) if skips else None
    how = aggregation.how
    if how == "count":
        real = ~np.isnan(flat) if flat.dtype.kind in "fc" else np.ones(flat.shape, bool)
        return {"count": real.sum(axis=0, dtype="i8")}
    if how == "quantile":
        return _sketch_of(flat, skips=skips)
    if how in ("first", "last"):
        return _ends(how, flat, valid, start, rows)
    count = (
        np.full(flat.shape[1:], len(flat), dtype="i8")
        if valid is None
        else valid.sum(axis=0, dtype="i8")
    )
    if how in ("min", "max"):
        return {"count": count, "value": _extreme(how, flat, valid)}
    return {"count": count, **_moments(how, flat, valid, count)}


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type in which sums are accumulated."""
    if dtype.kind in "bi":
        return np.dtype("i8")
    if dtype.kind == "u":
        return np.dtype("u8")
    return np.dtype("c16") if dtype.kind == "c" else np.dtype("f8")


def _moments(
    how: str,
    flat: npt.NDArray[Any],
    valid: npt.NDArray[np.bool_] | None,
    count: npt.NDArray[np.int64],
) -> State:
    wide = _wide(flat.dtype) if how == "sum" else np.dtype("f8")
    if flat.dtype.kind == "c":
        wide = np.dtype("c16")
    numbers = flat if valid is None else np.where(valid, flat, 0)
    total = numbers.sum(axis=0, dtype=wide)
    if how in ("sum", "mean"):
        return {"sum": total}
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    away = flat.astype(wide) - mean
    if valid is not None:
        away = np.where(valid, away, 0)
    return {"mean": mean, "squares": (away * away).sum(axis=0)}


def _extreme(
    how: str, flat: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None
) -> npt.NDArray[Any]:
    if len(flat) == 0:
        return np.zeros(flat.shape[1:], flat.dtype)
    if valid is None:
        plain: npt.NDArray[Any] = flat.min(axis=0) if how == "min" else flat.max(axis=0)
        return plain
    pick = np.fmin if how == "min" else np.fmax
    result: npt.NDArray[Any] = pick.reduce(flat, axis=0)
    return result


_NOWHERE = np.iinfo(np.int64).max


def _ends(
    how: str,
    flat: npt.NDArray[Any],
    valid: npt.NDArray[np.bool_] | None,
    start: int,
    rows: npt.NDArray[np.intp],
) -> State:
    """Return the first or last element and its place; `_NOWHERE` if there is none."""
    kept = flat.shape[1:]
    if len(flat) == 0:
        return {"place": np.full(kept, _NOWHERE), "value": np.zeros(kept, flat.dtype)}
    usable = np.ones(flat.shape, bool) if valid is None else valid
    turned = usable if how == "first" else usable[::-1]
    index = turned.argmax(axis=0)
    index = index if how == "first" else len(flat) - 1 - index
    value = np.take_along_axis(flat, index[np.newaxis], axis=0)[0]
    place = np.asarray(rows, dtype=np.int64)[index] + start
    # The smallest place wins in both cases: those of `last` are negative.
    place = place if how == "first" else -place
    return {"place": np.where(usable.any(axis=0), place, _NOWHERE), "value": value}


# --- merging


def merge(aggregation: Aggregation, first: State, second: State) -> State:
    """Merge the states of two parts."""
    how = aggregation.how
    if how == "quantile":
        return _merged_sketches(first, second)
    if how in ("first", "last"):
        better = first["place"] <= second["place"]
        return {name: np.where(better, first[name], second[name]) for name in first}
    count = first["count"] + second["count"]
    if how == "count":
        return {"count": count}
    if how in ("sum", "mean"):
        return {"count": count, "sum": first["sum"] + second["sum"]}
    if how in ("min", "max"):
        return {"count": count, "value": _merged_extremes(aggregation, first, second)}
    share = np.divide(second["count"], count, out=np.zeros(count.shape), where=count > 0)
    apart = second["mean"] - first["mean"]
    return {
        "count": count,
        "mean": first["mean"] + apart * share,
        "squares": first["squares"] + second["squares"] + apart * apart * first["count"] * share,
    }


def _merged_extremes(aggregation: Aggregation, first: State, second: State) -> npt.NDArray[Any]:
    one, two = first["value"], second["value"]
    if aggregation.skips(one.dtype):
        both = np.fmin(one, two) if aggregation.how == "min" else np.fmax(one, two)
    else:
        both = np.minimum(one, two) if aggregation.how == "min" else np.maximum(one, two)
    either = np.where(first["count"] > 0, one, two)
    result: npt.NDArray[Any] = np.where((first["count"] > 0) & (second["count"] > 0), both, either)
    return result


# --- quantile sketches: weighted points, sorted, at most SKETCH_POINTS for each cell


def _sketch_of(flat: npt.NDArray[Any], *, skips: bool) -> State:
    numbers = flat.astype("f8")
    weights = np.ones(numbers.shape)
    if skips:
        missing = np.isnan(numbers)
        weights[missing] = 0
    return _compressed(numbers, weights)


def _merged_sketches(first: State, second: State) -> State:
    points = np.concatenate([first["points"], second["points"]], axis=1)
    weights = np.concatenate([first["weights"], second["weights"]], axis=1)
    merged = _compressed(np.moveaxis(points, 1, 0), np.moveaxis(weights, 1, 0))
    return {name: np.moveaxis(values, 0, 1) for name, values in merged.items()}


def _compressed(points: npt.NDArray[Any], weights: npt.NDArray[Any]) -> State:
    """Sort points (n, …) and thin them out to points of equal weight."""
    # A NaN with weight makes the result NaN and must survive, so it is sorted first; points
    # without weight are no values, and are sorted last.
    rank = np.where(np.isnan(points), -np.inf, points)
    order = np.argsort(np.where(weights > 0, rank, np.inf), axis=0, kind="stable")
    points = np.take_along_axis(points, order, axis=0)
    weights = np.take_along_axis(weights, order, axis=0)
    used = int((weights > 0).sum(axis=0).max(initial=0))
    points, weights = points[:used], weights[:used]
    if used <= SKETCH_POINTS:
        return {"points": points, "weights": weights}
    ends = np.cumsum(weights, axis=0)
    total = ends[-1]
    chosen = []
    for number in range(SKETCH_POINTS):
        # The first and last point are kept, so that minimum and maximum stay exact.
        share = number / (SKETCH_POINTS - 1)
        index = (ends <= share * total).sum(axis=0).clip(0, used - 1)
        last = (weights > 0).sum(axis=0) - 1
        index = np.minimum(index, last.clip(0))
        chosen.append(np.take_along_axis(points, index[np.newaxis], axis=0)[0])
    even = np.broadcast_to(total / SKETCH_POINTS, (SKETCH_POINTS, *total.shape)).copy()
    return {"points": np.stack(chosen), "weights": even}


def _sketch_quantiles(state: State, quantiles: Sequence[float]) -> npt.NDArray[Any]:
    """Interpolate quantiles (quantile, groups, *kept) linearly between the points."""
    points, weights = np.moveaxis(state["points"], 1, 0), np.moveaxis(state["weights"], 1, 0)
    number = (weights > 0).sum(axis=0)
    spoilt = (np.isnan(points) & (weights > 0)).any(axis=0) | (number == 0)
    if len(points) == 0:
        return np.full((len(quantiles), *number.shape), np.nan)
    results = []
    for quantile in quantiles:
        place = quantile * (number - 1).clip(0)
        low = np.floor(place).astype(np.intp)
        high = np.minimum(low + 1, (number - 1).clip(0))
        below = np.take_along_axis(points, low[np.newaxis], axis=0)[0]
        above = np.take_along_axis(points, high[np.newaxis], axis=0)[0]
        results.append(np.where(spoilt, np.nan, below + (above - below) * (place - low)))
    return np.stack(results)


# --- results


def finish(aggregation: Aggregation, state: State, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Turn a state into values (groups, *kept); quantiles into (quantile, groups, *kept)."""
    how = aggregation.how
    result_dtype = aggregation.result_dtype(dtype)
    if how == "count":
        return state["count"]
    if how == "quantile":
        return _sketch_quantiles(state, aggregation.quantiles)
    if how in ("first", "last"):
        return _where_any(state["place"] < _NOWHERE, state["value"], result_dtype)
    count = state["count"]
    if how == "sum":
        return state["sum"].astype(result_dtype)
    if how in ("min", "max"):
        return _where_any(count > 0, state["value"], result_dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        if how == "mean":
            return (state["sum"] / count).astype(result_dtype)
        spread = np.where(
            count > aggregation.ddof, state["squares"] / (count - aggregation.ddof), np.nan
        )
        return (np.sqrt(spread) if how == "std" else spread).astype(result_dtype)


def _where_any(
    present: npt.NDArray[np.bool_], values: npt.NDArray[Any], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Set values to NaN where no element was present, if the data type has NaN."""
    if dtype.kind not in "fc":
        return values.astype(dtype)
    return np.where(present, values, np.nan).astype(dtype)
