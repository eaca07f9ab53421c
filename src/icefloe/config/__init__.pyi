# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.config.conditions import ManifestPreloadCondition as ManifestPreloadCondition
from icefloe.config.conditions import ManifestSplitCondition as ManifestSplitCondition
from icefloe.config.conditions import ManifestSplitDimCondition as ManifestSplitDimCondition
from icefloe.config.containers import VirtualChunkContainer as VirtualChunkContainer
from icefloe.config.manifest_sets import ChunkManifests as ChunkManifests
from icefloe.config.manifest_sets import ManifestRule as ManifestRule
from icefloe.config.manifest_sets import ManifestSet as ManifestSet
from icefloe.config.manifests import ManifestConfig as ManifestConfig
from icefloe.config.manifests import ManifestSplittingConfig as ManifestSplittingConfig
from icefloe.config.preloading import ManifestPreload as ManifestPreload
from icefloe.config.preloading import ManifestPreloadConfig as ManifestPreloadConfig
from icefloe.config.preloading import PreloadArrays as PreloadArrays
from icefloe.config.preloading import PreloadRule as PreloadRule
from icefloe.config.repository import CachingConfig as CachingConfig
from icefloe.config.repository import ChunkPackingConfig as ChunkPackingConfig
from icefloe.config.repository import ChunkReadingConfig as ChunkReadingConfig
from icefloe.config.repository import CompressionAlgorithm as CompressionAlgorithm
from icefloe.config.repository import CompressionConfig as CompressionConfig
from icefloe.config.repository import RepoUpdateRetryConfig as RepoUpdateRetryConfig
from icefloe.config.repository import RepositoryConfig as RepositoryConfig
from icefloe.config.serialization import from_json as from_json
from icefloe.config.serialization import from_yaml as from_yaml
from icefloe.config.serialization import to_json as to_json
from icefloe.config.settings import Settings as Settings
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
