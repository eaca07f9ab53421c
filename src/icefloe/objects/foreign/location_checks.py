"""Checks many locations of virtual chunks together, as strictly as each of them alone.

Nearly always, all are in canonical form and below one folder that a container has. That is seen in
the bytes of all of them, with no Python code for each.
"""

from __future__ import annotations

import io
import os
import string
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_refs import StringColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Verdicts = Sequence[bool] | bool
    """One for each location, or the same for all."""

_BATCH_LOCATIONS = 32_768
"""Few enough for their bytes to stay in the processor's cache."""
_PLAIN = string.ascii_letters.encode() + string.digits.encode() + b"!$&'()*+,;=:@._~/-"
"""Characters that the canonical form of a location never escapes."""
_PLAIN_LINES = _PLAIN + b"\n"
_DOT_SEGMENTS = (b"/.\n", b"/..\n", b"/./", b"/../")
"""Segments that the canonical form does not have."""
_SLASH, _DOT, _LINE_END = b"/.\n"


class LocationChecks:
    """Brings locations into canonical form and finds those that are accepted."""

    def __init__(self, check: Callable[[str], tuple[str, bool]]) -> None:
        """Take the check of one location: its canonical form, and whether it is accepted."""
        self._check = check
        self._folders: dict[str, bool | None] = {}

    def of_many(self, urls: Sequence[str]) -> tuple[StringColumn, npt.NDArray[np.bool_]]:
        """Canonical forms, and whether each is accepted."""
        accepted = np.empty(len(urls), dtype=np.bool_)
        ends = np.empty(len(urls), dtype=np.uint64)
        # It grows in place: joining the batches later would copy all of them.
        data = io.BytesIO()
        for start in range(0, len(urls), _BATCH_LOCATIONS):
            batch = urls[start : start + _BATCH_LOCATIONS]
            column, verdicts = self._of_batch(batch)
            ends[start : start + len(batch)] = column.ends + np.uint64(data.tell())
            accepted[start : start + len(batch)] = verdicts
            data.write(column.data)
        return StringColumn(data.getvalue(), ends), accepted

    def _of_batch(self, urls: Sequence[str]) -> tuple[StringColumn, Verdicts]:
        joined = "\n".join(urls)
        if joined.isascii():
            lines = joined.encode("ascii")
            octets = np.frombuffer(lines, dtype=np.uint8)
            ends = np.append(np.flatnonzero(octets == _LINE_END), len(octets))
            if len(ends) == len(urls):
                verdicts = self._of_canonical(urls, lines, octets, ends)
                if verdicts is not None:
                    # Where each ends without the line ends before it.
                    column_ends = (ends - np.arange(len(ends))).astype(np.uint64)
                    return StringColumn(lines.replace(b"\n", b""), column_ends), verdicts
        pairs = list(map(self._check, urls))
        return StringColumn.of(url for url, _ in pairs), [verdict for _, verdict in pairs]

    def _of_canonical(
        self,
        urls: Sequence[str],
        lines: bytes,
        octets: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.intp],
    ) -> Verdicts | None:
        """Whether each is accepted, if all are canonical already; None if some may not be.

        Args:
            urls: ASCII without line ends.
            lines: The same, with a line end between each and the next.
            octets: The same.
            ends: Where each of them ends.
        """
        if lines.translate(None, _PLAIN_LINES) or not all((urls[0], urls[-1])):
            return None
        # The last segment is a name. What is above of it is part of its folder.
        if (octets[ends - 1] == _SLASH).any():
            return None
        is_slash = octets == _SLASH
        if (is_slash[:-1] & (octets[1:] == _DOT)).any():
            whole = b"%b\n" % lines
            if any(segment in whole for segment in _DOT_SEGMENTS):
                return None
        doubled = int(np.count_nonzero(is_slash[:-1] & is_slash[1:]))
        if self._are_below_one_folder(urls, lines, doubled):
            return True
        return self._by_folder(urls)

    def _are_below_one_folder(self, urls: Sequence[str], lines: bytes, doubled: int) -> bool:
        """Whether all are canonical and below a folder that is accepted.

        Args:
            urls: They end in a name, have no dot segments, and nothing that could be escaped.
            lines: The same, with a line end between each and the next.
            doubled: How often a slash is before another one.
        """
        some = (urls[0], urls[len(urls) // 2], urls[-1])
        folder = os.path.commonprefix(some).rpartition("/")[0]  # noqa: RUF071 (cut at a slash)
        if not self._verdict(folder):
            return False
        prefix = f"{folder}/"
        own = sum(prefix.startswith("//", at) for at in range(len(prefix)))
        # If each begins with the folder, and has no other empty segment than the folder has.
        begin = lines.count(f"\n{prefix}".encode("ascii")) + urls[0].startswith(prefix)
        return begin == len(urls) and doubled == own * begin

    def _by_folder(self, urls: Sequence[str]) -> Verdicts | None:
        ends = map(str.rfind, urls, repeat("/"))
        folders = list(map(str.__getitem__, urls, map(slice, ends)))
        verdicts = set(map(self._verdict, dict.fromkeys(folders)))
        if None in verdicts:
            return None
        if verdicts == {True}:
            return True
        return list(map(bool, map(self._folders.__getitem__, folders)))

    def _verdict(self, folder: str) -> bool | None:
        """Whether the objects of a folder are accepted; None if its URL is not canonical."""
        if folder not in self._folders:
            self._folders[folder] = self._of_folder(folder)
        return self._folders[folder]

    def _of_folder(self, folder: str) -> bool | None:
        probe = f"{folder}/x"
        try:
            url, verdict = self._check(probe)
        except InvalidInputError:
            return None
        return verdict if url == probe else None
