"""Plans how files go together: shapes, places, and what does not fit. Pure: no file is read.

Nothing is written while a plan has errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.ingest.axes import Segment, in_units_of, is_time, make_axis
from icefloe.ingest.compare import compare_attributes
from icefloe.ingest.plan import EXISTING, ConcatAxis, Difference, IngestPlan
from icefloe.ingest.variable_planner import VariablePlanner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.ingest.headers import FileHeader


def plan_files(
    headers: Sequence[FileHeader],
    *,
    concat_dims: Sequence[str] | None = None,
    existing: FileHeader | None = None,
    compare_values: bool = True,
    copies: bool = False,
) -> IngestPlan:
    """Plan how files become one group: where each file goes, by its coordinates.

    No file is read. What does not fit is in the plan; `plan.check()` raises it.

    Args:
        headers: Headers of all files, from `read_header`.
        concat_dims: Dimensions to concatenate files along; by default those along which their
            coordinates differ.
        existing: Header of what the group has already.
        compare_values: Whether variables without any of these dimensions must be the same in all
            files. Otherwise those of the first file are taken.
        copies: Whether values are copied, so that chunks and codecs may differ.

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
    headers = [header for header in headers if header.variables]
    everything = headers if existing is None else [existing, *headers]
    dims = _concat_dims(everything) if concat_dims is None else list(concat_dims)
    axes, differences = _axes(dims, headers, existing)
    differences += _other_dimensions(dims, everything)
    if differences:
        return IngestPlan({}, {}, {}, {}, tuple(differences))
    planner = VariablePlanner(axes, headers, existing, compare_values=compare_values, copies=copies)
    for name in dict.fromkeys(name for header in everything for name in header.variables):
        planner.plan_variable(name)
    attributes, remarks = compare_attributes(everything)
    return IngestPlan(
        axes,
        planner.variables,
        attributes,
        planner.values,
        (*planner.differences, *remarks),
    )


def _concat_dims(headers: Sequence[FileHeader]) -> list[str]:
    """Dimensions along which files have different coordinates."""
    first: dict[str, FileHeader] = {}
    found: dict[str, None] = {}
    for header in headers:
        for dim in header.sizes:
            one = first.setdefault(dim, header)
            if dim in found or one is header:
                continue
            a, b = one.coordinate(dim), header.coordinate(dim)
            if a is None or b is None:
                continue
            units = (one.variables[dim].attributes, header.variables[dim].attributes)
            if not np.array_equal(a, in_units_of(b, units[1], units[0])):
                found[dim] = None
    return list(found)


def _axes(
    dims: Sequence[str], headers: Sequence[FileHeader], existing: FileHeader | None
) -> tuple[dict[str, ConcatAxis], list[Difference]]:
    axes: dict[str, ConcatAxis] = {}
    differences: list[Difference] = []
    for dim in dims:
        old = None if existing is None else _segment(existing, dim, EXISTING)
        segments = [_segment(header, dim, header.url) for header in headers]
        without = [h.url for h, s in zip(headers, segments, strict=True) if s is None]
        without = [url for url in without if dim in _header(headers, url).sizes]
        if without:
            hint = "give file_coordinates to tell the coordinate of a file by its name"
            found = (("none", tuple(without)),)
            differences.append(Difference(dim, "no coordinate along it", found, hint=hint))
            continue
        present = [segment for segment in segments if segment is not None]
        if old is None and not present:
            everywhere = tuple(header.url for header in headers)
            differences.append(Difference(dim, "no such dimension", (("none", everywhere),)))
            continue
        reference = old or present[0]
        calendars = _calendars(dim, [*present, *([old] if old else [])])
        if calendars is not None:
            differences.append(calendars)
            continue
        present = [_converted(segment, reference) for segment in present]
        axis, problems = make_axis(dim, present, old)
        differences += problems
        if axis is not None:
            axes[dim] = axis
    return axes, differences


def _header(headers: Sequence[FileHeader], url: str) -> FileHeader:
    return next(header for header in headers if header.url == url)


def _segment(header: FileHeader, dim: str, name: str) -> Segment | None:
    values = header.coordinate(dim)
    return None if values is None else Segment(name, values, header.variables[dim].attributes)


def _converted(segment: Segment, reference: Segment) -> Segment:
    values = in_units_of(segment.values, segment.attributes, reference.attributes)
    return Segment(segment.name, values, reference.attributes)


def _calendars(dim: str, segments: Sequence[Segment]) -> Difference | None:
    found: dict[str, list[str]] = {}
    for each in segments:
        if is_time(each.attributes):
            calendar = str(each.attributes.get("calendar", "standard"))
            calendar = "standard" if calendar == "gregorian" else calendar
            found.setdefault(calendar, []).append(each.name)
    if len(found) <= 1 or set(found) <= {"standard", "proleptic_gregorian"}:
        return None
    return Difference(dim, "calendar", tuple((k, tuple(v)) for k, v in found.items()))


def _other_dimensions(dims: Sequence[str], headers: Sequence[FileHeader]) -> list[Difference]:
    """Dimensions that files are not put together along must be equally long."""
    sizes: dict[str, dict[int, list[str]]] = {}
    for header in headers:
        for dim, size in header.sizes.items():
            if dim not in dims:
                sizes.setdefault(dim, {}).setdefault(size, []).append(header.url)
    return [
        Difference(
            dim,
            "length",
            tuple((str(size), tuple(urls)) for size, urls in found.items()),
            hint="only dimensions in concat_dims, with coordinates, may be longer in some files",
        )
        for dim, found in sizes.items()
        if len(found) > 1
    ]
