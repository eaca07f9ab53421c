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
    """References cannot tell what a dataset has; its values can be read by h5py at most."""


def dataset_document(
    dataset: h5py.Dataset, dims: list[str], codecs: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The zarr.json of a dataset whose chunks are as they are in the file."""
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
    """A dataset by references, or by values where these are kept out of reach of references.

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
    if is_text(dataset):
        return _texts(dataset, dims)
    check_type(dataset)
    values = np.asarray(dataset[...]).astype(packed(dataset.dtype.newbyteorder("=")), copy=False)
    return array_of_values(values, dims, dataset_attributes(dataset), dataset.fillvalue.item())


def packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type as Zarr has it: records without gaps, and their numbers with the low byte first."""
    if dtype.subdtype is not None:
        return np.dtype((packed(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, packed(dtype[name]).newbyteorder("<")) for name in dtype.names])


def _texts(dataset: h5py.Dataset, dims: list[str]) -> ParsedArray:
    """Strings of any length: HDF5 keeps them in a heap, where no reference can point."""
    values = np.asarray(dataset.asstr()[()], dtype=np.dtypes.StringDType())
    return array_of_values(values, dims, dataset_attributes(dataset))


def is_text(dataset: h5py.Dataset) -> bool:
    """Whether a dataset has strings of any length."""
    import h5py

    if dataset.shape is None:
        return False
    return dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype) is not None


def check_type(dataset: h5py.Dataset) -> None:
    """Raise IndescribableError if no array of Zarr can have the values of a dataset."""
    if dataset.shape is None:
        raise IndescribableError(f"{dataset.name} has no values at all (a null dataspace)")
    dtype = dataset.dtype
    if dtype.kind == "O" or dtype.hasobject or dtype.subdtype is not None:
        kind = dataset.id.get_type().__class__.__name__.removeprefix("Type").removesuffix("ID")
        raise IndescribableError(
            f"the values of {dataset.name} have a type ({kind}) that Zarr has not"
        )


def _is_unwritten(dataset: h5py.Dataset) -> bool:
    """Whether a dataset of one piece has got no place in the file yet."""
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
    """Settings of the codecs that undo the filters of a dataset."""
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
    """Raise IndescribableError if bytes are left over where a chunk is shuffled.

    NetCDF 4 appends a checksum of four bytes before it shuffles, for instance. HDF5 leaves out the
    last bytes then, and the codec does not.
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
    """Where the chunks of a dataset are.

    Raises IndescribableError if some were stored without a filter because it did not make them
    smaller: each chunk says so itself, and a Zarr array has the same codecs for all of its chunks.
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
    """The attributes of a dataset, as JSON has them."""
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
    """The attributes of a group or dataset; those that JSON cannot have are left out."""
    found: dict[str, Any] = {}
    for name in where.attrs:
        if name in _HIDDEN:
            continue
        try:
            found[name] = _plain(where.attrs[name])
        except (TypeError, ValueError, OSError) as error:
            # Types of other languages, references to objects: they mean nothing outside.
            logger.debug("attribute %s of %s is left out: %s", name, where.name, error)
    return found


def _plain(value: Any) -> Any:
    """The value of an attribute; a single element stands for an array of one, as in NetCDF."""
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
    if array.dtype.kind not in "biuf":
        raise TypeError(f"its type is {array.dtype}")
    return array.reshape(-1)[0].item() if array.size == 1 else array.tolist()


def _text(value: Any) -> str:
    if isinstance(value, str):
        # What h5py could not decode it has kept as escapes.
        value = value.encode(errors="surrogateescape")
    if not isinstance(value, bytes):
        raise TypeError(f"it has a {type(value).__name__}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")  # whatever it is, it is no UTF-8
