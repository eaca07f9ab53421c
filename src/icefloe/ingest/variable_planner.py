"""Plans one variable after the other: its document, its files, what moves. No I/O."""

from __future__ import annotations

from math import ceil, gcd, log10, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.ingest.compare import Compared, compare_variable
from icefloe.ingest.overlaps import JoinedValues, overlapping_pairs
from icefloe.ingest.parsed import fill_value_of
from icefloe.ingest.plan import EXISTING, ConcatAxis, Difference, StoredValues, VariablePlan
from icefloe.ingest.policies import ROUNDING_HINT, order_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.ingest.headers import FileHeader, VariableHeader
    from icefloe.ingest.plan import Region
    from icefloe.ingest.policies import Policies

_LEAST_COORDINATE_CHUNK = 1024
"""Coordinates have chunks of at least this length, so that appending needs few of them."""
_MOST_STORED_CHUNK_BYTES = 32 << 20
_SAME_PART = "several files have one part"
_OVERRIDE_HINT = (
    "variables without a dimension to put files together along must be the same; "
    "compat='override' takes those of the first file"
)
_ROUNDING = 1e-3
"""Relative differences up to this may come from rounding."""


class _ComparedVariable(NamedTuple):
    """One variable of all files, and of the repository, as they agree on it."""

    name: str
    headers: dict[str, VariableHeader]
    """By URL of the files that have it."""
    old: VariableHeader | None
    """What the repository has of it."""
    compared: Compared
    concat_axes: list[int]
    """Its axes that files are concatenated along."""
    files: tuple[str, ...]
    """The files whose chunks or values are taken."""

    @property
    def dims(self) -> tuple[str, ...]:
        return self.compared.dims

    @property
    def concat_dims(self) -> list[str]:
        return [self.dims[axis] for axis in self.concat_axes]


class VariablePlanner:
    """Plans one variable after the other; `differences` has what does not fit."""

    def __init__(
        self,
        axes: dict[str, ConcatAxis],
        headers: Sequence[FileHeader],
        existing: FileHeader | None,
        policies: Policies,
        *,
        compare_values: bool,
    ) -> None:
        """Take the axes and headers of all files; see `plan_files` for the rest."""
        self._axes = axes
        self._headers = {header.url: header for header in headers}
        self._existing = existing
        self._compare_values = compare_values
        self._policies = policies
        self._auxiliary = _auxiliary_names(headers)
        self._along_one_dimension: dict[str, set[str]] = {}
        for header in headers[:1]:
            for name, each in header.variables.items():
                if len(each.dims) == 1:
                    self._along_one_dimension.setdefault(each.dims[0], set()).add(name)
        self.variables: dict[str, VariablePlan] = {}
        self.values: dict[str, list[StoredValues]] = {}
        self.differences: list[Difference] = []
        self.uncompared: dict[str, tuple[str, ...]] = {}
        self.unread: dict[str, None] = {}

    def plan_variable(self, name: str) -> None:
        """Plan a variable of any file, or of the repository."""
        headers = {
            url: header.variables[name]
            for url, header in self._headers.items()
            if name in header.variables
        }
        old = None if self._existing is None else self._existing.variables.get(name)
        first = old or next(iter(headers.values()))
        is_virtual = not headers or any(each.values is None for each in headers.values())
        if old is not None and old.values is not None and not headers:
            is_virtual = False
        compared = compare_variable(
            name,
            headers,
            old,
            is_virtual=is_virtual,
            moving=[dim for dim in first.dims if dim in self._axes],
            axes=self._axes,
            policies=self._policies,
        )
        self.differences += compared.differences
        if any(each.is_error for each in compared.differences):
            return
        concat_axes = [axis for axis, dim in enumerate(compared.dims) if dim in self._axes]
        files = self._files(headers, compared.dims, concat_axes, exists=old is not None)
        variable = _ComparedVariable(
            name=name,
            headers=headers,
            old=old,
            compared=compared,
            concat_axes=concat_axes,
            files=files,
        )
        if not is_virtual:
            self._plan_values(variable)
        elif self._policies.copies:
            self._plan_copied(variable)
        else:
            self._plan_virtual(variable)

    def _files(
        self,
        headers: Mapping[str, VariableHeader],
        dims: Sequence[str],
        concat_axes: Sequence[int],
        *,
        exists: bool,
    ) -> tuple[str, ...]:
        """The files to take a variable from: one alone if it is the same in all."""
        if not concat_axes:
            # Where nothing is concatenated, a file is all there is, and replaces what was there.
            return () if exists and self._axes else tuple(self._best_first(headers))[:1]
        axes = [self._axes[dims[axis]] for axis in concat_axes]
        return tuple(url for url in headers if all(url in axis.places for axis in axes))

    def _add(self, variable: _ComparedVariable, document: dict[str, Any], **more: Any) -> None:
        self.variables[variable.name] = VariablePlan(
            name=variable.name,
            document=document,
            files=variable.files,
            exists=variable.old is not None,
            **more,
        )

    def _differs(
        self, name: str, what: str, groups: Iterable[tuple[str, Sequence[str]]], hint: str
    ) -> None:
        files = tuple((value, tuple(urls)) for value, urls in groups)
        self.differences.append(Difference(name, what, files, hint=hint))

    def _resized(self, variable: _ComparedVariable) -> dict[str, Any]:
        document, dims = variable.compared.document, variable.dims
        shape = [
            len(self._axes[dim]) if dim in self._axes else size
            for dim, size in zip(dims, document["shape"], strict=True)
        ]
        return {**document, "shape": shape, "dimension_names": list(dims)}

    # --- virtual

    def _plan_virtual(self, variable: _ComparedVariable) -> None:
        variable = self._without_duplicates(variable)
        dims, exists = variable.dims, variable.old is not None
        document = self._resized(variable)
        chunk_shape = list(variable.compared.chunk_shape)
        if variable.compared.is_divisible and 0 in variable.concat_axes:
            if exists:
                self._check_pieces(variable, chunk_shape[0])
            else:
                chunk_shape[0] = self._common_chunk(variable)
                grid = {"name": "regular", "configuration": {"chunk_shape": chunk_shape}}
                document["chunk_grid"] = grid
        moved: dict[int, npt.NDArray[np.int64]] = {}
        for axis in variable.concat_axes:
            self._check_alignment(variable, dims[axis], chunk_shape[axis])
            if not exists:
                continue
            target, torn = self._moved_chunks(dims[axis], chunk_shape[axis])
            if torn is not None:
                what = f"files come between elements of a chunk of {chunk_shape[axis]} along "
                hint = "ingest these files as copies, or into a new group with a smaller chunk"
                if not self._policies.tolerance:
                    hint += f"; {ROUNDING_HINT}"
                groups = [(f"chunk {torn}", (EXISTING,))]
                self._differs(variable.name, what + dims[axis], groups, hint)
            if target is not None:
                moved[axis] = target
        hidden = self._hidden_regions(variable)
        self._check_static(variable)
        self._add(variable, document, is_virtual=True, moved=moved, hidden=hidden)

    def _plan_copied(self, variable: _ComparedVariable) -> None:
        """Values are copied: chunks need not end where files end."""
        variable = self._without_duplicates(variable)
        dims, moved, is_rewritten = variable.dims, {}, False
        if variable.old is not None:
            for axis in variable.concat_axes:
                chunk = variable.compared.chunk_shape[axis]
                target, torn = self._moved_chunks(dims[axis], chunk)
                # A chunk that only gets longer is completed in its place.
                is_rewritten |= torn is not None and not self._stays(dims[axis])
                if target is not None:
                    moved[axis] = target
        hidden = self._hidden_regions(variable)
        self._check_static(variable)
        if hidden:  # copies are put one over the other, what is preferred last
            files = tuple(reversed(self._best_first(variable.files)))
            variable = variable._replace(files=files)
        self._add(
            variable,
            self._resized(variable),
            is_virtual=False,
            moved={} if is_rewritten else moved,
            is_copied=True,
            is_rewritten=is_rewritten,
            hidden=hidden,
        )

    def _stays(self, dim: str) -> bool:
        """Whether all that the repository has keeps its positions."""
        positions = self._axes[dim].old_positions
        return positions is None or np.array_equal(positions, np.arange(len(positions)))

    def _common_chunk(self, variable: _ComparedVariable) -> int:
        """The longest chunk that all files can be cut into."""
        axis = self._axes[variable.dims[0]]
        ends = [end for url in variable.files for end in axis.places[url] if end < len(axis)]
        common = gcd(*ends)
        for url in variable.files:
            header = variable.headers[url]
            rows, chunk = header.shape[0], header.chunk_shape[0]
            choices = (common, gcd(common, rows), gcd(common, chunk))
            common = max(each for each in choices if each and _can_cut(rows, chunk, each))
        return max(1, common)

    def _check_pieces(self, variable: _ComparedVariable, chunk: int) -> None:
        """The chunks of files must be chunks of the repository, or several of them."""
        lengths: dict[str, list[str]] = {str(chunk): [EXISTING]}
        for url in variable.files:
            header = variable.headers[url]
            if not _can_cut(header.shape[0], header.chunk_shape[0], chunk):
                lengths.setdefault(str(header.chunk_shape[0]), []).append(url)
        if len(lengths) > 1 or len(lengths[str(chunk)]) > 1:
            hint = self._policies.advice_to_copy
            self._differs(variable.name, "length of chunks", lengths.items(), hint)

    def _check_alignment(self, variable: _ComparedVariable, dim: str, chunk: int) -> None:
        """A file must begin where a chunk begins, and end where one ends."""
        axis, files = self._axes[dim], variable.files
        places = np.array([axis.places[url] for url in files], dtype=np.int64).reshape(-1, 2)
        starts, stops = places[:, 0], places[:, 1]
        bad = (starts % chunk != 0) | ((stops % chunk != 0) & (stops != len(axis)))
        if bad.any():
            rows = np.flatnonzero(bad).tolist()
            groups = [(f"{dim} {starts[row]} to {stops[row]}", (files[row],)) for row in rows[:5]]
            more = f" ({len(rows)} files)" if len(rows) > 5 else ""
            what = f"chunks of {chunk} along {dim} do not end where files end{more}"
            self._differs(variable.name, what, groups, self._policies.advice_to_copy)

    def _moved_chunks(
        self, dim: str, chunk: int
    ) -> tuple[npt.NDArray[np.int64] | None, int | None]:
        """Where existing chunks go, None if they stay; and one that files would tear apart."""
        positions = self._axes[dim].old_positions
        if positions is None or not len(positions):
            return None, None
        starts = positions[::chunk]
        lengths = np.minimum(chunk, len(positions) - np.arange(len(starts)) * chunk)
        ends = positions[np.arange(len(starts)) * chunk + lengths - 1] + 1
        bad = (starts % chunk != 0) | (ends - starts != lengths)
        bad |= (ends % chunk != 0) & (ends != len(self._axes[dim]))
        if bad.any():
            return None, int(np.argmax(bad))
        target = starts // chunk
        return (None if np.array_equal(target, np.arange(len(target))) else target), None

    # --- what several files have

    def _best_first(self, urls: Iterable[str]) -> list[str]:
        """Files of which the first one is to be taken, if they have the same part."""
        policy = self._policies.duplicates
        if policy == "fail":
            return list(urls)
        ordered = sorted(urls)
        if policy == "newest":
            # Of several that are equally new, the last one by name.
            ordered = sorted(ordered, key=self._age_of)[::-1]
        return ordered

    def _age_of(self, url: str) -> int:
        status = self._headers[url].status
        return 0 if status is None else status.last_modified or 0

    def _check_static(self, variable: _ComparedVariable) -> None:
        """A variable without a dimension to put files together along is taken from one file."""
        urls = list(variable.headers)
        if variable.concat_axes or len(urls) < 2:
            return
        if self._axes or variable.name in self._auxiliary:
            if self._compare_values:
                self._compare_digests(variable, [urls])
        elif self._policies.duplicates == "fail":
            groups = [("all of it", tuple(urls))]
            self._differs(variable.name, _SAME_PART, groups, self._hint_to_tell_apart(variable))

    def _compare_digests(
        self, variable: _ComparedVariable, groups: Sequence[Sequence[str]]
    ) -> set[str]:
        """Compare values that were not loaded; returns those of the files that differ."""
        digests = {url: variable.headers[url].digest for group in groups for url in group}
        missing = tuple(url for url, digest in digests.items() if digest is None)
        if missing:
            self.uncompared[variable.name] = missing
            return set()
        others: set[str] = set()
        for group in groups:
            unlike = [url for url in group if digests[url] != digests[group[0]]]
            others.update(unlike)
            if unlike:
                alike = [url for url in group if url not in unlike]
                shown = [("one", alike), ("other", unlike)]
                self._differs(variable.name, "values", shown, _OVERRIDE_HINT)
        return others

    def _without_duplicates(self, variable: _ComparedVariable) -> _ComparedVariable:
        """The variable with one file only for each part that several have alike."""
        groups = self._same_parts(variable)
        if not groups:
            return variable
        dropped: set[str] = set()
        policy = self._policies.duplicates
        is_shared = variable.name in self._auxiliary and policy == "fail"
        if is_shared and self._compare_values:
            self._compare_digests(variable, groups)
        if policy == "fail" and not is_shared:
            shown = [(self._where(variable.concat_dims, urls[0]), urls) for urls in groups[:5]]
            self._differs(variable.name, _SAME_PART, shown, self._hint_to_tell_apart(variable))
        for urls in groups:
            dropped.update(self._best_first(urls)[1:])
        files = tuple(url for url in variable.files if url not in dropped)
        return variable._replace(files=files)

    def _same_parts(self, variable: _ComparedVariable) -> list[list[str]]:
        """Groups of files that have exactly the same part of a variable."""
        if not variable.concat_axes or len(variable.files) < 2:
            return []
        boxes = self._boxes(variable).reshape(len(variable.files), -1)
        _, number, counts = np.unique(boxes, axis=0, return_inverse=True, return_counts=True)
        groups: dict[int, list[str]] = {}
        several = counts[number.reshape(-1)] > 1
        for row in np.flatnonzero(several).tolist():
            groups.setdefault(int(number.reshape(-1)[row]), []).append(variable.files[row])
        return list(groups.values())

    def _boxes(self, variable: _ComparedVariable) -> npt.NDArray[np.int64]:
        """The position of each file along the dimensions that files are concatenated along."""
        columns = [
            [self._axes[dim].places[url] for url in variable.files] for dim in variable.concat_dims
        ]
        return np.array(columns, dtype=np.int64).swapaxes(0, 1)

    def _hidden_regions(self, variable: _ComparedVariable) -> dict[str, tuple[Region, ...]]:
        """By file, what other files that overlap it have and are preferred for."""
        if not variable.concat_axes or len(variable.files) < 2:
            return {}
        boxes = self._boxes(variable)
        pairs = overlapping_pairs(boxes)
        files = variable.files
        if pairs and self._policies.duplicates == "fail":
            one, other = pairs[0]
            shown = [
                (self._where(variable.concat_dims, files[row]), [files[row]])
                for row in (one, other)
            ]
            hint = self._hint_to_tell_apart(variable)
            self._differs(variable.name, _SAME_PART, shown, hint)
            return {}
        rank = {url: number for number, url in enumerate(self._best_first(files))} if pairs else {}
        hidden: dict[str, list[Region]] = {}
        for one, other in pairs:
            worse = max((files[one], files[other]), key=rank.__getitem__)
            shared = zip(boxes[one], boxes[other], strict=True)
            inner = [(int(max(a[0], b[0])), int(min(a[1], b[1]))) for a, b in shared]
            region = [(0, size) for size in self._resized(variable)["shape"]]
            for axis, bounds in zip(variable.concat_axes, inner, strict=True):
                region[axis] = bounds
            hidden.setdefault(worse, []).append(tuple(region))
        return {url: tuple(regions) for url, regions in hidden.items()}

    def _hint_to_tell_apart(self, variable: _ComparedVariable) -> str:
        """What to say if several files have the same part of a variable."""
        scalar = self._differing_scalar(variable)
        if scalar is not None:
            return _dimension_hint(scalar)
        dim = self._dim_to_order(variable)
        if dim is not None:
            return order_hint(dim)
        return (
            "duplicates='first' or 'newest' takes one of them; if they are members or scenarios, "
            "file_coordinates={'member': r'…(\\d+)…'} makes a dimension of their names"
        )

    def _differing_scalar(self, variable: _ComparedVariable) -> str | None:
        """A scalar coordinate of the files that is another one in each of them."""
        headers = [self._headers[url] for url in variable.headers]
        for name, each in headers[0].variables.items():
            is_coordinate = name in self._auxiliary or bool(each.time_attributes)
            if not each.shape and is_coordinate and len(headers) > 1:
                values = [header.variables.get(name) for header in headers]
                if len(_distinct(values)) == len(headers):
                    return name
        return None

    def _dim_to_order(self, variable: _ComparedVariable) -> str | None:
        """A dimension along which files seem to follow each other, without saying so."""
        candidates = [dim for dim in variable.dims if dim not in self._axes]
        for dim in candidates:
            if any(
                len(self._distinct_values(name)) > 1
                for name in self._along_one_dimension.get(dim, ())
            ):
                return dim
        # Files of a series have its dimension first; of a grid, later ones lack coordinates too.
        first = variable.dims[:1]
        return first[0] if first and first[0] in self._without_coordinates(candidates) else None

    def _without_coordinates(self, dims: Sequence[str]) -> set[str]:
        return {dim for dim in dims if dim not in self._along_one_dimension.get(dim, ())}

    def _distinct_values(self, name: str) -> set[Any]:
        return _distinct(header.variables.get(name) for header in self._headers.values())

    def _where(self, dims: Sequence[str], url: str) -> str:
        parts = []
        for dim in dims:
            axis = self._axes[dim]
            start, stop = axis.places[url]
            parts.append(f"{dim} {axis.values[start]} to {axis.values[stop - 1]}")
        return ", ".join(parts)

    # --- values

    def _plan_values(self, variable: _ComparedVariable) -> None:
        name, dims, old, compared = variable.name, variable.dims, variable.old, variable.compared
        document = self._resized(variable)
        if old is None:
            document = _stored_document(document, compared.dtype_of_values, variable.concat_axes)
        is_coordinate = (
            bool(variable.concat_axes) and dims == (name,) and self._axes[name].keys is None
        )
        if is_coordinate:
            values = self._axes[name].values.astype(compared.dtype_of_values, copy=False)
            regions = [StoredValues((0,), values)]
        else:
            regions = self._moved_values(variable) + self._values_of_files(variable)
        if not variable.concat_axes and self._compare_values:
            self._check_same_values(variable)
        self.values[name] = regions
        self._add(variable, document, is_virtual=False)

    def _values_of_files(self, variable: _ComparedVariable) -> list[StoredValues]:
        """Values of files at their places: joined, and what several files have alike taken once."""
        values, dims = variable.compared.values, variable.dims
        files = list(variable.files)
        if self._policies.duplicates != "fail":
            files = self._best_first(files)[::-1]  # those that are preferred are put last
        places = {
            url: tuple(self._axes[dim].places[url][0] if dim in self._axes else 0 for dim in dims)
            for url in files
        }
        parts = [StoredValues(places[url], values[url]) for url in files]
        if not variable.concat_axes or len(parts) < 2:
            return parts
        joined = JoinedValues(parts, variable.compared.dtype_of_values, self._policies)
        if joined.clashes:
            shown = [
                (_shown(values[files[one]], values[files[other]]), [files[one], files[other]])
                for one, other in joined.clashes[:5]
            ]
            hint = "duplicates='first' or 'newest' takes those of one of the files"
            if not self._policies.tolerance:
                hint += "; if they differ by rounding only, a tolerance makes them equal"
            self._differs(variable.name, "values of the same part", shown, hint)
        return joined.parts

    def _moved_values(self, variable: _ComparedVariable) -> list[StoredValues]:
        """Values of the repository that must move because others come before them."""
        moving = [axis for axis in variable.concat_axes if not self._stays(variable.dims[axis])]
        if variable.old is None or not moving:
            return []
        if variable.old.values is None:
            self.unread[variable.name] = None
            return []
        old = variable.old.values
        shape = list(old.shape)
        places: list[npt.NDArray[np.int64]] = [np.arange(size) for size in shape]
        for axis in moving:
            positions = self._axes[variable.dims[axis]].old_positions
            assert positions is not None
            places[axis] = positions
            shape[axis] = int(positions[-1]) + 1
        # What files do not fill of the gaps between old values becomes missing.
        values = np.full(shape, fill_value_of(variable.old.document), old.dtype)
        values[np.ix_(*places)] = old
        return [StoredValues((0,) * len(shape), values)]

    def _check_same_values(self, variable: _ComparedVariable) -> None:
        urls, old, values = list(variable.headers), variable.old, variable.compared.values
        if old is not None and old.values is None and urls and not variable.files:
            self.unread[variable.name] = None
            return
        if old is not None and old.values is not None:
            first, where = old.values, EXISTING
        elif urls:
            first, where = values[urls[0]], urls[0]
        else:
            return
        equal: dict[int, bool] = {}  # most files share one array
        for url in urls:
            if id(values[url]) not in equal:
                equal[id(values[url])] = self._policies.are_equal(first, values[url])
        others = [url for url in urls if not equal[id(values[url])]]
        if others:
            example = values[others[0]]
            groups = [(_shown(first, example), [where]), (_shown(example, first), others)]
            hint = _OVERRIDE_HINT
            dim = self._dim_to_order(variable)
            if self._differing_scalar(variable) == variable.name:
                hint = _dimension_hint(variable.name)
            elif dim is not None:
                hint = f"{order_hint(dim)}; {hint}"
            difference = _largest_difference(first, [values[url] for url in others])
            if difference is not None:
                hint += f"; tolerance={difference:.0e} takes them as equal"
            self._differs(variable.name, "values", groups, hint)


def _distinct(variables: Iterable[VariableHeader | None]) -> set[Any]:
    """The values of a variable in several files; numbers of another unit are other values."""
    return {
        (each.values.tobytes(), each.attributes.get("units"))
        for each in variables
        if each and each.values is not None
    }


def _dimension_hint(name: str) -> str:
    return f"concat_dims=['{name}'] makes a dimension of it, along which files follow each other"


def _auxiliary_names(headers: Sequence[FileHeader]) -> set[str]:
    """Variables that files call coordinates, bounds and the like of others, or dimensions."""
    names: set[str] = set()
    known: set[tuple[int, ...]] = set()
    for header in headers:
        key = (id(header.attributes), *(id(each.document) for each in header.variables.values()))
        if key not in known:
            known.add(key)
            names |= header.auxiliary_names
    return names


def _can_cut(rows: int, chunk: int, piece: int) -> bool:
    """Whether uncompressed chunks with this many rows can be cut into equal pieces.

    Where there is one chunk only, what follows its last piece does not matter. All pieces must be
    whole: what is stored of a chunk may be longer than what is valid of it, and never shorter.
    """
    if rows > chunk:
        return chunk % piece == 0
    return -(-rows // piece) * piece <= chunk


def _stored_document(
    document: dict[str, Any], dtype: np.dtype[Any], moving: Sequence[int]
) -> dict[str, Any]:
    """The document of a variable whose values are stored: compressed, in chunks of its own."""
    from icefloe.ingest.parsed import array_document

    chunk_shape = [
        max(_LEAST_COORDINATE_CHUNK if axis in moving and len(document["shape"]) == 1 else 1, size)
        for axis, size in enumerate(document["shape"])
    ]
    codecs: list[dict[str, Any]] = [{"name": "zstd", "configuration": {"level": 3}}]
    if dtype.kind == "T":
        codecs.insert(0, {"name": "vlen-utf8"})
    own = fill_value_of(document)
    is_number = dtype.kind in "iuf" and isinstance(own, np.number)
    fresh = array_document(
        shape=document["shape"],
        dtype=dtype,
        chunk_shape=_of_some_megabytes(chunk_shape, dtype.itemsize),
        dims=document["dimension_names"],
        attributes={},
        fill_value=own.astype(dtype) if is_number else _nothing(dtype),
        codecs=codecs,
    )
    same_type = fresh["data_type"] == document["data_type"]
    fill = document["fill_value"] if same_type else fresh["fill_value"]
    return {**fresh, "fill_value": fill, "attributes": document.get("attributes") or {}}


def _largest_difference(
    values: npt.NDArray[Any], others: Sequence[npt.NDArray[Any]]
) -> float | None:
    """A power of ten above all differences; None if these are no matter of rounding."""
    alike = [other for other in others if other.shape == values.shape]
    if len(alike) < len(others) or any(each.dtype.kind not in "iuf" for each in [values, *others]):
        return None
    scale = float(np.nanmax(np.abs(values), initial=0.0))
    most = max(float(np.nanmax(np.abs(values - other), initial=0.0)) for other in others)
    return 10.0 ** ceil(log10(most)) if 0 < most <= _ROUNDING * scale else None


def _shown(values: npt.NDArray[Any], other: npt.NDArray[Any]) -> str:
    """A value, and where it is, that is not the same in both."""
    if values.shape != other.shape:
        return f"shape {list(values.shape)}"
    if not values.shape:
        return str(values[()])
    index = np.argwhere(np.asarray(values != other))
    place = tuple(index[0].tolist()) if len(index) else (0,) * values.ndim
    return f"{values[place]} at {list(place)}"


def _of_some_megabytes(chunk_shape: list[int], itemsize: int) -> list[int]:
    """A shape of chunks that are not too large to be read one by one: cut along the first axes."""
    shape = list(chunk_shape)
    for axis, size in enumerate(shape):
        rest = max(1, itemsize) * prod(shape[axis + 1 :])
        shape[axis] = min(size, max(1, _MOST_STORED_CHUNK_BYTES // rest))
        if shape[axis] > 1:
            break
    return shape


def _nothing(dtype: np.dtype[Any]) -> Any:
    """The default fill value of a type: an empty string, or zero."""
    if dtype.names is not None:
        return np.zeros((), dtype).item()
    return "" if dtype.kind == "T" else dtype.type()
