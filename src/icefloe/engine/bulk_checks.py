"""Checks virtual references in bulk, as a whole, and makes a table of them."""

from __future__ import annotations

import string
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from icefloe.engine.bulk_refs import BATCH_ROWS, LARGEST_POSITION
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import Box, ChunkIndex, bounding_box
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, StringColumn, VirtualRef
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.bulk_refs import VirtualRefs
    from icefloe.model.nodes import ArrayNode
    from icefloe.objects.foreign import VirtualChunkResolver

_PLAIN = string.ascii_letters.encode() + string.digits.encode() + b"!$&'()*+,;=:@._~/-\n"
"""What the canonical form of a location never writes in another way; and ends of lines."""
_DOTS = ("/.\n", "/..\n")
"""Names that the canonical form does not have."""


def checked_table(
    refs: VirtualRefs,
    node: ArrayNode,
    resolver: VirtualChunkResolver,
    *,
    validate_containers: bool,
) -> tuple[ArrayChunks | None, list[tuple[int, ...]]]:
    """The references as a table of an array, and coordinates of those in no container.

    Where coordinates repeat, the later row wins. Raises InvalidInputError if anything else is
    wrong with any of them.
    """
    _check_places(refs, node)
    ends = refs.offsets + refs.lengths
    if len(ends) and int(ends.max()) > LARGEST_POSITION:
        row = int(np.argmax(ends))
        raise InvalidInputError(
            f"a virtual chunk ends below 2**63, that of row {row} at {int(ends[row])}"
        )
    urls, accepted = _canonical(refs.urls, resolver, validate_containers=validate_containers)
    refused: list[tuple[int, ...]] = []
    if not accepted.all():
        mask = accepted[refs.sources]
        refused = list(map(tuple, refs.coords()[~mask].tolist()))
        refs = refs.take(np.flatnonzero(mask))
    if len(refs) == 0:
        return None, refused
    etags = [etag or "" for etag in refs.etags] if any(refs.etags) else [""] * len(urls)
    locations = Locations(_packed(urls), _packed(etags), refs.modified)
    return _sorted_table(refs, locations), refused


def _packed(strings: list[str]) -> StringColumn:
    """What `StringColumn.of` makes, without an object per string where all are ASCII."""
    joined = "".join(strings)
    if not joined.isascii():
        return StringColumn.of(strings)
    lengths = np.fromiter(map(len, strings), dtype=np.uint64, count=len(strings))
    return StringColumn(joined.encode("ascii"), np.cumsum(lengths, dtype=np.uint64))


def _sorted_table(refs: VirtualRefs, locations: Locations) -> ArrayChunks:
    count = len(refs)
    columns = ChunkRefs(
        np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
        refs.sources.astype(np.uint32),
        refs.offsets,
        refs.lengths,
        np.zeros(count, dtype=np.uint32),
        np.empty((0, ChunkFileId.SIZE), dtype=np.uint8),
        locations,
        b"",
    )
    if isinstance(refs.places, Box):
        return ArrayChunks(ChunkIndex(refs.places, None), columns)
    box = bounding_box(refs.places)
    linear = box.linearize(refs.places)
    if (linear[1:] > linear[:-1]).all():
        return ArrayChunks(ChunkIndex.from_sorted(box, linear), columns)
    order = np.argsort(linear, kind="stable")
    linear = linear[order]
    is_last = np.append(linear[1:] != linear[:-1], True)
    index = ChunkIndex.from_sorted(box, linear[is_last])
    return ArrayChunks(index, columns.take(order[is_last]))


def _check_places(refs: VirtualRefs, node: ArrayNode) -> None:
    rank, grid = node.array.rank, node.array.grid_shape
    if isinstance(refs.places, Box):
        if refs.places.rank != rank:
            raise _outside(node, refs.places.lower)
        upper, lower = refs.places.upper, refs.places.lower
    else:
        if len(refs) == 0:
            return
        if refs.places.shape[1] != rank:
            raise _outside(node, tuple(refs.places[0].tolist()))
        upper = tuple(int(v) + 1 for v in refs.places.max(axis=0))
        lower = tuple(int(v) for v in refs.places.min(axis=0))
    if min((*lower, 0)) < 0:
        raise _outside(node, lower)
    if len(refs) and grid is not None and any(u > g for u, g in zip(upper, grid, strict=True)):
        coords = refs.coords()
        bad = (coords >= np.array(grid, dtype=np.uint64)).any(axis=1)
        raise _outside(node, tuple(coords[int(np.argmax(bad))].tolist()))


def _outside(node: ArrayNode, coords: tuple[int, ...]) -> InvalidInputError:
    return InvalidInputError(
        f"invalid chunk index: {list(coords)} in {node.path}, whose chunk grid is "
        f"{list(node.array.grid_shape or ())}"
    )


def _canonical(
    urls: list[str], resolver: VirtualChunkResolver, *, validate_containers: bool
) -> tuple[list[str], npt.NDArray[np.bool_]]:
    """Locations in canonical form, and whether each may be used.

    Raises InvalidInputError for what is no location.
    """
    strange = [kind.__name__ for kind in set(map(type, urls)) if not issubclass(kind, str)]
    if strange:
        raise InvalidInputError(
            f"error parsing the location of a virtual chunk: it is a URL, found {strange[0]}"
        )
    checker = _LocationChecker(resolver, validate_containers=validate_containers)
    canonical: list[str] = []
    accepted: list[bool] = []
    for start in range(0, len(urls), BATCH_ROWS):
        part = urls[start : start + BATCH_ROWS]
        verdicts = checker.plain(part)
        if verdicts is None:
            pairs = list(map(checker.one, part))
            part, verdicts = [url for url, _ in pairs], [verdict for _, verdict in pairs]
        canonical += part
        accepted += verdicts
    return canonical, np.array(accepted, dtype=bool)


def _is_plain(text: str) -> bool:
    return text.isascii() and not text.encode("ascii").translate(None, _PLAIN)


class _LocationChecker:
    """Checks distinct locations; those that lie in one folder share the work."""

    def __init__(self, resolver: VirtualChunkResolver, *, validate_containers: bool) -> None:
        self._resolver = resolver
        self._validate = validate_containers
        self._folders: dict[str, bool | None] = {}

    def plain(self, urls: list[str]) -> list[bool] | None:
        """Whether each may be used, if all are canonical already; None if they may not be."""
        joined = "\n".join(urls) + "\n"
        if joined.count("\n") != len(urls) or not _is_plain(joined):
            return None
        # Short patterns are found quickly; the longer ones are hardly ever looked for.
        if "/\n" in joined or ("/." in joined and any(name in joined for name in _DOTS)):
            return None
        ends = map(str.rfind, urls, repeat("/"))
        folders = list(map(str.__getitem__, urls, map(slice, ends)))
        distinct = dict.fromkeys(folders)
        for each in distinct:
            if each not in self._folders:
                self._folders[each] = self._folder(each)
        found = {self._folders[each] for each in distinct}
        if None in found:
            return None
        if found == {True}:
            return [True] * len(urls)
        return list(map(bool, map(self._folders.__getitem__, folders)))

    def _folder(self, folder: str) -> bool | None:
        """Whether what lies in a folder may be used; None if the folder is not canonical."""
        probe = f"{folder}/x"
        try:
            url, verdict = self.one(probe)
        except InvalidInputError:
            return None
        return verdict if url == probe else None

    def one(self, url: str) -> tuple[str, bool]:
        """The canonical form, and whether it may be used."""
        ref = self._resolver.check(VirtualRef(url, 0, 1), validate_container=False)
        if not self._validate:
            return ref.location, True
        try:
            self._resolver.check(ref)
        except InvalidInputError:
            # All that the second look adds is that a container must have it.
            return ref.location, False
        return ref.location, True
