"""Chunks in files outside of the repository: which may be read, and how."""

from icefloe.objects.foreign.resolver import VirtualChunkResolver

__all__ = ["VirtualChunkResolver"]
