"""Parses HDF5 and NetCDF 4 by VirtualiZarr, and what it cannot describe by h5py."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from icefloe.config.locations import parse_location
from icefloe.errors import InvalidInputError
from icefloe.virtual.parsed import ParsedArray, ParsedFile, References, array_document
from icefloe.virtual.parsers.manifest_stores import arrays_of
from icefloe.virtual.quiet import quietly

if TYPE_CHECKING:
    from collections.abc import Iterator

    import h5py

    from icefloe.virtual.authorized import AuthorizedStore

_NEVER_SKIPPED = {1, 2, 3}
"""Filters that HDF5 applies to every chunk: deflate, shuffle, fletcher32."""
_MAX_SPARSE_CHUNKS = 10_000_000
_MAX_LINKS = 16
"""HDF5 itself follows so many in a row."""


def parse_hdf5(url: str, store: AuthorizedStore, group: str | None = None) -> ParsedFile:
    """Read the metadata of a group of a file."""
    import h5py
    from virtualizarr.parsers import HDFParser

    from icefloe.virtual.authorized import AuthorizedRegistry

    reader = _readable(url, store)
    try:
        with h5py.File(reader, mode="r") as file:
            where = _group(file, group, url)
            own = _described_here(where, url)
            # The parser would describe all groups below, too, and follow their links.
            below = [name for name in where if isinstance(where[name], h5py.Group)]
        parser = HDFParser(
            group=group, drop_variables=sorted({*own, *below}), reader_factory=lambda *_: reader
        )
        with quietly():
            arrays, attributes = arrays_of(parser(url, cast("Any", AuthorizedRegistry(store))))
    except (OSError, KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        if isinstance(error, InvalidInputError):
            raise
        msg = f"{url} cannot be read as HDF5: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error
    found = _as_long_as_their_dimensions({**arrays, **own})
    return ParsedFile(url, "hdf5", store.status(url), found, attributes)


def parse_hdf5_for_copies(url: str, store: AuthorizedStore, group: str | None = None) -> ParsedFile:
    """Read the metadata of a group of a file whose values are then read by h5py.

    This also takes files that references cannot describe.
    """
    import h5py
    from virtualizarr.parsers.hdf.hdf import _extract_attrs

    try:
        file = h5py.File(_readable(url, store), mode="r")
        where = _group(file, group, url)
        arrays = {
            name: _read_by_h5py(dataset, str(where.name))
            for name, dataset in _datasets(where, url)
            if not _is_bare_dimension(dataset)
        }
        attributes = _extract_attrs(where)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        msg = f"{url} cannot be read as HDF5: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error
    found = _as_long_as_their_dimensions(arrays)
    return ParsedFile(url, "hdf5", store.status(url), found, attributes)


def _read_by_h5py(dataset: h5py.Dataset, group: str) -> ParsedArray:
    import h5py

    if h5py.check_string_dtype(dataset.dtype) and dataset.dtype.kind == "O":
        return _strings(dataset, group)
    document = array_document(
        shape=dataset.shape,
        dtype=dataset.dtype.newbyteorder("="),
        chunk_shape=[max(1, size) for size in dataset.chunks or dataset.shape],
        dims=_dims(dataset, group),
        attributes=_attributes(dataset),
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

    return ParsedArray(document, References.none(len(dataset.shape)), reader=read)


def _described_here(where: h5py.Group, url: str) -> dict[str, ParsedArray]:
    """Datasets that the parser cannot describe, or only at the cost of their whole size."""
    import h5py

    found = {}
    for name, dataset in _datasets(where, url):
        if _is_bare_dimension(dataset):
            continue
        if h5py.check_string_dtype(dataset.dtype) and dataset.dtype.kind == "O":
            found[name] = _strings(dataset, str(where.name))
        elif dataset.chunks is not None and dataset.id.get_num_chunks() == 0:
            found[name] = _unwritten(dataset, str(where.name))
        else:
            _check_not_too_sparse(dataset, url)
            _check_no_skipped_filters(dataset, url)
    return found


def _readable(url: str, store: AuthorizedStore) -> Any:
    """What h5py opens: a local file by its path, any other through its store."""
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
    """Whether a path leads through a link to another file; links are looked at, not followed."""
    import h5py

    where = start.file["/"] if path.startswith("/") else start
    for name in filter(None, path.split("/")):
        if name == ".":
            continue
        encoded = name.encode()
        if not isinstance(where, h5py.Group) or not where.id.links.exists(encoded):
            return False  # there is nothing, which whoever opens it will find
        kind = where.id.links.get_info(encoded).type
        if kind == h5py.h5l.TYPE_SOFT:
            target = where.id.links.get_val(encoded).decode()
            if hops >= _MAX_LINKS or _leaves_the_file(where, target, hops + 1):
                return True
        elif kind != h5py.h5l.TYPE_HARD:
            return True
        where = where.get(name)
    return False


def _datasets(group: h5py.Group, url: str) -> Iterator[tuple[str, h5py.Dataset]]:
    """The datasets of a group, none of which may have its bytes in other files.

    HDF5 would open whatever file is named there, and nobody has authorised that.
    """
    import h5py

    for name in group:
        is_elsewhere = _leaves_the_file(group, name)
        dataset = None if is_elsewhere else group[name]
        if isinstance(dataset, h5py.Dataset):
            is_elsewhere = dataset.external is not None or dataset.is_virtual
        if is_elsewhere:
            raise InvalidInputError(
                f"{url}: {name!r} has its data in another file, which HDF5 would open by itself, "
                "authorised or not; reference or ingest that file instead"
            )
        if isinstance(dataset, h5py.Dataset):
            yield name, dataset


def _is_bare_dimension(dataset: h5py.Dataset) -> bool:
    """Whether this only gives a dimension its length, as NetCDF 4 writes them."""
    return bytes(dataset.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not")


def _strings(dataset: h5py.Dataset, group: str) -> ParsedArray:
    """Strings of any length: HDF5 keeps them in a heap, where no reference can point."""
    values = np.asarray(dataset.asstr()[...], dtype=np.dtypes.StringDType())
    document = array_document(
        shape=dataset.shape,
        dtype=values.dtype,
        chunk_shape=[max(1, size) for size in dataset.shape],
        dims=_dims(dataset, group),
        attributes=_attributes(dataset),
        fill_value="",
        codecs=[{"name": "vlen-utf8"}],
    )
    return ParsedArray(document, References.none(len(dataset.shape)), values=values)


def _unwritten(dataset: h5py.Dataset, group: str) -> ParsedArray:
    """A dataset without any chunk."""
    from virtualizarr.parsers.hdf.filters import codecs_from_dataset

    document = array_document(
        shape=dataset.shape,
        dtype=dataset.dtype,
        chunk_shape=dataset.chunks,
        dims=_dims(dataset, group),
        attributes=_attributes(dataset),
        fill_value=dataset.fillvalue.item(),
        codecs=[codec.get_config() for codec in codecs_from_dataset(dataset)],
    )
    return ParsedArray(document, References.none(len(dataset.shape)))


def _attributes(dataset: h5py.Dataset) -> dict[str, Any]:
    from virtualizarr.parsers.hdf.hdf import _extract_attrs
    from virtualizarr.parsers.utils import encode_cf_fill_value

    attributes: dict[str, Any] = _extract_attrs(dataset)
    if "_FillValue" in attributes:
        if dataset.dtype.kind in "OSU":
            del attributes["_FillValue"]
        else:
            fill = encode_cf_fill_value(attributes["_FillValue"], dataset.dtype)
            attributes["_FillValue"] = fill
    return attributes


def _dims(dataset: h5py.Dataset, group: str) -> list[str]:
    from virtualizarr.parsers.hdf.hdf import _dataset_dims

    return list(_dataset_dims(dataset, group=group))


def _check_not_too_sparse(dataset: h5py.Dataset, url: str) -> None:
    """Refuse grids that are nearly empty: the parser makes a row for each chunk that could be."""
    if dataset.chunks is None:
        return
    grid = prod(
        -(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)
    )
    written = dataset.id.get_num_chunks()
    if grid > max(_MAX_SPARSE_CHUNKS, 16 * written):
        raise InvalidInputError(
            f"{url}: {dataset.name} has {written} of {grid} possible chunks, which is too sparse "
            "for references; copy this variable instead"
        )


def _check_no_skipped_filters(dataset: h5py.Dataset, url: str) -> None:
    """Refuse chunks that were stored without some filter because it did not make them smaller.

    Each chunk says so itself, and a Zarr array has the same codecs for all of its chunks.
    """
    properties = dataset.id.get_create_plist()
    filters = {properties.get_filter(number)[0] for number in range(properties.get_nfilters())}
    if dataset.chunks is None or filters <= _NEVER_SKIPPED:
        return
    masks: set[int] = set()
    dataset.id.chunk_iter(lambda chunk: masks.add(chunk.filter_mask))
    if masks - {0}:
        msg = (
            f"{url}: some chunks of {dataset.name} were stored without its filters {filters}, "
            "which references cannot tell; copy this variable instead"
        )
        raise InvalidInputError(msg)


def _as_long_as_their_dimensions(arrays: dict[str, ParsedArray]) -> dict[str, ParsedArray]:
    """Arrays in their full length: an unlimited dimension is as long as its longest variable.

    NetCDF 4 does not extend the others before they are written to, and reads them as fill values.
    """
    sizes: dict[str, int] = {}
    for array in arrays.values():
        for dim, size in zip(array.dims, array.shape, strict=True):
            sizes[dim] = max(size, sizes.get(dim, 0))
    found = {}
    for name, each in arrays.items():
        shape = [
            size if dim.startswith("phony_dim_") else sizes[dim]
            for dim, size in zip(each.dims, each.shape, strict=True)
        ]
        is_short = shape != list(each.shape) and each.values is None
        document = {**each.document, "shape": shape}
        found[name] = msgspec.structs.replace(each, document=document) if is_short else each
    return found
