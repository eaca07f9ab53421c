"""What became of an expectation: from the findings of tasks to a result with its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.cf.decoding import coding_of
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.jobs.inputs import InputArray, find_coordinate
from icefloe.spark.publishing import expectations as expected
from icefloe.spark.publishing.cell_checks import MAP_COLUMNS, MAP_ROWS, Findings
from icefloe.spark.publishing.validation_report import CheckResult, Example, FailureMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.spark.publishing.expectations import Expectation
    from icefloe.zarr_store.session_port import SessionPort


class PlannedCheck(Record, frozen=True, eq=False):
    """An expectation of one array."""

    expectation: Any
    array: str
    input: InputArray | None = None
    result: CheckResult | None = None

    def settled(self, *, passed: bool, detail: str, **more: Any) -> PlannedCheck:
        """The check with its result."""
        expectation: Expectation = self.expectation
        result = CheckResult(
            expectation=expectation.kind,
            title=expectation.title,
            array=self.array,
            passed=passed,
            detail=detail,
            severity=expectation.severity,
            **more,
        )
        return msgspec.structs.replace(self, result=result)

    def judged(self, session: SessionPort, findings: Findings) -> PlannedCheck:
        """The check with what was found in all of the array."""
        passed = findings.failing <= self.expectation.tolerated_share * findings.cells
        more: dict[str, Any] = {"cells": findings.cells, "failing": findings.failing}
        if not passed and self.input is not None:
            more["where"] = _failure_map(self.input, findings)
            more["examples"] = tuple(
                Example(each.index, _labels(session, self.input, each.index), each.value)
                for each in findings.examples
            )
        return self.settled(passed=passed, detail=_detail(self.expectation, findings), **more)


def _failure_map(array: InputArray, findings: Findings) -> FailureMap | None:
    if not findings.plane and not findings.profile:
        return None
    rows, columns = (1, 1, *array.shape)[-2:]
    return FailureMap(
        dims=array.dims,
        shape=array.shape,
        plane_shape=(min(rows, MAP_ROWS), min(columns, MAP_COLUMNS)),
        plane=findings.plane,
        profile_bins=min(array.shape[0], MAP_COLUMNS) if array.shape else 1,
        profile=findings.profile,
    )


def _labels(session: SessionPort, array: InputArray, index: Sequence[int]) -> dict[str, str]:
    """The coordinates of a cell."""
    labels = {}
    for dim, place in zip(array.dims, index, strict=True):
        coordinate = find_coordinate(session, array.path, dim)
        if coordinate is None or coordinate.shape[0] <= place or paths.name(array.path) == dim:
            continue
        coding = coding_of(coordinate.dtype, dict(coordinate.attrs))
        value = coding.decode(np.asarray(coordinate[place : place + 1]))[0]
        is_time = isinstance(value, np.datetime64)
        labels[dim] = str(np.datetime_as_string(value, unit="auto") if is_time else value)
    return labels


def _detail(expectation: Expectation, findings: Findings) -> str:
    """What was found, in a sentence."""
    if isinstance(expectation, expected.MissingAtMost):
        share = findings.failing / max(1, findings.cells)
        most = f"at most {expectation.share:.2%} may be missing"
        return f"{_of(findings, 'missing')} ({share:.2%}); {most}"
    match expectation:
        case expected.InRange():
            wrong, right = f"outside of {_range(expectation)}", f"within {_range(expectation)}"
        case expected.Monotonic(direction=direction):
            way = "" if direction == "either" else f" ({direction})"
            wrong, right = f"out of order{way}", f"in order{way}"
        case expected.GapFree():
            wrong, right = "not one step behind the one before", "one step apart"
        case expected.NoDuplicates():
            wrong, right = "there more than once", "different"
        case expected.EqualTo(version=version):
            wrong, right = f"different from {version}", f"equal to {version}, of those compared"
        case expected.BlockCheck(function=function):
            wrong, right = f"not accepted by {function}", f"accepted by {function}"
        case _:
            raise AssertionError(expectation)
    if not findings.cells and isinstance(expectation, expected.EqualTo):
        return f"nothing was written since {expectation.version}"
    if not findings.failing:
        return f"all {findings.cells:,} values are {right}"
    return f"{_of(findings, wrong)}{_span(findings)}"


def _of(findings: Findings, what: str) -> str:
    verb = "is" if findings.failing == 1 else "are"
    return f"{findings.failing:,} of {findings.cells:,} values {verb} {what}"


def _span(findings: Findings) -> str:
    if findings.low is None or findings.high is None:
        return ""
    return (
        f": {findings.low:g}"
        if findings.low == findings.high
        else f": {findings.low:g} to {findings.high:g}"
    )


def _range(expectation: expected.InRange) -> str:
    limits = (expectation.low, expectation.high)
    low, high = (f"{each:g}" if isinstance(each, float | int) else each for each in limits)
    if low is None or high is None:
        return f"{low} and more" if high is None else f"{high} and less"
    return f"{low} to {high}"
