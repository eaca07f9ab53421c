"""The settings of a repository, as far as its generation can keep what they ask for."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.config.settings import Settings

if TYPE_CHECKING:
    from icefloe.config.repository import RepositoryConfig
    from icefloe.formats.port import Generation

logger = logging.getLogger(__name__)


def settings_for(config: RepositoryConfig, fmt: Generation) -> Settings:
    """The settings of a configuration; logs a warning for each that the format cannot keep."""
    settings = Settings.from_config(config)
    changes: dict[str, Any] = {}
    if not fmt.keeps_attribute_files:
        changes["inline_attributes_threshold_bytes"] = sys.maxsize
        if config.inline_attributes_threshold_bytes is not None:
            _warn(fmt, "inline_attributes_threshold_bytes", "attributes stay in their documents")
    if not fmt.keeps_manifest_sets:
        changes["chunk_manifests"] = settings.chunk_manifests.alone()
        manifest = config.manifest
        if manifest is not None and (manifest.sets is not None or manifest.rules is not None):
            _warn(
                fmt,
                "manifest.sets and manifest.rules",
                "each array has manifests of its own; of a set, only its split_size counts",
            )
    return msgspec.structs.replace(settings, **changes)


def _warn(fmt: Generation, setting: str, instead: str) -> None:
    logger.warning(
        "%s has no effect in a repository of the generation %r: %s", setting, fmt.name, instead
    )
