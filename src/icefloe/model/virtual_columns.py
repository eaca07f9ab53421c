"""Virtual references of one array as columns: the one form from parsers and users to manifests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import Box, ChunkIndex, bounding_box
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, StringColumn
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.record import Record

LARGEST_POSITION = 2**63 - 1
"""The last byte of an object that a reference can reach."""


class VirtualColumns(Record, frozen=True, eq=False):
    """Which chunk is which range of which object; one row per chunk."""

    positions: npt.NDArray[np.integer] | Box
    """Chunk coordinates (n, rank), or a box whose chunks the rows fill in row-major order."""
    locations: list[str]
    """URLs of the objects; `etags` and `modified` have one entry for each of them."""
    codes: npt.NDArray[np.int64]
    """The object of each row, as an index into `locations`."""
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]
    etags: Sequence[str | None] | None = None
    """None if no etag is known."""
    modified: npt.NDArray[np.int64] | None = None
    """Last change in seconds since 1970, 0 where unknown; None if none is known."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def coords(self) -> npt.NDArray[np.integer]:
        """Chunk coordinates (n, rank) of all rows."""
        if isinstance(self.positions, Box):
            return self.positions.delinearize(np.arange(len(self), dtype=np.uint64))
        return self.positions

    @classmethod
    def in_one_object(
        cls,
        url: str,
        coords: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.integer],
        lengths: npt.NDArray[np.integer],
    ) -> VirtualColumns:
        """References to ranges of a single object."""
        return cls(
            positions=coords,
            locations=[url],
            codes=np.zeros(len(coords), dtype=np.int64),
            offsets=offsets.astype(np.uint64),
            lengths=lengths.astype(np.uint64),
        )

    @classmethod
    def none(cls, rank: int) -> VirtualColumns:
        """No references."""
        return cls(
            positions=np.empty((0, rank), dtype=np.int64),
            locations=[],
            codes=np.empty(0, dtype=np.int64),
            offsets=np.empty(0, dtype=np.uint64),
            lengths=np.empty(0, dtype=np.uint64),
        )

    @classmethod
    def concat(cls, parts: Sequence[VirtualColumns]) -> VirtualColumns:
        """Join references, and their dictionaries of locations, end to end."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0] + [len(part.locations) for part in parts])
        codes = [part.codes + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls(
            positions=np.concatenate([part.coords for part in parts]),
            locations=[url for part in parts for url in part.locations],
            codes=np.concatenate(codes),
            offsets=np.concatenate([part.offsets for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            etags=[etag for part in parts for etag in part.all_etags()],
            modified=np.concatenate([part.all_modified() for part in parts]),
        )

    def take(self, rows: npt.NDArray[np.intp]) -> VirtualColumns:
        """Chosen rows; the dictionary of locations stays."""
        return msgspec.structs.replace(
            self,
            positions=self.coords[rows],
            codes=self.codes[rows],
            offsets=self.offsets[rows],
            lengths=self.lengths[rows],
        )

    def at(self, mask: npt.NDArray[np.bool_]) -> VirtualColumns:
        """Only the rows whose location is marked, and only those locations."""
        if mask.all():
            return self
        rows, entries = np.flatnonzero(mask[self.codes]), np.flatnonzero(mask).tolist()
        chosen = self.take(rows)
        etags = self.all_etags()
        return msgspec.structs.replace(
            chosen,
            codes=(np.cumsum(mask) - 1)[chosen.codes],
            locations=[self.locations[entry] for entry in entries],
            etags=[etags[entry] for entry in entries],
            modified=self.all_modified()[entries],
        )

    def used(self) -> VirtualColumns:
        """The same rows, with only the locations that they use."""
        mask = np.zeros(len(self.locations), dtype=bool)
        mask[self.codes] = True
        return self.at(mask)

    def check_ranges(self) -> None:
        """Raise InvalidInputError unless every range has at least 1 byte and ends below 2**63."""
        if not len(self):
            return
        if not self.lengths.all():
            coords = self.coords[int(np.argmin(self.lengths))].tolist()
            raise InvalidInputError(f"a virtual chunk has at least 1 byte, {coords} has none")
        self.check_ends()

    def check_ends(self) -> None:
        """Raise InvalidInputError if a range ends at 2**63 or beyond."""
        if not len(self) or int(self.offsets.max()) + int(self.lengths.max()) <= LARGEST_POSITION:
            return
        largest = np.uint64(LARGEST_POSITION)
        # Neither alone may be larger, or the sum could wrap around.
        wrong = (self.offsets > largest) | (self.lengths > largest)
        wrong |= self.offsets + self.lengths > largest
        if wrong.any():
            row = int(np.argmax(wrong))
            end = int(self.offsets[row]) + int(self.lengths[row])
            raise InvalidInputError(f"a virtual chunk ends below 2**63, that of row {row} at {end}")

    def to_chunks(self, locations: StringColumn | None = None) -> ArrayChunks:
        """The table that changes and manifests hold, of at least one row.

        Where coordinates repeat, the later row wins.

        Args:
            locations: What to take for the locations: their canonical form.
        """
        count = len(self)
        refs = ChunkRefs(
            kinds=np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
            sources=self.codes.astype(np.uint32),
            offsets=self.offsets,
            lengths=self.lengths,
            checksums=np.zeros(count, dtype=np.uint32),
            files=np.empty((0, ChunkFileId.SIZE), dtype=np.uint8),
            locations=self._dictionary(locations),
            inline=b"",
        )
        if isinstance(self.positions, Box):
            return ArrayChunks(ChunkIndex(self.positions, None), refs)
        box = bounding_box(self.positions)
        linear = box.linearize(self.positions)
        if (linear[1:] > linear[:-1]).all():
            return ArrayChunks(ChunkIndex.from_sorted(box, linear), refs)
        order = np.argsort(linear, kind="stable")
        linear = linear[order]
        is_last = np.append(linear[1:] != linear[:-1], True)
        index = ChunkIndex.from_sorted(box, linear[is_last])
        return ArrayChunks(index, refs.take(order[is_last]))

    def _dictionary(self, locations: StringColumn | None) -> Locations:
        if self.etags is None:
            etags = StringColumn(b"", np.zeros(len(self.locations), dtype=np.uint64))
        else:
            etags = StringColumn.of([etag or "" for etag in self.etags])
        urls = StringColumn.of(self.locations) if locations is None else locations
        return Locations(urls, etags, self.all_modified())

    def all_etags(self) -> Sequence[str | None]:
        """The etag of each location."""
        return [None] * len(self.locations) if self.etags is None else self.etags

    def all_modified(self) -> npt.NDArray[np.int64]:
        """The time of the last change of each location."""
        if self.modified is None:
            return np.zeros(len(self.locations), dtype=np.int64)
        return self.modified
