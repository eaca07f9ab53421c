"""Where each object of a repository of the official package is: the same in both versions."""

from __future__ import annotations

from icefloe.formats.layout import BASE32_LAYOUT

LAYOUT = BASE32_LAYOUT
REFS_FOLDER = "refs"
"""Branches and tags of version 1."""
REPO_KEY = "repo"
"""The references of version 2, and all else that can change."""
CONFIG_KEY = "config.yaml"
"""The configuration of version 1."""
BACKUP_FOLDER = "overwritten"
"""Copies of what was replaced."""
