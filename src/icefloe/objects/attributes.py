"""Takes large attributes out of a `zarr.json` and puts them back, byte for byte (H-07)."""

from __future__ import annotations

import msgspec

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def split_document(document: bytes, threshold: int) -> tuple[bytes, bytes, int] | None:
    """Cut attributes of more than `threshold` bytes out of a document.

    Returns the rest of the document, the attributes' bytes and where they belong; None if they
    are small enough to stay.
    """
    if len(document) <= threshold:
        return None
    try:
        attributes = bytes(_decoder.decode(document).get("attributes", b""))
    except msgspec.DecodeError:
        # NaN and the like, which are not JSON but which zarr writes: such a document stays whole.
        return None
    if len(attributes) <= threshold:
        return None
    # If the same bytes are elsewhere too, cutting there restores the same document.
    position = document.find(attributes)
    return document[:position] + document[position + len(attributes) :], attributes, position


def join_document(rest: bytes, attributes: bytes, position: int) -> bytes:
    """Undo `split_document`."""
    return rest[:position] + attributes + rest[position:]
