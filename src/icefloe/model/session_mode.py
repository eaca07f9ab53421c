"""What a session may do."""

from __future__ import annotations

from enum import StrEnum


class SessionMode(StrEnum):
    """What a session may do; equal to its name.

    `rearrange` is of the official package. Here every writable session moves nodes.
    """

    readonly = "readonly"
    writable = "writable"
    rearrange = "rearrange"
