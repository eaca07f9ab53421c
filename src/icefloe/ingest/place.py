"""From the references of a file to those of the planned arrays: columns in, columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.ingest.parsed import ParsedArray, ParsedFile
    from icefloe.ingest.plan import IngestPlan, Region, VariablePlan
    from icefloe.model.virtual_columns import VirtualColumns

Check = str
"""`auto`, `etag`, `last_modified` or `none`: how a change of a file is noticed when it is read."""


class PlacedChunks(NamedTuple):
    """Chunks of one variable of a file, at their places in the planned array."""

    references: VirtualColumns
    inline: dict[tuple[int, ...], bytes]
    """Chunks whose bytes the file of references itself has."""


def references(
    parsed: ParsedFile, plan: IngestPlan, *, check: Check = "auto"
) -> dict[str, PlacedChunks]:
    """The references of a file, placed in the planned arrays, by virtual variable.

    Args:
        parsed: A file from `read_file`.
        plan: A plan of `plan_files` that includes the file.
        check: What is recorded to detect that a file has changed: its etag, its modification time
            (`last_modified`), nothing (`none`), or the best of these for its store (`auto`).

    Example:
        >>> from icefloe.virtual import ParseOptions, plan_files, read_file, read_header, references
        >>> urls = [f"{prefix}jan.nc", f"{prefix}feb.nc"]
        >>> sources, options = session.tree.virtual_sources, ParseOptions()
        >>> plan = plan_files([read_header(url, sources, options) for url in urls])
        >>> placed = references(read_file(urls[1], sources, options), plan)
        >>> placed["rain"].references.coords.tolist()
        [[2, 0], [3, 0]]
    """
    return {
        name: place_references(
            parsed, name, variable, plan.start(parsed.url, variable.dims), check=check
        )
        for name, variable in plan.variables.items()
        if variable.is_virtual and parsed.url in variable.files
    }


def place_references(
    parsed: ParsedFile,
    name: str,
    variable: VariablePlan,
    start: Sequence[int],
    *,
    check: Check = "auto",
) -> PlacedChunks:
    """The references of one variable of a file whose part begins at `start`."""
    array = parsed.arrays[name]
    refs = _cut(array, variable.chunk_shape[:1], name, parsed.url)
    shift = np.array(start, dtype=np.int64) // np.array(variable.chunk_shape or (1,), np.int64)
    shift = shift[: refs.coords.shape[1]]
    etags, modified = _checks(refs, parsed, check)
    placed = msgspec.structs.replace(
        refs, positions=refs.coords + shift, etags=etags, modified=modified
    )
    inline = {
        tuple((np.array(place, dtype=np.int64) + shift).tolist()): data
        for place, data in array.inline.items()
    }
    hidden = variable.hidden.get(parsed.url, ())
    if hidden:
        visible = ~_is_inside(placed.coords, hidden, variable.chunk_shape)
        placed = placed.take(np.flatnonzero(visible))
        inline = {
            place: data
            for place, data in inline.items()
            if not _is_inside(np.array([place]), hidden, variable.chunk_shape)[0]
        }
    return PlacedChunks(placed, inline)


def _is_inside(
    coords: npt.NDArray[np.integer], regions: Sequence[Region], chunk_shape: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Which chunks begin in one of some regions; regions end where chunks end."""
    starts = coords * np.array(chunk_shape, dtype=np.int64)
    inside = np.zeros(len(coords), dtype=bool)
    for region in regions:
        bounds = np.array(region, dtype=np.int64)
        inside |= ((starts >= bounds[:, 0]) & (starts < bounds[:, 1])).all(axis=1)
    return inside


def _cut(array: ParsedArray, chunk_shape: Sequence[int], name: str, url: str) -> VirtualColumns:
    """The references, with chunks cut along the first dimension if the plan has shorter ones."""
    refs = array.references
    if not chunk_shape or not array.chunk_shape or array.chunk_shape[0] == chunk_shape[0]:
        return refs
    chunk_bytes = array.raw_chunk_bytes
    if array.inline or chunk_bytes is None:
        raise InvalidInputError(f"{url}: {name} has chunks that cannot be cut; copy it instead")
    own, size = array.chunk_shape[0], array.shape[0]
    # Chunks are stored whole, at the edge of an array too, and so are the pieces of the last one:
    # the plan has seen to it that they end where the chunk ends, or before.
    piece_bytes = np.uint64(chunk_bytes // own * chunk_shape[0])
    pieces = -(-np.minimum(own, size - refs.coords[:, 0] * own) // chunk_shape[0])
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    coords = np.repeat(refs.coords, pieces, axis=0)
    coords[:, 0] = coords[:, 0] * (own // chunk_shape[0]) + number
    return msgspec.structs.replace(
        refs,
        positions=coords,
        codes=np.repeat(refs.codes, pieces),
        offsets=np.repeat(refs.offsets, pieces) + number.astype(np.uint64) * piece_bytes,
        lengths=np.full(len(number), piece_bytes),
    )


def _checks(
    refs: VirtualColumns, parsed: ParsedFile, check: Check
) -> tuple[list[str | None] | None, npt.NDArray[np.int64] | None]:
    """The etags or times that are recorded of objects, to notice later that one has changed."""
    if check not in ("auto", "etag", "last_modified", "none"):
        raise InvalidInputError(
            f"check is 'auto', 'etag', 'last_modified' or 'none', found {check!r}"
        )
    etags, modified = list(refs.all_etags()), refs.all_modified().copy()
    if parsed.status is not None:
        for row, url in enumerate(refs.locations):
            if url == parsed.url:
                etags[row] = parsed.status.etag
                modified[row] = parsed.status.last_modified or 0
    if check == "none":
        return None, None
    if check == "etag" or (check == "auto" and _has_strong_etags(parsed.url)):
        return etags, None
    return None, modified


def _has_strong_etags(url: str) -> bool:
    """Whether the etag of an object stays the same as long as its bytes do."""
    return url.partition(":")[0] in ("s3", "gs", "gcs", "az", "azure", "abfs", "tigris")
