"""Files that are numbered by a sequence: the newest sorts first and is found by its name.

A folder holds one file per number, from 0 and without gaps; each is written once and never altered
or removed. Creating the next one, if it is absent, is the only way to move on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.model.ids import decode_base32, encode_base32

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

MAX_SEQUENCE = 2**40 - 1  # H-19
_SUFFIX = ".json"


def sequence_name(sequence: int) -> str:
    """Name of the file of a sequence number (R3-43); raises InvalidInputError past the last one."""
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise InvalidInputError(
            f"sequence numbers go from 0 to {MAX_SEQUENCE}, found {sequence}; "
            "a new branch starts a new sequence"
        )
    return encode_base32((MAX_SEQUENCE - sequence).to_bytes(5, "big")) + _SUFFIX


def parse_sequence_name(name: str) -> int | None:
    """Sequence number of a file; None if it is not named like one."""
    try:
        complement = int.from_bytes(decode_base32(name.removesuffix(_SUFFIX), 5), "big")
    except ValueError:
        return None
    sequence = MAX_SEQUENCE - complement
    return sequence if sequence_name(sequence) == name else None


class SequenceFolder:
    """A folder of sequence files in a storage."""

    def __init__(self, storage: Storage, folder: str) -> None:
        """Take a folder without a slash at its end."""
        self._storage = storage
        self._folder = folder
        self._seen = 0

    def key(self, sequence: int) -> str:
        """Key of the file of a number."""
        return f"{self._folder}/{sequence_name(sequence)}"

    def read(self, sequence: int) -> bytes | None:
        """Content of a file, if it exists."""
        try:
            return self._storage.get(self.key(sequence))
        except ObjectNotFoundError:
            return None

    def create(self, sequence: int, data: bytes) -> None:
        """Create a file; raises AlreadyExistsError if it exists with other content."""
        self._storage.create(self.key(sequence), data)
        self._seen = max(self._seen, sequence)

    def start_at(self, sequence: int) -> None:
        """Look for the newest file from a number on; that it is too high does no harm."""
        self._seen = sequence

    def newest(self) -> tuple[int, bytes] | None:
        """Number and content of the newest file."""
        capabilities = self._storage.capabilities
        if capabilities.can_list and capabilities.lists_in_pages:
            found = self._list_first()
        else:
            found = self._probe()
        if found is not None:
            self._seen = found[0]
        return found

    def highest(self) -> int | None:
        """Number of the newest file, by listing: gaps do not hide it."""
        prefix = f"{self._folder}/"
        names = (info.key[len(prefix) :] for info in self._storage.list(prefix))
        numbers = (parse_sequence_name(name) for name in names)  # the newest sorts first
        return next((number for number in numbers if number is not None), None)

    def _list_first(self) -> tuple[int, bytes] | None:
        """List one key (R3-94); look further only if something foreign sorts before it."""
        prefix = f"{self._folder}/"
        for limit in (1, None):
            listed = None
            for listed in self._storage.list(prefix, limit=limit):
                sequence = parse_sequence_name(listed.key[len(prefix) :])
                if sequence is not None:
                    return sequence, self._storage.get(listed.key)
            if listed is None:
                return None
        return None

    def _after_a_gap(self) -> tuple[int, bytes] | None:
        """The newest file of a folder that has lost its first one, if it can be listed."""
        highest = self.highest() if self._storage.capabilities.can_list else None
        data = None if highest is None else self.read(highest)
        return None if highest is None or data is None else (highest, data)

    def _probe(self) -> tuple[int, bytes] | None:
        """Find the last number by doubling steps and then halving them (H-26)."""
        low, data = self._seen, self.read(self._seen)
        if data is None and low > 0:
            # What was seen is gone: another repository stands here now.
            low, data = 0, self.read(0)
        if data is None:
            return self._after_a_gap()
        step, high = 1, None
        while high is None and low < MAX_SEQUENCE:
            candidate = min(low + step, MAX_SEQUENCE)
            found = self.read(candidate)
            if found is None:
                high = candidate
            else:
                low, data, step = candidate, found, step * 2
        while high is not None and high - low > 1:
            middle = (low + high) // 2
            found = self.read(middle)
            if found is None:
                high = middle
            else:
                low, data = middle, found
        return low, data
