"""Describes datasets of HDF5: documents, where their chunks are, or else their values."""

from __future__ import annotations

import logging
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.ingest.parsed import ParsedArray, array_document, array_of_values
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    import h5py
    import numpy.typing as npt

logger = logging.getLogger(__name__)

_HIDDEN = {
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
}
"""Attributes in which NetCDF 4 and HDF5 keep their own books."""

_CODECS = {
    1: ("zlib", ("level",)),
    2: ("shuffle", ("elementsize",)),
    3: ("fletcher32", ()),
    307: ("bz2", ("level",)),
    32001: ("blosc", ()),
    32015: ("zstd", ("level",)),
}
"""Filters, by their registered number, that a codec undoes; and the settings that it has."""
_SHUFFLE, _FLETCHER32 = 2, 3
_CHECKSUM_BYTES = 4


class IndescribableError(ValueError):
    """References cannot describe a dataset; h5py may be able to read its values."""


def dataset_document(
    dataset: h5py.Dataset, dims: list[str], codecs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The zarr.json of a dataset, with the codecs that its chunks in the file need."""
    return array_document(
        shape=dataset.shape,
        dtype=dataset.dtype,
        chunk_shape=[max(1, size) for size in dataset.chunks or dataset.shape],
        dims=dims,
        attributes=dataset_attributes(dataset),
        fill_value=dataset.fillvalue.item(),
        codecs=codecs,
    )


def described(dataset: h5py.Dataset, dims: list[str], url: str) -> ParsedArray:
    """A dataset as references, or as values if no reference can point to these.

    Raises IndescribableError.
    """
    if is_text(dataset):
        return read_whole(dataset, dims)
    check_type(dataset)
    if dataset.chunks is None and dataset.id.get_offset() is None and not _is_unwritten(dataset):
        return read_whole(dataset, dims)  # a few values in the header of the dataset itself
    document = _virtual_document(dataset, dims)
    if dataset.chunks is not None:
        return ParsedArray(document, _chunks(dataset, url))
    if _is_unwritten(dataset):
        return ParsedArray(document, VirtualColumns.none(len(dataset.shape)))
    coords = np.zeros((1, len(dataset.shape)), dtype=np.int64)
    offset = np.array([dataset.id.get_offset()])
    length = np.array([dataset.id.get_storage_size()])
    return ParsedArray(document, VirtualColumns.in_one_object(url, coords, offset, length))


def read_whole(dataset: h5py.Dataset, dims: list[str]) -> ParsedArray:
    """A dataset by its values, as the library of HDF5 reads them."""
    check_filters(dataset)
    if is_text(dataset):
        return _texts(dataset, dims)
    check_type(dataset)
    values = np.asarray(dataset[...]).astype(packed(dataset.dtype.newbyteorder("=")), copy=False)
    return array_of_values(values, dims, dataset_attributes(dataset), dataset.fillvalue.item())


def packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype that Zarr supports: records without padding, with little-endian fields."""
    if dtype.subdtype is not None:
        return np.dtype((packed(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, packed(dtype[name]).newbyteorder("<")) for name in dtype.names])


def _texts(dataset: h5py.Dataset, dims: list[str]) -> ParsedArray:
    """Read variable-length strings: HDF5 keeps them in a heap, so references cannot be used."""
    values = np.asarray(dataset.asstr()[()], dtype=np.dtypes.StringDType())
    return array_of_values(values, dims, dataset_attributes(dataset))


def check_filters(dataset: h5py.Dataset) -> None:
    """Raise IndescribableError if HDF5 itself cannot undo the filters of a dataset here.

    Those that h5py does not bring along come from the package hdf5plugin, if it is installed.
    """
    from h5py import h5z

    missing = [
        (number, name) for number, name, _ in _filters(dataset) if not h5z.filter_avail(number)
    ]
    if not missing:
        return
    try:
        import hdf5plugin  # noqa: F401 (registers its filters)
    except ImportError:
        advice = "the package hdf5plugin has most filters: pip install 'icefloe[ingest-filters]'"
    else:
        missing = [each for each in missing if not h5z.filter_avail(each[0])]
        advice = (
            "the package hdf5plugin does not have it: write the file again without it (h5repack)"
        )
    if missing:
        number, name = missing[0]
        raise IndescribableError(
            f"{dataset.name} was written with the filter {name} (number {number}) of HDF5, which "
            f"cannot be undone here; {advice}"
        )


def is_text(dataset: h5py.Dataset) -> bool:
    """Whether a dataset has variable-length strings."""
    import h5py

    if dataset.shape is None:
        return False
    return dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype) is not None


def check_type(dataset: h5py.Dataset) -> None:
    """Raise IndescribableError if Zarr has no data type for a dataset."""
    if dataset.shape is None:
        raise IndescribableError(f"{dataset.name} has no values at all (a null dataspace)")
    dtype = dataset.dtype
    if dtype.kind == "O" or dtype.hasobject or dtype.subdtype is not None:
        kind = dataset.id.get_type().__class__.__name__.removeprefix("Type").removesuffix("ID")
        raise IndescribableError(
            f"the values of {dataset.name} have a type ({kind}) that Zarr has not"
        )


def _is_unwritten(dataset: h5py.Dataset) -> bool:
    """Whether no space was allocated for a contiguous dataset yet."""
    from h5py import h5d

    is_compact = dataset.id.get_create_plist().get_layout() == h5d.COMPACT
    return dataset.chunks is None and not is_compact and dataset.id.get_offset() is None


def _virtual_document(dataset: h5py.Dataset, dims: list[str]) -> dict[str, Any]:
    if dataset.dtype.names is not None and dataset.dtype != packed(dataset.dtype):
        raise IndescribableError(
            f"the records of {dataset.name} have gaps or fields in another byte order, which "
            "records of Zarr have not"
        )
    codecs = _codecs(dataset)
    try:
        return dataset_document(dataset, dims, codecs)
    except Exception as error:
        names = [codec["id"] for codec in codecs]
        raise IndescribableError(
            f"Zarr has no array like {dataset.name} ({dataset.dtype}, codecs {names}): {error}"
        ) from error


def _codecs(dataset: h5py.Dataset) -> list[dict[str, Any]]:
    """Configurations of the codecs that decode the filters of a dataset."""
    from numcodecs.registry import get_codec

    codecs = []
    _check_order(dataset)
    for number, name, settings in _filters(dataset):
        codec, keys = _CODECS.get(number, ("", ()))
        config = {"id": codec, **dict(zip(keys, settings, strict=False))}
        try:
            codecs.append(get_codec(config).get_config())
        except ValueError:
            raise IndescribableError(
                f"{dataset.name} was written with the filter {name} (number {number}) of HDF5, "
                "for which there is no codec here"
            ) from None
    return codecs


def _check_order(dataset: h5py.Dataset) -> None:
    """Raise IndescribableError if shuffled bytes are not a multiple of the element size.

    NetCDF 4, for instance, appends a checksum of four bytes before it shuffles. HDF5 then
    leaves the last bytes where they are; the codec does not.
    """
    size = prod(dataset.chunks or ()) * dataset.dtype.itemsize
    for number, _, settings in _filters(dataset):
        if number == _SHUFFLE and settings and size % settings[0]:
            raise IndescribableError(
                f"the filters of {dataset.name} shuffle {size} bytes in groups of {settings[0]}, "
                "for which there is no codec"
            )
        size += _CHECKSUM_BYTES if number == _FLETCHER32 else 0


def _filters(dataset: h5py.Dataset) -> list[tuple[int, str, tuple[int, ...]]]:
    properties = dataset.id.get_create_plist()
    found = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    return [
        (number, name.decode(errors="replace") or "?", settings)
        for number, _, settings, name in found
    ]


def _chunks(dataset: h5py.Dataset, url: str) -> VirtualColumns:
    """Find the chunks of a dataset.

    Raises IndescribableError if a filter was skipped for some chunks, which HDF5 does if it does
    not make them smaller: in Zarr all chunks of an array have the same codecs.
    """
    rows: list[tuple[int, ...]] = []
    masks: set[int] = set()

    def note(chunk: Any) -> None:
        rows.append((*chunk.chunk_offset, chunk.byte_offset, chunk.size))
        masks.add(chunk.filter_mask)

    rank = len(dataset.shape)
    if dataset.id.get_num_chunks():
        dataset.id.chunk_iter(note)
    if masks - {0}:
        names = ", ".join(name for _, name, _ in _filters(dataset))
        raise IndescribableError(
            f"some chunks of {dataset.name} were stored without its filters ({names}), which "
            "references cannot tell"
        )
    table = np.array(rows, dtype=np.int64).reshape(len(rows), rank + 2)
    coords = table[:, :rank] // np.array(dataset.chunks, dtype=np.int64)
    order = np.lexsort(coords.T[::-1]) if rank else np.arange(len(rows))
    return VirtualColumns.in_one_object(
        url, coords[order], table[order, rank], table[order, rank + 1]
    )


# --- attributes


def dataset_attributes(dataset: h5py.Dataset) -> dict[str, Any]:
    """The attributes of a dataset, as values for JSON."""
    from virtualizarr.parsers.utils import encode_cf_fill_value

    attributes = attributes_of(dataset)
    if "_FillValue" in attributes:
        if dataset.dtype.kind in "OSU":
            del attributes["_FillValue"]
        else:
            fill = np.asarray(attributes["_FillValue"]).astype(dataset.dtype.newbyteorder("="))
            attributes["_FillValue"] = encode_cf_fill_value(fill[()], dataset.dtype)
    return attributes


def attributes_of(where: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """The attributes of a group or dataset, without those that JSON cannot represent."""
    attributes: dict[str, Any] = {}
    for name in where.attrs:
        if name in _HIDDEN:
            continue
        try:
            attributes[name] = _plain(where.attrs[name])
        except (TypeError, ValueError, OSError) as error:
            # Opaque types and object references have no meaning outside of the file.
            logger.debug("attribute %s of %s is left out: %s", name, where.name, error)
    return attributes


def _plain(value: Any) -> Any:
    """The value of an attribute; an array of one element becomes that element, as in NetCDF."""
    import h5py

    if isinstance(value, h5py.Empty):
        return ""
    if isinstance(value, bytes | str):
        return _text(value)
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.kind in "SUO":
        texts = [_text(each) for each in array.reshape(-1).tolist()]
        return (
            texts[0] if array.size == 1 else np.array(texts, object).reshape(array.shape).tolist()
        )
    if array.dtype.kind == "c":
        return _pairs(array)
    if array.dtype.names is not None:
        return _records(array)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"its type is {array.dtype}")
    return array.reshape(-1)[0].item() if array.size == 1 else array.tolist()


def _pairs(array: npt.NDArray[Any]) -> Any:
    """Complex numbers as pairs of their real and imaginary parts, as JSON can have them."""
    pairs = np.stack([array.real, array.imag], axis=-1)
    return pairs.reshape(2).tolist() if array.size == 1 else pairs.tolist()


def _records(array: npt.NDArray[Any]) -> Any:
    """Records (compound types) as objects by field; several are a list."""
    assert array.dtype.names is not None
    rows = [{name: _plain(row[name]) for name in array.dtype.names} for row in array.reshape(-1)]
    return rows[0] if array.size == 1 else rows


def _text(value: Any) -> str:
    if isinstance(value, str):
        # h5py keeps bytes that it could not decode as surrogate escapes.
        value = value.encode(errors="surrogateescape")
    if not isinstance(value, bytes):
        raise TypeError(f"it has a {type(value).__name__}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")  # not UTF-8
