"""Compares one variable, or the attributes, of all files: the same everywhere, or a difference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.cf.decoding import float_of
from icefloe.ingest.axes import in_units_of, is_time
from icefloe.ingest.headers import retyped_document
from icefloe.ingest.parsed import numpy_type
from icefloe.ingest.plan import EXISTING, Difference
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.ingest.headers import FileHeader, VariableHeader
    from icefloe.ingest.plan import ConcatAxis
    from icefloe.ingest.policies import Policies

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
_PACKING = frozenset({"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned"})
"""Those that are gone when values are decoded."""
_NONE = "(none)"
_LEVELLED = frozenset({"numcodecs.zlib", "numcodecs.bz2", "numcodecs.zstd", "gzip", "zstd"})
"""Codecs that decode alike, whatever level they were written with."""


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
    headers: Mapping[str, VariableHeader],
    old: VariableHeader | None,
    *,
    is_virtual: bool,
    moving: Sequence[str],
    axes: Mapping[str, ConcatAxis],
    policies: Policies,
) -> Compared:
    """Compare a variable of all files that have it."""
    everywhere = Everywhere({**({EXISTING: old} if old is not None else {}), **headers})
    first = next(iter(everywhere.headers.values()))
    decoded = _common_type(everywhere) if is_virtual and policies.decode else None
    differences = _properties(
        name, everywhere, policies, is_virtual=is_virtual, moving=moving, decoded=decoded
    )
    values: dict[str, npt.NDArray[Any]] = {}
    if not is_virtual and not differences:
        for url, header in headers.items():
            assert header.values is not None
            values[url] = in_units_of(header.values, header.time_attributes, first.time_attributes)
    written = _written(name, first, values, axes, exists=old is not None)
    dtype = _common_dtype([first.values, *values.values(), *written])
    if values and old is not None and dtype.kind not in "TO":
        own = numpy_type(old.document)
        dtype = own if all(_fits(each, own, policies) for each in written) else dtype
        if dtype != own:
            differences.append(_no_common_type(name, old, values, dtype))
    elif not all(_fits(each, dtype, policies) for each in written):
        differences.append(_no_common_type(name, old, values, dtype))
    attributes, remarks = _attributes(name, everywhere, policies, is_virtual=is_virtual)
    document = {**first.document, "attributes": attributes}
    if decoded is not None and decoded != numpy_type(document) and not differences:
        document = retyped_document(document, decoded)
    return Compared(
        document=document,
        dims=first.dims,
        chunk_shape=first.chunk_shape,
        is_divisible=all(each.is_divisible for each in everywhere.distinct),
        dtype_of_values=dtype,
        values=values,
        differences=differences + remarks,
    )


class Everywhere:
    """A variable of all files that have it, and of the repository."""

    def __init__(self, headers: Mapping[str, VariableHeader]) -> None:
        """Take headers by URL."""
        self.headers = headers
        first: dict[int, VariableHeader] = {}
        for header in headers.values():
            first.setdefault(id(header.document), header)
        self.distinct = list(first.values())
        """One header for each document: most files share one, and it is looked at once."""


def _written(
    name: str,
    first: VariableHeader,
    values: Mapping[str, npt.NDArray[Any]],
    axes: Mapping[str, ConcatAxis],
    *,
    exists: bool,
) -> list[npt.NDArray[Any]]:
    """The values that are stored; those that are compared only are not among them."""
    if exists and axes and not axes.keys() & set(first.dims):
        return []
    written = list({id(each): each for each in values.values()}.values())
    if values and first.dims == (name,) and name in axes and axes[name].keys is None:
        written.append(axes[name].values)
    return written


def _common_dtype(values: Sequence[npt.NDArray[Any] | None]) -> np.dtype[Any]:
    """The type that holds the values of all files."""
    kinds = list(dict.fromkeys(each.dtype for each in values if each is not None))
    if not kinds:
        return np.dtype(np.float64)
    if any(kind.kind in "TO" for kind in kinds):
        return kinds[0]
    return np.result_type(*(kind.newbyteorder("=") for kind in kinds))


def _fits(values: npt.NDArray[Any], dtype: np.dtype[Any], policies: Policies) -> bool:
    """Whether a type holds values without loss, or within the tolerance."""
    if values.dtype == dtype or dtype.kind in "TO" or values.dtype.kind in "TO":
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        return policies.are_equal(values, values.astype(dtype).astype(values.dtype))


def _no_common_type(
    name: str,
    old: VariableHeader | None,
    values: Mapping[str, npt.NDArray[Any]],
    dtype: np.dtype[Any],
) -> Difference:
    kinds: dict[str, list[str]] = {}
    if old is not None:
        kinds[str(numpy_type(old.document))] = [EXISTING]
    for url, each in values.items():
        kinds.setdefault(str(each.dtype), []).append(url)
    hint = f"{dtype} does not hold the values of all files exactly; write the files alike"
    if old is not None:
        units = "the units of times" if is_time(old.attributes) else "the type of values"
        hint = (
            f"{units} in the repository cannot express those of the files exactly; "
            "ingest all files at once, into a group of its own: group='…'"
        )
    found = tuple((kind, tuple(urls)) for kind, urls in kinds.items())
    return Difference(name, "type of values", found, hint=hint)


def _properties(
    name: str,
    everywhere: Everywhere,
    policies: Policies,
    *,
    is_virtual: bool,
    moving: Sequence[str],
    decoded: np.dtype[Any] | None,
) -> list[Difference]:
    """Differences that no variable can have."""
    differences: list[Difference] = []
    differences += _grouped(name, "dimensions", everywhere, lambda each: list(each.dims))
    if decoded is not None:
        differences += _does_not_fit(name, everywhere, decoded)
    elif is_virtual or not _go_together(everywhere):
        packed = any("scale_factor" in each.attributes for each in everywhere.distinct)
        numbers = is_virtual and _common_type(everywhere) is not None
        hint = policies.advice_to_decode(is_stored=not is_virtual) if packed or numbers else ""
        differences += _grouped(
            name, "data type", everywhere, lambda each: each.document["data_type"], hint=hint
        )
    if not is_virtual or policies.copies or differences:
        return differences
    hint = policies.advice_to_copy
    differences += _grouped(name, "codecs", everywhere, _codecs, hint=hint)
    fills = _grouped(name, "attribute _FillValue", everywhere, _fill_attribute)
    differences += _grouped(
        name,
        "fill value",
        everywhere,
        lambda each: each.document["fill_value"],
        hint=policies.advice_to_decode(is_stored=False) if fills else hint,
    )
    differences += _grouped(name, "chunks", everywhere, _chunks(everywhere, moving), hint=hint)
    return differences


def _common_type(everywhere: Everywhere) -> np.dtype[Any] | None:
    """The type that holds the decoded numbers of all files, as xarray's concat chooses it."""
    kinds = [numpy_type(each.document) for each in everywhere.distinct]
    if not all(kind.kind in "iuf" for kind in kinds):
        return None
    return np.result_type(*(kind.newbyteorder("=") for kind in kinds))


def _does_not_fit(name: str, everywhere: Everywhere, decoded: np.dtype[Any]) -> list[Difference]:
    """A difference if the array in the repository cannot hold the decoded values of files."""
    old = everywhere.headers.get(EXISTING)
    if old is None or numpy_type(old.document).newbyteorder("=") == decoded:
        return []
    hint = (
        f"the array in the repository cannot hold {decoded} values; ingest all files at once, "
        "into a group of its own: group='…'"
    )
    return _grouped(
        name, "data type", everywhere, lambda each: each.document["data_type"], hint=hint
    )


def _fill_attribute(variable: VariableHeader) -> Any:
    """The attribute `_FillValue` as a number, which JSON has in base64 for floats."""
    fill = variable.attributes.get("_FillValue", _NONE)
    is_number = fill != _NONE and numpy_type(variable.document).kind in "iufb"
    return float_of(fill) if is_number and isinstance(fill, str) else fill


def _codecs(variable: VariableHeader) -> list[dict[str, Any]]:
    """Codecs as far as they matter to a reader: how hard a writer tried to compress does not."""
    codecs = []
    for codec in variable.document["codecs"]:
        settings = codec.get("configuration") or {}
        if codec["name"] in _LEVELLED:
            settings = {key: value for key, value in settings.items() if key != "level"}
        codecs.append({**codec, "configuration": settings})
    return codecs


def _go_together(everywhere: Everywhere) -> bool:
    """Whether stored values of several types mean the same in a common one."""
    kinds = {numpy_type(each.document).kind for each in everywhere.distinct}
    if kinds <= set("iuf"):
        return not any("_Unsigned" in each.attributes for each in everywhere.distinct)
    return kinds in ({"S"}, {"U"})


def _chunks(everywhere: Everywhere, moving: Sequence[str]) -> Any:
    """What must be the same about chunks: all of their shape, unless they can be cut."""
    first = everywhere.distinct[0]
    may_cut = all(each.is_divisible for each in everywhere.distinct)
    cut = may_cut and first.dims[:1] and first.dims[0] in moving
    return lambda each: list(each.chunk_shape[1 if cut else 0 :])


def _grouped(
    name: str,
    what: str,
    everywhere: Everywhere,
    read: Any,
    *,
    hint: str = "",
    is_error: bool = True,
) -> list[Difference]:
    """A difference if the files have several values of something."""
    texts = {id(each.document): _text(read(each)) for each in everywhere.distinct}
    if len(set(texts.values())) <= 1:
        return []
    groups: dict[str, list[str]] = {}
    for url, header in everywhere.headers.items():
        groups.setdefault(texts[id(header.document)], []).append(url)
    found = tuple((value, tuple(urls)) for value, urls in groups.items())
    return [Difference(variable=name, what=what, found=found, is_error=is_error, hint=hint)]


def _attributes(
    name: str, everywhere: Everywhere, policies: Policies, *, is_virtual: bool
) -> tuple[dict[str, Any], list[Difference]]:
    """Attributes that all files share, and differences in the others."""
    headers = everywhere.distinct
    first = headers[0].attributes
    texts = {json.dumps(each.attributes, sort_keys=True) for each in headers}
    if len(texts) == 1:
        return first, []
    shared = dict(first)
    differences: list[Difference] = []
    # Times that are stored have been brought to the units of the first file.
    converted = _TIME if not is_virtual and all(is_time(h.attributes) for h in headers) else set()
    for attribute in dict.fromkeys(key for each in headers for key in each.attributes):
        if attribute in converted:
            continue
        is_error = attribute in MEANINGFUL
        differing = _grouped(
            name,
            f"attribute {attribute}",
            everywhere,
            _fill_attribute
            if attribute == "_FillValue"
            else lambda each, attribute=attribute: each.attributes.get(attribute, _NONE),
            is_error=is_error,
            hint=_attribute_hint(attribute, policies, is_stored=not is_virtual),
        )
        if differing and not is_error and EXISTING not in everywhere.headers:
            shared.pop(attribute, None)
        differences += differing
    return shared, differences


def _attribute_hint(attribute: str, policies: Policies, *, is_stored: bool) -> str:
    if attribute in _PACKING:
        return policies.advice_to_decode(is_stored=is_stored)
    return "" if attribute in MEANINGFUL else "left out"


def compare_attributes(
    headers: Sequence[FileHeader],
) -> tuple[dict[str, Any], list[Difference]]:
    """Attributes of the group: those that all files share."""
    shared = dict(headers[0].attributes) if headers else {}
    differing: dict[str, None] = {}
    for header in {id(each.attributes): each for each in headers[1:]}.values():
        for attribute in [*shared, *header.attributes]:
            ours, theirs = shared.get(attribute), header.attributes.get(attribute)
            if ours is not theirs and _text(ours) != _text(theirs):
                differing[attribute] = None
    if not differing:
        return shared, []
    if headers[0].url == EXISTING:
        return shared, []
    shared = {name: value for name, value in shared.items() if name not in differing}
    names = ", ".join(differing)
    urls = tuple(header.url for header in headers)
    remark = Difference("", "attributes", ((names, urls),), is_error=False, hint="left out")
    return shared, [remark]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
