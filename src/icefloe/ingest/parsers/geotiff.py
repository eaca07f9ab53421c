"""Parses GeoTIFF with virtual-tiff; x and y are computed from the georeference."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Literal

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
GRID_MAPPING = "spatial_ref"
"""What the variable with the georeference is called, as by rioxarray."""
_GEO_KEYS = frozenset(
    {
        "model_type",
        "raster_type",
        "citation",
        "geographic_type",
        "projected_type",
        "geog_citation",
        "geog_angular_units",
        "geog_ellipsoid",
        "geog_geodetic_datum",
        "geog_semi_major_axis",
        "geog_semi_minor_axis",
        "geog_inv_flattening",
        "geog_prime_meridian",
        "projection",
        "vertical",
        "vertical_citation",
        "vertical_datum",
        "vertical_units",
        "model_transformation",
    }
)
_USER_DEFINED = 32767
"""The code of a reference system that has none."""
_TEXT_TAGS = {
    269: "TIFFTAG_DOCUMENTNAME",
    270: "TIFFTAG_IMAGEDESCRIPTION",
    305: "TIFFTAG_SOFTWARE",
    306: "TIFFTAG_DATETIME",
    315: "TIFFTAG_ARTIST",
    316: "TIFFTAG_HOSTCOMPUTER",
    33432: "TIFFTAG_COPYRIGHT",
}
_TEXT, _BIG_TIFF = 2, 43
_MOST_TAGS, _MOST_TEXT = 4096, 64 * 1024
_DIFFERENCES = "HorizontalDeltaCodec"
_POINT = 2
"""GTRasterTypeGeoKey: the tiepoint is the middle of a pixel, not its corner."""


def parse_geotiff(url: str, store: AuthorizedStore) -> ParsedFile:
    """Read the first image of a file; the others are mostly the same image, smaller."""
    from icefloe.ingest.authorized import AuthorizedRegistry

    try:
        from virtual_tiff import VirtualTIFF
    except ImportError as error:
        raise InvalidInputError(
            "TIFF is read by the package virtual-tiff: pip install 'icefloe[ingest-tiff]' "
            f"({error})"
        ) from error

    try:
        with quietly():
            registry: Any = AuthorizedRegistry(store)
            images, attributes = arrays_of(VirtualTIFF(ifd=0)(url, registry))
    except IcefloeError:
        raise
    except Exception as error:
        # For damaged files the library raises its own errors, or panics.
        msg = f"{url} cannot be read as TIFF: {type(error).__name__}: {error}"
        raise InvalidInputError(msg) from error
    image = images["0"]
    _check_differences(image.document, url)
    tags = _plain(image.document["attributes"])
    own = {**tags, **text_tags(store, url), "grid_mapping": GRID_MAPPING}
    image = msgspec.structs.replace(image, document={**image.document, "attributes": own})
    arrays = {BAND_DATA: image, **_coordinates(image), GRID_MAPPING: _grid_mapping(tags)}
    return ParsedFile(
        url=url, format="geotiff", status=store.status(url), arrays=arrays, attributes=attributes
    )


def _grid_mapping(tags: dict[str, Any]) -> ParsedArray:
    """The variable that says what x and y mean, with the names that GDAL and rioxarray use."""
    attributes = {name: tags[name] for name in tags if name in _GEO_KEYS or "proj_" in name}
    code = tags.get("projected_type") or tags.get("geographic_type")
    if isinstance(code, int) and 1024 <= code < _USER_DEFINED:
        attributes["spatial_ref"] = f"EPSG:{code}"
    transform = _transform(tags)
    if transform is not None:
        attributes["GeoTransform"] = " ".join(map(repr, transform))
    return array_of_values(np.array(0, np.int64), (), attributes)


def _transform(tags: dict[str, Any]) -> tuple[float, ...] | None:
    """Corner, and what a step to the right and down adds to x and y, as GDAL orders them."""
    matrix = tags.get("model_transformation")
    scale, tie = tags.get("model_pixel_scale"), tags.get("model_tiepoint")
    half = 0.5 if tags.get("raster_type") == _POINT else 0.0
    if matrix and len(matrix) == 16:
        a, b, _, c, d, e, _, f = (float(each) for each in matrix[:8])
    elif scale and tie and len(tie) == 6:
        a, b, d, e = float(scale[0]), 0.0, 0.0, -float(scale[1])
        c, f = tie[3] - tie[0] * a, tie[4] - tie[1] * e
    else:
        return None
    return (c - half * (a + b), a, b, f - half * (d + e), d, e)


def text_tags(store: AuthorizedStore, url: str) -> dict[str, str]:
    """Tags of the first image that are text, by the names that GDAL gives them."""
    head = store.get_range(url, start=0, length=16)
    order: Literal["little", "big"] = "little" if head[:2] == b"II" else "big"

    def number(data: bytes) -> int:
        return int.from_bytes(data, order)

    is_big = number(head[2:4]) == _BIG_TIFF
    start = number(head[8:16] if is_big else head[4:8])
    counter, row, width = (8, 20, 8) if is_big else (2, 12, 4)
    count = number(store.get_range(url, start=start, length=counter))
    entries = store.get_range(url, start=start + counter, length=min(count, _MOST_TAGS) * row)
    texts = {}
    for at in range(0, len(entries) - row + 1, row):
        entry = entries[at : at + row]
        name = _TEXT_TAGS.get(number(entry[:2]))
        length = number(entry[4 : 4 + width])
        if name is None or number(entry[2:4]) != _TEXT or not 0 < length <= _MOST_TEXT:
            continue
        value = entry[4 + width :]
        if length > width:
            value = store.get_range(url, start=number(value), length=length)
        texts[name] = value[:length].rstrip(b"\0").decode(errors="replace")
    return texts


def _check_differences(document: dict[str, Any], url: str) -> None:
    """Refuse big-endian images with a horizontal predictor.

    The codec would decode them as little-endian: wrong values, and no error.
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
    """Coordinates of pixel centres, if the image is not rotated."""
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
