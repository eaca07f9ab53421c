"""Input arrays of a job: aligned by the names of their dimensions, read block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.grid import Region, shape_of
from icefloe.cf.decoding import Coding, coding_of
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icefloe.session import Session

BOUNDARIES = ("none", "nearest", "reflect", "periodic")


class InputArray(Record, frozen=True):
    """An array that blocks are read from."""

    session: SessionSpec
    path: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    attributes: dict[str, Any]
    coding: Coding
    """What its stored values mean."""

    @classmethod
    def of(cls, session: Session, path: str, spec: SessionSpec | None = None) -> InputArray:
        """Look an array up in a read-only session."""
        array = arrays.open_array(session, path)
        names = arrays.dims_of(array)
        dims = tuple(name or f"dim_{axis}" for axis, name in enumerate(names))
        place = paths.canonical(path)
        spec = SessionSpec.of(session) if spec is None else spec
        attributes = dict(array.attrs)
        coding = coding_of(array.dtype, attributes)
        return cls(spec, place, array.shape, dims, attributes, coding)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return paths.name(self.path)

    def read(self, region: Region) -> npt.NDArray[Any]:
        """The stored values of a region."""
        return self.session.open().read_region(self.path, region)


class Overlap(Record, frozen=True):
    """How many more elements a block gets at its sides, along one dimension."""

    before: int
    after: int


def overlaps(given: Mapping[str, Any] | None, dims: Sequence[str]) -> dict[str, Overlap]:
    """Overlaps as users give them: a number, or (before, after), by dimension."""
    found = {}
    for name, sides in (given or {}).items():
        if name not in dims:
            raise InvalidInputError(f"no dimension is called {name!r}; found {list(dims)}")
        before, after = (sides, sides) if isinstance(sides, int) else sides
        if before < 0 or after < 0:
            raise InvalidInputError(f"an overlap is 0 or more, found {sides} for {name!r}")
        found[name] = Overlap(int(before), int(after))
    return found


def joint_shape(inputs: Sequence[InputArray], dims: Sequence[str]) -> tuple[int, ...]:
    """The shape that inputs have together; those of length 1 are spread along others."""
    sizes: dict[str, int] = {}
    for each in inputs:
        for name, extent in zip(each.dims, each.shape, strict=True):
            known = sizes.get(name, 1)
            if known != 1 and extent not in (1, known):
                raise InvalidInputError(
                    f"{each.path} has {extent} elements along {name!r}, others have {known}"
                )
            sizes[name] = max(known, extent)
    missing = [name for name in sizes if name not in dims]
    if missing:
        raise InvalidInputError(
            f"the result has the dimensions {list(dims)}; the inputs also have {missing}"
        )
    return tuple(sizes.get(name, 1) for name in dims)


def joint_dims(inputs: Sequence[InputArray]) -> tuple[str, ...]:
    """All dimensions of the inputs, in the order of the one that has most of them."""
    ordered = sorted(inputs, key=lambda each: -len(each.dims))
    return tuple(dict.fromkeys(name for each in ordered for name in each.dims))


def read_aligned(
    each: InputArray,
    dims: Sequence[str],
    region: Region,
    sides: Mapping[str, Overlap],
    boundary: str | float,
) -> npt.NDArray[Any]:
    """The part of an input that belongs to a block of the result, with the overlap.

    It has the dimensions of the result, of length 1 where the input does not have them.
    """
    asked = dict(zip(dims, region, strict=True))
    values = _read_with_overlap(
        each, [asked[name] for name in each.dims], [sides.get(n) for n in each.dims], boundary
    )
    order = sorted(range(len(each.dims)), key=lambda axis: dims.index(each.dims[axis]))
    values = values.transpose(order)
    present = set(each.dims)
    return values[tuple(slice(None) if name in present else np.newaxis for name in dims)]


def _read_with_overlap(
    each: InputArray,
    asked: Sequence[slice],
    sides: Sequence[Overlap | None],
    boundary: str | float,
) -> npt.NDArray[Any]:
    wanted = [
        slice(0, 1)
        if extent == 1
        else part
        if side is None
        else slice(part.start - side.before, part.stop + side.after)
        for part, extent, side in zip(asked, each.shape, sides, strict=True)
    ]
    inner = tuple(
        slice(max(0, part.start), min(extent, part.stop))
        for part, extent in zip(wanted, each.shape, strict=True)
    )
    if boundary == "periodic":
        return _wrapped(each, wanted)
    values = each.read(inner)
    if boundary == "none":
        return values
    widths = [
        (have.start - want.start, want.stop - have.stop)
        for have, want in zip(inner, wanted, strict=True)
    ]
    if not any(map(any, widths)):
        return values
    if boundary == "nearest":
        return np.pad(values, widths, mode="edge")
    if boundary == "reflect":
        return np.pad(values, widths, mode="reflect")
    return np.pad(values, widths, mode="constant", constant_values=boundary)


def _wrapped(each: InputArray, wanted: Sequence[slice]) -> npt.NDArray[Any]:
    """Read beyond the ends of an array from its other side."""
    for axis, (part, extent) in enumerate(zip(wanted, each.shape, strict=True)):
        if part.start >= 0 and part.stop <= extent:
            continue
        pieces = []
        start = part.start
        while start < part.stop:
            stop = min(part.stop, (start // extent + 1) * extent)
            turned = list(wanted)
            low = start % extent
            turned[axis] = slice(low, low + stop - start)
            pieces.append(_wrapped(each, turned))
            start = stop
        return np.concatenate(pieces, axis=axis)
    return each.read(tuple(wanted))


def trimmed(
    values: npt.NDArray[Any],
    region: Region,
    shape: Sequence[int],
    dims: Sequence[str],
    sides: Mapping[str, Overlap],
    boundary: str | float,
) -> npt.NDArray[Any]:
    """A result without the overlap, if the function left it there."""
    wanted = shape_of(region)
    if values.shape == wanted or values.ndim != len(wanted):
        return values
    cut = []
    for part, extent, name, have, want in zip(
        region, shape, dims, values.shape, wanted, strict=True
    ):
        side = sides.get(name)
        before = 0 if side is None else side.before
        if boundary == "none":
            before = min(before, part.start)
        after = 0 if side is None else side.after
        if boundary == "none":
            after = min(after, extent - part.stop)
        cut.append(slice(before, before + want) if have == want + before + after else slice(None))
    return values[tuple(cut)]
