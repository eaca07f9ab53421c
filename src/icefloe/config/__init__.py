"""The configuration of repositories: values, defaults, files."""

from icefloe.config.conditions import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.containers import VirtualChunkContainer
from icefloe.config.manifest_sets import ChunkManifests, ManifestRule, ManifestSet
from icefloe.config.manifests import ManifestConfig, ManifestSplittingConfig
from icefloe.config.preloading import (
    ManifestPreload,
    ManifestPreloadConfig,
    PreloadArrays,
    PreloadRule,
)
from icefloe.config.repository import (
    CachingConfig,
    ChunkPackingConfig,
    ChunkReadingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
)
from icefloe.config.serialization import from_json, from_yaml, to_json
from icefloe.config.settings import Settings

__all__ = [
    "CachingConfig",
    "ChunkManifests",
    "ChunkPackingConfig",
    "ChunkReadingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "ManifestConfig",
    "ManifestPreload",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestRule",
    "ManifestSet",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "PreloadArrays",
    "PreloadRule",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "Settings",
    "VirtualChunkContainer",
    "from_json",
    "from_yaml",
    "to_json",
]
