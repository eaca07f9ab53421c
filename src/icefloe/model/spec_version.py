"""Versions of the official format."""

from __future__ import annotations

from enum import IntEnum


class SpecVersion(IntEnum):
    """Versions of the format of the official package, for `Repository.create(spec_version=...)`.

    >>> import icefloe
    >>> storage = icefloe.in_memory_storage()
    >>> repo = icefloe.Repository.create(
    ...     storage, spec_version=icefloe.SpecVersion.v1, generation="icechunk"
    ... )
    >>> repo.spec_version == icefloe.SpecVersion.v1
    True
    """

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """The version that new repositories get."""
        return SpecVersion.v2
