"""Size and CRC-32C of a metadata file, recorded where it is referred to."""

from __future__ import annotations

import google_crc32c

from icefloe.model.snapshot import FileSum

IS_QUICK = google_crc32c.implementation == "c"
"""Whether the processor computes them. Otherwise none are written: that would take minutes."""


def sum_of(data: bytes) -> FileSum:
    """What to remember of a file that was read or is about to be written."""
    return FileSum(len(data), google_crc32c.value(data) if IS_QUICK else 0)
