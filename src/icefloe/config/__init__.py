"""The configuration of repositories: values, defaults, files.

Names are imported when they are first used: reading a repository needs a part of them.
"""

from icefloe.lazy_names import lazy_names

PUBLIC_NAMES = {
    "icefloe.config.conditions": """
        ManifestPreloadCondition ManifestSplitCondition ManifestSplitDimCondition
    """,
    "icefloe.config.containers": "VirtualChunkContainer",
    "icefloe.config.manifest_sets": "ChunkManifests ManifestRule ManifestSet",
    "icefloe.config.manifests": "ManifestConfig ManifestSplittingConfig",
    "icefloe.config.preloading": """
        ManifestPreload ManifestPreloadConfig PreloadArrays PreloadRule
    """,
    "icefloe.config.repository": """
        CachingConfig ChunkPackingConfig ChunkReadingConfig CompressionAlgorithm
        CompressionConfig RepositoryConfig RepoUpdateRetryConfig
    """,
    "icefloe.config.serialization": "from_json from_yaml to_json",
    "icefloe.config.settings": "Settings",
}

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES)
