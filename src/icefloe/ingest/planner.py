"""Plans how files go together: shapes, places, and what does not fit. Pure: no file is read.

Nothing is written while a plan has errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.ingest.axes import (
    Segment,
    in_units_of,
    is_time,
    make_axis,
    ordered_axis,
    runs_down,
)
from icefloe.ingest.compare import compare_attributes
from icefloe.ingest.file_rules import order_keys
from icefloe.ingest.plan import EXISTING, ConcatAxis, Difference, IngestPlan, OrderedPlace
from icefloe.ingest.policies import Policies, order_hint
from icefloe.ingest.variable_planner import VariablePlanner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.ingest.headers import FileHeader

_REFUSE = Policies()
Places = dict[str, OrderedPlace]
"""By dimension, the position of a file."""


def plan_files(
    headers: Sequence[FileHeader],
    *,
    concat_dims: Sequence[str] | None = None,
    existing: FileHeader | None = None,
    compare_values: bool = True,
    policies: Policies = _REFUSE,
    placed: Mapping[str, Places] | None = None,
) -> IngestPlan:
    """Plan how files become one group: the position of each file, by its coordinates.

    Reads no file. The plan lists the differences between files that do not fit together;
    `plan.check()` raises them.

    Args:
        headers: Headers of all files, from `read_header`.
        concat_dims: Dimensions to concatenate files along; by default those along which their
            coordinates differ.
        existing: Header of the existing group.
        compare_values: Whether variables without any of these dimensions must be equal in all
            files. Otherwise those of the first file are used.
        policies: What to do, instead of raising an error, with files that do not quite fit
            together.
        placed: Positions of the files of an earlier ingest along dimensions of
            `policies.file_order`.

    Example:
        >>> from icefloe.virtual import ParseOptions, plan_files, read_header
        >>> sources, options = session.tree.virtual_sources, ParseOptions()
        >>> urls = [f"{prefix}feb.nc", f"{prefix}jan.nc"]
        >>> plan = plan_files([read_header(url, sources, options) for url in urls])
        >>> plan.errors, plan.axes["time"].values.tolist()
        ([], [0, 1, 2, 3])
        >>> plan.start(f"{prefix}feb.nc", ("time", "x"))
        (2, 0)
    """
    policies.check()
    attributes, remarks = compare_attributes(_all_of(headers, existing))
    headers = [header for header in headers if header.variables]
    flipped: dict[str, tuple[str, ...]] = {}
    if policies.flipped == "reverse":
        headers, flipped = _in_one_direction(headers, existing)
    everything = _all_of(headers, existing)
    dims = _concat_dims(everything, policies) if concat_dims is None else list(concat_dims)
    dims = list(dict.fromkeys([*dims, *policies.file_order]))
    axes, differences = _axes(dims, headers, existing, policies, placed or {})
    differences += _other_dimensions(dims, everything)
    if differences:
        return IngestPlan(
            axes={}, variables={}, attributes={}, values={}, differences=tuple(differences)
        )
    planner = VariablePlanner(axes, headers, existing, policies, compare_values=compare_values)
    for name in dict.fromkeys(name for each in _kinds(everything) for name in each.variables):
        planner.plan_variable(name)
    return IngestPlan(
        axes=axes,
        variables=planner.variables,
        attributes=attributes,
        values=planner.values,
        differences=(*planner.differences, *remarks),
        flipped=flipped,
        uncompared=planner.uncompared,
        unread=tuple(planner.unread),
    )


def _all_of(headers: Sequence[FileHeader], existing: FileHeader | None) -> Sequence[FileHeader]:
    return headers if existing is None else [existing, *headers]


def _kinds(headers: Sequence[FileHeader]) -> list[FileHeader]:
    """One header of each kind: what all files of a kind share is looked at once."""
    return list({header.kind: header for header in reversed(headers)}.values())[::-1]


def _in_one_direction(
    headers: Sequence[FileHeader], existing: FileHeader | None
) -> tuple[list[FileHeader], dict[str, tuple[str, ...]]]:
    """Headers whose coordinates all run the same way, and the dimensions that were reversed."""
    falls: dict[str, bool] = {}
    turned: list[FileHeader] = []
    flipped: dict[str, tuple[str, ...]] = {}
    for header in _all_of(headers, existing):
        wrong = []
        for dim in header.sizes:
            runs = runs_down(header.coordinate(dim))
            if runs is not None and falls.setdefault(dim, runs) != runs:
                wrong.append(dim)
        if wrong:
            header = header.reversed(wrong)  # noqa: PLW2901
            flipped[header.url] = tuple(wrong)
        turned.append(header)
    return turned if existing is None else turned[1:], flipped


def _concat_dims(headers: Sequence[FileHeader], policies: Policies) -> list[str]:
    """Dimensions along which files have different coordinates."""
    first: dict[str, FileHeader] = {}
    differing: dict[str, None] = {}
    dims = {header.kind: list(header.sizes) for header in _kinds(headers)}
    for header in headers:
        for dim in dims[header.kind]:
            one = first.setdefault(dim, header)
            if dim in differing or one is header:
                continue
            a, b = one.coordinate(dim), header.coordinate(dim)
            if a is None or b is None or a is b:
                continue
            units = (one.variables[dim].attributes, header.variables[dim].attributes)
            if not policies.are_equal(a, in_units_of(b, units[1], units[0])):
                differing[dim] = None
    return list(differing)


def _axes(
    dims: Sequence[str],
    headers: Sequence[FileHeader],
    existing: FileHeader | None,
    policies: Policies,
    placed: Mapping[str, Places],
) -> tuple[dict[str, ConcatAxis], list[Difference]]:
    axes: dict[str, ConcatAxis] = {}
    differences: list[Difference] = []
    present = {dim for header in _kinds(_all_of(headers, existing)) for dim in header.sizes}
    for dim in dims:
        if dim not in present:
            everywhere = tuple(header.url for header in headers)
            differences.append(Difference(dim, "no such dimension", (("none", everywhere),)))
            continue
        if dim in policies.file_order:
            axis, problems = _axis_by_order(dim, headers, existing, policies, placed)
        else:
            axis, problems = _axis_by_coordinates(dim, headers, existing, policies)
        differences += problems
        if axis is not None:
            axes[dim] = axis
    return axes, differences


def _axis_by_coordinates(
    dim: str, headers: Sequence[FileHeader], existing: FileHeader | None, policies: Policies
) -> tuple[ConcatAxis | None, list[Difference]]:
    without = tuple(
        header.url
        for header in _all_of(headers, existing)
        if header.coordinate(dim) is None and dim in header.sizes
    )
    if without:
        hint = order_hint(dim)
        return None, [Difference(dim, "no coordinate along it", (("none", without),), hint=hint)]
    old = None if existing is None else _segment(existing, dim, EXISTING)
    present = [
        segment for header in headers if (segment := _segment(header, dim, header.url)) is not None
    ]
    reference = old or present[0]
    calendars = _calendars(dim, [*present, *([old] if old else [])])
    if calendars is not None:
        return None, [calendars]
    return make_axis(dim, [_converted(each, reference) for each in present], old, policies)


def _axis_by_order(
    dim: str,
    headers: Sequence[FileHeader],
    existing: FileHeader | None,
    policies: Policies,
    placed: Mapping[str, Places],
) -> tuple[ConcatAxis | None, list[Difference]]:
    sizes = {header.kind: header.sizes for header in _kinds(headers)}
    lengths = {header: sizes[header.kind][dim] for header in headers if dim in sizes[header.kind]}
    keys = order_keys(lengths, dim, policies.file_order[dim])
    length = None if existing is None else existing.sizes.get(dim)
    before = {url: places[dim] for url, places in placed.items() if dim in places}
    return ordered_axis(dim, keys, length, before)


def _segment(header: FileHeader, dim: str, name: str) -> Segment | None:
    values = header.coordinate(dim)
    return None if values is None else Segment(name, values, header.variables[dim].attributes)


def _converted(segment: Segment, reference: Segment) -> Segment:
    values = in_units_of(segment.values, segment.attributes, reference.attributes)
    return Segment(segment.name, values, reference.attributes)


def _calendars(dim: str, segments: Sequence[Segment]) -> Difference | None:
    calendars: dict[str, list[str]] = {}
    for each in segments:
        if is_time(each.attributes):
            calendar = str(each.attributes.get("calendar", "standard"))
            calendar = "standard" if calendar == "gregorian" else calendar
            calendars.setdefault(calendar, []).append(each.name)
    if len(calendars) <= 1 or set(calendars) <= {"standard", "proleptic_gregorian"}:
        return None
    return Difference(dim, "calendar", tuple((k, tuple(v)) for k, v in calendars.items()))


def _other_dimensions(dims: Sequence[str], headers: Sequence[FileHeader]) -> list[Difference]:
    """Dimensions that are not concatenated must have the same length in all files."""
    kinds = {header.kind: header.sizes for header in _kinds(headers)}
    lengths: dict[str, set[int]] = {}
    for of_kind in kinds.values():
        for dim, size in of_kind.items():
            lengths.setdefault(dim, set()).add(size)
    several = {dim for dim, each in lengths.items() if dim not in dims and len(each) > 1}
    if not several:
        return []
    sizes: dict[str, dict[int, list[str]]] = {}
    for header in headers:
        for dim in several & kinds[header.kind].keys():
            size = kinds[header.kind][dim]
            sizes.setdefault(dim, {}).setdefault(size, []).append(header.url)
    return [
        Difference(
            dim,
            "length",
            tuple((str(size), tuple(urls)) for size, urls in found.items()),
            hint=_length_hint(dim, headers),
        )
        for dim, found in sizes.items()
    ]


def _length_hint(dim: str, headers: Sequence[FileHeader]) -> str:
    if any(header.coordinate(dim) is not None for header in headers):
        return f"concat_dims with {dim!r} among them puts files together along it"
    return order_hint(dim)
