"""Manifests that are wholly in memory; imported by tests of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.manifest import Manifest, lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks


def whole_manifest(parts: Sequence[tuple[NodeId, ArrayChunks]]) -> Manifest:
    index, blocks = lay_out(parts)
    return Manifest(index, blocks.__getitem__)
