"""The base of all immutable values."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True):
    """A frozen value: compared by its fields, cheap to make, picklable."""
