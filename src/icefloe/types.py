"""Types of arguments: the names of the official package's module."""

from __future__ import annotations

from typing import Literal, TypeAlias

CommitMethod: TypeAlias = Literal["amend", "commit"]
"""How a rewrite of manifests is published."""

__all__ = ["CommitMethod"]
