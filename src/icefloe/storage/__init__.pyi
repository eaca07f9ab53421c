# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.storage.access.factories import StorageFactory as Storage
from icefloe.storage.access.factories import azure_storage as azure_storage
from icefloe.storage.access.factories import gcs_storage as gcs_storage
from icefloe.storage.access.factories import http_storage as http_storage
from icefloe.storage.access.factories import in_memory_storage as in_memory_storage
from icefloe.storage.access.factories import local_filesystem_storage as local_filesystem_storage
from icefloe.storage.access.factories import r2_storage as r2_storage
from icefloe.storage.access.factories import s3_object_store_storage as s3_object_store_storage
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
from icefloe.storage.settings import StorageConcurrencySettings as StorageConcurrencySettings
from icefloe.storage.settings import StorageRetriesSettings as StorageRetriesSettings
from icefloe.storage.settings import StorageSettings as StorageSettings
from icefloe.storage.settings import StorageTimeoutSettings as StorageTimeoutSettings
__all__ = [
    "AnyObjectStoreConfig",
    "ChecksumAlgorithm",
    "ObjectStoreConfig",
    "S3Options",
    "Storage",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "azure_storage",
    "azure_store",
    "gcs_storage",
    "gcs_store",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "local_filesystem_storage",
    "local_filesystem_store",
    "r2_storage",
    "redirect_storage",
    "s3_object_store_storage",
    "s3_storage",
    "s3_store",
    "tigris_storage",
]
