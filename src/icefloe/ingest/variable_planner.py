"""Plans one variable after the other: its document, its files, what moves. No I/O."""

from __future__ import annotations

from itertools import pairwise
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from icefloe.ingest.compare import Compared, compare_variable
from icefloe.ingest.plan import EXISTING, ConcatAxis, Difference, StoredValues, VariablePlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.ingest.headers import FileHeader, VariableHeader

_LEAST_COORDINATE_CHUNK = 1024
"""Coordinates have chunks of at least this length, so that appending needs few of them."""
_MOST_STORED_CHUNK_BYTES = 32 << 20
_SAME_PART = "several files have one part"


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
        *,
        compare_values: bool,
        copies: bool = False,
    ) -> None:
        """Take the axes and headers of all files; see `plan_files` for the rest."""
        self._axes = axes
        self._headers = {header.url: header for header in headers}
        self._existing = existing
        self._compare_values = compare_values
        self._copies = copies
        self.variables: dict[str, VariablePlan] = {}
        self.values: dict[str, list[StoredValues]] = {}
        self.differences: list[Difference] = []

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
            copies=self._copies,
        )
        self.differences += compared.differences
        if any(each.is_error for each in compared.differences):
            return
        concat_axes = [axis for axis, dim in enumerate(compared.dims) if dim in self._axes]
        files = self._files(headers, compared.dims, concat_axes, exists=old is not None)
        variable = _ComparedVariable(name, headers, old, compared, concat_axes, files)
        if not is_virtual:
            self._plan_values(variable)
        elif self._copies:
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
            return () if exists and self._axes else tuple(headers)[:1]
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
                groups = [(f"chunk {torn}", (EXISTING,))]
                self._differs(variable.name, what + dims[axis], groups, hint)
            if target is not None:
                moved[axis] = target
        self._check_overlaps(variable)
        self._check_apart(variable)
        self._add(variable, document, is_virtual=True, moved=moved)

    def _plan_copied(self, variable: _ComparedVariable) -> None:
        """Values are copied: chunks need not end where files end."""
        dims, moved, is_rewritten = variable.dims, {}, False
        if variable.old is not None:
            for axis in variable.concat_axes:
                chunk = variable.compared.chunk_shape[axis]
                target, torn = self._moved_chunks(dims[axis], chunk)
                # A chunk that only gets longer is completed in its place.
                is_rewritten |= torn is not None and not self._stays(dims[axis])
                if target is not None:
                    moved[axis] = target
        self._check_overlaps(variable)
        self._check_apart(variable)
        self._add(
            variable,
            self._resized(variable),
            is_virtual=False,
            moved={} if is_rewritten else moved,
            is_copied=True,
            is_rewritten=is_rewritten,
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
            hint = "chunks of these files cannot be cut into those of the repository: copy them"
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
            hint = "such files cannot be virtual together: copy them, with one chunking for all"
            self._differs(variable.name, what, groups, hint)

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

    def _check_apart(self, variable: _ComparedVariable) -> None:
        if not self._axes and len(variable.headers) > 1:
            hint = "the files have the same coordinates: give file_coordinates that tell them apart"
            groups = [("all of it", tuple(variable.headers))]
            self._differs(variable.name, _SAME_PART, groups, hint)

    def _check_overlaps(self, variable: _ComparedVariable) -> None:
        """No two files may have the same part of a variable."""
        dims, files = variable.concat_dims, variable.files
        if not dims or len(files) < 2:
            return
        boxes = np.array(
            [[self._axes[dim].places[url] for dim in dims] for url in files], dtype=np.int64
        )
        order = np.lexsort(boxes[:, ::-1, 0].T)
        seen: dict[tuple[int, ...], str] = {}
        twice: dict[str, list[str]] = {}
        for row in order.tolist():
            key = tuple(boxes[row].ravel().tolist())
            if key in seen:
                twice.setdefault(seen[key], [seen[key]]).append(files[row])
            seen.setdefault(key, files[row])
        pair = _overlap_partly(boxes)
        if pair is not None:
            one, other = files[pair[0]], files[pair[1]]
            twice.setdefault(one, [one]).append(other)
        if twice:
            groups = [(self._where(dims, urls[0]), urls) for urls in list(twice.values())[:5]]
            hint = "name each part once, or give file_coordinates that tell the files apart"
            self._differs(variable.name, _SAME_PART, groups, hint)

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
        is_coordinate = bool(variable.concat_axes) and dims == (name,)
        if is_coordinate:
            values = self._axes[name].values.astype(compared.dtype_of_values, copy=False)
            regions = [StoredValues((0,), values)]
        else:
            regions = self._moved_values(variable)
            for url in variable.files:
                places = [
                    self._axes[dim].places[url][0] if dim in self._axes else 0 for dim in dims
                ]
                regions.append(StoredValues(tuple(places), compared.values[url]))
            self._check_overlaps(variable)
        if not variable.concat_axes and self._compare_values:
            self._check_same_values(variable)
        self.values[name] = regions
        self._add(variable, document, is_virtual=False)

    def _moved_values(self, variable: _ComparedVariable) -> list[StoredValues]:
        """Values of the repository that must move because others come before them."""
        if variable.old is None or variable.old.values is None or not variable.concat_axes:
            return []
        runs = [StoredValues((0,) * len(variable.dims), variable.old.values)]
        for axis in variable.concat_axes:
            positions = self._axes[variable.dims[axis]].old_positions
            if positions is None or self._stays(variable.dims[axis]):
                continue
            breaks = np.flatnonzero(np.diff(positions) != 1) + 1
            cuts = [0, *breaks.tolist(), len(positions)]
            runs = [
                StoredValues(
                    (*run.start[:axis], int(positions[a]), *run.start[axis + 1 :]),
                    np.take(run.values, range(a, b), axis=axis),
                )
                for run in runs
                for a, b in pairwise(cuts)
            ]
        return [] if len(runs) == 1 and not any(runs[0].start) else runs

    def _check_same_values(self, variable: _ComparedVariable) -> None:
        urls, old, values = list(variable.headers), variable.old, variable.compared.values
        if old is not None and old.values is not None:
            first, where = old.values, EXISTING
        elif urls:
            first, where = values[urls[0]], urls[0]
        else:
            return
        others = [url for url in urls if not _equal(first, values[url])]
        if others:
            example = values[others[0]]
            groups = [(_shown(first, example), [where]), (_shown(example, first), others)]
            hint = (
                "variables without a dimension to put files together along must be the same; "
                "compat='override' takes those of the first file"
            )
            self._differs(variable.name, "values", groups, hint)


def _can_cut(rows: int, chunk: int, piece: int) -> bool:
    """Whether uncompressed chunks of so many rows of a file can be cut into equal pieces.

    Where there is one chunk only, what follows its last piece does not matter. All pieces must be
    whole: what is stored of a chunk may be longer than what is valid of it, and never shorter.
    """
    if rows > chunk:
        return chunk % piece == 0
    return -(-rows // piece) * piece <= chunk


def _overlap_partly(boxes: npt.NDArray[np.int64]) -> tuple[int, int] | None:
    """Two boxes that share elements but are not the same; None if there are none."""
    for number in range(boxes.shape[1]):
        distinct = np.unique(boxes[:, number], axis=0)
        if (distinct[1:, 0] < distinct[:-1, 1]).any():
            break
    else:
        return None
    order = np.argsort(boxes[:, 0, 0], kind="stable")
    for at, row in enumerate(order.tolist()):
        box = boxes[row]
        for other_row in order[at + 1 :].tolist():
            other = boxes[other_row]
            if other[0, 0] >= box[0, 1]:
                break
            shares = (np.maximum(box[:, 0], other[:, 0]) < np.minimum(box[:, 1], other[:, 1])).all()
            if shares and not np.array_equal(box, other):
                return row, other_row
    return None


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
    fresh = array_document(
        shape=document["shape"],
        dtype=dtype,
        chunk_shape=_of_some_megabytes(chunk_shape, dtype.itemsize),
        dims=document["dimension_names"],
        attributes={},
        fill_value=_nothing(dtype),
        codecs=codecs,
    )
    same_type = fresh["data_type"] == document["data_type"]
    fill = document["fill_value"] if same_type else fresh["fill_value"]
    return {**fresh, "fill_value": fill, "attributes": document.get("attributes") or {}}


def _equal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    if a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))


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
    """What stands where nothing was written: no text, zeros."""
    if dtype.names is not None:
        return np.zeros((), dtype).item()
    return "" if dtype.kind == "T" else dtype.type()
