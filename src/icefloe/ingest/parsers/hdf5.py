"""Parses HDF5 and NetCDF 4 groups; links to other files are never followed."""

from __future__ import annotations

from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from icefloe.config.locations import parse_location
from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import ParsedArray, ParsedFile, array_document
from icefloe.ingest.parsers.hdf5_datasets import (
    IndescribableError,
    attributes_of,
    check_filters,
    check_type,
    dataset_attributes,
    described,
    is_text,
    read_whole,
)
from icefloe.ingest.quiet import quietly
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import h5py

    from icefloe.ingest.authorized import AuthorizedStore

_MAX_LINKS = 16
"""HDF5 itself follows so many in a row."""
_NAMELESS = "phony_dim_"
"""What dimensions without a name are called, and a number."""
_UNREADABLE = (OSError, KeyError, ValueError, TypeError, AttributeError, NotImplementedError)
"""What h5py raises where a file is damaged, or says something that makes no sense."""


def parse_hdf5(
    url: str,
    store: AuthorizedStore,
    group: str | None = None,
    *,
    drop: Collection[str] = (),
    load: Collection[str] = (),
) -> ParsedFile:
    """Read the metadata of a group of a file.

    Args:
        url: The file.
        store: Where it is read from.
        group: Which of its groups; the root by default.
        drop: Names of datasets to skip.
        load: Names or patterns of datasets to load; h5py reads those that references cannot
            describe.
    """
    with _readable_as_hdf5(url), _opened(url, store) as file, quietly():
        where = _group(file, group, url)
        arrays = {}
        names = _DimensionNames(str(where.name))
        for name, dataset in _datasets(where, url, drop):
            dims = names.of(dataset)
            is_wanted = dims == [name] or any(fnmatchcase(name, pattern) for pattern in load)
            arrays[name] = _array(name, dataset, dims, url, is_wanted=is_wanted)
        attributes = attributes_of(where)
    found = _as_long_as_their_dimensions(arrays)
    return ParsedFile(
        url=url, format="hdf5", status=store.status(url), arrays=found, attributes=attributes
    )


def _array(
    name: str, dataset: h5py.Dataset, dims: list[str], url: str, *, is_wanted: bool
) -> ParsedArray:
    try:
        return described(dataset, dims, url)
    except IndescribableError as error:
        reason = error
    try:
        check_type(dataset)
    except IndescribableError:
        advice = f"leave it out: drop_variables=[{name!r}]"
    else:
        if is_wanted:
            try:
                return read_whole(dataset, dims)
            except IndescribableError as error:
                raise InvalidInputError(f"{url}: {error}") from error
        advice = (
            f"store its values in the repository: loadable_variables=[{name!r}], leave it out: "
            f"drop_variables=[{name!r}], or copy the file"
        )
    raise InvalidInputError(f"{url}: {reason}; {advice}") from reason


def parse_hdf5_for_copies(
    url: str, store: AuthorizedStore, group: str | None = None, *, drop: Collection[str] = ()
) -> ParsedFile:
    """Read the metadata of a group whose values h5py will read.

    This also works for datasets that references cannot describe.
    """
    import h5py

    with _readable_as_hdf5(url):
        file = h5py.File(_readable(url, store), mode="r")
        where = _group(file, group, url)
        names = _DimensionNames(str(where.name))
        arrays = {
            name: _read_by_h5py(dataset, names.of(dataset), url)
            for name, dataset in _datasets(where, url, drop)
        }
        attributes = attributes_of(where)
    found = _as_long_as_their_dimensions(arrays)
    return ParsedFile(
        url=url, format="hdf5", status=store.status(url), arrays=found, attributes=attributes
    )


@contextmanager
def _readable_as_hdf5(url: str) -> Iterator[None]:
    """Translate the errors of h5py into InvalidInputError."""
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, InvalidInputError):
            raise
        msg = f"{url} cannot be read as HDF5: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error


@contextmanager
def _opened(url: str, store: AuthorizedStore) -> Iterator[h5py.File]:
    import h5py

    with h5py.File(_readable(url, store), mode="r") as file:
        yield file


def _read_by_h5py(dataset: h5py.Dataset, dims: list[str], url: str) -> ParsedArray:
    try:
        if is_text(dataset):
            return read_whole(dataset, dims)
        check_type(dataset)
        check_filters(dataset)
    except IndescribableError as error:
        name = str(dataset.name).rpartition("/")[2]
        advice = f"leave it out: drop_variables=[{name!r}]"
        raise InvalidInputError(f"{url}: {error}; {advice}") from error
    document = array_document(
        shape=dataset.shape,
        dtype=dataset.dtype.newbyteorder("="),
        chunk_shape=[max(1, size) for size in dataset.chunks or dataset.shape],
        dims=dims,
        attributes=dataset_attributes(dataset),
        fill_value=dataset.fillvalue.item(),
    )

    def read(region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        shape = tuple(part.stop - part.start for part in region)
        inside = tuple(
            slice(part.start, max(part.start, min(part.stop, size)))
            for part, size in zip(region, dataset.shape, strict=True)
        )
        found = np.asarray(dataset[inside])
        if found.shape == shape:
            return found.astype(dataset.dtype.newbyteorder("="), copy=False)
        values = np.full(shape, dataset.fillvalue, dataset.dtype.newbyteorder("="))
        values[tuple(slice(0, size) for size in found.shape)] = found
        return values

    return ParsedArray(document, VirtualColumns.none(len(dataset.shape)), reader=read)


def _readable(url: str, store: AuthorizedStore) -> Any:
    """What to give to h5py: the path of a local file, or a file object that reads the store."""
    from obspec_utils.readers import BlockStoreReader

    store.status(url)  # raises unless the file exists and may be read
    location = parse_location(url)
    if location.scheme == "file":
        return f"/{location.key}"
    return BlockStoreReader(cast("Any", store), url)


def _group(file: h5py.File, group: str | None, url: str) -> h5py.Group:
    """A group of the file itself."""
    import h5py

    path = group or "/"
    if _leaves_the_file(file["/"], path):
        raise InvalidInputError(
            f"{url}: the group {path!r} is in another file, which HDF5 would open by itself, "
            "authorised or not; reference or ingest that file instead"
        )
    where = file.get(path)
    if not isinstance(where, h5py.Group):
        raise InvalidInputError(f"{url} has no group {group!r}")
    return where


def _leaves_the_file(start: h5py.Group, path: str, hops: int = 0) -> bool:
    """Whether a path contains an external link; links are inspected, not followed."""
    import h5py

    where = start.file["/"] if path.startswith("/") else start
    for name in filter(None, path.split("/")):
        if name == ".":
            continue
        encoded = name.encode()
        if not isinstance(where, h5py.Group) or not where.id.links.exists(encoded):
            return False  # missing: opening it raises the error
        kind = where.id.links.get_info(encoded).type
        if kind == h5py.h5l.TYPE_SOFT:
            target = where.id.links.get_val(encoded).decode()
            if hops >= _MAX_LINKS or _leaves_the_file(where, target, hops + 1):
                return True
        elif kind != h5py.h5l.TYPE_HARD:
            return True
        where = where.get(name)
    return False


def _datasets(
    group: h5py.Group, url: str, drop: Collection[str]
) -> Iterator[tuple[str, h5py.Dataset]]:
    """The datasets of a group that are variables; raises if one is stored in another file.

    HDF5 would open any file that is named there, which nobody has authorised.
    """
    import h5py

    for name in group:
        if name in drop:
            continue
        is_elsewhere = _leaves_the_file(group, name)
        dataset = None if is_elsewhere else group[name]
        if isinstance(dataset, h5py.Dataset):
            is_elsewhere = dataset.external is not None or dataset.is_virtual
        if is_elsewhere:
            raise InvalidInputError(
                f"{url}: {name!r} has its data in another file, which HDF5 would open by itself, "
                "authorised or not; reference or ingest that file instead"
            )
        if isinstance(dataset, h5py.Dataset) and not _is_bare_dimension(dataset):
            yield name, dataset


def _is_bare_dimension(dataset: h5py.Dataset) -> bool:
    """Whether this is a dimension scale without values, as NetCDF 4 writes them."""
    return bytes(dataset.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not")


class _DimensionNames:
    """Names of the dimensions of the datasets of a group.

    Dimensions without a name are named by their length, as NetCDF does.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._lengths: list[int] = []

    def of(self, dataset: h5py.Dataset) -> list[str]:
        from virtualizarr.parsers.hdf.hdf import _dataset_dims

        if dataset.shape is None:
            return []
        names = list(_dataset_dims(dataset, group=self._group))
        used: set[int] = set()
        for axis, name in enumerate(names):
            if name.startswith(_NAMELESS):
                number = self._number(dataset.shape[axis], used)
                used.add(number)
                names[axis] = f"{_NAMELESS}{number}"
        return names

    def _number(self, length: int, used: set[int]) -> int:
        for number, each in enumerate(self._lengths):
            if each == length and number not in used:
                return number
        self._lengths.append(length)
        return len(self._lengths) - 1


def _as_long_as_their_dimensions(arrays: dict[str, ParsedArray]) -> dict[str, ParsedArray]:
    """Extend arrays along unlimited dimensions to the length of the longest variable.

    NetCDF 4 extends a variable only when it is written, and reads the rest as fill values.
    """
    sizes: dict[str, int] = {}
    for array in arrays.values():
        for dim, size in zip(array.dims, array.shape, strict=True):
            sizes[dim] = max(size, sizes.get(dim, 0))
    found = {}
    for name, each in arrays.items():
        shape = [sizes[dim] for dim in each.dims]
        found[name] = each if shape == list(each.shape) else _longer(each, shape)
    return found


def _longer(array: ParsedArray, shape: list[int]) -> ParsedArray:
    from zarr.core.dtype import get_data_type_from_json

    document = {**array.document, "shape": shape}
    values = array.values
    if values is not None:
        kind = get_data_type_from_json(document["data_type"], zarr_format=3)
        fill = kind.from_json_scalar(document["fill_value"], zarr_format=3)
        there = tuple(map(slice, values.shape))
        values = np.full(shape, fill, values.dtype)
        values[there] = array.values
    return msgspec.structs.replace(array, document=document, values=values)
