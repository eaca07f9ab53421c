"""Parses GeoTIFF by virtual-tiff; x and y come from the georeference, as for other readers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.ingest.parsed import (
    ParsedArray,
    ParsedFile,
    array_of_values,
)
from icefloe.ingest.parsers.manifest_stores import arrays_of
from icefloe.ingest.quiet import quietly

if TYPE_CHECKING:
    from icefloe.ingest.authorized import AuthorizedStore

BAND_DATA = "band_data"
"""What the image is called, as by rioxarray."""
_DIFFERENCES = "HorizontalDeltaCodec"
_POINT = 2
"""GTRasterTypeGeoKey: the tiepoint is the middle of a pixel, not its corner."""


def parse_geotiff(url: str, store: AuthorizedStore) -> ParsedFile:
    """Read the first image of a file; the others are mostly the same image, smaller."""
    from virtual_tiff import VirtualTIFF

    from icefloe.ingest.authorized import AuthorizedRegistry

    try:
        with quietly():
            registry: Any = AuthorizedRegistry(store)
            found, attributes = arrays_of(VirtualTIFF(ifd=0)(url, registry))
    except IcefloeError:
        raise
    except Exception as error:
        # The library for TIFF has errors of its own, and also panics, for files that are damaged.
        msg = f"{url} cannot be read as TIFF: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error
    image = found["0"]
    _check_differences(image.document, url)
    described = {**image.document, "attributes": _plain(image.document["attributes"])}
    image = msgspec.structs.replace(image, document=described)
    arrays = {BAND_DATA: image, **_coordinates(image)}
    return ParsedFile(url, "geotiff", store.status(url), arrays, attributes)


def _check_differences(document: dict[str, Any], url: str) -> None:
    """Refuse differences of neighbours whose high byte is first.

    The codec adds them up as if the low byte were, which gives other values and no error.
    """
    codecs = document["codecs"]
    orders = [(codec.get("configuration") or {}).get("endian") for codec in codecs]
    if _DIFFERENCES in [codec["name"] for codec in codecs] and "big" in orders:
        raise InvalidInputError(
            f"{url} has differences of pixels (predictor 2) in big-endian byte order, which no "
            "codec reads; write it again in little-endian order (gdal_translate -co ENDIANNESS="
            "LITTLE), or copy it with rioxarray"
        )


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.value if isinstance(value, enum.Enum) else value
        for name, value in attributes.items()
    }


def _coordinates(image: ParsedArray) -> dict[str, ParsedArray]:
    """Where the middles of pixels are, if the image is not rotated."""
    attributes = image.document["attributes"]
    scale, tie = attributes.get("model_pixel_scale"), attributes.get("model_tiepoint")
    if not scale or not tie or len(tie) != 6:
        return {}
    half = 0.0 if attributes.get("raster_type") == _POINT else 0.5
    height, width = image.shape[-2:]
    x = tie[3] + (np.arange(width) - tie[0] + half) * scale[0]
    y = tie[4] - (np.arange(height) - tie[1] + half) * scale[1]
    return {
        name: array_of_values(values, [name], {"axis": name.upper()})
        for name, values in (("y", y), ("x", x))
    }
