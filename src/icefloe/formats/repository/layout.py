"""Where each object of a repository is (R1-08): files are named by ids in base 32 (H-24)."""

from __future__ import annotations

from icefloe.formats.layout import BASE32_LAYOUT

REFS_FOLDER = "refs"
LAYOUT = BASE32_LAYOUT
