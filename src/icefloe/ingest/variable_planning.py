"""Plans one variable after the other: its document, its files, what moves. Pure."""

from __future__ import annotations

from itertools import pairwise
from math import gcd, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.ingest.axes import EXISTING, Axis
from icefloe.ingest.comparison import Compared, compare_variable
from icefloe.ingest.differences import Difference
from icefloe.ingest.plan import Region, VariablePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.ingest.headers import FileHeader, VariableHeader

_LEAST_COORDINATE_CHUNK = 1024
"""Coordinates have chunks of at least this length, so that appending needs few of them."""
_MOST_STORED_CHUNK_BYTES = 32 << 20


class VariablePlanner:
    """Plans one variable after the other."""

    def __init__(
        self,
        axes: dict[str, Axis],
        headers: Sequence[FileHeader],
        existing: FileHeader | None,
        *,
        compare_values: bool,
        copies: bool = False,
    ) -> None:
        self._axes = axes
        self._headers = {header.url: header for header in headers}
        self._existing = existing
        self._compare_values = compare_values
        self._copies = copies
        self.variables: dict[str, VariablePlan] = {}
        self.values: dict[str, list[Region]] = {}
        self.differences: list[Difference] = []

    def plan_variable(self, name: str) -> None:
        """Plan a variable of any file, or of the repository."""
        found = {
            url: header.variables[name]
            for url, header in self._headers.items()
            if name in header.variables
        }
        old = None if self._existing is None else self._existing.variables.get(name)
        first = old or next(iter(found.values()))
        moving = [dim for dim in first.dims if dim in self._axes]
        is_virtual = not found or any(each.values is None for each in found.values())
        if old is not None and old.values is not None and not found:
            is_virtual = False
        compared = compare_variable(
            name,
            found,
            old,
            is_virtual=is_virtual,
            moving=moving,
            axes=self._axes,
            copies=self._copies,
        )
        self.differences += compared.differences
        if any(each.is_error for each in compared.differences):
            return
        if is_virtual and self._copies:
            self._plan_copied(name, found, old, compared)
        elif is_virtual:
            self._plan_virtual(name, found, old, compared)
        else:
            self._plan_values(name, found, old, compared)

    # --- virtual

    def _plan_virtual(
        self,
        name: str,
        found: dict[str, VariableHeader],
        old: VariableHeader | None,
        compared: Compared,
    ) -> None:
        dims = compared.dims
        moving = [axis for axis, dim in enumerate(dims) if dim in self._axes]
        placed = self._placed(found, dims, moving, exists=old is not None)
        document = self._resized(compared.document, dims)
        chunk_shape = list(compared.chunk_shape)
        if compared.is_divisible and old is None and 0 in moving:
            chunk_shape[0] = self._common_chunk(dims[0], placed, found)
            document["chunk_grid"] = {
                "name": "regular",
                "configuration": {"chunk_shape": chunk_shape},
            }
        if compared.is_divisible and old is not None and 0 in moving:
            self._check_pieces(name, chunk_shape[0], placed, found)
        moved: dict[int, npt.NDArray[np.int64]] = {}
        for axis in moving:
            self._check_alignment(name, dims[axis], chunk_shape[axis], placed)
            if old is not None:
                target = self._moved(name, dims[axis], chunk_shape[axis])
                if target is not None:
                    moved[axis] = target
        self._check_overlaps(name, [dims[axis] for axis in moving], placed)
        self._check_apart(name, found)
        self.variables[name] = VariablePlan(
            name, document, is_virtual=True, files=placed, moved=moved, exists=old is not None
        )

    def _check_apart(self, name: str, found: dict[str, VariableHeader]) -> None:
        if not self._axes and len(found) > 1:
            hint = "the files have the same coordinates: give file_coordinates that tell them apart"
            every = (("all of it", tuple(found)),)
            self.differences.append(
                Difference(name, "several files have one part", every, hint=hint)
            )

    def _plan_copied(
        self,
        name: str,
        found: dict[str, VariableHeader],
        old: VariableHeader | None,
        compared: Compared,
    ) -> None:
        """Values are copied: chunks need not end where files end."""
        dims = compared.dims
        moving = [axis for axis, dim in enumerate(dims) if dim in self._axes]
        placed = self._placed(found, dims, moving, exists=old is not None)
        moved: dict[int, npt.NDArray[np.int64]] = {}
        is_rewritten = False
        if old is not None:
            for axis in moving:
                target, bad_chunk = self._moved_chunks(dims[axis], compared.chunk_shape[axis])
                # A chunk that only gets longer is completed in its place.
                is_rewritten |= bad_chunk is not None and not self._stays(dims[axis])
                if target is not None:
                    moved[axis] = target
        self._check_overlaps(name, [dims[axis] for axis in moving], placed)
        self._check_apart(name, found)
        self.variables[name] = VariablePlan(
            name,
            self._resized(compared.document, dims),
            is_virtual=False,
            files=placed,
            moved={} if is_rewritten else moved,
            exists=old is not None,
            is_copied=True,
            is_rewritten=is_rewritten,
        )

    def _stays(self, dim: str) -> bool:
        """Whether all that the repository has keeps its positions."""
        positions = self._axes[dim].old_positions
        return positions is None or np.array_equal(positions, np.arange(len(positions)))

    def _placed(
        self,
        found: dict[str, VariableHeader],
        dims: Sequence[str],
        moving: Sequence[int],
        *,
        exists: bool,
    ) -> tuple[str, ...]:
        """The files that give chunks: one alone for a variable that is the same in all."""
        if not moving:
            # Where nothing is put together, a file is all there is, and replaces what was there.
            return () if exists and self._axes else tuple(found)[:1]
        return tuple(
            url for url in found if all(url in self._axes[dims[axis]].places for axis in moving)
        )

    def _resized(self, document: dict[str, Any], dims: Sequence[str]) -> dict[str, Any]:
        shape = [
            len(self._axes[dim]) if dim in self._axes else size
            for dim, size in zip(dims, document["shape"], strict=True)
        ]
        return {**document, "shape": shape, "dimension_names": list(dims)}

    def _common_chunk(
        self, dim: str, placed: Sequence[str], found: dict[str, VariableHeader]
    ) -> int:
        """The longest chunk that all files can be cut into."""
        axis = self._axes[dim]
        ends = [end for url in placed for end in axis.places[url] if end < len(axis)]
        common = gcd(*ends)
        for url in placed:
            rows, chunk = found[url].shape[0], found[url].chunk_shape[0]
            choices = (common, gcd(common, rows), gcd(common, chunk))
            common = max(each for each in choices if each and _can_cut(rows, chunk, each))
        return max(1, common)

    def _check_pieces(
        self, name: str, chunk: int, placed: Sequence[str], found: dict[str, VariableHeader]
    ) -> None:
        """The chunks of files must be chunks of the repository, or several of them."""
        wrong = [
            url
            for url in placed
            if not _can_cut(found[url].shape[0], found[url].chunk_shape[0], chunk)
        ]
        if wrong:
            lengths: dict[str, list[str]] = {str(chunk): [EXISTING]}
            for url in wrong:
                lengths.setdefault(str(found[url].chunk_shape[0]), []).append(url)
            groups = tuple((length, tuple(urls)) for length, urls in lengths.items())
            hint = "chunks of these files cannot be cut into those of the repository: copy them"
            self.differences.append(Difference(name, "length of chunks", groups, hint=hint))

    def _check_alignment(self, name: str, dim: str, chunk: int, placed: Sequence[str]) -> None:
        """A file must begin where a chunk begins, and end where one ends."""
        axis = self._axes[dim]
        places = np.array([axis.places[url] for url in placed], dtype=np.int64).reshape(-1, 2)
        starts, stops = places[:, 0], places[:, 1]
        bad = (starts % chunk != 0) | ((stops % chunk != 0) & (stops != len(axis)))
        if bad.any():
            rows = np.flatnonzero(bad).tolist()
            found = tuple(
                (f"{dim} {starts[row]} to {stops[row]}", (placed[row],)) for row in rows[:5]
            )
            more = f" ({len(rows)} files)" if len(rows) > 5 else ""
            what = f"chunks of {chunk} along {dim} do not end where files end{more}"
            hint = "such files cannot be virtual together: copy them, with one chunking for all"
            self.differences.append(Difference(name, what, found, hint=hint))

    def _moved(self, name: str, dim: str, chunk: int) -> npt.NDArray[np.int64] | None:
        """Where each chunk of the repository goes along a dimension; None if it stays."""
        target, bad_chunk = self._moved_chunks(dim, chunk)
        if bad_chunk is not None:
            what = f"files come between elements of a chunk of {chunk} along {dim}"
            found = ((f"chunk {bad_chunk}", (EXISTING,)),)
            hint = "ingest these files as copies, or into a new group with a smaller chunk"
            self.differences.append(Difference(name, what, found, hint=hint))
        return target

    def _moved_chunks(
        self, dim: str, chunk: int
    ) -> tuple[npt.NDArray[np.int64] | None, int | None]:
        """Where chunks go, None if they stay; and one that cannot, because it is torn apart."""
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

    def _check_overlaps(self, name: str, dims: Sequence[str], placed: Sequence[str]) -> None:
        """No two files may give the same part of a variable."""
        if not dims or len(placed) < 2:
            return
        boxes = np.array(
            [[self._axes[dim].places[url] for dim in dims] for url in placed], dtype=np.int64
        )
        order = np.lexsort(boxes[:, ::-1, 0].T)
        seen: dict[tuple[int, ...], str] = {}
        twice: dict[str, list[str]] = {}
        partly = _overlap_partly(boxes)
        for row in order.tolist():
            key = tuple(boxes[row].ravel().tolist())
            if key in seen:
                twice.setdefault(seen[key], [seen[key]]).append(placed[row])
            seen.setdefault(key, placed[row])
        if partly is not None:
            one, other = placed[partly[0]], placed[partly[1]]
            twice.setdefault(one, [one]).append(other)
        if twice:
            found = tuple(
                (self._where(dims, urls[0]), tuple(urls)) for urls in list(twice.values())[:5]
            )
            hint = "name each part once, or give file_coordinates that tell the files apart"
            self.differences.append(
                Difference(name, "several files have one part", found, hint=hint)
            )

    def _where(self, dims: Sequence[str], url: str) -> str:
        parts = []
        for dim in dims:
            axis = self._axes[dim]
            start, stop = axis.places[url]
            parts.append(f"{dim} {axis.values[start]} to {axis.values[stop - 1]}")
        return ", ".join(parts)

    # --- values

    def _plan_values(
        self,
        name: str,
        found: dict[str, VariableHeader],
        old: VariableHeader | None,
        compared: Compared,
    ) -> None:
        dims = compared.dims
        moving = [axis for axis, dim in enumerate(dims) if dim in self._axes]
        document = self._resized(compared.document, dims)
        if old is None:
            document = _stored_document(document, compared.dtype_of_values, moving)
        regions: list[Region] = []
        placed = self._placed(found, dims, moving, exists=old is not None)
        if moving and old is not None and old.values is not None:
            regions += self._kept(old.values, dims, moving, name)
        for url in placed:
            start = tuple(
                self._axes[dim].places[url][0] if dim in self._axes else 0 for dim in dims
            )
            regions.append(Region(start, compared.values[url]))
        if not moving and self._compare_values:
            self._check_same_values(name, found, old, compared)
        if not moving or dims != (name,):
            self._check_overlaps(name, [dims[axis] for axis in moving], placed)
        if moving and dims == (name,):
            regions = [Region((0,), _like(self._axes[name].values, compared.dtype_of_values))]
        self.values[name] = regions
        self.variables[name] = VariablePlan(
            name, document, is_virtual=False, files=placed, exists=old is not None
        )

    def _kept(
        self, values: npt.NDArray[Any], dims: Sequence[str], moving: Sequence[int], name: str
    ) -> list[Region]:
        """Values of the repository that must move because others come before them."""
        if dims == (name,):
            return []
        runs: list[Region] = [Region((0,) * len(dims), values)]
        for axis in moving:
            positions = self._axes[dims[axis]].old_positions
            if positions is None or np.array_equal(positions, np.arange(len(positions))):
                continue
            breaks = np.flatnonzero(np.diff(positions) != 1) + 1
            cuts = [0, *breaks.tolist(), len(positions)]
            runs = [
                Region(
                    (*run.start[:axis], int(positions[a]), *run.start[axis + 1 :]),
                    np.take(run.values, range(a, b), axis=axis),
                )
                for run in runs
                for a, b in pairwise(cuts)
            ]
        return [] if len(runs) == 1 and not any(runs[0].start) else runs

    def _check_same_values(
        self,
        name: str,
        found: dict[str, VariableHeader],
        old: VariableHeader | None,
        compared: Compared,
    ) -> None:
        urls = list(found)
        if old is not None and old.values is not None:
            first, where = old.values, EXISTING
        elif urls:
            first, where = compared.values[urls[0]], urls[0]
        else:
            return
        others = [url for url in urls if not _equal(first, compared.values[url])]
        if others:
            example = compared.values[others[0]]
            groups = ((_shown(first, example), (where,)), (_shown(example, first), tuple(others)))
            hint = (
                "variables without a dimension to put files together along must be the same; "
                "compat='override' takes those of the first file"
            )
            self.differences.append(Difference(name, "values", groups, hint=hint))


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


def _like(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return values if values.dtype == dtype else values.astype(dtype)


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
