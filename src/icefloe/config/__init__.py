"""The configuration of repositories: values, defaults, files."""

from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.files import from_json, from_yaml, to_json
from icefloe.config.manifests import ManifestConfig, ManifestPreloadConfig, ManifestSplittingConfig
from icefloe.config.repository import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.config.settings import Settings

__all__ = [
    "CachingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "Settings",
    "VirtualChunkContainer",
    "from_json",
    "from_yaml",
    "to_json",
]
