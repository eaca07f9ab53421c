"""From the references of a file to those of the planned arrays: columns in, columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.ingest.parsed import ParsedArray, ParsedFile, References
    from icefloe.ingest.plan import IngestPlan, VariablePlan

Check = str
"""`auto`, `etag`, `last_modified` or `none`: how a change of a file is noticed when it is read."""


class PlacedReferences(Record, frozen=True, eq=False):
    """References of one variable, at their places in the planned array."""

    coords: npt.NDArray[np.int64]
    urls: list[str]
    codes: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]
    etags: list[str | None]
    modified: list[int | None]
    inline: dict[tuple[int, ...], bytes] = msgspec.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def concat(cls, parts: Sequence[PlacedReferences]) -> PlacedReferences:
        """Join references; the dictionaries of files are joined too."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0] + [len(part.urls) for part in parts])
        return cls(
            np.concatenate([part.coords for part in parts]),
            [url for part in parts for url in part.urls],
            np.concatenate(
                [part.codes + start for part, start in zip(parts, starts[:-1], strict=True)]
            ),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            [etag for part in parts for etag in part.etags],
            [seconds for part in parts for seconds in part.modified],
            {place: data for part in parts for place, data in part.inline.items()},
        )


def references(
    parsed: ParsedFile, plan: IngestPlan, *, check: Check = "auto"
) -> dict[str, PlacedReferences]:
    """The references of a file for each virtual variable that is taken from it.

    Args:
        parsed: The file.
        plan: A plan in which it has its place.
        check: What is recorded to notice that a file has changed: its etag, the time of its last
            change, or what fits its store best (`auto`).
    """
    found = {}
    for name, variable in plan.variables.items():
        if variable.is_virtual and parsed.url in variable.files:
            start = plan.start(parsed.url, variable.dims)
            found[name] = place_references(parsed, name, variable, start, check=check)
    return found


def place_references(
    parsed: ParsedFile,
    name: str,
    variable: VariablePlan,
    start: Sequence[int],
    *,
    check: Check = "auto",
) -> PlacedReferences:
    """The references of one variable of a file whose part begins at `start`."""
    array = parsed.arrays[name]
    coords, codes, offsets, lengths = _cut(array, variable.chunk_shape[:1], name, parsed.url)
    shift = np.array(start, dtype=np.int64) // np.array(variable.chunk_shape or (1,), np.int64)
    shift = shift[: coords.shape[1]]
    refs = array.references
    etags, modified = _checks(refs, parsed, check)
    inline = {
        tuple((np.array(place, dtype=np.int64) + shift).tolist()): data
        for place, data in array.inline.items()
    }
    return PlacedReferences(
        coords + shift, refs.urls, codes, offsets, lengths, etags, modified, inline
    )


def _cut(
    array: ParsedArray, wanted: Sequence[int], name: str, url: str
) -> tuple[Any, Any, Any, Any]:
    """The columns of references, with chunks cut along the first dimension if need be."""
    refs = array.references
    columns = refs.coords, refs.codes, refs.offsets, refs.lengths
    if not wanted or not array.chunk_shape or array.chunk_shape[0] == wanted[0]:
        return columns
    chunk_bytes = array.raw_chunk_bytes
    if array.inline or chunk_bytes is None:
        raise InvalidInputError(f"{url}: {name} has chunks that cannot be cut; copy it instead")
    own, size = array.chunk_shape[0], array.shape[0]
    # Chunks are stored whole, at the edge of an array too, and so are the pieces of the last one:
    # the plan has seen to it that they end where the chunk ends, or before.
    piece_bytes = np.uint64(chunk_bytes // own * wanted[0])
    pieces = -(-np.minimum(own, size - refs.coords[:, 0] * own) // wanted[0])
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    coords = np.repeat(refs.coords, pieces, axis=0)
    coords[:, 0] = coords[:, 0] * (own // wanted[0]) + number
    offsets = np.repeat(refs.offsets, pieces) + number.astype(np.uint64) * piece_bytes
    return coords, np.repeat(refs.codes, pieces), offsets, np.full(len(number), piece_bytes)


def _checks(
    refs: References, parsed: ParsedFile, check: Check
) -> tuple[list[str | None], list[int | None]]:
    """What is recorded of each object, to notice later that it has changed."""
    if check not in ("auto", "etag", "last_modified", "none"):
        raise InvalidInputError(
            f"check is 'auto', 'etag', 'last_modified' or 'none', found {check!r}"
        )
    etags: list[str | None] = list(refs.etags or [None] * len(refs.urls))
    modified: list[int | None] = list(refs.modified or [None] * len(refs.urls))
    if parsed.status is not None:
        for row, url in enumerate(refs.urls):
            if url == parsed.url:
                etags[row], modified[row] = parsed.status.etag, parsed.status.last_modified
    nothing: list[Any] = [None] * len(refs.urls)
    if check == "none":
        return nothing, nothing
    if check == "etag" or (check == "auto" and _has_strong_etags(parsed.url)):
        return etags, nothing
    return nothing, modified


def _has_strong_etags(url: str) -> bool:
    """Whether the etag of an object stays the same as long as its bytes do."""
    return url.partition(":")[0] in ("s3", "gs", "gcs", "az", "azure", "abfs", "tigris")
