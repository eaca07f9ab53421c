# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.changes.conflicts import BasicConflictSolver as BasicConflictSolver
from icefloe.changes.conflicts import Conflict as Conflict
from icefloe.changes.conflicts import ConflictDetector as ConflictDetector
from icefloe.changes.conflicts import ConflictSolver as ConflictSolver
from icefloe.changes.conflicts import ConflictType as ConflictType
from icefloe.changes.conflicts import Documents as Documents
from icefloe.changes.conflicts import MergedDocument as MergedDocument
from icefloe.changes.conflicts import Sides as Sides
from icefloe.changes.conflicts import VersionSelection as VersionSelection
from icefloe.changes.solvers import AppendSolver as AppendSolver
from icefloe.changes.solvers import MergeSolver as MergeSolver
from icefloe.config import CachingConfig as CachingConfig
from icefloe.config import ChunkPackingConfig as ChunkPackingConfig
from icefloe.config import ChunkReadingConfig as ChunkReadingConfig
from icefloe.config import CompressionAlgorithm as CompressionAlgorithm
from icefloe.config import CompressionConfig as CompressionConfig
from icefloe.config import ManifestConfig as ManifestConfig
from icefloe.config import ManifestPreload as ManifestPreload
from icefloe.config import ManifestPreloadCondition as ManifestPreloadCondition
from icefloe.config import ManifestPreloadConfig as ManifestPreloadConfig
from icefloe.config import ManifestRule as ManifestRule
from icefloe.config import ManifestSet as ManifestSet
from icefloe.config import ManifestSplitCondition as ManifestSplitCondition
from icefloe.config import ManifestSplitDimCondition as ManifestSplitDimCondition
from icefloe.config import ManifestSplittingConfig as ManifestSplittingConfig
from icefloe.config import PreloadArrays as PreloadArrays
from icefloe.config import RepoUpdateRetryConfig as RepoUpdateRetryConfig
from icefloe.config import RepositoryConfig as RepositoryConfig
from icefloe.config import VirtualChunkContainer as VirtualChunkContainer
from icefloe.diagnostics import initialize_logs as initialize_logs
from icefloe.diagnostics import print_debug_info as print_debug_info
from icefloe.diagnostics import set_logs_filter as set_logs_filter
from icefloe.diagnostics import spec_version as spec_version
from icefloe.diagnostics import supported_spec_versions as supported_spec_versions
from icefloe.display import AncestryGraph as AncestryGraph
from icefloe.engine.commit.forks import OverlapWarning as OverlapWarning
from icefloe.engine.history.blame import Blame as Blame
from icefloe.engine.info import Diff as Diff
from icefloe.engine.info import ManifestFileInfo as ManifestFileInfo
from icefloe.engine.info import SnapshotInfo as SnapshotInfo
from icefloe.engine.operation_log import Operation as Operation
from icefloe.engine.retention.collection import GCSummary as GCSummary
from icefloe.engine.retention.expiry import ExpirationPolicy as ExpirationPolicy
from icefloe.engine.retention.leases import Lease as Lease
from icefloe.engine.tree.chunk_batches import ChunkBatch as ChunkBatch
from icefloe.engine.tree.chunk_batches import ChunkBytes as ChunkBytes
from icefloe.errors import AlreadyExistsError as AlreadyExistsError
from icefloe.errors import BrokenFilesError as BrokenFilesError
from icefloe.errors import CommitStateUnknownError as CommitStateUnknownError
from icefloe.errors import ConflictError as ConflictError
from icefloe.errors import DamagedChunkError as DamagedChunkError
from icefloe.errors import ErrorKind as ErrorKind
from icefloe.errors import ForkSessionError as ForkSessionError
from icefloe.errors import ForkedProcessError as ForkedProcessError
from icefloe.errors import FormatError as FormatError
from icefloe.errors import IcefloeError as IcechunkError
from icefloe.errors import IcefloeError as IcefloeError
from icefloe.errors import InconsistentFilesError as InconsistentFilesError
from icefloe.errors import InvalidInputError as InvalidInputError
from icefloe.errors import InvalidTypeError as InvalidTypeError
from icefloe.errors import MissingPackageError as MissingPackageError
from icefloe.errors import NodeNotFoundError as NodeNotFoundError
from icefloe.errors import NotFoundError as NotFoundError
from icefloe.errors import ObjectNotFoundError as ObjectNotFoundError
from icefloe.errors import ReadOnlyError as ReadOnlyError
from icefloe.errors import ReadOnlyStoreError as ReadOnlyStoreError
from icefloe.errors import RebaseFailedError as RebaseFailedError
from icefloe.errors import RefNotFoundError as RefNotFoundError
from icefloe.errors import RepositoryNotFoundError as RepositoryNotFoundError
from icefloe.errors import SessionStateError as SessionStateError
from icefloe.errors import SnapshotNotFoundError as SnapshotNotFoundError
from icefloe.errors import StorageError as StorageError
from icefloe.errors import StoragePermissionError as StoragePermissionError
from icefloe.errors import StorageUnreachableError as StorageUnreachableError
from icefloe.errors import StoreKeyNotFoundError as StoreKeyNotFoundError
from icefloe.errors import TaskFailedError as TaskFailedError
from icefloe.errors import UnsafeStorageError as UnsafeStorageError
from icefloe.errors import VirtualChunkError as VirtualChunkError
from icefloe.model.chunk_refs import ChunkKind as ChunkKind
from icefloe.model.chunk_refs import ChunkKind as ChunkType
from icefloe.model.repo_updates import FeatureFlag as FeatureFlag
from icefloe.model.repo_updates import RepoAvailability as RepoAvailability
from icefloe.model.repo_updates import RepoStatus as RepoStatus
from icefloe.model.repo_updates import Update as Update
from icefloe.model.repo_updates import UpdateType as UpdateType
from icefloe.model.session_mode import SessionMode as SessionMode
from icefloe.model.spec_version import SpecVersion as SpecVersion
from icefloe.model.virtual_spec import VirtualChunkSpec as VirtualChunkSpec
from icefloe.repository import Repository as Repository
from icefloe.session import ForkSession as ForkSession
from icefloe.session import Session as Session
from icefloe.storage.access.credentials import AnyAzureCredential as AnyAzureCredential
from icefloe.storage.access.credentials import AnyAzureStaticCredential as AnyAzureStaticCredential
from icefloe.storage.access.credentials import AnyCredential as AnyCredential
from icefloe.storage.access.credentials import AnyGcsCredential as AnyGcsCredential
from icefloe.storage.access.credentials import AnyGcsStaticCredential as AnyGcsStaticCredential
from icefloe.storage.access.credentials import AnyS3Credential as AnyS3Credential
from icefloe.storage.access.credentials import AzureBearerCredential as AzureBearerCredential
from icefloe.storage.access.credentials import AzureCredentials as AzureCredentials
from icefloe.storage.access.credentials import AzureRefreshableCredential as AzureRefreshableCredential
from icefloe.storage.access.credentials import AzureStaticCredentials as AzureStaticCredentials
from icefloe.storage.access.credentials import Credentials as Credentials
from icefloe.storage.access.credentials import GcsBearerCredential as GcsBearerCredential
from icefloe.storage.access.credentials import GcsCredentials as GcsCredentials
from icefloe.storage.access.credentials import GcsStaticCredentials as GcsStaticCredentials
from icefloe.storage.access.credentials import S3Credentials as S3Credentials
from icefloe.storage.access.credentials import S3StaticCredentials as S3StaticCredentials
from icefloe.storage.access.credentials import azure_anonymous_credentials as azure_anonymous_credentials
from icefloe.storage.access.credentials import azure_credentials as azure_credentials
from icefloe.storage.access.credentials import azure_from_env_credentials as azure_from_env_credentials
from icefloe.storage.access.credentials import azure_refreshable_credentials as azure_refreshable_credentials
from icefloe.storage.access.credentials import azure_static_credentials as azure_static_credentials
from icefloe.storage.access.credentials import containers_credentials as containers_credentials
from icefloe.storage.access.credentials import gcs_anonymous_credentials as gcs_anonymous_credentials
from icefloe.storage.access.credentials import gcs_credentials as gcs_credentials
from icefloe.storage.access.credentials import gcs_from_env_credentials as gcs_from_env_credentials
from icefloe.storage.access.credentials import gcs_refreshable_credentials as gcs_refreshable_credentials
from icefloe.storage.access.credentials import gcs_static_credentials as gcs_static_credentials
from icefloe.storage.access.credentials import s3_anonymous_credentials as s3_anonymous_credentials
from icefloe.storage.access.credentials import s3_credentials as s3_credentials
from icefloe.storage.access.credentials import s3_from_env_credentials as s3_from_env_credentials
from icefloe.storage.access.credentials import s3_refreshable_credentials as s3_refreshable_credentials
from icefloe.storage.access.credentials import s3_static_credentials as s3_static_credentials
from icefloe.storage.access.factories import StorageFactory as Storage
from icefloe.storage.access.factories import azure_storage as azure_storage
from icefloe.storage.access.factories import gcs_storage as gcs_storage
from icefloe.storage.access.factories import http_storage as http_storage
from icefloe.storage.access.factories import in_memory_storage as in_memory_storage
from icefloe.storage.access.factories import local_filesystem_storage as local_filesystem_storage
from icefloe.storage.access.factories import r2_storage as r2_storage
from icefloe.storage.access.factories import s3_storage as s3_storage
from icefloe.storage.access.factories import tigris_storage as tigris_storage
from icefloe.storage.access.redirects import redirect_storage as redirect_storage
from icefloe.storage.access.stores import AnyObjectStoreConfig as AnyObjectStoreConfig
from icefloe.storage.access.stores import ChecksumAlgorithm as ChecksumAlgorithm
from icefloe.storage.access.stores import ObjectStoreConfig as ObjectStoreConfig
from icefloe.storage.access.stores import S3Options as S3Options
from icefloe.storage.access.stores import azure_store as azure_store
from icefloe.storage.access.stores import gcs_store as gcs_store
from icefloe.storage.access.stores import http_store as http_store
from icefloe.storage.access.stores import local_filesystem_store as local_filesystem_store
from icefloe.storage.access.stores import s3_store as s3_store
from icefloe.storage.attribution import Attribution as Attribution
from icefloe.storage.attribution import user_agent as user_agent
from icefloe.storage.settings import StorageConcurrencySettings as StorageConcurrencySettings
from icefloe.storage.settings import StorageRetriesSettings as StorageRetriesSettings
from icefloe.storage.settings import StorageSettings as StorageSettings
from icefloe.storage.settings import StorageTimeoutSettings as StorageTimeoutSettings
from icefloe.storage.split import split_storage as split_storage
from icefloe.types import CommitMethod as CommitMethod
from icefloe.upkeep.compaction import CompactionSummary as CompactionSummary
from icefloe.upkeep.findings import Problem as Problem
from icefloe.upkeep.findings import ProblemKind as ProblemKind
from icefloe.upkeep.findings import VerificationReport as VerificationReport
from icefloe.upkeep.sizes import ChunkStorageStats as ChunkStorageStats
from icefloe.zarr_store.store import IcefloeStore as IcechunkStore
from icefloe.zarr_store.store import IcefloeStore as IcefloeStore
__version__: str
__all__ = [
    "AlreadyExistsError",
    "AncestryGraph",
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyObjectStoreConfig",
    "AnyS3Credential",
    "AppendSolver",
    "Attribution",
    "AzureBearerCredential",
    "AzureCredentials",
    "AzureRefreshableCredential",
    "AzureStaticCredentials",
    "BasicConflictSolver",
    "Blame",
    "BrokenFilesError",
    "CachingConfig",
    "ChecksumAlgorithm",
    "ChunkBatch",
    "ChunkBytes",
    "ChunkKind",
    "ChunkPackingConfig",
    "ChunkReadingConfig",
    "ChunkStorageStats",
    "ChunkType",
    "CommitMethod",
    "CommitStateUnknownError",
    "CompactionSummary",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Credentials",
    "DamagedChunkError",
    "Diff",
    "Documents",
    "ErrorKind",
    "ExpirationPolicy",
    "FeatureFlag",
    "ForkSession",
    "ForkSessionError",
    "ForkedProcessError",
    "FormatError",
    "GCSummary",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "IcechunkError",
    "IcechunkStore",
    "IcefloeError",
    "IcefloeStore",
    "InconsistentFilesError",
    "InvalidInputError",
    "InvalidTypeError",
    "Lease",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreload",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestRule",
    "ManifestSet",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "MergeSolver",
    "MergedDocument",
    "MissingPackageError",
    "NodeNotFoundError",
    "NotFoundError",
    "ObjectNotFoundError",
    "ObjectStoreConfig",
    "Operation",
    "OverlapWarning",
    "PreloadArrays",
    "Problem",
    "ProblemKind",
    "ReadOnlyError",
    "ReadOnlyStoreError",
    "RebaseFailedError",
    "RefNotFoundError",
    "RepoAvailability",
    "RepoStatus",
    "RepoUpdateRetryConfig",
    "Repository",
    "RepositoryConfig",
    "RepositoryNotFoundError",
    "S3Credentials",
    "S3Options",
    "S3StaticCredentials",
    "Session",
    "SessionMode",
    "SessionStateError",
    "Sides",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SpecVersion",
    "Storage",
    "StorageConcurrencySettings",
    "StorageError",
    "StoragePermissionError",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "StorageUnreachableError",
    "StoreKeyNotFoundError",
    "TaskFailedError",
    "UnsafeStorageError",
    "Update",
    "UpdateType",
    "VerificationReport",
    "VersionSelection",
    "VirtualChunkContainer",
    "VirtualChunkError",
    "VirtualChunkSpec",
    "__version__",
    "azure_anonymous_credentials",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_refreshable_credentials",
    "azure_static_credentials",
    "azure_storage",
    "azure_store",
    "containers_credentials",
    "gcs_anonymous_credentials",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "gcs_storage",
    "gcs_store",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "initialize_logs",
    "local_filesystem_storage",
    "local_filesystem_store",
    "print_debug_info",
    "r2_storage",
    "redirect_storage",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
    "s3_storage",
    "s3_store",
    "set_logs_filter",
    "spec_version",
    "split_storage",
    "supported_spec_versions",
    "tigris_storage",
    "user_agent",
]
