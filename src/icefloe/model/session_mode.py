"""What a session may do."""

from __future__ import annotations

from enum import StrEnum


class SessionMode(StrEnum):
    """What a session may do; equal to its name.

    `rearrange` exists for compatibility with the official package. Here every writable session can
    move nodes.
    """

    readonly = "readonly"
    writable = "writable"
    rearrange = "rearrange"
