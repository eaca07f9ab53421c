"""Plans a validation: which checks there are, and what tasks must read for them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.cell_differences import incomparable
from icefloe.arrays.grid import split, whole
from icefloe.arrays.value_diff import means_the_same
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.record import Record
from icefloe.spark.engine.job import grid_of
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.inputs import InputArray
from icefloe.spark.publishing import expectations as expected
from icefloe.spark.publishing.cell_checks import (
    AnyUnit,
    CellUnit,
    CoordinateUnit,
    EqualCheck,
    Findings,
    FunctionCheck,
    MissingCheck,
    RangeCheck,
    shape_text,
)
from icefloe.spark.publishing.coordinate_checks import GapCheck, MonotonicCheck, duplicated
from icefloe.spark.publishing.judging import PlannedCheck
from icefloe.spark.publishing.statistics_shortcut import settle_by_statistics
from icefloe.tables.schema import attributes_of
from icefloe.tables.summarize import boxes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icefloe.engine.info import Diff
    from icefloe.model.chunk_index import Box
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.publishing.expectations import Expectation


class CheckPiece(Record, frozen=True):
    """A part of the work of one unit: a box of chunks, or a whole coordinate."""

    unit: int
    box: Any = None


class CheckPlan:
    """Which checks there are, and which of them need tasks."""

    def __init__(self, repository: Repository, session: Session, functions: dict[str, Any]) -> None:
        self._repository = repository
        self._session = session
        self._spec = SessionSpec.of(session)
        self._functions = functions
        self._arrays = [p for p in session.tree.array_paths() if not p.startswith("/.")]
        self._of_cells: dict[str, dict[int, Any]] = {}
        self._of_coordinates: dict[tuple[str, ...], dict[int, Any]] = {}
        self._versions: dict[str, tuple[Session, SessionSpec, Diff | None]] = {}
        self.checks: list[PlannedCheck] = []
        self.units: list[AnyUnit] = []
        self._boxes: list[tuple[int, Box]] = []
        self.known: dict[int, Findings] = {}
        self.chunks_skipped = 0

    def add(self, expectation: Expectation) -> None:
        """Plan the checks of one expectation."""
        match expectation:
            case expected.HasAttributes() | expected.HasUnits():
                self._add_attributes(expectation)
            case expected.InRange(arrays=arrays, low=low, high=high):
                self._add_cells(expectation, arrays, RangeCheck(_limit(low), _limit(high)))
            case expected.MissingAtMost(arrays=arrays):
                self._add_cells(expectation, arrays, MissingCheck())
            case expected.Monotonic(arrays=arrays, direction=direction, strict=strict):
                self._add_coordinates(expectation, arrays, MonotonicCheck(direction, strict))
            case expected.GapFree(arrays=arrays, step=step, tolerance=tolerance):
                self._add_coordinates(expectation, arrays, GapCheck(step, tolerance))
            case expected.NoDuplicates(coordinates=coordinates):
                self._add_coordinates(expectation, coordinates, duplicated, together=True)
            case expected.BlockCheck():
                self._add_function(expectation)
            case expected.EqualTo(arrays=arrays):
                for path in self._chosen(expectation, arrays):
                    self._add_comparison(expectation, path)
            case _:
                raise InvalidInputError(
                    f"an expectation is one of InRange, MissingAtMost, Monotonic, GapFree, "
                    f"NoDuplicates, HasUnits, HasAttributes, EqualTo, BlockCheck; found "
                    f"{expectation!r}"
                )

    def _chosen(self, expectation: Expectation, arrays: expected.Arrays) -> list[str]:
        """The arrays that are meant. If there are none, the expectation is not met."""
        try:
            return chosen_arrays(arrays, self._arrays)
        except NodeNotFoundError as error:
            missing = PlannedCheck(expectation, error.path)
            detail = error.message.removeprefix("node not found: ")
            self.checks.append(missing.settled(passed=False, detail=detail))
            return []

    def _new(self, expectation: Expectation, path: str) -> int:
        """Add a check whose result is not known yet; returns its number."""
        input_array = InputArray.of(self._session, path, self._spec)
        self.checks.append(PlannedCheck(expectation, input_array.path, input_array))
        return len(self.checks) - 1

    # --- metadata

    def _add_attributes(self, expectation: expected.HasAttributes | expected.HasUnits) -> None:
        required: Any = ("units",)
        if isinstance(expectation, expected.HasAttributes):
            nodes, required = expectation.nodes, expectation.attributes
        else:
            nodes = expectation.arrays
            required = required if expectation.units is None else {"units": expectation.units}
        for name in [nodes] if isinstance(nodes, str) else nodes:
            path = paths.canonical(name)
            node = self._session.get_node(path)
            is_node = isinstance(expectation, expected.HasAttributes) and node is not None
            for each in [path] if is_node else self._chosen(expectation, name):
                wrong = list(_wrong_attributes(attributes_of(self._session, each), required))
                detail = "; ".join(wrong) or f"has {', '.join(required)}"
                check = PlannedCheck(expectation, each)
                self.checks.append(check.settled(passed=not wrong, detail=detail))

    # --- cells

    def _add_cells(self, expectation: Expectation, arrays: expected.Arrays, check: Any) -> None:
        for path in self._chosen(expectation, arrays):
            number = self._new(expectation, path)
            self._of_cells.setdefault(path, {})[number] = check

    def _add_function(self, expectation: expected.BlockCheck) -> None:
        function = self._functions.get(expectation.function)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            raise InvalidInputError(
                f"no function is called {expectation.function!r}: give it as "
                f"functions={{{expectation.function!r}: ...}}; there are: {known}"
            )
        arrays = expectation.arrays
        names = [paths.canonical(n) for n in ([arrays] if isinstance(arrays, str) else arrays)]
        if not names or any(not self._chosen(expectation, name) for name in names):
            return
        inputs = [InputArray.of(self._session, name, self._spec) for name in names]
        for each in inputs[1:]:
            if each.shape != inputs[0].shape:
                raise InvalidInputError(
                    f"a function gets blocks of the same part of arrays of one shape; {names[0]} "
                    f"has {shape_text(inputs[0])} and {each.path} {shape_text(each)}"
                )
        number = self._new(expectation, names[0])
        check = FunctionCheck(function, tuple(inputs[1:]))
        self._of_cells.setdefault(names[0], {})[number] = check

    def _add_comparison(self, expectation: expected.EqualTo, path: str) -> None:
        other, spec, diff = self._version(expectation.version)
        node = self._session.get_node(path)
        old = other.get_node(path)
        if diff is not None and node is not None:
            old = diff.earlier(node)
        number = self._new(expectation, path)
        check = self.checks[number]
        if old is None or not old.is_array or node is None or not node.is_array:
            detail = f"{expectation.version} has no such array"
            self.checks[number] = check.settled(passed=False, detail=detail)
            return
        theirs = InputArray.of(other, old.path, spec)
        reason = _incomparable(check.input, theirs)
        if reason is not None:
            detail = f"cannot be compared with {expectation.version}: {reason}"
            self.checks[number] = check.settled(passed=False, detail=detail)
            return
        assert check.input is not None
        grid = grid_of(self._session, path)
        within = whole(tuple(map(min, theirs.shape, grid.shape)))
        equal = EqualCheck(theirs, expectation.absolute, expectation.relative)
        unit = CellUnit(array=check.input, grid=grid, within=within, checks={number: equal})
        box = grid.covering(within)
        boxes: Iterable[Box] = [box]
        if diff is not None and means_the_same(old, node):
            written = diff.written_chunks(node)
            rank = len(grid.shape)
            coords = np.empty((0, rank), np.int64) if written is None else written.coords()
            coords = coords.astype(np.int64)
            inside = coords[(coords < np.array(box.upper, np.int64)).all(axis=1)]
            self.chunks_skipped += box.size - len(inside)
            boxes = boxes_of(inside)
        self._add_unit(unit, boxes)

    def _version(self, version: str) -> tuple[Session, SessionSpec, Diff | None]:
        if version not in self._versions:
            other = self._repository.readonly_session(snapshot_id=version)
            before, after = other.snapshot_id, self._session.snapshot_id
            try:
                diff = self._repository.diff(from_snapshot_id=before, to_snapshot_id=after)
            except InvalidInputError:
                diff = None  # no common history: everything is compared
            self._versions[version] = other, SessionSpec.of(other), diff
        return self._versions[version]

    # --- coordinates

    def _add_coordinates(
        self,
        expectation: Expectation,
        arrays: expected.Arrays,
        check: Any,
        *,
        together: bool = False,
    ) -> None:
        names = [arrays] if isinstance(arrays, str) else list(arrays)
        chosen = [self._chosen(expectation, name) for name in names]
        if together:
            groups = [tuple(chain(*chosen))] if all(chosen) else []
        else:
            groups = [(path,) for path in dict.fromkeys(chain(*chosen))]
        for group in groups:
            inputs = [InputArray.of(self._session, path, self._spec) for path in group]
            for each in inputs:
                if len(each.shape) != 1 or each.shape != inputs[0].shape:
                    raise InvalidInputError(
                        f"{expectation.kind} is for coordinates of one dimension (several of the "
                        f"same length); {each.path} has {shape_text(each)}"
                    )
            number = self._new(expectation, group[0])
            self._of_coordinates.setdefault(group, {})[number] = check

    # --- tasks

    def finish(self) -> None:
        """Make units of work of what was added."""
        for path, checks in self._of_cells.items():
            grid = grid_of(self._session, path)
            unit = CellUnit(
                array=InputArray.of(self._session, path, self._spec),
                grid=grid,
                within=whole(grid.shape),
                checks=checks,
            )
            shares = {number: self._share(number) for number in checks}
            settled = settle_by_statistics(self._session, grid, checks, shares)
            if settled is None:
                self._add_unit(unit, [grid.box])
                continue
            self.known |= settled.findings
            self.chunks_skipped += grid.box.size - len(settled.remaining)
            self._add_unit(unit, boxes_of(settled.remaining))
        for group, checks in self._of_coordinates.items():
            inputs = tuple(InputArray.of(self._session, path, self._spec) for path in group)
            self.units.append(CoordinateUnit(inputs, checks))

    def _share(self, number: int) -> float:
        expectation: Expectation = self.checks[number].expectation
        return expectation.tolerated_share

    def _add_unit(self, unit: CellUnit, boxes: Iterable[Box]) -> None:
        self.units.append(unit)
        self._boxes += [(len(self.units) - 1, box) for box in boxes]

    def boxes(self) -> Iterator[tuple[CellUnit, Box]]:
        """The chunks to read, with the unit that they belong to."""
        for number, box in self._boxes:
            unit = self.units[number]
            assert isinstance(unit, CellUnit)
            yield unit, box

    def tasks(self, task_bytes: int) -> list[list[CheckPiece]]:
        """Pieces of work of about a size; each coordinate is a task of its own."""
        tasks: list[list[CheckPiece]] = [
            [CheckPiece(number)]
            for number, unit in enumerate(self.units)
            if isinstance(unit, CoordinateUnit)
        ]
        waiting: list[CheckPiece] = []
        size = 0
        for (number, _), (unit, box) in zip(self._boxes, self.boxes(), strict=True):
            for part in split(box, task_bytes // unit.grid.chunk_bytes):
                part_bytes = unit.grid.box_bytes(part)
                if waiting and size + part_bytes > task_bytes:
                    tasks.append(waiting)
                    waiting, size = [], 0
                waiting.append(CheckPiece(number, part))
                size += part_bytes
        return [*tasks, waiting] if waiting else tasks


def _limit(limit: float | str | None) -> float | str | None:
    """A limit, checked: text is a time."""
    if isinstance(limit, str):
        try:
            np.datetime64(limit)
        except ValueError:
            raise InvalidInputError(
                f"a limit is a number, or a time such as '2020-01-31T06:00'; found {limit!r}"
            ) from None
    return limit


def _wrong_attributes(attributes: Mapping[str, Any], required: Any) -> Iterator[str]:
    for name in required:
        if name not in attributes or attributes[name] in (None, ""):
            yield f"has no attribute {name!r}"
        elif isinstance(required, dict) and attributes[name] != required[name]:
            yield f"attribute {name!r} is {attributes[name]!r}, expected {required[name]!r}"


def _incomparable(one: InputArray | None, other: InputArray) -> str | None:
    if one is None or len(one.shape) != len(other.shape):
        return "another number of dimensions"
    kinds = [
        np.dtype(object if e.coding.dtype == "string" else e.coding.dtype) for e in (one, other)
    ]
    return incomparable(*kinds)
