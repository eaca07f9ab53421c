"""Compares one variable, or the attributes, of all files: the same everywhere, or a difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.ingest.axes import in_units_of, is_time
from icefloe.ingest.plan import EXISTING, Difference
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.ingest.headers import FileHeader, VariableHeader
    from icefloe.ingest.plan import ConcatAxis

MEANINGFUL = frozenset(
    {
        "_FillValue",
        "missing_value",
        "scale_factor",
        "add_offset",
        "_Unsigned",
        "units",
        "calendar",
        "flag_values",
        "flag_masks",
        "flag_meanings",
        "positive",
    }
)
"""Attributes that change what values mean: they must be the same in all files."""
_TIME = frozenset({"units", "calendar"})


class Compared(Record, frozen=True, eq=False):
    """What all files agree on about a variable."""

    document: dict[str, Any]
    dims: tuple[str, ...]
    chunk_shape: tuple[int, ...]
    is_divisible: bool
    dtype_of_values: np.dtype[Any]
    values: dict[str, npt.NDArray[Any]]
    """Those of each file, times in the units of the first."""
    differences: list[Difference]


def compare_variable(
    name: str,
    found: Mapping[str, VariableHeader],
    old: VariableHeader | None,
    *,
    is_virtual: bool,
    moving: Sequence[str],
    axes: Mapping[str, ConcatAxis],
    copies: bool = False,
) -> Compared:
    """Compare a variable of all files that have it."""
    everywhere = {**({EXISTING: old} if old is not None else {}), **found}
    first = next(iter(everywhere.values()))
    has_references = is_virtual and not copies
    differences = _properties(name, everywhere, is_virtual=has_references, moving=moving)
    values: dict[str, npt.NDArray[Any]] = {}
    if not is_virtual and not differences:
        for url, header in found.items():
            assert header.values is not None
            values[url] = in_units_of(header.values, header.time_attributes, first.time_attributes)
    dtype = _dtype_of(name, first, values, axes)
    if old is not None and old.values is not None and values and dtype != old.values.dtype:
        hint = "the units of times in the repository cannot express those of the files exactly"
        kinds = ((str(old.values.dtype), (EXISTING,)), (str(dtype), tuple(values)))
        differences.append(Difference(name, "type of values", kinds, hint=hint))
    attributes, remarks = _attributes(name, everywhere, is_virtual=is_virtual)
    document = {**first.document, "attributes": attributes}
    return Compared(
        document,
        first.dims,
        first.chunk_shape,
        all(each.is_divisible for each in everywhere.values()),
        dtype,
        values,
        differences + remarks,
    )


def _dtype_of(
    name: str,
    first: VariableHeader,
    values: Mapping[str, npt.NDArray[Any]],
    axes: Mapping[str, ConcatAxis],
) -> np.dtype[Any]:
    kinds = [each.dtype for each in values.values()]
    if first.values is not None:
        kinds.insert(0, first.values.dtype)
    if not kinds:
        return np.dtype(np.float64)
    if kinds[0].kind in "TOSU":
        return kinds[0]
    if first.dims == (name,) and name in axes:
        kinds.append(axes[name].values.dtype)
    return np.result_type(*(kind.newbyteorder("=") for kind in kinds))


def _properties(
    name: str, everywhere: Mapping[str, VariableHeader], *, is_virtual: bool, moving: Sequence[str]
) -> list[Difference]:
    """Differences that no variable can have."""
    found: list[Difference] = []
    found += _grouped(name, "dimensions", everywhere, lambda each: list(each.dims))
    found += _grouped(name, "data type", everywhere, lambda each: each.document["data_type"])
    if not is_virtual or found:
        return found
    hint = "files that differ in this cannot be virtual together: copy them"
    found += _grouped(name, "codecs", everywhere, lambda each: each.document["codecs"], hint=hint)
    found += _grouped(
        name, "fill value", everywhere, lambda each: each.document["fill_value"], hint=hint
    )
    found += _grouped(name, "chunks", everywhere, _chunks(everywhere, moving), hint=hint)
    return found


def _chunks(everywhere: Mapping[str, VariableHeader], moving: Sequence[str]) -> Any:
    """What must be the same about chunks: all of their shape, unless they can be cut."""
    first = next(iter(everywhere.values()))
    may_cut = all(each.is_divisible for each in everywhere.values())
    cut = may_cut and first.dims[:1] and first.dims[0] in moving
    return lambda each: list(each.chunk_shape[1 if cut else 0 :])


def _grouped(
    name: str,
    what: str,
    everywhere: Mapping[str, VariableHeader],
    read: Any,
    *,
    hint: str = "",
    is_error: bool = True,
) -> list[Difference]:
    """A difference if the files have several values of something."""
    groups: dict[str, list[str]] = {}
    for url, header in everywhere.items():
        groups.setdefault(_text(read(header)), []).append(url)
    if len(groups) <= 1:
        return []
    found = tuple((value, tuple(urls)) for value, urls in groups.items())
    return [Difference(name, what, found, is_error, hint)]


def _attributes(
    name: str, everywhere: Mapping[str, VariableHeader], *, is_virtual: bool
) -> tuple[dict[str, Any], list[Difference]]:
    """Attributes that all files share, and differences in the others."""
    headers = list(everywhere.values())
    first = headers[0].attributes
    texts = {json.dumps(each.attributes, sort_keys=True) for each in headers}
    if len(texts) == 1:
        return first, []
    kept = dict(first)
    differences: list[Difference] = []
    # Times that are stored have been brought to the units of the first file.
    converted = _TIME if not is_virtual and all(is_time(h.attributes) for h in headers) else set()
    for attribute in dict.fromkeys(key for each in headers for key in each.attributes):
        if attribute in converted:
            continue
        is_error = attribute in MEANINGFUL
        found = _grouped(
            name,
            f"attribute {attribute}",
            everywhere,
            lambda each, attribute=attribute: each.attributes.get(attribute, "(none)"),
            is_error=is_error,
            hint="" if is_error else "left out",
        )
        if found and not is_error and EXISTING not in everywhere:
            kept.pop(attribute, None)
        differences += found
    return kept, differences


def compare_attributes(
    headers: Sequence[FileHeader],
) -> tuple[dict[str, Any], list[Difference]]:
    """Attributes of the group: those that all files share."""
    kept = dict(headers[0].attributes) if headers else {}
    differing: dict[str, None] = {}
    for header in headers[1:]:
        for attribute in [*kept, *header.attributes]:
            ours, theirs = kept.get(attribute), header.attributes.get(attribute)
            if ours is not theirs and _text(ours) != _text(theirs):
                differing[attribute] = None
    if not differing:
        return kept, []
    if headers[0].url == EXISTING:
        return kept, []
    kept = {name: value for name, value in kept.items() if name not in differing}
    names = ", ".join(differing)
    urls = tuple(header.url for header in headers)
    remark = Difference("", "attributes", ((names, urls),), is_error=False, hint="left out")
    return kept, [remark]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
