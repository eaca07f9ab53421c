"""Transactional, versioned Zarr arrays on object storage.

Names are imported when they are first used, so that `import icefloe` is quick.
"""

from icefloe.lazy_names import lazy_names
from icefloe.version import __version__

PUBLIC_NAMES = {
    "icefloe.changes.conflicts": """
        BasicConflictSolver Conflict ConflictDetector ConflictSolver ConflictType Documents
        MergedDocument Sides VersionSelection
    """,
    "icefloe.changes.solvers": "AppendSolver MergeSolver",
    "icefloe.config": """
        CachingConfig ChunkPackingConfig ChunkReadingConfig CompressionAlgorithm
        CompressionConfig ManifestConfig ManifestPreload ManifestPreloadCondition
        ManifestPreloadConfig ManifestRule ManifestSet ManifestSplitCondition
        ManifestSplitDimCondition ManifestSplittingConfig PreloadArrays
        RepoUpdateRetryConfig RepositoryConfig VirtualChunkContainer
    """,
    "icefloe.diagnostics": """
        initialize_logs print_debug_info set_logs_filter spec_version
        supported_spec_versions
    """,
    "icefloe.engine.commit.forks": "OverlapWarning",
    "icefloe.engine.tree.chunk_batches": "ChunkBatch ChunkBytes",
    "icefloe.engine.history.blame": "Blame",
    "icefloe.display": "AncestryGraph",
    "icefloe.model.session_mode": "SessionMode",
    "icefloe.model.spec_version": "SpecVersion",
    "icefloe.storage.access.redirects": "redirect_storage",
    "icefloe.storage.attribution": "Attribution user_agent",
    "icefloe.types": "CommitMethod",
    "icefloe.engine.info": "Diff ManifestFileInfo SnapshotInfo",
    "icefloe.engine.operation_log": "Operation",
    "icefloe.model.repo_updates": "FeatureFlag RepoAvailability RepoStatus Update UpdateType",
    "icefloe.engine.retention.collection": "GCSummary",
    "icefloe.engine.retention.expiry": "ExpirationPolicy",
    "icefloe.engine.retention.leases": "Lease",
    "icefloe.errors": """
        AlreadyExistsError BrokenFilesError CommitStateUnknownError ConflictError
        DamagedChunkError ErrorKind ForkSessionError ForkedProcessError FormatError
        IcefloeError IcechunkError=IcefloeError InconsistentFilesError InvalidInputError
        InvalidTypeError MissingPackageError NodeNotFoundError NotFoundError
        ObjectNotFoundError ReadOnlyError
        ReadOnlyStoreError RebaseFailedError RefNotFoundError RepositoryNotFoundError
        SessionStateError SnapshotNotFoundError StorageError StoragePermissionError
        StorageUnreachableError StoreKeyNotFoundError TaskFailedError UnsafeStorageError
        VirtualChunkError
    """,
    "icefloe.model.chunk_refs": "ChunkKind ChunkType=ChunkKind",
    "icefloe.model.virtual_spec": "VirtualChunkSpec",
    "icefloe.repository": "Repository",
    "icefloe.session": "ForkSession Session",
    "icefloe.storage.access.credentials": """
        AnyAzureCredential AnyAzureStaticCredential AnyCredential AnyGcsCredential
        AnyGcsStaticCredential AnyS3Credential AzureBearerCredential AzureCredentials
        AzureRefreshableCredential
        AzureStaticCredentials Credentials GcsBearerCredential GcsCredentials
        GcsStaticCredentials S3Credentials S3StaticCredentials azure_anonymous_credentials
        azure_credentials azure_from_env_credentials azure_refreshable_credentials
        azure_static_credentials containers_credentials gcs_anonymous_credentials
        gcs_credentials gcs_from_env_credentials gcs_refreshable_credentials
        gcs_static_credentials s3_anonymous_credentials s3_credentials
        s3_from_env_credentials s3_refreshable_credentials s3_static_credentials
    """,
    "icefloe.storage.access.factories": """
        Storage=StorageFactory azure_storage gcs_storage http_storage in_memory_storage
        local_filesystem_storage r2_storage s3_storage tigris_storage
    """,
    "icefloe.storage.access.stores": """
        AnyObjectStoreConfig ChecksumAlgorithm ObjectStoreConfig S3Options azure_store
        gcs_store http_store local_filesystem_store s3_store
    """,
    "icefloe.storage.settings": """
        StorageConcurrencySettings StorageRetriesSettings StorageSettings
        StorageTimeoutSettings
    """,
    "icefloe.storage.split": "split_storage",
    "icefloe.upkeep.compaction": "CompactionSummary",
    "icefloe.upkeep.findings": "Problem ProblemKind VerificationReport",
    "icefloe.upkeep.sizes": "ChunkStorageStats",
    "icefloe.zarr_store.store": "IcefloeStore IcechunkStore=IcefloeStore",
}
"""The public names by module; `make api` writes the stub of this package from it.

`IcechunkStore=IcefloeStore` and the like are the official package's names with its brand in them.
"""

SUBMODULES = """
    conflicts credentials dask diagnostics distributed ops progress repository session snapshots
    spark storage store tables types virtual xarray
"""
"""Public modules, which `import icefloe` offers without importing them."""

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES, SUBMODULES)
__all__ += ["__version__"]
