"""Files that are numbered by a sequence: the newest sorts first and is found by its name.

A folder holds one file per number, from 0 and without gaps; each is written once and never altered
or removed. Creating the next one, if it is absent, is the only way to move on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from icefloe.errors import InvalidInputError, ObjectNotFoundError
from icefloe.model.ids import decode_base32, encode_base32
from icefloe.storage.concurrency import together

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from icefloe.storage.port import ObjectInfo, Storage

    _Listed: TypeAlias = tuple[int, ObjectInfo]

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


class _Known(NamedTuple):
    """A file that was read or created here."""

    sequence: int
    data: bytes
    modified: datetime | None
    """When it was written by the storage's clock, if that was seen."""

    def is_still(self, sequence: int, info: ObjectInfo) -> bool:
        """Whether a listed file is this one: they are never altered, but places are used again."""
        is_as_old = self.modified is None or self.modified == info.last_modified
        return self.sequence == sequence and info.size == len(self.data) and is_as_old


class SequenceFolder:
    """A folder of sequence files in a storage."""

    def __init__(self, storage: Storage, folder: str) -> None:
        """Take a folder without a slash at its end."""
        self._storage = storage
        self._folder = folder
        self._seen = 0
        self._known: _Known | None = None

    def key(self, sequence: int) -> str:
        """Key of the file of a number."""
        return f"{self._folder}/{sequence_name(sequence)}"

    def read(self, sequence: int) -> bytes | None:
        """Content of a file, if it exists."""
        try:
            return self._storage.get(self.key(sequence))
        except ObjectNotFoundError:
            return None

    def forget(self) -> None:
        """Forget what was read and created here: the folder is another one now."""
        self._known = None

    def create(self, sequence: int, data: bytes) -> None:
        """Create a file; raises AlreadyExistsError if it exists with other content."""
        self._storage.create(self.key(sequence), data)
        self._seen = max(self._seen, sequence)
        self._known = _Known(sequence, data, None)

    def start_at(self, sequence: int) -> None:
        """Look for the newest file from a number on; that it is too high does no harm."""
        self._seen = sequence

    def newest(self, guess: int | None = None) -> tuple[int, bytes] | None:
        """Number and content of the newest file; a good `guess` at the number saves a round."""
        return self.find_newest(guess)()

    def find_newest(self, guess: int | None = None) -> Callable[[], tuple[int, bytes] | None]:
        """Find the number of the newest file; returns how to read it."""
        capabilities = self._storage.capabilities
        if capabilities.can_list and capabilities.lists_in_pages:
            listed = self._list_first(guess)
            return lambda: self._noted(self._read_listed(*listed))
        latest = self._probe()
        return lambda: self._noted(latest)

    def _noted(self, latest: tuple[int, bytes] | None) -> tuple[int, bytes] | None:
        """Remember where to look for the newest file the next time."""
        if latest is not None:
            self._seen = latest[0]
        return latest

    def highest(self) -> int | None:
        """Number of the newest file, by listing: gaps do not hide it."""
        prefix = f"{self._folder}/"
        names = (info.key[len(prefix) :] for info in self._storage.list(prefix))
        numbers = (parse_sequence_name(name) for name in names)  # the newest sorts first
        return next((number for number in numbers if number is not None), None)

    def _list_first(self, guess: int | None) -> tuple[_Listed | None, bytes | None]:
        """The newest file by its name, and what the guessed one says, if it was asked for."""
        if guess is None or self._storage.capabilities.reads_are_immediate:
            return self._first_listed(), None
        listed, data = together(self._storage, self._first_listed, lambda: self.read(guess))
        if listed is None or listed[0] != guess:
            return listed, None
        if data is not None:
            self._known = _Known(guess, data, listed[1].last_modified)
        return listed, data

    def _first_listed(self) -> _Listed | None:
        """List one key (R3-94); look further only if something foreign sorts before it."""
        prefix = f"{self._folder}/"
        for limit in (1, None):
            listed = None
            for listed in self._storage.list(prefix, limit=limit):
                sequence = parse_sequence_name(listed.key[len(prefix) :])
                if sequence is not None:
                    return sequence, listed
            if listed is None:
                return None
        return None

    def _read_listed(self, listed: _Listed | None, data: bytes | None) -> tuple[int, bytes] | None:
        if listed is None:
            return None
        return listed[0], self.read_listed(*listed) if data is None else data

    def read_listed(self, sequence: int, info: ObjectInfo) -> bytes:
        """Content of a listed file; one that was read before is not read again."""
        known = self._known
        is_still = known is not None and known.is_still(sequence, info)
        data = known.data if known is not None and is_still else self._storage.get(info.key)
        # Also the time of a file that was created here: another one in its place has another.
        self._known = _Known(sequence, data, info.last_modified)
        return data

    def _after_a_gap(self) -> tuple[int, bytes] | None:
        """The newest file of a folder that has lost its first one, if it can be listed."""
        highest = self.highest() if self._storage.capabilities.can_list else None
        data = None if highest is None else self.read(highest)
        return None if highest is None or data is None else (highest, data)

    def _probe(self) -> tuple[int, bytes] | None:
        """Find the last number by doubling steps and then halving them (H-26)."""
        low = self._seen
        data, following = self._read_with_next(low)
        if data is None and low > 0:
            # The state that was seen is gone: this is another repository now.
            low = 0
            data, following = self._read_with_next(0)
        if data is None:
            return self._after_a_gap()
        step, high = 1, None
        while high is None and low < MAX_SEQUENCE:
            candidate = min(low + step, MAX_SEQUENCE)
            content = following if step == 1 else self.read(candidate)
            if content is None:
                high = candidate
            else:
                low, data, step = candidate, content, step * 2
        while high is not None and high - low > 1:
            middle = (low + high) // 2
            content = self.read(middle)
            if content is None:
                high = middle
            else:
                low, data = middle, content
        return low, data

    def _read_with_next(self, sequence: int) -> tuple[bytes | None, bytes | None]:
        """Contents of a file and of the one after it, as far as they exist."""
        if self._storage.capabilities.reads_are_immediate or sequence == MAX_SEQUENCE:
            data = self.read(sequence)
            is_last = data is None or sequence == MAX_SEQUENCE
            return data, None if is_last else self.read(sequence + 1)
        return together(self._storage, lambda: self.read(sequence), lambda: self.read(sequence + 1))
