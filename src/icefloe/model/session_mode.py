"""The modes of sessions: read-only, writable."""

from __future__ import annotations

from enum import StrEnum


class SessionMode(StrEnum):
    """The mode of a session; equal to its name.

    `rearrange` exists for compatibility with the official package. Here every writable session can
    move nodes.
    """

    readonly = "readonly"
    writable = "writable"
    rearrange = "rearrange"
